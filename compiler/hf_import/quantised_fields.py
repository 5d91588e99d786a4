"""The fields of what a config says of weights in few bits: which are read, which say nothing here, and what is refused.

Activations and caches are not rounded here, so what is said of how they would be is inert; so is how codes were found,
and by which kernels a library multiplies with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from .fields import Fields
from .json_text import Node, Value

EXCLUSIONS = (
    *("modules_to_not_convert", "ignore", "exclude_modules", "exclude", "ignored_layers", "llm_int8_skip_modules"),
)
EVERYWHERE = ("quant_method", "quant_algo", "kv_cache_scheme", "kv_cache_quant_algo", "version", *EXCLUSIONS)
_SEARCH = (  # how GPTQ, AWQ and AutoRound looked for codes, and what they run with
    *("tokenizer", "dataset", "damp_percent", "damp_auto_increment", "desc_act", "act_group_aware", "static_groups"),
    *("true_sequential", "meta", "backend", "model_seqlen", "block_name_to_quantize", "batch_size", "pad_token_id"),
    *("module_name_preceding_first_block", "max_input_length", "cache_block_outputs", "use_cuda_fp16", "use_exllama"),
    *("exllama_config", "disable_exllama", "model_name_or_path", "model_file_base_name", "quantizer", "uri", "mse"),
    *("parallel_packing", "failsafe", "gptaq", "gptaq_alpha", "v2", "v2_alpha", "offload_to_disk", "device"),
    *("offload_to_disk_path", "pack_impl", "vram_strategy", "do_fuse", "fuse_max_seq_len", "modules_to_fuse"),
    *("amp", "autoround_version", "enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input", "iters"),
    *("gradient_accumulate_steps", "low_gpu_mem_usage", "low_cpu_mem_usage", "lr", "minmax_lr", "lr_scheduler"),
    *("nsamples", "seqlen", "train_bs", "sampler", "seed", "momentum", "not_use_best_mse", "dynamic_max_gap"),
    *("quant_block_list", "to_quant_block_names", "quant_nontext_module", "truncation", "model_free", "act_bits"),
    *("act_data_type", "act_dynamic", "act_group_size", "act_sym", "static_kv_dtype", "scale_dtype", "model_dtype"),
    *("enable_torch_compile", "enable_alg_ext", "supported_types", "tokenizer_name_or_path", "optimum_version"),
)
_GROUPED = ("bits", "w_bit", "group_size", "q_group_size", "sym", "zero_point", "checkpoint_format", "format")
_GPTQ = (*_GROUPED, *_SEARCH, "packing_format", "dynamic", "extra_config", "modules_in_block_to_quantize")
FIELDS: Mapping[str, tuple[str, ...]] = {  # by method: those that are read or say nothing; `RESTING` has more
    "fp8": ("activation_scheme", "fmt", "weight_block_size", "scale_fmt", "dequantize"),
    "fbgemm_fp8": ("activation_scale_ub",),
    "mxfp4": ("dequantize",),
    "gptq": _GPTQ,
    "awq": _GPTQ,
    "auto-round": _GPTQ,
    "intel/auto-round": _GPTQ,
    "compressed-tensors": (
        *("config_groups", "format", "quantization_status", "global_compression_ratio", "run_compressed"),
    ),
    "modelopt": ("config_groups", "group_size", "producer", "sym", "symmetric", "weights", "input_activations"),
    "bitsandbytes": (
        *("_load_in_4bit", "_load_in_8bit", "load_in_4bit", "load_in_8bit", "bnb_4bit_compute_dtype"),
        *("bnb_4bit_quant_storage", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_blocksize"),
        *("llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_threshold"),
    ),
    "quark": (
        *("global_quant_config", "layer_quant_config", "algo_config", "softmax_quant_spec", "quant_mode", "export"),
        *("kv_cache_quant_config", "kv_cache_post_rope", "custom_mode", "log_severity_level"),
    ),
    "torchao": ("quant_type", "quant_type_kwargs", "untie_embedding_weights"),
}
# The values at which others are understood, and why not at more.
RESTING: Mapping[str, tuple[tuple[Value, ...], str]] = {
    "fmt": (("e4m3", "float8_e4m3fn"), "fp8 of another kind is not read"),
    "expert_dtype": (("fp8",), "experts in other bits than the rest are not supported"),
    "lm_head": ((False,), "a head in few bits is not supported"),
    "is_marlin_format": ((False,), "codes that are packed for one kernel are not read"),
    "pack_dtype": (("int32",), "codes are read in words of 32 bits"),
    "data_type": (("int",), "codes of AutoRound are read that are integers"),
    "include_input_output_embeddings": ((False,), "tables in few bits are not supported"),
    "pre_quant_scale": ((False,), "matrices whose inputs are scaled first are not supported"),
    "has_zero_point": ((False,), "zero points of such codes are not read"),
}
FORMATS: Mapping[str, tuple[str, ...]] = {  # of tensors, by the field that names them
    "checkpoint_format": ("gptq", "gptq_v2", "gemm"),
    "format": (
        *("gptq", "gptq_v2", "gemm", "dense", "mixed-precision", "pack-quantized", "int-quantized", "naive-quantized"),
        *("float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"),
    ),
    "packing_format": (
        *("auto_round", "auto_round:gptq", "auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:awq"),
        *("auto_round:auto_awq", "auto_round:llm_compressor"),
    ),
}
OTHER_LAYERS = "layers in other bits than others"
OVERRIDES = ("dynamic", "extra_config", "layer_quant_config")  # what is said of some layers
SCHEME = (  # of the weights of compressed-tensors, of their caches, and of the weights of Quark
    *("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder", "observer"),
    *("observer_kwargs", "scale_dtype", "zp_dtype", "dtype", "qscheme", "is_dynamic", "observer_cls", "ch_axis"),
    *("round_method", "scale_type", "scale_format", "scale_calculation_mode", "mx_element_dtype", "zero_point_type"),
    *("is_scale_quant", "calibration_based"),
)
TORCHAO = (  # what the objects of its types say: the size of groups, and what its kernels want
    *("group_size", "layout", "use_hqq", "zero_point_domain", "preserve_zero", "set_inductor_config", "version"),
    *("packing_format", "int4_packing_format", "int4_choose_qparams_algorithm", "act_mapping_type", "granularity"),
    *("activation_dtype", "activation_value_lb", "activation_value_ub", "activation_scale_dtype", "weight_dtype"),
    *("mm_config", "kernel_preference", "inner_k_tiles", "scale_dtype", "mapping_type"),
)


def check_fields(part: Fields, method: str, parts: Iterable[Fields | None]) -> None:
    """Note what a config says of weights in few bits that may change their arithmetic and is not understood. `parts`:
    what it says within of the weights of all layers."""
    part = replace(part, known={*EVERYWHERE, *FIELDS.get(method, FIELDS["modelopt"])})  # not what others have asked for
    for name, (values, why) in RESTING.items():
        part.must_be(name, values, why)
    for name, known in FORMATS.items():
        _check_format(part, name, known)
    if method == "awq":
        _check_format(part, "version", ("gemm", "exllama"))
    for name in ("transform_config", "rotation"):
        _check_empty(part, name, "rotations of what matrices read")
    for name in ("quantized_layers", "layer_type_quant_config"):
        _check_empty(part, name, OTHER_LAYERS)
    _check_sparsity(part)
    for name in overrides(part)[1]:
        part.refuse(name, f"`{name}` is set: {OTHER_LAYERS} are not supported.")
    scheme = part.part("kv_cache_scheme")
    for one in (*parts, scheme):
        if one is not None:
            one.inert(TORCHAO if method == "torchao" else SCHEME)
            one.refuse_unknown()
    groups = part.part("config_groups")
    for name in groups.entries if groups is not None else ():
        group = groups.part(name) if groups is not None else None
        if group is not None:
            group.inert(("targets", "weights", "input_activations", "output_activations"))
            _check_format(group, "format", FORMATS["format"])
            group.refuse_unknown()
    part.refuse_unknown()


def _check_format(part: Fields, name: str, known: tuple[str, ...]) -> None:
    """In which of several formats tensors are packed."""
    node = part.get(name)
    if node is not None and not (isinstance(node.value, str) and node.value.lower() in known):
        part.refuse(
            name, f"`{name}` is set: tensors that are packed otherwise are not read.", f"known are {', '.join(known)}"
        )


def _check_empty(part: Fields, name: str, what: str) -> None:
    """Refuse a field that says anything, in whatever lists and objects."""
    node = part.get(name)
    waiting = [] if node is None else [_plain(node)]
    while waiting:
        one = waiting.pop()
        if one and not isinstance(one, dict | list):
            part.refuse(name, f"`{name}` is set: {what} are not supported.")
            return
        waiting += list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else []


def _check_sparsity(part: Fields) -> None:
    """Matrices of which some numbers are left out are stored in another way; dense ones may say so."""
    sparsity = part.part("sparsity_config")
    if sparsity is not None and sparsity.entries:
        said = sparsity.get("format")
        if said is None or said.value != "dense":
            part.refuse("sparsity_config", "`sparsity_config` is set: matrices without their zeros are not read.")


def overrides(part: Fields) -> tuple[list[str], list[str]]:
    """Names of modules that stay plain by what is said of some, and the fields that have codes of another kind for
    others."""
    plain, other = list[str](), list[str]()
    for name in OVERRIDES:
        node = part.get(name)
        for module, entry in node.value.items() if node is not None and isinstance(node.value, Mapping) else ():
            if module.startswith("-:") or _stays(entry.node):
                plain.append(module)
            elif not _as_all(part, name, entry.node):
                other.append(name)
    return plain, list(dict.fromkeys(other))


def _stays(node: Node) -> bool:
    """Whether an object says that weights have 16 bits or more, or that nothing becomes of them."""
    said = _plain(node)
    bits = said.get("bits") if isinstance(said, dict) else None
    return (type(bits) is int and bits >= 16) or (isinstance(said, dict) and said.get("weight", 0) is None)


def _as_all(part: Fields, name: str, node: Node) -> bool:
    """Whether what is said of the weights of some layers is what is said of those of all."""
    if not isinstance(node.value, Mapping):
        return False
    if name != "layer_quant_config":
        return all(_plain(entry.node) == _plain(part.get(key)) for key, entry in node.value.items())
    every, own = part.part("global_quant_config"), node.value.get("weight")
    return every is not None and own is not None and _plain(own.node) == _plain(every.get("weight"))


def _plain(node: Node | None) -> object:
    """A value without its places."""
    if node is None:
        return None
    if isinstance(node.value, Mapping):
        return {name: _plain(entry.node) for name, entry in node.value.items()}
    return [_plain(one) for one in node.value] if isinstance(node.value, tuple) else node.value
