"""What a person may try where a model does not fit: layers in the memory of a host, or divided over stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...cost.streams import least_stored_bytes
from ...cost.topology import hosts_of
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, stored_in
from ...passes.least_held import least_live_bytes
from ...passes.options import Options
from ...passes.plan import NoPlan
from ...passes.stages.divide import divide, layer_parts, layers_of
from ...passes.stages.layers import layer_count, whole_repetitions
from .streamed_layers import streaming


def advised(
    refused: NoPlan, program: Program, phases: Sequence[str], meshes: Sequence[Mesh], options: Options, staged: bool
) -> NoPlan:
    """The refusal of a model of which nothing is streamed, with a hint of what may help; `staged`: stages were tried.

    What is said to help leaves room for what is stored and for what a layer holds beside it, as far as that is known
    before anything is planned.
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
    divided = _divided(meshes, layer_count(program))
    if not staged and any(_fits(program, phases, inner, options, size) for inner, size in divided):
        yield "`--stages auto` divides the layers over stages"
    layers = layers_of(program)
    if not layers:
        return
    streamed = streaming(whole_repetitions(program), {Kind.PARAM, Kind.CACHE}, layers, 1)
    places = _divided(meshes, layers) if staged else [(mesh, 1) for mesh in meshes]
    if not any(_fits(streamed, phases, mesh, options, size) for mesh, size in places):
        return
    host = options.hardware.host
    if host is None:
        yield "with a table `[host]` in the hardware's file `--offload auto` stores layers in a host's memory"
        return
    most = (host.dram_bytes + host.nvme_bytes) * max(hosts_of(mesh, options.hardware).count for mesh in meshes)
    if _whole_bytes(program, phases) <= most:
        yield "`--offload auto` stores layers in the host's memory"


def _divided(meshes: Sequence[Mesh], layers: int) -> list[tuple[Mesh, int]]:
    """The chips of a stage, and how many stages, of no more than there are layers."""
    return [(mesh.without(axis), size) for mesh in meshes for axis, size in mesh.axes if 1 < size <= layers]


def _fits(program: Program, phases: Sequence[str], mesh: Mesh, options: Options, stages: int) -> bool:
    """Whether chips of a mesh may have room for any of so many stages, with layers divided evenly, in each phase by
    itself."""
    each, more = divmod(layer_count(program), stages)
    parts = [one.program for one in divide(program, [each + (n < more) for n in range(stages)])]
    for phase in phases:
        stored = max(least_stored_bytes(part, phase, mesh) for part in parts)
        if stored > options.most_stored:
            return False
        layers = dict.fromkeys(layer for _, layer in layer_parts(program))
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
