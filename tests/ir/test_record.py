"""Records are frozen dataclasses to whoever compares, hashes, shows, copies or matches them."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from escc.ir.record import record

Decorator = Callable[[type], type]


def plain(make: Decorator) -> Any:
    class Layer:
        """A class of two fields."""

        name: str
        width: int = 4

    return make(Layer)


def single(make: Decorator) -> Any:
    class Layer:
        """A class of one field."""

        name: str

    return make(Layer)


def partly(make: Decorator) -> Any:
    class Layer:
        """A class with a field that is neither compared nor shown."""

        name: str
        where: str = field(compare=False)
        beside: list[int] = field(default_factory=list, compare=False, repr=False)

    return make(Layer)


def by_itself(make: Decorator) -> Any:
    class Layer:
        """A class with methods of its own."""

        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Layer) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "a layer"

    return make(Layer)


def half_by_itself(make: Decorator) -> Any:
    class Layer:
        """A class that says when two are equal, and not what is hashed, which is its fields then."""

        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Layer)

    return make(Layer)


def derived(make: Decorator) -> Any:
    class Value:
        """A class to derive another from."""

        name: str

    above: Any = make(Value)

    class Layer(above):  # type: ignore[misc]
        """A class derived from another."""

        width: int = 4

    return make(Layer)


def after(make: Decorator) -> Any:
    class Layer:
        """A class that looks at what it is given."""

        name: str
        width: int = 4
        depth: int = 1

        def __post_init__(self) -> None:
            if self.width < self.depth:
                raise ValueError(self.name)

    return make(Layer)


def without(make: Decorator) -> Any:
    class Layer:
        """A class without fields."""

    return make(Layer)


def derived_from_partly(make: Decorator) -> Any:
    class Layer(partly(make)):  # type: ignore[misc]
        """A class derived from one of which a field is made anew for each value."""

        width: int = 4

    return make(Layer)


def beside(make: Decorator) -> Any:
    class Layer:
        """A class with what is no field, and a field by name alone."""

        many: ClassVar[int] = 3
        name: str
        width: int = field(default=4, kw_only=True)

    return make(Layer)


FROZEN: Decorator = dataclass(frozen=True)
GIVEN: list[tuple[Callable[[Decorator], Any], list[tuple[Any, ...]]]] = [
    (plain, [("a",), ("a", 4), ("a", 5), ("b", 4)]),
    (single, [("a",), ("b",), (float("nan"),)]),
    (partly, [("a", "here"), ("a", "there"), ("b", "here"), ("a", "here", [1])]),
    (by_itself, [("a",), ("A",), ("b",)]),
    (half_by_itself, [("a",), ("b",)]),
    (derived, [("a",), ("a", 4), ("a", 5), ("b", 4)]),
    (after, [("a",), ("a", 4), ("a", 5, 2), ("b", 4, 4)]),
    (derived_from_partly, [("a", "here"), ("a", "here", [], 5), ("b", "there", [1], 5)]),
    (beside, [("a",), ("b",)]),
]


@pytest.mark.parametrize(("kind", "given"), GIVEN)
def test_records_do_what_frozen_dataclasses_do(kind: Callable[[Decorator], Any], given: list[tuple[Any, ...]]) -> None:
    own, frozen = kind(record), kind(FROZEN)
    ours, theirs = [own(*some) for some in given], [frozen(*some) for some in given]
    assert list(map(repr, ours)) == list(map(repr, theirs))
    assert list(map(hash, ours)) == list(map(hash, theirs))
    assert [[a == b for b in ours] for a in ours] == [[a == b for b in theirs] for a in theirs]
    assert [[a != b for b in ours] for a in ours] == [[a != b for b in theirs] for a in theirs]
    assert all(a != b for a in ours for b in theirs)  # of another class
    assert own.__match_args__ == frozen.__match_args__
    assert [(f.name, f.compare, f.repr) for f in fields(own)] == [(f.name, f.compare, f.repr) for f in fields(frozen)]
    assert [repr(replace(a, name="c")) for a in ours] == [repr(replace(a, name="c")) for a in theirs]
    assert list(map(repr, map(deepcopy, ours))) == list(map(repr, ours))


@pytest.mark.parametrize("kind", [*(kind for kind, _ in GIVEN), without])
def test_records_take_what_frozen_dataclasses_take(kind: Callable[[Decorator], Any]) -> None:
    own, frozen = kind(record), kind(FROZEN)
    assert str(inspect.signature(own)) == str(inspect.signature(frozen))
    assert inspect.getdoc(own) == inspect.getdoc(frozen)
    said = [_refused(made, *[1] * 9) for made in (own, frozen)]
    said += [_refused(made, wide=1) for made in (own, frozen)]
    assert said[0] == said[1]
    assert said[2] == said[3]


def _refused(kind: Any, *given: object, **named: object) -> str:
    with pytest.raises(TypeError) as error:
        kind(*given, **named)
    return str(error.value)


def test_what_a_record_is_given_is_looked_at() -> None:
    with pytest.raises(ValueError, match="narrow"):
        after(record)("narrow", 1, 2)


def test_fields_without_a_value_come_first() -> None:
    with pytest.raises(TypeError, match="non-default"):

        @record
        class Layer:
            width: int = 4
            name: str  # type: ignore[misc]


def test_what_is_no_value_is_itself_alone() -> None:
    @record(eq=False)
    class Node:
        name: str

    one, other = Node("a"), Node("a")
    assert one == one != other
    assert len({one, other}) == 2


def test_fields_by_name_alone() -> None:
    @record(kw_only=True)
    class Node:
        name: str

    assert Node(name="a") == Node(name="a")
    with pytest.raises(TypeError):
        Node("a")  # type: ignore[misc]


@record
class Kept:
    """A class that pickle finds."""

    name: str
    parts: tuple[int, ...] = ()


def test_records_go_from_process_to_process() -> None:
    one = Kept("a", (1, 2))
    assert pickle.loads(pickle.dumps(one)) == one
