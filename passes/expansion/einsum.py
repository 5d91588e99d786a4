"""An indexed left side: a product of indexed values as an einsum."""

from __future__ import annotations

from collections.abc import Sequence

from ...cost.ops import Indices
from ...ir.diagnostics import plural
from ...ir.dtype import Dtype
from ...ir.program import Einsum
from ...ir.text.surface import Binary, Expr, Ident, Indexed, Name
from .body import Body
from .report import Refused

Factor = tuple[str, Indices]  # a value and the indices by which it is read


def einsum(body: Body, node: Expr, target: str, output: Sequence[Ident], dtype: Dtype | None) -> str:
    """Multiply the operands, sum over the indices that `output` lacks; returns the result's name.

    Raises Refused for what is no product of indexed values, an index that an operand's dim is not,
    one that stands twice in a list, and one of the result that no operand has. Of two factors a parameter stands last,
    wherever it was written: projections are one program whatever the order of their factors.
    """
    read = [_factor(body, factor) for factor in _factors(node)]
    if len(read) == 2:
        read.sort(key=lambda factor: body.is_param(factor[0]))
    found = list[Factor]()
    zeros = list[tuple[int, int]]()
    for name, indices in read:
        if body.zero(name) is not None:
            zeros.append((len(found), len(found) + 1))
        found += _with_scale(body, name, indices)
    dims = body.context.dims
    left, every = dims.distinct(output), {index for _, indices in found for index in indices}
    for ident in output:
        for index in dims.expand([ident.name]):
            if index not in every:
                same = next(
                    (one for _, indices in found for one in indices if dims.root(one) == dims.root(index)), None
                )
                hint = f"an operand is read by it in the place of `{same}`, which is as large" if same else None
                raise Refused(f"Index `{index}` of the result is in no operand.", ident.span, hint)
    names, each = tuple(n for n, _ in found), tuple(i for _, i in found)
    return body.emit(Einsum(target, names, each, left, tuple(zeros)), left, dtype or body.floating(names))


def _with_scale(body: Body, name: str, indices: Indices) -> list[Factor]:
    """A factor, and beside it the zero points and the scale of a quantised one, read by the same indices."""
    scale = body.scale(name)
    if scale is None:
        return [(name, indices)]
    zero, own = body.zero(name), body.scale_indices(name, indices)
    return [(name, indices), *([] if zero is None else [(zero, own)]), (scale, own)]


def _factors(node: Expr) -> list[Indexed]:
    """The operands of a product, in order."""
    match node:
        case Indexed():
            return [node]
        case Binary("*", left, right):
            return _factors(left) + _factors(right)
        case Name(name, span):
            raise Refused(f"`{name}` needs its indices under an indexed left side.", span, f"write `{name}[...]`")
        case _:
            hint = "give other expressions a name, on a line of their own without indices on the left"
            raise Refused("An indexed left side takes a product of indexed values.", node.span, hint)


def _factor(body: Body, factor: Indexed) -> Factor:
    """An operand's value and its indices, each of which is the value's dim there, or an alias."""
    name = body.lookup(factor.value.name)
    assert name is not None, "names are checked first"
    dims, table = body.value(name).dims, body.context.dims
    indices = table.distinct(factor.indices)
    has = f"its dims are `[{','.join(dims)}]`"
    if len(indices) != len(dims):
        count = plural(len(dims), "dim")
        message = f"`{factor.value.name}` has {count}, and {len(indices)} stand in its index list."
        raise Refused(message, factor.span, has)
    written = [ident for ident in factor.indices for _ in table.expand([ident.name])]
    for index, dim, ident in zip(indices, dims, written, strict=True):
        if table.root(index) != table.root(dim):
            message = f"`{factor.value.name}` has dim `{dim}` where index `{index}` stands."
            raise Refused(message, ident.span, has)
    return name, indices
