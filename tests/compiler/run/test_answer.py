"""Prompts answered with the weights of a checkpoint, against the same model written in NumPy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_text import print_model
from saved_llama import CONFIG, continuation, random_weights, save, scores
from typer.testing import CliRunner

import escc
from escc.compiler.commands.main import app
from escc.compiler.hf_import.weight_map import context_beside
from escc.compiler.plan.pipeline import load
from escc.compiler.run.answer import Asked, Planned, answer, plan_for, turned_otherwise, weights_of
from escc.compiler.run.language_model import language_model
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.narrowed import narrowed
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

PROMPTS = ((3, 1, 4, 1, 5, 9, 2), (6, 5), (2, 7, 1, 8, 2))
TOKENS = 6
ESCC = str(Path(sys.executable).with_name("escc"))
STOP = int(str(CONFIG["eos_token_id"]))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved") / "model", random_weights(), files=2)


@pytest.fixture(scope="module")
def model(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imported") / "model.esti"
    done = CliRunner().invoke(app, ["import", str(checkpoint), "-o", str(path)])
    assert done.exit_code == 0, done.output
    return path


def planned(model: Path, checkpoint: Path, mesh: str, asked: Asked, pads: dict[str, int] | None = None) -> Planned:
    program = load(model, pads=pads)
    options = Options(Hardware.load("tpu-v4"))
    weights, on = weights_of(model, program, checkpoint), Mesh.parse(mesh)
    return plan_for(program, weights, checkpoint, on, options, asked, context_beside(model))


def test_prompts_of_several_lengths_go_on_as_alone(model: Path, checkpoint: Path) -> None:
    asked = Asked(PROMPTS, TOKENS, stops=(STOP,), scores=True)
    done = answer(planned(model, checkpoint, "2x3", asked), 1, check=True, stream=False)
    weights, shortest = random_weights(), min(map(len, PROMPTS))
    assert done.wrong == 0 and done.difference is not None and done.difference < 1e-4
    assert done.scores is not None and not done.full
    for row, prompt in enumerate(PROMPTS):
        tokens = continuation(weights, prompt, TOKENS)
        assert list(done.tokens[row]) == tokens
        for step in range(len(tokens)):
            expected = scores(weights, [*prompt, *tokens[:step]])
            np.testing.assert_allclose(done.scores[len(prompt) - shortest + step, row], expected, atol=1e-4)


def quantised(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights as int8 codes times scales, one for each output of a matrix and each row of the table."""
    found = dict(weights)
    for name, matrix in weights.items():
        if matrix.ndim == 2:
            largest = np.abs(matrix).max(axis=1, keepdims=True)
            found[name] = np.floor(matrix / (largest / 127) + 0.5) * (largest / 127)
    return found


def test_a_plan_with_codes_quantises_on_the_way_and_a_padded_one_fills_up(model: Path, checkpoint: Path) -> None:
    """As `--weights int8` does with a model in bf16, whose arithmetic would hide a wrong code."""
    program = narrowed(parse(Source("model.esti", model.read_text().replace("f32[", "bf16["))), Dtype.INT8)
    text = print_model(program).replace("bf16[", "f32[").replace("  x = take(", "  x: f32 = take(")
    assert "param Wo: int8[H,Q,E] * f32[E]" in text and "param table: int8[V,E] * f32[V]" in text
    narrow = model.with_name("narrow.esti")
    narrow.write_text(text)
    narrow.with_suffix(".weights").write_text(model.with_suffix(".weights").read_text())
    asked = Asked(PROMPTS, 3, scores=True)
    done = answer(planned(narrow, checkpoint, "2x3", asked, {"F": 24, "V": 24}), 1, check=True, stream=False)
    assert done.wrong == 0 and done.difference is not None and done.difference < 1e-4
    weights, shortest = quantised(random_weights()), min(map(len, PROMPTS))
    assert done.scores is not None
    for row, prompt in enumerate(PROMPTS):
        tokens = continuation(weights, prompt, 3)
        assert list(done.tokens[row]) == tokens
        for step in range(len(tokens)):
            expected = scores(weights, [*prompt, *tokens[:step]])
            np.testing.assert_allclose(done.scores[len(prompt) - shortest + step, row, :23], expected, atol=1e-4)


def test_two_processes_answer_as_one(model: Path, checkpoint: Path) -> None:
    asked = Asked(PROMPTS, 3)
    one, two = (answer(planned(model, checkpoint, "2x2", asked), n, check=False, stream=False) for n in (1, 2))
    assert one.tokens == two.tokens


def test_tokens_are_drawn_by_a_seed(model: Path, checkpoint: Path) -> None:
    def drawn(seed: int) -> object:
        asked = Asked(PROMPTS, TOKENS, temperature=5.0, seed=seed)
        return answer(planned(model, checkpoint, "1", asked), 1, check=False, stream=False).tokens

    assert drawn(1) == drawn(1) != drawn(2)


def test_scores_that_are_no_numbers_end_it(model: Path, tmp_path: Path) -> None:
    """Where a token comes that makes them so."""
    weights = random_weights()
    weights["model.embed_tokens.weight"][continuation(weights, (3, 1, 4), 3)[1]] = np.nan
    ready = planned(model, save(tmp_path / "saved", weights), "1", Asked(((3, 1, 4),), 3))
    with pytest.raises(InputError, match=r"what follows prompt 1 and 2 tokens are no numbers \(NaN\)"):
        answer(ready, 1, check=False, stream=False)


