"""The judge of memory judged, against numbers worked out by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from judge.builder import Builder, call
from judge.generator import Case
from judge.holding import Holding
from judge.layouts import Place

from escc.ir.mesh import Mesh
from escc.ir.program import Program

HBM, LINK = 1.2e12, 270e9


class First(random.Random):
    """Takes the first of every choice, so that all values are bf16."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


def judge(builder: Builder, results: list[str], axis: int) -> Holding:
    return Holding(Case(builder.program(results), Mesh((("x", axis),)), None, "by hand"))


def test_an_op_holds_what_it_reads_and_makes_beside_what_is_stored() -> None:
    b = Builder(First(0), {"B": 6, "E": 4, "F": 10})
    y = b.einsum("BF", b.input("BE"), b.param("EF"))
    every = 2 * (6 * 4 + 4 * 10 + 6 * 10)
    assert judge(b, [y], 1).within(math.inf, 10) == (pytest.approx(every / HBM, rel=1e-9, abs=0), every)
    assert judge(b, [y], 1).within(every - 1, 10) == (math.inf, math.inf)


def test_what_is_needed_later_is_held_until_then() -> None:
    b = Builder(First(0), {"B": 5})
    x = b.input("B")
    last = b.map(call("add", b.map(call("exp", b.map(call("exp", x)))), x))
    _, held = judge(b, [last], 1).within(math.inf, 10) or (0.0, 0.0)
    assert held == 3 * 5 * 2  # x throughout, and at each step one value and the next


def test_a_carry_keeps_its_buffer_until_what_takes_its_place_is_there() -> None:
    b = Builder(First(0), {"B": 5})
    x = b.input("B")
    (inside,) = b.open_repeat(x)
    following = b.map(call("exp", b.map(call("exp", b.map(call("exp", inside))))))
    (out,) = b.close_repeat(4, [x], [inside], [following])
    _, held = judge(b, [out], 1).within(math.inf, 10) or (0.0, 0.0)
    assert held == 3 * 5 * 2


def test_what_is_split_takes_less_and_copies_count() -> None:
    b = Builder(First(0), {"B": 4096, "E": 64, "F": 3})
    y = b.einsum("BF", b.input("BE"), b.param("EF"))
    found = judge(b, [y], 2)
    local = 2 * (2048 * 64 + 2048 * 3 + 64 * 3)  # all of which is read or written
    assert found.within(math.inf, 10) == (pytest.approx(local / HBM, rel=1e-9, abs=0), local)
    # A stored half and its gathered whole take more than the whole, and a split of E leaves whole sums.
    assert found.within(local - 1, 5000) == (math.inf, math.inf)


def test_the_cheapest_tree_comes_first() -> None:
    shape = Holding(Case(_moved(), Mesh((("x", 2),)), None, "by hand"))
    whole, split = Place(((), ())), Place(((0,), ()))
    [(cheapest, tree), *rest] = shape.trees("x0", split, frozenset({whole}))
    assert cheapest == pytest.approx(8 * 6 * 2 / 2 / LINK)
    assert tree == {whole: split}
    assert all(cost >= cheapest for cost, _ in rest)


def _moved() -> Program:
    b = Builder(First(0), {"B": 8, "E": 6})
    return b.program([b.map(call("exp", b.input("BE")))])
