"""How the values of a program are chosen, followed from the ops that choose to what is made of their masks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from .chosen import Chosen, narrowest, vanishes
from .diagnostics import fail
from .expr import Call, Const, Expr, Operand, operands
from .folded import folded
from .program import Choose, Einsum, Map, Op, Program, Reduce, Region, Repeat, Stored, Sum, Value, walk
from .record import record
from .spmd import Compute, Move, SpmdProgram, SpmdValue, as_steps

Choices = Mapping[str, tuple[Chosen, ...]]  # by value; those of which all is kept may be left out


@record
class Bare:
    """The number that a value is wherever nothing was chosen of what it is made of, as may be along the dims `over`:
    the tokens of each expert are no one's, where none has chosen it."""

    number: float
    over: frozenset[str]


Bares = Mapping[str, Bare]  # by value; those may be left out that no such number is known of


def chosen_of(
    op: Op, known: Choices, dims: Mapping[str, tuple[str, ...]], bares: Bares | None = None
) -> tuple[Chosen, ...]:
    """How the result of an op is chosen. `known`, `bares`: how what it reads is; `dims`: those of operands and
    result."""
    match op:
        case Choose(result, keys, over, keep):
            before = known.get(keys, ())
            within = tuple(dict.fromkeys(m for one in before for m in (one.mask, *one.within)))
            groups, kept_groups = _groups(before, over)
            per = tuple(d for d in dims[keys] if d not in over)
            return (Chosen(result, over, per, keep, within, groups=groups, kept_groups=kept_groups),)
        case Einsum(result, names, indices, output):
            new = dict(zip(output, dims[result], strict=False))
            if boundless(op, bares or {}):
                return ()
            found: list[Chosen | None] = []
            for name, each in zip(names, indices, strict=False):
                at = {d: new[i] for d, i in zip(dims[name], each, strict=False) if i in new}
                found += [one.renamed(at) for one in known.get(name, ())]
            return narrowest(one for one in found if one is not None)
        case Reduce(result, operand, along):
            kept = {d: d for d in dims[result]}
            blocks = [one.renamed(kept) for one in known.get(operand, ()) if set(along) < set(one.over)]
            return narrowest(one for one in blocks if one is not None)
        case Map(_, expr):
            every = dict.fromkeys(one for name in operands(expr) for one in known.get(name, ()))
            return narrowest(one for one in every if _stays(expr, one, known, bares or {}))
        case Sum(_, names, _):
            first, *others = (known.get(name, ()) for name in names)
            return tuple(one for one in first if all(one in other for other in others))
    return ()


