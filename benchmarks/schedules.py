"""What each step to a schedule of HellaSwag brings, beside what was measured: `make schedules`.

Makes lengths as HellaSwag has them (with a seed; no text of it), lets `escc schedule` divide them for LLaMA-33B on
four V100 behind PCIe, and writes `docs/schedules.md`. `python benchmarks/schedules.py FILE.csv` writes the lengths
alone, for `escc schedule` on the command line. Half a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from escc.compiler.plan.pipeline import load
from escc.compiler.sweep.schedule import Job, Rung, Schedule, Scheduled, ladder, schedule
from escc.compiler.text.lengths import parse_lengths
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.passes.batches.batches import Requests
from escc.passes.batches.divide import divide_by_longest, divide_by_shortest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "schedules.md"
MODEL = ROOT / "examples" / "schedule" / "llama-33b.esti"
CHIP, CHIPS, STAGES, THRESHOLD, CONTEXT_THRESHOLD = "v100-pcie", "4", 4, 2048, 10_000

# HellaSwag's validation split: 10,042 contexts with 4 endings each, of ActivityNet and then of WikiHow (Zellers et al.
# 2019; 3,243 and 6,799). In tokens of LLaMA contexts have a mean of 56 (deviation 20, from 12 to 118), endings of 33
# (16, from 2 to 98) and both together of 89 (33, from 18 to 170): D. Jo's account of the 2023 Samsung Computer
# Engineering Challenge. What that says of the two together sets the two sources apart: 36 and 27.5 tokens.
SOURCES = (3243, 6799)
ENDINGS = 4
CONTEXTS_OF, ENDINGS_OF = (31.6, 67.6), (14.4, 41.9)  # mean tokens in each source
CONTEXT_SPREAD, ENDING_SPREAD = 10.6, 9.5  # deviation within a source
CONTEXT_RANGE, ENDING_RANGE, LONGEST = (12, 118), (2, 98), 170
SEED = 1

# Seconds that team H (H. Kim and J. Ryu) measured in the same challenge, in the order of the steps of `ladder`.
MEASURED_S = (2840, 1122, 850, 519, 511, 508, 480)


def hellaswag(seed: int = SEED) -> str:
    """Lengths with the published figures of HellaSwag's, as `escc schedule` reads them."""
    draw = np.random.default_rng(seed)

    def lengths(means: tuple[float, ...], spread: float, each: int) -> NDArray[Any]:
        shape = [
            draw.gamma((mean / spread) ** 2, spread**2 / mean, n * each) for mean, n in zip(means, SOURCES, strict=True)
        ]
        return np.round(np.concatenate(shape))

    contexts = np.repeat(np.clip(lengths(CONTEXTS_OF, CONTEXT_SPREAD, 1), *CONTEXT_RANGE), ENDINGS)
    endings = np.clip(lengths(ENDINGS_OF, ENDING_SPREAD, ENDINGS), *ENDING_RANGE)
    endings = np.minimum(endings, LONGEST - contexts)
    rows = (f"{n // ENDINGS},{c:.0f},{e:.0f}" for n, (c, e) in enumerate(zip(contexts, endings, strict=True)))
    return "\n".join(("id,context,ending", *rows)) + "\n"


def requests_of(text: str) -> Requests:
    """The requests of such a text."""
    read = parse_lengths(Source("hellaswag.csv", text))
    return Requests(read.contexts, tuple((context, ending) for context, ending, _ in read.endings))


def scheduled(threshold: int | None = THRESHOLD, context_threshold: int | None = CONTEXT_THRESHOLD) -> Schedule:
    """The schedule of such lengths, by thresholds that are given or found."""
    job = Job(
        requests_of(hellaswag()),
        load(MODEL),
        Hardware.load(CHIP),
        Mesh.parse(CHIPS),
        STAGES,
        threshold,
        context_threshold,
    )
    return schedule(job)


def compared(steps: Sequence[Rung]) -> tuple[Rung, ...]:
    """Steps to compare with what was measured: the first one by the plan that splits no batch."""
    first, *rest = steps
    [unsplit] = [one for one in (first.scheduled, *first.others) if len(one.batches[0].shares) == 1]
    return replace(first, scheduled=unsplit), *rest


