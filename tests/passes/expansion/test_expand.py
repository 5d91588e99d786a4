"""The expansion: what each construct of the language becomes, op by op."""

from pathlib import Path

import pytest

from escc.ir.diagnostics import InputError, Source
from escc.ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size
from escc.ir.program import (
    Append,
    Einsum,
    Iota,
    Map,
    Op,
    Program,
    Reduce,
    Region,
    Repeat,
    Sum,
    Take,
    TopK,
    operand_names,
)
from escc.ir.text.read import parse, read_source
from escc.passes.expansion.expand import expand

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.esti"))
SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
DIMS = "dim B = 2, L = 4, M = 8, E = 6, F = 10, K = 2, G = 3, V = 5\ndim H = K * G, S = L\n"


def program(text: str, **settings: int) -> Program:
    source = Source("test.esti", text)
    return expand(parse(source), source, settings)


def main(body: str, inputs: str = "x: bf16[B,E], y: bf16[B,E]", before: str = "") -> list[str]:
    """The ops of a `main` with this body, as text."""
    made = program(f"{DIMS}{before}\nmain({inputs}) {{\n{body}\n}}")
    return shown(made, made.body)


def shown(made: Program, region: Region[Op]) -> list[str]:
    values = made.table()

    def typed(name: str) -> str:
        return f"{name}: {values[name].dtype.value}[{','.join(values[name].dims)}]"

    lines: list[str] = []
    for item in region.items:
        if isinstance(item, Repeat):
            carries = ", ".join(f"{c.initial}|{c.inside}|{c.next}|{c.result}" for c in item.carries)
            lines.append(f"repeat {item.count} {item.name} ({carries})")
            lines += [f"  {s.kind.value} {typed(s.value)}" for s in item.body.stored]
            lines += ["  " + line for line in shown(made, item.body)]
        else:
            lines.append(f"{typed(item.result)} = {right(item)}")
    return lines


def right(op: Op) -> str:
    match op:
        case Einsum(_, operands, indices, output):
            inside = " ".join(f"{n}[{','.join(i)}]" for n, i in zip(operands, indices, strict=True))
            return f"einsum {inside} -> [{','.join(output)}]"
        case Map(_, expr):
            return f"map {arithmetic(expr)}"
        case Sum(_, operands, coefficients):
            return "sum " + " ".join(f"{c:+g}*{n}" for n, c in zip(operands, coefficients, strict=True))
        case Reduce(_, operand, over):
            return f"max {operand} over {','.join(over)}"
        case Take(_, table, ids, over):
            return f"take {table} {ids} over {','.join(over)}"
        case TopK(_, keys, picked, over, keep):
            return f"top_k {keys} {picked} over {','.join(over)} keep {keep}"
        case Iota(_, dim):
            return f"iota {dim}"
        case Append(_, cache, new, source, target):
            return f"append {cache} {new} {source} into {target}"


def arithmetic(expr: Expr) -> str:
    match expr:
        case Const(value):
            return f"{value:g}"
        case Operand(name):
            return name
        case Size(dim):
            return f"#{dim}"
        case Context(dim):
            return f"filled {dim}"
        case Rotate(operand, dim):
            return f"rotate[{dim}]({arithmetic(operand)})"
        case Call(function, (a, b)) if function in SIGNS:
            return f"({arithmetic(a)} {SIGNS[function]} {arithmetic(b)})"
        case Call(function, arguments):
            return f"{function}({', '.join(map(arithmetic, arguments))})"


def refused(text: str, **settings: int) -> list[str]:
    with pytest.raises(InputError) as caught:
        program(text, **settings)
    return [d.message for d in caught.value.diagnostics]


# Pointwise


def test_a_pointwise_statement_is_one_map() -> None:
    assert main("h = silu(x) * y\nreturn h") == ["h: bf16[B,E] = map (silu(x) * y)"]
    assert main("h = swiglu(x, y + 1)\nreturn h") == ["h: bf16[B,E] = map (silu(x) * (y + 1))"]
    assert main("h = geglu(x, y)\nreturn h") == ["h: bf16[B,E] = map (gelu(x) * y)"]
    assert main("h = 2 * (x + y) / sqrt(size(E))\nreturn h") == ["h: bf16[B,E] = map ((2 * (x + y)) / sqrt(#E))"]
    assert main("h = maximum(x, -2)\nreturn h") == ["h: bf16[B,E] = map maximum(x, -2)"]
    assert main("h = -x\nreturn h") == ["h: bf16[B,E] = map negate(x)"]
    assert main("h = x\nreturn h") == ["h: bf16[B,E] = map x"]


