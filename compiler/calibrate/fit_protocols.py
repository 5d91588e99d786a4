"""Protocols of collectives behind a switch, fitted to times of one kind: as many figures as the rows tell.

A collective waits for its start and for each other chip, then sends by the quicker of two protocols. Where the rows do
not tell two apart there is one; what one other chip adds is 0 where all have as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...cost.hardware import Convention, Hardware, Protocols
from ...cost.network import Network
from ...ir.collective import CollectiveKind
from ...ir.diagnostics import Source, fail
from ...ir.mesh import Mesh
from ...ir.record import record
from ..text.extras import optional
from .fit import Fitted, Parameter, judged, left_open, rounded, slopes
from .refusals import refuse_misfit
from .tables import TimedCollective

Floats = NDArray[np.float64]

MEMBER = Parameter("member_s", 0.0, 1e-4, 1e-6)
ONE = (Parameter("start_s", 0.0, 1e-4, 5e-6), MEMBER, Parameter("share", 0.02, 1.0, 0.3))
BULK = (Parameter("bulk_start_s", 0.0, 1e-3, 1.5e-5), Parameter("bulk_share", 0.02, 1.0, 0.7))
PROTOCOLS = (*ONE, *BULK)
SLOWEST = Protocols(*(parameter.slowest for parameter in PROTOCOLS))
SMOOTH = 0.1  # of log(predicted / measured): beyond it a row counts less
NEARLY = 0.9  # of a time: where so much of it is sending it grows as the bytes do, where it is waiting hardly


@record
class FittedProtocols:
    """Protocols of one kind, and what came of their rows. `errors`: (predicted - measured) / measured, a row each, of
    what plans are priced with; `parameters`: what was fitted; `fitted`: the figures in the same order."""

    protocols: Protocols
    errors: Floats
    parameters: tuple[Parameter, ...]
    fitted: tuple[Fitted, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the rows leave open."""
        one = () if self.protocols.bulk_share is not None else ("the rows do not tell two protocols apart; it has one",)
        return (*one, *left_open(self.fitted))


def network_of(chips: int, hardware: Hardware, protocols: tuple[tuple[CollectiveKind, Protocols], ...] = ()) -> Network:
    """So many chips along one axis, `x`, as plans see them."""
    return Network(replace(hardware, protocols=protocols, convention=Convention.LINKS), Mesh((("x", chips),)))


def priced_s(protocols: Protocols, rows: Sequence[TimedCollective], hardware: Hardware) -> Floats:
    """What plans pay for some rows by given protocols, seconds."""
    out = []
    for row in rows:
        network = network_of(row.chips, hardware, ((row.kind, protocols),))
        part = row.bytes / row.chips
        held = (part, row.bytes) if row.kind is CollectiveKind.ALL_GATHER else (row.bytes, part)
        out.append(float(network.collective_s(row.kind, ("x",), *held)))
    return np.array(out)


