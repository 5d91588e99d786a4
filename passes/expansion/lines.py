"""The lines of a block: declarations, statements and what is returned."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.diagnostics import Span, plural
from ...ir.dtype import Dtype
from ...ir.program import PinKind, Value
from ...ir.text.surface import Call, Declaration, Expr, Line, Name, Repeated, Return, Statement
from .blocks import Broken, call_block, describe, repeat_block, type_text
from .body import Body
from .composites import COMPOSITES
from .declared import claim, declare, declared_dtype, pin_value
from .einsum import einsum
from .expr import arguments, define, define_several
from .names import all_dims, all_known, known
from .report import Refused


def expand_lines(body: Body, lines: Sequence[Line], declared: Sequence[Value | None]) -> list[str] | None:
    """Expand a block's lines; returns the values that it returns, None when that is not known.

    `declared`: the result types that the block gives, none when it gives none.
    """
    for position, line in enumerate(lines):
        match line:
            case Declaration():
                for name in line.names:
                    if claim(body, name):
                        declare(body, name, line)
            case Statement():
                _statement(body, line)
            case Return():
                for later in lines[position + 1 :][:1]:
                    body.context.report.add("Nothing may follow `return`.", _place(later))
                return _return(body, line, declared)
    return None


def _place(line: Line) -> Span:
    return line.names[0].span if isinstance(line, Declaration) else line.span


def _statement(body: Body, line: Statement) -> None:
    """Expand a statement; where it is wrong its targets stand for nothing."""
    body.at = line.span
    fine = known(body, line.value)
    for target in line.targets:
        fine &= all_dims(body, target.indices or ())
    dtypes = [declared_dtype(body, target.dtype) if target.dtype else None for target in line.targets]
    values: list[str] | None = None
    free = True
    for target in line.targets:
        free &= claim(body, target.name)
        body.names.setdefault(target.name.name, None)
    if fine and free:
        try:
            values = _values(body, line, dtypes[0])
        except Refused as refused:
            body.context.report.refuse(refused)
        except Broken:
            values = None
    for target, value in zip(line.targets, values or (), strict=False):
        body.names[target.name.name] = value
        pin_value(body, value, PinKind.RESULT, target.pin)


def _values(body: Body, line: Statement, dtype: Dtype | None) -> list[str]:
    """The values that a statement makes, one for each target. Raises Refused, or Broken."""
    first, value = line.targets[0], line.value
    if isinstance(value, Repeated) or len(line.targets) > 1:
        for target in line.targets:
            if target.indices is not None or target.dtype is not None:
                raise Refused("A block's result has the type that the block gives it.", target.name.span)
        names = [target.name.name for target in line.targets]
        if isinstance(value, Call) and value.function.name in COMPOSITES:
            return define_several(body, value, names)
        return _call_results(body, value, names)
    if first.indices is not None:
        return [einsum(body, value, first.name.name, first.indices, dtype)]
    return [define(body, value, first.name.name, dtype)]


def _call_results(body: Body, value: Expr | Repeated, names: Sequence[str] | None) -> list[str]:
    """The results of a call of a block, or of a repeat of one. Raises Refused, or Broken.

    `names`: what they are called, as many as there are; without it `return`, with numbers.
    """
    call = value.call if isinstance(value, Repeated) else value
    if not isinstance(call, Call) or call.function.name not in body.context.templates:
        what = "`repeat` takes a block" if isinstance(value, Repeated) else "Several names take a call of a block"
        raise Refused(f"{what}, and this is none.", value.span)
    template = body.context.templates[call.function.name]
    if template.results is None:
        raise Broken
    count = len(template.results)
    if names is not None and len(names) != count:
        raise Refused(f"Block `{template.name}` returns {plural(count, 'value')}, not {len(names)}.", value.span)
    given = arguments(body, call, names[0] if names else "return")
    if not isinstance(value, Repeated):
        return call_block(body, call, given)
    numbered = ["return", *(f"return:{number}" for number in range(2, count + 1))]
    return repeat_block(body, value, given, names or numbered)


def _return(body: Body, line: Return, declared: Sequence[Value | None]) -> list[str] | None:
    """The values that a block returns; None when something is wrong with them."""
    body.at = line.span
    if not all_known(body, line.values):
        return None
    results: list[str] = []
    try:
        for value in line.values:
            if len(line.values) == 1 and _is_call(body, value):
                results += _call_results(body, value, None)
            elif isinstance(value, Repeated):
                raise Refused("A repeat is returned alone.", value.span, "name its results first")
            elif isinstance(value, Name) and not body.scale(body.lookup(value.name) or ""):
                results += [body.lookup(value.name) or ""]
            else:
                given = declared[len(results)] if len(results) < len(declared) else None
                results.append(define(body, value, body.fresh("return"), given.dtype if given else None))
    except Refused as refused:
        body.context.report.refuse(refused)
        return None
    except Broken:
        return None
    return results if _as_declared(body, results, declared) else None


def _is_call(body: Body, value: Expr | Repeated) -> bool:
    return isinstance(value, Repeated) or (isinstance(value, Call) and value.function.name in body.context.templates)


def _as_declared(body: Body, results: Sequence[str], declared: Sequence[Value | None]) -> bool:
    """Whether what is returned has the declared types, if there are any; notes where it has not."""
    if not declared:
        return True
    if len(results) != len(declared):
        message = f"The block returns {plural(len(results), 'value')} and declares {len(declared)}."
        body.context.report.add(message, body.at)
        return False
    fine = True
    for name, type_ in zip(results, declared, strict=True):
        value = body.value(name)
        if type_ is not None and (value.dims, value.dtype) != (type_.dims, type_.dtype):
            message = f"{describe(value)} is returned where {type_text(type_)} is declared."
            body.context.report.add(message, body.at)
            fine = False
    return fine