def test_operands_broadcast_by_dim_names() -> None:
    inputs = "b: bf16[E], x: bf16[B,L,E], t: bf16[E,B]"
    assert main("h = b * x\nreturn h", inputs) == ["h: bf16[B,L,E] = map (b * x)"]
    assert main("h = x * t\nreturn h", inputs) == ["h: bf16[B,L,E] = map (x * t)"]
    assert main("h = b + x\nreturn h", inputs) == ["h: bf16[B,L,E] = sum +1*b +1*x"]


def test_a_result_has_the_widest_float_type() -> None:
    inputs = "a: int8[E], b: bf16[E], c: f32[E], d: f16[E], e: fp8[E]"
    for body, dtype in [
        ("a * e", "bf16"),
        ("a * b", "bf16"),
        ("b * c", "f32"),
        ("d * d", "f16"),
        ("d * b", "f32"),
        ("a + c", "f32"),
    ]:
        assert main(f"h = {body}\nreturn h", inputs)[0].startswith(f"h: {dtype}[E]")
    assert main("h: f32 = b * b\nreturn h", inputs)[0].startswith("h: f32[E]")
    assert main("h: f32[E] = b[E] * b[E]\nreturn h", inputs)[0].startswith("h: f32[E] = einsum")


def test_a_size_of_a_product_is_a_product() -> None:
    assert main("h = x / size(H)\nreturn h") == ["h: bf16[B,E] = map (x / (#K * #G))"]


# Sums


def test_sums_are_flat_with_coefficients() -> None:
    assert main("return x + y") == ["return: bf16[B,E] = sum +1*x +1*y"]
    assert main("h = -(x - (y + 2 * z)) - z / 4\nreturn h", "x: bf16[B], y: bf16[B], z: bf16[B]") == [
        "h: bf16[B] = sum -1*x +1*y +1.75*z"
    ]
    assert main("h = 2 * -3 * x + (y)\nreturn h") == ["h: bf16[B,E] = sum -6*x +1*y"]
    assert main("h = x + x\nreturn h") == ["h: bf16[B,E] = map (2 * x)"]
    assert main("h = 2 * x - x\nreturn h") == ["h: bf16[B,E] = map x"]
    assert main("h = x - x + y\nreturn h") == ["h: bf16[B,E] = sum +0*x +1*y"]


def test_other_terms_become_values() -> None:
    assert main("h = x * y + y - silu(x) + x / size(E)\nreturn h") == [
        "h.term1: bf16[B,E] = map (x * y)",
        "h.term2: bf16[B,E] = map silu(x)",
        "h.term3: bf16[B,E] = map (x / #E)",
        "h: bf16[B,E] = sum +1*h.term1 +1*y -1*h.term2 +1*h.term3",
    ]
    assert main("h = x + mean(y, over=E)\nreturn h")[-1] == "h: bf16[B,E] = sum +1*x +1*h.mean"


def test_a_constant_term_makes_a_map() -> None:
    assert main("h = 1 + x - y\nreturn h") == ["h: bf16[B,E] = map ((1 + x) - y)"]
    assert main("h = x + 1 / size(E)\nreturn h") == ["h: bf16[B,E] = map (x + (1 / #E))"]


# Einsums


def test_an_indexed_left_side_is_an_einsum() -> None:
    inputs = "x: bf16[B,E], W: int8[E,F], c: f32[]"
    assert main("h[B,F] = x[B,E] * W[E,F]\nreturn h", inputs) == ["h: bf16[B,F] = einsum x[B,E] W[E,F] -> [B,F]"]
    assert main("h[F] = x[B,E] * W[E,F] * x[B,E] * c[]\nreturn h", inputs) == [
        "h: f32[F] = einsum x[B,E] W[E,F] x[B,E] c[] -> [F]"
    ]
    assert main("h[E,B] = x[B,E]\nreturn h", inputs) == ["h: bf16[E,B] = einsum x[B,E] -> [E,B]"]
    assert main("h[] = x[B,E]\nreturn h", inputs) == ["h: bf16[] = einsum x[B,E] -> []"]


