"""Which collectives may run as one: levels by their laws, and that the choice gains by combining."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

import escc.passes.task
from escc.compiler.plan.pipeline import load
from escc.cost.estimate import estimate, local_bytes
from escc.cost.hardware import Calibrated, Hardware, Rule
from escc.cost.ops import Work
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program, Region, Repeat, operand_names, walk
from escc.ir.spmd import Compute, Move, SpmdProgram, Step
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.fused import together
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.ilp.solver import Settings, solve
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Plan
from escc.passes.search import integer_program
from escc.passes.search.combinable import levels
from escc.passes.search.copies_program import CopiesProgram
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.exact import Prover
from escc.passes.search.integer_program import choice_program
from escc.passes.search.limits import Limits
from escc.passes.search.prices import Moves
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.search import search
from escc.passes.search.side import Side

LAYER = """
model "toy"
dim B, L, M
dim E = 64, F = 256, H = 8, Q = 16
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param scale, bias: bf16[E]
  param Wq, Wk, Wv: bf16[E,H,Q]
  param Wo: bf16[H,Q,E]
  param Wi, Wg: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys, values: bf16[B,M,H,Q]
  n = layernorm(x, scale, bias, over=E)
  q[B,L,H,Q] = n[B,L,E] * Wq[E,H,Q]
  k[B,L,H,Q] = n[B,L,E] * Wk[E,H,Q]
  v[B,L,H,Q] = n[B,L,E] * Wv[E,H,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,H,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,H,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  u[B,L,F] = n[B,L,E] * Wi[E,F]
  g[B,L,F] = n[B,L,E] * Wg[E,F]
  h = silu(g) * u
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d
}
main(x: bf16[B,L,E]) { return repeat 3 layer(x) }
phase decode { B = 16, L = 1, M = 32 }
"""


def program(text: str = LAYER) -> Program:
    source = Source("toy.esti", text)
    return expand(parse(source), source)


def hardware(latency_s: float) -> Hardware:
    found = Hardware.load("tpu-v4", datasheet=True).with_network("links")
    return replace(found, calibrated=Calibrated(collective_latency_s=latency_s), hop_latency_s=0.0)


def planned(latency_s: float, mesh: str, text: str = LAYER) -> tuple[Plan, SpmdProgram, Program]:
    source = program(text)
    options = Options(hardware(latency_s))
    plan = choose(source, "decode", Mesh.parse(mesh), options)
    (spmd,) = insert(plan)
    verify(spmd, source)
    assert estimate(spmd, options.hardware).totals().total_s == pytest.approx(plan.phases[0].price, rel=1e-9)
    return plan, spmd, source


def test_a_value_stands_above_all_that_it_is_made_from() -> None:
    source = program()
    level = levels(source)
    seen = 0
    for placed in walk(source.body):
        if not isinstance(placed.item, Repeat) and hasattr(placed.item, "result"):
            for name in operand_names(placed.item):
                if name in level and level[name][0] == level[placed.item.result][0]:
                    assert level[name][1] < level[placed.item.result][1], (name, placed.item.result)
                    seen += 1
    assert seen > 20


def test_what_is_ready_together() -> None:
    level = levels(program())
    for names in ("q k v u g", "o h", "a d", "n.sum n.square_sum"):
        assert len({level[f"layer.{name}"] for name in names.split()}) == 1, names
    assert not any(name.startswith("layer.W") or name in ("layer.keys", "layer.scale") for name in level)


def test_projections_of_one_value_are_one_matmul() -> None:
    _, spmd, _ = planned(0.0, "2x2")
    joined = [p.item.result for p in walk(spmd.body) if isinstance(p.item, Compute) and p.item.joined]
    assert joined == ["layer.k", "layer.v", "layer.u", "layer.g"]


@pytest.mark.parametrize("mesh", ["4", "2x2", "2x4"])
def test_a_latency_is_paid_once_for_what_runs_as_one(mesh: str) -> None:
    """With a latency, no plan costs more than the one chosen without it, even when that is combined."""
    free, without, _ = planned(0.0, mesh)
    dear, combined, _ = planned(1e-3, mesh)
    assert not any(isinstance(p.item, Move) and p.item.joined for p in walk(without.body))
    assert dear.phases[0].gap <= 1e-9
    assert dear.phases[0].price <= estimate(without, hardware(1e-3)).totals().total_s * (1 + 1e-9)
    assert estimate(combined, hardware(0.0)).totals().total_s >= free.phases[0].price * (1 - 1e-9)


def test_pinned_partial_sums_are_reduced_together() -> None:
    """All projections are partial over x: one reduce-scatter or all-reduce is what they take."""
    pinned = LAYER
    for weight in ("Wq, Wk, Wv: bf16[E,H,Q]", "Wi, Wg: bf16[E,F]"):
        pinned = pinned.replace(weight, f"{weight} @ " + ("E_xHQ" if "Wq" in weight else "E_xF"))
    text = pinned.replace("phase decode { B = 16, L = 1, M = 32 }", "phase decode { B = 1, L = 1, M = 32 }")
    plan, spmd, _ = planned(1e-3, "4", text)
    assert plan.phases[0].gap <= 1e-9
    moves = [p.item for p in walk(spmd.body) if isinstance(p.item, Move)]
    assert any(move.joined for move in moves)
    sending = [c for c in estimate(spmd, hardware(1e-3)).moves if c.bytes_sent]
    assert sum(not c.joined for c in sending) < len(sending)
    assert estimate(spmd, hardware(1e-3)).totals(once=True).collectives == sum(not c.joined for c in sending)


@pytest.mark.parametrize(("uses", "collectives"), [(5, 1), (6, 2)])
def test_what_has_few_uses_is_reduced_together(uses: int, collectives: int) -> None:
    """Two partial sums, each read so often: as one, up to as many readers as the search counts with."""
    reads = " + ".join(f"{name}({of})" for name in FUNCTIONS[:uses] for of in "ug")
    text = PAIR.format(b=8, e=16, f=64, **PLACES["partial"]).replace("gelu(u) * tanh(g)", reads)
    _, spmd, _ = planned(1e-3, "2", text)
    assert estimate(spmd, hardware(1e-3)).totals(once=True).collectives == collectives


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("mesh", ["4", "2x4", "2x2x2"])
def test_projections_cost_as_one_hardly_less_than_apart(rule: Rule, mesh: str) -> None:
    """That is why joining them is no choice: their work is to the bytes of their weights as that of all is. Only one
    of them reads what all multiply, so as one they may take a little less, where the rule is not linear."""
    _, spmd, _ = planned(0.0, mesh)
    chip = hardware(0.0)
    chip = replace(chip, calibrated=replace(chip.calibrated, op_rule=rule))
    cost = {c.result: c for c in estimate(spmd, chip).ops}
    runs = [run for p in (spmd.body, *repeats(spmd)) for run in together(p.items) if isinstance(run[0], Compute)]
    sizes = {v.name: local_bytes(v, spmd) for v in spmd.values}
    many = [run for run in runs if len(run) > 1]
    assert many
    for run in many:
        parts = [cost[step.result] for step in run if isinstance(step, Compute)]
        weights = [float(sizes[step.op.operands[1]]) for step in run if isinstance(step, Compute)]
        alone = sum(chip.work_s(Work(c.flops, read)) for c, read in zip(parts, weights, strict=True))
        assert chip.work_s(Work(sum(c.flops for c in parts), sum(weights))) == pytest.approx(alone, rel=1e-9, abs=0)
        whole = chip.work_s(Work(sum(c.flops for c in parts), sum(c.hbm_bytes for c in parts)))
        apart = sum(c.seconds for c in parts)
        assert whole <= apart * (1 + 1e-12)
        assert apart <= whole * ((1 + 1e-3) if rule is Rule.ROOT_OF_SQUARES else (1 + 1e-12))


def repeats(spmd: SpmdProgram) -> list[Region[Step]]:
    return [p.item.body for p in walk(spmd.body) if isinstance(p.item, Repeat)]


def test_blocks_among_zeros_join_an_all_reduce_on_one_axis() -> None:
    """A gather pays its own latency; beside a sum that is completed an all-reduce of the same blocks pays none."""
    text = """model "join"
