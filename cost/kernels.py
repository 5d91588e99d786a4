"""Which ops run as one kernel, and so which values go through HBM.

A kernel keeps what it makes and reads itself near the arithmetic; what others make or read goes through HBM. One kernel
is: a matmul with the pointwise ops that follow it; projections of one value by several weights; attention, from the
scores to the weighted values, with its softmax and masks, and with biases for pairs of a query and a key that are made
of fewer numbers; scores and what weighs and sums them; a reduction, such as a norm's, with the pointwise ops around it,
of rows longer than a part of a kernel holds with those before it alone. A kernel ends before another reads what it
makes, and so none reads what is made of its own results. What is made of weights alone is of the kernel that multiplies
by it, and what spreads a value, as over a bias, of the one that adds it to something else. What makes more than all
that it follows, as an outer product of two projections, is of no matmul's kernel. Scores that something else reads, as
a second attention or a second product of one, are held whole: what makes them writes them, and each attention reads
them, as far as masks show them to it. Values that no tensor enters into, such as masks and places, are made where they
are read.

A collective reads and writes what it carries while it is under way, which takes no time of its own: HBM
is quicker than any network.

Kernels are found from the ops alone, in whatever order they stand and whatever they are called, and moved copies count
as what they are copies of: so the search and the sharded program see the same ones. The first op of a kernel begins it,
of those that multiply fp8 or fp4 by other types where it has some, since an engine may take a kernel more for these.
What several ops of a kernel read is counted once, in the copy that the largest of them reads, of equals one that may
not be partial: it has most arithmetic for the read to go on beside; but of what is looked up each reads rows of its
own. That others may read it in another layout, as a kernel of their own, is not counted: the search prices each op by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from ..ir.dataflow import origins
from ..ir.dtype import Dtype
from ..ir.program import (
    Append,
    Choose,
    Kind,
    Op,
    Program,
    Repeat,
    Role,
    Stored,
    Take,
    TopK,
    Value,
    operand_names,
    signature,
    walk,
    with_operands,
)
from ..ir.record import record
from ..ir.spmd import Compute, SpmdProgram, as_steps
from .arithmetic import arithmetic
from .joined import Joined, made_from
from .kernel_attention import attentions
from .kernel_ops import KernelOps, Node
from .op_order import Key, Vertex, in_order

LONGEST_ROW = 2**20  # elements of which a part of a kernel holds all at once: as many as a tensor of Triton may have


@record
class Launch:
    """What an op does beside its arithmetic.

    `reads`: the values that it reads from HBM, by the names of its operands; `caches`: those of them that
    are caches. `writes`: whether its result is written to HBM. `kernels`, `layers`, `steps`: how many
    kernels, repetitions of a repeat and runs of the program begin each time that it runs: 1 or 0, and of
    steps a part of 1 where every op is repeated. `near`: whether the table of which it takes rows is so small that it
    stays near the arithmetic once it was read.
    """

    reads: frozenset[str]
    caches: frozenset[str]
    writes: bool
    kernels: int = 0
    layers: int = 0
    steps: float = 0.0
    near: bool = False


NEAR_BYTES = 4e6  # of a table for which every chip has a cache: the least is a V100's, of 6 MB (Volta's whitepaper)


def launches(program: Program | SpmdProgram, sizes: Mapping[str, int]) -> dict[str, Launch]:
    """The launch of each op, by the value that it makes. `sizes` of all dims."""
    copies = origins(program) if isinstance(program, SpmdProgram) else {}
    region = program.body if isinstance(program, SpmdProgram) else as_steps(program.body)
    plain = {v.name: v.value for v in program.values} if isinstance(program, SpmdProgram) else program.table()
    nodes: list[Node] = []
    names: dict[str, tuple[str, ...]] = {}
    stored: dict[str, Kind] = {}
    handed_on = {copies.get(name, name) for name in program.results}
    carried: dict[str, str] = {}  # what carries are, each by what it was before
    for placed in walk(region):
        match placed.item:
            case Stored(name, kind):
                stored[name] = kind
            case Repeat(_, _, carries, _):
                for carry in carries:
                    carried[carry.inside] = copies.get(carry.initial, carry.initial)
                    carried[carry.result] = copies.get(carry.next, carry.next)
                    handed_on |= {carried[carry.inside], carried[carry.result]}
            case Compute(op):
                around = tuple((repeat.name, *(c.result for c in repeat.carries)) for repeat in placed.repeats)
                names[op.result] = operand_names(op)
                every = {dim for name in (op.result, *names[op.result]) for dim in plain[name].dims}
                size, original = prod(sizes[dim] for dim in every), with_operands(op, copies)
                sig, fewer = signature(original, plain), arithmetic(op, plain).fewer
                nodes.append(Node(original, sig, around, placed.times, size, fewer))
    ordered = _in_order(nodes, stored, frozenset(handed_on), plain, sizes)
    dims = {name: value.dims for name, value in plain.items()}
    needs = made_from({node.op.result: node.reads for node in nodes}, carried)
    ops = KernelOps(ordered, stored, frozenset(handed_on), dims)
    found = _Kernels(ops, needs, sizes).launches()
    for op in (node.op for node in nodes if isinstance(node.op, Take)):
        table = plain[op.table]
        if prod(sizes[dim] for dim in table.dims) * table.dtype.bits / 8 <= NEAR_BYTES:
            found[op.result] = replace(found[op.result], near=True)
    return {result: _by_names(found[result], operands, copies) for result, operands in names.items()}


def _by_names(launch: Launch, operands: Sequence[str], copies: Mapping[str, str]) -> Launch:
    """A launch with the copies that are read in place of what they are copies of."""
    if not copies:
        return launch
    reads, caches = (
        frozenset(name for name in operands if copies.get(name, name) in some) for some in (launch.reads, launch.caches)
    )
    return replace(launch, reads=reads, caches=caches)


class _Kernels:
    """The kernels of ops: sets of them, each in one region. Ops are numbered in an order in which makers come before
    readers."""

    def __init__(
        self,
        ops: KernelOps,
        needs: Mapping[str, Sequence[str]],
        sizes: Mapping[str, int],
    ) -> None:
        self.ops = ops
        self.elements = {name: prod(sizes[dim] for dim in own) for name, own in ops.dims.items()}
        self.joined = self._alone(needs, sizes)
        self.attention = set[int]()
        for own in attentions(ops):
            self._join(sorted(own))
            self.attention |= own
        self._join_projections()
        self._join_the_rest()

    def launches(self) -> dict[str, Launch]:
        """The launch of each op."""
        out: dict[str, Launch] = {}
        largest, begins = self._largest(), self._begins()
        in_order = sorted(range(len(self.ops.nodes)), key=lambda n: (n in self.ops.constant, n))
        opens = {self.ops.nodes[n].region: n for n in reversed(in_order)}
        head = min(in_order, key=lambda n: self.ops.nodes[n].times, default=0)
        for n, node in enumerate(self.ops.nodes):
            own, reads = self._kernel(n), set()
            for name in node.reads:
                afar = name in self.ops.caches or self._from_afar(name, n)
                if afar and (_picks(node.op, name) or n == largest[own, name]):
                    reads.add(name)
            out[node.op.result] = Launch(
                frozenset(reads),
                frozenset(reads & self.ops.caches) if node.role is Role.MATMUL else frozenset(),
                n not in self.ops.constant and self._read_elsewhere(n),
                int(begins.get(own) == n),
                int(bool(node.region) and opens[node.region] == n),
                1 / node.times if n == head else 0.0,
            )
        return out

    def _begins(self) -> dict[int, int]:
        """The op that begins each kernel."""
        some = set(range(len(self.ops.nodes))) - self.ops.constant
        # Of those that are brought to fewer bits one in fp8 first: no engine has fp4 alone.
        last_first = sorted(
            some, key=lambda n: (self.ops.nodes[n].fewer is not None, self.ops.nodes[n].fewer is Dtype.FP8, -n)
        )
        return {self._kernel(n): n for n in last_first}

    def _largest(self) -> dict[tuple[int, str], int]:
        """Of each kernel, for each value, the largest op that reads it whole, of equals the first."""
        found: dict[tuple[int, str], int] = {}
        for n in sorted(range(len(self.ops.nodes)), key=lambda n: (self.ops.nodes[n].size, -n)):
            whole = (name for name in self.ops.nodes[n].reads if not _picks(self.ops.nodes[n].op, name))
            found |= dict.fromkeys(((self._kernel(n), name) for name in whole), n)
        return found

    def _alone(self, needs: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> Joined:
        """Each op by itself. `needs`: the ops of all regions, in an order in which makers come before readers, each
        with those that make what it reads."""
        makers = [
            {self.ops.maker[name] for name in needs[node.op.result]} - self.ops.constant for node in self.ops.nodes
        ]
        rows = [prod(sizes[index] for index in node.signature.contracted) for node in self.ops.nodes]
        long = {n for n, row in enumerate(rows) if self.ops.nodes[n].role is Role.REDUCTION and row > LONGEST_ROW}
        return Joined(makers, [*map(self.ops.maker.__getitem__, needs)], long)

    def _kernel(self, n: int) -> int:
        return self.joined.root(n)

    def _join(self, some: Sequence[int]) -> None:
        self.joined.join(some)

    def _last(self, n: int, makers: Sequence[int]) -> list[int]:
        """Of ops before an op the last with which it can be one kernel, if there is one."""
        return [m for m in makers if not self.joined.apart(m, n)][-1:]

    def _follow(self, n: int, makers: Iterable[int]) -> None:
        """Joins an op with those before it with which it can be one kernel."""
        for m in makers:
            if not self.joined.apart(m, n):
                self._join([m, n])

    def _join_projections(self) -> None:
        for group in self.ops.projections.values():
            self._join(group)

    def _join_the_rest(self) -> None:
        """Pointwise ops, each with what it follows, or with the one kernel that reads it; reductions with the
        pointwise ops before them."""
        rows: set[int] = set()  # that are no part of a matmul's kernel
        waiting: set[int] = set()  # for the reductions that read them
        spread: list[int] = []  # those that no matmul's kernel makes
        first: dict[tuple[object, ...], int] = {}  # op that looks for the largest, or that reduces some values so
        later = self._made_where_read()
        for n, node in enumerate(self.ops.nodes):
            if n in self.ops.constant or n in self.attention or n in later or node.role is Role.MATMUL:
                continue
            makers = [m for m in self.ops.makers(n) if m not in later]
            if node.role is Role.REDUCTION:
                before = [m for m in makers if m in rows or m in waiting]
                self._follow(n, [*before, first.setdefault(self._reduced(n, waiting), n)])
                rows.add(n)
            elif self._only_reduced(n):
                waiting.add(n)
                self._follow(n, (m for m in makers if m in waiting or m in rows))
            elif (last := self._last(n, makers)) and (rows & {*last} or not self._spreads(n, makers)):
                self._join([*last, n])
                rows |= {n} if rows & {*last} else set()
            else:
                rows.add(n)
                spread += [n] if last else []
        for n in reversed(spread):
            if rows.issuperset(self.ops.readers.get(self.ops.nodes[n].op.result, ())):
                self._joins_readers(n)
        alone = [n for n in sorted(later, reverse=True) if not self._joins_readers(n)]
        for n in alone[::-1]:
            self._join([n, *self._last(n, self.ops.makers(n))])

    def _reduced(self, n: int, waiting: Set[int]) -> tuple[object, ...]:
        """What a reduction is of: those that are of the same read it once. Which are largest is found once, whatever is
        picked of them; sums of a value and of its squares are made in one go. What chooses is like no other."""
        node = self.ops.nodes[n]
        if isinstance(node.op, TopK):
            return node.op.keys, node.op.over, self.elements[node.op.result], node.region
        if isinstance(node.op, Choose):
            return (n,)
        sources, left = set[str](), [*node.reads]
        while left:
            name = left.pop()
            m = self.ops.maker.get(name)
            if m is None or m not in waiting:
                sources.add(name)
            else:
                left += self.ops.nodes[m].reads
        return frozenset(sources), self.ops.dims[node.op.result], node.signature.contracted, node.region

    def _spreads(self, n: int, makers: Sequence[int]) -> bool:
        """Whether a pointwise op makes more than each of what it follows has, as an outer product does: of what a
        matmul's kernel makes no part of it holds all that some of that is made of."""
        own = self.elements[self.ops.nodes[n].op.result]
        return _is_pointwise(self.ops.nodes[n]) and all(
            self.elements[self.ops.nodes[m].op.result] < own for m in makers
        )

    def _made_where_read(self) -> set[int]:
        """The pointwise ops that are of the kernel of what reads them, not of what they follow: those on weights, which
        follow none, and those that make more of what they follow for one that follows something else too, as a bias of
        each expert that tokens chose."""
        larger = self._larger()
        plain = set(range(len(self.ops.nodes))) - self.ops.constant - self.attention
        found = {n for n in plain if self.ops.nodes[n].op.result in self.ops.weights and not self._only_reduced(n)}
        for n in sorted(larger - found, reverse=True):
            reader = self.ops.readers[self.ops.nodes[n].op.result][0]
            beside = set(self.ops.makers(reader)) - larger - found
            if reader in found or any(not self.joined.waits(n, m) for m in beside):
                found.add(n)
        return found

    def _larger(self) -> set[int]:
        """The pointwise ops that make more than all that they follow has, for another pointwise one alone."""
        found: set[int] = set()
        read: dict[int, int] = {}  # elements of what such an op follows, or those that it is made of do
        for n, node in enumerate(self.ops.nodes):
            if n in self.ops.constant or n in self.attention or not _is_pointwise(node):
                continue
            follows = [
                read[m] if m in found else self.elements[self.ops.nodes[m].op.result] for m in self.ops.makers(n)
            ]
            read[n] = sum(follows)
            readers = self.ops.readers.get(node.op.result, [])
            alone = len(readers) == 1 and readers[0] not in self.attention and _is_pointwise(self.ops.nodes[readers[0]])
            if alone and read[n] < self.elements[node.op.result] and node.op.result not in self.ops.handed_on:
                found |= {n} if self._read_here(n) else set()
        return found

    def _joins_readers(self, n: int) -> bool:
        """Joins an op with the one kernel of its region that reads it; says whether there is one."""
        readers = self.ops.readers.get(self.ops.nodes[n].op.result, [])
        one = self._read_here(n) and len({self._kernel(m) for m in readers}) == 1
        joins = one and not self.joined.apart(readers[0], n)
        if joins:
            self._join([readers[0], n])
        return joins

    def _read_here(self, n: int) -> bool:
        """Whether all that read what an op makes are of its region: others read often what is made once."""
        readers = self.ops.readers.get(self.ops.nodes[n].op.result, [])
        return all(self.ops.nodes[m].region == self.ops.nodes[n].region for m in readers)

    def _only_reduced(self, n: int) -> bool:
        """Whether reductions of its region alone read what a pointwise op makes."""
        result = self.ops.nodes[n].op.result
        readers = self.ops.readers.get(result, [])
        alone = all(self.ops.nodes[m].role is Role.REDUCTION and m not in self.attention for m in readers)
        return bool(readers) and self._read_here(n) and alone and result not in self.ops.handed_on

    def _from_afar(self, name: str, n: int) -> bool:
        """Whether op `n` finds a value in HBM: one that another kernel makes, or that comes from outside."""
        m = self.ops.maker.get(name)
        return m is None or (m not in self.ops.constant and self._kernel(m) != self._kernel(n))

    def _read_elsewhere(self, n: int) -> bool:
        """Whether what op `n` makes has to be written. An append writes its entries, whoever reads them."""
        node = self.ops.nodes[n]
        if isinstance(node.op, Append):
            return False
        readers = self.ops.readers.get(node.op.result, ())
        own = self._kernel(n)
        return node.op.result in self.ops.handed_on or any(self._kernel(m) != own for m in readers)


