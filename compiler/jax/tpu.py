"""The check of an emitted JAX program by the TPU's own compiler, ahead of time: no TPU is needed.

The module is compiled at full size for the slice, in a process of its own. Its collectives, once optimised and
scheduled, are compared with the plan's, the memory that it takes with what was planned, and what it copies of
parameters and caches is listed.

Where memory is left the compiler takes it, to gather weights before they are needed: a module that takes more than was
planned is compiled once more, for chips on which hardly more than that is free.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from ...cost.hardware import Hardware, Torus
from ...cost.platform import Platform
from ...cost.topology import FAR_NAMES
from ...ir.diagnostics import InputError, InternalError, fail
from ...ir.mesh import Mesh
from ...ir.record import record
from ..emit.jax_source import emit_jax
from ..plan.compiled import CompiledPhase
from .check import require_jax
from .module_report import ROOM, ModuleReport, peak_of, report_of
from .planned import planned_memory
from .processes import run_processes

CHILD = f"{__package__}.compile_child"
GET = "install it with `pip install 'jax[tpu]'`; it compiles without a TPU"
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "": 1}


@record
class Slice:
    """A slice as the TPU's compiler calls it, `v5e:4x8`, and how it sees the cores of a chip."""

    topology: str
    config: str | None


def require_tpu_compiler() -> None:
    """Raise InputError where JAX or libtpu is missing, or libtpu is older than what JAX asks for."""
    require_jax()
    try:
        found = version("libtpu")
    except PackageNotFoundError:
        raise fail("The TPU's compiler, libtpu, is not installed.", hint=GET) from None
    asked = next((line for line in requires("jax") or [] if re.match(r"libtpu\b", line)), "")
    if (wanted := re.search(r"[=>]=\s*([\d.]+)", asked)) and _numbers(found) < _numbers(wanted[1]):
        raise fail(f"libtpu {found} is too old for JAX {version('jax')}, which asks for {wanted[1]}.", hint=GET)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version, as far as it has three."""
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])


def slice_of(mesh: Mesh, hardware: Hardware) -> Slice:
    """The slice that a mesh fills, as the TPU's compiler calls it.

    Raises InputError for chips that it does not know, meshes of several slices, and shapes that are not offered.
    """
    compiler, torus = hardware.tpu_compiler, hardware.fabric
    if compiler is None or not isinstance(torus, Torus):
        hint = "name a TPU with `--hardware`, or the `topology` of yours in a table `[tpu-compiler]` of its file"
        raise fail(f"The TPU's compiler has no name for {hardware.name}.", hint=hint)
    far = [name for name, size in mesh.axes if name in FAR_NAMES and size > 1]
    sides = [size for _, size in mesh.axes if size > 1]
    if far or (sides and not torus.offers(sides)):
        shape = "x".join(str(size) for size in mesh.sizes)
        offered = ", ".join("x".join(map(str, each)) or "1" for each in torus.slices)
        step = torus.slice_step_chips
        more = f", and sides of multiples of {step}" if step else ""
        what = f"Axis `{far[0]}` joins slices, and" if far else f"{shape} is no slice of {hardware.chip}, and"
        raise fail(f"{what} the TPU's compiler takes one slice.", hint=f"its slices are {offered}{more}")
    return Slice(f"{compiler.topology}:{_sides(sides, torus)}", compiler.config)


def _sides(sides: list[int], torus: Torus) -> str:
    """The sides of a slice, as many as its torus has dimensions."""
    return "x".join(str(side) for side in (*sides, *[1] * (torus.dimensions - len(sides))))


def check_tpu(compiled: CompiledPhase, step: str | None = None) -> ModuleReport:
    """Compile the module of one phase at full size for the slice that its mesh fills: `step`, its text, as emitted by
    default.

    Raises InputError where the compiler is missing or too old, or knows no such slice, or where the module does not
    fit; InternalError where it does not compile otherwise.
    """
    require_tpu_compiler()
    spmd, where = compiled.spmd, slice_of(compiled.spmd.mesh, compiled.hardware)
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        step = step or emit_jax(compiled.program, spmd, compiled.estimate, platform=Platform.TPU)
        (path / "step.py").write_text(step, encoding="utf-8")
        wanted = {"topology": where.topology, "config": where.config, **_mesh(spmd.mesh)}
        _compile(path, wanted)
        if (refused := path / "refused.txt").exists():
            raise _refusal(refused.read_text(encoding="utf-8"), compiled, where)
        memory = json.loads((path / "memory.json").read_text(encoding="utf-8"))
        if (unreadable := path / "unreadable.txt").exists():
            raise _unreadable(unreadable.read_text(encoding="utf-8"), memory, compiled, where)
        text = (path / "final.txt").read_text(encoding="utf-8")
        held = float(planned_memory(compiled).total_bytes)
        short = _held_bytes(path, {**wanted, "room_bytes": ROOM * held}) if peak_of(memory) > ROOM * held else None
        far = _held_bytes(path, {**wanted, "far": True}) if peak_of(memory) * ROOM < held else None
    return report_of(compiled, where.topology, text, memory, short, far)


def _compile(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Compile the step in `folder`, as the child process says."""
    (folder / "slice.json").write_text(json.dumps(wanted), encoding="utf-8")
    run_processes([(CHILD, str(folder))], 1)


