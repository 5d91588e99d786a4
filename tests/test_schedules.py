"""The document of schedules: what it says of each step, beside what was measured, is what is predicted."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from escc.compiler.sweep import schedule

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def schedules() -> ModuleType:
    spec = importlib.util.spec_from_file_location("schedules", ROOT / "benchmarks" / "schedules.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["schedules"] = module
    spec.loader.exec_module(module)
    return module


def test_lengths_have_the_published_figures(schedules: ModuleType) -> None:
    requests = schedules.requests_of(schedules.hellaswag())
    assert len(requests.contexts) == 10_042 and len(requests.endings) == 4 * 10_042
    mean = [sum(each) / len(each) for each in (requests.contexts, [n for _, n in requests.endings], requests.lengths)]
    assert mean == pytest.approx([56, 33, 89], abs=0.5) and max(requests.lengths) == 170
    assert schedules.hellaswag() != schedules.hellaswag(seed=2)


def test_the_document_is_what_is_predicted_and_its_steps_are_as_measured(
    schedules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "batch_times", cache(schedule.batch_times))  # both schedules are of the same plans
    given, found = schedules.scheduled(), schedules.scheduled(None, None)
    steps, others = schedules.ladder(given), schedules.ladder(found)
    assert schedules.document(given, found, steps, others) == schedules.DOCUMENT.read_text()
    predicted = [rung.scheduled.total_s for rung in schedules.compared(steps)]
    ratios = [one / other for one, other in zip(predicted, schedules.MEASURED_S, strict=True)]
    assert max(ratios[1:]) / min(ratios[1:]) < 1.15  # the first sends most over PCIe, at its full rate
    assert all(0.7 < ratio < 1 for ratio in ratios)
    for first, following in pairwise(predicted):
        assert following < 1.011 * first  # of as many more tokens
    assert predicted[6] == min(predicted)
    with_found = [rung.scheduled.total_s for rung in schedules.compared(others)]
    assert steps[0].scheduled.total_s < predicted[0], "the quickest plan splits batches"
    assert with_found == sorted(with_found, reverse=True) and with_found[6] < predicted[6]
