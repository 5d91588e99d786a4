"""Axes that are alike: plans that differ only by their names are one plan.

Where two axes have the same size, the same price and no pin names either, every plan has an image
with the two swapped. In the integer program one op keeps one strategy of each set of images: no
plan is lost but for its images, and mixtures of images, which no plan is, are kept out. In a large
one what the layers hand on keeps one of each instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

import numpy as np

from ...ir.layout import Layout
from ...ir.program import Carry
from ..layouts.space import Arrangements, Array, Mask
from ..plan import Plan
from .graph import Graph
from .rename_axes import Names, renamed

Standing = tuple[int, Mask]  # a node, and which of its choices stand for their images


def representatives(graph: Graph, classes: Sequence[Sequence[int]]) -> Standing | None:
    """The op with the most strategies, and which of them stand for their images; None if all do.

    `classes` are groups of axes (positions among the live axes) that are alike.
    """
    ops = [n for n, node in enumerate(graph.nodes) if node.table is not None]
    if not ops or all(len(group) < 2 for group in classes):
        return None
    chosen = max(ops, key=lambda n: (len(graph.nodes[n].seconds), -n))
    table = graph.nodes[chosen].table
    assert table is not None
    return chosen, _representatives(table.rows, classes)


def of_layers(graph: Graph, classes: Sequence[Sequence[int]]) -> Standing | None:
    """As `representatives`, of what the layers hand on that run most often; None where nothing is handed on.

    All else in a layer hangs together with it, so that its axes are told apart there: a relaxation mixes fewer images.
    """
    handed_on = [t for t in graph.tensors if isinstance(graph.nodes[t.source.node].item, Carry)]
    if not handed_on or all(len(group) < 2 for group in classes):
        return None
    tensor = max(handed_on, key=lambda t: (t.times, -len(t.source.rows), -t.source.node))
    rows = tensor.space.space.rows.take(tensor.source.rows)
    return tensor.source.node, _representatives(rows, classes)


def _representatives(rows: Arrangements, classes: Sequence[Sequence[int]]) -> Mask:
    return np.asarray(rows.codes() == np.min(image_codes(rows, classes), axis=0))


def image_codes(rows: Arrangements, classes: Sequence[Sequence[int]]) -> list[Array]:
    """The codes of the images of each row, for every renaming of alike axes."""
    every = _relabelings(classes, rows.place.shape[1])
    return [
        Arrangements(rows.place[:, order], rows.position[:, order], rows.modes, rows.slots).codes() for order in every
    ]


def _relabelings(classes: Sequence[Sequence[int]], axes: int) -> Iterator[list[int]]:
    for images in product(*(permutations(group) for group in classes)):
        order = list(range(axes))
        for group, image in zip(classes, images, strict=True):
            for a, b in zip(group, image, strict=True):
                order[a] = b
        yield order


def with_plainest_axes(plan: Plan, alike: Sequence[Sequence[str]]) -> Plan:
    """The image of a plan under renamings of the axes in each group of `alike` whose layouts have
    their axes most nearly in mesh order: `E_xF_yz` before `E_zF_yx`. Stored layouts count first."""
    images = [renamed(plan, _each_by(mapping)) for mapping in _mappings(alike)]
    return min(images, key=_key)


def _each_by(mapping: Mapping[str, str]) -> Names:
    return lambda axis: (mapping.get(axis, axis),)


def _mappings(alike: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    choices = product(*(permutations(group) for group in alike))
    return [
        {a: b for group, image in zip(alike, images, strict=True) for a, b in zip(group, image, strict=True)}
        for images in choices
    ]


def _key(plan: Plan) -> tuple[int, int, tuple[tuple[tuple[str, ...], ...], ...]]:
    order = {name: i for i, name in enumerate(plan.mesh.names)}
    ops = [op.layout for phase in plan.phases for op in phase.ops]
    stored = [layout for _, layout in plan.stored]
    text = tuple(layout.dims for layout in stored + ops)
    return sum(_inversions(s, order) for s in stored), sum(_inversions(o, order) for o in ops), text


def _inversions(layout: Layout, order: Mapping[str, int]) -> int:
    places = [order[a] for axes in layout.dims for a in axes]
    return sum(a > b for i, a in enumerate(places) for b in places[i + 1 :])
