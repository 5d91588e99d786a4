"""Phases planned together: one graph of several, parameters stored once, caches handed on.

Each phase has a graph of its own. Joined, a parameter is one node that all phases read from, what a
phase does counts as often as the phase is called, and a cache that one phase leaves and the next one
goes on with pays for coming to lie as the next one has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from ...ir.diagnostics import Diagnostic, InputError, fail
from ...ir.program import Kind, Phase, Stored
from ..layouts.space import REPLICATED, TENSOR_MODES, Arrangements, Array, TensorSpace
from ..plan import NoPlan, Outcome
from .graph import Graph, Handover, Node, Port, Result, Tensor

T = TypeVar("T")


def for_each(phases: Sequence[str], make: Callable[[str], T]) -> list[T]:
    """What is made of each phase. Raises InputError with what is wrong with any of them, naming the
    phases of what is not wrong with all; NoPlan where all that is wrong is that some have no plan."""
    done: list[T] = []
    failed: dict[Diagnostic, list[str]] = {}
    outcomes: list[Outcome | None] = []
    for phase in phases:
        try:
            done.append(make(phase))
        except InputError as error:
            outcomes.append(error.outcome if isinstance(error, NoPlan) else None)
            for diagnostic in error.diagnostics:
                failed.setdefault(diagnostic, []).append(phase)
    if failed:
        found = [
            d if len(where) == len(phases) else replace(d, message=f"Phase {', '.join(where)}: {d.message}")
            for d, where in failed.items()
        ]
        if None in outcomes:
            raise InputError(found)
        raise NoPlan(found, Outcome.INFEASIBLE if Outcome.INFEASIBLE in outcomes else Outcome.UNPROVEN)
    return done


def join_phases(graphs: Sequence[Graph], phases: Sequence[Phase]) -> Graph:
    """One graph of several, one for each of `phases`, whose tensors and nodes say whose they are.

    Raises InputError when a parameter has different sizes in two phases.
    """
    if len(graphs) == 1:
        return _marked(graphs[0], phases[0].name)
    joined = _called(graphs[0], phases[0])
    for graph, phase in zip(graphs[1:], phases[1:], strict=True):
        _check_sizes(graphs[0], phases[0], phase)
        joined = _joined(joined, _called(graph, phase))
    caches = {phase.name: _caches(joined, phase.name) for phase in phases}
    handed: list[Tensor] = []
    for first, second in pairwise(phases):
        for name, tensor in caches[first.name].items():
            if name in caches[second.name]:
                handed.append(_handed(tensor, caches[second.name][name], first, second))
    return Graph(joined.nodes, (*joined.tensors, *handed))


def _check_sizes(graph: Graph, first: Phase, second: Phase) -> None:
    """Raise InputError unless every parameter of `graph` has the sizes of `first` in `second` too."""
    sizes = [dict(phase.sizes) for phase in (first, second)]
    tensors = {t.source.node: t for t in graph.tensors}
    for node in _parameters(graph).values():
        value = tensors[node].value
        if any(sizes[0][dim] != sizes[1][dim] for dim in value.dims):
            raise _contradiction(value.name, first.name, second.name)


def view(graph: Graph, phase: str) -> Graph:
    """What one phase has of a joined graph, nodes numbered as they are there."""
    others = Node(Result(""), np.zeros(1), np.zeros(1))
    nodes = tuple(node if node.phase in (phase, None) else others for node in graph.nodes)
    return Graph(nodes, tuple(t for t in graph.tensors if t.phase == phase))


def _marked(graph: Graph, phase: str) -> Graph:
    return Graph(
        tuple(replace(node, phase=phase) for node in graph.nodes),
        tuple(replace(tensor, phase=phase) for tensor in graph.tensors),
    )


def _called(graph: Graph, phase: Phase) -> Graph:
    """The graph of all calls of a phase."""
    marked = _marked(graph, phase.name)
    return Graph(
        tuple(replace(node, seconds=node.seconds * phase.calls) for node in marked.nodes),
        tuple(replace(tensor, times=tensor.times * phase.calls) for tensor in marked.tensors),
    )


def _parameters(graph: Graph) -> dict[str, int]:
    found = {}
    for n, node in enumerate(graph.nodes):
        if isinstance(node.item, Stored) and node.item.kind is Kind.PARAM:
            found[node.item.value] = n
    return found


def _joined(first: Graph, second: Graph) -> Graph:
    """Two graphs as one, in which a parameter's node is that of both."""
    ours, theirs = _parameters(first), _parameters(second)
    sources = {t.source.node: t for t in second.tensors}
    known = {t.source.node: t for t in first.tensors if t.phase == first.tensors[0].phase}
    number: dict[int, int] = {}  # of the second's nodes
    kept: dict[int, tuple[Array, Array]] = {}  # for a shared node the choices of each that are one
    for name, n in theirs.items():
        m = ours[name]
        kept[m] = _common(known[m], sources[n])
        number[n] = m
    own = [n for n in range(len(second.nodes)) if n not in number]
    number |= {n: len(first.nodes) + k for k, n in enumerate(own)}
    back = {number[n]: kept[number[n]][1] for n in theirs.values()}
    nodes = [replace(node.take(kept[n][0]), phase=None) if n in kept else node for n, node in enumerate(first.nodes)]

    def here(port: Port) -> Port:
        return Port(port.node, port.rows[kept[port.node][0]]) if port.node in kept else port

    def there(port: Port) -> Port:
        node = number[port.node]
        return Port(node, port.rows[back[node]] if node in back else port.rows)

    tensors = [replace(t, source=here(t.source), uses=tuple(map(here, t.uses))) for t in first.tensors]
    tensors += [replace(t, source=there(t.source), uses=tuple(map(there, t.uses))) for t in second.tensors]
    return Graph((*nodes, *(second.nodes[n] for n in own)), tuple(tensors))


