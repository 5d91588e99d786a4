"""What functions of one body make alike on their way, and so once: which ops may stand for others like them.

Nothing may that makes scores or reads them: values for every pair of a query and a key, which have both dims of some
`append(cache, new, L into M)`. They are larger than all else, and attention makes them a block at a time, none ever
whole, as long as nothing else reads what its blocks are made of (cost.attention).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.program import Einsum, Map, Op, Reduce, operand_names
from ...ir.text.surface import Binary, Block, Call, Into, Line, Main, Model, Negate, Repeated, Return, Statement

Dims = Sequence[str]


def pairs_of(model: Model) -> tuple[frozenset[str], ...]:
    """Of each append of a file the dim of the new tokens and that of their context."""
    lines = (line for item in model.items if isinstance(item, Block | Main) for line in item.lines)
    appends = (call for line in lines for call in _calls(line) if call.function.name == "append")
    intos = (given for call in appends for given in call.arguments if isinstance(given, Into))
    return tuple(dict.fromkeys(frozenset([into.source.name, into.target.name]) for into in intos))


def _calls(line: Line) -> Iterator[Call]:
    """Every call in a line."""
    waiting: list[object] = []
    if isinstance(line, Statement | Return):
        waiting += line.values if isinstance(line, Return) else [line.value]
    while waiting:
        match waiting.pop():
            case Repeated(_, call):
                waiting.append(call)
            case Negate(operand):
                waiting.append(operand)
            case Binary(_, left, right):
                waiting += [left, right]
            case Call() as call:
                yield call
                waiting += [*call.arguments, *(keyword.value for keyword in call.keywords)]


def may_be_shared(op: Op, dims: Sequence[Dims], pairs: Sequence[frozenset[str]]) -> bool:
    """Whether an op is one of those of which a function makes its result, and reduces a value or maps what is reduced,
    and has nothing to do with scores. What is made of no value, as angles of places are, is made as it is needed, in
    any layout. `dims`: those of what it makes and reads; `pairs`: see `pairs_of`."""
    if "." not in op.result or not operand_names(op):
        return False
    if any(pair <= {*own} for own in dims for pair in pairs):
        return False
    sums = isinstance(op, Einsum) and not {i for own in op.indices for i in own} <= {*op.output}
    return sums or isinstance(op, Map | Reduce)
