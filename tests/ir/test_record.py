"""Records are frozen dataclasses to whoever compares, hashes, shows, copies or matches them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

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


FROZEN: Decorator = dataclass(frozen=True)
GIVEN: list[tuple[Callable[[Decorator], Any], list[tuple[Any, ...]]]] = [
    (plain, [("a",), ("a", 4), ("a", 5), ("b", 4)]),
    (single, [("a",), ("b",), (float("nan"),)]),
    (partly, [("a", "here"), ("a", "there"), ("b", "here"), ("a", "here", [1])]),
    (by_itself, [("a",), ("A",), ("b",)]),
    (half_by_itself, [("a",), ("b",)]),
    (derived, [("a",), ("a", 4), ("a", 5), ("b", 4)]),
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
