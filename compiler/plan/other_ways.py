"""What a person may try where a model does not fit: layers in the memory of a host, or divided over stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...cost.streams import least_stored_bytes
from ...cost.topology import hosts_of
from ...ir.diagnostics import InputError
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, stored_in
from ...passes.least_held import least_live_bytes
from ...passes.options import Options
from ...passes.plan import NoPlan
from ...passes.stages.bounds import Bounds
from ...passes.stages.divide import layer_parts, layers_of
from ...passes.stages.layers import layer_count, whole_repetitions
from .serving import serving
from .streamed_layers import streaming


def advised(
    refused: NoPlan, program: Program, phases: Sequence[str], meshes: Sequence[Mesh], options: Options, staged: bool
) -> NoPlan:
    """The refusal of a model of which nothing is streamed, with a hint of what may help; `staged`: stages were tried.

    What may fit leaves room for what is stored and for what a layer holds beside it, as far as that is known before
    anything is planned: of stages with their batches in micro-batches.
    """
    ways = list(_ways(program, phases, meshes, options, staged))
    if not ways:
        return refused
    *others, last = refused.diagnostics
    hint = "; ".join([*([last.hint] if last.hint else []), *ways])
    return NoPlan([*others, replace(last, hint=hint)], refused.outcome)


def _ways(
    program: Program, phases: Sequence[str], meshes: Sequence[Mesh], options: Options, staged: bool
) -> Iterator[str]:
    if not staged and any(_may_hold_stages(program, phases, *one, options) for one in _axes(meshes, program)):
        yield "`--stages auto` may fit, which divides the layers over stages"
    layers = layers_of(program)
    if not layers:
        return
    streamed = streaming(whole_repetitions(program), {Kind.PARAM, Kind.CACHE}, layers, 1)
    if staged:
        axes = (one for one in _axes(meshes, program) if one[0].size(one[1]) <= layers)
        may_hold = any(_may_hold_stages(streamed, phases, *one, options) for one in axes)
    else:
        may_hold = any(_may_hold(streamed, phases, mesh, options) for mesh in meshes)
    if not may_hold:
        return
    host = options.hardware.host
    if host is None:
        yield "with a table `[host]` in the hardware's file `--offload auto` may fit, which stores layers in its memory"
        return
    most = (host.dram_bytes + host.nvme_bytes) * max(hosts_of(mesh, options.hardware).count for mesh in meshes)
    if _whole_bytes(program, phases) <= most:
        yield "`--offload auto` may fit, which stores layers in the host's memory"


def _axes(meshes: Sequence[Mesh], program: Program) -> Iterator[tuple[Mesh, str]]:
    """The axes of meshes along which there may be stages: no more than there are layers."""
    layers = layer_count(program)
    return ((mesh, axis) for mesh in meshes for axis, size in mesh.axes if 1 < size <= layers)


def _may_hold_stages(program: Program, phases: Sequence[str], mesh: Mesh, axis: str, options: Options) -> bool:
    """Whether the chips of stages along an axis may have room for some division of the layers and of the batches. The
    smallest micro-batches mostly hold the least."""
    try:
        bounds = Bounds(program, tuple(phases), mesh, axis, serving(program).batch, options)
        return any(bounds.may_hold(split) for split in reversed(bounds.splits({})))
    except InputError:  # it cannot be divided
        return False


def _may_hold(program: Program, phases: Sequence[str], mesh: Mesh, options: Options) -> bool:
    """Whether chips of a mesh may have room for what is stored, and for what each layer holds beside it, in each phase
    by itself."""
    layers = dict.fromkeys(layer for _, layer in layer_parts(program))
    for phase in phases:
        stored = least_stored_bytes(program, phase, mesh)
        if stored > options.most_stored:
            return False
        live = max(least_live_bytes(layer, phase, mesh, options) for layer in layers)
        if stored + live > options.capacity:
            return False
    return True


def _whole_bytes(program: Program, phases: Sequence[str]) -> float:
    """What is stored of all layers."""
    table = program.table()
    sizes = [dict(program.phase(phase).sizes) for phase in phases]
    return max(
        math.fsum(
            math.prod(each[d] for d in table[one.value].dims) * table[one.value].dtype.bits / 8 * placed.times
            for one, placed in stored_in(program.body, Kind.PARAM, Kind.CACHE).items()
            if placed.repeats
        )
        for each in sizes
    )
