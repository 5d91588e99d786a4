"""Generation: sharded tokens and scores against decoding without any cache, and what is refused."""

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

from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import load
from escc.compiler.run import generate as generation
from escc.compiler.run.generate import MOST_TOKENS, Generation, alone_on, in_stages, prepare, run_prepared
from escc.compiler.run.generate_jax import disagreement, generation_text
from escc.compiler.run.language_model import language_model
from escc.compiler.simulate import staged
from escc.compiler.simulate.reference import run_reference
from escc.compiler.simulate.spmd_interpreter import Execution, run_spmd
from escc.cost.hardware import Hardware, Host, hardware_toml
from escc.ir.diagnostics import InputError, Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

MODEL = """
model "small"

dim B, L, M
dim E = 64, F = 128, Q = 16, K = 4, G = 2
dim H = K * G
dim V = 512, P = 64

param table: bf16[V,E]
param out: bf16[E,V]
param places: bf16[P,E]

block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param scale: bf16[E]
  param Wq: bf16[E,H,Q]
  param Wk, Wv: bf16[E,K,Q]
  param Wo: bf16[H,Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys, values: bf16[B,M,K,Q]

  n = rmsnorm(x, scale, over=E)
  q[B,L,H,Q] = n[B,L,E] * Wq[E,H,Q]
  k[B,L,K,Q] = n[B,L,E] * Wk[E,K,Q]
  v[B,L,K,Q] = n[B,L,E] * Wv[E,K,Q]
  ks = append(keys, rope(k, over=Q, at=L into M), L into M)
  vs = append(values, v, L into M)
  rq = rope(q, over=Q, at=L into M)
  s[B,L,H,M] = rq[B,L,H,Q] * ks[B,M,K,Q]
  p = softmax(s / sqrt(size(Q)), over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,K,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  u[B,L,F] = n[B,L,E] * Wi[E,F]
  h = silu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d
}

main(tokens: i32[B,L]) {
  x = take(table, tokens, over=V) + take(places, positions(L into M), over=P)
  z = repeat 3 layer(x)
  y = last(z, over=L)
  logits[B,V] = y[B,E] * out[E,V]
  return argmax(logits, over=V)
}

phase prefill { B = 16, L = 32, M = 32 }
phase decode  { B = 16, L = 1, M = 64, calls = 32 }
"""
OPTIONS = Options(Hardware.of_paper("tpu-v4"), capacity_bytes=math.inf)
CACHES = "stored layer.keys {0}\nstored layer.values {0}\n"


def program(text: str = MODEL, pins: str = "") -> Program:
    source = Source("model.esti", text)
    made = expand(parse(source), source)
    return replace(made, pins=(*made.pins, *parse_pins(Source("pins", pins), made)))


