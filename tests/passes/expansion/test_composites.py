"""What composites compute: their ops, run by a small interpreter, against the textbook formulas."""

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from escc.ir.diagnostics import InputError, Source
from escc.ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size
from escc.ir.program import Append, Einsum, Iota, Map, Op, Reduce, Repeat, Sum, Take, TopK
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

Array = NDArray[np.float64]
SIZES = {"B": 2, "L": 3, "M": 5, "E": 4, "V": 7}
SIZES |= {"S": 3, "W": 6, "K": 4, "N": 2}
LETTERS = {name: name.lower() for name in SIZES}


def erf(a: Array) -> Array:
    return np.asarray(np.vectorize(math.erf)(a))


def exact_gelu(a: Array) -> Array:
    return np.asarray(0.5 * a * (1 + erf(a / math.sqrt(2))))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "negate": np.negative,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "relu": lambda a: np.maximum(a, 0),
    "silu": lambda a: a / (1 + np.exp(-a)),
    "gelu": lambda a: 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
    "erf": erf,
    "gelu_exact": exact_gelu,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "power": np.power,
    "less_equal": lambda a, b: (a <= b) * 1.0,
    "equal": lambda a, b: (a == b) * 1.0,
    "where": lambda c, a, b: np.where(c != 0, a, b),
}


def run(body: str, inputs: str, **given: Array) -> Array:
    """The result of a `main` with this body, in float64."""
    dims = ", ".join(f"{name} = {size}" for name, size in SIZES.items()) + ", C = S * W"
    source = Source("test.esti", f"dim {dims}\ncache keys: f32[B,M,E]\nmain({inputs}) {{\n{body}\n}}")
    program = expand(parse(source), source)
    dims_of = {value.name: value.dims for value in program.values}
    values = dict(given)
    for item in program.body.items:
        assert not isinstance(item, Repeat)
        values[item.result] = step(item, values, dims_of)
        assert values[item.result].shape == tuple(SIZES[d] for d in dims_of[item.result])
    return values[program.results[0]]


def step(op: Op, values: dict[str, Array], dims: dict[str, tuple[str, ...]]) -> Array:
    match op:
        case Einsum(_, operands, indices, output):
            letters = ",".join("".join(LETTERS[i] for i in list_) for list_ in indices)
            arrays = [values[name] for name in operands]
            return np.asarray(np.einsum(f"{letters}->{''.join(LETTERS[i] for i in output)}", *arrays))
        case Map(result, expr):
            shape = tuple(SIZES[d] for d in dims[result])
            return np.broadcast_to(evaluate(expr, values, dims, dims[result]), shape)
        case Sum(result, operands, coefficients):
            terms = (c * spread(values[n], dims[n], dims[result]) for n, c in zip(operands, coefficients, strict=True))
            return np.asarray(sum(terms))
        case Reduce(_, operand, over):
            return np.asarray(values[operand].max(axis=tuple(dims[operand].index(d) for d in over)))
        case Take(_, table, ids, over):
            rest = [d for d in dims[table] if d not in over]
            rows = values[table].transpose([dims[table].index(d) for d in (*over, *rest)])
            return rows.reshape(-1, *(SIZES[d] for d in rest))[values[ids].astype(int)]
        case TopK(_, keys, picked, over, keep):
            rest = [d for d in dims[keys] if d not in over]
            shape = tuple(SIZES[d] for d in (*rest, *over))
            entries = (np.broadcast_to(spread(values[n], dims[n], (*rest, *over)), shape) for n in (keys, picked))
            key, entry = (a.reshape(*shape[: len(rest)], -1) for a in entries)
            # Among equal keys lexsort goes by the place, the last of its keys first.
            order = np.stack([np.lexsort((np.arange(len(row)), -row)) for row in key.reshape(-1, key.shape[-1])])
            return np.take_along_axis(entry, order.reshape(key.shape), -1)[..., : SIZES[keep]]
        case Iota(_, dim):
            return np.arange(SIZES[dim], dtype=float)
        case Append(_, cache, new, source, target):
            result = np.moveaxis(values[cache].copy(), dims[cache].index(target), 0)
            result[SIZES[target] - SIZES[source] :] = np.moveaxis(values[new], dims[new].index(source), 0)
            return np.moveaxis(result, 0, dims[cache].index(target))


