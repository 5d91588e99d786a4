"""What an imported model computes, against the published arithmetic of its architecture.

The judge works on weights as a checkpoint keeps them: pairs that rope turns half a head apart, heads
one behind the other, the scale and shift of GPT-NeoX beside each other. It is written from the
papers and the documented fields, in plain NumPy, and shares nothing with the compiler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.write import model_text
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.ir.diagnostics import Source
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

Array = np.ndarray
Config = Mapping[str, Any]
BATCH, TOKENS = 2, 7

COMMON = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 20,
    "vocab_size": 23,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 20,
}
CONFIGS: dict[str, Config] = {
    "llama": COMMON | {"model_type": "llama", "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-2},
    "llama, biases": COMMON | {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, tied": COMMON | {"model_type": "llama", "num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama, llama3": COMMON | {"model_type": "llama", "head_dim": 16, "rope_theta": 50.0, "rope_scaling": LLAMA3},
    "llama, linear": COMMON
    | {"model_type": "llama", "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.5}},
    "llama, newer": COMMON
    | {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 3, "rope_theta": 99.5}},
    "mistral": COMMON | {"model_type": "mistral", "num_key_value_heads": 3, "sliding_window": None},
    "qwen2": COMMON | {"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": False},
    "qwen3": COMMON | {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 4, "attention_bias": True},
    "gemma": COMMON | {"model_type": "gemma", "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "gelu"},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 12,
        "n_head": 3,
        "n_layer": 2,
        "n_positions": 32,
        "vocab_size": 23,
        "activation_function": "gelu_new",
    },
    "gpt2, plain scores": {
        "model_type": "gpt2",
        "n_embd": 12,
        "n_head": 3,
        "n_layer": 2,
        "n_inner": 20,
        "n_positions": 32,
        "vocab_size": 23,
        "scale_attn_weights": False,
        "layer_norm_epsilon": 0.1,
    },
    "gpt_neox": COMMON | {"model_type": "gpt_neox", "num_attention_heads": 2, "rotary_pct": 0.34, "hidden_act": "relu"},
    "gpt_neox, serial": COMMON
    | {"model_type": "gpt_neox", "use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_fast"},
    "gpt_neox, exact": COMMON | {"model_type": "gpt_neox", "rotary_pct": 1.0, "hidden_act": "gelu"},
    "phi": COMMON | {"model_type": "phi", "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_act": "gelu_new"},
}


class Weights:
    """The parameters of the program under test, put into the order of a checkpoint."""

    def __init__(self, stored: Mapping[str, Array], config: Config):
        self.stored, self.config = stored, config

    def layer(self, name: str, number: int) -> Array | None:
        found = self.stored.get(f"layer.{name}")
        return None if found is None else found[number]

    def projection(self, kind: str, name: str, number: int, heads: int) -> Array | None:
        """`W` or `b` of queries or keys, heads flattened to one dim, each as [turned first half,
        turned second half, rest] where the program has them in pairs."""
        parts = [self.layer(f"{kind}{name}{suffix}", number) for suffix in ("", "r", "n")]
        found = [part for part in parts if part is not None]
        if not found:
            return None
        lead = found[0].shape[:1] if kind == "W" else ()
        flat = [part.reshape(*lead, heads, part.shape[-1]) for part in found]
        if self.config["model_type"] != "gpt2":
            flat[0] = halves(flat[0])
        return np.concatenate(flat, axis=-1)


def halves(pairs: Array) -> Array:
    """(a0, b0, a1, b1, ...) along the last dim to (a0, a1, ..., b0, b1, ...)."""
    return np.concatenate([pairs[..., 0::2], pairs[..., 1::2]], axis=-1)


def rms(x: Array, scale: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * scale


def layer_norm(x: Array, scale: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * scale + bias


def tanh_gelu(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact_gelu(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "relu": relu,
    "gelu": exact_gelu,
    "gelu_new": tanh_gelu,
    "gelu_fast": tanh_gelu,
}


def frequencies(config: Config, turned: int) -> Array:
    newer = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or newer
    base = newer.get("rope_theta", config.get("rope_theta", 10000.0))
    found = 1.0 / base ** (np.arange(0, turned, 2) / turned)
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        return found / scaling["factor"]
    if kind == "llama3":
        waves = 2 * math.pi / found
        original, low, high = (
            scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        result = []
        for frequency, wave in zip(found, waves, strict=True):
            if wave > original / low:
                result.append(frequency / scaling["factor"])
            elif wave < original / high:
                result.append(frequency)
            else:
                smooth = (original / wave - low) / (high - low)
                result.append((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)
        return np.array(result)
    return found


def turn(x: Array, config: Config, share: float) -> Array:
    """Rotary positions on x[batch, token, head, element], pairs half a turned part apart."""
    turned = int(x.shape[-1] * share)
    angle = np.arange(x.shape[1])[:, None] * frequencies(config, turned)
    cos, sin = np.cos(angle)[None, :, None, :], np.sin(angle)[None, :, None, :]
    first, second, rest = np.split(x, [turned // 2, turned], axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def attend(q: Array, k: Array, v: Array, scale: float) -> Array:
    """Causal attention of [batch, token, head, element]; several heads may share keys and values."""
    shared = q.shape[2] // k.shape[2]
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            for h in range(q.shape[2]):
                scores = k[b, : t + 1, h // shared] @ q[b, t, h] * scale
                weights = np.exp(scores - scores.max())
                out[b, t, h] = weights / weights.sum() @ v[b, : t + 1, h // shared]
    return out


def plus(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias


def projected(n: Array, w: Weights, number: int, config: Config) -> tuple[Array, Array, Array]:
    """Queries, keys and values with their biases, as [batch, token, head, element]."""
    heads = config.get("num_attention_heads", config.get("n_head"))
    groups = config.get("num_key_value_heads", heads)
    found = []
    for name, count in (("q", heads), ("k", groups)):
        weight = w.projection("W", name, number, count)
        assert weight is not None
        found.append(plus(np.einsum("ble,ehq->blhq", n, weight), w.projection("b", name, number, count)))
    value = w.layer("Wv", number)
    assert value is not None
    size = found[0].shape[-1]
    bias = w.layer("bv", number)
    v = np.einsum("ble,ehq->blhq", n, value.reshape(n.shape[-1], groups, size))
    return found[0], found[1], plus(v, None if bias is None else bias.reshape(groups, size))


def output(o: Array, w: Weights, number: int) -> Array:
    weight = w.layer("Wo", number)
    assert weight is not None
    return plus(o.reshape(*o.shape[:2], -1) @ weight.reshape(-1, weight.shape[-1]), w.layer("bo", number))


def llama_logits(config: Config, w: Weights, tokens: Array) -> Array:
    """Llama, Mistral, Qwen and Gemma."""
    kind, eps = config["model_type"], config.get("rms_norm_eps", 1e-6)
    offset = 1.0 if kind == "gemma" else 0.0
    act = tanh_gelu if kind == "gemma" else silu
    x = w.stored["table"][tokens] * (math.sqrt(config["hidden_size"]) if kind == "gemma" else 1.0)
    for i in range(config["num_hidden_layers"]):
        n = rms(x, w.stored["layer.scale1"][i] + offset, eps)
        q, k, v = projected(n, w, i, config)
        if kind == "qwen3":
            q = rms(q, halves(w.stored["layer.scale_q"][i]), eps)
            k = rms(k, halves(w.stored["layer.scale_k"][i]), eps)
        q, k = turn(q, config, 1.0), turn(k, config, 1.0)
        x = x + output(attend(q, k, v, q.shape[-1] ** -0.5), w, i)
        n = rms(x, w.stored["layer.scale2"][i] + offset, eps)
        up = plus(n @ w.stored["layer.Wi"][i], w.layer("bi", i))
        gate = plus(n @ w.stored["layer.Wg"][i], w.layer("bg", i))
        x = x + plus((act(gate) * up) @ w.stored["layer.Wd"][i], w.layer("bd", i))
    x = rms(x[:, -1], w.stored["scale"] + offset, eps)
    return x @ (w.stored["Wu"] if "Wu" in w.stored else w.stored["table"].T)


def gpt_logits(config: Config, w: Weights, tokens: Array) -> Array:
    """GPT-2, GPT-NeoX and Phi."""
    kind = config["model_type"]
    eps = config.get("layer_norm_epsilon", 1e-5)
    act = FUNCTIONS[config.get("activation_function", config.get("hidden_act", "gelu_new"))]
    share = {"gpt_neox": config.get("rotary_pct"), "phi": 0.5}.get(kind)
    x = w.stored["table"][tokens]
    if kind == "gpt2":
        x = x + w.stored["places"][: tokens.shape[1]]
    for i in range(config.get("n_layer", config.get("num_hidden_layers"))):
        first = "scale" if kind == "phi" else "scale1"
        n = layer_norm(x, w.stored[f"layer.{first}"][i], w.stored[f"layer.{first.replace('scale', 'bias')}"][i], eps)
        q, k, v = projected(n, w, i, config)
        if share is not None:
            q, k = turn(q, config, share), turn(k, config, share)
        a = output(attend(q, k, v, q.shape[-1] ** -0.5 if config.get("scale_attn_weights", True) else 1.0), w, i)
        serial = kind == "gpt2" or not config.get("use_parallel_residual", True)
        if kind != "phi":
            n = layer_norm(x + a if serial else x, w.stored["layer.scale2"][i], w.stored["layer.bias2"][i], eps)
        h = act(n @ w.stored["layer.Wi"][i] + w.stored["layer.bi"][i])
        x = x + a + h @ w.stored["layer.Wd"][i] + w.stored["layer.bd"][i]
    x = layer_norm(x[:, -1], w.stored["scale"], w.stored["bias"], eps)
    if kind == "phi":
        return x @ w.stored["Wu"] + w.stored["bu"]
    return x @ (w.stored["table"].T if kind == "gpt2" else w.stored["Wu"])


@pytest.mark.parametrize("name", CONFIGS)
def test_an_imported_model_computes_what_its_architecture_does(name: str) -> None:
    config = CONFIGS[name]
    text = model_text(read_config(read_json(Source("config.json", json.dumps(config)))), "small")
    source = Source("small.esti", text)
    program = expand(parse(source), source, {"B": BATCH, "L": TOKENS, "M": TOKENS})
    sizes = dict(program.phases[0].sizes)
    stored = random_stored(program, sizes, seed=3)
    judge = gpt_logits if config["model_type"] in ("gpt2", "gpt_neox", "phi") else llama_logits
    expected = judge(config, Weights(stored, config), stored["tokens"])
    found = run_reference(replace(program, results=("logits", *program.results)), sizes, stored)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-10, atol=1e-12)
    (tokens,) = (found[result] for result in program.results)
    np.testing.assert_array_equal(tokens, expected.argmax(axis=-1))
