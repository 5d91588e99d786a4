"""All the ways to lay mesh axes on slots, as arrays.

The same enumeration serves tensors (slots are dims) and ops (slots are indices). An arrangement
puts every axis either into a mode (replicated, partial, ...) or at an ordered place of a slot. One
row is one arrangement; prices and projections are then array arithmetic over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property, lru_cache
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from ...ir.diagnostics import InputError, fail
from ...ir.layout import Layout, Reduction
from ...ir.record import record

Array = NDArray[np.int64]
Mask = NDArray[np.bool_]

REPLICATED, PARTIAL_SUM, PARTIAL_MAX = 0, 1, 2
TENSOR_MODES = 3
MAX_ROWS = 150_000  # ways to lay the axes on one tensor or op; four axes make a few thousand


class TooLarge(InputError):
    """A mesh has more axes than can be searched: of what plans there are nothing is known."""


def too_large() -> TooLarge:
    """The error for a mesh with more axes than can be searched."""
    found = fail(
        "The mesh has too many axes for a search of this program.",
        hint="merge axes of one kind, as in `8x4` for `2x2x2x2x2`; up to five axes are searched in seconds",
    )
    return TooLarge(found.diagnostics)


@record
class Order:
    """Which arrangements are looked at where all of them are too many.

    Axes stand in mesh order in each slot, but for those that are `loose`; where it is `cyclic`, from any of them on
    round to the one before it, as in `F_yzx`. Those of one class (`classes[a]`; NONE is no class) can change places
    in any plan: they are told apart by the order of the slots as well, the first of them in the slots of lowest rank.
    Which of them are in a mode is left open.
    """

    loose: tuple[bool, ...]
    classes: tuple[int, ...]
    cyclic: bool = False

    @classmethod
    def any(cls, axes: int) -> Order:
        """That of all arrangements."""
        return cls((True,) * axes, (NONE,) * axes)


NONE = -1


def fits(size: int, axis_sizes: Sequence[int], even: bool = False) -> Mask:
    """Which sets of axes (bit masks) may split a dim of `size`: those whose product divides it.

    Shape [2**axes]. `even` asks for shards of even size. A dim of size 1 is never split.
    """
    ok = np.zeros(1 << len(axis_sizes), dtype=bool)
    for mask in range(len(ok)):
        ways = 1
        for a, k in enumerate(axis_sizes):
            if mask >> a & 1:
                ways *= k
        ok[mask] = mask == 0 or size % (ways * (2 if even else 1)) == 0
    return ok


@record
class Arrangements:
    """Rows of arrangements. `place[r, a]` is axis a's mode, or `modes` + its slot; `position[r, a]`
    is its place among the axes of that slot, major first (0 in modes). Both [rows, axes]."""

    place: Array
    position: Array
    modes: int
    slots: int

    def __len__(self) -> int:
        return len(self.place)

    def take(self, rows: Array | Mask) -> Arrangements:
        """Some of the rows."""
        return Arrangements(self.place[rows], self.position[rows], self.modes, self.slots)

    def ways(self, axis_sizes: Sequence[int]) -> Array:
        """Into how many parts each row splits each slot. Shape [rows, slots]."""
        out = np.ones((len(self), self.slots), dtype=np.int64)
        for a, k in enumerate(axis_sizes):
            for s in range(self.slots):
                out[self.place[:, a] == self.modes + s, s] *= k
        return out

    def codes(self) -> Array:
        """One number per row; different rows have different numbers. Shape [rows]."""
        axes = self.place.shape[1]
        state = np.where(self.place < self.modes, self.place, 0)
        slot = self.place - self.modes
        state = np.where(slot >= 0, self.modes + slot * axes + self.position, state)
        base = self.modes + self.slots * max(axes, 1)
        code = np.zeros(len(self), dtype=np.int64)
        for a in range(axes):
            code = code * base + state[:, a]
        return code

    def inversions(self) -> Array:
        """How far the axes are from standing in mesh order when slots are read in order: the plain
        `E_xF_yz` has 0, `E_zF_yx` has 3. Shape [rows]."""
        axes = self.place.shape[1]
        out = np.zeros(len(self), dtype=np.int64)
        key = self.place * (axes + 1) + self.position
        split = self.place >= self.modes
        for a in range(axes):
            for b in range(a + 1, axes):
                out += split[:, a] & split[:, b] & (key[:, a] > key[:, b])
        return out


def distinct(table: Array) -> tuple[Array, Array]:
    """The columns of a table of small whole numbers, each once and in order, and which of these each column is.

    As `np.unique(table, axis=1, return_inverse=True)`, with columns as one number each, by which they sort in a tenth
    of the time."""
    if not table.size:
        return table[:, :0], np.zeros(table.shape[1], dtype=np.int64)
    least, sizes = table.min(axis=1), np.ptp(table, axis=1) + 1
    if prod(sizes.tolist()) > np.iinfo(np.int64).max:
        columns, number = np.unique(table, axis=1, return_inverse=True)
        return columns, number.reshape(-1)
    codes = np.ravel_multi_index(tuple(table - least[:, None]), tuple(sizes.tolist()))
    _, first, number = np.unique(codes, return_index=True, return_inverse=True)
    return table[:, first], number.reshape(-1)


def arrange(
    slot_fits: Sequence[Mask],
    mode_axes: Sequence[Sequence[bool]],
    axes: int,
    order: Order | None = None,
    ranks: Sequence[int] = (),
) -> Arrangements:
    """Every arrangement of `axes` axes, each exactly once, in a fixed order.

    `slot_fits[s]` (see `fits`) says which axes may split slot s together; `mode_axes[m][a]` whether
    axis a may be in mode m. With an `order` only those that keep to it, by the `ranks` of the slots. Axes are
    inserted one by one, at every place among those already there.
    """
    order = order or Order.any(axes)
    modes, slots = len(mode_axes), len(slot_fits)
    place = np.zeros((1, 0), dtype=np.int64)
    position = np.zeros((1, 0), dtype=np.int64)
    used = np.zeros((1, slots), dtype=np.int64)  # bit mask of the axes in each slot
    count = np.zeros((1, slots), dtype=np.int64)
    for a in range(axes):
        pieces: list[tuple[Array, Array, Array, Array]] = []
        for m in range(modes):
            if mode_axes[m][a]:
                pieces.append((_append(place, m), _append(position, 0), used, count))
        for s in range(slots):
            possible = slot_fits[s][used[:, s] | 1 << a] & _classed(place, modes, a, s, order, ranks)
            for p in range(a + 1):
                may = _in_order(place, position, modes + s, a, p, order)
                rows = np.flatnonzero(possible & (count[:, s] >= p) & may)
                if not len(rows):
                    continue
                shifted = position[rows] + ((place[rows] == modes + s) & (position[rows] >= p))
                more_used, more_count = used[rows].copy(), count[rows].copy()
                more_used[:, s] |= 1 << a
                more_count[:, s] += 1
                pieces.append((_append(place[rows], modes + s), _append(shifted, p), more_used, more_count))
        if sum(len(piece[0]) for piece in pieces) > MAX_ROWS:
            raise too_large()
        place, position, used, count = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return Arrangements(place, position, modes, slots)


def _in_order(place: Array, position: Array, slot: int, axis: int, at: int, order: Order) -> Mask:
    """Where an axis may be put at a place of a slot, by the axes that are there. Shape [rows]."""
    before = [b for b in range(axis) if not order.loose[b]]
    if order.loose[axis] or not before:
        return np.ones(len(place), dtype=bool)
    there, where = place[:, before] == slot, position[:, before]
    newest = np.where(there, np.arange(len(before)), -1).argmax(axis=1)  # that with the highest number
    newest_at = np.where(there.any(axis=1), where[np.arange(len(place)), newest], -1)
    after = np.where(there & (where > newest_at[:, None]), where, len(place[0]) + 1).min(axis=1)
    may = (newest_at < at) & (at <= after)
    if order.cyclic:
        may |= (after > len(place[0])) & (at <= np.where(there, where, len(place[0]) + 1).min(axis=1))
    return np.asarray(may)


def _classed(place: Array, modes: int, axis: int, slot: int, order: Order, ranks: Sequence[int]) -> Mask:
    """Where an axis may go to a slot by the axes of its class: none before it is in a slot of higher rank."""
    ok = np.ones(len(place), dtype=bool)
    if order.classes[axis] != NONE:
        higher = np.array([False] * modes + [rank > ranks[slot] for rank in ranks])
        for b in (b for b in range(axis) if order.classes[b] == order.classes[axis]):
            ok &= ~higher[place[:, b]]
    return ok


class Orders(StrEnum):
    """In which orders axes may stand in a slot; see `Order`."""

    ANY = "any"
    CYCLIC = "cyclic"
    MESH = "mesh"

    def number(self, axes: int) -> int:
        """How many orders so many axes have."""
        return {Orders.ANY: factorial(axes), Orders.CYCLIC: max(1, axes), Orders.MESH: 1}[self]


def count_arrangements(
    slot_fits: Sequence[Mask], mode_axes: Sequence[Sequence[bool]], axes: int, orders: Orders
) -> int:
    """How many arrangements there are whose axes stand in such orders in each slot, whatever their classes."""
    ways = [1] + [0] * ((1 << axes) - 1)  # to lay each set of axes on the slots so far
    for fit in slot_fits:
        ways = [
            sum(
                ways[mask ^ own] * orders.number(own.bit_count())
                for own in _subsets(mask)
                if fit[own] and ways[mask ^ own]
            )
            for mask in range(1 << axes)
        ]
    open_to = [sum(mode[a] for mode in mode_axes) for a in range(axes)]
    left = [prod(n for a, n in enumerate(open_to) if not mask >> a & 1) for mask in range(1 << axes)]
    return sum(n * more for n, more in zip(ways, left, strict=True))


def _subsets(mask: int) -> list[int]:
    """All sets in a set, as bit masks, the empty one last."""
    out = [mask]
    while out[-1]:
        out.append((out[-1] - 1) & mask)
    return out


def _append(table: Array, value: int) -> Array:
    return np.concatenate([table, np.full((len(table), 1), value, dtype=np.int64)], axis=1)


@record(eq=False)
class Space:
    """All layouts of tensors of one shape class: slots are the dims that anything can split.

    Rows are sorted by code. Modes: replicated, partial sum, partial max (never both in one row).
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    rows: Arrangements

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def codes(self) -> Array:
        """The rows' codes, ascending."""
        return self.rows.codes()

    @cached_property
    def shards(self) -> Array:
        """Into how many parts each row splits the whole tensor."""
        return np.asarray(self.ways.prod(axis=1), dtype=np.int64)

    @cached_property
    def ways(self) -> Array:
        """Into how many parts each row splits each slot."""
        return self.rows.ways(self.axis_sizes)

    @cached_property
    def complete(self) -> Mask:
        """Which rows leave nothing partial."""
        place = self.rows.place
        return np.asarray(~((place == PARTIAL_SUM) | (place == PARTIAL_MAX)).any(axis=1))

    def find(self, rows: Arrangements) -> Array:
        """The index of each of `rows` here, or -1 where it is not in the space."""
        codes = rows.codes()
        at = np.minimum(np.searchsorted(self.codes, codes), len(self) - 1)
        return np.where(self.codes[at] == codes, at, -1)


