"""The least of many lines at a point, exactly, in whole numbers: what makes recurrences over all pairs quick.

A line is a slope, an intercept and a number of its own. Of lines that are equally low the one that was numbered last
is taken: as if each intercept were less by next to nothing for each line before it, which leaves them lines.
"""

from __future__ import annotations

Line = tuple[int, int, int]  # slope, intercept, number


class Hull:
    """Lines that are added by falling slope, and asked for at points that only grow: each in constant time, over all of
    them. Numbers rise as lines are added."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._first = 0  # those before it are never the least again

    def add(self, slope: int, intercept: int, number: int) -> None:
        """Add a line, whose slope is less than all before."""
        lines = self._lines
        while len(lines) - self._first >= 2:
            (slope_1, intercept_1, _), (slope_2, intercept_2, _) = lines[-2:]
            if (intercept - intercept_1) * (slope_1 - slope_2) > (intercept_2 - intercept_1) * (slope_1 - slope):
                break  # the last one is below both before the new one is below the one before it
            lines.pop()
        lines.append((slope, intercept, number))

    def least(self, at: int) -> tuple[int, int] | None:
        """The value at a point of the line that is least there, and its number; None where there are no lines."""
        lines = self._lines
        if self._first >= len(lines):
            return None
        slope, intercept, number = lines[self._first]
        value = slope * at + intercept
        while self._first + 1 < len(lines):
            slope, intercept, following = lines[self._first + 1]
            if slope * at + intercept > value:
                break
            value, number = slope * at + intercept, following
            self._first += 1
        return value, number


class LiChao:
    """Lines in any order, asked for at the points 1 to `last`: each in the logarithm of that.

    A tree of intervals (Li and Chao): each holds the line that is least in its middle, of those that came to it; the
    other can be less on one side only, and goes there.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._lines: list[Line | None] = [None] * (4 * last + 4)

    def add(self, slope: int, intercept: int, number: int) -> None:
        """Add a line."""
        new, node, low, high = (slope, intercept, number), 1, 1, self._last
        while True:
            middle, old = (low + high) // 2, self._lines[node]
            if old is None:
                self._lines[node] = new
                return
            if _below(new, old, middle):
                self._lines[node], new, old = new, old, new
            if low == high:
                return
            if _below(new, old, low):
                node, high = 2 * node, middle
            elif _below(new, old, high):
                node, low = 2 * node + 1, middle + 1
            else:
                return

    def least(self, at: int) -> tuple[int, int] | None:
        """The value at a point of the line that is least there, and its number; None where there are no lines."""
        best: tuple[int, int] | None = None
        node, low, high = 1, 1, self._last
        while True:
            line = self._lines[node]
            if line is None:  # nothing came further down, either
                break
            value = line[0] * at + line[1]
            if best is None or value < best[0] or (value == best[0] and line[2] > best[1]):
                best = value, line[2]
            if low == high:
                break
            middle = (low + high) // 2
            if at <= middle:
                node, high = 2 * node, middle
            else:
                node, low = 2 * node + 1, middle + 1
        return best


def _below(one: Line, other: Line, at: int) -> bool:
    """Whether a line is the lower one at a point."""
    difference = (one[0] - other[0]) * at + one[1] - other[1]
    return difference < 0 or (difference == 0 and one[2] > other[2])
