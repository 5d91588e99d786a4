"""Fitting: known figures come back from rows made with them, intervals cover, and what is open is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from escc.compiler.calibrate.fit import EFFICIENCIES, HOP, START, Fit, Parameter, Work, fit, started
from escc.cost.hardware import Calibrated, Hardware, Rule, Switch
from escc.ir.diagnostics import InputError

CHIP = Hardware(
    name="made-up",
    peak_flops_per_s=1e14,
    hbm_bytes=1e10,
    hbm_bytes_per_s=1e12,
    network_bytes_per_s=1e11,
    fabric=Switch(64, 1e11),
    calibrated=Calibrated(Rule.ROOT_OF_SQUARES),
)
TRUE = {"compute_efficiency": 0.71, "hbm_efficiency": 0.83, "network_efficiency": 0.52, "hop_latency_s": 4e-6}
PARAMETERS = (*EFFICIENCIES, HOP)
Floats = NDArray[np.float64]


def made(rows: int, seed: int = 0) -> Work:
    """Rows of three ops each: some of them arithmetic, some HBM, some network, some latency."""
    random = np.random.default_rng(seed)

    def spread(size: int, middle: float) -> Floats:
        return middle * 10 ** random.uniform(-1.5, 1.5, size)

    return Work(
        row=np.repeat(np.arange(rows), 3),
        times=np.repeat([1.0, 10.0, 2.0], rows),
        flops=spread(3 * rows, 1e12),
        hbm_bytes=spread(3 * rows, 1e10),
        cache_bytes=np.zeros(3 * rows),
        narrow=np.zeros(3 * rows),
        kernels=np.zeros(3 * rows),
        layers=np.zeros(3 * rows),
        steps=np.zeros(3 * rows),
        fixed_s=np.zeros(rows),
        transfer_s=spread(rows, 1e-1),
        starts=spread(rows, 1e4),
        hops=spread(rows, 3e4),
    )


def by_hand(work: Work, figures: dict[str, float]) -> Floats:
    """What the rows take, written out."""
    arithmetic = work.flops / (1e14 * figures["compute_efficiency"])
    traffic = work.hbm_bytes / (1e12 * figures["hbm_efficiency"])
    out = work.transfer_s / figures["network_efficiency"] + work.hops * figures.get("hop_latency_s", 0.0)
    out = out + work.starts * figures.get("collective_latency_s", 0.0)
    for op, row in enumerate(work.row):
        out[row] += work.times[op] * (arithmetic[op] ** 2 + traffic[op] ** 2) ** 0.5
    return np.asarray(out)


def fitted(
    work: Work, measured_s: Floats, parameters: tuple[Parameter, ...] = PARAMETERS, chip: Hardware = CHIP
) -> Fit:
    return fit(work, measured_s, started(chip, parameters), parameters)


def test_figures_come_back_exactly_without_noise() -> None:
    work = made(40)
    found = fitted(work, by_hand(work, TRUE))
    assert {one.parameter.name: one.value for one in found.fitted} == pytest.approx(TRUE, rel=1e-3)
    assert all(one.open is None for one in found.fitted)
    assert found.hardware.calibrated.error < 1e-3 and found.loss < 1e-3


def test_rows_take_what_kernels_and_slow_caches_add() -> None:
    plain = made(12)
    work = replace(plain, cache_bytes=plain.hbm_bytes / 4, kernels=np.tile([1.0, 0.0, 2.0], 12))
    figures = Calibrated(Rule.SUM, hbm_efficiency=0.5)
    slow = replace(figures, attention_efficiency=0.25, kernel_s=1e-3)
    more = replace(CHIP, calibrated=slow)
    added = work.seconds(more) - work.seconds(replace(CHIP, calibrated=figures))
    expected = np.zeros(12)
    for op, row in enumerate(work.row):
        # A quarter of the bytes comes at a quarter of the peak where it came at a half; and kernels start.
        expected[row] += work.times[op] * (work.hbm_bytes[op] / 4 * (4 - 2) / 1e12 + work.kernels[op] * 1e-3)
    assert added == pytest.approx(expected, rel=1e-9)
    assert work.take([3, 5]).seconds(more) == pytest.approx(work.seconds(more)[[3, 5]], rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_intervals_cover_with_noise_and_grow_with_it(seed: int) -> None:
    work, random = made(60, seed), np.random.default_rng(100 + seed)
    noise = random.normal(0.0, 1.0, 60)
    found = [fitted(work, by_hand(work, TRUE) * np.exp(scale * noise)) for scale in (0.02, 0.08)]
    for one in found[0].fitted:
        assert one.open is None and one.interval is not None
        low, high = one.interval
        middle, half = (low + high) / 2, (high - low) / 2
        assert abs(TRUE[one.parameter.name] - middle) < 1.5 * half  # 95% are within one half
    assert 0.015 < found[0].hardware.calibrated.error < 0.03
    assert 0.06 < found[1].hardware.calibrated.error < 0.12
    widths = [sum(high - low for low, high in (one.interval or (0, 0) for one in each.fitted)) for each in found]
    assert widths[1] > 2 * widths[0]


def test_intervals_cover_about_as_often_as_they_say() -> None:
    inside = []
    for seed in range(40):
        work, random = made(30, seed), np.random.default_rng(500 + seed)
        found = fitted(work, by_hand(work, TRUE) * np.exp(random.normal(0.0, 0.05, 30)))
        for one in found.fitted:
            low, high = one.interval or (0.0, 0.0)
            inside.append(low <= TRUE[one.parameter.name] <= high)
    assert 0.8 < sum(inside) / len(inside) < 0.99


def test_a_row_that_is_far_off_does_not_decide() -> None:
    work = made(40)
    measured_s = by_hand(work, TRUE)
    measured_s[7] *= 3
    found = fitted(work, measured_s)
    assert {one.parameter.name: one.value for one in found.fitted} == pytest.approx(TRUE, rel=0.02)


def test_what_no_row_depends_on_is_named() -> None:
    work = replace(made(40), transfer_s=np.zeros(40))
    figures = TRUE | {"network_efficiency": 1.0}
    found = {one.parameter.name: one.open for one in fitted(work, by_hand(work, figures)).fitted}
    assert found.pop("network_efficiency") == "no row depends on it"
    assert set(found.values()) == {None}


def test_what_others_can_make_up_for_is_named() -> None:
    work = made(40)
    alike = replace(work, starts=work.hops / 3)
    parameters = (*EFFICIENCIES, START, HOP)
    found = {one.parameter.name: one.open for one in fitted(alike, by_hand(alike, TRUE), parameters).fitted}
    at_bound = [name for name, reason in found.items() if reason == "it ends at a bound"]
    blurred = [name for name, reason in found.items() if reason == "others can make up for it"]
    assert set(at_bound) | set(blurred) <= {"hop_latency_s", "collective_latency_s"} and at_bound + blurred
    assert found["compute_efficiency"] is None


def test_what_ends_at_a_bound_is_named_and_is_there() -> None:
    work = made(40)
    found = fitted(work, by_hand(work, TRUE | {"compute_efficiency": 1.4}))
    one = next(one for one in found.fitted if one.parameter.name == "compute_efficiency")
    assert (one.value, one.open, one.interval) == (1.0, "it ends at a bound", None)


def test_an_interval_wider_than_its_value_is_open() -> None:
    work = made(12)
    small = replace(work, hops=work.hops * 1e-3)
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.1, 12))
    [hop] = [one for one in fitted(small, by_hand(small, TRUE) * noise).fitted if one.parameter is HOP]
    assert hop.open in ("its interval is wider than itself", "it ends at a bound")


def test_a_latency_that_is_not_fitted_is_zero() -> None:
    chip = replace(CHIP, hop_latency_s=1e-6, calibrated=replace(CHIP.calibrated, collective_latency_s=1e-5))
    assert started(chip, PARAMETERS).calibrated.collective_latency_s == 0.0
    assert started(chip, (*EFFICIENCIES, START)).hop_s == 0.0


@pytest.mark.parametrize(("rows", "said"), [(1, "One row cannot give 4 parameters"), (3, "3 rows cannot give 4")])
def test_fewer_rows_than_parameters_are_refused(rows: int, said: str) -> None:
    work = made(rows)
    with pytest.raises(InputError, match=said):
        fitted(work, by_hand(work, TRUE))


def test_as_many_rows_as_parameters_have_no_intervals() -> None:
    work = made(4)
    found = fitted(work, by_hand(work, TRUE))
    assert {one.open for one in found.fitted} <= {"there are as many parameters as rows", "it ends at a bound"}


def test_some_of_the_rows() -> None:
    work = made(6)
    whole = by_hand(work, TRUE)
    for rows in ([0, 2, 5], [4], [5, 0]):
        assert by_hand(work.take(rows), TRUE).tolist() == pytest.approx(whole[rows].tolist(), rel=1e-12)
