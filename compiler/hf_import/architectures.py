"""The architectures that are understood, and the way from a config to one of them.

What a missing field means, or null in a field, is what it means to the library `transformers`
(https://github.com/huggingface/transformers), in version 5.23 where versions differ.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, Span, fail
from ...ir.dtype import Dtype
from .common import check_at_rest, check_common, read_dtype
from .description import Transformer
from .fields import Fields
from .json_text import Document, Node
from .quantised import read_caches, read_quantised
from .readers import (
    BESIDE_TEXT,
    CLASSES,
    FLAT,
    OF_EXPERTS,
    OTHERS,
    PART_SIZES,
    READERS,
    SCORED_AS_ALONE,
    TEXT_PARTS,
    TIED_BY_EITHER,
    TIED_OUTSIDE,
    TOWERS,
    VERSIONS,
)

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_OF_A_TOKEN = "num_experts_per_tok"
TIE = "tie_word_embeddings"


def read_config(document: Document, dtype: Dtype | None = None, kept: Dtype | None = None) -> Transformer:
    """The model that a config describes, its weights of `dtype` or of the type that the config names; of a model with
    several parts the one that reads and writes text. `kept`: the type of what a checkpoint has in plain numbers, which
    counts where the config names none. Without that it is f32, but bf16 of a model that is quantised: what stands
    beside codes of few bits is that (gpt-oss, MiniMax-M2), and not of twice as many.

    Raises InputError with every field that is wrong, missing, or not understood.
    """
    whole = Fields(document.source, document.entries, Span(1, 1))
    fields, kind, head = _text_part(whole)
    read = READERS[kind][1]
    check_common(fields, head)
    quantised = read_quantised(fields) or (None if fields is whole else read_quantised(whole))
    caches = read_caches(fields) or (None if fields is whole else read_caches(whole))
    default = kept or (Dtype.F32 if quantised is None else Dtype.BF16)
    named = read_dtype(fields, dtype, default)
    if fields is not whole:
        named = (
            read_dtype(whole, dtype, default)
            if fields.get("dtype") is None and fields.get("torch_dtype") is None
            else named
        )
        fields = _with_tie(fields, whole)
    stack = read(fields)
    if fields is not whole and _kind(whole) in TOWERS.keys() - set(SCORED_AS_ALONE):
        stack = replace(stack, logit_scale=1.0, logit_cap=None)
    model = Transformer(**vars(stack), architecture=kind, dtype=named, quantised=quantised, caches=caches)
    check_at_rest(fields)
    fields.refuse_unknown()
    fields.finish()
    return model


def _kind(whole: Fields) -> str:
    """The model type, empty where there is none."""
    node = whole.get("model_type")
    return node.value if node is not None and isinstance(node.value, str) else ""


def _text_part(whole: Fields) -> tuple[Fields, str, str | None]:
    """The fields of the part of a model that reads and writes text, its architecture, and the class of the whole model
    where that is known."""
    name = _kind(whole)
    refused = any(name in names for _, _, _, names in OTHERS)
    part = None if refused or name in READERS else _part(whole, name)
    if part is None and (name in FLAT or name in VERSIONS):
        whole.inert((*BESIDE_TEXT, *(["auto_map"] if name in VERSIONS else [])))
        kind = _version(whole, name) if name in VERSIONS else TOWERS[name]
        return whole, kind, READERS[kind][0] if name in FLAT else None
    if part is None:
        kind = _architecture(whole)
        return whole, kind, READERS[kind][0]
    own = part.get("model_type")
    kind = str(own.value) if own is not None else TOWERS.get(name, "")
    if kind not in READERS and name not in TOWERS:
        _architecture(whole)
    part.inert(["model_type", "auto_map"])  # it is the code of the whole model that is named
    if kind not in READERS:
        message = _recurrent(part, kind) or f"Architecture `{kind[:60]}` is not understood."
        part.refuse("model_type", message, f"known are {', '.join(READERS)}")
        part.finish()
    return replace(part, meant=PART_SIZES.get(kind, {})), kind, None


def _with_tie(fields: Fields, whole: Fields) -> Fields:
    """The fields of the part for text with what counts of `tie_word_embeddings`, which the whole model may say, too.
    What that means where it says nothing is not taken from its class: of Mistral 3 this is true in version 5, and
    Mistral Small 3.1, written by version 4, has a head of its own."""
    node = whole.get("model_type")
    name = node.value if node is not None else None
    thinker = whole.part("thinker_config") if whole.get("thinker_config") is not None else None
    holder = whole if thinker is None else thinker
    said = holder.get(TIE)
    counts = TIE not in fields.entries or name in TIED_OUTSIDE or (name in TIED_BY_EITHER and _is_true(said))
    return fields.with_entry(TIE, holder.entries[TIE]) if said is not None and counts else fields


def _is_true(node: Node | None) -> bool:
    return node is not None and node.value is True


def _part(whole: Fields, name: str) -> Fields | None:
    """The part for text of a model that has one: where it stands apart, and is of an architecture that is understood
    or belongs to a model that is known to have one."""
    found = [whole.part(one) for one in TEXT_PARTS if whole.get(one) is not None]
    thinker = whole.part("thinker_config") if whole.get("thinker_config") is not None else None
    found += [thinker.part("text_config")] if thinker is not None else []  # beside what hears, sees and speaks
    part = next((one for one in found if one is not None), None)
    own = part.get("model_type") if part is not None else None
    known = own is not None and isinstance(own.value, str) and own.value in READERS
    return part if known or name in TOWERS else None


def _version(whole: Fields, name: str) -> str:
    """The architecture of the text of a model whose versions have different ones."""
    node = whole.get("version")
    kind = VERSIONS[name].get(str(node.value) if node is not None else "")
    if kind is None:
        whole.refuse("version", f"`{name}` is known in the versions {', '.join(filter(None, VERSIONS[name]))}.")
        whole.finish()
    return str(kind)


def _architecture(fields: Fields) -> str:
    """The model type. Raises InputError where it is missing, unknown, or a mixture of experts."""
    known = f"known are {', '.join(READERS)}"  # and none of them as a guess: names that are alike compute other things
    node = fields.get("model_type")
    name = node.value if node is not None else None
    experts = _experts(fields)
    if not isinstance(name, str):
        fields.refuse("model_type", "`model_type` names no architecture.", known)
    elif name not in READERS and (message := _other(fields, name)) is not None:
        fields.refuse("model_type", message)
    elif experts is not None and name not in OF_EXPERTS:
        message = f"`{name[:60]}` is a mixture of experts (`{experts}`) that is not understood."
        fields.refuse("model_type", message)
    elif name not in READERS:
        fields.refuse("model_type", f"Architecture `{name[:60]}` is not understood.", known)
    fields.finish()
    classes = fields.get("architectures")
    named = [item.value for item in classes.value] if classes is not None and isinstance(classes.value, tuple) else []
    return next((CLASSES[one] for one in named if isinstance(one, str) and one in CLASSES), str(name))


def _other(fields: Fields, name: str) -> str | None:
    """What is said of an architecture, or of its part for text, that has layers of another kind."""
    parts = [fields.part(one) for one in TEXT_PARTS if fields.get(one) is not None]
    return next((said for part in (*parts, fields) if part is not None and (said := _recurrent(part, name))), None)


def _recurrent(fields: Fields, name: str) -> str | None:
    """What is said of an architecture with layers that keep a state in the place of a cache; None of others."""
    for what, said, kinds, names in OTHERS:
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
