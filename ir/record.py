"""Records: dataclasses that nobody writes to, as their types say, made in a third of the time that frozen ones take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

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
    is then made: a tenth of a command that takes a second. Here it compiles `__init__`; all else is shared.
    """

    def made(kind: type[T]) -> type[T]:
        own = dict(vars(kind))
        plain: Any = dataclass(eq=False, repr=False, kw_only=kw_only)(kind)
        if "__repr__" not in own:
            plain.__repr__ = _shown
        if eq:
            _compare(plain, own)
        return kind

    return made if cls is None else made(cls)


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
