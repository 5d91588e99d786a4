"""Bytes that chips send in JAX: the plan, the module compiled from it, and what `jit` makes of the same layouts.

Writes the table `jax_bytes.md`: `make bench-jax`, or `python benchmarks/jax_bytes.py`. Each program is
compiled at full size from shapes alone, for 64 CPU devices, in a process of its own; bytes are read off
the module after SPMD partitioning. For `jit` the unsharded program is given the plan's layouts of what
is stored and of its results, and nothing else. Not a test: what differs shows in the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from escc.compiler.backends.jax_module import collectives_of
from escc.compiler.backends.jax_source import emit_jax
from escc.compiler.driver import compile_phase, load
from escc.compiler.jax_check import planned, sent_bytes
from escc.cost.hardware import load_hardware
from escc.ir.mesh import Mesh, parse_mesh
from escc.passes.choose import Options

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "jax_bytes.md"
CHIPS = "4x4x4"
PARTITIONING = "spmd-partitioning"
MEGA = 1e6


@dataclass(frozen=True)
class Case:
    """A program, one of its phases, and a file of pins beside it."""

    name: str
    model: str
    phase: str
    pins: str | None = None


@dataclass(frozen=True)
class Row:
    """What a case sends, bytes of one chip: as planned, in the module, and in that of `jit`. `equal`: whether
    the module has the plan's collectives, one by one."""

    name: str
    planned: float
    module: float
    jit: float
    equal: bool


def cases() -> tuple[Case, ...]:
    """The feed-forward under five layouts; blocks, and a whole model, in both phases."""
    layers = ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
    models = ("palm-540b-plain", "palm-540b", "megatron-530b", "llama-3-70b")
    return (
        *(Case(f"feed-forward, {name}", "feed-forward", "main", f"examples/pins/{name}.pins") for name in layers),
        *(Case(f"{model}, {phase}", model, phase) for model in models for phase in ("decode", "prefill")),
    )


def measure(case: Case) -> Row:
    """Plan a case, emit it, and compile what is emitted in a process of its own."""
    file = ROOT / "examples" / f"{case.model}.esti"
    pins = [ROOT / case.pins] if case.pins else []
    program = load(file if file.exists() else Path(case.model), None, pins)
    mesh = parse_mesh(CHIPS)
    done = compile_phase(program, case.phase, mesh, Options(load_hardware("tpu-v4")))
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        (path / "step.py").write_text(emit_jax(done.program, done.spmd, done.estimate), encoding="utf-8")
        flags = f"--xla_force_host_platform_device_count={mesh.chips}"
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        subprocess.run([sys.executable, __file__, "--modules", folder], env=environment, check=True)
        step, jit = (collectives_of((path / f"{name}.txt").read_text(), mesh) for name in ("step", "jit"))
    wanted = planned(done.spmd)
    sent = [float(sent_bytes(found)) for found in (wanted, step, jit)]
    return Row(case.name, sent[0], sent[1], sent[2], step == wanted)


def write_modules(folder: Path) -> None:
    """Compile the step in `folder`, and its unsharded program with the step's shardings; keep both modules."""
    jax: Any = importlib.import_module("jax")
    spec = importlib.util.spec_from_file_location("step", folder / "step.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    mesh = module.make_mesh()
    auto = jax.make_mesh(mesh.axis_sizes, mesh.axis_names, (jax.sharding.AxisType.Auto,) * len(mesh.axis_names))
    shapes = module.tensors(module.FULL, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))
    ends = [jax.ShapeDtypeStruct((), jax.numpy.int32)] * (len(module.SPECS) - len(shapes))

    def placed(on: Any, tree: Any) -> Any:
        return jax.tree.map(partial(jax.sharding.NamedSharding, on), tree)

    arguments = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        (*shapes, *ends),
        placed(mesh, module.SPECS),
    )
    plain = jax.jit(
        partial(module.dense, module.FULL),
        in_shardings=placed(auto, module.SPECS),
        out_shardings=placed(auto, module.RESULTS),
    )
    steps = {"step": module.build(mesh).lower(*arguments), "jit": plain.lower(*shapes, *ends)}
    for name, lowered in steps.items():
        passes = folder / name
        lowered.compile(compiler_options={"xla_dump_to": str(passes), "xla_dump_hlo_pass_re": PARTITIONING})
        [text] = passes.glob(f"*.after_{PARTITIONING}.*")
        (folder / f"{name}.txt").write_text(text.read_text())


def table(rows: list[Row], mesh: Mesh) -> str:
    """The rows as Markdown."""
    cells = [
        f"| {row.name} | {row.planned / MEGA:,.2f} | {row.module / MEGA:,.2f} | {row.module / row.planned:.3f} "
        f"| {'yes' if row.equal else '**no**'} | {row.jit / MEGA:,.2f} | {row.jit / row.planned:.2f} |"
        for row in rows
    ]
    lines = [
        "# Bytes that a chip sends in JAX",
        "",
        f"Written by `make bench-jax`, for {mesh.chips} chips ({mesh}) of tpu-v4, full size. MB of one chip and one",
        "execution of the whole program. *jit* is the unsharded program with the plan's layouts of what is stored",
        "and of the results, and no other word on how to shard; the weight-gathered feed-forwards (wg) are pinned,",
        "and pay at more tokens than the 512 here, so there it finds less to send.",
        "",
        "| program | plan, MB | module, MB | ratio | each collective equal | jit, MB | jit to plan |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *cells,
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and report; the file is written when every case was measured. 1 if one is not as planned."""
    known = {case.name: case for case in cases()}
    parser = argparse.ArgumentParser(description="Count the bytes that chips send in JAX.")
    parser.add_argument("--cases", nargs="+", choices=known, metavar="CASE", help=f"only these of {', '.join(known)}")
    parser.add_argument("--modules", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.modules:
        write_modules(Path(arguments.modules))
        return 0
    rows = []
    for name in arguments.cases or known:
        rows.append(measure(known[name]))
        print(rows[-1], file=sys.stderr)
    text = table(rows, parse_mesh(CHIPS))
    print(text, end="")
    if not arguments.cases:
        TABLE.write_text(text, encoding="utf-8")
    return int(not all(row.equal for row in rows))


if __name__ == "__main__":
    sys.exit(main())
