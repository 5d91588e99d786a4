"""What the fields of a config mean where they are missing, null, or said by others; what changes nothing passes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from escc.compiler.hf_import.architectures import read_config
from escc.compiler.hf_import.description import Attention, Experts, FeedForward, Heat, Rope, Transformer
from escc.compiler.hf_import.json_text import read_json
from escc.compiler.hf_import.readers import FLAT, OF_EXPERTS, READERS, SCORED_AS_ALONE, TOWERS
from escc.compiler.hf_import.write import model_text
from escc.ir.dataflow import ops
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.program import Einsum
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

SIZES: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}
OWN: Mapping[str, Mapping[str, Any]] = {  # what an architecture wants said beside its sizes
    "mistral": {"sliding_window": None},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 32},
    "gptj": {"n_embd": 64, "n_layer": 3, "n_head": 32, "rotary_dim": 2},
    "codegen": {"n_embd": 64, "n_layer": 3, "n_head": 32, "rotary_dim": 2},
    "opt": {"ffn_dim": 160},
    "stablelm": {"partial_rotary_factor": 1.0},
    "persimmon": {"partial_rotary_factor": 1.0},
    "nemotron": {"partial_rotary_factor": 1.0},
    "gpt_neox": {"hidden_act": "gelu_new", "rotary_pct": 1.0},
    "phi": {"partial_rotary_factor": 1.0},
    "glm4_moe": {"partial_rotary_factor": 1.0},
    "helium": {"num_key_value_heads": 8},
    "glm": {"partial_rotary_factor": 1.0},
    "glm4": {"partial_rotary_factor": 1.0},
    "glm4v_text": {"partial_rotary_factor": 1.0},
    "glm4v_moe_text": {"partial_rotary_factor": 1.0},
    "dots1": {"n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "max_window_layers": 3},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 32},
    "mpt": {"d_model": 64, "n_layers": 3, "n_heads": 32},
    "jais": {"n_embd": 64, "n_layer": 3, "n_head": 32},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 3, "n_head": 32},
    "gpt_neo": {"hidden_size": 64, "num_layers": 3, "num_heads": 32},
    "dbrx": {"d_model": 64, "n_layers": 3, "n_heads": 32},
    "chatglm": {
        "hidden_size": 64,
        "num_layers": 3,
        "num_attention_heads": 4,
        "kv_channels": 16,
        "ffn_hidden_size": 160,
        "padded_vocab_size": 96,
    },
    "exaone": {"hidden_size": 64, "intermediate_size": 160, "num_layers": 3, "num_attention_heads": 32},
    "longcat_flash": {"hidden_size": 64, "num_layers": 3, "num_attention_heads": 4},
    "nemotron-nas": {"block_configs": [{"attention": {"n_heads_in_group": 1}, "ffn": {"ffn_mult": 1.0}}] * 3},
    "granitemoehybrid": {"layer_types": ["attention"] * 3},
    "deepseek": {"n_routed_experts": 6, "num_experts_per_tok": 2},
    "bailing_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "bailing_moe_v2": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}
ALONE = (
    "gpt2",
    "gptj",
    "codegen",
    "bloom",
    "mpt",
    "jais",
    "gpt_bigcode",
    "gpt_neo",
    "dbrx",
    "chatglm",
    "exaone",
    "longcat_flash",
)  # other names


PATTERNED = (
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gpt_oss",
    "llama4_text",
    "olmo3",
    "cohere2",
    "exaone4",
    "ministral",
    "afmoe",
    "exaone_moe",
    "mimo_v2_flash",
    "granitemoehybrid",
)  # have kinds of layers


def read(text: str, dtype: Dtype | None = None) -> Transformer:
    return read_config(read_json(Source("config.json", text)), dtype)


def heads(text: str) -> Attention:
    """The attention of a model all of whose layers have the same."""
    (attention,) = {layer.attention for layer in read(text).layers}
    assert isinstance(attention, Attention)
    return attention


def forward(text: str) -> FeedForward:
    """Its feed-forward, likewise."""
    (found,) = {layer.forward for layer in read(text).layers}
    assert isinstance(found, FeedForward)
    return found


def experts(text: str) -> Experts:
    """Its experts, likewise."""
    (found,) = {layer.forward for layer in read(text).layers}
    assert isinstance(found, Experts)
    return found


def config(kind: str, **changes: Any) -> str:
    """A config with changes; a change to `...` takes the field out."""
    own = {**SIZES, **OWN.get(kind, {})}
    if kind in ALONE:
        own = {name: value for name, value in own.items() if name == "vocab_size" or name in OWN[kind]}
    if kind in ("falcon", "opt"):  # call the width of their feed-forward otherwise
        own.pop("intermediate_size")
    fields = {"model_type": kind, **own, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...})


@pytest.mark.parametrize(
    ("kind", "missing"), [("llama", 64), ("mistral", 8), ("qwen2", 32), ("qwen3", 32), ("phi", 64), ("gpt_neox", 64)]
)
def test_kv_heads_that_a_config_does_not_say(kind: str, missing: int) -> None:
    """Null is as many as heads, even where a missing field means another number."""
    more = {"hidden_size": 128, "num_attention_heads": 64}
    assert heads(config(kind, **more)).kv_heads == missing
    assert heads(config(kind, **more, num_key_value_heads=None)).kv_heads == 64


def test_a_feed_forward_that_follows_from_a_width_is_no_wider_than_a_dim_can_be() -> None:
    assert forward(config("gpt2", n_embd=2**38)).width == 2**40
    with pytest.raises(InputError, match="`n_embd`"):
        read(config("gpt2", n_embd=2**38 + 32))


def test_gemma_wants_kv_heads_and_head_dim_to_be_numbers() -> None:
    assert heads(config("gemma")).kv_heads == 16
    assert heads(config("gemma")).head_dim == 256
    for name in ("num_key_value_heads", "head_dim"):
        with pytest.raises(InputError, match="and is null"):
            read(config("gemma", **{name: None}))


@pytest.mark.parametrize(
    ("act", "older", "activation"),
    [
        (..., ..., "gelu"),
        ("gelu", ..., "gelu"),
        ("gelu_pytorch_tanh", "silu", "gelu"),
        ("silu", "gelu_pytorch_tanh", "silu"),
        ("relu", None, "relu"),
        (..., "relu", "gelu"),
    ],
)
def test_the_activation_of_gemma_is_its_hidden_act(act: object, older: object, activation: str) -> None:
    assert forward(config("gemma", hidden_act=act, hidden_activation=older)).activation == activation


@pytest.mark.parametrize(
    ("act", "activation"),
    [("gelu", "gelu_exact"), ("gelu_python", "gelu_exact"), ("gelu_new", "gelu"), ("gelu_pytorch_tanh", "gelu")],
)
def test_which_gelu_is_the_exact_one(act: str, activation: str) -> None:
    assert forward(config("llama", hidden_act=act)).activation == activation
    assert forward(config("gpt_neox", hidden_act=act)).activation == activation


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "vaultgemma"])
@pytest.mark.parametrize(("act", "activation"), [("gelu", "gelu_exact"), (..., "gelu"), ("gelu_pytorch_tanh", "gelu")])
def test_later_gemmas_take_gelu_for_the_exact_one(kind: str, act: object, activation: str) -> None:
    found = {layer.forward for layer in read(config(kind, hidden_activation=act)).layers}
    assert {one.activation for one in found if isinstance(one, FeedForward)} == {activation}


@pytest.mark.parametrize(("kind", "cap"), [("gemma2", 20.0), ("vaultgemma", 20.0), ("gemma3_text", None)])
def test_gemma_3_caps_no_scores_of_attention(kind: str, cap: float | None) -> None:
    model = read(config(kind, attn_logit_softcapping=20.0))
    assert {layer.attention.cap for layer in model.layers if isinstance(layer.attention, Attention)} == {cap}


def test_an_empty_list_of_layers_with_experts_names_none() -> None:
    kinds = {
        name: {type(layer.forward) for layer in read(config("llama4_text", **more)).layers}
        for name, more in {"none": {"moe_layers": []}, "unsaid": {}, "null": {"moe_layers": None}}.items()
    }
    assert kinds == {"none": {FeedForward}, "unsaid": {Experts}, "null": {Experts}}


@pytest.mark.parametrize("said", [0, None])
def test_experts_of_which_a_token_takes_none_are_refused(said: object) -> None:
    assert experts(config("granitemoeshared", num_experts_per_tok=1)).chosen == 1
    with pytest.raises(InputError, match="`num_experts_per_tok` must be a whole number from 1"):
        read(config("granitemoeshared", num_experts_per_tok=said))
    with pytest.raises(InputError, match="`shared_intermediate_size` must be a whole number from 1"):
        read(config("granitemoeshared", num_local_experts=0, shared_intermediate_size=0))


def test_gpt_neox_has_a_key_and_a_value_for_each_head_as_wide_as_divides_the_model() -> None:
    model = heads(config("gpt_neox", num_key_value_heads=1, head_dim=4, rotary_pct=0.5))
    assert (model.kv_heads, model.head_dim) == (32, 2)
    assert model.rope is not None and model.rope.turned == 2  # a share of `head_dim`, as transformers has it


def test_a_feed_forward_that_a_config_does_not_say() -> None:
    assert forward(config("phi", intermediate_size=...)).width == 8192
    assert forward(config("gpt2")).width == forward(config("gpt2", n_inner=None)).width == 256
    for kind in ("llama", "phi"):
        with pytest.raises(InputError, match="and is null"):
            read(config(kind, intermediate_size=None))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_ln_in_parallel_attn": 2}, "Blocks with 2 norms"),
        ({"new_decoder_architecture": True, "parallel_attn": False}, "stand side by side"),
        ({"multi_query": False, "num_kv_heads": 2}, "have a key each"),
        ({"new_decoder_architecture": True, "num_kv_heads": 5}, "32 does not divide into 5 kv-heads"),
    ],
)
def test_falcons_that_nothing_computes_are_refused(changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(config("falcon", **changes))


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("gptj", {"rotary_dim": 4}, "Rope turns pairs, and here 4 of the 2 elements of a head."),
        ("codegen", {"n_head": 2, "rotary_dim": 32}, "2 does not divide into 4 parts"),
        ("gptj", {"scale_attn_weights": False}, "scores are always scaled"),
        ("opt", {"layer_norm_elementwise_affine": False}, "norms without a scale are not known here"),
        ("stablelm", {"rotary_scaling_factor": 2.0}, "rope is scaled by `rope_scaling`"),
        ("phi", {"qk_layernorm": True, "head_dim": 4}, "Norms are of heads that are as wide as divides the model."),
        ("phimoe", {"num_experts_per_tok": 3}, "Two experts of a token are known here"),
        ("granitemoe", {"num_experts_per_tok": 9}, "A token takes 9 experts, and there are 8."),
    ],
)
def test_what_the_language_or_transformers_do_not_have_is_refused(
    kind: str, changes: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        read(config(kind, **changes))
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", READERS)
def test_what_says_nothing_changes_nothing(kind: str) -> None:
    """Unknown fields that are null, experts that there are none of, numbers as Python writes them, dtypes."""
    plain = read(config(kind))
    nothing = {"attention_chunk_size": None, "use_bidirectional_attention": None, "a{}\x1b": None}
    assert read(config(kind, **nothing)) == plain
    if kind not in OF_EXPERTS:
        assert read(config(kind, num_local_experts=0, num_experts=None, num_experts_per_tok=2)) == plain
    assert read(config(kind, length_penalty=float("inf"), temperature=float("nan"))) == plain
    assert read(config(kind, id2label={str(n): "x" for n in range(60_000)})) == plain
    if kind not in PATTERNED:
        assert read(config(kind, layer_types=["full_attention"] * 3)) == plain
    assert read(config(kind, dtype="bfloat16", torch_dtype="float16")).dtype is Dtype.BF16
    assert read(config(kind, dtype=None, torch_dtype="float16")).dtype is Dtype.F16
    assert read(config(kind, dtype="float64"), Dtype.BF16).dtype is Dtype.BF16


@pytest.mark.parametrize("kind", ["gemma", "gpt2", "gpt_neox"])
def test_null_is_not_what_a_missing_switch_means_where_that_is_true(kind: str) -> None:
    name = "attention_bias" if kind == "gpt_neox" else "tie_word_embeddings"
    with pytest.raises(InputError, match=f"`{name}` must be true or false, and is null"):
        read(config(kind, **{name: None}))
    assert not read(config("llama", tie_word_embeddings=None)).tied


@pytest.mark.parametrize(
    "name", ["llama4", "lama", "mistral3", "gemma3n", "gemma3", "jetmoe", "phi3small", "minicpm5", "internvl_chat"]
)
def test_no_architecture_is_taken_for_another(name: str) -> None:
    with pytest.raises(InputError) as raised:
        read(config(name))
    assert "did you mean" not in str(raised.value)
    assert "known are llama, mistral, " in str(raised.value)


@pytest.mark.parametrize("whole", sorted(TOWERS))
def test_a_part_for_text_is_read_as_it_would_be_alone(whole: str) -> None:
    """But for what its own head does to scores, where the whole has a head."""
    kind = TOWERS[whole]
    alone = json.loads(config(kind))
    own = {name: value for name, value in alone.items() if name != "model_type"}
    nested: dict[str, Any] = {"model_type": whole, "vision_config": {}, "text_config": own}
    plain = {} if whole in SCORED_AS_ALONE else {"logit_scale": 1.0, "logit_cap": None}
    wanted = replace(read(json.dumps(alone)), **plain)
    assert read(json.dumps(nested)) == wanted
    assert read(json.dumps(nested | {"text_config": alone})) == wanted
    thinking = {"model_type": whole, "thinker_config": {"audio_config": {}, "text_config": alone}, "talker_config": {}}
    assert read(json.dumps(thinking)) == wanted


def test_a_head_of_the_whole_neither_scales_nor_caps_scores() -> None:
    """As of Aya Vision, Granite Vision and Gemma 3; Gemma 3n caps them."""
    for whole, kind, said in (
        ("aya_vision", "cohere2", {"logit_scale": 0.5}),
        ("llava_next", "granite", {"logits_scaling": 8.0}),
        ("gemma3", "gemma3_text", {"final_logit_softcapping": 3.0}),
        ("gemma3n", "gemma3n_text", {"final_logit_softcapping": 3.0}),
    ):
        text = json.loads(config(kind, **said))
        alone, model = read(json.dumps(text)), read(json.dumps({"model_type": whole, "text_config": text}))
        assert (alone.logit_scale, alone.logit_cap) != (1.0, None)
        assert ((model.logit_scale, model.logit_cap) == (1.0, None)) == (whole != "gemma3n")


@pytest.mark.parametrize("whole", FLAT)
def test_a_part_for_text_may_stand_in_the_config_itself(whole: str) -> None:
    alone = json.loads(config(TOWERS[whole]))
    beside = {"vision_config": {"depth": 32}, "image_token_id": 1, "video_token_id": 2, "vision_start_token_id": 3}
    assert read(json.dumps(alone | beside | {"model_type": whole})) == read(json.dumps(alone))


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
def test_a_part_for_text_of_a_known_architecture_is_read_whatever_sees_beside_it(name: str) -> None:
    alone = json.loads(config("qwen3", auto_map={"AutoModelForCausalLM": "code.Qwen3ForCausalLM"}))
    assert read(json.dumps({"model_type": "sees", "eyes": 2, name: alone})) == read(config("qwen3"))
    with pytest.raises(InputError, match="Architecture `sees` is not understood"):
        read(json.dumps({"model_type": "sees", name: alone | {"model_type": "other"}}))


def test_sizes_that_a_part_for_text_does_not_say() -> None:
    """As of gemma-3-4b-it, which says these alone."""
    said = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    model = read(json.dumps({"model_type": "gemma3", "text_config": said}))
    attention = model.layers[0].attention
    assert isinstance(attention, Attention)
    assert (attention.heads, attention.kv_heads, attention.head_dim, model.vocabulary) == (8, 4, 256, 262208)
    with pytest.raises(InputError, match="`num_attention_heads` is missing"):
        read(json.dumps(said))


@pytest.mark.parametrize(("version", "kind"), [(2.6, "qwen2"), ("2.5", "llama"), (4.5, "qwen3")])
def test_versions_of_a_model_have_texts_of_other_architectures(version: object, kind: str) -> None:
    alone = json.loads(config(kind))
    beside = {"model_type": "minicpmv", "version": version, "slice_mode": True, "auto_map": {"AutoModel": "code.V"}}
    assert read(json.dumps(alone | beside)) == read(config(kind))
    with pytest.raises(InputError, match=r"is known in the versions 2\.5, 2\.6"):
        read(json.dumps(alone | beside | {"version": 3}))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"model_type": "mllama"}, "`mllama` has layers that attend to what an encoder makes"),
        ({"model_type": "qwen3_next"}, "`qwen3_next` has layers of linear attention"),
        (
            {"model_type": "paligemma", "text_config": {"model_type": "gemma"}},
            "`paligemma` has tokens that see some after them",
        ),
        ({"model_type": "new", "conv_L_cache": 3}, "`new` has recurrent layers (`conv_L_cache`)"),
        ({"model_type": "sees", "llm_config": {"mamba_num_heads": 8}}, "`sees` has state-space layers"),
    ],
)
def test_what_has_no_place_in_the_language_says_so_by_its_own_name(kind: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        read(config("", **kind))
    assert said in str(refused.value)


def test_dynamic_rope_is_plain_up_to_the_context_of_a_model_but_where_it_has_a_larger_base() -> None:
    """The latter is Hunyuan's: base * alpha^(d / (d - 2)) for heads of d elements."""
    plain = heads(config("llama", head_dim=8)).rope
    assert heads(config("llama", head_dim=8, rope_scaling={"type": "dynamic", "factor": 4.0})).rope == plain
    scaling = {"type": "dynamic", "factor": 1.0, "alpha": 1000.0, "mscale": 1.0, "beta_fast": 32}
    turned = heads(config("hunyuan_v1_dense", head_dim=8, rope_scaling=scaling)).rope
    assert turned is not None and turned.scaling is None and turned.base == pytest.approx(1e4 * 1000 ** (8 / 6))


