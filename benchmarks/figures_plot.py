"""How the figures look: one style, SVG of the same bytes for the same figures, readable on light and on dark."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullLocator

PAPER, INK, RULE = "#ffffff", "#24292f", "#d0d7de"
DARK = {PAPER: "#0d1117", INK: "#e6edf3", RULE: "#30363d"}
SERIES = ("#2f81c9", "#d9730d", "#2e9e6b", "#b0549a", "#9a7d0a")  # each has contrast on light and on dark
ROOM = 1.25  # beside the outermost numbers of a logarithmic scale, as a factor
MANY_POWERS = 2e3  # a scale over more than this has ticks at powers of ten alone
MARKS = ("o", "s", "^", "D", "v")

STYLE: dict[str, Any] = {
    "svg.hashsalt": "escc",
    "svg.fonttype": "none",
    "font.size": 10.0,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.edgecolor": "none",
    "legend.facecolor": PAPER,
    "legend.framealpha": 1.0,
    "legend.fontsize": 9.0,
}
style.use(STYLE)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, computed here. `number`: as the paper has it; `words`: a paragraph on what agrees."""

    number: str
    title: str
    svg: str
    words: str

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"figure-{self.number.lower().replace('.', '-')}.svg"


class Sheet:
    """A drawing of one panel or of several side by side, in the style of all figures."""

    def __init__(self, panels: int = 1) -> None:
        self._canvas = Canvas(figsize=(6.8 if panels == 1 else 4.8 * panels, 4.2), layout="constrained")
        self.panels: list[Axes] = [self._canvas.add_subplot(1, panels, n + 1) for n in range(panels)]

    @property
    def panel(self) -> Axes:
        """The first panel."""
        return self.panels[0]

    def legend_below(self) -> None:
        """One legend for all panels, beneath them, with lines long enough to tell dashes."""
        handles, names = self.panel.get_legend_handles_labels()
        self._canvas.legend(handles, names, loc="outside lower center", ncols=4, handlelength=3.2, markerscale=0.8)

    def svg(self) -> str:
        """The drawing as SVG, without the time it was made or what made it."""
        text = io.StringIO()
        self._canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        lines = (line.rstrip() for line in text.getvalue().splitlines())
        return "\n".join(lines).removesuffix("</svg>") + _dark_style() + "</svg>\n"


def _dark_style() -> str:
    """Rules that swap the three colours that are not a series' where the reader's screen is dark."""
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>\n"


def label(axes: Axes, across: str, up: str, title: str | None = None) -> None:
    """Name the scales of a panel, with their units."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if title:
        axes.set_title(title, fontsize=10)


def ticks(axes: Axes, places: Sequence[float], texts: Sequence[str]) -> None:
    """Ticks at these places of the horizontal scale, and nowhere else."""
    axes.set_xticks(list(places), list(texts))
    axes.minorticks_off()


def log_up(axes: Axes, numbers: Iterable[float]) -> None:
    """A logarithmic vertical scale on which these numbers have a place, with plain numbers at its ticks."""
    axes.set_yscale("log")
    _log(axes.yaxis, axes.set_ylim, list(numbers))


def log_across(axes: Axes, numbers: Iterable[float]) -> None:
    """As `log_up`, of the horizontal scale."""
    axes.set_xscale("log")
    _log(axes.xaxis, axes.set_xlim, list(numbers))


def _log(axis: Axis, limit: Callable[[float, float], object], numbers: Sequence[float]) -> None:
    low, high = min(numbers) / ROOM, max(numbers) * ROOM
    steps = (1,) if high / low > MANY_POWERS else (1, 2, 5)
    places = [step * 10.0**power for power in range(-6, 7) for step in steps]
    axis.set_ticks([place for place in places if low <= place <= high])
    axis.set_major_formatter(FuncFormatter(lambda place, _: f"{place:,g}"))
    axis.set_minor_locator(NullLocator())
    limit(low, high)


def count(number: float) -> str:
    """A count for a tick: powers of two from 1,024 on in units of 1,024."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if number >= size and number % size == 0:
            return f"{number / size:.0f}{unit}"
    return f"{number:,.0f}"