@lru_cache(maxsize=256)
def _space(
    axis_names: tuple[str, ...],
    axis_sizes: tuple[int, ...],
    slot_fits: tuple[bytes, ...],
    sum_axes: tuple[bool, ...],
    max_axes: tuple[bool, ...],
    order: Order | None,
    ranks: tuple[int, ...],
) -> Space:
    masks = [np.frombuffer(f, dtype=bool) for f in slot_fits]
    rows = arrange(masks, [[True] * len(axis_names), sum_axes, max_axes], len(axis_names), order, ranks)
    both = (rows.place == PARTIAL_SUM).any(axis=1) & (rows.place == PARTIAL_MAX).any(axis=1)
    rows = rows.take(~both)
    return Space(axis_names, axis_sizes, rows.take(np.argsort(rows.codes(), kind="stable")))


@record
class TensorSpace:
    """The layouts of one tensor: a shape class, and which of the tensor's dims its slots are."""

    space: Space
    dims: tuple[int, ...]  # slot -> dim of the tensor
    rank: int

    def __len__(self) -> int:
        return len(self.space)

    def layout(self, row: int) -> Layout:
        """Row `row` as a Layout."""
        rows, names = self.space.rows, self.space.axis_names
        dims: list[list[tuple[int, str]]] = [[] for _ in range(self.rank)]
        partial: dict[Reduction, list[str]] = {Reduction.SUM: [], Reduction.MAX: []}
        for a, name in enumerate(names):
            place = int(rows.place[row, a])
            if place >= rows.modes:
                dims[self.dims[place - rows.modes]].append((int(rows.position[row, a]), name))
            elif place == PARTIAL_SUM:
                partial[Reduction.SUM].append(name)
            elif place == PARTIAL_MAX:
                partial[Reduction.MAX].append(name)
        reduction = Reduction.MAX if partial[Reduction.MAX] else Reduction.SUM
        split = tuple(tuple(name for _, name in sorted(axes)) for axes in dims)
        return Layout(split, tuple(sorted(partial[reduction])), reduction)

    def index(self, layout: Layout) -> int | None:
        """The row of a layout, or None when the tensor cannot lie so. Axes of size 1 do not count."""
        names = self.space.axis_names
        place, position = np.zeros((1, len(names)), np.int64), np.zeros((1, len(names)), np.int64)
        slot_of = {d: s for s, d in enumerate(self.dims)}
        for d, axes in enumerate(layout.dims):
            live = [a for a in axes if a in names]
            if live and d not in slot_of:
                return None
            for p, axis in enumerate(live):
                place[0, names.index(axis)] = TENSOR_MODES + slot_of[d]
                position[0, names.index(axis)] = p
        mode = PARTIAL_MAX if layout.reduction is Reduction.MAX else PARTIAL_SUM
        for axis in layout.partial:
            if axis in names:
                place[0, names.index(axis)] = mode
        found = int(self.space.find(Arrangements(place, position, TENSOR_MODES, len(self.dims)))[0])
        return None if found < 0 else found


