"""Texts broken at random, the same for the same seed: characters, tokens, lines, numbers and whole stretches."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\s+|.", re.DOTALL)
MOST = 100_000  # characters of what is made

ODD = [
    "", " ", "\n", "\r\n", "\t", "\0", "\x1b[31m", "\u202e", "\ufeff", "é", "𝔽", "٣", "²", "\ud800", "#", '"', "'", "`",
    "\\", "/", "{", "}", "[", "]", "(", ")", ",", ";", ":", "=", "==", "->", "@", "*", "**", "+", "-", "_", ".", "..",
    "<script>", "${x}", "{{x}}", "%s", "../../x", "/dev/null", "nan", "NaN", "inf", "-inf", "Infinity", "null", "true",
    "false", "None", "__class__", "calls", "auto", "main", "return", "repeat", "pad", "into", "size", "softmax", "take",
]  # fmt: skip
NUMBERS = [
    "0", "-0", "-1", "1", "2", "3", "1.0", "0.5", "1e3", "1e-320", "1e308", "1e400", "7", "64", "255", "65535",
    "1000000007", "1048576", "1048577", "2147483647", "2147483648", "4294967296", "9007199254740993", "1099511627776",
    "1099511627777", "9223372036854775807", "18446744073709551616", "1" * 64, "1" * 65, "9" * 400, "9" * 5000,
]  # fmt: skip


Mutation = Callable[[random.Random, str, str], str]


def mutated(rng: random.Random, text: str, others: Sequence[str], times: int, among: Sequence[Mutation]) -> str:
    """`text` with one to `times` mutations; some take pieces of `others`."""
    for _ in range(rng.randint(1, times)):
        text = rng.choice(among)(rng, text, rng.choice(others))[:MOST]
    return text


def value(rng: random.Random) -> str:
    """A text of any kind: an option's value, a name, a number."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(ODD)
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind == 2:
        return "".join(rng.choice(ODD + NUMBERS) for _ in range(rng.randint(2, 5)))
    if kind == 3:
        return (rng.choice(ODD) + rng.choice(NUMBERS)) * rng.choice([10, 100, 1000])
    return "".join(
        chr(rng.choice([rng.randrange(1, 128), rng.randrange(128, 0x2FFF)])) for _ in range(rng.randint(1, 30))
    )


def _characters(rng: random.Random, text: str, _other: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(ODD) + text[at + rng.randrange(3) :]


def _token(rng: random.Random, text: str, other: str) -> str:
    """One token by another, of the same text or of another's, or by nothing, or twice."""
    tokens = TOKEN.findall(text)
    if not tokens:
        return other[:200]
    at = rng.randrange(len(tokens))
    new = rng.choice([tokens, TOKEN.findall(other) or [""], ODD, NUMBERS])
    tokens[at] = rng.choice([rng.choice(new), rng.choice(new), "", tokens[at] * 2])
    return "".join(tokens)


def _name(rng: random.Random, text: str, _other: str) -> str:
    """A name of the text by another of it."""
    names = list(re.finditer(r"[A-Za-z_]\w*", text))
    if not names:
        return text
    old, new = rng.choice(names), rng.choice(names)
    return text[: old.start()] + new[0] + text[old.end() :]


def _alike(rng: random.Random, text: str, _other: str) -> str:
    """A name of the text by another of it that stands between the same signs, so that much still fits."""
    names = list(re.finditer(r"[A-Za-z_]\w*", text))
    if not names:
        return text
    old = rng.choice(names)
    around = text[old.start() - 1 : old.start()], text[old.end() : old.end() + 1], old[0].isupper()
    among = [
        m[0] for m in names if (text[m.start() - 1 : m.start()], text[m.end() : m.end() + 1], m[0].isupper()) == around
    ]
    return text[: old.start()] + rng.choice(among) + text[old.end() :]


def _small(rng: random.Random, text: str, _other: str) -> str:
    """A number by a small one."""
    numbers = list(re.finditer(r"(?<!\w)\d+", text))
    if not numbers:
        return text
    old = rng.choice(numbers)
    return text[: old.start()] + str(rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 64, 100])) + text[old.end() :]


def _number(rng: random.Random, text: str, _other: str) -> str:
    numbers = list(re.finditer(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", text))
    if not numbers:
        return text + rng.choice(NUMBERS)
    old = rng.choice(numbers)
    return text[: old.start()] + rng.choice(NUMBERS) + text[old.end() :]


def _line(rng: random.Random, text: str, other: str) -> str:
    """A line left out, put elsewhere, said twice, or taken from another text."""
    lines, theirs = text.split("\n"), other.split("\n")
    line = lines.pop(rng.randrange(len(lines)))
    kind = rng.randrange(4)
    if kind == 0:
        return "\n".join(lines)
    new = rng.choice(theirs) if kind == 1 else line
    lines.insert(rng.randrange(len(lines) + 1), new)
    if kind == 2:
        lines.insert(rng.randrange(len(lines) + 1), new)
    return "\n".join(lines)


def _stretch(rng: random.Random, text: str, other: str) -> str:
    """A stretch left out, or another text's put in its place."""
    start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    end = min(end, start + 200)
    here = rng.randrange(len(other) + 1)
    return text[:start] + rng.choice(["", other[here : here + rng.randrange(200)]]) + text[end:]


def _many(rng: random.Random, text: str, _other: str) -> str:
    """A token many times."""
    tokens = TOKEN.findall(text) or ["x"]
    at = rng.randrange(len(tokens))
    tokens[at] = rng.choice([tokens[at], *ODD]) * rng.choice([50, 300, 5_000, 40_000])
    return "".join(tokens)


def _cut(rng: random.Random, text: str, _other: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


GENTLE: tuple[Mutation, ...] = (
    _alike,
    _alike,
    _alike,
    _small,
    _small,
    _number,
    _name,
    _line,
)  # after which much is still an input
MUTATIONS: tuple[Mutation, ...] = (
    _characters, _token, _token, _token, _name, _name, _number, _number, _line, _line, _stretch, _many, _cut,
)  # fmt: skip
