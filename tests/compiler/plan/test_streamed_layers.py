"""Counts of layers that are streamed: which are planned, in which order, by families whose plans are given."""

import math
from dataclasses import dataclass, field, replace

import pytest
from programs import TINY_DECODER

from escc.compiler.plan import staged_offload
from escc.compiler.plan.pipeline import parse
from escc.compiler.plan.staged import compile_staged
from escc.compiler.plan.staged_offload import compile_streamed_stages
from escc.compiler.plan.streamed_layers import Family, Quickest, is_infeasible, layers_least_s, of_layers, refuse
from escc.compiler.plan.way import Offload
from escc.cost.hardware import Hardware, Host
from escc.cost.streams import HostFull
from escc.ir.diagnostics import EsccError
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, stored_in
from escc.passes.options import Options
from escc.passes.plan import Cutoff, NoPlan, Outcome
from escc.passes.stages.plan_stages import MOST_IN_VAIN, MOST_WORK

CACHES = frozenset({Kind.CACHE})
VAIN = MOST_IN_VAIN + 1  # work that is more than may be in vain


@dataclass
class Given(Family[float]):
    """Plans that take so many seconds, or what is raised in place of one, by the count of layers; each takes `work`,
    or as much as is said of it."""

    options: Options
    plans: dict[int, float | EsccError]
    work: dict[int, float] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    @property
    def fewest(self) -> int:
        return 1

    def least_s(self, streamed: int) -> float:
        nowhere = self.full(streamed) or any(map(is_infeasible, self.freer(streamed)))
        return math.inf if nowhere else float(streamed)

    def rank(self, streamed: int) -> float:
        return streamed

    def planned(self, streamed: int, below: float) -> float:
        self.asked.append(streamed)
        self.options.work.read += self.work.get(streamed, 0)
        match self.plans[streamed]:
            case Cutoff() as cut if below == math.inf:
                raise NoPlan([], Outcome.INFEASIBLE) from cut
            case EsccError() as error:
                raise error
            case seconds:
                return seconds

    def price(self, found: float) -> float:
        return found


def given(plans: dict[int, float | EsccError], work: dict[int, float]) -> Given:
    """A family of the 5 layers of the tiny decoder."""
    return Given(parse(TINY_DECODER), CACHES, 1, {}, Options(Hardware.load("h100")), plans, work)


def unproven() -> NoPlan:
    return NoPlan([], Outcome.UNPROVEN)


def found_of(family: Given, below: float = math.inf) -> Quickest[float]:
    best = of_layers([family], family.options, below)
    if best is None:
        refuse(family, layers_least_s([family]), below)
    return replace(best, bound=min(best.price, layers_least_s([family])))


def test_where_the_fewest_layers_were_in_vain_those_with_most_room_are_planned_next():
    family = given({1: unproven(), 2: 2.5, 3: 3.5, 4: 4.5, 5: 5.5}, {1: VAIN})
    found = found_of(family)
    assert family.asked == [1, 5, 3, 2]  # and then by halves
    assert (found.found, found.streamed, found.bound) == (2.5, 2, 1.0)


def test_what_was_in_vain_leaves_the_others_as_much_work():
    family = given({1: unproven(), 2: 2.5, 3: 3.5, 4: 4.5, 5: 5.5}, {1: VAIN, 3: MOST_WORK})
    assert found_of(family).streamed == 3
    assert family.asked == [1, 5, 3]


def test_nothing_is_found_where_that_with_most_room_is_in_vain_too():
    family = given({1: unproven(), 5: unproven()}, {1: VAIN})
    with pytest.raises(NoPlan) as refused:
        found_of(family)
    assert refused.value.outcome is Outcome.UNPROVEN and family.asked == [1, 5]


def test_a_host_without_room_for_all_layers_may_have_it_for_some():
    family = given({1: unproven(), 2: 2.5, 3: 3.5, 4: HostFull([]), 5: HostFull([])}, {1: VAIN})
    assert found_of(family).streamed == 2
    assert family.asked == [1, 5, 3, 2]


def test_what_does_not_fit_is_refused_even_where_others_are_known():
    """A bound that says that none fits does not say why: that is asked for, and said."""
    family = given({n: Cutoff(math.inf) for n in range(1, 6)}, {})
    with pytest.raises(NoPlan):
        found_of(family, below=9.0)


def test_pipelines_with_more_room_are_planned_when_the_first_were_in_vain(monkeypatch: pytest.MonkeyPatch):
    program, asked = parse(TINY_DECODER), []

    def first_in_vain(program, phases, mesh, axis, options, micro_batches, known):
        asked.append(next((one.streamed.count for one in stored_in(program.body) if one.streamed), 0))
        if len(asked) > 1:
            return compile_staged(program, phases, mesh, axis, options, micro_batches, known=known)
        known.begun, options.work.read = 0.0, VAIN
        raise unproven()

    monkeypatch.setattr(staged_offload, "compile_staged", first_in_vain)
    host = Host(dram_bytes=1e9, dram_bytes_per_s=1e11, link_bytes_per_s=1e7, host_chips=2)
    options = Options(replace(Hardware.load("h100"), host=host), capacity_bytes=280e3)
    found = compile_streamed_stages(program, ["decode"], Mesh.parse("2"), "x", options, Offload.WEIGHTS)
    assert found.plan.price < math.inf and asked[1] == 5
