"""The collectives of a plan as a compiled module has them: those that run as one are one, those of a loop permutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from ...cost.estimate import Estimate, concrete_sizes, local_bytes, step_costs
from ...cost.estimate import Transfer as Planned
from ...cost.memory import MemoryUse, memory
from ...cost.tpu_collectives import Kept, filled, ragged_bytes
from ...ir.choices import with_room
from ...ir.collective import CollectiveKind, ReduceScatter
from ...ir.dataflow import moves
from ...ir.diagnostics import Diagnostic
from ...ir.program import walk
from ...ir.record import record
from ...ir.spmd import Move, SpmdProgram
from ...ir.streams import host_tensors, is_filled_anew
from ...ir.verify.fused import CollectiveMatmul, walk_loops
from ..emit.jax_packed import Packed, packed
from ..plan.compiled import CompiledPhase
from .hlo import ModuleTransfer


def planned_of(compiled: CompiledPhase) -> Counter[ModuleTransfer]:
    """How often each collective of a phase runs in its emitted module, which sends whole rows of chosen values, and
    masks as bits, which are not among these."""
    rows, tpu = packed(compiled.spmd), compiled.for_tpu
    wider = wider_rows(rows) if tpu else {}
    return planned(with_room(compiled.spmd, room_of(rows)), compiled.estimate, masks_of(rows), tpu, wider)


def planned_memory(compiled: CompiledPhase) -> MemoryUse:
    """What a chip holds of a phase's emitted module by the plan, with the rows for which there is room."""
    hardware, spmd = compiled.hardware, with_room(compiled.spmd, room_of(packed(compiled.spmd)))
    return memory(spmd, hardware.lanes, hardware.fuses_products)


def too_large(compiled: CompiledPhase) -> tuple[Diagnostic, ...]:
    """A warning where an emitted module has room for so many chosen entries that it takes more of a chip than there
    is, and its plan, which counts those that are expected, does not."""
    room, held = compiled.hardware.room_bytes, float(planned_memory(compiled).total_bytes)
    if held <= room or float(compiled.memory.total_bytes) > room:
        return ()
    message = (
        f"The module of phase `{compiled.phase}` has room for all entries that can be chosen, with which it takes "
        f"{held / 1e9:.2f} GB of a chip, {(held - room) / 1e9:.2f} GB more than there is; the plan counts those that "
        "are expected."
    )
    return (Diagnostic(message, hint="`--capacity 1.25` gives room for 1.25 times these", severity="warning"),)


def masks_of(rows: Packed) -> set[str]:
    """The collectives of masks, which are sent as bits."""
    return {move.result for move in moves(rows.spmd) if rows.as_bits(move)}


def room_of(rows: Packed) -> dict[str, Fraction]:
    """The rows for which there is room in the emitted program, of those expected, by mask: whole ones, so that what
    was asked for is rounded up."""
    return {mask: packing.effective(rows.sizes, rows.capacity) for mask, packing in rows.packings.items()}


def wider_rows(rows: Packed) -> dict[str, Fraction]:
    """How many times their bytes exchanged rows of one dim are sent as on a TPU, by what the exchange makes."""
    found: dict[str, Fraction] = {}
    for placed in walk(rows.spmd.body):
        match placed.item:
            case Move(result, operand) as move if rows.exchanges(move) and len(rows.rest(operand)) == 1:
                value, [dim] = rows.values[operand], rows.rest(operand)
                ways = rows.spmd.mesh.size(*value.layout.dims[value.dims.index(dim)])
                row_bytes = Fraction(rows.sizes[dim] * value.dtype.bits, 8 * ways)
                found[result] = ragged_bytes(row_bytes) / row_bytes
    return found


def planned(
    spmd: SpmdProgram,
    cost: Estimate,
    masks: Collection[str] = (),
    tpu: bool = False,
    wider: Mapping[str, Fraction] | None = None,
) -> Counter[ModuleTransfer]:
    """How often each collective of a plan runs, as a module has them: those that run as one are one, those of a loop
    are its permutes, and what chips fetch from their host is gathered. `cost` is the plan's. Collectives that make
    `masks` are left out, which go as bits. `tpu`: in the stages in which they are written for TPUs; `wider`: of rows
    that are sent with more bytes how many times theirs, by what the collective makes."""
    values = spmd.table()
    loops = {move.result: loop for loop, _ in walk_loops(spmd.body) for move in loop.moves}
    halves = {loop.first: loop.halves for loop in cost.loops}
    found: list[tuple[ModuleTransfer, int, list[Planned]]] = []
    for step in step_costs(spmd, concrete_sizes(spmd)):
        if not isinstance(step, Planned) or not step.bytes_sent:
            continue
        if (loop := loops.get(step.result)) is not None:
            if step.result == loop.moves[0].result:
                passed = _permutes(loop, halves[loop.steps[0].result], spmd)
                found += [(sent, step.times * times, []) for sent, times in passed]
            continue
        size = Fraction(0) if step.result in masks else Fraction(step.bytes_sent) * (wider or {}).get(step.result, 1)
        sent = ModuleTransfer(step.kind, tuple(sorted(step.axes)), size)
        if step.joined:
            last, times, before = found.pop()
            found.append((replace(last, bytes=last.bytes + sent.bytes), times, [*before, step]))
        else:
            found.append((sent, step.times, [step]))
    found += ((sent, times, []) for sent, times in _gathered(spmd))
    total: Counter[ModuleTransfer] = Counter()
    written = _Written(Kept(spmd.mesh, values, dict(spmd.sizes)), {move.result: move for move in moves(spmd)})
    for sent, times, steps in found:
        for part in written.parts(sent, steps) if tpu and steps else [sent]:
            total[part] += times if sent.bytes else 0
    return +total


