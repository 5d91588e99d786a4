"""Hidden blocks of a model with an indexer and latent attention: alone, in stages and with streamed layers search,
estimate and emitted module leave out the same ones."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from emitted_files import run_files
from sharded_text import parsed

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, parse
from escc.compiler.plan.staged import compile_staged
from escc.compiler.plan.streamed_layers import streaming
from escc.cost import estimate as estimates
from escc.cost.attention import Attention
from escc.cost.blocks import InBlocks, cut, in_blocks, places_at_a_time
from escc.cost.formulas.symbolic import symbolic
from escc.cost.hardware import Hardware, Host
from escc.cost.hidden import limits, shown
from escc.cost.ops import chosen_of
from escc.cost.scores import local_sizes
from escc.cost.summed_scores import SummedScores
from escc.ir.dataflow import ops_in
from escc.ir.mesh import Mesh
from escc.ir.program import Kind
from escc.passes.options import Options

CHIP = Hardware.of_paper("tpu-v4")
LAYER = """
model "latent"
dim B = 4, L = 4096, M = 4096, E = 32, A = 16, H = 4, Q = 8, C = 12, U = 8, I = 8, R = 4
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq: bf16[E,H,Q]
  param Wc: bf16[E,C]
  param Wk: bf16[C,H,Q]
  param Wv: bf16[C,H,U]
  param Wo: bf16[H,U,E]
  param Wi: bf16[E,I,R]
  param Wj: bf16[E,R]
  param Ww: bf16[E,I]
  cache latents: bf16[B,M,C]
  cache index: bf16[B,M,R] ALONG
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  c[B,L,C] = x[B,L,E] * Wc[E,C]
  cs = append(latents, c, L into M)
  i[B,L,I,R] = x[B,L,E] * Wi[E,I,R]
  j[B,L,R] = x[B,L,E] * Wj[E,R]
  js = append(index, j, L into M)
  w[B,L,I] = x[B,L,E] * Ww[E,I]
  t[B,L,I,M] SPLIT = i[B,L,I,R] * js[B,M,R]
  ts = relu(t)
  z: f32[B,L,M] = w[B,L,I] * ts[B,L,I,M]
  m = choose(z, over=M, keep=4000, mask=causal(L, M))
  s[B,L,H,M] = m[B,L,M] * q[B,L,H,Q] * Wk[C,H,Q] * cs[B,M,C]
  p = softmax(s / 3, over=M, mask=causal(L, M), among=m)
  o[B,L,H,U] = p[B,L,H,M] * cs[B,M,C] * Wv[C,H,U]
  y[B,L,E] = o[B,L,H,U] * Wo[H,U,E]
  return x + y
}
main(x: bf16[B,L,E]) { return repeat 4 layer(x) }
phase prefill { }
"""
RAGGED = {"B": 4, "L": 10, "M": 12, "L_block": 4, "M_block": 5, "L_block_1": 3, "M_block_1": 4, "keep_m": 5}


@cache
def planned(name: str) -> tuple[CompiledPhase, ...]:
    """The programs of the model: on all chips, with the indexer's heads split, so that its sums are completed
    afterwards, or what it caches; in stages, and with layers in the host's memory."""
    split, along = {"heads split": ("@ B_xLI_yM", ""), "context split": ("@ B_xLIM_y", "@ B_xM_yR")}.get(name, ("", ""))
    program = parse(LAYER.replace("SPLIT", split).replace("ALONG", along))
    if name == "in stages":
        staged = compile_staged(program, ["prefill"], Mesh.parse("2x2"), "x", Options(CHIP), {"prefill": 2})
        return tuple(stage[0] for stage in staged.stages)
    chip = replace(CHIP, host=Host(dram_bytes=1e12, dram_bytes_per_s=1e11, link_bytes_per_s=1e10, host_chips=4))
    if name == "streamed":
        program = streaming(program, frozenset({Kind.PARAM, Kind.CACHE}), 3, 1)
    return (compile_phase(program, "prefill", Mesh.parse("2x2"), Options(chip)),)


KEPT = Fraction(4000, 4096)
MODELS = ["alone", "heads split", "context split", "in stages", "streamed"]


def blocks_left(one: InBlocks, compiled: CompiledPhase) -> Fraction:
    """The share of blocks that a causal mask leaves on the chip with most, counted query by query."""
    spmd = compiled.spmd
    local, places = local_sizes(spmd.table()[cut(one)], spmd), places_at_a_time(one, spmd)
    new, context = (dict(spmd.sizes)[dim] for dim in "LM")
    runs, every = [0], 1
    for l0, m0 in product(range(0, new, local["L"]), range(0, context, local["M"])):
        queries = range(l0, l0 + local["L"], places["L"])
        keys = range(m0, m0 + local["M"], places["M"])
        every = len(queries) * len(keys)
        own = (sum(k <= context - new + q + places["L"] - 1 for k in keys) for q in queries)
        runs.append(sum(max(n, 1) for n in own))
    return Fraction(max(runs), every)


