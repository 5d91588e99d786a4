"""A file of measurements: comma-separated values, one measured time on a line.

The columns are all of COLUMNS, and perhaps some of OPTIONAL. What is wrong in the form of any row is
said; names (of models, layouts, weights) are looked up only in the rows of the chip that is asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, did_you_mean, fail
from ...ir.dtype import Dtype
from ...ir.mesh import MAX_CHIPS, Mesh
from ...ir.text.read import read_source
from ..plan.pipeline import read_model
from ..text.csv_lines import Cell, Line, csv_rows
from .named_layouts import AttentionLayout, FeedForwardLayout

NAMES = ("id", "source", "model", "hardware", "phase")
COUNTS = {"chips": (1, MAX_CHIPS), "batch": (1, 10**9), "input_tokens": (0, 10**9), "output_tokens": (0, 10**9)}
LAYOUTS = ("weights", "ffn_layout", "attention_layout")
COLUMNS = (*NAMES, *COUNTS, *LAYOUTS, "time_ms")
OPTIONAL = ("mfu", "mesh")
WEIGHTS = (Dtype.BF16, Dtype.INT8, Dtype.FP8, Dtype.INT4)
MOST_ROWS = 5_000  # each is planned
OWN = "pope-2022.csv"  # the project's own copy of the published measurements


class Timed(StrEnum):
    """What a time is of: processing the input, generating the output token by token, one such step, or both."""

    PREFILL = "prefill"
    DECODE = "decode"
    DECODE_STEP = "decode-step"
    TOTAL = "total"


@dataclass(frozen=True)
class Measurement:
    """One measured time, in seconds, and what was run.

    `model`: a shipped model's name, or a file. A decode step's context is `input_tokens`. `mesh`: None
    where the row does not say; `place` is where it stands.
    """

    id: str
    source: str
    model: str
    phase: Timed
    chips: int
    batch: int
    input_tokens: int
    output_tokens: int
    weights: Dtype
    feed_forward: FeedForwardLayout
    attention: AttentionLayout
    seconds: float
    mesh: Mesh | None
    place: Span


@dataclass(frozen=True)
class Measurements:
    """The rows of one chip, in the order of the file; `left_out`: how many rows are of others."""

    text: Source
    chip: str
    rows: tuple[Measurement, ...]
    left_out: int

    @property
    def sources(self) -> tuple[str, ...]:
        """The tables that the rows come from, in order."""
        return tuple(dict.fromkeys(row.source for row in self.rows))


def own_measurements() -> Source:
    """The text of the project's own copy of the published measurements."""
    return Source(OWN, resources.files(__package__).joinpath(OWN).read_text(encoding="utf-8"))


def read_measurements(file: Path | None, chip: str) -> Measurements:
    """The measurements of a file that are of `chip`; without a file, of the project's own copy.

    Raises InputError with all that is wrong in the file, or when no row is of that chip.
    """
    return parse_measurements(own_measurements() if file is None else read_source(file), chip)


def parse_measurements(source: Source, chip: str) -> Measurements:
    """The measurements of a text that are of `chip`. Raises InputError as `read_measurements` does."""
    reader = _Reader(source, chip)
    for line, cells in csv_rows(source, COLUMNS, OPTIONAL, reader.found):
        reader.read(line, cells)
    if reader.found:
        raise InputError(reader.found)
    if not reader.rows:
        others = ", ".join(f"`{name[:60]}`" for name in dict.fromkeys(reader.others))
        hint = f"it has rows of {others}" if others else "below the names of the columns each line is a row"
        raise fail(f"The file has no row of `{chip}`." if others else "The file has no rows.", None, hint, source)
    return Measurements(source, chip, tuple(reader.rows), len(reader.others))


_NUMBER = re.compile(r"[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")


