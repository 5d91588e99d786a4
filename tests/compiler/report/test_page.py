"""Pages without a browser: what is drawn is what is planned, what is written is inert, and nothing is fetched."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.plan.compiled import Compilation
from escc.compiler.plan.pipeline import compile_phases, load
from escc.compiler.report.explain import explain_phase
from escc.compiler.report.page.formulas import mathml
from escc.compiler.report.page.frontier import draw_frontier
from escc.compiler.report.page.mesh_drawing import draw_mesh
from escc.compiler.report.page.render import frontier_page, plan_page
from escc.compiler.report.page.shards import dims_of, draw_shards
from escc.compiler.report.page.timeline import tracks
from escc.compiler.sweep.answers import Frontier, Spot, best_of
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.options import Options

EXAMPLES = Path(__file__).parents[3] / "examples"
PINS = EXAMPLES / "pins"
HOSTILE = """</title></script><script>alert(1)</script><img src="http://x.invalid/a" onerror='alert(2)'>&lt;"'"""
RUN = CliRunner()


@cache
def palm(overlap: bool = False) -> Compilation:
    options = Options(Hardware.of_paper("tpu-v4"), overlap=overlap)
    return compile_phases(load(EXAMPLES / "palm-540b.esti"), ("decode",), Mesh.parse("4x4x4"), options)


@cache
def small(mesh: str = "2x4", network: str = "flat") -> Compilation:
    program = load(EXAMPLES / "feed-forward.esti")
    options = Options(Hardware.load("tpu-v4", datasheet=True).with_network(network))
    return compile_phases(program, ("main",), Mesh.parse(mesh), options)


def renamed(compiled: Compilation, name: str) -> Compilation:
    """The same plan of a model of another name."""
    return Compilation(
        tuple(
            replace(one, program=replace(one.program, name=name), spmd=replace(one.spmd, name=name)) for one in compiled
        )
    )


def sweep(name: str = "palm-540b") -> Frontier:
    points = [
        Spot(f"{name} {chips} chips, batch {batch}", series, chips, batch, 1.1 / chips + batch * 1e-5, chips / batch)
        for series in ("bf16", "int8")
        for chips in (16, 32)
        for batch in (1, 8, 64)
    ]
    points.append(Spot(f"{name} 8 chips", "bf16", 8, 1, None, None, "parameters do not fit"))
    return Frontier(tuple(points), "a token", "chip-seconds per million tokens")


