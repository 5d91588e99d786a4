"""Targets and the frontier of a sweep, against all points looked at one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from escc.compiler.plan.serving import Serving
from escc.compiler.sweep.answers import Target, answer, best_points, read_target
from escc.compiler.sweep.points import Point, Record, Status, Sweep
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype

SWEEP = Sweep(
    Serving("B", ("L",), "M"), (Hardware.of_paper("tpu-v4"),), ("decode",), (Dtype.BF16, Dtype.INT8), (8,), (1,), (64,),
    source=Source("m.esti", ""),
)  # fmt: skip


def drawn(seed: int) -> list[Record]:
    """Records with few different figures, so that there are equals, and some without a plan."""
    rng = random.Random(seed)
    out = []
    for n in range(rng.randint(1, 12)):
        point = Point("decode", rng.choice([Dtype.BF16, Dtype.INT8]), 8, n + 1, 64)
        planned = rng.random() < 0.8
        latency_s, cost = (float(rng.randint(1, 5)), float(rng.randint(1, 5))) if planned else (None, None)
        status = Status.OPTIMAL if planned else Status.INFEASIBLE
        out.append(Record(point, status, (), latency_s=latency_s, chip_s_per_million=cost))
    return out


@pytest.mark.parametrize("seed", range(50))
def test_no_point_of_the_frontier_is_bettered_and_all_others_are(seed: int) -> None:
    records = drawn(seed)
    best = set(best_points(SWEEP, records))
    for k, record in enumerate(records):
        if record.latency_s is None or record.chip_s_per_million is None:
            assert k not in best
            continue
        mine = record.latency_s, record.chip_s_per_million
        others = [
            (o.latency_s, o.chip_s_per_million)
            for o in records
            if o.latency_s is not None and o.chip_s_per_million is not None and o.point.weights == record.point.weights
        ]
        bettered = any(x <= mine[0] and y <= mine[1] and (x, y) != mine for x, y in others)
        assert k not in best if bettered else (k in best or others.count(mine) > 1)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("bounded", ["latency", "cost", "both"])
def test_the_answer_is_the_best_of_those_within_the_target(seed: int, bounded: str) -> None:
    records = drawn(seed)
    target = Target(3.0 if bounded != "cost" else None, 2.0 if bounded != "latency" else None)
    within = [
        r
        for r in records
        if r.latency_s is not None
        and r.chip_s_per_million is not None
        and r.latency_s <= (target.latency_s or 9)
        and r.chip_s_per_million <= (target.cost or 9)
    ]
    found = answer(records, target)
    assert found.met == bool(within)
    if within and found.record is not None:
        figure = (lambda r: r.latency_s) if bounded == "cost" else (lambda r: r.chip_s_per_million)
        assert found.record in within and figure(found.record) == min(map(figure, within))
    assert (found.record is None) == all(r.latency_s is None for r in records)


def test_dollars_count_where_the_chip_has_a_price() -> None:
    priced = [replace(record, dollars_per_million=7.0) for record in drawn(1) if record.latency_s is not None]
    assert answer(priced, Target(cost=7.0)).met and not answer(priced, Target(cost=6.9)).met


@pytest.mark.parametrize(("text", "seconds"), [("30ms", 0.03), ("2 s", 2.0), ("1.5us", 1.5e-6)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert read_target(text, None) == Target(pytest.approx(seconds), None)


@pytest.mark.parametrize("text", ["30", "ms", "-1s", "0s", "1e3s", "1m", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no time"):
        read_target(text, None)