def _held_bytes(folder: Path, wanted: Mapping[str, Any]) -> float | None:
    """The most bytes that the module in `folder` holds if it is compiled once more, as `wanted`; None where the
    compiler does not say."""
    (folder / "memory.json").unlink()
    _compile(folder, wanted)
    held = folder / "memory.json"
    return peak_of(json.loads(held.read_text(encoding="utf-8"))) if held.exists() else None


def _mesh(mesh: Mesh) -> dict[str, Any]:
    return {"names": mesh.names, "sizes": mesh.sizes}


def _refusal(said: str, compiled: CompiledPhase, where: Slice) -> InputError | InternalError:
    """What the compiler says of a module that it does not compile, in our words."""
    if "topology" in said.lower() and "INVALID_ARGUMENT" in said:
        return fail(f"The TPU's compiler knows no slice {where.topology}.", hint=said.splitlines()[0][:200])
    needed, most = _needed_bytes(said)
    if "RESOURCE_EXHAUSTED" not in said or needed is None or most is None:
        return InternalError(f"the TPU's compiler does not take phase `{compiled.phase}`: {said[:300]}")
    memory = planned_memory(compiled)
    least = "at least " if "temporaries" in said else ""  # which it calls all that it placed before it gave up
    largest = re.search(r"Shape: (\S+\[[\d,]*\])", said)
    what = f"; the largest is {largest[1]}" if largest else ""
    return fail(
        f"The module of phase `{compiled.phase}` does not fit {where.topology}: it takes {least}{needed / 1e9:.2f} "
        f"GB, {(needed - most) / 1e9:.2f} GB more than the {most / 1e9:.2f} GB that a program may use{what}.",
        hint=f"the plan counts {float(memory.total_bytes) / 1e9:.2f} GB, of which parameters and caches take "
        f"{float(memory.stored_bytes) / 1e9:.2f} GB; plan for less with `--hbm-fraction`, or for more chips",
    )


def _unreadable(said: str, memory: Mapping[str, int], compiled: CompiledPhase, where: Slice) -> InputError:
    """What is known of a module that compiles and that JAX cannot write as text."""
    held = float(planned_memory(compiled).total_bytes)
    return fail(
        f"The module of phase `{compiled.phase}` compiles for {where.topology}, and takes {peak_of(memory) / 1e9:.2f} "
        f"GB of a chip where {held / 1e9:.2f} GB are planned; JAX cannot write it as text, so that its collectives are "
        "not compared.",
        hint=f"another JAX or libtpu may; this one says: {said.splitlines()[0][:160]}",
    )


def _needed_bytes(said: str) -> tuple[float | None, float | None]:
    """What a module takes and what it may, from the two forms in which the compiler says so."""
    forms = (
        r"\((?P<needed>[\d.]+)(?P<u>[KMGT]?)\) exceeds available HBM \((?P<most>[\d.]+)(?P<v>[KMGT]?)\)",
        r"Used (?P<needed>[\d.]+)(?P<u>[KMGT]?) of (?P<most>[\d.]+)(?P<v>[KMGT]?) hbm",
    )
    for form in forms:
        if found := re.search(form, said):
            return float(found["needed"]) * UNITS[found["u"]], float(found["most"]) * UNITS[found["v"]]
    return None, None
