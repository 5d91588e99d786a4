"""Emitted JAX modules that stream: the loop beside a plain scan, modules beside their plans, where arrays lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programs import TINY_DECODER
from saved_llama import random_weights, save
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.pipeline import compile_phase
from escc.compiler.plan.pipeline import load as load_model
from escc.compiler.plan.streamed_layers import streaming
from escc.cost.hardware import Hardware, Host, hardware_toml
from escc.ir.mesh import Mesh
from escc.ir.program import Kind
from escc.passes.options import Options

jax = pytest.importorskip("jax")
HOST = Host(dram_bytes=1e9, dram_bytes_per_s=1e11, link_bytes_per_s=1e10, host_chips=8)
CHIP = replace(Hardware.load("h100"), host=HOST)
EXPERTS = """
model "experts"
dim B = 8, E = 16, F = 24, X = 4
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wr: f32[E,X]
  param Wi: bf16[X,E,F]
  param Wd: bf16[X,F,E]
  r: f32[B,X] = x[B,E] * Wr[E,X]
  m: bf16 = choose(r, over=X, keep=2)
  t[B,X,E] = m[B,X] * x[B,E]
  u[B,X,F] = t[B,X,E] * Wi[X,E,F]
  h = relu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  e[B,E] = m[B,X] * d[B,X,E]
  return x + e
}
main(x: bf16[B,E]) { return repeat 5 layer(x) }
"""
BOTH = frozenset({Kind.PARAM, Kind.CACHE})


@pytest.mark.parametrize(("count", "streamed", "ahead"), [(7, 3, 1), (4, 4, 2), (5, 2, 0)])
def test_the_loop_gives_what_a_scan_gives(count: int, streamed: int, ahead: int):
    from escc.compiler.emit import jax_streams_runtime as runtime

    P = jax.sharding.PartitionSpec
    rng = np.random.default_rng(0)
    weights = {"a": rng.standard_normal((count, 4)), "b": rng.standard_normal((count, 4))}
    cache, x = rng.standard_normal((count, 6, 4)), np.ones(4)

    def body(carry, stored):
        x, cache = carry
        i, at, w = stored
        x = x * w["a"] + w["b"] + cache[at].sum(0)
        return (x, jax.lax.dynamic_update_slice(cache, x[None, None], (at, 2, 0))), x[:2] + i

    def plain(carry, stored):
        i, w = stored
        return body(carry, (i, i, w))

    (out, after), lost = jax.lax.scan(plain, (x, cache), (np.arange(count), weights))
    specs = {"a": P(), "b": runtime.Streamed(P(), P())}, (runtime.Streamed(P(), P()),)
    held, [own] = runtime.apart(weights, specs[0], streamed), runtime.apart([cache], list(specs[1]), streamed)
    (made,), (written,), total = runtime.scan_streamed(
        body, (x,), held, (own,), specs, ((3, 1, 1, True),), count, ahead
    )
    assert len(held["b"].host) == streamed
    np.testing.assert_allclose(made, out, rtol=1e-5)
    np.testing.assert_allclose(runtime.whole(written), after, rtol=1e-5)
    np.testing.assert_allclose(total, lost.sum(0), rtol=1e-5)


def test_a_module_loads_a_checkpoint_into_both_memories(tmp_path: Path):
    from escc.compiler.hf_import.weight_map import map_beside
    from escc.compiler.jax.check_child import load

    checkpoint, file = save(tmp_path / "saved", random_weights()), tmp_path / "model.esti"
    done = CliRunner().invoke(app, ["import", str(checkpoint), "-o", str(file)])
    assert done.exit_code == 0, done.output
    plain = load_model(file)
    weights = map_beside(file, plain)
    found = {}
    for streamed in (0, 1):
        program = streaming(plain, BOTH, streamed, 1) if streamed else plain
        one = compile_phase(program, "decode", Mesh.parse("1"), Options(CHIP))
        path = tmp_path / f"streamed_{streamed}.py"
        path.write_text(emit_jax(one.program, one.spmd, one.estimate, weights))
        module = load(path)
        mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
        found[streamed] = module.load(str(checkpoint), mesh)
    kinds = {str(leaf.sharding.memory_kind) for leaf in jax.tree.leaves(found[1])}
    assert kinds == {"device", *(["pinned_host"] if jax.__version_info__ >= (0, 10, 2) else [])}  # on CPUs
    with pytest.raises(SystemExit, match=r"error: `.*/none` cannot be read: No such file or directory\.$"):
        module.run(str(tmp_path / "none"))
    wider = {name: np.concatenate([array, array[:1]]) for name, array in random_weights().items()}
    for said, tensors in (("has no tensor `.*`.$", {}), ("cannot be read: cannot reshape", wider)):
        with pytest.raises(SystemExit, match=f"^error: `.*/other` {said}"):
            module.run(str(save(tmp_path / "other", tensors)))
    together = module.whole(found[1])
    jax.tree.map(np.testing.assert_array_equal, together, jax.tree.map(np.asarray, found[0]))


def test_escc_check_compares_a_module_that_streams(tmp_path: Path):
    file, chip = tmp_path / "tiny.esti", tmp_path / "small.toml"
    file.write_text(TINY_DECODER)
    chip.write_text(hardware_toml(replace(CHIP, hbm_bytes=200e3), [], []))
    arguments = ["--hardware", str(chip), "--phase", "decode", "--offload", "auto", "--backend", "jax"]
    done = CliRunner().invoke(app, ["check", str(file), "--chips", "2", *arguments])
    assert done.exit_code == 0, done.output
    assert "as planned" in done.stdout and "all-gather" in done.stdout  # what is fetched is gathered


@pytest.mark.usefixtures("forked_jax")
def test_layers_of_experts_that_stream_count_what_finds_no_room(tmp_path: Path):
    file, chip = tmp_path / "experts.esti", tmp_path / "small.toml"
    file.write_text(EXPERTS)
    chip.write_text(hardware_toml(replace(CHIP, hbm_bytes=24e3), [], []))
    arguments = ["--hardware", str(chip), "--offload", "weights", "--backend", "jax"]
    done = CliRunner().invoke(app, ["check", str(file), "--chips", "1", *arguments])
    assert done.exit_code == 0, done.output
    assert "as planned" in done.stdout