def _gathered(spmd: SpmdProgram) -> Iterator[tuple[ModuleTransfer, int]]:
    """What chips gather of what each has fetched from their host, and how often."""
    for tensor in host_tensors(spmd).values():
        if tensor.append is not None and is_filled_anew(tensor.append, dict(spmd.sizes)):
            continue
        size = local_bytes(replace(tensor.value, layout=tensor.parts), spmd) * tensor.inner
        for _, axes in tensor.gathers:
            ways = spmd.mesh.size(*axes)
            sent = ModuleTransfer(CollectiveKind.ALL_GATHER, tuple(sorted(axes)), size * (ways - 1))
            yield sent, tensor.layers
            size *= ways


@record
class _Written:
    """How collectives are written for TPUs. `moves`: by what they make."""

    kept: Kept
    moves: Mapping[str, Move]

    def parts(self, sent: ModuleTransfer, steps: Sequence[Planned]) -> Iterator[ModuleTransfer]:
        """What is written in the place of collectives that run as one: along the minor axes a chip sends its block as
        often as it is needed there, along the major one all that makes."""
        order = steps[0].axes
        stages = self._stages(sent.kind, steps)
        block = sent.bytes / (self.kept.mesh.size(*order) - 1) * self._filled(sent.kind, steps)
        for axes in reversed(stages):
            ways = self.kept.mesh.size(*axes)
            yield ModuleTransfer(sent.kind, tuple(sorted(axes)), block * (ways - 1))
            block *= ways

    def _stages(self, kind: CollectiveKind, steps: Sequence[Planned]) -> Sequence[tuple[str, ...]]:
        """The axes of each stage, those of the major one first."""
        order = steps[0].axes
        match kind:
            case CollectiveKind.ALL_GATHER:
                return self.kept.stages(order)
            case CollectiveKind.REDUCE_SCATTER:
                return self.kept.scatter_stages([step.operand for step in steps], order)
        return (tuple(order),)

    def _filled(self, kind: CollectiveKind, steps: Sequence[Planned]) -> Fraction:
        """How many times its bytes a reduce-scatter sends that goes as rows, which are filled up."""
        first, operands = self.moves[steps[0].result], [step.operand for step in steps]
        if kind is not CollectiveKind.REDUCE_SCATTER or any(self.kept.values[name].chosen for name in operands):
            return Fraction(1)
        match first.collective:
            case ReduceScatter(axes, dim) if len(steps) > 1 or self.kept.as_rows(first.operand, dim, axes):
                elements = self.kept.kept_elements(operands, axes)
                return Fraction(filled(elements, self.kept.values[first.operand].dtype.bits), elements)
        return Fraction(1)


def _permutes(loop: CollectiveMatmul, halves: int, spmd: SpmdProgram) -> Iterator[tuple[ModuleTransfer, int]]:
    """What one execution of a loop sends, and how often: each block that a ring passes on, whole or by halves."""
    sent, blocks = local_bytes(spmd.table()[loop.block], spmd) / halves, 1
    for stage in loop.stages:
        ways = spmd.mesh.size(stage.axis)
        yield ModuleTransfer(CollectiveKind.PERMUTE, (stage.axis,), sent), halves * blocks * (ways - 1)
        blocks *= ways


def sent_bytes(collectives: Mapping[ModuleTransfer, int]) -> Fraction:
    """The bytes that a device sends in all."""
    return sum((sent.bytes * times for sent, times in collectives.items()), Fraction(0))


def kinds_of(collectives: Mapping[ModuleTransfer, int]) -> Counter[str]:
    """How often each kind runs, of those that send something."""
    found: Counter[str] = Counter()
    for sent, times in collectives.items():
        found[sent.kind] += times if sent.bytes else 0
    return found
