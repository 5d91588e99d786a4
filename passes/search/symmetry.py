"""Axes that are alike: plans that differ only by their names are one plan.

Where two axes have the same size, the same price and no pin names either, every plan has an image
with the two swapped. In the integer program one op keeps one strategy of each set of images: no
plan is lost but for its images, and mixtures of images, which no plan is, are kept out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np

from ..layouts.space import Arrangements, Mask
from .graph import Graph


def representatives(graph: Graph, classes: Sequence[Sequence[int]]) -> tuple[int, Mask] | None:
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


def _representatives(rows: Arrangements, classes: Sequence[Sequence[int]]) -> Mask:
    codes = rows.codes()
    least = codes.copy()
    for order in _relabelings(classes, rows.place.shape[1]):
        image = Arrangements(rows.place[:, order], rows.position[:, order], rows.modes, rows.slots)
        least = np.minimum(least, image.codes())
    return np.asarray(codes == least)


def _relabelings(classes: Sequence[Sequence[int]], axes: int) -> Iterator[list[int]]:
    for images in product(*(permutations(group) for group in classes)):
        order = list(range(axes))
        for group, image in zip(classes, images, strict=True):
            for a, b in zip(group, image, strict=True):
                order[a] = b
        yield order