def test_a_product_of_dims_becomes_its_factors() -> None:
    before = "param W: bf16[E,H]\nparam U: bf16[K,G,F]"
    assert main("q[B,H] = x[B,E] * W[E,H]\nu[B,F] = q[B,H] * U[H,F]\nreturn u", before=before) == [
        "q: bf16[B,K,G] = einsum x[B,E] W[E,K,G] -> [B,K,G]",
        "u: bf16[B,F] = einsum q[B,K,G] U[K,G,F] -> [B,F]",
    ]
    assert main("q[B,K] = x[B,E] * W[E,K,G]\nreturn q", before=before)[0].endswith("x[B,E] W[E,K,G] -> [B,K]")


def test_an_alias_is_an_index_of_its_own() -> None:
    assert main("s[B,L,S] = k[B,L] * k[B,S]\nt[B,L] = s[B,S,L]\nreturn t", "k: bf16[B,L]") == [
        "s: bf16[B,L,S] = einsum k[B,L] k[B,S] -> [B,L,S]",
        "t: bf16[B,L] = einsum s[B,S,L] -> [B,L]",
    ]
    made = program(f"{DIMS}main(x: bf16[S]) {{ return silu(x) }}")
    assert dict(made.phases[0].sizes)["S"] == 4


# Composites


def test_softmax() -> None:
    assert main("p = softmax(x, over=E)\nreturn p") == [
        "p.max: f32[B] = max x over E",
        "p.exp: bf16[B,E] = map exp((x - where(equal(p.max, -inf), 0, p.max)))",
        "p.sum: f32[B] = einsum p.exp[B,E] -> [B]",
        "p: bf16[B,E] = map (p.exp / where(equal(p.sum, 0), 1, p.sum))",
    ]


def test_softmax_of_an_expression_with_a_mask() -> None:
    assert main("p = softmax(s / sqrt(size(F)), over=M, mask=causal(L, M))\nreturn p", "s: f32[B,L,M]") == [
        "p.pos_q: f32[L] = iota L",
        "p.pos_k: f32[M] = iota M",
        "p.masked: f32[B,L,M] = map where(less_equal(p.pos_k, (p.pos_q + (filled M - #L))), (s / sqrt(#F)), -inf)",
        "p.max: f32[B,L] = max p.masked over M",
        "p.exp: f32[B,L,M] = map exp((p.masked - where(equal(p.max, -inf), 0, p.max)))",
        "p.sum: f32[B,L] = einsum p.exp[B,L,M] -> [B,L]",
        "p: f32[B,L,M] = map (p.exp / where(equal(p.sum, 0), 1, p.sum))",
    ]
    assert main("p = softmax(2 * x, over=[E, B])\nreturn p")[:2] == [
        "p.input: bf16[B,E] = map (2 * x)",
        "p.max: f32[] = max p.input over E,B",
    ]


def test_rmsnorm() -> None:
    assert main("n = rmsnorm(x, w, over=E)\nreturn n", "x: bf16[B,L,E], w: f32[E]") == [
        "n.square_sum: f32[B,L] = einsum x[B,L,E] x[B,L,E] -> [B,L]",
        "n: bf16[B,L,E] = map ((x * rsqrt(((n.square_sum / #E) + 1e-06))) * w)",
    ]
    assert main("n = rmsnorm(x, w, over=H)\nreturn n", "x: bf16[B,H], w: bf16[H]") == [
        "n.square_sum: f32[B] = einsum x[B,K,G] x[B,K,G] -> [B]",
        "n: bf16[B,K,G] = map ((x * rsqrt(((n.square_sum / (#K * #G)) + 1e-06))) * w)",
    ]


def test_layernorm() -> None:
    variance = "relu(((n.square_sum / #E) - ((n.sum / #E) * (n.sum / #E))))"
    scaled = f"(((x - (n.sum / #E)) * rsqrt(({variance} + 1e-06))) * w)"
    sums = ["n.sum: f32[B] = einsum x[B,E] -> [B]", "n.square_sum: f32[B] = einsum x[B,E] x[B,E] -> [B]"]
    inputs = "x: bf16[B,E], w: bf16[E], b: bf16[E]"
    assert main("n = layernorm(x, w, over=E)\nreturn n", inputs) == [*sums, f"n: bf16[B,E] = map {scaled}"]
    assert main("n = layernorm(x, w, b, over=E)\nreturn n", inputs) == [*sums, f"n: bf16[B,E] = map ({scaled} + b)"]


