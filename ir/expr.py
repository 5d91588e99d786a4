"""Pointwise expressions: the arithmetic of a `Map`, as a small tree over its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from .record import record


@record
class Const:
    """A number."""

    value: float


@record
class Operand:
    """A value that the op reads, broadcast by dim names."""

    name: str


@record
class Size:
    """The size of a dim as a number."""

    dim: str


@record
class Context:
    """How many places along a dim are filled once this step's entries are in.

    All of them, the size of the dim, unless whoever runs the program says otherwise: what is beyond
    holds nothing yet.
    """

    dim: str


@record
class Call:
    """A function of `FUNCTIONS` applied to expressions, element by element."""

    function: str
    arguments: tuple[Expr, ...]
    # For each operand how it is contained, as `_degree` says: noted as trees are built, not to go through them again.
    degrees: Mapping[str, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        inner = [_degrees(a) for a in self.arguments]
        zero = [isinstance(a, Const) and a.value == 0 for a in self.arguments]
        names = dict.fromkeys(name for part in inner for name in part)
        degrees = {name: _degree(self.function, [part.get(name, 0) for part in inner], zero) for name in names}
        object.__setattr__(self, "degrees", degrees)


@record
class Rotate:
    """Pairs (2i, 2i+1) along `dim` turned by a right angle: (a, b) becomes (-b, a).

    The one expression that looks beside its own element: a split of `dim` must keep pairs together.
    """

    operand: Expr
    dim: str


Expr = Const | Operand | Size | Context | Call | Rotate

# name -> number of arguments. Comparisons give 1.0 or 0.0; `where` takes (condition, then, else).
FUNCTIONS = {
    "add": 2,
    "subtract": 2,
    "multiply": 2,
    "divide": 2,
    "negate": 1,
    "exp": 1,
    "log": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "tanh": 1,
    "erf": 1,
    "sigmoid": 1,
    "silu": 1,
    "gelu": 1,
    "gelu_exact": 1,
    "relu": 1,
    "abs": 1,
    "sin": 1,
    "cos": 1,
    "floor": 1,
    "maximum": 2,
    "minimum": 2,
    "power": 2,
    "less_equal": 2,
    "equal": 2,
    "where": 3,
}


def operands(expr: Expr) -> tuple[str, ...]:
    """The names of the values read, each once, in order of first use."""
    return tuple(_degrees(expr))


def equated(expr: Expr) -> frozenset[str]:
    """The values that are compared for equality with one another, as they are."""
    match expr:
        case Call("equal", (Operand(a), Operand(b))):
            return frozenset((a, b))
        case Call(_, arguments):
            return frozenset().union(*(equated(a) for a in arguments))
        case _:
            return frozenset()


def rename(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with operands renamed; names that are not in the mapping stay."""
    match expr:
        case Operand(name):
            return Operand(names.get(name, name))
        case Call(function, arguments):
            return Call(function, tuple(rename(a, names) for a in arguments))
        case Rotate(inner, dim):
            return Rotate(rename(inner, names), dim)
        case _:
            return expr


def rotated_dims(expr: Expr) -> frozenset[str]:
    """The dims along which pairs must stay together."""
    match expr:
        case Call(_, arguments):
            return frozenset().union(*(rotated_dims(a) for a in arguments))
        case Rotate(inner, dim):
            return rotated_dims(inner) | {dim}
        case _:
            return frozenset()


def divisors(expr: Expr) -> frozenset[str]:
    """The values that something is divided by, or by the root or another function of which it is."""
    match expr:
        case Call("divide", (above, below)):
            return divisors(above) | frozenset(operands(below))
        case Call("rsqrt", (inner,)):
            return frozenset(operands(inner))
        case Call(_, arguments):
            return frozenset().union(*(divisors(a) for a in arguments))
        case Rotate(inner, _):
            return divisors(inner)
        case _:
            return frozenset()


def sized_dims(expr: Expr) -> frozenset[str]:
    """The dims whose sizes, or the filled part of them, it takes as numbers."""
    match expr:
        case Size(dim) | Context(dim):
            return frozenset({dim})
        case Call(_, arguments):
            return frozenset().union(*(sized_dims(a) for a in arguments))
        case Rotate(inner, _):
            return sized_dims(inner)
        case _:
            return frozenset()


def size_bounds(expr: Expr) -> frozenset[tuple[str, float]]:
    """The dims whose sizes it compares with numbers, each with the most that it may be."""
    match expr:
        case Call("less_equal", (Size(dim), Const(most))):
            return frozenset({(dim, most)})
        case Call(_, arguments):
            return frozenset().union(*(size_bounds(a) for a in arguments))
        case Rotate(inner, _):
            return size_bounds(inner)
        case _:
            return frozenset()


