"""A model of transformers with random weights, wholly in float64, and its weights under the names that an import gives.

A checkpoint keeps a matrix as [to, from] (GPT-2: [from, to]), heads one behind the other, the two numbers that
rope turns half a turned part apart, and for GPT-2 and GPT-NeoX queries, keys and values in one matrix.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

Array = np.ndarray


class _Wide:
    """The module `torch`, in which 32 bits are 64."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float", "float32") else getattr(torch, name)


@contextmanager
def float64(kind: str) -> Iterator[None]:
    """All of transformers, with that type of model, in float64.

    Without this, norms, rotary angles and softmax are float32 there, whatever the weights are.
    """
    importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")  # read only when first wanted, otherwise
    before, wide = torch.get_default_dtype(), _Wide()
    torch.set_default_dtype(torch.float64)
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        modules = [m for name, m in sys.modules.items() if name.startswith("transformers.") and hasattr(m, "torch")]
        patches = [mock.patch.object(module, "torch", wide) for module in modules if module.torch is torch]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()
            torch.set_default_dtype(before)


def random_model(config: Mapping[str, Any], seed: int) -> PreTrainedModel:
    """A model of that config, as transformers reads it from a file; to be made and run within `float64`."""
    known = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    model = AutoModelForCausalLM.from_config(known, attn_implementation="eager", dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases and scales matter, and so does which token is read.
            table = "embed" in name or "wte" in name
            spread = 0.3 if parameter.dim() == 1 else 1.0 if table else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model


def stored(model: PreTrainedModel) -> dict[str, Array]:
    """Every weight by the name that it has in the imported program; layers along the first axis, heads along one."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    kind = model.config.model_type
    read = {"gpt2": _gpt2, "gpt_neox": _gpt_neox, "phi": _phi}.get(kind, _llama)
    head_dim, turned = _head_dim(model), _turned(model)
    each = [_heads(read(state, layer, head_dim), head_dim, turned) for layer in range(_layers(state))]
    found = {f"layer.{name}": np.stack([one[name] for one in each]) for name in each[0]}
    return found | _ends(state, kind, model.config.tie_word_embeddings)


def _layers(state: Mapping[str, Array]) -> int:
    return 1 + max(int(part) for name in state for part in name.split(".") if part.isdigit())


def _head_dim(model: PreTrainedModel) -> int:
    """How wide the heads of a model are, as it has them."""
    found = {getattr(m, name) for m in model.modules() for name in ("head_dim", "head_size") if hasattr(m, name)}
    (size,) = found
    return int(size)


def _turned(model: PreTrainedModel) -> int:
    """How many elements of a head a model turns."""
    found = [buffer for name, buffer in model.named_buffers() if name.endswith("rotary_emb.inv_freq")]
    return 2 * len(found[0]) if found else 0


def _heads(layer: Mapping[str, Array], head_dim: int, turned: int) -> dict[str, Array]:
    """The weights of a layer with a dim of heads, and with what rope turns beside the rest, pair by pair."""
    found = {}
    for name, array in layer.items():
        if name[1:] in ("q", "k", "v"):
            array = array.reshape(*array.shape[:-1], -1, head_dim)
        if name[-1] not in "qk" or turned == 0:
            found[name] = array
        elif turned == head_dim:
            found[name] = _pairs(array)
        else:
            found[f"{name}r"] = _pairs(array[..., :turned])
            found[f"{name}n"] = array[..., turned:]
    return found


def _pairs(halves: Array) -> Array:
    """(a0, a1, ..., b0, b1, ...) along the last axis to (a0, b0, a1, b1, ...)."""
    return np.stack(np.split(halves, 2, axis=-1), axis=-1).reshape(halves.shape)


def _ends(state: Mapping[str, Array], kind: str, tied: bool) -> dict[str, Array]:
    """What stands before and behind the layers."""
    table = {"gpt2": "transformer.wte", "gpt_neox": "gpt_neox.embed_in"}.get(kind, "model.embed_tokens")
    norm = {"gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm", "phi": "model.final_layernorm"}
    last = norm.get(kind, "model.norm")
    found = {"table": state[f"{table}.weight"], "scale": state[f"{last}.weight"]}
    optional = {"bias": f"{last}.bias", "places": "transformer.wpe.weight", "bu": "lm_head.bias"}
    found |= {name: state[source] for name, source in optional.items() if source in state}
    return found if tied else found | {"Wu": state["lm_head.weight"].T}


def _named(
    state: Mapping[str, Array], prefix: str, names: Mapping[str, str], transposed: bool = True
) -> dict[str, Array]:
    """The matrices `W...` as [from, to] and the biases `b...` of modules that are there."""
    found = {}
    for name, module in names.items():
        weight, bias = state[f"{prefix}.{module}.weight"], state.get(f"{prefix}.{module}.bias")
        found[f"W{name}"] = weight.T if transposed else weight
        if bias is not None:
            found[f"b{name}"] = bias
    return found


def _norms(state: Mapping[str, Array], prefix: str, names: Mapping[str, str]) -> dict[str, Array]:
    found = {}
    for number, module in names.items():
        found[f"scale{number}"] = state[f"{prefix}.{module}.weight"]
        if f"{prefix}.{module}.bias" in state:
            found[f"bias{number}"] = state[f"{prefix}.{module}.bias"]
    return found


ATTENTION = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj"}


def _llama(state: Mapping[str, Array], layer: int, head_dim: int) -> dict[str, Array]:
    prefix = f"model.layers.{layer}"
    forward = {"o": "self_attn.o_proj", "i": "mlp.up_proj", "g": "mlp.gate_proj", "d": "mlp.down_proj"}
    found = _named(state, prefix, ATTENTION | forward)
    found |= _norms(state, prefix, {"1": "input_layernorm", "2": "post_attention_layernorm"})
    for name in ("q", "k"):
        scale = state.get(f"{prefix}.self_attn.{name}_norm.weight")
        if scale is not None:
            found[f"scale_{name}"] = scale
    return found


def _phi(state: Mapping[str, Array], layer: int, head_dim: int) -> dict[str, Array]:
    prefix = f"model.layers.{layer}"
    found = _named(state, prefix, ATTENTION | {"o": "self_attn.dense", "i": "mlp.fc1", "d": "mlp.fc2"})
    return found | _norms(state, prefix, {"": "input_layernorm"})


def _gpt_neox(state: Mapping[str, Array], layer: int, head_dim: int) -> dict[str, Array]:
    """Its fused matrix has the query, key and value of one head behind those of another."""
    prefix = f"gpt_neox.layers.{layer}"
    names = {"qkv": "attention.query_key_value", "o": "attention.dense", "i": "mlp.dense_h_to_4h"}
    found = _named(state, prefix, names | {"d": "mlp.dense_4h_to_h"})
    found |= _norms(state, prefix, {"1": "input_layernorm", "2": "post_attention_layernorm"})
    for letter in [letter for letter in "Wb" if f"{letter}qkv" in found]:
        fused = found.pop(f"{letter}qkv")
        heads = fused.reshape(*fused.shape[:-1], -1, 3, head_dim)
        for at, name in enumerate("qkv"):
            found[f"{letter}{name}"] = heads[..., at, :].reshape(*fused.shape[:-1], -1)
    return found


def _gpt2(state: Mapping[str, Array], layer: int, head_dim: int) -> dict[str, Array]:
    """Its fused matrix has all queries before all keys before all values."""
    prefix = f"transformer.h.{layer}"
    names = {"qkv": "attn.c_attn", "o": "attn.c_proj", "i": "mlp.c_fc", "d": "mlp.c_proj"}
    found = _named(state, prefix, names, transposed=False)
    found |= _norms(state, prefix, {"1": "ln_1", "2": "ln_2"})
    for letter in "Wb":
        parts = np.split(found.pop(f"{letter}qkv"), 3, axis=-1)
        found |= {f"{letter}{name}": part for name, part in zip("qkv", parts, strict=True)}
    return found
