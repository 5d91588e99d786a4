"""Small problems settled with every copy told apart: right by trying everything, where boxes are not looked into."""

from __future__ import annotations

import math

import pytest
from judge.generator import generate
from judge.holding import known

from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.ir.verify.verify import verify
from escc.passes.choose import Options, choose
from escc.passes.lower.insert import insert
from escc.passes.search import branch_and_bound as boxes
from escc.passes.search import search, settle
from escc.passes.search.copies_program import CopiesProgram

HARDWARE = Hardware.of_paper("tpu-v4")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often something was settled, and a row added; boxes give up at once."""
    monkeypatch.setattr(boxes, "MOST_READ", 1)
    monkeypatch.setattr(boxes, "MOST_WAYS", 1)
    monkeypatch.setattr(boxes, "MOST_COLUMNS", 0)
    counts = {"settle": 0, "forbid": 0}

    def count(owner: object, name: str) -> None:
        inner = getattr(owner, name)

        def counting(*given: object) -> object:
            counts[name] += 1
            return inner(*given)

        monkeypatch.setattr(owner, name, counting)

    count(search, "settle")
    count(CopiesProgram, "forbid")
    return counts


@pytest.mark.parametrize(("axis", "seeds"), [(2, range(60)), (4, range(130, 160)), (3, range(260, 310))])
def test_every_capacity_gives_the_least_price_within_it(axis: int, seeds: range, counted: dict[str, int]) -> None:
    mesh, refused = Mesh((("x", axis),)), 0
    for seed in seeds:
        program = generate(seed).program
        for capacity, least in known(seed, mesh):
            try:
                plan = choose(program, "main", mesh, Options(HARDWARE, capacity_bytes=capacity))
            except InputError as error:
                assert least == math.inf, (seed, capacity)
                assert "was found" not in error.diagnostics[0].message
                refused += 1
                continue
            (spmd,) = insert(plan)
            verify(spmd, program)
            assert memory(spmd).total_bytes <= capacity
            assert plan.price == pytest.approx(least, rel=1e-9), (seed, capacity)
            assert plan.price * (1 - 1e-9) <= plan.bound <= plan.price
    assert counted["settle"] >= 5 and counted["forbid"] >= 1
    assert refused >= 1


def test_what_is_too_large_is_left_as_it_is(counted: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "MOST_ARCS", 0)
    mesh = Mesh((("x", 2),))
    program = generate(42).program
    found = [choose(program, "main", mesh, Options(HARDWARE, capacity_bytes=math.inf))]
    (spmd,) = insert(found[0])
    with pytest.raises(InputError, match="was found"):
        choose(program, "main", mesh, Options(HARDWARE, capacity_bytes=float(memory(spmd).total_bytes) * 0.7))
    assert counted["settle"] == 1 and not counted["forbid"]