def spread(array: Array, have: tuple[str, ...], want: tuple[str, ...]) -> Array:
    """An array with its axes in the order of `want`, of length 1 where it has none."""
    present = [d for d in want if d in have]
    ordered = np.transpose(array, [have.index(d) for d in present])
    return ordered.reshape([SIZES[d] if d in have else 1 for d in want])


def evaluate(expr: Expr, values: dict[str, Array], dims: dict[str, tuple[str, ...]], want: tuple[str, ...]) -> Array:
    match expr:
        case Const(value):
            return np.asarray(value)
        case Size(dim) | Context(dim):
            return np.asarray(float(SIZES[dim]))
        case Operand(name):
            return spread(values[name], dims[name], want)
        case Rotate(operand, dim):
            array = np.moveaxis(evaluate(operand, values, dims, want), want.index(dim), -1)
            turned = np.stack([-array[..., 1::2], array[..., 0::2]], axis=-1).reshape(array.shape)
            return np.moveaxis(turned, -1, want.index(dim))
        case Call(function, arguments):
            with np.errstate(all="ignore"):
                return FUNCTIONS[function](*(evaluate(a, values, dims, want) for a in arguments))


def data(*dims: str, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=[SIZES[d] for d in dims])


def plain_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def test_softmax() -> None:
    x = data("B", "E")
    found = run("return softmax(3 * x, over=E)", "x: f32[B,E]", x=x)
    np.testing.assert_allclose(found, plain_softmax(3 * x))


def test_causal_softmax_masks_by_position() -> None:
    x = data("B", "L", "M")
    found = run("return softmax(x, over=M, mask=causal(L, M))", "x: f32[B,L,M]", x=x)
    for query in range(3):
        seen = 5 - 3 + query + 1  # query l stands at M - L + l
        np.testing.assert_allclose(found[:, query, :seen], plain_softmax(x[:, query, :seen]))
        assert not found[:, query, seen:].any()


def test_a_mask_of_scores_leaves_out_what_is_nought_in_it_and_weighs_nothing() -> None:
    x, mask = data("B", "E"), np.resize([2.0, 0.0, 0.5, -1.0], [SIZES[d] for d in "BE"])
    found = run("return softmax(x, over=E, among=z)", "x: f32[B,E], z: f32[B,E]", x=x, z=mask)
    np.testing.assert_allclose(found, plain_softmax(np.where(mask, x, -np.inf)))


def test_norms() -> None:
    x, w, b = data("B", "L", "E"), data("E", seed=1), data("E", seed=2)
    found = run("return rmsnorm(x, w, over=E)", "x: f32[B,L,E], w: f32[E]", x=x, w=w)
    np.testing.assert_allclose(found, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w)
    found = run("return layernorm(x, w, b, over=E)", "x: f32[B,L,E], w: f32[E], b: f32[E]", x=x, w=w, b=b)
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(found, centred / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * w + b)


def test_what_two_functions_sum_alike_is_summed_once() -> None:
    inputs, x, w = "x: f32[B,E], w: f32[E], b: f32[E]", data("B", "E", seed=1), data("E", seed=2)
    body = """  n = layernorm(x, w, b, over=E)
  m = layernorm(2 * x, w, over=E) + rmsnorm(x, b, over=E, eps=0.5)
  return n + m + mean(2 * x, over=E) * layernorm(x, b, over=E)"""
    source = Source("test.esti", f"dim B = 2, E = 4\nmain({inputs}) {{\n{body}\n}}")
    sums = [op for op in expand(parse(source), source).body.items if isinstance(op, Einsum)]
    assert len(sums) == 4  # x and x * x, and the same of 2 * x
    b = data("E", seed=3)

    def normed(y: Array) -> Array:
        return (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6)

    other = x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.5) * b
    wanted = normed(x) * w + b + normed(2 * x) * w + other + 2 * x.mean(-1, keepdims=True) * normed(x) * b
    assert run(body, inputs, x=x, w=w, b=b) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_what_was_refused_stands_for_nothing_later() -> None:
    norm = "rmsnorm(c + 1, s, over=V)"
    body = f"  m = choose(x, over=V, keep=2)\n  c = m * x\n  n = {norm}\n  k = {norm}\n  return n + k"
    source = Source("test.esti", f"dim B = 2, V = 7\nmain(x: f32[B,V], s: f32[V]) {{\n{body}\n}}")
    with pytest.raises(InputError) as refused:
        expand(parse(source), source)
    said = [(found.span.line, found.message) for found in refused.value.diagnostics if found.span]
    assert [line for line, _ in said] == [5, 6]
    assert all(".input` is not 0 where the chosen `c` is" in message for _, message in said)


