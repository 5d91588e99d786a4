"""Programs of primitive ops: what the passes work on. No layouts here, no prices.

A `Program` comes out of the expansion of a source model: blocks are inlined, composites such as
softmax are spelled out, and factored dims are replaced by their factors. Dim sizes are bound by
phases. Non-goals: control flow other than `Repeat`, dynamic shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, StrEnum, auto
from typing import Generic, TypeVar

from .chosen import Chosen
from .dtype import Dtype
from .expr import Expr, count_calls, integer_operands, linear_operands, operands, rename, rotated_dims
from .layout import Layout, Reduction
from .record import record
from .wraps import Wrap


@record
class Value:
    """A tensor: name, dims by name (no dim twice), element type, and of which of its entries all others are zero."""

    name: str
    dims: tuple[str, ...]
    dtype: Dtype
    chosen: tuple[Chosen, ...] = ()


class Kind(StrEnum):
    """What a stored tensor is."""

    PARAM = "param"
    CACHE = "cache"
    INPUT = "input"


class Place(StrEnum):
    """Where a tensor is stored: on the chips, or in the memory of their host, from where they fetch it."""

    CHIP = "chip"
    HOST = "host"


@record
class Streamed:
    """Of a stored tensor's repetitions `count` lie in the memory of the chips' host, spread evenly among the others,
    and come to the chips as they are needed: `ahead` of them before that, so that chips have room for one more."""

    count: int
    ahead: int


@record
class Stored:
    """A tensor that is there before the program runs. In a Repeat: one for each repetition.

    `whole`: dims that are never split, neither where it is stored nor in any copy of it: elements along
    them form groups that are packed together. `groups`: dims along which groups lie one after the other, each with
    the dim that counts them; a split leaves groups whole. `streamed`: None where chips hold all of it.
    """

    value: str
    kind: Kind
    whole: tuple[str, ...] = ()
    streamed: Streamed | None = None
    groups: tuple[tuple[str, str], ...] = ()

    def shape(self, dims: Sequence[str], sizes: Mapping[str, int]) -> list[int]:
        """Into how many parts each dim can be split at the most: as many as it has groups, or elements."""
        groups = dict(self.groups)
        return [1 if d in self.whole else sizes[groups.get(d, d)] for d in dims]


@record
class Einsum:
    """Multiply the operands, sum over the indices that `output` lacks.

    `indices[i]` names the dims of operand i by position; `output` those of the result. The same
    value may be read twice, with the same or with other indices. An index may stand for a dim that counts groups of
    its places: each element along that dim then stands for all places of its group. So scales are read. `zeros`: pairs
    of operands by position, of which the second is no factor, but subtracted from the first, all of whose indices it
    has or lacks.
    """

    result: str
    operands: tuple[str, ...]
    indices: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    zeros: tuple[tuple[int, int], ...] = ()


@record
class Map:
    """A pointwise expression of values broadcast by dim names; the result's dims cover them all."""

    result: str
    expr: Expr


@record
class Sum:
    """`coefficients[0] * operands[0] + ...`, flat, broadcast by dim names. Operands differ."""

    result: str
    operands: tuple[str, ...]
    coefficients: tuple[float, ...]


@record
class Reduce:
    """The maximum over the dims `over`. (A sum is an Einsum of one operand.)"""

    result: str
    operand: str
    over: tuple[str, ...]


@record
class Take:
    """Rows of `table` picked along the dims `over` by integer `ids`: dims of ids, then the table's others.

    Of several dims a row is counted in row-major order of `over`.
    """

    result: str
    table: str
    ids: str
    over: tuple[str, ...]


@record
class TopK:
    """The entries of `picked` where `keys` is largest over the dims `over`, as many as `keep` has.

    The largest key comes first; of equal ones the first in row-major order of `over`. `picked` is
    broadcast to the dims of `keys` by dim names: with `keys` itself it gives the largest, with places
    it says where they stand. The result has the dims that are left of `keys`, then `keep`.
    """

    result: str
    keys: str
    picked: str
    over: tuple[str, ...]
    keep: str


@record
class Choose:
    """1 at the `keep` largest of `keys` over the dims `over`, 0 elsewhere; the result has the dims of `keys`.

    Of equal keys the first in row-major order of `over` is kept. Those of minus infinity, as masks make them, never
    are: where fewer than `keep` are larger, so many are kept.
    """

    result: str
    keys: str
    over: tuple[str, ...]
    keep: int


