"""Checkpoints that are whole import with a map of their weights; all others end in a sentence, nothing written."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
from ml_dtypes import bfloat16
from saved_llama import HEAD, file_bytes, random_weights, save
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.emit.jax_source import CHECKPOINTS, LOAD, _functions, _used
from escc.compiler.emit.jax_streams import STREAMED_LOAD
from escc.compiler.hf_import.checkpoint import open_checkpoint
from escc.compiler.hf_import.checkpoint_files import GgufBlocks, checkpoint_tensors
from escc.compiler.hf_import.parameter_parts import blocks_of, copy_blocks, parameter_parts
from escc.compiler.hf_import.weight_map import Made, context_beside, fitted_map, map_beside, parameters, read_map
from escc.compiler.plan.pipeline import load
from escc.ir.diagnostics import InputError, Source

QUERY = "model.layers.1.self_attn.q_proj.weight"


def imported(folder: Path, out: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["import", str(folder), "-o", str(out / "model.esti")])
    return done.exit_code, done.output


def test_a_map_says_what_each_parameter_is_made_of(tmp_path: Path) -> None:
    assert imported(save(tmp_path / "saved", random_weights()), tmp_path)[0] == 0
    made = map_beside(tmp_path / "model.esti", load(tmp_path / "model.esti"))
    assert made is not None
    assert str(made["layer.Wq"]) == "model.layers.{}.self_attn.q_proj.weight | transpose | heads 6 | pairs"
    assert str(made["Wu"]) == "lm_head.weight | transpose" and str(made["table"]) == "model.embed_tokens.weight"
    assert context_beside(tmp_path / "model.esti") == 64
    text = (tmp_path / "model.weights").read_text()
    (tmp_path / "model.weights").write_text(text.replace("\ncontext 64\n", "\n"))
    assert context_beside(tmp_path / "model.esti") is None


def test_weights_have_the_type_of_a_checkpoint_whose_config_names_none(tmp_path: Path) -> None:
    halves = {name: array.astype(np.float16) for name, array in random_weights().items()}
    halves["model.norm.weight"] = halves["model.norm.weight"].astype(np.float32)
    folder = save(tmp_path / "saved", halves)
    config = json.loads((folder / "config.json").read_text())
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config))
    assert imported(folder, tmp_path)[0] == 0
    assert "param table: f16[V,E]" in (tmp_path / "model.esti").read_text()


@pytest.mark.parametrize("files", [1, 3])
def test_parts_of_parameters_are_those_of_the_whole(files: int, tmp_path: Path) -> None:
    weights = random_weights()
    found = checkpoint_tensors(save(tmp_path / "saved", weights, files))
    line = "model.layers.{}.self_attn.q_proj.weight | transpose | heads 6 | pairs"
    shape, rng = (2, 24, 2, 3, HEAD), np.random.default_rng(1)
    each = []
    for layer in range(2):
        heads = weights[f"model.layers.{layer}.self_attn.q_proj.weight"].T.reshape(24, 6, HEAD)
        each.append(np.stack(np.split(heads, 2, axis=-1), axis=-1).reshape(24, 2, 3, HEAD))
    whole = np.stack(each)
    for _ in range(20):
        ends = [sorted(rng.integers(0, n + 1, 2)) for n in shape]
        at = tuple(slice(int(a), int(b)) for a, b in ends)
        if all(b > a for a, b in ends):
            both = parameter_parts(found, line, shape, np.float32, [at, (slice(None),) * 5])
            np.testing.assert_array_equal(both[0], whole[at])
            np.testing.assert_array_equal(both[1], whole)


def test_parts_of_codes_and_scales_are_those_of_the_whole(tmp_path: Path) -> None:
    """Of a matrix with a scale for each head and place in it, padded to four kv-heads of which two are there."""
    weights, rng = random_weights(), np.random.default_rng(1)
    found = checkpoint_tensors(save(tmp_path / "saved", weights))
    plain = "model.layers.{}.self_attn.k_proj.weight | transpose | heads 2 | padded from 24x2x8"
    each = [weights[f"model.layers.{layer}.self_attn.k_proj.weight"].T.reshape(24, 2, HEAD) for layer in range(2)]
    whole = np.pad(np.stack(each), ((0, 0), (0, 0), (0, 2), (0, 0)))
    top = np.abs(whole).max(axis=1)
    scale = np.where(top == 0, 1, top / np.float32(127))
    codes = np.floor(whole / scale[:, None] + np.float32(0.5))
    assert codes.max() == 127 and not codes[:, :, 2:].any()
    for word, wanted in (("", whole), ("codes", codes), ("scales", scale)):
        line = f"{plain} | {word} int8 to 127 over -3:24" if word else plain
        kind = np.int8 if word == "codes" else np.float32
        for _ in range(20):
            ends = [sorted(rng.choice(n + 1, 2, replace=False)) for n in wanted.shape]
            at = tuple(slice(int(a), int(b)) for a, b in ends)
            both = parameter_parts(found, line, wanted.shape, kind, [at, (slice(None),) * wanted.ndim])
            np.testing.assert_array_equal(both[0], wanted[at].astype(kind))
            np.testing.assert_array_equal(both[1], wanted.astype(kind))


class Inline:
    """A pool without threads."""

    map = staticmethod(map)


@pytest.mark.parametrize("line", ["t | transpose | heads 6 | pairs", "t | transpose", "t | heads 5", "t"])
def test_tensors_of_several_mb_are_copied_piece_by_piece_wherever_a_shard_begins(line: str, tmp_path: Path) -> None:
    tensor = np.random.default_rng(0).standard_normal((1200, 2000)).astype(np.float32)
    (tmp_path / "model.safetensors").write_bytes(file_bytes({"t": tensor}))
    whole = tensor.T if "transpose" in line else tensor
    if "pairs" in line:
        whole = whole.reshape(2000, 6, 2, 100).swapaxes(2, 3).reshape(2000, 6, 200)
    elif "heads" in line:
        whole = whole.reshape(1200, 5, 400)
    last = whole.shape[-1]
    places = [
        (*(slice(0, n) for n in whole.shape[:-1]), slice(7, last // 2)),
        (slice(100, 350), *(slice(1, n - 1) for n in whole.shape[1:-1]), slice(0, last)),
    ]
    parts = parameter_parts(checkpoint_tensors(tmp_path), line, whole.shape, np.float32, places)
    for at, part in zip(places, parts, strict=True):
        np.testing.assert_array_equal(part, whole[at])
        assert part.ctypes.data % 64 == 0


@pytest.mark.parametrize("shape", [(330, 600), (130, 200), (130, 3, 70), (3, 70, 130), (5, 2, 3, 65)])
@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_transposed_parts_are_copied_whole(shape: tuple[int, ...], dtype: type) -> None:
    tensor = np.random.default_rng(0).standard_normal((int(np.prod(shape[1:])), shape[0])).astype(dtype)
    views = [tensor.T.reshape(shape), tensor.T.reshape(shape)[1:4], np.ascontiguousarray(tensor.T).reshape(shape)]
    for view in views:
        part = np.full(view.shape, np.nan, dtype)
        copy_blocks(blocks_of(part, view), Inline)
        np.testing.assert_array_equal(part, view)


def without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = random_weights()
        del tensors[name]
        save(folder, tensors)

    return change


def with_tensor(name: str, shape: tuple[int, ...]) -> Callable[[Path], None]:
    return lambda folder: save(folder, random_weights() | {name: np.zeros(shape, np.float32)}) and None


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lying(folder: Path) -> None:
    data = file_bytes({"a": np.zeros(4, np.float32)})
    (folder / "model.safetensors").write_bytes(data.replace(b"[4]", b"[5]"))


def placed(second: bytes, more: int = 0) -> Callable[[Path], None]:
    """That the second of two tensors of 16 bytes says that it lies elsewhere, in a file of so many bytes more."""

    def change(folder: Path) -> None:
        data = file_bytes({"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)})
        (folder / "model.safetensors").write_bytes(data.replace(b"[16, 32]", second) + bytes(more))

    return change


def huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")


def no_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"[[[[")


def climbing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {QUERY: "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    save(folder, random_weights(), files=3)
    (folder / "model-00002-of-00003.safetensors").unlink()


def with_a_pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        os.mkfifo(folder / name)
        if not name.endswith("safetensors"):
            (folder / "first.safetensors").write_bytes(b"")

    return change


def untied(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))


def with_a_guessing_layer_inside(folder: Path) -> None:
    save(folder, random_weights() | {"model.layers.1.eh_proj.weight": np.zeros(3, np.float32)})


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(QUERY), f"has no tensor `{QUERY}`"),
        (with_tensor("model.layers.0.extra.weight", (3,)), "Nothing of the model is made of tensor `model.layers.0.ex"),
        (with_tensor(QUERY, (24, 48)), "which does not make `layer.Wq`"),
        (with_tensor(QUERY, (24, 47)), "which does not make `layer.Wq`"),
        (with_tensor(QUERY, (24, 24)), "which does not make `layer.Wq`"),
        (cut, "model.safetensors has"),
        (with_tensor("model.norm.weight", (12, 2)), "`model.norm.weight` is 12x2, which does not make `scale` of 24"),
        (lying, "bytes for `a`, and its shape takes others"),
        (placed(b"[ 0, 16]"), "has `b` at 0 to 16, and what lies before ends at 16"),
        (placed(b"[12, 28]"), "has `b` at 12 to 28, and what lies before ends at 16"),
        (placed(b"[20, 36]", 4), "has `b` at 20 to 36, and what lies before ends at 16"),
        (placed(b"[16, 32]", 4), "and its header tells of"),
        (huge_header, "ends before its header does"),
        (no_header, "has a header that is none of safetensors"),
        (climbing, "which is no safetensors file of the folder"),
        (without_a_shard, "saved/model-00002-of-00003.safetensors` cannot be read: No such file or directory."),
        (with_a_pipe("model.safetensors"), "saved/model.safetensors` cannot be read: It is no regular file."),
        (with_a_pipe("model.safetensors.index.json"), "index.json` cannot be read: It is no regular file."),
        (untied, "`lm_head.weight` of the checkpoint has other numbers."),
        (
            with_tensor("model.layers.2.input_layernorm.weight", (24,)),
            "Nothing of the model is made of tensor `model.l",
        ),
        (with_a_guessing_layer_inside, "Nothing of the model is made of tensor `model.layers.1.eh_proj.weight`."),
        (pickled, "a pickle can run any code"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "saved", random_weights())
    change(folder)
    code, output = imported(folder, tmp_path / "out")
    assert code == 1 and message in " ".join(output.split()), output
    assert not (tmp_path / "out").exists()


def test_a_gguf_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    code, output = imported(tmp_path / "model.gguf", tmp_path / "out")
    assert code == 1 and "cannot be read" in output and not (tmp_path / "out").exists()
    os.mkfifo(tmp_path / "pipe.gguf")
    code, output = imported(tmp_path / "pipe.gguf", tmp_path / "out")
    assert code == 1 and "pipe.gguf` cannot be read: It is no regular file." in " ".join(output.split())


def test_an_error_of_our_own_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library of GGUF raises is said of the file; what the compiler does wrong stays an error."""
    written_gguf(tmp_path / "model.gguf", "llama", {"rope.freq_base": 10000.0})
    wrong = KeyError("of ours")
    with monkeypatch.context() as patch:
        patch.setattr("gguf.GGUFReader", Mock(side_effect=wrong))
        with pytest.raises(InputError, match="cannot be read"):
            open_checkpoint(tmp_path / "model.gguf")
    with monkeypatch.context() as patch:
        patch.setattr("gguf.dequantize", Mock(side_effect=wrong))
        assert "no numbers can be made" in imported(tmp_path / "model.gguf", tmp_path / "out")[1]
    monkeypatch.setattr("escc.compiler.hf_import.checkpoint_files.gguf_codes", Mock(side_effect=wrong))
    with pytest.raises(KeyError, match="of ours"):
        open_checkpoint(tmp_path / "model.gguf")


