"""A checkpoint: its config and tensors by name, and whether they are those of a weight map, before any is read."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...ir.diagnostics import Diagnostic, InputError, Source, fail
from ...ir.dtype import Dtype
from ...ir.program import Program
from ...ir.record import record
from .checkpoint_files import checkpoint_tensors, files_of, gguf_reader, header_of
from .checkpoint_names import FUSED, style_of
from .checkpoint_styles import GGUF, Style
from .coded import codes_of
from .description import Transformer
from .parameter_parts import tensor_called
from .text_names import Start, is_head, of_towers, start_of
from .weight_map import KEPT, Made, Parameter, WeightMap, check_map, code_groups, parameters, splits, tensors_of
from .weights import weight_map

DTYPES = {"F32": Dtype.F32, "F16": Dtype.F16, "BF16": Dtype.BF16}
PLAIN = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}  # types of numbers that stand alone, and the bytes of one
ROWS = "int8 with scales of rows"
MADE = (" of GPTQ", " of AWQ", " with scales", ROWS)  # how types end that plain numbers are made of
UNUSED = (  # ends of names of what a checkpoint may have besides weights, made of the config when a model is built
    ".inv_freq",  # of rope
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    ".act_fn.beta",
    ".act_fn.eps",
    ".relative_pe.slopes",
    ".input_scale",  # of activations and caches, which are not quantised here
    ".k_scale",
    ".v_scale",
)
AT_ONCE = 1 << 24  # numbers or bytes that are compared
LAYER = re.compile(r".*?\blayers\.\d+\.")
JOINED = "eh_proj.weight"  # of layers that guess tokens: from a token's embedding and what the model made before it
GUESSING = re.compile(r"(^|\.)mtp[._]")  # other names of theirs, which transformers leaves out, too
SCALES = ("_scale_inv", "_scale")  # what the names of scales have behind those of their tensors
MOST_FINDINGS = 20
GGUF_FIELDS = {  # of a config, by what GGUF calls them behind the name of the architecture
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
}
GGUF_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


@record
class Checkpoint:
    """The tensors of a folder or GGUF file that are of its part for text: `shapes` and `types` by name; `kept`: of
    those that are codes around 0 in blocks of one scale each the shape, and what they are kept as. `scales`: those of
    which it is known how many places of their tensors each is for. `towers`: how many others there are."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    kept: Mapping[str, tuple[tuple[int, ...], str]]
    scales: Set[str]
    towers: int = 0

    @property
    def gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return self.path.suffix == ".gguf"


def has_tensors(path: Path) -> bool:
    """Whether a path is a checkpoint, and not a config alone. Raises InputError where a folder has weights that are
    pickled only."""
    if path.suffix == ".gguf":
        return True
    if not os.path.isdir(path):
        return False
    if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
        return True
    if any(path.glob("pytorch_model*.bin")):
        hint = "save it as safetensors: `model.save_pretrained(FOLDER)` of transformers does"
        raise fail(f"`{path}` has its weights pickled, and a pickle can run any code, so it is not read.", hint=hint)
    return False


