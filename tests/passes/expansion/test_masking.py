"""Padding: a padded program does at its true places what the same text does without padding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from escc.compiler.simulate.reference import random_stored, run_reference
from escc.ir.diagnostics import InputError, Source
from escc.ir.expr import operands
from escc.ir.program import Einsum, Map, Program, Repeat, signature, walk
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.expansion.pad_signs import PadSigns
from escc.passes.expansion.signs import LOW, NEGATIVE, POSITIVE, ZERO

PLAIN = {"B": 3, "E": 5, "F": 7, "H": 4, "Q": 6, "V": 11, "L": 2, "M": 8, "K": 2}
LARGE = {"B": 4, "E": 8, "F": 9, "H": 6, "Q": 10, "V": 16}
DIMS = "dim " + ", ".join(f"{d} = {n}" for d, n in PLAIN.items()) + "\ndim H2 = H\n"

# name -> declarations, arguments of main, its body
CASES = {
    "projections": ("param W: bf16[E,F]\nparam U: bf16[F,E]", "x: bf16[B,E]", """
        u[B,F] = x[B,E] * W[E,F]
        d[B,E] = u[B,F] * U[F,E]
        return x + 2 * d"""),
    "an activation that is not zero at zero": ("param W: bf16[E,F]\nparam U: bf16[F,E]", "x: bf16[B,E]", """
        u[B,F] = x[B,E] * W[E,F]
        h = sigmoid(u)
        d[B,E] = h[B,F] * U[F,E]
        s = sum(h, over=F)
        return d, s, mean(exp(u) + 1, over=[B, F])"""),
    "norms": ("param a, b: bf16[E]\nparam c: bf16[Q]", "x: bf16[B,E], y: bf16[B,H,Q]", """
        n = layernorm(x, a, b, over=E)
        m = rmsnorm(x, a, over=E)
        r = rmsnorm(y, c, over=Q)
        q[B] = r[B,H,Q] * y[B,H,Q]
        p = mean(n, over=E)
        return n, m, r, q, p"""),
    "soft maxima": ("", "x: bf16[B,V], y: bf16[B,V]", """
        p = softmax(x, over=V)
        o[B] = p[B,V] * y[B,V]
        e = sum(p, over=V)
        all = softmax(x * y, over=[B, V])
        return p, o, e, all"""),
    "maxima": ("", "x: bf16[B,V], y: bf16[B,E]", """
        m = max(x - 10, over=V)
        n = max(x * x, over=[B, V])
        i = argmax(0 - x * x, over=V)
        j = argmax(y, over=[B, E])
        return m, n, i, j"""),
    "tables": ("param table: bf16[V,E]", "ids: i32[B]", """
        x = take(table, ids, over=V)
        t[B,V] = x[B,E] * table[V,E]
        z = last(t, over=B)
        return x, argmax(t / sqrt(size(E)), over=V), z, last(t, over=[V, B])"""),
    "codes with zero points": ("""param U: (int8[E,F] - int8[F]) * f32[F]
        param T: (int8[F,E] - f32[E]) * f32[E]""", "x: bf16[F]", """
        s[F] = U[E,F]
        t[E] = x[F] * T[F,E]
        u[F] = U[E,F] * U[E,F]
        v[] = U[E,F] * T[F,E]
        return s, t, u, v, mean(U, over=E), sum(exp(T), over=F)"""),
    "the largest": ("", "x: bf16[B,V]", """
        values, ids = top_k(0 - x * x, over=V, keep=K)
        return values, ids, sum(values, over=[B, K])"""),
    "attention": ("""param Wq: bf16[E,H,Q]
        param Wk: bf16[E,Q]
        param Wo: bf16[H,Q,E]
        cache keys: bf16[B,M,Q]""", "x: bf16[B,L,E]", """
        q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
        k[B,L,Q] = x[B,L,E] * Wk[E,Q]
        ks = append(keys, rope(k, over=Q, at=L into M), L into M)
        rq = rope(q, over=Q, at=L into M)
        s[B,L,H,M] = rq[B,L,H,Q] * ks[B,M,Q]
        p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M))
        o[B,L,H,Q] = p[B,L,H,M] * ks[B,M,Q]
        a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
        return a, mean(o, over=[H, Q])"""),
    "arithmetic that fails at zero": ("", "x: bf16[B,H], y: bf16[B,H]", """
        a = 1 / x
        b = log(x * x)
        c = x / (y * y)
        u[B] = y[B,H] * a[B,H]
        v[B] = y[B,H] * b[B,H]
        w[B,H] = y[B,H] * b[B,H]
        d = sum(b - 2 * log(y * y), over=H)
        return u, v, w, d, y - b, a + y, sum(c, over=[B, H]), max(rsqrt(x * x), over=H)"""),
    "two dims of one size": ("param W: bf16[H,H2]", "x: bf16[B,H]", """
        y[B,H2] = x[B,H] * W[H,H2]
        g[B,H,H2] = x[B,H] * y[B,H2]
        return y, sum(exp(y), over=H2), max(exp(g), over=[H, H2])"""),
    "masks of the language, summed": ("", "x: bf16[L,M,H], y: bf16[L,M,H]", """
        p = softmax(x, over=M, mask=causal(L, M))
        t = softmax(exp(x), over=H)
        o[L,H] = p[L,M,H] * y[L,M,H]
        return o, sum(o, over=H), t"""),
    "factors that are -inf somewhere": ("", "x: bf16[H,B], y: bf16[H,B]", """
        l = log(x * x)
        o[B] = y[H,B] * l[H,B]
        s = sum(0.5 * l - 2 * y, over=H)
        return o, s, 2 * y - 0.5 * l"""),
    "values that broadcast": ("", "x: bf16[B,H], y: bf16[H], z: bf16[B]", """
        a = 1 * (x + log(y * y))
        b = exp(x - y) / exp(z)
        return a, b, mean(b, over=[B, H]), x / z + y"""),
}  # fmt: skip
REPEATED = """
    block f(x: bf16[B,H], y: bf16[B,H], z: bf16[B,H]) -> bf16[B,H], bf16[B,H], bf16[B,H] {
      param W: bf16[H]
      s[B] = z[B,H] * z[B,H]
      return x + 0.1 * s, exp(x * W), y
    }
    main(x: bf16[B,H]) { a, b, c = repeat 4 f(x, x, x)
      return a, b, c, sum(a * b, over=H) }
