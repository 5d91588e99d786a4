"""The judge judged: against numbers worked out by hand, and against trying everything."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
from judge.builder import Builder, call
from judge.chosen_families import CHOSEN
from judge.exhaustive import Exhaustive, fewest_bytes
from judge.families import FAMILIES
from judge.flows import Flow, arborescence
from judge.generator import Case, generate
from judge.layouts import Place, complete, distances, places
from judge.optimum import optimum

from escc.ir.mesh import Mesh
from escc.ir.program import Repeat, Stored, operand_names, walk

FLOPS, HBM, LINK = 275e12, 1.2e12, 270e9


class First(random.Random):
    """Takes the first of every choice, so that all values are bf16 and all coefficients 1."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


def build(**sizes: int) -> Builder:
    return Builder(First(0), sizes)


def solve(builder: Builder, results: list[str], *axes: int, capacity: float | None = None) -> float:
    mesh = Mesh(tuple(zip("xyz", axes, strict=False)))
    return optimum(Case(builder.program(results), mesh, capacity, "by hand"))


def moved(sizes: tuple[int, ...], mesh: tuple[int, ...], start: Place, end: Place) -> float:
    """Bytes sent for a value of one byte an element."""
    order = places(sizes, mesh, False)
    return float(distances(sizes, mesh, False)[order.index(start), order.index(end)]) * math.prod(sizes)


def test_layouts_are_counted_right() -> None:
    # Two axes on two dims that divide: ordered splits (2 + 2 in one dim, 2 apart), one split with the
    # other axis replicated (4), none.
    assert len(complete((4, 4), (2, 2))) == 6 + 4 + 1
    # The same with partial axes: one split and the other replicated or partial; none split: 4.
    assert len(places((4, 4), (2, 2), False)) == 6 + 8 + 4
    assert len(places((4, 4), (2, 2), True)) == 6 + 8 + 4 + 4 + 3
    assert len(complete((6, 1), (4, 3))) == 2
    assert len(complete((4, 4), (1, 1))) == 1


def test_moves_cost_what_the_formulas_say() -> None:
    sizes, mesh = (16, 16), (4, 2)
    both, minor, major = Place(((0, 1), ())), Place(((1,), ())), Place(((0,), ()))
    assert moved(sizes, mesh, both, major) == 256 / 4 / 2  # all-gather over axis 1
    assert moved(sizes, mesh, both, Place(((), ()))) == 256 * 7 / 8
    assert moved(sizes, mesh, both, minor) == 256 / 8 + 256 / 2 * 3 / 4  # permute, then all-gather
    assert moved(sizes, mesh, both, Place(((), (1, 0)))) == 256 / 8 * 7 / 8  # one all-to-all over both
    assert moved(sizes, mesh, both, Place(((1, 0), ()))) == 256 / 8
    assert moved(sizes, mesh, Place(((), ())), both) == 0
    partial = Place(((), ()), frozenset({0, 1}))
    assert moved(sizes, mesh, partial, Place(((), ()))) == 2 * 256 * 7 / 8
    assert moved(sizes, mesh, partial, Place(((0,), (1,)))) == 256 * 3 / 4 + 64 / 2  # larger axis first
    assert moved(sizes, mesh, partial, Place(((), (1, 0)))) == 256 * 7 / 8
    assert moved(sizes, mesh, both, Place(((), ()), frozenset({0, 1}))) == 0  # blocks among zeros


def exactly(seconds: float) -> Any:
    return pytest.approx(seconds, rel=1e-9, abs=0)


def test_one_chip_pays_compute_or_memory() -> None:
    b = build(B=2, E=4, F=8)
    y = b.einsum("BF", b.input("BE"), b.param("EF"))
    # What is multiplied is read and what is handed out is written, two bytes an element.
    assert solve(b, [y], 1) == exactly(2 * (2 * 4 + 4 * 8 + 2 * 8) / HBM)
    b = build(B=4096, E=2048, F=2048)
    y = b.einsum("BF", b.input("BE"), b.input("EF"))
    assert solve(b, [y], 1) == exactly(2 * 4096 * 2048 * 2048 / FLOPS)


