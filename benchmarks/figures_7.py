"""Figure 7: MFU of prefill of PaLM 540B on 64 chips as the batch grows, weights stationary or gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from figures_plans import FEED_FORWARDS, Programs, fits, measured, mfu, step_of, totals
from figures_plot import INK, MARKS, SERIES, Figure, Sheet, count, label, ticks

from escc.compiler.calibrate.named_layouts import FeedForwardLayout
from escc.compiler.calibrate.rows import PREFILL, Step
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh

MESH = Mesh.parse("4x4x4")
LENGTH = 2048
BATCHES = tuple(1 << k for k in range(10))
LAYOUTS = (FeedForwardLayout.WS2D, FeedForwardLayout.WG_X, FeedForwardLayout.WG_XY, FeedForwardLayout.WG_XYZ)
MEASURED = ("2-ll-prefill", "2-ht-prefill")  # of table 2: the first with int8 weights


@dataclass(frozen=True)
class Utilisation:
    """MFU by layout and batch. `unfit`: how many of the plans hold more at once than the HBM has."""

    batches: tuple[int, ...]
    of: Mapping[FeedForwardLayout, tuple[float, ...]]
    unfit: int = 0

    @property
    def best(self) -> tuple[FeedForwardLayout, ...]:
        """The layout with the highest MFU at each batch; of equal ones the first."""
        return tuple(max(self.of, key=lambda layout: self.of[layout][n]) for n in range(len(self.batches)))


def steps(batches: Sequence[int] = BATCHES) -> list[Step]:
    """What is to be planned."""
    return [_step(batch, layout) for layout in LAYOUTS for batch in batches]


def _step(batch: int, layout: FeedForwardLayout) -> Step:
    return step_of(PREFILL, MESH, batch, LENGTH, layout)


def utilisation(programs: Programs, hardware: Hardware, batches: Sequence[int] = BATCHES) -> Utilisation:
    """What the planned steps come to."""

    def of(step: Step) -> float:
        return mfu(step, totals(programs[step], hardware).total_s, hardware)

    found = {layout: tuple(of(_step(batch, layout)) for batch in batches) for layout in LAYOUTS}
    unfit = sum(not fits(programs[step], hardware) for step in steps(batches))
    return Utilisation(tuple(batches), found, unfit)


def draw(found: Utilisation, hardware: Hardware) -> str:
    """The figure, the best layout at each batch marked, with the measured points."""
    sheet = Sheet()
    panel = sheet.panel
    tokens = [LENGTH * batch for batch in found.batches]
    for n, (layout, values) in enumerate(found.of.items()):
        panel.plot(
            tokens, [100 * value for value in values], color=SERIES[n], marker=MARKS[n], label=FEED_FORWARDS[layout]
        )
    tops = [100 * found.of[layout][n] for n, layout in enumerate(found.best)]
    panel.plot(tokens, tops, marker="o", markersize=11, fillstyle="none", linestyle="none", color=INK, label="the best")
    points = list(_measured(hardware))
    panel.plot(
        [batch * LENGTH for batch, _ in points],
        [100 * value for _, value in points],
        marker="x",
        markersize=8,
        linestyle="none",
        color=INK,
        label="measured (table 2)",
    )
    panel.set_xscale("log", base=2)
    panel.set_ylim(0, 100)
    ticks(panel, tokens, [count(size) for size in tokens])
    label(panel, f"tokens in the batch, {LENGTH:,} a sequence", "MFU, % of the peak")
    panel.legend(loc="upper left", ncols=2)
    return sheet.svg()


def _measured(hardware: Hardware) -> list[tuple[int, float]]:
    """The batches and MFU of the measured rows."""
    rows = measured(hardware.chip)
    return [
        (rows[name].batch, mfu(_step(rows[name].batch, rows[name].feed_forward), rows[name].seconds, hardware))
        for name in MEASURED
    ]


def words(found: Utilisation, hardware: Hardware) -> str:
    """What agrees with the paper, and what does not."""
    (_, low), (most, high) = _measured(hardware)
    first, last = found.best[0], found.best[-1]
    runs = [found.best[0], *(after for before, after in pairwise(found.best) if after is not before)]
    order = [LAYOUTS.index(layout) for layout in runs]
    turns = [
        f"{FEED_FORWARDS[after]} from {LENGTH * batch:,} tokens on"
        for (before, after), batch in zip(pairwise(found.best), found.batches[1:], strict=True)
        if after is not before
    ]
    switches = (
        "and here too the best layout gathers over more axes as tokens grow"
        if len(order) > 1 and order == sorted(order)
        else "which is not what the best layout does here"
    )
    gathered = [layout for layout in LAYOUTS if layout is not FeedForwardLayout.WS2D]
    tops = {layout: found.of[layout][-1] for layout in gathered}
    ahead = max(tops.values()) - tops[FeedForwardLayout.WG_XYZ]
    return (
        f"The paper switches from 2D weight-stationary to weight-gathered layouts as the batch grows, {switches}: "
        f"{FEED_FORWARDS[first]} first, {', then '.join(turns) or 'throughout'}. The best MFU is "
        f"{found.of[first][0]:.0%} at {LENGTH * found.batches[0]:,} tokens and {found.of[last][-1]:.0%} at "
        f"{LENGTH * found.batches[-1]:,}; 2D weight-stationary alone reaches "
        f"{max(found.of[FeedForwardLayout.WS2D]):.0%}. The paper prints 76% for XYZ weight-gathered at {most} "
        f"sequences, which its time makes {high:.0%} by the count of flops used here (parameters that are multiplied; "
        f"tables that are looked up left out); here that layout has {tops[FeedForwardLayout.WG_XYZ]:.0%}, "
        f"{100 * ahead:.1f} points below the best. At one sequence table 2 has {low:.0%}, with int8 weights; the plan "
        f"in bf16 has {found.of[FeedForwardLayout.WS2D][0]:.0%}. Memory bounds no plan: {found.unfit} of the "
        f"{len(found.of) * len(found.batches)} hold more at their worst moment than the HBM has."
    )


def figure(programs: Programs, hardware: Hardware) -> Figure:
    """Draw and describe what was planned."""
    found = utilisation(programs, hardware)
    return Figure("7", "MFU of prefill against tokens in the batch", draw(found, hardware), words(found, hardware))
