"""What the TPU's compiler makes of emitted modules: bytes, memory and copies beside the plan.

Writes the table `tpu_modules.md`: `make bench-tpu`, or `python benchmarks/tpu_modules.py`. Each program is compiled
ahead of time at full size, without a TPU, by the libtpu that is installed. Not a test: what differs shows in the table.

It takes an hour or more. What was found of each program is kept in `out/tpu_modules.jsonl` as it comes, with a digest
of all that it follows from: a run that was cut goes on where it was, and one after a change compiles what has changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax.module_report import ROOM, ModuleReport
from escc.compiler.jax.planned import planned_of, sent_bytes
from escc.compiler.jax.tpu import check_tpu, require_tpu_compiler, slice_of
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.ir.choices import chooses, with_capacity
from escc.ir.diagnostics import InputError, InternalError
from escc.ir.mesh import Mesh
from escc.passes.options import Options

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benchmarks" / "tpu_modules.md"
KEPT = ROOT / "out" / "tpu_modules.jsonl"
COLUMNS = 10  # beside the program
SLICES = (("tpu-v4", "4x4x4"), ("tpu-v5e", "8x8"), ("tpu-v5p", "4x4x4"), ("tpu-v6e", "8x8"))
LAYERS = ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
MODELS = ("palm-540b", "palm-540b-plain", "megatron-530b", "llama-3-70b", "qwen3-32b", "gpt-neox-20b", "palm-62b")
EXPERTS = (("mixtral-8x7b", "2x2x2"), ("gpt-oss-120b", "2x2x4"))
OTHERS = (
    ("llama-3-8b", "2x2x1"),
    ("palm-8b", "2x2x1"),
    ("llama-2-13b", "2x2x4"),
    ("gemma-3-27b", "2x2x2"),
    ("gpt-3-175b", "2x4x4"),
    ("palm-540b-multihead", "4x4x4"),
    ("palm-540b-serial", "4x4x4"),
    ("llama-4-scout", "4x4x4"),
    ("qwen3-235b-a22b", "4x4x4"),
    ("deepseek-v3", "4x4x4"),
    ("kimi-k2", "4x4x8"),
)
PREFILLS = (  # of the models of both lists, on slices that hold them
    ("mixtral-8x7b", "2x4x4"),
    ("gpt-oss-120b", "4x4x4"),
    ("llama-3-8b", "2x2x4"),
    ("palm-8b", "2x2x2"),
    ("llama-2-13b", "2x4x4"),
    ("gemma-3-27b", "2x4x4"),
    ("gpt-3-175b", "4x4x4"),
    ("palm-540b-multihead", "4x4x4"),
    ("palm-540b-serial", "4x4x4"),
    ("llama-4-scout", "4x4x4"),
    ("qwen3-235b-a22b", "4x4x4"),
    ("deepseek-v3", "4x4x4"),
    ("kimi-k2", "4x4x8"),
)
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
    and in prefill, which takes long to compile, on v4 and v5e; PaLM with loops; decode and prefill of the other presets
    on slices of v4 that hold them."""
    for overlap in (False, True):
        yield from (Case("feed-forward", "main", *SLICES[0], pins, overlap) for pins in LAYERS)
    for phase in ("decode", "prefill"):
        for chip, chips in SLICES if phase == "decode" else SLICES[:2]:
            yield from (Case(model, phase, chip, chips) for model in MODELS)
    yield Case("palm-540b", "decode", *SLICES[0], overlap=True)
    yield from (Case(model, "decode", "tpu-v4", chips) for model, chips in (*EXPERTS, *OTHERS))
    yield Case("kimi-k2", "decode", *SLICES[1])  # which it nearly fills
    yield from (Case(model, "prefill", "tpu-v4", chips) for model, chips in PREFILLS)


def planned(case: Case) -> CompiledPhase:
    """The plan of a case. Raises InputError where the slice does not hold it."""
    file = ROOT / "examples" / f"{case.model}.esti"
    pins = [ROOT / "examples" / "pins" / f"{case.pins}.pins"] if case.pins else []
    program = load(file if file.exists() else Path(case.model), None, pins)
    program = with_capacity(program, Fraction(1)) if chooses(program) else program
    hardware = Hardware.of_paper(case.chip) if pins else Hardware.load(case.chip)
    return compile_phase(program, case.phase, Mesh.parse(case.chips), Options(hardware, overlap=case.overlap))