class Seen(HTMLParser):
    """The tags of a page with their attributes, and the texts of those called `title`, `h1`, `style`, `script`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.setdefault(self.tags[-1][0], []).append(data)

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


PAGES: dict[str, Callable[[str], str]] = {
    "plan": lambda name: plan_page(renamed(small(), name)),
    "frontier": lambda name: frontier_page(name, sweep(name)),
}


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_is_fetched_and_only_its_own_style_and_script_run(kind: str) -> None:
    page = PAGES[kind]("a model")
    seen = Seen(page)
    for tag, attributes in seen.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href", "background"):
            assert attributes.get(name, "#").startswith("#") or attributes[name] == "data:,", (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    [style] = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    [script] = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert "@import" not in style and re.findall(r"url\((?!#)", style) == []
    [policy] = [a["content"] for a in seen.named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for rule, text in (("style-src", style), ("script-src", script)):
        assert rules[rule] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    assert rules["default-src"] == "'none'"


@pytest.mark.parametrize("kind", PAGES)
def test_a_name_with_markup_stays_a_name(kind: str) -> None:
    plain, hostile = Seen(PAGES[kind]("a model")), Seen(PAGES[kind](HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert [sorted(a) for _, a in hostile.tags] == [sorted(a) for _, a in plain.tags]
    assert "".join(hostile.texts["h1"]).startswith(HOSTILE)


@pytest.mark.parametrize("kind", PAGES)
def test_the_same_bytes_every_time(kind: str) -> None:
    assert PAGES[kind]("a model") == PAGES[kind]("a model")


def test_the_page_of_palm_is_small() -> None:
    assert len(plan_page(palm()).encode()) < 250_000


def test_every_step_and_every_tensor_is_there() -> None:
    page = plan_page(palm())
    seen = Seen(page)
    assert {value.name for value in palm()[0].spmd.values} <= set(seen.texts["b"])
    anchors = {attributes["id"] for _, attributes in seen.tags if "id" in attributes}
    links = [attributes["href"][1:] for attributes in seen.named("a")]
    assert len(links) > 40 and set(links) <= anchors


@cache
def gathered() -> Compilation:
    """A plan on links, where loops pass blocks on at another rate than the collectives in their place."""
    program = load(EXAMPLES / "feed-forward.esti", {"B": 65536}, [PINS / "wg-x.pins"])
    chip = Hardware.load("tpu-v4", datasheet=True).with_network("links")
    options = Options(chip, capacity_bytes=math.inf, overlap=True)
    return compile_phases(program, ("main",), Mesh.parse("4x4x4"), options)


@pytest.mark.parametrize("case", [palm, lambda: palm(overlap=True), gathered], ids=["apart", "looped", "links"])
def test_the_timeline_takes_what_the_plan_takes(case: Callable[[], Compilation]) -> None:
    [one] = case()
    whole, *inner = tracks(one.spmd, one.estimate)
    totals = one.estimate.totals()
    assert math.isclose(whole.seconds, totals.total_s, rel_tol=1e-12)
    assert math.isclose(math.fsum(row.bytes_sent for row in whole.rows), totals.bytes_sent, rel_tol=1e-12)
    for track in inner:
        [row] = [row for row in whole.rows if row.result is None]
        assert row.seconds == track.count * track.seconds
    track = inner[0] if inner else whole
    ends = [row.start_s + row.seconds for row in track.rows]
    assert min(row.start_s for row in track.rows) == 0.0
    assert math.isclose(max(ends), track.seconds, rel_tol=1e-9)
    if not one.estimate.loops:
        for end, row in zip(ends, track.rows[1:], strict=False):
            assert math.isclose(end, row.start_s, rel_tol=1e-9, abs_tol=1e-15)
    for on_network in (True, False):  # neither chip nor network does two things at once
        spans = [(r.start_s, r.start_s + r.seconds) for r in track.rows if (r.resource == "N") == on_network]
        assert all(after[0] >= before[1] - 1e-12 for before, after in pairwise(spans))


def test_steps_of_a_loop_are_side_by_side() -> None:
    [one] = gathered()
    [track] = tracks(one.spmd, one.estimate)
    rows = {row.result: row for row in track.rows}
    for loop in one.estimate.loops:
        own = [rows[result] for result in loop.results]
        start_s = min(row.start_s for row in own)
        assert math.isclose(max(row.start_s + row.seconds for row in own) - start_s, loop.seconds, rel_tol=1e-9)
        sent_s = math.fsum(row.seconds for row in own if row.resource == "N")
        assert math.isclose(sent_s, loop.start_s + loop.transfer_s, rel_tol=1e-9)
        assert own[0].loop_s == loop.seconds and [row.marks for row in own] == ["", *("~" for _ in own[1:])]
    assert len(one.estimate.loops) == 2


AXES = st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=5)


@given(AXES)
def test_every_chip_is_drawn_once_and_apart(sizes: list[int]) -> None:
    mesh = Mesh(tuple(zip("xyzwv", sizes, strict=False)))
    drawing = draw_mesh(mesh)
    assert len({cell.at for cell in drawing.cells}) == len(drawing.cells) == mesh.chips - drawing.missing
    assert (drawing.missing == 0) == (mesh.chips <= 1024) or math.prod(sizes[:2]) > 32
    corners = {(cell.x, cell.y) for cell in drawing.cells}
    assert len(corners) == len(drawing.cells)
    for x, y in corners:
        assert x >= 0 and y >= 0 and x + drawing.cell <= drawing.width and y + drawing.cell <= drawing.height
        assert not any((x + dx, y + dy) in corners for dx in range(1, drawing.cell) for dy in (0, 1))
    for cell in drawing.cells:
        assert all(0 <= at < size for at, size in zip(cell.at, sizes, strict=True))


@pytest.mark.parametrize(("text", "least"), [("4096", 1000), ("64x64", 1000), ("2x2000", 1000), ("16x16x16", 1000)])
def test_of_a_large_mesh_a_part_is_drawn(text: str, least: int) -> None:
    drawing = draw_mesh(Mesh.parse(text))
    assert least <= len(drawing.cells) <= 1024
    assert drawing.missing == Mesh.parse(text).chips - len(drawing.cells)
    assert drawing.cells[0].at == (0,) * len(Mesh.parse(text).axes)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Mesh, list[str], list[list[str]]]:
    names = "xyzw"[: draw(st.integers(1, 4))]
    mesh = Mesh(tuple((name, draw(st.sampled_from([1, 2, 3, 16]))) for name in names))
    dims = list("ABCDE"[: draw(st.integers(0, 5))])
    axes: list[list[str]] = [[] for _ in dims]
    for name in draw(st.permutations(names)):
        if dims and draw(st.booleans()):
            axes[draw(st.integers(0, len(dims) - 1))].append(name)
    return mesh, dims, axes


@given(layouts())
def test_every_cut_is_drawn_once(case: tuple[Mesh, list[str], list[list[str]]]) -> None:
    mesh, names, axes = case
    dims = dims_of(names, [96 * 16**3] * len(names), axes, mesh)
    drawing = draw_shards(dims)
    drawn = [dim.name for panel in drawing.panels for dim in (panel.rows, panel.columns) if dim is not None]
    assert len(drawn) == len(set(drawn))
    assert {name for name, cut in zip(names, axes, strict=True) if mesh.size(*cut) > 1} <= set(drawn)
    for panel in drawing.panels:
        across, down = (1 if dim is None else dim.ways for dim in (panel.columns, panel.rows))
        wide, high = panel.held
        assert abs(wide * across - panel.width) <= 0.05 * across + 1e-9
        assert abs(high * down - panel.height) <= 0.05 * down + 1e-9
        cut = () if panel.columns is None else panel.columns.axes
        assert panel.cuts.count("v") in {math.prod(size for _, size in cut[:k]) - 1 for k in range(len(cut) + 1)}
        assert panel.cuts.count("v") == across - 1 or panel.width / across < 2
        for text in panel.texts:
            assert 0 <= text.x <= drawing.width and 0 <= text.y <= drawing.height
    tops = [panel.y for panel in drawing.panels]
    assert tops == sorted(tops) and len(set(tops)) == len(tops)


def value_of(element: ElementTree.Element, sizes: dict[str, float]) -> float:
    """What a MathML formula comes to, read as a person reads it."""
    return row_of(list(element), sizes)


def seen_in(parts: list[ElementTree.Element]) -> list[ElementTree.Element]:
    """What stands in a row for the eye, which sees no groups."""
    return [seen for part in parts for seen in (seen_in(list(part)) if part.tag == "mrow" else [part])]


EDGES = {"max": max, "min": min}


def row_of(row: list[ElementTree.Element], sizes: dict[str, float]) -> float:
    """A row: terms between plus and minus signs, each a product of what stands side by side."""
    parts = seen_in(row)
    total, sign, product, empty = 0.0, 1.0, 1.0, True
    k = 0
    while k < len(parts):
        part = parts[k]
        if part.tag == "mo" and part.text in "+−":
            total += 0.0 if empty else sign * product
            sign, product, empty = (-1.0 if part.text == "−" else 1.0), 1.0, True
        elif part.tag == "mo" and part.text == "(":
            depth, end = 1, k
            while depth:
                end += 1
                depth += {"(": 1, ")": -1}.get((parts[end].text or "") if parts[end].tag == "mo" else "", 0)
            product, empty, k = product * row_of(parts[k + 1 : end], sizes), False, end
        elif part.tag == "mi" and part.text in ("max", "min"):
            end = next(i for i in range(k, len(parts)) if parts[i].text == ")")
            inside, found = parts[k + 2 : end], [[]]  # type: ignore[var-annotated]
            for one in inside:
                found.append([]) if one.text == "," else found[-1].append(one)
            product, empty, k = product * EDGES[part.text](row_of(one, sizes) for one in found), False, end
        elif part.tag != "mo":
            product, empty = product * single(part, sizes), False
        else:
            assert part.text == "\u2062", part.text
        k += 1
    return total + sign * product


def single(part: ElementTree.Element, sizes: dict[str, float]) -> float:
    match part.tag:
        case "mn":
            return float(part.text or "")
        case "mi":
            return sizes[part.text or ""]
        case "msub":
            return sizes["_".join(child.text or "" for child in part)]
        case "mrow":
            return row_of(list(part), sizes)
        case "mfrac":
            above, below = part
            return single(above, sizes) / single(below, sizes)
        case "msup":
            base, power = part
            atoms = seen_in([base])
            assert len(atoms) == 1 or (atoms[0].text, atoms[-1].text) == ("(", ")"), "what is raised shows"
            return single(base, sizes) ** single(power, sizes)
        case "msqrt":
            return math.sqrt(row_of(list(part), sizes))
    raise AssertionError(part.tag)


a, b, c, n_t = sympy.symbols("a b c n_t", positive=True)
SAMPLES = [
    a,
    sympy.Integer(0),
    sympy.Integer(-3),
    sympy.Rational(-3, 4),
    -a,
    a - b,
    -a - b * c,
    2 * a * (b - 1) / (3 * c),
    -a / (b + c),
    (a + b) ** 2 / c**3,
    (a + b) ** sympy.Rational(1, 2) * 7,
    1 / sympy.sqrt(a * b),
    1 / a + 1 / b**2,
    a * (b * (c + 1) + c * (a - 2)) - 5,
    sympy.Max(a * b, c + 1) * 3,
    sympy.Min(a * b, c + 1) * 3 - a,
    n_t * a / 2 + sympy.Float(0.25),
    (a - b) * (c - 1) * sympy.Rational(5, 7),
]


@pytest.mark.parametrize("formula", SAMPLES, ids=str)
def test_a_formula_is_written_as_what_it_is(formula: sympy.Expr) -> None:
    sizes = {"a": 2.5, "b": 3.25, "c": 5.125, "n_t": 7.0}
    written = ElementTree.fromstring(str(mathml(formula)))
    expected = float(formula.subs({symbol: sizes[symbol.name] for symbol in formula.free_symbols}))
    assert math.isclose(value_of(written, sizes), expected, rel_tol=1e-12)


@pytest.mark.parametrize("network", ["flat", "links"])
def test_the_formulas_of_a_plan_come_to_its_figures(network: str) -> None:
    [one] = small("4x4", network)
    found = explain_phase(one, Form.EXACT)
    sizes = {symbol.name: float(size) for symbol, size in found.estimate.sizes.items()}
    for line in (*found.totals, *found.collectives):
        written = ElementTree.fromstring(str(mathml(line.formula)))
        assert math.isclose(value_of(written, sizes), line.plan_s, rel_tol=1e-9), line.what


POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=20)


@given(POINTS)
def test_the_frontier_is_what_nothing_betters(pairs: list[tuple[int, int]]) -> None:
    points = [Spot(str(k), "s", 1, 1, t / 8, c / 4) for k, (t, c) in enumerate(pairs)]
    found = best_of([*points, Spot("none", "s", 1, 1, None, None, "no plan")])
    better = [p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)]
    assert [pairs[k] for k in found] == sorted(set(better))


@given(POINTS, st.sampled_from([1.0, 1e-7, 3e9]))
def test_points_lie_where_their_figures_say(pairs: list[tuple[int, int]], unit: float) -> None:
    points = tuple(Spot(str(k), f"s{k % 3}", 1, 1, t * unit, c / unit) for k, (t, c) in enumerate(pairs))
    plot = draw_frontier(Frontier(points, "a token", "dollars"))
    assert (plot is None) == (not pairs)
    if plot is None:
        return
    assert sorted(mark.index for mark in plot.marks) == list(range(len(points)))
    for first in plot.marks:
        assert 62 <= first.x <= 706 and 12 <= first.y <= 354
        for second in plot.marks:
            (t, c), (u, d) = pairs[first.index], pairs[second.index]
            assert (t < u) == (first.x < second.x) and (c < d) == (first.y > second.y)
    assert plot.grid.count("V") >= 2 and plot.grid.count("H") >= 2


def test_what_is_wanted_is_drawn_and_the_frontier_has_labels() -> None:
    points = tuple(Spot(str(k), "s", 2**k, 8, 0.5**k, 3.0**k) for k in range(3))
    plot = draw_frontier(Frontier(points, "a step", "dollars", max_latency_s=0.7, max_cost=40.0))
    assert plot is not None and plot.counts == (1, 2, 4) and [mark.count for mark in plot.marks] == [0, 1, 2]
    across, up = re.fullmatch(r"M([\d.]+) 12V354M62 ([\d.]+)H706", plot.limits).groups()  # type: ignore[union-attr]
    assert plot.marks[1].x < float(across) < plot.marks[0].x
    assert 12 < float(up) < plot.marks[2].y
    assert {label.words for label in plot.labels} == {"1, 8", "2, 8", "4, 8"}


def test_what_has_no_plan_is_listed_with_its_reason() -> None:
    page = frontier_page("palm-540b", sweep())
    assert "13 configurations, 1 of them without a plan" in page
    assert page.count("parameters do not fit") == 1
    nothing = Frontier((Spot("8 chips", "bf16", 8, 1, None, None, "too large"),), "a token", "dollars")
    assert "No configuration has a plan." in frontier_page("palm-540b", nothing)


def test_the_command_writes_one_page_for_all_phases(tmp_path: Path) -> None:
    command = ["compile", "palm-8b", "--chips", "2x2", "--set", "B=64", "--emit", "html"]
    done = RUN.invoke(app, [*command, "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    [path] = tmp_path.iterdir()
    assert path.name == "palm_8b.html"
    page = path.read_text(encoding="utf-8")
    assert "Phase prefill" in page and "Phase decode" in page and "Phases together" in page
    again = RUN.invoke(app, [*command, "-o", str(tmp_path)])
    assert again.exit_code == 1 and "exists already" in again.output
    alone = RUN.invoke(app, [*command, "--phase", "decode", "-o", str(tmp_path)])
    assert alone.exit_code == 0 and (tmp_path / "palm_8b_decode.html").exists()


def test_slice_shapes_are_compared_on_the_page() -> None:
    done = RUN.invoke(
        app, ["compile", str(EXAMPLES / "feed-forward.esti"), "--chips", "8", "--any-shape", "--emit", "html"]
    )
    assert done.exit_code == 0 and done.stdout.startswith("<!DOCTYPE html>")
    assert "Slice shapes, cheapest first" in done.stdout and ">2x2x2<" in done.stdout


def test_rivals_are_compared_on_the_page() -> None:
    command = ["explain", str(EXAMPLES / "feed-forward.esti"), "--chips", "4x4x4", "--format", "html", "--over", "B"]
    against = [f"--against={name}={PINS / name}.pins" for name in ("ws1d", "wg-x")]
    done = RUN.invoke(app, [*command, *against])
    assert done.exit_code == 0 and done.stdout.startswith("<!DOCTYPE html>")
    assert "Rival layouts" in done.stdout and ">ws1d<" in done.stdout and "As B grows" in done.stdout
    assert "Rival layouts" not in plan_page(small())
    refused = RUN.invoke(app, [*command, *against, "--trace"])
    assert refused.exit_code == 1 and "the page has no place for them" in refused.output
