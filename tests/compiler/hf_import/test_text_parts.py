"""The part for text of checkpoints that see or hear as well: under whatever names it is there, it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from saved_llama import CONFIG, HEAD, WIDTH, random_weights, save
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.checkpoint_files import checkpoint_tensors
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.parameter_parts import parameter_parts
from escc.compiler.hf_import.weight_map import map_beside, parameters
from escc.compiler.plan.pipeline import load
from escc.compiler.run.answer import weights_of
from escc.ir.diagnostics import Source

Array = np.ndarray
TIE = "tie_word_embeddings"


def imported(folder: Path, out: Path) -> str:
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(out / "model.esti")])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def loaded(folder: Path, out: Path) -> dict[str, Array]:
    """Every parameter of an imported model as the map beside it says, which must be one of the checkpoint."""
    program, found = load(out / "model.esti"), checkpoint_tensors(folder)
    made, arrays = weights_of(out / "model.esti", program, folder), {}
    for name, parameter in parameters(program).items():
        shape = (*parameter.counts, *parameter.shape)
        whole = tuple(slice(0, n) for n in shape)
        (arrays[name],) = parameter_parts(found, str(made[name]), shape, np.float32, [whole])
    return arrays


def same(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


@pytest.mark.parametrize(
    ("body", "head", "tower"),
    [
        ("language_model.model.", "language_model.lm_head.", "vision_tower.blocks.0.proj.weight"),  # Gemma 3, LLaVA
        ("model.language_model.", "lm_head.", "model.visual.blocks.0.attn.qkv.weight"),  # Qwen3-VL, Gemma 3n
        ("model.text_model.", "lm_head.", "model.connector.modality_projection.proj.weight"),  # Idefics 3
        ("thinker.model.", "thinker.lm_head.", "talker.model.layers.0.self_attn.q_proj.weight"),  # Qwen Omni
        ("llm.model.", "llm.lm_head.", "vpm.encoder.layers.0.self_attn.q_proj.weight"),  # MiniCPM-V
        ("language.model.", "language.lm_head.", "image_newline"),  # DeepSeek-VL2
        ("language_model.", "lm_head.", "multi_modal_projector.linear_1.weight"),
        ("model.", "lm_head.", "visual.merger.mlp.0.weight"),  # Qwen2-VL
    ],
)
def test_a_text_model_is_loaded_under_the_names_that_it_has_beside_towers(
    body: str, head: str, tower: str, tmp_path: Path
) -> None:
    weights = random_weights()
    imported(save(tmp_path / "alone", weights), tmp_path / "one")
    named = {
        n.replace("lm_head.", head) if "head" in n else body + n.removeprefix("model."): a for n, a in weights.items()
    }
    rest = {tower: np.zeros((300, 300), np.float16)}  # more numbers than the text has, of another type
    folder = save(tmp_path / "saved", named | rest)
    assert "for text alone is imported, without 1 tensor of what sees, hears or speaks" in imported(
        folder, tmp_path / "two"
    )
    same(loaded(tmp_path / "alone", tmp_path / "one"), loaded(folder, tmp_path / "two"))
    made = map_beside(tmp_path / "two" / "model.esti", load(tmp_path / "two" / "model.esti"))
    assert made is not None and made["layer.Wq"].tensor == body + "layers.{}.self_attn.q_proj.weight"


def test_what_is_wrong_is_said_by_the_names_of_the_file(tmp_path: Path) -> None:
    weights = {f"language_model.{name}": array for name, array in random_weights().items()}
    del weights["language_model.model.norm.weight"]
    folder = save(tmp_path / "saved", weights | {"language_model.model.extra.weight": np.zeros(3, np.float32)})
    done = CliRunner().invoke(app, ["import", str(folder)])
    assert done.exit_code == 1
    assert "no tensor `language_model.model.norm.weight`" in " ".join(done.output.split())
    assert "made of tensor `language_model.model.extra.weight`" in " ".join(done.output.split())


def test_a_head_beside_the_table_that_it_is_tied_to_is_known_by_either_name(tmp_path: Path) -> None:
    weights = random_weights()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    folder = save(tmp_path / "saved", {f"language_model.{name}": array for name, array in weights.items()})
    (folder / "config.json").write_text(json.dumps(CONFIG | {TIE: True}))
    imported(folder, tmp_path)
    assert "param Wu" not in (tmp_path / "model.esti").read_text()


@pytest.mark.parametrize(
    ("whole", "outer", "own", "tied"),
    [
        ("mistral3", True, False, True),
        ("internvl", True, False, True),
        ("gemma3", False, True, False),
        ("mistral3", None, False, False),
        ("mistral3", True, None, True),
        ("llava", True, False, True),
        ("llava", False, True, True),  # the older place, which counts as well
        ("qwen2_vl", False, False, False),
        ("llama4", True, False, False),  # whose text has the head in itself
        ("qwen2_5_omni", True, False, True),
    ],
)
def test_a_head_is_tied_as_the_model_says_in_which_it_stands(
    whole: str, outer: bool | None, own: bool | None, tied: bool
) -> None:
    kind = {"gemma3": "gemma3_text", "mistral3": "mistral"}.get(whole, "llama")
    text = {name: value for name, value in CONFIG.items() if name != "architectures"} | {"model_type": kind}
    inner = {"text_config": text | ({} if own is None else {TIE: own})} | ({} if outer is None else {TIE: outer})
    config = {"thinker_config": inner} if whole == "qwen2_5_omni" else inner
    assert read_config(read_json(Source("config", json.dumps({"model_type": whole} | config)))).tied is tied


QWEN = {"moe_intermediate_size": 10, "num_experts": 3, "num_experts_per_tok": 2}
ERNIE = {"moe_num_experts": 3, "moe_k": 2, "moe_num_shared_experts": 0, "moe_layer_start_index": 0}


def with_config(folder: Path, kind: str) -> Path:
    config = {name: value for name, value in CONFIG.items() if name != "architectures"} | {"model_type": kind}
    own = {"moe_intermediate_size": 10, TIE: False} | ERNIE if "ernie" in kind else QWEN
    (folder / "config.json").write_text(json.dumps(config | own))
    return folder


def of_experts(*norms: str) -> dict[str, Array]:
    """The tensors of a model of three experts a layer, with such norms of heads."""
    rng = np.random.default_rng(2)
    found = {name: array for name, array in random_weights().items() if ".mlp." not in name}
    for start in (f"model.layers.{layer}." for layer in range(2)):
        shapes: dict[str, tuple[int, ...]]
        shapes = {f"mlp.experts.{x}.{n}_proj.weight": (10, WIDTH) for x in range(3) for n in ("gate", "up")}
        shapes |= {f"mlp.experts.{x}.down_proj.weight": (WIDTH, 10) for x in range(3)}
        shapes |= {"mlp.gate.weight": (3, WIDTH)} | {f"self_attn.{name}.weight": (HEAD,) for name in norms}
        found |= {start + name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return found


@pytest.mark.parametrize("turned", [False, True])
def test_experts_that_lie_in_one_tensor_are_those_that_have_one_each(turned: bool, tmp_path: Path) -> None:
    """As the library saves Qwen3-VL, and with matrices the other way round as it is published."""
    weights = of_experts("q_norm", "k_norm")
    fused = {name: array for name, array in weights.items() if ".experts." not in name}
    for start in (f"model.layers.{layer}.mlp.experts." for layer in range(2)):
        gate, up, down = (
            np.stack([weights[f"{start}{x}.{name}_proj.weight"] for x in range(3)]) for name in ("gate", "up", "down")
        )
        both = {"gate_up_proj": np.concatenate([gate, up], axis=1), "down_proj": down}
        fused |= {start + n: np.ascontiguousarray(a.swapaxes(1, 2)) if turned else a for n, a in both.items()}
    for out, tensors in (("one", weights), ("two", fused)):
        imported(with_config(save(tmp_path / out, tensors), "qwen3_vl_moe_text"), tmp_path / out)
    same(*(loaded(tmp_path / out, tmp_path / out) for out in ("one", "two")))


def test_experts_that_images_have_for_themselves_are_left_out(tmp_path: Path) -> None:
    """As ERNIE 4.5 VL has them: counted on from those of text, chosen by matrices [from, to] of their own."""
    weights = of_experts()
    sees = dict(weights)
    for start in (f"model.layers.{layer}.mlp." for layer in range(2)):
        correction = np.arange(6, dtype=np.float32).reshape(2, 3)
        weights[f"{start}moe_statics.e_score_correction_bias"] = correction[:1]
        sees |= {f"{start}moe_statics.e_score_correction_bias": correction}
        router = np.ascontiguousarray(weights[f"{start}gate.weight"].T)
        sees |= {f"{start}gate.weight": router, f"{start}gate.weight_1": -router}
        sees |= {f"{start}experts.{x}.up_proj.weight": np.ones((6, WIDTH), np.float32) for x in (3, 4)}
    for out, kind, tensors in (("one", "ernie4_5_moe", weights), ("two", "ernie4_5_moe_vl", sees)):
        said = imported(with_config(save(tmp_path / out, tensors), kind), tmp_path / out)
    assert "without 6 tensors of what sees" in said
    same(*(loaded(tmp_path / out, tmp_path / out) for out in ("one", "two")))