class Kept:
    """What was found of programs before: the lines of a table by the digest of all that they follow from, on disk as
    they come. Of a line that was cut off as it was written nothing is known."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: dict[str, str] = {}
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                one = json.loads(line)
            except json.JSONDecodeError:
                continue
            self.rows[one["digest"]] = one["row"]

    def add(self, digest: str, row: str) -> None:
        """Keep a line."""
        self.rows[digest] = row
        self.file.parent.mkdir(exist_ok=True)
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"digest": digest, "row": row}) + "\n")


def row(case: Case, kept: Kept) -> str:
    """A case as a line of the table."""
    try:
        one = planned(case)
    except InputError:
        return _said(case, "does not fit by its plan")
    step = emit_jax(one.program, one.spmd, one.estimate, platform=Platform.TPU)
    digest = digest_of(case, one, step)
    if digest not in kept.rows:
        try:
            kept.add(digest, _compiled(case, one, step))
        except InternalError as error:  # which may have been the machine's
            return _said(case, str(error).split(": ", 1)[-1])
    return kept.rows[digest]


def digest_of(case: Case, one: CompiledPhase, step: str) -> str:
    """What a line of the table follows from: the module, for what it is compiled and by what, and what is planned."""
    sent = sorted((str(each), times) for each, times in planned_of(one).items())
    found = case.name, slice_of(one.spmd.mesh, one.hardware), one.memory.total_bytes, sent, step
    return sha256(repr((version("jax"), version("libtpu"), *found)).encode()).hexdigest()


def _compiled(case: Case, one: CompiledPhase, step: str) -> str:
    try:
        found = check_tpu(one, step)
    except InputError as error:
        return _said(case, error.diagnostics[0].message.split(": ", 1)[-1])
    return f"| {case.name} | {' | '.join(_cells(found))} |"


def _said(case: Case, what: str) -> str:
    return f"| {case.name} | {what[:160]} |{' |' * (COLUMNS - 1)}"


def first_cells(found: ModuleReport) -> Iterator[str]:
    """What is said of a module whatever compiled it: what it sends, and what it has live at once."""
    wanted, sent = (float(sent_bytes(which)) for which in (found.planned, found.module))
    yield f"{wanted / MEGA:,.2f}"
    yield f"{sent / wanted:.3f}" if wanted else "-"
    yield "yes" if found.equal else "**no**"
    yield f"{found.planned_bytes / GIGA:.2f}"
    yield f"{found.memory['live'] / found.planned_bytes:.3f}"


def copied_cell(found: ModuleReport) -> str:
    """GB of parameters and caches that it copies."""
    return f"{sum(copy.bytes * copy.times for copy in found.copies) / GIGA:.2f}"


def _cells(found: ModuleReport) -> Iterator[str]:
    yield from first_cells(found)
    yield f"{found.peak_bytes / found.planned_bytes:.3f}"
    yield "-" if found.far_bytes is None else f"{found.far_bytes / found.planned_bytes:.3f}"
    yield _short(found)
    yield copied_cell(found)
    yield f"{sum(one.beside_products for one in found.hidden)} of {sum(one.every for one in found.hidden)}"


def _short(found: ModuleReport) -> str:
    if found.short_bytes is not None:
        return f"{found.short_bytes / found.planned_bytes:.3f}"
    return "-" if found.peak_bytes <= ROOM * found.planned_bytes else "**refused**"


def table(rows: list[str]) -> list[str]:
    """The rows as Markdown."""
    return [
        "# What the TPU's compiler makes of emitted modules",
        "",
        f"Written by `make bench-tpu`, with JAX {version('jax')} and libtpu {version('libtpu')}: full size, compiled",
        "ahead of time, no TPU. Bytes are those that a chip sends in the whole program, *kinds equal* whether each",
        "kind of collective sends what was planned. GB are the most that a chip holds by the plan, and three",
        "ratios to it say what the module takes. *Live* is the most that is live at once, in whatever memory,",
        "which is what a plan counts: more where values are fetched ahead into the memory near the arithmetic (134",
        "MB on v4). *Placed* is what the compiler takes with all of the chip's memory to place it in, by its own",
        "report: more by the room that is lost between, and by what it gathers before it is needed, which it does",
        "where there is room, and less by what lies near the arithmetic. *Far* is the same with nothing there, for",
        "modules that take less than 1 / 1.05 of the planned. *Short* is the same where the compiler is asked to do",
        "with 1.05 times the planned, for modules that take more, *refused* where it says no. *Copied* are GB of",
        "parameters and caches in copies of 16 MB and more, each time; *hidden* how many of the collectives that do",
        "not wait have a matmul between start and done. Chips as `escc compile` has them, those of the feed-forward",
        "as the paper has them. Modules with experts have room for what the plan counts.",
        "",
        "| program | plan, MB | sent, ratio | kinds equal | plan, GB | live | placed | far | short | copied | hidden |",
        f"|{' --- |' * (COLUMNS + 1)}",
        *rows,
    ]


def report(rows: Iterable[str], lines: Callable[[list[str]], list[str]], file: Path | None) -> None:
    """Print rows as they are made, then the `lines` of their table, which are written to a `file` if there is one."""
    made = []
    for one in rows:
        print(one, file=sys.stderr, flush=True)
        made.append(one)
    text = "\n".join(lines(made)) + "\n"
    print(text, end="")
    if file is not None:
        file.write_text(text, encoding="utf-8")


def main() -> int:
    """Measure and report; the file is written when every case was measured."""
    parser = argparse.ArgumentParser(description="Compile emitted modules ahead of time for TPU slices.")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only cases whose names have all of these")
    parser.add_argument("--fresh", action="store_true", help="compile what was compiled before, too")
    arguments = parser.parse_args()
    require_tpu_compiler()
    if arguments.fresh:
        KEPT.unlink(missing_ok=True)
    only, kept = arguments.only or (), Kept(KEPT)
    rows = (row(case, kept) for case in cases() if all(text in case.name for text in only))
    report(rows, table, None if only else TABLE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
