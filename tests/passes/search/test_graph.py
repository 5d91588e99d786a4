"""The graph of choices: what chooses, what is connected, how often, and what each choice costs."""

from __future__ import annotations

import numpy as np
import pytest

from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.layout import Layout, format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Carry, Program, Stored
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.search.graph import Graph, Result, build_graph, restrict

TEXT = """dim B = 8, E = 64, F = 128, L = 2, M = 8
block layer(x: bf16[B,E], n: bf16[B,L,E]) -> bf16[B,E] {
  param W: bf16[E,F]
  param V: bf16[F,E]
  cache c: bf16[B,M,E]
  k = append(c, n, L into M)
  u[B,F] = x[B,E] * W[E,F]
  v[B,E] = u[B,F] * V[F,E]
  s[B,E] = v[B,E] * k[B,M,E]
  return s
}
block step(x: bf16[B,E], n: bf16[B,L,E]) -> bf16[B,E], bf16[B,L,E] {
  y = layer(x, n)
  return y, n
}
main(x: bf16[B,E], n: bf16[B,L,E]) {
  y, m = repeat 5 step(x, n)
  return y
}
"""


def built(mesh: str = "2x2", text: str = TEXT) -> tuple[Program, Graph]:
    source = Source("test.esti", text)
    program = expand(parse(source), source, {})
    return program, build_graph(program, program.phases[0].name, Mesh.parse(mesh), Hardware.of_paper("tpu-v4"))


def test_every_value_is_made_once_and_read_by_all_who_read_it() -> None:
    program, graph = built()
    assert [t.value.name for t in graph.tensors] == sorted(
        {v.name for v in program.values}, key=[t.value.name for t in graph.tensors].index
    )
    by_name = {t.value.name: t for t in graph.tensors}
    for tensor in graph.tensors:
        for port in (tensor.source, *tensor.uses):
            assert len(port.rows) == len(graph.nodes[port.node].seconds)
            assert (port.rows >= 0).all()
            assert (port.rows < len(tensor.space)).all()
    # The append chooses for its cache; the repeat's carry reads what goes in and what comes round.
    cache = next(t for name, t in by_name.items() if name.endswith(".c"))
    assert isinstance(graph.nodes[cache.source.node].item, Append)
    assert cache.uses == ()
    assert [type(graph.nodes[u.node].item) for u in by_name["x"].uses] == [Carry]


def test_repetitions_count() -> None:
    _, graph = built()
    times = {t.value.name.rpartition(".")[2]: t.times for t in graph.tensors}
    assert times["W"] == times["u"] == times["k"] == 5
    assert {t.times for t in graph.tensors if "." not in t.value.name} == {1}
    for node in graph.nodes:
        if node.stored is not None and node.stored.endswith(".W"):
            assert node.stored_bytes is not None
            assert sorted(set(node.stored_bytes.tolist())) == [5 * 64 * 128 * 2 / k for k in (4, 2, 1)]
    assert any(n.stored is not None and n.stored.endswith(".c") and n.stored_bytes is not None for n in graph.nodes)
    inputs = [n for n in graph.nodes if isinstance(n.item, Stored) and n.item.value == "x"]
    assert inputs[0].stored_bytes is None


def test_an_append_is_read_and_left_in_one_layout() -> None:
    _, graph = built()
    by_name = {t.value.name.rpartition(".")[2]: t for t in graph.tensors}
    before, after = by_name["c"], by_name["k"]
    assert before.source.node == after.source.node
    for a, b in zip(before.source.rows.tolist(), after.source.rows.tolist(), strict=True):
        assert before.space.layout(a) == after.space.layout(b)


def test_carries_and_results_are_complete() -> None:
    _, graph = built()
    for tensor in graph.tensors:
        for port in (tensor.source, *tensor.uses):
            if isinstance(graph.nodes[port.node].item, Stored | Carry | Result):
                assert tensor.space.space.complete[port.rows].all()


@pytest.mark.parametrize("mesh", ["1", "2x2"])
def test_what_a_strategy_costs(mesh: str) -> None:
    _, graph = built(mesh)
    number, node = next((i, n) for i, n in enumerate(graph.nodes) if n.name.endswith(".u"))
    by_name = {t.value.name.rpartition(".")[2]: t for t in graph.tensors}
    weights = by_name["W"]
    (port,) = [u for u in weights.uses if u.node == number]
    table = node.table
    assert table is not None
    for row in range(len(table)):
        read = weights.space.layout(int(port.rows[row]))

        def parts(layout: Layout) -> int:
            return Mesh.parse(mesh).size(*layout.split_axes)

        # x, which goes round, and the weights are read, and u is written for the next matmul.
        values = 8 * 64 / parts(table.use_layout(row, 0)) + 8 * 128 / parts(table.result_layout(row))
        local = 2 * (64 * 128 / parts(read) + values)
        split = table.use_layout(row, 0).split_axes | read.split_axes
        flops = 2 * 8 * 64 * 128 / Mesh.parse(mesh).size(*split)
        assert node.seconds[row] == pytest.approx(5 * max(local / 1.2e12, flops / 275e12), rel=1e-9, abs=0), (
            format_layout("EF", read)
        )
        assert 0 <= node.rank[row] <= 1


def test_restricting_takes_choices_away_everywhere() -> None:
    _, graph = built()
    kept = [np.arange(len(n.seconds)) % 2 == 0 for n in graph.nodes]
    small = restrict(graph, kept)
    for old, new, mask in zip(graph.nodes, small.nodes, kept, strict=True):
        assert new.seconds.tolist() == old.seconds[mask].tolist()
        assert (new.table is None) == (old.table is None)
        if old.table is not None and new.table is not None:
            assert new.table.result_layout(1) == old.table.result_layout(2)
    for before, after in zip(graph.tensors, small.tensors, strict=True):
        assert after.source.rows.tolist() == before.source.rows[kept[before.source.node]].tolist()


def test_one_chip_leaves_nothing_to_choose() -> None:
    _, graph = built("1")
    assert all(len(node.seconds) == 1 for node in graph.nodes)
    assert all(len(tensor.space) == 1 for tensor in graph.tensors)
