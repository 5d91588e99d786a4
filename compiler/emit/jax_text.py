"""JAX text of names, mesh axes, specs, aligned operands and pointwise expressions, for emitted files."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Context, Expr, Operand, Rotate, Size, operands
from ...ir.inert import literal
from ...ir.record import record
from ..simulate.pointwise import folded
from .python_text import ATOM, COMPARE, INFIX, UNARY, letters

# Names that mean something else in an emitted file, or that linters call hard to tell apart.
TAKEN = frozenset(dir(builtins)) | set(keyword.kwlist) | {"l", "O", "I", "jax", "jnp", "np", "lax", "math", "P"}

NUMPY = {
    Dtype.F32: "float32",
    Dtype.BF16: "bfloat16",
    Dtype.F16: "float16",
    Dtype.FP8: "float8_e4m3fn",
    Dtype.FP4: "float4_e2m1fn",
    Dtype.E8M0: "float8_e8m0fnu",
    Dtype.INT8: "int8",
    Dtype.INT4: "int4",
    Dtype.I32: "int32",
}
NARROW = "jax.enable_x64(False)"  # of a function, whose places are then of 32 bits, as those that count what is filled
CHOSEN = (Dtype.BF16, Dtype.F16, Dtype.FP8, Dtype.FP4, Dtype.E8M0)  # narrow floats, which a check replaces by wide ones
# Weakest first.
WIDTHS = (Dtype.I32, Dtype.INT4, Dtype.INT8, Dtype.FP4, Dtype.E8M0, Dtype.FP8, Dtype.BF16, Dtype.F16, Dtype.F32)

WHOLE = {"add", "subtract", "multiply", "negate", "abs", "relu", "maximum", "minimum"}  # of integers an integer

CALLS = {
    "exp": "jnp.exp({})",
    "log": "jnp.log({})",
    "sqrt": "jnp.sqrt({})",
    "rsqrt": "lax.rsqrt({})",
    "tanh": "jnp.tanh({})",
    "erf": "lax.erf({})",
    "sigmoid": "jax.nn.sigmoid({})",
    "silu": "jax.nn.silu({})",
    "gelu": "jax.nn.gelu({})",
    "gelu_exact": "jax.nn.gelu({}, approximate=False)",
    "relu": "jax.nn.relu({})",
    "abs": "jnp.abs({})",
    "sin": "jnp.sin({})",
    "cos": "jnp.cos({})",
    "floor": "jnp.floor({})",
    "maximum": "jnp.maximum({}, {})",
    "minimum": "jnp.minimum({}, {})",
    "power": "jnp.power({}, {})",
}
# What JAX does not make of integers by itself.
INEXACT = {"rsqrt", "erf", "sigmoid", "silu", "gelu", "gelu_exact", "power", "floor"}
OF_POSITIVE = {  # of numbers, known when the file is traced, that are above 0
    "log": "math.log({})",
    "sqrt": "math.sqrt({})",
    "rsqrt": "(1.0 / math.sqrt({}))",
}
OF_NUMBERS = {  # of other numbers, which may end beyond the floats, where Python's own functions raise
    "exp": "float(np.exp({}))",
    "log": "float(np.log({}))",
    "sqrt": "float(np.sqrt({}))",
    "rsqrt": "float(np.divide(1.0, np.sqrt({})))",
    "tanh": "float(np.tanh({}))",
    "erf": "math.erf({})",
    "sin": "float(np.sin({}))",
    "cos": "float(np.cos({}))",
    "abs": "abs({})",
    "floor": "float(np.floor({}))",
    "relu": "max({}, 0)",
    "maximum": "max({}, {})",
    "minimum": "min({}, {})",
    "power": "float(np.float_power({}, {}))",
    "divide": "float(np.divide({}, {}))",
}
INTEGERS = (Dtype.I32, Dtype.INT4, Dtype.INT8)
LARGEST_INTEGER = 2**31  # beyond the integers of JAX


def identifier(name: str, used: set[str] | frozenset[str]) -> str:
    """A Python identifier for `name` that is neither taken nor in `used`: `p.max'` becomes `p_max`."""
    plain = re.sub(r"\W", "_", name.rstrip("'"), flags=re.ASCII)
    if not re.match(r"[A-Za-z]", plain):
        plain = "v" + plain
    plain = {"return": "out"}.get(plain, plain)
    found, number = plain, 1
    while found in TAKEN or found in used:
        found, number = f"{plain}_{number}", number + 1
    return found


def axes_text(axes: Sequence[str]) -> str:
    """Mesh axes as an argument: "x", or ("y", "z")."""
    quoted = [literal(axis) for axis in axes]
    return quoted[0] if len(quoted) == 1 else "(" + ", ".join(quoted) + ")"


def places_text(places: Sequence[int]) -> str:
    """Dimensions as an argument: 1, or (0, 2)."""
    return str(places[0]) if len(places) == 1 else str(tuple(places))


def spec_text(dims: Sequence[Sequence[str]], stacked: int = 0) -> str:
    """A PartitionSpec: of each dimension the axes that split it; `stacked` unsplit ones stand in front."""
    entries = ["None"] * stacked + [axes_text(axes) if axes else "None" for axes in dims]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def dtype_text(dtype: Dtype) -> str:
    """An element type in a step: those of CHOSEN as the configuration has them."""
    return f"cfg.{dtype}" if dtype in CHOSEN else f"jnp.{NUMPY[dtype]}"


def widest(dtypes: Sequence[Dtype | None]) -> Dtype | None:
    """The type that JAX gives an operation on these; None stands for Python's numbers, which give way."""
    known = [d for d in dtypes if d is not None]
    if {Dtype.BF16, Dtype.F16} <= set(known):
        return Dtype.F32
    return max(known, key=WIDTHS.index, default=None)


