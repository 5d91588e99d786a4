"""A model whose layers are divided among stages of a pipeline, planned once, and what batches of any size take in it.

All stages have the same number of chips and lay out their layers alike: one plan is made, of as many layers as the
largest stage has, with what stands before and after them. Which layers a stage has is chosen by their times.

A plan splits batches into as many shares, over chips, as it is asked for at most, and times what fills these: batches
whose number of sequences its `ways` divide. It counts on no division of their lengths.

Layouts are chosen for a batch that keeps chips busy. Where the best ones of that do not fit into the chips, they are
chosen for a smaller one: one sequence has most room, and as long as by its plan a batch of twice as many fits, that is
planned for. So a search is never asked for the one plan that just fits, which can take long to find, or to refuse.

Where batches are split, copies of weights fill what room a small one leaves, and none is left for a larger one: then
the largest is planned for, by halves, that fits with fewer copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from ...cost.flops import product_flops
from ...cost.hardware import Hardware
from ...cost.network import Network
from ...cost.unit_times import Floats, Unit, float_scale, unit_times
from ...ir.collective import CollectiveKind
from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...ir.program import Kind, Op, Program, Region, Repeat, stored_in
from ...ir.record import record
from ...passes.batches.pipeline import balance
from ...passes.ilp.solver import Settings
from ...passes.options import Options
from ...passes.plan import NoPlan
from ...passes.stages.divide import layers_of
from ...passes.stages.layers import dividing
from .compiled import CompiledPhase
from .pipeline import compile_phase
from .serving import of_batches, serving, slots_of_batches

PLANNED_TOKENS = 4096  # about as many as the batch has for which layouts are chosen
NEAR = 0.01  # of the least time: so near to it are plans that split batches and fill the memory: proofs take long there


@record
class BatchTimes:
    """`program`: the model, whole. `compiled`: the plan of a stage, on the chips that it has."""

    program: Program
    stages: int
    mesh: Mesh
    compiled: CompiledPhase

    @property
    def hardware(self) -> Hardware:
        """What it runs on."""
        return self.compiled.hardware

    @property
    def chips(self) -> int:
        """Of all stages."""
        return self.mesh.chips

    @cached_property
    def ways(self) -> int:
        """Into how many shares of equal size a batch goes: what all of its splits over chips divide."""
        spmd, batch = self.compiled.spmd, serving(self.program).batch
        layouts = [dict(zip(value.dims, value.layout.dims, strict=True)) for value in spmd.values]
        return math.lcm(*(spmd.mesh.size(*axes.get(batch, ())) for axes in layouts))

    def seconds(self, batch: Floats, new: Floats, context: Floats) -> Floats:
        """What batches take in each stage, [stages, batches]: of so many sequences, which `ways` divide, that take
        `new` tokens each in a `context` that counts them. What a stage hands on counts as a part of its time."""
        return self.seconds_and_layers(batch, new, context)[0]

    def seconds_and_layers(self, batch: Floats, new: Floats, context: Floats) -> tuple[Floats, tuple[int, ...]]:
        """What batches take in each stage, and how many layers each stage has, where such batches are run: the
        repetitions of all repeats."""
        units = self._units(batch, new, context)
        parts = self._parts(units)
        found = np.array([sum(n * unit.seconds for n, unit in zip(part, units, strict=True)) for part in parts])
        for stage, part in enumerate(parts[:-1]):
            last = max(n for n, layers in enumerate(part) if layers)
            found[stage] += self._handed_s(units[last].handed_bytes)
        named = [n for n, unit in enumerate(units) if unit.name is not None]
        return found, tuple(sum(part[n] for n in named) for part in parts)

    def flops(self, batch: Floats, new: Floats, context: Floats) -> Floats:
        """The arithmetic of such batches, of the products of the whole model."""
        sizes = self.program.true_sizes(dict(self.compiled.spmd.sizes)) | self._sizes(batch, new, context)
        return np.asarray(product_flops(self.program, sizes), dtype=np.float64)

    def held_bytes(self, batch: Floats, new: Floats, cached_batch: Floats, cached: Floats, layers: int) -> Floats:
        """About what a chip of a stage with so many layers holds while batches run of so many sequences, that take
        `new` tokens each, beside so many sequences of which `cached` tokens are there already."""
        spmd, use = self.compiled.spmd, self.compiled.memory
        caches = {one.value for one in stored_in(spmd.body, Kind.CACHE)}
        more = layers / max(1, layers_of(self.compiled.program))  # than was planned for
        stored = [(name, more * float(size)) for name, size in use.stored]
        stored += [(name, float(size)) for name, size in use.shared]
        sizes, dims = dict(spmd.sizes), serving(self.program)
        planned = sizes[dims.batch] * sizes[dims.context or dims.batch]
        found = float(use.worst.bytes) * batch * new / planned
        own = self._cache_sizes(batch, new, {wrap.slots: new for wrap in self.program.wraps})
        beside = self._cache_sizes(cached_batch, cached, self._kept(cached))
        for name, size in stored:
            if name in caches:
                found = found + size * (self._share(name, own) + self._share(name, beside))
            else:
                found = found + size
        return found

    def planned_bytes(self, batch: int) -> float:
        """About what a chip holds while so many sequences run of those that were planned for."""
        length = float(dict(self.compiled.spmd.sizes)[serving(self.program).context or ""])
        none, layers = np.zeros(1), layers_of(self.compiled.program)
        return float(self.held_bytes(none + batch, none + length, none, none, layers)[0])

    def _cache_sizes(self, batch: Floats, places: Floats, slots: Mapping[str, Floats]) -> dict[str, Floats]:
        """The dims of the caches of so many sequences, that have so many places, or slots where they wrap."""
        dims = serving(self.program)
        assert dims.context is not None, "`batch_times` refuses models without caches"
        return {dims.batch: batch, dims.context: places, **slots}

    def _share(self, cache: str, sizes: Mapping[str, Floats]) -> Floats:
        """What a chip holds of a cache of such sizes, beside what it holds of the one that was planned."""
        spmd = self.compiled.spmd
        held = [float_scale(spmd, own).local_bytes(spmd.table()[cache]) for own in (sizes, {})]
        share: Floats = np.asarray(held[0] / held[1], dtype=np.float64)
        return share

    def _kept(self, cached: Floats) -> dict[str, Floats]:
        """The slots that hold what is seen of so many cached tokens by those that follow them."""
        after = self._slots(np.ones_like(cached), cached + 1)
        return {dim: slots - 1 for dim, slots in after.items()}

    def _slots(self, new: Floats, context: Floats) -> dict[str, Floats]:
        """The slots of caches that wrap, as they are planned for batches of such sizes."""
        if not self.program.wraps:
            return {}
        pairs, which = np.unique(np.stack([new, context]), axis=1, return_inverse=True)
        found = [slots_of_batches(self.program, int(one), int(other)) for one, other in pairs.T]
        return {dim: np.array([float(slots[dim]) for slots in found])[which.ravel()] for dim in found[0]}

    def _sizes(self, batch: Floats, new: Floats, context: Floats) -> dict[str, Floats]:
        dims = serving(self.program)
        assert dims.context is not None, "`batch_times` refuses models without caches"
        return {dims.batch: batch, dims.context: context, **dict.fromkeys(dims.new, new), **self._slots(new, context)}

    def _units(self, batch: Floats, new: Floats, context: Floats) -> tuple[Unit, ...]:
        return unit_times(self.compiled.spmd, self.hardware, self._sizes(batch, new, context))

    def _parts(self, units: tuple[Unit, ...]) -> list[list[int]]:
        """How often each stage runs each unit, so that over all batches together the slowest stage takes least."""
        counts = [self._count(unit.name) for unit in units]
        row = [n for n, count in enumerate(counts) for _ in range(count)]
        ends = balance([float(units[n].seconds.sum()) for n in row], self.stages)
        return [
            [row[first:last].count(n) for n in range(len(units))] for first, last in zip((0, *ends), ends, strict=False)
        ]

    def _count(self, name: str | None) -> int:
        counts = {item.name: item.count for item in self.program.body.items if isinstance(item, Repeat)}
        return 1 if name is None else counts[name]

    def _handed_s(self, size: Floats) -> Floats:
        """Seconds for what goes to the next stage."""
        own = self.compiled.spmd.mesh
        axis = "".join(("stage", *own.names))  # longer than each of them
        mesh = Mesh(((axis, self.stages), *own.axes))
        return np.asarray(Network(self.hardware, mesh).collective_s(CollectiveKind.PERMUTE, (axis,), size, size))


def splits(mesh: Mesh, stages: int) -> tuple[int, ...]:
    """Into how many shares batches may be split over the chips of a stage: 1 first, the products of some of its axes.

    Raises InputError where stages do not divide the first axis.
    """
    found = {1}
    for _, size in _own(mesh, stages).axes:
        found |= {size * ways for ways in found}
    return tuple(sorted(found))


def batch_times(
    program: Program, mesh: Mesh, stages: int, hardware: Hardware, length: int, ways: int = 1
) -> BatchTimes:
    """The plan of a model over `stages`, which divide the mesh's first axis, for sequences of about `length` tokens, in
    batches that may be split into so many shares.

    Raises InputError where they do not divide it, where there are more stages than layers, where the model takes no
    batches of contexts and endings, and where it does not fit.
    """
    own = _own(mesh, stages)
    most, length = max(1, PLANNED_TOKENS // length // ways), _undivided(length, own)
    part = of_batches(_shortened(program, stages), most, length, length)
    layers = layers_of(program)
    if stages > max(1, layers):
        parts = dividing(program, layers)
        raise fail(f"The model has {layers} {parts}, and cannot be divided into {stages} stages.")

    def sequences(share: int) -> int:
        return ways * _undivided(share, own)

    def planned(share: int, capacity: float) -> BatchTimes:
        sized = of_batches(part, sequences(share), length, length)
        settings = Settings(gap=NEAR) if ways > 1 and capacity < math.inf else Settings()
        options = Options(hardware, capacity_bytes=capacity, settings=settings)
        return BatchTimes(program, stages, mesh, compile_phase(sized, sized.phases[0].name, own, options))

    room, found = hardware.room_bytes, planned(most, math.inf)
    if float(found.compiled.memory.total_bytes) <= room:
        return found
    if ways > 1:
        return _largest(partial(planned, capacity=room), most)
    share, found = 1, planned(1, room)
    while share < most and found.planned_bytes(sequences(min(most, 2 * share))) <= room:
        share = min(most, 2 * share)
        try:
            found = planned(share, room)
        except NoPlan:  # what a chip holds is said of some layers together, and attention may run in blocks of scores
            return found
    return found


def _largest(planned: Callable[[int], BatchTimes], most: int) -> BatchTimes:
    """The plan for the largest of some counts that fits, by halves. Raises NoPlan where that of one does not."""
    while most > 1:
        try:
            return planned(most)
        except NoPlan:
            most //= 2
    return planned(1)


def _own(mesh: Mesh, stages: int) -> Mesh:
    """The chips of one stage. Raises InputError where stages do not divide the first axis."""
    (first, size), *rest = mesh.axes
    if size % stages:
        hint = f"name a mesh whose first axis {stages} divides"
        raise fail(f"{stages} stages do not divide axis `{first}` of {size} chips.", hint=hint)
    return Mesh(((first, size // stages), *rest))


def _undivided(count: int, mesh: Mesh) -> int:
    """The least count from this one on, odd, that no axis divides: so that no layout counts on divisions that batches
    of other sizes do not have."""
    while math.gcd(count, 2 * mesh.chips) > 1:
        count += 1
    return count


def _shortened(program: Program, stages: int) -> Program:
    """The program with as many layers as the largest of even stages has."""
    items: tuple[Op | Repeat[Op], ...] = tuple(
        replace(item, count=-(-item.count // stages)) if isinstance(item, Repeat) else item
        for item in program.body.items
    )
    return replace(program, body=Region(program.body.stored, items))