def test_tensors_that_only_repeat_others_are_no_matter(tmp_path: Path) -> None:
    names = ("model.layers.0.self_attn.rotary_emb.inv_freq", "transformer.rotary_pos_emb.inv_freq")
    extra = {name: np.zeros(4, np.float32) for name in names}
    assert imported(save(tmp_path / "saved", random_weights() | extra), tmp_path)[0] == 0


@pytest.mark.parametrize("apart", [0, 1])
def test_a_head_beside_its_table_is_the_same(apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To its last byte, and without a library for types that NumPy lacks."""
    monkeypatch.setattr("escc.compiler.hf_import.checkpoint.AT_ONCE", 100)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    halves = {name: array.astype(bfloat16) for name, array in random_weights().items()}
    head = halves["lm_head.weight"] = halves["model.embed_tokens.weight"].copy()
    head.view(np.uint16)[-1, -1] += apart
    folder = save(tmp_path / "saved", halves, files=3)
    untied(folder)
    code, output = imported(folder, tmp_path)
    assert code == apart and ("has other numbers" in " ".join(output.split())) == bool(apart), output


def test_what_guesses_more_tokens_is_left_out(tmp_path: Path) -> None:
    names = ("eh_proj.weight", "enorm.weight", "self_attn.q_proj.weight", "shared_head.head.weight")
    extra = [*(f"model.layers.2.{name}" for name in names), "mtp.fc.weight", "model.mtp_layers.0.q_proj.weight"]
    tensors = random_weights() | {name: np.zeros(3, np.float32) for name in extra}
    code, output = imported(save(tmp_path / "saved", tensors), tmp_path)
    assert code == 0 and "6 tensors guess more tokens than the next one, and are left out" in output


def test_one_file_is_the_checkpoint_whatever_lies_beside_it(tmp_path: Path) -> None:
    folder = save(save(tmp_path / "saved", {"other": np.zeros(3, np.float32)}, files=2), random_weights())
    (folder / "consolidated.safetensors").write_bytes(file_bytes({"other": np.zeros(3, np.float32)}))
    assert imported(folder, tmp_path)[0] == 0 and "other" not in checkpoint_tensors(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("context many", "A line is `PARAMETER = TENSOR | STEP | ...`."),
        ("context 0", "A line is `PARAMETER = TENSOR | STEP | ...`."),
        ("layer.Wq", "A line is `PARAMETER = TENSOR | STEP | ...`."),
        ("layer.Wq = ../x | transpose", "A line is `PARAMETER = TENSOR | STEP | ...`."),
        ("layer.Wx = a", "The model has no parameter `layer.Wx`."),
        ("layer.Wq = a", "`a` needs a `{}` for each repeat around `layer.Wq`."),
        ("layer.Wq = a.{} | turn", "There is no step `turn`."),
        ("layer.Wq = a.{} | heads 0", "There is no step `heads 0`."),
        ("Wu = a\nWu = b", "`Wu` has a line already."),
        ("Wu = a", "No line says what `table` is made of."),
    ],
)
def test_lines_that_are_wrong_are_named(line: str, message: str, tmp_path: Path) -> None:
    assert imported(save(tmp_path / "saved", random_weights()), tmp_path)[0] == 0
    with pytest.raises(InputError) as caught:
        read_map(Source("model.weights", line), load(tmp_path / "model.esti"))
    assert message in [d.message for d in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("steps", "shape", "made"),
    [
        (("transpose",), (3, 8), (8, 3)),
        (("transpose", "heads 3"), (6, 4), (4, 3, 2)),
        (("heads 2", "part 2 of 3"), (4, 12), (4, 2, 2)),
        (("first 2", "pairs"), (5,), (2,)),
        (("after 2",), (5,), (3,)),
        (("heads 5",), (6,), None),
        (("transpose",), (6,), None),
        (("pairs",), (5,), None),
        (("part 4 of 3",), (6,), None),
        (("first 9",), (6,), None),
    ],
)
def test_steps_have_shapes(steps: tuple[str, ...], shape: tuple[int, ...], made: tuple[int, ...] | None) -> None:
    assert Made("a", steps).shape(shape) == made


def written_gguf(
    path: Path,
    architecture: str,
    more: dict[str, float],
    weights: dict[str, np.ndarray] | None = None,
    blocks: str = "",
) -> None:
    """The small Llama as GGUF, perhaps with other weights: what rope turns together stands side by side there.
    `blocks`: the type in which matrices are kept whose rows are whole blocks."""
    weights = weights or random_weights()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(24)
    writer.add_feed_forward_length(len(weights["model.layers.0.mlp.up_proj.weight"]))
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_key_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, number in more.items():
        writer.add_float32(f"{architecture}.{name}", number)
    for name, array in weights.items():
        for theirs, own in GGUF_NAMES.items():
            name = name.replace(theirs, own)
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            halves = array.reshape(-1, 2, HEAD // 2, array.shape[-1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        if blocks and array.ndim == 2 and array.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType[blocks]
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_what_is_copied_into_modules_calls_nothing_that_is_not() -> None:
    helpers = {name: text for path in CHECKPOINTS for name, text in _functions(path).items()}
    for load_text in (LOAD, STREAMED_LOAD):
        copied = _used(helpers, load_text)
        named = {n.id for text in copied for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        assert {helpers[name] for name in named & set(helpers)} <= set(copied)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "_proj": "",
    "mlp.": "ffn_",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def test_a_gguf_file_has_the_parameters_of_the_folder(tmp_path: Path) -> None:
    folder = save(tmp_path / "saved", random_weights())
    written_gguf(tmp_path / "model.gguf", "llama", {"rope.freq_base": 10000.0})
    assert imported(folder, tmp_path / "a")[0] == imported(tmp_path / "model.gguf", tmp_path / "b")[0] == 0
    first, second = (load(tmp_path / name / "model.esti") for name in "ab")
    maps = [map_beside(tmp_path / name / "model.esti", p) for name, p in (("a", first), ("b", second))]
    tensors = checkpoint_tensors(folder), checkpoint_tensors(tmp_path / "model.gguf")
    for name, parameter in parameters(first).items():
        shape = (*parameter.counts, *parameter.shape)
        whole = tuple(slice(n) for n in shape)
        [one], [other] = (
            parameter_parts(t, str(m[name]), shape, np.float32, [whole])
            for t, m in zip(tensors, maps, strict=True)
            if m is not None
        )
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("blocks", "declared"),
    [
        ("Q8_0", "int8[F,E] * f16[F32,E]"),
        ("Q4_0", "int4[F,E] * f16[F32,E]"),
        ("Q4_1", "(int4[F,E] - f32[F32,E]) * f16[F32,E]"),
        ("Q5_0", "int8[F,E] * f16[F32,E]"),
        ("Q5_1", "(int8[F,E] - f32[F32,E]) * f16[F32,E]"),
    ],
)
def test_blocks_of_gguf_stay_codes(blocks: str, declared: str, tmp_path: Path) -> None:
    wide = {n: np.resize(a, tuple(64 if size == 20 else size for size in a.shape)) for n, a in random_weights().items()}
    wide["model.layers.1.mlp.down_proj.weight"][3, 32:] = 0.25  # a block whose scale may be 0
    written_gguf(tmp_path / "model.gguf", "llama", {"rope.freq_base": 10000.0}, wide, blocks)
    code, output = imported(tmp_path / "model.gguf", tmp_path / "out")
    assert code == 0 and "2 tensors are codes with scales" in output
    assert f"  param Wd: {declared}\n" in (tmp_path / "out" / "model.esti").read_text()
    program = load(tmp_path / "out" / "model.esti")
    made = map_beside(tmp_path / "out" / "model.esti", program)
    assert made is not None
    lines, tensors = fitted_map(made, program), checkpoint_tensors(tmp_path / "model.gguf")
    whole = [(slice(None),) * 3]
    [codes] = parameter_parts(tensors, str(lines["layer.Wd"]), (2, 64, 24), np.int8, whole)
    [scales, *zeros] = (
        np.repeat(parameter_parts(tensors, str(lines[name]), (2, 2, 24), np.float32, whole)[0], 32, 1)
        for name in ("layer.Wd.scale", "layer.Wd.zero")
        if name in lines
    )
    [numbers] = parameter_parts(tensors, "blk.{}.ffn_down.weight | transpose", (2, 64, 24), np.float32, whole)
    np.testing.assert_allclose((codes - sum(zeros, np.float32(0))) * scales, numbers, rtol=0, atol=1e-6 if zeros else 0)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_blocks_of_gguf_are_codes(name: str) -> None:
    kind, shape = gguf.GGMLQuantizationType[name], (3, 512)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (6, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    of_16_bits = rng.standard_normal((6, 2)).astype(np.float16)
    of_16_bits[2] = 0.0, 0.5  # scales of 0
    if name == "Q6_K":
        data[:, 208:] = of_16_bits[:, :1].view(np.uint8)
    else:
        data[:, :4] = of_16_bits.view(np.uint8)
    one = GgufBlocks(data, shape, kind)
    scales, zeros = (np.repeat(one[n], one.group, -1) for n in (1, 2))
    bits = 4 if one.code == "int4" else 8
    assert one[0].dtype == np.int8 and -(1 << (bits - 1)) <= one[0].min() and one[0].max() < 1 << (bits - 1)
    numbers = gguf.dequantize(data, kind).reshape(shape)
    np.testing.assert_allclose((one[0] - zeros) * scales, numbers, rtol=0, atol=1e-6 * np.abs(numbers).max())


@pytest.mark.parametrize(
    ("architecture", "more", "message"),
    [
        ("llama", {"attention.sliding_window": 4.0}, "may change the arithmetic"),
        ("llama", {"rope.dimension_count": 4.0}, "which is not read"),
        ("mamba", {}, "is of architecture `mamba`"),
    ],
)
def test_a_gguf_file_of_another_model_is_refused(
    architecture: str, more: dict[str, float], message: str, tmp_path: Path
) -> None:
    written_gguf(tmp_path / "model.gguf", architecture, more)
    code, output = imported(tmp_path / "model.gguf", tmp_path / "out")
    assert code == 1 and message in " ".join(output.split()) and not (tmp_path / "out").exists()


def test_blocks_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise NotImplementedError

    written_gguf(tmp_path / "model.gguf", "llama", {})
    monkeypatch.setattr(gguf, "dequantize", unknown)
    code, output = imported(tmp_path / "model.gguf", tmp_path / "out")
    assert code == 1 and "of which no numbers can be made" in " ".join(output.split())
    assert not (tmp_path / "out").exists()
