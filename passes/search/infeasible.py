"""What a user is told when no plan keeps to the memory of a chip."""

from __future__ import annotations

import numpy as np

from ...ir.diagnostics import Diagnostic
from ...ir.mesh import Mesh
from ..plan import NoPlan, Outcome
from .extract_plan import least_bytes
from .graph import Graph
from .limits import JointLimits, Limits


def does_not_fit(graph: Graph, mesh: Mesh, chip: str, capacity: float, whole: bool) -> NoPlan:
    """Parameters and caches alone take more than there is; `whole`: of all the memory of a chip."""
    needed_bytes = least_bytes(graph)
    least = {n.stored: float(n.stored_bytes.min()) for n in graph.nodes if n.stored_bytes is not None}
    largest = sorted(least.items(), key=lambda item: -item[1])[:5]
    listed = ", ".join(f"`{name}` {_size(size)}" for name, size in largest)
    diagnostic = Diagnostic(
        f"The parameters and caches take at least {_size(needed_bytes)} on each of {mesh.chips} chips, "
        f"{_size(needed_bytes - capacity)} more than the {_size(capacity)} "
        f"that a chip of {chip} {'has' if whole else 'may hold'}.",
        hint=f"the largest, split as far as they divide and the pins allow: {listed}",
    )
    return NoPlan([diagnostic], Outcome.INFEASIBLE)


def live_do_not_fit(limits: Limits | JointLimits, graph: Graph, mesh: Mesh, capacity: float, proven: bool) -> NoPlan:
    """No plan keeps to the memory at every program point: where most is needed, and by what. `proven`: there
    is none; otherwise none was found."""
    every = [np.ones(len(node.seconds), dtype=bool) for node in graph.nodes]
    parts = limits.parts if isinstance(limits, JointLimits) else (limits,)
    least = max((p.needs for p in parts), key=lambda needs: needs.stored_bytes(every) + needs.worst(every)[1])
    point, live = least.worst(every)
    stored = least.stored_bytes(every)
    largest = sorted((-term.least(every), term.value) for term in point.terms)[:5]
    listed = ", ".join(f"`{name}` {_size(-size)}" for size, name in largest if size)
    where = "at the start" if point.step is None else f"as `{point.step}` is made"
    start = "No plan keeps to" if proven else "No plan was found that keeps to"
    diagnostic = Diagnostic(
        f"{start} {_size(capacity)} on each of {mesh.chips} chips: {where}, "
        f"{_size(live)} of live values and {_size(stored)} of parameters and caches are the least.",
        hint=f"live there, each split as far as it can be: {listed}" if listed else None,
    )
    return NoPlan([diagnostic], Outcome.INFEASIBLE if proven else Outcome.UNPROVEN)


def _size(bytes_: float) -> str:
    """Bytes with the unit that fits."""
    unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if bytes_ >= s), ("bytes", 1.0))
    return f"{bytes_ / scale:.4g} {unit}"
