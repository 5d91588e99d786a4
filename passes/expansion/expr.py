"""Expressions: pointwise arithmetic, sums and calls, as primitive ops.

Every name in an expression has been found before it comes here. What cannot be expanded raises
Refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.diagnostics import listed, plural
from ...ir.dtype import Dtype
from ...ir.expr import Call as Apply
from ...ir.expr import Const, Context, Operand, operands
from ...ir.expr import Expr as Arithmetic
from ...ir.program import Map, Sum
from ...ir.text.surface import (
    Argument,
    Binary,
    Call,
    DimList,
    Expr,
    Indexed,
    Into,
    Keyword,
    Name,
    Negate,
    Number,
    Numbers,
)
from .arguments import Arguments, Composite, multiply
from .blocks import call_block
from .body import Body
from .composites import COMPOSITES
from .dims import Counted, Numbered, Unpadded, size_expr
from .functions import GATES, NUMBERS, POINTWISE
from .keywords import VALUES, check_words, dim_arguments, positional_arguments, with_keywords
from .report import Refused

STORED = ("take", "append")  # what reads quantised values as they are stored
OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}


def define(body: Body, node: Expr, target: str, dtype: Dtype | None = None) -> str:
    """Expand an expression to a value called `target`; returns the value's name, which differs only
    where the expression is a call of a block. `dtype` is the result's, else it is inferred."""
    match node:
        case Call(function) if function.name in COMPOSITES:
            composite = COMPOSITES[function.name]
            if len(composite.results) > 1:
                names = ", ".join(composite.results)
                message = f"`{function.name}` gives {len(composite.results)} values, and one is needed here."
                raise Refused(message, node.span, f"name them all, as in `{names} = {function.name}(...)`")
            return define_several(body, node, [target], dtype)[0]
        case Call(function) if function.name in body.context.templates:
            if dtype is not None:
                raise Refused("A block's result has the type that the block gives it.", function.span)
            return _single(call_block(body, node, arguments(body, node, target)), node)
        case Binary("+" | "-") | Negate():
            return _sum(body, node, target, dtype)
        case _:
            return _map(body, _pointwise(body, node, target), target, dtype)


def define_several(body: Body, call: Call, targets: Sequence[str], dtype: Dtype | None = None) -> list[str]:
    """Expand a composite to values called `targets`, one for each of its results; returns their names."""
    composite = COMPOSITES[call.function.name]
    if len(targets) != len(composite.results):
        given = plural(len(composite.results), "value")
        raise Refused(f"`{call.function.name}` gives {given}, not {len(targets)}.", call.span)
    return list(composite.build(body, targets, _arguments(body, call, composite, targets[0], dtype)))


def arguments(body: Body, call: Call, base: str) -> list[str]:
    """The values that a call hands to a block."""
    if call.keywords:
        raise Refused("A block takes no keywords.", call.keywords[0].name.span)
    names: list[str] = []
    for number, argument in enumerate(call.arguments, 1):
        if isinstance(argument, Into | Numbers):
            raise Refused("A block takes values.", argument.span)
        if isinstance(argument, Name) and body.scale(_value(body, argument.name)) is None:
            names.append(_value(body, argument.name))
        else:
            names.append(define(body, argument, body.fresh(f"{base}.arg{number}")))
    return names


def _single(results: Sequence[str], call: Call) -> str:
    if len(results) != 1:
        message = f"Block `{call.function.name}` returns {len(results)} values, and one is needed here."
        raise Refused(message, call.span, "name them all, as in `a, b = ...`")
    return results[0]


def _value(body: Body, name: str) -> str:
    value = body.lookup(name)
    assert value is not None, "names are checked first"
    return value


def _map(body: Body, expr: Arithmetic, target: str, dtype: Dtype | None) -> str:
    names = operands(expr)
    return body.emit(Map(target, expr), body.cover(names), dtype or body.floating(names))


