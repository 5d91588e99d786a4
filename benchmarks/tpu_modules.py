"""What the TPU's compiler makes of emitted modules: bytes, memory and copies beside the plan.

Writes the table `tpu_modules.md`: `make bench-tpu`, or `python benchmarks/tpu_modules.py`. Each program is compiled
ahead of time at full size, without a TPU, by the libtpu that is installed. Not a test: what differs shows in the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from escc.compiler.jax.module_report import ModuleReport
from escc.compiler.jax.planned import sent_bytes
from escc.compiler.jax.tpu import check_tpu, require_tpu_compiler
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, InternalError
from escc.ir.mesh import Mesh
from escc.passes.choose import Options

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "tpu_modules.md"
SLICES = (("tpu-v4", "4x4x4"), ("tpu-v5e", "8x8"), ("tpu-v5p", "4x4x4"), ("tpu-v6e", "8x8"))
LAYERS = ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
MODELS = ("palm-540b", "palm-540b-plain", "megatron-530b", "llama-3-70b", "qwen3-32b", "gpt-neox-20b", "palm-62b")
MEGA, GIGA = 1e6, 1e9


@dataclass(frozen=True)
class Case:
    """A phase of a program on a slice of a chip, with a file of pins beside it, with loops or without."""

    model: str
    phase: str
    chip: str
    chips: str
    pins: str | None = None
    overlap: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        parts = [self.model, *([self.pins] if self.pins else []), self.phase, f"{self.chip} {self.chips}"]
        return ", ".join([*parts, *(["overlap"] if self.overlap else [])])


def cases() -> Iterator[Case]:
    """The feed-forward under five layouts on v4, with loops and without; examples and presets in decode on all slices,
    and in prefill, which takes long to compile, on v4 and v5e; PaLM with loops."""
    for overlap in (False, True):
        yield from (Case("feed-forward", "main", *SLICES[0], pins, overlap) for pins in LAYERS)
    for phase in ("decode", "prefill"):
        for chip, chips in SLICES if phase == "decode" else SLICES[:2]:
            yield from (Case(model, phase, chip, chips) for model in MODELS)
    yield Case("palm-540b", "decode", *SLICES[0], overlap=True)


def planned(case: Case) -> CompiledPhase:
    """The plan of a case. Raises InputError where the slice does not hold it."""
    file = ROOT / "examples" / f"{case.model}.esti"
    pins = [ROOT / "examples" / "pins" / f"{case.pins}.pins"] if case.pins else []
    program = load(file if file.exists() else Path(case.model), None, pins)
    hardware = Hardware.of_paper(case.chip) if pins else Hardware.load(case.chip)
    return compile_phase(program, case.phase, Mesh.parse(case.chips), Options(hardware, overlap=case.overlap))


def row(case: Case) -> str:
    """A case as a line of the table."""
    try:
        one = planned(case)
    except InputError:
        return f"| {case.name} | does not fit by its plan | | | | | | | |"
    try:
        found = check_tpu(one)
    except (InputError, InternalError) as error:
        said = error.diagnostics[0].message if isinstance(error, InputError) else str(error)
        return f"| {case.name} | {said.split(': ', 1)[-1][:160]} | | | | | | | |"
    return f"| {case.name} | {' | '.join(_cells(found))} |"


def _cells(found: ModuleReport) -> Iterator[str]:
    wanted, sent = (float(sent_bytes(which)) for which in (found.planned, found.module))
    yield f"{wanted / MEGA:,.2f}"
    yield f"{sent / wanted:.3f}" if wanted else "-"
    yield "yes" if found.equal else "**no**"
    yield f"{found.planned_bytes / GIGA:.2f}"
    yield f"{found.peak_bytes / found.planned_bytes:.3f}"
    yield f"{found.short_bytes / found.planned_bytes:.3f}" if found.short_bytes is not None else "-"
    yield f"{sum(copy.bytes * copy.times for copy in found.copies) / GIGA:.2f}"
    yield f"{sum(one.beside_products for one in found.hidden)} of {sum(one.every for one in found.hidden)}"


def table(rows: list[str]) -> list[str]:
    """The rows as Markdown."""
    return [
        "# What the TPU's compiler makes of emitted modules",
        "",
        f"Written by `make bench-tpu`, with JAX {version('jax')} and libtpu {version('libtpu')}: full size, compiled",
        "ahead of time, no TPU. Bytes are those that a chip sends in the whole program, *kinds equal* whether each",
        "kind of collective sends what was planned; GB are the most that a chip holds, *ratio* the compiled module's",
        "to the planned; *short* the same where a chip has 1.05 times the planned, for modules that take more: where",
        "there is room the compiler gathers weights before they are needed. It is less where values lie in the memory",
        "near the arithmetic (134 MB on v4), on which no plan counts. *Copied* are parameters and caches in copies of",
        "16 MB and more, each time; *hidden* how many of the collectives that do not wait have a matmul between start",
        "and done. Chips as `escc compile` has them, those of the feed-forward as the paper has them.",
        "",
        "| program | plan, MB | sent, ratio | kinds equal | plan, GB | held, ratio | short | copied, GB | hidden |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]


def main() -> int:
    """Measure and report; the file is written when every case was measured."""
    parser = argparse.ArgumentParser(description="Compile emitted modules ahead of time for TPU slices.")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only cases whose names have all of these")
    arguments = parser.parse_args()
    require_tpu_compiler()
    rows = []
    for case in cases():
        if all(text in case.name for text in arguments.only or ()):
            rows.append(row(case))
            print(rows[-1], file=sys.stderr, flush=True)
    text = "\n".join(table(rows)) + "\n"
    print(text, end="")
    if not arguments.only:
        TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