@record
class Iota:
    """0, 1, 2, ... along `dim`, the result's only dim."""

    result: str
    dim: str


@record
class Append:
    """A new version of `cache` with `new` written at the end of the context.

    The entries of `new` along `source` take the places C - L ... C - 1 of the cache's dim `target`, L
    being the size of `source`, and C = `context(target)` counting the context with this step's
    entries: the size of `target` unless whoever runs the program says less. The result has the cache's
    dims, and always the cache's layout.

    With a `context` the cache wraps: C = `context(context)`, and the entry of place p takes the slot p modulo the
    size of `target`, in which an entry of earlier may stand.
    """

    result: str
    cache: str
    new: str
    source: str
    target: str
    context: str | None = None

    @property
    def counted(self) -> str:
        """The dim along which the places of entries are counted."""
        return self.context or self.target


Op = Einsum | Map | Sum | Reduce | Take | TopK | Choose | Iota | Append


@record
class Carry:
    """A value that a repeat hands from one repetition to the next, always in the same layout.

    `initial` (outside) is `inside` in the first repetition; `next` (in the body) is `inside` in the
    one after; `result` (outside) is the last `next`.
    """

    initial: str
    inside: str
    next: str
    result: str


Item = TypeVar("Item")  # what runs: the ops of a program, or the steps of a sharded one


@record
class Region(Generic[Item]):
    """What is stored, then what runs, in order."""

    stored: tuple[Stored, ...]
    items: tuple[Item | Repeat[Item], ...]


@record
class Repeat(Generic[Item]):
    """A region applied `count` times, each time with stored tensors of its own.

    The body may read values defined outside, and carries; nothing else leaves it. A carry of a sharded program
    enters and leaves in one layout.
    """

    name: str
    count: int
    carries: tuple[Carry, ...]
    body: Region[Item]


@record
class Phase:
    """A size for every dim, padded where the program's `padding` says so, and how often the phase runs
    for one batch. `micro_batches`: how many batches of these sizes take turns; each has caches of its own. `mean`: the
    sizes at which ops are timed, of dims that count what caches hold by and by, all of which there is room for."""

    name: str
    sizes: tuple[tuple[str, int], ...]
    calls: int = 1
    micro_batches: int = 1
    mean: tuple[tuple[str, int], ...] = ()


class PinKind(StrEnum):
    """What a pin fixes."""

    STORED = "stored"
    USE = "use"
    RESULT = "result"


@record
class Pin:
    """A layout that the search may not choose.

    STORED: the stored layout of `value`. USE: the layout in which the op that makes `op` reads
    `value`. RESULT: the layout in which the op that makes `value` leaves it. `text` is how the
    person wrote it, for messages. `phase`: where it holds, if not in all phases.
    """

    kind: PinKind
    value: str
    op: str | None
    layout: Layout
    text: str
    phase: str | None = None