"""


def text(name: str) -> str:
    before, arguments, body = CASES[name]
    return f"{DIMS}{before}\nmain({arguments}) {{{body}\n}}"


def program(content: str, **pads: int) -> Program:
    source = Source("test.esti", content)
    return expand(parse(source), source, None, pads)


Arrays = Mapping[str, NDArray[Any]]


def grown(arrays: Arrays, large: Program) -> dict[str, NDArray[Any]]:
    """Stored arrays with zeros behind them, up to the sizes of a padded program."""
    sizes, values, out = dict(large.phases[0].sizes), large.table(), {}
    for name, array in arrays.items():
        lead = array.shape[: array.ndim - len(values[name].dims)]
        out[name] = np.zeros((*lead, *(sizes[d] for d in values[name].dims)), dtype=array.dtype)
        out[name][tuple(slice(n) for n in array.shape)] = array
    return out


def assert_alike(content: str, **pads: int) -> None:
    """Run both programs whole, the padded one at its padded sizes."""
    plain, large = program(content), program(content, **pads)
    assert plain.padding == () and {d for d, _ in large.padding} >= set(pads)
    arrays = random_stored(plain, dict(plain.phases[0].sizes), seed=3)
    expected = run_reference(plain, dict(plain.phases[0].sizes), arrays)
    actual = run_reference(large, dict(large.phases[0].sizes), grown(arrays, large))
    for name, whole in expected.items():
        found = actual[name][tuple(slice(n) for n in whole.shape)]
        assert actual[name].shape != whole.shape or not set(pads) & set(plain.table()[name].dims)
        np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-12, err_msg=name)
        assert (actual[name] < np.inf).all(), "beyond the true sizes nothing fails"


def paddable(content: str) -> list[str]:
    """The dims with a padded size that stand in a text beside their declaration."""
    return [d for d in LARGE if re.search(rf"\b{d}\b", content.split("\n", 2)[2])]


def trials() -> list[tuple[str, tuple[str, ...]]]:
    found = []
    for name in CASES:
        dims = paddable(text(name))
        found += [(name, chosen) for n in range(1, len(dims) + 1) for chosen in combinations(dims, n)]
    return found


@pytest.mark.parametrize(("name", "dims"), trials(), ids=lambda part: part if isinstance(part, str) else "".join(part))
def test_padding_changes_nothing_at_true_places(name: str, dims: tuple[str, ...]) -> None:
    assert_alike(text(name), **{d: LARGE[d] for d in dims})


@pytest.mark.parametrize(("name", "dims"), trials(), ids=lambda part: part if isinstance(part, str) else "".join(part))
def test_what_is_said_of_the_padding_holds(name: str, dims: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element beyond a true size has a sign that is said of it."""
    pads = {d: LARGE[d] for d in dims}
    large, plain = program(text(name), **pads), program(text(name))
    monkeypatch.setattr("escc.passes.expansion.expand.mask_padding", lambda made: made)
    signs = PadSigns(program(text(name), **pads))
    sizes = dict(large.phases[0].sizes)
    arrays = grown(random_stored(plain, dict(plain.phases[0].sizes), seed=4), large)
    made = run_reference(large, sizes, arrays, None, [v.name for v in large.values])
    true = large.true_sizes(sizes)
    for (value, dim), said in signs.beyond.items():
        at = large.table()[value].dims.index(dim)
        found = np.take(made[value], range(true[dim], sizes[dim]), axis=at)
        allowed = [(ZERO, found == 0), (POSITIVE, found > 0), (NEGATIVE, found < 0), (LOW, found == -np.inf)]
        fits = np.any([held & (np.isfinite(found) | (sign is LOW)) for sign, held in allowed if sign in said], axis=0)
        assert np.all(fits), f"`{value}` beyond `{dim}` is {found[~fits][:3]}, not {said}"