def tensor_space(
    sizes: Sequence[int],
    axes: Sequence[tuple[str, int]],
    sum_axes: frozenset[str] = frozenset(),
    max_axes: frozenset[str] = frozenset(),
    order: Order | None = None,
    ranks: Sequence[int] = (),
) -> TensorSpace:
    """The layouts of a tensor of shape `sizes` over the live `axes` (name, size > 1).

    `sum_axes` and `max_axes`: over which axes it may be a partial sum, a partial maximum. With an `order` those
    that keep to it, by the `ranks` of the dims.
    """
    names = tuple(name for name, _ in axes)
    axis_sizes = tuple(size for _, size in axes)
    masks = [fits(size, axis_sizes) for size in sizes]
    dims = tuple(d for d, mask in enumerate(masks) if mask[1:].any())
    key = tuple(masks[d].tobytes() for d in dims)
    partial = tuple(n in sum_axes for n in names), tuple(n in max_axes for n in names)
    # Ranks are told apart by their order alone, so that tensors of one shape share a space.
    own = [] if order is None else [ranks[d] for d in dims]
    return TensorSpace(
        _space(names, axis_sizes, key, *partial, order, tuple(map(sorted(own).index, own))), dims, len(sizes)
    )


def count_layouts(
    sizes: Sequence[int],
    axes: Sequence[tuple[str, int]],
    sum_axes: frozenset[str],
    max_axes: frozenset[str],
    orders: Orders,
) -> int:
    """How many layouts a tensor has, as `tensor_space`, or a few more; see `count_arrangements`."""
    masks = tuple(fits(size, [size for _, size in axes]).tobytes() for size in sizes)
    modes = tuple(tuple(name in some for name, _ in axes) for some in (sum_axes, max_axes))
    return _count(masks, ((True,) * len(axes), *modes), len(axes), orders)


@lru_cache(maxsize=4096)
def _count(slot_fits: tuple[bytes, ...], mode_axes: tuple[tuple[bool, ...], ...], axes: int, orders: Orders) -> int:
    return count_arrangements([np.frombuffer(f, dtype=bool) for f in slot_fits], mode_axes, axes, orders)
