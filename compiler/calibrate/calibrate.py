"""Calibration: a chip's figures from its measured rows, planned with the very figures that are fitted.

Which plans are cheapest depends on the figures, and the figures on the plans; so rows are planned, the
figures fitted, and the rows planned again, until the figures stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...cost.hardware import Hardware, Rule, Torus
from ...ir.record import record
from .fit import EFFICIENCIES, Fit, Parameter, Work, fit, held_out, measured, refuse_too_few, slowest, started, work_of
from .measurements import Measurements
from .refusals import refuse_impossible, refuse_misfit
from .rows import least_s, plan_steps, runs

ROUNDS = 6  # of planning and fitting
UNIT = "`time_ms` is in milliseconds"  # what to say of times that no chip takes
STAYS = 0.01  # a figure that moves by less, relative to itself, stays


@record
class LeftOut:
    """The rows of one source, predicted by figures that were fitted to the others.

    `errors`: (predicted - measured) / measured, by row id; empty where too few others are left.
    """

    source: str
    errors: tuple[tuple[str, float], ...]


@record
class Calibration:
    """A fit, and how it does. `errors` as of LeftOut; `settled`: whether the last round moved no figure;
    `losses`: what the fit made small, for each number of axes at once that was tried (None: all of them).
    """

    fit: Fit
    measurements: Measurements
    errors: tuple[tuple[str, float], ...]
    left_out: tuple[LeftOut, ...]
    losses: tuple[tuple[int | None, float], ...]
    rounds: int
    settled: bool


def mean_absolute(errors: Sequence[tuple[str, float]]) -> float:
    """The mean of the absolute errors."""
    return math.fsum(abs(error) for _, error in errors) / len(errors)


def calibrate(
    measurements: Measurements,
    hardware: Hardware,
    latency: Sequence[Parameter],
    rule: Rule = Rule.MAX,
    axes_at_once: int | None = None,
) -> Calibration:
    """The figures of `hardware` fitted to measured rows, on the links. Those that were fitted before are where
    it begins.

    `latency`: which of a kernel's, a collective's and a hop's are fitted; the others are 0. `axes_at_once`: of a
    torus; None tries each number and takes that with the least loss. Raises InputError when a row cannot be
    planned, when there are fewer rows than parameters, or when the times are none that the chip takes.
    """
    parameters = (*EFFICIENCIES, *latency)
    refuse_too_few(len(measurements.rows), parameters)
    base = measured(hardware, rule)
    all_runs = runs(measurements, base)
    measured_s = np.array([row.seconds for row in measurements.rows])
    at_once = _numbers(base) if axes_at_once is None else [axes_at_once]
    now, settled, rounds = started(base, parameters), False, 0
    if axes_at_once is not None:
        now = now.with_figures(axes_at_once=axes_at_once)
    while not settled and rounds < ROUNDS:
        programs = plan_steps(all_runs, now)
        if not rounds:
            least = [least_s(run.steps, programs, now) for run in all_runs]
            refuse_impossible(measurements.rows, least, measurements.text, UNIT)
        tried = [now.with_figures(axes_at_once=number) for number in at_once]
        works = [work_of([run.steps for run in all_runs], programs, chip) for chip in tried]
        fits = [fit(work, measured_s, chip, parameters) for work, chip in zip(works, tried, strict=True)]
        best = min(range(len(fits)), key=lambda k: fits[k].loss)
        settled = _stays(now, fits[best].hardware, parameters)
        now, rounds = fits[best].hardware, rounds + 1
    predicted_s, slowest_s = works[best].seconds(now), works[best].seconds(slowest(now, parameters))
    refuse_misfit(measurements.rows, predicted_s, slowest_s, now.calibrated.error, measurements.text, UNIT)
    errors = predicted_s / measured_s - 1
    return Calibration(
        fit=fits[best],
        measurements=measurements,
        errors=tuple(zip((row.id for row in measurements.rows), errors.tolist(), strict=True)),
        left_out=tuple(
            _leave_out(source, measurements, works[best], now, parameters) for source in measurements.sources
        ),
        losses=tuple(zip(at_once, (one.loss for one in fits), strict=True)),
        rounds=rounds,
        settled=settled,
    )


def _numbers(hardware: Hardware) -> list[int | None]:
    """How many axes a collective may use at once: of a torus one, two, ..., all."""
    axes = hardware.fabric.dimensions if isinstance(hardware.fabric, Torus) else 1
    return [*range(1, axes), None]


def _stays(before: Hardware, after: Hardware, parameters: Sequence[Parameter]) -> bool:
    old, new = before.calibrated, after.calibrated
    if old.axes_at_once != new.axes_at_once:
        return False
    return all(
        math.isclose(getattr(old, p.name), getattr(new, p.name), rel_tol=STAYS, abs_tol=STAYS * p.start)
        for p in parameters
    )


def _leave_out(
    source: str, measurements: Measurements, work: Work, hardware: Hardware, parameters: Sequence[Parameter]
) -> LeftOut:
    """The rows of a source, predicted without them; the plans are those of all rows."""
    rows = measurements.rows
    left = [row.source == source for row in rows]
    if left.count(False) < len(parameters):
        return LeftOut(source, ())
    refit = partial(fit, hardware=hardware, parameters=parameters)
    errors = held_out(work, np.array([row.seconds for row in rows]), left, refit)
    return LeftOut(source, tuple(zip((row.id for row in rows if row.source == source), errors, strict=True)))
