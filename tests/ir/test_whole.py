"""Integers are made of integers: what else is written as one is refused, because nothing would round it alike."""

from __future__ import annotations

import pytest

from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.program import Program
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand


def expanded(line: str) -> Program:
    text = f"""dim V = 8, E = 6, L = 2, M = 4, K = 2
main(x: f32[E], t: i32[E], q: f32[E,L]) {{
  param w: f32[V]
  param ids: i32[V]
  {line}
  return y
}}
"""
    source = Source("m.esti", text)
    return expand(parse(source), source)


@pytest.mark.parametrize(
    "line",
    [
        "y: i32 = t * 2 - 1",
        "y: i32 = t + 2 * t - t",
        "y: i32 = take(ids, t, over=V)",
        "y: i32 = positions(L into M)",
        "y: i32 = argmax(q, over=L)",
        "y: i32 = max(t, over=E)",
        "y: i32 = maximum(abs(t), size(V))",
    ],
)
def test_integers_of_integers(line: str) -> None:
    program = expanded(line)
    assert program.table()["y"].dtype is Dtype.I32


@pytest.mark.parametrize(
    "line",
    [
        "y: i32 = x * 5",
        "y: int8 = x",
        "y: i32 = t / 2",
        "y: i32 = t * 0.5",
        "y: i32 = t + 0.5 * t",
        "y: i32 = sqrt(t)",
        "y: i32 = take(w, t, over=V)",
        "y: i32 = max(x, over=E)",
        "y: i32 = last(q, over=L)",
        "y: i32 = softmax(x, over=E)",
        "y: int4 = mean(x, over=E)",
    ],
)
def test_integers_of_anything_else(line: str) -> None:
    with pytest.raises(InputError) as caught:
        expanded(line)
    [found] = caught.value.diagnostics
    assert "what it is made of is not whole" in found.message
    assert found.span is not None and found.span.line == 5


def test_floats_of_integers() -> None:
    assert expanded("y: f32 = sqrt(t) * 0.5").table()["y"].dtype is Dtype.F32
