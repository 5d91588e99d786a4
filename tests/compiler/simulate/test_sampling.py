"""From a token to the next: tied tables, learned positions, and sampling over a split vocabulary, run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase
from escc.cost.hardware import Hardware
from escc.ir.collective import describe
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program, walk
from escc.ir.spmd import Move
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

MODEL = """
dim B, L, M
dim E = 64, F = 96, T = 256, S = 8, W = 64, K = 4
dim V = VOCABULARY

param table: bf16[V,E]
param places: bf16[T,E]
param scale, bias: bf16[E]

block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,F]
  param bi: bf16[F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u + bi)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}

main(tokens: i32[B,L], noise: f32[B,K]) {
  x = repeat 3 layer(take(table, tokens, over=V) + take(places, positions(L into M), over=T))
  n = layernorm(last(x, over=L), scale, bias, over=E)
  logits[B,V] = n[B,E] * table[V,E]
  values, ids = top_k(logits, over=V, keep=K)
  choice = argmax(values / 0.7 + noise, over=K)
  return argmax(logits, over=V), take(ids, choice, over=K)
}

phase prefill { B = 16, L = 32, M = 64 }
phase decode  { B = 16, L = 1, M = 64 }
"""
IN_PARTS, WHOLE = MODEL.replace("VOCABULARY", "S * W"), MODEL.replace("VOCABULARY", "512")
HARDWARE = Hardware.of_paper("tpu-v4")


def program(text: str) -> Program:
    source = Source("model.esti", text)
    return expand(parse(source), source)


def compiled(text: str, phase: str, mesh: str, pins: str) -> CompiledPhase:
    made = program(text)
    options = Options(HARDWARE, pins=parse_pins(Source("pins", pins), made))
    return compile_phase(made, phase, Mesh.parse(mesh), options, run=True)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("text", "pins"),
    [
        (IN_PARTS, "result logits BS_xyW\nstored table S_yW_xE\n"),
        (IN_PARTS, "result logits B_yS_xW\n"),
        (WHOLE, "result logits BV_yx\nstored table V_xyE\n"),
    ],
)
def test_tokens_are_those_of_the_reference(text: str, pins: str, phase: str) -> None:
    done = compiled(text, phase, "2x2", pins)
    assert done.checked is not None and done.checked.equal
    assert done.checked.max_error == 0  # tokens are whole numbers


def test_a_split_vocabulary_is_not_gathered() -> None:
    done = compiled(IN_PARTS, "decode", "2x2x2", "result logits BS_xyzW\n")
    values = done.spmd.table()
    moved = {
        placed.item.operand: describe(placed.item.collective, values[placed.item.operand].dims)
        for placed in walk(done.spmd.body)
        if isinstance(placed.item, Move)
    }
    assert "logits" not in moved
    assert format_layout(values["return.max"].dims, values["return.max"].layout) == "B partialmax-xyz"
    assert format_layout(values["return.lowest"].dims, values["return.lowest"].layout) == "B partialmax-xyz"
    assert "reduce" in moved["return.max"] and "reduce" in moved["return.lowest"]
    assert format_layout(values["values.part"].dims, values["values.part"].layout) == "BS_xyzK"
    largest = max(m.counted for m in done.checked.moves) if done.checked else 0
    sizes = dict(done.checked.sizes) if done.checked else {}
    assert 0 < largest <= sizes["B"] * sizes["S"] * sizes["K"] * 4


def test_the_emitted_file_agrees(tmp_path: Path) -> None:
    done = compiled(IN_PARTS, "prefill", "2x2", "result logits BS_xyW\nstored table S_yW_xE\n")
    file = tmp_path / "program.py"
    file.write_text(emit_numpy(done.program, done.spmd))
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    broken = file.read_text().replace("top_k(logits, ids_places", "top_k(-logits, ids_places", 1)
    file.write_text(broken)
    assert subprocess.run([sys.executable, str(file)], capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("over=V, keep=K)", "over=V)", "`top_k` needs `keep=`."),
        ("values, ids = top_k", "values = top_k", "`top_k` gives 2 values, and one is needed here."),
        ("values, ids = top_k", "a, values, ids = top_k", "`top_k` gives 2 values, not 3."),
        ("keep=K)", "keep=B)", "Dim `B` is one of those that are kept."),
        ("keep=K)", "keep=V)", "`keep=` takes a dim of its own, and `V` is a product of dims."),
        ("W = 64, K = 4", "W = 64, K = 65", "In phase `prefill`, K = 65 is more than W = 64."),
        ("positions(L into M)", "positions()", "The last argument of `positions` is `L into M`."),
        ("L = 32, M = 64", "L = 65, M = 64", "In phase `prefill`, L = 65 is more than M = 64."),
        ("over=T))", "over=L))", "There is no dim `L` to go over."),
        ("last(x, over=L)", "last(x, over=V)", "There is no dim `S` to go over."),
        ("argmax(logits, over=V)", "argmax(logits + choice, over=V)", "`choice` holds i32 indices"),
    ],
)
def test_wrong_lookups_are_refused(right: str, wrong: str, message: str) -> None:
    assert right in IN_PARTS
    with pytest.raises(InputError) as error:
        program(IN_PARTS.replace(right, wrong, 1))
    assert message in "\n".join(d.message for d in error.value.diagnostics)
