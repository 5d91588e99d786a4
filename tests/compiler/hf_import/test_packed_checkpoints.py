"""Folders whose matrices are codes and scales: each format packed here as it is published, number by number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from saved_llama import CONFIG, KNOWN, WIDTH, random_weights, save
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.hf_import.checkpoint_files import checkpoint_tensors
from escc.compiler.hf_import.parameter_parts import parameter_parts
from escc.compiler.hf_import.weight_map import fitted_map, map_beside
from escc.compiler.plan.pipeline import load

Array = np.ndarray
Packed = tuple[dict[str, Array], Array]  # the tensors of a matrix [to, from] by the ends of their names, and the matrix
RNG = np.random.default_rng(7)
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def words(codes: Array, bits: int, order: tuple[int, ...] = ()) -> Array:
    """Codes [rows, n] in words [rows, n * bits / 32]: the k-th lane of a word has the entry `order[k]` of its own."""
    lanes = 32 // bits
    out = np.zeros((len(codes), -(-codes.shape[1] // lanes)), np.uint32)
    for (row, at), code in np.ndenumerate(codes):
        lane = order.index(at % lanes) if order else at % lanes
        out[row, at // lanes] |= np.uint32(int(code) << (bits * lane))
    return out.view(np.int32)


def gptq(shape: tuple[int, int], bits: int = 4, acting: bool = False) -> Packed:
    """AutoGPTQ: codes packed along `from`, zeros along `to` and one less, groups of 8 rows, perhaps out of order."""
    to, of = shape
    codes, groups = RNG.integers(0, 1 << bits, (of, to)), of // 8
    zeros, scales = RNG.integers(1, 1 << bits, (groups, to)), RNG.random((groups, to)).astype(np.float16) / 50
    group = RNG.permutation(np.repeat(np.arange(groups), 8)) if acting else np.repeat(np.arange(groups), 8)
    parts = {
        "qweight": words(codes.T, bits).T.copy(),
        "qzeros": words(zeros - 1, bits),
        "scales": scales,
        "g_idx": group.astype(np.int32),
    }
    return parts, (scales.astype(np.float32)[group] * (codes - zeros[group])).T


def awq(shape: tuple[int, int]) -> Packed:
    """AutoAWQ: codes and zeros packed along `to`, in the order 0 2 4 6 1 3 5 7."""
    to, of = shape
    codes, zeros = RNG.integers(0, 16, (of, to)), RNG.integers(0, 16, (of // 8, to))
    scales, order = RNG.random((of // 8, to)).astype(np.float16) / 50, (0, 2, 4, 6, 1, 3, 5, 7)
    group = np.repeat(np.arange(of // 8), 8)
    parts = {"qweight": words(codes, 4, order), "qzeros": words(zeros, 4, order), "scales": scales}
    return parts, (scales.astype(np.float32)[group] * (codes - zeros[group])).T


def groups(shape: tuple[int, int], asymmetric: bool = False) -> Packed:
    """compressed-tensors, pack-quantized: codes of 4 bits from -8, packed along `from`; zeros along `to`."""
    to, of = shape
    codes, scale = RNG.integers(-8, 8, shape), RNG.random((to, of // 8)).astype(np.float32) / 50
    zeros = RNG.integers(-8, 8, (to, of // 8)) if asymmetric else np.zeros((to, of // 8), np.int64)
    parts = {"weight_packed": words(codes + 8, 4), "weight_scale": scale, "weight_shape": np.array(shape)}
    if asymmetric:
        parts["weight_zero_point"] = words((zeros + 8).T, 4).T.copy()
    return parts, np.repeat(scale, 8, 1) * (codes - np.repeat(zeros, 8, 1))


def channels(shape: tuple[int, int]) -> Packed:
    """compressed-tensors, int-quantized: int8 with a scale for each row."""
    codes, scale = RNG.integers(-127, 128, shape).astype(np.int8), RNG.random((shape[0], 1)).astype(np.float32) / 500
    codes[:, 3] = 127
    return {"weight": codes, "weight_scale": scale}, codes * scale


def narrow_floats(shape: tuple[int, int]) -> Packed:
    """compressed-tensors, float-quantized: fp8 with a scale for each row."""
    codes = (RNG.standard_normal(shape) * 100).clip(-440, 440).astype(ml_dtypes.float8_e4m3fn)
    codes[:, 3] = 448
    scale = RNG.random((shape[0], 1)).astype(np.float32) / 2000
    return {"weight": codes, "weight_scale": scale}, codes.astype(np.float32) * scale


def rows(shape: tuple[int, int]) -> Packed:
    """bitsandbytes in 8 bits: each row times its largest magnitude over 127."""
    codes, largest = RNG.integers(-127, 128, shape).astype(np.int8), RNG.random(shape[0]).astype(np.float32)
    parts = {"weight": codes, "SCB": largest, "weight_format": np.zeros((), np.uint8)}
    return parts, codes * (largest / np.float32(127))[:, None]


def nvfp4(shape: tuple[int, int]) -> Packed:
    """ModelOpt: two numbers in a byte, a scale in fp8 for 16 and one for all."""
    codes = RNG.integers(0, 16, shape)
    scale = (RNG.random((shape[0], shape[1] // 16)) + 0.5).astype(ml_dtypes.float8_e4m3fn)
    second = np.array(0.02, np.float32)
    bytes_ = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    numbers = np.array(FP4, np.float32)[codes] * np.repeat(scale.astype(np.float32), 16, 1) * second
    parts = {"weight": bytes_, "weight_scale": scale, "weight_scale_2": second, "input_scale": np.ones(1, np.float32)}
    return parts, numbers


FORMATS: dict[str, tuple[Callable[[tuple[int, int]], Packed], dict[str, object], str]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4}, "int4 of GPTQ"),
    "gptq, 8 bits, acting": (lambda shape: gptq(shape, 8, True), {"quant_method": "gptq", "bits": 8}, "int8 of GPTQ"),
    "awq": (awq, {"quant_method": "awq", "bits": 4}, "int4 of AWQ"),
    "groups": (groups, {"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4 with scales"),
    "zeros": (lambda shape: groups(shape, True), {"quant_method": "bitsandbytes"}, "int4 with scales"),
    "bitsandbytes": (rows, {"quant_method": "bitsandbytes"}, ""),
    "int8": (channels, {"quant_method": "bitsandbytes"}, ""),
    "nvfp4": (nvfp4, {"quant_algo": "NVFP4"}, "fp4 with scales"),
}
WIDER = CONFIG | {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 4, "torch_dtype": "bfloat16"}


def resized(array: Array) -> Array:
    """A weight of the small Llama at sizes that words and groups divide."""
    sizes = {WIDTH: 32, 48: 32, 20: 16, 16: 16, KNOWN: KNOWN}
    return np.resize(array, tuple(sizes[n] for n in array.shape))


@pytest.mark.parametrize("name", FORMATS)
def test_packed_folders_are_read_as_plain_numbers(name: str, tmp_path: Path) -> None:
    pack, said, kind = FORMATS[name]
    tensors: dict[str, Array] = {}
    expected: dict[str, Array] = {}
    for called, array in random_weights().items():
        plain = resized(array)
        expected[called] = plain
        if "_proj." in called:
            parts, expected[called] = pack((plain.shape[0], plain.shape[1]))
            stem = called.removesuffix("weight")
            tensors |= {stem + end: part for end, part in parts.items()}
        else:
            tensors[called] = plain
    folder = save(tmp_path / "saved", tensors)
    (folder / "config.json").write_text(json.dumps(WIDER | {"quantization_config": said}))
    (folder / "quantize_config.json").write_text("{}")  # what is beside is no matter where tensors are looked at
    found = checkpoint_tensors(folder)
    assert {n for n in found if not n.endswith("input_scale")} == set(expected)
    for called, numbers in expected.items():
        shape, _, made = found[called]
        assert shape == numbers.shape
        np.testing.assert_allclose(np.asarray(made()).astype(np.float32), numbers, rtol=1e-6, atol=1e-7)
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "model.esti")])
    assert done.exit_code == 0, done.output
    plainly, again = "and are read as plain numbers", "14 tensors are codes with a scale for each row, in the model"
    assert (f"14 tensors are kept as {kind}, {plainly}" if kind else again) in done.output
    assert (plainly in done.output) == bool(kind)


@pytest.mark.parametrize(("pack", "dtype", "most"), [(channels, "int8", "127"), (narrow_floats, "fp8", "448")])
def test_rows_with_a_scale_are_declared_so_and_give_the_same_codes(
    pack: Callable[[tuple[int, int]], Packed], dtype: str, most: str, tmp_path: Path
) -> None:
    tensors = {name: resized(array) for name, array in random_weights().items()}
    for called in [name for name in tensors if "_proj." in name and "k_proj" not in name]:
        parts, _ = pack((tensors[called].shape[0], tensors[called].shape[1]))
        tensors |= {called.removesuffix("weight") + end: part for end, part in parts.items()}
    folder = save(tmp_path / "saved", tensors)
    said = {"quantization_config": {"quant_method": "fp8" if dtype == "fp8" else "bitsandbytes"}}
    (folder / "config.json").write_text(json.dumps(WIDER | said))
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "model.esti")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "model.esti").read_text()
    for line in (f"  param Wo: {dtype}[H,Q,E] * f32[E]", f"  param Wi, Wg: {dtype}[E,F] * f32[F]", "  param Wk: bf16"):
        assert line in text
    program = load(tmp_path / "model.esti")
    made = map_beside(tmp_path / "model.esti", program)
    assert made is not None
    lines, kind = fitted_map(made, program), np.int8 if dtype == "int8" else ml_dtypes.float8_e4m3fn
    assert str(lines["layer.Wd"]).endswith(f" | codes {dtype} to {most} over -2:16")
    found, stem = checkpoint_tensors(folder), "model.layers.1.mlp.down_proj.weight"
    [codes] = parameter_parts(
        found, str(lines["layer.Wd"]), (2, 16, 32), kind, [(slice(1, 2), slice(None), slice(5, 9))]
    )
    np.testing.assert_array_equal(codes[0].astype(float), tensors[stem].T[:, 5:9].astype(float))
    whole = [(slice(None), slice(None))]
    [scales] = parameter_parts(found, str(lines["layer.Wd.scale"]), (2, 32), np.float32, whole)
    np.testing.assert_allclose(scales[1], tensors[f"{stem}_scale"][:, 0], rtol=1e-6)


def test_blocks_of_experts_become_plain_matrices(tmp_path: Path) -> None:
    """gpt-oss: [expert, to, block, 16] bytes with an exponent for each block, as [expert, from, to]."""
    blocks = RNG.integers(0, 256, (3, 5, 2, 16)).astype(np.uint8)
    exponents = RNG.integers(120, 130, (3, 5, 2)).astype(np.uint8)
    save(tmp_path, {"mlp.experts.down_proj_blocks": blocks, "mlp.experts.down_proj_scales": exponents})
    shape, kind, made = checkpoint_tensors(tmp_path)["mlp.experts.down_proj"]
    assert (shape, kind) == ((3, 64, 5), "fp4 with scales")
    for (expert, to, block, at), byte in np.ndenumerate(blocks):
        for half, code in enumerate((byte & 15, byte >> 4)):
            wanted = FP4[code] * 2.0 ** (int(exponents[expert, to, block]) - 127)
            assert made()[expert, 32 * block + 2 * at + half, to] == wanted


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scales": np.zeros((3, 7), np.float16)}, "are not those of one matrix"),
        ({"qzeros": np.zeros((2, 2), np.int32)}, "are not those of one matrix"),
        ({"qzeros": None}, "`model.layers.0.mlp.up_proj.qweight`"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(changed: dict[str, Array], message: str, tmp_path: Path) -> None:
    tensors = random_weights()
    stem = "model.layers.0.mlp.up_proj."
    del tensors[f"{stem}weight"]
    parts = {**gptq((16, 24))[0], **changed}
    tensors |= {stem + end: part for end, part in parts.items() if part is not None}
    folder = save(tmp_path / "saved", tensors)
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "model.esti")])
    assert done.exit_code == 1 and message in done.output
    assert not (tmp_path / "model.esti").exists()