def _is_pointwise(node: Node) -> bool:
    """Whether an op makes each element of those that stand there, and so neither looks up nor appends."""
    return node.role is Role.POINTWISE and not isinstance(node.op, Append | Take)


def _picks(op: Op, name: str) -> bool:
    """Whether an op reads rows of a value, which others need not read."""
    return isinstance(op, Take) and name == op.table


def _in_order(
    nodes: Sequence[Node],
    stored: Mapping[str, Kind],
    handed_on: frozenset[str],
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
) -> list[Node]:
    """Nodes in an order that what they are decides, makers first."""

    def shape(indices: Iterable[str]) -> Key:
        return tuple(sizes[index] for index in indices)

    def what(name: str) -> Key:
        return values[name].dtype, shape(values[name].dims), name in handed_on

    made = {node.op.result for node in nodes}
    outside = {name for node in nodes for name in node.reads if name not in made}
    vertices = {name: Vertex((stored.get(name, ""), *what(name))) for name in outside}
    for node in nodes:
        sig, kept = node.signature, node.op.keep if isinstance(node.op, Choose) else 0
        counted = tuple(sorted((times, shape(among)) for times, among in sig.counted))
        own = type(node.op).__name__, node.times, node.size, kept, counted, shape(sig.contracted)
        uses = [
            (use.value, (place in sig.linear, tuple((sizes[index], index in sig.result) for index in use.indices)))
            for place, use in enumerate(sig.uses)
        ]
        vertices[node.op.result] = Vertex((*own, *what(node.op.result)), uses)
    by_name = {node.op.result: node for node in nodes}
    return [by_name[name] for name in in_order(vertices) if name in made]
