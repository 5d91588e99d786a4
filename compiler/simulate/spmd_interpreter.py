"""Virtual chips: a sharded program run on real shards, in float64, with what it sends counted.

Declared layouts are never trusted to be true. Ops and collectives act on what the chips hold; a
value that is not what its layout says surfaces as an ExecutionError or as a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from ...ir.collective import AllGather, AllReduce, AllToAll, Collective, Embed, Permute, ReduceScatter, Slice, describe
from ...ir.dataflow import reads
from ...ir.layout import Layout, Reduction
from ...ir.program import Append, Choose, Region, Repeat, operand_names, walk
from ...ir.record import record
from ...ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from .finite import Watch
from .host import Host
from .numpy_runtime import Mesh
from .pointwise import Array, run_op
from .routing import Mask, even_mask, kept_entries
from .traffic import elements_sent

REDUCE = {Reduction.SUM: np.add, Reduction.MAX: np.maximum}
TOLERANCE = 1e-9  # of the largest element; how far two copies of a value may differ


class ExecutionError(Exception):
    """The sharded program does not hold together when it runs."""


@record
class MoveCount:
    """What one Move of the text sends.

    `times`: how often it ran. `bytes_sent`: what the busiest chip sends each time, of a chosen value on average.
    """

    result: str
    collective: Collective
    times: int
    bytes_sent: Fraction


@record
class Execution:
    """Results, watched values and cache versions as whole arrays by name; every Move, in program order.

    A cache version in a repeat has one leading dim for each repeat around it. `in_bytes`, `out_bytes`: what came to the
    busiest chip from its host, and went back.
    """

    results: Mapping[str, Array]
    moves: tuple[MoveCount, ...]
    in_bytes: Fraction
    out_bytes: Fraction


def run_spmd(
    spmd: SpmdProgram,
    stored: Mapping[str, Array],
    contexts: Mapping[str, int] | None = None,
    watch: Sequence[str] = (),
    finite: Watch | None = None,
    evenly: bool = False,
) -> Execution:
    """Run `spmd` on as many virtual chips as its mesh has.

    `stored`: whole arrays by name, one leading dim for each repeat around the tensor. `contexts`: how
    many places are filled, with this step's entries, along the dims of which not all are. `watch`:
    values that no repeat makes, returned beside the results, partial ones reduced. `finite` sees what
    every op makes. `evenly`: entries are not chosen by their numbers, but all as often. Raises
    ExecutionError when shards do not fit together, when a collective does not leave what the
    result's layout declares, when copies of one value differ, when a result is partial, or when a chosen
    value is not zero beside what is kept.
    """
    run = _Run(spmd, stored, contexts or {}, finite or Watch(spmd.mesh.names), evenly)
    with np.errstate(all="ignore"):
        return run.execution(watch)


@dataclass
class _Run:
    spmd: SpmdProgram
    stored: Mapping[str, Array]
    contexts: Mapping[str, int]
    finite: Watch
    evenly: bool
    versions: dict[str, list[Array]] = field(default_factory=dict)  # whole, by the append that made them
    times: dict[str, int] = field(default_factory=dict)  # executions, by the result of a Move
    sent: dict[str, Fraction] = field(default_factory=dict)  # elements in all of these, of chosen values
    masks: dict[str, Mask] = field(default_factory=dict)  # of the last repetition

    def __post_init__(self) -> None:
        self.values = self.spmd.table()
        self.sizes = dict(self.spmd.sizes)
        self.mesh = Mesh(dict(self.spmd.mesh.axes))
        self.host = Host(self.spmd, self.mesh)

    def execution(self, watch: Sequence[str]) -> Execution:
        """Run the whole program."""
        env = self.region(self.spmd.body, {}, (), (*self.spmd.results, *watch))
        results = {name: self.complete(name, env[name]) for name in self.spmd.results}
        results |= {name: self.whole(name, env[name]) for name in watch}
        moves = []
        for placed in walk(self.spmd.body):
            match placed.item:
                case Compute(Append(result=name)):
                    versions = np.stack(self.versions[name])
                    stack = [repeat.count for repeat in placed.repeats]
                    results[name] = versions.reshape(*stack, *versions.shape[1:])
                case Move(name, _, collective) as move:
                    moves.append(MoveCount(name, collective, self.times[name], self.bytes_sent(move)))
        return Execution(results, tuple(moves), self.host.in_bytes, self.host.out_bytes)

    def region(
        self, region: Region[Step], env: Mapping[str, Array], at: tuple[int, ...], keep: Iterable[str]
    ) -> dict[str, Array]:
        """Run a region in the repetition `at` (one number for each repeat); shards by name.

        What nothing reads any more is dropped, except for `keep`.
        """
        env = dict(env)
        for stored in region.stored:
            env[stored.value] = self.load(self.values[stored.value], self.stored[stored.value][at])
        for item, dead in zip(region.items, _last_reads(region, set(keep)), strict=True):
            env |= self.repeat(item, env, at) if isinstance(item, Repeat) else {item.result: self.step(item, env)}
            for name in dead:
                env.pop(name, None)
        return env

    def repeat(self, repeat: Repeat[Step], env: Mapping[str, Array], at: tuple[int, ...]) -> dict[str, Array]:
        """Run a repeat; what it returns, by name."""
        carried = {c.inside: env[c.initial] for c in repeat.carries}
        for i in range(repeat.count):
            after = self.region(repeat.body, {**env, **carried}, (*at, i), [c.next for c in repeat.carries])
            carried = {c.inside: after[c.next] for c in repeat.carries}
        return {c.result: carried[c.inside] for c in repeat.carries}

    def load(self, value: SpmdValue, whole: Array) -> Array:
        """The shards of a stored tensor."""
        if whole.shape != self.shape(value):
            raise ExecutionError(f"`{value.name}` has the shape {whole.shape}, not {self.shape(value)}")
        try:
            held = self.mesh.shard(whole, value.layout.dims)
            came = self.host.load(value.name, whole)
            if came is not None and not np.array_equal(came, held, equal_nan=True):
                raise ExecutionError(f"`{value.name}` does not come from the host as the chips are to hold it")
            return held if came is None else came
        except ValueError as error:
            raise ExecutionError(f"`{value.name}`: {error}") from error

    def step(self, step: Step, env: Mapping[str, Array]) -> Array:
        """Run an op or a collective, and hold its result against the layout that it declares."""
        value = self.values[step.result]
        try:
            if isinstance(step, Move):
                shards = self.move(step.collective, env[step.operand], self.values[step.operand].layout)
            else:
                shards = run_op(step.op, env, self.values, self.sizes, self.mesh, self.contexts)
        except ValueError as error:
            raise ExecutionError(f"`{step.result}`: {error}") from error
        local = value.layout.local_shape(self.shape(value), self.spmd.mesh)
        if shards.shape != self.mesh.shape + local:
            held = shards.shape[len(self.mesh.shape) :]
            raise ExecutionError(f"`{step.result}`: a chip holds {held}, its layout says {local}")
        if isinstance(step, Move):
            self.times[step.result] = self.times.get(step.result, 0) + 1
            if not _same(self.whole(step.operand, env[step.operand]), self.whole(step.result, shards)):
                does = describe(step.collective, value.dims)
                raise ExecutionError(f"`{step.result}`: {does} does not leave what the layout says")
            if value.chosen:
                kept = kept_entries(value.dims, value.chosen, self.masks)
                self.sent[step.result] = self.sent.get(step.result, Fraction(0)) + self.elements_sent(step, kept)
            return shards
        if isinstance(step.op, Choose):
            shards = self.choose(step.op, shards)
        elif value.chosen:
            self.check_kept(value, shards)
        self.finite.see(step.op, shards, {name: env[name] for name in operand_names(step.op)})
        if isinstance(step.op, Append):
            self.versions.setdefault(step.result, []).append(self.complete(step.result, shards))
            self.host.send_back(step.op.cache, shards)
        return shards

    def choose(self, op: Choose, shards: Array) -> Array:
        """What an op kept that chooses, noted for those that its mask is multiplied with."""
        value = self.values[op.result]
        if self.evenly:
            shards = self.mesh.shard(even_mask(value.dims, self.sizes, op.over, op.keep), value.layout.dims)
        own = next(one for one in value.chosen if one.mask == op.result)
        self.masks[op.result] = Mask(own, value.dims, self.whole(op.result, shards))
        return shards

    def check_kept(self, value: SpmdValue, shards: Array) -> None:
        """Raise ExecutionError where a chosen value is not zero beside what is kept."""
        whole, kept = self.whole(value.name, shards), kept_entries(value.dims, value.chosen, self.masks)
        if np.any(np.isfinite(whole) & (whole != 0) & (kept == 0)):
            raise ExecutionError(f"`{value.name}` is not zero where `{value.chosen[0].mask}` keeps nothing")

    def move(self, collective: Collective, shards: Array, before: Layout) -> Array:
        """What the chips hold after a collective; `before` is what the operand's layout declares."""
        reduce = REDUCE[before.reduction]
        match collective:
            case AllGather(axes, dim):
                return self.mesh.all_gather(shards, axes, dim)
            case ReduceScatter(axes, dim):
                return self.mesh.reduce_scatter(shards, axes, dim, reduce)
            case AllReduce(axes):
                return self.mesh.all_reduce(shards, axes, reduce)
            case AllToAll(axes, source, target):
                return self.mesh.all_to_all(shards, axes, source, target, before.dims[source][-len(axes) :])
            case Slice(axes, dim):
                return self.mesh.slice(shards, axes, dim)
            case Permute(after):
                return self.mesh.permute(shards, before.dims, after.dims)
            case Embed(axes, None):
                return self.mesh.embed(shards, axes)
            case Embed(axes, int(dim)):
                return self.mesh.embed_block(shards, before.dims[dim][-len(axes) :], dim)
        raise AssertionError(collective)

    def whole(self, name: str, shards: Array) -> Array:
        """The whole array that shards stand for, partial ones reduced; copies must agree."""
        layout = self.values[name].layout
        reduced = REDUCE[layout.reduction].reduce(shards, axis=tuple(self.mesh.at(layout.partial)))
        rest = Mesh({axis: n for axis, n in self.mesh.sizes.items() if axis not in layout.partial})
        try:
            return rest.unshard(reduced, layout.dims)
        except ValueError as error:
            raise ExecutionError(f"`{name}`: {error}") from error

    def complete(self, name: str, shards: Array) -> Array:
        """The whole array of a value that may not be partial."""
        if self.values[name].layout.partial:
            raise ExecutionError(f"`{name}` is returned before it is reduced")
        return self.whole(name, shards)

    def shape(self, value: SpmdValue) -> tuple[int, ...]:
        """The global shape of a value."""
        return tuple(self.sizes[d] for d in value.dims)

    def bytes_sent(self, move: Move) -> Fraction:
        """What the busiest chip sends in one execution."""
        value = self.values[move.result]
        if value.chosen:
            return self.sent[move.result] / self.times[move.result] * value.dtype.bits / 8
        return self.elements_sent(move, None) * value.dtype.bits / 8

    def elements_sent(self, move: Move, kept: Array | None) -> Fraction:
        """The elements that the busiest chip sends in one execution, of a chosen value of those that are `kept`."""
        value, before = self.values[move.result], self.values[move.operand].layout
        return elements_sent(self.spmd.mesh, self.shape(value), move.collective, before, value.layout, kept)


def _same(a: Array, b: Array) -> bool:
    if np.array_equal(a, b):
        return True
    scale = np.abs(a[np.isfinite(a)]).max(initial=0)
    return bool(np.allclose(a, b, rtol=0, atol=TOLERANCE * scale, equal_nan=True))


def _last_reads(region: Region[Step], keep: set[str]) -> list[list[str]]:
    """For each item the names that it is the last to read, `keep` left out."""
    seen, dead = set(keep), []
    for item in reversed(region.items):
        names = sorted(set(reads(item)) - seen)
        seen |= set(names)
        dead.append(names)
    return dead[::-1]