def _groups(before: tuple[Chosen, ...], over: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Along which of the dims `over` the keys of an op that chooses were picked before, and how many of them."""
    match before:
        case (Chosen(_, groups, _, kept, within=(), merged=()),) if set(groups) < set(over):
            return groups, kept
    return (), 0


def bare_of(op: Op, chosen: tuple[Chosen, ...], bares: Bares, dims: Mapping[str, tuple[str, ...]]) -> Bare | None:
    """What the result of an op, which is chosen so, is where nothing was chosen; None if that is not known.
    `bares`: what its operands are there."""
    if chosen:
        return Bare(0.0, frozenset(d for one in chosen for d in one.over))
    number: float | None = None
    over = frozenset[str]()
    match op:
        case Einsum(result, names, indices, output):
            new = dict(zip(output, dims[result], strict=False))
            product: Expr = Const(1.0)
            for name in names:
                product = Call("multiply", (product, Operand(name)))
            number = folded(product, _numbers(names, bares))
            number = None if number not in (None, 0) and math.isfinite(number) else number  # a sum of many
            for name, each in zip(names, indices, strict=False):
                at = zip(dims[name], each, strict=False)
                over |= frozenset(new[i] for d, i in at if i in new and name in bares and d in bares[name].over)
        case Reduce(_, name, along) if name in bares:
            number, over = bares[name].number, bares[name].over - {*along}
        case Map(_, expr):
            number = folded(expr, _numbers(operands(expr), bares))
            over = over.union(*(bares[name].over for name in operands(expr) if name in bares))
        case Sum(_, names, coefficients) if all(name in bares for name in names):
            number = sum(c * bares[name].number for name, c in zip(names, coefficients, strict=True))
            over = over.union(*(bares[name].over for name in names))
    return Bare(number, over) if number is not None and over else None


def _numbers(names: Iterable[str], bares: Bares) -> dict[str, float]:
    return {name: bares[name].number for name in names if name in bares}


def boundless(op: Op, bares: Bares) -> bool:
    """Whether a pointwise op or a product is infinite, or no number, where nothing was chosen."""
    match op:
        case Map(_, expr):
            number = folded(expr, _numbers(operands(expr), bares))
            return number is not None and not math.isfinite(number)
        case Einsum(_, names, _, _):  # 0 times what is infinite is no number
            return not all(map(math.isfinite, _numbers(names, bares).values()))
    return False


def _stays(expr: Expr, one: Chosen, known: Choices, bares: Bares) -> bool:
    """Whether what is pointwise is 0 wherever what is chosen so is."""
    names = operands(expr)
    return vanishes(expr, _having(one, names, known), _numbers(names, bares))


def spread(op: Op, known: Choices, bares: Bares | None = None) -> tuple[str, str] | None:
    """A chosen operand of an op and the mask of it that the result should be zero beside and is not, so that all of it
    would be kept; None where there is none. Of products such are those with what is infinite there."""
    match op:
        case Einsum(_, names, _, _) if boundless(op, bares or {}):
            return next(((name, one.mask) for name in names for one in _entries(known.get(name, ()))), None)
        case Map(_, expr):
            for name in operands(expr):
                for one in _entries(known.get(name, ())):
                    if not _stays(expr, one, known, bares or {}):
                        return name, one.mask
        case Sum(_, names, _):
            for name in names:
                for one in _entries(known.get(name, ())):
                    if not all(one in known.get(other, ()) for other in names):
                        return name, one.mask
    return None


def _entries(chosen: tuple[Chosen, ...]) -> list[Chosen]:
    """Those by which single entries are kept: of blocks all may count."""
    return [one for one in chosen if not one.merged]


def _having(one: Chosen, names: Collection[str], known: Choices) -> frozenset[str]:
    return frozenset(name for name in names if one in known.get(name, ()))


def with_choices(program: Program) -> Program:
    """The program, its values saying how they are chosen; what some said of room and load holds for all of one mask."""
    known = _choices(as_steps(program.body), program.values)
    told = {one.mask: (one.capacity, one.skew) for value in program.values for one in value.chosen}

    def chosen(value: Value) -> tuple[Chosen, ...]:
        own = known.get(value.name, ())
        loads = ((one, *told.get(one.mask, (one.capacity, one.skew))) for one in own)
        return tuple(replace(one, capacity=capacity, skew=skew) for one, capacity, skew in loads)

    return replace(program, values=tuple(replace(v, chosen=chosen(v)) for v in program.values))


def with_sharded_choices(spmd: SpmdProgram) -> SpmdProgram:
    """The sharded program, its values saying how they are chosen."""
    known = _choices(spmd.body, spmd.values)
    return replace(spmd, values=tuple(replace(v, chosen=known.get(v.name, ())) for v in spmd.values))


ENTRIES = "chosen entries, such as tokens at their experts, and the model chooses none"


def with_capacity(program: Program, capacity: Fraction | None) -> Program:
    """The program with room for so many chosen entries, of those that are expected; for all where it is None. Raises
    InputError for a number where none are chosen."""
    if capacity is not None and not chooses(program):
        raise fail(f"A capacity is the room for {ENTRIES}.", hint="leave it out")

    def given(value: Value) -> Value:
        return replace(value, chosen=tuple(replace(one, capacity=capacity) for one in value.chosen))

    return replace(program, values=tuple(map(given, program.values)))


def with_skew(program: Program, skew: Fraction) -> Program:
    """The program where the busiest chip has so many times the mean load of chosen entries. Raises InputError for
    another load than the mean where none are chosen."""
    if skew != 1 and not chooses(program):
        raise fail(f"A skew is the load of {ENTRIES}.", hint="leave it out")

    def given(value: Value) -> Value:
        return replace(value, chosen=tuple(replace(one, skew=skew) for one in value.chosen))

    return replace(program, values=tuple(map(given, program.values)))


def with_room(spmd: SpmdProgram, room: Mapping[str, Fraction]) -> SpmdProgram:
    """The sharded program with room for so many entries of these masks, or blocks of their entries, by name, of those
    expected; of others all count."""

    def given(value: SpmdValue) -> SpmdValue:
        own = (replace(one, capacity=room[one.name]) for one in value.chosen if one.name in room)
        return replace(value, chosen=tuple(own))

    return replace(spmd, values=tuple(map(given, spmd.values)))


def chooses(program: Program | SpmdProgram) -> bool:
    """Whether entries of some value are chosen."""
    return any(value.chosen for value in program.values)


def _least_beside(op: Op, known: Choices) -> tuple[Chosen, ...]:
    """The masks beside which keys are minus infinity, so that nothing is picked there."""
    match op:
        case Map(_, Call("where", (Operand(mask), _, Const(value)))) if value == -math.inf:
            return tuple(known.get(mask, ()))
    return ()


def _choices(body: Region[Compute | Move], values: Collection[Value | SpmdValue]) -> Choices:
    # Of a text as it was read a value or a dim may be missing, which others say.
    dims = defaultdict[str, tuple[str, ...]](tuple, {value.name: value.dims for value in values})
    known: dict[str, tuple[Chosen, ...]] = {}
    bares: dict[str, Bare] = {}
    among: dict[str, tuple[Chosen, ...]] = {}  # by which masks keys were picked before that are -inf beside them
    for placed in walk(body):
        match placed.item:
            case Move(result, operand):
                known[result] = known.get(operand, ())
                among[result] = among.get(operand, ())
                bares |= {result: bares[operand]} if operand in bares else {}
            case Compute(Choose(_, keys, _, _) as op):
                known[op.result] = chosen_of(op, {keys: known.get(keys, ()) or among.get(keys, ())}, dims)
                bares[op.result] = Bare(0.0, frozenset(op.over))
            case Compute(op):
                known[op.result] = chosen_of(op, known, dims, bares)
                among[op.result] = _least_beside(op, known)
                if (bare := bare_of(op, known[op.result], bares, dims)) is not None:
                    bares[op.result] = bare
            case Stored() | Repeat():
                pass
    return known
