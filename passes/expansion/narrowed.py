"""A model with its weights and caches in fewer bits: declarations with a scale in place of those in 16 bits.

What a person would write is written for them, so that codes and scales are priced, emitted and run as any quantised
values are. A matrix has a scale for each of its outputs: for what no product sums over. A table of which rows are taken
has one for each row, and a cache one for each token and head (what vLLM and TensorRT-LLM call per token and head).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ...ir.diagnostics import InputError, fail
from ...ir.dtype import Dtype
from ...ir.program import Kind
from ...ir.text.surface import (
    Argument,
    Binary,
    Block,
    Call,
    Declaration,
    DimList,
    Dims,
    Expr,
    Ident,
    Indexed,
    Into,
    Item,
    Line,
    Main,
    Model,
    Name,
    Negate,
    Repeated,
    Return,
    Statement,
    Type,
)

NARROW = (Dtype.BF16, Dtype.INT8, Dtype.FP8, Dtype.FP4, Dtype.INT4)  # what may be asked for; bf16 leaves all
WIDE = (Dtype.BF16.value, Dtype.F16.value)  # what is narrowed: what is kept in f32 is meant to be
MOST_FACTORS = 64  # of a dim; products of products may have any number, and so many are refused later


@dataclass
class _Uses:
    """How values are read, by name: `summed`, the places in an index list that a product sums over; `taken`, the dims
    by which rows are looked up; `grown`, the dim along which a cache is appended to."""

    summed: dict[str, set[int]] = field(default_factory=dict)
    taken: dict[str, set[str]] = field(default_factory=dict)
    grown: dict[str, str] = field(default_factory=dict)

    def join(self, other: _Uses) -> None:
        """Take up what another scope does with the same values."""
        for name, places in other.summed.items():
            self.summed.setdefault(name, set()).update(places)
        for name, dims in other.taken.items():
            self.taken.setdefault(name, set()).update(dims)
        self.grown |= other.grown


def narrowed(model: Model, weights: Dtype | None = None, caches: Dtype | None = None) -> Model:
    """The model with what it declares in bf16 or f16 in other types, with scales; None, or bf16, leaves them.

    Of parameters those with two dims or more that a product sums over or a table is; of caches those with a dim beside
    the one that they grow along. All else, such as norms and biases, stays as it is. Raises InputError for a type that
    has no scales, and where nothing can be narrowed.
    """
    given = ((Kind.PARAM, weights), (Kind.CACHE, caches))
    for what, (_, dtype) in zip(("Weights", "Caches"), given, strict=True):
        if dtype is not None and dtype not in NARROW:
            raise fail(f"{what} cannot be stored as {dtype}, with scales.", hint=f"they can as {', '.join(NARROW)}")
    wanted = {kind: dtype for kind, dtype in given if dtype is not None and dtype is not Dtype.BF16}
    if not wanted:
        return model
    factors = _factors(model)
    own = [_uses(item.lines, factors) if isinstance(item, Block | Main) else _Uses() for item in model.items]
    every = _Uses()
    for uses in own:
        every.join(uses)

    items = list[Item]()
    for item, uses in zip(model.items, own, strict=True):
        if isinstance(item, Declaration):
            items += _declared(item, every, wanted)
        elif isinstance(item, Block | Main):
            lines = list[Line]()
            for line in item.lines:
                lines += _declared(line, uses, wanted) if isinstance(line, Declaration) else [line]
            items.append(replace(item, lines=tuple(lines)))
        else:
            items.append(item)
    out = Model(tuple(items))
    for kind, dtype in wanted.items():
        if _types(out, kind) == _types(model, kind):
            raise _unchanged(model, kind, dtype)
    return out


def _types(model: Model, kind: Kind) -> list[str]:
    """The types of what is declared of a kind with two dims or more, in order."""
    lines = (line for item in model.items for line in (item.lines if isinstance(item, Block | Main) else (item,)))
    declared = (line for line in lines if isinstance(line, Declaration) and line.kind is kind)
    return [line.type.dtype.name for line in declared if len(line.type.dims) > 1 for _ in line.names]


def _unchanged(model: Model, kind: Kind, dtype: Dtype) -> InputError:
    """What is said where no parameter, or no cache, becomes narrower: it would be planned as if nothing was asked."""
    what, option = ("parameter", "--weights") if kind is Kind.PARAM else ("cache", "--caches")
    types = sorted({*_types(model, kind)})
    has = f"the model has them in {', '.join(types)}" if types else "the model has none of two dims or more"
    return fail(
        f"`{option} {dtype}` changes nothing: no {what} is in {' or '.join(WIDE)} and could be stored as {dtype}.",
        hint=has,
    )


def _declared(line: Declaration, uses: _Uses, wanted: Mapping[Kind, Dtype]) -> list[Declaration]:
    """What a declaration becomes: one for each scale that its names have."""
    if line.kind not in wanted:
        return [line]
    found = list[tuple[list[Ident], tuple[Ident, ...] | None]]()
    for name in line.names:
        scale = _scale(line, name.name, uses)
        if found and found[-1][1] == scale:
            found[-1][0].append(name)
        else:
            found.append(([name], scale))
    out = list[Declaration]()
    for names, scale in found:
        one = replace(line, names=tuple(names))
        if scale is not None:
            span = line.type.span
            codes = replace(line.type, dtype=Ident(wanted[line.kind].value, line.type.dtype.span))
            one = replace(one, type=codes, scale=Type(Ident(Dtype.F32.value, span), scale, span))
        out.append(one)
    return out


def _scale(line: Declaration, name: str, uses: _Uses) -> tuple[Ident, ...] | None:
    """The dims of the scale that a name gets; None where it stays as it is."""
    dims = line.type.dims
    if line.type.dtype.name not in WIDE or line.scale is not None or len(dims) < 2:
        return None
    if line.kind is Kind.CACHE:
        place = uses.grown.get(name)
        free = [k for k, dim in enumerate(dims) if dim.name != place]
        if place == dims[-1].name and len(dims) == 2:
            return None  # one number for each token: nothing to share a scale with
        return tuple(dim for k, dim in enumerate(dims) if k != free[-1])
    if name in uses.taken and line.type.dtype.name == Dtype.F16.value:
        return None  # rows of codes alone are in bf16, which an f16 model does not take
    if uses.summed.get(name):
        return tuple(dim for k, dim in enumerate(dims) if k not in uses.summed[name])
    if name in uses.taken:
        return tuple(dim for dim in dims if dim.name in uses.taken[name])
    return None


def _factors(model: Model) -> dict[str, tuple[str, ...]]:
    """What products of dims are made of."""
    found = dict[str, tuple[str, ...]]()
    for item in model.items:
        for dim in item.dims if isinstance(item, Dims) else ():
            if len(dim.factors) > 1:
                parts = tuple(part for one in dim.factors for part in found.get(one.name, (one.name,)))
                found[dim.name.name] = parts if len(parts) <= MOST_FACTORS else (dim.name.name,)
    return found


def _uses(lines: Iterable[Line], factors: Mapping[str, tuple[str, ...]]) -> _Uses:
    """How the lines of a block read values."""
    uses = _Uses()
    for line in lines:
        match line:
            case Statement(targets, value):
                if len(targets) == 1 and targets[0].indices is not None and not isinstance(value, Repeated):
                    left = {part for one in targets[0].indices for part in factors.get(one.name, (one.name,))}
                    _summed(uses, value, left, factors)
                _called(uses, [value])
            case Return(values):
                _called(uses, values)
    return uses


def _summed(uses: _Uses, product: Expr, left: set[str], factors: Mapping[str, tuple[str, ...]]) -> None:
    """Note the places of each factor that a product sums over: those that its result, `left`, does not have whole."""
    waiting = [product]
    while waiting:
        node = waiting.pop()
        match node:
            case Binary(_, one, other):
                waiting += [one, other]
            case Indexed(value, indices):
                places = {k for k, one in enumerate(indices) if not left.issuperset(factors.get(one.name, (one.name,)))}
                uses.summed.setdefault(value.name, set()).update(places)


def _called(uses: _Uses, nodes: Iterable[Expr | Repeated]) -> None:
    """Note what rows are taken of, and what is appended to."""
    for call in _calls(nodes):
        if not call.arguments or not isinstance(call.arguments[0], Name):
            continue
        name = call.arguments[0].name
        if call.function.name == "take":
            for keyword in call.keywords:
                match keyword.value:
                    case Name(dim, _) if keyword.name.name == "over":
                        uses.taken.setdefault(name, set()).add(dim)
                    case DimList(dims) if keyword.name.name == "over":
                        uses.taken.setdefault(name, set()).update(dim.name for dim in dims)
        for argument in call.arguments if call.function.name == "append" else ():
            if isinstance(argument, Into):
                uses.grown[name] = argument.target.name


def _calls(nodes: Iterable[Argument | Repeated | DimList]) -> Iterator[Call]:
    """All calls in some expressions."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        match node:
            case Call(_, arguments, keywords):
                yield node
                waiting += [*arguments, *(keyword.value for keyword in keywords)]
            case Repeated(_, call):
                waiting.append(call)
            case Binary(_, one, other):
                waiting += [one, other]
            case Negate(operand):
                waiting.append(operand)
