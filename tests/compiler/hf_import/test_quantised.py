"""Weights in few bits: what a config says of them becomes types, and tensors in fp8 are read as plain numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from saved_llama import CONFIG, file_bytes, random_weights, save
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.parameter_parts import scaled_tensor
from escc.compiler.hf_import.write import model_text
from escc.ir.diagnostics import InputError, Source
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

Array = np.ndarray
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
GROUPS = {"group_0": {"weights": {"type": "int", "num_bits": 4}, "targets": ["Linear"]}}


def text(quantised: dict[str, Any], **more: Any) -> str:
    config = CONFIG | {"torch_dtype": "bfloat16", "quantization_config": quantised} | more
    return model_text(read_config(read_json(Source("config.json", json.dumps(config)))), "small")


@pytest.mark.parametrize(
    ("quantised", "dtype"),
    [
        (FP8, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "awq", "bits": 8}, "int8"),
        ({"quant_method": "compressed-tensors", "config_groups": GROUPS}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, "int4"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group"}}}, "fp4"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 8}}, "int4"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}}, "fp8"),
    ],
)
def test_matrices_of_layers_have_the_type_that_a_config_says(quantised: dict[str, Any], dtype: str) -> None:
    found = text(quantised)
    assert re.findall(r"param W\w+(?:, W\w+)*: (\w+)\[E,[HKF]", found) == [dtype] * 3
    assert "param table: bf16" in found and "param Wu: bf16" in found and "param scale1, scale2: bf16" in found


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "int8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
    ],
)
def test_caches_have_the_type_that_a_config_says(said: dict[str, Any], dtype: str) -> None:
    """As `--caches` writes them, whether the model or the layers' attention is in few bits or not."""
    found = text({"quant_method": "compressed-tensors", "config_groups": GROUPS} | said)
    assert f"  cache keys, values: {dtype}[B,M,K,Q] * f32[B,M,K]\n" in found
    model = expand(parse(Source("small.esti", found)), Source("small.esti", found))
    assert {str(model.table()[name].dtype) for name in ("layer.keys", "layer.values")} == {dtype}
    assert "cache keys, values: bf16[B,M,K,Q]\n" in text(FP8 | dict.fromkeys(said))


@pytest.mark.parametrize(
    "said", [{"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, {"kv_cache_quant_algo": "NVFP4"}]
)
def test_caches_of_a_type_that_is_not_known_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="says no type that caches can have"):
        text(FP8 | said)


SCHEME: dict[str, Any] = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 128,
    "dynamic": False,
    "block_structure": None,
    "actorder": "weight",
    "observer": "mse",
    "observer_kwargs": {"norm": 2.4},
    "scale_dtype": None,
    "zp_dtype": "torch.int8",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "compressed-tensors": {
        "config_groups": {
            "group_0": {
                "weights": SCHEME,
                "targets": ["Linear"],
                "format": "pack-quantized",
                "output_activations": None,
                "input_activations": {"num_bits": 8, "dynamic": "local", "anything": 1},
            }
        },
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": 1.89,
        "ignore": ["lm_head"],
        "version": "0.12.3",
        "transform_config": {},
        "sparsity_config": {"format": "dense", "registry_requires_subclass": False, "targets": []},
    },
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "desc_act": True,
        "lm_head": False,
        "damp_percent": 0.01,
        "true_sequential": True,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
        "meta": {"quantizer": ["gptqmodel:4.0"], "mse": 0.0},
        "dynamic": {"-:.*mlp.gate.*": {}},
    },
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "zero_point": True,
        "version": "gemm",
        "backend": "autoawq",
        "do_fuse": False,
        "modules_to_not_convert": None,
        "exllama_config": {"version": 2},
    },
    "auto-round": {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "data_type": "int",
        "iters": 0,
        "autoround_version": "0.14.2",
        "model_free": True,
        "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}, "model.layers.0.x": {"bits": 4}},
    },
    "modelopt": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "producer": {"name": "modelopt", "version": "0.37"},
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
        "ignore": [],
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
    },
    "quark": {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "ch_axis": None}},
        "layer_quant_config": {
            "*k_proj": {
                "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "ch_axis": None},
                "output_tensors": {},
            },
            "*router": {"weight": None},
        },
        "export": {"kv_cache_group": ["*k_proj"]},
        "exclude": ["lm_head"],
        "layer_type_quant_config": {},
    },
    "bitsandbytes": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "_load_in_4bit": True,
        "llm_int8_threshold": 6.0,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
    },
}


@pytest.mark.parametrize("method", PUBLISHED)
def test_fields_as_they_are_published_are_understood(method: str) -> None:
    found = text(PUBLISHED[method])
    assert re.search(r"param Wq: (fp|int)", found)


