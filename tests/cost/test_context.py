"""The longest context: the published table, and by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from escc.compiler.plan.pipeline import load
from escc.cost.context import max_context
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

ROOT = Path(__file__).parents[2]
TABLE = [line for line in (ROOT / "tests/data/max-context.csv").read_text().splitlines() if not line.startswith("#")]
MESH = Mesh.parse("4x4x4")
PINS = {
    "Multihead": "stored layer.keys BMH_xyzQ\nstored layer.values BMH_xyzQ",
    "Baseline multiquery": "stored layer.keys BMQ\nstored layer.values BMQ",
    "Optimized multiquery": "stored layer.keys B_xyzMQ\nstored layer.values B_xyzMQ",
}


def palm(row: str, batch: int, d_head: int) -> Program:
    """PaLM 540B from the examples; for multihead with keys and values for every head."""
    if row != "Multihead":
        return load(ROOT / "examples/palm-540b.esti", {"B": batch, "Q": d_head})
    text = (ROOT / "examples/palm-540b.esti").read_text()
    for old, new in [
        ("Q = 256", f"Q = {d_head}"),
        ("param Wk, Wv: bf16[E,Q]", "param Wk, Wv: bf16[E,H,Q]"),
        ("bf16[B,M,Q]", "bf16[B,M,H,Q]"),
        ("k[B,L,Q]   = n[B,L,E] * Wk[E,Q]", "k[B,L,H,Q] = n[B,L,E] * Wk[E,H,Q]"),
        ("v[B,L,Q]   = n[B,L,E] * Wv[E,Q]", "v[B,L,H,Q] = n[B,L,E] * Wv[E,H,Q]"),
        ("ks[B,M,Q]", "ks[B,M,H,Q]"),
        ("vs[B,M,Q]", "vs[B,M,H,Q]"),
    ]:
        assert old in text
        text = text.replace(old, new)
    source = Source("multihead.esti", text)
    return expand(parse(source), source, {"B": batch})


def pinned(program: Program, text: str) -> dict[str, Layout]:
    return {pin.value: pin.layout for pin in parse_pins(Source("caches.pins", text), program)}


@pytest.mark.parametrize("row", list(csv.DictReader(TABLE)), ids=lambda r: f"{r['row']}-{r['batch']}")
def test_the_published_table(row: dict[str, str]) -> None:
    program = palm(row["row"], int(row["batch"]), int(row["d_head"]))
    layouts = pinned(program, PINS[row["row"]])
    found = max_context(program, "decode", MESH, layouts, Hardware.of_paper("tpu-v4").hbm_bytes, 0.30)
    assert found == pytest.approx(int(row["max_context"]), rel=0.015)


def small(text: str) -> Program:
    source = Source("small.esti", text)
    return expand(parse(source), source, None)


SMALL = """
dim B = 4, L = 1, M = 8, Q = 16
cache keys: bf16[B,M,Q]
main(k: bf16[B,L,Q]) {
  ks = append(keys, k, L into M)
  s[B,M] = ks[B,M,Q]
  return s
}
"""


def longest(layout: str, hbm: float, fraction: float = 1.0, text: str = SMALL) -> int:
    program = small(text)
    pins = pinned(program, f"stored keys {layout}")
    return max_context(program, program.phases[0].name, Mesh.parse("4x2"), pins, hbm, fraction)


def test_by_hand() -> None:
    assert longest("BMQ", 1280) == 10  # 4 * 16 * 2 bytes a token
    assert longest("BMQ", 1279) == 9
    assert longest("BMQ", 2560, 0.5) == 10
    assert longest("B_xMQ", 1280) == 40
    assert longest("B_xMQ_y", 1280) == 80
    assert longest("BM_xQ", 1280) == 40
    assert longest("BM_xQ", 1279) == 36  # whole tokens on each of four chips
    assert longest("BMQ", 100) == 0


def test_a_cache_that_does_not_grow_takes_its_part_first() -> None:
    text = (
        SMALL.replace("bf16[B,M,Q]\n", "bf16[B,M,Q]\ncache seen: bf16[B,Q]\n")
        .replace("return s", "return s, t")
        .replace("  s[B,M]", "  t = seen * 2\n  s[B,M]")
    )
    program = small(text)
    pins = pinned(program, "stored keys BMQ\nstored seen BQ")
    assert max_context(program, program.phases[0].name, Mesh.parse("4x2"), pins, 1280, 1.0) == 9  # 1280 - 128


def test_nothing_that_grows() -> None:
    program = load(ROOT / "examples/feed-forward.esti")
    with pytest.raises(InputError, match="No cache of phase"):
        max_context(program, program.phases[0].name, MESH, {}, 1e9, 0.3)