dim B = 3, E = 64, F = 64
main(x: bf16[B,E] @ BE_x, y: bf16[B,F] @ BF_x) {
  param W: bf16[E] @ E_x
  a[B] @ B partialsum-x = x[B,E] * W[E]
  b = exp(y)
  return a, b
}
"""
    joined = """sharded "join" main on x=4
sizes B=3 E=64 F=64
input x:  bf16 BE_x
input y:  bf16 BF_x
param W: bf16 E_x
  a  bf16 B partialsum-x = x[B,E] * W[E]
  b  bf16 BF_x = exp(y)
  b' bf16 BF partialsum-x = embed(x) F of b
  a' bf16 B = all-reduce(x) of a
+ b'' bf16 BF = all-reduce(x) of b'
return a', b''
"""
    chip, mesh = Hardware.load("tpu-v4"), Mesh.parse("x=4")
    by_hand = parse_spmd(Source("join.steps", joined))
    source = Source("join.esti", text)
    program = expand(parse(source), source)
    verify(by_hand, program)
    pins = parse_pins(Source("join.pins", "stored a B\nstored b BF"), program)
    plan = choose(program, "main", mesh, Options(chip, pins=pins))
    assert plan.price == pytest.approx(estimate(by_hand, chip).totals().total_s, rel=1e-9)
    apart = estimate(parse_spmd(Source("apart.steps", joined.replace("\n+ b", "\n  b"))), chip)
    assert plan.price < 0.8 * apart.totals().total_s


PAIR = """
model "pair"
dim B = {b}, E = {e}, F = {f}
param Wi: bf16[E,F] {wi}
param Wg: bf16[E,F] {wg}
main(x: bf16[B,E] @ {x}) {{
  u[B,F] = x[B,E] * Wi[E,F]
  g[B,F] = x[B,E] * Wg[E,F]
  r = gelu(u) * tanh(g)
  return r
}}
phase decode {{ }}
"""
FUNCTIONS = ("gelu", "tanh", "silu", "exp", "relu", "sigmoid")
PLACES = {
    "partial": {"wi": "@ E_xF", "wg": "@ E_xF", "x": "BE_x"},
    "crossed": {"wi": "@ E_xF", "wg": "@ EF_x", "x": "B_xE"},
    "free": {"wi": "", "wg": "", "x": "B_xE"},
}


def problem_of(source: Program, chip: Hardware, mesh: str, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """What the search is given."""
    given: list[Problem] = []

    def caught(problem: Problem, limits: object, prover: Prover, below: float, sides: object) -> Candidate:
        given.append(problem)
        return search(problem, None, prover)

    monkeypatch.setattr(escc.passes.task, "search", caught)
    choose(source, "decode", Mesh.parse(mesh), Options(chip))
    return given[0]


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize(("b", "e", "f"), [(4, 8, 16), (64, 512, 32), (8, 16, 4096)])
@pytest.mark.parametrize("latency_s", [1e-9, 1e-7, 1e-5])
def test_no_set_of_combined_collectives_is_better(
    place: str, b: int, e: int, f: int, latency_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every set of groups paid for in advance, and the cheapest plan where their members cost their bytes."""
    source = program(PAIR.format(b=b, e=e, f=f, **PLACES[place]))
    problem = problem_of(source, hardware(latency_s), "2", monkeypatch)
    found = search(problem, None, Prover(problem))
    assert found is not None
    groups = problem.groups
    assert groups is not None and 0 < len(groups.latency_s) <= 8
    best = math.inf
    for size in range(len(groups.latency_s) + 1):
        for chosen in combinations(range(len(groups.latency_s)), size):
            near = [
                d and d.repriced(d.price - np.where(np.isin(of, chosen), groups.latency_s[of], 0.0))
                for d, of in zip(problem.distances, groups.of, strict=True)
            ]
            opened = replace(problem, distances=near, groups=None)
            plan = search(opened, None, Prover(opened))
            assert plan is not None
            best = min(best, plan.price + float(groups.latency_s[list(chosen)].sum()))
    assert found.price == pytest.approx(best, rel=1e-9)
    assert found.price - found.bound <= 1e-9 * found.price


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("latency_s", [1e-9, 1e-6])
def test_of_plans_that_combine_none_is_cheaper_than_what_the_program_says(
    place: str, latency_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cheapest of all plans that run collectives of two values as one, by trying all, is what the program says in
    which each copy has its own way, and nearly what that says which has less of them; the ascent has a bound of it."""
    source = program(PAIR.format(b=8, e=16, f=64, **PLACES[place]))
    problem = problem_of(source, hardware(latency_s), "2", monkeypatch)
    assert problem.groups is not None
    unit, some = 1e12, (problem.combining,)
    flows = [None if d is None else (d.arcs, d.price * unit) for d in problem.distances]
    groups = replace(problem.groups, latency_s=problem.groups.latency_s * unit)
    weak, strong = None, None
    for many in (integer_program.MANY_COLUMNS, 0):
        monkeypatch.setattr(integer_program, "MANY_COLUMNS", many)
        made = choice_program(problem.graph, [p * unit for p in problem.prices], flows, groups, combining=some)
        weak, strong = strong, solve(made.model, Settings())
    assert weak is not None and strong is not None
    seconds = [np.zeros(0) if d is None else d.price for d in problem.distances]
    moves = Moves([None if d is None else d.arcs for d in problem.distances], seconds, problem.groups)
    allowed = [np.ones(len(price), dtype=bool) for price in problem.prices]
    answer = solve(CopiesProgram(problem, moves, allowed, unit, some).model(), Settings(solver="cp-sat"))
    best = math.inf
    for chosen in product(*(range(len(price)) for price in problem.prices)):
        for opened in combinations(range(len(problem.groups.latency_s)), 2):
            plan = problem.found(chosen, frozenset(opened))
            count = Counter(g for own in problem.trees.bill(chosen, plan.shared).groups for g in set(own) if g >= 0)
            if max(count.values(), default=0) > 1:
                best = min(best, plan.price)
    assert answer.none == (best == math.inf)
    if not answer.none:
        # A value may go a longer way to be in a group with another one, where that saves a latency.
        assert best - latency_s * (1 + 1e-6) <= answer.bound / unit <= best * (1 + 1e-9)
        assert best - latency_s * (1 + 1e-6) <= strong.bound / unit <= best * (1 + 1e-9)
        assert weak.bound <= strong.bound * (1 + 1e-9)
        assert (best > search(problem, None, Prover(problem)).price * 1.001) == (place != "partial")
    ascent = DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)
    for _ in range(4):
        assert ascent.bound() + ascent.combining(some) <= best * (1 + 1e-9)
        ascent.sweep()


def test_a_small_batch_takes_no_more_collectives_than_a_fused_block_by_hand() -> None:
    """PaLM 540B, decode at B = 4, 17 us a collective. By hand, 1D weight-stationary: one all-gather of the
    input before the fused projections, one reduce-scatter after the fused outputs, 2 in all; or one
    all-reduce in place of both. The plan takes 1, all-reducing the sum of both branches."""
    file = Path(__file__).parents[3] / "examples" / "palm-540b.esti"
    source = load(file, {"B": 4})
    chip = Hardware.load("tpu-v4", datasheet=True).with_network("links")
    assert chip.calibrated.collective_latency_s == 17e-6
    plan = choose(source, "decode", Mesh.parse("4x4x4"), Options(chip))
    (spmd,) = insert(plan)
    assert plan.phases[0].gap <= 1e-9
    layer = [c for c in estimate(spmd, chip).moves if c.times == 118 and c.bytes_sent and not c.joined]
    assert len(layer) == 1


@pytest.mark.parametrize("place", list(PLACES))
def test_no_more_than_the_latency_is_shared_out(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all tensors pay of a group is its latency, sweep after sweep; so no bound is above a plan."""
    source = program(LAYER) if place == "free" else program(PAIR.format(b=8, e=16, f=64, **PLACES[place]))
    problem = problem_of(source, hardware(1e-6), "2x2" if place == "free" else "2", monkeypatch)
    best = search(problem, None, Prover(problem))
    assert best is not None and problem.groups is not None
    ascent = DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)
    some = problem.groups.members().any(axis=0)
    before = -math.inf
    for _ in range(20):
        ascent.sweep()
        assert (ascent.shares >= 0).all()
        assert ascent.shares.sum(axis=0)[some] == pytest.approx(1.0, rel=1e-12)
        assert before * (1 - 1e-12) <= ascent.bound() <= best.price * (1 + 1e-9)
        before = ascent.bound()


def test_what_bounds_all_plans_takes_no_more_than_what_bounds_those_of_a_side() -> None:
    """Where collectives run as one, steps may run in another order, in which less is held."""
    made: list[tuple[Limits, list[Side]]] = []

    class Seen(Exception):
        pass

    def seen(_: Problem, limits: Limits, prover: object, below: float, sides: Callable[[], Iterable[Side]]) -> None:
        made.append((limits, list(sides())))
        raise Seen

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Seen):
        patched.setattr(escc.passes.task, "search", seen)
        choose(program(), "decode", Mesh.parse("2x2"), Options(hardware(1e-6), capacity_bytes=1e9))
    [(limits, sides)] = made
    ordered, combined = (side.limits for side in sides)
    assert isinstance(ordered, Limits) and isinstance(combined, Limits)
    rng, less = np.random.default_rng(0), 0
    for _ in range(20):
        some = [rng.integers(len(price)) == np.arange(len(price)) for price in sides[0].problem.prices]
        held = [each.needs.worst(some)[1] for each in (ordered, combined, limits)]
        assert held[2] <= min(held[:2]) * (1 + 1e-12)
        less += held[1] < held[0]
    assert less, "the order of steps matters here"
