"""The choice of what chips keep of a model's layers, and what their host does.

Layers are alike, so it is how many of them are streamed that is chosen, and which of their tensors: none where no plan
is quicker; or as few as leave room for the quickest layouts, or for any that fit. For each choice that is tried the
search lays out the program as ever, with room for what stays; what it minimises leaves waiting out. The bound counts
it: no plan computes quicker than one that keeps less, nor fetches less than so many layers, of which each chip takes as
small a part in any layout as the axes divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from ...cost.streams import HostFull, host_of, least_stored_bytes
from ...ir.diagnostics import EsccError, InputError, fail
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program
from ...ir.record import record
from ...passes.options import Options
from ...passes.plan import Cutoff, NoPlan, Objective, Outcome, relative_gap
from ...passes.stages.divide import layers_of
from .compiled import Compilation
from .pipeline import compile_phases
from .serving import serving
from .staged import streamed_what
from .streamed_layers import streaming
from .streamed_plans import Plans
from .tensor_sets import quickest
from .way import Offload

Found = TypeVar("Found")  # what a batch is planned as: streams from the host, or ways to have stages
MOST_SEQUENCES = 1 << 20  # of a batch that is looked for
MOST_WORSE = 2  # in turn, twice as large each: with no more sequences a second than another
WORTH = 1e-3  # of the sequences a second: another batch that has less more is not looked for
MEANS = (0.85, 0.7)  # of what is computed and what comes, by which plans are bounded: shares of the former
PARTS = 6  # of the counts of layers that may be streamed, of which each is bounded by itself
OF_MANY = 0.1  # of the effort of one search, for each batch that is tried


# Those that leave most room first.
FAMILIES: dict[Offload, tuple[frozenset[Kind], ...]] = {
    Offload.WEIGHTS: (frozenset({Kind.PARAM}),),
    Offload.CACHES: (frozenset({Kind.CACHE}),),
    Offload.NONE: (frozenset(),),
    Offload.AUTO: (frozenset({Kind.PARAM, Kind.CACHE}), frozenset({Kind.PARAM}), frozenset({Kind.CACHE})),
}


@record
class Offloaded:
    """A compilation in which `streamed` of `layers` come from the host, of the `kinds` of tensors and of `tensors` by
    name; `ahead`: how many before they are needed. `bound`: what every plan takes at the least that streams any of what
    it might, of the same layers, in the terms of its price. `placed`: tensors that a person placed there."""

    compiled: Compilation
    kinds: frozenset[Kind]
    streamed: int
    layers: int
    ahead: int
    bound: float
    placed: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    @property
    def price(self) -> float:
        """Seconds with waiting: of all calls of all phases, of one phase of one call."""
        return self.compiled.price

    @property
    def gap(self) -> float:
        """How far the price may lie above the optimum, relative to the price."""
        return relative_gap(self.price, self.bound)

    @property
    def outcome(self) -> Outcome:
        """Whether it is proven the quickest of all that stream tensors of the same layers."""
        return Outcome.of(self.gap)

    @property
    def what(self) -> str:
        """What is streamed, in words."""
        return streamed_what([one.spmd for one in self.compiled])


@record
class Batched(Generic[Found]):
    """A batch that was tried: what came of it, None where it does not fit, and the seconds of all of its calls; or the
    `least` that they are, where no plan was found with more sequences a second than others have, by `WORTH`."""

    batch: int
    found: Found | None
    price: float = math.inf
    least: float = math.inf

    @property
    def beaten(self) -> bool:
        """Whether no plan was found with more sequences a second than others have: no more is known of it than that."""
        return self.found is None and self.least < math.inf

    @property
    def sequences_per_s(self) -> float:
        """Sequences that go through all phases a second; none where the batch does not fit."""
        return self.batch / self.price


def compile_offloaded(
    program: Program,
    phases: Sequence[str],
    mesh: Mesh,
    options: Options,
    offload: Offload,
    ahead: int = 1,
    below: float = math.inf,
) -> Offloaded:
    """The quickest plan that is found with streams of some kinds; `ahead`: how many layers are fetched before they are
    needed, 0 for none. Where the program places a tensor with the host, it is streamed in all layers, and so is what
    else is streamed.

    Raises InputError where the hardware has no host, the model has no layers, or the host cannot hold what is
    streamed; NoPlan where the model does not fit even so; Cutoff, with what all take at the least, where none is found
    that takes less than `below`.
    """
    hardware = options.hardware
    host_of(hardware)
    if options.objective is not Objective.TIME:
        raise fail(f"What is streamed is chosen by time, and `{options.objective}` is asked for.")
    if options.overlap:
        raise fail("Loops are not made of programs that stream.", hint="leave out `--overlap`, or `--offload`")
    if not layers_of(program):
        raise fail("The model has no layers to stream: no block of it is repeated.", hint="leave out `--offload`")
    placed = program.on_host
    families = dict.fromkeys((*FAMILIES[offload], *(FAMILIES[Offload.NONE] if placed else ())))
    most = streaming(program, next(iter(families)), layers_of(program), ahead)
    if max(least_stored_bytes(most, phase, mesh) for phase in phases) > options.most_stored:
        below = math.inf  # that it fits nowhere says more than what it would take
    free: Compilation | None = None
    if not placed:
        roomy = replace(options, capacity_bytes=math.inf, stored_bytes=math.inf, below=below)
        free = compile_phases(program, phases, mesh, roomy)
    tried: dict[tuple[frozenset[Kind], int], Compilation | EsccError] = {}
    means: dict[int, list[tuple[float, float]]] = {}
    given = phases, mesh, options, free, next(iter(families)), means
    every = [Plans(program, kinds, ahead, tried, *given) for kinds in families]
    best = quickest(every, options, below)
    given_layers = best.streamed, layers_of(program), ahead
    return Offloaded(best.found, best.kinds, *given_layers, best.bound, placed, best.tensors)


def most_sequences(
    program: Program, chips: int, planned: Callable[[Program, float], tuple[Found, float]], step: int = 1
) -> tuple[Batched[Found], ...]:
    """The batches that were tried for the most sequences a second, that with the most of them first: of a sequence for
    each of `chips`, then doubled up to where one does not fit, or MOST_WORSE in turn have no more a second, but for
    WORTH of them: in stages ever larger batches have ever so little more. Then halfway between one that does not fit
    and the last that does, or none, and between the best and the nearest that were tried on both sides, to a sixteenth:
    above it some may fit without streams, and below it where it streams. All are multiples of `step`, and of the chips
    too where there are such. `planned`: what comes of a program if that takes less than some seconds, and the seconds
    of all calls.

    Raises InputError as `planned` does where `step` sequences do not fit.
    """
    whole = math.lcm(chips, step)
    found: dict[int, Batched[Found]] = {}
    best = 0

    def tried(batch: int) -> bool:
        nonlocal best
        below = batch / found[best].sequences_per_s * (1 - WORTH) if best else math.inf
        try:
            found[batch] = Batched(batch, *planned(of_batch(program, batch), below))
        except Cutoff as cut:
            found[batch] = Batched(batch, None, least=cut.bound)
        except InputError as error:
            if batch == step or (not found and not isinstance(error, NoPlan | HostFull)):
                raise
            found[batch] = Batched(batch, None)
        if found[batch].price < below:
            best = batch
        return found[batch].found is not None or found[batch].beaten

    batch = whole
    while tried(batch) and batch < min(MOST_SEQUENCES, best << MOST_WORSE):
        batch *= 2
    low, high = batch // 2 if best else 0, batch
    while high - low > max(step, low // 16) and found[high].found is None and not found[high].beaten:
        middle = _between(low, high, whole, step)
        low, high = (middle, high) if tried(middle) else (low, middle)
    while (beside := _widest_beside(best, found, step)) is not None:
        tried(_between(*beside, whole, step))
    return tuple(sorted(found.values(), key=lambda one: (-one.sequences_per_s, one.batch)))


def _widest_beside(best: int, tried: Collection[int], step: int) -> tuple[int, int] | None:
    """The best batch and the nearest that was tried above or below it, of none below 0, whichever is farther; None
    where both are as near as `step`, or a sixteenth."""
    above = [(best, batch) for batch in sorted(tried) if batch > best][:1]
    below = [(batch, best) for batch in sorted([0, *tried]) if batch < best][-1:]
    low, high = max((*above, *below), key=lambda pair: pair[1] - pair[0], default=(best, best))
    return (low, high) if high - low > max(step, best // 16) else None


def _between(low: int, high: int, whole: int, step: int) -> int:
    """About halfway from one batch to another, more than `step` above it: a multiple of `whole` if there is one."""
    wholes = (low + high) // 2 // whole * whole
    return wholes if wholes > low else (low + high) // 2 // step * step


def on_meshes(
    program: Program,
    phases: Sequence[str],
    meshes: Sequence[Mesh],
    options: Options,
    offload: Offload,
    ahead: int,
    best_batch: bool,
) -> tuple[Batched[Offloaded], ...]:
    """What was tried on the mesh on which the first of it takes least a sequence: the batch as it is, or those
    of `most_sequences`. Raises InputError where no mesh has a plan."""
    found: list[tuple[Batched[Offloaded], ...]] = []
    refused: list[InputError] = []
    for mesh in meshes:

        def planned(
            sized: Program, below: float, mesh: Mesh = mesh, effort: float = options.settings.effort * OF_MANY
        ) -> tuple[Offloaded, float]:
            own = replace(options, settings=replace(options.settings, effort=effort))
            calls = calls_of(sized, phases)
            with cut_off_by(calls):
                one = compile_offloaded(sized, phases, mesh, own, offload, ahead, below / calls)
            return one, one.price * calls

        try:
            if best_batch:
                best, *others = most_sequences(program, mesh.chips, planned, pinned_ways(program, mesh))
                again = planned(of_batch(program, best.batch), math.inf, effort=options.settings.effort)
                found.append((Batched(best.batch, *again), *others))
            else:
                found.append(
                    (Batched(_batch(program, phases), *planned(program, math.inf, effort=options.settings.effort)),)
                )
        except InputError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return max(found, key=lambda tried: tried[0].sequences_per_s)


def calls_of(program: Program, phases: Sequence[str]) -> int:
    """How often what a compilation of some phases takes counts for one batch: that of one phase is of one call."""
    return 1 if len(phases) > 1 else program.phase(phases[0]).calls


@contextmanager
def cut_off_by(calls: int) -> Iterator[None]:
    """What is planned inside is of one of so many calls: a Cutoff that it raises is passed on as that of all."""
    try:
        yield
    except Cutoff as cut:
        raise Cutoff(cut.bound * calls, cut.in_mesh_order) from cut


def _batch(program: Program, phases: Sequence[str]) -> int:
    """The sequences of the last phase."""
    return dict(program.phase(phases[-1]).sizes)[serving(program).batch]


def pinned_ways(program: Program, mesh: Mesh) -> int:
    """What batches have to divide by for all pins of a program to hold: in so many parts these split them."""
    dim, table = serving(program).batch, program.table()
    every = (zip(table[pin.value].dims, pin.layout.dims, strict=True) for pin in program.pins if pin.value in table)
    split = (axes for pairs in every for name, axes in pairs if name == dim and set(axes) <= set(mesh.names))
    return math.lcm(*(mesh.size(*axes) for axes in split))


def of_batch(program: Program, batch: int) -> Program:
    """The program for so many sequences, in all phases."""
    dim = serving(program).batch
    sized = (
        replace(phase, sizes=tuple((name, batch if name == dim else size) for name, size in phase.sizes))
        for phase in program.phases
    )
    return replace(program, phases=tuple(sized))