def _pointwise(body: Body, node: Expr, base: str) -> Arithmetic:
    """The arithmetic of an expression. Composites and blocks in it become values named after `base`."""
    match node:
        case Number(value):
            return Const(value)
        case Name(name):
            found = _value(body, name)
            scale = body.scale(found)
            if scale is not None and body.grouped(found):
                return Operand(body.scaled(found, f"{base}.{name}"))
            return Operand(found) if scale is None else multiply(Operand(found), Operand(scale))
        case Negate(operand):
            inner = _pointwise(body, operand, base)
            return Const(-inner.value) if isinstance(inner, Const) else Apply("negate", (inner,))
        case Binary(operator, left, right):
            return Apply(OPERATORS[operator], (_pointwise(body, left, base), _pointwise(body, right, base)))
        case Indexed(value, _, span):
            hint = f"write `{value.name}`; only under an indexed left side do operands take indices"
            raise Refused(f"`{value.name}` has indices in a pointwise expression.", span, hint)
        case Call():
            return _applied(body, node, base)


def _applied(body: Body, call: Call, base: str) -> Arithmetic:
    name = call.function.name
    if name in COMPOSITES or name in body.context.templates:
        return Operand(define(body, call, body.fresh(f"{base}.{name}")))
    if call.keywords:
        raise Refused(f"`{name}` takes no keywords.", call.keywords[0].name.span)
    if name == "size":
        return size_expr(body.context.dims.expand(d.name for d in dim_arguments(call, 1)))
    if name == "context":
        dim = body.context.dims.single(dim_arguments(call, 1)[0], "`context`")
        filled = Unpadded(dim, call.span, "what is filled of it is counted")
        body.context.constraints += [filled, Counted(dim, call.span), Numbered((dim,), call.span)]
        return Context(dim)
    count = len(POINTWISE[name].arguments)
    if len(call.arguments) != count:
        hint = "over a dim, write `max(x, over=M)`" if name == "maximum" else None
        raise Refused(f"`{name}` takes {plural(count, 'argument')}, not {len(call.arguments)}.", call.span, hint)
    inner = [_pointwise(body, _expression(a), base) for a in call.arguments]
    if name in GATES:
        return multiply(Apply(GATES[name], (inner[0],)), inner[1])
    return Apply(name, tuple(inner))


def _expression(node: Argument) -> Expr:
    if isinstance(node, Into):
        raise Refused(f"`{node.source.name} into {node.target.name}` has no place here.", node.span)
    if isinstance(node, Numbers):
        raise Refused("A list of numbers has no place here.", node.span)
    return node


def _sum(body: Body, node: Expr, target: str, dtype: Dtype | None) -> str:
    """One flat sum. A term that is more than a value times a number becomes a value of its own."""
    terms = _terms(node, 1.0)
    if len(terms) == 1 or not all(_reads(term) for _, term in terms):
        return _map(body, _pointwise(body, node, target), target, dtype)
    coefficients: dict[str, float] = {}
    for sign, term in terms:
        factor, inner = _scaled(term)
        name = _term(body, inner if factor is not None else term, target)
        coefficients[name] = coefficients.get(name, 0.0) + sign * (1.0 if factor is None else factor)
    names = tuple(coefficients)
    if len(names) == 1:
        scale = coefficients[names[0]]
        scaled = Operand(names[0]) if scale == 1.0 else multiply(Const(scale), Operand(names[0]))
        return _map(body, scaled, target, dtype)
    op = Sum(target, names, tuple(coefficients.values()))
    return body.emit(op, body.cover(names), dtype or body.floating(names))


def _terms(node: Expr, sign: float) -> list[tuple[float, Expr]]:
    match node:
        case Negate(operand):
            return _terms(operand, -sign)
        case Binary("+", left, right):
            return _terms(left, sign) + _terms(right, sign)
        case Binary("-", left, right):
            return _terms(left, sign) + _terms(right, -sign)
        case _:
            return [(sign, node)]