def document(given: Schedule, found: Schedule, steps: Sequence[Rung], with_found: Sequence[Rung]) -> str:
    """The `steps` of the schedules with thresholds that are given and found as Markdown."""
    lengths = given.job.requests.lengths
    rungs, others = compared(steps), compared(with_found)
    lines = [
        "# Schedules",
        "",
        "Written by `make schedules`: what each step to a schedule of requests brings, for LLaMA-33B "
        "([`examples/schedule/llama-33b.esti`](../examples/schedule/llama-33b.esti)) scoring the endings of HellaSwag "
        "on four V100 behind PCIe, beside seconds that team H measured (H. Kim and J. Ryu, Samsung Computer "
        "Engineering Challenge 2023). The lengths are made, with a seed, to have the published figures of HellaSwag's; "
        f"these have a mean of {np.mean(lengths):.1f} tokens, a deviation of {np.std(lengths):.1f}, and go to "
        f"{max(lengths)}. Nothing is fitted: `v100-pcie` has the peaks of its datasheet, of which large matmuls "
        "reach as much as is published of a V100, and the other shares that were measured of an H100. "
        f"{_first(steps[0].scheduled, rungs[0].scheduled)}",
        "",
        f"With the thresholds of the report, {given.threshold:,} tokens a batch and {given.context_threshold:,} of "
        f"shared contexts, and with those that escc finds, {found.threshold:,} and {found.context_threshold:,}:",
        "",
        "| step | measured | predicted | of measured | with found thresholds | tokens | padding | stages wait |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for rung, other, measured_s in zip(rungs, others, MEASURED_S, strict=True):
        one = rung.scheduled
        lines.append(
            f"| {rung.name} | {measured_s:,} s | {one.total_s:,.0f} s | {one.total_s / measured_s:.2f} "
            f"| {other.scheduled.total_s:,.0f} s | {one.tokens:,} | {one.padding / one.tokens:.1%} "
            f"| {max(0.0, one.timeline.bubbles):.1%} |"
        )
    seconds, tokens = ([getattr(rung.scheduled, name) for rung in rungs] for name in ("total_s", "tokens"))
    lines += [
        "",
        *_words(seconds, tokens),
        *_with_found(*([rung.scheduled for rung in each] for each in (rungs, others))),
        "",
    ]
    return "\n".join(lines)


def _first(best: Scheduled, unsplit: Scheduled) -> str:
    """What the first step is compared by, and what the quickest plan takes for it."""
    told = "On all chips at once tensors are split over them and no batch, as in the code that LLaMA was published with"
    if best.total_s >= unsplit.total_s:
        return f"{told}: no plan that splits batches is quicker."
    ways = len(best.batches[0].shares)
    return f"{told}; the quickest plan splits each batch over {ways} chips, and takes {best.total_s:,.0f} s."


def _with_found(given: Sequence[Scheduled], found: Sequence[Scheduled]) -> Iterator[str]:
    """What the steps take with the thresholds that are found, beside the report's."""
    turned = [n for n in range(1, len(found)) if found[n].total_s > found[n - 1].total_s]
    told = "each step takes less than the one before it"
    if turned:
        rises = " and ".join(f"step {n + 1} ({found[n].total_s / found[n - 1].total_s - 1:+.1%})" for n in turned)
        told = f"each step but {rises} takes less than the one before it"
    less = 1 - found[-1].total_s / given[-1].total_s
    yield ""
    yield f"With the thresholds that are found {told}, and the last one {less:.1%} less than with the report's."


def _words(predicted_s: list[float], tokens: list[int]) -> list[str]:
    """What agrees with what was measured, and what does not."""
    ratios = [one / other for one, other in zip(predicted_s, MEASURED_S, strict=True)]
    turned = [n for n in range(1, len(predicted_s)) if predicted_s[n] > predicted_s[n - 1]]
    first = (
        f"Predictions are {min(ratios):.2f} to {max(ratios):.2f} of what was measured. Of the whole ladder, from the "
        f"first step to the last, {MEASURED_S[0] / MEASURED_S[-1]:.1f}-fold was measured and "
        f"{predicted_s[0] / predicted_s[-1]:.1f}-fold is predicted."
    )
    if not turned:
        return [first + " Each step takes less than the one before it, as measured."]
    steps = ", ".join(
        f"step {n + 1} ({predicted_s[n] / predicted_s[n - 1] - 1:+.1%}, of {tokens[n] / tokens[n - 1] - 1:+.1%} tokens)"
        for n in turned
    )
    return [
        f"{first} With the report's thresholds all steps take less than the ones before them, as measured, but "
        f"{steps}: batches of at least the threshold have more padding, and that pays on chips which are slow with "
        "small batches, as in the cost model these are not."
    ]


def _say_speed() -> None:
    """Say what dividing many lengths takes."""
    draw = np.random.default_rng(SEED)
    lengths = sorted(int(n) for n in draw.integers(1, 1000, 100_000))
    for divide in (divide_by_longest, divide_by_shortest):
        started = time.perf_counter()
        divide(lengths, THRESHOLD)
        print(f"{divide.__name__}: 100,000 lengths in {time.perf_counter() - started:.2f} s", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Write the document, or the lengths into a file that is named."""
    if arguments:
        Path(arguments[0]).write_text(hellaswag(), encoding="utf-8")
        return 0
    _say_speed()
    given, found = scheduled(), scheduled(None, None)
    DOCUMENT.write_text(document(given, found, ladder(given), ladder(found)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