def _common(first: Tensor, second: Tensor) -> tuple[Array, Array]:
    """The choices of two nodes that store one parameter alike. Raises InputError when there are none."""
    codes, others = (t.space.space.rows.take(t.source.rows).codes() for t in (first, second))
    _, ours, theirs = np.intersect1d(codes, others, return_indices=True)
    if not len(ours):
        raise _contradiction(first.value.name, str(first.phase), str(second.phase))
    order = np.argsort(ours)
    return ours[order], theirs[order]


def _contradiction(parameter: str, first: str, second: str) -> InputError:
    return fail(
        f"The parameter `{parameter}` is stored once, and cannot be what the phases `{first}` and `{second}` both "
        "take it for.",
        hint="give its dims one size in all phases, or plan each phase alone",
    )


def _caches(graph: Graph, phase: str) -> dict[str, Tensor]:
    """The caches that a phase appends to."""
    return {
        t.value.name: t
        for t in graph.tensors
        if t.phase == phase
        and graph.nodes[t.source.node].stored == t.value.name
        and not isinstance(graph.nodes[t.source.node].item, Stored)
    }


def _handed(first: Tensor, second: Tensor, before: Phase, after: Phase) -> Tensor:
    """A cache on its way. Where a dim has another size afterwards, what comes is only a part of what is
    there: every chip gets all of it along that dim, and its owner writes it."""
    sizes = [dict(phase.sizes) for phase in (before, after)]
    same = [d for d, dim in enumerate(first.value.dims) if sizes[0][dim] == sizes[1][dim]]
    target = Port(second.source.node, _landing(first.space, second.space, second.source.rows, same))
    return replace(first, uses=(target,), joins=False, phase=Handover(before.name, after.name))


def _landing(space: TensorSpace, later: TensorSpace, rows: Array, same: Sequence[int]) -> Array:
    """Layouts of `later` as rows of `space`, all dims but the `same` whole."""
    arranged = later.space.rows.take(rows)
    target = np.full(TENSOR_MODES + arranged.slots, REPLICATED, dtype=np.int64)
    for slot, dim in enumerate(later.dims):
        if dim in same and dim in space.dims:
            target[TENSOR_MODES + slot] = TENSOR_MODES + space.dims.index(dim)
    place = target[arranged.place]
    position = np.where(place >= TENSOR_MODES, arranged.position, 0)
    return space.space.find(Arrangements(place, position, TENSOR_MODES, len(space.dims)))
