"""Text of users made inert: one function for each kind of place where it comes to stand.

What a file of a user holds may be shown in a comment, a docstring, a string or on a terminal, and never
does anything there. Non-goals: HTML and SVG, whose libraries escape; JSON, whose library does.
"""

from __future__ import annotations

import re
import unicodedata

# What a text file has no use for: control characters, line ends that some programs see and others do not, and
# marks that show text in another order than it is read ("Trojan Source", CVE-2021-42574).
HIDING = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|\r(?!\n)")
SPACES = "Zs"  # the category of spaces, which show themselves though Python does not print them


def visible(text: str, keep: str = "") -> str:
    """`text` with an escape for every character that does not show itself, those of `keep` aside.

    Control characters, line ends, marks of direction and what has no character: `\\x1b`, `\\u202e`.
    """
    if text.isprintable() or text.translate(dict.fromkeys(map(ord, keep))).isprintable():  # most texts, at once
        return text
    return "".join(c if c.isprintable() or c in keep or unicodedata.category(c) == SPACES else _escape(c) for c in text)


def one_each(text: str) -> str:
    """`text` in as many characters, a space or a sign for each that does not show itself."""
    return "".join(" " if c in "\t\r" else c if visible(c) == c else "\N{REPLACEMENT CHARACTER}" for c in text)


def comment(text: str) -> str:
    """`text` as a comment of Python, TOML or a model: one line, whatever it holds."""
    return f"# {visible(text)}"


def docstring(text: str) -> str:
    """`text` for a docstring between triple quotes, as one line: without quotes and backslashes."""
    return visible(text.replace("\\", "/").replace('"', "'")).replace("\\", "/")


def literal(text: str) -> str:
    """The Python literal, in ASCII and double quotes, whose value is `text`."""
    return '"' + _escape(text).replace('"', '\\"') + '"'


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def character(c: str) -> str:
    """A character that does not show itself, by its number and, where it has one, its name."""
    name = unicodedata.name(c, "")
    return f"U+{ord(c):04X}" + (f" ({name.lower()})" if name else "")
