"""Of columns of the program of copies those of their images, under renamings of axes that are alike.

What is kept out of one plan is kept out of its images as well: each of these would be found in turn otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np

from ...ir.record import record
from ..layouts.reshard import Arcs
from ..layouts.space import Array
from .copies_program import CopiesProgram
from .graph import Port
from .symmetry import image_codes

NONE = -1  # in the place of what has no image


@record
class KeptOut:
    """Plans that have all of some `columns` and none of `others`."""

    columns: list[int]
    others: list[int] = field(default_factory=list)

    def with_images(self, images: Sequence[Array]) -> Iterator[KeptOut]:
        """These, and their images as far as all columns have some, each once."""
        yield self
        seen = {frozenset(self.columns)}
        for image in images:
            own, others = image[self.columns], image[self.others]
            some = frozenset(own.tolist())
            if (own != NONE).all() and (others != NONE).all() and some not in seen:
                seen.add(some)
                yield KeptOut(sorted(some), sorted(others.tolist()))


def column_images(program: CopiesProgram) -> list[Array]:
    """For each renaming but that of nothing the image of each column that says what is chosen, moved or runs as one;
    NONE of others. Each of shape [columns]."""
    problem = program.problem
    if all(len(group) < 2 for group in problem.alike):
        return []
    layouts = [_images(image_codes(tensor.space.space.rows, problem.alike)) for tensor in problem.graph.tensors]
    return [_renamed(program, [rows[k] for rows in layouts], k) for k in range(1, len(layouts[0]))]


def _renamed(program: CopiesProgram, layouts: Sequence[Array], k: int) -> Array:
    """The images of columns under renaming k, under which layouts have these."""
    problem = program.problem
    found = np.full(max([program.a.columns, *(1 + column for column in program.several.values())]), NONE)
    ports: list[list[tuple[int, Port]]] = [[] for _ in problem.graph.nodes]
    for t, tensor in enumerate(problem.graph.tensors):
        for port in (tensor.source, *tensor.uses):
            ports[port.node].append((t, port))
    for node, first, own in zip(problem.graph.nodes, program.choice, ports, strict=True):
        choices = np.arange(len(node.seconds))
        if node.table is not None:
            image = _images(image_codes(node.table.rows, problem.alike))[k]
        else:
            image = _by_ports([port.rows for _, port in own], [layouts[t][port.rows] for t, port in own], choices)
        found[first + choices] = np.where(image == NONE, NONE, first + image)
    of = None if program.groups is None else program.groups.of
    for t, paid in program.paid.items():
        arcs = program.moves.arcs[t]
        if arcs is not None:
            image = _of_arcs(arcs, layouts[t])
            found[paid + np.arange(len(arcs))] = np.where(image == NONE, NONE, paid + image)
            group = None if of is None else of[t]
            for arc in () if group is None else np.flatnonzero((group >= 0) & (image != NONE)):
                assert group is not None, "it has groups"
                here, there = int(group[arc]), int(group[image[arc]])
                for columns in (program.shared, program.several):
                    found[columns[here]] = columns.get(there, NONE)
    return found


def _images(codes: Sequence[Array]) -> list[Array]:
    """Of rows with codes, first their own, then those of their images under each renaming, which row is the image."""
    order = np.argsort(codes[0])
    own = codes[0][order]
    found = []
    for code in codes:
        at = np.searchsorted(own, code).clip(max=len(own) - 1)
        found.append(np.where(own[at] == code, order[at], NONE))
    return found


def _by_ports(rows: Sequence[Array], images: Sequence[Array], choices: Array) -> Array:
    """The image of each choice of a node that has these rows at its ports, and those as their images."""
    if not rows:
        return choices
    number = {tuple(own): c for c, own in enumerate(zip(*(r.tolist() for r in rows), strict=True))}
    return np.array([number.get(tuple(own), NONE) for own in zip(*(r.tolist() for r in images), strict=True)])


def _of_arcs(arcs: Arcs, layouts: Array) -> Array:
    """The image of each arc of a value whose layouts have these images."""
    way = arcs.kind.tolist(), arcs.sending.tolist()
    number = {end: arc for arc, end in enumerate(zip(arcs.source.tolist(), arcs.target.tolist(), *way, strict=True))}
    source, target = layouts[arcs.source].tolist(), layouts[arcs.target].tolist()
    return np.array([number.get(end, NONE) for end in zip(source, target, *way, strict=True)], dtype=int)