@pytest.mark.parametrize("name", MODELS)
def test_search_estimate_and_formulas_count_the_blocks_that_a_mask_leaves(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for compiled in planned(name):  # compiling compares what the search and the estimate count
        spmd = compiled.spmd
        assert {type(one) for one in in_blocks(spmd)} == {Attention, SummedScores}
        found = shown(spmd)
        assert set(found) == {each for one in in_blocks(spmd) for each in (*one.unmade, *one.ends)}
        written = symbolic(spmd, CHIP)
        formulas = {op.result: written.value(op.flops) for op in written.ops}
        with monkeypatch.context() as patch:
            patch.setattr(estimates, "shown", lambda _: {})
            whole = {op.result: op.flops for op in estimates.estimate(spmd, compiled.hardware).ops}
        done = {op.result: op.flops for op in compiled.estimate.ops}
        ops = {op.result: op for op in ops_in(spmd.body)}
        values = {name: value.value for name, value in spmd.table().items()}
        for one in in_blocks(spmd):
            left = blocks_left(one, compiled)
            assert Fraction(1, 2) < left < KEPT
            for each in (*one.unmade, *one.ends):
                kept = KEPT if chosen_of(ops[each], values) else 1  # of chosen scores the fewer count, kept or shown
                assert done[each] == pytest.approx(whole[each] * float(left / kept)), each
        assert formulas == pytest.approx(done)


def small(compiled: CompiledPhase) -> str:
    """The module of a program, which compares itself at sizes of which many blocks are made, and some are hidden."""
    text = emit_jax(compiled.program, compiled.spmd, compiled.estimate)
    head, marker, rest = text.partition("SMALL = ")
    line, end, after = rest.partition("\n\n")
    for field, size in RAGGED.items():
        line = re.sub(rf"\b{field}=\d+", f"{field}={size}", line)
    return head + marker + line + end + after


def test_modules_leave_out_what_is_hidden_and_agree_with_the_program_unsharded(tmp_path: Path) -> None:
    texts = {f"{name} {n}": small(one) for name in MODELS for n, one in enumerate(planned(name))}
    hides = re.compile(r'^ *\[\("M", .*?"L", .*?\)\],$', re.DOTALL | re.MULTILINE)
    for text in texts.values():
        step = text.partition("\ndef prefill(")[2].partition("\ndef dense(")[0]
        assert len(hides.findall(step)) == step.count("_in_blocks(") == 2

    cut_short = texts["alone 0"].replace(
        "return (jnp.argsort(~runs", "runs = runs.at[0].set(False)\n    return (jnp.argsort(~runs"
    )
    assert cut_short != texts["alone 0"]
    found = run_files(texts | {"cut short": cut_short}, tmp_path)
    assert [name for name, code in found.items() if code != "0"] == ["cut short"]


SUMS = """\
sharded "indexer" main on x=2
sizes B=4 L=4096 M=8192 I=8 Q=6
input q: bf16 B_xLIQ
input k: bf16 B_xLQ
input w: bf16 B_xLI
input b: f32 B_xL
cache keys: bf16 B_xMQ
ks bf16 B_xMQ  = append(keys, k, L into M)
s  bf16 B_xLIM = q[B,L,I,Q] * ks[B,M,Q]
r  bf16 B_xLIM = relu(s)
t  f32 B_xLM   = w[B,L,I] * r[B,L,I,M]
at f32 L       = iota(L)
to f32 M       = iota(M)
v  f32 B_xLM   = where(less_equal(to, at + (context(M) - size(L))), t, -inf)
n  f32 B_xLM   = choose(v, keep=2048, over=M)
o  f32 B_xLQ   = n[B,L,M] * ks[B,M,Q]
return o
"""
MASKED = "v  f32 B_xLM   = where(less_equal(to, at + (context(M) - size(L))), t, -inf)"
HIDE = {  # what is changed of the text, and how many limits hide blocks of the sum
    "a mask": ("", "", 1),
    "a mask of what is in a window": (", t, -inf)", ", where(less_equal(at, to), t, -inf), -inf)", 2),
    "two masks, of which one hides more": (
        MASKED,
        f"{MASKED}\nu  f32 B_xLM   = where(less_equal(at, to), {MASKED.partition('= ')[2]}, -inf)",
        1,
    ),
    "a sum that is returned": ("return o", "return o, t", 0),
    "a sum that something else reads": (MASKED, f"{MASKED}\nu  f32 B_xLQ = t[B,L,M] * ks[B,M,Q]", 0),
    "a sum that something else reads once it is gathered": (
        MASKED,
        f"{MASKED}\ng  f32 BLM = all-gather(x) B of t\nu  f32 BLM = relu(g)",
        0,
    ),
    "no mask": (MASKED, "v  f32 B_xLM   = t * 1", 0),
    "numbers beyond a limit": ("t, -inf)", "t, 0)", 0),
    "a limit that a tensor makes": ("at + (context(M) - size(L))", "at + b", 0),
    "scores of which some have other dims": (
        "r  bf16 B_xLIM = relu(s)",
        "a  bf16 B_xLM  = q[B,L,I,Q] * ks[B,M,Q]\nr  bf16 B_xLIM = s * a",
        0,
    ),
}


@pytest.mark.parametrize("name", HIDE)
def test_blocks_of_a_sum_are_hidden_where_all_that_reads_it_is(name: str) -> None:
    before, after, count = HIDE[name]
    assert before in SUMS
    spmd = parsed(SUMS.replace(before, after) if before else SUMS)
    [one] = in_blocks(spmd)
    assert isinstance(one, SummedScores)
    assert len(limits(one, spmd)) == count
    assert set(shown(spmd)) == ({*one.unmade, "t"} if count else set())
