"""An order of ops that what they are decides, not what they are called or where they stand in the text.

Makers come before their readers. Ops as far from what there was before are told apart as the vertices of a graph are
by colours: first by what they are, then by what they read and by what reads them, until no more are. Those that are
left alike come in the order of what they read, and then of their names: which of them is which changes no price, as
long as all that prices depend on is said of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ir.record import record

Key = tuple[Any, ...]  # what can be sorted among its like


@record
class Vertex:
    """A value: what it is, without a name, and the values of which it is made, each with how it is read. A value that
    no op makes is made of none."""

    what: Key
    uses: Sequence[tuple[str, Key]] = ()


def in_order(vertices: Mapping[str, Vertex]) -> list[str]:
    """The values in order. Makers stand before their readers in `vertices`, too."""
    depth: dict[str, int] = {}
    readers: dict[str, list[tuple[str, Key]]] = {name: [] for name in vertices}
    for name, vertex in vertices.items():
        depth[name] = 1 + max((depth[read] for read, _ in vertex.uses), default=-1)
        for read, how in vertex.uses:
            readers[read].append((name, how))
    levels: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for name in vertices:
        levels[depth[name]].append(name)
    colour: dict[str, int] = {}

    def beside(some: Sequence[tuple[str, Key]]) -> Key:
        return tuple(sorted((depth[name], colour[name], how) for name, how in some))

    def tell_apart(key: Callable[[str], Key], downward: bool = False) -> None:
        for level in levels[::-1] if downward else levels:
            keys = {name: key(name) for name in level}
            places = {each: n for n, each in enumerate(sorted(set(keys.values())))}
            colour.update((name, places[each]) for name, each in keys.items())

    tell_apart(lambda name: vertices[name].what)
    before, told = 0, len({(depth[name], colour[name]) for name in vertices})
    while before < told < len(vertices):
        tell_apart(lambda name: (colour[name], beside(vertices[name].uses)))
        tell_apart(lambda name: (colour[name], beside(readers[name])), downward=True)
        before, told = told, len({(depth[name], colour[name]) for name in vertices})
    tell_apart(lambda name: (colour[name], beside(vertices[name].uses), name))
    return sorted(vertices, key=lambda name: (depth[name], colour[name]))
