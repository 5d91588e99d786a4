"""What is chosen where masks show fewer than are to be: of the reference and on virtual chips."""

from __future__ import annotations

import pytest
from few_shown import PINS, assert_as_expected, compiled

from escc.compiler.simulate.reference import random_stored, run_reference
from escc.compiler.simulate.spmd_interpreter import run_spmd


@pytest.mark.parametrize("name", PINS)
def test_what_a_mask_hides_is_not_chosen_where_it_shows_few(name: str) -> None:
    one = compiled(name)
    sizes = dict(one.spmd.sizes)
    given = random_stored(one.program, sizes, seed=0)
    assert_as_expected(given, run_reference(one.program, sizes, given))
    made = run_spmd(one.spmd, given).results
    assert_as_expected(given, {n: made[m] for n, m in zip(one.program.results, one.spmd.results, strict=True)})
