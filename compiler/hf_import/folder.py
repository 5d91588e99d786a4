"""A model's folder: where its config is, and what stands beside it that changes the model."""

from __future__ import annotations

from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, fail

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


def config_file(path: Path) -> Path:
    """The config that `path` is, or that it has as a folder.

    Raises InputError where a folder has none, and where a file beside `config.json` says that the
    weights are not those of the config.
    """
    try:
        if path.is_dir():
            path = path / CONFIG
            if not path.exists():
                raise fail(f"The folder `{path.parent}` has no `{CONFIG}`.")
        if path.name == CONFIG:
            _refuse_beside(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise fail(f"`{str(path)[:200]}` cannot be read: {reason}.") from None
    return path


def _refuse_beside(path: Path) -> None:
    found = [(path.parent / name, what) for name, what in BESIDE.items() if (path.parent / name).exists()]
    hint = f"for the model as `{CONFIG}` alone describes it, give a copy of that by another name"
    if found:
        raise InputError(
            Diagnostic(f"`{beside}` says that the weights are {what}, and such weights are not imported.", hint=hint)
            for beside, what in found
        )
