"""Rows of memory that have much in common say what each of them says by itself, in far fewer entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from escc.passes.ilp.model import Assembly, Model, continuous
from escc.passes.ilp.solver import Settings, solve
from escc.passes.search.graph import Port
from escc.passes.search.memory_bounds import Load, Moved, taken_by
from escc.passes.search.memory_rows import GRAINS, ROOM, MemoryRows, add_memory, in_grains, parts, written_out


def loads_of(seed: int, points: int = 12) -> tuple[list[int], list[Load]]:
    """How many choices nodes have, and made-up loads at points in time: some nodes take the same at all of them, others
    from one point to another; one takes what others do not, at one point it alone; the rooms are two. At some points
    more is taken where one or both of two values are moved."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, size=9).tolist()
    sizes = [rng.choice([0.0, 1.0, 3.0, 4.5, 20.0], size=count) for count in counts]
    spans = [(0, points)] * 3 + [tuple(sorted(rng.integers(0, points + 1, size=2).tolist())) for _ in counts[3:]]
    ports = [Port(n, rng.integers(0, 4, size=counts[n])) for n in range(4)]
    pairs = (ports[0], ports[1]), (ports[2], ports[3])
    out = []
    for point in range(points):
        bytes_ = {n: sizes[n] for n, (begin, end) in enumerate(spans) if begin <= point < end}
        if point == points // 2:
            bytes_[8] = sizes[8] + 1.0
        some = rng.choice([0.0, 2.0, 9.0], size=(4, 6))
        own = [Moved(pair[1].node, some[k][pair[1].rows], (pair,)) for k, pair in enumerate(pairs[: point % 3])]
        beside = Moved(1, some[2][ports[1].rows], pairs[:1], pairs[1:])
        other = Moved(4, some[3][: counts[4]], pairs)
        moved = (*own, *([beside] if point % 4 == 1 else []), *([other] if point % 5 == 2 else []))
        out.append(Load(bytes_, 60.0 if point % 2 else 45.0, moved))
    return counts, out


def program_of(counts: Sequence[int], loads: Sequence[Load], seed: int) -> tuple[Model, list[int], MemoryRows]:
    """One choice of each node, at prices of which the least take the most."""
    rng, a, choice = np.random.default_rng(seed), Assembly(), []
    for count in counts:
        first = a.add_columns(rng.uniform(0.0, 100.0, size=count), 1.0, True)
        row = a.add_rows(1, 1.0, 1.0)
        a.add_entries(np.full(count, row), first + np.arange(count), 1.0)
        choice.append(first)
    memory = add_memory(a, choice, loads)
    return a.model(), choice, memory


def cheapest(model: Model, counts: Sequence[int], choice: Sequence[int], loads: Sequence[Load]) -> float:
    """By looking at all, the cheapest first; infinite where none keeps to the loads."""
    every = np.stack(np.unravel_index(np.arange(np.prod(counts)), counts), axis=1)
    costs = np.sum([model.cost[first + every[:, n]] for n, first in enumerate(choice)], axis=0)
    fits = np.ones(len(every), dtype=bool)  # whatever is moved
    for load in loads:
        fits &= sum(size[every[:, n]] for n, size in load.bytes.items()) <= load.room * (1 + 1e-11)
    for row in np.flatnonzero(fits)[np.argsort(costs[fits], kind="stable")]:
        chosen = every[row].tolist()
        if all(load.of(chosen) <= load.room * (1 + 1e-12) for load in loads):
            return float(costs[row])
    return np.inf


@pytest.mark.parametrize("seed", range(12))
def test_parts_add_up_to_what_loads_take(seed: int) -> None:
    counts, loads = loads_of(seed)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        chosen = [int(rng.integers(count)) for count in counts]
        taken = np.zeros(len(loads))
        for part in parts(loads):
            taken[list(part.loads)] += part.least + sum(float(more[chosen[n]]) for n, more in part.more)
        taken += [sum(one.of(chosen) for one in load.moved) * (ROOM / load.room) for load in loads]
        assert taken == pytest.approx([load.of(chosen) * (ROOM / load.room) for load in loads], rel=1e-12)
    assert len({part.loads for part in parts(loads)}) == len(parts(loads)), "what is in the same loads is one part"


@pytest.mark.parametrize("unit", [None, 75.0])
@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_that_of_all_plans_that_keep_to_the_loads(seed: int, unit: float | None) -> None:
    """Whatever rows count in."""
    counts, loads = loads_of(seed)
    loads = [replace(load, memory=unit) for load in loads]
    model, choice, memory = program_of(counts, loads, seed)
    least = cheapest(model, counts, choice, loads)
    whole = written_out(model, choice, memory, loads)
    for each in (model, whole):
        answer = solve(each, Settings())
        assert answer.none == (least == np.inf)
        assert answer.none or answer.bound == pytest.approx(least, rel=1e-6)
    if least < np.inf:
        relaxed, apart = (solve(continuous(each), Settings(presolve=False)) for each in (model, whole))
        assert relaxed.bound == pytest.approx(apart.bound, rel=1e-7), "neither is weaker"