def test_rope() -> None:
    angle = "((r.pos + (filled M - #L)) * power(10000, ((-2 * floor((r.index / 2))) / #E)))"
    assert main("r = rope(x, over=E, at=L into M)\nreturn r", "x: bf16[B,L,E]") == [
        "r.pos: f32[L] = iota L",
        "r.index: f32[E] = iota E",
        f"r: bf16[B,L,E] = map ((x * cos({angle})) + (rotate[E](x) * sin({angle})))",
    ]
    other = main("r = rope(x, over=E, at=L into M, base=500)\nreturn r", "x: bf16[B,L,E]")
    assert "power(500, " in other[-1]
    odd = DIMS.replace("E = 6", "E = 7") + "main(x: bf16[L,E]) { return rope(x, over=E, at=L into M) }"
    assert refused(odd) == ["In phase `main`, E = 7 is odd, and pairs are turned."]


def test_take_and_reductions() -> None:
    inputs = "ids: i32[B,L], table: int8[V,E], x: bf16[B,E]"
    assert main("t = take(table, ids, over=V)\nreturn t", inputs) == ["t: bf16[B,L,E] = take table ids over V"]
    assert main("a = max(x, over=E)\nreturn a", inputs) == ["a: bf16[B] = max x over E"]
    assert main("a = sum(x, over=E)\nreturn a", inputs) == ["a: bf16[B] = einsum x[B,E] -> [B]"]
    assert main("a: f32 = mean(silu(x), over=[B,E])\nreturn a", inputs) == [
        "a.input: bf16[B,E] = map silu(x)",
        "a.sum: f32[] = einsum a.input[B,E] -> []",
        "a: f32[] = map (a.sum / (#B * #E))",
    ]
    assert main("a = mean(x, over=E)\nreturn a", inputs) == [
        "a.sum: f32[B] = einsum x[B,E] -> [B]",  # which 16 bits might not hold
        "a: bf16[B] = map (a.sum / #E)",
    ]


def test_append() -> None:
    before = "cache keys: int8[B,M,E]"
    assert main("k = append(keys, x, L into M)\nreturn k", "x: bf16[B,L,E]", before) == [
        "k: int8[B,M,E] = append keys x L into M"
    ]
    assert main("k = append(keys, x + x, L into M)\nreturn k", "x: bf16[B,L,E]", before) == [
        "k.new: bf16[B,L,E] = map (x + x)",
        "k: int8[B,M,E] = append keys k.new L into M",
    ]
    text = f"{DIMS}{before}\nmain(x: bf16[B,E,L]) {{ return append(keys, x, L into M) }}"
    assert refused(text) == ["What is appended to `keys` has dims `[B,L,E]`, and `x` has `[B,E,L]`."]


def test_composites_inside_expressions_get_names_of_their_own() -> None:
    found = main("h = softmax(x, over=E) * softmax(y, over=E)\nreturn h")
    names = [line.split(": ")[0] for line in found]
    first = ["h.softmax.max", "h.softmax.exp", "h.softmax.sum", "h.softmax"]
    second = ["h.softmax:2.max", "h.softmax:2.exp", "h.softmax:2.sum", "h.softmax:2"]
    assert names == [*first, *second, "h"]
    assert found[-1] == "h: bf16[B,E] = map (h.softmax * h.softmax:2)"


# Blocks

BLOCKS = """
param w: bf16[E]
block scale(x: bf16[B,E]) { return x * w }
block layer(x: bf16[B,E], y: bf16[B,E]) -> bf16[B,E] {
  param W: bf16[E,F]
  cache c: bf16[M,E]
  u[B,F] = x[B,E] * W[E,F]
  v[B,E] = u[B,F] * W[E,F]
  z = scale(v)
  return z + y
}
"""
LAYER = [
    "{0}.u: bf16[B,F] = einsum {1}[B,E] {0}.W[E,F] -> [B,F]",
    "{0}.v: bf16[B,E] = einsum {0}.u[B,F] {0}.W[E,F] -> [B,E]",
    "{0}.scale.return: bf16[B,E] = map ({0}.v * w)",
    "{0}.return: bf16[B,E] = sum +1*{0}.scale.return +1*{2}",
]


