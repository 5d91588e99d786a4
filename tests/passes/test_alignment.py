"""Stages that hand values on as the next ones take them, and when no more of them are planned."""

from dataclasses import replace
from itertools import product

import pytest
from programs import TINY_DECODER as TINY

from escc import Hardware, Mesh, parse
from escc.ir.layout import Layout
from escc.ir.program import Pin, PinKind
from escc.passes import choose as choosing
from escc.passes.choose import choose
from escc.passes.ilp.solver import Settings
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Cutoff, NoPlan, Outcome, Work
from escc.passes.stages import plan_stages
from escc.passes.stages.align import Alignment
from escc.passes.stages.boundaries import ANY, Lies, apart
from escc.passes.stages.choose_stages import _Search, choose_stages
from escc.passes.stages.divide import divide

CHIP = """name = "slow"
[datasheet]
peak_flops_per_s = 1e12
hbm_bytes = 1e9
hbm_bytes_per_s = 1e11
[network]
network_bytes_per_s = 1e10
[switch]
node_chips = 6
link_bytes_per_s = 1e10
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> Options:
    """Chips on which layouts between stages matter."""
    path = tmp_path_factory.mktemp("chips") / "slow.toml"
    path.write_text(CHIP)
    return Options(Hardware.load(str(path)))


def tight(options: Options, capacity_bytes: float) -> Options:
    """The options with so much memory, for searches of their own."""
    return replace(options, capacity_bytes=capacity_bytes, work=Work())


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of programs that were searched for plans, as they are."""
    every: list[str] = []

    def counted(program, *given):
        every.append(program.name)
        return choose(program, *given)

    monkeypatch.setattr(plan_stages, "choose", counted)
    return every


def test_three_stages_of_two_phases_are_proven(slow):
    found = choose_stages(parse(TINY), ["prefill", "decode"], Mesh.parse("3x2"), "x", "B", tight(slow, 200e3))
    assert found.outcome is Outcome.OPTIMAL
    for one, other in zip(found.stages, found.stages[1:], strict=False):
        assert one.handed == other.taken and apart(one.handed, other.taken) is None


def test_a_barred_layout_is_not_taken_and_one_of_them_always_is(slow):
    program, mesh, options = parse(TINY), Mesh.parse("2"), slow
    [spmd] = insert(choose(program, "decode", mesh, options))
    taken = spmd.table()[spmd.results[0]].layout
    pin = Pin(PinKind.STORED, "logits", None, taken, "", "decode")
    other = choose(program, "decode", mesh, replace(options, barred=(pin,)))
    [spmd] = insert(other)
    assert spmd.table()[spmd.results[0]].layout != taken
    assert other.price >= choose(program, "decode", mesh, options).price
    every = [Layout(tuple(("x",) if n == at else () for n in range(3))) for at in range(3)] + [Layout(((), (), ()))]
    barred = tuple(replace(pin, layout=one) for one in every)
    with pytest.raises(NoPlan, match="`logits` lies in none of the layouts that are left"):
        choose(program, "decode", mesh, replace(options, barred=barred))


def test_where_a_layout_is_barred_its_image_under_other_names_of_axes_is_taken(slow):
    """What bars names axes: those change places with no others."""
    text = "dim B = 3, E = 5, F = 128\nmain(x: bf16[B,E], w: bf16[E,F]) { y[B,F] = x[B,E] * w[E,F]\nreturn y }"
    program, mesh = parse(text), Mesh.parse("2x2")
    free = choose(program, "main", mesh, slow)
    taken = insert(free)[0].table()["y"].layout
    pin = Pin(PinKind.STORED, "y", None, taken, "", "main")
    other = choose(program, "main", mesh, replace(slow, barred=(pin,)))
    assert insert(other)[0].table()["y"].layout != taken
    assert other.price == pytest.approx(free.price)


def test_a_stage_is_not_searched_where_a_plan_has_what_is_said_of_its_ends(searched, slow):
    search = _Search(parse(TINY), ("decode",), Mesh.parse("2x2"), "x", "B", slow)
    [split] = search.splits({"decode": 1})
    first, _ = divide(search.timed(search.program, split.rounds), (2, 3))
    free = search.stage(split, first)
    ((phase, (lies,)),) = free.handed
    assert search.stage(split, first, ANY, frozenset({Lies(phase, 0, lies, True)})) is free
    assert len(searched) == 1
    other = search.stage(split, first, ANY, frozenset({Lies(phase, 0, lies, False)}))
    assert len(searched) == 2
    assert other.handed != free.handed and other.plan.price >= free.plan.price
    assert search.known_s(first.program, (ANY, frozenset({Lies(phase, 0, lies, False)}))) == other.plan.least


