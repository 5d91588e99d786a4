"""Rows of memory that have much in common say what each of them says by itself, in far fewer entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from escc.passes.ilp.model import Assembly, Model, continuous
from escc.passes.ilp.solver import Settings, solve
from escc.passes.search.memory_bounds import Load
from escc.passes.search.memory_rows import ROOM, MemoryRows, add_memory, parts, written_out


def loads_of(seed: int, points: int = 12) -> tuple[list[int], list[Load]]:
    """How many choices nodes have, and made-up loads at points in time: some nodes take the same at all of them, others
    from one point to another; one takes what others do not, at one point it alone; the rooms are two."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, size=9).tolist()
    sizes = [rng.choice([0.0, 1.0, 3.0, 4.5, 20.0], size=count) for count in counts]
    spans = [(0, points)] * 3 + [tuple(sorted(rng.integers(0, points + 1, size=2).tolist())) for _ in counts[3:]]
    out = []
    for point in range(points):
        bytes_ = {n: sizes[n] for n, (begin, end) in enumerate(spans) if begin <= point < end}
        if point == points // 2:
            bytes_[8] = sizes[8] + 1.0
        out.append(Load(bytes_, 60.0 if point % 2 else 45.0))
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
    """By looking at all; infinite where none keeps to the loads."""
    best = np.inf
    for chosen in np.ndindex(*counts):
        if all(load.of(chosen) <= load.room * (1 + 1e-12) for load in loads):
            best = min(best, sum(float(model.cost[first + c]) for first, c in zip(choice, chosen, strict=True)))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_parts_add_up_to_what_loads_take(seed: int) -> None:
    counts, loads = loads_of(seed)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        chosen = [int(rng.integers(count)) for count in counts]
        taken = np.zeros(len(loads))
        for part in parts(loads):
            taken[list(part.loads)] += part.least + sum(float(more[chosen[n]]) for n, more in part.more)
        assert taken == pytest.approx([load.of(chosen) * (ROOM / load.room) for load in loads], rel=1e-12)
    assert len({part.loads for part in parts(loads)}) == len(parts(loads)), "what is in the same loads is one part"


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_that_of_all_plans_that_keep_to_the_loads(seed: int) -> None:
    counts, loads = loads_of(seed)
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
    model, choice, memory = program_of(counts, loads, 1)
    whole = written_out(model, choice, memory, loads)
    assert len(model.row) < len(whole.row) / 2
    assert not np.isin(whole.column, np.arange(memory.sums.start, memory.sums.stop)).any()
    assert (whole.upper[memory.sums.start : memory.sums.stop] == 0).all(), "nor are their columns shown to a solver"
