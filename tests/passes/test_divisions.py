"""Divisions of many layers over stages: the quickest is found, and the bound is one of all of them."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import accumulate, combinations, pairwise, product

import pytest

from escc import Hardware, Mesh, parse
from escc.cost.stages import Rounds
from escc.passes.options import Options
from escc.passes.plan import NoPlan, Outcome
from escc.passes.stages.choose_stages import _Search, choose_stages
from escc.passes.stages.divide import turns
from escc.passes.stages.divisions import Divisions, even

FLOPS_PER_S = 1e9
# All is computed: what is read and sent takes nothing.
COMPUTES = f"""
name = "computes"
[datasheet]
peak_flops_per_s = {FLOPS_PER_S}
hbm_bytes = 1e9
hbm_bytes_per_s = 1e18
[network]
network_bytes_per_s = 1e20
between_bytes_per_s = 1e20
hop_latency_s = 0
[switch]
node_chips = 8
link_bytes_per_s = 1e20
[calibrated]
op_rule = "max"
"""
E = 64


def feed_forward(name: str, hidden: int) -> str:
    return f"""
block {name}(x: bf16[B,E]) -> bf16[B,E] {{
  param W: bf16[E,F{hidden}]
  param V: bf16[F{hidden},E]
  u[B,F{hidden}] = x[B,E] * W[E,F{hidden}]
  d[B,E] = u[B,F{hidden}] * V[F{hidden},E]
  return d
}}
"""


def stack(batch: int | None, *layers: tuple[int, int], around: int = 0) -> str:
    """So many layers each of some hidden sizes, after one of `around` that is no layer; phases bind a batch of None."""
    sizes = sorted({hidden for _, hidden in layers} | ({around} if around else set()))
    text = (
        f"dim B{f' = {batch}' if batch else ''}, E = {E}, "
        + ", ".join(f"F{hidden} = {hidden}" for hidden in sizes)
        + "\n"
    )
    text += "".join(feed_forward(f"block{hidden}", hidden) for hidden in sizes) + "main(x: bf16[B,E]) {\n"
    last = "x"
    if around:
        text += f"  param W: bf16[E,F{around}]\n  param V: bf16[F{around},E]\n"
        text += f"  u[B,F{around}] = x[B,E] * W[E,F{around}]\n  y[B,E] = u[B,F{around}] * V[F{around},E]\n"
        last = "y"
    for n, (count, hidden) in enumerate(layers):
        text += f"  y{n} = repeat {count} block{hidden}({last})\n"
        last = f"y{n}"
    return text + f"  return {last}\n}}\n"


def row_s(hidden: int) -> float:
    """Two products of a row."""
    return 4 * E * hidden / FLOPS_PER_S


@pytest.fixture(scope="module")
def computes(tmp_path_factory: pytest.TempPathFactory) -> Hardware:
    path = tmp_path_factory.mktemp("hardware") / "computes.toml"
    path.write_text(COMPUTES)
    return Hardware.load(str(path))


def all_divisions(layers: int, ways: int) -> list[tuple[int, ...]]:
    return [tuple(b - a for a, b in pairwise((0, *cuts, layers))) for cuts in combinations(range(1, layers), ways - 1)]


@pytest.mark.parametrize(
    ("layers", "around"), [([(3, 640), (3, 64)], 0), ([(9, 64)], 96), ([(2, 64), (1, 640), (5, 192)], 320)]
)
def test_the_quickest_of_many_divisions_is_found_and_proven(computes, layers, around):
    """One row at a time on one chip a stage: the time of each division is a sum by hand."""
    batch, ways = 6, 3
    each_s = [row_s(hidden) for count, hidden in layers for _ in range(count)]
    every_s = []
    for division in all_divisions(len(each_s), ways):
        ends = [0, *accumulate(division)]
        stages_s = [sum(each_s[a:b]) + (row_s(around) if a == 0 and around else 0.0) for a, b in pairwise(ends)]
        every_s += [
            batch / m * (sum(stages_s) + (m - 1) * max(stages_s)) for m in range(1, batch + 1) if batch % m == 0
        ]
    program = parse(stack(batch, *layers, around=around))
    found = choose_stages(program, ["main"], Mesh.parse("chip=3"), "chip", "B", Options(computes))
    assert found.price == pytest.approx(min(every_s), rel=1e-9) and found.outcome is Outcome.OPTIMAL


def test_the_bound_is_one_of_divisions_that_were_not_looked_at_as_well(computes, monkeypatch):
    """Of the even division alone: what it takes is no bound of others."""
    program = parse(stack(6, (3, 640), (3, 64)))
    given = ["main"], Mesh.parse("chip=3"), "chip", "B", Options(computes)
    quickest = choose_stages(program, *given)

    def promising(self, divisions, tried, best, below):
        return None if tried else even(self.layers, self.ways)

    monkeypatch.setattr(_Search, "promising", promising)
    found = choose_stages(program, *given)
    assert found.layers == (2, 2, 2) and found.outcome is Outcome.FEASIBLE
    assert found.bound <= quickest.price < found.price
    assert found.computing_s <= quickest.price


def test_a_batch_is_divided_once():
    program = parse(stack(12, (2, 64)))
    once = turns(program, "B", {"main": (4, 1)})
    assert dict(once.phases[0].sizes)["B"] == 3
    assert turns(once, "B", {"main": (4, 1)}) == once
    assert turns(once, "B", {"main": (2, 5)}) == turns(program, "B", {"main": (2, 5)})


TWO_PHASES = "phase prefill { B = 4 }\nphase decode { B = 2, calls = 7 }\n"


@pytest.mark.parametrize(("phases", "room"), [(("prefill",), math.inf), (("prefill", "decode"), 3.5)])
def test_no_division_takes_less_than_the_bound(phases, room):
    """Nor one of which stages were planned, nor where ends of pipelines were planned as well; nor does any stage."""
    program = parse(stack(None, (2, 192), (4, 64), around=320) + TWO_PHASES)
    capacity_bytes = room * 2 * 2 * E * 192 + 2 * 2 * E * 320  # so many layers, and what is none
    options = Options(Hardware.load("h100"), capacity_bytes=capacity_bytes, stored_bytes=capacity_bytes)
    search = _Search(program, phases, Mesh.parse("3x1"), "x", "B", options)
    for split in search.splits({})[:2]:
        plans = []
        for layers in all_divisions(6, 3):
            with suppress(NoPlan):
                plans.append(search.at(split, layers))
        divisions = Divisions(search, split)
        bounds = [divisions.bound]
        for plan in plans[::4]:
            divisions.learn(plan)
            bounds.append(divisions.bound)
        divisions.plan_ends()
        bounds.append(divisions.bound)
        least_s = min(plan.price for plan in plans)
        assert bounds == sorted(bounds) and 0.8 * least_s < bounds[-1] <= least_s
        for plan, phase in product(plans, phases):
            for place, one in zip(pairwise([0, *accumulate(plan.layers)]), plan.stages, strict=True):
                assert divisions.known_s(phase)[place] <= one.seconds(phase) * (1 + 1e-9)


HEAD = """
dim B = 1, L = 1024, E = 512, F = 2048, V = 32000
param table: bf16[V,E]
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}
main(ids: i32[B,L]) {
  x = take(table, ids, over=V)
  y = repeat 10 layer(x)
  t[B,L,V] = y[B,L,E] * table[V,E]
  return t
}
"""


def head_and_layers(layers: int) -> float:
    """Bytes of the last stage, where logits are made."""
    return 2 * (32000 * 512 + layers * 2 * 512 * 2048 + 1024 * (32000 + 512))


@pytest.mark.parametrize("layers", [3, 1])
def test_layers_go_where_there_is_room(layers):
    """Stages store as much, but one makes logits, which are no layer."""
    capacity_bytes = head_and_layers(layers) * 1.001
    options = Options(Hardware.load("h100"), capacity_bytes=capacity_bytes, stored_bytes=capacity_bytes)
    found = choose_stages(parse(HEAD), ["main"], Mesh.parse("2x1"), "x", "B", options)
    assert found.layers[1] <= layers and found.outcome is Outcome.OPTIMAL


def test_no_division_fits_where_the_fullest_stage_has_no_room_for_one_layer():
    capacity_bytes = head_and_layers(1) * 0.999
    options = Options(Hardware.load("h100"), capacity_bytes=capacity_bytes, stored_bytes=capacity_bytes)
    with pytest.raises(NoPlan) as refused:
        choose_stages(parse(HEAD), ["main"], Mesh.parse("2x1"), "x", "B", options)
    assert refused.value.outcome is Outcome.INFEASIBLE


def test_ends_count_no_more_than_all_calls_take():
    for rounds in (Rounds(c, m, w) for c in (1, 5) for m in (1, 2, 8) for w in (False, True)):
        for stages_s in ([1.0, 2.0], [3.0, 1.0, 1.0, 1.0], [1.0] * 5):
            for other in ([1.0], [1.0, 2.0, 9.0], [4.0, 4.0]):
                every, slowest = rounds.ends(sum(other), max(other))
                least = every * sum(stages_s) + (slowest - every) * max(stages_s)
                assert least <= rounds.seconds(sum(stages_s), max(stages_s)) * (1 + 1e-12)
            every, slowest = rounds.ends(sum(stages_s), max(stages_s))
            assert every * sum(stages_s) + (slowest - every) * max(stages_s) == pytest.approx(
                rounds.seconds(sum(stages_s), max(stages_s))
            )
