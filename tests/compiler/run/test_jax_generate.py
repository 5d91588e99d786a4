"""Generation in JAX: tokens against virtual chips and against decoding without caches, in one process and in two."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import in_pairs
from typer.testing import CliRunner, Result

from escc.compiler.commands import run as in_command
from escc.compiler.commands.main import app
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax import check as in_check
from escc.compiler.plan.pipeline import load
from escc.compiler.plan.streamed_layers import streaming
from escc.compiler.run import generate_jax as in_jax
from escc.compiler.run.generate import Prepared, alone_on, in_stages, prepare, run_prepared
from escc.compiler.run.generate_jax import generate_jax, held_exactly, jax_disagreement, jax_text
from escc.compiler.simulate.reference import run_reference
from escc.cost.hardware import Hardware, Host
from escc.ir.diagnostics import InternalError, Source
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Program
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

MODEL = """
model "small"

dim B, L, M
dim E = 64, F = 128, Q = 16, K = 4
dim V = 512

param table: bf16[V,E]
param out: bf16[E,V]

block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param scale: bf16[E]
  param Wq, Wk, Wv: bf16[E,K,Q]
  param Wo: bf16[K,Q,E]
  cache keys, values: bf16[B,M,K,Q]

  n = rmsnorm(x, scale, over=E)
  q[B,L,K,Q] = n[B,L,E] * Wq[E,K,Q]
  k[B,L,K,Q] = n[B,L,E] * Wk[E,K,Q]
  v[B,L,K,Q] = n[B,L,E] * Wv[E,K,Q]
  ks = append(keys, rope(k, over=Q, at=L into M), L into M)
  vs = append(values, v, L into M)
  rq = rope(q, over=Q, at=L into M)
  s[B,L,K,M] = rq[B,L,K,Q] * ks[B,M,K,Q]
  p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M))
  o[B,L,K,Q] = p[B,L,K,M] * vs[B,M,K,Q]
  a[B,L,E] = o[B,L,K,Q] * Wo[K,Q,E]
  return x + 8 * a
}

main(tokens: i32[B,L]) {
  x = take(table, tokens, over=V)
  z = repeat 3 layer(x)
  y = last(z, over=L)
  logits[B,V] = y[B,E] * out[E,V]
  return argmax(logits, over=V)
}