def test_a_stage_without_room_is_not_searched_again_with_more_said_or_other_counts_of_phases(searched, slow):
    search = _Search(parse(TINY), ("prefill", "decode"), Mesh.parse("2x1"), "x", "B", tight(slow, 150e3))
    [split] = search.splits({"prefill": 4, "decode": 1})
    first, _ = divide(search.timed(search.program, split.rounds), (2, 3))
    twice = replace(first, program=plan_stages.called(first.program, {"prefill": 2, "decode": 7}))
    said = frozenset({Lies("prefill", 0, Layout(((), (), ())), True)})
    for stage, after in product((first, twice), (ANY, said)):
        with pytest.raises(NoPlan):
            search.stage(split, stage, ANY, after)
    assert len(searched) == 1


def test_what_is_not_found_below_a_price_is_not_looked_for_below_a_lower_one(searched, slow):
    search = _Search(parse(TINY), ("decode",), Mesh.parse("2x2"), "x", "B", slow)
    [split] = search.splits({"decode": 1})
    first, _ = divide(search.timed(search.program, split.rounds), (2, 3))
    price = search.stage(split, first).plan.price
    search.plans.clear()
    for below in (0.9 * price, 0.8 * price):
        with pytest.raises(Cutoff):
            search.stage(split, first, below=below)
    assert len(searched) == 2  # one of them the free one


def test_without_more_work_the_bound_of_what_is_left_stands(monkeypatch, slow):
    given = parse(TINY.replace("repeat 5", "repeat 2")), ["prefill"], Mesh.parse("2x2"), "x", "B"
    options = tight(slow, 80e3)
    best = choose_stages(*given, options)
    less = tight(slow, 80e3)
    monkeypatch.setattr(plan_stages, "MOST_WORK", 1)
    left = choose_stages(*given, less)
    assert 0 < less.work.read < options.work.read
    assert left.bound < best.bound <= best.price <= left.price and left.outcome is Outcome.FEASIBLE
    monkeypatch.setattr(plan_stages, "MOST_IN_VAIN", 0)
    with pytest.raises(NoPlan) as refused:
        choose_stages(*given, less)
    assert refused.value.outcome is Outcome.UNPROVEN


def test_searches_add_to_the_work_of_their_options_where_memory_binds(slow):
    program, mesh = parse(TINY), Mesh.parse("2")
    free, bound = tight(slow, 1e9), tight(slow, 330e3)
    for options in (free, bound):
        choosing.choose(program, "prefill", mesh, options)
    assert free.work.read == 0 < bound.work.read


def test_with_less_effort_less_is_read_off_once_a_price_is_known_and_the_bound_holds(slow):
    program, mesh = parse(TINY.replace("repeat 5", "repeat 2")), Mesh.parse("2")
    options = tight(slow, 160e3)
    best = choosing.choose(program, "prefill", mesh, options)
    read = {}
    for effort in (1.0, 0.1):
        own = replace(tight(slow, 160e3), settings=Settings(effort=effort), below=best.price * 1.01)
        try:
            found = choosing.choose(program, "prefill", mesh, own)
        except Cutoff as cut:
            assert effort < 1 and cut.bound <= best.price
        else:
            assert found.bound <= best.price <= found.price
        read[effort] = own.work.read
    assert read[0.1] < 0.5 * read[1.0]


def test_pipelines_are_looked_for_until_others_promise_more(slow):
    search = _Search(parse(TINY), ("prefill", "decode"), Mesh.parse("3x2"), "x", "B", tight(slow, 200e3))
    split = search.splits({"prefill": 4, "decode": 1})[0]
    free = search.at(split, (1, 2, 2))
    aligned = Alignment(search, split, free)
    aligned.go(float("inf"), 0.0)  # any
    assert aligned.best is not None
    tried = aligned.tried
    aligned.go(aligned.best.price, 0.0)
    assert aligned.tried == tried
    aligned.go(aligned.best.price, float("inf"))
    assert free.bound <= aligned.bound <= aligned.best.price