def layer(prefix: str, x: str, y: str) -> list[str]:
    return [line.format(prefix, x, y) for line in LAYER]


def test_a_block_is_put_in_place_each_time_it_is_called() -> None:
    text = f"{DIMS}{BLOCKS}main(x: bf16[B,E]) {{\n a = layer(x, x)\n b = layer(a, x) \n return b }}"
    made = program(text)
    assert shown(made, made.body) == layer("layer", "x", "x") + layer("layer:2", "layer.return", "x")
    assert [(s.kind.value, s.value) for s in made.body.stored] == [
        ("input", "x"),
        ("param", "w"),
        ("param", "layer.W"),
        ("cache", "layer.c"),
        ("param", "layer:2.W"),
        ("cache", "layer:2.c"),
    ]
    assert made.results == ("layer:2.return",)


def test_blocks_in_expressions_take_expressions() -> None:
    found = main("return x + layer(silu(x), y)", before=BLOCKS)
    assert found == [
        "return.layer.arg1: bf16[B,E] = map silu(x)",
        *layer("layer", "return.layer.arg1", "y"),
        "return: bf16[B,E] = sum +1*x +1*layer.return",
    ]


def test_a_repeat_carries_what_the_block_returns() -> None:
    made = program(f"{DIMS}{BLOCKS}main(x: bf16[B,E], y: bf16[B,E]) {{ return repeat 7 layer(x, y) }}")
    assert shown(made, made.body) == [
        "repeat 7 layer (x|layer.x|layer.return|return)",
        "  param layer.W: bf16[E,F]",
        "  cache layer.c: bf16[M,E]",
        *("  " + line for line in layer("layer", "layer.x", "y")),
    ]
    assert made.results == ("return",)
    assert made.table()["layer.x"].dims == made.table()["return"].dims == ("B", "E")
    assert {"w", "x", "y"} == {s.value for s in made.body.stored}


def test_carries_that_are_handed_on_unchanged_are_copied() -> None:
    before = (
        "block swap(a: bf16[B,E], b: bf16[B,E]) { return b, a }\n"
        "block both(a: bf16[B,E], b: bf16[B,E]) {\n c = silu(a)\n return c, c }"
    )
    assert main("a, b = repeat 2 swap(x, y)\nreturn b", before=before) == [
        "repeat 2 swap (x|swap.a|swap.return|a, y|swap.b|swap.return:2|b)",
        "  swap.return: bf16[B,E] = map swap.b",
        "  swap.return:2: bf16[B,E] = map swap.a",
    ]
    assert main("return repeat 2 both(x, y)", before=before) == [
        "repeat 2 both (x|both.a|both.c|return, y|both.b|both.return|return:2)",
        "  both.c: bf16[B,E] = map silu(both.a)",
        "  both.return: bf16[B,E] = map both.c",
    ]


def test_repeats_nest_and_take_the_prefix_of_their_caller() -> None:
    before = BLOCKS + "block outer(x: bf16[B,E]) {\n a = repeat 2 layer(x, x)\n return repeat 3 layer(a, x)\n}"
    found = main("return repeat 5 outer(x)", before=before)
    assert [line for line in found if "repeat" in line] == [
        "repeat 5 outer (x|outer.x|outer.return|return)",
        "  repeat 2 outer.layer (outer.x|outer.layer.x|outer.layer.return|outer.a)",
        "  repeat 3 outer.layer:2 (outer.a|outer.layer:2.x|outer.layer:2.return|outer.return)",
    ]


def test_results_are_made_by_an_op_each() -> None:
    made = program(f"{DIMS}main(x: bf16[B]) {{\n y = silu(x)\n return x, y, y, -x }}")
    assert made.results == ("return:2", "y", "return:3", "return")
    assert shown(made, made.body) == [
        "y: bf16[B] = map silu(x)",
        "return: bf16[B] = map negate(x)",
        "return:2: bf16[B] = map x",
        "return:3: bf16[B] = map y",
    ]


def test_a_returned_expression_takes_the_declared_dtype() -> None:
    made = program(f"{DIMS}main(x: bf16[B], w: f32[B]) -> bf16[B] {{ return x * w }}")
    assert made.table()["return"].dtype.value == "bf16"


# Phases