phase prefill { B = 16, L = 32, M = 32 }
phase decode  { B = 16, L = 1, M = 64, calls = 32 }
"""
OPTIONS = Options(Hardware.of_paper("tpu-v4"), capacity_bytes=math.inf)
SHORTER = (  # a table of fewer rows than tokens that are picked
    "  x = take(table, tokens, over=V)",
    "  param few: bf16[V2,E]\n  x = take(table, tokens, over=V) + take(few, tokens, over=V2)",
)
SLOTS = ("prefill { B = 16", "prefill { B = 1")


def program(text: str, pins: str = "") -> Program:
    source = Source("model.esti", text)
    made = expand(parse(source), source)
    return replace(made, pins=parse_pins(Source("pins", pins), made))


def prepared(model: Program, mesh: str, tokens: int, seed: int = 0) -> Prepared:
    return held_exactly(prepare(model, alone_on(Mesh.parse(mesh), OPTIONS), tokens, seed))


def without_caches(one: Prepared) -> np.ndarray:
    """Tokens when each step reads all tokens so far, afresh."""
    model = one.model.program
    sizes = model.true_sizes(one.sizes)
    tokens = one.prompt
    for _ in range(one.tokens):
        arrays = {**one.stored, "tokens": tokens}
        longer = {**sizes, "L": tokens.shape[1]}
        scores = run_reference(replace(model, results=("logits",)), longer, arrays, {"M": tokens.shape[1]})["logits"]
        best = scores.reshape(len(tokens), -1).argmax(axis=1)
        tokens = np.concatenate([tokens, best[:, None]], axis=1)
    return tokens[:, one.prompt.shape[1] :].T


@pytest.mark.parametrize(
    ("mesh", "changes", "pins"),
    [
        ("2", [SLOTS, ("return argmax(logits, over=V)", "return logits")], "BM_xKQ"),
        ("3", [("K = 4", "K = 2 pad 3"), ("V = 512", "V = 510")], "BMK_xQ"),
        ("2x2", [SHORTER, ("dim V = 512", "dim V = 512, V2 = 100")], "B_xM_yKQ"),
        ("2x2", [("cache keys, values: bf16[B,M,K,Q]", "cache keys, values: int8[B,M,K,Q] * f32[B,M,K]")], "B_xM_yKQ"),
    ],
    ids=["slots and scores", "padded", "a shorter table", "int8"],
)
def test_it_generates_what_decoding_without_caches_does(mesh: str, changes: list[tuple[str, str]], pins: str) -> None:
    text = MODEL
    for right, wrong in changes:
        assert right in text
        text = text.replace(right, wrong, 1)
    one = prepared(program(text, f"stored layer.keys {pins}\nstored layer.values {pins}\n"), mesh, 7, seed=3)
    tokens = generate_jax(one)
    assert len(np.unique(tokens)) > 3
    if "int8" in text:  # a cache of integers is rounded as it is written
        assert np.array_equal(tokens, run_prepared(one).sharded.tokens)
    else:
        assert np.array_equal(tokens, without_caches(one))


@pytest.mark.parametrize("text", [MODEL, in_pairs(MODEL)], ids=["repetitions", "parts of repetitions"])
def test_stages_generate_what_decoding_without_caches_does(text: str) -> None:
    counts = {"prefill": 2, "decode": 4}
    one = held_exactly(prepare(program(text), in_stages(Mesh.parse("2x2"), OPTIONS, 2, counts), 5, seed=3))
    assert np.array_equal(generate_jax(one), without_caches(one))


HOST = Host(dram_bytes=1e9, dram_bytes_per_s=1e11, link_bytes_per_s=1e10, host_chips=2)


@pytest.mark.parametrize(("mesh", "stages", "streamed"), [("2", 1, 2), ("2x1", 2, 4)], ids=["alone", "stages"])
def test_what_streams_generates_what_decoding_without_caches_does(mesh: str, stages: int, streamed: int) -> None:
    """Two chips that stream some of their layers, in one process and in two; and two stages that stream all."""
    options = replace(OPTIONS, hardware=replace(OPTIONS.hardware, host=HOST))
    counts = {"prefill": 2, "decode": 1}
    plan = in_stages(Mesh.parse(mesh), options, stages, counts) if stages > 1 else alone_on(Mesh.parse(mesh), options)
    model = streaming(program(MODEL.replace("repeat 3", "repeat 4")), {Kind.PARAM, Kind.CACHE}, streamed, 1)
    one = held_exactly(prepare(model, plan, 5, seed=3))
    for text in in_jax._modules(one.compiled).values():
        assert "class Streamed" in text or "STREAMED = [True, True]" in text
    tokens = generate_jax(one)
    assert len(np.unique(tokens)) > 3
    assert np.array_equal(tokens, without_caches(one))
    if stages == 1:
        assert np.array_equal(tokens, generate_jax(one, 2))


def test_a_shipped_model_generates_the_tokens_of_the_virtual_chips() -> None:
    one = prepared(load(Path("llama-3-70b")), "2x2", 6)
    assert np.array_equal(generate_jax(one), run_prepared(one).sharded.tokens)


def test_two_processes_of_four_devices_do_as_one_of_eight() -> None:
    caches = "stored layer.keys B_zMK_xyQ\nstored layer.values B_zMK_xyQ\n"
    one = prepared(program(MODEL, caches), "2x2x2", 5, seed=1)
    alone, together = (generate_jax(one, processes) for processes in (1, 2))
    assert np.array_equal(alone, together)
    assert np.array_equal(alone, without_caches(one))


def test_a_wrong_emitted_program_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(change: tuple[str, str], *arguments: Any) -> str:
        text = emit_jax(*arguments)
        assert change[0] in text
        return text.replace(*change)

    one = prepared(program(MODEL, "stored layer.keys BMK_xQ\nstored layer.values BMK_xQ\n"), "2", 5)
    second_fails = ("return jax.jit(", "return (1 / 0 if jax.process_index() else jax.jit)(")
    monkeypatch.setattr(in_jax, "emit_jax", lambda *a: broken(second_fails, *a))
    with pytest.raises(InternalError, match=r"the emitted program does not run: ZeroDivisionError"):
        generate_jax(one, 2)
    entry_misplaced = ("filled_M - cfg.L, 0, 0)", "filled_M - 2 * cfg.L, 0, 0)")
    monkeypatch.setattr(in_jax, "emit_jax", lambda *a: broken(entry_misplaced, *a))
    done, tokens = run_prepared(one), generate_jax(one)
    said = jax_disagreement(done, tokens)
    assert said is not None
    assert re.fullmatch(r"In JAX, step \d picks token \d+ for sequence \d+, and on virtual chips \d+\.", said)
    found = re.search(r"tokens    (\d+) of (\d+) equal", jax_text(done, tokens, 1))
    assert found is not None and int(found[1]) < int(found[2]) == tokens.size


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


def test_the_command_shows_both_and_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.esti"
    file.write_text(MODEL)
    arguments = (str(file), "--chips", "2x2", "--tokens", "3", "--backend", "jax")
    done = invoke(*arguments, "--processes", "2")
    assert done.exit_code == 0, done.stderr
    assert "  devices   4, 2 in each of 2 processes\n" in done.stdout
    assert len(re.findall(r"tokens    (\d+) of \1 equal", done.stdout)) == 2

    refused: Mapping[tuple[str, ...], str] = {
        (*arguments, "--processes", "3"): "4 chips cannot be shared by 3 processes.\n  hint: choose from 1, 2, 4\n",
        (*arguments, "--processes", "0"): "4 chips cannot be shared by 0 processes.\n  hint: choose from 1, 2, 4\n",
        (*arguments[:-2], "--processes", "2"): "Virtual chips run in one process.\n",
        (*arguments, "--stages", "2", "--processes", "2"): "Stages run in one process.\n",
        (*arguments, "--offload", "auto"): "tpu-v4-measured has no host to store",
        (*arguments, "--offload", "auto", "--checkpoint", "."): "Weights of a checkpoint go to plans without streams.",
        (*arguments, "--stages", "3"): "No axis of `x=2 y=2` has 3 chips, for as many stages.\n",
        (*arguments, "--stages", "2", "--checkpoint", "."): "Weights of a checkpoint go to plans without stages.\n",
    }
    for wrong, message in refused.items():
        said = invoke(*wrong)
        assert (said.exit_code, said.stdout) == (1, "")
        assert said.stderr.startswith(f"error: {message}")

    monkeypatch.setattr(in_command, "generate_jax", lambda one, processes: run_prepared(one).sharded.tokens + 1)
    others = invoke(*arguments)
    assert others.exit_code == 1
    assert re.match(
        r"error: In JAX, step 1 picks token \d+ for sequence 1, and on virtual chips \d+\.\n", others.stderr
    )
    assert re.search(r"\n  tokens    0 of \d+ equal to those of the virtual chips\n", others.stdout)

    def missing(_: str) -> str:
        raise in_check.PackageNotFoundError

    monkeypatch.setattr(in_check, "version", missing)
    said = invoke(*arguments)
    assert (said.exit_code, said.stdout) == (1, "")
    assert said.stderr == "error: JAX is not installed.\n  hint: install it with `pip install 'escc[jax]'`\n"
