"""Stages: how a program is divided, and that the pipeline which is found is the quickest there is."""

import math
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product

import numpy as np
import pytest
from programs import TINY_DECODER as TINY

from escc import Hardware, Mesh, parse
from escc.compiler.plan.staged_offload import compile_streamed_stages, with_hosts
from escc.compiler.plan.streamed_layers import streaming
from escc.compiler.plan.way import Offload
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.cost.hardware import Host
from escc.cost.network import Network
from escc.cost.stages import Passing, passed_s
from escc.ir.diagnostics import InputError
from escc.ir.program import Kind, Pin, PinKind, Stored, walk
from escc.passes.choose import choose
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import NoPlan
from escc.passes.search.graph import build_graph
from escc.passes.stages.bounds import rounds_of
from escc.passes.stages.choose_stages import _Search, choose_stages
from escc.passes.stages.divide import divide, layers_of, turns
from escc.passes.stages.staged_plan import StagedPlan

LAYERS = """
model "layers"
dim B = 64, E = 512, F = 2048
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  h[B,F] = x[B,E] * Wi[E,F]
  g = gelu(h)
  d[B,E] = g[B,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,E]) { return repeat 6 layer(x) }
"""


def test_layers_are_divided_in_order_with_what_stands_around_them():
    program = parse(TINY)
    first, second, last = divide(program, [2, 2, 1])
    assert layers_of(program) == 5
    assert [s.layers for s in (first, second, last)] == [2, 2, 1]
    assert first.received == () and first.passed == ("y.passed",)
    assert second.received == last.received == ("layer.x.received",)
    assert last.program.results == program.results and last.passed == ()
    stored = [[p.item.value for p in walk(s.program.body) if isinstance(p.item, Stored)] for s in (first, second, last)]
    assert "table" in stored[0] and "table" not in stored[1] and "table" in stored[2]  # a tied table is stored twice
    assert "tokens" in stored[0] and "tokens" not in stored[1]
    assert all("layer.keys" in names for names in stored)


def test_stages_that_do_the_same_are_equal():
    stages = divide(parse(TINY), [1, 1, 1, 1, 1])
    assert stages[1] == stages[2] == stages[3]
    assert stages[0] != stages[1] != stages[4]


@pytest.mark.parametrize("layers", [[5], [1, 4], [2, 1, 2], [1, 1, 1, 1, 1]])
def test_stages_one_after_the_other_are_the_model(layers):
    program = parse(TINY)
    sizes = dict(program.phase("decode").sizes)
    stored = random_stored(program, sizes, seed=1)
    expected = run_reference(program, sizes, stored)
    handed: tuple[np.ndarray, ...] = ()
    at, caches = 0, []
    for stage in divide(program, layers):
        own = dict(zip(stage.received, handed, strict=True))
        for placed in walk(stage.program.body):
            if isinstance(placed.item, Stored) and placed.item.value not in own:
                array = stored[placed.item.value]
                own[placed.item.value] = array[at : at + stage.layers] if placed.repeats else array
        results = run_reference(stage.program, sizes, own)
        handed = tuple(results[name] for name in stage.passed)
        caches.append(results["layer.ks"])
        at += stage.layers
    np.testing.assert_allclose(results["logits"], expected["logits"], rtol=1e-12)
    np.testing.assert_allclose(np.concatenate(caches), expected["layer.ks"], rtol=1e-12)


def test_what_is_made_of_inputs_alone_is_made_again_and_the_rest_handed_on():
    program = parse(
        """
        model "skip"
        dim B, E = 8, F = 16
        block layer(x: f32[B,E], first: f32[B,E], twice: f32[B,E]) -> f32[B,E] { return x * first + twice }
        main(x: f32[B,E]) {
          param W: f32[E,F]
          param U: f32[F,E]
          twice = x + relu(x)
          h[B,F] = x[B,E] * W[E,F]
          first[B,E] = h[B,F] * U[F,E]
          y = repeat 4 layer(first, first, twice)
          return y
        }
        phase run { B = 4 }
        """
    )
    stages = divide(program, [2, 1, 1])
    assert all("first" in stage.received for stage in stages[1:])
    assert all("twice" not in stage.received for stage in stages)
    assert all("first" in stage.passed for stage in stages[:-1])


