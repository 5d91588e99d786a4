"""Pages in a headless Chromium: they ask for nothing, complain of nothing, and show what the plan says.

Skipped where there is no browser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Any

import browser
import pytest

from escc.compiler.plan.compiled import Compilation, CompiledPhase
from escc.compiler.plan.pipeline import compile_phases, load
from escc.compiler.report.compare import compare
from escc.compiler.report.explain import explain_phase
from escc.compiler.report.explain_text import Explained
from escc.compiler.report.page.render import frontier_page, plan_page
from escc.compiler.sweep.answers import Frontier, Spot
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.spmd import SpmdValue
from escc.passes.options import Options

EXAMPLES = Path(__file__).parents[3] / "examples"
HOSTILE = """</title></script><script>alert(1)</script><img src="http://x.invalid/a" onerror='alert(2)'>"""
PROGRAM = browser.find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium: install one, or name it in ESCC_CHROMIUM")

# The contrast of every text with what is behind it: [ratio, text] of those below 4.5.
FAINT = """(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() &&
    [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && !e.closest("script, style, .chip"));
  return [texts.length, texts.map((e) => {
    const style = getComputedStyle(e);
    const [a, b] = [light(channels(e.closest("svg") ? style.fill : style.color)), light(ground(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.trim().slice(0, 40)];
  }).filter(([ratio]) => ratio < 4.5)];
})()"""


def planned() -> tuple[CompiledPhase, ...]:
    options = Options(Hardware.of_paper("tpu-v4"), overlap=True)
    return compile_phases(load(EXAMPLES / "palm-540b.esti"), ("decode",), Mesh.parse("4x4x4"), options)


def compared() -> tuple[CompiledPhase, dict[str, Explained]]:
    options = Options(Hardware.of_paper("tpu-v4"))

    def with_pins(*names: str) -> CompiledPhase:
        program = load(EXAMPLES / "feed-forward.esti", {}, [EXAMPLES / "pins" / f"{name}.pins" for name in names])
        [one] = compile_phases(program, ("main",), Mesh.parse("4x4x4"), options)
        return one

    free = with_pins()
    rivals = compare({name: with_pins(name) for name in ("ws1d", "ws2d", "wg-x")}, Form.EXACT, "B")
    return free, {free.phase: Explained(explain_phase(free, Form.EXACT), rivals)}


def swept(name: str) -> str:
    points = [
        Spot(f"{chips} chips, batch {batch}", series, chips, batch, k / chips + batch * 1e-5, k * chips / batch)
        for k, series in enumerate(("bf16", "int8", "int4"), 1)
        for chips in (16, 32, 64)
        for batch in (1, 8, 64)
    ]
    points.append(Spot("8 chips, batch 1", "bf16", 8, 1, None, None, "parameters do not fit"))
    return frontier_page(name, Frontier(tuple(points), "a token", "chip-seconds per million tokens"))


@pytest.fixture(scope="module")
def compiled() -> CompiledPhase:
    [one] = planned()
    return one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, compiled: CompiledPhase) -> dict[str, str]:
    """The addresses of pages on the disk."""
    free, explained = compared()
    hostile = replace(compiled, spmd=replace(compiled.spmd, name=HOSTILE))
    texts = {
        "plan": plan_page(Compilation((compiled,))),
        "rivals": plan_page(Compilation((free,)), explained),
        "frontier": swept("palm-540b"),
        "hostile plan": plan_page(Compilation((hostile,))),
        "hostile frontier": swept(HOSTILE),
        "broken": plan_page(Compilation((free,))).replace("<main>", '<main><img src="http://x.invalid/a">', 1),
    }
    folder = tmp_path_factory.mktemp("pages")
    addresses = {}
    for name, text in texts.items():
        path = folder / f"{name.replace(' ', '-')}.html"
        path.write_text(text, encoding="utf-8")
        addresses[name] = path.as_uri()
    return addresses


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    assert PROGRAM is not None
    with browser.Page(PROGRAM, tmp_path_factory.mktemp("chromium") / "profile") as page:
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        yield page


@pytest.fixture
def page(chromium: browser.Page) -> browser.Page:
    """The browser as a desktop in light colours, with scripts."""
    chromium.scripts(True)
    chromium.size(1280, 900)
    chromium.scheme("light")
    return chromium


def complaints(page: browser.Page) -> list[Any]:
    """What the page asked for beside itself, logged, threw, or showed in a dialog."""
    asked = [event["request"]["url"] for event in page.reported("Network.requestWillBeSent")]
    logged = [event["entry"]["text"] for event in page.reported("Log.entryAdded")]
    others = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")
    return [*asked[1:], *logged, *(event for name in others for event in page.reported(name))]


def touch_everything(page: browser.Page) -> None:
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.run(
        "document.querySelectorAll('.chip, .gallery .tensor, .to, .point').forEach((one) => {"
        " one.dispatchEvent(new MouseEvent('click', { cancelable: true }));"
        " one.dispatchEvent(new PointerEvent('pointerenter')); })"
    )


@pytest.mark.parametrize("kind", ["plan", "rivals", "frontier", "hostile plan", "hostile frontier"])
def test_nothing_is_asked_for_and_nothing_goes_wrong(page: browser.Page, pages: dict[str, str], kind: str) -> None:
    page.open(pages[kind])
    touch_everything(page)
    assert complaints(page) == []


def test_what_a_page_asks_for_is_seen(page: browser.Page, pages: dict[str, str]) -> None:
    page.open(pages["broken"])
    assert any("x.invalid" in str(complaint) for complaint in complaints(page))


@pytest.mark.parametrize("kind", ["hostile plan", "hostile frontier"])
def test_a_hostile_name_is_text(page: browser.Page, pages: dict[str, str], kind: str) -> None:
    page.open(pages[kind])
    assert page.run("document.querySelector('h1').textContent").startswith(HOSTILE)
    assert HOSTILE in page.run("document.title") or kind == "hostile frontier"
    assert page.run("[document.images.length, document.scripts.length]") == [0, 1]


SECTIONS = {
    "plan": [
        "#p0 .headline",
        "#p0-shards .mesh svg",
        ".large svg",
        ".gallery svg",
        "#p0-time table",
        "#p0-formulas math",
    ],
    "rivals": ["#p0-rivals table", "#p0-rivals math", "#p0-rivals td > svg"],
    "frontier": [".plot", ".plot .point", "section + section table"],
}


@pytest.mark.parametrize("kind", SECTIONS)
@pytest.mark.parametrize("scripts", [True, False])
def test_every_part_is_there_with_and_without_scripts(
    page: browser.Page, pages: dict[str, str], kind: str, scripts: bool
) -> None:
    page.scripts(scripts)
    page.open(pages[kind])
    for part in SECTIONS[kind]:
        box = page.run(
            f"(() => {{ const b = document.querySelector({json.dumps(part)}).getBoundingClientRect();"
            " return [b.width, b.height]; })()"
        )
        assert box[0] > 5 and box[1] > 5, (part, box)
    if kind == "plan":
        assert page.run("document.querySelector('.picker').checkVisibility()") == scripts


@pytest.mark.parametrize("kind", ["plan", "rivals", "frontier"])
def test_light_and_dark_can_be_read(page: browser.Page, pages: dict[str, str], kind: str) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.open(pages[kind])
        page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        count, faint = page.run(FAINT)
        assert count > 30 and faint == [], scheme
        grounds.add(page.run("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


@pytest.mark.parametrize("kind", ["plan", "rivals", "frontier", "hostile plan"])
def test_a_phone_scrolls_one_way(page: browser.Page, pages: dict[str, str], kind: str) -> None:
    page.size(360, 740)
    page.open(pages[kind])
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.run("window.innerWidth") == 360
    assert page.run("document.documentElement.scrollWidth") <= 360
    over = page.run(
        "[...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll') && e.checkVisibility() &&"
        " e.getBoundingClientRect().right > 360.5).map((e) => e.tagName + e.className)"
    )
    assert over == []


def block(layout: Layout, mesh: Mesh, sizes: list[int], chip: dict[str, int]) -> list[tuple[int, int]]:
    """Start and end along each dim of what a chip holds: each axis, major first, keeps a part of what is left."""
    out = []
    for size, axes in zip(sizes, layout.dims, strict=True):
        start, length = 0, size
        for axis in axes:
            length //= mesh.size(axis)
            start += chip[axis] * length
        out.append((start, start + length))
    return out


HELD = """(() => [...document.querySelectorAll("#p0 .shown g[data-rows]")].map((panel) => {
  const at = (of, name) => Number(panel.querySelector(of).getAttribute(name));
  return ["x", "y"].map((start, k) => {
    const [length, dim] = [["width", "height"][k], panel.dataset[["columns", "rows"][k]]];
    const from = (at(".held", start) - at(".box", start)) / at(".box", length);
    return [dim, from, from + at(".held", length) / at(".box", length)];
  });
}).flat())()"""

CHIPS = [(0, 0, 0), (1, 2, 3), (3, 0, 2)]


def test_what_a_chip_holds_moves_with_the_chip(
    page: browser.Page, pages: dict[str, str], compiled: CompiledPhase
) -> None:
    page.open(pages["plan"])
    spmd = compiled.spmd
    sizes, mesh = dict(spmd.sizes), spmd.mesh
    options = page.run("[...document.querySelectorAll('#p0 .pick option')].map((o) => [o.value, o.textContent])")
    assert len(options) == len(spmd.values)
    for k, (number, text) in enumerate(options):
        value = spmd.table()[text.split()[0]]
        at = CHIPS[k % len(CHIPS)]
        page.run(
            f"(() => {{ const pick = document.querySelector('#p0 .pick'); pick.value = '{number}';"
            " pick.dispatchEvent(new Event('change'));"
            f" document.querySelector('#p0 .chip[data-at=\"{','.join(map(str, at))}\"]')"
            ".dispatchEvent(new MouseEvent('click')); })()"
        )
        chip = dict(zip(mesh.names, at, strict=True))
        shape = [sizes[dim] for dim in value.dims]
        expected = block(value.layout, mesh, shape, chip)
        words = page.run("document.querySelector('#p0 .held-text').textContent")
        for dim, (start, end) in zip(value.dims, expected, strict=True):
            assert f"{dim}[{start}:{end}]" in words
        held = {dim: (start, end) for dim, start, end in page.run(HELD) if dim}
        for dim, size, (start, end) in zip(value.dims, shape, expected, strict=True):
            if end - start < size:
                assert held[dim] == pytest.approx((start / size, end / size), abs=1e-9)
        assert marked(page) == related(value, mesh, shape, chip)


def marked(page: browser.Page) -> dict[str, str]:
    """The class of each chip that is drawn, and the letter in it."""
    found = page.run(
        "Object.fromEntries([...document.querySelectorAll('#p0 .chip[data-at]')].map((c) =>"
        " [c.dataset.at, [...c.classList].slice(1).join() + c.querySelector('text').textContent]))"
    )
    assert isinstance(found, dict)
    return found


def related(value: SpmdValue, mesh: Mesh, shape: list[int], chip: dict[str, int]) -> dict[str, str]:
    """How each chip stands to the picked one: it holds the same, or another addend of the same block."""
    out = {}
    for at in product(*map(range, mesh.sizes)):
        other = dict(zip(mesh.names, at, strict=True))
        alike = block(value.layout, mesh, shape, other) == block(value.layout, mesh, shape, chip)
        addend = any(other[axis] != chip[axis] for axis in value.layout.partial)
        word = "picked" if other == chip else "" if not alike else "addend+" if addend else "copy="
        out[",".join(map(str, at))] = word
    return out


def test_coordinates_pick_a_chip_and_keep_to_the_mesh(page: browser.Page, pages: dict[str, str]) -> None:
    page.open(pages["plan"])
    page.run("document.querySelectorAll('#p0 .at')[1].focus()")
    page.run("document.querySelectorAll('#p0 .at')[1].select()")
    page.call("Input.dispatchKeyEvent", type="char", text="9")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", windowsVirtualKeyCode=13, text="\r")
    assert page.run("document.querySelector('#p0 .chip.picked[data-at]').dataset.at") == "0,3,0"
    assert page.run("document.querySelectorAll('#p0 .at')[1].value") == "3"
    assert page.run("location.href") == pages["plan"]


def test_a_value_of_the_program_is_shown_when_it_is_followed(page: browser.Page, pages: dict[str, str]) -> None:
    page.open(pages["plan"])
    page.run("[...document.querySelectorAll('#p0 .to')].find((a) => a.textContent === 'layer.return').click()")
    assert page.run("document.querySelector('#p0 .shown .name').textContent") == "layer.return"
    assert page.run("document.querySelector('#p0 .steps tr.on .to').textContent") == "layer.return"


def test_steps_are_drawn_in_time(page: browser.Page, pages: dict[str, str], compiled: CompiledPhase) -> None:
    page.open(pages["plan"])
    bars = page.run(
        "[...[...document.querySelectorAll('#p0 .steps')].at(-1).querySelectorAll('tbody tr')].map((row) => {"
        " const bar = row.querySelector('rect')?.getBoundingClientRect();"
        " const room = row.querySelector('td.wide svg').getBoundingClientRect();"
        " return [row.querySelector('.to').textContent,"
        " bar ? [(bar.left - room.left) / room.width, bar.width / room.width] : null]; })"
    )
    [loop, *_] = sorted(compiled.estimate.loops, key=lambda one: -one.seconds)
    totals = compiled.estimate.totals()
    whole = totals.total_s / 118
    found = {name: bar for name, bar in bars if bar}
    seconds = {cost.result: cost.seconds for cost in compiled.estimate.ops}
    for name, bar in found.items():
        if name in seconds:
            assert bar[1] == pytest.approx(seconds[name] / whole, abs=1e-3), name
    assert max(start + length for start, length in found.values()) == pytest.approx(1, abs=1e-3)
    first = [found[name][0] for name in loop.results if name in found]
    assert min(first[:1]) == pytest.approx(min(first), abs=1e-3)


def test_points_tell_their_figures_under_the_mouse_and_the_keyboard(page: browser.Page, pages: dict[str, str]) -> None:
    page.open(pages["frontier"])
    details = "document.querySelector('.details').textContent"
    labels = page.run("[...document.querySelectorAll('.point[data-point]')].map((p) => p.getAttribute('aria-label'))")
    assert len(labels) == len(set(labels)) == 27
    x, y = page.run(
        "(() => { const p = document.querySelectorAll('.point[data-point]')[5]; p.scrollIntoView();"
        " const b = p.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert page.run(details) == labels[5]
    page.run("document.querySelector('.point[tabindex=\"0\"]').focus()")
    seen = [page.run(details)]
    for _ in range(3):
        page.call("Input.dispatchKeyEvent", type="rawKeyDown", key="ArrowRight", windowsVirtualKeyCode=39)
        seen.append(page.run(details))
    assert seen == labels[:4]
    assert page.run("document.querySelectorAll('.point[tabindex=\"0\"]').length") == 1


def test_it_prints(page: browser.Page, pages: dict[str, str]) -> None:
    page.open(pages["plan"])
    assert len(page.call("Page.printToPDF")["data"]) > 10_000


def test_the_relation_of_chips_is_judged_by_blocks() -> None:
    mesh = Mesh.parse("2x3")
    layout = Layout((("y", "x"),))
    starts = [block(layout, mesh, [12], {"x": x, "y": y})[0][0] for y in range(3) for x in range(2)]
    assert all(b - a == 12 // prod(mesh.sizes) for a, b in pairwise(starts))
