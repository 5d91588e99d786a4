"""Times whole compilations and writes the table `results.md`: `make bench`, or `python benchmarks/run.py`.

Every run is a process of its own, started as a user starts it, so imports and printing count. Times
are seconds on the wall, memory is the peak of the resident set in MB (10^6 bytes). What the compiler
says about itself (building, solving, status, bound) is read from its JSON. Not a test: a bar that is
missed is shown in the table, and a case that fails is a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import BinaryIO

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.md"
ESCC = Path(sysconfig.get_path("scripts")) / "escc"
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in a unit of ru_maxrss
NONE = "–"
LONG = 5  # times the limit of a run is that of a case that is measured once
# 540B over six slice sizes, nine batches and two weight formats.
SWEEP = (
    *("palm-540b", "--chips", "8..256", "--batch", "1,4..512", "--context", "2048"),
    *("--weights", "bf16,int8", "--phase", "decode"),
)

STREAM = (
    *("llama-3-70b", "--chips", "8", "--hardware", "h100", "--engine", "vllm"),
    *("--input", "7000", "--output", "1000", "--max-latency", "30ms"),
)
PAPER = ("--datasheet", "--network", "flat")  # the convention of the paper

FIGURES = {
    "wall_s": "whole process, median s",
    "choose_s": "building and solving, median s",
    "solve_s": "solving, median s",
    "peak_mb": "peak memory, MB",
}


@dataclass(frozen=True)
class Case:
    """A compilation: the arguments of an `escc` command, and the most that a figure of FIGURES should be.
    `once`: it takes long, and is measured once, without a run to warm up. `blocks`: with the repeat of the model, its
    first argument, written out as so many blocks; 0 leaves it as it is."""

    name: str
    arguments: tuple[str, ...]
    bars: tuple[tuple[str, float], ...] = ()
    command: str = "compile"
    once: bool = False
    blocks: int = 0


@dataclass(frozen=True)
class Run:
    """One process: seconds on the wall and of CPU, peak MB, and its JSON; or else one line on why it failed."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    report: Mapping[str, object]
    failure: str | None = None


