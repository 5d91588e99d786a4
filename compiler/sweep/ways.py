"""The ways to plan a point on a mesh: as it is, with streams from the host, as a pipeline, or as one that streams."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from ...cost.network import Network
from ...cost.predict import Prediction, Shares, between, links_measured
from ...ir.collective import CollectiveKind
from ...ir.diagnostics import InputError
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.layouts.mesh_order import FEW_AXES
from ...passes.layouts.strategies import live_axes
from ...passes.options import Options
from ...passes.plan import PROVEN, Cutoff, NoPlan, Outcome, relative_gap
from ...passes.stages.divide import layers_of
from ..plan.compiled import CompiledPhase
from ..plan.offload import compile_offloaded
from ..plan.pipeline import compile_phase
from ..plan.shapes import mesh_name
from ..plan.staged import Staged, streamed_what
from ..plan.tries import tries
from ..plan.way import Offload
from .points import BEATEN, IN_MESH_ORDER, Point, Status, Sweep, Tried


@record
class Found:
    """A plan: its seconds by the search, what one step takes, and what is streamed or how layers are divided."""

    mesh: Mesh
    status: Status
    price: float
    bound_s: float
    prediction: Prediction
    way: str | None = None
    in_mesh_order: bool = False

    @property
    def tried(self) -> Tried:
        """What is kept of it where another one is quicker."""
        if self.in_mesh_order:
            return Tried(mesh_name(self.mesh), IN_MESH_ORDER, self.price)
        return Tried(mesh_name(self.mesh), self.status, self.price, self.bound_s)


def ways(sweep: Sweep, program: Program, point: Point, mesh: Mesh, below: float) -> Iterator[Found | Tried]:
    """What comes of planning on a mesh in the ways of a sweep; a plain plan is wanted only below some seconds."""
    options, phase = replace(options_of(sweep, point), below=below), point.phase
    try:
        if sweep.stages is not None:
            yield from _staged(sweep, program, phase, mesh, replace(options, below=math.inf))
        elif sweep.offload is not Offload.NONE:
            yield _streamed(sweep, program, phase, mesh, replace(options, below=math.inf))
        else:
            found = compile_phase(program, phase, mesh, options)
            plan = found.plan
            proof = Status(plan.outcome), plan.price, plan.least
            yield Found(mesh, *proof, found.prediction, in_mesh_order=plan.in_mesh_order)
    except Cutoff as beaten:
        if beaten.in_mesh_order:
            yield Tried(mesh_name(mesh), IN_MESH_ORDER)
            return
        status = BEATEN if beaten.bound >= options.below * (1 - PROVEN) else Status.UNKNOWN
        yield Tried(mesh_name(mesh), status, bound_s=beaten.bound)
    except InputError as error:
        reason = error.diagnostics[0].message
        if isinstance(error, NoPlan) and error.outcome is Outcome.UNPROVEN:
            ordered = len(live_axes(mesh)) > FEW_AXES
            yield Tried(mesh_name(mesh), IN_MESH_ORDER if ordered else Status.UNKNOWN, bound_s=0.0, reason=reason)
        else:
            yield Tried(mesh_name(mesh), Status.INFEASIBLE, reason=reason)


def options_of(sweep: Sweep, point: Point) -> Options:
    """What plans of a point keep to."""
    chip = sweep.chip(point)
    return Options(chip, capacity_bytes=sweep.hbm_fraction * chip.room_bytes)


def _streamed(sweep: Sweep, program: Program, phase: str, mesh: Mesh, options: Options) -> Found:
    """The quickest plan with streams."""
    found = compile_offloaded(program, [phase], mesh, options, sweep.offload, sweep.ahead)
    way = streams_text(found.what, found.streamed, program) or None
    status = Status(found.outcome)
    ordered = found.compiled[0].plan.in_mesh_order
    return Found(mesh, status, found.price, found.bound, found.compiled[0].prediction, way, ordered)


def _staged(sweep: Sweep, program: Program, phase: str, mesh: Mesh, options: Options) -> Iterator[Found | Tried]:
    """Each pipeline, and the plan without stages where they are not asked for by count; all by one call. Each streams
    what may be streamed, where that is quicker."""
    given = program, [phase], [mesh], options, sweep.stages or None
    every = tries(*given, offload=sweep.offload, ahead=sweep.ahead)
    for one in every:
        if one.beaten:
            status = BEATEN if one.bound >= every[0].price * (1 - PROVEN) else Status.UNKNOWN
            yield Tried(mesh_name(mesh), status, bound_s=one.bound / program.phase(phase).calls)
            continue
        if one.found is None:
            if one.bound < math.inf:
                yield Tried(mesh_name(mesh), Status.UNKNOWN, bound_s=one.bound, reason=one.reason)
            else:
                yield Tried(mesh_name(mesh), Status.INFEASIBLE, reason=one.reason)
            continue
        calls = program.phase(phase).calls
        price, bound = one.price / calls, min(one.price, one.bound) / calls
        status = Status(Outcome.of(relative_gap(price, bound)))
        if isinstance(one.found, Staged):
            count, (_, rounds) = len(one.found.stages), one.found.plan.rounds[0]
            plural = "" if rounds.micro_batches == 1 else "es"
            streamed = streams_text(one.found.streamed_what, sum(one.found.streamed_layers), program)
            stages = f"{count} stages along {one.axis}, {rounds.micro_batches} micro-batch{plural}"
            way = f"{stages}, {streamed}" if streamed else stages
            ordered = any(stage.plan.in_mesh_order for stage in one.found.plan.stages)
            yield Found(mesh, status, price, bound, pipelined(one.found, phase), way, ordered)
        else:
            whole = one.found[0]
            count = sum(fetch.streamed for fetch in whole.estimate.fetches)
            streamed = streams_text(streamed_what([whole.spmd]), count, program)
            yield Found(mesh, status, price, bound, whole.prediction, streamed or None, whole.plan.in_mesh_order)


def streams_text(what: str, streamed: int, program: Program) -> str:
    """What is streamed, and of how many layers of a program; nothing where that is none."""
    return f"{what} of {streamed} of {layers_of(program)} layers streamed" if streamed else ""


def pipelined(staged: Staged, phase: str) -> Prediction:
    """What one call of a phase takes in a pipeline, all calls taking as long; what its time is spent on is what that of
    the slowest stage is, and as sure where all stages are and what they hand on was measured."""
    rounds, seconds = staged.rounds[phase], staged.phase_s(phase) / staged.rounds[phase].calls
    stages: list[CompiledPhase] = [one for stage in staged.stages for one in stage if one.phase == phase]
    each = [one.prediction for one in stages]
    slowest = max(each, key=lambda one: one.seconds)
    scale = seconds / slowest.seconds
    hardware, along = stages[0].hardware, [staged.plan.axis] if len(staged.stages) > 1 else []
    network = Network(hardware, staged.plan.mesh)
    passed = links_measured(network, [(CollectiveKind.PERMUTE, along)] if along else [])
    across = (between(hardware),) if network.crosses_nodes(along) else ()
    beyond = tuple(dict.fromkeys((*across, *chain.from_iterable(one.beyond for one in each))))
    unknown = not passed or bool(beyond) or any(one.low_s is None for one in each)
    micro, chips = rounds.micro_batches, sum(one.chips for one in each)
    busy_s = sum((one.mfu or 0.0) * one.seconds * one.chips for one in each) * micro
    return replace(
        slowest,
        chips=chips,
        tokens=each[-1].tokens * micro,
        seconds=seconds,
        low_s=None if unknown or slowest.low_s is None else slowest.low_s * scale,
        high_s=None if unknown or slowest.high_s is None else slowest.high_s * scale,
        spent=Shares(*(part * scale for part in slowest.spent.seconds)),
        parts=tuple(replace(part, seconds=part.seconds * scale) for part in slowest.parts),
        mfu=busy_s / (seconds * chips),
        hbm_bytes=max(one.hbm_bytes for one in each),
        beyond=beyond,
    )