def context_dims(expr: Expr) -> frozenset[str]:
    """The dims of which it takes the filled part as a number."""
    match expr:
        case Context(dim):
            return frozenset({dim})
        case Call(_, arguments):
            return frozenset().union(*(context_dims(a) for a in arguments))
        case Rotate(inner, _):
            return context_dims(inner)
        case _:
            return frozenset()


def counted_dims(expr: Expr) -> dict[str, frozenset[str]]:
    """For each dim of whose filled part it takes a number, the dims whose sizes it adds to that, or takes from it:
    those whose entries are counted among the filled places. A size that divides or scales counts nothing."""
    found: dict[str, frozenset[str]] = {}
    terms = _terms(expr)
    sizes = frozenset().union(*(sized_dims(term) - context_dims(term) for term in terms if not operands(term)))
    for term in terms:
        inner: tuple[Expr, ...] = ()
        match term:
            case Context(dim):
                found[dim] = found.get(dim, frozenset()) | sizes
            case Call(_, arguments):
                inner = arguments
            case Rotate(operand, _):
                inner = (operand,)
        for part in inner:
            for dim, counted in counted_dims(part).items():
                found[dim] = found.get(dim, frozenset()) | counted
    return found


def _terms(expr: Expr) -> tuple[Expr, ...]:
    """What an expression is the sum, or difference, of."""
    match expr:
        case Call("add" | "subtract", arguments):
            return tuple(term for argument in arguments for term in _terms(argument))
        case _:
            return (expr,)


INTEGERS_OF_INTEGERS = {"add", "subtract", "multiply", "negate", "abs", "relu", "maximum", "minimum"}
INTEGERS_OF_ANY = {"floor", "less_equal", "equal"}


def integer_operands(expr: Expr) -> frozenset[str] | None:
    """The operands that have to be integers for the expression to be; None where it never is."""
    match expr:
        case Const(value):
            return frozenset() if float(value).is_integer() else None
        case Size() | Context():
            return frozenset()
        case Operand(name):
            return frozenset({name})
        case Rotate(inner, _):
            return integer_operands(inner)
        case Call(function, arguments) if function not in INTEGERS_OF_ANY:
            decided = arguments[1:] if function == "where" else arguments
            found = [integer_operands(a) for a in decided]
            if (function != "where" and function not in INTEGERS_OF_INTEGERS) or None in found:
                return None
            return frozenset().union(*(names for names in found if names is not None))
    return frozenset()


def count_calls(expr: Expr) -> int:
    """How many function applications one element takes."""
    match expr:
        case Call(_, arguments):
            return 1 + sum(count_calls(a) for a in arguments)
        case Rotate(inner, _):
            return 1 + count_calls(inner)
        case _:
            return 0


def functions(expr: Expr) -> frozenset[str]:
    """The functions that are applied in it."""
    match expr:
        case Call(function, arguments):
            return frozenset({function}).union(*map(functions, arguments))
        case Rotate(inner, _):
            return functions(inner)
        case _:
            return frozenset()


def linear_operands(expr: Expr) -> frozenset[str]:
    """The operands in which the expression is linear while every other operand is held fixed.

    Such an operand may be a partial sum: f(a + b) = f(a) + f(b), so the result is a partial sum too.
    """
    return frozenset(name for name, degree in _degrees(expr).items() if degree == 1)


_OTHER = 2  # neither free of the operand nor linear in it


def _degrees(expr: Expr) -> Mapping[str, int]:
    """For each operand, in order of first use, how it is contained."""
    match expr:
        case Operand(name):
            return {name: 1}
        case Rotate(inner, _):
            return _degrees(inner)
        case Call():
            return expr.degrees
        case _:
            return {}


def _degree(function: str, degrees: Sequence[int], zero: Sequence[bool]) -> int:
    """How a call contains an operand that its arguments contain so, 0 for not at all; `zero`: which arguments are 0.

    1: linear in it, with no constant term; 2: anything else.
    """
    match function, degrees:
        case ("negate", [1]) | ("multiply", [1, 0] | [0, 1]) | ("divide", [1, 0]):
            return 1
        case ("add" | "subtract", [1, 1]):
            return 1
        case ("where", [0, a, b]) if (a == 1 or zero[1]) and (b == 1 or zero[2]):
            return 1
    return _OTHER