def test_what_does_not_vary_has_a_norm() -> None:
    """Though its variance comes out below 0 here and there, as it is rounded."""
    x = np.linspace(0.1, 3, 8).reshape(2, 1, 4).repeat(3, axis=1)
    assert (np.einsum("ble,ble->be", x, x) / 3 < (x.sum(1) / 3) ** 2).any()
    found = run("return layernorm(x, w, over=L, eps=1e-30)", "x: f32[B,L,E], w: f32[L]", x=x, w=np.ones(3))
    assert np.isfinite(found).all()


def test_rope_turns_pairs_by_position() -> None:
    x = data("B", "L", "E")
    found = run("return rope(x, over=E, at=L into M)", "x: f32[B,L,E]", x=x)
    for token in range(3):
        for pair in range(2):
            angle = (5 - 3 + token) * 10000 ** (-2 * pair / 4)
            turned = (x[:, token, 2 * pair] + 1j * x[:, token, 2 * pair + 1]) * np.exp(1j * angle)
            np.testing.assert_allclose(found[:, token, 2 * pair], turned.real)
            np.testing.assert_allclose(found[:, token, 2 * pair + 1], turned.imag)


def test_take_append_and_means() -> None:
    table, ids = data("E", "V"), np.array([[0.0, 6, 3], [2, 2, 5]])
    found = run("return take(t, ids, over=V)", "t: f32[E,V], ids: i32[B,L]", t=table, ids=ids)
    np.testing.assert_array_equal(found, table.T[ids.astype(int)])
    keys, new = data("B", "M", "E"), data("B", "L", "E", seed=1)
    found = run("return append(keys, x, L into M)", "x: f32[B,L,E]", x=new, keys=keys)
    np.testing.assert_array_equal(found, np.concatenate([keys[:, :2], new], axis=1))
    found = run("return mean(x, over=[B,L]) + 2 * max(x, over=[L,B]) - sum(x, over=[B,L])", "x: f32[B,L,E]", x=new)
    np.testing.assert_allclose(found, new.mean((0, 1)) + 2 * new.max((0, 1)) - new.sum((0, 1)))


def test_take_from_a_table_for_each_row_and_from_one_in_two_dims() -> None:
    table, ids = data("B", "V", "E"), np.array([6.0, 2])
    found = run("return take(t, ids, over=V)", "t: f32[B,V,E], ids: i32[B]", t=table, ids=ids)
    np.testing.assert_array_equal(found, np.stack([table[0, 6], table[1, 2]]))
    several = np.array([[0, 1, 6]] * 2)
    found = run("return take(t, ids, over=V)", "t: i32[B,V], ids: i32[B,L]", t=table[..., 0], ids=several)
    np.testing.assert_array_equal(found, table[:, [0, 1, 6], 0])
    table, ids = data("S", "E", "W"), np.array([17.0, 6])
    found = run("return take(t, ids, over=C)", "t: f32[S,E,W], ids: i32[B]", t=table, ids=ids)
    np.testing.assert_array_equal(found, [table[2, :, 5], table[1, :, 0]])


def test_positions_and_the_last_element() -> None:
    found = run("return take(t, positions(L into M), over=V)", "t: f32[V,E]", t=(table := data("V", "E")))
    np.testing.assert_array_equal(found, table[2:5])  # the last 3 of a context of 5
    x = data("B", "L", "E")
    np.testing.assert_array_equal(run("return last(x, over=L)", "x: f32[B,L,E]", x=x), x[:, -1])


