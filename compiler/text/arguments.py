"""Arguments of public functions: what a script passes is of the type that is declared, or one sentence says so."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import wraps
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from ...ir.diagnostics import did_you_mean, fail

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises InputError for an argument that is not of the type that it declares."""
    signature = inspect.signature(function)
    taken = {name: hint for name, hint in function.__annotations__.items() if name != "return"}

    @wraps(function)
    def checking(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = get_type_hints(SimpleNamespace(__annotations__=taken), function.__globals__)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            many = signature.parameters[name].kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            if not many and not _fits(value, hints[name]):
                shown = f"`{name}` of `escc.{function.__name__}` is {value!r:.60}"
                raise fail(f"{shown}, a {type(value).__name__}.", hint=f"it takes {_text(hints[name])}")
        return function(*args, **kwargs)

    return checking


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type: a class, a union, a Sequence (a text is none) or a Mapping of types."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items()
        )
    if origin is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_fits(v, inner[0]) for v in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _text(hint: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_text(each) for each in inner)
    if inner:
        return f"{origin.__name__} of {' to '.join(map(_text, inner))}"
    return "None" if hint is NoneType else getattr(hint, "__name__", str(hint))


def skew_of(text: str | None) -> Fraction:
    """The load of the busiest chip that is asked for, beside the mean; 1 without. Raises InputError for what is no
    such number, without an exponent."""
    if text is None:
        return Fraction(1)
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or Fraction(text) < 1:
        hint = "write `--skew 1.5`, where the busiest chip has that many times the mean load"
        raise fail(f"`--skew {text[:60]}` is no number from 1 to 999,999.", hint=hint)
    return Fraction(text)


def capacity_of(text: str | None) -> Fraction | None:
    """The room for chosen entries that is asked for, of those expected; None where there is room for all.

    Raises InputError for what is no number of 1 or more.
    """
    if text is None or text == "full":
        return None
    hint = "write `--capacity 1.25`, times the expected load, or `--capacity full`"
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text):
        raise fail(f"`--capacity {text[:60]}` is no number of times.", hint=hint)
    if Fraction(text) < 1:
        raise fail(f"A capacity of {text} has no room for what is expected.", hint=hint)
    return Fraction(text)


def refuse_no_share(hbm_fraction: float) -> None:
    """Raise InputError for what is no share of the memory of a chip, NaN among it."""
    if not 0 <= hbm_fraction <= 1:
        raise fail(f"`hbm_fraction` is {hbm_fraction!r}.", hint="it is a share of the memory, from 0 to 1")


def one_of(known: Iterable[T], name: str, what: str) -> T:
    """What is called `name`, of things by their names. Raises InputError where there is nothing of that name."""
    names = {str(one): one for one in known}
    if name not in names:
        hint = did_you_mean(str(name), names) or f"they are {', '.join(names)}"
        raise fail(f"There is no {what} `{str(name)[:60]}`.", hint=hint)
    return names[name]
