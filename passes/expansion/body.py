"""One block under expansion: its names, its values, and the primitive ops that its lines become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...ir.choices import Bare, bare_of, boundless, chosen_of, spread
from ...ir.chosen import Chosen
from ...ir.diagnostics import InputError, Span
from ...ir.dtype import INTEGERS, Dtype
from ...ir.expr import Call, Expr, Operand, operands
from ...ir.layout import Layout
from ...ir.program import (
    Einsum,
    Iota,
    Kind,
    Map,
    Op,
    Pin,
    PinKind,
    Region,
    Repeat,
    Stored,
    Take,
    Value,
    operand_names,
    signature,
)
from ...ir.record import record
from .alike import may_be_shared
from .dims import Constraint, DimTable, Extent, Numbered
from .report import Refused, Report, TooLarge

MAX_VALUES = 20_000  # of a whole program, every block counted once more than it is called

START = Span(1, 1)
FLOATS = (Dtype.BF16, Dtype.F16, Dtype.F32)


@record
class Template:
    """An expanded block, ready to be put in place under a prefix.

    Names in `values` are the block's own and take the prefix; `parameters` are replaced by what the
    call hands over; any other name is a tensor shared by the whole file. `results` is None when
    the block has errors and does not say what it returns. `appended`: the shared caches that it
    appends to. `blocks`: the calls in it, by the prefixes of their names. `depth`: how many are nested in it.
    """

    name: str
    parameters: tuple[Value, ...]
    values: tuple[Value, ...]
    region: Region[Op]
    results: tuple[Value, ...] | None
    pins: tuple[Pin, ...]
    appended: frozenset[str]
    blocks: tuple[str, ...]
    depth: int


@dataclass
class Context:
    """What all blocks of a file see.

    `shared`: the tensors that are declared outside of blocks; None for one whose declaration is
    wrong. `scales`: of the quantised ones among them. `blocks`: the names of all blocks; `templates`:
    those expanded so far. `pairs`: of each append the dim of the new tokens and that of their context. `made`: how many
    values there are.
    """

    report: Report
    dims: DimTable
    shared: dict[str, Value | None] = field(default_factory=dict)
    caches: set[str] = field(default_factory=set)
    scales: dict[str, str] = field(default_factory=dict)
    zeros: dict[str, str] = field(default_factory=dict)
    blocks: set[str] = field(default_factory=set)
    templates: dict[str, Template] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)
    extents: dict[Extent, None] = field(default_factory=dict)
    pairs: tuple[frozenset[str], ...] = ()
    made: int = 0

    def measure(self, dims: Sequence[str], name: str, span: Span) -> None:
        """Note that a value has these dims; of all that have the same the first stands for them."""
        self.extents.setdefault(Extent(tuple(sorted(dims)), name, span))

    def count(self, values: int, span: Span) -> None:
        """Note that `values` more exist. Ends the expansion when they are too many."""
        self.made += values
        if self.made > MAX_VALUES:
            alone = len(self.report) == 0
            self.report.add(f"The program expands to more than {MAX_VALUES:,} values.", span, "use `repeat`")
            self.report.finish(TooLarge if alone else InputError)


@dataclass
class Body:
    """A block, main, or the file's shared declarations while they are being expanded.

    `names`: the visible names that this body defines, and the values for which they stand; None
    when a definition was wrong. `values`: what this body owns, by program name. `at`: the statement
    in hand, for findings about the whole of it. `scales`: for each quantised value the one that it is
    to be multiplied by wherever it is read; `zeros`: those that are subtracted from some before. `reached` and
    `prefixes_reached`: the numbers that names like one have come to. `whole`: results of ops that are whole numbers,
    whatever their dtype. `blocks`: the calls in it, by the prefixes of their names. `bares`: what values are where
    nothing was chosen, if that is known. `once`: what functions make of values on their way, by what it is.
    """

    context: Context
    names: dict[str, str | None] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    parameters: dict[str, Value] = field(default_factory=dict)
    stored: list[Stored] = field(default_factory=list)
    items: list[Op | Repeat[Op]] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    caches: set[str] = field(default_factory=set)
    appended: set[str] = field(default_factory=set)
    scales: dict[str, str] = field(default_factory=dict)
    zeros: dict[str, str] = field(default_factory=dict)
    prefixes: set[str] = field(default_factory=set)
    blocks: list[str] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)
    prefixes_reached: dict[str, int] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    bares: dict[str, Bare] = field(default_factory=dict)
    once: dict[tuple[Op, Dtype, bool], str] = field(default_factory=dict)
    depth: int = 0
    at: Span = START

    def visible(self) -> list[str]:
        """Every name that stands for a value here."""
        return [*self.names, *self.context.shared]

    def lookup(self, name: str) -> str | None:
        """The value for which a visible name stands; None when its definition was wrong."""
        if name in self.names:
            return self.names[name]
        return name if self.context.shared[name] is not None else None

    def value(self, name: str) -> Value:
        """A value by its program name."""
        value = self.values.get(name) or self.parameters.get(name) or self.context.shared[name]
        assert value is not None, f"`{name}` has no value"
        return value

    def scale(self, name: str) -> str | None:
        """What a quantised value is to be multiplied by; None for one that stands for itself."""
        return self.scales.get(name) or self.context.scales.get(name)

    def zero(self, name: str) -> str | None:
        """What is subtracted from a quantised value before; None where nothing is."""
        return self.zeros.get(name) or self.context.zeros.get(name)

    def quantised(self, expr: Expr) -> str | None:
        """The quantised value that an expression is, times its scale and nothing more; None for others."""
        match expr:
            case Call("multiply", (Operand(name), Operand(scale))) if self.scale(name) == scale:
                return name
        return None

    def scale_indices(self, name: str, indices: Sequence[str]) -> tuple[str, ...]:
        """The indices of the scale of a value that is read by `indices`: of groups the index within which they lie."""
        scale, groups = self.scale(name), self.context.dims.groups
        assert scale is not None
        at = dict(zip(self.value(name).dims, indices, strict=True))
        return tuple(at[d] if d in at else at[groups[d][0]] for d in self.value(scale).dims)

    def grouped(self, name: str) -> bool:
        """Whether a quantised value takes more than a product to be made of codes: its scale has groups along one of
        its dims, or it has zero points."""
        scale = self.scale(name)
        whole = scale is None or set(self.value(scale).dims) <= set(self.value(name).dims)
        return not whole or self.zero(name) is not None

    def scaled(self, name: str, base: str) -> str:
        """A quantised value times its scale, which has groups, as a value called like `base`."""
        dims, scale, zero = self.value(name).dims, self.scale(name), self.zero(name)
        assert scale is not None
        own = self.scale_indices(name, dims)
        read = (name, scale) if zero is None else (name, zero, scale)
        zeros = () if zero is None else ((0, 1),)
        op = Einsum(self.fresh(base), read, (dims, *(own for _ in read[1:])), dims, zeros)
        return self.emit(op, dims, self.floating([name]))

    def is_cache(self, name: str) -> bool:
        """Whether a value is a cache as it stood before the program ran."""
        return name in self.caches or (name not in self.values and name in self.context.caches)

    def is_param(self, name: str) -> bool:
        """Whether a value is a parameter."""
        if name not in self.values:
            return name in self.context.shared and name not in self.context.caches
        return any(one.value == name and one.kind is Kind.PARAM for one in self.stored)

    def fresh(self, base: str) -> str:
        """`base`, or with a number the first name like it that is free."""
        owners = self.values, self.parameters, self.context.shared
        return _numbered(base, self.reached, lambda name: any(name in owner for owner in owners))

    def prefix(self, base: str) -> str:
        """The same for a prefix of names, which is then taken."""
        found = _numbered(base, self.prefixes_reached, self.prefixes.__contains__)
        self.prefixes.add(found)
        return found

    def store(
        self,
        value: Value,
        kind: Kind,
        span: Span,
        whole: tuple[str, ...] = (),
        groups: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """A tensor that is there before the program runs, split along none of the dims `whole`, and within no group
        of `groups`."""
        self.context.count(1, span)
        self.context.measure(value.dims, value.name, span)
        self.values[value.name] = value
        self.stored.append(Stored(value.name, kind, whole, groups=groups))
        if kind is Kind.CACHE:
            self.caches.add(value.name)

    def emit(self, op: Op, dims: Sequence[str], dtype: Dtype, spreads: bool = False) -> str:
        """Add an op, whose result has these dims and this dtype; returns the result's name, or that of the same thing
        where a function has made it before on its way: two norms of one value sum it once, as compilers see too.
        `spreads`: whether all of the result may count though an operand is chosen.

        Raises Refused where integers would be made of what is not whole.
        """
        every = [dims, *(self.value(name).dims for name in operand_names(op))]
        same = (replace(op, result=""), dtype, spreads) if may_be_shared(op, every, self.context.pairs) else None
        if same in self.once:
            return self.once[same]
        self.context.count(1, self.at)
        self.context.measure(dims, op.result, self.at)
        if isinstance(op, Iota | Take):
            self.context.constraints += [Numbered((op.dim,) if isinstance(op, Iota) else op.over, self.at)]
        made = Value(op.result, tuple(dims), dtype, self._chosen(op, tuple(dims), spreads))
        read = {name: self.value(name) for name in operand_names(op)}
        integers = signature(op, read | {op.result: made}).integers_of
        if integers is not None and all(name in self.whole or read[name].dtype in INTEGERS for name in integers):
            self.whole.add(op.result)
        elif dtype in INTEGERS:
            hint = "make it of integers, or leave the dtype out"
            raise Refused(f"`{op.result}` is {dtype.value}, and what it is made of is not whole.", self.at, hint)
        self.values[op.result] = made
        self.items.append(op)
        if same is not None:
            self.once[same] = op.result  # now that nothing was wrong with it
        return op.result

    def _chosen(self, op: Op, dims: tuple[str, ...], spreads: bool) -> tuple[Chosen, ...]:
        """How the result of an op is chosen. Raises Refused where nothing would be left out of what is made of a
        chosen value."""
        read = {name: self.value(name) for name in operand_names(op)}
        known = {name: value.chosen for name, value in read.items()}
        if not spreads and (wide := spread(op, known, self.bares)):
            name, mask = wide
            if boundless(op, self.bares):
                hint = "keep what divides from 0 there, as `maximum(.., 1e-6)` does"
                raise Refused(f"`{op.result}` is not finite where the chosen `{name}` is 0.", self.at, hint)
            hint = f"multiply it by `{mask}`, so that it is 0 where nothing is chosen"
            message = f"`{op.result}` is not 0 where the chosen `{name}` is, so all of it would count."
            raise Refused(message, self.at, hint)
        every = {name: value.dims for name, value in read.items()} | {op.result: dims}
        found = chosen_of(op, known, every, self.bares)
        if (bare := bare_of(op, found, self.bares, every)) is not None:
            self.bares[op.result] = bare
        return found

    def pin(self, kind: PinKind, value: str, layout: Layout, text: str) -> None:
        """Fix a layout of a value."""
        self.pins.append(Pin(kind, value, None, layout, text))

    def cover(self, names: Sequence[str], span: Span | None = None) -> tuple[str, ...]:
        """The dims of a pointwise result: those of the operand that has all the others'.

        Raises Refused when no operand has them all, and when there is none.
        """
        if not names:
            raise Refused("A value is computed from at least one value.", span or self.at)
        widest = max((self.value(n) for n in names), key=lambda v: len(v.dims))
        for name in names:
            extra = [d for d in self.value(name).dims if d not in widest.dims]
            if extra:
                both = f"{_typed(widest)} and {_typed(self.value(name))}"
                hint = "one of them must have every dim of the other; an indexed left side makes an outer product"
                raise Refused(f"{both} do not broadcast: dim `{extra[0]}` is missing.", span or self.at, hint)
        return widest.dims

    def floating(self, names: Iterable[str]) -> Dtype:
        """The dtype in which values are computed with: the widest float among them, at least bf16.

        bf16 and f16 together give f32. Quantised values are computed with in the type of what they meet, among
        themselves in bf16, whatever their scales.
        Raises Refused for integers, which are indices.
        """
        found = set[Dtype]()
        beside = {*self.scales.values(), *self.context.scales.values()}
        beside |= {*self.zeros.values(), *self.context.zeros.values()}
        for name in names:
            if name in beside:
                continue
            dtype = self.value(name).dtype
            if dtype is Dtype.I32:
                rows, places = "`take(table, ids, over=V)`", "`at: f32 = positions(L into M)`"
                hint = f"rows are looked up with {rows}; places are numbers as {places}"
                raise Refused(f"`{name}` holds i32 indices, which only `take` reads.", self.at, hint)
            if dtype in FLOATS:
                found.add(dtype)
        return found.pop() if len(found) == 1 else Dtype.F32 if found else Dtype.BF16

    def named(self, expr: Expr, base: str) -> str:
        """The value that an expression is, made under a name like `base` when it is not a bare one."""
        if isinstance(expr, Operand):
            return expr.name
        names = operands(expr)
        return self.emit(Map(self.fresh(base), expr), self.cover(names), self.floating(names))

    def region(self) -> Region[Op]:
        """What the body has become."""
        return Region(tuple(self.stored), tuple(self.items))


def _typed(value: Value) -> str:
    return f"`{value.name}[{','.join(value.dims)}]`"


def _numbered(base: str, reached: dict[str, int], taken: Callable[[str], bool]) -> str:
    """`base`, or the first of `base:2`, `base:3`, ... that is free. As no name becomes free again, the search goes on
    from where it ended last: thousands of names alike would take minutes otherwise."""
    number = reached.get(base, 1)
    name = base if number == 1 else f"{base}:{number}"
    while taken(name):
        number += 1
        name = f"{base}:{number}"
    reached[base] = number
    return name
