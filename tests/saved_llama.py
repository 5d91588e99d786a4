"""A small Llama with random weights, saved as safetensors, and its arithmetic in NumPy under the checkpoint's names.

Heads lie one behind the other, and the two numbers that rope turns together half a head apart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Array = np.ndarray
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FORWARD, KNOWN = 2, 24, 6, 2, 8, 20, 23
KINDS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "int8": "I8",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": KNOWN,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "eos_token_id": 22,
}


def random_weights(seed: int = 0) -> dict[str, Array]:
    """The tensors of a checkpoint, by name."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (KNOWN, WIDTH), "lm_head.weight": (KNOWN, WIDTH)}
    for layer in range(LAYERS):
        own = {
            "self_attn.q_proj": (HEADS * HEAD, WIDTH),
            "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
            "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
            "self_attn.o_proj": (WIDTH, HEADS * HEAD),
            "mlp.gate_proj": (FORWARD, WIDTH),
            "mlp.up_proj": (FORWARD, WIDTH),
            "mlp.down_proj": (WIDTH, FORWARD),
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    shapes["model.norm.weight"] = (WIDTH,)
    made = {name: rng.standard_normal(shape) / math.sqrt(shape[-1]) for name, shape in shapes.items()}
    made["model.embed_tokens.weight"] *= math.sqrt(WIDTH)
    for name, array in made.items():
        if array.ndim == 1:
            made[name] = 1 + array
    return {name: array.astype(np.float32) for name, array in made.items()}


def file_bytes(tensors: Mapping[str, Array]) -> bytes:
    """A safetensors file: the length of the header, the header, the data."""
    header, data = {}, b""
    for name, array in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        kind = KINDS[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def save(folder: Path, tensors: Mapping[str, Array], files: int = 1) -> Path:
    """A folder as transformers writes it, in one file or in several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if files == 1:
        (folder / "model.safetensors").write_bytes(file_bytes(tensors))
        return folder
    names, index = list(tensors), {}
    for n in range(files):
        file = f"model-{n + 1:05}-of-{files:05}.safetensors"
        own = names[n::files]
        (folder / file).write_bytes(file_bytes({name: tensors[name] for name in own}))
        index |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def scores(tensors: Mapping[str, Array], tokens: Sequence[int]) -> Array:
    """The scores of the token after these."""
    x = tensors["model.embed_tokens.weight"][list(tokens)].astype(np.float64)
    for layer in range(LAYERS):
        own = {n.split(f"layers.{layer}.")[1]: a for n, a in tensors.items() if f"layers.{layer}." in n}
        x = x + _attention(own, _norm(x, own["input_layernorm.weight"]))
        n = _norm(x, own["post_attention_layernorm.weight"])
        gate = n @ own["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (n @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    return np.asarray(_norm(x[-1], tensors["model.norm.weight"]) @ tensors["lm_head.weight"].T)


def continuation(tensors: Mapping[str, Array], prompt: Sequence[int], count: int) -> list[int]:
    """The likeliest tokens after a prompt, up to the one that ends a text."""
    ids = list(prompt)
    for _ in range(count):
        token = int(scores(tensors, ids).argmax())
        if token == CONFIG["eos_token_id"]:
            break
        ids.append(token)
    return ids[len(prompt) :]


def _norm(x: Array, scale: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * scale)


def _attention(own: Mapping[str, Array], x: Array) -> Array:
    count = len(x)
    q, k, v = ((x @ own[f"self_attn.{name}_proj.weight"].T).reshape(count, -1, HEAD) for name in "qkv")
    q, k = _turned(q), _turned(k)
    k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
    weights = np.einsum("lhd,mhd->hlm", q, k) / math.sqrt(HEAD)
    weights = np.where(np.tril(np.ones((count, count), bool)), weights, -np.inf)
    weights = np.exp(weights - weights.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("hlm,mhd->lhd", weights, v).reshape(count, -1) @ own["self_attn.o_proj.weight"].T)


def _turned(a: Array) -> Array:
    angle = np.arange(len(a))[:, None] / 10000.0 ** (np.arange(HEAD // 2) / (HEAD // 2))
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = a[..., : HEAD // 2], a[..., HEAD // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