def test_what_stands_between_repeats_goes_with_the_layer_before_it():
    program = parse(
        """
        model "two"
        dim B, E = 8
        block layer(x: f32[B,E]) -> f32[B,E] { return x + relu(x) }
        main(x: f32[B,E]) {
          y = repeat 2 layer(x)
          half = y * 0.5
          z = repeat 3 layer(half)
          return z
        }
        phase run { B = 4 }
        """
    )
    first, second = divide(program, [2, 3])
    assert first.passed == second.received == ("half",)
    first, second = divide(program, [1, 4])
    assert first.passed == ("y.passed",) and "half" in second.program.table()


def test_caches_of_all_micro_batches_are_held():
    program, mesh, hardware = parse(TINY), Mesh.parse("2"), Hardware.load("h100")
    alone, shared = (build_graph(turns(program, "B", {"decode": (m, 1)}), "decode", mesh, hardware) for m in (1, 2))

    def most(graph, name):
        return next(n.stored_bytes.max() for n in graph.nodes if n.stored == name)

    assert most(alone, "layer.keys") == most(shared, "layer.keys")  # two micro-batches of half the size
    assert most(alone, "table") == most(shared, "table")


def all_pipelines(program, phases, mesh, axis, options, asked):
    """The least time of all divisions of layers, micro-batches and layouts between stages, each tried."""
    ways, inner = mesh.size(axis), mesh.without(axis)
    passing = Passing(frozenset(), Network(options.hardware, mesh).handing_on(axis))
    total = layers_of(program)
    batch = {phase: dict(program.phase(phase).sizes)["B"] for phase in phases}
    every = {phase: [m for m in range(1, size + 1) if size % m == 0] for phase, size in batch.items()}
    counts = [[asked[phase]] if phase in asked else every[phase] for phase in phases]
    planned = cache(partial(seconds_of, phases, inner, options, passing))
    best = np.inf
    for micro in product(*counts):
        rounds = {phase: rounds_of(program, phase, m) for phase, m in zip(phases, micro, strict=True)}
        weights = {phase: (r.micro_batches, r.weight(ways)) for phase, r in rounds.items()}
        timed = turns(program, "B", weights)
        for cuts in product(range(1, total), repeat=ways - 1):
            ends = (0, *cuts, total)
            layers = [b - a for a, b in pairwise(ends)]
            if min(layers) < 1:
                continue
            best = min(best, _best_boundaries(divide(timed, layers), rounds, inner, options, planned))
    return best


def seconds_of(phases, inner, options, passing, stage, pins):
    """What a stage takes in each phase at the least, with its ends pinned; None where it has no room."""
    own = replace(options, pins=pins, passing=replace(passing, values=frozenset(stage.passed)))
    try:
        plan = choose(stage.program, phases, inner, own)
    except NoPlan:
        return None
    return [one.price + sum(h.price for h in plan.handovers if h.before == one.phase) for one in plan.phases]


def _best_boundaries(stages, rounds, inner, options, planned):
    phases = list(rounds)
    tensor = {
        phase: next(
            t
            for t in build_graph(stages[1].program, phase, inner, options.hardware).tensors
            if t.value.name == stages[1].received[0]
        )
        for phase in phases
    }
    layouts = {p: [t.space.layout(int(k)) for k in np.flatnonzero(t.space.space.complete)] for p, t in tensor.items()}
    best = np.inf
    for ways in product(*(product(layouts[phase], repeat=len(stages) - 1) for phase in phases)):
        seconds = {phase: [] for phase in phases}
        for n, stage in enumerate(stages):
            pins = []
            for phase, lies in zip(phases, ways, strict=True):
                before = [(stage.received[0], lies[n - 1])] if n else []
                after = [(stage.passed[0], lies[n])] if stage.passed else []
                pins += [Pin(PinKind.STORED, name, None, lay, "", phase) for name, lay in (*before, *after)]
            taken = planned(stage, tuple(pins))
            if taken is None:
                break
            for phase, taken_s in zip(phases, taken, strict=True):
                seconds[phase].append(taken_s)
        else:
            best = min(best, sum(r.seconds(sum(seconds[p]), max(seconds[p])) for p, r in rounds.items()))
    return best


