"""What is proposed helps: of what is read most, of what there is room for, and of types that a chip is quicker in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.report.advice import LARGER, what_helps
from escc.cost.engine_file import load_engine
from escc.cost.hardware import Hardware
from escc.cost.predict import Resource
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.passes.options import Options


def planned(
    phase: str, sizes: Mapping[str, int], chip: str = "h100", engine: str | None = None, **types: Dtype
) -> CompiledPhase:
    model = load(Path("llama-3-8b"), dict(sizes), phase=phase, weights=types.get("weights"), caches=types.get("caches"))
    hardware = Hardware.load(chip).with_engine(engine and load_engine(engine))
    return compile_phase(model, phase, Mesh.parse("gpu=4" if chip == "h100" else "2x2"), Options(hardware))


LONG = {"B": 32, "M": 65536}


@pytest.mark.parametrize(
    ("sizes", "types", "says"),
    [
        (LONG, {}, "caches most of all: `--caches int8` halves the bytes of caches."),
        (LONG, {"weights": Dtype.INT4}, "caches most of all: `--caches int8` halves the bytes of caches."),
        (LONG, {"caches": Dtype.INT8}, "caches most of all: caches in 4 bits are half as many bytes."),
        ({"B": 256, "M": 512}, {}, f": {LARGER}, and `--weights int8` halves the bytes of weights."),
    ],
)
def test_where_the_hbm_binds_it_is_of_what_is_read_most(
    sizes: Mapping[str, int], types: Mapping[str, Dtype], says: str
) -> None:
    found = planned("decode", sizes, **types)
    assert found.prediction.binds is Resource.HBM and what_helps(found) == "The HBM binds" + (
        f", {says}" if says.startswith("caches") else says
    )


def test_a_larger_batch_is_proposed_where_there_is_room_for_it() -> None:
    found = planned("decode", {"B": 256, "M": 512})
    assert found.prediction.binds is Resource.HBM
    full = replace(found, hardware=replace(found.hardware, hbm_bytes=float(found.memory.total_bytes)))
    assert LARGER in what_helps(found) and LARGER not in what_helps(full)


@pytest.mark.parametrize(
    ("chip", "engine", "types", "more"),
    [
        ("h100", "vllm", {}, "fp8, in which these chips do more"),
        ("h100", "vllm", {"weights": Dtype.FP8}, None),
        ("h100", None, {"weights": Dtype.FP8}, "fp8 under an engine"),  # the module computes in bf16
        ("h100", "fastertransformer", {}, None),
        ("tpu-v4", None, {}, None),
        ("tpu-v5p", None, {}, None),  # does no more in fp8
    ],
)
def test_fewer_bits_are_proposed_where_the_chip_does_more_in_them(
    chip: str, engine: str | None, types: Mapping[str, Dtype], more: str | None
) -> None:
    found = planned("prefill", {"B": 4}, chip, engine, **types)
    assert found.prediction.binds is Resource.COMPUTE
    assert f"weights in {more}" in what_helps(found) if more else "weights in" not in what_helps(found)
