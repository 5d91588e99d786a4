"""The layouts that measurements name, as pins: what splits the weights of a layer, and what its caches.

They are those of Pope et al. 2022, sections 3.2 and 3.3, for any model whose layers are one repeat that
carries the activations. Of the mesh, the first axis (x) splits the model dim in the two-dimensional
layouts, the others (z, y) the wide one: the feed-forward's, or the heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from ...ir.diagnostics import fail
from ...ir.layout import Layout, Reduction, format_layout, unsplittable
from ...ir.mesh import Mesh
from ...ir.program import Append, Einsum, Kind, Op, Pin, PinKind, Program, Repeat, Value
from ...ir.record import record

Axes = tuple[str, ...]


class FeedForwardLayout(StrEnum):
    """How weights are used: where they are stored split over one dim or two, or gathered over some axes; or as the
    search finds it best."""

    WS1D = "ws1d"
    WS2D = "ws2d"
    WG_X = "wg-x"
    WG_XY = "wg-xy"
    WG_XYZ = "wg-xyz"
    FOUND = "found"


class AttentionLayout(StrEnum):
    """What splits the caches; or what the search finds best."""

    HEADS = "heads"
    BATCH = "batch"
    FOUND = "found"


@record
class Split:
    """The axes of a weight's two dims, and those that split the batch beside them."""

    model: Axes
    wide: Axes
    batch: Axes = ()


@record
class _Layer:
    """The repeat of a program and what its structure says: the batch and model dims, and those of one head."""

    program: Program
    repeat: Repeat[Op]
    values: Mapping[str, Value]
    batch: str
    model: str
    head: frozenset[str]

    def stored(self, kind: Kind) -> list[str]:
        """What is stored of a kind, for each layer."""
        return [item.value for item in self.repeat.body.stored if item.kind is kind]


def named_pins(
    program: Program, sizes: Mapping[str, int], mesh: Mesh, feed_forward: FeedForwardLayout, attention: AttentionLayout
) -> tuple[Pin, ...]:
    """The pins of named layouts, for dims of `sizes`. What `sizes` cannot be split by is left to the search.

    Raises InputError when the program has no repeated layer that carries activations, or the mesh too
    few axes for the layout.
    """
    if feed_forward is FeedForwardLayout.FOUND and attention is AttentionLayout.FOUND:
        return ()
    layer = _layer_of(program)
    fits = _Fit(layer.values, sizes, mesh)
    pins: dict[tuple[PinKind, str, str | None], Pin] = {}
    if feed_forward is not FeedForwardLayout.FOUND:
        for pin in _weight_pins(layer, *_splits(feed_forward, mesh), fits):
            pins.setdefault((pin.kind, pin.value, pin.op), pin)
    if attention is not AttentionLayout.FOUND:
        for pin in _cache_pins(layer, attention, fits):
            pins.setdefault((pin.kind, pin.value, pin.op), pin)
    return tuple(pins.values())


def _splits(layout: FeedForwardLayout, mesh: Mesh) -> tuple[Split, Split]:
    """How weights are stored, and how they are used."""
    axes = tuple(axis for axis in mesh.names if mesh.size(axis) > 1)
    needed = {FeedForwardLayout.WS1D: 0, FeedForwardLayout.WG_XYZ: 1, FeedForwardLayout.WG_XY: 3}.get(layout, 2)
    if mesh.chips > 1 and len(axes) < needed:
        shape = "x".join(map(str, mesh.sizes))
        raise fail(f"The layout `{layout}` needs {needed} axes, and the mesh {shape} has {len(axes)}.")
    # y stands last, that is minor: only then can weights be gathered over x and y, and stay split over z.
    first, others = axes[:1], axes[:0:-1]
    two_dims = Split(first, others)
    match layout:
        case FeedForwardLayout.WS1D:
            return Split((), axes[::-1]), Split((), axes[::-1])
        case FeedForwardLayout.WS2D:
            return two_dims, two_dims
        case FeedForwardLayout.WG_X:
            return two_dims, Split((), others, first)
        case FeedForwardLayout.WG_XY:
            return two_dims, Split((), others[:-1], (*first, *others[-1:]))
        case FeedForwardLayout.WG_XYZ:
            return two_dims, Split((), (), axes)
        case FeedForwardLayout.FOUND:
            raise ValueError("what is found has no splits")


def _layer_of(program: Program) -> _Layer:
    values = program.table()
    repeats = [item for item in program.body.items if isinstance(item, Repeat) and item.carries]
    if not repeats or len(values[repeats[0].carries[0].inside].dims) < 2:
        raise fail(f"The model `{program.name[:60]}` has no repeated layer, whose layouts could be named.")
    carried = values[repeats[0].carries[0].inside].dims
    layer = repeats[0]
    return _Layer(program, layer, values, carried[0], carried[-1], _head_dims(layer, carried[-1]))