def test_a_full_context_ends_it(model: Path, checkpoint: Path) -> None:
    asked = Asked(((3, 1, 4),), 50, context=6)
    done = answer(planned(model, checkpoint, "1", asked), 1, check=False, stream=False)
    assert done.full and list(done.tokens[0]) == continuation(random_weights(), (3, 1, 4), 4)


def test_no_more_places_are_planned_than_a_model_was_imported_for(model: Path, checkpoint: Path) -> None:
    for tokens, places in ((100, 64), (61, 63)):
        made = planned(model, checkpoint, "1", Asked(((3, 1, 4),), tokens))
        assert (dict(made.compiled[1].spmd.sizes)["M"], made.most) == (places, 64)


def test_factors_of_longer_contexts_are_said_where_a_prompt_is_shorter(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", random_weights())
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaled = CONFIG | {"rope_scaling": scaling | {"original_max_position_embeddings": 8}}
    (folder / "config.json").write_text(json.dumps(scaled))
    assert CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "model.esti")]).exit_code == 0
    one = language_model(load(tmp_path / "model.esti"))
    told = [len(list(turned_otherwise(one, *sizes))) for sizes in ((3, 8), (3, 9), (8, 9), (9, 10))]
    assert told == [0, 1, 1, 0]
    (warning,) = planned(tmp_path / "model.esti", folder, "1", Asked(((3,) * 9, (3,)), 7)).warnings
    said = "In contexts of more than 8 places rope turns by other factors, and 15 are planned, for the shortest"
    assert warning.severity == "warning" and said in warning.message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked(((3, 1, 4),), 5, context=2), "A prompt has 3 tokens, and the context 2."),
        (Asked(((3,) * 65,), 5), "The model was imported for 64 positions, and 65 are asked for."),
        (Asked(((3, 1, 4),), 5, context=200), "The model was imported for 64 positions, and 200 are asked for."),
        (Asked(((3, 99),), 5), "Prompt 1 has token 99, and the model knows 23, from 0."),
        (Asked(((3, -1),), 5), "Prompt 1 has token -1, and the model knows 23, from 0."),
        (Asked(((),), 5), "Prompt 1 is empty."),
        (Asked(((3,),), 0), "0 tokens cannot be generated."),
        (Asked((), 5), "There are 0 prompts."),
    ],
)
def test_what_cannot_be_asked_is_refused(asked: Asked, message: str, model: Path, checkpoint: Path) -> None:
    with pytest.raises(InputError) as caught:
        planned(model, checkpoint, "2", asked)
    assert caught.value.diagnostics[0].message == message


def test_the_command_prints_ids_and_writes_scores(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    command = ["run", str(model), "--checkpoint", str(checkpoint), "--chips", "2", "--tokens", "4", "--check"]
    listed = ["--prompt-ids", "3,1,4,1,5", "--prompt-ids", "6,5", "--logits", str(tmp_path / "scores.npy")]
    done = subprocess.run([ESCC, *command, *listed], capture_output=True, text=True, check=True)
    weights = random_weights()
    for line, prompt in zip(done.stdout.splitlines(), ((3, 1, 4, 1, 5), (6, 5)), strict=True):
        tokens = continuation(weights, prompt, 4)
        assert line == f"{' '.join(map(str, prompt))} -> {' '.join(map(str, tokens))}".rstrip()
    assert "8 of 8 tokens are those of the unsharded model" in done.stderr
    assert "a chip sent" in done.stderr
    assert np.load(tmp_path / "scores.npy").shape == (7, 2, 23)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt-ids", "3,x"], "`3,x` is no list of token ids."),
        ([], "There is no prompt."),
        (["--prompt", "hello"], "has no `tokenizer.json`."),
        (["--prompt", "hello", "--prompt-ids", "3"], "Prompts are texts or token ids, not both."),
        (["--prompt-ids", "3", "--check", "--processes", "2"], "The unsharded model runs in one process."),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str, model: Path, checkpoint: Path) -> None:
    command = ["run", str(model), "--checkpoint", str(checkpoint), "--chips", "2", *arguments]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1 and message in done.stderr


def test_a_checkpoint_must_be_there(model: Path, tmp_path: Path) -> None:
    asked = Asked(((3,),), 2)
    for path, message in ((tmp_path / "none", "There is no checkpoint"), (tmp_path, "has no safetensors files.")):
        with pytest.raises(InputError) as caught:
            planned(model, path, "2", asked)
        assert message in caught.value.diagnostics[0].message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--prompt", "hello"], "Prompts are answered with real weights."),
        (["--temperature", "0.5"], "`--temperature` is of answers with real weights."),
        (["--temperature", "0"], "`--temperature` is of answers with real weights."),
        (["--context", "9"], "`--context` is of answers with real weights."),
    ],
)
def test_prompts_need_weights(given: list[str], message: str, model: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(model), "--chips", "2", *given])
    assert done.exit_code == 1 and message in done.stderr


def test_scripts_get_ids_for_ids(model: Path, checkpoint: Path) -> None:
    found = escc.answers(model, checkpoint, "2", [(3, 1, 4), (6, 5)], 4)
    assert found == [tuple(continuation(random_weights(), prompt, 4)) for prompt in ((3, 1, 4), (6, 5))]
