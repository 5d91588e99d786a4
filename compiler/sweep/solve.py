"""One point of a sweep: every slice shape planned, or proven to be no better than the best one.

Shapes that are likely to be quick go first. Of a shape that follows it is enough to know that no plan of
it is as quick as the best so far, which bounds mostly show without an integer program.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ...cost.hardware import Hardware, Torus
from ...ir.diagnostics import InputError
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...passes.plan import PROVEN
from ..plan.compiled import CompiledPhase
from ..plan.pipeline import compile_phase
from ..plan.serving import sizes_at
from ..plan.shapes import mesh_name, meshes_of
from ..plan.way import Offload
from .points import IN_MESH_ORDER, Point, Record, Status, Sweep, Tried
from .ways import Found, options_of, ways

PROGRAMS = 8  # kept of those that were read last


def solve(sweep: Sweep, point: Point) -> Record:
    """The best plan of a point on any of its slice shapes, or why there is none.

    Raises InternalError when a plan does not hold together.
    """
    try:
        program = program_at(sweep, point)
        found_shapes = shapes(point.chips, sweep.chip(point), sweep.any_shape)
    except InputError as error:
        return Record(point, Status.INFEASIBLE, (), reason=error.diagnostics[0].message)
    best: Found | None = None
    tried: list[Tried] = []
    for mesh in found_shapes:
        for found in ways(sweep, program, point, mesh, best.price if best else math.inf):
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


def compiled_again(sweep: Sweep, record: Record) -> CompiledPhase | None:
    """The plan of a point that was solved; None where it has streams or stages, or there is none."""
    point = record.point
    if record.slice is None or sweep.stages is not None or sweep.offload is not Offload.NONE:
        return None
    [mesh] = meshes_of(f"x={record.slice}" if record.slice.isdigit() else record.slice, sweep.chip(point))
    return compile_phase(program_at(sweep, point), point.phase, mesh, options_of(sweep, point))


def shapes(chips: int, hardware: Hardware, any_shape: bool = False) -> tuple[Mesh, ...]:
    """The slice shapes of a count of chips. On a torus those nearest to a cube come first, with the fewest hops across
    all axes; behind switches those of the fewest axes, and last those of so many that not all layouts may be looked at,
    which need only show whether they are quicker.

    Raises InputError where none is offered.
    """
    found = meshes_of(str(chips), hardware, any_shape)
    torus = isinstance(hardware.fabric, Torus)
    return tuple(sorted(found, key=lambda mesh: sum(n - 1 for n in mesh.sizes) if torus else len(mesh.sizes)))


def program_at(sweep: Sweep, point: Point) -> Program:
    """The model with the sizes, weights and caches of a point. Raises InputError where it has none of such sizes."""
    plain = _expanded(sweep, point.phase, (), None, None)
    sizes = sizes_at(plain, point.phase, sweep.dims, point.batch, point.context)
    return _expanded(sweep, point.phase, tuple(sizes.items()), point.weights, point.caches)


@lru_cache(maxsize=PROGRAMS)
def _expanded(
    sweep: Sweep, phase: str, sizes: tuple[tuple[str, int], ...], weights: Dtype | None, caches: Dtype | None
) -> Program:
    return sweep.program(phase, weights, caches, sizes)


def _record(point: Point, best: Found, tried: tuple[Tried, ...]) -> Record:
    found = best.prediction
    bounds = [one.bound_s for one in tried if one.bound_s is not None and one.status != IN_MESH_ORDER]
    bound_s = 0.0 if best.in_mesh_order else min([found.seconds, *bounds])
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
