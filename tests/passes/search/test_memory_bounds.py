"""What plans hold at the least: never more than any of them holds, and all of it where nothing moves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge.generator import generate
from problems import GATED, drawn

from escc.compiler.plan.pipeline import load, program_of
from escc.cost.hardware import Convention, Hardware
from escc.cost.memory import Point, points
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program, Take, walk
from escc.passes import task as tasks
from escc.passes.choose import choose
from escc.passes.layouts.space import Mask
from escc.passes.options import Options
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.limits import Limits
from escc.passes.search.memory_bounds import Demand, MemoryBounds, PointBound
from escc.passes.search.problem import Problem

HARDWARE = Hardware.of_paper("tpu-v4")
EXAMPLES = Path(__file__).parents[3] / "examples"


def searched(
    program: Program, phase: str, mesh: Mesh, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> tuple[Problem, Limits]:
    """What the search is handed for a program, with more memory than it needs."""
    seen: list[tuple[Problem, Limits]] = []

    def watched(problem: Problem, limits: Limits, *_: Any) -> Any:
        seen.append((problem, limits))
        raise StopIteration

    with monkeypatch.context() as patched, pytest.raises(StopIteration):
        patched.setattr(tasks, "search", watched)
        choose(program, phase, mesh, Options(hardware, capacity_bytes=1e18))
    return seen[0]


def alone(plan: Sequence[int], problem: Problem) -> list[Any]:
    """The set of this plan alone."""
    return [np.arange(len(p)) == c for p, c in zip(problem.prices, plan, strict=True)]


def told(need: PointBound, plan: Sequence[int], allowed: Sequence[Mask], moved: bool = True) -> float:
    """What rows of a program of all that is `allowed` say that a plan takes at a point, with what values take that are
    `moved` or without."""
    more = [term.moved(allowed) for term in need.terms] if moved else []
    taken = sum(float(term.within(allowed)[plan[term.node]]) for term in need.terms)
    return taken + sum(one.of(plan) for one in more if one is not None)


def compare(problem: Problem, limits: Limits, plan: Sequence[int]) -> float:
    """The most that is needed at a point; no more than what a plan holds there or as it moves what the
    step reads: right before it, or where collectives may run as one at any time before."""
    held: dict[str | None, float] = {}
    moved = 0.0
    for point in points(limits.spell(problem.found(plan), True), limits.lanes, limits.fused):
        moved = max(moved, float(point.bytes))
        if point.step is None or point.step in {o.name for o in problem.graph.nodes}:
            held[point.step], moved = moved, 0.0 if problem.groups is None else moved
    allowed, every = alone(plan, problem), [np.ones(len(p), dtype=bool) for p in problem.prices]
    lying = sum(term.least(allowed) for term in limits.needs.beside)
    for need in limits.needs.points:
        least = need.least(allowed)
        assert told(need, plan, every) <= least * (1 + 1e-12), "of all plans together no more is known"
        terms = [(t.value, t.least(allowed)) for t in (*need.terms, *limits.needs.beside)]
        assert least + lying <= held[need.step] * (1 + 1e-12), (need.step, terms)
    assert limits.needs.stored_bytes(allowed) == pytest.approx(problem.stored_bytes(plan), rel=1e-12)
    return limits.needs.worst(allowed)[1]


@pytest.mark.parametrize("convention", Convention)
@pytest.mark.parametrize("seed", range(60))
def test_no_plan_holds_less_than_is_needed(seed: int, convention: Convention, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = HARDWARE.with_network(convention)
    problem, limits = searched(generate(seed).program, "main", Mesh.parse("2x2"), hardware, monkeypatch)
    for draw in range(4):
        compare(problem, limits, drawn(problem, draw))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("convention", Convention)
def test_nor_in_a_layer_that_is_repeated(phase: str, convention: Convention, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(EXAMPLES / "palm-540b.esti")
    problem, limits = searched(program, phase, Mesh.parse("2x2"), HARDWARE.with_network(convention), monkeypatch)
    for draw in range(4):
        compare(problem, limits, drawn(problem, draw))


def test_all_that_a_layer_holds_at_its_worst_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(EXAMPLES / "palm-540b.esti")
    problem, limits = searched(program, "prefill", Mesh.parse("2x2"), HARDWARE, monkeypatch)
    plan = tuple(DualAscent(problem.graph, problem.prices, problem.distances).round())
    worst = max(float(point.bytes) for point in points(limits.spell(problem.found(plan), True)))
    assert compare(problem, limits, plan) == pytest.approx(worst, rel=1e-12)


def test_where_steps_may_run_in_any_order_what_is_moved_counts_beside_what_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hardware = HARDWARE.with_network(Convention.LINKS)
    program = load(EXAMPLES / "palm-540b.esti")
    problem, limits = searched(program, "prefill", Mesh.parse("2x2"), hardware, monkeypatch)
    assert problem.groups is not None
    more = 0
    for draw in range(20):
        plan = drawn(problem, draw)
        allowed = alone(plan, problem)
        more += compare(problem, limits, plan) > limits.standing.needs.worst(allowed)[1]
    assert more > 0


@pytest.mark.parametrize(("text", "phase"), [((EXAMPLES / "palm-540b.esti").read_text(), "prefill"), (GATED, "main")])
def test_rows_tell_what_values_take_that_are_moved(text: str, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At many points all that is known of a plan by itself, and more than by what each choice takes at the least."""
    program = program_of(Source("some.esti", text))
    problem, limits = searched(program, phase, Mesh.parse("2x2"), HARDWARE, monkeypatch)
    every = [np.ones(len(p), dtype=bool) for p in problem.prices]
    less = all_of_it = more = 0
    for draw in range(20):
        plan = drawn(problem, draw)
        for need in limits.needs.points:
            least, known = need.least(alone(plan, problem)), told(need, plan, every)
            less += known < least * (1 - 1e-9)
            all_of_it += known >= least * (1 - 1e-9)
            more += known > told(need, plan, every, moved=False) * (1 + 1e-9)
    assert all_of_it > 0.8 * less and more > all_of_it / 2, "what rows do not tell are second copies"


