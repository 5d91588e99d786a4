"""Checkpoints that keep codes with scales: planned, held and answered as what they are, as independent numbers do."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from packed_matrices import Array, awq, blocks, gptq, groups, rows
from saved_llama import CONFIG, continuation, random_weights, save, scores
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import load
from escc.compiler.run.answer import Asked, answer, plan_for, weights_of
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.pins import parse_pins
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

PROMPTS, TOKENS = ((3, 1, 4, 1, 5), (6, 5)), 3
SIZES = {24: 24, 48: 48, 20: 24, 16: 16, 23: 23}


SYMMETRIC = partial(gptq, symmetric=True)
OWN = {"q": SYMMETRIC, "k": rows, "v": awq, "o": blocks, "gate": gptq, "up": rows, "down": groups}
PINS = "stored layer.Wd F_xE\nuse layer.d.Wd F_xE\nstored layer.Wg E_xF_y\nuse layer.g.Wg E_xF_y\n"


def test_codes_of_all_formats_answer_as_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    """Matrices in groups are split between their groups along what they sum over, and held as codes."""
    tensors, plain = dict[str, Array](), dict[str, Array]()
    for name, array in random_weights().items():
        plain[name] = np.resize(array, tuple(SIZES[n] for n in array.shape))
        tensors[name] = plain[name]
        if "_proj." in name:
            pack = OWN[name.partition("_proj.")[0].rpartition(".")[2]]
            parts, plain[name] = pack((plain[name].shape[0], plain[name].shape[1]))
            del tensors[name]
            tensors |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
    folder, path = save(tmp_path / "saved", tensors), tmp_path / "model.esti"
    (folder / "config.json").write_text(json.dumps(CONFIG | {"intermediate_size": 24}))
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(path)])
    assert done.exit_code == 0 and "14 tensors are codes with scales" in done.output, done.output
    program = load(path)
    options = Options(Hardware.load("tpu-v4"), pins=parse_pins(Source("pins", PINS), program))
    weights = weights_of(path, program, folder)
    asked = Asked(PROMPTS, TOKENS, scores=True)
    made = answer(plan_for(program, weights, folder, Mesh.parse("3x2"), options, asked), 1, False, False)
    assert made.scores is not None
    for row, prompt in enumerate(PROMPTS):
        tokens = continuation(plain, prompt, TOKENS)
        assert list(made.tokens[row]) == tokens
        for step in range(len(tokens)):
            at = len(prompt) - min(map(len, PROMPTS)) + step
            expected = scores(plain, [*prompt, *tokens[:step]])
            np.testing.assert_allclose(made.scores[at, row], expected, atol=1e-4)