def test_split_of_the_summed_index_pays_for_completion() -> None:
    b = build(B=1, E=4000, F=3)
    y = b.einsum("BF", b.input("BE"), b.param("EF"))
    # Halves of both factors are read; what is written, and completed, is whole.
    assert solve(b, [y], 2) == exactly(2 * (4000 / 2 + 4000 * 3 / 2 + 3) / HBM + 3 * 2 / LINK)
    b = build(B=1, E=4, F=3)
    y = b.einsum("BF", b.input("BE"), b.param("EF"))
    assert solve(b, [y], 2) == exactly(2 * (4 + 4 * 3 + 3) / HBM)


def test_a_copy_is_paid_once_for_two_uses() -> None:
    b = build(B=3, E=8192)
    m = b.reduce(b.input("BE"), "E")
    results = [b.map(call("exp", m)), b.map(call("tanh", m))]
    # Half of the input is read. What reads m is of its kernel, and writes three elements each.
    assert solve(b, results, 2) == exactly(3 * 4096 * 2 / HBM + 3 * 2 / LINK + 2 * 3 * 2 / HBM)


def test_partial_terms_are_completed_together() -> None:
    b = build(B=1, E=4000, F=3)
    x, y = b.input("BE"), b.input("BE")
    total = b.sum(b.einsum("BF", x, b.param("EF")), b.einsum("BF", y, b.param("EF")), b.input("BF"))
    # Each matmul reads halves of its factors. The sum is of the kernel of one: the other's product is written, and
    # read as the input is; and the sum is written.
    halves = 2 * (4000 / 2 + 4000 * 3 / 2) * 2
    assert solve(b, [total], 2) == exactly((halves + 4 * 3 * 2) / HBM + 3 * 2 / LINK)


def test_a_repeat_multiplies_what_is_in_it() -> None:
    b = build(E=4000, F=3)
    x = b.input("F")
    (inside,) = b.open_repeat(x)
    following = b.einsum("F", b.einsum("E", inside, b.param("FE")), b.param("EF"))
    (out,) = b.close_repeat(3, [x], [inside], [following])
    # Each reads half of its weights; the first reads what goes round and writes a half that the second reads,
    # which writes what goes round next.
    moved = 2 * 4000 * 3 / 2 + 2 * 4000 / 2 + 2 * 3
    assert solve(b, [out], 2) == exactly(3 * (2 * moved / HBM + 3 * 2 / LINK))


def test_what_a_repeat_captures_is_moved_once() -> None:
    b = build(B=3, E=8192)
    m = b.reduce(b.input("BE"), "E")
    x = b.input("B")
    (inside,) = b.open_repeat(x)
    (out,) = b.close_repeat(5, [x], [inside], [b.map(call("maximum", inside, m))])
    # m is written once, and read each time beside what goes round, of which the next is written.
    assert solve(b, [out], 2) == exactly(2 * (3 * 4096 + 3) / HBM + 3 * 2 / LINK + 5 * 2 * 3 * 3 / HBM)


def test_an_append_keeps_the_layout_and_writes_only_what_is_new() -> None:
    b = build(B=1, L=1, M=4096, Q=5)
    version = b.append(b.cache("MQ"), b.input("LQ"), "L", "M")
    y = b.einsum("Q", version)
    # M is split: the new entries are everywhere, each chip reads 5, writes 5, reads half of the cache and writes
    # 5 sums.
    expected = (5 + 5) * 2 / HBM + (2048 * 5 + 5) * 2 / HBM + 5 * 2 / LINK
    assert solve(b, [y], 2) == exactly(expected)


def test_a_lookup_reads_the_rows_that_it_touches() -> None:
    b = build(B=8, V=1000, E=16)
    y = b.take(b.param("VE"), b.input("B"), "V")
    # Of two of the eight rows: the numbers, what is read and what is written.
    assert solve(b, [y], 4) == exactly(2 * 2 * (1 + 16 + 16) / HBM)


def test_capacity_binds() -> None:
    b = build(B=4096, E=64, F=3)
    y = b.einsum("BF", b.input("BE"), b.param("EF"))
    split_batch = 2 * (2048 * 64 + 64 * 3 + 2048 * 3) / HBM
    assert solve(b, [y], 2) == exactly(split_batch)
    assert solve(b, [y], 2, capacity=64 * 3 * 2) == exactly(split_batch)
    gathered = split_batch + 64 * 3 * 2 / 2 / LINK
    assert solve(b, [y], 2, capacity=64 * 3) == exactly(gathered)
    assert solve(b, [y], 2, capacity=64 * 3 - 1) == math.inf


