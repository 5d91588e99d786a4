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

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax.check import check_jax
from escc.compiler.jax.hlo import collectives_of
from escc.compiler.jax.planned import planned, sent_bytes
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.options import Options

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "jax_bytes.md"
MESH = Mesh.parse("4x4x4")
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


@dataclass(frozen=True)
class LoopedRow:
    """The same with loops, of which it has `loops`. `hidden`: the share of ops and communication that they hide;
    `permutes`: in the plan, and in the optimised module; `difference`: the largest of a run in float32, relative."""

    name: str
    loops: int
    hidden: float
    permutes: tuple[int, int]
    planned: float
    module: float
    difference: float
    equal: bool


def cases() -> tuple[Case, ...]:
    """The feed-forward under five layouts; blocks, and a whole model, in both phases."""
    layers = ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
    models = ("palm-540b-plain", "palm-540b", "megatron-530b", "llama-3-70b")
    return (
        *(Case(f"feed-forward, {name}", "feed-forward", "main", f"examples/pins/{name}.pins") for name in layers),
        *(Case(f"{model}, {phase}", model, phase) for model in models for phase in ("decode", "prefill")),
    )


def compiled(case: Case, overlap: bool) -> CompiledPhase:
    """The plan of a case, with loops or without."""
    file = ROOT / "examples" / f"{case.model}.esti"
    pins = [ROOT / case.pins] if case.pins else []
    program = load(file if file.exists() else Path(case.model), None, pins)
    return compile_phase(
        program,
        case.phase,
        MESH,
        Options(Hardware.of_paper("tpu-v4"), overlap=overlap),
    )


def measure(case: Case) -> Row:
    """Plan a case, emit it, and compile what is emitted in a process of its own."""
    done = compiled(case, overlap=False)
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        text = emit_jax(done.program, done.spmd, done.estimate, platform=done.platform)
        (path / "step.py").write_text(text, encoding="utf-8")
        flags = f"--xla_force_host_platform_device_count={MESH.chips}"
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        subprocess.run([sys.executable, __file__, "--modules", folder], env=environment, check=True)
        step, jit = (collectives_of((path / f"{name}.txt").read_text(), MESH) for name in ("step", "jit"))
    wanted = planned(done.spmd, done.estimate, tpu=done.for_tpu)
    sent = [float(sent_bytes(found)) for found in (wanted, step, jit)]
    return Row(case.name, sent[0], sent[1], sent[2], step == wanted)


def measure_looped(case: Case) -> LoopedRow:
    """Plan a case with loops, and check what is emitted."""
    done = compiled(case, overlap=True)
    report, totals = check_jax(done), done.estimate.totals()
    permutes = sum(times for sent, times in report.planned.items() if sent.kind == "permute")
    return LoopedRow(
        case.name,
        len(done.estimate.loops),
        totals.hidden_s / (totals.total_s + totals.hidden_s),
        (permutes, report.final["permute"]),
        float(sent_bytes(report.planned)),
        float(sent_bytes(report.module)),
        report.wide.reference,
        report.sound,
    )


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


def table(rows: list[Row]) -> list[str]:
    """The rows as Markdown."""
    cells = [
        f"| {row.name} | {row.planned / MEGA:,.2f} | {row.module / MEGA:,.2f} | {row.module / row.planned:.3f} "
        f"| {'yes' if row.equal else '**no**'} | {row.jit / MEGA:,.2f} | {row.jit / row.planned:.2f} |"
        for row in rows
    ]
    return [
        "# Bytes that a chip sends in JAX",
        "",
        f"Written by `make bench-jax`, for {MESH.chips} chips ({MESH}) of tpu-v4, full size. MB of one chip and one",
        "execution of the whole program. *jit* is the unsharded program with the plan's layouts of what is stored",
        "and of the results, and no other word on how to shard; the weight-gathered feed-forwards (wg) are pinned,",
        "and pay at more tokens than the 512 here, so there it finds less to send.",
        "",
        "| program | plan, MB | module, MB | ratio | each collective equal | jit, MB | jit to plan |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *cells,
    ]


def looped_table(rows: list[LoopedRow]) -> list[str]:
    """The rows of programs with loops as Markdown."""
    cells = [
        f"| {row.name} | {row.loops} | {row.hidden:.1%} | {row.permutes[0]:,} | {row.permutes[1]:,} "
        f"| {row.module / row.planned:.3f} | {'yes' if row.equal else '**no**'} | {row.difference:.1e} |"
        for row in rows
    ]
    return [
        "## With `--overlap`",
        "",
        "The same plans, gathers and reduce-scatters in loops with einsums where that hides time. The bytes are",
        "those above; collective-permutes are counted in the plan and in the optimised module, and *difference* is",
        "the largest from the unsharded program at small sizes in float32, relative to the largest element.",
        "",
        "| program | loops | hidden | permutes planned | found | bytes, ratio | each collective equal | difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *cells,
    ]


def main() -> int:
    """Measure and report; the file is written when every case was measured. 1 if one is not as planned."""
    known = {case.name: case for case in cases()}
    parser = argparse.ArgumentParser(description="Count the bytes that chips send in JAX.")
    parser.add_argument("--cases", nargs="+", choices=known, metavar="CASE", help=f"only these of {', '.join(known)}")
    parser.add_argument("--looped", action="store_true", help="only the programs with loops")
    parser.add_argument("--modules", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.modules:
        write_modules(Path(arguments.modules))
        return 0
    rows, looped = [], []
    for name in arguments.cases or known:
        if not arguments.looped:
            rows.append(measure(known[name]))
            print(rows[-1], file=sys.stderr)
        looped.append(measure_looped(known[name]))
        print(looped[-1], file=sys.stderr)
    text = "\n".join([*([] if arguments.looped else [*table(rows), ""]), *looped_table(looped)]) + "\n"
    print(text, end="")
    if not arguments.cases and not arguments.looped:
        TABLE.write_text(text, encoding="utf-8")
    return int(not (all(row.equal for row in rows) and all(row.equal for row in looped)))


if __name__ == "__main__":
    sys.exit(main())
