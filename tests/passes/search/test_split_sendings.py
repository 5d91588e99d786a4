"""Arcs told apart by protocols: which there are, and that a bill takes for all of a run the one that is quickest."""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np
import pytest
from problems import problem_of

from escc.cost.hardware import Hardware
from escc.cost.network import Network
from escc.cost.sendings import Sending
from escc.ir.collective import CollectiveKind
from escc.ir.mesh import Mesh
from escc.passes.layouts.reshard import KINDS, QUICKEST, Arcs
from escc.passes.search.combinable import ALONE, Groups
from escc.passes.search.split_sendings import split_sendings

# Of a byte a second each; or, 10 s later, ten bytes a second: from 11.1 bytes on.
WAYS = (Sending(0.0, 1.0), Sending(10.0, 0.1))


def split(held: list[list[float]], ways: tuple[Sending, ...] = WAYS, latency_s: float = 2.0):  # type: ignore[no-untyped-def]
    """Tensors with as many arcs of one group, whose bytes are `held`, and one arc of none."""
    arcs, seconds, of = [], [], []
    for sizes in held:
        ends = np.arange(len(sizes) + 1)
        arcs.append(Arcs(ends, ends + 1, np.zeros_like(ends), np.ones_like(ends), np.full_like(ends, QUICKEST)))
        own = [latency_s + min(way.seconds(size) for way in ways) for size in sizes]
        seconds.append(np.array([*own, 77.0]))
        of.append(np.array([0] * len(sizes) + [ALONE]))
    groups = Groups(np.array([latency_s]), of, [("main", 0)], frozenset({("main", 0)}), np.arange(1))
    bytes_ = [np.array([*sizes, 5.0]) for sizes in held]
    return split_sendings(arcs, seconds, bytes_, groups, [ways])


def test_an_arc_has_the_ways_that_may_be_quickest_for_what_it_is_part_of() -> None:
    # Alone 6 and 8 bytes go slowly, together in bulk; 20 bytes go in bulk whatever joins.
    arcs, seconds, groups = split([[6.0, 1.0], [8.0], [20.0]])
    assert [own.sending.tolist() for own in arcs] == [[0, 1, 0, 1, QUICKEST], [0, 1, QUICKEST], [1, QUICKEST]]
    assert seconds[0].tolist() == pytest.approx([8.0, 12.6, 3.0, 12.1, 77.0])
    assert seconds[2].tolist() == pytest.approx([14.0, 77.0])
    assert groups.latency_s.tolist() == [2.0, 12.0]
    assert [own.tolist() for own in groups.of] == [[0, 1, 0, 1, ALONE], [0, 1, ALONE], [1, ALONE]]
    assert groups.lead.tolist() == [0, 0]
    assert groups.knot == [("main", 0)] * 2
    # All together are too little for bulk.
    arcs, seconds, groups = split([[3.0, 1.0], [8.0]])
    assert [own.sending.tolist() for own in arcs] == [[0, 0, QUICKEST], [0, QUICKEST]]
    assert groups.latency_s.tolist() == [2.0]


def test_there_is_no_group_for_a_way_that_starts_with_nothing() -> None:
    _, _, groups = split([[6.0], [8.0]], latency_s=0.0)
    assert groups.latency_s.tolist() == [10.0]
    assert [own.tolist() for own in groups.of] == [[ALONE, 0, ALONE]] * 2


def test_what_has_one_way_stays_as_it_is() -> None:
    arcs, _, groups = split([[6.0], [8.0]], ways=WAYS[:1])
    assert all((own.sending == QUICKEST).all() and own.twins is None for own in arcs)
    assert groups.latency_s.tolist() == [2.0]


TWO = """
dim B = 1024, E = 8192, F = 2048, G = 2048
main(x: bf16[B,E]) {
  param W: bf16[E,F]
  param V: bf16[E,G]
  u[B,F] = x[B,E] * W[E,F]
  v[B,G] = x[B,E] * V[E,G]
  return u, v
}
"""


def test_what_runs_as_one_is_priced_as_one_collective_of_all_its_bytes() -> None:
    """Two sums of 4 MB over 8 chips: each alone takes the one protocol or the other, both together start one once."""
    problem, network = problem_of(TWO, "gpu=8", "h100"), Network(Hardware.load("h100"), Mesh.parse("gpu=8"))
    trees, groups, kind = problem.trees, problem.groups, CollectiveKind.ALL_REDUCE
    assert groups is not None
    chosen, wanted = [0] * len(problem.graph.nodes), []
    for t, tensor in enumerate(problem.graph.tensors):
        near = problem.distances[t]
        if near is None or tensor.value.name not in ("u", "v"):
            continue
        arc = int(np.flatnonzero(near.arcs.kind == KINDS.index(kind))[0])
        wanted.append(t)
        for port, row in ((tensor.source, near.arcs.source[arc]), (tensor.uses[0], near.arcs.target[arc])):
            chosen[port.node] = int(np.flatnonzero(port.rows == row)[0])
    shared = reduce(or_, (trees.joinable[t] for t in wanted))
    bill = trees.bill(chosen, shared, {t: () for t in range(len(trees.tensors)) if t not in wanted})
    size = 2.0 * 1024 * 2048
    assert [len(bill.arcs[t]) for t in wanted] == [1, 1]
    assert bill.groups[wanted[0]] == bill.groups[wanted[1]] != (ALONE,)
    assert bill.price == pytest.approx(network.collective_s(kind, ["gpu"], 2 * size, 2 * size), rel=1e-9)
    assert bill.price < 2 * network.collective_s(kind, ["gpu"], size, size) - network.latency_s(kind, ["gpu"]) - 1e-5