def without_caches(done: Generation, model: Program, stored: Mapping[str, Any]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Tokens and logits when each step reads all tokens so far, afresh."""
    sizes = model.true_sizes(dict(done.sizes))
    tokens, logits = done.prompt, []
    for _ in done.errors:
        longer = {**sizes, "L": tokens.shape[1]}
        arrays = {**stored, "tokens": tokens}
        found = run_reference(replace(model, results=("logits",)), longer, arrays, {"M": tokens.shape[1]})
        logits.append(found["logits"])
        best = found["logits"].reshape(len(tokens), -1).argmax(axis=1)
        tokens = np.concatenate([tokens, best[:, None]], axis=1)
    return tokens[:, done.prompt.shape[1] :].T, logits


@pytest.mark.parametrize(
    ("mesh", "text", "pins"),
    [
        ("1", MODEL, ""),
        ("2x2", MODEL, CACHES.format("B_xM_yKQ")),
        ("2x2", MODEL, CACHES.format("BMK_xQ_y")),
        ("2x2x2", MODEL, CACHES.format("B_zM_xK_yQ")),
        ("3", MODEL.replace("V = 512", "V = 510"), CACHES.format("BMKQ") + "result logits BV_x\n"),
        ("2x2", MODEL.replace("prefill { B = 16", "prefill { B = 1"), CACHES.format("BM_xyKQ")),
        ("2", MODEL.replace("return argmax(logits, over=V)", "return logits"), CACHES.format("BM_xKQ")),
        ("2", MODEL.replace("dim V = 512", "dim S = 8, W = 64, V = S * W"), CACHES.format("B_xMKQ")),
        ("2x2", MODEL.replace("K = 4", "K = 3 pad 4"), CACHES.format("BMK_xyQ")),
        ("2x2", MODEL.replace("bf16[B,M,K,Q]", "int8[B,M,K,Q] * f32[B,M,K]"), CACHES.format("BM_xK_yQ")),
    ],
    ids=[
        "one chip",
        "batch and length",
        "heads",
        "all three",
        "three chips",
        "slots",
        "scores",
        "factors",
        "padded",
        "int8",
    ],
)
def test_it_generates_what_decoding_without_caches_does(
    mesh: str, text: str, pins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}

    def kept(model: Any, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
        drawn.update(model=model.program, stored=weights(model, sizes, seed))
        return dict(drawn["stored"])

    weights = generation._weights
    monkeypatch.setattr(generation, "_weights", kept)
    done = run_prepared(prepare(program(text, pins), alone_on(Mesh.parse(mesh), OPTIONS), 9, seed=3))
    assert disagreement(done) is None
    assert 0 < max(done.errors) < 1e-12 or mesh == "1"
    tokens, logits = without_caches(done, drawn["model"], drawn["stored"])
    assert np.array_equal(done.sharded.tokens, tokens)
    for (found,), wanted in zip(done.sharded.scores, logits, strict=True):
        assert np.allclose(found, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())
    assert len(np.unique(tokens)) > 3
    assert len(done.prompt) == dict(done.sizes)["B"] > 1
    assert done.prefills == (dict(done.sizes)["B"] if "prefill { B = 1," in text else 1)
    assert (done.sharded.decode_bytes > 0) == (mesh != "1")


@pytest.mark.parametrize("window", [1, 2])
def test_a_window_of_one_place_generates_as_any_does(window: int) -> None:
    """A decode step whose caches keep one place has them as long as prefill's at small sizes, as with any window."""
    text = MODEL.replace("dim B, L, M\n", "dim B, L, M, W\n").replace(
        "cache keys, values: bf16[B,M,", "cache keys, values: bf16[B,W,"
    )
    text = re.sub(r"L into M\)\n  (vs|rq)", r"L into W, of=M)\n  \1", text).replace(
        "mask=causal(L, M)", f"mask=causal(L, W, window={window}, of=M)"
    )
    for before, after in (
        ("[B,L,H,M]", "[B,L,H,W]"),
        ("ks[B,M,", "ks[B,W,"),
        ("vs[B,M,", "vs[B,W,"),
        ("over=M", "over=W"),
    ):
        text = text.replace(before, after)
    text = text.replace("M = 32 }", "M = 32, W = 32 }").replace("M = 64,", f"M = 64, W = {window},")
    pins = CACHES.format("B_xWK_yQ")
    done = run_prepared(prepare(program(text, pins), alone_on(Mesh.parse("2x2"), OPTIONS), 4, seed=3))
    assert disagreement(done) is None
    assert 0 < max(done.errors) < 1e-12


@pytest.mark.parametrize(
    ("mesh", "text", "counts"),
    [
        ("2", MODEL, {"prefill": 4, "decode": 1}),
        ("3", MODEL.replace("return argmax(logits, over=V)", "return logits"), {"prefill": 1, "decode": 16}),
        ("2", in_pairs(MODEL), {"prefill": 4, "decode": 1}),
    ],
    ids=["prefill in parts", "decode in parts, a layer each", "a part of a repetition each"],
)
def test_stages_generate_what_decoding_without_caches_does(
    mesh: str, text: str, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}

    def kept(model: Any, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
        drawn.update(model=model.program, stored=weights(model, sizes, seed))
        return dict(drawn["stored"])

    weights, on = generation._weights, Mesh.parse(mesh)
    monkeypatch.setattr(generation, "_weights", kept)
    done = run_prepared(prepare(program(text), in_stages(on, OPTIONS, on.axes[0][1], counts), 5, seed=3))
    assert disagreement(done) is None and done.stages == (on.axes[0][1], "x")
    assert done.prefills > 1 and done.turns > 1  # at small sizes a batch of either phase has as many
    tokens, _ = without_caches(done, drawn["model"], drawn["stored"])
    assert np.array_equal(done.sharded.tokens, tokens) and len(np.unique(tokens)) > 3


LENT = """
model "lent"

dim B, L, M
dim E = 16, Q = 4, K = 4, V = 48

param table: f32[V,E]

block own(x: f32[B,L,E]) -> f32[B,L,E], f32[B,M,K,Q] {
  param Wq, Wk: f32[E,K,Q]
  param Wo: f32[K,Q,E]
  cache keys: f32[B,M,K,Q]
  q[B,L,K,Q] = x[B,L,E] * Wq[E,K,Q]
  k[B,L,K,Q] = x[B,L,E] * Wk[E,K,Q]
  ks = append(keys, k, L into M)
  s[B,L,K,M] = q[B,L,K,Q] * ks[B,M,K,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,K,Q] = p[B,L,K,M] * ks[B,M,K,Q]
  a[B,L,E] = o[B,L,K,Q] * Wo[K,Q,E]
  return x + a, ks
}

block borrowed(x: f32[B,L,E], ks: f32[B,M,K,Q]) -> f32[B,L,E] {
  param Wq: f32[E,K,Q]
  param Wo: f32[K,Q,E]
  q[B,L,K,Q] = x[B,L,E] * Wq[E,K,Q]
  s[B,L,K,M] = q[B,L,K,Q] * ks[B,M,K,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,K,Q] = p[B,L,K,M] * ks[B,M,K,Q]
  a[B,L,E] = o[B,L,K,Q] * Wo[K,Q,E]
  return x + a
}

main(tokens: i32[B,L]) {
  x = take(table, tokens, over=V)
  y, ks = own(x)
  z = repeat 4 borrowed(y, ks)
  t = last(z, over=L)
  logits[B,V] = t[B,E] * table[V,E]
  return argmax(logits, over=V)
}

phase prefill { B = 4, L = 8, M = 8 }
phase decode  { B = 4, L = 1, M = 16, calls = 8 }
"""


def test_keys_that_a_layer_lends_to_later_stages_stay_in_its_cache() -> None:
    counts = {"prefill": 2, "decode": 2}
    done = run_prepared(prepare(program(LENT), in_stages(Mesh.parse("2x2"), OPTIONS, 2, counts), 5, seed=3))
    assert disagreement(done) is None
    assert len(np.unique(done.sharded.tokens)) > 1


QUICK = [
    ("gpt-neox-20b", "2x2", {"turned": "BM_xH_yR", "still": "BM_xH_yN", "values": "BM_xH_yQ"}),
    ("llama-3-70b", "2x2", {"keys": "BMK_xyQ", "values": "BMK_xyQ"}),
    ("palm-540b", "2x2", {"keys": "BM_xyQ", "values": "BM_xyQ"}),
    ("gpt-3-175b", "2x2", {"keys": "B_xyMHQ", "values": "B_xyMHQ"}),
]


@pytest.mark.parametrize(("name", "mesh", "caches"), QUICK, ids=[name for name, _, _ in QUICK])
def test_a_shipped_model_generates(name: str, mesh: str, caches: Mapping[str, str]) -> None:
    model = load(Path(name))
    pins = "".join(f"stored layer.{cache} {layout}\n" for cache, layout in caches.items())
    model = replace(model, pins=parse_pins(Source("pins", pins), model))
    prepared = prepare(model, alone_on(Mesh.parse(mesh), OPTIONS), 6, seed=0)
    done, compiled = run_prepared(prepared), prepared.compiled
    assert disagreement(done) is None
    stored = [one.spmd.table() for one in compiled]
    assert all(
        table[f"layer.{cache}"].layout == pin.layout
        for table in stored
        for cache, pin in zip(caches, model.pins, strict=True)
    )


@pytest.mark.parametrize("change", ["context", "caches", "scores"])
def test_what_goes_wrong_on_the_chips_is_said(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spmd: Any, stored: Any, contexts: Mapping[str, int], watch: Any) -> Execution:
        if change == "context" and spmd.phase == "decode":
            contexts = {dim: count - 1 for dim, count in contexts.items()}
        done = run_spmd(spmd, stored, contexts, watch)
        if change == "caches" and spmd.phase == "prefill":
            swapped = np.roll(done.results["layer.vs"], 1, axis=1)
            return replace(done, results={**done.results, "layer.vs": swapped})
        if change == "scores" and spmd.phase == "decode":
            return replace(done, results={**done.results, "logits": done.results["logits"] * (1 + 1e-8)})
        return done

    monkeypatch.setattr(staged, "run_spmd", broken)
    done = run_prepared(prepare(program(), alone_on(Mesh.parse("2"), OPTIONS), 6, seed=1))
    assert done.wrong_step == 1
    said = disagreement(done)
    assert said is not None
    if change == "scores":
        assert said == "The scores of step 2 differ from the reference's by 1.00e-08 of the largest, more than 1e-09."
        assert np.array_equal(done.sharded.tokens, done.dense.tokens)
    else:
        assert re.fullmatch(r"(Step 2 picks token \d+ for sequence .*|The scores of step 2 differ .*)", said)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


def test_the_command_shows_tokens_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.esti"
    file.write_text(MODEL)
    (tmp_path / "length.pins").write_text(CACHES.format("BM_xyKQ"))
    arguments = (str(file), "--chips", "2x2", "--tokens", "5", "--pin", str(tmp_path / "length.pins"))
    first = invoke(*arguments)
    assert first.exit_code == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0] == 'Generation with "small" on 4 virtual chips'
    assert any(re.fullmatch(r"  decode    4 steps, a chip sends [\d.]+ kB in all", line) for line in lines)
    rows = [line for line in lines if "->" in line]
    assert all(re.fullmatch(r"  [\d ]+ -> \d+( \d+){4}", row) for row in rows) and rows
    assert re.search(r"tokens    (\d+) of \1 equal", first.stdout)
    assert invoke(*arguments).stdout == first.stdout
    assert invoke(*arguments, "--seed", "1").stdout != first.stdout
    alone = invoke(str(file), "--chips", "2", "--tokens", "1")
    assert alone.exit_code == 0
    assert "decode    0 steps, a chip sends 0 kB" in alone.stdout

    monkeypatch.setattr("escc.compiler.commands.run.disagreement", lambda done: "Step 1 is wrong.")
    wrong = invoke(*arguments)
    assert wrong.exit_code == 1
    assert wrong.stdout == first.stdout
    assert wrong.stderr == "error: Step 1 is wrong.\n"


def test_the_command_says_what_streams_and_keeps_to_the_memory_of_chips(tmp_path: Path) -> None:
    file, chip, pins = tmp_path / "small.esti", tmp_path / "small.toml", tmp_path / "host.pins"
    file.write_text(MODEL)
    host = Host(dram_bytes=1e9, dram_bytes_per_s=1e11, link_bytes_per_s=1e10, host_chips=2)
    chip.write_text(hardware_toml(replace(Hardware.load("h100"), host=host, hbm_bytes=1.5e6), [], []))
    arguments = (str(file), "--chips", "1", "--hardware", str(chip), "--tokens", "3")
    full = invoke(*arguments, "--memory")
    assert full.exit_code == 1 and "No plan keeps to 1.5 MB" in full.stderr
    assert "known to be needed, and somewhere every plan needs more than there is" in full.stderr  # which is 1.45 MB
    done = invoke(*arguments, "--offload", "auto")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"\n  streams   layer\.Wq and layer\.Wk [^\n]*of 3 of 3 layers, from the host\n", done.stdout)
    pins.write_text("place layer.Wi host\n")
    placed = invoke(*arguments[:-2], "--tokens", "2", "--offload", "caches", "--pin", str(pins))
    assert placed.exit_code == 0, placed.stderr
    assert re.search(r"\n  streams   caches and layer\.Wi of 3 of 3 layers, from the host\n", placed.stdout)


