"""Axes that are alike: every choice has an image that stands for it, and no two stand for each other."""

from __future__ import annotations

from itertools import permutations

import pytest
from judge.generator import generate

from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.program import Carry
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.search.graph import Graph, build_graph
from escc.passes.search.symmetry import of_layers, representatives

HARDWARE = Hardware.of_paper("tpu-v4")
LAYERS = """
dim B, E = 256, F = 512
block layer(x: bf16[B,E]) {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  h[B,F] = x[B,E] * Wi[E,F]
  y[B,E] = h[B,F] * Wd[F,E]
  return y
}
main(x: bf16[B,E]) { return repeat 3 layer(x) }
phase decode { B = 64 }
"""


def built(seed: int, mesh: Mesh) -> Graph:
    return build_graph(generate(seed).program, "main", mesh, HARDWARE)


def renamed(layout: Layout, names: dict[str, str]) -> Layout:
    dims = tuple(tuple(names[a] for a in axes) for axes in layout.dims)
    return Layout(dims, tuple(sorted(names[a] for a in layout.partial)), layout.reduction)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("mesh", "classes"), [("2x2", [[0, 1]]), ("2x3x2", [[0, 2], [1]]), ("4x4x4", [[0, 1, 2]])])
def test_each_set_of_images_has_one_that_stands_for_it(seed: int, mesh: str, classes: list[list[int]]) -> None:
    on = Mesh.parse(mesh)
    graph = built(seed, on)
    found = representatives(graph, classes)
    assert found is not None
    node, mask = found
    table = graph.nodes[node].table
    assert table is not None
    assert len(mask) == len(table) == max(len(n.seconds) for n in graph.nodes if n.table is not None)
    uses = range(len(table.signature.uses))
    ways = {i: (*(table.use_layout(i, k) for k in uses), table.result_layout(i)) for i in range(len(table))}
    assert len(set(ways.values())) == len(ways)
    swaps = [
        {a: b for group, image in zip(classes, images, strict=True) for a, b in zip(group, image, strict=True)}
        for images in _products([list(permutations(group)) for group in classes])
    ]
    names = on.names
    orbits = {}
    for i, way in ways.items():
        images = [
            tuple(renamed(layout, {names[a]: names[b] for a, b in swap.items()}) for layout in way) for swap in swaps
        ]
        orbits[i] = frozenset(images)
    for orbit in set(orbits.values()):
        assert sum(bool(mask[i]) for i in ways if orbits[i] == orbit) == 1


def _products(choices: list[list[tuple[int, ...]]]) -> list[list[tuple[int, ...]]]:
    out: list[list[tuple[int, ...]]] = [[]]
    for options in choices:
        out = [[*head, option] for head in out for option in options]
    return out


def test_without_alike_axes_all_stand_for_themselves() -> None:
    assert representatives(built(0, Mesh.parse("2x4")), [[0], [1]]) is None


def test_what_layers_hand_on_has_one_choice_for_each_set_of_images() -> None:
    mesh = Mesh.parse("4x4x4")
    source = Source("layers.esti", LAYERS)
    program = expand(parse(source), source, {})
    graph = build_graph(program, program.phases[0].name, mesh, HARDWARE)
    found = of_layers(graph, [[0, 1, 2]])
    assert found is not None
    node, mask = found
    assert isinstance(graph.nodes[node].item, Carry)
    tensor = next(t for t in graph.tensors if t.source.node == node)
    ways = [tensor.space.layout(int(row)) for row in tensor.source.rows]
    names = mesh.names
    images = [
        frozenset(renamed(way, dict(zip(names, image, strict=True))) for image in permutations(names)) for way in ways
    ]
    for orbit in set(images):
        assert sum(bool(kept) for kept, own in zip(mask, images, strict=True) if own == orbit) == 1
    assert of_layers(graph, [[0], [1], [2]]) is None
    assert of_layers(built(0, mesh), [[0, 1, 2]]) is None