@pytest.mark.parametrize("pads", [{"H": 6}, {"B": 8}, {"H": 5, "B": 4}], ids=str)
def test_what_a_repetition_hands_on_is_masked_too(pads: dict[str, int]) -> None:
    assert_alike(DIMS + REPEATED, **pads)


def masks(made: Program) -> list[str]:
    return [v.name for v in made.values if ".masked" in v.name or ".place" in v.name]


def test_heads_need_no_mask() -> None:
    """Zero queries average values, and the output projection drops that: PaLM's plan stays as it is."""
    content = text("attention").replace(", mean(o, over=[H, Q])", "")
    assert program(content, H=6).body == program(content).body


@pytest.mark.parametrize("name", ["projections", "attention"])
def test_sums_of_zeros_need_no_mask(name: str) -> None:
    content = text(name).replace(", mean(o, over=[H, Q])", "")
    assert masks(program(content, **{d: LARGE[d] for d in paddable(content)})) == masks(program(content))


def test_a_mask_is_made_once_in_a_region() -> None:
    made = program(f"{DIMS}main(x: bf16[B,F]) {{ y = exp(x)\n return sum(y, over=F), mean(y, over=F) }}", F=9)
    assert masks(made) == ["y.place", "y.masked"]


def test_products_with_a_contraction_are_sums_and_others_are_terms() -> None:
    """Of terms on both sides of zero a sum may be zero, and a term is not."""
    made = program(
        f"{DIMS}main(x: bf16[B,F], y: bf16[F]) {{ a[B] = x[B,F] * y[F]\n b[B,F] = x[B,F] * y[F]\n return a, b }}"
    )
    values = made.table()
    einsums = [placed.item for placed in walk(made.body) if isinstance(placed.item, Einsum)]
    assert {op.result: signature(op, values).sums for op in einsums} == {"a": True, "b": False}


def test_numbers_are_the_true_sizes() -> None:
    made = program(f"{DIMS}main(x: bf16[H,Q]) {{ return x * size(H) / size(Q) }}", H=6)
    assert made.padding == (("H", "H_true"), ("H2", "H_true"))
    sizes = dict(made.phases[0].sizes)
    assert (sizes["H"], sizes["H2"], sizes["H_true"], sizes["Q"]) == (6, 6, 4, 6)
    assert "Q_true" not in sizes
    assert made.true_sizes(sizes)["H"] == made.true_sizes(sizes)["H2"] == 4


