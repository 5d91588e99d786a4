"""What code that checkpoints bring along was published to compute, in plain NumPy.

It asks for tensors by the names and shapes that published checkpoints have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Config = Mapping[str, Any]
VOCABULARY, WIDTH = 23, 24


class Tensors:
    """Random tensors, made when they are first asked for."""

    def __init__(self) -> None:
        self.made: dict[str, Array] = {}
        self.rng = np.random.default_rng(3)

    def __call__(self, name: str, *shape: int) -> Array:
        if name not in self.made:
            spread = 0.3 if len(shape) == 1 else shape[-1] ** -0.5
            self.made[name] = self.rng.standard_normal(shape) * spread
        assert self.made[name].shape == shape
        return self.made[name]

    def linear(self, name: str, x: Array, out: int, bias: bool = False) -> Array:
        """What a module that is kept [to, from] makes."""
        y = x @ self(f"{name}.weight", out, x.shape[-1]).T
        return y + self(f"{name}.bias", out) if bias else y

    def rms(self, name: str, x: Array, eps: float) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self(f"{name}.weight", x.shape[-1])

    def layer_norm(self, name: str, x: Array, eps: float) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return x * self(f"{name}.weight", x.shape[-1]) + self(f"{name}.bias", x.shape[-1])

    def head(self, name: str, x: Array, vocabulary: int = VOCABULARY) -> Array:
        return self.linear(name, x, vocabulary)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def heads(x: Array, count: int) -> Array:
    return x.reshape(*x.shape[:2], count, -1)


def rope(x: Array, base: float = 1e4, turned: int | None = None, neighbours: bool = False) -> Array:
    """Heads turned by their place: the first elements of each, in halves or as neighbours."""
    n = turned or x.shape[-1]
    angle = np.arange(x.shape[1])[:, None] / base ** (np.arange(0, n, 2) / n)
    cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
    y = x.copy()
    first, second = (slice(0, n, 2), slice(1, n, 2)) if neighbours else (slice(0, n // 2), slice(n // 2, n))
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y


def attend(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    bias: Array | None = None,
    cap: float | None = None,
    window: int | None = None,
) -> Array:
    """What heads see of all tokens up to their own, or of so many of them. `bias`: [heads, keys], added to scores."""
    group, places = q.shape[2] // k.shape[2], np.arange(q.shape[1])
    k, v = np.repeat(k, group, 2), np.repeat(v, group, 2)
    scores = np.einsum("blhd,bmhd->bhlm", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias[None, :, None, :]
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    back = places[:, None] - places[None, :]
    scores = np.where((back < 0) | (back >= (window or len(places))), -np.inf, scores)
    return np.einsum("bhlm,bmhd->blhd", softmax(scores), v).reshape(*q.shape[:2], -1)


def alibi(count: int, places: int) -> Array:
    """As Press, Smith and Lewis' code has it: slopes of the next power of two below, then every other of twice that."""

    def power(n: int) -> list[float]:
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    near = 2 ** int(math.log2(count))
    slopes = power(near) + power(2 * near)[0::2][: count - near]
    return np.array(slopes)[:, None] * np.arange(places)[None, :]


def separate(t: Tensors, at: str, n: Array, c: Config, bias: bool = False) -> tuple[Array, Array, Array]:
    """Queries, keys and values of projections that stand apart."""
    h, kv, d = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"]), head_dim(c)
    return (
        heads(t.linear(f"{at}.q_proj", n, h * d, bias), h),
        heads(t.linear(f"{at}.k_proj", n, kv * d, bias), kv),
        heads(t.linear(f"{at}.v_proj", n, kv * d, bias), kv),
    )


def stacked(t: Tensors, name: str, n: Array, h: int, kv: int, d: int, bias: bool = False) -> tuple[Array, ...]:
    """The same of one projection, one behind the other."""
    whole = heads(t.linear(name, n, (h + 2 * kv) * d, bias), h + 2 * kv)
    return whole[:, :, :h], whole[:, :, h : h + kv], whole[:, :, h + kv :]