def test_longrope_has_factors_of_contexts_up_to_the_first_training_and_of_longer_ones() -> None:
    """Of Phi-3.5-MoE `transformers` computes frequencies by the short ones alone, and has two magnitudes."""
    scaling = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "attention_factor": 1.5}
    for original, said in ((32, "1.5, [1, 1.5], 32, 1.5, [2, 3]"), (128, "1.5, [1, 1.5]")):
        more = {"head_dim": 4, "original_max_position_embeddings": original}
        assert heads(config("phi3", **more, rope_scaling=scaling)).rope == Rope(1e4, 4, f"longrope({said})")
    scaling |= {"long_factor": [1.0, 1.5], "original_max_position_embeddings": 32}
    assert heads(config("phi3", head_dim=4, rope_scaling=scaling)).rope == Rope(1e4, 4, "longrope(1.5, [1, 1.5])")
    del scaling["attention_factor"]
    scaling |= {"long_factor": [2.0, 3.0], "short_mscale": 1.25, "long_mscale": 1.5}
    found = read(config("phimoe", num_attention_heads=16, rope_scaling=scaling)).layers[0].attention
    assert isinstance(found, Attention)
    assert found.rope == Rope(1e6, 4, "longrope(1.25, [1, 1.5], 32, 1.5, [1, 1.5])")