def test_the_text_shows_a_few_sequences_of_many() -> None:
    done = run_prepared(prepare(program(), alone_on(Mesh.parse("8"), OPTIONS), 3, seed=0))
    batch = len(done.prompt)
    assert batch > 8
    text = generation_text(done)
    assert text.count("->") == 8
    assert f"  and {batch - 8} more\n" in text


@pytest.mark.parametrize("tokens", ["0", "-3", str(MOST_TOKENS + 1), "1000000000000"])
def test_a_number_of_tokens_out_of_bounds_is_refused(tokens: str) -> None:
    refused = invoke("palm-8b", "--chips", "2", "--tokens", tokens)
    assert refused.exit_code == 1
    assert (
        refused.stderr == (f"error: {tokens} tokens cannot be generated.\n  hint: choose from 1 to {MOST_TOKENS}\n")
        or f"{tokens} tokens cannot be generated." in refused.stderr
    )


def test_wrong_words_are_refused() -> None:
    assert "did you mean `palm-8b`?" in invoke("palm-8", "--chips", "2").stderr
    assert "`2x` is not a mesh." in invoke("palm-8b", "--chips", "2x").stderr
    assert invoke("palm-8b", "--chips", "2", "--seed", "-1").exit_code == 2
    missing = invoke("palm-8b", "--chips", "2", "--set", "B=0")
    assert missing.exit_code == 1 and "must be at least 1" in missing.stderr


