"""Names and types as they are declared: is a name free, a dtype known, a pin one that the value can have."""

from __future__ import annotations

import re

from ...ir.diagnostics import InputError
from ...ir.dtype import Dtype
from ...ir.program import Kind, PinKind, Repeat, Value
from ...ir.text.pins import pinned_layout
from ...ir.text.surface import Declaration, Ident, LayoutText, Type
from .body import FLOATS, Body
from .names import all_dims
from .report import Refused

QUANTISED = {dtype.value: dtype for dtype in (Dtype.INT8, Dtype.INT4, Dtype.FP8, Dtype.FP4)}
DTYPES = {dtype.value: dtype for dtype in Dtype}


SHORT = {"float8": "fp8", "bfloat": "bf", "float": "f", "int": "i", "half": "f16"}  # in names from elsewhere


def declared_dtype(body: Body, ident: Ident) -> Dtype | None:
    """The dtype of a name; None, and a finding, when there is none like it."""
    if ident.name not in DTYPES:
        hint = "the dtypes are " + ", ".join(DTYPES)
        short = re.sub(r"^float8|^b?float|^int|^half$|_?e\dm\d(fn)?$", lambda m: SHORT.get(m[0], ""), ident.name)
        if short in DTYPES:
            hint = f"did you mean `{short}`?"
        body.context.report.add(f"`{ident.name}` is not a dtype.", ident.span, hint)
        return None
    return DTYPES[ident.name]


def declared_value(body: Body, name: str, kind: Type) -> Value | None:
    """A value of a declared type; None, and findings, when the type is wrong."""
    dtype = declared_dtype(body, kind.dtype)
    if not all_dims(body, kind.dims) or dtype is None:
        return None
    try:
        return Value(name, body.context.dims.distinct(kind.dims), dtype)
    except Refused as refused:
        body.context.report.refuse(refused)
        return None


def claim(body: Body, ident: Ident) -> bool:
    """Whether a name is free for a value here; notes it when it is not, and then what reads it is not wrong too."""
    context = body.context
    if ident.name in body.names:
        context.report.add(f"Value `{ident.name}` is defined twice.", ident.span, "give the second another name")
    elif ident.name in context.shared:
        context.report.add(f"Value `{ident.name}` shadows the one declared outside of blocks.", ident.span, "rename it")
    elif ident.name in context.blocks:
        context.report.add(f"Value `{ident.name}` has the name of a block.", ident.span, "rename it")
    else:
        return True
    body.names.setdefault(ident.name, None)
    return False


def store(body: Body, name: Ident, kind: Kind, value: Value | None, pin: LayoutText | None) -> None:
    """A stored tensor under a name that is claimed."""
    body.names[name.name] = None if value is None else value.name
    if value is not None:
        body.store(value, kind, name.span)
        pin_value(body, value.name, PinKind.STORED, pin)


def declare(body: Body, name: Ident, item: Declaration) -> None:
    """What a declaration says of one of its names, which is claimed."""
    value = declared_value(body, name.name, item.type)
    if item.scale is None:
        store(body, name, item.kind, value, item.pin)
        return
    scale = declared_value(body, f"{name.name}.scale", item.scale)
    body.names[name.name] = None
    if value is None or scale is None or not _fits(body, name, item, value, scale):
        return
    body.names[name.name] = value.name
    body.store(value, item.kind, name.span, _grouped(body, value, scale), _groups(body, value, scale))
    body.store(scale, item.kind, name.span)
    body.scales[value.name] = scale.name
    if item.zero is not None:
        zero = declared_value(body, f"{name.name}.zero", item.zero)
        if zero is None or not _is_zero(body, name, item, value, scale, zero):
            return
        body.store(zero, item.kind, name.span)
        body.zeros[value.name] = zero.name
    pin_value(body, value.name, PinKind.STORED, item.pin)


def _fits(body: Body, name: Ident, item: Declaration, value: Value, scale: Value) -> bool:
    """Whether values can be quantised so; notes where they cannot."""
    report, span = body.context.report, item.scale.span if item.scale else name.span
    if value.dtype not in QUANTISED:
        hint = "the dtypes that take one are " + ", ".join(QUANTISED)
        report.add(f"`{name.name}` has a scale, and {value.dtype.value} values stand for themselves.", span, hint)
        return False
    if scale.dtype not in (*FLOATS, Dtype.FP8, Dtype.E8M0):
        report.add(f"The scale of `{name.name}` is a float, not {scale.dtype.value}.", span)
        return False
    groups = body.context.dims.groups
    for dim in scale.dims:
        base = groups[dim][0] if dim in groups else None
        if dim in value.dims:
            continue
        if base not in value.dims:
            report.add(f"The scale of `{name.name}` has the dim `{dim}`, which the values lack.", span)
            return False
        if base in scale.dims or sum(groups[d][0] == base for d in scale.dims if d in groups) > 1:
            report.add(f"The scale of `{name.name}` has `{base}` twice, once as `{dim}`.", span)
            return False
        if item.kind is not Kind.PARAM:
            hint = "a cache has a scale for whole dims"
            report.add(f"The scale of `{name.name}` has groups of `{base}`, and is none of a parameter.", span, hint)
            return False
    return True


def _is_zero(body: Body, name: Ident, item: Declaration, value: Value, scale: Value, zero: Value) -> bool:
    """Whether numbers can be subtracted from quantised values; notes where they cannot."""
    report, span = body.context.report, item.zero.span if item.zero else name.span
    if item.kind is not Kind.PARAM:
        report.add(f"`{name.name}` has zero points, and is no parameter.", span)
    elif zero.dtype not in (value.dtype, *FLOATS):
        report.add(f"The zero points of `{name.name}` are {value.dtype.value} or floats, not {zero.dtype.value}.", span)
    elif zero.dims != scale.dims:
        report.add(f"The zero points of `{name.name}` have not the dims of its scale.", span)
    else:
        return True
    return False


def _groups(body: Body, value: Value, scale: Value) -> tuple[tuple[str, str], ...]:
    """The dims of quantised values of which the scale has groups, each with the dim that counts these."""
    groups = body.context.dims.groups
    return tuple((groups[dim][0], dim) for dim in scale.dims if dim not in value.dims)


def _grouped(body: Body, value: Value, scale: Value) -> tuple[str, ...]:
    """The dims within groups of one scale: the factors that it lacks of a product of which it has some."""
    own, kept = set(value.dims), set(scale.dims)
    products = dict.fromkeys(body.context.dims.factors.values())
    split = [factors for factors in products if own.issuperset(factors) and not kept.isdisjoint(factors)]
    return tuple(dict.fromkeys(d for factors in split for d in factors if d not in kept))


def pin_value(body: Body, name: str, kind: PinKind, pin: LayoutText | None) -> None:
    """Fix the layout of a value as written behind `@`, if anything is."""
    if pin is None:
        return
    value = body.value(name)
    if kind is PinKind.RESULT and not _made(body, name):
        body.context.report.add("Only the result of an op can be pinned here.", pin.span, "pin it where it is made")
        return
    try:
        layout = pinned_layout(pin.text, value, kind, body.context.dims.factors)
    except InputError as error:
        for finding in error.diagnostics:
            body.context.report.add(finding.message, pin.span, finding.hint)
        return
    body.pin(kind, name, layout, f"{name} @ {pin.text}")


def _made(body: Body, name: str) -> bool:
    """Whether a value is the result of an op here."""
    return any(not isinstance(item, Repeat) and item.result == name for item in reversed(body.items))
