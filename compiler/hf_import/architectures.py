"""The architectures that are understood, and the way from a config to one of them.

What a missing field means, or null in a field, is what it means to the library `transformers`
(https://github.com/huggingface/transformers), in version 5.23 where versions differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, Span, fail
from ...ir.dtype import Dtype
from . import experts, gemma, gpt, kin, latent, llama
from .common import check_at_rest, check_common, read_dtype
from .description import Stack, Transformer
from .fields import Fields
from .json_text import Document
from .quantised import read_quantised

Reader = Callable[[Fields], Stack]

LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2")
READERS: Mapping[str, tuple[str, Reader]] = {  # by model type, with the class of the whole model
    "llama": ("LlamaForCausalLM", llama.llama),
    "mistral": ("MistralForCausalLM", llama.mistral),
    "qwen2": ("Qwen2ForCausalLM", llama.qwen2),
    "qwen3": ("Qwen3ForCausalLM", llama.qwen3),
    "gemma": ("GemmaForCausalLM", gemma.gemma),
    "gpt2": ("GPT2LMHeadModel", gpt.gpt2),
    "gptj": ("GPTJForCausalLM", gpt.gptj),
    "opt": ("OPTForCausalLM", gpt.opt),
    "stablelm": ("StableLmForCausalLM", gpt.stablelm),
    "persimmon": ("PersimmonForCausalLM", gpt.persimmon),
    "nemotron": ("NemotronForCausalLM", gpt.nemotron),
    "arcee": ("ArceeForCausalLM", llama.arcee),
    "gpt_neox": ("GPTNeoXForCausalLM", gpt.gpt_neox),
    "phi": ("PhiForCausalLM", gpt.phi),
    "falcon": ("FalconForCausalLM", gpt.falcon),
    "qwen2_vl_text": ("Qwen2VLForConditionalGeneration", llama.qwen2),
    "qwen2_5_vl_text": ("Qwen2_5_VLForConditionalGeneration", llama.qwen2),
    "qwen3_vl_text": ("Qwen3VLForConditionalGeneration", llama.qwen3),
    "qwen3_omni_moe_text": ("Qwen3OmniMoeForConditionalGeneration", experts.qwen3_omni_moe),
    "qwen3_vl_moe_text": ("Qwen3VLMoeForConditionalGeneration", experts.qwen3_vl_moe),
    "ministral": ("MinistralForCausalLM", kin.ministral),
    "phi3": ("Phi3ForCausalLM", kin.phi3),
    "olmo2": ("Olmo2ForCausalLM", kin.olmo2),
    "olmo3": ("Olmo3ForCausalLM", kin.olmo3),
    "granite": ("GraniteForCausalLM", kin.granite),
    "smollm3": ("SmolLM3ForCausalLM", kin.smollm3),
    "starcoder2": ("Starcoder2ForCausalLM", kin.starcoder2),
    "cohere": ("CohereForCausalLM", kin.cohere),
    "cohere2": ("Cohere2ForCausalLM", kin.cohere2),
    "exaone4": ("Exaone4ForCausalLM", kin.exaone4),
    "helium": ("HeliumForCausalLM", kin.helium),
    "seed_oss": ("SeedOssForCausalLM", kin.seed_oss),
    "ernie4_5": ("Ernie4_5ForCausalLM", kin.ernie4_5),
    "glm": ("GlmForCausalLM", kin.glm),
    "glm4": ("Glm4ForCausalLM", kin.glm4),
    "gemma2": ("Gemma2ForCausalLM", gemma.gemma2),
    "gemma3_text": ("Gemma3ForCausalLM", gemma.gemma3),
    "gemma4_text": ("Gemma4ForCausalLM", gemma.gemma4),
    "mixtral": ("MixtralForCausalLM", experts.mixtral),
    "phimoe": ("PhimoeForCausalLM", experts.phimoe),
    "granitemoe": ("GraniteMoeForCausalLM", experts.granitemoe),
    "qwen2_moe": ("Qwen2MoeForCausalLM", experts.qwen2_moe),
    "qwen3_moe": ("Qwen3MoeForCausalLM", experts.qwen3_moe),
    "glm4_moe": ("Glm4MoeForCausalLM", experts.glm4_moe),
    "solar_open": ("SolarOpenForCausalLM", experts.solar_open),
    "olmoe": ("OlmoeForCausalLM", experts.olmoe),
    "flex_olmo": ("FlexOlmoForCausalLM", experts.flex_olmo),
    "dots1": ("Dots1ForCausalLM", experts.dots1),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", experts.ernie4_5_moe),
    "minimax_m2": ("MiniMaxM2ForCausalLM", experts.minimax_m2),
    "gpt_oss": ("GptOssForCausalLM", experts.gpt_oss),
    "llama4_text": ("Llama4ForCausalLM", experts.llama4),
    "deepseek_v2": ("DeepseekV2ForCausalLM", latent.deepseek_v2),
    "deepseek_v3": ("DeepseekV3ForCausalLM", latent.deepseek_v3),
    "deepseek_v32": ("DeepseekV32ForCausalLM", latent.deepseek_v32),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", latent.glm_moe_dsa),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", latent.glm4_moe_lite),
    "kimi_k2": ("DeepseekV3ForCausalLM", latent.deepseek_v3),
}
TOWERS = {  # models with a part for text, by what that is where it does not say
    "llama4": "llama4_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "mistral3": "mistral",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "internvl": "qwen2",
    "idefics3": "llama",
    "smolvlm": "llama",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "qwen2_audio": "qwen2",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "kimi_k25": "deepseek_v3",
}
FLAT = ("qwen2_vl", "qwen2_5_vl")  # of which the part for text may stand in the config itself
BESIDE_TEXT = (
    "vision_config",
    "vision_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "image_token_id",
    "video_token_id",
)
OF_EXPERTS = (
    "mixtral",
    "granitemoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "glm4_moe",
    "olmoe",
    "flex_olmo",
    "solar_open",
    "dots1",
    "ernie4_5_moe",
    "minimax_m2",
    "gpt_oss",
    "llama4_text",
    "gemma4_text",
    "qwen3_omni_moe_text",
    "qwen3_vl_moe_text",
    *LATENT,
)
# Layers that are not understood: what they are, the fields that say so, their names among `layer_types`, architectures.
RECURRENT = (
    (
        "layers of linear attention",
        ("linear_conv_kernel_dim", "linear_attn_config", "attn_type_list", "attention_hidden_size"),
        ("linear_attention",),
        ("rwkv", "rwkv7"),
    ),
    (
        "state-space layers",
        ("mamba_d_state", "mamba_num_heads", "mamba_n_heads", "ssm_state_size", "hybrid_override_pattern"),
        ("mamba", "mamba2", "hybrid"),
        ("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "falcon_h1", "nemotron_h", "zamba", "zamba2"),
    ),
    ("recurrent layers", ("lru_width", "block_types"), ("recurrent", "conv"), ("recurrent_gemma", "lfm2")),
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_OF_A_TOKEN = "num_experts_per_tok"


def read_config(document: Document, dtype: Dtype | None = None, kept: Dtype | None = None) -> Transformer:
    """The model that a config describes, its weights of `dtype` or of the type that the config names; of a model with
    several parts the one that reads and writes text. `kept`: the type of what a checkpoint has in plain numbers, which
    counts where the config names none. Without that it is f32, but bf16 of a model that is quantised: what stands
    beside codes of few bits is that (gpt-oss, MiniMax-M2), and not of twice as many.

    Raises InputError with every field that is wrong, missing, or not understood.
    """
    whole = Fields(document.source, document.entries, Span(1, 1))
    fields, kind = _text_part(whole)
    head, read = READERS[kind]
    check_common(fields, head if fields is whole else None)
    quantised = read_quantised(fields) or (None if fields is whole else read_quantised(whole))
    default = kept or (Dtype.F32 if quantised is None else Dtype.BF16)
    named = read_dtype(fields, dtype, default)
    if fields is not whole:
        named = (
            read_dtype(whole, dtype, default)
            if fields.get("dtype") is None and fields.get("torch_dtype") is None
            else named
        )
        tied = whole.get("tie_word_embeddings")
        if "tie_word_embeddings" not in fields.entries and tied is not None:
            fields = fields.with_entry("tie_word_embeddings", whole.entries["tie_word_embeddings"])
    model = Transformer(**vars(read(fields)), architecture=kind, dtype=named, quantised=quantised)
    check_at_rest(fields)
    fields.refuse_unknown()
    fields.finish()
    return model


def _text_part(whole: Fields) -> tuple[Fields, str]:
    """The fields of the part of a model that reads and writes text, and its architecture."""
    node = whole.get("model_type")
    part = whole.part("text_config") if node is not None and node.value in TOWERS else None
    if part is None and node is not None and node.value in TOWERS and (thinker := whole.part("thinker_config")):
        part = thinker.part("text_config")  # beside what hears, sees and speaks
    if part is None and node is not None and node.value in FLAT:
        whole.inert(BESIDE_TEXT)
        return whole, TOWERS[str(node.value)]
    if part is None:
        return whole, _architecture(whole)
    part.inert(["model_type"])
    own = part.get("model_type")
    kind = str(own.value) if own is not None else TOWERS[str(node.value) if node is not None else ""]
    if kind not in READERS:
        message = _recurrent(part, kind) or f"Architecture `{kind[:60]}` is not understood."
        part.refuse("model_type", message, f"known are {', '.join(READERS)}")
        part.finish()
    return part, kind


def _architecture(fields: Fields) -> str:
    """The model type. Raises InputError where it is missing, unknown, or a mixture of experts."""
    known = f"known are {', '.join(READERS)}"  # and none of them as a guess: names that are alike compute other things
    node = fields.get("model_type")
    name = node.value if node is not None else None
    experts = _experts(fields)
    if not isinstance(name, str):
        fields.refuse("model_type", "`model_type` names no architecture.", known)
    elif name not in READERS and (message := _recurrent(fields.part("text_config") or fields, name)) is not None:
        fields.refuse("model_type", message)
    elif experts is not None and name not in OF_EXPERTS:
        message = f"`{name[:60]}` is a mixture of experts (`{experts}`) that is not understood."
        fields.refuse("model_type", message)
    elif name not in READERS:
        fields.refuse("model_type", f"Architecture `{name[:60]}` is not understood.", known)
    fields.finish()
    return str(name)


def _recurrent(fields: Fields, name: str) -> str | None:
    """What is said of an architecture with layers that keep a state in the place of a cache; None of others."""
    for what, said, kinds, names in RECURRENT:
        field = next((one for one in said if fields.get(one) is not None), None)
        node = fields.get("layer_types")
        listed = node.value if node is not None and isinstance(node.value, tuple) else ()
        if field is None and any(item.value in kinds for item in listed):
            field = "layer_types"
        if field is not None:
            return f"`{name[:60]}` has {what} (`{field}`), which are not understood."
        if name in names:
            return f"`{name[:60]}` has {what}, which are not understood."
    return None


def _experts(fields: Fields) -> str | None:
    """The field that says that there are experts; None where there is none, or where it says that there are none."""
    said = {name: node.value for name in (*EXPERTS, EXPERTS_OF_A_TOKEN) if (node := fields.get(name)) is not None}
    dense = [name for name in EXPERTS if name in said and said[name] == 0 and not isinstance(said[name], bool)]
    if dense and all(name in dense for name in said if name in EXPERTS):
        return None
    return next((name for name, value in said.items() if value != 0 or isinstance(value, bool)), None)


CONFIG = "config.json"
BESIDE = {  # files in which tools keep what they did to the weights, by name
    "quantize_config.json": "quantised by GPTQ",  # AutoGPTQ, GPTQModel
    "quant_config.json": "quantised by AWQ",  # AutoAWQ, llm-awq
    "hf_quant_config.json": "quantised by ModelOpt",  # NVIDIA Model Optimizer
    "quantization_config.json": "quantised",
    "quanto_qmap.json": "quantised by Quanto",  # Hugging Face optimum-quanto
    "quantization_map.json": "quantised by Quanto",
    "adapter_config.json": "adapted",  # Hugging Face PEFT, which `transformers` applies by itself
}


def config_file(path: Path, loaded: bool = False) -> Path:
    """The config that `path` is, or that it has as a folder.

    Raises InputError where a folder has none, and where a file beside `config.json` says that the
    weights are not those of the config; quantised ones are, if they are `loaded`, as each tensor is looked at then.
    """
    try:
        if path.is_dir():
            path = path / CONFIG
            if not path.exists():
                raise fail(f"The folder `{path.parent}` has no `{CONFIG}`.")
        if path.name == CONFIG:
            _refuse_beside(path, loaded)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise fail(f"`{str(path)[:200]}` cannot be read: {reason}.") from None
    return path


def _refuse_beside(path: Path, loaded: bool) -> None:
    wrong = {name: what for name, what in BESIDE.items() if not (loaded and what.startswith("quantised"))}
    found = [(path.parent / name, what) for name, what in wrong.items() if (path.parent / name).exists()]
    hint = f"for the model as `{CONFIG}` alone describes it, give a copy of that by another name"
    if found:
        raise InputError(
            Diagnostic(f"`{beside}` says that the weights are {what}, and such weights are not imported.", hint=hint)
            for beside, what in found
        )
