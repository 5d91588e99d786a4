"""How a tensor is cut, as a drawing: its two most divided dims as a rectangle, the other cut ones as strips.

Lengths are pixels, rounded to a tenth. What a chip holds is drawn for the chip at 0 in all axes; the
page moves it as others are picked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....ir.mesh import Mesh
from ....ir.record import record
from .mesh_drawing import CHARACTER, Text

WIDTH, STRIP = 216.0, 22.0
LEAST_HEIGHT, MOST_HEIGHT, ROW = 112.0, 208.0, 10.0  # of a rectangle, and what a row would like
LEVEL = 12.0  # the height of a row of indices of one axis, above what it cuts
TITLE = 14.0
BOTTOM = 14.0  # room for the names of the axes that cut rows
LEAST_HIGH = 9.0  # pixels for a digit
LONGEST = 16  # characters of a dim that are shown
LEAST_CUT = 2.0  # pixels between lines


@record
class Dim:
    """A dim of a tensor: its size, and the axes that cut it with their sizes, major to minor."""

    name: str
    size: int
    axes: tuple[tuple[str, int], ...]

    @property
    def ways(self) -> int:
        """Into how many parts it is cut."""
        ways = 1
        for _, size in self.axes:
            ways *= size
        return ways


@record
class Panel:
    """A rectangle of blocks, `rows` down and `columns` to the right; either may be missing.

    `cuts` and `ticks` are paths in SVG's notation: lines between blocks, and those of the rulers.
    """

    x: float
    y: float
    width: float
    height: float
    rows: Dim | None
    columns: Dim | None
    cuts: str
    ticks: str
    texts: tuple[Text, ...]

    @property
    def held(self) -> tuple[float, float]:
        """Width and height of one block."""
        across, down = (1 if dim is None else dim.ways for dim in (self.columns, self.rows))
        return _round(self.width / across), _round(self.height / down)


@record
class Drawing:
    """Panels one below the other; the first has the two dims that are cut most."""

    width: float
    height: float
    panels: tuple[Panel, ...]


def dims_of(names: Sequence[str], sizes: Sequence[int], axes: Sequence[Sequence[str]], mesh: Mesh) -> tuple[Dim, ...]:
    """The dims of a tensor as they lie on a mesh. An axis of one chip cuts nothing."""
    return tuple(
        Dim(name, size, tuple((a, mesh.size(a)) for a in cut if mesh.size(a) > 1))
        for name, size, cut in zip(names, sizes, axes, strict=True)
    )


def draw_shards(dims: Sequence[Dim]) -> Drawing:
    """The drawing of a tensor."""
    by_cut = sorted(range(len(dims)), key=lambda d: (-dims[d].ways, -dims[d].size, d))
    drawn = sorted(d for d in by_cut[:2] if dims[d].size > 1)
    first = [dims[d] for d in drawn]
    rows, columns = first if len(first) == 2 else (None, first[0] if first else None)
    left = 1.0 if rows is None else TITLE + sum(_column(name, size) for name, size in rows.axes)
    height = STRIP if rows is None else min(max(ROW * rows.ways, LEAST_HEIGHT), MOST_HEIGHT)
    panels = [_panel(left, 0.0, rows, columns, height)]
    for d, dim in enumerate(dims):
        if dim.ways > 1 and d not in drawn:
            panels.append(_panel(left, panels[-1].y + panels[-1].height + BOTTOM, None, dim, STRIP / 2))
    names = (name for panel in panels if panel.columns for name, _ in panel.columns.axes)
    right = 8.0 + CHARACTER * max(map(len, names), default=1)
    return Drawing(left + WIDTH + right, panels[-1].y + panels[-1].height + BOTTOM, tuple(panels))


def _panel(x: float, top: float, rows: Dim | None, columns: Dim | None, height: float) -> Panel:
    """A panel with its left side at `x`, whose title starts at `top`."""
    y = top + (1.0 if columns is None else TITLE + LEVEL * len(columns.axes))
    cuts, ticks, texts = "", "", list[Text]()
    if columns is not None:
        texts.append(Text(_title(columns), x, top + TITLE - 4))
        for k, level in enumerate(_levels(columns, WIDTH, upright=False)):
            low = top + TITLE + LEVEL * (k + 1)
            texts += [Text(digits, _round(x + at), low - 3, "middle") for digits, at in level.labels]
            texts.append(Text(level.axis, x + WIDTH + 4, low - 3))
            ticks += "".join(f"M{_round(x + at):g} {low - LEVEL:g}V{low:g}" for at in level.cuts)
            cuts = "".join(f"M{_round(x + at):g} {y:g}v{height:g}" for at in level.cuts)
    if rows is not None:
        texts.append(Text(_title(rows), TITLE - 4, y + height, turned=True))
        left, down = TITLE, ""
        for level, (name, size) in zip(_levels(rows, height, upright=True), rows.axes, strict=True):
            wide = _column(name, size)
            texts += [Text(digits, left + wide / 2, _round(y + at + 3.5), "middle") for digits, at in level.labels]
            texts.append(Text(level.axis, left + wide / 2, y + height + 11, "middle"))
            ticks += "".join(f"M{left:g} {_round(y + at):g}h{wide:g}" for at in level.cuts)
            down = "".join(f"M{x:g} {_round(y + at):g}h{WIDTH:g}" for at in level.cuts)
            left += wide
        cuts += down
    return Panel(x, y, WIDTH, height, rows, columns, cuts, ticks, tuple(texts))


def _title(dim: Dim) -> str:
    name = dim.name if len(dim.name) <= LONGEST else f"{dim.name[: LONGEST - 1]}…"
    return f"{name} {dim.size}"


@record
class _Level:
    """One axis along a side: where it cuts, and its indices with the middles of what they name."""

    axis: str
    cuts: tuple[float, ...]
    labels: tuple[tuple[str, float], ...]


def _levels(dim: Dim, length: float, upright: bool) -> Iterator[_Level]:
    """The axes that cut a dim, major first. Lines too near to each other, and digits without room, are left out."""
    count, cuts = 1, tuple[float, ...]()
    for axis, size in dim.axes:
        count *= size
        part = length / count
        if part >= LEAST_CUT:
            cuts = tuple(part * i for i in range(1, count))
        room = part >= (LEAST_HIGH if upright else CHARACTER * len(str(size - 1)))
        labels = tuple((str(i % size), part * (i + 0.5)) for i in range(count)) if room else ()
        yield _Level(axis, cuts, labels)


def _column(name: str, size: int) -> float:
    """The width of a column of indices of one axis, with its name below."""
    return CHARACTER * max(len(name), len(str(size - 1))) + 5.5


def _round(length: float) -> float:
    return round(length, 1)