@pytest.mark.parametrize(
    ("axes", "seeds", "most", "least"),
    [
        ((2,), range(90), 1500, 45),
        ((4,), range(90, 180), 1500, 45),
        ((3,), range(180, 240), 1500, 30),
        ((2, 2), range(30, 75), 500, 6),
    ],
)
def test_agrees_with_trying_everything(axes: tuple[int, ...], seeds: range, most: int, least: int) -> None:
    mesh = Mesh(tuple(zip("xyz", axes, strict=False)))
    tried = 0
    for seed in seeds:
        case = dataclasses.replace(generate(seed), mesh=mesh)
        everything = Exhaustive(case)
        if everything.count() <= most:
            tried += 1
            assert optimum(case) == pytest.approx(everything.best(), rel=1e-12, abs=0), (seed, case.label)
    assert tried >= least


@pytest.mark.parametrize(
    ("axes", "seeds", "least"), [((2,), range(42), 20), ((4,), range(42, 84), 18), ((3,), range(84, 126), 20)]
)
def test_agrees_with_trying_everything_where_there_is_a_choice(axes: tuple[int, ...], seeds: range, least: int) -> None:
    mesh, tried = Mesh(tuple(zip("xyz", axes, strict=False))), 0
    for seed in seeds:
        case = dataclasses.replace(generate(seed, CHOSEN), mesh=mesh)
        everything = Exhaustive(case)
        if everything.count() <= 1500:
            tried += 1
            assert optimum(case) == pytest.approx(everything.best(), rel=1e-12, abs=0), (seed, case.label)
    assert tried >= least


def test_what_is_chosen_is_worked_sent_and_read_for_what_is_kept() -> None:
    b = build(B=4096, K=8, E=64, F=3)
    m = b.choose(b.input("BK"), "K", 2)
    u = b.einsum("BKF", b.einsum("BKE", m, b.input("BE")), b.param("KEF"))
    # One chip: keys and tokens are read, a quarter of the tokens' copies is written and read, of which 3 come out.
    # The weights are all met; the arithmetic hides behind the memory.
    tokens = 4096 * 8 * 2 + 4096 * 64 * 2 + 4096 * 8 * 64 * 2 / 4
    matrix = 4096 * 8 * 64 * 2 / 4 + 8 * 64 * 3 * 2 + 4096 * 8 * 3 * 2 / 4
    assert solve(b, [u], 1) == exactly((tokens + matrix) / HBM)
    b = build(B=1, K=8, E=64, F=3000)
    e = b.einsum("BKE", b.choose(b.input("BK"), "K", 2), b.input("BE"))
    u = b.einsum("BKF", e, b.param("KEF"))
    # One token reads the weights of two experts of the eight.
    first = 8 * 2 + 64 * 2 + 8 * 64 * 2 / 4  # the keys, all of them, and the token; its copies
    assert solve(b, [u], 1) == exactly((first + 8 * 64 * 2 / 4 + 8 * 64 * 3000 * 2 / 4 + 8 * 3000 * 2 / 4) / HBM)


@pytest.mark.parametrize("uses", [1, 2, 3, 4, 5])
def test_shared_copies_agree_with_trying_all_sets_of_copies(uses: int) -> None:
    rng = random.Random(uses)
    for _ in range(20):
        mesh, sizes = rng.choice([(2, 2), (2, 4), (4, 2)]), rng.choice([(4, 4), (16, 2), (8, 8)])
        legal = places(sizes, mesh, False)
        root, *ends = [rng.randrange(len(legal)) for _ in range(uses + 1)]
        flow = Flow(distances(sizes, mesh, False), "root", [root], {f"end {i}": [e] for i, e in enumerate(ends)})
        found = float(arborescence(flow, []).cost[0])
        assert found == pytest.approx(fewest_bytes(sizes, mesh, legal[root], [{legal[e]} for e in ends]))


@pytest.mark.parametrize("seed", range(2 * len(FAMILIES)))
def test_cases_are_repeatable_and_use_every_value(seed: int) -> None:
    case = generate(seed)
    assert case == generate(seed)
    used = set(case.program.results)
    for placed in walk(case.program.body):
        match placed.item:
            case Stored():
                pass
            case Repeat(_, _, carries, _):
                used |= {name for c in carries for name in (c.initial, c.inside, c.next)}
            case op:
                used |= set(operand_names(op))
    assert used == {value.name for value in case.program.values}
    assert 1 <= len(case.program.results) <= 2
