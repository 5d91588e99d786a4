"""Collectives: the steps that change a value's layout, and what each does to it.

`apply(collective, layout)` is total: it gives the layout that results, or raises LayoutError when
the collective is not legal there. Gathers, slices, reduce-scatters and all-to-alls act on the minor
end of a dimension's axes; anything else is a permute.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from .layout import Layout, Reduction, format_layout
from .record import record


class LayoutError(ValueError):
    """A collective or an op does not fit the layouts of its operands."""


@record
class AllGather:
    """Every chip gets the whole of `dim` over `axes`, the minor end of what splits it."""

    axes: tuple[str, ...]
    dim: int


@record
class ReduceScatter:
    """Complete the partial `axes`, and split `dim` by them, in this order, at its minor end."""

    axes: tuple[str, ...]
    dim: int


@record
class AllReduce:
    """Complete the partial `axes`; every chip gets the result."""

    axes: tuple[str, ...]


@record
class AllToAll:
    """Take `axes` from the minor end of dim `source`, split dim `target` by them instead.

    At the source's end the axes stand in any order; at the target they are appended in the order
    given here.
    """

    axes: tuple[str, ...]
    source: int
    target: int


@record
class Slice:
    """Each chip keeps its own part of `dim` over `axes`, appended in this order. Nothing is sent."""

    axes: tuple[str, ...]
    dim: int


@record
class Permute:
    """Blocks change chips until the value lies as `layout`, which splits every dimension into as
    many parts as before, by the same axes all in all."""

    layout: Layout


@record
class Embed:
    """A complete value becomes a partial sum over `axes`: it stands on one chip, with zeros on the
    others. With a `dim`, `axes` are taken from its minor end: each chip keeps its block among zeros.
    Nothing is sent."""

    axes: tuple[str, ...]
    dim: int | None = None


class CollectiveKind(StrEnum):
    """The kinds of collectives, as they are printed. `slice` and `embed` send nothing."""

    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "permute"
    SLICE = "slice"
    EMBED = "embed"


Collective = AllGather | ReduceScatter | AllReduce | AllToAll | Slice | Permute | Embed

_KINDS = {
    AllGather: CollectiveKind.ALL_GATHER,
    ReduceScatter: CollectiveKind.REDUCE_SCATTER,
    AllReduce: CollectiveKind.ALL_REDUCE,
    AllToAll: CollectiveKind.ALL_TO_ALL,
    Permute: CollectiveKind.PERMUTE,
    Slice: CollectiveKind.SLICE,
    Embed: CollectiveKind.EMBED,
}


def kind(collective: Collective) -> CollectiveKind:
    """Of what kind a collective is."""
    return _KINDS[type(collective)]


def sent_as(which: CollectiveKind, reduction: Reduction) -> CollectiveKind:
    """The kind of collective as which one sends its bytes: backends scatter nothing but sums, so that a maximum is
    reduce-scattered as an all-to-all and a local maximum."""
    highest = which == CollectiveKind.REDUCE_SCATTER and reduction is Reduction.MAX
    return CollectiveKind.ALL_TO_ALL if highest else which


def axes_of(collective: Collective, before: Layout) -> tuple[str, ...]:
    """The mesh axes over which chips exchange data; for a permute those whose place changes."""
    if isinstance(collective, Permute):
        places = [_places(layout) for layout in (before, collective.layout)]
        return tuple(sorted(a for a in places[0] if places[0][a] != places[1].get(a)))
    return collective.axes


def apply(collective: Collective, layout: Layout) -> Layout:
    """The layout after `collective`. Raises LayoutError where it is not legal."""
    match collective:
        case AllGather(axes, dim):
            return layout.replace(dim, _without_minor(layout, dim, axes, ordered=True))
        case Slice(axes, dim):
            _check_unused(layout, axes)
            return layout.replace(dim, layout.dims[dim] + axes)
        case AllToAll(axes, source, target):
            if source == target:
                raise LayoutError("an all-to-all moves axes between two dims")
            rest = layout.replace(source, _without_minor(layout, source, axes, ordered=False))
            return rest.replace(target, rest.dims[target] + axes)
        case ReduceScatter(axes, dim):
            rest = _completed(layout, axes)
            return rest.replace(dim, rest.dims[dim] + axes)
        case AllReduce(axes):
            return _completed(layout, axes)
        case Embed(axes, dim):
            if layout.partial and layout.reduction is not Reduction.SUM:
                raise LayoutError("only a partial sum takes an embedded value")
            if dim is None:
                _check_unused(layout, axes)
                rest = layout
            else:
                rest = layout.replace(dim, _without_minor(layout, dim, axes, ordered=False))
            return rest.with_partial((*rest.partial, *axes), Reduction.SUM)
        case Permute(after):
            same = after.partial == layout.partial and after.reduction == layout.reduction
            if not same or after.split_axes != layout.split_axes or len(after.dims) != len(layout.dims):
                raise LayoutError("a permute keeps the axes that split a value and what is partial")
            return after


def _check_unused(layout: Layout, axes: Sequence[str]) -> None:
    for axis in axes:
        if axis in layout.split_axes or axis in layout.partial:
            raise LayoutError(f"axis `{axis}` is in use already")


def _without_minor(layout: Layout, dim: int, axes: Sequence[str], ordered: bool) -> tuple[str, ...]:
    if not 0 <= dim < len(layout.dims):
        raise LayoutError(f"there is no dim {dim}")
    have = layout.dims[dim]
    keep, tail = have[: len(have) - len(axes)], have[len(have) - len(axes) :]
    if len(axes) > len(have) or not axes or (tail != tuple(axes) if ordered else set(tail) != set(axes)):
        raise LayoutError(f"axes {', '.join(axes)} are not the minor end of what splits dim {dim}")
    return keep


def _completed(layout: Layout, axes: Sequence[str]) -> Layout:
    if not axes or not set(axes) <= set(layout.partial) or len(set(axes)) != len(axes):
        raise LayoutError(f"the value is not partial over {', '.join(axes)}")
    return layout.with_partial([a for a in layout.partial if a not in axes], layout.reduction)


def _places(layout: Layout) -> dict[str, tuple[int, int]]:
    return {a: (d, i) for d, axes in enumerate(layout.dims) for i, a in enumerate(axes)}


def describe(collective: Collective, names: Sequence[str]) -> str:
    """The collective as the sharded program prints it, dims by name: `all-gather(yz) E`."""
    axes = "" if isinstance(collective, Permute) else join_axes(collective.axes)
    match collective:
        case AllGather(_, dim) | ReduceScatter(_, dim) | Slice(_, dim):
            return f"{kind(collective)}({axes}) {names[dim]}"
        case AllToAll(_, source, target):
            return f"{kind(collective)}({axes}) {names[source]}->{names[target]}"
        case Embed(_, dim):
            return f"{kind(collective)}({axes})" + (f" {names[dim]}" if dim is not None else "")
        case Permute(layout):
            return f"{kind(collective)} {format_layout(names, layout)}"
        case AllReduce():
            return f"{kind(collective)}({axes})"


def join_axes(axes: Sequence[str]) -> str:
    """Axes in one word: `yz`, or `node.gpu` where a name is longer than a letter."""
    return ("" if all(len(a) == 1 for a in axes) else ".").join(axes)