@pytest.mark.parametrize(
    ("method", "said", "message"),
    [
        ("compressed-tensors", {"transform_config": {"config_groups": {"R4": {"type": "hadamard"}}}}, "rotations of"),
        ("compressed-tensors", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "without their zeros"),
        ("compressed-tensors", {"format": "marlin-24"}, "`format` is set: tensors that are packed otherwise"),
        ("compressed-tensors", {"bits": 4}, "`bits` is not understood"),
        ("compressed-tensors", {"config_groups": {"g": {"weights": SCHEME | {"codebook": 1}}}}, "`codebook` is not un"),
        ("compressed-tensors", {"config_groups": {"g": {"weights": SCHEME, "rank": 8}}}, "`rank` is not understood"),
        ("gptq", {"dynamic": {"+:.*mlp.*": {"bits": 8}}}, "`dynamic` is set: layers in other bits"),
        ("gptq", {"lm_head": True}, "a head in few bits"),
        ("gptq", {"checkpoint_format": "marlin"}, "`checkpoint_format` is set: tensors that are packed otherwise"),
        ("awq", {"version": "gemv"}, "`version` is set: tensors that are packed otherwise"),
        ("auto-round", {"extra_config": {"model.layers.0.x": {"bits": 8}}}, "`extra_config` is set: layers in other"),
        ("modelopt", {"quantized_layers": {"a": {"quant_algo": "FP8"}}}, "`quantized_layers` is set"),
        ("modelopt", {"pre_quant_scale": True}, "whose inputs are scaled first"),
        ("modelopt", {"kv_cache_scheme": {"num_bits": 8, "type": "float", "root": 2}}, "`root` is not understood"),
        ("quark", {"layer_quant_config": {"*mlp*": {"weight": {"dtype": "fp4"}}}}, "`layer_quant_config` is set"),
        ("bitsandbytes", {"outliers": 3}, "`outliers` is not understood"),
    ],
)
def test_what_may_change_the_arithmetic_of_codes_is_refused(method: str, said: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        text(PUBLISHED[method] | said)


def test_beside_codes_numbers_are_bf16_where_a_config_names_no_type() -> None:
    for quantised in ({"quant_method": "mxfp4"}, FP8):
        found = text(quantised, torch_dtype=None)
        assert "param table: bf16" in found and "param scale1, scale2: bf16" in found
    assert "param table: f32" in text({}, torch_dtype=None)


def wide_config(quantised: dict[str, Any]) -> dict[str, Any]:
    sizes = {"hidden_size": 512, "intermediate_size": 640, "num_attention_heads": 4, "head_dim": 192}
    return CONFIG | sizes | {"torch_dtype": "bfloat16", "quantization_config": quantised}


@pytest.mark.parametrize(
    ("quantised", "lines"),
    [
        (FP8, ["dim Q64 = Q / 64", "Wv: fp8[E,K,Q] * f32[E128,K,Q64]", "Wo: fp8[H,Q,E] * f32[H,Q64,E128]"]),
        ({"quant_method": "fbgemm_fp8"}, ["Wq: fp8[E,H,Q] * f32[H,Q]", "Wd: fp8[F,E] * f32[E]"]),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, ["Wo: int4[H,Q,E] * f16[E]"]),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, ["Wd: (int4[F,E] - int4[F128,E]) * f16[F128,E]"]),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": GROUPS["group_0"]["weights"] | {"group_size": 64}}},
            },
            ["Wi, Wg: int4[E,F] * bf16[E64,F]", "Wo: int4[H,Q,E] * bf16[H,Q64,E]"],
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ["Wi, Wg: fp4[E,F] * fp8[E16,F]"]),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ["Wd: int4[F,E] * f32[F64,E]"]),
        ({"quant_method": "mxfp4"}, ["Wd: fp4[F,E] * e8m0[F32,E]"]),
    ],
)
def test_a_config_gives_scales_as_its_method_keeps_them(
    quantised: dict[str, Any], lines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(wide_config(quantised)))
    done = CliRunner().invoke(app, ["import", str(tmp_path / "config.json")])
    assert done.exit_code == 0, done.output
    assert all(line in done.output for line in lines), done.output


def test_what_is_left_out_stays_plain() -> None:
    found = text(FP8 | {"modules_to_not_convert": ["model.layers.0.self_attn", "lm_head"]})
    assert "param Wq: bf16[" in found and "param Wd: fp8[" in found


def narrow(rng: np.random.Generator, weights: dict[str, Array]) -> dict[str, Array]:
    """The matrices of layers in fp8, with a scale for each block."""
    found = dict(weights)
    for name, array in weights.items():
        if any(f"{module}." in name for module in MODULES):
            blocks = tuple(-(-n // 128) for n in array.shape)
            found[name] = array.astype(ml_dtypes.float8_e4m3fn)
            found[f"{name}_scale_inv"] = rng.uniform(0.5, 2.0, blocks).astype(np.float32)
    return found


@pytest.mark.parametrize("shape", [(256, 384), (300, 130), (128, 5)])
def test_scales_are_of_blocks_of_128(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    tensor, scale = rng.standard_normal(shape), rng.uniform(1, 2, tuple(-(-n // 128) for n in shape))
    found = scaled_tensor(tensor, scale, "128x128")
    for i in range(shape[0]):
        for j in range(0, shape[1], 7):
            assert found[i, j] == np.float32(tensor[i, j]) * np.float32(scale[i // 128, j // 128])
    rows = rng.uniform(1, 2, (shape[0], 1))
    found = scaled_tensor(tensor, rows, f"1x{shape[1]}")
    np.testing.assert_array_equal(found, tensor.astype(np.float32) * rows.astype(np.float32))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "is of type F8_E4M3, and such are not read"),
        (np.ones((7, 1), np.float32), "7x1, are not those of blocks of"),
    ],
)
def test_scales_that_are_missing_or_of_other_blocks_are_said(tmp_path: Path, wrong: Array | None, said: str) -> None:
    tensors = narrow(np.random.default_rng(3), random_weights())
    for layer in range(2):
        scale = f"model.layers.{layer}.mlp.up_proj.weight_scale_inv"
        tensors.pop(scale) if wrong is None else tensors.update({scale: wrong})
    folder = save(tmp_path / "saved", tensors)
    (folder / "model.safetensors").write_bytes(file_bytes(tensors))
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "model.esti")])
    assert done.exit_code == 1 and said in done.output
    assert not (tmp_path / "model.esti").exists()
