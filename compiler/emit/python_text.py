"""Python text of names, axes, aligned operands and pointwise expressions, for emitted NumPy files."""

from __future__ import annotations

import builtins
import keyword
import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size
from ...ir.expr import operands as operands_of
from ...ir.inert import literal
from ..simulate import numpy_runtime
from ..simulate.pointwise import folded

# Names that mean something else in an emitted file, or that linters call hard to tell apart.
OWN = {"mesh", "size", "context", "stored", "rng", "seed", "random_stored", "sharded", "dense"}
OWN |= {"expected", "actual", "true", "name", "whole", "worst"}
TAKEN = OWN | {"l", "O", "I"} | set(vars(numpy_runtime)) | set(dir(builtins))

INFIX = {"add": ("+", 1), "subtract": ("-", 1), "multiply": ("*", 2), "divide": ("/", 2)}
COMPARE = {"less_equal": "<=", "equal": "=="}
UNARY, ATOM = 3, 4  # how tightly text binds; + and - are 1, * and / are 2

CALLS = {
    "exp": "np.exp({})",
    "log": "np.log({})",
    "sqrt": "np.sqrt({})",
    "rsqrt": "(1.0 / np.sqrt({}))",
    "tanh": "np.tanh({})",
    "erf": "erf({})",
    "sigmoid": "sigmoid({})",
    "silu": "silu({})",
    "gelu": "gelu({})",
    "gelu_exact": "gelu_exact({})",
    "relu": "np.maximum({}, 0.0)",
    "abs": "np.abs({})",
    "sin": "np.sin({})",
    "cos": "np.cos({})",
    "floor": "np.floor({})",
    "maximum": "np.maximum({}, {})",
    "minimum": "np.minimum({}, {})",
    "power": "np.power({}, {})",
}


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """A Python identifier for each name: `layer.n''` becomes `layer_n_2`. No two are alike."""
    known: dict[str, str] = {}
    used = set(TAKEN)
    for name in names:
        primes = len(name) - len(name.rstrip("'"))
        plain = re.sub(r"\W", "_", name[: len(name) - primes], flags=re.ASCII) + (f"_{primes}" if primes else "")
        if not re.match(r"[A-Za-z]", plain):
            plain = "v" + plain
        while plain in used or keyword.iskeyword(plain):
            plain += "_"
        used.add(plain)
        known[name] = plain
    return known


def letters(indices: Iterable[str]) -> dict[str, str]:
    """One letter for each index of an einsum: its own where it is a letter, a free one otherwise."""
    named = list(dict.fromkeys(indices))
    free = iter(c for c in string.ascii_letters if c not in named)
    return {i: i if re.fullmatch("[A-Za-z]", i) else next(free) for i in named}


def axes_text(axes: Sequence[str]) -> str:
    """Mesh axes as an argument: "yz", or ("node", "gpu") where a name is longer than a letter."""
    if all(len(a) == 1 for a in axes):
        return literal("".join(axes))
    return "(" + ", ".join(map(literal, axes)) + ("," if len(axes) == 1 else "") + ")"


def align_text(name: str, dims: Sequence[str], target: Sequence[str]) -> str:
    """`name`, whose last dimensions are `dims`, so that it broadcasts to dims `target`."""
    have = [d for d in target if d in dims]
    if have != list(dims):
        letter = letters([*dims, *target])
        name = f'np.einsum("...{"".join(letter[d] for d in dims)}->...{"".join(letter[d] for d in have)}", {name})'
    if len(have) == len(target):
        return name
    first = next(i for i, d in enumerate(target) if d not in dims)
    return f"{name}[..., " + ", ".join(":" if d in dims else "None" for d in target[first:]) + "]"


class ExprText:
    """Writes an expression whose result has dims `dims`.

    `operand` gives the text of an aligned operand; `held` the dims of each; `zeros` the text of an
    array of zeros in the result's shape, for what must be spread over dims that it lacks.
    """

    def __init__(
        self, dims: Sequence[str], operand: Callable[[str], str], held: Mapping[str, Sequence[str]], zeros: str
    ) -> None:
        self.dims, self.operand, self.held, self.zeros = dims, operand, held, zeros

    def write(self, expr: Expr) -> str:
        """The text of the whole expression, in the full shape of the result."""
        expr = folded(expr)
        if operands_of(expr) and self._covered(expr) >= set(self.dims):
            return self._text(expr, 0)
        return f"{self._text(expr, 1)} + {self.zeros}"

    def _covered(self, expr: Expr) -> set[str]:
        return {d for name in operands_of(expr) for d in self.held[name]}

    def _text(self, expr: Expr, least: int) -> str:
        """The text of `expr`, in parentheses if it binds less tightly than `least`."""
        text, binds = self._bound(expr)
        return text if binds >= least else f"({text})"

    def _bound(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case Const(value):
                return number_text(value), ATOM if value >= 0 else UNARY
            case Size(dim):
                return f"size[{literal(dim)}]", ATOM
            case Context(dim):
                return f"context[{literal(dim)}]", ATOM
            case Operand(name):
                return self.operand(name), ATOM
            case Rotate(inner, dim):
                text = self._text(inner, 0)
                if dim not in self._covered(inner):
                    text = f"{self._text(inner, 1)} + {self.zeros}"
                return f"rotate({text}, {self.dims.index(dim) - len(self.dims)})", ATOM
            case Call("negate", (inner,)):
                return f"-{self._text(inner, ATOM)}", UNARY
            case Call("where", (condition, then, otherwise)):
                return (
                    f"np.where({self._condition(condition)}, {self._text(then, 0)}, {self._text(otherwise, 0)})",
                    ATOM,
                )
            case Call("divide" | "power" as function, (left, right)) if not operands_of(expr) and not _sure(right):
                # Python's own numbers do not become infinite, and whole ones wrap around or raise.
                name = {"divide": "np.divide", "power": "np.float_power"}[function]
                return f"{name}({self._text(left, 0)}, {self._text(right, 0)})", ATOM
            case Call(function, (left, right)) if function in INFIX:
                sign, binds = INFIX[function]
                return f"{self._text(left, binds)} {sign} {self._text(right, binds + 1)}", binds
            case Call(function, _) if function in COMPARE:
                return f"np.where({self._condition(expr)}, 1.0, 0.0)", ATOM
            case Call(function, arguments):
                return CALLS[function].format(*(self._text(a, 0) for a in arguments)), ATOM

    def _condition(self, expr: Expr) -> str:
        match expr:
            case Call(function, (left, right)) if function in COMPARE:
                return f"{self._text(left, 1)} {COMPARE[function]} {self._text(right, 1)}"
        return f"{self._text(expr, 1)} != 0"


def _sure(expr: Expr) -> bool:
    """Whether a number is known not to be zero, and to be a float or the size of a dim."""
    return isinstance(expr, Size | Context) or (isinstance(expr, Const) and expr.value != 0)


def sum_text(terms: Iterable[tuple[float, str]], number: Callable[[float], str]) -> str:
    """A sum of texts, each with what it is multiplied by; `number` gives the text of that."""
    scaled = []
    for coefficient, text in terms:
        one = abs(coefficient) == 1.0
        scaled.append(("" if coefficient > 0 else "-") + text if one else f"{number(coefficient)} * {text}")
    return " + ".join(scaled).replace(" + -", " - ")


def number_text(value: float) -> str:
    """A float as Python text."""
    if math.isnan(value):
        return "np.nan"
    if math.isinf(value):
        return "np.inf" if value > 0 else "-np.inf"
    return repr(float(value))
