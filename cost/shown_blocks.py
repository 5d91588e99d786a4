"""How many pairs of blocks of scores run, where limits hide some: by the places of each block at which a side of a
limit is least and greatest.

A side that only rises along a dim, or only falls, is least and greatest at the ends of a block, and the blocks of the
context that a block of queries is shown are those between two of them: so contexts of any size are counted. Other
sides, such as the places in a cache that wraps, are looked at place by place, as long as these are not too many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..ir.expr import Call, Const, Context, Expr, Operand, Size, operands
from ..ir.record import record

PLACES: dict[str, np.ufunc] = {  # what may be done to places: the functions of which limits are made
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "negate": np.negative,
    "floor": np.floor,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
MOST_BLOCKS = 2**16  # of the context on all chips; of more they are counted as if they were larger
MOST_LOOKED_UP = 2**20  # blocks of queries on all chips, for each chip's part of the context; of more alike
MOST_PLACES = 2**24  # that are looked at one by one, and pairs of blocks; of more all count as run
EDGES = (np.minimum, np.maximum)  # what counts in a block of the lower and of the upper side of a limit

Floats = NDArray[np.float64]


@record
class _Blocks:
    """The blocks of a dim: of each where it begins, shape [chips, blocks], and how many places it has. `last`: the last
    place that there is. `dim` is None of queries where there is but one."""

    dim: str | None
    starts: NDArray[np.int64]
    count: int
    last: int

    @classmethod
    def of(cls, dim: str | None, whole: int, own: int, count: int) -> _Blocks:
        """Those of a dim of `whole` places, of which each chip has its `own`."""
        first = np.minimum(np.arange(0, own, count), own - count)
        return cls(dim, np.arange(-(-whole // own))[:, None] * own + first, count, whole - 1)

    def edges(self, side: Expr, pick: np.ufunc, sizes: Mapping[str, int], ends: bool) -> Floats:
        """A side where it is least or greatest in each block, which is at its `ends` or anywhere."""
        inside = np.array([0, self.count - 1]) if ends else np.arange(self.count)
        here = np.minimum(self.starts[:, :, None] + inside, self.last)
        return np.asarray(pick.reduce(_evaluated(side, sizes, here), axis=-1))


@record
class _Side:
    """A side of a limit in each block, shape [chips, blocks], or [1, 1] where it is the same everywhere. `of_context`:
    whether it is one of the context. `rises`: 1 where it only rises, -1 where it only falls, 0 where neither, None
    where it may do both."""

    edges: Floats
    of_context: bool
    rises: int | None


@lru_cache(maxsize=2**14)
def runs(
    limits: tuple[tuple[Expr, Expr], ...],
    dims: tuple[str | None, str],
    local: tuple[int, ...],
    block: tuple[int, ...],
    sizes: tuple[tuple[str, int], ...],
) -> Fraction:
    """The share of the pairs of blocks of a chip that run, on the chip on which most do: those that all `limits` show,
    and one block of the context at least. `local`: how many queries and places of the context a chip has; `block`: how
    many of them a block has; `sizes`: of whole dims."""
    whole = dict(sizes)
    (own_queries, own), (places, count) = local, block
    query_chips, chips = -(-whole[dims[0]] // own_queries) if dims[0] else 1, -(-whole[dims[1]] // own)
    count = max(count, -(-own * chips // MOST_BLOCKS))
    places = max(places, -(-own_queries * query_chips * chips // MOST_LOOKED_UP))
    queries = _Blocks.of(dims[0], whole[dims[0]] if dims[0] else own_queries, own_queries, min(places, own_queries))
    context = _Blocks.of(dims[1], whole[dims[1]], own, min(count, own))
    sides: list[tuple[_Side, _Side]] = []
    for pair in limits:
        found = [_side(side, queries, context, pick, whole) for side, pick in zip(pair, EDGES, strict=True)]
        if found[0] is None or found[1] is None:
            return Fraction(1)
        sides.append((found[0], found[1]))
    shape = (*queries.starts.shape, *context.starts.shape)
    if all(_is_range(*each) for each in sides):
        return Fraction(_by_ranges(sides, shape), shape[1] * shape[3])
    if math.prod(shape) > MOST_PLACES:
        return Fraction(1)
    return Fraction(_by_pairs(sides, shape), shape[1] * shape[3])


def _side(side: Expr, queries: _Blocks, context: _Blocks, pick: np.ufunc, sizes: Mapping[str, int]) -> _Side | None:
    """A side of a limit in each block; None where there are too many places to look at."""
    along = next((dim for dim in operands(side) if dim in (queries.dim, context.dim)), None)
    if along is None:
        return _Side(_evaluated(side, sizes, np.zeros((1, 1), np.int64)), False, 0)
    blocks, rises = context if along == context.dim else queries, _rises(side, sizes)
    if rises is None and blocks.starts.size * blocks.count > MOST_PLACES:
        return None
    return _Side(blocks.edges(side, pick, sizes, rises is not None), blocks is context, rises)


def _is_range(lower: _Side, upper: _Side) -> bool:
    """Whether of each chip's part of the context a limit shows all blocks from one on, or up to one."""
    return not (lower.of_context and upper.of_context) and all(
        side.rises is not None for side in (lower, upper) if side.of_context
    )