def test_chips_that_divide_nothing_replicate_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "small.esti"
    file.write_text(MODEL)
    done = invoke(str(file), "--chips", "7", "--tokens", "2")
    assert done.exit_code == 0
    assert "axis `x` (7) can split no dim of the program; it replicates." in done.stderr
    assert "a chip sends 0 kB" in done.stdout


def test_a_pin_that_a_phase_cannot_serve_is_refused() -> None:
    slots = MODEL.replace("prefill { B = 16", "prefill { B = 1")
    with pytest.raises(InputError, match="B_xMKQ") as error:
        run_prepared(prepare(program(slots, CACHES.format("B_xMKQ")), alone_on(Mesh.parse("2"), OPTIONS), 4, seed=0))
    assert "cannot hold" in str(error.value)


REFUSED = [
    (
        "main(tokens: i32[B,L])",
        "main(tokens: i32[B,L], noise: f32[B,L])",
        "its inputs are `tokens: i32[B,L]`, `noise: ",
    ),
    ("return argmax(logits, over=V)", "return argmax(logits, over=V), tokens", "returns tokens 2 times"),
    ("return argmax(logits, over=V)", "return last(tokens, over=L)", "are not picked from scores"),
    ("return argmax(logits, over=V)", "return tokens", "tokens of the dims `B`, `L`"),
    ("return argmax(logits, over=V)", "return logits, y", "returns neither next tokens nor their scores"),
    ("return argmax(logits, over=V)", "return z", "returns scores for every token along `L`"),
    ("phase decode ", "phase answer ", "The model has no phase `decode`."),
    ("phase decode  { B = 16, L = 1,", "phase decode  { B = 16, L = 2,", "L = 2 tokens are taken at a time"),
    ("prefill { B = 16", "prefill { B = 12", "caches of 12 sequences do not fill those of 16"),
    ("prefill { B = 16", "prefill { B = 32", "caches of 32 sequences do not fill those of 16"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), REFUSED)
def test_what_does_not_generate_is_refused(right: str, wrong: str, message: str) -> None:
    assert right in MODEL
    with pytest.raises(InputError) as error:
        language_model(program(MODEL.replace(right, wrong, 1)))
    [diagnostic] = error.value.diagnostics
    assert message in diagnostic.message


def test_a_layer_that_takes_no_tokens_is_refused() -> None:
    text = "dim B = 4, L = 2\nmain(x: bf16[B,L]) { return x + x }"
    with pytest.raises(InputError, match=r"does not take tokens: its inputs are `x: bf16\[B,L\]`"):
        language_model(program(text))


def test_a_model_without_caches_is_refused() -> None:
    text = (
        "dim B = 4, L = 2, V = 8\nparam t: bf16[V,V2]\ndim V2 = V\nmain(tokens: i32[B,L]) {"
        "\n  z = last(take(t, tokens, over=V), over=L)\n  return argmax(z, over=V2)\n}"
    )
    with pytest.raises(InputError, match="keeps no cache"):
        language_model(program(text))