def align_text(name: str, dims: Sequence[str], target: Sequence[str]) -> str:
    """`name`, whose dimensions are `dims`, so that it broadcasts to dims `target`."""
    have = [d for d in target if d in dims]
    if have != list(dims):
        name = f"{name}.transpose({', '.join(str(list(dims).index(d)) for d in have)})"
    first = next((i for i, d in enumerate(target) if d in dims), len(target))
    return name + _inserted([d in dims for d in target[first:]])  # in front dims broadcast by themselves


def block_text(name: str, dims: Sequence[str], target: Sequence[str], lead: int) -> str:
    """`name`, whose dimensions are `dims`, with `lead` and then dims `target`: of size 1 what it lacks."""
    have = [d for d in target if d in dims]
    if have != list(dims):
        name = f"{name}.transpose({', '.join(str(list(dims).index(d)) for d in have)})"
    return name + _inserted([False] * lead + [d in dims for d in target])


def _inserted(held: Sequence[bool]) -> str:
    """The index that adds a dimension of size 1 wherever one is not held."""
    while held and held[-1]:
        held = held[:-1]
    return "[" + ", ".join(":" if h else "None" for h in held) + "]" if held else ""


def subscripts(indices: Sequence[Sequence[str]], output: Sequence[str]) -> str:
    """The subscripts of an einsum, `BLE,EF->BLF`."""
    letter = letters(i for each in (*indices, output) for i in each)
    terms = ["".join(letter[i] for i in each) for each in (*indices, output)]
    return f"{','.join(terms[:-1])}->{terms[-1]}"


def number_text(value: float) -> str:
    """A float as Python text; whole numbers that are integers in JAX too without a point."""
    if math.isnan(value):
        return "jnp.nan"
    if math.isinf(value):
        return "jnp.inf" if value > 0 else "-jnp.inf"
    return str(int(value)) if is_whole(value) else repr(float(value))


def is_whole(value: float) -> bool:
    """Whether a number is written as an integer."""
    return abs(value) < LARGEST_INTEGER and value == int(value)


@record
class _Text:
    """A piece of an expression, how tightly it binds, and its type; None for what gives way, as Python's numbers do.

    `traced`: whether it is an array, and not a number known when the file is traced. `truth`: whether
    it is true or false, which `where` takes as it is. Of a number, `whole`: whether Python has it as an
    integer; `positive`: whether it is known to be above 0; `bounded`: whether it surely is an integer in JAX.
    """

    text: str
    binds: int
    dtype: Dtype | None
    traced: bool = True
    truth: bool = False
    whole: bool = False
    positive: bool = False
    bounded: bool = True

    @property
    def number(self) -> _Text:
        """The same as a number: 1 for true, 0 for false."""
        return _Text(f"jnp.where({self.text}, 1.0, 0.0)", ATOM, None) if self.truth else self

    @property
    def inexact(self) -> _Text:
        """The same in floats."""
        if not self.traced:
            return _Text(f"float({self.text})", ATOM, None, traced=False) if self.whole else self
        if self.dtype not in INTEGERS:
            return self
        return _Text(f"{self.within(ATOM)}.astype({dtype_text(Dtype.F32)})", ATOM, Dtype.F32)

    def within(self, least: int) -> str:
        """The text, in parentheses if it binds less tightly than `least`."""
        return self.text if self.binds >= least else f"({self.text})"


def _together(parts: Sequence[_Text]) -> Dtype | None:
    """The type that JAX gives an operation on pieces: integers with a number that is none become floats."""
    dtype = widest([part.dtype for part in parts])
    broken = any(part.dtype is None and not part.whole for part in parts)
    return Dtype.F32 if dtype in INTEGERS and broken else dtype