def open_checkpoint(path: Path) -> Checkpoint:
    """What a checkpoint has. Raises InputError where there is none, and where a file is cut short or lies about
    sizes."""
    hint = "a checkpoint is a folder with safetensors files, or a GGUF file"
    if not os.path.lexists(path):
        raise fail(f"There is no checkpoint `{path}`.", hint=hint)
    if not has_tensors(path):
        raise fail(f"`{path}` has no safetensors files.", hint=hint)
    if path.suffix == ".gguf":
        _gguf()
    try:
        found = checkpoint_tensors(path)
    except OSError as error:
        raise fail(f"`{error.filename or path}` cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise _damaged(path, error) from None
    towers = of_towers({name: shape for name, (shape, _, _) in found.items() if "|" not in name})
    text = {name: one for name, one in found.items() if name.partition("|")[0] not in towers}
    every = {name: one for name, one in text.items() if "|" not in name}
    kept = {n.removesuffix("|kept"): (shape, kind) for n, (shape, kind, _) in text.items() if n.endswith("|kept")}
    scales = {n.removesuffix("|blocks") for n in text if n.endswith("|blocks")}
    shapes, types = ({n: shape for n, (shape, _, _) in every.items()}, {n: kind for n, (_, kind, _) in every.items()})
    return Checkpoint(path, shapes, types, kept, scales, len(towers))


def _gguf() -> Any:
    """The library that reads GGUF files. Raises InputError where it is missing."""
    try:
        return import_module("gguf")
    except ModuleNotFoundError:
        hint = "install it with `pip install 'escc[checkpoint]'`"
        raise fail("Reading a GGUF file takes gguf, which is not installed.", hint=hint) from None


def gguf_fields(path: Path) -> Mapping[str, Any]:
    """The metadata of a GGUF file. Raises InputError where it cannot be read."""
    try:
        return _fields(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise fail(f"`{path}` cannot be read: {error.strerror or error}.") from None


@lru_cache(maxsize=1)  # lists of tokens take seconds
def _fields(path: Path, changed: int) -> Mapping[str, Any]:
    """The metadata of a file as it was when it last `changed`."""
    _gguf()
    try:
        fields = gguf_reader(path).fields
    except ValueError as error:
        raise _damaged(path, error) from None
    try:
        return {name: field.contents() for name, field in fields.items()}
    except Exception as error:  # the library raises whatever a wrong field leads it to
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> InputError:
    hint = "it is cut short, or damaged" if path.suffix == ".gguf" else None
    return fail(f"`{path}` cannot be read: {str(error)[:200].rstrip('.') or type(error).__name__}.", hint=hint)


def plain_type(checkpoint: Checkpoint) -> Dtype | None:
    """The type that most of its plain numbers have; None where it has none."""
    counts: Counter[str] = Counter()
    for name, kind in checkpoint.types.items():
        if kind in DTYPES:
            counts[kind] += math.prod(checkpoint.shapes[name])
    return DTYPES[max(sorted(counts), key=counts.__getitem__)] if counts else None


def gguf_config(path: Path, tensors: Checkpoint) -> Source:
    """The metadata of a GGUF file as a config. Raises InputError for an architecture that is not read."""
    said = gguf_fields(path)
    name = str(said.get("general.architecture"))
    if name not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise fail(f"`{path}` is of architecture `{name[:60]}`, of which no GGUF is read.", hint=f"known are {known}")
    if "rope_freqs.weight" in tensors.shapes:
        raise fail(f"`{path}` scales rope by a tensor, `rope_freqs.weight`, which is not read.")
    own = {key.removeprefix(f"{name}."): value for key, value in said.items() if key.startswith(f"{name}.")}
    _check_fields(path, own)
    config: dict[str, Any] = {key: own[field] for key, field in GGUF_FIELDS.items() if field in own}
    config["model_type"] = GGUF_ARCHITECTURES[name]
    config["vocab_size"] = tensors.shapes.get("token_embd.weight", (0,))[0]
    config["tie_word_embeddings"] = "output.weight" not in tensors.shapes
    if own.get("rope.scaling.type", "none") != "none":
        config["rope_scaling"] = {"rope_type": own["rope.scaling.type"], "factor": own.get("rope.scaling.factor", 1.0)}
    kinds = set(tensors.types.values()) - {"F32"}
    config["torch_dtype"] = {frozenset(): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")
    return Source(str(path), json.dumps(config, indent=2, default=str))


def _check_fields(path: Path, own: Mapping[str, Any]) -> None:
    """Raise InputError for a field of a model in GGUF that may change what it computes in a way that is not read."""
    known = {*GGUF_FIELDS.values(), "vocab_size", "rope.scaling.type", "rope.scaling.factor"}
    heads = own.get("attention.head_count")
    width = own.get("attention.key_length")
    if width is None and isinstance(heads, int) and heads and isinstance(own.get("embedding_length"), int):
        width = own["embedding_length"] // heads
    for name, value in own.items():
        if name in ("rope.dimension_count", "attention.value_length"):
            if value != width:
                raise fail(f"`{path}` has `{name}` {value}, and heads of {width}, which is not read.")
        elif name not in known:
            raise fail(f"`{path}` has the field `{name[:80]}`, which is not understood, and may change the arithmetic.")


def map_of(model: Transformer, program: Program, checkpoint: Checkpoint) -> WeightMap:
    """The weight map of an imported model for a checkpoint. Raises InputError with every tensor that is missing, of
    another shape or type, or that nothing is made of."""
    wanted = parameters(program)
    if checkpoint.gguf:
        # Files of Llama have what rope turns together side by side.
        made = weight_map(model, replace(GGUF, halves=model.architecture != "llama"))
    else:
        made = weight_map(model, _together(style_of(model), checkpoint))
        start = start_of(made["table"].tensor, checkpoint.shapes)
        made = {name: _called(one, start, checkpoint) for name, one in made.items()}
        made = {name: _scaled(_turned(one, wanted[name], checkpoint), checkpoint) for name, one in made.items()}
    check_checkpoint(made, program, checkpoint)
    return made


def check_checkpoint(made: WeightMap, program: Program, checkpoint: Checkpoint) -> None:
    """Raise InputError with every tensor of a checkpoint that is missing, of another shape or type than a map says,
    or that nothing is made of."""
    findings = check_map(made, program, checkpoint.shapes, checkpoint.path.name)
    wanted = parameters(program)
    used = {tensor for name, one in made.items() for tensor in tensors_of(one, wanted[name])}
    scales = {t: t + one.scale for n, one in made.items() if one.scale for t in tensors_of(one, wanted[n])}
    for name in sorted(name for name, one in made.items() if KEPT in one.steps):
        findings += _wrong_codes(program, name, made[name], checkpoint)
        used |= {t + s for t in tensors_of(made[name], wanted[name]) for s in SCALES if t + s in checkpoint.shapes}
    for name, scale in scales.items():
        findings += _wrong_scale(checkpoint, name, scale)
    used |= set(scales.values())
    for name in sorted(used & set(checkpoint.types)):
        kind = checkpoint.types[name]
        plain = kind in PLAIN or name in scales or name in checkpoint.kept or kind.endswith(MADE)
        if not checkpoint.gguf and not plain:
            hint = "fp8, int8 and fp4 with scales, groups of compressed-tensors, GPTQ and AWQ are read"
            findings.append(Diagnostic(f"`{name}` is of type {kind}, and such are not read.", hint=hint))
    if checkpoint.gguf:
        findings += _unread_blocks(checkpoint)
    known = used | _guessing(used, checkpoint)
    surplus = [n for n in checkpoint.shapes if n not in known and not n.endswith(UNUSED) and not is_head(n)]
    surplus = [name for name in surplus if not _borrowed(name, used)]
    findings += [Diagnostic(f"Nothing of the model is made of tensor `{name[:120]}`.") for name in surplus]
    if not findings:  # of tensors that are all there
        findings = _other_heads(used, checkpoint)
    if findings:
        more = len(findings) - MOST_FINDINGS
        last = [Diagnostic(f"{more:,} tensors more are wrong.")] if more > 0 else []
        raise InputError([*findings[:MOST_FINDINGS], *last])


def guessing_tensors(made: WeightMap, program: Program, checkpoint: Checkpoint) -> frozenset[str]:
    """The tensors of a checkpoint that are none of the model, since they guess more tokens than the next one
    (multi-token prediction)."""
    wanted = parameters(program)
    return _guessing({tensor for name, one in made.items() for tensor in tensors_of(one, wanted[name])}, checkpoint)


def _guessing(used: Set[str], checkpoint: Checkpoint) -> frozenset[str]:
    """The same. `used`: tensors of which the model is made; a layer of it guesses nothing."""
    layers = {name.removesuffix(JOINED) for name in checkpoint.shapes if name.endswith(JOINED)}
    layers -= {found[0] for name in used if (found := LAYER.match(name))}
    every = {name: LAYER.match(name) for name in checkpoint.shapes if name not in used}
    return frozenset(n for n, found in every.items() if GUESSING.search(n) or (found and found[0] in layers))


def _other_heads(used: Set[str], checkpoint: Checkpoint) -> list[Diagnostic]:
    """What is said of heads beside a table that scores in their place, and has other numbers. `used`: tensors of which
    the model is made, all of which are there."""
    kinds = {name: (shape, checkpoint.types[name]) for name, shape in checkpoint.shapes.items()}
    found = []
    for head in (name for name in sorted(kinds) if is_head(name) and name not in used):
        alike = sorted(name for name in used if kinds[name] == kinds[head])
        if not any(_same_numbers(checkpoint, head, name) for name in alike):
            hint = "set `tie_word_embeddings` to false in its config, and import it so"
            message = f"The model scores with its table alone, and `{head}` of the checkpoint has other numbers."
            found.append(Diagnostic(message, hint=hint))
    return found


def _same_numbers(checkpoint: Checkpoint, one: str, other: str) -> bool:
    """Whether two tensors of one shape and type are the same, of which little at a time is read. Those that are codes
    are never said to be."""
    if checkpoint.types[one] not in PLAIN:
        return False
    first, second = (_flat(checkpoint, name) for name in (one, other))
    starts = range(0, len(first), AT_ONCE)
    return all(np.array_equal(first[at : at + AT_ONCE], second[at : at + AT_ONCE]) for at in starts)


def _flat(checkpoint: Checkpoint, name: str) -> np.ndarray:
    """The bytes of a tensor of plain numbers, which take no library of its type; of GGUF the numbers."""
    if checkpoint.gguf:
        return np.asarray(checkpoint_tensors(checkpoint.path)[name][2]()).reshape(-1)
    headers = {file: header_of(file) for file in files_of(checkpoint.path)}
    file = next(file for file, header in headers.items() if name in header)
    size = math.prod(checkpoint.shapes[name]) * PLAIN[checkpoint.types[name]]
    return np.memmap(file, np.uint8, "r", headers[file][name][2], (size,))


def _borrowed(name: str, used: Set[str]) -> bool:
    """Whether a tensor makes keys or values in a layer that sees those of another one, as published checkpoints have
    them all the same. `used`: tensors of which the model is made."""
    found = re.fullmatch(r"(.*self_attn\.)(k_proj|v_proj|k_norm|v_norm)\.weight", name)
    return found is not None and f"{found[1]}q_proj.weight" in used and f"{found[1]}k_proj.weight" not in used


def _wrong_codes(program: Program, name: str, one: Made, checkpoint: Checkpoint) -> list[Diagnostic]:
    """What is wrong between a parameter that is declared as codes and what a checkpoint keeps."""
    value, parameter = program.table()[name], parameters(program)[name]
    if any(tensor not in checkpoint.shapes for tensor in tensors_of(one, parameter)):
        return []  # which is said of the tensors
    found = codes_of(one, parameter, checkpoint.kept)
    if f"{name}.scale" not in program.table():
        hint = "declare its scale, or leave out the step `kept`"
        return [Diagnostic(f"`{name}` is kept as codes with scales, and the model has no scale of it.", hint=hint)]
    hint = "import the checkpoint anew"
    if found is None or found.dtype is not value.dtype:
        return [Diagnostic(f"The tensors of `{name}` are not kept as {value.dtype.value} codes around 0.", hint=hint)]
    if (found.zero is not None) != (f"{name}.zero" in program.table()):
        have, want = ("zero points", "none") if found.zero is not None else ("no zero points", "some")
        return [Diagnostic(f"The tensors of `{name}` have {have}, and the model has {want}.", hint=hint)]
    each = code_groups(program, name)
    if any(have % want for have, want in zip(found.each, each, strict=True)):
        have, want = ("x".join(map(str, n)) for n in (found.each, each))
        return [Diagnostic(f"`{name}` has a scale for each {want} places, and its tensors have one for {have}.")]
    return []


def _wrong_scale(checkpoint: Checkpoint, name: str, scale: str) -> list[Diagnostic]:
    """What is wrong with the scales of a tensor."""
    if name not in checkpoint.shapes or scale not in checkpoint.shapes:
        return [Diagnostic(f"`{checkpoint.path.name}` has no tensor `{scale}`, the scales of `{name}`.")]
    if scale in checkpoint.scales:
        return []
    listed, whole = ("x".join(map(str, checkpoint.shapes[one])) for one in (scale, name))
    hint = "its config says of which size blocks are, as `weight_block_size` or `block_structure`"
    return [Diagnostic(f"The scales `{scale}`, {listed}, are not those of blocks of `{name}`, {whole}.", hint=hint)]


def _unread_blocks(checkpoint: Checkpoint) -> list[Diagnostic]:
    """The types of blocks that the library of GGUF does not make numbers of, found by making the smallest tensor of
    each."""
    tensors, found = checkpoint_tensors(checkpoint.path), []
    for kind in sorted(set(checkpoint.types.values())):
        name = min((n for n, k in checkpoint.types.items() if k == kind), key=lambda n: math.prod(checkpoint.shapes[n]))
        try:
            tensors[name][2]()
        except ValueError:
            found.append(Diagnostic(f"`{name}` is of type {kind}, of which no numbers can be made."))
    return found


def dequantised(checkpoint: Checkpoint, others: Set[str]) -> dict[str, int]:
    """How many tensors are kept as blocks of few bits, which are read as plain numbers, by type. `others`: those that
    become codes again, or are not read."""
    kinds = [kind for name, kind in checkpoint.types.items() if kind not in PLAIN and name not in others]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _together(style: Style, checkpoint: Checkpoint) -> Style:
    """The same where a checkpoint has all experts of a layer in one tensor, which have one each elsewhere."""
    fused = not style.experts.fused and any(name.endswith(FUSED["Wi"].tensor) for name in checkpoint.shapes)
    return replace(style, experts=replace(style.experts, fused=FUSED)) if fused else style


def _turned(one: Made, wanted: Parameter, checkpoint: Checkpoint) -> Made:
    """The same of a tensor of all experts that has matrices [from, to], as those of Qwen3-VL that are published, which
    `transformers` turns where they do not fit as they are."""
    shape = checkpoint.shapes.get(tensor_called(one.tensor, [0] * 6), ())
    if len(shape) != 3 or one.steps[:1] != ("transpose",):
        return one
    turned, made = Made(one.tensor, one.steps[1:]), wanted.shape[one.counters - len(wanted.counts) :]
    as_it_is, other = ((found := each.shape(shape)) is not None and splits(found, made) for each in (one, turned))
    return turned if other and not as_it_is else one


def _scaled(one: Made, checkpoint: Checkpoint) -> Made:
    """The same times the scales that the checkpoint has of its blocks, where it is kept in fp8."""
    first = tensor_called(one.tensor, [0] * 6)
    narrow = checkpoint.types.get(first) == "F8_E4M3"
    scale = next((s for s in SCALES if narrow and first + s in checkpoint.shapes), None)
    return one if scale is None else Made(one.tensor, (f"scaled {scale}", *one.steps))


def _called(one: Made, start: Start, checkpoint: Checkpoint) -> Made:
    """The same under the name that the checkpoint has for it, where names start so but for some that are as they are in
    a model alone, or lack what names begin with."""
    own = (one.tensor, one.tensor.replace("embed_out", "lm_head"))
    names = [how.name(name) for how in (start, Start(), Start(around=False)) for name in own]
    return next(
        (Made(n, one.steps) for n in names if tensor_called(n, [0] * 6) in checkpoint.shapes), Made(names[0], one.steps)
    )