@pytest.mark.parametrize(
    ("phases", "mesh", "layers", "micro_batches"),
    [
        (["prefill"], "2x2", 3, {}),
        (["decode"], "2x2", 5, {}),
        (["decode"], "3x2", 4, {"decode": 2}),
        (["prefill", "decode"], "2x2", 2, {"prefill": 2, "decode": 1}),
    ],
)
def test_the_pipeline_is_the_quickest_of_all(phases, mesh, layers, micro_batches):
    program = parse(TINY.replace("repeat 5", f"repeat {layers}").replace("B = 4", "B = 2"))
    options, chips = Options(Hardware.load("h100")), Mesh.parse(mesh)
    found = choose_stages(program, phases, chips, "x", "B", options, micro_batches)
    least = all_pipelines(program, phases, chips, "x", options, micro_batches)
    assert found.price == pytest.approx(least, rel=1e-9)
    assert found.bound <= least * (1 + 1e-9)
    assert len(found.stages) == chips.size("x")


def test_ways_that_are_left_out_for_what_has_to_come_from_the_host_are_no_quicker():
    host = Host(dram_bytes=1e9, dram_bytes_per_s=1e10, link_bytes_per_s=1e9, host_chips=1)
    program = streaming(parse(TINY.replace("repeat 5", "repeat 3")), {Kind.PARAM}, 3, 0)
    options = Options(replace(Hardware.load("h100"), host=host))
    search = _Search(program, ("decode",), Mesh.parse("2x1"), "x", "B", options)
    splits = search.splits({})
    found, each = search.best(splits), [search.best([split]) for split in splits]
    assert found.price == min(one.price for one in each) < max(one.price for one in each)
    for split, one in zip(splits, each, strict=True):
        [least] = one.splits
        assert max(least.computing_s, least.fetching_s, found.bound) <= one.price
        assert least.fetching_s == search.fetching_s(split) > 0.5 * one.price  # which is why it pays to ask
        for layers in ((1, 2), (2, 1)):
            assert max(search.division_s(split, layers)) <= search.at(split, layers).price


def test_one_that_takes_more_than_is_known_is_no_measure_of_others(monkeypatch: pytest.MonkeyPatch):
    """Though its bound, and what its stages take by themselves, is less."""
    search = _Search(parse(TINY), ("prefill",), Mesh.parse("2x1"), "x", "B", Options(Hardware.load("h100")))
    asked: list[float] = []

    def at(self, split, layers, boundaries=(), most=np.inf):
        asked.append(most)
        return StagedPlan(self.mesh, "x", split.rounds, (), 0.9, 0.0)

    class Dearer:
        open, bound = False, 0.0

        def __init__(self, stages, split, plan):
            self.best = replace(plan, price=1.5)

        def go(self, most, until):
            asked.append(most)

    monkeypatch.setattr(_Search, "at", at)
    monkeypatch.setattr("escc.passes.stages.choose_stages.Alignment", Dearer)
    found = search.best(search.splits({}), below=1.0)
    assert len(asked) > 4 and all(0.99 < most <= 1.0 for most in asked) and found.price == 1.5


