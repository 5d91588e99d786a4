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
from ...ir.record import record
from ...ir.text.read import read_source
from ..plan.pipeline import read_model
from ..text.csv_lines import Row, csv_rows
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


@record
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


@record
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
    reader = _Reader(chip)
    for row in csv_rows(source, COLUMNS, OPTIONAL, reader.found):
        reader.read(row)
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

    chip: str
    found: list[Diagnostic] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    models: dict[str, tuple[Diagnostic, ...]] = field(default_factory=dict)

    def read(self, row: Row) -> None:
        """One more row."""
        before = len(self.found)
        self._identify(row)
        counts = {name: _count(row, name, *limits) for name, limits in COUNTS.items()}
        seconds = _seconds(row)
        if row["hardware"] != self.chip:
            self.others.append(row["hardware"])
            return
        if len(self.others) + len(self.rows) >= MOST_ROWS:
            row.complain(None, f"The file has more than {MOST_ROWS} rows.")
        phase = _one_of(row, "phase", "phase", list(Timed))
        weights = _one_of(row, "weights", "format of weights", list(WEIGHTS))
        feed_forward = _one_of(row, "ffn_layout", "layout of the feed-forward", list(FeedForwardLayout))
        attention = _one_of(row, "attention_layout", "layout of attention", list(AttentionLayout))
        self._model(row)
        mesh = _mesh(row, counts["chips"])
        _check_tokens(row, phase, counts)
        if len(self.found) == before:
            self.rows.append(
                Measurement(
                    id=row["id"],
                    source=row["source"],
                    model=row["model"],
                    phase=Timed(phase),
                    **counts,
                    weights=Dtype(weights),
                    feed_forward=FeedForwardLayout(feed_forward),
                    attention=AttentionLayout(attention),
                    seconds=seconds,
                    mesh=mesh,
                    place=row.span,
                )
            )

    def _identify(self, row: Row) -> None:
        name = row["id"]
        if not 0 < len(name) <= 80 or not name.isprintable():
            row.complain("id", "A row needs an id, of at most 80 printable characters.")
        elif name in self.ids:
            row.complain("id", f"The id `{name}` stands twice, first on line {self.ids[name]}.")
        else:
            self.ids[name] = row.span.line

    def _model(self, row: Row) -> None:
        name = row["model"]
        if name not in self.models:
            try:
                read_model(Path(name))
                self.models[name] = ()
            except InputError as error:
                self.models[name] = error.diagnostics
        for diagnostic in self.models[name]:
            row.complain("model", diagnostic.message, diagnostic.hint)


def _count(row: Row, name: str, least: int, most: int) -> int:
    if re.fullmatch("[0-9]{1,19}", row[name]) and least <= int(row[name]) <= most:
        return int(row[name])
    row.complain(name, f"`{name}` must be a whole number from {least} to {most}, not `{row[name][:40]}`.")
    return least


def _seconds(row: Row) -> float:
    if _NUMBER.fullmatch(row["time_ms"]):
        seconds = float(row["time_ms"]) / 1e3
        if 0 < seconds < math.inf:
            return seconds
    row.complain("time_ms", f"`time_ms` must be a number above 0, not `{row['time_ms'][:40]}`.")
    return 1.0


def _one_of(row: Row, name: str, what: str, known: Sequence[str]) -> str:
    if row[name] not in known:
        hint = did_you_mean(row[name], known) or "it is one of " + ", ".join(known)
        row.complain(name, f"There is no {what} `{row[name][:60]}`.", hint)
    return row[name]


def _mesh(row: Row, chips: int) -> Mesh | None:
    if "mesh" not in row.cells or not row["mesh"]:
        return None
    try:
        mesh = Mesh.parse(row["mesh"])
    except InputError as error:
        for diagnostic in error.diagnostics:
            row.complain("mesh", diagnostic.message, diagnostic.hint)
        return None
    if mesh.chips != chips:
        row.complain("mesh", f"The mesh `{row['mesh'][:60]}` has {mesh.chips} chips, and the row says {chips}.")
    return mesh


def _check_tokens(row: Row, phase: str, counts: Mapping[str, int]) -> None:
    """Some phases process, or generate, at least one token."""
    wanted = {
        "input_tokens": (Timed.PREFILL, Timed.DECODE_STEP, Timed.TOTAL),
        "output_tokens": (Timed.DECODE, Timed.TOTAL),
    }
    for name, phases in wanted.items():
        if phase in phases and not counts[name]:
            row.complain(name, f"`{name}` is 0, and phase `{phase}` has at least one token of them.")
