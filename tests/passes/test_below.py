"""Plans that must cost less than something: found where there is one, refuted by a bound where there is none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from judge.generator import Case, generate
from judge.optimum import optimum

from escc.compiler.plan.pipeline import load
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.passes.choose import choose
from escc.passes.options import Options
from escc.passes.plan import Cutoff

HARDWARE = Hardware.of_paper("tpu-v4")


def within(case: Case, below: float) -> Options:
    return Options(HARDWARE, capacity_bytes=math.inf, stored_bytes=case.capacity_bytes or math.inf, below=below)


@pytest.mark.parametrize("seed", range(0, 80, 2))
def test_a_plan_is_found_above_the_optimum_and_refuted_at_it(seed: int) -> None:
    case = generate(seed)
    least = optimum(case)
    if not math.isfinite(least) or not least:
        pytest.skip("no plan, or one that costs nothing")
    for more in (1 + 1e-6, 1.5):
        plan = choose(case.program, "main", case.mesh, within(case, least * more))
        assert plan.price == pytest.approx(least, rel=1e-9) and plan.gap <= 1e-9
    for share in (1 - 1e-6, 0.7):
        with pytest.raises(Cutoff) as beaten:
            choose(case.program, "main", case.mesh, within(case, least * share))
        # It says no more than is true, and as much as was asked for.
        assert least * share * (1 - 1e-9) <= beaten.value.bound <= least * (1 + 1e-9)


def test_where_nothing_fits_that_is_said_and_proven() -> None:
    file = Path(__file__).parents[2] / "examples" / "feed-forward.esti"
    program = load(file, {"B": 4096, "L": 64})
    options = Options(HARDWARE, capacity_bytes=1.2e9)
    with pytest.raises(InputError, match=r"No plan keeps to 1\.2 GB on each of 4 chips"):
        choose(program, "main", Mesh.parse("2x2"), options)


def test_a_small_batch_on_many_chips_is_proven() -> None:
    """Latencies shared between collectives decide it, some of them of values that are still partial."""
    program = load(Path("palm-540b"), {"B": 4}, weights=Dtype.INT8)
    plan = choose(program, "decode", Mesh.parse("4x8x8"), Options(Hardware.load("tpu-v4")))
    assert plan.gap <= 1e-9
