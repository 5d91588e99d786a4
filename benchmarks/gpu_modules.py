"""What the compiler of GPUs makes of emitted modules: bytes, memory and copies beside the plan.

Writes the table `gpu_modules.md`: `make bench-gpu`, or `python benchmarks/gpu_modules.py`. Each program is compiled at
full size, ahead of time where there are no GPUs. Not a test: what differs shows in the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

from tpu_modules import copied_cell, first_cells, report

from escc.compiler.jax.gpu import check_gpu
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.hardware import Hardware
from escc.ir.choices import chooses, with_capacity
from escc.ir.diagnostics import InputError, InternalError
from escc.ir.mesh import Mesh
from escc.passes.options import Options

TABLE = Path(__file__).resolve().parent / "gpu_modules.md"
CHIP, CONTEXT = "h100", 2048
DECODE, PREFILL = ("decode", 32), ("prefill", 8)  # and the sequences
NODE, NODES = "gpu=8", "node=2,gpu=8"
MODELS = (
    ("llama-3-8b", "gpu=2"),
    ("palm-8b", "gpu=4"),
    ("llama-2-13b", "gpu=4"),
    ("gpt-neox-20b", NODE),
    ("gemma-3-27b", NODE),
    ("qwen3-32b", NODE),
    ("palm-62b", NODE),
    ("llama-3-70b", NODE),
    ("llama-3-70b", NODES),
    ("gpt-3-175b", NODES),
    ("mixtral-8x7b", NODE),
    ("gpt-oss-120b", NODE),
    ("llama-4-scout", NODES),
    ("qwen3-235b-a22b", NODES),
    ("deepseek-v3", "node=4,gpu=8"),
)
PREFILLS = (
    ("llama-3-8b", "gpu=2"),
    ("palm-8b", "gpu=4"),
    ("llama-3-70b", NODE),
    ("mixtral-8x7b", NODE),
    ("gpt-oss-120b", NODE),
)


@dataclass(frozen=True)
class Case:
    """A phase of a model on a mesh of GPUs, with so many sequences."""

    model: str
    mesh: str
    phase: str
    batch: int

    @property
    def name(self) -> str:
        """What it is called in the table."""
        return f"{self.model}, {self.phase}, {self.mesh}"


def cases() -> Iterator[Case]:
    """All cases, in the order of the table."""
    for phase, models in ((DECODE, MODELS), (PREFILL, PREFILLS)):
        yield from (Case(model, mesh, *phase) for model, mesh in models)


def row(case: Case) -> str:
    """A case as a line of the table."""
    sizes = {"B": case.batch, "M": CONTEXT} | ({"L": CONTEXT} if case.phase == PREFILL[0] else {})
    program = load(case.model, sizes, phase=case.phase)
    program = with_capacity(program, Fraction(1)) if chooses(program) else program
    one = compile_phase(program, case.phase, Mesh.parse(case.mesh), Options(Hardware.load(CHIP)))
    try:
        found = check_gpu(one)
        return f"| {' | '.join([case.name, *first_cells(found), copied_cell(found)])} |"
    except InternalError as error:
        return f"| {case.name} | {str(error)[:160]} | | | | | |"


def table(rows: list[str]) -> list[str]:
    """The rows as Markdown."""
    return [
        "# What the compiler of GPUs makes of emitted modules",
        "",
        f"Written by `make bench-gpu`, with JAX {version('jax')}: full size, compiled for H100s in nodes of 8. Decode",
        f"of {DECODE[1]} sequences of {CONTEXT:,} tokens, prefill of {PREFILL[1]}. Bytes are those that a chip sends",
        "in the whole program, *kinds equal* whether each kind of collective sends what was planned. GB are the most",
        "that a chip holds by the plan, *live* the ratio to it of the most that the module has live at once, *copied*",
        "GB of parameters and caches in copies of 16 MB and more. Modules with experts have room for what the plan",
        "counts.",
        "",
        "| program | plan, MB | sent, ratio | kinds equal | plan, GB | live | copied |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]


def main() -> int:
    """Compile and report; the file is written when every case was compiled."""
    parser = argparse.ArgumentParser(description="Compile emitted modules for GPUs.")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only cases whose names have all of these")
    only = parser.parse_args().only or ()
    rows = (row(case) for case in cases() if all(text in case.name for text in only))
    try:
        report(rows, table, None if only else TABLE)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
