"""Draws the figures of Pope et al. 2022 from plans: `make figures`, or `python benchmarks/figures.py`.

Writes `docs/figures/*.svg` and `docs/figures.md`, which says under each what agrees with the paper and what
does not, in numbers of this run. Ten minutes or so on two cores; the sweeps of an interrupted run, kept in
`out/figures`, are gone on with. Not a test: what differs shows in the text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import figures_3
import figures_6
import figures_7
import figures_8
from figures_frontier import figure_1, figure_b1, figure_c1
from figures_plans import plan_all
from figures_plot import Figure
from figures_spots import CHIPS, decode_spots, prefill_spots, prefill_steps, swept

from escc.cost.hardware import Hardware

DOCS = Path(__file__).resolve().parent.parent / "docs"
CHIP = "tpu-v4"


def figures(hardware: Hardware) -> list[Figure]:
    """All figures, in the paper's order. Says on standard error what is being done."""
    _say("planning named layouts")
    prefill = prefill_steps(hardware)
    named = plan_all([*figures_6.steps(hardware), *figures_7.steps(), *figures_8.steps(), *prefill], hardware)
    _say("sweeping decode")
    spots = list(prefill_spots(named, prefill, hardware))
    for model in CHIPS:
        spots += decode_spots(model, swept(model, hardware))
    _say("drawing")
    return [
        figure_1(spots, hardware),
        figures_3.figure(),
        figures_6.figure(named, hardware),
        figures_7.figure(named, hardware),
        figures_8.figure(named, hardware),
        figure_b1(spots),
        figure_c1(spots, hardware),
    ]


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr)


def document(made: Sequence[Figure], hardware: Hardware) -> str:
    """The figures as Markdown, each with its paragraph."""
    found = hardware.calibrated
    lines = [
        "# The paper's figures",
        "",
        'Written by `make figures`: figures of Pope et al., "Efficiently Scaling Transformer Inference" (2022), drawn '
        "from what escc plans, and under each what agrees with the paper and what does not. Numbers are those of the "
        "run that drew the figures, but for those that the text gives to the paper.",
        "",
        f"Times are those of the hardware `{hardware.name}`, with {found.compute_efficiency:.0%} of the peak flops, "
        f"{found.hbm_efficiency:.0%} of the HBM's rate and {found.network_efficiency:.0%} of that of the links. Over "
        f"the rows to which these were fitted its predictions are {found.error:.1%} off (root mean square). "
        f"Collectives and arithmetic follow each other, without overlap.",
        "",
    ]
    for one in made:
        lines += [f"## Figure {one.number}. {one.title}", "", f"![{one.title}](figures/{one.file})", "", one.words, ""]
    return "\n".join(lines)


def write(made: Sequence[Figure], hardware: Hardware, docs: Path = DOCS) -> None:
    """Write the figures and their document, and remove figures of earlier runs that are none any more."""
    folder = docs / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(folder.glob("figure-*.svg")) - {folder / one.file for one in made}:
        old.unlink()
    for one in made:
        (folder / one.file).write_text(one.svg, encoding="utf-8")
    (docs / "figures.md").write_text(document(made, hardware), encoding="utf-8")


def main() -> int:
    """Draw all, then write all."""
    hardware = Hardware.load(CHIP)
    write(figures(hardware), hardware)
    return 0


if __name__ == "__main__":
    sys.exit(main())