@dataclass
class _Reader:
    """Reads rows; `others`: the hardware of those that are left out."""

    source: Source
    chip: str
    found: list[Diagnostic] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    models: dict[str, tuple[Diagnostic, ...]] = field(default_factory=dict)

    def read(self, line: Line, cells: Mapping[str, Cell]) -> None:
        """One more row."""
        before = len(self.found)
        self._identify(cells["id"])
        counts = {name: self._count(cells[name], name, *limits) for name, limits in COUNTS.items()}
        seconds = self._seconds(cells["time_ms"])
        if cells["hardware"].text != self.chip:
            self.others.append(cells["hardware"].text)
            return
        if len(self.others) + len(self.rows) >= MOST_ROWS:
            self._complain(f"The file has more than {MOST_ROWS} rows.", line.span)
        phase = self._one_of(cells["phase"], "phase", list(Timed))
        weights = self._one_of(cells["weights"], "format of weights", list(WEIGHTS))
        feed_forward = self._one_of(cells["ffn_layout"], "layout of the feed-forward", list(FeedForwardLayout))
        attention = self._one_of(cells["attention_layout"], "layout of attention", list(AttentionLayout))
        self._model(cells["model"])
        mesh = self._mesh(cells.get("mesh"), counts["chips"])
        self._tokens(phase, counts, cells)
        if len(self.found) == before:
            self.rows.append(
                Measurement(
                    id=cells["id"].text,
                    source=cells["source"].text,
                    model=cells["model"].text,
                    phase=Timed(phase),
                    **counts,
                    weights=Dtype(weights),
                    feed_forward=FeedForwardLayout(feed_forward),
                    attention=AttentionLayout(attention),
                    seconds=seconds,
                    mesh=mesh,
                    place=line.span,
                )
            )

    def _complain(self, message: str, span: Span, hint: str | None = None) -> None:
        self.found.append(Diagnostic(message, span, hint, self.source))

    def _identify(self, cell: Cell) -> None:
        if not 0 < len(cell.text) <= 80 or not cell.text.isprintable():
            self._complain("A row needs an id, of at most 80 printable characters.", cell.span)
        elif cell.text in self.ids:
            self._complain(f"The id `{cell.text}` stands twice, first on line {self.ids[cell.text]}.", cell.span)
        else:
            self.ids[cell.text] = cell.span.line

    def _count(self, cell: Cell, name: str, least: int, most: int) -> int:
        if re.fullmatch("[0-9]{1,19}", cell.text) and least <= int(cell.text) <= most:
            return int(cell.text)
        self._complain(f"`{name}` must be a whole number from {least} to {most}, not `{cell.text[:40]}`.", cell.span)
        return least

    def _seconds(self, cell: Cell) -> float:
        if _NUMBER.fullmatch(cell.text):
            seconds = float(cell.text) / 1e3
            if 0 < seconds < math.inf:
                return seconds
        self._complain(f"`time_ms` must be a number above 0, not `{cell.text[:40]}`.", cell.span)
        return 1.0

    def _one_of(self, cell: Cell, what: str, known: Sequence[str]) -> str:
        if cell.text not in known:
            hint = did_you_mean(cell.text, known) or "it is one of " + ", ".join(known)
            self._complain(f"There is no {what} `{cell.text[:60]}`.", cell.span, hint)
        return cell.text

    def _model(self, cell: Cell) -> None:
        if cell.text not in self.models:
            try:
                read_model(Path(cell.text))
                self.models[cell.text] = ()
            except InputError as error:
                self.models[cell.text] = error.diagnostics
        for diagnostic in self.models[cell.text]:
            self._complain(diagnostic.message, cell.span, diagnostic.hint)

    def _mesh(self, cell: Cell | None, chips: int) -> Mesh | None:
        if cell is None or not cell.text:
            return None
        try:
            mesh = Mesh.parse(cell.text)
        except InputError as error:
            for diagnostic in error.diagnostics:
                self._complain(diagnostic.message, cell.span, diagnostic.hint)
            return None
        if mesh.chips != chips:
            self._complain(f"The mesh `{cell.text[:60]}` has {mesh.chips} chips, and the row says {chips}.", cell.span)
        return mesh

    def _tokens(self, phase: str, counts: dict[str, int], cells: Mapping[str, Cell]) -> None:
        """Some phases process, or generate, at least one token."""
        wanted = {
            "input_tokens": (Timed.PREFILL, Timed.DECODE_STEP, Timed.TOTAL),
            "output_tokens": (Timed.DECODE, Timed.TOTAL),
        }
        for name, phases in wanted.items():
            if phase in phases and not counts[name]:
                self._complain(f"`{name}` is 0, and phase `{phase}` has at least one token of them.", cells[name].span)
