"""The ways to divide a mesh over stages, each compiled: with stages along one axis, or none; the quickest is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...cost.hardware import Hardware
from ...cost.network import Network
from ...cost.streams import host_of_stages
from ...ir.diagnostics import InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...passes.options import Options
from ...passes.plan import Cutoff, NoPlan, Objective, Outcome, relative_gap
from ...passes.task import alike_axes
from .compiled import Compilation
from .offload import OF_MANY, Batched, calls_of, compile_offloaded, cut_off_by, most_sequences, of_batch, pinned_ways
from .pipeline import compile_phases, with_runs
from .staged import Staged, compile_staged
from .staged_offload import compile_streamed_stages
from .way import Offload


@record
class Try:
    """A mesh with the axis along which there are stages, None for none, and what came of it: seconds of all calls of
    all phases, or why there is no plan. `bound`: what every such plan takes at the least, as far as that is proven.
    `beaten`: none was found that takes less than another way, mostly since that shows that none does."""

    mesh: Mesh
    axis: str | None
    found: Compilation | Staged | None
    price: float
    bound: float
    reason: str | None = None
    beaten: bool = False


def tries(
    program: Program,
    phases: Sequence[str],
    meshes: Sequence[Mesh],
    options: Options,
    stages: int | None,
    micro_batches: Mapping[str, int] | None = None,
    run: bool = False,
    offload: Offload = Offload.NONE,
    ahead: int = 1,
    every: bool = False,
    below: float = math.inf,
) -> tuple[Try, ...]:
    """Every mesh with so many stages along an axis, or with `None` without stages and with stages along each axis, the
    quickest first. Of axes that a plan may rename one is tried. `offload`, `ahead`: what may be streamed from the host,
    in each way. Of a pipeline whose bound shows that it is not the quickest no more is planned, unless `every` one is
    wanted.

    Raises InputError where no mesh has such an axis, or with what the first says where none has a plan; Cutoff, with
    what all take at the least, where none is found that takes less than `below`.
    """
    if program.on_host:
        hint = "leave out `place ... host` and give `--offload`, by which stages stream, or leave out `--stages`"
        raise fail(f"`{program.on_host[0]}` is placed with the host, from where stages do not stream.", hint=hint)
    if options.objective is not Objective.TIME:
        raise fail(f"Stages are chosen by time, and `{options.objective}` is asked for.")
    alike = program, options.hardware, offload is not Offload.NONE
    ways = [(mesh, axis) for mesh in meshes for axis in _unlike(_axes(mesh, stages), mesh, *alike)]
    if not ways:
        listed = " or ".join(f"`{mesh}`" for mesh in meshes[:3])
        hint = f"name one, as `--chips stage={stages},gpu=8`"
        raise fail(f"No axis of {listed} has {stages} chips, for as many stages.", hint=hint)
    found: list[Try] = []
    refused: list[InputError] = []
    for mesh, axis in ways:
        try:
            if axis is None:
                found.append(_unstaged(program, phases, mesh, options, run, offload, ahead, below))
            else:
                given = program, phases, mesh, axis
                least = math.inf if every else min([below, *(one.price for one in found)])
                if offload is Offload.NONE:
                    staged = compile_staged(*given, replace(options, below=least), micro_batches, run)
                else:
                    staged = compile_streamed_stages(*given, options, offload, ahead, micro_batches, run, least)
                found.append(Try(mesh, axis, staged, staged.plan.price, staged.plan.bound))
        except Cutoff as cut:
            found.append(Try(mesh, axis, None, math.inf, cut.bound, beaten=True))
        except InputError as error:
            refused.append(error)
            unproven = isinstance(error, NoPlan) and error.outcome is Outcome.UNPROVEN
            bound = 0.0 if unproven else math.inf
            found.append(Try(mesh, axis, None, math.inf, bound, error.diagnostics[0].message))
    if len(refused) == len(ways):
        raise refused[0]
    if all(one.found is None for one in found):
        raise Cutoff(least_bound(found))
    return tuple(sorted(found, key=lambda one: one.price))


def most_sequences_staged(
    program: Program,
    phases: Sequence[str],
    meshes: Sequence[Mesh],
    options: Options,
    stages: int | None,
    micro_batches: Mapping[str, int],
    offload: Offload = Offload.NONE,
    ahead: int = 1,
) -> tuple[Batched[tuple[Try, ...]], ...]:
    """The batches that were tried for the most sequences a second, each with `tries` of it: as `most_sequences` has it,
    of as many sequences as all micro-batches divide, and pins each of these. The one with the most is tried once more,
    with all the effort that one search may take. Raises as `tries` does."""

    def planned(sized: Program, below: float, effort: float = OF_MANY) -> tuple[tuple[Try, ...], float]:
        own = replace(options, settings=replace(options.settings, effort=effort))
        found = tries(sized, phases, meshes, own, stages, micro_batches, offload=offload, ahead=ahead, below=below)
        return found, found[0].price

    step = math.lcm(*micro_batches.values()) * pinned_ways(program, meshes[0])
    best, *others = most_sequences(program, meshes[0].chips, planned, step)
    again, price = planned(of_batch(program, best.batch), math.inf, options.settings.effort)
    return Batched(best.batch, again, price), *others


def _unstaged(
    program: Program,
    phases: Sequence[str],
    mesh: Mesh,
    options: Options,
    run: bool,
    offload: Offload,
    ahead: int,
    below: float,
) -> Try:
    """A mesh without stages. Raises InputError where there is no plan, Cutoff where none is found that takes less than
    `below`; all of it is of all calls."""
    calls = calls_of(program, phases)
    one_s = below / calls
    with cut_off_by(calls):
        if offload is Offload.NONE:
            whole = compile_phases(program, phases, mesh, replace(options, below=one_s), run)
            price = whole.price * calls
            return Try(mesh, None, whole, price, price * whole.plans[0].least / whole.plans[0].price)
        streamed = compile_offloaded(program, phases, mesh, options, offload, ahead, one_s)
    whole = with_runs(streamed.compiled) if run else streamed.compiled
    return Try(mesh, None, whole, streamed.price * calls, streamed.bound * calls)


def least_bound(found: Sequence[Try]) -> float:
    """What every plan of some tries takes at the least."""
    return min(one.bound for one in found)


def outcome_of(found: Sequence[Try]) -> tuple[Outcome, float]:
    """Whether the first of some tries is proven the quickest of all, and the gap."""
    gap = relative_gap(found[0].price, least_bound(found))
    return Outcome.of(gap), gap


def _axes(mesh: Mesh, stages: int | None) -> list[str | None]:
    """The axes along which there may be stages; None stands for none."""
    long = [name for name, size in mesh.axes if size > 1]
    if stages is None:
        return [None, *long]
    return [None] if stages == 1 else [name for name in long if mesh.size(name) == stages]


def _unlike(
    axes: Sequence[str | None], mesh: Mesh, program: Program, hardware: Hardware, streams: bool
) -> list[str | None]:
    """The axes, without those along which stages are as along one before, but for names; where they stream they have
    hosts alike, too."""
    try:
        groups = alike_axes(Network(hardware, mesh), program.pins)
    except InputError:  # the mesh does not fit the hardware, which is said where it is planned
        return list(axes)
    group_of = {axis: n for n, group in enumerate(groups) for axis in group}

    def kind(axis: str | None) -> object:
        if axis not in group_of:
            return axis
        try:
            return group_of[axis], host_of_stages(hardware, mesh, axis) if streams else None
        except InputError:
            return axis

    return list({kind(axis): axis for axis in reversed(axes)}.values())[::-1]
