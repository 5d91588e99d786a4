"""escc, the layout compiler for sharded Transformers: the names that scripts and notebooks use.

    import escc

    plan = escc.compile(escc.load("palm-540b"), "4x4x4", "tpu-v4", phases="decode")
    print(plan.report())

What is listed here is public; every other module is private, and may change. Nothing is imported before it is asked
for, so that `import escc` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiler.plan.pipeline import load, parse
    from .compiler.report.compiled_model import CompiledModel, compile
    from .compiler.report.compiled_pipeline import CompiledPipeline
    from .compiler.report.explain_model import explain
    from .compiler.report.explain_stages import ExplainedPipeline
    from .compiler.report.explain_text import Explained
    from .compiler.run.answer_text import answers
    from .compiler.sweep.run import SweepResult, sweep
    from .cost.hardware import Hardware
    from .ir.diagnostics import EsccError, InputError, InternalError
    from .ir.mesh import Mesh
    from .ir.program import Program
    from .passes.plan import NoPlan, Outcome

_HOMES = {
    "CompiledModel": "compiler.report.compiled_model",
    "CompiledPipeline": "compiler.report.compiled_pipeline",
    "EsccError": "ir.diagnostics",
    "Explained": "compiler.report.explain_text",
    "ExplainedPipeline": "compiler.report.explain_stages",
    "Hardware": "cost.hardware",
    "InputError": "ir.diagnostics",
    "InternalError": "ir.diagnostics",
    "Mesh": "ir.mesh",
    "NoPlan": "passes.plan",
    "Outcome": "passes.plan",
    "Program": "ir.program",
    "SweepResult": "compiler.sweep.run",
    "answers": "compiler.run.answer_text",
    "compile": "compiler.report.compiled_model",
    "explain": "compiler.report.explain_model",
    "load": "compiler.plan.pipeline",
    "parse": "compiler.plan.pipeline",
    "sweep": "compiler.sweep.run",
}

__all__ = [
    "CompiledModel",
    "CompiledPipeline",
    "EsccError",
    "Explained",
    "ExplainedPipeline",
    "Hardware",
    "InputError",
    "InternalError",
    "Mesh",
    "NoPlan",
    "Outcome",
    "Program",
    "SweepResult",
    "answers",
    "compile",
    "explain",
    "load",
    "parse",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module `escc` has no attribute `{name}`")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