@record
class Program:
    """Values, the region that computes them, what it returns, and the phases that bind its dims.

    Invariants: names are unique; a value is defined before it is used (stored, op result, carry);
    every phase binds every dim that a value names; a cache is appended to at most once.

    `padding`: the padded dims, each with the dim whose size is its true one, which no value has.
    What stored tensors hold beyond the true size is zero; what results hold there means nothing. `places`: of tensors
    whose place is not for the search to choose. `wraps`: how caches that wrap are read. `blocks`: the calls of blocks,
    repeated or not, by what the names of their values begin with; none where nobody is to look into them.
    """

    name: str
    values: tuple[Value, ...]
    body: Region[Op]
    results: tuple[str, ...]
    phases: tuple[Phase, ...]
    pins: tuple[Pin, ...] = ()
    padding: tuple[tuple[str, str], ...] = ()
    places: tuple[tuple[str, Place], ...] = ()
    wraps: tuple[Wrap, ...] = ()
    blocks: tuple[str, ...] = ()

    def table(self) -> dict[str, Value]:
        """The values by name."""
        return {v.name: v for v in self.values}

    @property
    def on_host(self) -> tuple[str, ...]:
        """The tensors whose place is the host's memory."""
        return tuple(name for name, place in self.places if place is Place.HOST)

    def phase(self, name: str) -> Phase:
        """The phase called `name`; raises KeyError when there is none."""
        return {p.name: p for p in self.phases}[name]

    def true_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sizes of dims, such as a phase has, with the true ones of padded dims in their place."""
        return dict(sizes) | {dim: sizes[true] for dim, true in self.padding}


@record
class Use:
    """One reading of a value by an op: its dims as indices of the op."""

    value: str
    indices: tuple[str, ...]


class Role(Enum):
    """What an op is in a kernel."""

    MATMUL = auto()  # of two tensors or more, or of one with itself along other indices, with a contraction
    REDUCTION = auto()
    POINTWISE = auto()


@record
class Signature:
    """What an op does to indices, the one description that sharding rules are drawn from.

    `uses`: what it reads, each distinct (value, indices) once. `result`: the result's dims as
    indices. `contracted`: indices that the result lacks because they are summed, maximised, or
    looked up; a split of one leaves the result partial. `whole`: indices that are never split.
    `even`: indices whose shards must have an even size. `linear`: positions in `uses` of operands
    that may be partial over an axis while all others are complete over it; `together`: any of the
    uses may be partial over an axis, if all are (a complete one is embedded). `reduction`: how a
    partial result is completed. `tied`: the use whose layout must be the stored one and the
    result's (an append's cache). `role`: what it is in a kernel. `counted`: its arithmetic but for an einsum's, as how
    often each element of some indices takes an operation. `holds`: the values whose entries the result has, or, where
    it `sums`, sums of them. `compared`: a value, and dims along which its largest are looked for. `integers_of`: the
    values that have to be integers for the result to be; None where it never is.
    """

    uses: tuple[Use, ...]
    result: tuple[str, ...]
    contracted: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    even: tuple[str, ...] = ()
    linear: tuple[int, ...] = ()
    together: bool = False
    reduction: Reduction = Reduction.SUM
    tied: int | None = None
    role: Role = Role.POINTWISE
    counted: tuple[tuple[int, tuple[str, ...]], ...] = ()
    sums: bool = False
    holds: tuple[str, ...] = ()
    compared: tuple[str, tuple[str, ...]] | None = None
    integers_of: frozenset[str] | None = None

    @property
    def indices(self) -> tuple[str, ...]:
        """Every index, in order of first appearance."""
        named = [i for use in self.uses for i in use.indices]
        return tuple(dict.fromkeys([*self.result, *named]))


def signature(op: Op, values: Mapping[str, Value]) -> Signature:
    """The signature of `op`, whose operands and result are in `values`."""
    match op:
        case Einsum(_, names, indices, output):
            every = [Use(n, i) for n, i in zip(names, indices, strict=True)]
            uses = tuple(dict.fromkeys(every))
            # An operand that is read twice is multiplied by itself, so it must be complete; so must differences.
            whole = {names[at] for pair in op.zeros for at in pair}
            linear = tuple(i for i, use in enumerate(uses) if names.count(use.value) == 1 and use.value not in whole)
            contracted = tuple(dict.fromkeys(i for use in uses for i in use.indices if i not in output))
            product = Role.MATMUL if len(uses) > 1 else Role.REDUCTION  # a sum of squares reduces one tensor
            role, sums = product if contracted else Role.POINTWISE, bool(contracted)
            integers = frozenset(names)
            return Signature(uses, output, contracted, linear=linear, role=role, sums=sums, integers_of=integers)
        case Map(result, expr):
            uses, dims = tuple(Use(n, values[n].dims) for n in operands(expr)), values[result].dims
            at_once, even = linear_operands(expr), tuple(sorted(rotated_dims(expr)))
            linear = tuple(i for i, use in enumerate(uses) if use.value in at_once)
            counted = ((count_calls(expr), dims),)
            return Signature(uses, dims, even=even, linear=linear, counted=counted, integers_of=integer_operands(expr))
        case Sum(result, names, coefficients):
            uses, dims = tuple(Use(n, values[n].dims) for n in names), values[result].dims
            whole_numbers = frozenset(names) if all(c.is_integer() for c in coefficients) else None
            return Signature(uses, dims, together=True, counted=((len(names), dims),), integers_of=whole_numbers)
        case Reduce(result, name, over):
            use, dims, counted = Use(name, values[name].dims), values[result].dims, ((1, values[name].dims),)
            largest = Signature((use,), dims, over, linear=(0,), reduction=Reduction.MAX, role=Role.REDUCTION)
            integers = frozenset({name})
            return replace(largest, counted=counted, holds=(name,), compared=(name, over), integers_of=integers)
        case Take(result, table, ids, over):
            uses, dims = (Use(table, values[table].dims), Use(ids, values[ids].dims)), values[result].dims
            return Signature(uses, dims, over, linear=(0,), holds=(table,), integers_of=frozenset({table}))
        case TopK(result, keys, picked, over, keep):
            uses = tuple(dict.fromkeys(Use(n, values[n].dims) for n in (keys, picked)))
            unsplit, counted = (*over, keep), ((1, values[keys].dims),)
            largest = Signature(uses, values[result].dims, over, whole=unsplit, role=Role.REDUCTION, counted=counted)
            return replace(largest, holds=(picked,), compared=(keys, over), integers_of=frozenset({picked}))
        case Choose(_, keys, over, _):
            dims = values[keys].dims
            largest = Signature((Use(keys, dims),), dims, whole=over, role=Role.REDUCTION, counted=((1, dims),))
            return replace(largest, compared=(keys, over), integers_of=frozenset())
        case Iota(_, dim):
            return Signature((), (dim,), integers_of=frozenset())
        case Append(_, cache, new, source, _):
            uses, dims = (Use(cache, values[cache].dims), Use(new, values[new].dims)), values[cache].dims
            integers = frozenset({cache})
            return Signature(uses, dims, whole=(source,), tied=0, holds=(cache, new), integers_of=integers)


def operand_names(op: Op) -> tuple[str, ...]:
    """The values that `op` reads, each once."""
    match op:
        case Einsum(_, names, _, _) | Sum(_, names, _):
            return tuple(dict.fromkeys(names))
        case Map(_, expr):
            return operands(expr)
        case Reduce(_, name, _) | Choose(_, name, _, _):
            return (name,)
        case Take(_, table, ids, _):
            return (table, ids)
        case TopK(_, keys, picked, _, _):
            return tuple(dict.fromkeys((keys, picked)))
        case Iota():
            return ()
        case Append(_, cache, new, _, _):
            return (cache, new)


def with_operands(op: Op, names: Mapping[str, str]) -> Op:
    """The op reading other values: `names` says which in place of which; what it lacks stays."""

    def new(name: str) -> str:
        return names.get(name, name)

    match op:
        case Einsum(_, read, _, _) | Sum(_, read, _):
            return replace(op, operands=tuple(map(new, read)))
        case Map(_, expr):
            return replace(op, expr=rename(expr, names))
        case Reduce(_, name, _):
            return replace(op, operand=new(name))
        case Take(_, table, ids, _):
            return replace(op, table=new(table), ids=new(ids))
        case TopK(_, keys, picked, _, _):
            return replace(op, keys=new(keys), picked=new(picked))
        case Choose(_, keys, _, _):
            return replace(op, keys=new(keys))
        case Append(_, cache, entries, _, _):
            return replace(op, cache=new(cache), new=new(entries))
        case Iota():
            return op


@record
class Placed(Generic[Item]):
    """What runs or is stored, and the repeats around it, outermost first."""

    item: Item | Repeat[Item] | Stored
    repeats: tuple[Repeat[Item], ...]

    @property
    def times(self) -> int:
        """How often it runs, or how many copies of it there are."""
        return math.prod(repeat.count for repeat in self.repeats)


def walk(region: Region[Item], repeats: tuple[Repeat[Item], ...] = ()) -> Iterator[Placed[Item]]:
    """Everything in a region and below it, in program order: stored tensors, what runs, repeats.

    A Repeat comes before what is in it.
    """
    for stored in region.stored:
        yield Placed(stored, repeats)
    for item in region.items:
        yield Placed(item, repeats)
        if isinstance(item, Repeat):
            yield from walk(item.body, (*repeats, item))


def stored_in(region: Region[Item], *kinds: Kind) -> dict[Stored, Placed[Item]]:
    """What is stored in a region and below it, in program order, and where: all of it, or what is of these kinds."""
    placed = ((one.item, one) for one in walk(region))
    return {item: one for item, one in placed if isinstance(item, Stored) and (not kinds or item.kind in kinds)}