def test_one_way_to_divide_batches_that_takes_much_work_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch):
    """That of the least bound, whose stages take long to find and then long to run."""
    program = parse(TINY.replace("repeat 5", "repeat 2"))
    search = _Search(program, ("prefill",), Mesh.parse("2x1"), "x", "B", Options(Hardware.load("h100")))
    free, planned = search.best(search.splits({})), []
    [(_, least)] = free.rounds
    most = max(each.micro_batches for split in search.splits({}) for _, each in split.rounds)
    assert least.micro_batches < most

    def chosen(self, program, options):
        [one] = [phase for phase in program.phases if phase.name == "prefill"]
        planned.append(one.micro_batches)
        hard = one.micro_batches == least.micro_batches
        options.work.add(150 if hard else 1, 0)
        return choose(program, self.phases, self.inner, options), [1.0 if hard else 0.0]

    monkeypatch.setattr(_Search, "chosen", chosen)
    search = _Search(search.program, ("prefill",), search.mesh, "x", "B", Options(Hardware.load("h100")))
    found = search.best(search.splits({}))
    assert planned[0] == least.micro_batches and most == planned[1]  # which needs the least memory
    assert free.price < found.price < 1.0 and found.bound <= free.price
    monkeypatch.undo()
    search = _Search(search.program, ("prefill",), search.mesh, "x", "B", Options(Hardware.load("h100")))
    others = (search.best([split]) for split in search.splits({}))
    assert found.price == min(one.price for one in others if one.rounds != free.rounds)


def test_of_divisions_that_take_the_same_the_most_even_is_taken():
    """A batch that is not divided goes through all layers, whichever stage they are in."""
    for below, count in product((math.inf, 1.0), (5, 6)):
        program = parse(LAYERS.replace("repeat 6", f"repeat {count}"))
        options = Options(Hardware.load("tpu-v5e", datasheet=True), below=below)
        found = choose_stages(program, ["main"], Mesh.parse("2x4"), "x", "B", options, {"main": 1})
        assert max(found.layers) - min(found.layers) <= 1


def test_ways_to_divide_batches_that_do_not_fit_bound_no_pipeline():
    host = Host(dram_bytes=1e9, dram_bytes_per_s=1e9, link_bytes_per_s=1e8, host_chips=2)
    program = parse(TINY.replace("B = 4", "B = 2"))
    options = Options(replace(Hardware.load("h100"), host=host), capacity_bytes=235e3)
    given = ["prefill"], Mesh.parse("2x1"), "x"
    staged = compile_streamed_stages(program, *given, options, Offload.WEIGHTS)
    found = staged.plan
    assert found.gap < 0.01  # one batch would bring the layers once, and not twice: it does not fit
    options = with_hosts(*given[1:], options)
    sets = {"layer.Wq", "layer.Wk", "layer.Wv", "layer.Wo", "layer.Wi"}, {"layer.Wi", "layer.Wd"}
    prices: list[list[float]] = []
    for what in ({Kind.PARAM}, *sets):
        prices.append([])
        for count in range(2, 6):
            with suppress(NoPlan):
                streamed = streaming(program, what, count, 1)
                prices[-1].append(choose_stages(streamed, *given, "B", options).price)
    assert len(prices[0]) == 2 and found.bound <= found.price == min(map(min, filter(None, prices)))
    assert found.price < 0.8 * min(prices[0]), "fewer bytes come for as much room"
    assert set(staged.streamed_what.split(" and ")) == sets[0]


def test_divisions_that_are_not_planned_since_a_layer_has_no_room_do_not_fit():
    program, said = parse(TINY), {True: 0, False: 0}
    for capacity_bytes in (280e3, 310e3, 330e3, 345e3, 360e3):
        options = Options(Hardware.load("h100"), capacity_bytes=capacity_bytes)
        search = _Search(program, ("prefill",), Mesh.parse("2x1"), "x", "B", options)
        for split, layers in product(search.splits({}), search.divisions):
            try:
                search.at(split, layers)
                fits = True
            except NoPlan:
                fits = False
            held = search.division_may_hold(split, layers)
            assert held or not fits
            assert search.division_may_fit(split, layers) or not fits
            said[held] += 1
    assert min(said.values()) > 5


def test_what_runs_beside_layers_may_leave_a_stage_no_room():
    program = parse(TINY.replace("V = 96", "V = 960"))
    options = Options(Hardware.load("h100"), capacity_bytes=540e3)
    search = _Search(program, ("prefill",), Mesh.parse("2x1"), "x", "B", options)
    whole, *_, single = search.splits({})
    assert search.division_may_hold(whole, (3, 2))  # a layer has room, the logits of the whole batch have none
    assert not search.division_may_fit(whole, (3, 2))
    assert search.division_may_fit(single, (3, 2))


