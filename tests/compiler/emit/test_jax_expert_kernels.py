"""Rows times the matrices of their experts as a kernel of GPUs in emitted JAX files: numbers of all codes, tiles of all
rows, products as NumPy has them; which products are one; and modules that agree with the unsharded program."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emitted_files import run_files

from escc.compiler.emit.jax_expert_runtime import (
    as_integers,
    as_numbers,
    expert_dot_in_kernel,
    row_tiles,
    suited_tile,
)
from escc.compiler.emit.jax_rows_runtime import Routing
from escc.compiler.emit.jax_runtime import decoded
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.pipeline import compile_phases
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

KINDS = ("int4", "int8", "float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")


def every_code(kind: str) -> jax.Array:
    """Numbers of a kind, of each code."""
    four = "4_" in kind or kind == "int4"
    codes = jnp.arange(16 if four else 256).astype(jnp.uint4 if four else jnp.uint8)
    return jax.lax.bitcast_convert_type(codes, jnp.dtype(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_all_codes_are_the_numbers_that_they_stand_for(kind: str) -> None:
    codes = every_code(kind)
    found, wanted = np.asarray(as_numbers(as_integers(codes), codes.dtype)), np.asarray(codes).astype(np.float32)
    other = wanted[found != wanted]
    # what no weight and no scale is: infinities and what is no number, and 2**-127, which is taken for 0
    assert found.dtype == np.float32 and not np.any(np.isfinite(other) & (other > 2.0**-127))
    assert len(other) == {"float8_e5m2": 8, "float8_e4m3fn": 2, "float8_e8m0fnu": 2}.get(kind, 0)


@pytest.mark.parametrize("seed", range(30))
def test_tiles_have_each_row_once_with_its_expert_and_what_is_left_comes_last(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 9, int(rng.integers(1, 9))) * rng.integers(0, 2)
    rows, height = int(sizes.sum() + rng.integers(0, 7)), int(2 ** rng.integers(0, 4))
    found = [[] for _ in range(rows)]  # type: list[list[int]]
    tiles = jax.jit(row_tiles, static_argnums=(1, 2))(jnp.asarray(sizes), rows, height)
    for expert, first, after in zip(*map(np.asarray, tiles), strict=True):
        assert after - first <= height
        for row in range(first, after):
            found[row].append(int(expert))
    left = rows - int(sizes.sum())
    assert found == [[int(expert)] for expert in np.repeat(np.arange(len(sizes) + 1), [*sizes, left])]


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "groups", "tile"),
    [
        (2, 2880, 2880, [(32, 1)], (16, 64, 64, 4, 4)),
        (1000, 2880, 2880, [(32, 1)], (256, 64, 64, 8, 3)),
        (100, 4096, 14336, [], (128, 64, 128, 4, 3)),
        (100, 7168, 2048, [(128, 128)], (128, 64, 128, 4, 3)),
        (100, 4096, 2048, [(48, 64)], (128, 16, 64, 4, 3)),
        (100, 4096, 2048, [(4096, 1), (32, 2048)], (128, 64, 128, 4, 3)),
    ],
)
def test_tiles_divide_matrices_and_groups(
    rows: int, terms: int, columns: int, groups: list[tuple[int, int]], tile: tuple[int, ...]
) -> None:
    tall = 256 if rows == 1000 else 128
    assert suited_tile(rows, terms, columns, tall, groups) == tile


@pytest.mark.parametrize(
    ("rows", "matrices", "kind", "scale", "groups"),
    [
        (70, (8, 64, 32), "float32", None, (1, 1)),
        (7, (8, 10, 6), "float32", None, (1, 1)),
        (300, (4, 192, 64), "float4_e2m1fn", "float8_e8m0fnu", (32, 1)),
        (300, (2, 128, 256), "float8_e4m3fn", "float32", (128, 128)),
        (40, (4, 128, 64), "int8", "bfloat16", (128, 1)),
        (40, (4, 128, 64), "int4", "bfloat16", (16, 1)),
        (40, (4, 48, 24), "float4_e2m1fn", "float32", (24, 12)),
        (40, (4, 48, 24), "float8_e5m2", None, (1, 1)),
        (21, (1, 48, 24), "float4_e2m1fn", "float32", (24, 24)),
        (21, (1, 48, 24), "float32", None, (1, 1)),  # a plain product
        (21, (3, 48, 7), "float4_e2m1fn", "float32", (24, 1)),  # no two columns in a byte
        (21, (3, 48, 7), "float4_e2m1fn", None, (1, 1)),
        (70, (8, 384, 128), "float8_e4m3fn", None, (1, 1)),  # too many for the steps of a kernel: by XLA
        (70, (8, 384, 128), "float8_e4m3fn", "float32", (128, 128)),
    ],
)
def test_rows_are_multiplied_by_the_matrix_of_their_expert(
    rows: int, matrices: tuple[int, int, int], kind: str, scale: str | None, groups: tuple[int, int]
) -> None:
    rng = np.random.default_rng(rows)
    experts, terms, columns = matrices
    ends = np.sort(rng.integers(0, rows - 2, experts - 1))
    sizes = np.diff([0, *ends, rows - 3])
    a = rng.standard_normal((rows, terms)).astype(np.float32)
    codes = (rng.standard_normal(matrices) * (30 if "int" in kind else 1)).astype(np.float32).astype(jnp.dtype(kind))
    shape = (experts, terms // groups[0], columns // groups[1])
    scales = [(2.0 ** rng.integers(-3, 3, shape)).astype(np.float32).astype(jnp.dtype(scale))] if scale else []
    at = Routing(None, (), 1, rows, 1, (), None, None, jnp.asarray(sizes))

    @jax.jit
    def both(a: jax.Array, codes: jax.Array, *scales: jax.Array) -> tuple[jax.Array, jax.Array]:
        return expert_dot_in_kernel(a, codes, at, jnp.float32, *scales), decoded(codes, jnp.float32, *scales)

    found, numbers = map(np.asarray, both(a, codes, *scales))
    expert = np.repeat(np.arange(experts), sizes)
    wanted = np.einsum("rt,rtc->rc", a[: len(expert)], numbers[expert])
    assert found.shape == (rows, columns) and found.dtype == jnp.float32
    np.testing.assert_allclose(found[: len(expert)], wanted, atol=1e-6 * np.abs(wanted).max(), rtol=1e-5)
    assert experts == 1 or not np.any(found[len(expert) :])


MODEL = """
dim B = 64, E = {terms}, X = 8, F = {columns}{groups}
main(n: {dtype}[B,E], s: f32[B,X]) {{
  param Wi: {inner}
  param Wd: {outer}
  m: {dtype} = choose(s, over=X, keep=2)
  t[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] = t[B,X,E] * Wi[X,E,F]
  h = relu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = m[B,X] * s[B,X] * d[B,X,E]
  return y
}}
"""
PLAIN = ("bf16[X,E,F]", "bf16[X,F,E]")
CODES: dict[str, dict[str, Any]] = {
    "floats of 16 bits": {"inner": PLAIN[0], "outer": PLAIN[1]},
    "bytes with a scale of each column": {"inner": "int8[X,E,F] * bf16[X,F]", "outer": "fp8[X,F,E] * f32[X,E]"},
    "four bits with scales of groups": {"inner": "fp4[X,E,F] * e8m0[X,E2,F]", "outer": "int4[X,F,E] * bf16[X,F2,E]"},
    "bytes with scales of blocks": {"inner": "fp8[X,E,F] * f32[X,E2,F2]", "outer": "fp8[X,F,E] * f32[X,F2,E2]"},
}
CODES["bytes with scales of columns alone"] = {"inner": "int8[X,E,F] * f32[F2]", "outer": "fp8[X,F,E] * f32[X,E2]"}
XLA: dict[str, dict[str, Any]] = {  # no kernel makes both products
    "zero points": {"inner": "(int4[X,E,F] - int4[X,E2,F]) * bf16[X,E2,F]", "outer": "f32[X,F,E]"},
    "groups that are too small for a tile": {"inner": "int8[X,E,F] * bf16[X,E8,F]", "outer": "f32[X,F,E]"},
    "matrices that no tile divides": {"inner": PLAIN[0], "outer": PLAIN[1], "columns": 96 + 16},
    "more bytes than are counted in 31 bits": {
        "inner": "fp8[X,E,F] * f32[X,F]",
        "outer": "f32[X,F,E]",
        "terms": 2**14,
        "columns": 5 * 2**13,
    },
    "scales of bytes": {"inner": "int8[X,E,F] * fp8[X,E2,F]", "outer": "f32[X,F,E]"},
    "rows of f32": {"inner": PLAIN[0], "outer": PLAIN[1], "dtype": "f32"},
}
BROKEN = [
    ("four bits with scales of groups", "(whole ^ 8)", "whole"),
    (
        "four bits with scales of groups",
        "jnp.stack([codes & 15, codes >> 4], -1)",
        "jnp.stack([codes >> 4, codes & 15], -1)",
    ),
    ("bytes with a scale of each column", 'picked(params["Wd.scale"]', 'picked(2 * params["Wd.scale"]'),
    ("floats of 16 bits", "rows - height)", "rows)"),
    ("floats of 16 bits", "terms // depth)", "terms // depth - 1)"),
]


@cache
def module(
    inner: str,
    outer: str,
    dtype: str = "bf16",
    terms: int = 128,
    columns: int = 64,
    platform: Platform = Platform.GPU,
) -> str:
    groups = ("E2 = E / 32", "F2 = F / 32", "E8 = E / 8")
    own = "".join(f", {group}" for group in groups if group[:2] in inner + outer)
    text = MODEL.format(inner=inner, outer=outer, dtype=dtype, terms=terms, columns=columns, groups=own)
    return emitted(text, platform)


def emitted(text: str, platform: Platform) -> str:
    """The module of a model, for two chips."""
    source = Source("a.esti", text)
    options = Options(Hardware.load("h100"))
    [one] = compile_phases(expand(parse(source), source), ["main"], Mesh.parse("2"), options)
    return emit_jax(one.program, one.spmd, one.estimate, platform=platform)


TWO_DIMS = """
dim B = 512, E = 256, X = 8, N = 2, I = 256
dim F = N * I
main(n: bf16[B,E], s: f32[B,X]) {
  param Wi: bf16[X,E,F]
  param Wd: bf16[X,F,E]
  m: bf16 = choose(s, over=X, keep=2)
  t[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] @ BXN_xI = t[B,X,E] * Wi[X,E,F]
  h = relu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = m[B,X] * s[B,X] * d[B,X,E]
  return y
}
"""


def stored(text: str) -> str:
    """A module that compares its program with codes of the types in which it stores them, and not of wide ones."""
    return re.sub(r",\s+(fp8|fp4|e8m0|int8|int4)=jnp.float32", "", text)


def step(text: str) -> str:
    """The step of a module."""
    return text.partition("\ndef step(")[2].partition("\ndef dense(")[0]


@pytest.mark.parametrize("name", CODES)
def test_experts_are_kernels_of_gpus_alone(name: str) -> None:
    text = module(**CODES[name])
    assert step(text).count("expert_dot_in_kernel(") == 2 and " expert_dot(" not in step(text)
    assert "decoded(" not in step(text) and "check_vma=False" in text
    for platform in (Platform.ANY, Platform.TPU):
        other = module(**CODES[name], platform=platform)
        assert step(other).count("expert_dot(") == 2 and "pallas" not in other


@pytest.mark.parametrize("name", XLA)
def test_other_experts_are_multiplied_by_xla(name: str) -> None:
    text = module(**XLA[name])
    assert "expert_dot_in_kernel(" not in step(text) and step(text).count("expert_dot(") == 2
    assert "pallas" not in text


def test_columns_of_two_dims_are_multiplied_by_xla_though_a_chip_has_one_place_of_one(tmp_path: Path) -> None:
    text = emitted(TWO_DIMS, Platform.GPU)
    assert "BXN_xI" in text and "expert_dot_in_kernel(" not in step(text)
    assert run_files({"two": text}, tmp_path) == {"two": "0"}


def test_modules_with_kernels_agree_with_the_program_unsharded_and_broken_ones_do_not(tmp_path: Path) -> None:
    texts = {name: module(**one) for name, one in CODES.items()}
    found = "    from jax.experimental.pallas import triton\n"
    assert all(found in text for text in texts.values())
    texts |= {f"{name}, without": stored(text).replace(found, "    import no_triton\n") for name, text in texts.items()}
    texts |= {f"{name}, on CPUs": module(**one, platform=Platform.ANY) for name, one in CODES.items()}
    broken = {}
    for name, right, wrong in BROKEN:
        before, marker, rest = texts[name].partition("\ndef dense(")
        assert right in before, (name, right)
        broken[f"{name}: {wrong}"] = before.replace(right, wrong) + marker + rest
    passed = [name for name, code in run_files(texts | broken, tmp_path).items() if code == "0"]
    assert passed == list(texts)
