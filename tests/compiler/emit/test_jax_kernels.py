"""Attention as a kernel of GPUs in emitted JAX files: the same numbers as the unsharded program, on CPUs step by step;
which attention is one; and what a kernel passes by."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from attending import CASES, emitted, ragged
from emitted_files import run_files

from escc.compiler.emit.jax_kernel_runtime import Tiles, features_of, shown_tiles
from escc.compiler.emit.jax_kernels import LEAST_QUERIES, _Suits
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phases
from escc.cost.attention import Attention
from escc.cost.blocks import in_blocks
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.cost.scores import local_sizes
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

GOLDEN = Path(__file__).parents[2] / "golden" / "jax_kernel.txt"
TAKEN = [name for name in CASES if "an indexer" not in name and "in bytes" not in name]
SINK, CHUNK, TWO, LATE, _ = TAKEN
BROKEN = [
    (TWO, "sums * beside(shrunk)", "sums"),
    (SINK, "start + jnp.arange(tiles.width) >= first", "start + jnp.arange(tiles.width) >= 0"),
    (CHUNK, "jnp.minimum(i * height, sizes[query] - height)", "i * 0"),
    (CHUNK, "left // self.sizes[letter]", "left"),
    (CHUNK, "i // self.count", "i % self.count"),
    (CHUNK, "after[i]", "after[i] - 1"),
    (TWO, "jnp.arange(n) < self.sizes[letter]", "jnp.arange(n) < self.sizes[letter] - 1"),
    (TWO, "sums / beside(", "sums / beside(2 * "),
    (SINK, "p_sum * jnp.exp(p_max - ", "p_sum * jnp.exp(0 * p_max - 0 * "),
    (LATE, "jnp.exp(found - ", "jnp.exp(found - 0 * "),
]
KERNEL, BLOCKS = "= attention_in_kernel(", "= attention_in_blocks("


def test_every_attention_in_a_kernel_agrees_with_the_program_unsharded_and_broken_ones_do_not(tmp_path: Path) -> None:
    texts = {name: ragged(name, Platform.GPU) for name in CASES}
    assert [name for name, text in texts.items() if KERNEL in text] == TAKEN
    without = {f"{name}, without kernels": _without_kernels(texts[name]) for name in TAKEN}
    broken = {}
    for name, right, wrong in BROKEN:
        before, marker, rest = texts[name].partition("\ndef dense(")
        assert right in before, (name, right)
        broken[f"{name}: {wrong}"] = before.replace(right, wrong) + marker + rest
    passed = [name for name, code in run_files(texts | without | broken, tmp_path).items() if code == "0"]
    assert passed == [*texts, *without]


def _without_kernels(text: str) -> str:
    """A module where JAX has nothing that compiles kernels."""
    found = "    from jax.experimental.pallas import triton\n"
    assert found in text
    return text.replace(found, "    from jax.experimental.pallas import nothing_of_this_name as triton\n")


def test_modules_for_other_than_gpus_have_no_kernels() -> None:
    assert all("pallas" not in emitted(CHUNK, platform=platform) for platform in (Platform.ANY, Platform.TPU))


def test_a_step_with_a_kernel_reads_as_a_person_would_write_it(update_golden: bool) -> None:
    text = emitted(SINK, platform=Platform.GPU)
    found = "def prefill(" + text.partition("\n\n\ndef prefill(")[2].partition("\n\n\ndef dense(")[0] + "\n"
    if update_golden:
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


MODEL = """
model "attending"
dim B = 4, L = {new}, M = 262144, Q = {features}, W = 8
dim H = 4
main(q: {dtype}[B,L,H,Q], k: {cache}[B,L,Q], v: {cache}[B,L,W],
     t: bf16[B,L,M], g: bf16[B,L,M], h: bf16[B,L,M], y: bf16[B]) {{
  param z: {scale}[H]
  cache keys: {cache}[B,M,Q] @ BMQ
  cache values: {cache}[B,M,W] @ BMW
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  {scores}
  p = softmax(c / 3, over=M, mask=causal(L, M))
  {product}
  return o
}}
"""
SCORES = "s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,Q]\n  c = s / sqrt(size(Q))"
PRODUCT = "o[B,L,H,W] = p[B,L,H,M] * vs[B,M,W]"


@cache
def planned(
    new: int = 4096,
    features: int = 16,
    dtype: str = "bf16",
    cache: str = "bf16",
    scale: str = "bf16",
    scores: str = SCORES,
    product: str = PRODUCT,
) -> CompiledPhase:
    text = MODEL.format(
        new=new, features=features, dtype=dtype, cache=cache, scale=scale, scores=scores, product=product
    )
    source = Source("a.esti", text)
    options = Options(Hardware.load("h100"))
    [one] = compile_phases(expand(parse(source), source), ["main"], Mesh.parse("2"), options)
    return one


def module(**what: Any) -> str:
    one = planned(**what)
    return emit_jax(one.program, one.spmd, one.estimate, platform=Platform.GPU)


LARGE: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a bias of each score": {"scores": SCORES.replace("sqrt(size(Q))", "sqrt(size(Q)) + t / 3")},
    "what is the same for all scores of a head or of a sequence": {"scores": SCORES.replace("c = s", "c = s * z + y")},
    "as many features as a kernel holds": {"features": 512, "scores": SCORES.replace("c = s", "c = t + g + s")},
    "features that are no power of two": {"features": 24},
    "few queries, but enough": {"new": LEAST_QUERIES},
    "a gate of each head": {"product": f"{PRODUCT} * z[H]"},
}
ELSEWHERE: dict[str, dict[str, Any]] = {
    "too few queries": {"new": LEAST_QUERIES - 1},
    "more features than a kernel holds": {"features": 513},
    "floats that no product of a kernel takes": {"dtype": "f32"},
    "caches of bytes": {"cache": "fp8"},
    "values with a scale": {"product": f"{PRODUCT} * y[B]"},
    "weights in floats of 32 bits": {"scale": "f32", "scores": SCORES.replace("c = s", "c = s * z")},
    "a function that Triton has not": {"scores": SCORES.replace("c = s / sqrt(size(Q))", "c = erf(s)")},
    "more than fits beside what there is for each pair": {
        "features": 512,
        "scores": SCORES.replace("c = s", "c = t + g + h + s"),
    },
    "products of three": {"scores": "s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,Q] * t[B,L,M]\n  c = s / 4"},
    "products of scores": {"scores": SCORES.replace("c = s", "r[B,L,H,M] = s[B,L,H,M] * t[B,L,M]\n  c = r")},
}


@pytest.mark.parametrize("name", LARGE)
def test_attention_is_a_kernel_where_matrices_and_what_is_pointwise_make_its_scores(name: str) -> None:
    text = module(**LARGE[name])
    assert KERNEL in text and BLOCKS not in text.partition("\ndef main(")[2]
    assert "check_vma=False" in text


@pytest.mark.parametrize("name", LARGE)
def test_features_are_counted_alike_where_kernels_are_chosen_and_where_tiles_are_cut(name: str) -> None:
    spmd = planned(**LARGE[name]).spmd
    [one] = in_blocks(spmd)
    assert isinstance(one, Attention)
    values, sizes = spmd.table(), dict(spmd.sizes)
    found = _Suits(one, spmd, values, sizes)
    local: dict[str, int] = {}
    for part in found.parts:
        local |= dict(zip(part.labels, local_sizes(values[part.value], spmd).values(), strict=True))
    letters = ["".join(part.labels) for part in found.parts]
    assert one.query is not None
    counted = features_of(local, letters, "".join(values[one.masked].dims), one.query, one.context)
    assert counted == found.wide() >= LARGE[name].get("features", 16)


def test_such_attention_agrees_with_the_program_unsharded(tmp_path: Path) -> None:
    texts = {name: module(**each) for name, each in LARGE.items()}
    assert run_files(texts, tmp_path) == dict.fromkeys(texts, "0")


def test_what_jumps_reads_a_quotient_as_it_is() -> None:
    scores = "s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,Q]\n  c = s / 6 + floor(t / 41) / 7"
    step = module(scores=scores).partition("_scores(q")[2].partition("attention_in_kernel")[0]
    assert "/ 41" in step and "/ 6" not in step and "/ 7" not in step


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_attention_runs_in_blocks(name: str) -> None:
    text = module(**ELSEWHERE[name])
    assert KERNEL not in text and BLOCKS in text
    assert "check_vma=False" not in text and "pallas" not in text


def test_kernels_multiply_by_what_others_divide_by() -> None:
    step, _, dense = module().partition("\ndef dense(")
    assert "s * (1 / math.sqrt(cfg.Q))" in step and "s / math.sqrt(cfg.Q)" not in step
    assert "s / math.sqrt(cfg.Q)" in dense and "c / 3" in dense and "c / 3" not in step  # which a mask reads


@pytest.mark.parametrize("seed", range(40))
def test_a_kernel_passes_by_tiles_in_which_nothing_is_seen_and_no_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, places, batch = (int(n) for n in rng.integers(1, 30, 3))
    height, width = (int(2 ** rng.integers(0, 1 + np.log2(n))) for n in (queries, places))
    tiles = Tiles({"L": queries, "M": places, "B": batch}, "B", "L", height, "M", width)
    position, last = np.arange(places), np.sort(rng.integers(-3, places + 3, queries))
    last = last if seed % 2 else np.stack([last] * batch) - rng.integers(0, 4, (batch, 1))
    window = last - int(rng.integers(0, places))
    letters = "L" if last.ndim == 1 else "BL"
    limits: Any = [("M", position, letters, last), (letters, window, "M", position)]
    first, after = map(np.asarray, jax.jit(lambda: shown_tiles(tiles, limits))())
    seen: Any = (position <= last[..., None]) & (window[..., None] <= position)
    seen = seen.any(0) if seen.ndim == 3 else seen
    assert len(first) == len(after) == -(-queries // height)
    for i, (low, high) in enumerate(zip(first, after, strict=True)):
        at = min(i * height, queries - height)
        own = seen[at : at + height].any(0)
        spans = [
            slice(min(n * width, places - width), min(n * width, places - width) + width)
            for n in range(-(-places // width))
        ]
        hits = [n for n, span in enumerate(spans) if own[span].any()]
        assert low < high <= len(spans)
        assert not hits or (low <= hits[0] and hits[-1] < high)
        if hits and seed % 2:  # of one sequence by itself no tile more
            assert (low, high) == (hits[0], hits[-1] + 1)
