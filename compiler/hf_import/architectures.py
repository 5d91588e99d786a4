"""The architectures that are understood, and the way from a config to one of them.

What a missing field means is what it means to the library `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...ir.diagnostics import Span, did_you_mean
from ...ir.dtype import Dtype
from .common import check_common, read_dtype
from .fields import Fields
from .gpt import gpt2, gpt_neox, phi
from .json_text import Document
from .llama import gemma, llama, mistral, qwen2, qwen3
from .transformer import Transformer

Reader = Callable[[Fields, Dtype], Transformer]

READERS: Mapping[str, tuple[str, Reader]] = {  # by model type, with the class of the whole model
    "llama": ("LlamaForCausalLM", llama),
    "mistral": ("MistralForCausalLM", mistral),
    "qwen2": ("Qwen2ForCausalLM", qwen2),
    "qwen3": ("Qwen3ForCausalLM", qwen3),
    "gemma": ("GemmaForCausalLM", gemma),
    "gpt2": ("GPT2LMHeadModel", gpt2),
    "gpt_neox": ("GPTNeoXForCausalLM", gpt_neox),
    "phi": ("PhiForCausalLM", phi),
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")


def read_config(document: Document, dtype: Dtype | None = None) -> Transformer:
    """The model that a config describes, its weights of `dtype` or of the type that the config names.

    Raises InputError with every field that is wrong, missing, or not understood.
    """
    fields = Fields(document.source, document.entries, Span(1, 1))
    head, read = READERS[_architecture(fields)]
    check_common(fields, head)
    model = read(fields, read_dtype(fields, dtype))
    fields.refuse_unknown()
    fields.finish()
    return model


def _architecture(fields: Fields) -> str:
    """The model type. Raises InputError where it is missing, unknown, or a mixture of experts."""
    known = f"known are {', '.join(READERS)}"
    node = fields.get("model_type")
    name = node.value if node is not None else None
    experts = next((expert for expert in EXPERTS if expert in fields.entries), None)
    if not isinstance(name, str):
        fields.refuse("model_type", "`model_type` names no architecture.", known)
    elif experts is not None:
        message = f"`{name[:60]}` is a mixture of experts (`{experts}`), and only dense models are imported."
        fields.refuse("model_type", message)
    elif name not in READERS:
        fields.refuse(
            "model_type", f"Architecture `{name[:60]}` is not understood.", did_you_mean(name, READERS) or known
        )
    fields.finish()
    return str(name)