class ExprText:
    """Writes pointwise expressions whose result has dims `dims`.

    `operand` gives the text of an aligned operand; `dtypes` and `held` the type and the dims of each;
    `size` and `context` the text of a dim's size and of how much of it is filled; `shape` that of the
    result's local shape, for what must be spread over dims that it lacks.
    """

    def __init__(
        self,
        dims: Sequence[str],
        operand: Callable[[str], str],
        dtypes: Mapping[str, Dtype],
        held: Mapping[str, Sequence[str]],
        size: Callable[[str], str],
        context: Callable[[str], str],
        shape: str,
    ) -> None:
        self.dims, self.operand, self.dtypes, self.held = dims, operand, dtypes, held
        self.size, self.context, self.shape = size, context, shape

    def write(self, expr: Expr, dtype: Dtype) -> str:
        """The text of the whole expression, in the full shape of the result and of type `dtype`."""
        text = self._text(folded(expr)).number
        covered = {d for name in operands(expr) for d in self.held[name]}
        if not text.traced:
            value = f"{_bounded(text, dtype).text}, {dtype_text(dtype)}"
            return f"jnp.full({self.shape}, {value})" if self.dims else f"jnp.asarray({value})"
        cast = text.text if text.dtype is dtype else f"{text.within(ATOM)}.astype({dtype_text(dtype)})"
        return cast if covered >= set(self.dims) else f"jnp.broadcast_to({cast}, {self.shape})"

    def _text(self, expr: Expr) -> _Text:
        match expr:
            case Const(value):
                binds, whole = ATOM if value >= 0 else UNARY, is_whole(value)
                return _Text(number_text(value), binds, None, traced=False, whole=whole, positive=value > 0)
            case Size(dim):
                return _Text(self.size(dim), ATOM, None, traced=False, whole=True, positive=True)
            case Context(dim):
                return _Text(self.context(dim), ATOM, Dtype.I32)
            case Operand(name):
                return _Text(self.operand(name), ATOM, self.dtypes[name])
            case Rotate(inner, dim):
                text = self._text(inner).number
                if dim not in {d for name in operands(inner) for d in self.held[name]}:
                    text = replace(text, text=f"jnp.broadcast_to({text.text}, {self.shape})")
                return _Text(f"rotate({text.text}, {self.dims.index(dim) - len(self.dims)})", ATOM, text.dtype)
            case Call("where", (condition, *branches)):
                return self._where(self._text(condition), [self._text(b).number for b in branches])
            case Call(function, arguments):
                return _call(function, [self._text(a).number for a in arguments])
        raise AssertionError(expr)

    def _where(self, condition: _Text, branches: Sequence[_Text]) -> _Text:
        test = condition.text if condition.truth else f"{condition.within(1)} != 0"
        dtype = _together(branches)
        texts = [_bounded(branch, dtype).text for branch in branches]
        return _Text(f"jnp.where({test}, {texts[0]}, {texts[1]})", ATOM, dtype)


def _bounded(part: _Text, dtype: Dtype | None) -> _Text:
    """A number as it meets floats: one that is worked out of sizes may be no integer of JAX."""
    return part.inexact if not part.bounded and dtype not in INTEGERS else part


def _call(function: str, parts: Sequence[_Text]) -> _Text:
    if not any(part.traced for part in parts):
        return _of_numbers(function, parts)
    dtype = _together(parts)
    parts = [_bounded(part, dtype) for part in parts]
    if function == "negate":
        return _Text(f"-{parts[0].within(ATOM)}", UNARY, dtype)
    if function in COMPARE:
        text = f"{parts[0].within(1)} {COMPARE[function]} {parts[1].within(1)}"
        return _Text(text, 0, None, truth=True)
    if function in INEXACT:
        parts = [part.inexact for part in parts]
    if dtype in INTEGERS and function not in WHOLE:
        dtype = Dtype.F32
    if function in INFIX:
        sign, binds = INFIX[function]
        return _Text(f"{parts[0].within(binds)} {sign} {parts[1].within(binds + 1)}", binds, dtype)
    return _Text(CALLS[function].format(*(part.text for part in parts)), ATOM, dtype)


def _of_numbers(function: str, parts: Sequence[_Text]) -> _Text:
    """A function of numbers that are known when the file is traced."""
    positive, whole = all(part.positive for part in parts), all(part.whole for part in parts) and function in WHOLE
    number = _Text("", ATOM, None, traced=False, whole=whole, bounded=not whole)
    texts = [part.text for part in parts]
    if function == "negate":
        return replace(number, text=f"-{parts[0].within(ATOM)}", binds=UNARY, bounded=parts[0].bounded)
    if function in COMPARE:
        return _Text(f"{parts[0].within(1)} {COMPARE[function]} {parts[1].within(1)}", 0, None, truth=True)
    if function in INFIX and (function != "divide" or parts[1].positive):
        sign, binds = INFIX[function]
        text = f"{parts[0].within(binds)} {sign} {parts[1].within(binds + 1)}"
        above = positive and (function == "add" or (function != "subtract" and all(part.whole for part in parts)))
        return replace(number, text=text, binds=binds, positive=above)
    if positive and function in OF_POSITIVE:
        return replace(number, text=OF_POSITIVE[function].format(*texts), positive=function != "log")
    if function in OF_NUMBERS:
        return replace(number, text=OF_NUMBERS[function].format(*texts), positive=positive and function in WHOLE)
    return _Text(CALLS[function].format(*(part.inexact.text for part in parts)), ATOM, None)