def test_what_values_take_that_are_moved_counts() -> None:
    moved = 0
    for seed in range(12):
        counts, loads = loads_of(seed)
        model, choice, memory = program_of(counts, loads, seed)
        rng = np.random.default_rng(seed)
        for _ in range(8):
            chosen = [int(rng.integers(count)) for count in counts]
            each = replace(model, upper=model.upper.copy())
            for first, count, c in zip(choice, counts, chosen, strict=True):
                each.upper[first : first + count] = np.arange(count) == c
            fits = all(load.of(chosen) <= load.room for load in loads)
            moved += not fits and all(replace(load, moved=()).of(chosen) <= load.room for load in loads)
            for program in (each, written_out(each, choice, memory, loads)):
                assert solve(program, Settings()).none is not fits
    assert moved, "some are left out for what they move alone"


@pytest.mark.parametrize("seed", range(12))
def test_grains_cut_nothing_off_and_let_in_what_takes_hardly_more(seed: int) -> None:
    """Sizes and rooms of any digits, such that some plans take all that there is."""
    counts, loads = loads_of(seed)
    rng = np.random.default_rng(seed)
    digits = {n: rng.uniform(0.9, 1.1, size=count) for n, count in enumerate(counts)}
    loads = [replace(one, bytes={n: size * digits[n] for n, size in one.bytes.items()}) for one in loads]
    just = [[int(rng.integers(count)) for count in counts] for _ in range(3)]
    loads = [replace(one, room=max(one.of(chosen) for chosen in just) + 1e-9) for one in loads]
    model, choice, memory = program_of(counts, loads, seed)
    rows = slice(memory.rows.start, memory.rows.start + len(loads))
    grains = in_grains(written_out(model, choice, memory, loads), rows)
    own = (grains.row >= rows.start) & (grains.row < rows.stop)
    assert grains.integer.all() and (grains.coefficient[own] % 1 == 0).all() and (grains.high[rows] % 1 == 0).all()
    for chosen in just:
        fixed = grains.upper.copy()
        for first, count, c in zip(choice, counts, chosen, strict=True):
            fixed[first : first + count] = np.arange(count) == c
        assert not solve(replace(grains, upper=fixed), Settings(solver="cp-sat")).none
    most = [replace(one, room=one.room * (1 + len(counts) / (ROOM * GRAINS))) for one in loads]
    answer = solve(grains, Settings(solver="cp-sat"))
    exact, loose = (cheapest(model, counts, choice, every) for every in (loads, most))
    assert loose * (1 - 1e-9) <= answer.bound <= exact * (1 + 1e-9)


def test_loads_are_numbered_anew_with_their_ports() -> None:
    counts, loads = loads_of(5)
    rng = np.random.default_rng(5)
    masks = [rng.random(count) < 0.6 for count in counts]
    masks = [mask if mask.any() else np.ones_like(mask) for mask in masks]
    kept = [np.flatnonzero(mask) for mask in masks]
    left = taken_by(loads, masks)
    for chosen in np.ndindex(*(len(k) for k in kept)):
        whole = [int(k[c]) for k, c in zip(kept, chosen, strict=True)]
        assert [load.of(chosen) for load in left] == [load.of(whole) for load in loads]
    pairs, before = ({one.all_of for load in every for one in load.moved} for every in (left, loads))
    assert len(pairs) == len(before), "what is one move stays one"


@pytest.mark.parametrize("seed", range(12))
def test_what_several_have_in_common_has_no_reduced_cost(seed: int) -> None:
    counts, loads = loads_of(seed)
    model, _, memory = program_of(counts, loads, seed)
    answer = solve(continuous(model), Settings(presolve=False))
    sums = np.arange(memory.sums.start, memory.sums.stop)
    assert len(sums), "some loads have something in common"
    if not answer.none:
        assert answer.x is not None and answer.reduced_costs is not None
        assert (answer.x[sums] > 0.5).all() and (answer.x[sums] < model.upper[sums] - 0.5).all()
        assert answer.reduced_costs[sums] == pytest.approx(0.0, abs=1e-9)


def test_rows_have_few_entries_and_those_that_are_written_out_all() -> None:
    counts, loads = loads_of(1, points=200)
    loads = [replace(load, moved=()) for load in loads]
    model, choice, memory = program_of(counts, loads, 1)
    whole = written_out(model, choice, memory, loads)
    assert len(model.row) < len(whole.row) / 2
    assert not np.isin(whole.column, np.arange(memory.sums.start, memory.sums.stop)).any()
    assert (whole.upper[memory.sums.start : memory.sums.stop] == 0).all(), "nor are their columns shown to a solver"


def test_rooms_of_one_memory_have_in_common_what_is_taken_in_all_of_them() -> None:
    """However much of it is left at each point."""
    counts, loads = loads_of(1, points=50)
    alike = [replace(load, moved=(), room=60.0) for load in loads]
    others = [replace(load, room=60.0 - 0.01 * n, memory=60.0) for n, load in enumerate(alike)]
    model, differ = (program_of(counts, each, 1)[0] for each in (alike, others))
    assert len(differ.row) == len(model.row) and len(parts(others)) == len(parts(alike))
    assert (differ.high <= model.high + 1e-9).all() and differ.high.sum() < model.high.sum()