def _reads(node: Argument) -> bool:
    """Whether an expression reads a value."""
    match node:
        case Name() | Indexed():
            return True
        case Negate(operand):
            return _reads(operand)
        case Binary(_, left, right):
            return _reads(left) or _reads(right)
        case Call(function, inner):
            return function.name not in NUMBERS and any(map(_reads, inner))
        case _:
            return False


def _constant(node: Expr) -> float | None:
    """The value of an expression of literals alone."""
    match node:
        case Number(value):
            return value
        case Negate(operand):
            inner = _constant(operand)
            return None if inner is None else -inner
        case Binary(operator, left, right):
            a, b = _constant(left), _constant(right)
            if a is None or b is None or (operator == "/" and b == 0):
                return None
            return {"+": a + b, "-": a - b, "*": a * b}.get(operator) if operator != "/" else a / b
        case _:
            return None


def _scaled(node: Expr) -> tuple[float | None, Expr]:
    """A term as a number and a value, or (None, term) when it is anything else."""
    match node:
        case Name() | Call():
            return 1.0, node
        case Negate(operand):
            factor, inner = _scaled(operand)
            return None if factor is None else -factor, inner
        case Binary("*", left, right):
            for number, other in ((_constant(left), right), (_constant(right), left)):
                factor, inner = _scaled(other)
                if number is not None and factor is not None:
                    return number * factor, inner
        case Binary("/", left, right):
            number = _constant(right)
            factor, inner = _scaled(left)
            if number and factor is not None:
                return factor / number, inner
    return None, node


def _term(body: Body, node: Expr, target: str) -> str:
    """The value of one term of a sum."""
    if isinstance(node, Name) and body.scale(_value(body, node.name)) is None:
        return _value(body, node.name)
    if isinstance(node, Call) and (node.function.name in COMPOSITES or node.function.name in body.context.templates):
        return define(body, node, body.fresh(f"{target}.{node.function.name}"))
    number = 1
    while f"{target}.term{number}" in body.values:
        number += 1
    return define(body, node, f"{target}.term{number}")


def _arguments(body: Body, call: Call, composite: Composite, target: str, dtype: Dtype | None) -> Arguments:
    """The arguments of a composite, looked up and checked against how it is called."""
    name = call.function.name
    check_words(call, composite)
    positional, into = positional_arguments(body.context.dims, call, composite)
    least, most = len(composite.values) - composite.optional, len(composite.values)
    if not least <= len(positional) <= most:
        names = listed(composite.values)
        hint = "of two values, write `maximum(a, b)`" if name == "max" else None
        message = f"`{name}` takes {plural(most, 'value')} ({names}), not {len(positional)}."
        raise Refused(message, call.span, hint)
    values = list[Arithmetic]()
    for argument, called in zip(positional, composite.values, strict=False):
        node = _expression(argument)
        kept = _stored(body, node) if name in STORED and not values else None
        values.append(_pointwise(body, node, f"{target}.{called}") if kept is None else kept)
    given = Arguments(tuple(values), dtype=dtype)
    given = with_keywords(given, body.context.dims, call, composite, into)
    for keyword in call.keywords:
        if keyword.name.name in VALUES:
            value = _pointwise(body, _taken(keyword), f"{target}.{keyword.name.name}")
            given = replace(given, sink=value) if keyword.name.name == "sink" else replace(given, among=value)
    return given


def _stored(body: Body, node: Expr) -> Arithmetic | None:
    """A quantised value that is read as it is stored, times its scale; None for any other expression."""
    found = _value(body, node.name) if isinstance(node, Name) else None
    scale = None if found is None else body.scale(found)
    return None if found is None or scale is None else multiply(Operand(found), Operand(scale))


def _taken(keyword: Keyword) -> Expr:
    """The value of a keyword that takes one."""
    if isinstance(keyword.value, Into | DimList):
        raise Refused(f"`{keyword.name.name}=` takes a value, or a number.", keyword.name.span)
    return keyword.value
