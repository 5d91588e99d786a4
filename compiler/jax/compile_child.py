"""The part of a check by the compiler of devices that needs JAX, a process of its own: `python -m
escc.compiler.jax.compile_child FOLDER`.

FOLDER holds `step.py`, an emitted module, and `slice.json`: the `topology` of a TPU slice and its `config` as the TPU's
compiler calls them, and the `names` and `sizes` of the mesh; then the step is compiled ahead of time, from shapes
alone, for devices that need not be there. Or it has a `platform` of JAX, and the step is compiled for devices of that
which are here: `devices.json` says what they are called and how many there are, or `absent.txt` why there are none.
With a `target` beside that, a GPU as XLA reads it, and a `topology` of such, it is compiled ahead of time where too few
are here.
Beside it come `final.txt`, the optimised and scheduled module, and `memory.json`, bytes of a chip; or, where the
compiler refuses, `refused.txt`, what it says; or beside the memory, where nobody can write the module as text,
`unreadable.txt`, what JAX says of that. With `room_bytes` in `slice.json` the compiler is asked to do with so much HBM,
with `far` to place all in HBM and nothing in the memory near the arithmetic; only the memory comes then.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

# Before JAX looks: no chips are asked for, and nobody is asked over the network what this machine is.
ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # nothing runs, so that no lock on chips is needed
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # of libraries that look for a GPU
}
os.environ.update(ALONE)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from .check_child import load, step_arguments, unrolled  # noqa: E402

AHEAD = {"xla_gpu_autotune_level": 0}  # of GPUs that are not here: nothing can be measured
MEMORY = ("argument", "output", "alias", "temp", "generated_code")
PLACED = re.compile(r"\(color=0\)\nTotal bytes: (\d+) ")  # in HBM, the arguments with what is temporary


def main(folder: Path) -> None:
    """Compile the step in `folder` for its slice."""
    wanted = json.loads((folder / "slice.json").read_text())
    room, far = wanted.get("room_bytes"), wanted.get("far", False)
    shutil.rmtree(folder / "dump", ignore_errors=True)  # of the same step, compiled otherwise
    platform, devices, ahead = wanted.get("platform"), None, False
    if platform:
        devices, ahead = _devices(platform, wanted, folder)
        if devices is None:
            return
    try:
        module = load(folder / "step.py")
        mesh = Mesh(np.reshape(np.array(devices), wanted["sizes"]), wanted["names"]) if devices else _mesh(wanted)
        parts = bool(platform) and hasattr(module.FULL, "unrolled")  # as GPUs want them
        lowered = _lowered(module, mesh, parts)
        options: dict[str, Any] = {}
        if room is not None:
            options["xla_tpu_user_reserved_hbm_bytes"] = int(_hbm_bytes(mesh) - room)
        options |= {"xla_msa_enable": False} if far else {}
        options |= {} if platform else {"xla_dump_to": str(folder / "dump"), "xla_dump_hlo_as_text": True}
        compiled = _compiled(lowered, options, ahead)
    except jax.errors.JaxRuntimeError as error:
        (folder / "refused.txt").write_text(str(error))
        return
    found = compiled.memory_analysis()
    memory = {name: getattr(found, f"{name}_size_in_bytes") for name in MEMORY}
    if (temp := _temporaries(memory, folder / "dump")) is not None:
        memory["temp"] = temp
    (folder / "memory.json").write_text(json.dumps({**memory, "live": found.peak_memory_in_bytes}))
    if room is not None or far:
        return
    try:
        (folder / "final.txt").write_text(_text(compiled, folder / "dump"))
    except jax.errors.JaxRuntimeError as error:
        (folder / "unreadable.txt").write_text(str(error))


def _text(compiled: jax.stages.Compiled, folder: Path) -> str:
    """The module as text. Where JAX does not get it (of some versions for v5p), that which the compiler wrote."""
    try:
        text: str = compiled.as_text()
        return text
    except jax.errors.JaxRuntimeError:
        for written in folder.glob("*.after_optimizations.txt"):
            return written.read_text()
        raise


def _temporaries(memory: dict[str, int], folder: Path) -> int | None:
    """What temporaries take by the compiler's own report of what it placed in HBM, which is there for TPUs; None where
    it says nothing of that. JAX's figure has the room that is lost between them twice."""
    every = "".join(written.read_text() for written in folder.glob("*-memory-usage-report.txt"))
    found = PLACED.search(every)
    return int(found[1]) - memory["argument"] - memory["output"] + memory["alias"] if found else None