def _by_ranges(sides: Sequence[tuple[_Side, _Side]], shape: tuple[int, ...]) -> int:
    """How many pairs of blocks run on the chip on which most do, of limits each of which shows a range."""
    most = 0
    for chip in range(shape[2]):
        first, after = np.zeros(shape[:2], np.int64), np.full(shape[:2], shape[3])
        for lower, upper in sides:
            if not (lower.of_context or upper.of_context):
                after = np.where(lower.edges <= upper.edges, after, 0)
            elif lower.of_context and (lower.rises or 0) >= 0:
                after = np.minimum(after, np.searchsorted(lower.edges[chip], upper.edges, "right"))
            elif lower.of_context:
                first = np.maximum(first, np.searchsorted(-lower.edges[chip], -upper.edges, "left"))
            elif (upper.rises or 0) >= 0:
                first = np.maximum(first, np.searchsorted(upper.edges[chip], lower.edges, "left"))
            else:
                after = np.minimum(after, np.searchsorted(-upper.edges[chip], -lower.edges, "right"))
        most = max(most, int(np.maximum(after - first, 1).sum(axis=1).max()))
    return most


def _by_pairs(sides: Sequence[tuple[_Side, _Side]], shape: tuple[int, ...]) -> int:
    """The same of any limits."""
    shown = np.ones(shape, dtype=bool)  # chips by queries, their blocks, chips by context, their blocks
    for pair in sides:
        lower, upper = (side.edges if side.of_context else side.edges[:, :, None, None] for side in pair)
        shown &= lower <= upper
    return int(np.maximum(shown.sum(axis=3), 1).sum(axis=1).max())


def _rises(side: Expr, sizes: Mapping[str, int]) -> int | None:
    """Which way a side goes as its place does: as `_Side` has it."""
    match side:
        case Const() | Size() | Context():
            return 0
        case Operand():
            return 1
        case Call("negate", (a,)):
            return _turned(_rises(a, sizes), -1)
        case Call("floor", (a,)):
            return _rises(a, sizes)
        case Call("subtract", (a, b)):
            return _together(_rises(a, sizes), _turned(_rises(b, sizes), -1))
        case Call("add" | "maximum" | "minimum", (a, b)):
            return _together(_rises(a, sizes), _rises(b, sizes))
        case Call("multiply", (a, b)) if _rises(a, sizes) == 0:
            return _turned(_rises(b, sizes), _sign(a, sizes))
        case Call("multiply" | "divide", (a, b)) if _rises(b, sizes) == 0:
            return _turned(_rises(a, sizes), _sign(b, sizes))
    return None


def _sign(side: Expr, sizes: Mapping[str, int]) -> int:
    """That of a side that is the same everywhere."""
    return int(np.sign(_evaluated(side, sizes, np.zeros(1, np.int64))[0]))


def _turned(way: int | None, sign: int) -> int | None:
    return None if way is None else way * sign


def _together(a: int | None, b: int | None) -> int | None:
    """The way of what rises where both do."""
    if a is None or b is None or a * b < 0:
        return None
    return a or b


def _evaluated(places: Expr, sizes: Mapping[str, int], here: NDArray[np.int64]) -> Floats:
    """A side of a limit at some places of its dim, with all of the context filled."""
    match places:
        case Const(value):
            return np.full(here.shape, value)
        case Size(dim) | Context(dim):
            return np.full(here.shape, float(sizes[dim]))
        case Operand():
            return here.astype(np.float64)
        case Call(function, arguments):
            found: Floats = PLACES[function](*(_evaluated(each, sizes, here) for each in arguments))
            return found
    raise AssertionError(places)
