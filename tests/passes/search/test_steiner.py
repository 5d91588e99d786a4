"""Cheapest trees against trying every set of arcs, and every set of copies."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from escc.passes.layouts.reshard import QUICKEST, Arcs
from escc.passes.search import steiner
from escc.passes.search.steiner import OFTEN, Distances, KnownTrees, cheapest_tree, inward_trees, outward_trees, point

INF = float("inf")


def graph(seed: int, nodes: int, arcs: int) -> Distances:
    """A random directed graph; prices that tie often."""
    rng = random.Random(seed)
    pairs = rng.sample([(a, b) for a in range(nodes) for b in range(nodes) if a != b], arcs)
    source, target = (np.array(column, dtype=np.int64) for column in zip(*sorted(pairs), strict=True))
    price = np.array([rng.choice([1.0, 1.0, 2.0, 3.5]) for _ in pairs])
    kind, axes, sending = np.zeros_like(source), np.ones_like(source), np.full_like(source, QUICKEST)
    return Distances(Arcs(source, target, kind, axes, sending), price)


def reached(root: int, arcs: list[tuple[int, int]]) -> set[int]:
    seen = {root}
    while grown := {b for a, b in arcs if a in seen} - seen:
        seen |= grown
    return seen


def least(near: Distances, root: int, targets: list[int]) -> float:
    """The cheapest set of arcs over which all targets are reached, by trying all sets."""
    arcs = list(zip(near.arcs.source.tolist(), near.arcs.target.tolist(), near.price.tolist(), strict=True))
    best = INF
    for count in range(len(arcs) + 1):
        for chosen in itertools.combinations(arcs, count):
            price = sum(p for _, _, p in chosen)
            if price < best and set(targets) <= reached(root, [(a, b) for a, b, _ in chosen]):
                best = price
    return best


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_is_the_cheapest_set_of_arcs(seed: int) -> None:
    rng = random.Random(seed)
    near = graph(seed, 5, 11)
    root, *targets = rng.choices(range(5), k=rng.choice([2, 3, 4, 5]))
    best = least(near, root, targets)
    every = [point(t, 5) for t in targets]
    assert inward_trees(near, every)[-1][root] == best
    if best == INF:
        return
    tree = cheapest_tree(near, root, targets)
    assert near.price[tree].sum() == best
    # The arcs can be applied in their order, and no layout is made twice.
    made = [root]
    for arc in tree:
        assert near.arcs.source[arc] in made
        made.append(int(near.arcs.target[arc]))
    assert len(set(made)) == len(made)
    assert set(targets) <= set(made)


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_and_the_rest_make_the_whole(seed: int) -> None:
    """The least of the tree ahead and of all else, together: for one use and for all it is the least
    of all, for other sets no less, since the best tree need not have a branch for just these."""
    rng = random.Random(seed)
    near = graph(seed, 6, 16)
    ends = [np.array([rng.choice([0.0, 1.0, 4.0, INF]) for _ in range(6)]) for _ in range(3)]
    ends = [np.where(np.isfinite(end).any(), end, 0.0) for end in ends]
    start = np.array([rng.choice([0.0, 2.0, 5.0]) for _ in range(6)])
    inward = inward_trees(near, ends)
    outward = outward_trees(near, start, inward)
    whole = (start + inward[-1]).min()
    for use in range(3):
        assert (ends[use] + outward[1 << use]).min() == whole
    for mask in range(1, 8):
        least_with_branch = (inward[mask] + outward[mask]).min()
        assert least_with_branch == whole if mask in (1, 2, 4, 7) else least_with_branch >= whole
    # What a use ends at, given a layout, is what it would be with that use held there.
    for use, layout in itertools.product(range(3), range(6)):
        held = [point(layout, 6) + ends[u] if u == use else ends[u] for u in range(3)]
        assert (ends[use] + outward[1 << use])[layout] == (start + inward_trees(near, held)[-1]).min()


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_trees_that_are_kept_are_those_that_are_made_anew(uses: int) -> None:
    """Whatever changes between two questions, at an end, at the start, or in the prices, and whatever is asked for."""
    rng = random.Random(uses)
    near = graph(uses, 6, 16)

    def values() -> np.ndarray:
        return np.array([rng.choice([0.0, 1.0, 2.5, 4.0]) for _ in range(6)])

    start, ends = values(), [values() for _ in range(uses)]
    known = KnownTrees(uses)
    for _ in range(60):
        change = rng.randrange(uses + 3)
        if change < uses:
            ends[change] = values()
        elif change == uses:
            start = values()
        elif change == uses + 1:
            near = near.repriced(near.price + rng.choice([0.5, 1.0]))
        else:
            known = known.copy()
        inward = inward_trees(near, ends)
        outward = outward_trees(near, start, inward)
        use = rng.randrange(uses)
        match rng.randrange(3):
            case 0:
                found = known.inward(near, ends)
                assert all(np.array_equal(found[mask], inward[mask]) for mask in range(1, 1 << uses))
            case 1:
                found = known.outward(near, start, ends, 1 << use)
                assert np.array_equal(found[1 << use], outward[1 << use])
            case _:
                found = known.outward(near, start, ends)
                assert all(np.array_equal(found[mask], outward[mask]) for mask in range(1, 1 << uses))


def test_what_is_known_of_one_copy_is_no_matter_to_another() -> None:
    near = graph(3, 6, 16)
    first, second = np.arange(6.0), np.arange(6.0)[::-1].copy()
    known = KnownTrees(1)
    other = known.copy()
    assert np.array_equal(known.inward(near, [first])[1], inward_trees(near, [first])[1])
    assert np.array_equal(other.inward(near, [second])[1], inward_trees(near, [second])[1])
    assert np.array_equal(known.inward(near, [first])[1], inward_trees(near, [first])[1])


def test_nothing_to_reach_is_nothing_to_do() -> None:
    near = graph(0, 4, 6)
    assert cheapest_tree(near, 2, []) == []
    assert cheapest_tree(near, 2, [2, 2]) == []


def test_a_graph_without_arcs_leaves_values_as_they_are() -> None:
    empty = np.zeros(0, dtype=np.int64)
    near = Distances(Arcs(empty, empty, empty, empty, empty), np.zeros(0))
    values = np.array([[1.0, INF]])
    assert near.forward(values).tolist() == near.backward(values).tolist() == [[1.0, INF]]


def test_paths_run_along_the_arcs_and_not_against_them() -> None:
    arcs = Arcs(np.array([0, 1]), np.array([1, 2]), np.zeros(2, np.int64), np.ones(2, np.int64), np.full(2, QUICKEST))
    near = Distances(arcs, np.array([1.0, 2.0]))
    assert near.forward(point(0, 3)[None])[0].tolist() == [0, 1, 3]
    assert near.backward(point(2, 3)[None])[0].tolist() == [3, 2, 0]


@pytest.mark.parametrize("seed", range(10))
def test_all_pairs_are_what_rounds_settle(seed: int) -> None:
    near, again = graph(seed, 12, 30), graph(seed, 12, 30)
    rng = np.random.default_rng(seed)
    for _ in range(2 * OFTEN):
        values = rng.choice([0.0, 1.0, 4.0, INF], size=(1, 12))
        fresh = again.repriced(again.price)
        np.testing.assert_array_equal(near.forward(values), fresh.forward(values))
        np.testing.assert_array_equal(near.backward(values), fresh.backward(values))


def test_vectors_at_once_are_what_each_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: in one array of sums, and where that would be a large one, vector after vector."""
    rng = np.random.default_rng(0)
    near = graph(0, 12, 30).repriced(rng.random(30))
    near.forward(np.zeros((OFTEN, 12)))
    values = np.where(rng.random((7, 12)) < 0.2, INF, rng.random((7, 12)))
    at_once = near.forward(values)
    monkeypatch.setattr(steiner, "FEW_SUMS", 0)
    assert at_once.tolist() == near.forward(values).tolist() == [near.forward(v[None])[0].tolist() for v in values]
