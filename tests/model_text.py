"""The surface tree as text in its plain form, which `ir.text.read.parse` has to read back to an equal tree."""

from __future__ import annotations

from collections.abc import Sequence

from escc.ir.text.surface import (
    Argument,
    Binary,
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

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
UNARY = 3


def print_model(model: Model) -> str:
    """The model's text. Equal models print alike; comments are not part of a model."""
    parts: list[str] = []
    previous: Item | None = None
    for item in model.items:
        if previous is not None and (type(item) is not type(previous) or isinstance(item, Block)):
            parts.append("")
        parts.append(_item(item))
        previous = item
    return "\n".join(parts) + "\n"


def _item(item: Item) -> str:
    match item:
        case Title(name):
            return f'model "{name}"'
        case Dims(dims):
            return "dim " + ", ".join(map(_dim, dims))
        case Declaration():
            return _declaration(item)
        case Block(name, parameters, results, lines):
            return f"block {name.name}" + _body(parameters, results, lines)
        case Main(parameters, results, lines):
            return "main" + _body(parameters, results, lines)
        case PhaseText(name, bindings):
            inside = ", ".join(f"{b.name.name} = {b.value}" for b in bindings)
            return f"phase {name.name} {{ {inside} }}" if inside else f"phase {name.name} {{ }}"


def _dim(dim: Dim) -> str:
    size = " * ".join(f.name for f in dim.factors) if dim.size is None else str(dim.size)
    size += "" if dim.each is None else f" / {dim.each}"
    pad = "" if dim.pad is None else f" pad {dim.pad}"
    return dim.name.name + (f" = {size}" if size else "") + pad


def _declaration(item: Declaration) -> str:
    names = ", ".join(n.name for n in item.names)
    codes = _type(item.type) if item.zero is None else f"({_type(item.type)} - {_type(item.zero)})"
    scale = "" if item.scale is None else f" * {_type(item.scale)}"
    return f"{item.kind.value} {names}: {codes}{scale}{_pin(item.pin)}"


def _body(parameters: Sequence[Parameter], results: Sequence[Type], lines: Sequence[Line]) -> str:
    arguments = ", ".join(f"{p.name.name}: {_type(p.type)}{_pin(p.pin)}" for p in parameters)
    arrow = " -> " + ", ".join(map(_type, results)) if results else ""
    inside = ""
    for previous, line in zip((None, *lines), lines, strict=False):
        if isinstance(previous, Declaration) and not isinstance(line, Declaration):
            inside += "\n"
        inside += f"  {_line(line)}\n"
    return f"({arguments}){arrow} {{\n{inside}}}"


def _line(line: Line) -> str:
    match line:
        case Declaration():
            return _declaration(line)
        case Statement(targets, value):
            return ", ".join(map(_target, targets)) + " = " + _right(value)
        case Return(values):
            return "return " + ", ".join(map(_right, values))


def _target(target: Target) -> str:
    dtype = "" if target.dtype is None else f": {target.dtype.name}"
    indices = "" if target.indices is None else _indices(target.indices)
    return target.name.name + dtype + indices + _pin(target.pin)


def _right(value: Expr | Repeated) -> str:
    if isinstance(value, Repeated):
        return f"repeat {value.count} {_expr(value.call, 0)}"
    return _expr(value, 0)


def _expr(expr: Expr, least: int) -> str:
    """The expression, in parentheses when it binds less tightly than `least`."""
    match expr:
        case Number(value):
            return _number(value)
        case Name(name):
            return name
        case Indexed(value, indices):
            return value.name + _indices(indices)
        case Negate(operand):
            return "-" + _expr(operand, UNARY)
        case Call(function, arguments, keywords):
            parts = [_argument(a) for a in arguments]
            parts += [f"{k.name.name}={_argument(k.value)}" for k in keywords]
            return f"{function.name}({', '.join(parts)})"
        case Binary(operator, left, right):
            level = PRECEDENCE[operator]
            text = f"{_expr(left, level)} {operator} {_expr(right, level + 1)}"
            return text if level >= least else f"({text})"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)


def _argument(value: Argument | DimList) -> str:
    match value:
        case Numbers(values):
            return "[" + ", ".join(map(_number, values)) + "]"
        case Into(source, target):
            return f"{source.name} into {target.name}"
        case DimList(dims):
            return _indices(dims)
        case _:
            return _expr(value, 0)


def _type(kind: Type) -> str:
    return kind.dtype.name + _indices(kind.dims)


def _indices(names: Sequence[Ident]) -> str:
    return "[" + ",".join(n.name for n in names) + "]"


def _pin(pin: LayoutText | None) -> str:
    return "" if pin is None else f" @ {pin.text}"
