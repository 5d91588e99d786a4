"""The check of an emitted JAX program by the compiler of GPUs.

The module is compiled at full size, in a process of its own, and read like that of a TPU: its collectives beside the
plan's, what it holds, what it copies. It is compiled for the GPUs of this machine where they are as many as the mesh
has chips; else ahead of time for the GPUs of the hardware, if these are known well enough (gpu_targets.py), which takes
JAX's CUDA plugin and no GPU. Kernels are not measured then, so that others may be chosen; collectives, copies and what
is held hardly differ (LLaMA-3-8B, a step on one H200: the same to the byte).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from ...ir.diagnostics import InputError, InternalError, fail
from ..emit.jax_source import emit_jax
from ..plan.compiled import CompiledPhase
from .check import require_jax
from .gpu_targets import GPUS, gpu_target, gpu_topology
from .module_report import ModuleReport, report_of
from .processes import run_processes

CHILD = f"{__package__}.compile_child"
PLATFORM = "cuda"  # as JAX calls it
CPUS = "`--backend jax` takes CPU devices"
GET = (
    "`pip install 'jax[cuda13]'` brings JAX the compiler of GPUs, which compiles for "
    f"{', '.join(GPUS)} where there are none; {CPUS}"
)


def check_gpu(compiled: CompiledPhase, platform: str = PLATFORM) -> ModuleReport:
    """Compile the module of one phase at full size for GPUs; `platform`: for other devices of JAX that are here.

    Raises InputError where JAX is missing, or has no GPUs or too few, or where the module does not fit; InternalError
    where it does not compile otherwise.
    """
    require_jax()
    spmd = compiled.spmd
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        step = emit_jax(compiled.program, spmd, compiled.estimate, platform=compiled.platform)
        (path / "step.py").write_text(step, encoding="utf-8")
        told = {"platform": platform, "sizes": spmd.mesh.sizes, "names": spmd.mesh.names}
        target = gpu_target(compiled.hardware) if platform == PLATFORM else None
        if target is not None:
            told |= {"target": target, "topology": gpu_topology(compiled.hardware, spmd.mesh)}
        (path / "slice.json").write_text(json.dumps(told))
        run_processes(
            [(CHILD, folder)], spmd.mesh.chips, platform=f"{platform},cpu"
        )  # without CPUs JAX does not say why
        if (absent := path / "absent.txt").exists():
            said = " ".join(absent.read_text(encoding="utf-8").split())[:160]
            raise fail(f"JAX finds no GPU on this machine: {said.rstrip('.')}.", hint=_hint(compiled, target))
        here = json.loads((path / "devices.json").read_text(encoding="utf-8"))
        if here["count"] < spmd.mesh.chips:
            raise fail(
                f"The mesh has {spmd.mesh.chips} chips, and this machine {here['count']} x {here['kind']}.",
                hint=f"name a smaller mesh with `--chips`; {_hint(compiled, target)}",
            )
        if (refused := path / "refused.txt").exists():
            raise _refusal(refused.read_text(encoding="utf-8"), compiled, here["kind"])
        memory = json.loads((path / "memory.json").read_text(encoding="utf-8"))
        text = (path / "final.txt").read_text(encoding="utf-8")
    ahead = ", ahead of time" if here.get("ahead") else ""
    return report_of(compiled, f"{spmd.mesh.chips} x {here['kind']}{ahead}", text, memory)


def _hint(compiled: CompiledPhase, target: str | None) -> str:
    """What to do where there are no GPUs, or too few; `target`: what is compiled for without any, if that is known."""
    if target is not None:
        return GET
    known = ", ".join(GPUS)
    return f"without GPUs modules are compiled for {known}, and {compiled.hardware.name} is none of these; {CPUS}"


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