def _head_dims(layer: Repeat[Op], model: str) -> frozenset[str]:
    """The dims of one head: those that a cache and what it is multiplied with are summed over.

    The dim that the context is counted along is summed over too, where values are weighed; no query has it.
    """
    caches = {item.result: item for item in layer.body.items if isinstance(item, Append)}
    found: set[str] = set()
    for item in layer.body.items:
        if isinstance(item, Einsum):
            for cache in set(item.operands) & set(caches):
                summed = {index for indices in item.indices for index in indices} - set(item.output)
                found |= summed - {caches[cache].target, model}
    return frozenset(found)


@record
class _Fit:
    """Layouts of values, as far as their sizes can be split by the axes of a mesh."""

    values: Mapping[str, Value]
    sizes: Mapping[str, int]
    mesh: Mesh

    def pin(
        self, kind: PinKind, value: str, op: str | None, split: Mapping[str, Axes], partial: Axes = ()
    ) -> Iterator[Pin]:
        """The pin, if the value can lie so."""
        dims = self.values[value].dims
        layout = Layout(tuple(split.get(dim, ()) for dim in dims), tuple(sorted(partial)), Reduction.SUM)
        if not unsplittable(dims, layout, self.sizes, self.mesh):
            text = f"{kind} {f'{op}.' if op else ''}{value} {format_layout(dims, layout)}"
            yield Pin(kind, value, op, layout, text)

    def filled(self, dim: str, axes: Axes) -> dict[str, Axes]:
        """Those of the axes, in order, that still divide a dim."""
        taken: Axes = ()
        for axis in axes:
            if self.sizes[dim] % self.mesh.size(*taken, axis) == 0:
                taken += (axis,)
        return {dim: taken}

    def spread(self, dims: Sequence[str], axes: Axes) -> dict[str, Axes]:
        """The axes, in order, each on the first of `dims` that it still divides; on the first where none is."""
        split: dict[str, Axes] = dict.fromkeys(dims, ())
        for axis in axes:
            whole = [dim for dim in dims if self.sizes[dim] % self.mesh.size(*split[dim], axis) == 0]
            split[whole[0] if whole else dims[0]] += (axis,)
        return split


def _weight_pins(layer: _Layer, stored: Split, used: Split, fits: _Fit) -> Iterator[Pin]:
    """Pins of each weight that has the model dim and a wide one, and of what it is multiplied with."""
    weights = layer.stored(Kind.PARAM)
    for item in layer.repeat.body.items:
        if not isinstance(item, Einsum):
            continue
        # The scale of a quantised weight is split as that is, and needs no pin.
        scales = {f"{name}.scale" for name in item.operands}
        factors = [name for name in item.operands if name not in scales]
        if len(factors) != 2:
            continue
        activations, weight = sorted(factors, key=weights.__contains__)
        dims = layer.values[weight].dims
        wide = [dim for dim in dims if dim != layer.model and dim not in layer.head]
        if weight not in weights or activations in weights or layer.model not in dims or not wide:
            continue
        batch = {layer.batch: used.batch}
        narrow, spread = {layer.model: used.model}, fits.spread(wide, used.wide)
        kept = {layer.model: stored.model, **fits.spread(wide, stored.wide)}
        yield from fits.pin(PinKind.STORED, weight, None, kept)
        yield from fits.pin(PinKind.USE, weight, item.result, {**narrow, **spread})
        into = layer.model not in layer.values[item.result].dims
        entering, leaving, summed = (narrow, spread, used.model) if into else (spread, narrow, used.wide)
        yield from fits.pin(PinKind.USE, activations, item.result, {**batch, **entering})
        yield from fits.pin(PinKind.RESULT, item.result, None, {**batch, **leaving}, summed)


def _cache_pins(layer: _Layer, attention: AttentionLayout, fits: _Fit) -> Iterator[Pin]:
    """Pins of caches: over the heads that they have, as weights are, or over the batch; as many axes as divide."""
    axes = tuple(axis for axis in fits.mesh.names if fits.mesh.size(axis) > 1)
    appended = {item.cache: item for item in layer.repeat.body.items if isinstance(item, Append)}
    for cache in layer.stored(Kind.CACHE):
        dims = layer.values[cache].dims
        match attention:
            case AttentionLayout.BATCH:
                split = fits.filled(layer.batch, axes)
            case AttentionLayout.HEADS:
                length = appended[cache].target if cache in appended else None
                heads = [dim for dim in dims if dim not in (layer.batch, length, *layer.head)]
                split = fits.filled(heads[0], axes[::-1]) if heads else {}
        yield from fits.pin(PinKind.STORED, cache, None, split)
