"""Whether the names in an expression stand for anything, looked up before it is expanded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir.text.surface import (
    Argument,
    Binary,
    Call,
    DimList,
    Expr,
    Ident,
    Indexed,
    Into,
    Keyword,
    Name,
    Negate,
    Number,
    Numbers,
    Repeated,
)
from .body import Body
from .composites import COMPOSITES
from .functions import FUNCTIONS, KEYWORD_VALUES, NUMBERS, listing, otherwise
from .keywords import VALUES
from .scalings import ARGUMENTS


def known(body: Body, node: Argument | Repeated | DimList) -> bool:
    """Whether every name in `node` is declared and rightly so; notes those that are not.

    Names whose definition was wrong make the answer False without another finding.
    """
    match node:
        case Number() | Numbers():
            return True
        case Name(name, span):
            return _value(body, Ident(name, span))
        case Indexed(value, indices):
            found = _value(body, value)
            return all_dims(body, indices) and found
        case Negate(operand):
            return known(body, operand)
        case Binary(_, left, right):
            return all_known(body, (left, right))
        case Into(source, target):
            return all_dims(body, (source, target))
        case DimList(dims):
            return all_dims(body, dims)
        case Repeated(_, call):
            return known(body, call)
        case Call():
            return _call(body, node)


def all_known(body: Body, nodes: Iterable[Expr | Repeated]) -> bool:
    """Whether every name in each of `nodes` is declared; notes all that are not."""
    found = [known(body, node) for node in nodes]
    return all(found)


def all_dims(body: Body, idents: Iterable[Ident]) -> bool:
    """Whether dims are declared; notes all that are not."""
    found = [dim(body, ident) for ident in idents]
    return all(found)


def dim(body: Body, ident: Ident) -> bool:
    """Whether a dim is declared; notes it when it is not."""
    if ident.name in body.context.dims:
        return True
    dims, original = body.context.dims, ident.name.rstrip("0123456789_")
    hint = None if list(dims) else f"declare it with `dim {ident.name}`"
    if original in dims.plain and original != ident.name:
        hint = f"a second dim of the size of `{original}` is declared as `dim {ident.name} = {original}`"
        body.context.report.add(f"Dim `{ident.name}` is not declared.", ident.span, hint)
    else:
        body.context.report.unknown("Dim", ident.name, ident.span, dims, hint)
    return False


def _value(body: Body, ident: Ident) -> bool:
    if ident.name in body.names or ident.name in body.context.shared:
        return body.lookup(ident.name) is not None
    hint = None
    if ident.name in body.context.dims:
        hint = f"`{ident.name}` is a dim; its size as a number is `size({ident.name})`"
    body.context.report.unknown("Value", ident.name, ident.span, body.visible(), hint)
    return False


def _call(body: Body, call: Call) -> bool:
    name = call.function.name
    checks: list[bool] = []
    if name in KEYWORD_VALUES and name not in body.context.blocks:
        message = f"`{name}` is no function: it is what the keyword `{KEYWORD_VALUES[name][0]}=` takes."
        body.context.report.add(message, call.function.span, f"write {_written(name)} in a call")
        return False
    if name in body.context.blocks and name not in body.context.templates:
        message = f"Block `{name}` is called before it is complete."
        body.context.report.add(message, call.function.span, "a block calls only blocks above it, never itself")
        checks.append(False)
    elif name not in FUNCTIONS and name not in body.context.templates:
        meant = otherwise(name)
        every = sorted([*(() if meant else FUNCTIONS), *body.context.templates])
        hint = meant or listing(body.context.templates)
        body.context.report.unknown("Function or block", name, call.function.span, every, hint)
        checks.append(False)
    checks += _dims(body, call.arguments) if name in NUMBERS else [_argument(body, name, a) for a in call.arguments]
    checks += [_keyword(body, keyword) for keyword in call.keywords if _has(name, keyword)]
    return all(checks)


def _argument(body: Body, function: str, node: Argument) -> bool:
    """The names in an argument. To a composite dims go by keyword, or as `L into M`, never by place."""
    composite = COMPOSITES.get(function)
    if composite is None or not isinstance(node, Name) or node.name not in body.context.dims:
        return known(body, node)
    if node.name in body.visible():
        return known(body, node)
    hint = f"write `{function}(..., L into M)`" if composite.into else f"write `{function}(..., over={node.name})`"
    body.context.report.add(f"`{node.name}` is a dim, and `{function}` takes values here.", node.span, hint)
    return False


def _has(function: str, keyword: Keyword) -> bool:
    """Whether a function has such a keyword. Where not, its value is no matter: the call is refused for it."""
    return function not in COMPOSITES or COMPOSITES[function].has(keyword.name.name)


def _keyword(body: Body, keyword: Keyword) -> bool:
    """The names in a keyword's value: mostly dims, also as the arguments of `causal`. A scaling has none."""
    if keyword.name.name in VALUES:
        return known(body, keyword.value)
    if isinstance(keyword.value, Call) and keyword.value.function.name in ARGUMENTS:
        return True
    match keyword.value:
        case Name(name, span) if name in KEYWORD_VALUES and name not in body.context.dims:
            body.context.report.add(f"`{name}` has arguments.", span, f"write {_written(name)}")
            return False
        case Name(name, span) if keyword.name.name == "mask":
            hint = f"a mask of numbers, 1 where a score counts and 0 elsewhere, is `among={name}`"
            body.context.report.add("`mask=` takes `causal(L, M)`.", span, hint)
            return False
        case Name(name, span):
            return dim(body, Ident(name, span))
        case Call(_, arguments):
            return all(_dims(body, arguments))
        case other:
            return known(body, other)


def _dims(body: Body, arguments: Sequence[Argument]) -> list[bool]:
    return [dim(body, Ident(a.name, a.span)) if isinstance(a, Name) else known(body, a) for a in arguments]


def _written(name: str) -> str:
    """How what a keyword takes is written, with the keyword."""
    keyword, value = KEYWORD_VALUES[name]
    return f"`{keyword}={name}({', '.join(value.arguments)})`"
