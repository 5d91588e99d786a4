"""The mesh as a drawing: a cell for each chip, in panels of two axes. Lengths are pixels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from math import ceil, isqrt

from ....ir.mesh import Mesh
from ....ir.record import record

CHARACTER = 6.5  # the width of a character, and a little more


@record
class Text:
    """A word and where it stands, in pixels; `anchor` is SVG's. `turned`: it is read from below."""

    words: str
    x: float
    y: float
    anchor: str = "start"
    turned: bool = False


CELL = 26
MARGIN = 18  # above a panel, for indices, and beside it where axes have short names
GAP = 16  # below a panel
MOST_CHIPS = 1024  # that are drawn
ROW = 16  # chips of a mesh of one axis in a row


@record
class Cell:
    """A chip: its coordinates in the order of the mesh's axes, and the corner of its square."""

    at: tuple[int, ...]
    x: int
    y: int


@record
class MeshDrawing:
    """Chips as squares of `cell` a side. `missing`: how many chips are not drawn, as there are too many."""

    width: int
    height: int
    cell: int
    cells: tuple[Cell, ...]
    texts: tuple[Text, ...]
    missing: int


def draw_mesh(mesh: Mesh) -> MeshDrawing:
    """The first axis goes to the right, the second down; there is a panel for each place along the others.

    A mesh of one axis goes to the right and on in the next row.
    """
    names, sizes = mesh.names, mesh.sizes
    lone = len(sizes) == 1
    across = min(sizes[0], ROW) if lone else sizes[0]
    down = -(-sizes[0] // across) if lone else sizes[1]
    drawn_down = min(down, max(1, MOST_CHIPS // across))
    drawn_across = min(across, MOST_CHIPS)
    outer = sizes[2:]
    drawn_panels = max(1, MOST_CHIPS // (drawn_across * drawn_down))
    places = list(islice(product(*map(range, outer)), drawn_panels))
    columns = outer[-1] if len(outer) > 1 else _columns(len(places))
    title = CELL - 4 if outer else 0
    beside = _margin(names[0]), _margin("" if lone else names[1])  # right of a panel, and left
    pitch_x = beside[1] + drawn_across * CELL + beside[0]
    pitch_y = title + MARGIN + drawn_down * CELL + GAP
    cells: list[Cell] = []
    texts: list[Text] = []
    for k, place in enumerate(places):
        left, top = k % columns * pitch_x + beside[1], k // columns * pitch_y + title + MARGIN
        if outer:
            texts.append(Text(" ".join(f"{n}={i}" for n, i in zip(names[2:], place, strict=True)), left, top - MARGIN))
        for j, i in product(range(drawn_down), range(drawn_across)):
            at = (j * across + i,) if lone else (i, j, *place)
            if at[0] < sizes[0]:
                cells.append(Cell(at, left + i * CELL, top + j * CELL))
        texts += _indices(names, drawn_across, drawn_down, lone, left, top)
    rows = -(-len(places) // columns)
    width, height = min(columns, len(places)) * pitch_x, rows * pitch_y - GAP + 1
    return MeshDrawing(width, height, CELL, tuple(cells), tuple(texts), mesh.chips - len(cells))


def _indices(names: tuple[str, ...], across: int, down: int, lone: bool, left: int, top: int) -> Iterator[Text]:
    """The places along the two axes of a panel, with their names."""
    yield from (Text(str(i), left + i * CELL + CELL // 2, top - 5, "middle") for i in range(across))
    yield Text(names[0], left + across * CELL + 4, top - 5)
    step = across if lone else 1
    yield from (Text(str(j * step), left - 5, top + j * CELL + CELL // 2 + 4, "end") for j in range(down) if down > 1)
    if not lone:
        yield Text(names[1], left - 5, top - 5, "end")


def _margin(name: str) -> int:
    """Room beside a panel for the name of an axis."""
    return max(MARGIN, ceil(CHARACTER * len(name)) + 10)


def _columns(panels: int) -> int:
    """How many panels stand in a row: the smallest number not below the root that divides them."""
    return next(c for c in range(max(1, isqrt(panels - 1) + 1), panels + 1) if panels % c == 0)
