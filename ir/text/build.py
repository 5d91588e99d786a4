"""From the grammar's parse tree to the surface tree of `ir.text.surface`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lark import Token, Tree

from ..diagnostics import Span
from ..program import Kind
from .surface import (
    Argument,
    Binary,
    Binding,
    Block,
    Call,
    Declaration,
    Dim,
    DimList,
    Dims,
    Expr,
    Ident,
    Indexed,
    Into,
    Item,
    Keyword,
    LayoutText,
    Line,
    Main,
    Model,
    Name,
    Negate,
    Number,
    Numbers,
    Parameter,
    PhaseText,
    Repeated,
    Return,
    Statement,
    Target,
    Title,
    Type,
)
from .tokens import span_of

Node = Tree[Token] | Token | None
T = TypeVar("T")
OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


def build_model(tree: Tree[Token]) -> Model:
    """The model of a parse tree of rule `model`."""
    return Model(tuple(_item(_as_tree(child)) for child in tree.children))


def _item(tree: Tree[Token]) -> Item:
    children = tree.children
    match tree.data:
        case "title":
            return Title(_as_token(children[0])[1:-1], _span(tree))
        case "dims":
            return Dims(tuple(_dim(_as_tree(c)) for c in children))
        case "declaration":
            return _declaration(tree)
        case "block":
            return Block(_ident(children[0]), *_signature(children[1:3]), _lines(children[3]))
        case "main":
            return Main(*_signature(children[1:3]), _lines(children[3]), span_of(_as_token(children[0])))
        case _:
            return PhaseText(_ident(children[0]), tuple(_binding(_as_tree(c)) for c in children[1:]))


def _dim(tree: Tree[Token]) -> Dim:
    name, *rest = tree.children
    match tree.data:
        case "free":
            return Dim(_ident(name))
        case "fixed":
            size, pad = rest
            return Dim(_ident(name), int(_as_token(size)), _pad(pad))
        case "grouped":
            base, each = rest
            return Dim(_ident(name), factors=(_ident(base),), each=int(_as_token(each)))
        case _:
            *factors, pad = rest
            return Dim(_ident(name), pad=_pad(pad), factors=tuple(map(_ident, factors)))


def _pad(node: Node) -> int | None:
    return None if node is None else int(_as_token(node))


def _declaration(tree: Tree[Token]) -> Declaration:
    kind, names, coded, pin = tree.children
    kind_type, *zero, scale = _as_tree(coded).children
    return Declaration(
        Kind(str(kind)),
        _names(names),
        _type(kind_type),
        _pin(pin),
        None if scale is None else _type(scale),
        _type(zero[0]) if zero else None,
    )


def _signature(children: Sequence[Node]) -> tuple[tuple[Parameter, ...], tuple[Type, ...]]:
    parameters, results = map(_as_tree, children)
    return tuple(_parameter(_as_tree(c)) for c in parameters.children), tuple(map(_type, results.children))


def _parameter(tree: Tree[Token]) -> Parameter:
    name, kind, pin = tree.children
    return Parameter(_ident(name), _type(kind), _pin(pin))


def _type(node: Node) -> Type:
    tree = _as_tree(node)
    dtype, names = tree.children
    return Type(_ident(dtype), _names(names), _span(tree))


def _binding(tree: Tree[Token]) -> Binding:
    name, value = tree.children
    return Binding(_ident(name), int(_as_token(value)), _span(tree))


def _lines(node: Node) -> tuple[Line, ...]:
    return tuple(_line(_as_tree(c)) for c in _as_tree(node).children)


def _line(tree: Tree[Token]) -> Line:
    match tree.data:
        case "declaration":
            return _declaration(tree)
        case "statement":
            targets, value = map(_as_tree, tree.children)
            return Statement(tuple(_target(_as_tree(t)) for t in targets.children), _right(value), _span(tree))
        case _:
            return Return(tuple(_right(_as_tree(c)) for c in tree.children), _span(tree))


def _target(tree: Tree[Token]) -> Target:
    name, dtype, indices, pin = tree.children
    return Target(
        _ident(name),
        None if dtype is None else _ident(dtype),
        None if indices is None else _names(_as_tree(indices).children[0]),
        _pin(pin),
    )


def _right(tree: Tree[Token]) -> Expr | Repeated:
    if tree.data == "repeat":
        count, call = tree.children
        return Repeated(int(_as_token(count)), _call(_as_tree(call)), _span(tree))
    return _expr(tree)


def _expr(node: Node) -> Expr:
    tree = _as_tree(node)
    children, span = tree.children, _span(tree)
    match tree.data:
        case "number":
            return Number(float(_as_token(children[0])), span)
        case "name":
            return Name(str(children[0]), span)
        case "indexed":
            return Indexed(_ident(children[0]), _names(_as_tree(children[1]).children[0]), span)
        case "negate":
            return Negate(_expr(children[0]), span)
        case "positive":
            return _expr(children[0])
        case "call":
            return _call(tree)
        case operator:
            return Binary(OPERATORS[operator], _expr(children[0]), _expr(children[1]), span)


def _call(tree: Tree[Token]) -> Call:
    function, *rest = tree.children
    arguments = [_as_tree(c) for c in rest]
    return Call(
        _ident(function),
        tuple(_argument(a) for a in arguments if a.data != "keyword"),
        tuple(_keyword(a) for a in arguments if a.data == "keyword"),
        _span(tree),
    )


def _argument(tree: Tree[Token]) -> Argument:
    match tree.data:
        case "into":
            return _into(tree)
        case "numbers":
            return Numbers(tuple(float(_as_token(_as_tree(c).children[0])) for c in tree.children), _span(tree))
        case _:
            return _expr(tree)


def _keyword(tree: Tree[Token]) -> Keyword:
    name, value = tree.children
    inner = _as_tree(value)
    match inner.data:
        case "into":
            return Keyword(_ident(name), _into(inner))
        case "dim_list":
            return Keyword(_ident(name), DimList(_names(inner.children[0]), _span(inner)))
        case _:
            return Keyword(_ident(name), _expr(inner))


def _into(tree: Tree[Token]) -> Into:
    source, target = map(_ident, tree.children)
    return Into(source, target, _span(tree))


def _names(node: Node) -> tuple[Ident, ...]:
    return () if node is None else tuple(map(_ident, _as_tree(node).children))


def _ident(node: Node) -> Ident:
    token = _as_token(node)
    return Ident(str(token), span_of(token))


def _pin(node: Node) -> LayoutText | None:
    if node is None:
        return None
    token = _as_token(node)
    return LayoutText(" ".join(token[1:].split()), span_of(token))


def _span(tree: Tree[Token]) -> Span:
    meta = tree.meta
    return Span(meta.line, meta.column, max(1, meta.end_pos - meta.start_pos))


def _as_tree(node: Node) -> Tree[Token]:
    assert isinstance(node, Tree)
    return node


def _as_token(node: Node) -> Token:
    assert isinstance(node, Token)
    return node