def test_on_one_chip_all_that_is_held_is_needed_but_what_pads_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = 0
    for seed in range(60):
        program = generate(seed).program
        problem, limits = searched(program, "main", Mesh.parse("1"), HARDWARE, monkeypatch)
        plan = (0,) * len(problem.prices)
        tables = {placed.item.table for placed in walk(program.body) if isinstance(placed.item, Take)}
        worst = 0.0
        for point in points(limits.spell(problem.found(plan), True), limits.lanes, limits.fused):
            padding = {live.name: float(live.bytes) for live in point.live if live.form == "padding"}
            padded += padding.keys() > tables
            worst = max(worst, float(point.bytes) - sum(padding[name] for name in padding.keys() & tables))
        assert compare(problem, limits, plan) == pytest.approx(worst, rel=1e-12)
    assert padded


@pytest.mark.parametrize("mesh", ["1", "2x2"])
def test_what_rows_of_experts_are_added_in_is_needed(mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the sum, which is narrower: on one chip all that is held is known."""
    program = load(EXAMPLES / "experts.esti")
    problem, limits = searched(program, "prefill", Mesh.parse(mesh), HARDWARE, monkeypatch)
    [step] = [point.step for point in points(limits.spell(problem.found(drawn(problem, 0)), True)) if in_f32(point)]
    for draw in range(4):
        plan = drawn(problem, draw)
        allowed = alone(plan, problem)
        compare(problem, limits, plan)
        needed = max(need.least(allowed) for need in limits.needs.points if need.step == step)
        held = [point for point in points(limits.spell(problem.found(plan), True)) if point.step == step]
        sums = sum(float(live.bytes) for live in held[-1].live if live.name == step)
        assert needed >= sums
        if mesh == "1":
            assert needed == pytest.approx(float(held[-1].bytes), rel=1e-12)


@pytest.mark.parametrize("mesh", ["1", "2x2"])
def test_what_matrices_of_codes_are_decoded_to_is_needed(mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And their codes in groups."""
    text = (EXAMPLES / "experts.esti").read_text().replace("Wi, Wg: bf16[X,E,F]", "Wi, Wg: fp8[X,E,F] * f32[X,E128,F]")
    text = text.replace("\nblock layer", "dim E128 = E / 128\n\nblock layer", 1)
    program = program_of(Source("codes.esti", text))
    problem, limits = searched(program, "decode", Mesh.parse(mesh), HARDWARE, monkeypatch)
    for draw in range(8):
        plan = drawn(problem, draw)
        allowed = alone(plan, problem)
        compare(problem, limits, plan)
        held = {point.step: point for point in points(limits.spell(problem.found(plan), True))}
        steps = [step for step, point in held.items() if len(decoded(point)) == 2]
        assert {"layer.u", "layer.g"} >= {*steps} != set()
        for step in [step for step in steps if step is not None]:
            needed = [term for n in limits.needs.points if n.step == step for term in n.terms]
            size = sum(term.least(allowed) for term in needed if term.value in ("layer.Wi", "layer.Wg"))
            assert size >= sum(decoded(held[step]))
            if mesh == "1":
                most = max(n.least(allowed) for n in limits.needs.points if n.step == step)
                assert most == pytest.approx(float(held[step].bytes), rel=1e-12)


@pytest.mark.parametrize("convention", Convention)
@pytest.mark.parametrize("gate", ["silu(g) * u", "silu(g) * sigmoid(u)", "relu(g)"])
def test_products_that_are_never_there_are_not_needed(
    convention: Convention, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any plan no more is needed than it holds, and on one chip all of that."""
    text = GATED.replace("silu(g) * u", gate)
    program, hardware = program_of(Source("gated.esti", text)), HARDWARE.with_network(convention)
    problem, limits = searched(program, "main", Mesh.parse("2x2"), hardware, monkeypatch)
    seen = set()
    for draw in range(60):
        plan = drawn(problem, draw)
        compare(problem, limits, plan)
        every = points(limits.spell(problem.found(plan), True))
        seen |= {"layer.h" in {live.name for live in point.live} for point in every if point.step == "layer.g"}
    assert seen == {True, False}
    problem, limits = searched(program, "main", Mesh.parse("1"), hardware, monkeypatch)
    plan = (0,) * len(problem.prices)
    worst = max(float(point.bytes) for point in points(limits.spell(problem.found(plan), True)))
    assert compare(problem, limits, plan) == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("convention", Convention)
def test_a_product_is_there_where_something_is_moved_between_it_and_what_it_goes_in(
    convention: Convention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that is known of all plans together: whether a bias that nobody else reads is moved."""
    text = GATED.replace("  n = exp(x)", "  param b: bf16[E]\n  n = exp(x)").replace("return x + d", "return d + b")
    program, hardware = program_of(Source("biased.esti", text)), HARDWARE.with_network(convention)
    problem, limits = searched(program, "main", Mesh.parse("2x2"), hardware, monkeypatch)
    every = [np.ones(len(p), dtype=bool) for p in problem.prices]
    there = gone = 0
    for draw in range(60):
        plan = drawn(problem, draw)
        compare(problem, limits, plan)
        needs = [n for n in limits.needs.points if n.step == "layer.return" and not n.moving]
        need = max(needs, key=lambda one: len(one.terms))
        own = PointBound(need.step, tuple(term for term in need.terms if term.value == "layer.d"))
        spmd = limits.spell(problem.found(plan), True)
        [held] = [point for point in points(spmd, limits.lanes, limits.fused) if point.step == "layer.return"]
        moved = any("layer.b'" in live.name for live in held.live)
        if any(value.name == "layer.d'" for value in spmd.values):
            continue
        assert (told(own, plan, every) > 0) == moved == any(live.name == "layer.d" for live in held.live)
        there, gone = there + moved, gone + (not moved)
    assert there and gone


@pytest.mark.parametrize(("chip", "fused"), [("tpu-v4", True), ("tpu-v5e", False), ("h100", False)])
def test_they_are_where_the_compiler_gathers_ahead_or_is_another(
    chip: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, hardware = program_of(Source("gated.esti", GATED)), Hardware.load(chip)
    problem, limits = searched(program, "main", Mesh.parse("1"), hardware, monkeypatch)
    plan = (0,) * len(problem.prices)
    every = points(limits.spell(problem.found(plan), True), limits.lanes, limits.fused)
    [gate] = [{live.name for live in point.live} for point in every if point.step == "layer.g"]
    assert ("layer.g" not in gate) == fused == hardware.fuses_products
    assert compare(problem, limits, plan) == pytest.approx(max(float(point.bytes) for point in every), rel=1e-12)


def decoded(point: Point) -> list[float]:
    """What each matrix takes that is decoded there, and its codes in groups."""
    return [float(live.bytes) for live in point.live if live.form in ("decoded", "in groups")]


def in_f32(point: Point) -> bool:
    """Whether something is held there that is made in f32 and narrower."""
    return any(live.form == "in f32" for live in point.live)


def looked_up(hidden: int, mesh: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Problem, Limits]:
    """What the search is handed for a program that looks rows of a table up, on a chip whose memory has lanes."""
    text = f"""dim V = 100000, E = {hidden}, B = 4
main(ids: i32[B]) {{
  param table: int8[V,E]
  return take(table, ids, over=V)
}}
"""
    program = program_of(Source("table.esti", text))
    return searched(program, "main", Mesh.parse(mesh), Hardware.load("tpu-v4"), monkeypatch)


@pytest.mark.parametrize(("hidden", "copied"), [(100, True), (128, False)])
def test_a_table_that_lies_by_columns_is_copied(hidden: int, copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limits = looked_up(hidden, "1", monkeypatch)
    needed = compare(problem, limits, (0,) * len(problem.prices))
    assert (needed >= 100_000 * hidden) == copied


def test_how_a_table_is_split_says_whether_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limits = looked_up(256, "2x2", monkeypatch)
    seen = set()
    for draw in range(40):
        plan = drawn(problem, draw)
        needed, table = compare(problem, limits, plan), float(problem.stored_bytes(plan))
        every = points(limits.spell(problem.found(plan), True), limits.lanes)
        copies = {live.form for point in every for live in point.live if live.copy_of == "table"}
        if copies <= {"rows"}:  # it is read as it is stored
            copied = bool(copies)
            assert (needed >= table) == copied
            seen.add(copied)
    assert seen == {True, False}


def test_choices_that_cannot_go_together_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(EXAMPLES / "palm-540b.esti")
    problem, limits = searched(program, "prefill", Mesh.parse("4x4x4"), HARDWARE, monkeypatch)
    every = [np.ones(len(p), dtype=bool) for p in problem.prices]
    least = limits.needs.stored_bytes(every) + limits.needs.worst(every)[1]
    assert limits.needs.tightened(every, 0.999 * least, math.inf) is None
    assert limits.needs.tightened(every, math.inf, 0.999 * limits.needs.stored_bytes(every)) is None
    kept = limits.needs.tightened(every, 1.3 * least, math.inf)
    assert kept is not None
    assert sum(int(mask.sum()) for mask in kept) < 0.9 * sum(int(mask.sum()) for mask in every)
    for draw in range(8):
        plan = drawn(problem, draw)
        if not all(mask[c] for mask, c in zip(kept, plan, strict=True)):
            assert not dataclasses.replace(limits, capacity=1.3 * least).fits(problem.found(plan))


def test_a_load_is_all_that_a_choice_takes() -> None:
    """What is stored of a value, what pads it, and what is held of it as an op runs, one upon the other."""
    sizes = [np.array([3.0, 1.0]), np.array([0.5, 0.25]), np.array([2.0, 4.0])]
    stored, pads, held = (Demand("v", 0, size) for size in sizes)
    bounds = MemoryBounds((stored,), (PointBound("step", (held, Demand("w", 1, np.array([1.0])))),), (pads,))
    kept, load = bounds.loads([np.ones(2, dtype=bool), np.ones(1, dtype=bool)], 4.0, 2.0)
    assert kept.room == 2.0 and load.room == 4.0
    np.testing.assert_array_equal(kept.bytes[0], sizes[0])
    np.testing.assert_array_equal(load.bytes[0], sum(sizes))
    np.testing.assert_array_equal(load.bytes[1], [1.0])


def test_what_is_there_in_any_case_leaves_less_room_in_the_same_memory() -> None:
    terms = Demand("v", 0, np.array([3.0, 1.0])), Demand("w", 1, np.array([1.5, 1.5]), in_any_case=True)
    bounds = MemoryBounds((), (PointBound("step", terms), PointBound("next", terms[:1])))
    less, load = bounds.loads([np.ones(2, dtype=bool), np.ones(2, dtype=bool)], 2.5, 2.5)
    assert (less.room, less.unit) == (1.0, 2.5) and (load.room, load.unit) == (2.5, 2.5)
    assert list(less.bytes) == [0]