def test_what_is_left_out_of_longer_contexts_limits_a_model() -> None:
    """But not where scores fall with distance in contexts of any length."""
    limits = {kind: read(config(kind)).limit for kind in ("llama", "mistral", "bloom", "mpt")}
    assert limits == {"llama": 128, "mistral": 128, "bloom": None, "mpt": None}


def test_yarn_may_say_what_it_always_does() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    plain = heads(config("llama", head_dim=8, rope_scaling=yarn)).rope
    assert heads(config("llama", head_dim=8, rope_scaling=yarn | {"finetuned": True, "attn_factor": 1.0})).rope == plain
    assert heads(config("llama", head_dim=8, rope_scaling=yarn | {"type": "deepseek_yarn"})).rope == plain
    with pytest.raises(InputError, match="`attn_factor` is set"):
        read(config("llama", head_dim=8, rope_scaling=yarn | {"attn_factor": 2.0}))
    assert heads(config("llama", head_dim=8, rope_scaling=yarn | {"beta_fast": 2, "beta_slow": 2})).rope is not None
    with pytest.raises(InputError, match="`beta_fast` must not be below `beta_slow`"):
        read(config("llama", head_dim=8, rope_scaling=yarn | {"beta_slow": 33}))


def test_experts_of_texts_are_those_that_lists_name_first() -> None:
    said = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 48, "moe_layer_start_index": 1}
    alone = read(config("ernie4_5_moe", **said))
    lists = {name: [value, 7] for name, value in said.items() if name != "moe_k"}
    found = read(config("ernie4_5_moe_vl", moe_k=2, rope_3d=True, vision_config={}, **lists))
    assert found == replace(alone, architecture="ernie4_5_moe_vl")


