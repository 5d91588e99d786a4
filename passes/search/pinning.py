"""Pins applied: the choices that a pin forbids are left out of the graph."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ...ir.diagnostics import Diagnostic, InputError, did_you_mean
from ...ir.layout import Layout, Reduction, spelled_out, unsplittable
from ...ir.mesh import Mesh
from ...ir.program import Carry, Pin, PinKind, Program, Stored
from ..layouts.reshard import Arcs
from ..layouts.space import Mask
from ..plan import NoPlan, Outcome
from .graph import Graph, Node, Port, Result, Tensor, restrict

SHOWN = 200  # characters of a pin


def apply_pins(graph: Graph, pins: Sequence[Pin], sizes: Mapping[str, int], mesh: Mesh) -> Graph:
    """The graph with the choices that all `pins` allow.

    Raises InputError that names every pin that cannot hold, and why.
    """
    findings: list[Diagnostic] = []
    kept: list[Mask] = [np.ones(len(node.seconds), dtype=bool) for node in graph.nodes]
    held: list[list[Pin]] = [[] for _ in graph.nodes]
    tensors = {t.value.name: t for t in graph.tensors}
    for pin in pins:
        tensor = tensors[pin.value]
        row = tensor.space.index(pin.layout)
        why, hint = _misfit(pin, tensor, row, sizes, mesh)
        if why is not None:
            findings.append(_cannot_hold(pin, why, hint))
            continue
        for port in _pinned_ports(pin, graph, tensor):
            allowed = kept[port.node] & (port.rows == row)
            if allowed.any():
                kept[port.node] = allowed
                held[port.node].append(pin)
                continue
            others = [p.text[:SHOWN] for p in held[port.node]]
            beside = f", beside the pin `{'`, `'.join(others)}`" if others else ""
            node = graph.nodes[port.node].name
            findings.append(_cannot_hold(pin, f"no way to run `{node}` has it{beside}"))
            break
    if findings:
        raise InputError(findings)
    return restrict(graph, kept)


def undivided(program: Program, phase: str, pins: Sequence[Pin], mesh: Mesh) -> list[Diagnostic]:
    """Which pins cannot hold in a phase since their axes do not divide its sizes; of axes that the mesh has."""
    sizes, table = dict(program.phase(phase).sizes), program.table()
    found = []
    for pin in pins:
        axes = {*itertools.chain(*pin.layout.dims)}
        if pin.phase in (None, phase) and pin.value in table and axes.issubset(mesh.names):
            reason = unsplittable(table[pin.value].dims, pin.layout, sizes, mesh)
            found += [] if reason is None else [_cannot_hold(pin, reason)]
    return found


def _cannot_hold(pin: Pin, why: str, hint: str | None = None) -> Diagnostic:
    return Diagnostic(f"The pin `{pin.text[:SHOWN]}` cannot hold: {why}.", hint=hint)


def bar(graph: Graph, barred: Sequence[Pin]) -> Graph:
    """The graph without the choices in which a value lies as `barred` has it. Raises NoPlan where none is left."""
    kept: list[Mask] = [np.ones(len(node.seconds), dtype=bool) for node in graph.nodes]
    tensors = {t.value.name: t for t in graph.tensors}
    for pin in barred:
        tensor = tensors[pin.value]
        row = tensor.space.index(pin.layout)
        for port in _pinned_ports(pin, graph, tensor):
            kept[port.node] = kept[port.node] & (port.rows != (-1 if row is None else row))
            if not kept[port.node].any():
                message = f"`{pin.value}` lies in none of the layouts that are left."
                raise NoPlan([Diagnostic(message)], Outcome.INFEASIBLE)
    return restrict(graph, kept)


def pins_leave_nothing(graph: Graph, arcs: Sequence[Arcs | None], pins: Sequence[Pin]) -> NoPlan:
    """No plan keeps to all `pins`: which value cannot come to where it is read, of those that move over `arcs`."""
    for tensor, own in zip(graph.tensors, arcs, strict=True):
        reached, more = np.zeros(len(tensor.space), dtype=bool), tensor.source.rows
        while own is not None and not reached[more].all():
            reached[more] = True
            more = own.target[reached[own.source]]
        for use in tensor.uses:
            if reached[use.rows].any():
                continue
            name, reader = tensor.value.name, graph.nodes[use.node].name
            message = f"The pins leave no plan: `{name}` is made in no layout from which `{reader}` can be given it."
            about = [p.text[:SHOWN] for p in pins if p.value in (name, reader) or p.op in (name, reader)]
            hint = f"they are `{'`, `'.join(about)}`" if about else None
            return NoPlan([Diagnostic(message, hint=hint)], Outcome.INFEASIBLE)
    return NoPlan([Diagnostic("No plan keeps to all pins.")], Outcome.INFEASIBLE)


def _misfit(
    pin: Pin, tensor: Tensor, row: int | None, sizes: Mapping[str, int], mesh: Mesh
) -> tuple[str | None, str | None]:
    """Why the value cannot lie as the pin says, with a hint; None where it can."""
    layout: Layout = pin.layout
    for axis in [*(a for axes in layout.dims for a in axes), *layout.partial]:
        if axis not in mesh.names:
            hint = spelled_out(pin.text, mesh.names) or did_you_mean(axis, mesh.names) or f"its axes are {mesh}"
            return f"the mesh has no axis `{axis[:SHOWN]}`", hint
    reason = unsplittable(tensor.value.dims, layout, sizes, mesh)
    if reason is not None:
        return reason, None
    if row is None and not layout.partial:
        return f"groups of `{pin.value}` are kept whole", None
    if row is None:
        kind = "sum" if layout.reduction is Reduction.SUM else "maximum"
        return f"`{pin.value}` is never a partial {kind} over {', '.join(layout.partial)}", None
    if pin.kind is PinKind.STORED and layout.partial:
        return "what is stored or handed out is complete", None
    return None, None


def _pinned_ports(pin: Pin, graph: Graph, tensor: Tensor) -> list[Port]:
    """The ports that a pin is about."""

    def of(port: Port) -> Node:
        return graph.nodes[port.node]

    match pin.kind:
        case PinKind.USE:
            # An append chooses how its cache is stored, so there the cache's source is where it is read.
            return [p for p in (tensor.source, *tensor.uses) if of(p).table is not None and of(p).name == pin.op]
        case PinKind.STORED:
            results = [u for u in tensor.uses if isinstance(of(u).item, Result)]
            return results or [tensor.source]
        case PinKind.RESULT:
            return [tensor.source] if not isinstance(of(tensor.source).item, Stored | Carry) else []
