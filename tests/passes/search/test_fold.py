"""Copies: which ops follow each other in one pattern, and what stands for which of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from problems import problem_of
from written_out import written_out

from escc.passes.search.fold import Fold, Run, fold, runs


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([1, 2, 3, 4], []),
        ([1, 1], []),
        ([1, 1, 1], [Run(0, 1, 3)]),
        ([9, 1, 2, 1, 2, 1, 2, 8], [Run(1, 2, 3)]),
        ([1, 2, 1, 2, 1, 2, 1], [Run(0, 2, 3)]),
        ([1, 1, 2, 1, 1, 2, 1, 1, 2], [Run(0, 3, 3)]),
        ([5, 5, 5, 0, 1, 2, 1, 2, 1, 2, 1, 2], [Run(0, 1, 3), Run(4, 2, 4)]),
        ([9, *range(7), *range(7), 9], []),
        ([9, *range(8), *range(8), 9], [Run(1, 8, 2)]),
    ],
)
def test_patterns_that_cover_most_are_found_first(kinds: list[int], found: list[Run]) -> None:
    assert runs(kinds) == found


def folded(blocks: list[str], apart: int = 0) -> Fold | None:
    return fold(problem_of(written_out(blocks), "2x2"), apart)


def test_few_ops_that_are_alike_are_no_copies_of_a_block() -> None:
    assert folded(["attention", "normed", "forward"]) is None


@pytest.mark.parametrize("apart", [0, 1])
def test_copies_between_the_ends_are_one(apart: int) -> None:
    found = folded(["forward"] * 9, apart)
    assert found is not None
    # The first block reads what comes in, and the result of the last one is handed out.
    assert set(Counter(found.copies)) == {1, 7 - 2 * apart}
    assert sum(found.copies) == len(found.node_of)
    junctions = [each for each in found.shapes if any(len(end.parts) > 1 for end in each.ends)]
    assert junctions, "blocks hand on values"
    for each in (*found.shapes, *found.tensors):
        assert all(sum(share for _, share in end.parts) == pytest.approx(1.0) for end in each.ends)


def test_patterns_of_two_blocks_and_what_stands_before_and_after() -> None:
    found = folded(["linear"] * 2 + ["attention", "forward"] * 6 + ["normed"])
    assert found is not None
    assert max(found.copies) in (5, 6)


def test_what_all_blocks_read_is_read_once() -> None:
    found = folded(["tied"] * 8)
    assert found is not None
    [shared] = [t for t in found.window.graph.tensors if t.value.name == "W"]
    assert len(shared.uses) <= 3, "by the first block, by those between, by the last"


@pytest.mark.parametrize("blocks", [["forward"] * 6, ["tied"] * 6, ["linear", "attention"] * 4])
def test_plans_of_the_classes_are_plans_of_all(blocks: list[str], least: Callable[[Fold], list[int]]) -> None:
    problem = problem_of(written_out(blocks), "2x2")
    found = fold(problem, 0)
    assert found is not None
    chosen, _ = found.spread(least(found), frozenset())
    for node, choice, stands in zip(problem.graph.nodes, chosen, found.node_of, strict=True):
        assert node.seconds[choice] == found.window.graph.nodes[stands].seconds[least(found)[stands]]
    ends = [tensor.ends(chosen) for tensor in problem.graph.tensors]
    assert all(root >= 0 for root, _ in ends)


@pytest.mark.parametrize("alone", [False, True], ids=["all combine", "the first block alone"])
def test_knots_of_copies_are_one_knot_of_their_classes(alone: bool) -> None:
    problem = problem_of(written_out(["gated"] * 6), "2x2")
    every = problem.groups
    assert every is not None and len(every.kept) == 6, "each block has one"
    groups = every.only(frozenset({min(every.kept)})) if alone else every
    found = fold(replace(problem, groups=groups), 0)
    assert groups is not None and found is not None
    own = found.window.groups
    assert own is not None and len(own.knot) == len(own.latency_s) == len(found.group_copies)
    stands = {knot: own.knot[c] for knot, c in zip(groups.knot, found.group_of, strict=True) if knot in groups.kept}
    assert own.kept == set(stands.values()) and len(own.kept) == (1 if alone else 3), "the ends, and all between them"
    assert all(knot[0] == name[0] for name, knot in stands.items())
    for g, c in enumerate(found.group_of):
        assert groups.knot[g] not in stands or own.knot[c] == stands[groups.knot[g]]
    for of in own.of:
        assert of is None or len({own.knot[g] for g in of[of >= 0]}) <= 1, "a value is in groups of one knot"


@pytest.fixture
def least() -> Callable[[Fold], list[int]]:
    return lambda found: [int(price.argmin()) for price in found.window.prices]
