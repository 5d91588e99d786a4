"""Numbers as `escc sweep` takes them: `8..256` is the powers of two from 8 to 256, `1,3,5` a list; both mix."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...ir.diagnostics import Diagnostic

SHOWN = 60  # characters of what a person wrote


def read_numbers(text: str, option: str, most: int) -> tuple[tuple[int, ...], tuple[Diagnostic, ...]]:
    """The numbers of a text, in its order, and what is wrong with it; each is from 1 to `most`."""
    numbers: dict[int, None] = {}
    found: list[Diagnostic] = []
    for part in (part.strip() for part in text.split(",")):
        one = list(_part(part, option))
        found += [problem for problem in one if isinstance(problem, Diagnostic)]
        for number in (number for number in one if isinstance(number, int)):
            if not 1 <= number <= most:
                found.append(Diagnostic(f"`{option}` names {_shown(part)}, and may be from 1 to {most:,}."))
                break
            if number in numbers:
                found.append(Diagnostic(f"`{option}` names {number} twice."))
            else:
                numbers[number] = None
    return tuple(numbers), tuple(found)


def _part(part: str, option: str) -> Iterator[int | Diagnostic]:
    """The numbers of one part between commas, or what is wrong with it."""
    match = re.fullmatch(r"(\d{1,19})(?:\s*\.\.\s*(\d{1,19}))?", part)
    if match is None:
        hint = f"write `{option} 8..64` for 8, 16, 32 and 64, or a list, `{option} 8,24`"
        yield Diagnostic(f"`{option}` has {_shown(part)}, which is no number and no range.", hint=hint)
        return
    first = int(match[1])
    if match[2] is None:
        yield first
        return
    last = int(match[2])
    odd = [end for end in (first, last) if end.bit_count() != 1]
    if odd:
        hint = "a range goes over powers of two; write other numbers as a list"
        yield Diagnostic(f"`{option}` has the range {_shown(part)}, and {odd[0]} is no power of two.", hint=hint)
    elif first > last:
        yield Diagnostic(f"`{option}` has the range {_shown(part)}, which ends below its start.")
    else:
        yield from (1 << power for power in range(first.bit_length() - 1, last.bit_length()))


def _shown(part: str) -> str:
    return f"`{part[:SHOWN]}`" if part else "an empty place"
