"""How many tokens a run of a phase processes: which dims of a model's inputs count them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import prod

from ..ir.dataflow import makes, reads
from ..ir.dtype import INTEGERS
from ..ir.program import Append, Kind, Program, Repeat, Stored, Value, stored_in, walk


def tokens(program: Program, phase: str) -> int:
    """How many tokens one run of a phase processes, of all sequences: the product of its token dims."""
    sizes = program.true_sizes(dict(program.phase(phase).sizes))
    return prod(sizes[dim] for dim in token_dims(program))


def token_dims(program: Program) -> tuple[str, ...]:
    """The dims that count tokens: those of the first input with one that no parameter has and no cache grows along, and
    such of any input as caches are appended along. Other inputs, as a mask or what is attended to, have dims of their
    own, or the same again. Where there are no parameters the last of several dims of numbers in floating point is that
    of features. Where caches get what inputs have, as keys of heads, an input has such dims as well: those behind the
    one that is appended along. A table that is only added, as of learned positions, has the places of tokens: of its
    dims only those that other parameters have as well are not counted."""
    values = program.table()
    inputs: list[tuple[str, ...]] = []
    appended, other = dict[str, None](), _dims_of_parameters(program, values)
    given, cached = set[str](), set[str]()  # what is made of inputs alone, and the dims along which caches get such
    plain = not stored_in(program.body, Kind.PARAM)
    for item in (placed.item for placed in walk(program.body)):
        match item:
            case Stored(name, Kind.INPUT):
                dims, dtype = values[name].dims, values[name].dtype
                inputs.append(dims[:-1] if plain and len(dims) > 1 and dtype not in INTEGERS else dims)
                given.add(name)
            case Append(_, _, new, source, target, context):
                appended[source] = None
                other |= {target, context or target}
                if new in given:
                    cached.add(source)
            case Stored() | Repeat():
                pass
            case op if given.issuperset(reads(op)):
                given.update(makes(op))
    counted = [[dim for dim in _of_tokens(dims, cached) if dim not in other] for dims in inputs]
    first = next((dims for dims in counted if dims), [])
    return tuple(dict.fromkeys([*first, *(dim for dim in appended if any(dim in dims for dims in counted))]))


def _of_tokens(dims: Sequence[str], cached: Set[str]) -> Sequence[str]:
    """The dims of an input up to the last along which caches get inputs, all where there is none."""
    places = [place for place, dim in enumerate(dims) if dim in cached]
    return dims[: places[-1] + 1] if places else dims


def _dims_of_parameters(program: Program, values: Mapping[str, Value]) -> set[str]:
    """The dims that parameters have, but those that are of tables alone which are only added or multiplied, element by
    element, to what has all of their dims, where such a table has a dim of another parameter, too."""
    params = {stored.value for stored in stored_in(program.body, Kind.PARAM)}
    read = {name for placed in walk(program.body) if not isinstance(placed.item, Stored) for name in reads(placed.item)}
    added = {name for name in params & read if len(values[name].dims) > 1} - _reduced(program, values, params)
    own = {dim for name in params - added for dim in values[name].dims}
    return own | {dim for name in added if not own & {*values[name].dims} for dim in values[name].dims}


def _reduced(program: Program, values: Mapping[str, Value], params: set[str]) -> set[str]:
    """The parameters of which some op that reads them, or what is made of parameters alone, drops a dim."""
    made_of: dict[str, set[str]] = {name: {name} for name in params}
    found: set[str] = set()
    for placed in walk(program.body):
        if isinstance(placed.item, (Repeat, Stored)):
            continue
        [result] = makes(placed.item)
        read = reads(placed.item)
        for name in read:
            if made_of.get(name) and {*values[name].dims} - {*values[result].dims}:
                found |= made_of[name]
        if all(name in made_of for name in read):
            made_of[result] = {root for name in read for root in made_of[name]}
    return found
