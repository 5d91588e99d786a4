"""A model of transformers with random weights, wholly in float64, and its weights under the names that an import gives.

The weights go the way of a user's: transformers saves them, the weight map says what is made of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from escc.compiler.hf_import.checkpoint import map_of, open_checkpoint
from escc.compiler.hf_import.checkpoint_files import checkpoint_tensors
from escc.compiler.hf_import.description import Transformer
from escc.compiler.hf_import.parameter_parts import parameter_parts
from escc.compiler.hf_import.readers import READERS
from escc.compiler.hf_import.weight_map import parameters
from escc.ir.program import Program

torch.set_num_threads(1)  # tests run beside each other, and threads that wait for each other spin
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
    module = kind.removesuffix("_text")
    own = f"transformers.models.{module}.modeling_{module}"
    if importlib.util.find_spec(own) is not None:
        importlib.import_module(own)  # read only when first wanted, otherwise
    else:
        assert AutoModelForCausalLM._model_mapping[CONFIG_MAPPING[kind]]  # that of another architecture, likewise
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
    # Falcon adds slopes twice where attention is "eager".
    attention = "sdpa" if config.get("alibi") else "eager"
    build = AutoModelForCausalLM.from_config
    if type(known) not in AutoModelForCausalLM._model_mapping:  # of a part of a model that sees
        kind = config["model_type"]
        module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        build = getattr(module, READERS[kind][0])._from_config
    model = build(known, attn_implementation=attention, experts_implementation="eager", dtype=torch.float64).eval()
    for module in model.modules():
        if getattr(module, "zero_expert_num", 0):  # those that do nothing have weights here, as in no checkpoint
            module.gate_up_proj = torch.nn.Parameter(module.gate_up_proj[: module.num_routed_experts].detach())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases and scales matter, and so does which token is read.
            table = "embed" in name or "wte" in name
            spread = 0.3 if parameter.dim() == 1 else 1.0 if table else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model


def stored(model: PreTrainedModel, folder: Path, program: Program, described: Transformer) -> dict[str, Array]:
    """Every weight by the name that it has in the imported program, made as the weight map says of what transformers
    saves."""
    model.save_pretrained(folder)
    checkpoint = open_checkpoint(folder)
    made = map_of(described, program, checkpoint)
    tensors, found = checkpoint_tensors(folder), {}
    for name, parameter in parameters(program).items():
        shape = (*parameter.counts, *parameter.shape)
        whole = tuple(slice(0, n) for n in shape)
        (found[name],) = parameter_parts(tensors, str(made[name]), shape, np.float64, [whole])
    return found