def fit_protocols(
    rows: Sequence[TimedCollective], hardware: Hardware, parameters: Sequence[Parameter] = PROTOCOLS
) -> FittedProtocols:
    """The protocols of collectives of one kind, by robust least squares. `parameters`: those of PROTOCOLS that are
    fitted; without MEMBER that is 0, without BULK there is one protocol."""
    counts = {row.chips for row in rows}
    rates = {chips: network_of(chips, hardware).axis_bytes_per_s("x") for chips in counts}
    sent_s = np.array([row.sent_bytes / rates[row.chips] for row in rows])
    others = np.array([row.chips - 1 for row in rows])
    measured_s = np.array([row.seconds for row in rows])
    names = [p.name for p in parameters]

    def residuals(figures: Floats) -> Floats:
        found = dict(zip(names, figures, strict=True))
        wait_s = found["start_s"] + found.get(MEMBER.name, 0.0) * others
        taken_s = wait_s + sent_s / found["share"]
        if "bulk_share" in found:
            taken_s = np.minimum(taken_s, wait_s + found["bulk_start_s"] + sent_s / found["bulk_share"])
        return np.asarray(np.log(taken_s / measured_s))

    scale = np.array([1e-6 if name.endswith("_s") else 1.0 for name in names])
    starts = np.array([p.start for p in parameters])
    done = optional("scipy.optimize", "Fitting").least_squares(
        lambda scaled: residuals(scaled * scale),
        starts / scale,
        bounds=([p.low for p in parameters] / scale, [p.high for p in parameters] / scale),
        loss="soft_l1",
        f_scale=SMOOTH,
    )
    figures = [rounded(p, value) for p, value in zip(parameters, done.x * scale, strict=True)]
    protocols = Protocols(**{MEMBER.name: 0.0, **dict(zip(names, figures, strict=True))})
    logs = residuals(np.array(figures))
    variance = float(logs @ logs) / max(1, len(logs) - len(names))
    by_starts = slopes(lambda scaled: residuals(scaled * starts), done.x * scale / starts)
    fitted = judged(parameters, figures, by_starts, variance)
    return FittedProtocols(protocols, priced_s(protocols, rows, hardware) / measured_s - 1, tuple(parameters), fitted)


def protocols_of(rows: Sequence[TimedCollective], hardware: Hardware, source: Source) -> FittedProtocols:
    """As `fit_protocols`, with the figures that the rows tell.

    Raises InputError where rows are too few, where their times can be no chip's, and where they say neither what a
    small collective takes nor at which rate a large one goes, or one of the two.
    """
    if len(rows) < len(PROTOCOLS):
        raise fail(f"{len(rows)} rows of {rows[0].kind} cannot give {len(PROTOCOLS)} figures.", source=source)
    counts = {row.chips for row in rows}
    found = fit_protocols(rows, hardware, [p for p in PROTOCOLS if len(counts) > 1 or p is not MEMBER])
    if any(one.unsaid for one in found.fitted):
        found = fit_protocols(rows, hardware, [p for p in found.parameters if p not in BULK])
    measured_s = np.array([row.seconds for row in rows])
    predicted_s, slowest_s = (priced_s(one, rows, hardware) for one in (found.protocols, SLOWEST))
    error = float(np.sqrt(np.mean(np.log(predicted_s / measured_s) ** 2)))
    refuse_misfit(rows, predicted_s, slowest_s, error, source, "times are in microseconds")
    _refuse_sizes(found, rows, predicted_s, source)
    return found


def _refuse_sizes(found: FittedProtocols, rows: Sequence[TimedCollective], predicted_s: Floats, source: Source) -> None:
    """Raise InputError where all rows are so small that they do not say at which rate large ones go, or so large that
    they do not say what small ones take: what is not known of them would be taken for what was measured."""
    figures = {one.parameter.name: one for one in found.fitted}
    protocols, kind = found.protocols, rows[0].kind
    wait_s = np.array([protocols.start_s + protocols.member_s * (row.chips - 1) for row in rows])
    one, waiting = protocols.bulk_share is None, wait_s / predicted_s
    rate = figures["share" if one else "bulk_share"]
    largest, smallest = (pick(rows, key=lambda row: row.sent_bytes) for pick in (max, min))
    if rate.unsaid or (rate.interval and rate.open) or (one and min(waiting) > 1 - NEARLY):
        message = f"The rows of {kind} do not say at which rate large ones go: this is the one that sends most."
        hint = "add larger ones, up to those that take twice as long where they have twice the bytes"
        raise fail(message, largest.place, hint, source)
    if figures["start_s"].unsaid or (one and max(waiting) < NEARLY):
        message = f"The rows of {kind} do not say what small ones take: this is the one that sends least."
        hint = "add smaller ones, down to those that take as long where they have half the bytes"
        raise fail(message, smallest.place, hint, source)
