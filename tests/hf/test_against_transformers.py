"""What is imported computes what transformers computes: prefill and decoding, both in float64, and what it saves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf.checkpoint import float64, random_model, stored
from hf.variants import VARIANTS
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.write import model_text
from escc.compiler.run.language_model import language_model
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.ir.diagnostics import Source
from escc.ir.program import Append, Program, walk
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

Array = np.ndarray
BATCH, PROMPT, DECODED = 3, 9, 4
SMALLEST = 1e-10
ROUNDED = {"bloom": 1e-8}  # it takes the root of 2/pi to eight digits


def imported(config: str) -> str:
    return model_text(read_config(read_json(Source("config.json", config))), "small")


def program_of(config: Mapping[str, Any]) -> Program:
    source = Source("small.esti", imported(json.dumps(config)))
    return expand(parse(source), source, {"B": BATCH})


def theirs(model: PreTrainedModel, tokens: Array) -> list[Array]:
    """The scores of each next token by transformers, which keeps a cache; the prompt is what it starts from."""
    cache, scores = None, []
    with torch.no_grad():
        for first, last in steps():
            ids = torch.tensor(tokens[:, first:last])
            made = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = made.past_key_values
            scores.append(made.logits[:, -1].numpy())
    return scores


def ours(
    program: Program, weights: Mapping[str, Array], tokens: Array, steps: list[tuple[int, int]], phase: str
) -> list[Array]:
    """The same by the unsharded reference of the imported program, with caches that keep what they do in a phase."""
    model = language_model(program)
    sizes = {**dict(program.phase(phase).sizes), "L": PROMPT, "M": PROMPT + DECODED}
    arrays = random_stored(program, sizes, seed=1)  # for the caches, in which all that is read is overwritten
    params = {name for name in arrays if name != "tokens" and name not in {cache for cache, _ in model.caches}}
    assert params == set(weights)
    arrays |= {name: array.reshape(arrays[name].shape) for name, array in weights.items()}
    scores = []
    for first, last in steps:
        arrays["tokens"] = tokens[:, first:last]
        contexts = dict.fromkeys(model.counted, last)
        made = run_reference(program, {**sizes, "L": last - first}, arrays, contexts, model.scores)
        (score,) = (made[name] for name in model.scores)
        np.testing.assert_array_equal(made[program.results[0]], score.argmax(axis=-1))
        arrays |= {cache: made[version] for cache, version in model.caches}
        scores.append(score)
    return scores


def steps() -> list[tuple[int, int]]:
    """From where to where the tokens of prefill and of each step of decoding stand."""
    return [(0, PROMPT), *((PROMPT + step, PROMPT + step + 1) for step in range(DECODED))]


def difference(config: Mapping[str, Any], folder: Path) -> float:
    """The largest difference of two scores, which are near 1."""
    described = read_config(read_json(Source("config.json", json.dumps(config))))
    program = program_of(config)
    tokens = np.random.default_rng(7).integers(0, config["vocab_size"], size=(BATCH, PROMPT + DECODED))
    with float64(config["model_type"]):
        model = random_model(config, seed=5)
        expected = theirs(model, tokens)
        weights = stored(model, folder, program, described)
    found = ours(program, weights, tokens, steps(), "prefill")
    if any(isinstance(placed.item, Append) and placed.item.context for placed in walk(program.body)):
        single = [(place, place + 1) for place in range(PROMPT + DECODED)]  # in which caches wrap
        for a, b in zip(found, ours(program, weights, tokens, single, "decode")[PROMPT - 1 :], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=SMALLEST)
    assert all(scores.dtype == np.float64 and np.abs(scores).max() > 0.1 for scores in expected)
    assert len(expected) == len(found) == 1 + DECODED
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    most = ROUNDED.get(VARIANTS[name]["model_type"], SMALLEST)
    assert difference(VARIANTS[name], tmp_path) < most


@pytest.mark.parametrize("name", VARIANTS)
def test_what_transformers_saves_imports_as_the_same_model(name: str, tmp_path: Path) -> None:
    known = CONFIG_MAPPING[VARIANTS[name]["model_type"]].from_dict(dict(VARIANTS[name]))
    known.save_pretrained(tmp_path)
    text = imported(json.dumps(VARIANTS[name]))
    assert imported((tmp_path / "config.json").read_text()) == text
    assert imported(known.to_json_string(use_diff=False)) == text  # all fields


def test_there_are_variants_of_every_architecture() -> None:
    kinds = [config["model_type"] for config in VARIANTS.values()]
    assert len(kinds) >= 30 and min(kinds.count(kind) for kind in set(kinds)) >= 3 and len(set(kinds)) >= 8
