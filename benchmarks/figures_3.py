"""Figure 3: what a chip sends for a feed-forward layer, as the tokens in a batch grow, in four layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isclose
from pathlib import Path

from figures_plans import FEED_FORWARDS
from figures_plot import MARKS, SERIES, Figure, Sheet, count, label, log_up, ticks

from escc.compiler.calibrate.named_layouts import FeedForwardLayout
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.report.compare import Turn, compare
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.options import Options

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MESH = Mesh.parse("4x4x4")
E, F, BYTES = 16_384, 65_536, 2
GATHERED = {
    FeedForwardLayout.WS2D: 0,
    FeedForwardLayout.WG_X: 4,
    FeedForwardLayout.WG_XY: 16,
    FeedForwardLayout.WG_XYZ: 64,
}  # over how many chips each layout gathers its weights
TOKENS = tuple(1 << k for k in range(11, 23))
PUBLISHED = (16_384, 65_536, 1_048_576)  # where the paper's formulas, with exact factors, change places


@dataclass(frozen=True)
class Volumes:
    """Bytes that a chip sends, by layout and number of tokens, in plans; and what sends least from where on."""

    tokens: tuple[int, ...]
    sent: Mapping[FeedForwardLayout, tuple[float, ...]]
    turns: tuple[Turn, ...]

    @property
    def crossovers(self) -> tuple[float, ...]:
        """The tokens at which the layout that sends least changes."""
        return tuple(turn.start for turn in self.turns if turn.start)


def volumes(tokens: Sequence[int] = TOKENS) -> Volumes:
    """Plan the layer under the pins of each layout, for every number of tokens."""
    plans = {layout: [_compiled(layout, size) for size in tokens] for layout in GATHERED}
    sent = {layout: tuple(one.estimate.totals().bytes_sent for one in found) for layout, found in plans.items()}
    found = compare({str(layout): found[0] for layout, found in plans.items()}, Form.EXACT, "B")
    return Volumes(tuple(tokens), sent, found.turns)


def _compiled(layout: FeedForwardLayout, tokens: int) -> CompiledPhase:
    program = load(EXAMPLES / "feed-forward.esti", {"B": tokens}, [EXAMPLES / "pins" / f"{layout}.pins"])
    # Communication alone is compared: what fits is no question here, and the network is the paper's.
    options = Options(Hardware.of_paper("tpu-v4"), capacity_bytes=inf)
    return compile_phase(program, "main", MESH, options)


def formula(layout: FeedForwardLayout, tokens: float) -> float:
    """Bytes that a chip sends for both matrices by the paper's appendix A.2, with the factors (K - 1) / K."""
    x, others, chips = MESH.sizes[0], MESH.chips // MESH.sizes[0], MESH.chips
    if layout is FeedForwardLayout.WS2D:
        return BYTES * 2 * tokens * (E / x * _others(others) + F / others * _others(x))
    ways = GATHERED[layout]
    return BYTES * 2 * (E * F * ways / chips * _others(ways) + tokens * E / ways * _others(chips // ways))


def _others(chips: int) -> float:
    """The share of a whole that the other chips of a group have."""
    return (chips - 1) / chips


def crossings() -> Iterator[float]:
    """Where each layout's formula meets that of the next; they are linear in the tokens."""
    for before, after in pairwise(GATHERED):
        slopes = [formula(layout, 1) - formula(layout, 0) for layout in (before, after)]
        yield (formula(after, 0) - formula(before, 0)) / (slopes[0] - slopes[1])


def draw(found: Volumes) -> str:
    """The figure: lines by the formulas, marks by the plans."""
    sheet = Sheet()
    panel = sheet.panel
    for n, layout in enumerate(GATHERED):
        by_formula = [formula(layout, tokens) / 1e9 for tokens in found.tokens]
        panel.plot(found.tokens, by_formula, color=SERIES[n])
        by_plan = [size / 1e9 for size in found.sent[layout]]
        panel.plot(
            found.tokens, by_plan, color=SERIES[n], marker=MARKS[n], linestyle="none", label=FEED_FORWARDS[layout]
        )
    panel.set_xscale("log", base=2)
    log_up(panel, [size / 1e9 for sizes in found.sent.values() for size in sizes])
    for place in found.crossovers:
        panel.axvline(place, color=SERIES[4], linewidth=1, linestyle=":")
        panel.annotate(
            f"{place:,.0f}",
            (place, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=9,
        )
    ticks(panel, found.tokens[::2], [count(tokens) for tokens in found.tokens[::2]])
    label(panel, "tokens in the batch", "GB that a chip sends for a layer")
    panel.legend(loc="upper left")
    return sheet.svg()


def words(found: Volumes) -> str:
    """What agrees with the paper, and what does not."""
    pairs = [
        (size, formula(layout, tokens))
        for layout, sizes in found.sent.items()
        for tokens, size in zip(found.tokens, sizes, strict=True)
    ]
    off = max(abs(size / wanted - 1) for size, wanted in pairs)
    equal = f"differ by at most {off:.1g} of themselves" if off else "are equal"
    turns = ", ".join(f"{place:,.0f}" for place in found.crossovers)
    as_published = len(found.crossovers) == len(PUBLISHED) and all(map(isclose, found.crossovers, PUBLISHED))
    names = " to ".join(FEED_FORWARDS[FeedForwardLayout(turn.name)] for turn in found.turns)
    agreement = (
        "exactly those of the published formulas"
        if as_published
        else (f"where the published formulas have them at {', '.join(f'{place:,}' for place in PUBLISHED)}")
    )
    return (
        f"Lines are the formulas of the paper's appendix A.2 with exact factors, marks are {len(pairs)} plans of "
        f"[`feed-forward.esti`](../examples/feed-forward.esti) under the pins of each layout "
        f"(X = Y = Z = 4, E = {E:,}, F = {F:,}, bf16). The bytes of plans and formulas {equal}. The layout that sends "
        f"least changes at {turns} tokens ({names}), {agreement}. What the figure leaves out, here as in the paper, is "
        f"all but communication: in whole steps of a model layouts may change places elsewhere (figure 7)."
    )


def figure() -> Figure:
    """Plan, draw and describe."""
    found = volumes()
    return Figure("3", "Communication of a feed-forward layer against tokens", draw(found), words(found))
