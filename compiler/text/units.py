"""Figures as text, with the unit that fits."""

from __future__ import annotations


def time_text(seconds: float, digits: int = 4) -> str:
    """Seconds with the unit that fits."""
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("us", 1e-6))
    return f"{_significant(seconds / scale, digits)} {unit}"


def size_text(size: float, digits: int = 4) -> str:
    """Bytes with the unit that fits."""
    unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= s), ("bytes", 1.0))
    return f"{size / scale:.{digits}g} {unit}"


def count_text(number: float, digits: int = 3) -> str:
    """A count or a price: whole from so many digits on, with commas; `0.0123`, `1.23`, `1,234`."""
    return f"{number:,.0f}" if number >= 10 ** (digits - 1) else f"{number:.{digits}g}"


def _significant(number: float, digits: int) -> str:
    """A number below 1000, to so many digits, without an exponent."""
    whole = len(str(int(number)))
    return f"{number:.{max(0, digits - whole)}f}"
