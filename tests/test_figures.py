"""The script that draws the paper's figures: on small grids, and as it left `docs/figures.md`."""

from __future__ import annotations

import importlib
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from math import isclose
from pathlib import Path
from types import ModuleType

import pytest

from escc.compiler.calibrate.named_layouts import AttentionLayout, FeedForwardLayout
from escc.compiler.sweep.points import Point, Record, Status
from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.program import walk
from escc.ir.spmd import Compute, SpmdProgram

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CHIP: Hardware = Hardware.load("tpu-v4")
WS1D, WS2D = FeedForwardLayout.WS1D, FeedForwardLayout.WS2D


@pytest.fixture(scope="module", autouse=True)
def scripts() -> object:
    """The folder of the scripts on the path."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


# The document and its figures, as they are kept.


def test_the_document_names_every_figure_and_each_is_there() -> None:
    text = (DOCS / "figures.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\((figures/[^)]+)\)", text)
    there = sorted(f"figures/{path.name}" for path in (DOCS / "figures").glob("*"))
    assert sorted(shown) == there
    assert [re.sub(r"figures/figure-|\.svg", "", name) for name in shown] == ["1", "3", "6", "7", "8", "b-1", "c-1"]


@pytest.mark.parametrize("number", ["1", "3", "6", "7", "8", "b-1", "c-1"])
def test_a_figure_stands_alone_and_has_named_scales(number: str) -> None:
    text = (DOCS / "figures" / f"figure-{number}.svg").read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<(image|script)\b|@import|url\(http", text)
    assert "<dc:date>" not in text
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    units = ("millisecond", "tokens", "chips", "MFU", "GB")
    assert sum(any(unit in word for unit in units) for word in words) >= 2


def test_each_figure_has_one_paragraph_that_speaks_of_the_paper() -> None:
    text = (DOCS / "figures.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        paragraphs = section.strip().split("\n\n")[2:]
        assert len(paragraphs) == 1 and "paper" in paragraphs[0], section[:40]


# Figure 3.


def test_the_layouts_change_places_where_the_published_formulas_have_them() -> None:
    figures_3 = script("figures_3")
    found = figures_3.volumes((2048, 1 << 20))
    assert found.crossovers == (16_384, 65_536, 1_048_576)
    assert all(map(isclose, figures_3.crossings(), (16_384, 65_536, 1_048_576)))
    for layout, sizes in found.sent.items():
        assert sizes == tuple(figures_3.formula(layout, tokens) for tokens in found.tokens)
    # By hand: 2 x 16384 tokens x 2 bytes x (16384/4 x 15/16 + 65536/16 x 3/4); weights over x, and 2 B E / 4 x 15/16.
    two = 2 * 16_384 * 2 * (16_384 / 4 * 15 / 16 + 65_536 / 16 * 3 / 4)
    one = 2 * 16_384 * 65_536 * 2 / 16 * 3 / 4 + 2 * 16_384 * 16_384 / 4 * 2 * 15 / 16
    assert figures_3.formula(WS2D, 16_384) == two == figures_3.formula(FeedForwardLayout.WG_X, 16_384) == one


def test_a_figure_is_the_same_bytes_each_time() -> None:
    figures_3 = script("figures_3")
    found = figures_3.volumes((2048, 1 << 20))
    assert figures_3.draw(found) == figures_3.draw(found)


def test_the_text_says_so_where_crossovers_are_elsewhere() -> None:
    figures_3 = script("figures_3")
    found = figures_3.volumes((2048,))
    assert "exactly those of the published formulas" in figures_3.words(found)
    moved = replace(found, turns=tuple(replace(turn, start=2 * turn.start) for turn in found.turns))
    assert "where the published formulas have them at 16,384, 65,536, 1,048,576" in figures_3.words(moved)


# Figures 6 and 7, from times made up.


def test_every_size_of_a_slice_is_tried_as_the_first_axis() -> None:
    figures_6 = script("figures_6")
    assert [mesh.sizes for mesh in figures_6.meshes(64, CHIP)] == [(4, 4, 4)]
    assert [mesh.sizes for mesh in figures_6.meshes(128, CHIP)] == [(4, 4, 8), (8, 4, 4)]


def latencies(one: tuple[float, ...], two: tuple[float, ...]) -> object:
    figures_6 = script("figures_6")
    mesh = Mesh.parse("4x4x4")
    of = {
        layout: tuple(figures_6.Latency(seconds, seconds / 2, mesh) for seconds in taken)
        for layout, taken in ((WS1D, one), (WS2D, two))
    }
    return figures_6.Latencies((64, 128), of, 1.2 * two[0])


def test_figure_6_says_what_the_order_is() -> None:
    figures_6 = script("figures_6")
    usual = figures_6.words(latencies((0.100, 0.080), (0.09375, 0.050)), CHIP)
    assert "2D is below 1D on all of them, and what 1D takes more grows (7%, 60%)" in usual
    assert "+0.0% off" in usual and "here it is 20.0%" in usual
    other = figures_6.words(latencies((0.100, 0.050), (0.090, 0.060)), CHIP)
    assert "2D is not below 1D on all of them, and what 1D takes more does not grow" in other


def test_figure_7_marks_the_best_and_says_whether_it_gathers_ever_more() -> None:
    figures_7 = script("figures_7")
    values = dict.fromkeys(figures_7.LAYOUTS, (0.1, 0.1, 0.1))
    usual = figures_7.Utilisation(
        (1, 16, 512),
        values
        | {WS2D: (0.4, 0.4, 0.4), FeedForwardLayout.WG_X: (0.1, 0.5, 0.6), FeedForwardLayout.WG_XYZ: (0, 0.1, 0.7)},
    )
    assert usual.best == (WS2D, FeedForwardLayout.WG_X, FeedForwardLayout.WG_XYZ)
    text = figures_7.words(usual, CHIP)
    assert "here too the best layout gathers over more axes" in text
    assert "X weight-gathered from 32,768 tokens on, then XYZ weight-gathered from 1,048,576 tokens on" in text
    turned = figures_7.Utilisation((1, 16, 512), values | {FeedForwardLayout.WG_XYZ: (0.5, 0.05, 0.05)})
    assert "which is not what the best layout does here" in figures_7.words(turned, CHIP)


def test_the_published_mfu_is_that_of_the_published_time() -> None:
    figures_7 = script("figures_7")
    (batch, low), (most, high) = figures_7._measured(CHIP)
    assert (batch, most) == (1, 512)
    assert low == pytest.approx(0.43, abs=0.01) and high == pytest.approx(0.76, abs=0.015)  # as table 2 has them


# Figure 8.


@pytest.fixture(scope="module")
def over_heads() -> SpmdProgram:
    """A decode step of PaLM 540B whose caches every chip holds and reads whole."""
    plans = script("figures_plans")
    step = plans.step_of("decode", Mesh.parse("4x4x4"), 256, 2048, attention=AttentionLayout.HEADS)
    planned = plans.plan_named(step, CHIP)
    assert isinstance(planned, SpmdProgram)
    return planned


def test_caches_over_heads_are_read_whole_and_tables_are_split(over_heads: SpmdProgram) -> None:
    values = over_heads.table()
    caches = [name for name in values if set(values[name].dims) == {"B", "M", "Q"}]
    assert len(caches) >= 4
    assert all(values[name].layout.dims == ((), (), ()) for name in caches)
    assert values["table"].layout.dims == (("x", "y", "z"), ())


def test_a_short_model_has_the_time_of_its_layers_alone(over_heads: SpmdProgram) -> None:
    figures_8 = script("figures_8")
    taken = [estimate(figures_8.shortened(over_heads, n), CHIP).totals().total_s for n in (8, 9, 118)]
    assert taken[2] == pytest.approx(estimate(over_heads, CHIP).totals().total_s)
    assert taken[2] == pytest.approx(taken[0] + 110 * (taken[1] - taken[0]))


def test_caches_are_counted_by_hand(over_heads: SpmdProgram) -> None:
    assert script("figures_8").cache_bytes(over_heads) == 118 * 2 * 2 * 256 * 256 * 2048


def test_attention_is_what_reads_the_context(over_heads: SpmdProgram) -> None:
    named = {op.result: op.times * op.seconds for op in estimate(over_heads, CHIP).ops}
    values = over_heads.table()
    scores = {n for n, value in values.items() if {"H", "M"} <= set(value.dims)}
    least = sum(seconds for name, seconds in named.items() if name in scores)
    weighed = sum(
        named[placed.item.result]
        for placed in walk(over_heads.body)
        if isinstance(placed.item, Compute) and placed.item.result.split(".")[-1] == "o"
    )
    share = script("figures_8").attention_share(over_heads, CHIP)
    whole = estimate(over_heads, CHIP).totals().total_s
    assert least + weighed <= share * whole * (1 + 1e-9) <= 1.05 * (least + weighed)


def test_the_longest_context_lies_on_the_line_between_two() -> None:
    longest = script("figures_8").longest
    assert longest((128, 256, 512), (1.0, 2.0, 4.0), 3.0) == 384
    assert longest((128, 256, 512), (1.0, 2.0, 4.0), 4.0) is None
    assert longest((128, 256), (5.0, 6.0), 4.0) == 0


# Figures 1, B.1 and C.1.


def record(weights: Dtype, chips: int, batch: int, seconds: float | None) -> Record:
    point = Point("decode", weights, chips, batch, 2048)
    if seconds is None:
        return Record(point, Status.INFEASIBLE, (), reason="too large")
    return Record(point, Status.OPTIMAL, (), slice="4x4x4", latency_s=seconds, tokens=batch, mfu=batch / 1000)


def test_points_of_a_sweep_become_spots_with_their_cost() -> None:
    spots = script("figures_spots")
    found = list(spots.decode_spots("palm-540b", [record(Dtype.INT8, 64, 64, 0.03), record(Dtype.BF16, 64, 1, None)]))
    assert [(spot.batch, spot.cost) for spot in found] == [(64, pytest.approx(64 * 30 / 64))]


def test_narrower_weights_are_half_the_bytes(over_heads: SpmdProgram) -> None:
    spots = script("figures_spots")
    stored = dict(estimate(over_heads, CHIP).stored_bytes)
    narrow = dict(estimate(spots.narrowed(over_heads, Dtype.INT8), CHIP).stored_bytes)
    halves = {name for name in stored if narrow[name] == stored[name] / 2}
    assert halves == {"table", *(f"layer.{name}" for name in ("Wq", "Wk", "Wv", "Wo", "Wi", "Wg", "Wd"))}
    assert all(narrow[name] == stored[name] for name in stored.keys() - halves)
    assert spots.narrowed(over_heads, Dtype.BF16) == over_heads


def test_published_rows_are_spots_of_a_step() -> None:
    spots = script("figures_spots")
    found = {row.id: spot for row, spot in spots.published(CHIP)}
    assert len(found) == 8
    assert found["2-ll-decode"].seconds == pytest.approx(1.82 / 64)
    assert found["2-ht-prefill"].cost == pytest.approx(85_200 * 64 / (512 * 2048))
    assert found["3-ht-decode"].mfu == pytest.approx(0.37, abs=0.01)


def test_the_frontier_is_what_none_betters() -> None:
    spots = script("figures_spots")
    base = next(spots.decode_spots("palm-540b", [record(Dtype.BF16, 64, 64, 0.03)]))
    made = [
        replace(base, seconds=seconds, chips=chips)
        for seconds, chips in ((1.0, 90), (2.0, 50), (2.0, 40), (3.0, 60), (4.0, 10), (5.0, 10), (1.0, 70))
    ]
    brute = {
        (a.seconds, a.cost)
        for a in made
        if not any(
            (b.seconds <= a.seconds and b.cost < a.cost) or (b.seconds < a.seconds and b.cost <= a.cost) for b in made
        )
    }
    found = spots.frontier(made, lambda spot: spot.cost)
    assert {(spot.seconds, spot.cost) for spot in found} == brute
    assert [spot.seconds for spot in found] == sorted(spot.seconds for spot in found)


def test_the_document_is_written_whole_and_old_figures_go(tmp_path: Path) -> None:
    figures, plot = script("figures"), script("figures_plot")
    made = [plot.Figure("B.1", "A title", "<svg/>", "What the paper says.")]
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "figure-9.svg").write_text("old")
    figures.write(made, CHIP, tmp_path)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["figure-b-1.svg"]
    assert "![A title](figures/figure-b-1.svg)\n\nWhat the paper says.\n" in (tmp_path / "figures.md").read_text()
