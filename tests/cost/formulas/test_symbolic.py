"""Formulas against figures on every example, and against formulas by hand on a small program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sympy
from sympy import Expr

from escc.cost.estimate import estimate
from escc.cost.formulas.symbolic import Bandwidth, Form, SymbolicEstimate, symbolic
from escc.cost.hardware import Calibrated, Hardware, Protocols
from escc.ir.collective import AllGather, AllReduce, AllToAll, CollectiveKind, Embed, ReduceScatter
from escc.ir.dtype import Dtype
from escc.ir.layout import parse_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Carry, Einsum, Kind, Region, Repeat, Stored
from escc.ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from escc.ir.text.read import parse, read_source
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.lower.insert import insert
from escc.passes.options import Options

ROOT = Path(__file__).parents[3] / "examples"
V4 = Hardware.of_paper("tpu-v4")
EXACTLY = 1e-12


def example_phases() -> list[tuple[str, str]]:
    phases = []
    for path in sorted(ROOT.glob("*.esti")):
        source = read_source(path)
        phases += [(path.name, phase.name) for phase in expand(parse(source), source).phases]
    return phases


@pytest.mark.parametrize("mesh", ["8x8", "a=2,gpu=4"])
@pytest.mark.parametrize(("file", "phase"), example_phases())
def test_formulas_come_to_the_figures(file: str, phase: str, mesh: str) -> None:
    source = read_source(ROOT / file)
    program = expand(parse(source), source)
    plan = choose(program, phase, Mesh.parse(mesh), Options(V4, capacity_bytes=1e15))
    (spmd,) = insert(plan)
    formulas, figures = symbolic(spmd, V4), estimate(spmd, V4)
    assert len(formulas.moves) == len(figures.moves)
    assert len(formulas.ops) == len(figures.ops) > 0
    for move, sent in zip(formulas.moves, figures.moves, strict=True):
        assert (move.results, move.times, move.kind, move.axes) == ((sent.result,), sent.times, sent.kind, sent.axes)
        assert formulas.value(move.bytes_sent) == pytest.approx(sent.bytes_sent, rel=EXACTLY)
        assert formulas.value(move.seconds) == pytest.approx(sent.seconds, rel=EXACTLY)
    for op, done in zip(formulas.ops, figures.ops, strict=True):
        assert (op.result, op.times) == (done.result, done.times)
        assert formulas.value(op.flops) == pytest.approx(done.flops, rel=EXACTLY)
        assert formulas.value(op.hbm_bytes) == pytest.approx(done.hbm_bytes, rel=EXACTLY)
        assert formulas.value(op.compute_s) == pytest.approx(done.compute_s, rel=EXACTLY)
        assert formulas.value(op.memory_s) == pytest.approx(done.memory_s, rel=EXACTLY)
    totals = figures.totals()
    for formula, figure in (
        (formulas.comm_s, totals.comm_s),
        (formulas.compute_s, totals.compute_s),
        (formulas.memory_s, totals.memory_s),
    ):
        assert formulas.value(formula) == pytest.approx(figure, rel=EXACTLY)


SIZES = (("B", 8), ("E", 64), ("F", 128), ("L", 1))


def value(name: str, layout: str, dtype: Dtype = Dtype.BF16) -> SpmdValue:
    dims, parsed = parse_layout(layout)
    return SpmdValue(name, dims, dtype, parsed)


def spmd(
    *steps: Move | Compute | Repeat[Step],
    values: dict[str, str],
    mesh: Mesh | None = None,
    results: tuple[str, ...] = (),
    sizes: tuple[tuple[str, int], ...] = SIZES,
) -> SpmdProgram:
    """A program on x=2, y=4 with the parameter W; it need not mean anything."""
    held = tuple(value(name, layout) for name, layout in values.items())
    body = Region((Stored("W", Kind.PARAM),) if "W" in values else (), steps)
    return SpmdProgram("by hand", "main", mesh or Mesh((("x", 2), ("y", 4))), sizes, held, body, results)


def same(formula: Expr, text: str, found: SymbolicEstimate) -> bool:
    """Whether a formula is what the text says, in the symbols of `found`."""
    names = {symbol.name: symbol for symbol in (*found.sizes, found.symbols.network)}
    return bool(sympy.simplify(formula - sympy.sympify(text, locals=names)) == 0)


APART = {"W": "E_xF_y", "W'": "EF_y", "W''": "EF"}
GATHERS = (Move("W'", "W", AllGather(("x",), 0)), Move("W''", "W'", AllGather(("y",), 1)))


def test_gathers_in_a_row_are_one_over_many_chips() -> None:
    program = spmd(*GATHERS, values=APART)
    exact, large = symbolic(program, V4), symbolic(program, V4, Form.LARGE)
    assert [m.results for m in exact.moves] == [("W'",), ("W''",)]
    assert same(exact.moves[0].bytes_sent, "2*E*F/Y*(X-1)/X", exact)
    assert same(exact.moves[1].bytes_sent, "2*E*F*(Y-1)/Y", exact)
    assert same(exact.comm_s, "2*E*F*(X*Y-1)/(X*Y*bw)", exact)
    assert [(m.results, m.axes) for m in large.moves] == [(("W'", "W''"), ("x", "y"))]
    assert same(large.comm_s, "2*E*F/bw", large)


def test_what_is_read_on_the_way_keeps_them_apart() -> None:
    program = spmd(*GATHERS, values=APART, results=("W'", "W''"))
    large = symbolic(program, V4, Form.LARGE)
    assert [m.results for m in large.moves] == [("W'",), ("W''",)]
    assert same(large.comm_s, "(2*E*F/Y + 2*E*F)/bw", large)


def test_axes_with_a_bandwidth_each_keep_them_apart_too() -> None:
    large = symbolic(spmd(*GATHERS, values=APART), V4, Form.LARGE, Bandwidth.AXIS)
    assert same(large.comm_s, "(2*E*F/Y + 2*E*F)/W", large)
    both = {"W": "E_xyF", "W'": "EF"}
    large = symbolic(spmd(Move("W'", "W", AllGather(("x", "y"), 0)), values=both), V4, Form.LARGE, Bandwidth.AXIS)
    assert same(large.comm_s, "2*E*F/(2*W)", large)


def test_all_to_alls_in_a_row_are_two() -> None:
    values = {"W": "E_xyF", "W'": "E_xF_y", "W''": "EF_yx"}
    steps = (Move("W'", "W", AllToAll(("y",), 0, 1)), Move("W''", "W'", AllToAll(("x",), 0, 1)))
    large = symbolic(spmd(*steps, values=values), V4, Form.LARGE)
    assert [m.results for m in large.moves] == [("W'",), ("W''",)]
    assert same(large.comm_s, "4*E*F/(X*Y*bw)", large)


def test_what_sends_nothing_costs_nothing() -> None:
    values = {"W": "E_xF", "W'": "EF partialsum-x", "W''": "EF_x"}
    steps = (Move("W'", "W", Embed(("x",), 0)), Move("W''", "W'", ReduceScatter(("x",), 1)))
    found = symbolic(spmd(*steps, values=values), V4)
    assert found.moves[0].bytes_sent == 0
    assert same(found.comm_s, "2*E*F*(X-1)/(X*bw)", found)


MATMUL = Compute(Einsum("u", ("x", "W"), (("B", "E"), ("E", "F")), ("B", "F")))
INNER = {"x": "B_xE", "W": "EF_y", "u": "B_xF_y"}


def test_an_op() -> None:
    found = symbolic(spmd(MATMUL, values=INNER), V4)
    assert same(found.compute_s, "2*B*E*F/(X*Y*peak)", found)
    # x and the weights are read; nothing reads the result.
    assert same(found.memory_s, "2*(B*E/X + E*F/Y)/hbm", found)
    handed_on = symbolic(spmd(MATMUL, values=INNER, results=("u",)), V4)
    assert same(handed_on.memory_s, "2*(B*E/X + E*F/Y + B*F/(X*Y))/hbm", handed_on)
    assert found.value(found.compute_s) == pytest.approx(2 * 8 * 64 * 128 / 8 / V4.peak_flops_per_s, rel=EXACTLY)


def test_shares_of_the_peaks_that_are_reached_count() -> None:
    slow = replace(V4, calibrated=Calibrated(compute_efficiency=0.5, hbm_efficiency=0.25, network_efficiency=0.2))
    program = spmd(MATMUL, Move("W'", "W", AllGather(("y",), 1)), values=INNER | {"W'": "EF"})
    fast, found = symbolic(program, V4), symbolic(program, slow)
    assert found.value(found.compute_s) == pytest.approx(2 * fast.value(fast.compute_s), rel=EXACTLY)
    assert found.value(found.memory_s) == pytest.approx(4 * fast.value(fast.memory_s), rel=EXACTLY)
    assert found.value(found.comm_s) == pytest.approx(5 * fast.value(fast.comm_s), rel=EXACTLY)
    assert found.value(found.comm_s) == pytest.approx(estimate(program, slow).totals().comm_s, rel=EXACTLY)


def test_repeats_multiply() -> None:
    inside = Region((), (MATMUL,))
    program = spmd(Repeat("again", 3, (Carry("a", "x", "u", "b"),), inside), values=INNER)
    found = symbolic(program, V4)
    assert found.ops[0].times == 3
    assert same(found.compute_s, "6*B*E*F/(X*Y*peak)", found)


def test_a_dim_of_size_one_stays_unless_its_number_is_asked_for() -> None:
    values = {"W": "E_xL", "W'": "EL"}
    program = spmd(Move("W'", "W", AllGather(("x",), 0)), values=values)
    kept, gone = symbolic(program, V4), symbolic(program, V4, numbers=("L",))
    assert same(kept.comm_s, "2*E*L*(X-1)/(X*bw)", kept)
    assert same(gone.comm_s, "2*E*(X-1)/(X*bw)", gone)
    assert "L" not in {symbol.name for symbol in gone.sizes}


def test_names_that_a_dim_has_are_not_used_twice() -> None:
    mesh = Mesh((("x", 2), ("y", 2), ("gpu", 2)))
    sizes = tuple((name, 8) for name in ("X", "Y", "y", "gpu", "bw", "peak"))
    found = symbolic(spmd(values={}, mesh=mesh, sizes=sizes), V4)
    assert [found.symbols.axes[a].name for a in mesh.names] == ["x", "y_", "gpu_"]
    assert (found.symbols.network.name, found.symbols.peak.name, found.symbols.hbm.name) == ("bw_", "peak_", "hbm")
    assert len({symbol.name for symbol in found.sizes}) == len(sizes) + 3 + 3


# On links


CUBE = Mesh((("x", 4), ("y", 4), ("z", 4)))


def on_links(before: str, after: str, move: object, mesh: Mesh = CUBE, name: str = "tpu-v4", form: Form = Form.EXACT):  # type: ignore[no-untyped-def]
    """The formulas of one collective, and its figure."""
    hardware = Hardware.load(name, datasheet=True).with_network("links")
    program = spmd(Move("W'", "W", move), values={"W": before, "W'": after}, mesh=mesh)  # type: ignore[arg-type]
    found = symbolic(program, hardware, form, Bandwidth.LINKS)
    return found, estimate(program, hardware).totals().comm_s


@pytest.mark.parametrize(
    ("before", "after", "move", "stated"),
    [
        ("E_xF", "EF", AllGather(("x",), 0), "2*E*F*(X-1)/X/W + latency + hop*floor(X/2)"),
        (
            "E_xyF",
            "EF",
            AllGather(("x", "y"), 0),
            "2*E*F*(X*Y-1)/(X*Y)/(2*W) + latency + hop*(floor(X/2) + floor(Y/2))",
        ),
        ("EF partialsum-x", "E_xF", ReduceScatter(("x",), 0), "2*E*F*(X-1)/X/W + latency + hop*floor(X/2)"),
        ("EF partialsum-x", "EF", AllReduce(("x",)), "4*E*F*(X-1)/X/W + latency + 2*hop*floor(X/2)"),
        # On the busiest link of a ring an eighth of what a chip holds times X, at half of W.
        ("E_xF", "EF_x", AllToAll(("x",), 0, 1), "(2*E*F/X)*X/8/(W/2) + latency + hop*floor(X/2)"),
    ],
)
def test_on_links_by_hand(before: str, after: str, move: object, stated: str) -> None:
    found, figure = on_links(before, after, move)
    assert same(found.comm_s, stated, found)
    assert found.value(found.comm_s) == pytest.approx(figure, rel=EXACTLY)


def test_on_a_line_every_chip_but_one_is_a_hop() -> None:
    found, figure = on_links("E_xF", "EF", AllGather(("x",), 0), Mesh((("x", 3),)))
    assert same(found.comm_s, "2*E*F*(X-1)/X/W + latency + hop*(X-1)", found)
    exchange, other = on_links("E_xF", "EF_x", AllToAll(("x",), 0, 1), Mesh((("x", 3),)))
    assert same(exchange.comm_s, "2*(2*E*F/X)*(X**2-1)/(8*X)/W + latency + hop*(X-1)", exchange)
    for one, total in ((found, figure), (exchange, other)):
        assert one.value(one.comm_s) == pytest.approx(total, rel=EXACTLY)


def test_axes_of_unlike_rates_have_symbols_of_their_own() -> None:
    nodes = Mesh((("node", 2), ("gpu", 8)))
    found, figure = on_links("[E/node.gpu, F]", "EF", AllGather(("node", "gpu"), 0), nodes, "h100")
    assert same(found.comm_s, "2*E*F/(node*gpu)*((node-1)/W_node + node*(gpu-1)/W_gpu)", found)  # it has no latencies
    assert found.value(found.comm_s) == pytest.approx(figure, rel=EXACTLY)
    ring_and_line = Mesh((("x", 2), ("y", 16)))
    found, figure = on_links("E_xyF", "EF", AllGather(("x", "y"), 0), ring_and_line, "tpu-v5e")
    assert same(found.comm_s, "2*E*F/(X*Y)*(X*Y-1)/(W_x + W_y) + hop*(X - 1 + floor(Y/2))", found)
    assert found.value(found.comm_s) == pytest.approx(figure, rel=EXACTLY)


def test_kinds_that_were_not_measured_keep_their_latencies_beside_one_that_was() -> None:
    measured = ((CollectiveKind.ALL_REDUCE, Protocols(2e-6, 1e-7, 0.5)),)
    chip = replace(Hardware.load("h100", datasheet=True), hop_latency_s=1e-6, protocols=measured)
    values = {"W": "E_xF", "W'": "EF"}
    program = spmd(Move("W'", "W", AllGather(("x",), 0)), values=values, mesh=Mesh((("x", 4),)))
    found = symbolic(program, chip, Form.EXACT, Bandwidth.LINKS)
    assert same(found.comm_s, "2*E*F*(X-1)/X/W + hop", found)  # behind a switch every chip is one hop away
    assert found.value(found.comm_s) == pytest.approx(estimate(program, chip).totals().comm_s, rel=EXACTLY)


def test_on_links_many_chips_drop_the_factor_and_keep_the_latency() -> None:
    found, _ = on_links("E_xyF", "EF", AllGather(("x", "y"), 0), form=Form.LARGE)
    assert same(found.comm_s, "2*E*F/(2*W) + latency + hop*(floor(X/2) + floor(Y/2))", found)


def test_on_links_collectives_in_a_row_stay_apart() -> None:
    hardware = V4.with_network("links")
    found = symbolic(spmd(*GATHERS, values=APART, mesh=CUBE), hardware, Form.LARGE, Bandwidth.LINKS)
    assert [m.results for m in found.moves] == [("W'",), ("W''",)]


@pytest.mark.parametrize("size", [64, 2**24])
@pytest.mark.parametrize(
    ("before", "after", "move"),
    [
        ("E_nodegpu", "E", AllGather(("node", "gpu"), 0)),
        ("E partialsum-nodegpu", "E", AllReduce(("node", "gpu"))),
        ("E partialsum-gpu", "E_gpu", ReduceScatter(("gpu",), 0)),
    ],
)
def test_formulas_of_what_was_measured_come_to_the_figures(before: str, after: str, move: object, size: int) -> None:
    protocols = Protocols(5e-6, 1e-6, 0.4, 2e-5, 0.8)
    kinds = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
    hardware = replace(Hardware.load("h100", datasheet=True), protocols=tuple((kind, protocols) for kind in kinds))
    values = {"W": _named(before), "W'": _named(after)}
    mesh = Mesh((("node", 2), ("gpu", 8)))
    program = spmd(Move("W'", "W", move), values=values, mesh=mesh, sizes=(("E", size),))  # type: ignore[arg-type]
    found, figure = symbolic(program, hardware, Form.EXACT, Bandwidth.LINKS), estimate(program, hardware).totals()
    assert found.value(found.comm_s) == pytest.approx(figure.comm_s, rel=EXACTLY)
    assert figure.comm_s > 5e-6 + 1e-6 * 7


def _named(layout: str) -> str:
    """A layout over the axes node and gpu, whose names are longer than a letter."""
    return layout.replace("E_nodegpu", "[E/node.gpu]").replace("E_gpu", "[E/gpu]").replace("-nodegpu", "-node.gpu")


def test_one_chip_sends_nothing_on_links() -> None:
    found, figure = on_links("E_xF", "EF", AllGather(("x",), 0), Mesh((("x", 1),)))
    assert found.comm_s == 0 == figure


def test_collectives_that_run_as_one_pay_the_latency_once() -> None:
    values = {"W": "E_xF", "W'": "EF", "u": "B_xE", "u'": "BE"}
    gather = AllGather(("x",), 0)
    program = spmd(Move("W'", "W", gather), Move("u'", "u", gather, joined=True), values=values, mesh=CUBE)
    found = symbolic(program, V4.with_network("links"), Form.EXACT, Bandwidth.LINKS)
    assert [move.joined for move in found.moves] == [False, True]
    assert same(found.moves[1].seconds, "2*B*E*(X-1)/X/W", found)
    assert same(found.comm_s, "2*(E*F + B*E)*(X-1)/X/W + latency + hop*floor(X/2)", found)
