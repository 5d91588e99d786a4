"""The verifier: does a sharded program hold together, and is it the program that it claims to be?

It trusts nothing from the passes: every layout is recomputed from the collectives and ops that make
it. What it checks, besides the types' own invariants:

- values: listed in the order of their definition, each defined once and before it is used; what a
  repeat defines stays in it, but for its carries; every layout divides its value's sizes, and names
  axes of the mesh that have more than one chip;
- moves: the collective, applied to the operand's layout, gives the result's; dims and dtype stay;
- computes: the op runs on such shards and leaves such a result (ir.rules);
- joined and looped steps: those that run as one, or in one loop, could (ir.verify.fused);
- carries: one layout, one shape, one dtype at entry and exit, complete;
- stored tensors and results are complete; a new version of a cache lies as the cache is stored;
- a dim that a stored tensor keeps whole is split in no copy of it;
- parameters and caches alone are streamed, of no more repetitions than they have;
- against a Program: the same stored tensors, ops, repeats and results, once moves are looked through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Embed,
    LayoutError,
    Permute,
    ReduceScatter,
    Slice,
    apply,
    axes_of,
    describe,
)
from ..diagnostics import Diagnostic, InputError, listed
from ..layout import format_layout, unsplittable
from ..program import Append, Kind, Op, Program, Region, Repeat, Stored, operand_names, walk
from ..spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from .correspond import differences
from .fused import mark_objection, misfits, together
from .rules import check_op


def verify(spmd: SpmdProgram, program: Program | None = None) -> None:
    """Raise InputError with every violation found in `spmd`; with `program`, also where they differ."""
    found = list(_findings(spmd, program))
    if found:
        raise InputError(Diagnostic(message) for message in found)


def _findings(spmd: SpmdProgram, program: Program | None) -> Iterator[str]:
    sound = True
    for finding in _check_values(spmd):
        sound = False
        yield finding
    if not sound:
        return  # later checks look up dims and axes of values
    checker = _Checker(spmd)
    checker.region(spmd.body, set())
    checker.results()
    yield from checker.found
    if program is not None and not checker.found:
        yield from differences(spmd, program, checker.origins)


def _check_values(spmd: SpmdProgram) -> Iterator[str]:
    """What is wrong with the sizes, and with each value on its own."""
    sizes = dict(spmd.sizes)
    if len(sizes) != len(spmd.sizes) or any(size < 1 for size in sizes.values()):
        yield "Dims have one size each, of at least 1."
    names = [v.name for v in spmd.values]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"The value `{name}` is listed twice."
    for value in spmd.values:
        if len(value.layout.dims) != len(value.dims):
            yield f"`{value.name}` has {len(value.dims)} dims, and its layout {len(value.layout.dims)}."
            continue
        problem = _misfit(value, sizes, spmd)
        if problem:
            yield f"`{value.name}` cannot lie as {format_layout(value.dims, value.layout)}: {problem}."


def _misfit(value: SpmdValue, sizes: dict[str, int], spmd: SpmdProgram) -> str | None:
    for axis in (*sorted(value.layout.split_axes), *value.layout.partial):
        if axis not in spmd.mesh.names:
            return f"the mesh has no axis `{axis}`"
        if spmd.mesh.size(axis) == 1:
            return f"axis `{axis}` has one chip and splits nothing"
    for dim in value.dims:
        if dim not in sizes:
            return f"the dim `{dim}` has no size"
    if len(set(value.dims)) != len(value.dims):
        return "it has a dim twice"
    return unsplittable(value.dims, value.layout, sizes, spmd.mesh)


@dataclass
class _Checker:
    """Walks a program whose values are sound, and keeps what it finds.

    `origins`: for each value, the stored tensor, op result or carry that it is a moved copy of.
    `caches`: for each version of a cache, the stored tensor that it continues. `whole`: the dims that
    are never split, for each stored tensor that has such.
    """

    spmd: SpmdProgram
    found: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    caches: dict[str, str] = field(default_factory=dict)
    visible: set[str] = field(default_factory=set)
    whole: dict[str, Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = self.spmd.table()
        self.sizes = dict(self.spmd.sizes)
        self.readers = _readers(self.spmd)
        self.order: list[str] = []

    def region(self, region: Region[Step], inner: set[str], repetitions: int = 0) -> set[str]:
        """Check a region; `inner` are the names that it alone sees, returned with those it defines; `repetitions`: of
        the region, 0 in no repeat."""
        for stored in region.stored:
            self.check_streamed(stored, repetitions)
            if self.define(stored.value, inner):
                if self.values[stored.value].layout.partial:
                    self.found.append(f"The stored tensor `{stored.value}` is partial.")
                if stored.kind is Kind.CACHE:
                    self.caches[stored.value] = stored.value
                self.whole[stored.value] = stored
                self.check_whole(stored.value)
        for item in region.items:
            match item:
                case Move():
                    self.move(item, inner)
                case Compute(op):
                    self.compute(op, inner)
                case Repeat():
                    self.repeat(item, inner, max(1, repetitions))
        if not self.found:
            self.joined(region)
            self.looped(region)
        return inner

    def joined(self, region: Region[Step]) -> None:
        """Check the steps that run as one."""
        for run in together(region.items):
            for n, item in enumerate(run):
                if isinstance(item, Compute | Move) and item.joined:
                    why = mark_objection(item, run[:n], self.values)
                    if why:
                        self.found.append(f"`{item.result}` cannot be made in one with what precedes it: {why}.")

    def looped(self, region: Region[Step]) -> None:
        """Check the steps that run in one loop."""
        for name, why in misfits(region.items, self.values, self.readers):
            self.found.append(f"`{name}` cannot be made in one loop with what precedes it: {why}.")

    def define(self, name: str, inner: set[str]) -> bool:
        """Note that `name` is defined here; False when it cannot be."""
        if name not in self.values:
            self.found.append(f"`{name}` is defined, and is no value of the program.")
        elif name in self.origins:
            self.found.append(f"`{name}` is defined twice.")
        else:
            self.origins[name] = name
            self.visible.add(name)
            inner.add(name)
            self.order.append(name)
            return True
        return False

    def readable(self, names: Sequence[str], where: str) -> bool:
        """Whether all of `names` may be read here; notes those that may not."""
        missing = [n for n in names if n not in self.visible]
        for name in missing:
            state = "is out of its repeat" if name in self.origins else "is not defined yet"
            self.found.append(f"{where} reads `{name}`, which {state}.")
        return not missing

    def move(self, move: Move, inner: set[str]) -> None:
        """Check that a collective takes its operand to its result."""
        ready = self.readable([move.operand], f"`{move.result}`")
        if not self.define(move.result, inner) or not ready:
            return
        before, after = self.values[move.operand], self.values[move.result]
        self.origins[move.result] = self.origins[move.operand]
        if move.operand in self.caches:
            self.caches[move.result] = self.caches[move.operand]
        if (before.dims, before.dtype) != (after.dims, after.dtype):
            self.found.append(f"`{move.result}` has not the dims and dtype of `{move.operand}`, which it moves.")
            return
        self.check_whole(move.result)
        try:
            self.check_collective(move.collective, before, after)
        except LayoutError as error:
            self.found.append(f"`{move.result}` cannot be made from `{move.operand}`: {error}.")

    def check_streamed(self, stored: Stored, repetitions: int) -> None:
        """Check that what comes from the host is stored, in a repeat, and no more than there is."""
        if stored.streamed is not None and (
            stored.kind is Kind.INPUT or not 1 <= stored.streamed.count <= repetitions or stored.streamed.ahead < 0
        ):
            self.found.append(f"Of `{stored.value}` no {stored.streamed.count} repetitions can be streamed.")

    def check_whole(self, name: str) -> None:
        """Check that a stored tensor, or a copy of one, is split along no dim that it keeps whole, and within no
        group."""
        value, stored = self.values[name], self.whole.get(self.origins[name])
        if stored is None:
            return
        groups = dict(stored.groups)
        for dim, axes in zip(value.dims, value.layout.dims, strict=True):
            if axes and dim in stored.whole:
                self.found.append(f"`{name}` is split over `{dim}`, along which its groups are kept whole.")
            elif dim in groups and self.sizes[groups[dim]] % self.spmd.mesh.size(*axes):
                self.found.append(f"`{name}` is split over `{dim}` within its groups, which `{groups[dim]}` counts.")

    def check_collective(self, collective: Collective, before: SpmdValue, after: SpmdValue) -> None:
        """Raise LayoutError unless `collective` takes `before` to `after`."""
        mesh, rank = self.spmd.mesh, len(before.dims)
        if not all(0 <= d < rank for d in _dims_of(collective)):
            raise LayoutError(f"the collective names a dim that a value of {rank} dims lacks")
        if isinstance(collective, Permute):
            for dim, old, new in zip(before.dims, before.layout.dims, collective.layout.dims, strict=False):
                if not set(new) <= set(mesh.names) or mesh.size(*old) != mesh.size(*new):
                    raise LayoutError(f"a permute keeps the number of parts of `{dim}`")
        else:
            axes = axes_of(collective, before.layout)
            if not axes or len(set(axes)) != len(axes) or not set(axes) <= set(mesh.names):
                raise LayoutError(f"`{','.join(axes)}` are not different axes of the mesh")
        layout = apply(collective, before.layout)
        if layout != after.layout:
            left, said = (format_layout(before.dims, x) for x in (layout, after.layout))
            raise LayoutError(f"{describe(collective, before.dims)} leaves {left}, not {said}")

    def compute(self, op: Op, inner: set[str]) -> None:
        """Check that an op runs on its operands' shards and leaves its result."""
        ready = self.readable(operand_names(op), f"`{op.result}`")
        if not self.define(op.result, inner) or not ready:
            return
        try:
            check_op(op, self.values, self.sizes, self.spmd.mesh)
        except LayoutError as error:
            self.found.append(f"The op that makes `{op.result}` does not fit: {error}.")
        if isinstance(op, Append) and op.cache in self.caches:
            stored = self.values[self.caches[op.cache]]
            self.caches[op.result] = stored.name
            if self.values[op.result].layout != stored.layout:
                layout = format_layout(stored.dims, stored.layout)
                self.found.append(f"`{op.result}` does not lie as its cache `{stored.name}` is stored, in {layout}.")

    def repeat(self, repeat: Repeat[Step], inner: set[str], repetitions: int) -> None:
        """Check a repeat, reached so often: what enters, its body, what leaves."""
        where = f"The repeat `{repeat.name}`"
        if repeat.count < 1:
            self.found.append(f"{where} runs {repeat.count} times.")
        self.readable([c.initial for c in repeat.carries], where)
        body: set[str] = set()
        for carry in repeat.carries:
            self.define(carry.inside, body)
        self.region(repeat.body, body, repetitions * repeat.count)
        for carry in repeat.carries:
            if carry.next not in body:
                self.found.append(f"{where} hands on `{carry.next}`, which its body does not define.")
        self.visible -= body
        for carry in repeat.carries:
            self.define(carry.result, inner)
            names = [n for n in (carry.initial, carry.inside, carry.next, carry.result) if n in self.values]
            if len({replace(self.values[n], name="") for n in names}) > 1:
                self.found.append(f"{where} carries {listed(names)}, which differ in dims, dtype or layout.")
            elif names and self.values[names[0]].layout.partial:
                self.found.append(f"{where} carries {listed(names)}, which are partial.")

    def results(self) -> None:
        """What is wrong with the results, and with the list of values."""
        for name in self.spmd.results:
            if self.readable([name], "The program's end") and self.values[name].layout.partial:
                self.found.append(f"The result `{name}` is partial.")
        never = [n for n in self.values if n not in self.origins]
        for name in never:
            self.found.append(f"`{name}` is listed and never defined.")
        if not self.found and self.order != list(self.values):
            self.found.append("The values are not listed in the order of their definition.")


def _dims_of(collective: Collective) -> tuple[int, ...]:
    """The dims, by number, that a collective names."""
    match collective:
        case AllGather(_, dim) | ReduceScatter(_, dim) | Slice(_, dim) | Embed(_, int(dim)):
            return (dim,)
        case AllToAll(_, source, target):
            return (source, target)
        case AllReduce() | Permute() | Embed():
            return ()


def _readers(spmd: SpmdProgram) -> Counter[str]:
    """How many steps, carries and results read each value; a carry reads what enters and what is handed on."""
    count: Counter[str] = Counter(spmd.results)
    for placed in walk(spmd.body):
        match placed.item:
            case Compute(op):
                count.update(operand_names(op))
            case Move(_, operand):
                count[operand] += 1
            case Repeat(_, _, carries, _):
                count.update(name for carry in carries for name in (carry.initial, carry.next))
    return count