def test_phases_bind_every_dim() -> None:
    made = program(
        """model "m"
        dim B, L
        dim E = 8, S = L, K = 2, G = 3
        dim H = K * G
        main(x: bf16[B,L,E]) { return silu(x) }
        phase one { B = 4, L = 2 }
        phase two { B = 4, L = 1, calls = 64 }"""
    )
    assert made.name == "m"
    assert [(p.name, p.calls) for p in made.phases] == [("one", 1), ("two", 64)]
    assert made.phases[0].sizes == (("B", 4), ("L", 2), ("E", 8), ("S", 2), ("K", 2), ("G", 3))
    assert dict(made.phases[1].sizes)["S"] == 1


def test_settings_override_the_file() -> None:
    text = "dim B, E = 8\nmain(x: bf16[B,E]) { return silu(x) }"
    assert program(text, B=3).phases[0].sizes == (("B", 3), ("E", 8))
    phases = program(text + "\nphase one { B = 4 }\nphase two { B = 5 }", B=3, E=16).phases
    assert [p.sizes for p in phases] == [(("B", 3), ("E", 16)), (("B", 3), ("E", 16))]


def test_settings_are_checked() -> None:
    text = "dim B = 2, S = B, K = 2\ndim H = K * B\nmain(x: bf16[B]) { return silu(x) }"
    assert refused(text, X=3, S=3, H=3, B=0, K=2**41) == [
        "Dim `X` is not declared.",
        "Dim `S` cannot be set: its size follows from other dims.",
        "Dim `H` cannot be set: its size follows from other dims.",
        "The setting of dim `B` must be at least 1.",
        "The setting of dim `K` is larger than 2^40.",
    ]
    assert refused(text, B=10**5000) == ["The setting of dim `B` is larger than 2^40."]
    assert program(text, B=2**40).phases[0].sizes[0] == ("B", 2**40)


# Robustness


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_expand_to_sound_programs(path: Path) -> None:
    source = read_source(path)
    made = expand(parse(source), source)
    assert made == expand(parse(source), source)
    names = [v.name for v in made.values]
    assert len(set(names)) == len(names)
    known: set[str] = set()

    def define(name: str) -> None:
        assert name in names and name not in known, name
        known.add(name)

    def check(region: Region[Op]) -> None:
        for stored in region.stored:
            define(stored.value)
        for item in region.items:
            if isinstance(item, Repeat):
                for carry in item.carries:
                    assert carry.initial in known
                    define(carry.inside)
                check(item.body)
                for carry in item.carries:
                    assert carry.next in known
                    define(carry.result)
            else:
                assert set(operand_names(item)) <= known
                define(item.result)

    check(made.body)
    assert known == set(names)
    assert set(made.results) <= known
    assert made.phases


def many(count: int, line: str) -> str:
    return "\n".join(line.format(i, i + 1) for i in range(count))


CHAIN = "block b0(x: bf16[B]) {{ return silu(x) }}\n{}\nmain(x: bf16[B]) {{ return b{}(x) }}"
BOMBS = {
    "calls doubled": "dim B = 2\n" + CHAIN.format(many(60, "block b{1}(x: bf16[B]) {{ return b{0}(b{0}(x)) }}"), 60),
    "calls nested": "dim B = 2\n" + CHAIN.format(many(900, "block b{1}(x: bf16[B]) {{ return b{0}(x) }}"), 900),
    "dims": f"dim {', '.join(f'D{i}' for i in range(20_000))}\nmain(x: bf16[D1]) {{ return x }}",
    "rank": f"dim {', '.join(f'D{i} = 2' for i in range(900))}\n"
    f"main(x: bf16[{','.join(f'D{i}' for i in range(900))}]) {{ return x }}",
    "phases": "dim B\nmain(x: bf16[B]) { return x }\n" + many(5_000, "phase p{0} {{ B = 3 }}"),
    "errors": "main(x: bf16[]) {\n" + many(6_000, "y{0} = zz{0} + qq{0}") + "\nreturn x\n}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_programs_are_diagnostics(name: str) -> None:
    assert 1 <= len(refused(BOMBS[name])) <= 100


def test_deep_expressions_expand() -> None:
    deep = "softmax(" * 60 + "x" + ", over=E)" * 60
    assert len(main(f"return {deep}")) == 4 * 60
    assert len(main("return " + "silu(1 + " * 60 + "x" + ")" * 60)) == 1
    assert len(main("return " + " * ".join(["x"] * 100))) == 1
