"""Strategies: all the ways to run an op on a mesh.

In a strategy each axis goes to one index of the op, at an ordered place, or to none (every chip
along it does the same), or makes one operand a partial sum where the op is linear in it. The
layouts of operands and result are projections of that, so an axis on a contracted index leaves the
result partial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property, lru_cache

import numpy as np

from ...ir.layout import Layout, Reduction
from ...ir.mesh import Mesh
from ...ir.program import Op, Signature, Value, signature
from ...ir.record import record
from .space import (
    PARTIAL_MAX,
    PARTIAL_SUM,
    REPLICATED,
    TENSOR_MODES,
    Arrangements,
    Array,
    Mask,
    Order,
    Orders,
    TensorSpace,
    arrange,
    count_arrangements,
    fits,
)

NONE = 0  # the mode of an axis along which every chip does the same; modes from 1 on are partial


@record(eq=False)
class StrategyTable:
    """The strategies of one op, one row each.

    Slots are the indices of `signature.indices`; mode 1 + j makes the j-th linear operand partial
    (or all of them, where the op takes them together).
    """

    signature: Signature
    sizes: tuple[int, ...]  # of the signature's indices
    axes: tuple[tuple[str, int], ...]  # those of the mesh that have more than one chip
    rows: Arrangements

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def ways(self) -> Array:
        """Into how many parts each strategy splits each index. Shape [rows, indices]."""
        return self.rows.ways([size for _, size in self.axes])

    def take(self, rows: Array) -> StrategyTable:
        """Some of the strategies."""
        return StrategyTable(self.signature, self.sizes, self.axes, self.rows.take(rows))

    def use_rows(self, use: int, space: TensorSpace) -> Array:
        """The layout in which each strategy reads operand `use`: a row of `space`, or -1."""
        sig = self.signature
        if sig.together:
            partial = {1: PARTIAL_SUM}
        else:
            mode = PARTIAL_MAX if sig.reduction is Reduction.MAX else PARTIAL_SUM
            partial = {1 + j: mode for j, k in enumerate(sig.linear) if k == use}
        return self._project(sig.uses[use].indices, partial, REPLICATED, space)

    def result_rows(self, space: TensorSpace) -> Array:
        """The layout in which each strategy leaves the result: a row of `space`, or -1."""
        mode = PARTIAL_MAX if self.signature.reduction is Reduction.MAX else PARTIAL_SUM
        partial = dict.fromkeys(range(1, self.rows.modes), mode)
        return self._project(self.signature.result, partial, mode, space)

    def use_layout(self, row: int, use: int) -> Layout:
        """The layout in which strategy `row` reads operand `use`."""
        sig = self.signature
        partial = {1} if sig.together else {1 + j for j, k in enumerate(sig.linear) if k == use}
        return self._layout(row, sig.uses[use].indices, partial, False)

    def result_layout(self, row: int) -> Layout:
        """The layout in which strategy `row` leaves the result."""
        return self._layout(row, self.signature.result, set(range(1, self.rows.modes)), True)

    def _layout(self, row: int, indices: tuple[str, ...], partial_modes: Set[int], contracted: bool) -> Layout:
        """The layout of a value with dims `indices`; see `_project`."""
        sig, modes = self.signature, self.rows.modes
        dims: dict[str, list[tuple[int, str]]] = {index: [] for index in indices}
        partial = []
        for a, (name, _) in enumerate(self.axes):
            place = int(self.rows.place[row, a])
            index = sig.indices[place - modes] if place >= modes else None
            if index in dims:
                dims[index].append((int(self.rows.position[row, a]), name))
            elif place in partial_modes or (contracted and index in sig.contracted):
                partial.append(name)
        split = tuple(tuple(name for _, name in sorted(axes)) for axes in dims.values())
        return Layout(split, tuple(sorted(partial)), sig.reduction if partial else Reduction.SUM)

    def _project(
        self, indices: tuple[str, ...], partial: Mapping[int, int], contracted: int, space: TensorSpace
    ) -> Array:
        """Rows of `space` for a value with dims `indices`.

        `partial` maps a mode to a tensor mode (others replicate); an axis on an index that the
        value lacks gives `contracted`, if the index is contracted by the op, else replicates.
        """
        sig, modes = self.signature, self.rows.modes
        target = np.full(modes + self.rows.slots, REPLICATED, dtype=np.int64)
        for mode, tensor_mode in partial.items():
            target[mode] = tensor_mode
        impossible = np.zeros(modes + self.rows.slots, dtype=bool)
        for s, index in enumerate(sig.indices):
            if index in indices:
                dim = indices.index(index)
                if dim in space.dims:
                    target[modes + s] = TENSOR_MODES + space.dims.index(dim)
                else:
                    impossible[modes + s] = True
            elif index in sig.contracted:
                target[modes + s] = contracted
        place = target[self.rows.place]
        position = np.where(place >= TENSOR_MODES, self.rows.position, 0)
        found = space.space.find(Arrangements(place, position, TENSOR_MODES, len(space.dims)))
        return np.where(impossible[self.rows.place].any(axis=1), -1, found)


def live_axes(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """The axes that can split something: those with more than one chip."""
    return tuple((name, size) for name, size in mesh.axes if size > 1)


def strategies(
    op: Op,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    mesh: Mesh,
    partial_allowed: Mapping[str, frozenset[str]] | None = None,
    order: Order | None = None,
) -> StrategyTable:
    """Every strategy of `op` on `mesh`, each once, in a fixed order.

    `sizes` binds the dims. `partial_allowed[v]` are the axes over which value v may be partial when
    it is read, with the reduction that the op can pass on; without the mapping, all axes. With an `order` those
    that keep to it, the indices ranked as `sizes` has them.
    """
    sig, axes = signature(op, values), live_axes(mesh)
    ranks = dim_ranks(sig.indices, sizes)
    fits_of, modes = _open(sig, sizes, axes, partial_allowed)
    key = tuple(mask.tobytes() for mask in fits_of), tuple(map(tuple, modes))
    # Ranks are told apart by their order alone, so that ops of one shape share their arrangements.
    rows = _arranged(*key, len(axes), order, () if order is None else tuple(map(sorted(ranks).index, ranks)))
    return StrategyTable(sig, tuple(sizes[i] for i in sig.indices), axes, rows)


@lru_cache(maxsize=64)
def _arranged(
    slot_fits: tuple[bytes, ...],
    mode_axes: tuple[tuple[bool, ...], ...],
    axes: int,
    order: Order | None,
    ranks: tuple[int, ...],
) -> Arrangements:
    return arrange([np.frombuffer(mask, dtype=bool) for mask in slot_fits], mode_axes, axes, order, ranks)


def count_strategies(
    op: Op,
    values: Mapping[str, Value],
    sizes: Mapping[str, int],
    mesh: Mesh,
    partial_allowed: Mapping[str, frozenset[str]],
    orders: Orders,
) -> int:
    """How many strategies an op has whose axes stand in such orders on each index."""
    axes = live_axes(mesh)
    return count_arrangements(*_open(signature(op, values), sizes, axes, partial_allowed), len(axes), orders)


def dim_ranks(dims: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Where dims stand in the order in which `sizes` has them."""
    rank = {name: n for n, name in enumerate(sizes)}
    return tuple(rank[dim] for dim in dims)


def _open(
    sig: Signature,
    sizes: Mapping[str, int],
    axes: Sequence[tuple[str, int]],
    partial_allowed: Mapping[str, frozenset[str]] | None,
) -> tuple[list[Mask], list[list[bool]]]:
    """Which axes may split each index of an op, and which may be in each mode; see `arrange`."""
    axis_sizes = [size for _, size in axes]
    nothing = np.zeros(1 << len(axes), dtype=bool)
    nothing[0] = True
    slot_fits = [nothing if i in sig.whole else fits(sizes[i], axis_sizes, i in sig.even) for i in sig.indices]
    mode_axes = [[True] * len(axes)]
    groups = [tuple(range(len(sig.uses)))] if sig.together else [(k,) for k in sig.linear]
    for group in groups:
        names = {sig.uses[k].value for k in group}
        mode_axes.append([_may_be_partial(name, names, partial_allowed) for name, _ in axes])
    return slot_fits, mode_axes


def _may_be_partial(axis: str, names: set[str], allowed: Mapping[str, frozenset[str]] | None) -> bool:
    return allowed is None or all(axis in allowed.get(name, frozenset()) for name in names)
