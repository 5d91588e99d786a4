"""Records: dataclasses that nobody writes to, as their types say, made in a fifth of the time that frozen ones take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(*, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(
    cls: type[T] | None = None, /, *, eq: bool = True, kw_only: bool = False
) -> type[T] | Callable[[type[T]], type[T]]:
    """`dataclass(frozen=True)` for whoever checks types, and at run time too, but that nothing keeps an attribute from
    being written to: mypy has seen before that none is.

    Of a frozen class Python compiles six methods as it is made, guards of attributes among them, past which each value
    is then made: a tenth of a command that takes a second. Here it compiles `__init__`, once for all classes of as many
    fields; all else is shared.
    """

    def made(kind: type[T]) -> type[T]:
        own = dict(vars(kind))
        plain: Any = dataclass(init=False, eq=False, repr=False, kw_only=kw_only)(kind)
        if "__init__" not in own:
            plain.__init__ = _init(plain)
        if "__repr__" not in own:
            plain.__repr__ = _shown
        if eq:
            _compare(plain, own)
        return kind

    return made if cls is None else made(cls)


def _init(kind: Any) -> Any:
    """`__init__` of a class: that of another of as many fields with the names exchanged; where a field is more than a
    name and a value, that of a class derived from this one, which has the same fields."""
    own = fields(kind)
    given = [f.default is not MISSING for f in own]
    plain = all(f.init and not f.kw_only and f.default_factory is MISSING for f in own) and given == sorted(given)
    if not plain or len(own) < len(kind.__dataclass_fields__):  # in which is what is no field, too
        named = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        derived: Any = dataclass(eq=False, repr=False)(type(kind.__name__, (kind,), named))
        return derived.__init__
    names = [f.name for f in own]
    after = ["__post_init__"] if hasattr(kind, "__post_init__") else []
    code = _of_fields(len(own), bool(after)).replace(
        co_varnames=("self", *names), co_names=(*names, *after), co_qualname=f"{kind.__qualname__}.__init__"
    )
    init: Any = FunctionType(code, vars(sys.modules[kind.__module__]), "__init__")
    init.__annotations__ = {f.name: f.type for f in own} | {"return": None}
    init.__defaults__ = tuple(f.default for f in own if f.default is not MISSING)
    return init


@cache
def _of_fields(count: int, after: bool) -> CodeType:
    """What `__init__` does of a class of so many fields without more. `after`: whether it calls `__post_init__`."""
    named = {"__post_init__": None} if after else {}
    kind: Any = make_dataclass("Kind", [f"field{n}" for n in range(count)], namespace=named, eq=False, repr=False)
    return cast(CodeType, kind.__init__.__code__)


def _compare(kind: Any, own: dict[str, Any]) -> None:
    """Values of a class are equal where their fields are; what it defines of its `own` stays."""
    names = [f.name for f in fields(kind) if f.compare]
    values = attrgetter(*names) if len(names) > 1 else _alone(names)

    def equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    if "__eq__" not in own:
        kind.__eq__ = equal
    if own.get("__hash__") is None:
        kind.__hash__ = lambda self: hash(values(self))


def _alone(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The only field of a class, or none, as several would be handed out."""
    value = attrgetter(*names) if names else None
    return lambda self: () if value is None else (value(self),)


def _shown(self: Any) -> str:
    """A record as one would write it."""
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
