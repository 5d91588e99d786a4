"""The fields of a config: read one by one, each checked; what nobody has asked for is refused.

A field that this compiler does not know may change the arithmetic of the model, so it is named
rather than skipped. Every finding carries the place of the field.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ...ir.diagnostics import Diagnostic, InputError, Source, Span
from ...ir.record import record
from ...passes.expansion.dims import MAX_SIZE
from .json_text import Entry, Node, Value

T = TypeVar("T")

LARGEST = 1e12  # of a number that is no size
MOST_UNKNOWN = 20  # fields that are named one by one
MISSPELLED = 0.93  # how like a known field one must be, as difflib counts, to be taken for it


@record
class Never:
    """That null is no value of a field."""


NEVER = Never()


def _count(value: Value, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most else None


def _positive(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= LARGEST else None


def _is_token(name: str, node: Node) -> bool:
    """Whether a field says which id a token has, or some tokens have."""
    one = name.endswith("_id")
    found = node.value if isinstance(node.value, tuple) and name.endswith(("_token_id", "_token_ids")) else (node,)
    whole = [isinstance(each.value, int) and not isinstance(each.value, bool) for each in found]
    return (one or name.endswith("_token_ids")) and all(whole)


@dataclass
class Fields:
    """The entries of an object, and which of them have been read.

    A reader of a wrong field notes a finding and returns something of the right type, so that all
    findings come at once, from `finish`. `complete` says whether that has not happened yet: only then
    do fields that must fit each other tell anything. `meant`: the numbers that missing fields mean where no reader says
    another.
    """

    source: Source
    entries: Mapping[str, Entry]
    place: Span
    findings: list[Diagnostic] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    complete: bool = True
    meant: Mapping[str, int] = field(default_factory=dict)

    def get(self, name: str) -> Node | None:
        """The value of a field as it stands; None where it is missing or null."""
        self.known.add(name)
        entry = self.entries.get(name)
        return None if entry is None or entry.node.value is None else entry.node

    def refuse(self, name: str, message: str, hint: str | None = None) -> None:
        """Note what is wrong with a field."""
        entry = self.entries.get(name)
        self.findings.append(Diagnostic(message, self.place if entry is None else entry.key, hint, self.source))

    def count(self, name: str, default: int | None = None, null: int | Never = NEVER, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to `most`. `default`: what it means that it is missing; `null`: that it is null."""
        wanted = f"a whole number from 1 to {most:,}"
        default = self.meant.get(name) if default is None else default
        return self._read(name, default, null, lambda value: _count(value, most), wanted, 1)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        return self._read(name, default, NEVER, _positive, f"a number above 0 and at most {LARGEST:g}", 1.0)

    def optional(self, name: str, default: float | None = None) -> float | None:
        """A number above 0, or None. `default`: what it means that it is missing; null means None."""
        entry = self.entries.get(name)
        if entry is None:
            self.known.add(name)
            return default
        return None if self.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Null counts as false, but not where a missing field means true."""
        null: bool | Never = NEVER if default else False
        return self._read(
            name, default, null, lambda value: value if isinstance(value, bool) else None, "true or false", False
        )

    def whole(self, name: str, default: int) -> int:
        """A whole number from 0 on. `default`: what it means that it is missing; null counts as 0."""

        def accepted(value: Value) -> int | None:
            return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE else None

        return self._read(name, default, 0, accepted, f"a whole number from 0 to {MAX_SIZE:,}", 0)

    def each(self, name: str, count: int, default: int) -> list[int]:
        """A whole number above 0 for each of `count` layers, of which a config says one for all, or each. `default`:
        where it does not say."""
        node = self.get(name)
        if node is None or not isinstance(node.value, tuple):
            return [self.count(name, default)] * count
        found = self._numbers(name, f"a list of whole numbers from 1 to {MAX_SIZE:,}", lambda n: 0 < n <= MAX_SIZE)
        if found is not None and len(found) != count and self.complete:
            self.refuse(name, f"`{name}` has {len(found):,} layers, and there are {count:,}.")
        return found if found is not None and len(found) == count else [1] * count

    def places(self, name: str, count: int) -> set[int] | None:
        """Numbers of layers, of which there are `count`, from 0; None where the field is missing or null."""
        found = self._numbers(name, f"a list of layers from 0 to {count - 1:,}", lambda n: 0 <= n < count)
        return None if found is None else set(found)

    def flags(self, name: str, count: int) -> list[bool] | None:
        """0 or 1 for each of `count` layers; None where the field is missing, null or empty."""
        found = self._numbers(name, "a list of 0 and 1", lambda n: n in (0, 1))
        if found and self.complete and len(found) != count:
            self.refuse(name, f"`{name}` has {len(found):,} layers, and there are {count:,}.")
        return [n == 1 for n in found] if found and len(found) == count else None

    def words(self, name: str, known: Sequence[str], count: int) -> list[str] | None:
        """One of the `known` words for each of `count` layers; None where the field is missing or null."""
        node = self.get(name)
        if node is None:
            return None
        values = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
        if all(value in known for value in values) and (len(values) == count or not self.complete):
            return [str(value) for value in values] if len(values) == count else None
        listed = " or ".join(f"`{word}`" for word in known)
        self.refuse(name, f"`{name}` must say {listed} for each of the {count:,} layers.")
        return None

    def numbers(self, name: str) -> list[float]:
        """A list of numbers above 0."""
        node = self.get(name)
        values = [item.value for item in node.value] if node is not None and isinstance(node.value, tuple) else []
        found = [n for n in map(_positive, values) if n is not None]
        if not values or len(found) != len(values):
            self.refuse(name, f"`{name}` must be a list of numbers above 0.")
            self.complete = False
        return found

    def _numbers(self, name: str, wanted: str, accept: Callable[[int], bool]) -> list[int] | None:
        node = self.get(name)
        if node is None:
            return None
        values = [item.value for item in node.value] if isinstance(node.value, tuple) else [node.value]
        found = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and accept(v)]
        if len(found) == len(values):
            return found
        self.findings.append(Diagnostic(f"`{name}` must be {wanted}.", node.span, None, self.source))
        self.complete = False
        return None

    def choice(self, name: str, choices: Mapping[str, T], default: T | None = None, null: T | Never = NEVER) -> T:
        """What one of several words stands for."""
        listed = ", ".join(f'"{choice}"' for choice in choices)
        first = next(iter(choices.values()))
        return self._read(name, default, null, lambda v: choices.get(v) if isinstance(v, str) else None, listed, first)

    def inert(self, names: Iterable[str]) -> None:
        """Fields that say nothing about what one forward pass computes."""
        self.known.update(names)

    def must_be(self, name: str, allowed: Iterable[Value], why: str) -> None:
        """A field that is understood at certain values only; missing and null are among them."""
        node = self.get(name)
        if node is not None and not any(type(node.value) is type(v) and node.value == v for v in allowed):
            self.refuse(name, f"`{name}` is set: {why}.")

    def part(self, name: str) -> Fields | None:
        """The fields of an object in a field; its findings join these. None where there is none."""
        node = self.get(name)
        if node is None:
            return None
        if not isinstance(node.value, Mapping):
            self.refuse(name, f"`{name}` must be an object.")
            return None
        return Fields(self.source, node.value, node.span, self.findings)

    def with_entry(self, name: str, entry: Entry) -> Fields:
        """The same fields and one more; findings are shared."""
        return replace(self, entries={**self.entries, name: entry})

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """The same fields, of which some are asked for by other names than they have. `names`: their own, by these."""
        found = {wanted: self.entries[own] for wanted, own in names.items() if own in self.entries}
        self.known.update(names.values())
        return replace(self, entries={**self.entries, **found})

    def first_of(self, names: Iterable[str]) -> Fields:
        """The same fields, of which some may list numbers, the first of which counts."""
        found = dict(self.entries)
        for name in names:
            node = found[name].node if name in found else None
            if node is not None and isinstance(node.value, tuple) and node.value:
                found[name] = replace(found[name], node=node.value[0])
        return replace(self, entries=found)

    def objects(self, name: str) -> list[Fields]:
        """The objects that a field lists; their findings join these."""
        node = self.get(name)
        values = node.value if node is not None and isinstance(node.value, tuple) else ()
        found = [
            Fields(self.source, one.value, one.span, self.findings) for one in values if isinstance(one.value, Mapping)
        ]
        if not found or len(found) != len(values):
            self.refuse(name, f"`{name}` must be a list of objects.")
            self.complete = False
        return found

    def refuse_unknown(self) -> None:
        """Note the fields that have not been read, of very many the first. Null says nothing in an unknown field, and
        which id a token has nothing of the arithmetic."""
        said = (n for n, entry in self.entries.items() if entry.node.value is not None and not _is_token(n, entry.node))
        unknown = [name for name in said if name not in self.known]
        meant = sorted(self.known - self.entries.keys())
        for name in unknown[:MOST_UNKNOWN]:
            like = difflib.get_close_matches(name[:64], meant, n=1, cutoff=MISSPELLED)
            hint = f"did you mean `{like[0]}`?" if like else "remove it if it does not change what the model computes"
            message = f"The field `{name[:60]}` is not understood, and may change the arithmetic."
            self.refuse(name, message, hint)
        if len(unknown) > MOST_UNKNOWN:
            name = unknown[MOST_UNKNOWN]
            more = len(unknown) - MOST_UNKNOWN
            self.refuse(name, f"The field `{name[:60]}` is not understood, and {more - 1:,} after it are not either.")

    def finish(self) -> None:
        """Raise InputError with all that has been found, in source order."""
        if self.findings:
            at = [(d.span.line, d.span.column) if d.span else (0, 0) for d in self.findings]
            order = sorted(range(len(at)), key=at.__getitem__)
            raise InputError(dict.fromkeys(self.findings[i] for i in order))

    def _read(
        self,
        name: str,
        default: T | None,
        null: T | Never,
        accept: Callable[[Value], T | None],
        wanted: str,
        stand_in: T,
    ) -> T:
        self.known.add(name)
        entry = self.entries.get(name)
        if entry is None and default is not None:
            return default
        if entry is not None:
            if entry.node.value is None and not isinstance(null, Never):
                return null
            found = accept(entry.node.value)
            if found is not None:
                return found
        if entry is None:
            self.refuse(name, f"The field `{name}` is missing.")
        else:
            but = ", and is null" if entry.node.value is None else ""
            self.findings.append(Diagnostic(f"`{name}` must be {wanted}{but}.", entry.node.span, None, self.source))
        self.complete = False
        return stand_in
