"""Layers that see keys of other layers, have embeddings for themselves, or work on one of several streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.checkpoint_files import checkpoint_tensors
from escc.compiler.hf_import.checkpoint_names import style_of
from escc.compiler.hf_import.description import Attention, Sharing, Transformer
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.parameter_parts import parameter_parts
from escc.compiler.hf_import.weight_map import parameters, read_map
from escc.compiler.hf_import.weights import weight_map
from escc.compiler.hf_import.write import model_text
from escc.compiler.report.hardware import parameter_count
from escc.ir.diagnostics import InputError, Source
from escc.ir.program import Program
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

FULL, WINDOW = "full_attention", "sliding_attention"
GEMMA4: Mapping[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 11,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 8,
    "vocab_size": 23,
    "max_position_embeddings": 64,
    "sliding_window": 5,
    "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": 23,
    "num_kv_shared_layers": 4,
    "layer_types": [WINDOW, FULL] * 5 + [FULL],
}
OTHERS = ("global_head_dim",)
GEMMA3N = {k: v for k, v in GEMMA4.items() if k not in OTHERS} | {"model_type": "gemma3n_text", "laurel_rank": 5}
WIDE = {"final_logit_softcapping": 30.0, "head_dim": 256, "hidden_size_per_layer_input": 256, "num_attention_heads": 8}
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], int]] = {  # text alone, as `transformers` 5.24 makes it of the config
    "gemma-4-E2B": (
        {"model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, **WIDE}
        | {"num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True, "vocab_size": 262144}
        | {"layer_types": ([WINDOW] * 4 + [FULL]) * 7},
        4_628_569_379,
    ),
    "gemma-4-E4B": (
        {"model_type": "gemma4_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, **WIDE}
        | {"num_key_value_heads": 2, "num_kv_shared_layers": 18, "vocab_size": 262144},
        7_463_013_418,
    ),
    "gemma-3n-E4B": (
        {"model_type": "gemma3n_text", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35, **WIDE}
        | {"num_key_value_heads": 2, "num_kv_shared_layers": 15, "vocab_size": 262400},
        6_835_235_568,
    ),
    "gemma-3n-E2B": (
        {"model_type": "gemma3n_text", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 30, **WIDE}
        | {"num_key_value_heads": 2, "num_kv_shared_layers": 10, "vocab_size": 262400},
        4_435_182_688,
    ),
}


def described(config: Mapping[str, Any]) -> Transformer:
    return read_config(read_json(Source("config.json", json.dumps(config))))


def program_of(model: Transformer) -> Program:
    source = Source("small.esti", model_text(model, "small"))
    return expand(parse(source), source, {})


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_it_should(name: str) -> None:
    config, count = PUBLISHED[name]
    assert parameter_count(program_of(described(config))) == count


@pytest.mark.parametrize("config", [GEMMA4, GEMMA3N], ids=["gemma4", "gemma3n"])
def test_later_layers_see_the_keys_of_the_last_of_their_kind(config: Mapping[str, Any]) -> None:
    model = described(config)
    kinds = [layer.attention for layer in model.layers]
    assert [kind.sharing for kind in kinds if isinstance(kind, Attention)] == (
        [Sharing.NONE] * 5 + [Sharing.LENT] * 2 + [Sharing.BORROWED] * 4  # the sixth sees all, the seventh a window
    )
    names = {value.name for value in program_of(model).values}
    for own in ("window_lent", "full_lent"):
        assert any(name.startswith(own) and name.endswith((".keys", ".values")) for name in names)
    assert not any("borrowed" in name and name.endswith((".keys", ".values", ".Wk", ".Wv")) for name in names)


@pytest.mark.parametrize("config", [GEMMA4, GEMMA3N], ids=["gemma4", "gemma3n"])
def test_each_layer_has_its_own_part_of_what_all_share(config: Mapping[str, Any]) -> None:
    model = described(config)
    made, wanted = weight_map(model, style_of(model)), parameters(program_of(model))
    assert set(made) == set(wanted)
    for ending, tensor in (("own", "embed_tokens_per_layer"), ("Wop", "per_layer_model_projection")):
        found = []
        for name in (name for name in made if name.endswith(f".{ending}")):
            assert made[name].tensor == f"model.{tensor}.weight"
            counts = wanted[name].counts
            places = np.ndindex(*counts)
            found += [made[name].at(place).steps[-1] for place in places]
        assert sorted(found) == sorted(f"part {n} of 11" for n in range(1, 12))
    again = read_map(Source("m.weights", "\n".join(f"{k} = {v}" for k, v in made.items())), program_of(model))
    assert again == made


def safetensors(folder: Path, weights: Mapping[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    header, data = {}, b""
    for name, array in weights.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def test_a_part_is_counted_by_the_repeats_around_it(tmp_path: Path) -> None:
    table = np.arange(5 * 12, dtype=np.float32).reshape(5, 12)
    found = checkpoint_tensors(safetensors(tmp_path / "saved", {"t": table}))
    (parts,) = parameter_parts(found, "t | part {2a+b+1} of 6", (2, 2, 5, 2), np.float32, [(slice(None),) * 4])
    each = [table[:, 2 * n : 2 * n + 2] for n in range(4)]
    np.testing.assert_array_equal(parts, np.stack(each).reshape(2, 2, 5, 2))


def made_up(model: Transformer) -> dict[str, np.ndarray]:
    """Tensors of the shapes that a model wants, all of them zero."""
    program, found = program_of(model), dict[str, np.ndarray]()
    wanted = parameters(program)
    for name, one in weight_map(model, style_of(model)).items():
        for place in np.ndindex(*(*wanted[name].counts, *wanted[name].shape)[: one.counters]):
            at, own = one.at(place), wanted[name].shape[one.counters - len(wanted[name].counts) :]
            shape = (int(own[0]), int(np.prod(own[1:]))) if len(own) > 1 else own
            if name.endswith((".Wo", "Wsx", "Wsy")):
                shape = (int(np.prod(own[:-1])), own[-1])
            if any(step.startswith("part ") for step in at.steps):
                shape = (shape[0], shape[1] * 11)
            found[at.tensor] = np.zeros(shape[::-1] if "transpose" in at.steps else shape, np.float32)
    return found


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("model.layers.8.self_attn.k_proj.weight", None),
        ("model.layers.8.self_attn.v_norm.weight", None),
        ("model.layers.1.self_attn.v_norm.weight", "Nothing of the model is made of tensor"),
        ("model.layers.8.self_attn.z_proj.weight", "Nothing of the model is made of tensor"),
        ("model.embed_tokens_per_layer.weight", "which does not make `"),
    ],
)
def test_keys_that_no_layer_sees_may_stand_in_a_checkpoint(extra: str, message: str | None, tmp_path: Path) -> None:
    folder = safetensors(tmp_path / "saved", made_up(described(GEMMA4)) | {extra: np.zeros((8, 24), np.float32)})
    (folder / "config.json").write_text(json.dumps(GEMMA4))
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "m.esti")])
    said = " ".join(done.output.split())
    assert done.exit_code == (0 if message is None else 1) and (message or "wrote") in said, done.output


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GEMMA4 | {"num_kv_shared_layers": 11}, "none is of kind `full_attention`"),
        (GEMMA4 | {"num_kv_shared_layers": 10}, "none is of kind `full_attention`"),
        (GEMMA4 | {"num_kv_shared_layers": 99}, "none is of kind `full_attention`"),
        (GEMMA4 | {"num_kv_shared_layers": -1}, "must be a whole number from 0"),
        (GEMMA4 | {"vocab_size_per_layer_input": 22}, "`vocab_size_per_layer_input` is less than `vocab_size`, 23."),
        (GEMMA4 | {"head_dim": 3}, "Rope turns pairs, and here heads have 3 elements."),
        (GEMMA4 | {"global_head_dim": 5}, "Rope turns pairs, and here heads have 5 elements."),
        (GEMMA3N | {"altup_active_idx": 1}, "`altup_active_idx` is set"),
        (GEMMA3N | {"altup_num_inputs": 1}, "Only models of two streams and more"),
        (GEMMA3N | {"altup_correct_scale": False}, "`altup_correct_scale` is set"),
        (GEMMA3N | {"intermediate_size": [20] * 10}, "`intermediate_size` has 10 layers, and there are 11."),
        (GEMMA3N | {"intermediate_size": [20] * 10 + [0]}, "`intermediate_size` must be a list of whole numbers"),
        (GEMMA3N | {"activation_sparsity_pattern": [0.5] * 10}, "must list a number from 0 to 1 for each of the 11"),
        (GEMMA3N | {"activation_sparsity_pattern": [1.0] * 11}, "must list a number from 0 to 1 for each of the 11"),
        (GEMMA3N | {"activation_sparsity_pattern": 0.5}, "must list a number from 0 to 1 for each of the 11"),
        (GEMMA3N | {"hidden_size": 25}, "`hidden_size` does not divide into 6 heads"),
    ],
)
def test_what_does_not_fit_is_said(config: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        described(config)
    assert any(said in d.message for d in caught.value.diagnostics), caught.value


def test_layers_of_gemma_3n_are_as_they_are_unless_said_otherwise() -> None:
    model = described({k: v for k, v in GEMMA3N.items() if k != "layer_types"} | {"num_hidden_layers": 20})
    kinds = [layer.attention for layer in model.layers]
    assert [kind.window for kind in kinds if isinstance(kind, Attention)] == [5, 5, 5, 5, None] * 4
    above = [layer.forward.above for layer in model.layers if hasattr(layer.forward, "above")]
    assert above[10:] == [None] * 10 and above[:10] == [pytest.approx(1.6448536269514722)] * 10
