"""The check of an emitted JAX program by the compiler of the GPUs of this machine.

The module is compiled at full size for them, in a process of its own, and read like that of a TPU: its collectives
beside the plan's, what it holds, what it copies. A mesh takes as many GPUs as it has chips; without them nothing can
be asked of their compiler, which measures kernels on a GPU.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from ...ir.diagnostics import InputError, InternalError, fail
from ..emit.jax_source import emit_jax
from ..plan.compiled import CompiledPhase
from .check import require_jax
from .module_report import ModuleReport, report_of
from .processes import run_processes

CHILD = f"{__package__}.compile_child"
PLATFORM = "cuda"  # as JAX calls it
GET = "on a machine with GPUs `pip install 'jax[cuda13]'` brings JAX what it needs; `--backend jax` takes CPU devices"


def check_gpu(compiled: CompiledPhase, platform: str = PLATFORM) -> ModuleReport:
    """Compile the module of one phase at full size for the GPUs of this machine; `platform`: for other devices of JAX.

    Raises InputError where JAX is missing, or has no GPUs or too few, or where the module does not fit; InternalError
    where it does not compile otherwise.
    """
    require_jax()
    spmd = compiled.spmd
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        step = emit_jax(compiled.program, spmd, compiled.estimate, platform=compiled.platform)
        (path / "step.py").write_text(step, encoding="utf-8")
        (path / "slice.json").write_text(json.dumps({"platform": platform, "sizes": spmd.mesh.sizes}))
        run_processes(
            [(CHILD, folder)], spmd.mesh.chips, platform=f"{platform},cpu"
        )  # without CPUs JAX does not say why
        if (absent := path / "absent.txt").exists():
            said = " ".join(absent.read_text(encoding="utf-8").split())[:160]
            raise fail(f"JAX finds no GPU on this machine: {said.rstrip('.')}.", hint=GET)
        here = json.loads((path / "devices.json").read_text(encoding="utf-8"))
        if here["count"] < spmd.mesh.chips:
            raise fail(
                f"The mesh has {spmd.mesh.chips} chips, and this machine {here['count']} x {here['kind']}.",
                hint="the compiler of GPUs takes them to be here; name a smaller mesh with `--chips`",
            )
        if (refused := path / "refused.txt").exists():
            raise _refusal(refused.read_text(encoding="utf-8"), compiled, here["kind"])
        memory = json.loads((path / "memory.json").read_text(encoding="utf-8"))
        text = (path / "final.txt").read_text(encoding="utf-8")
    return report_of(compiled, f"{spmd.mesh.chips} x {here['kind']}", text, memory)


def _refusal(said: str, compiled: CompiledPhase, kind: str) -> InputError | InternalError:
    """What the compiler says of a module that it does not compile, in our words."""
    if "RESOURCE_EXHAUSTED" not in said:
        return InternalError(f"the compiler of {kind} does not take phase `{compiled.phase}`: {said[:300]}")
    memory = compiled.memory
    return fail(
        f"The module of phase `{compiled.phase}` does not fit {kind}: {' '.join(said.split())[:200]}",
        hint=f"the plan counts {float(memory.total_bytes) / 1e9:.2f} GB, of which parameters and caches take "
        f"{float(memory.stored_bytes) / 1e9:.2f} GB; plan for less with `--hbm-fraction`, or for more chips",
    )