def test_queries_of_ministral_3_grow_where_the_config_says_so() -> None:
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1}
    assert heads(config("ministral3", rope_parameters=yarn)).heated == Heat(0.1, 16384, first=0)
    assert heads(config("ministral3", rope_parameters=yarn | {"llama_4_scaling_beta": 0})).heated is None


@pytest.mark.parametrize(("kind", "said"), [("qwen3_moe", (False, False)), ("qwen3_omni_moe_text", (True, False))])
def test_weights_of_experts_add_to_1_as_the_config_says_or_as_of_the_architecture(
    kind: str, said: tuple[bool, bool]
) -> None:
    missing = [experts(config(kind)), experts(config(kind, norm_topk_prob=False))]
    assert tuple(one.router.normalised for one in missing) == said
    assert experts(config(kind, norm_topk_prob=True)).router.normalised
    assert experts(config("qwen3_vl_moe_text", norm_topk_prob=False)).router.normalised  # which `transformers` ignores


def test_a_part_for_text_that_keeps_a_state_says_so() -> None:
    text = {"model_type": "qwen3_5_text", "linear_conv_kernel_dim": 4}
    with pytest.raises(InputError, match="`qwen3_5` has layers of linear attention"):
        read(json.dumps({"model_type": "qwen3_5", "text_config": text}))


