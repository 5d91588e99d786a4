"""Tokens to groups of experts: what is multiplied by a mask goes to blocks of its entries first, and sums come back of
these, so that each is sent once to a chip that has several of the experts that a token chose.

The program computes the same, in another order. Which of the two costs less is for the search to say: where no token
is sent, or every chip has one expert, nothing is gained.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum

from ...ir.choices import with_choices
from ...ir.chosen import Chosen
from ...ir.dataflow import rewritten
from ...ir.program import Choose, Einsum, Op, Program, Reduce, Value

Indices = tuple[str, ...]


class Way(Enum):
    """How tokens go to the experts that a mask chooses, and their results come back: to each and from each, once to
    each group and back from each expert, or once to each group and its sum back."""

    EACH = "each"
    THERE = "there"
    BOTH = "both"


Ways = Mapping[str, Way]  # by mask; those that are left out go to each


@dataclass
class _Writer:
    """A program in the making, of masks in `ways`; None: of all, once both ways. `padded`: dims that are, or that say
    how far others are. `blocks`: by mask, what says of which of its blocks an entry is kept; `added`: new values.
    `entered`, `left`: masks of which something goes to blocks, or comes back from them."""

    values: dict[str, Value]
    sizes: Mapping[str, int]
    padded: Set[str]
    ways: Ways | None
    blocks: dict[str, str] = field(default_factory=dict)
    added: dict[str, Value] = field(default_factory=dict)
    entered: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    def _way(self, mask: str) -> Way:
        return Way.BOTH if self.ways is None else self.ways.get(mask, Way.EACH)

    def written(self, op: Op) -> list[Op]:
        """An op, with what goes to experts going to their groups first."""
        match op:
            case Choose(result) if (one := self._grouped(result)) is not None:
                return [op, self._blocks_of(result, one)]
            case Einsum():
                return self._through_blocks(op)
        return [op]

    def _grouped(self, mask: str) -> Chosen | None:
        """How a mask is chosen whose tokens have fewer blocks than entries, as is expected."""
        [one] = self.values[mask].chosen or (None,)
        if one is None or len(one.over) < 2 or self.padded & set(one.over) or self._way(mask) is Way.EACH:
            return None
        first = _of_blocks(one)
        if first is None or first.share(self._size) * self._size(first.over[0]) >= one.keep:
            return None
        return one

    def _size(self, dim: str) -> int:
        return self.sizes[dim]

    def _blocks_of(self, mask: str, one: Chosen) -> Op:
        value = self.values[mask]
        dims = tuple(d for d in value.dims if d not in one.over[1:])
        self.blocks[mask] = self._new(f"{mask}.blocks", dims, value)
        return Reduce(self.blocks[mask], mask, one.over[1:])

    def _new(self, base: str, dims: Indices, like: Value) -> str:
        name, number = base, 1
        while name in self.values or name in self.added:
            number += 1
            name = f"{base}:{number}"
        self.added[name] = Value(name, dims, like.dtype)
        return name

    def _through_blocks(self, op: Einsum) -> list[Op]:
        """An einsum, in two where something goes to what is chosen, or comes back from there."""
        return self._entering(op) or self._leaving(op) or [op]

    def _entering(self, op: Einsum) -> list[Op]:
        """`m[b,n,y] * x[b,e]` as `m[b,n,y] * (blocks[b,n] * x[b,e])`."""
        for chosen, other in ((0, 1), (1, 0)) if len(op.operands) == 2 else ():
            entry = self._entry(op, chosen)
            names, indices = op.operands, op.indices
            if entry is None or set(indices[chosen]) != {*entry[1], *entry[2]} or self.values[names[other]].chosen:
                continue
            mask, per, over = entry
            moved = set(indices[other])
            if moved & set(over) or moved <= set(per) or not {*moved, *indices[chosen]} <= set(op.output):
                continue
            rest = tuple(i for i in op.output if i not in over[1:])
            at = dict(zip(op.output, self.values[op.result].dims, strict=True))
            copy = self._new(f"{op.result}.sent", tuple(at[i] for i in rest), self.values[op.result])
            first = Einsum(copy, (self.blocks[mask], names[other]), ((*per, over[0]), indices[other]), rest)
            read = {chosen: (names[chosen], indices[chosen]), other: (copy, rest)}
            factors = [read[n] for n in range(2)]
            self.entered.add(mask)
            return [first, replace(op, operands=tuple(n for n, _ in factors), indices=tuple(i for _, i in factors))]
        return []

    def _leaving(self, op: Einsum) -> list[Op]:
        """`w[b,n,y] * d[b,n,y,e]`, summed, as its sums over y, and these over n."""
        for n in range(len(op.operands)):
            entry = self._entry(op, n)
            if entry is None or not set(op.indices[n]) - {*entry[1], *entry[2]}:
                continue
            mask, per, over = entry
            if mask not in self.entered or self._way(mask) is not Way.BOTH:
                continue
            if set(over) & set(op.output) or not set(per) < set(op.output):
                continue
            value, group = self.values[op.result], self.values[op.operands[n]].dims[op.indices[n].index(over[0])]
            self.left.add(mask)
            sums = self._new(f"{op.result}.sums", (*value.dims, group), value)
            return [
                replace(op, result=sums, output=(*op.output, over[0])),
                Einsum(op.result, (sums,), ((*op.output, over[0]),), op.output),
            ]
        return []

    def _entry(self, op: Einsum, n: int) -> tuple[str, Indices, Indices] | None:
        """Of an operand that is chosen by a mask with blocks the mask, and the indices of its elements and entries."""
        chosen = self.values[op.operands[n]].chosen
        if len(chosen) != 1 or chosen[0].merged or chosen[0].mask not in self.blocks:
            return None
        [one] = chosen
        at = dict(zip(self.values[op.operands[n]].dims, op.indices[n], strict=True))
        return one.mask, tuple(at[d] for d in one.per), tuple(at[d] for d in one.over)


def _of_blocks(one: Chosen) -> Chosen | None:
    """How blocks of entries are chosen, each of all entries that are alike in the first of the dims."""
    return one.renamed({d: d for d in (*one.per, one.over[0])})


def ways_of(program: Program, phase: str) -> dict[str, tuple[Way, ...]]:
    """The masks of a program of which something may go to groups of experts first, each with its ways, that to each
    expert first: those that choose along several dims, the first of groups, of which none is padded and as many groups
    as experts are not expected in a phase."""
    writer = _writer(program, phase, None)
    rewritten(program.body, writer.written)
    ways = {mask: (Way.EACH, Way.THERE, *([Way.BOTH] if mask in writer.left else [])) for mask in writer.blocks}
    return {mask: own for mask, own in ways.items() if mask in writer.entered}


def sent_once(program: Program, phase: str, ways: Ways | None = None) -> Program | None:
    """The program with tokens going to groups of experts before they go to experts, and back, as `ways` has it; None
    has it for all masks that may, in all that they may. None where no mask may or does (see `ways_of`)."""
    if ways is None:
        ways = {mask: own[-1] for mask, own in ways_of(program, phase).items()}
    writer = _writer(program, phase, ways)
    body = rewritten(program.body, writer.written)
    if not writer.entered:
        return None
    return with_choices(replace(program, values=(*program.values, *writer.added.values()), body=body))


def _writer(program: Program, phase: str, ways: Ways | None) -> _Writer:
    padded = {dim for pair in program.padding for dim in pair}
    return _Writer(program.table(), dict(program.phase(phase).sizes), padded, ways)
