"""Hardware figures fitted to measured rows: robust least squares, intervals, and what the rows leave open.

What is made small is the sum over rows of |log(predicted / measured)|, rounded off near 0, so that no single
row decides. Intervals are those of least squares at that place, from the residuals and their derivatives.
A parameter is left open by the data where its 95% interval is wider than the value itself, where it ends at
a bound, or where others can make up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cost.estimate import OpWork, Transfer, concrete_sizes, in_floats, step_costs
from ...cost.hardware import MEASURED, Calibrated, Convention, Engine, Hardware, Rule
from ...cost.network import Network
from ...ir.diagnostics import fail
from ...ir.dtype import Dtype
from ...ir.record import record
from ..text.extras import optional
from .rows import Programs, Step


@record(eq=False)
class Work:
    """The work of `len(transfer_s)` rows.

    Of each op: `row`, how often it runs (`times`), its flops and whether they are in fp8 (`narrow`), its HBM bytes and
    those of them that are caches', the kernels that start with it, and the part of a step. Of each row: what its
    collectives carry, in seconds at the full rate of the links; how many start; their hops; and the seconds of those
    whose protocols are known.
    """

    row: NDArray[np.intp]
    times: Floats
    flops: Floats
    narrow: Floats
    hbm_bytes: Floats
    cache_bytes: Floats
    kernels: Floats
    layers: Floats
    steps: Floats
    transfer_s: Floats
    starts: Floats
    hops: Floats
    fixed_s: Floats

    def seconds(self, hardware: Hardware) -> Floats:
        """What each row takes with the calibrated figures of `hardware`, on the links."""
        found, engine = hardware.calibrated, hardware.engine or Engine("none")
        compute = self.flops / np.where(self.narrow > 0, hardware.peak(Dtype.FP8), hardware.peak())
        op_s = hardware.together_s(compute, hardware.memory_s(self.hbm_bytes, self.cache_bytes))
        beside_s = self.kernels * found.kernel_s + self.layers * engine.layer_s + self.steps * engine.step_s
        ops = np.bincount(self.row, self.times * (op_s + beside_s), len(self.transfer_s))
        latency = self.starts * found.collective_latency_s + self.hops * hardware.hop_s
        return np.asarray(ops + self.transfer_s / found.network_efficiency + latency + self.fixed_s)

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> Work:
        """The work of some of the rows."""
        place = np.full(len(self.transfer_s), -1, dtype=np.intp)
        place[rows] = np.arange(len(rows))
        kept = place[self.row] >= 0
        arrays = {name: getattr(self, name)[kept] for name in PER_OP}
        arrays |= {name: getattr(self, name)[rows] for name in PER_ROW}
        return Work(row=place[self.row][kept], **arrays)


PER_OP = ("times", "flops", "narrow", "hbm_bytes", "cache_bytes", "kernels", "layers", "steps")
PER_ROW = ("transfer_s", "starts", "hops", "fixed_s")


def work_of(rows: Sequence[Sequence[tuple[Step, int]]], programs: Programs, hardware: Hardware) -> Work:
    """The work of measured rows, each so many times some steps, whose collectives use as many axes at once as
    `hardware` says."""
    ops: list[tuple[float, ...]] = []
    moves = np.zeros((len(rows), len(PER_ROW)))
    bare = Calibrated(axes_at_once=hardware.calibrated.axes_at_once, hop_latency_s=0.0)
    linked = replace(hardware, calibrated=bare, convention=Convention.LINKS)
    started, hopping = replace(bare, collective_latency_s=1.0), replace(bare, hop_latency_s=1.0)
    for n, steps in enumerate(rows):
        for step, count in steps:
            spmd = programs[step]
            networks = [Network(replace(linked, calibrated=c), spmd.mesh) for c in (bare, started, hopping)]
            for item in step_costs(spmd, concrete_sizes(spmd)):
                if isinstance(item, OpWork):
                    work = in_floats(item.work)
                    narrow = float(hardware.done_in(work.arithmetic) is Dtype.FP8)
                    done, kernels = (work.flops, narrow, work.hbm_bytes, work.cache_bytes), hardware.kernels(work)
                    ops.append((n, count * item.times, *done, kernels, work.layers, work.steps))
                elif isinstance(item, Transfer):
                    moves[n] += count * item.times * np.array(_taken(item, networks), dtype=np.float64)
    columns = np.array(ops, dtype=np.float64).reshape(-1, 1 + len(PER_OP)).T
    per_row = dict(zip(PER_ROW, moves.T, strict=True))
    return Work(row=columns[0].astype(np.intp), **dict(zip(PER_OP, columns[1:], strict=True)), **per_row)


def _taken(item: Transfer, networks: Sequence[Network]) -> tuple[float, ...]:
    """The bytes, starts and hops of a collective as seconds, each at a rate of one; or all its seconds."""
    nothing = replace(item, load=0, ahead=(0, 0) if item.joined else None)
    steps = item, nothing, nothing
    taken = tuple(float(step.seconds(network, float)) for step, network in zip(steps, networks, strict=True))
    return (0.0, 0.0, 0.0, taken[0]) if networks[0].is_measured(item.kind, item.axes) else (*taken, 0.0)


Floats = NDArray[np.float64]

SMALL = 0.003  # of a residual: below it the square counts
SLOPE = 1e-4  # of a parameter, in units of its start, for the derivatives
SINGULAR = 1e-6  # of the largest singular value
AT_BOUND = 1e-3  # of a parameter's start: nearer to a bound it is at it
ENGINES = ("step_s", "layer_s")  # parameters that are an engine's
BOUND = "it ends at a bound"  # why a figure may be left open
DIGITS = 4  # kept of a fitted figure


@record
class Parameter:
    """A figure of `Calibrated` or `Engine` that is fitted, within bounds, from a start."""

    name: str
    low: float
    high: float
    start: float

    @property
    def slowest(self) -> float:
        """The bound where a chip is slowest: of a latency the longest, of a share of a peak the least."""
        return self.high if self.name.endswith("_s") else self.low


EFFICIENCIES = tuple(
    Parameter(name, 0.05, 1.0, 0.8) for name in ("compute_efficiency", "hbm_efficiency", "network_efficiency")
)
KERNEL = Parameter("kernel_s", 0.0, 1e-4, 4e-6)
HOP = Parameter("hop_latency_s", 0.0, 1e-3, 3e-6)
START = Parameter("collective_latency_s", 0.0, 1e-3, 1e-5)


@record
class Fitted:
    """A parameter's value and its 95% interval, None where there is none; `open`: why the data leave it
    open, None where they do not."""

    parameter: Parameter
    value: float
    interval: tuple[float, float] | None
    open: str | None

    @property
    def unsaid(self) -> bool:
        """Whether the rows say nothing of it, so that its value is one of many that do as well."""
        return self.open is not None and self.open != BOUND and self.interval is None


def left_open(fitted: Sequence[Fitted]) -> tuple[str, ...]:
    """What the data leave open, in words."""
    return tuple(f"{one.parameter.name} is not identified by the data: {one.open}" for one in fitted if one.open)


@record
class Fit:
    """Hardware with fitted figures, and what came of it; `loss`: the mean of |log(predicted / measured)|."""

    hardware: Hardware
    fitted: tuple[Fitted, ...]
    loss: float

    @property
    def left_open(self) -> tuple[str, ...]:
        """What the data leave open."""
        return left_open(self.fitted)


def measured(hardware: Hardware, rule: Rule) -> Hardware:
    """The hardware as one that was measured: by a name that says so, like no other chip, on its links, with such a
    rule for ops."""
    name = f"{hardware.chip}{MEASURED}"[:60]
    named = replace(hardware, name=name, measured_like=None, convention=Convention.LINKS)
    return named.with_figures(op_rule=rule)


def started(hardware: Hardware, parameters: Sequence[Parameter]) -> Hardware:
    """The hardware with parameters where their fit starts, or as they are where they were fitted before; a
    latency that is not fitted is 0."""
    figures: dict[str, Any] = {latency.name: 0.0 for latency in (HOP, START, KERNEL)}
    fresh = not hardware.calibrated.error
    figures |= {p.name: p.start if fresh else getattr(hardware.calibrated, p.name) for p in parameters}
    return hardware.with_figures(**figures, error=0.0)


def slowest(hardware: Hardware, parameters: Sequence[Parameter]) -> Hardware:
    """The hardware with the slowest figures that a fit may find."""
    return _with(hardware, parameters, [p.slowest for p in parameters])


def refuse_too_few(rows: int, parameters: Sequence[Parameter]) -> None:
    """Raise InputError when there are fewer rows than parameters."""
    if rows < len(parameters):
        names = ", ".join(p.name for p in parameters)
        counted = "One row" if rows == 1 else f"{rows} rows"
        raise fail(f"{counted} cannot give {len(parameters)} parameters.", hint=f"what is fitted: {names}")


def fit(
    work: Work, measured_s: Floats, hardware: Hardware, parameters: Sequence[Parameter], smooth: float = SMALL
) -> Fit:
    """The figures of `hardware` with which its predictions come nearest to what was measured. `smooth`: as SMALL.

    Raises InputError when there are fewer rows than parameters.
    """
    refuse_too_few(len(measured_s), parameters)
    scale = np.array([p.start for p in parameters])
    bounds = np.array([[p.low, p.high] for p in parameters]).T / scale

    def residuals(scaled: Floats) -> Floats:
        return np.log(work.seconds(_with(hardware, parameters, scaled * scale)) / measured_s)

    found = optional("scipy.optimize", "Fitting").least_squares(
        residuals, np.ones(len(scale)), bounds=(bounds[0], bounds[1]), loss="soft_l1", f_scale=smooth, xtol=1e-12
    )
    values = [rounded(p, value) for p, value in zip(parameters, found.x * scale, strict=True)]
    done = _with(hardware, parameters, values)
    logs = np.log(work.seconds(done) / measured_s)
    variance = float(logs @ logs) / max(1, len(logs) - len(parameters))
    error = float(f"{variance**0.5:.{DIGITS}g}")
    fitted = judged(parameters, values, slopes(residuals, found.x), variance)
    return Fit(done.with_figures(error=error), fitted, float(np.abs(logs).mean()))


def held_out(work: Work, measured_s: Floats, left: Sequence[bool], refit: Callable[[Work, Floats], Fit]) -> list[float]:
    """The errors of the rows that are `left` out by figures that are fitted to the others: (predicted - measured) /
    measured."""
    out, kept = np.flatnonzero(left), np.flatnonzero(np.logical_not(left))
    others = refit(work.take(kept), measured_s[kept]).hardware
    errors: list[float] = (work.take(out).seconds(others) / measured_s[out] - 1).tolist()
    return errors


def rounded(parameter: Parameter, value: float) -> float:
    """A figure as it is written; at a bound where it is next to it."""
    for bound in (parameter.low, parameter.high):
        if abs(value - bound) <= AT_BOUND * parameter.start:
            return bound
    return float(f"{value:.{DIGITS}g}")


def slopes(residuals: Callable[[Floats], Floats], at: Floats) -> Floats:
    """The derivatives of residuals, a column for each parameter."""
    steps = SLOPE * np.eye(len(at))
    return np.stack([(residuals(at + step) - residuals(at - step)) / (2 * SLOPE) for step in steps], axis=1)


def _with(hardware: Hardware, parameters: Sequence[Parameter], values: Sequence[float] | Floats) -> Hardware:
    figures: dict[str, Any] = {p.name: float(value) for p, value in zip(parameters, values, strict=True)}
    served = {name: figures.pop(name) for name in ENGINES if name in figures}
    engine = replace(hardware.engine or Engine("engine"), **served) if served else hardware.engine
    return replace(hardware.with_figures(**figures), engine=engine)


def judged(
    parameters: Sequence[Parameter], values: Sequence[float], jacobian: Floats, variance: float
) -> tuple[Fitted, ...]:
    """The parameters with their intervals; `jacobian`: of the residuals, by parameters in units of their
    starts; `variance`: theirs. A parameter at a bound is held there for the others' sake."""
    pairs = list(zip(parameters, values, strict=True))
    bound = [value in (p.low, p.high) for p, value in pairs]
    free = [k for k in range(len(pairs)) if not bound[k]]
    scale = np.array([parameters[k].start for k in free])
    degrees = len(jacobian) - len(parameters)
    spread, blurred = _spread(jacobian[:, free])
    halves = dict(zip(free, _quantile(degrees) * np.sqrt(spread * variance) * scale, strict=True))
    out = []
    for k, (parameter, value) in enumerate(pairs):
        interval, reason = None, None
        if not jacobian[:, k].any():
            reason = "no row depends on it"
        elif bound[k]:
            reason = BOUND
        elif degrees < 1:
            reason = "there are as many parameters as rows"
        elif blurred[free.index(k)]:
            reason = "others can make up for it"
        else:
            half = float(halves[k])
            interval = max(parameter.low, value - half), min(parameter.high, value + half)
            reason = "its interval is wider than itself" if 2 * half > value else None
        out.append(Fitted(parameter, value, interval, reason))
    return tuple(out)


def _quantile(degrees: int) -> float:
    """How many standard errors a 95% interval reaches to either side."""
    return float(optional("scipy.stats", "Fitting").t.ppf(0.975, degrees)) if degrees > 0 else 0.0


def _spread(jacobian: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The variance of each parameter for residuals of variance 1, and which parameters can make up for
    each other."""
    if not jacobian.shape[1]:
        return np.zeros(0), np.zeros(0, dtype=np.bool_)
    _, values, directions = np.linalg.svd(jacobian, full_matrices=False)
    clear = values > SINGULAR * max(values[0], np.finfo(float).tiny)
    variance = ((directions[clear] / values[clear, None]) ** 2).sum(axis=0)
    return np.asarray(variance), np.asarray((np.abs(directions[~clear]) > 0.1).any(axis=0))