@pytest.mark.parametrize(
    ("unknown", "hint"),
    [
        ("num_key_value_head", "did you mean `num_key_value_heads`?"),
        ("layer_norm_eps", "remove it"),
        ("hidden_activation", "remove it"),
        ("sliding_window_pattern", "remove it"),
        ("rope_theta_2", "remove it"),
        ("hidden_sizes", "remove it"),  # because the config has a hidden_size
    ],
)
def test_a_hint_names_another_field_only_for_a_misspelling(unknown: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        read(config("llama", **{unknown: 1}))
    assert f"`{unknown}` is not understood" in str(raised.value)
    assert f"hint: {hint}" in str(raised.value)


def test_gpt_2_has_names_of_its_own() -> None:
    with pytest.raises(InputError, match="`hidden_size` is another name of `n_embd` here"):
        read(config("gpt2", hidden_size=64))


def test_echoes_of_rope_agree_with_what_counts() -> None:
    """Version 4 writes the base and the share of GPT-NeoX by two names each."""
    echoed = {"rotary_emb_base": 50, "rope_theta": 50.0, "rotary_pct": 1.0, "partial_rotary_factor": 1}
    assert read(config("gpt_neox", **echoed)) == read(config("gpt_neox", rotary_emb_base=50))
    for name in ("rope_theta", "partial_rotary_factor"):
        with pytest.raises(InputError, match=f"`{name}` is another than"):
            read(config("gpt_neox", **echoed | {name: 0.5}))


def test_a_rope_scaling_says_its_own_base() -> None:
    scaling = {"rope_type": "linear", "factor": 2, "rope_theta": 7.0, "mscale": None}
    model = read(config("llama", rope_scaling=scaling, rope_theta=5.0))
    turned = model.layers[0].attention.rope
    assert turned is not None and (turned.base, turned.scaling) == (7.0, "linear(2)")
    assert read(config("llama", rope_parameters=scaling, rope_scaling=scaling, rope_theta=5.0)) == model
    assert read(config("llama", rope_parameters=scaling, rope_scaling={}, rope_theta=5.0)) == model
    llama3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    extended = heads(config("llama", rope_scaling=llama3)).rope
    assert extended is not None and extended.scaling == "llama3(8, 1, 4, 128)"


SPARSE = {"q_lora_rank": 16, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 1, "topk_group": 1}


def test_which_ids_tokens_have_is_no_matter() -> None:
    ids = {"im_newline_id": 11, "audio_bos_token_id": [3, 4], "stop_token_ids": [5]}
    assert read(config("llama", **ids)) == read(config("llama"))
    for name, value in (("im_newline_id", 1.5), ("layer_id", [1]), ("stop_token_ids", ["a"]), ("cut_id", True)):
        with pytest.raises(InputError, match=f"The field `{name}` is not understood"):
            read(config("llama", **{name: value}))


def test_an_indexer_chooses_no_more_tokens_than_there_are() -> None:
    text = model_text(read(config("deepseek_v32", **SPARSE)), "m")
    assert "keep=128" in text and "phase decode  { B = 64, L = 1, M = 128," in text
    long = config("deepseek_v32", **SPARSE, index_topk=4096, max_position_embeddings=65536, dtype="bfloat16")
    text = model_text(read(long), "m")
    assert "keep=4096" in text and "phase decode  { B = 64, L = 1, M = 4096," in text
    source = Source("m.esti", text)
    values = expand(parse(source), source, {}).table()
    made = {values[f"{block}.{name}"].dtype for block in ("dense", "experts") for name in ("mi", "sn", "p", "o", "y")}
    assert made == {Dtype.BF16}  # as without an indexer, whose scores are f32


@pytest.mark.parametrize("kind", ["deepseek_v32", "bloom", "mpt", "gpt_oss", "mixtral", "ministral", "llama"])
def test_nothing_that_is_wide_goes_on_in_f32(kind: str) -> None:
    text = model_text(read(config(kind, **(SPARSE if kind == "deepseek_v32" else {})), Dtype.BF16), "m")
    source = Source("m.esti", text)
    program = expand(parse(source), source, {})
    values = program.table()
    results = [values[op.result] for op in ops(program) if isinstance(op, Einsum)]
    wide = [one for one in results if {"E", "F"} & set(one.dims)]
    assert len(wide) >= 3 and {one.dtype for one in wide} == {Dtype.BF16}
    if kind == "deepseek_v32":  # what chooses tokens is in f32, as published, and scores are not
        types = {op.result.partition(".")[2]: values[op.result].dtype for op in ops(program)}
        assert {types[name] for name in ("ir", "ip", "is", "ws", "ix")} == {Dtype.F32}
        assert {types[name] for name in ("mi", "sn", "sr", "p", "o", "a", "y")} == {Dtype.BF16}


def test_scores_that_yarn_makes_larger_than_numbers_are_refused() -> None:
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32}
    with pytest.raises(InputError, match="`mscale_all_dim` makes scores larger"):
        read(config("deepseek_v3", rope_scaling=yarn | {"mscale": 1e300, "mscale_all_dim": 1e300}))


def test_more_layers_than_patterns_are_looked_for_in_are_refused() -> None:
    read(config("llama", num_hidden_layers=4096))
    read(config("smollm3", num_hidden_layers=4096, no_rope_layers=[1] * 4095 + [0]))
    with pytest.raises(InputError, match="a whole number from 1 to 4,096"):
        read(config("llama", num_hidden_layers=4097))
