"""Hardware presets, and the times that they give."""

from __future__ import annotations

import numpy as np
import pytest

from escc.cost.hardware import load_hardware, presets
from escc.ir.diagnostics import InputError

V4 = load_hardware("tpu-v4")


def test_the_datasheet() -> None:
    assert (V4.peak_flops_per_s, V4.hbm_bytes_per_s, V4.network_bytes_per_s) == (275e12, 1.2e12, 270e9)
    assert V4.hbm_bytes == 32 * 2**30


def test_an_op_takes_the_longer_of_the_two() -> None:
    assert V4.op_s(275e12, 1.2e12 / 2) == 1.0
    assert V4.op_s(275e12 / 2, 1.2e12) == 1.0
    assert V4.op_s(np.array([275e12, 0.0]), np.array([0.0, 2.4e12])).tolist() == [1.0, 2.0]


def test_every_preset_loads() -> None:
    assert "tpu-v4" in presets()
    assert list(presets()) == sorted(presets())
    for name in presets():
        assert load_hardware(name).name == name


def test_an_unknown_preset_is_refused_with_a_guess() -> None:
    with pytest.raises(InputError) as caught:
        load_hardware("tpu-v5x" * 100)
    assert "There is no hardware preset `tpu-v5x" in caught.value.diagnostics[0].message
    assert len(caught.value.diagnostics[0].message) < 120
    with pytest.raises(InputError) as caught:
        load_hardware("tpu_v4")
    assert caught.value.diagnostics[0].hint is not None and "tpu-v4" in caught.value.diagnostics[0].hint
    with pytest.raises(InputError):
        load_hardware("../cost/tpu-v4")
