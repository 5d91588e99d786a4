"""The published table of the longest contexts: what a chip stores of caches in the layouts of its rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from escc.compiler.plan.pipeline import compile_phase, parse, with_pins
from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.passes.options import Options

TABLE = (Path(__file__).parents[1] / "data" / "max-context.csv").read_text().splitlines()
V4 = Hardware.of_paper("tpu-v4")
LAYERS, CONTEXT = 118, 256
CACHES = {  # of a layer of PaLM 540B, and their layouts
    "Multihead": ("B,M,H,Q", "BMH_xyzQ"),
    "Baseline multiquery": ("B,M,Q", "BMQ"),
    "Optimized multiquery": ("B,M,Q", "B_xyzMQ"),
}


def stored_bytes(dims: str, layout: str, batch: int, d_head: int) -> float:
    """What a chip of 64 stores of layers that are nothing but caches."""
    new = dims.replace("M", "L")
    text = (
        f"dim B = {batch}, L = 1, M = {CONTEXT}, H = 64, Q = {d_head}\n"
        f"block layer(x: bf16[{new}]) -> bf16[{new}] {{ cache keys, values: bf16[{dims}]\n"
        f"  ks = append(keys, x, L into M)\n  vs = append(values, x, L into M)\n"
        f"  k[B,Q] = ks[{dims}]\n  v[B,Q] = vs[{dims}]\n  return x + k + v }}\n"
        f"main(x: bf16[{new}]) {{ y = repeat {LAYERS} layer(x)\n return y }}\n"
    )
    program = parse(text)
    pins = Source("caches.pins", f"stored layer.keys {layout}\nstored layer.values {layout}")
    (phase,) = program.phases
    plan = compile_phase(with_pins(program, pins), phase.name, Mesh.parse("4x4x4"), Options(V4))
    return float(memory(plan.spmd).stored_bytes)


@pytest.mark.parametrize(
    "row",
    list(csv.DictReader(line for line in TABLE if not line.startswith("#"))),
    ids=lambda r: f"{r['row']}-{r['batch']}",
)
def test_the_published_table(row: dict[str, str]) -> None:
    token_bytes = stored_bytes(*CACHES[row["row"]], int(row["batch"]), int(row["d_head"])) / CONTEXT
    assert 0.30 * V4.hbm_bytes / token_bytes == pytest.approx(int(row["max_context"]), rel=0.015)
