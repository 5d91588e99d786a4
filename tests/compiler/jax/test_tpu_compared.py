"""What a module for TPUs compares for equality it does not make anew for that: it would be rounded otherwise than what
it is compared with, and nothing the largest."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax import tpu
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.ir.mesh import Mesh
from escc.passes.options import Options

MODEL = """
dim B = 64, E = 256, V = 2048

main(x: bf16[B,E]) {
  param table: bf16[E,V]
  param shift: bf16[V]
  scores[B,V] = x[B,E] * table[E,V]
  shares = softmax(scores, over=V)
  keys = shares + shift
  LARGEST
  weighted = shares * weights
  y[B,E] = weighted[B,V] * table[E,V]
  return y, found
}
"""
KEYS = re.compile(r"= (f32|bf16)\[[\d,]*2048\]\S* add\(")


def kernels(step: str, compiled: CompiledPhase, folder: Path, direction: str) -> list[str]:
    """The kernels of the module of a step that compare in that way along V."""
    where = tpu.slice_of(compiled.spmd.mesh, compiled.hardware)
    (folder / "step.py").write_text(step)
    mesh = compiled.spmd.mesh
    names = {"names": mesh.names, "sizes": mesh.sizes}
    tpu._compile(folder, {"topology": where.topology, "config": where.config, **names})
    found = re.split(r"\n(?=%|ENTRY)", (folder / "final.txt").read_text())
    compares = re.compile(rf"pred\[\d+,2048\].* compare\(.*direction={direction}")
    return [kernel for kernel in found if compares.search(kernel)]


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("jax", "libtpu")), reason="the TPU's compiler is not installed"
)
@pytest.mark.parametrize(
    ("largest", "direction"),
    [
        ("found = argmax(keys, over=V)\n  weights = shares", "EQ"),
        ("weights = choose(keys, over=V, keep=128)\n  found = weights", "GT"),
    ],
    ids=["argmax", "choose"],
)
def test_what_is_compared_is_made_once(largest: str, direction: str, tmp_path: Path) -> None:
    (tmp_path / "model.esti").write_text(MODEL.replace("LARGEST", largest))
    one = compile_phase(load(tmp_path / "model.esti"), "main", Mesh.parse("2x2"), Options(Hardware.load("tpu-v4")))
    step = emit_jax(one.program, one.spmd, one.estimate, platform=Platform.TPU)
    barrier = re.compile(r"lax\.optimization_barrier\((.*)\)")
    once, anew = (kernels(text, one, tmp_path, direction) for text in (step, barrier.sub(r"\1", step)))
    assert once and not any(map(KEYS.search, once))
    assert any(map(KEYS.search, anew))  # as the compiler has it without a barrier
