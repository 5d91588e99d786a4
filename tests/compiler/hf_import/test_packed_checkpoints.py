"""Folders whose matrices are codes and scales: each format packed here as it is published, number by number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from packed_matrices import (
    FP4,
    RNG,
    Array,
    Packed,
    awq,
    blocks,
    channels,
    gptq,
    groups,
    narrow_floats,
    nvfp4,
    rows,
    words,
)
from saved_llama import CONFIG, KNOWN, WIDTH, random_weights, save
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.hf_import.checkpoint import check_checkpoint, open_checkpoint
from escc.compiler.hf_import.checkpoint_files import checkpoint_tensors
from escc.compiler.hf_import.packed_tensors import gptq_offset
from escc.compiler.hf_import.parameter_parts import parameter_parts
from escc.compiler.hf_import.weight_map import KEPT as KEPT_STEP
from escc.compiler.hf_import.weight_map import Made, code_groups, fitted_map, map_beside
from escc.compiler.plan.pipeline import load

FORMATS: dict[str, tuple[Callable[[tuple[int, int]], Packed], dict[str, object], str]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4}, ""),
    "gptq, 8 bits, acting": (lambda shape: gptq(shape, 8, True), {"quant_method": "gptq", "bits": 8}, "int8 of GPTQ"),
    "awq": (awq, {"quant_method": "awq", "bits": 4}, ""),
    "groups": (groups, {"quant_method": "bitsandbytes", "load_in_4bit": True}, ""),
    "zeros": (lambda shape: groups(shape, True), {"quant_method": "bitsandbytes"}, ""),
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
    assert {n for n in found if not n.endswith("input_scale") and "|" not in n} == set(expected)
    for called, numbers in expected.items():
        shape, _, made = found[called]
        assert shape == numbers.shape
        np.testing.assert_allclose(np.asarray(made()).astype(np.float32), numbers, rtol=1e-6, atol=1e-7)
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "model.esti")])
    assert done.exit_code == 0, done.output
    plainly, again = "and are read as plain numbers", "14 tensors are codes with scales, in the model"
    assert (f"14 tensors are kept as {kind}, {plainly}" if kind else again) in done.output
    assert (plainly in done.output) == bool(kind)


KEPT: dict[str, tuple[Callable[[tuple[int, int]], Packed], list[str]]] = {
    "gptq": (partial(gptq, symmetric=True), ["Wq: int4[E,H,Q] * f16[E8,H,Q]", "Wi, Wg: int4[E,F] * f16[E8,F]"]),
    "gptq, 8 bits": (partial(gptq, bits=8, symmetric=True), ["Wo: int8[H,Q,E] * f16[H,E]"]),
    "gptq, zeros": (gptq, ["Wq: (int4[E,H,Q] - int4[E8,H,Q]) * f16[E8,H,Q]"]),
    "awq": (awq, ["Wo: (int4[H,Q,E] - int4[H,E]) * f16[H,E]", "Wi, Wg: (int4[E,F] - int4[E8,F]) * f16[E8,F]"]),
    "groups": (groups, ["Wk, Wv: int4[E,K,Q] * f32[E8,K,Q]", "Wd: int4[F,E] * f32[F8,E]"]),
    "groups, zeros": (partial(groups, asymmetric=True), ["Wd: (int4[F,E] - int4[F8,E]) * f32[F8,E]"]),
    "int8": (channels, ["Wo: int8[H,Q,E] * f32[E]", "Wi, Wg: int8[E,F] * f32[F]"]),
    "fp8": (narrow_floats, ["Wo: fp8[H,Q,E] * f32[E]", "Wi, Wg: fp8[E,F] * f32[F]"]),
    "fp8 blocks": (blocks, ["Wd: fp8[F,E] * f32[]"]),
    "bitsandbytes": (rows, ["Wq: int8[E,H,Q] * f32[H,Q]"]),
}
TYPES = {"int4": ml_dtypes.int4, "int8": np.int8, "fp8": ml_dtypes.float8_e4m3fn}


@pytest.mark.parametrize("name", KEPT)
def test_codes_and_scales_are_loaded_as_they_are_kept(name: str, tmp_path: Path) -> None:
    """All but the tables and norms; of each parameter a part that begins anywhere, times its scales, is the number."""
    pack, declared = KEPT[name]
    tensors, plain = dict[str, Array](), dict[str, Array]()
    for called, array in random_weights().items():
        plain[called] = resized(array)
        if "_proj." in called:
            parts, plain[called] = pack((plain[called].shape[0], plain[called].shape[1]))
            tensors |= {called.removesuffix("weight") + end: part for end, part in parts.items()}
        else:
            tensors[called] = plain[called]
    folder = save(tmp_path / "saved", tensors)
    (folder / "config.json").write_text(json.dumps(WIDER))
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(tmp_path / "model.esti")])
    assert done.exit_code == 0 and "14 tensors are codes with scales" in done.output, done.output
    text = (tmp_path / "model.esti").read_text()
    assert all(f"  param {line}\n" in text for line in declared), text
    program = load(tmp_path / "model.esti")
    made = map_beside(tmp_path / "model.esti", program)
    assert made is not None
    check_checkpoint(made, program, open_checkpoint(folder))
    lines, found, values = fitted_map(made, program), checkpoint_tensors(folder), program.table()
    numbers = {n: (array.shape, "F32", lambda a=array: a) for n, array in plain.items()}
    sizes = dict(program.phases[0].sizes)
    for called, one in made.items():
        if KEPT_STEP not in one.steps:
            continue
        whole = tuple(slice(None) for _ in (0, *values[called].dims))
        shapes = [(2, *(sizes[d] for d in values[v].dims)) for v in (called, f"{called}.scale")]
        dtype = TYPES[values[called].dtype.value]
        [codes] = parameter_parts(found, str(lines[called]), shapes[0], dtype, [whole])
        line, some = str(lines[f"{called}.scale"]), [whole[: len(shapes[1])], tuple(slice(1, None) for _ in shapes[1])]
        scale, part = parameter_parts(found, line, shapes[1], np.float32, some)
        np.testing.assert_array_equal(part, scale[some[1]])
        zero = np.zeros_like(scale)
        if f"{called}.zero" in values:
            zero, part = parameter_parts(found, str(lines[f"{called}.zero"]), shapes[1], np.float32, some)
            np.testing.assert_array_equal(part, zero[some[1]])
        for at, (dim, each) in enumerate(zip(values[called].dims, code_groups(program, called), strict=True), 1):
            if each == sizes[dim]:
                scale, zero = np.expand_dims(scale, at), np.expand_dims(zero, at)
            else:
                scale, zero = np.repeat(scale, each, at), np.repeat(zero, each, at)
        plainly = str(Made(one.tensor, tuple(s for s in one.steps if s != KEPT_STEP)))
        [wanted] = parameter_parts(numbers, plainly, shapes[0], np.float32, [whole])
        np.testing.assert_allclose((codes.astype(np.float32) - zero) * scale, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("pack", "said"),
    [
        (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": False}),
        (partial(gptq, symmetric=True), {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": True}),
        (awq, {"quant_method": "awq", "bits": 4, "group_size": 8}),
        (blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
        (rows, {"quant_method": "bitsandbytes"}),
    ],
)
def test_a_config_alone_declares_what_its_checkpoint_has(
    pack: Callable[[tuple[int, int]], Packed], said: dict[str, object], tmp_path: Path
) -> None:
    tensors = {name: resized(array) for name, array in random_weights().items()}
    for called in [name for name in tensors if "_proj." in name]:
        parts, _ = pack((tensors[called].shape[0], tensors[called].shape[1]))
        del tensors[called]
        tensors |= {called.removesuffix("weight") + end: part for end, part in parts.items()}
    folder = save(tmp_path / "saved", tensors)
    (folder / "config.json").write_text(json.dumps(WIDER | {"quantization_config": said}))
    found = []
    for of in (folder, folder / "config.json"):
        done = CliRunner().invoke(app, ["import", str(of), "-o", str(tmp_path / "model.esti"), "--force"])
        assert done.exit_code == 0, done.output
        lines = (tmp_path / "model.esti").read_text().splitlines()
        found.append([line for line in lines if line.lstrip().startswith(("param ", "dim "))])
    assert found[0] == found[1] and any(" * f" in line for line in found[0])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("E8 = E / 8", "E8 = E / 16", "`layer.Wi` has a scale for each 16x1 places, and its tensors have one for 8x1"),
        ("int4[E,F] - int4[E8,F]", "int8[E,F] - int8[E8,F]", "of `layer.Wi` are not kept as int8 codes around 0"),
        ("(int4[E,F] - int4[E8,F])", "int4[E,F]", "of `layer.Wi` have zero points, and the model has none"),
        ("(int4[E,F] - int4[E8,F]) * f16[E8,F]", "bf16[E,F]", "`layer.Wi` is kept as codes with scales, and the model"),
        (".up_proj.weight | kept ", ".up_proj.weight ", "`layer.Wi` has zero points, which are not made of numbers"),
    ],
)
def test_a_model_with_other_codes_than_its_checkpoint_is_refused(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    tensors = {name: resized(array) for name, array in random_weights().items()}
    for called in [name for name in tensors if "_proj." in name]:
        parts, _ = awq((tensors[called].shape[0], tensors[called].shape[1]))
        del tensors[called]
        tensors |= {called.removesuffix("weight") + end: part for end, part in parts.items()}
    folder, path = save(tmp_path / "saved", tensors), tmp_path / "model.esti"
    (folder / "config.json").write_text(json.dumps(WIDER))
    assert CliRunner().invoke(app, ["import", str(folder), "-o", str(path)]).exit_code == 0
    for file in (path, path.with_suffix(".weights")):
        file.write_text(file.read_text().replace(before, after))
    arguments = ["run", str(path), "--checkpoint", str(folder), "--chips", "1", "--prompt-ids", "1", "--tokens", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1 and message in done.output, done.output


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
    shape, said, kept = checkpoint_tensors(tmp_path)["mlp.experts.down_proj|kept"]
    codes, scales = kept()
    assert said == "fp4 e8m0 1x32x1"
    np.testing.assert_array_equal(codes * np.repeat(scales, 32, 1), made())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scales": np.zeros((3, 7), np.float16)}, "are not those of one matrix"),
        ({"qzeros": np.zeros((2, 2), np.int32)}, "are not those of one matrix"),
        ({"qzeros": None}, "`model.layers.0.mlp.up_proj.qweight`"),
        ({"g_idx": np.zeros(7, np.int32)}, "is not of shape 24, as the rest of its matrix is"),
        ({"g_idx": np.full(24, 3, np.int32)}, "names groups that its matrix does not have"),
        ({"g_idx": np.full(24, -1, np.int32)}, "names groups that its matrix does not have"),
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


@pytest.mark.parametrize("name", FORMATS)
def test_parts_of_any_shapes_and_types_are_refused_or_read_whole(name: str, tmp_path: Path) -> None:
    """What is refused is so before anything is read; whatever is not has as many numbers as it says."""
    rng, refused = np.random.default_rng(3), 0
    for _ in range(25):
        parts = dict(FORMATS[name][0]((32, 32))[0])
        part = rng.choice(sorted(parts.keys() - {"input_scale", "weight_format"}))
        shape = list(parts[part].shape) or [1]
        shape[rng.integers(len(shape))] = rng.choice([0, 1, 3, 32])
        shape = [[], shape, [*shape, 2], list(parts[part].shape)][rng.integers(4)]
        kind = rng.choice([parts[part].dtype, np.dtype(np.float32), np.dtype(np.int32)])
        parts[part] = np.full(shape, rng.choice([-5, 1, 100])).astype(kind)
        try:
            found = checkpoint_tensors(save(tmp_path, {f"up.{end}": one for end, one in parts.items()}))
        except ValueError:
            refused += 1
            continue
        for tensor, (wanted, _, made) in found.items():
            assert "|" in tensor or np.shape(made()) == tuple(wanted)
            assert "|" not in tensor or np.shape(made()[0]) == tuple(wanted)
    assert refused


@pytest.mark.parametrize(
    ("pack", "changed", "message"),
    [
        (partial(groups, asymmetric=True), {"weight_zero_point": np.zeros((4, 4), np.float32)}, "is not packed as its"),
        (partial(groups, asymmetric=True), {"weight_zero_point": np.zeros((4, 3), np.int32)}, "is not of shape 4x4"),
        (groups, {"weight_g_idx": np.zeros(7, np.int32)}, "is not of shape 32"),
        (groups, {"weight_g_idx": np.full(32, 4, np.int32)}, "names groups that its matrix does not have"),
        (groups, {"weight_scale": np.zeros((), np.float32)[None][:0]}, "are not those of a matrix of 32x32"),
        (channels, {"weight_scale": np.zeros((32, 1, 2), np.float32)}, "are not those of one matrix"),
        (channels, {"weight_zero_point": np.zeros((3, 1), np.int8)}, "is not of shape 32x1"),
        (nvfp4, {"weight_scale_2": np.zeros((1, 0), np.float32)}, "as the rest of its matrix is"),
    ],
)
def test_a_part_of_another_shape_is_named(
    pack: Callable[[tuple[int, int]], Packed], changed: dict[str, Array], message: str, tmp_path: Path
) -> None:
    parts = pack((32, 32))[0] | changed
    with pytest.raises(ValueError, match=message):
        checkpoint_tensors(save(tmp_path, {f"up.{end}": one for end, one in parts.items()}))


def in_groups(pack: str, shape: tuple[int, int], size: int) -> Packed:
    """A matrix of such a format, of small whole numbers, whose blocks or groups are of that size, the last less."""
    counts = tuple(-(-n // size) for n in shape)
    codes = np.arange(math.prod(shape)).reshape(shape) % 15 - 7
    many = np.arange(1, 1 + math.prod(counts)).reshape(counts).astype(np.float16)
    if pack == "fp8":
        whole = np.kron(many, np.ones((size, size)))[: shape[0], : shape[1]]
        parts = {"weight": codes.astype(ml_dtypes.float8_e4m3fn), "weight_scale_inv": many.astype(np.float32)}
        return parts, codes * whole
    one = np.repeat(many[:1], shape[0], 0)
    whole = np.repeat(one, size, 1)[:, : shape[1]]
    if pack == "groups":
        parts = {"weight_packed": words(codes + 8, 4), "weight_scale": one, "weight_shape": np.array(shape)}
        return parts, codes * whole
    zeros = words(np.full(one.T.shape, 7), 4)
    return {"qweight": words(codes + 8, 4).T.copy(), "qzeros": zeros, "scales": one.T.copy()}, codes * whole


SIZED: dict[str, Callable[[int], dict[str, object]]] = {
    "fp8": lambda size: {"quant_method": "fp8", "weight_block_size": [size, size]},
    "groups": lambda size: {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4, "group_size": size}}},
    },
    "gptq": lambda size: {"quant_method": "gptq", "bits": 4, "group_size": size},
}


@pytest.mark.parametrize("pack", SIZED)
def test_how_many_share_a_scale_is_what_the_config_says(pack: str, tmp_path: Path) -> None:
    """Two scales for 48 places are of blocks of 32 or 24, and three for 40 of blocks of 16 or 14."""
    for size, shape in ((32, (48, 48)), (24, (48, 48)), (16, (40, 40)), (15, (40, 40)), (128, (40, 40))):
        parts, wanted = in_groups(pack, shape, size)
        folder = save(tmp_path, {f"up.{end}": one for end, one in parts.items()})
        (folder / "config.json").write_text(json.dumps({"text_config": {"quantization_config": SIZED[pack](size)}}))
        found = checkpoint_tensors(folder)
        assert found["up.weight|kept"][1].endswith(f"x{min(size, shape[1])}")
        scaled = "up.weight | scaled _scale_inv" if pack == "fp8" else "up.weight"
        [made] = parameter_parts(found, scaled, shape, np.float32, [(slice(None), slice(None))])
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("pack", SIZED)
def test_scales_of_other_blocks_than_the_config_says_are_refused(pack: str, tmp_path: Path) -> None:
    for said, message in (
        ({}, "fit no blocks or several"),
        (SIZED[pack](16), "not those of blocks as its config says"),
    ):
        parts, _ = in_groups(pack, (48, 48), 32)
        folder = save(tmp_path, {f"up.{end}": one for end, one in parts.items()})
        (folder / "config.json").write_text(json.dumps({"quantization_config": said}))
        if pack != "fp8":
            with pytest.raises(ValueError, match=message):
                checkpoint_tensors(folder)
            continue
        found = checkpoint_tensors(folder)  # an import says it of all tensors at once
        assert "up.weight|kept" not in found and "up.weight_scale_inv" in found
        with pytest.raises(ValueError, match=r"`up.weight_scale_inv` are not those of blocks of `up.weight`"):
            parameter_parts(found, "up.weight | scaled _scale_inv", (48, 48), np.float32, [(slice(None),) * 2])


@pytest.mark.parametrize(
    ("pack", "said", "fits"),
    [
        (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 8}, True),
        (gptq, {"quant_method": "gptq", "bits": 8, "group_size": 8}, False),
        (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 16}, False),
        (partial(gptq, acting=True), {"quant_method": "gptq", "bits": 4, "group_size": 16}, False),
        (groups, {"quant_method": "gptq", "bits": 4, "group_size": -1}, False),
        (nvfp4, {"quant_algo": "NVFP4", "group_size": 32}, False),
        (channels, {"quant_method": "auto-round", "group_size": 16}, False),
    ],
)
def test_bits_and_groups_are_those_of_the_config(
    pack: Callable[[tuple[int, int]], Packed], said: dict[str, object], fits: bool, tmp_path: Path
) -> None:
    folder = save(tmp_path, {f"up.{end}": one for end, one in pack((32, 32))[0].items()})
    (folder / "config.json").write_text("{}")
    (folder / "quantize_config.json").write_text(json.dumps(said))
    if fits:
        assert checkpoint_tensors(folder)["up.weight"][0] == (32, 32)
        return
    with pytest.raises(ValueError, match="are not those of blocks as its config says"):
        checkpoint_tensors(folder)


@pytest.mark.parametrize(
    ("said", "less"),
    [
        ({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, 0),
        ({"quant_method": "gptq", "format": "gptq_v2"}, 0),
        ({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}, 0),
        ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, 1),
    ],
)
def test_zero_points_are_less_by_one_in_the_first_format_of_gptq(
    said: dict[str, object], less: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
    assert gptq_offset(tmp_path) == less


def test_codes_with_no_scale_are_not_kept(tmp_path: Path) -> None:
    parts = narrow_floats((32, 32))[0] | {"weight_scale": np.zeros((1, 0), np.float32)}
    found = checkpoint_tensors(save(tmp_path, {f"up.{end}": one for end, one in parts.items()}))
    assert "up.weight|kept" not in found
