"""Plans every shipped model for whole slices, and writes what each takes to plan and how far it is proven into
`presets.md`: `make bench-presets`.

A plan is a process of its own, started as a user starts it; two run at a time. Times are seconds of CPU, so that what
runs beside it counts little. Both phases are planned together, with one layout for each parameter.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from run import ESCC, Case, Run, run_once

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "presets.md"
MACHINES = {
    "TPU v4, 4x4x4": ("--chips", "4x4x4"),
    "TPU v5e, 8x8": ("--hardware", "tpu-v5e", "--chips", "8x8"),
    "TPU v4, 4x4x4, with 0.3 of its memory": ("--chips", "4x4x4", "--hbm-fraction", "0.3"),
}
PHASES = {"prefill": ("--phase", "prefill"), "decode": ("--phase", "decode"), "both": ()}
MOST_S, MOST_GAP, TIGHT_GAP = 20.0, 2e-3, 1e-2  # of a plan, and what is left open where memory is short
DOES_NOT_FIT = ("The parameters and caches take", "No plan keeps to")


@dataclass(frozen=True)
class Planned:
    """What a plan of a model took: seconds of CPU and the gap that is left, or `why` there is none."""

    cpu_s: float
    gap: float | None
    why: str | None = None

    @property
    def fits(self) -> bool:
        """Whether there is a plan, or none is known for another reason than that none fits."""
        return self.why != "does not fit"

    def cells(self, most_gap: float) -> list[str]:
        """Seconds and gap, in bold where they are more than is asked for."""
        if self.gap is None:
            return [f"{self.cpu_s:.1f}" if not self.fits else f"**{self.cpu_s:.1f}**", self.why or ""]
        gap = "proven" if self.gap <= 1e-9 else f"{self.gap:.2%}"
        long, wide = self.cpu_s > MOST_S, self.gap > most_gap
        return [f"**{self.cpu_s:.1f}**" if long else f"{self.cpu_s:.1f}", f"**{gap}**" if wide else gap]


def models() -> list[str]:
    """The shipped models, by name."""
    return sorted(path.stem for path in (ROOT / "compiler" / "models").glob("*.esti"))


def planned(model: str, machine: str, phases: str, limit_s: float) -> Planned:
    """One plan of a model."""
    case = Case(f"{model}, {phases}, {machine}", (model, *MACHINES[machine], *PHASES[phases]))
    run = run_once(case, limit_s)
    found = _planned(run)
    print(f"{case.name}: {found.cpu_s:.1f} s, {found.why or found.gap}", file=sys.stderr)
    return found


def _planned(run: Run) -> Planned:
    if run.failure:
        said = any(text in run.failure for text in DOES_NOT_FIT)
        return Planned(run.cpu_s, None, "does not fit" if said else run.failure.split(": ")[-1][:40])
    together = run.report.get("together")
    told: Mapping[str, object] = together if isinstance(together, dict) else run.report
    gap = told.get("gap")
    return Planned(run.cpu_s, float(gap) if isinstance(gap, int | float) else None, None if gap is not None else "?")


def table(machine: str, rows: Mapping[str, Mapping[str, Planned]]) -> str:
    """The plans of a machine as Markdown, with how many keep to what is asked for."""
    most_gap = TIGHT_GAP if "--hbm-fraction" in MACHINES[machine] else MOST_GAP
    lines = [f"## {machine}", ""]
    for phases in PHASES:
        fit = [row[phases] for row in rows.values() if row[phases].fits]
        kept = [one for one in fit if one.gap is not None and one.gap <= most_gap and one.cpu_s <= MOST_S]
        proven = sum(one.gap is not None and one.gap <= 1e-9 for one in fit)
        lines.append(
            f"- {phases}: {len(kept)} of {len(fit)} that fit within {MOST_S:g} s and {most_gap:.1%}; {proven} proven"
        )
    lines += ["", "| model | " + " | ".join(f"{phases}, s | gap" for phases in PHASES) + " |", "| --- " * 7 + "|"]
    for model, row in rows.items():
        cells = [cell for phases in PHASES for cell in row[phases].cells(most_gap)]
        lines.append("| " + " | ".join([model, *cells]) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan all, and write the file; with `--models` some, onto standard output."""
    parser = argparse.ArgumentParser(description="Plan every shipped model for whole slices.")
    parser.add_argument("--models", nargs="+", choices=models(), metavar="MODEL", help="only these")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="longest plan allowed (300)")
    given = parser.parse_args(arguments)
    if not ESCC.exists():
        parser.error(f"escc is not installed beside this Python ({ESCC} is missing): use `make bench-presets`")
    chosen = given.models or models()
    asked = [(machine, model, phases) for machine in MACHINES for model in chosen for phases in PHASES]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda one: planned(one[1], one[0], one[2], given.limit), asked))
    found = dict(zip(asked, done, strict=True))
    parts = [
        "# What shipped models take to plan",
        "",
        "Written by `make bench-presets`: seconds of CPU of `escc compile`, and how far the plan may be from the "
        "optimum on whole axes. In bold what takes more than is asked for.",
        "",
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"ortools {version('ortools')}; two plans at a time, each a process of its own, killed after "
        f"{given.limit:g} s on the wall.",
        "",
    ]
    for machine in MACHINES:
        rows = {model: {phases: found[machine, model, phases] for phases in PHASES} for model in chosen}
        parts.append(table(machine, rows))
    text = "\n".join(parts)
    if given.models:
        print(text, end="")
    else:
        RESULTS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
