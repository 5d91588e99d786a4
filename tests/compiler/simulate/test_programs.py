"""Generated models: every plan runs, agrees and sends what was predicted, and so do the programs that are emitted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emitted_files import run_files
from programs import Generated, generate

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.emit.numpy_source import emit_numpy
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phases, select_phases
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options
from escc.passes.plan import Objective

SEEDS = range(24)
HARDWARE = Hardware.of_paper("tpu-v4")
OBJECTIVES = (Objective.TIME, Objective.TIME, Objective.COMMUNICATION)


def compiled(seed: int, model: Generated, run: bool) -> tuple[CompiledPhase, ...]:
    """The plans of a generated model, with one network or the other, with loops or without, together or apart."""
    source = Source(f"{seed}.esti", model.text)
    program = expand(parse(source), source)
    network = HARDWARE.with_network("links" if seed % 2 else "flat")
    options = Options(network, OBJECTIVES[seed % 3], overlap=seed % 5 == 0)
    return compile_phases(program, select_phases(program, None), model.mesh, options, run, separate=seed % 7 == 0)


def emitted_difference(one: CompiledPhase) -> float:
    """How far the two functions of an emitted NumPy file are apart."""
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit_numpy(one.program, one.spmd), "emitted", "exec"), names)
    with np.errstate(all="ignore"):
        stored = names["random_stored"](0)
        padded = names["zero_padded"](stored) if "zero_padded" in names else stored
        expected, actual = names["dense"](stored), names["sharded"](padded)
        true = {name: actual[name][tuple(map(slice, whole.shape))] for name, whole in expected.items()}
        return max(names["difference"](true[name], whole) for name, whole in expected.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_does_what_the_model_says(seed: int) -> None:
    model = generate(seed)
    try:
        done = compiled(seed, model, run=True)
    except InputError as error:
        assert model.wild and "do not stay finite" in str(error), model.text
        return
    for one in done:
        assert one.sound, model.text
        assert model.wild or emitted_difference(one) <= 1e-9, model.text


def test_emitted_jax_modules_run(tmp_path: Path) -> None:
    texts = {}
    for seed in range(100, 106):
        for one in compiled(seed, generate(seed, most_chips=16), run=False):
            texts[f"{seed} {one.phase}"] = emit_jax(one.program, one.spmd, one.estimate)
    ends = run_files(texts, tmp_path)
    assert ends == dict.fromkeys(texts, "0")


def test_the_generator_makes_all_that_it_is_said_to() -> None:
    models = [generate(seed) for seed in range(300)]
    text = "\n".join(model.text for model in models)
    words = ("top_k", "argmax", "take", "append", "last", "positions", "repeat", "softmax", "rmsnorm", "pad", "choose")
    assert all(word in text for word in words)
    assert all(part in text for part in ("f32[]", "phase two", "phase decode", "over=[V,W]", "swiglu(("))
    assert re.search(r"cache c\d+: \w+\[M\]", text)
    assert {n for model in models for n in model.mesh.sizes} == {2, 3, 4, 5}
    assert any(model.wild for model in models) and not all(model.wild for model in models)


def test_the_same_seed_gives_the_same_model() -> None:
    assert [generate(seed) for seed in range(20)] == [generate(seed) for seed in range(20)]
    assert generate(1).mesh != Mesh((("x", 1),))