@dataclass(frozen=True)
class Result:
    """A case and its runs, the warm-up left out; one failed run stands alone."""

    case: Case
    runs: tuple[Run, ...]

    @property
    def failure(self) -> str | None:
        """Why the case failed, in one line."""
        return next((run.failure for run in self.runs if run.failure), None)

    def figure(self, name: str) -> float | None:
        """A figure of FIGURES, or None when the compiler does not report it."""
        match name:
            case "wall_s":
                return median(run.wall_s for run in self.runs)
            case "peak_mb":
                return max(run.peak_mb for run in self.runs)
            case "choose_s":
                parts = [self.reported("build_s"), self.reported("solve_s")]
                known = [part for part in parts if part is not None]
                return sum(known) if len(known) == len(parts) else None
            case _:
                return self.reported(name)

    def reported(self, key: str) -> float | None:
        """The median of a number in the JSON of the runs, or None where it is missing."""
        numbers = [n for run in self.runs if (n := _number(run.report, key)) is not None]
        return median(numbers) if len(numbers) == len(self.runs) else None

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective of the last run."""
        objective, bound = (_number(self.runs[-1].report, key) for key in ("objective_s", "bound_s"))
        if objective is None or bound is None:
            return None
        return (objective - bound) / objective if objective else 0.0


def _number(report: Mapping[str, object], key: str) -> float | None:
    value = report.get(key)
    return float(value) if isinstance(value, int | float) else None


def cases() -> tuple[Case, ...]:
    """What is measured, with the bars that the project sets itself."""
    palm = ("examples/palm-540b.esti", "--chips", "4x4x4", "--phase")
    decode = (*palm, "decode")
    peak = ("peak_mb", 500.0)
    prefills = (
        Case(f"prefill-{batch}", (*palm, "prefill", "--set", f"B={batch}", *PAPER), (("solve_s", 10.0), peak))
        for batch in (1, 4, 8, 64, 512)
    )
    four_axes = ("examples/palm-540b.esti", "--chips", "4x4x4x2", "--phase", "decode", *PAPER)
    five_axes = ("examples/palm-540b.esti", "--chips", "4x4x4x2x2", "--phase", "decode", *PAPER)
    nodes = ("--hardware", "h100", "--phase", "decode", "--parts", "--chips")
    feed_forward = ("examples/feed-forward.esti", "--chips", "4x4x4", "--objective", "communication")
    return (
        Case("decode", decode, (peak,)),
        Case("decode-paper", (*decode, *PAPER), (("wall_s", 1.5), ("choose_s", 0.5), peak)),
        Case("decode-check", (*decode, *PAPER, "--check"), (peak,)),
        Case("decode-4x4x4x2", four_axes, (("wall_s", 8.0), peak)),
        Case("decode-4x4x4x2x2", five_axes, (("wall_s", 10.0), ("peak_mb", 1000.0))),
        Case("parts-8x8", ("llama-3-70b", *nodes, "node=8,gpu=8"), (("wall_s", 10.0), ("peak_mb", 1000.0))),
        Case("parts-64x8", ("palm-540b", *nodes, "node=64,gpu=8"), (("wall_s", 30.0), ("peak_mb", 4000.0))),
        *(
            Case(f"written-out-{n}", decode, (("wall_s", most_s), peak), blocks=n)
            for n, most_s in ((4, 10.0), (16, 5.0), (64, 15.0))
        ),
        *prefills,
        Case("feed-forward", feed_forward, (peak,)),
        Case("decode-4-links", (*decode, "--set", "B=4", "--datasheet"), (("wall_s", 3.0), peak)),
        # Memory binds in these two.
        Case("both-phases", ("llama-3-70b", "--chips", "4x4x4"), (("wall_s", 20.0), peak)),
        Case("prefill-tight", ("gpt-neox-20b", "--chips", "4x4x4", "--phase", "prefill"), (("wall_s", 20.0), peak)),
        Case("whole-model", ("palm-540b", "--chips", "4x4x4", *PAPER), (("wall_s", 15.0), peak)),
        Case("stream", STREAM, (("wall_s", 60.0), peak), "sweep", once=True),
        Case("sweep", SWEEP, (("wall_s", 120.0), peak), "sweep", once=True),
    )


def run_once(case: Case, limit_s: float) -> Run:
    """One process of the case, killed after `limit_s` seconds."""
    model, *others = case.arguments
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        tempfile.NamedTemporaryFile("w", suffix=".esti") as written,
    ):
        if case.blocks:
            written.write(_written_out((ROOT / model).read_text(encoding="utf-8"), case.blocks))
            written.flush()
            model = written.name
        command = [str(ESCC), case.command, model, *others, "--emit", "json"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=ROOT)
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        report, failure = _read(process.returncode, output, errors)
        if case.command == "sweep":
            report = _sweep_report(report)
    if wall_s >= limit_s and failure:
        failure = f"killed after {limit_s:g} s"
    cpu_s = usage.ru_utime + usage.ru_stime
    return Run(wall_s, cpu_s, usage.ru_maxrss * PEAK_UNIT / 1e6, report, failure)


def _written_out(text: str, blocks: int) -> str:
    """A model with calls of its block, one after the other, in place of the repeat of it."""
    calls = [f"  x{n + 1} = layer({f'x{n}' if n else 'x'})" for n in range(blocks)]
    return re.sub(r"\{ return repeat \d+ layer\(x\) \}", "\n".join(["{", *calls, f"  return x{blocks}", "}"]), text)


def _read(code: int, output: BinaryIO, errors: BinaryIO) -> tuple[Mapping[str, object], str | None]:
    """The JSON that the process printed, or why there is none."""
    output.seek(0)
    errors.seek(0)
    if code != 0:
        lines = errors.read().decode(errors="replace").strip().split("\n")
        said = lines[-1 if lines[0].startswith("Traceback") else 0].strip()
        return {}, f"exit code {code}: {said or 'no message'}"
    try:
        report = json.load(output)
    except ValueError as error:
        return {}, f"prints no JSON: {error}"
    return (report, None) if isinstance(report, dict) else ({}, "prints JSON that is no object")


def _sweep_report(report: Mapping[str, object]) -> Mapping[str, object]:
    """What of the points of a sweep is proven, as a report of its own."""
    points = report.get("points")
    if not isinstance(points, list):
        return report
    proven = sum(point["status"] in ("optimal", "infeasible") for point in points)
    planned = sum(point["status"] == "optimal" for point in points)
    return {"status": f"{proven} of {len(points)} points proven, {planned} with a plan"}


def measure(case: Case, runs: int, limit_s: float) -> Result:
    """The case once to warm up, then `runs` times; the first failure ends it."""
    kept: list[Run] = []
    runs, limit_s = (1, LONG * limit_s) if case.once else (runs, limit_s)
    for number in range(1 if case.once else 0, runs + 1):
        run = run_once(case, limit_s)
        print(f"{case.name} {number}/{runs}: {run.failure or f'{run.wall_s:.2f} s'}", file=sys.stderr)
        if run.failure:
            return Result(case, (run,))
        if number:
            kept.append(run)
    return Result(case, tuple(kept))


def _cell(value: float | None, spec: str) -> str:
    return NONE if value is None else format(value, spec)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), _row(["---"] * len(cells))]


def _case_row(result: Result) -> str:
    if result.failure:
        return _row([result.case.name, *[NONE] * 6, f"failed: {result.failure}", NONE])
    walls = [run.wall_s for run in result.runs]
    times = [f"{seconds:.2f}" for seconds in (median(walls), min(walls), max(walls))]
    parts = [_cell(result.reported(key), ".3f") for key in ("build_s", "solve_s")]
    peak = _cell(result.figure("peak_mb"), ".0f")
    status = str(result.runs[-1].report.get("status", NONE))
    return _row([result.case.name, *times, peak, *parts, status, _cell(result.gap, ".1e")])


def _bar_rows(result: Result) -> list[str]:
    rows = []
    for name, most in result.case.bars:
        value = None if result.failure else result.figure(name)
        held = "unknown" if value is None else "yes" if value <= most else "**no**"
        rows.append(_row([result.case.name, FIGURES[name], f"{most:g}", _cell(value, ".3g"), held]))
    return rows


def _blocks(case: Case) -> str:
    return f", with {case.blocks} blocks written out in place of the repeat" if case.blocks else ""


def table(results: Sequence[Result], runs: int) -> str:
    """The results as Markdown: the machine, a row for each case, a row for each bar, the commands."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [
        "# Benchmark results",
        "",
        "Written by `make bench`; the figures are those of the last run, on whatever machine that was.",
        "",
        f"{cores} cores ({platform.machine()}), Python {platform.python_version()}, ortools {version('ortools')}; "
        f"{runs} runs of each case after one to warm up, each a process of its own; the sweep once, over all cores.",
        "",
        *_head(["case", "median s", "min s", "max s", "peak MB", "build s", "solve s", "status", "gap"]),
        *map(_case_row, results),
        "",
        *_head(["case", "figure", "at most", "measured", "held"]),
        *(row for result in results for row in _bar_rows(result)),
        "",
        "The cases are these commands:",
        "",
        *(f"- {r.case.name}: `escc {r.case.command} {' '.join(r.case.arguments)}`{_blocks(r.case)}" for r in results),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and report. The file is written when every case was measured. 1 if any failed."""
    known = {case.name: case for case in cases()}
    parser = argparse.ArgumentParser(description="Time whole compilations.")
    parser.add_argument("--cases", nargs="+", choices=known, metavar="CASE", help=f"only these of {', '.join(known)}")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each case (5)")
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="longest run allowed (120)")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    if not ESCC.exists():
        parser.error(f"escc is not installed beside this Python ({ESCC} is missing): use `make bench`")
    chosen = [known[name] for name in arguments.cases or known]
    results = [measure(case, arguments.runs, arguments.limit) for case in chosen]
    text = table(results, arguments.runs)
    print(text, end="")
    if not arguments.cases:
        RESULTS.write_text(text, encoding="utf-8")
    return int(any(result.failure for result in results))


if __name__ == "__main__":
    sys.exit(main())
