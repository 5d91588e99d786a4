"""The surface language as a tree: what a person wrote, before anything is looked up or checked.

Two models are equal when they say the same; where they say it (`span`) does not count. Comments are
not kept. Non-goals: types, sizes and scopes, which the expansion to an `ir.program.Program` settles.
"""

from __future__ import annotations

from dataclasses import field

from ..diagnostics import Span
from ..program import Kind
from ..record import record


@record
class Ident:
    """A name as it stands at one place: of a dim, a value, a function, a dtype, a phase."""

    name: str
    span: Span = field(compare=False)


@record
class LayoutText:
    """The layout of an inline pin, unread: what follows `@`."""

    text: str
    span: Span = field(compare=False)


# Expressions


@record
class Number:
    """A literal, finite and not negative."""

    value: float
    span: Span = field(compare=False)


@record
class Name:
    """A value by name; in some arguments a dim."""

    name: str
    span: Span = field(compare=False)


@record
class Indexed:
    """An operand of an einsum: `q[B,L,H,Q]`."""

    value: Ident
    indices: tuple[Ident, ...]
    span: Span = field(compare=False)


@record
class Negate:
    """`-operand`."""

    operand: Expr
    span: Span = field(compare=False)


@record
class Binary:
    """`left operator right`; the operator is one of `+ - * /`."""

    operator: str
    left: Expr
    right: Expr
    span: Span = field(compare=False)


@record
class Into:
    """`L into M`: entries along L at the end of M."""

    source: Ident
    target: Ident
    span: Span = field(compare=False)


@record
class DimList:
    """`[A, B]` as the value of a keyword."""

    dims: tuple[Ident, ...]
    span: Span = field(compare=False)


@record
class Numbers:
    """`[1, 1.02]` as an argument."""

    values: tuple[float, ...]
    span: Span = field(compare=False)


@record
class Keyword:
    """`name=value` in a call."""

    name: Ident
    value: Expr | Into | DimList


@record
class Call:
    """A function, a composite or a block, applied. Positional arguments come first."""

    function: Ident
    arguments: tuple[Argument, ...]
    keywords: tuple[Keyword, ...]
    span: Span = field(compare=False)


Expr = Number | Name | Indexed | Negate | Binary | Call
Argument = Expr | Into | Numbers


@record
class Repeated:
    """`repeat count block(arguments)`."""

    count: int
    call: Call
    span: Span = field(compare=False)


# Lines of a block


@record
class Type:
    """`bf16[B,L,E]`."""

    dtype: Ident
    dims: tuple[Ident, ...]
    span: Span = field(compare=False)


@record
class Declaration:
    """`param Wk, Wv: bf16[E,Q] @ E_xQ`; the pin holds for each of the names.

    `scale`: of quantised values, the type of the numbers that they are times: `int8[E,Q] * f32[Q]`. `zero`: that of the
    numbers that are subtracted before: `(int8[E,Q] - int8[Q]) * f32[Q]`.
    """

    kind: Kind
    names: tuple[Ident, ...]
    type: Type
    pin: LayoutText | None
    scale: Type | None = None
    zero: Type | None = None


@record
class Target:
    """The left side of a statement: `h`, `h: f32`, `q[B,L,H,Q]`, each perhaps with a pin."""

    name: Ident
    dtype: Ident | None
    indices: tuple[Ident, ...] | None
    pin: LayoutText | None


@record
class Statement:
    """`targets = value`; more than one target takes a block of as many results."""

    targets: tuple[Target, ...]
    value: Expr | Repeated
    span: Span = field(compare=False)


@record
class Return:
    """`return values`."""

    values: tuple[Expr | Repeated, ...]
    span: Span = field(compare=False)


Line = Declaration | Statement | Return


# Items of a file


@record
class Title:
    """`model "name"`."""

    name: str
    span: Span = field(compare=False)


@record
class Dim:
    """One dim: free (no size, no factors), fixed (a size, perhaps padded), or derived: an alias of
    one dim, the product of several, or with `each` the groups of so many places of one."""

    name: Ident
    size: int | None = None
    pad: int | None = None
    factors: tuple[Ident, ...] = ()
    each: int | None = None


@record
class Dims:
    """`dim B, L, E = 18432`."""

    dims: tuple[Dim, ...]


@record
class Parameter:
    """An argument of a block or of main, with its type."""

    name: Ident
    type: Type
    pin: LayoutText | None


@record
class Block:
    """`block name(parameters) -> results { lines }`; the results' types may be left out."""

    name: Ident
    parameters: tuple[Parameter, ...]
    results: tuple[Type, ...]
    lines: tuple[Line, ...]


@record
class Main:
    """`main(parameters) -> results { lines }`; `span` is the word `main`."""

    parameters: tuple[Parameter, ...]
    results: tuple[Type, ...]
    lines: tuple[Line, ...]
    span: Span = field(compare=False)


@record
class Binding:
    """`B = 512` in a phase; the name `calls` says how often the phase runs."""

    name: Ident
    value: int
    span: Span = field(compare=False)


@record
class PhaseText:
    """`phase name { bindings }`."""

    name: Ident
    bindings: tuple[Binding, ...]


Item = Title | Dims | Declaration | Block | Main | PhaseText


@record
class Model:
    """A file: its items in the order in which they stand."""

    items: tuple[Item, ...]