def test_argmax_takes_the_lowest_place() -> None:
    x = np.array([[1.0, 3, -2, 3], [-np.inf, -7, -np.inf, -7]])
    np.testing.assert_array_equal(run("return argmax(x, over=E)", "x: f32[B,E]", x=x), [1, 1])
    nothing = np.full((2, 4), -np.inf)
    np.testing.assert_array_equal(run("return argmax(x, over=E)", "x: f32[B,E]", x=nothing), [0, 0])
    x = data("B", "S", "W")
    found = run("return argmax(2 * x, over=C)", "x: f32[B,S,W]", x=x)
    np.testing.assert_array_equal(found, x.reshape(2, -1).argmax(-1))


@pytest.mark.parametrize("dims", ["B,V", "B,S,W"])
def test_top_k_whole_and_in_parts(dims: str) -> None:
    over = "V" if dims == "B,V" else "C"
    x = np.round(data(*dims.split(",")) * 2)  # so that many are equal
    body, inputs = f"v, i = top_k(x, over={over}, keep=K)\nreturn ", f"x: f32[{dims}]"
    flat = x.reshape(2, -1)
    order = np.argsort(-flat, axis=-1, kind="stable")[:, :4]
    assert len(np.unique(np.take_along_axis(flat, order, -1))) < 8
    np.testing.assert_array_equal(run(body + "v", inputs, x=x), np.take_along_axis(flat, order, -1))
    np.testing.assert_array_equal(run(body + "i", inputs, x=x), order)


@pytest.mark.parametrize("dims", list(permutations("BSW")))
@pytest.mark.parametrize("over", [*permutations("BW"), *permutations("SW"), *permutations("BSW")])
def test_top_k_over_dims_in_any_order(dims: tuple[str, ...], over: tuple[str, ...]) -> None:
    x = np.round(data(*dims) * 2)
    inputs, body = f"x: f32[{','.join(dims)}]", f"v, i = top_k(x, over=[{','.join(over)}], keep=N)\nreturn "
    rest = [d for d in dims if d not in over]
    flat = x.transpose([dims.index(d) for d in (*rest, *over)]).reshape(*(SIZES[d] for d in rest), -1)
    order = np.argsort(-flat, axis=-1, kind="stable")[..., :2]
    np.testing.assert_array_equal(run(body + "v", inputs, x=x), np.take_along_axis(flat, order, -1))
    np.testing.assert_array_equal(run(body + "i", inputs, x=x), order)


def test_argmax_of_what_is_no_number_is_a_place() -> None:
    x = np.array([[np.nan, 1.0, 2.0, 0.0], [3.0, np.nan, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])[:2]
    assert set(run("return argmax(x, over=E)", "x: f32[B,E]", x=x)) <= {0, 1, 2, 3}


def test_sampling_by_given_noise() -> None:
    logits, noise = data("B", "S", "W"), 3 * data("B", "K", seed=1)
    body = """v, i = top_k(logits, over=C, keep=K)
      return take(i, argmax(v / 0.5 + noise, over=K), over=K)"""
    found = run(body, "logits: f32[B,S,W], noise: f32[B,K]", logits=logits, noise=noise)
    flat = logits.reshape(2, -1)
    order = np.argsort(-flat, axis=-1)[:, :4]
    chosen = (np.take_along_axis(flat, order, -1) / 0.5 + noise).argmax(-1)
    assert chosen.any()
    np.testing.assert_array_equal(found, order[np.arange(2), chosen])


def test_gates() -> None:
    g, u = data("B", "E"), data("B", "E", seed=1)
    inputs = "g: f32[B,E], u: f32[B,E]"
    np.testing.assert_allclose(run("return swiglu(g, u)", inputs, g=g, u=u), g / (1 + np.exp(-g)) * u)
    np.testing.assert_allclose(run("return geglu(g, u)", inputs, g=g, u=u), FUNCTIONS["gelu"](g) * u)
    np.testing.assert_allclose(run("return gelu_exact(g) * erf(u)", inputs, g=g, u=u), exact_gelu(g) * erf(u))


def test_numbers_clamp() -> None:
    x = 9 * data("B", "E")
    assert np.abs(x).max() > 7
    np.testing.assert_array_equal(run("return minimum(maximum(x, -7), 7)", "x: f32[B,E]", x=x), np.clip(x, -7, 7))
    np.testing.assert_array_equal(run("return minimum(7, x)", "x: f32[B,E]", x=x), np.minimum(x, 7))