def head_dim(c: Config) -> int:
    return int(c.get("head_dim", c["hidden_size"] // c["num_attention_heads"]))


def gated(t: Tensors, x: Array, width: int, names: tuple[str, str, str], act: Callable[[Array], Array] = silu) -> Array:
    """A feed-forward, by the names of its gate, of what that gates, and of the last projection."""
    gate, up, down = names
    return t.linear(down, act(t.linear(gate, x, width)) * t.linear(up, x, width), x.shape[-1])


def llama_names(at: str) -> tuple[str, str, str]:
    return f"{at}.gate_proj", f"{at}.up_proj", f"{at}.down_proj"


def chosen(t: Tensors, at: str, x: Array, weights: Array, picked: Array, width: int, names: Any, act: Any) -> Array:
    """What the picked experts of each token make, each by its weight; all of them are worked out."""
    out = np.zeros_like(x)
    for expert in range(weights.shape[-1]):
        used = (picked == expert).any(-1)[..., None]
        out += used * weights[..., expert : expert + 1] * gated(t, x, width, names(f"{at}.{expert}"), act)
    return out


def best(keys: Array, count: int) -> Array:
    return np.argsort(-keys, axis=-1, kind="stable")[..., :count]


def kept(weights: Array, picked: Array) -> Array:
    """Weights, 0 but at those that are picked."""
    found = np.zeros_like(weights)
    np.put_along_axis(found, picked, np.take_along_axis(weights, picked, -1), -1)
    return found


def internlm(t: Tensors, c: Config, ids: Array) -> Array:
    x, eps = t("model.embed_tokens.weight", VOCABULARY, WIDTH)[ids], c["rms_norm_eps"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        n = t.rms(f"{at}.input_layernorm", x, eps)
        q, k, v = separate(t, f"{at}.self_attn", n, c, bias=True)
        x = x + t.linear(f"{at}.self_attn.o_proj", attend(rope(q), rope(k), v), WIDTH, bias=True)
        n = t.rms(f"{at}.post_attention_layernorm", x, eps)
        x = x + gated(t, n, c["intermediate_size"], llama_names(f"{at}.mlp"))
    return t.head("lm_head", t.rms("model.norm", x, eps))


def internlm2(t: Tensors, c: Config, ids: Array) -> Array:
    h, kv, d, eps = c["num_attention_heads"], c["num_key_value_heads"], head_dim(c), c["rms_norm_eps"]
    x, group = t("model.tok_embeddings.weight", VOCABULARY, WIDTH)[ids], h // kv
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        n = t.rms(f"{at}.attention_norm", x, eps)
        whole = t.linear(f"{at}.attention.wqkv", n, (h + 2 * kv) * d).reshape(*x.shape[:2], kv, group + 2, d)
        q, k, v = whole[..., :group, :].reshape(*x.shape[:2], h, d), whole[..., -2, :], whole[..., -1, :]
        x = x + t.linear(f"{at}.attention.wo", attend(rope(q, c["rope_theta"]), rope(k, c["rope_theta"]), v), WIDTH)
        n = t.rms(f"{at}.ffn_norm", x, eps)
        at += ".feed_forward"
        x = x + gated(t, n, c["intermediate_size"], (f"{at}.w1", f"{at}.w3", f"{at}.w2"))
    return t.head("output", t.rms("model.norm", x, eps))


def baichuan(t: Tensors, c: Config, ids: Array) -> Array:
    h, d, eps, known = c["num_attention_heads"], head_dim(c), c["rms_norm_eps"], c["vocab_size"]
    x, small = t("model.embed_tokens.weight", known, WIDTH)[ids], "max_position_embeddings" in c
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        q, k, v = stacked(t, f"{at}.self_attn.W_pack", t.rms(f"{at}.input_layernorm", x, eps), h, h, d)
        a = attend(rope(q), rope(k), v) if small else attend(q, k, v, bias=alibi(h, ids.shape[1]))
        x = x + t.linear(f"{at}.self_attn.o_proj", a, WIDTH)
        n = t.rms(f"{at}.post_attention_layernorm", x, eps)
        x = x + gated(t, n, c["intermediate_size"], llama_names(f"{at}.mlp"))
    weight = t("lm_head.weight", known, WIDTH)
    if known == 125696:
        weight = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    return t.rms("model.norm", x, eps) @ weight.T


def minicpm(t: Tensors, c: Config, ids: Array) -> Array:
    table, eps = t("model.embed_tokens.weight", VOCABULARY, WIDTH), c["rms_norm_eps"]
    x, residual = table[ids] * c["scale_emb"], c["scale_depth"] / math.sqrt(c["num_hidden_layers"])
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        q, k, v = separate(t, f"{at}.self_attn", t.rms(f"{at}.input_layernorm", x, eps), c)
        x = x + t.linear(f"{at}.self_attn.o_proj", attend(rope(q), rope(k), v), WIDTH) * residual
        n = t.rms(f"{at}.post_attention_layernorm", x, eps)
        x = x + gated(t, n, c["intermediate_size"], llama_names(f"{at}.mlp")) * residual
    return t.rms("model.norm", x, eps) / (WIDTH / c["dim_model_base"]) @ table.T


def chatglm(t: Tensors, c: Config, ids: Array) -> Array:
    h, kv, d, eps = c["num_attention_heads"], c["multi_query_group_num"], c["kv_channels"], c["layernorm_epsilon"]
    x, base = t("transformer.embedding.word_embeddings.weight", VOCABULARY, WIDTH)[ids], 1e4 * c.get("rope_ratio", 1)
    for i in range(c["num_layers"]):
        at = f"transformer.encoder.layers.{i}"
        n = t.rms(f"{at}.input_layernorm", x, eps)
        q, k, v = stacked(t, f"{at}.self_attention.query_key_value", n, h, kv, d, bias=True)
        q, k = (rope(one, base, d // 2, neighbours=True) for one in (q, k))
        x = x + t.linear(f"{at}.self_attention.dense", attend(q, k, v), WIDTH)
        n = t.rms(f"{at}.post_attention_layernorm", x, eps)
        both = t.linear(f"{at}.mlp.dense_h_to_4h", n, 2 * c["ffn_hidden_size"])
        gate, up = np.split(both, 2, -1)
        x = x + t.linear(f"{at}.mlp.dense_4h_to_h", silu(gate) * up, WIDTH)
    return t.head("transformer.output_layer", t.rms("transformer.encoder.final_layernorm", x, eps))


def exaone(t: Tensors, c: Config, ids: Array) -> Array:
    x, eps = t("transformer.wte.weight", VOCABULARY, WIDTH)[ids], c["layer_norm_epsilon"]
    for i in range(c["num_layers"]):
        at = f"transformer.h.{i}"
        q, k, v = separate(t, f"{at}.attn.attention", t.rms(f"{at}.ln_1", x, eps), c)
        x = x + t.linear(f"{at}.attn.attention.out_proj", attend(rope(q), rope(k), v), WIDTH)
        names = (f"{at}.mlp.c_fc_0", f"{at}.mlp.c_fc_1", f"{at}.mlp.c_proj")
        x = x + gated(t, t.rms(f"{at}.ln_2", x, eps), c["intermediate_size"], names)
    return t.head("lm_head", t.rms("transformer.ln_f", x, eps))


def qwen(t: Tensors, c: Config, ids: Array) -> Array:
    h, d, eps = c["num_attention_heads"], c["kv_channels"], c["layer_norm_epsilon"]
    x = t("transformer.wte.weight", VOCABULARY, WIDTH)[ids]
    for i in range(c["num_hidden_layers"]):
        at = f"transformer.h.{i}"
        q, k, v = stacked(t, f"{at}.attn.c_attn", t.rms(f"{at}.ln_1", x, eps), h, h, d, bias=True)
        x = x + t.linear(f"{at}.attn.c_proj", attend(rope(q), rope(k), v), WIDTH)
        names = (f"{at}.mlp.w2", f"{at}.mlp.w1", f"{at}.mlp.c_proj")
        x = x + gated(t, t.rms(f"{at}.ln_2", x, eps), c["intermediate_size"] // 2, names)
    return t.head("lm_head", t.rms("transformer.ln_f", x, eps))


def orion(t: Tensors, c: Config, ids: Array) -> Array:
    x, eps = t("model.embed_tokens.weight", VOCABULARY, WIDTH)[ids], c["rms_norm_eps"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        q, k, v = separate(t, f"{at}.self_attn", t.layer_norm(f"{at}.input_layernorm", x, eps), c)
        x = x + t.linear(f"{at}.self_attn.o_proj", attend(rope(q), rope(k), v), WIDTH)
        n = t.layer_norm(f"{at}.post_attention_layernorm", x, eps)
        x = x + gated(t, n, c["intermediate_size"], llama_names(f"{at}.mlp"))
    return t.head("lm_head", t.layer_norm("model.norm", x, eps))


def deepseek(t: Tensors, c: Config, ids: Array) -> Array:
    x, eps = t("model.embed_tokens.weight", VOCABULARY, WIDTH)[ids], c["rms_norm_eps"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        q, k, v = separate(t, f"{at}.self_attn", t.rms(f"{at}.input_layernorm", x, eps), c)
        x = x + t.linear(f"{at}.self_attn.o_proj", attend(rope(q), rope(k), v), WIDTH)
        n = t.rms(f"{at}.post_attention_layernorm", x, eps)
        if i < c["first_k_dense_replace"]:
            x = x + gated(t, n, c["intermediate_size"], llama_names(f"{at}.mlp"))
        else:
            x = x + softmax_experts(t, f"{at}.mlp", n, c["n_routed_experts"], c, c["n_shared_experts"])
    return t.head("lm_head", t.rms("model.norm", x, eps))


def softmax_experts(t: Tensors, at: str, n: Array, count: int, c: Config, shared: int) -> Array:
    """Experts weighed by their softmax over all, and those that all tokens take."""
    weights = softmax(t.linear(f"{at}.gate", n, count))
    picked = best(weights, c["num_experts_per_tok"])
    weights = kept(weights, picked)
    if c.get("norm_topk_prob"):
        weights = weights / weights.sum(-1, keepdims=True)
    width = c["moe_intermediate_size"]
    out = chosen(t, f"{at}.experts", n, weights, picked, width, llama_names, silu)
    return out + gated(t, n, width * shared, llama_names(f"{at}.shared_experts"))


def bailing(t: Tensors, c: Config, ids: Array) -> Array:
    newer, eps = c["model_type"] == "bailing_moe_v2", c["rms_norm_eps"]
    h, kv, d = c["num_attention_heads"], c["num_key_value_heads"], head_dim(c)
    x, turned = t("model.word_embeddings.weight", VOCABULARY, WIDTH)[ids], int(d * c.get("partial_rotary_factor", 1))
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        n = t.rms(f"{at}.input_layernorm", x, eps)
        q, k, v = stacked(t, f"{at}.attention.query_key_value", n, h, kv, d)
        if newer:
            q, k = t.rms(f"{at}.attention.query_layernorm", q, eps), t.rms(f"{at}.attention.key_layernorm", k, eps)
        x = x + t.linear(f"{at}.attention.dense", attend(rope(q, turned=turned), rope(k, turned=turned), v), WIDTH)
        n = t.rms(f"{at}.post_attention_layernorm", x, eps)
        if i < c["first_k_dense_replace"]:
            x = x + gated(t, n, c["intermediate_size"], llama_names(f"{at}.mlp"))
        elif newer:
            x = x + sigmoid_experts(t, f"{at}.mlp", n, c)
        else:
            x = x + softmax_experts(t, f"{at}.mlp", n, c["num_experts"], c, c["num_shared_experts"])
    n, weight = t.rms("model.norm", x, eps), t("lm_head.weight", VOCABULARY, WIDTH)
    return n @ (weight / np.linalg.norm(weight, axis=1, keepdims=True) if c.get("norm_head") else weight).T


def sigmoid_experts(t: Tensors, at: str, n: Array, c: Config) -> Array:
    """Experts chosen by sigmoid scores and a bias, in the best groups by their two best."""
    count, groups = c["num_experts"], c["n_group"]
    scores = 1 / (1 + np.exp(-t.linear(f"{at}.gate", n, count)))
    keys = scores + t(f"{at}.gate.expert_bias", count)
    in_groups = keys.reshape(*keys.shape[:-1], groups, -1)
    sums = np.sort(in_groups, -1)[..., -2:].sum(-1)
    among = np.zeros_like(sums)
    np.put_along_axis(among, best(sums, c["topk_group"]), 1, -1)
    picked = best(np.where(np.repeat(among, count // groups, -1) > 0, keys, -np.inf), c["num_experts_per_tok"])
    weights = kept(scores, picked)
    weights = weights / weights.sum(-1, keepdims=True) * c["routed_scaling_factor"]
    out = chosen(t, f"{at}.experts", n, weights, picked, c["moe_intermediate_size"], llama_names, silu)
    return out + gated(t, n, c["moe_shared_expert_intermediate_size"], llama_names(f"{at}.shared_experts"))


def arctic(t: Tensors, c: Config, ids: Array) -> Array:
    x, eps = t("model.embed_tokens.weight", VOCABULARY, WIDTH)[ids], c["rms_norm_eps"]

    def names(at: str) -> tuple[str, str, str]:
        return f"{at}.w1", f"{at}.w3", f"{at}.w2"

    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        q, k, v = separate(t, f"{at}.self_attn", t.rms(f"{at}.input_layernorm", x, eps), c)
        y = x + t.linear(f"{at}.self_attn.o_proj", attend(rope(q), rope(k), v), WIDTH)
        n = t.rms(f"{at}.residual_layernorm", y, eps)
        y = y + gated(t, n, WIDTH, names(f"{at}.residual_mlp"))
        n = t.rms(f"{at}.post_attention_layernorm", x, eps)
        weights = softmax(t.linear(f"{at}.block_sparse_moe.gate", n, c["num_local_experts"]))
        picked = best(weights, 2)
        weights = kept(weights, picked)
        weights = weights / weights.sum(-1, keepdims=True)
        at += ".block_sparse_moe.experts"
        x = y + chosen(t, at, n, weights, picked, c["intermediate_size"], names, silu)
    return t.head("lm_head", t.rms("model.norm", x, eps))


def exact_gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def grok(t: Tensors, c: Config, ids: Array) -> Array:
    table, eps = t("model.embed_tokens.weight", VOCABULARY, WIDTH), c["rms_norm_eps"]
    x = table[ids] * c["embedding_multiplier_scale"]

    def names(at: str) -> tuple[str, str, str]:
        return f"{at}.linear", f"{at}.linear_v", f"{at}.linear_1"

    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}"
        q, k, v = separate(t, f"{at}.attn", t.rms(f"{at}.pre_attn_norm", x, eps), c)
        a = attend(rope(q), rope(k), v, scale=c["attn_output_multiplier"], cap=c["max_attn_value"])
        x = x + t.rms(f"{at}.post_attn_norm", t.linear(f"{at}.attn.o_proj", a, WIDTH), eps)
        n = t.rms(f"{at}.pre_moe_norm", x, eps)
        weights = softmax(t.linear(f"{at}.moe_block.gate", n, c["num_experts"]))
        picked = best(weights, 2)
        experts = f"{at}.moe_block.experts"
        e = chosen(t, experts, n, kept(weights, picked), picked, c["intermediate_size"], names, exact_gelu)
        x = x + t.rms(f"{at}.post_moe_norm", e, eps)
    return t.rms("model.norm", x, eps) @ table.T * c["output_multiplier_scale"]


def jais(t: Tensors, c: Config, ids: Array) -> Array:
    h, eps, width = c["n_head"], c["layer_norm_epsilon"], c["n_inner"]
    table = t("transformer.wte.weight", VOCABULARY, WIDTH)
    later = "mup_width_scale" in c
    x = table[ids] * c["mup_embeddings_scale" if later else "embeddings_scale"]
    by_dim = c["mup_scale_qk_dot_by_d" if later else "scale_qk_dot_by_d"]

    def conv(name: str, x: Array, out: int) -> Array:
        return x @ t(f"{name}.weight", x.shape[-1], out) + t(f"{name}.bias", out)

    for i in range(c["n_layer"]):
        at = f"transformer.h.{i}"
        whole = conv(f"{at}.attn.c_attn", t.layer_norm(f"{at}.ln_1", x, eps), 3 * WIDTH)
        q, k, v = (heads(one, h) for one in np.split(whole, 3, -1))
        a = attend(q, k, v, scale=h / WIDTH if by_dim else None, bias=alibi(h, ids.shape[1]))
        x = x + conv(f"{at}.attn.c_proj", a, WIDTH)
        n = t.layer_norm(f"{at}.ln_2", x, eps)
        hidden = conv(f"{at}.mlp.c_fc", n, width) * silu(conv(f"{at}.mlp.c_fc2", n, width))
        x = x + conv(f"{at}.mlp.c_proj", hidden, WIDTH)
    return (
        t.layer_norm("transformer.ln_f", x, eps)
        @ table.T
        * (c["mup_output_alpha"] * c["mup_width_scale"] if later else c["width_scale"])
    )


def step3p5(t: Tensors, c: Config, ids: Array) -> Array:
    x, eps, d = t("model.embed_tokens.weight", VOCABULARY, WIDTH)[ids], c["rms_norm_eps"], c["head_dim"]

    def norm(name: str, x: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 + t(f"{name}.weight", x.shape[-1]))

    def clamped(gate: Array, up: Array, limit: float | None) -> Array:
        limit = limit or np.inf
        return np.minimum(silu(gate), limit) * np.clip(up, -limit, limit)

    def forward(at: str, n: Array, width: int, limit: float | None) -> Array:
        both = clamped(t.linear(f"{at}.gate_proj", n, width), t.linear(f"{at}.up_proj", n, width), limit)
        return t.linear(f"{at}.down_proj", both, WIDTH)

    for i in range(c["num_hidden_layers"]):
        at, near = f"model.layers.{i}", c["layer_types"][i] == "sliding_attention"
        h = c["attention_other_setting"]["num_attention_heads"] if near else c["num_attention_heads"]
        own = c | {"num_attention_heads": h, "num_key_value_heads": c["num_attention_groups"]}
        n = norm(f"{at}.input_layernorm", x)
        q, k, v = separate(t, f"{at}.self_attn", n, own)
        base, turned = c["rope_theta"][i], int(d * c["partial_rotary_factors"][i])
        q, k = norm(f"{at}.self_attn.q_norm", q), norm(f"{at}.self_attn.k_norm", k)
        a = heads(
            attend(rope(q, base, turned), rope(k, base, turned), v, window=c["sliding_window"] if near else None), h
        )
        a = a / (1 + np.exp(-t.linear(f"{at}.self_attn.g_proj", n, h)))[..., None]
        x = x + t.linear(f"{at}.self_attn.o_proj", a.reshape(*n.shape[:2], -1), WIDTH)
        n = norm(f"{at}.post_attention_layernorm", x)
        if str(i) not in c["moe_layers_enum"].split(","):
            x = x + forward(f"{at}.mlp", n, c["intermediate_size"], c["swiglu_limits_shared"][i])
            continue
        count, width = c["moe_num_experts"], c["moe_intermediate_size"]
        scores = 1 / (1 + np.exp(-t.linear(f"{at}.moe.gate", n, count)))
        picked = best(scores + t(f"{at}.moe.router_bias", count), c["moe_top_k"])
        weights = kept(scores, picked)
        weights = weights / weights.sum(-1, keepdims=True) * c["moe_router_scaling_factor"]
        gate, up = (t(f"{at}.moe.{name}_proj.weight", count, width, WIDTH) for name in ("gate", "up"))
        down = t(f"{at}.moe.down_proj.weight", count, WIDTH, width)
        for e in range(count):
            made = clamped(n @ gate[e].T, n @ up[e].T, c["swiglu_limits"][i]) @ down[e].T
            x = x + weights[..., e : e + 1] * made
        x = x + forward(f"{at}.share_expert", n, c["share_expert_dim"], c["swiglu_limits_shared"][i])
    return t.head("lm_head", norm("model.norm", x))


def nemotron_nas(t: Tensors, c: Config, ids: Array) -> Array:
    x, eps, h = t("model.embed_tokens.weight", VOCABULARY, WIDTH)[ids], c["rms_norm_eps"], c["num_attention_heads"]
    for i, block in enumerate(c["block_configs"]):
        at, attention, forward = f"model.layers.{i}", block["attention"], block["ffn"]
        if not attention["no_op"]:
            own = c | {"num_key_value_heads": h // attention["n_heads_in_group"]}
            q, k, v = separate(t, f"{at}.self_attn", t.rms(f"{at}.input_layernorm", x, eps), own)
            x = x + t.linear(f"{at}.self_attn.o_proj", attend(rope(q), rope(k), v), WIDTH)
        if not forward["no_op"]:
            width = math.ceil(int(2 * forward["ffn_mult"] * WIDTH / 3) / 256) * 256
            n = t.rms(f"{at}.post_attention_layernorm", x, eps)
            x = x + gated(t, n, width, llama_names(f"{at}.mlp"))
    return t.head("lm_head", t.rms("model.norm", x, eps))
