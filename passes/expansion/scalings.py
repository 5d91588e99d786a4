"""What becomes of rope's frequencies in contexts longer than a model was first trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Expr, Operand, Size
from ...ir.program import Map
from ...ir.record import record
from .arguments import Turned, add, divide, multiply, subtract, where, where_equal
from .body import Body
from .dims import Pairs
from .report import Refused


class _Attention:
    """What multiplies cos and sin by one number, `attention`, in all contexts."""

    attention: float

    def magnitude(self, context: str) -> Expr:
        """What cos and sin are multiplied by."""
        return Const(self.attention)


@record
class Linear(_Attention):
    """All frequencies are divided by `factor`."""

    factor: float
    attention: float = 1.0

    def slowed(self, body: Body, frequency: Expr, turned: Turned) -> Expr:
        """The frequencies, radians per position, after scaling."""
        return divide(frequency, Const(self.factor))


@record
class Llama3(_Attention):
    """Frequencies that turn less than `low` times within `original` positions are divided by `factor`.

    Those that turn more than `high` times stay; between, the share that stays grows linearly. `low`
    is below `high`.
    """

    factor: float
    low: float
    high: float
    original: float
    attention: float = 1.0

    def slowed(self, body: Body, frequency: Expr, turned: Turned) -> Expr:
        """The frequencies, radians per position, after scaling."""
        turns = multiply(frequency, Const(self.original / math.tau))
        kept = _clamped(divide(subtract(turns, Const(self.low)), Const(self.high - self.low)))
        divided = divide(subtract(Const(1.0), kept), Const(self.factor))
        return multiply(frequency, add(kept, divided))


@record
class Yarn(_Attention):
    """Frequencies that turn more than `fast` times within `original` positions stay, those that turn less than `slow`
    times are divided by `factor`; between, the share that stays falls linearly with the number of the pair.

    Where it falls from and to are whole pairs, or with `exact` fractions. cos and sin are multiplied by
    `attention`. YaRN (arXiv:2309.00071), sections 3.2 to 3.4.
    """

    factor: float
    fast: float
    slow: float
    original: float
    attention: float
    exact: bool = False

    def slowed(self, body: Body, frequency: Expr, turned: Turned) -> Expr:
        """The frequencies, radians per position, after scaling. Raises Refused where they do not fall."""
        if turned.base <= 1:
            raise Refused("`yarn` needs a base above 1, so that frequencies fall from pair to pair.", body.at)
        size, zero = Size(turned.dim), Const(0.0)
        low, high = self._pair(self.fast, turned), self._pair(self.slow, turned)
        if not self.exact:
            low = Call("floor", (low,))
            high = Call("negate", (Call("floor", (Call("negate", (high,)),)),))
        low, high = Call("maximum", (low, zero)), Call("minimum", (high, subtract(size, Const(1.0))))
        span = where_equal(subtract(high, low), zero, Const(0.001))
        divided = _clamped(divide(subtract(turned.pair, low), span))
        return multiply(frequency, add(subtract(Const(1.0), divided), divide(divided, Const(self.factor))))

    def _pair(self, turns: float, turned: Turned) -> Expr:
        """The pair, as a fraction, that turns so often within the original positions: base^(-2 * pair / size) radians
        in each of them, solved for the pair."""
        log = math.log(self.original) - math.log(turns) - math.log(math.tau)
        return divide(multiply(Size(turned.dim), Const(log)), Const(2.0 * math.log(turned.base)))


def yarn_attention(factor: float) -> float:
    """By what YaRN multiplies cos and sin where nothing else is said (arXiv:2309.00071, section 3.4)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


@record
class First(_Attention):
    """The first `pairs` turn as they would, the others not at all."""

    pairs: float
    attention: float = 1.0

    def slowed(self, body: Body, frequency: Expr, turned: Turned) -> Expr:
        """The frequencies, radians per position, after scaling."""
        return _below(turned.pair, int(self.pairs), frequency, Const(0.0))


PART = 64  # numbers of a table in one expression, which is to stay within what its text may hold


@record
class Longer:
    """What counts of contexts of more than `original` places, by their sizes and not by what is filled of them: caches
    keep keys as they were turned, so that all of a run must be turned alike."""

    original: float
    attention: float
    factors: tuple[float, ...]


@record
class LongRope:
    """The frequency of each pair is divided by a factor of its own, and cos and sin are multiplied by `attention`.
    `longer`: what counts in their place in longer contexts, None for the same.

    LongRoPE (arXiv:2402.13753).
    """

    attention: float
    factors: tuple[float, ...]
    longer: Longer | None = None

    def magnitude(self, context: str) -> Expr:
        """What cos and sin are multiplied by."""
        own, longer = Const(self.attention), self.longer
        if longer is None or longer.attention == self.attention:
            return own
        return _up_to(context, longer.original, own, Const(longer.attention))

    def slowed(self, body: Body, frequency: Expr, turned: Turned) -> Expr:
        """The frequencies, radians per position, after scaling.

        The table is a tree of choices by the number of the pair. It is no parameter, as no checkpoint holds it and no
        chip has to store it; and a tree needs nothing of backends that they do not have.
        """
        pair = Operand(body.emit(Map(body.fresh(f"{turned.target}.pair"), turned.pair), (turned.dim,), Dtype.F32))
        found = _looked_up(body, pair, self.factors, turned)
        longer = self.longer
        if longer is not None and longer.factors != self.factors:
            found = _up_to(turned.context, longer.original, found, _looked_up(body, pair, longer.factors, turned))
        return divide(frequency, found)


def _looked_up(body: Body, pair: Expr, factors: tuple[float, ...], turned: Turned) -> Expr:
    """The factor of each pair."""
    body.context.constraints += [Pairs(turned.dim, len(factors), body.at)]
    found: Expr | None = None
    for start in reversed(range(0, len(factors), PART)):
        stop = min(start + PART, len(factors))
        part = _chosen(pair, factors, start, stop)
        found = part if found is None else _below(pair, stop, part, found)
        found = Operand(body.emit(Map(body.fresh(f"{turned.target}.factor"), found), (turned.dim,), Dtype.F32))
    assert found is not None, "there is a factor at least"
    return found


def _chosen(pair: Expr, factors: tuple[float, ...], start: int, stop: int) -> Expr:
    """The factor of a pair that is one of those from `start` up to `stop`."""
    if len(set(factors[start:stop])) == 1:
        return Const(factors[start])
    middle = (start + stop) // 2
    return _below(pair, middle, _chosen(pair, factors, start, middle), _chosen(pair, factors, middle, stop))


def _up_to(context: str, places: float, then: Expr, otherwise: Expr) -> Expr:
    """`then` where a context has no more than so many places."""
    return where(Call("less_equal", (Size(context), Const(places))), then, otherwise)


def _below(pair: Expr, end: int, then: Expr, otherwise: Expr) -> Expr:
    """`then` for the pairs below `end`."""
    return where(Call("less_equal", (pair, Const(end - 1.0))), then, otherwise)


def _clamped(expr: Expr) -> Expr:
    """An expression, no less than 0 and no more than 1."""
    return Call("maximum", (Const(0.0), Call("minimum", (Const(1.0), expr))))


# What stands in a call in `scaling=`. Of `yarn` the last two may be missing, of `longrope` the last three together.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "first": ("pairs",),
    "llama3": ("factor", "low", "high", "original"),
    "yarn": ("factor", "beta_fast", "beta_slow", "original", "attention", "exact"),
    "longrope": ("attention", "factors", "original", "long_attention", "long_factors"),
}