def test_the_name_of_a_true_size_is_free() -> None:
    made = program("dim H = 4 pad 6, H_true = 3\nmain(x: bf16[H,H_true]) { return x * size(H_true) }")
    assert made.padding == (("H", "H_true_"),)
    [scale] = [p.item.expr for p in walk(made.body) if isinstance(p.item, Map)]
    assert operands(scale) == ("x",) and "H_true_" not in str(scale)


def test_each_phase_has_its_own_true_size() -> None:
    content = "dim B\nmain(x: bf16[B]) { return sum(exp(x), over=B) / size(B) }\nphase a { B = 5 }\nphase b { B = 8 }"
    made = program(content, B=8)
    assert [dict(p.sizes) for p in made.phases] == [{"B": 8, "B_true": 5}, {"B": 8, "B_true": 8}]
    assert program(content.replace("B = 5", "B = 8"), B=8).padding == ()


def test_a_caller_overrides_the_file() -> None:
    content = "dim H = 4 pad 6\nmain(x: bf16[H]) { return x + x }"
    assert dict(program(content).phases[0].sizes) == {"H": 6, "H_true": 4}
    assert dict(program(content, H=8).phases[0].sizes) == {"H": 8, "H_true": 4}
    assert program(content, H=4).padding == ()
    assert dict(program(content, H=4).phases[0].sizes) == {"H": 4}


@pytest.mark.parametrize(
    ("pads", "message"),
    [
        ({"H": 3}, "Dim `H` = 4 is padded to 3, which is smaller."),
        ({"M": 9}, "Dim `M` is padded, and new entries stand at the end of a context."),
        ({"Q": 7}, "Dim `Q` is padded to 7, which is odd, and pairs are turned."),
        ({"H2": 6}, "Dim `H2` cannot be padded: its size follows from other dims."),
        ({"Hh": 6}, "Dim `Hh` is not declared."),
        ({"H": 0}, "The padded size of dim `H` must be at least 1."),
        ({"H": 2**41}, "The padded size of dim `H` is larger than 2^40."),
    ],
    ids=str,
)
def test_a_wrong_pad_is_refused(pads: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        program(text("attention"), **pads)
    assert [d.message for d in caught.value.diagnostics] == [message]


def test_a_phase_larger_than_the_pad_is_named() -> None:
    content = "dim B\nmain(x: bf16[B]) { return x + x }\nphase a { B = 5 }\nphase b { B = 9 }"
    with pytest.raises(InputError, match="In phase `b` dim `B` = 9 is padded to 8, which is smaller"):
        program(content, B=8)


def test_a_size_that_is_set_counts_in_place_of_the_declared_one() -> None:
    source = Source("m.esti", "dim B = 512\nmain(x: bf16[B]) { return x + x }")
    made = expand(parse(source), source, {"B": 8}, {"B": 12})
    assert dict(made.phases[0].sizes) == {"B": 12, "B_true": 8}
    with pytest.raises(InputError, match="dim `B` = 16 is padded to 12"):
        expand(parse(source), source, {"B": 16}, {"B": 12})


def test_repeats_keep_what_they_carry() -> None:
    made = program(DIMS + REPEATED, H=6)
    [repeat] = [p.item for p in walk(made.body) if isinstance(p.item, Repeat)]
    assert {c.inside for c in repeat.carries} == {"f.x", "f.y", "f.z"}


def test_no_zeros_stand_in_a_type_without_a_zero() -> None:
    """What multiplies it is masked, though that has more dims."""
    text = (
        "dim B = 3, E = 5\nparam s: e8m0[E]\nmain(x: bf16[B,E]) {\n  t = exp(x)\n  y[B] = t[B,E] * s[E]\n  return y\n}"
    )
    values = program(text, E=8).table()
    assert "t.masked" in values and "s.masked" not in values


def test_beyond_true_sizes_a_type_without_a_zero_holds_numbers() -> None:
    signs = PadSigns(program("dim E = 5\nmain(s: e8m0[E], x: bf16[E]) { return s * x }", E=8))
    assert (signs.beyond["s", "E"], signs.beyond["x", "E"]) == (ZERO | POSITIVE, ZERO)
