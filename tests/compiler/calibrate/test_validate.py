"""The table of predicted and measured rows: a cell for each heading, on a terminal and in the document."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from escc.compiler.calibrate.measurements import own_measurements, parse_measurements
from escc.compiler.calibrate.validate import HEADER, Row, Validation, row_cells, validation_data
from escc.cost.hardware import Hardware
from escc.cost.predict import Shares

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def validation() -> Validation:
    """Published rows, with made predictions."""
    measurements = parse_measurements(own_measurements(), "tpu-v4")
    rows = tuple(Row(row, Shares(0.4, 0.3, 0.2, 0.06, 0.04), 0.1) for row in measurements.rows)
    return Validation(measurements, Hardware.load("tpu-v4"), rows)


def test_a_row_has_a_cell_for_each_heading(validation: Validation) -> None:
    named = dict(zip(HEADER, row_cells(validation.rows[0]), strict=True))
    shown = {name: named[name] for name in ("predicted ms", "compute", "HBM", "network", "latency", "launch")}
    assert list(shown.values()) == ["1,000.0", "40%", "30%", "20%", "6%", "4%"]
    rows = validation_data(validation)["rows"]
    assert isinstance(rows, list)
    assert list(rows[0]["shares"]) == ["compute", "hbm", "network", "latency", "launch"]
    assert sum(rows[0]["shares"].values()) == pytest.approx(1.0)


def test_the_document_has_as_many_cells_as_headings(validation: Validation, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("validate_rows", ROOT / "benchmarks" / "validate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "validate_rows", module)  # where its dataclasses look for their own names
    spec.loader.exec_module(module)
    made = [line for line in module._table(validation) if line.startswith("|")]
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8").split("## Rows\n\n")[1].split("\n\n")[0]
    for lines in (made, text.splitlines()):
        assert len(lines) == 2 + len(validation.rows)
        assert {line.count("|") for line in lines} == {len(HEADER) + 1}
    assert made[:2] == text.splitlines()[:2]
