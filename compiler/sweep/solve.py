"""One point of a sweep: every slice shape planned, or proven to be no better than the best one.

Shapes that come nearer to a cube go first. Of a shape that follows it is enough to know that no plan of
it is as quick as the best so far, which bounds mostly show without an integer program.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ...cost.hardware import Hardware
from ...ir.diagnostics import InputError
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...passes.plan import PROVEN
from ..plan.pipeline import program_of
from ..plan.serving import sizes_at
from ..plan.shapes import mesh_name, meshes_of
from .points import Point, Record, Status, Sweep, Tried
from .ways import Found, ways

PROGRAMS = 8  # kept of those that were read last


def solve(sweep: Sweep, point: Point) -> Record:
    """The best plan of a point on any of its slice shapes, or why there is none.

    Raises InternalError when a plan does not hold together.
    """
    try:
        program = program_at(sweep, point)
        found_shapes = shapes(point.chips, sweep.hardware, sweep.any_shape)
    except InputError as error:
        return Record(point, Status.INFEASIBLE, (), reason=error.diagnostics[0].message)
    best: Found | None = None
    tried: list[Tried] = []
    for mesh in found_shapes:
        for found in ways(sweep, program, point.phase, mesh, best.price if best else math.inf):
            if isinstance(found, Found):
                tried.append(found.tried)
                best = found if best is None or found.price < best.price else best
            else:
                tried.append(found)
    if best is None:
        none = all(one.status == Status.INFEASIBLE for one in tried)
        status = Status.INFEASIBLE if none else Status.UNKNOWN
        return Record(point, status, tuple(tried), reason=tried[0].reason)
    return _record(point, best, tuple(tried))


def shapes(chips: int, hardware: Hardware, any_shape: bool = False) -> tuple[Mesh, ...]:
    """The slice shapes of a count of chips, those nearest to a cube first: the fewest hops across all axes.

    Raises InputError where none is offered.
    """
    found = meshes_of(str(chips), hardware, any_shape)
    return tuple(sorted(found, key=lambda mesh: sum(size - 1 for size in mesh.sizes)))


def program_at(sweep: Sweep, point: Point) -> Program:
    """The model with the sizes and the weights of a point. Raises InputError where it has none of such sizes."""
    plain = _expanded(sweep, point.phase, (), None)
    sizes = sizes_at(plain, point.phase, sweep.dims, point.batch, point.context)
    return _expanded(sweep, point.phase, tuple(sizes.items()), point.weights)


@lru_cache(maxsize=PROGRAMS)
def _expanded(sweep: Sweep, phase: str, sizes: tuple[tuple[str, int], ...], weights: Dtype | None) -> Program:
    settings = dict(sweep.settings) | dict(sizes)
    return program_of(sweep.source, settings, dict(sweep.pads), phase, weights)


def _record(point: Point, best: Found, tried: tuple[Tried, ...]) -> Record:
    found = best.prediction
    bound_s = min([found.seconds, *(one.bound_s for one in tried if one.bound_s is not None)])
    return Record(
        point,
        Status.OPTIMAL if bound_s >= found.seconds * (1 - PROVEN) else Status.FEASIBLE,
        tried,
        slice=mesh_name(best.mesh),
        latency_s=found.seconds,
        low_s=found.low_s,
        high_s=found.high_s,
        bound_s=bound_s,
        tokens=found.tokens,
        tokens_per_s=found.tokens_per_s,
        mfu=found.mfu,
        hbm_bytes=found.hbm_bytes,
        hbm_share=found.hbm_bytes / found.hbm_capacity_bytes,
        chip_s_per_million=found.chip_s_per_million,
        dollars_per_million=found.dollars_per_million,
        binds=found.binds,
        spent_s={resource.value: seconds for resource, seconds in found.shares},
        way=best.way,
    )
