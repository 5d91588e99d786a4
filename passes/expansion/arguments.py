"""How composites are called, and the pieces that their expansions have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...ir.diagnostics import listed
from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Context, Expr, Operand, Size
from ...ir.program import Iota
from ...ir.record import record
from .body import Body
from .dims import AtMost, Constraint, Counted, Numbered, Unpadded
from .report import Refused


@record
class Turned:
    """What rope turns: the pairs along `dim`, with their number in `pair`, for a result called `target`. `context`: the
    dim along which places are counted."""

    target: str
    dim: str
    context: str
    base: float
    pair: Expr


class Scaling(Protocol):
    """What becomes of rope's frequencies, and what cos and sin are multiplied by."""

    def magnitude(self, context: str) -> Expr:
        """What cos and sin are multiplied by, where places are counted along the dim `context`."""
        ...

    def slowed(self, body: Body, frequency: Expr, turned: Turned) -> Expr:
        """The frequencies, radians per position, after scaling. Raises Refused where they cannot be scaled."""
        ...


BASE = 10000.0  # of rope's frequencies, unless `base=` says otherwise
EPSILON = 1e-6  # added to a variance before its root is taken, unless `eps=` says otherwise
MINUS_INFINITY = Const(float("-inf"))


@record
class Causal:
    """A mask by places: a query sees the keys up to its own place.

    `window`: of these the last so many. `chunk`: those of its own chunk, where a context is cut into chunks of so
    many places. `of`: the dim along which places are counted, where the keys are those of a cache that wraps.
    """

    query: str
    key: str
    window: int | None = None
    chunk: int | None = None
    of: str | None = None

    @property
    def reach(self) -> int | None:
        """How many places a query sees at most; None where that is all of them."""
        return min((n for n in (self.window, self.chunk) if n is not None), default=None)

    def first(self, own: Expr) -> Expr | None:
        """The first place that the query at place `own` sees; None where that is the first of all."""
        starts: list[Expr] = []
        if self.window is not None:
            starts.append(subtract(own, Const(self.window - 1.0)))
        if self.chunk is not None:
            # Half a place more keeps the quotient off whole numbers, to which it may be rounded from below.
            number = Call("floor", (divide(add(own, Const(0.5)), Const(float(self.chunk))),))
            starts.append(multiply(number, Const(float(self.chunk))))
        return Call("maximum", tuple(starts)) if len(starts) == 2 else starts[0] if starts else None


@record
class Arguments:
    """The arguments of a call, looked up. `over`: plain dims. `into`: the dims of `L into M`, `of`: that along which
    its places are counted. `keep`: the dim that counts what is kept, `count`: its number. `causal`: the mask. `sink`:
    the score that is given to nothing. `base`, `scaling`: rope's. `epsilon`: a norm's. `dtype`: the result's, where the
    statement names one."""

    values: tuple[Expr, ...]
    over: tuple[str, ...] = ()
    into: tuple[str, str] | None = None
    of: str | None = None
    keep: str | None = None
    count: int | None = None
    causal: Causal | None = None
    sink: Expr | None = None
    among: Expr | None = None
    base: float = BASE
    scaling: Scaling | None = None
    epsilon: float = EPSILON
    dtype: Dtype | None = None


@record
class Composite:
    """How a composite is called, what it gives (`meaning`, in a few words), and what expands it.

    `values`: names of its positional arguments, of which the last `optional` may be missing.
    `required` and `allowed`: its keywords. `into`: whether the last argument is `L into M`. `counts`:
    whether `keep` is a number, and not a dim. `results`:
    what it gives. `build` takes a name for each result, and returns those of the values that it made.
    """

    values: tuple[str, ...]
    build: Callable[[Body, Sequence[str], Arguments], tuple[str, ...]]
    meaning: str
    required: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    optional: int = 0
    into: bool = False
    counts: bool = False
    results: tuple[str, ...] = ("result",)

    def has(self, keyword: str) -> bool:
        """Whether it takes a keyword of this name."""
        return keyword in self.required or keyword in self.allowed


def one(build: Callable[[Body, str, Arguments], str]) -> Callable[[Body, Sequence[str], Arguments], tuple[str, ...]]:
    """`build`, which makes a single value, as the one of a composite."""
    return lambda body, targets, given: (build(body, targets[0], given),)


def add(a: Expr, b: Expr) -> Expr:
    """a + b."""
    return Call("add", (a, b))


def subtract(a: Expr, b: Expr) -> Expr:
    """a - b."""
    return Call("subtract", (a, b))


def multiply(a: Expr, b: Expr) -> Expr:
    """a * b."""
    return Call("multiply", (a, b))


def divide(a: Expr, b: Expr) -> Expr:
    """a / b."""
    return Call("divide", (a, b))


def where_equal(a: Expr, b: Expr, then: Expr) -> Expr:
    """`then` where a equals b, a elsewhere."""
    return Call("where", (Call("equal", (a, b)), then, a))


def where(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """`then` where the condition is not 0, `otherwise` elsewhere."""
    return Call("where", (condition, then, otherwise))


def fits(body: Body, new: str, context: str) -> AtMost:
    """The constraint that the entries along `new` fit in `context`."""
    return AtMost(new, context, body.at, f"`{context}` counts the context with this step's tokens")


def at_end(body: Body, new: str, context: str) -> tuple[Constraint, ...]:
    """The constraints that the entries along `new` may stand at the end of `context`, whose places are counted."""
    why = "new entries stand at the end of a context"
    counted = Counted(context, body.at), Numbered((context,), body.at)
    return fits(body, new, context), Unpadded(new, body.at, why), Unpadded(context, body.at, why), *counted


def in_context(body: Body, base: str, new: str, context: str) -> Expr:
    """Where the entries along `new` stand in `context`: at the end of what is filled of it."""
    body.context.constraints += at_end(body, new, context)
    iota = body.emit(Iota(body.fresh(base), new), (new,), Dtype.F32)
    return add(Operand(iota), subtract(Context(context), Size(new)))


def without(body: Body, dims: Sequence[str], over: Sequence[str]) -> tuple[str, ...]:
    """The dims less those in `over`. Raises Refused where one of these is not among them."""
    for dim in over:
        if dim not in dims:
            has = listed(dims) or "none"
            raise Refused(f"There is no dim `{dim}` to go over.", body.at, f"the dims are {has}")
    return tuple(d for d in dims if d not in over)