def test_the_bound_of_layers_alone_is_below_every_pipeline_where_they_do_not_divide():
    program = parse(TINY)
    for phases in (("decode",), ("prefill", "decode")):
        search = _Search(program, phases, Mesh.parse("2x1"), "x", "B", Options(Hardware.load("h100")))
        for split in search.splits({"prefill": 2} if len(phases) > 1 else {}):
            bound = search.layers_s(split.rounds)
            prices = [search.at(split, (n, 5 - n)).price for n in range(1, 5)]
            # Of what runs beside layers, too, and of what is handed on: without these 0.6 and 0.85.
            assert 0.9 * min(prices) < bound <= min(prices)
            for n, price in enumerate(prices, 1):
                assert 0.999 * price < max(search.division_s(split, (n, 5 - n))) <= price


def test_what_is_handed_on_is_known_wherever_layers_are_divided():
    """In the first repeat one value is handed on, at its end and in the second one two."""
    block = TINY[TINY.index("block layer") : TINY.index("main(")]
    second = block.replace("block layer(x: bf16[B,L,E])", "block second(x: bf16[B,L,E], w: bf16[B,L,E])")
    text = TINY.replace("main(", second.replace("return x + d", "return x + d + w") + "main(")
    text = text.replace("y = repeat 5 layer(x)", "v = repeat 3 layer(x)\n  w = relu(v)\n  y = repeat 2 second(v, w)")
    search = _Search(parse(text), ("decode",), Mesh.parse("3x2"), "x", "B", Options(Hardware.load("h100")))
    turns = "decode", 1
    assert [len(stage.passed) for stage in search.cuts] == [1, 2, 2]
    assert search.handing_s(turns) == 2 * search.handed_s(search.cuts[0], turns) > 0
    [split] = search.splits({"decode": 1})
    for layers in search.divisions:
        for one in search.at(split, layers).stages[:-1]:
            stage = one.stage
            paid_s = passed_s(insert(one.plan)[0], stage.program.results, one.options.passing)
            assert search.handing_s(turns) / 2 <= search.handed_s(stage, turns) <= paid_s


def test_memory_counts_for_each_stage():
    program = parse(TINY)
    options = Options(Hardware.load("h100"))
    mesh = Mesh.parse("2x1")
    tight = choose_stages(program, ["decode"], mesh, "x", "B", replace(options, capacity_bytes=340_000))
    assert sorted(one.stage.layers for one in tight.stages) == [2, 3]  # a layer takes 98 kB, parameters and caches
    for below in (math.inf, 1e-9):  # whatever others take
        with pytest.raises(NoPlan):
            choose_stages(program, ["decode"], mesh, "x", "B", replace(options, capacity_bytes=60_000, below=below))


def test_more_stages_than_layers_and_batches_that_do_not_divide_are_refused():
    program, options = parse(TINY), Options(Hardware.load("h100"))
    with pytest.raises(InputError, match="8 stages along `x` are more than the model's 5 layers"):
        choose_stages(program, ["decode"], Mesh.parse("8x2"), "x", "B", options)
    with pytest.raises(InputError, match="3 micro-batches do not divide the batch of phase `decode`, B = 4"):
        choose_stages(program, ["decode"], Mesh.parse("2x2"), "x", "B", options, {"decode": 3})
    flat = parse("dim B = 4\nmain(x: f32[B]) { return relu(x) }\n")
    with pytest.raises(InputError, match="has no layers to divide"):
        choose_stages(flat, ["main"], Mesh.parse("2"), "x", "B", options)


def test_a_call_waits_where_it_goes_on_with_what_the_one_before_left():
    program = parse(TINY)
    assert rounds_of(program, "decode", 2).wait and not rounds_of(program, "prefill", 2).wait