def _hbm_bytes(mesh: Mesh) -> float:
    """What a program may use of the HBM of a chip, by what the compiler says of one that takes a terabyte. It does in
    parts: of one array of that size libtpu 0.0.40 says nothing for v5p and v6e."""
    one = jax.ShapeDtypeStruct((2**36,), jnp.int8, sharding=NamedSharding(mesh, PartitionSpec()))
    try:
        jax.jit(lambda *parts: [jnp.negative(part) for part in parts]).lower(*[one] * 8).compile()
    except jax.errors.JaxRuntimeError as error:
        if found := re.search(r"available HBM \(([\d.]+)G\)", str(error)) or re.search(r"of ([\d.]+)G hbm", str(error)):
            return float(found[1]) * 2**30
    raise jax.errors.JaxRuntimeError("the compiler does not say how much HBM there is")


def _devices(platform: str, wanted: dict[str, Any], folder: Path) -> tuple[list[Any] | None, bool]:
    """As many devices of a platform as a mesh has, and whether they are described and not here; says what there is."""
    chips, ahead, absent, here = math.prod(wanted["sizes"]), False, "", []
    try:
        here = jax.devices(platform)
    except RuntimeError as error:
        absent = str(error)
    if len(here) < chips and "target" in wanted:
        try:
            here, ahead = _described(wanted), True
        except (NotImplementedError, AttributeError, jax.errors.JaxRuntimeError) as error:  # JAX is another, too
            absent = absent or str(error)
    if not here:
        (folder / "absent.txt").write_text(absent)
        return None, False
    said = {"kind": here[0].device_kind, "count": len(here), "ahead": ahead}
    (folder / "devices.json").write_text(json.dumps(said))
    return here[:chips] if len(here) >= chips else None, ahead


def _described(wanted: dict[str, Any]) -> list[Any]:
    """GPUs that need not be here. Where there are none JAX knows of no platform `gpu`, as it calls theirs while it
    lowers a program for them (jax-ml/jax, issue 23971)."""
    xla_bridge: Any = importlib.import_module("jax._src.xla_bridge")
    known = xla_bridge.canonicalize_platform
    topology = topologies.get_topology_desc("", "cuda", target_config=wanted["target"], topology=wanted["topology"])

    def canonicalize(platform: str) -> str:
        return "cuda" if platform == "gpu" else str(known(platform))

    xla_bridge.canonicalize_platform = canonicalize
    return list(topology.devices)


def _lowered(module: Any, mesh: Mesh, parts: bool) -> jax.stages.Lowered:
    """The step for the compiler; where JAX knows too little of GPUs that are not here for kernels, without these."""
    step = module.build(mesh, unrolled(module) if parts else module.FULL)
    try:
        return step.lower(*step_arguments(module, mesh, parts))
    except RuntimeError as error:
        if isinstance(error, NotImplementedError) or getattr(module, "triton", None) is None:
            raise
        module.triton = None
        return _lowered(module, mesh, parts)


def _compiled(lowered: jax.stages.Lowered, options: dict[str, Any], ahead: bool) -> jax.stages.Compiled:
    """The step, compiled, `ahead` for GPUs that are not here; by other kernels where those that are taken unmeasured
    have no tiles for it."""
    options = options | (AHEAD if ahead else {})
    try:
        return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if not ahead or "tile" not in str(error):
            raise
        return lowered.compile(compiler_options=options | {"xla_gpu_enable_triton_gemm": False})


def _mesh(wanted: dict[str, Any]) -> Mesh:
    config = {} if wanted["config"] is None else {"chip_config_name": wanted["config"]}
    topology = topologies.get_topology_desc(wanted["topology"], "tpu", **config)
    try:
        devices = topologies.make_mesh(topology, wanted["sizes"], wanted["names"]).devices
    except NotImplementedError:  # of 2x2x4 JAX takes both sides of 2 for the axis of 4
        chips = sorted(topology.devices, key=lambda chip: tuple(chip.coords))
        devices = np.reshape(np.array(chips), wanted["sizes"])
    return Mesh(devices, wanted["names"])  # whose axes are Auto, as those of the emitted module's own


if __name__ == "__main__":
    main(Path(sys.argv[1]))
