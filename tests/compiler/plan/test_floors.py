"""The largest of a line and a floor together, beside all of them."""

from __future__ import annotations

import random

from escc.compiler.plan.floors import largest_of_floors


def test_the_largest_is_that_of_all() -> None:
    drawn = random.Random(1)
    for _ in range(3000):
        count, over, under = drawn.randint(1, 30), drawn.randint(0, 40), drawn.randint(1, 20)
        rise, fall = drawn.randint(-20, 20), drawn.randint(-20, 20)
        largest = max(rise * i + fall * (over * i // under) for i in range(count))
        assert largest_of_floors(count, rise, fall, over, under) == largest, (count, rise, fall, over, under)


def test_it_takes_few_turns() -> None:
    assert largest_of_floors(2**40, 2**40, 1 - 2**40, 2**40 + 1, 2**40) == 2**40 - 1
