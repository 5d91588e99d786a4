"""Products of several values: the order is the best of all orders, what is computed is the same, scales stay."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from escc.compiler.simulate.check import check
from escc.cost.estimate import predict
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.program import Einsum, Program, walk
from escc.ir.text.read import parse
from escc.passes.choose import choose
from escc.passes.expansion.contraction import EXACT, Indices, Pair, contraction
from escc.passes.expansion.expand import expand
from escc.passes.expansion.orders import in_order
from escc.passes.lower.insert import insert
from escc.passes.options import Options


def steps(tree: Pair | int, values: Sequence[Indices]) -> list[set[str]]:
    """The indices that each step of an order runs over."""
    if isinstance(tree, int):
        return []
    ends = [set(values[end] if isinstance(end, int) else end.indices) for end in (tree.left, tree.right)]
    return [*steps(tree.left, values), *steps(tree.right, values), ends[0] | ends[1]]


def least(values: tuple[frozenset[str], ...], output: frozenset[str], sizes: dict[str, int]) -> int:
    """The fewest elements of all orders, each tried."""
    if len(values) == 1:
        return 0
    best = []
    for a, b in itertools.combinations(range(len(values)), 2):
        rest = tuple(v for n, v in enumerate(values) if n not in (a, b))
        every = values[a] | values[b]
        made = every & output.union(*rest)
        best.append(math.prod(sizes[i] for i in every) + least((*rest, made), output, sizes))
    return min(best)


@pytest.mark.parametrize("seed", range(60))
def test_no_order_takes_fewer_operations(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {index: rng.choice([1, 2, 3, 5, 8, 13]) for index in "ABCDEF"}
    values = [tuple(rng.sample("ABCDEF", rng.randint(0, 3))) for _ in range(rng.randint(2, 5))]
    every = [index for index in "ABCDEF" if any(index in value for value in values)]
    output = tuple(rng.sample(every, rng.randint(0, len(every))))
    tree = contraction(values, output, sizes)
    assert tree.indices == output
    total = sum(math.prod(sizes[i] for i in step) for step in steps(tree, values))
    assert total == least(tuple(map(frozenset, values)), frozenset(output), sizes)


def test_many_values_are_taken_pair_by_pair() -> None:
    count = EXACT + 5
    names = [f"D{n}" for n in range(count + 1)]
    values = [(names[n], names[n + 1]) for n in range(count)]
    sizes = dict.fromkeys(names, 64) | {names[0]: 1}
    tree = contraction(values, (names[0], names[-1]), sizes)
    assert max(len(step) for step in steps(tree, values)) == 3


def einsums(text: str, phase: str = "main") -> list[tuple[str, str]]:
    """The einsums of a program in a phase, and the type of each one's result."""
    program = in_order(expanded(text), phase)
    table = program.table()
    found = [placed.item for placed in walk(program.body) if isinstance(placed.item, Einsum)]
    return [(f"{op.result} = {' * '.join(op.operands)}", table[op.result].dtype.value) for op in found]


def expanded(text: str) -> Program:
    source = Source("test.esti", text)
    return expand(parse(source), source, {})


CHAIN = """
dim B, E = 16, F = 64, G = 4, E2 = E
param a: bf16[E,F]
param b: int8[F,G] * f32[G]
param c: bf16[G,E]
main(x: bf16[B,E]) {
  y[B,E2] = x[B,E] * a[E,F] * b[F,G] * c[G,E2]
  return y
}
"""


BOTH = CHAIN + "phase few { B = 1, calls = 1000000 }\nphase many { B = 512 }"


def test_each_phase_has_the_order_of_its_sizes() -> None:
    first = [("y.part1 = x * a", "bf16"), ("y.part2 = y.part1 * b * b.scale", "bf16"), ("y = y.part2 * c", "bf16")]
    weights = [("y.part3 = a * b * b.scale", "bf16"), ("y.part2 = x * y.part3", "bf16"), ("y = y.part2 * c", "bf16")]
    assert einsums(BOTH, "few") == first
    assert einsums(BOTH, "many") == weights


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("y[B,F] = x[B,E] * a[E,F] * s[F]", ["y = x * a * s"]),
        ("y[B,F] = x[B,E] * a[E,F] * x[B,E]", ["y = x * a * x"]),
        ("y[B,F] = x[B,E] * q[E,F]", ["y = x * q * q.scale"]),
        ("y[B,F] = q[E,F] * x[B,E]", ["y = x * q * q.scale"]),
        ("y[B,F] = a[E,F] * x[B,E]", ["y = x * a"]),
        ("param w: bf16[E,G]\ny[B,G] = w[E,G] * x[B,E]", ["y = x * w"]),
        ("y[B,G] = x[B,E] * a[E,F] * s[F] * b[F,G]", ["y.part1 = x * a * s", "y = y.part1 * b"]),
        ("y: f32[B,G] = x[B,E] * a[E,F] * b[F,G]", ["y.part1 = x * a", "y = y.part1 * b"]),
        ("y[B,F,G] = x[B,E] * a[E,F] * t[B,G]", ["y.part1 = x * a", "y = y.part1 * t"]),
    ],
)
def test_scales_stay_beside_what_they_scale(product: str, expected: list[str]) -> None:
    text = "dim B = 2, E = 16, F = 64, G = 8\nparam a: bf16[E,F]\nparam b: bf16[F,G]\nparam q: int4[E,F] * f32[F]\n"
    inputs = "x: bf16[B,E], s: f32[F], t: bf16[B,G]"
    found = einsums(f"{text}main({inputs}) {{ {product}\nreturn y }}")
    assert [op for op, _ in found] == expected
    wide = Dtype.F32.value if "f32[B" in product or "s[F]" in product else Dtype.BF16.value
    assert {dtype for _, dtype in found} == {wide}


def test_plans_of_a_chain_compute_what_the_loop_nest_does() -> None:
    program = expanded(CHAIN + "phase once { B = 8 }")
    plan = choose(program, "once", Mesh.parse("2x2"), Options(Hardware.of_paper("tpu-v4")))
    report = check(program, insert(plan)[0], predict)
    assert report.max_error <= 1e-9 and report.equal


def test_a_pin_of_the_result_is_that_of_the_whole() -> None:
    program = expanded(CHAIN.replace("y[B,E2] =", "y[B,E2] @ [B/x,E2/y] =") + "phase once { B = 8 }")
    plan = choose(program, "once", Mesh.parse("2x2"), Options(Hardware.of_paper("tpu-v4")))
    [made] = [op.layout for op in plan.phases[0].ops if op.result == "y"]
    assert made.dims == (("x",), ("y",))


def test_a_mask_goes_into_the_last_product() -> None:
    """So only what it keeps is made there, and read of what it is multiplied with."""
    text = """
dim B = 2, L = 1, M = 64, H = 4, Q = 8, C = 16
main(q: bf16[B,L,H,Q], c: bf16[B,M,C], i: bf16[B,L,M]) {
  param W: bf16[C,H,Q]
  m = choose(i, over=M, keep=4)
  s[B,L,H,M] = m[B,L,M] * q[B,L,H,Q] * W[C,H,Q] * c[B,M,C]
  return s
}
"""
    source = Source("masked.esti", text)
    program = in_order(expand(parse(source), source), "main")
    products = [item for item in program.body.items if isinstance(item, Einsum)]
    assert [set(op.operands) for op in products] == [{"q", "W"}, {"s.part1", "c", "m"}]
    assert [one.mask for one in program.table()["s"].chosen] == ["m"]
