"""Images taken as one: no plan is lost, none gets dearer, and what is found is a plan."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partialmethod
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from judge.generator import generate
from judge.optimum import optimum

from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes import task as tasks
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.layouts.strategies import StrategyTable
from escc.passes.options import Options
from escc.passes.search import branch_and_bound as boxes
from escc.passes.search import image_program
from escc.passes.search import search as searching
from escc.passes.search.dual_ascent import DualAscent
from escc.passes.search.exact import ByLevels, Prover
from escc.passes.search.image_program import Among, ImageSearch
from escc.passes.search.images import ImageLimits, Images, images, over_arcs
from escc.passes.search.limits import Limits
from escc.passes.search.problem import Candidate, Problem
from escc.passes.search.rename_axes import layout_on

PAPER, LINKS = Hardware.of_paper("tpu-v4"), Hardware.load("tpu-v4")
CUBE, SQUARE = Mesh((("x", 2), ("y", 2), ("z", 2))), Mesh((("x", 2), ("y", 2)))
MESHES = [SQUARE, CUBE, Mesh((("x", 2), ("y", 3), ("z", 2)))]


def problem_of(seed: int, mesh: Mesh, hardware: Hardware) -> Problem:
    """The problem of a generated program, as it is searched."""
    made: list[Problem] = []

    class Seen(Exception):
        pass

    def seen(problem: Problem, *_: object) -> None:
        made.append(problem)
        raise Seen

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Seen):
        patched.setattr(tasks, "search", seen)
        choose(generate(seed).program, "main", mesh, Options(hardware, capacity_bytes=math.inf))
    return made[0]


def ascent_of(problem: Problem) -> DualAscent:
    return DualAscent(problem.graph, problem.prices, problem.distances, problem.groups)


@pytest.mark.parametrize("seed", range(16))
def test_plans_stand_for_plans_that_cost_no_less(seed: int) -> None:
    mesh, hardware = MESHES[seed % 3], (PAPER, LINKS)[seed % 2]
    whole = problem_of(seed, mesh, hardware)
    small = images(whole)
    assert small is not None
    ascents = ascent_of(whole), ascent_of(small.problem)
    for _ in range(3):
        bounds = [ascent.bound() for ascent in ascents]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-9, abs=1e-18), "as images are split alike"
        for ascent in ascents:
            ascent.sweep()
    rng = np.random.default_rng(seed)
    for _ in range(5):
        chosen = ascents[0].polish([int(rng.integers(len(price))) for price in whole.prices])
        standing = [int(of[c]) for of, c in zip(small.of, chosen, strict=True)]
        price = ascents[0].price_of(chosen)
        assert not math.isfinite(price) or ascents[1].price_of(standing) <= price * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_each_choice_stands_for_all_of_its_images_at_one_price(seed: int) -> None:
    whole = problem_of(seed, CUBE, LINKS)
    small = images(whole)
    assert small is not None
    assert small.problem.columns < whole.columns
    for node, of, first in zip(whole.graph.nodes, small.of, small.first, strict=True):
        assert (of[first] == np.arange(len(first))).all()
        if node.stored_bytes is not None:
            assert (node.stored_bytes == node.stored_bytes[first][of]).all()
        if node.table is not None:
            orders = itertools.permutations(CUBE.names)
            renamings = [dict(zip(CUBE.names, order, strict=True)) for order in orders]
            for c in range(0, len(of), 7):
                ways = [layouts(node.table, row) for row in (c, int(first[of[c]]))]
                assert any([renamed(way, names) for way in ways[0]] == ways[1] for names in renamings)
            standing = [layouts(node.table, int(row)) for row in first[:60]]
            sets = {frozenset(str([renamed(way, names) for way in ways]) for names in renamings) for ways in standing}
            assert len(sets) == len(standing), "no two are images of each other"


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_where_some_are_told_apart_plans_lie_between_those_of_images_and_all(seed: int) -> None:
    whole = problem_of(seed, CUBE, LINKS)
    told = range(0, len(whole.graph.tensors), 2)
    small, part = images(whole), images(whole, told)
    assert small is not None and part is not None
    assert small.problem.columns < part.problem.columns < whole.columns
    every = images(whole, range(len(whole.graph.tensors)))
    assert every is not None and every.problem.arcs_read == whole.arcs_read
    ascents = ascent_of(small.problem), ascent_of(whole)
    for _ in range(3):
        ascents[0].sweep()
    split = small.whole(ascents[1], ascents[0])
    assert part.here(split).bound() == pytest.approx(split.bound()), "prices are split as they were"
    rng = np.random.default_rng(seed)
    for _ in range(5):
        chosen = ascents[1].polish([int(rng.integers(len(price))) for price in whole.prices])
        if not math.isfinite(ascents[1].price_of(chosen)):
            continue
        prices = [
            own.problem.found([int(of[c]) for of, c in zip(own.of, chosen, strict=True)]).price for own in (small, part)
        ]
        assert prices[0] <= prices[1] * (1 + 1e-9) and prices[1] <= whole.found(chosen).price * (1 + 1e-9)


def test_a_problem_over_some_arcs_has_their_prices_and_groups() -> None:
    whole = problem_of(3, CUBE, LINKS)
    arcs = {t: np.arange(len(near.price)) % 3 > 0 for t, near in enumerate(whole.distances) if near is not None}
    less = over_arcs(whole, arcs)
    for t, (near, all_) in enumerate(zip(less.distances, whole.distances, strict=True)):
        assert (near is None) == (all_ is None)
        if near is not None and all_ is not None:
            assert near.price.tolist() == all_.price[arcs[t]].tolist()
            assert near.arcs.source.tolist() == all_.arcs.source[arcs[t]].tolist()
            if whole.groups is not None and less.groups is not None:
                own, of = less.groups.of[t], whole.groups.of[t]
                assert own is of is None or (own is not None and of is not None and (own == of[arcs[t]]).all())


def layouts(table: StrategyTable, row: int) -> list[Layout]:
    """Those of all that an op touches under a strategy."""
    return [*(table.use_layout(row, use) for use in range(len(table.signature.uses))), table.result_layout(row)]


def renamed(layout: Layout, names: dict[str, str]) -> Layout:
    return layout_on(layout, lambda axis: (names[axis],))


def searched_by_images(monkeypatch: pytest.MonkeyPatch) -> list[Images]:
    """Have problems of any size looked at by images first; those that were."""
    seen: list[Images] = []

    def noted(problem: Problem) -> Images | None:
        found = images(problem)
        seen.extend([found] if found else [])
        return found

    monkeypatch.setattr(boxes, "MANY_COLUMNS", 0)
    monkeypatch.setattr(searching, "MANY_COLUMNS", 0)
    monkeypatch.setattr(searching, "images", noted)
    return seen


def shown_by_images(monkeypatch: pytest.MonkeyPatch) -> list[Among]:
    """What the search by images comes to, from here on."""
    run, shown = ImageSearch.run, list[Among]()

    def noted(self: ImageSearch, least: float, below: float) -> Among:
        shown.append(run(self, least, below))
        return shown[-1]

    monkeypatch.setattr(ImageSearch, "run", noted)
    return shown


@pytest.mark.parametrize(
    ("seed", "apart"), [*((seed, False) for seed in range(200, 240, 2)), *((seed, True) for seed in range(200, 220, 2))]
)
def test_within_a_capacity_the_bound_holds_and_the_plan_is_one(
    seed: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the exact judge has it, whose programs are small: on them all is looked at by images first, and in some axes
    are told apart as in large ones."""
    if apart:
        monkeypatch.setattr(image_program, "MANY_IMAGES", 0)
        monkeypatch.setattr(image_program, "ABOVE_IMAGES", 0.3)
        monkeypatch.setattr(image_program, "NEARLY", 1e-6)
        monkeypatch.setattr(image_program, "ROUGH", 1e-6)
    seen, shown = searched_by_images(monkeypatch), shown_by_images(monkeypatch)
    case = dataclasses.replace(generate(seed), mesh=SQUARE)
    free = choose(case.program, "main", SQUARE, Options(PAPER, capacity_bytes=math.inf))
    assert not seen
    stored = [node.stored_bytes for node in problem_of(seed, SQUARE, PAPER).graph.nodes]
    whole = sum(float(sizes.max()) for sizes in stored if sizes is not None)
    limited = dataclasses.replace(case, capacity_bytes=math.floor(0.4 * whole) + 1.0)
    least = optimum(limited)
    try:
        options = Options(PAPER, capacity_bytes=math.inf, stored_bytes=limited.capacity_bytes or 0.0)
        plan = choose(case.program, "main", SQUARE, options)
    except InputError:
        assert least == math.inf
        return
    assert free.price <= plan.price * (1 + 1e-9)
    assert min((among.bound for among in shown), default=0.0) <= least * (1 + 1e-9), (
        "of all sides, whatever else the search shows"
    )
    assert plan.bound <= least * (1 + 1e-9) and plan.price >= least * (1 - 1e-9)
    assert plan.price <= least * (1 + boxes.NEARLY)


LAYER = """dim B = 64, E = 256, F = 1024
param Wi: bf16[E,F]
param Wd: bf16[F,E]
main(x: bf16[B,E]) {
  u[B,F] = x[B,E] * Wi[E,F]
  y[B,E] = u[B,F] * Wd[F,E]
  return y
}"""


def test_the_search_by_images_finds_what_the_search_without_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("layer.esti", LAYER)
    program = expand(parse(source), source, {})
    for share in (1 / 8, 1 / 4, 0.6):
        options = Options(LINKS, capacity_bytes=math.inf, stored_bytes=2 * 256 * 1024 * 2 * share + 1)
        plain = choose(program, "main", CUBE, options)
        with monkeypatch.context() as patched:
            seen = searched_by_images(patched)
            found = choose(program, "main", CUBE, options)
            assert seen
        assert found.price == pytest.approx(plain.price, rel=1e-9)
        assert found.bound <= plain.price * (1 + 1e-9)


def test_where_images_cannot_say_how_axes_stand_these_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program whose cheapest plan among images costs 4% less than any that they stand for. Of one of many columns
    where it runs most often alone, which leaves some of that open."""
    case, run, shown = dataclasses.replace(generate(201), mesh=SQUARE), ImageSearch.run, list[Among]()
    stored = [node.stored_bytes for node in problem_of(201, SQUARE, LINKS).graph.nodes]
    whole = sum(float(sizes.max()) for sizes in stored if sizes is not None)
    options = Options(LINKS, capacity_bytes=math.inf, stored_bytes=0.3 * whole + 1)

    class Shown(Exception):
        pass

    def noted(self: ImageSearch, least: float, below: float) -> Among:
        shown.append(run(self, least, below))
        raise Shown

    searched_by_images(monkeypatch)
    monkeypatch.setattr(ImageSearch, "run", noted)
    monkeypatch.setattr(image_program, "ABOVE_IMAGES", 0.1)
    for most, told in ((0, False), (10**9, False), (0, True)):
        monkeypatch.setattr(image_program, "MOST_APART", most)
        monkeypatch.setattr(image_program, "MANY_IMAGES", 0 if told else 10**9)
        with pytest.raises(Shown):
            choose(case.program, "main", SQUARE, options)
    open_, closed, part = shown
    assert open_.found is not None and closed.found is not None and part.found is not None
    assert open_.bound < 0.97 * open_.found.price, "the cheapest is known, and not that it is"
    assert closed.found.price == pytest.approx(open_.found.price) == pytest.approx(closed.bound)
    assert part.found.price == pytest.approx(closed.found.price)
    assert open_.bound * 1.005 < part.bound <= closed.bound * (1 + 1e-9)


@pytest.mark.parametrize("wrong", [1, len(image_program.TIGHTER)], ids=["once", "as often as is tried"])
def test_where_no_image_of_the_cheapest_plan_keeps_to_the_limits_less_room_is_asked_for(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled, asked = ImageSearch._spelled, list[Candidate]()
    monkeypatch.setattr(image_program, "UNKNOWN", 0.02 / wrong)

    def none_of_the_first(self: ImageSearch, plan: Candidate, *others: Any) -> Any:
        asked.append(plan)
        return spelled(self, plan, *others) if len(asked) > wrong else (None, None)

    source = Source("layer.esti", LAYER)
    program = expand(parse(source), source, {})
    options = Options(LINKS, capacity_bytes=math.inf, stored_bytes=0.6 * 2 * 256 * 1024 * 2 + 1)
    plain = choose(program, "main", CUBE, options)
    searched_by_images(monkeypatch)
    shown = shown_by_images(monkeypatch)
    monkeypatch.setattr(ImageSearch, "_spelled", none_of_the_first)
    found = choose(program, "main", CUBE, options)
    assert len(asked) > wrong and asked[1].chosen != asked[0].chosen
    by_images = shown[0].found
    assert by_images is not None and by_images.price >= plain.price * (1 - 1e-9)
    assert found.price == pytest.approx(plain.price, rel=1e-9)


def test_a_plan_that_closer_limits_show_to_hold_too_much_is_not_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """But one that keeps to these, with all the room that there is."""
    run, spelled, cheapest = ImageSearch.run, ImageSearch._spelled, image_program._Small.cheapest
    fitted, asked = list[bool](), list[bool]()

    def with_closer(self: ImageSearch, least: float, below: float) -> Among:
        assert isinstance(self.limits, Limits)
        self.closer = dataclasses.replace(self.limits, stored=self.limits.stored / 2)
        monkeypatch.setattr(
            image_program._Small, "cheapest", partialmethod(noted, ImageLimits(self.images, self.closer))
        )
        return run(self, least, below)

    def noted(small: Any, closer: ImageLimits, *others: Any) -> Any:
        answer = cheapest(small, *others)
        fitted.append(closer.fits(answer[0]))
        return answer

    def first(self: ImageSearch, plan: Candidate, *others: Any) -> Any:
        asked.append(ImageLimits(self.images, self.closer).fits(plan))
        return spelled(self, plan, *others)

    source = Source("layer.esti", LAYER)
    program = expand(parse(source), source, {})
    searched_by_images(monkeypatch)
    monkeypatch.setattr(ImageSearch, "run", with_closer)
    monkeypatch.setattr(ImageSearch, "_spelled", first)
    choose(program, "main", CUBE, Options(LINKS, capacity_bytes=math.inf, stored_bytes=0.6 * 2 * 256 * 1024 * 2 + 1))
    assert not fitted[0] and asked[0]


def test_where_images_of_all_that_a_plan_takes_are_dear_those_of_what_it_stores_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_stored, told = ImageSearch._as_stored, list[tuple[ImageSearch, Candidate, Candidate]]()

    def noted(self: ImageSearch, plan: Candidate, *others: Any) -> Any:
        answer = as_stored(self, plan, *others)
        if answer[0] is not None:
            told.append((self, plan, answer[0]))
        return answer

    source = Source("layer.esti", LAYER)
    program = expand(parse(source), source, {})
    options = Options(LINKS, capacity_bytes=math.inf, stored_bytes=0.6 * 2 * 256 * 1024 * 2 + 1)
    plain = choose(program, "main", CUBE, options)
    searched_by_images(monkeypatch)
    monkeypatch.setattr(ImageSearch, "_spelled", lambda *_: (None, None))
    monkeypatch.setattr(ImageSearch, "_as_stored", noted)
    assert choose(program, "main", CUBE, options).price == pytest.approx(plain.price, rel=1e-9)
    search, plan, found = told[0]
    stored = [n for n, node in enumerate(search.prover.problem.graph.nodes) if node.stored is not None]
    assert stored and all(int(search.images.of[n][found.chosen[n]]) == plan.chosen[n] for n in stored)
    assert plan.price <= found.price * (1 + 1e-9)


@pytest.mark.parametrize("stored", [True, False])
def test_what_is_alike_a_plan_is_cheaper_and_has_the_rest_as_it_was(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of a plan made dearer on the side that may be chosen anew: what it stores, or all else, stays."""
    told = list[tuple[ImageSearch, Candidate, Candidate | None]]()
    run = ImageSearch.run

    def worse(self: ImageSearch, least: float, below: float) -> Among:
        among = run(self, least, below)
        assert among.found is not None
        problem, chosen = self.prover.problem, list(among.found.chosen)
        for n, node in enumerate(problem.graph.nodes):
            if (node.stored is not None) != stored:
                other = [
                    found
                    for c in range(len(node.seconds))
                    if self.limits.fits(found := problem.found([*chosen[:n], c, *chosen[n + 1 :]]))
                ]
                chosen = list(max(other, key=lambda found: found.price).chosen)
        dear = problem.found(chosen)
        told.append((self, dear, self._alike(dear, among.ascent, stored)))
        return among

    source = Source("layer.esti", LAYER)
    program = expand(parse(source), source, {})
    options = Options(LINKS, capacity_bytes=math.inf, stored_bytes=0.6 * 2 * 256 * 1024 * 2 + 1)
    searched_by_images(monkeypatch)
    monkeypatch.setattr(ImageSearch, "run", worse)
    choose(program, "main", CUBE, options)
    search, dear, found = told[0]
    assert found is not None and found.price < dear.price * (1 - 1e-3) and search.limits.fits(found)
    nodes = search.prover.problem.graph.nodes
    kept = [n for n, node in enumerate(nodes) if (node.stored is not None) == stored]
    assert kept and all(found.chosen[n] == dear.chosen[n] for n in kept)


def search_of(stored: float, monkeypatch: pytest.MonkeyPatch) -> tuple[ImageSearch, Among]:
    """The search by images of a layer of whose parameters a chip may hold a share, and what it came to."""
    run, told = ImageSearch.run, list[tuple[ImageSearch, Among]]()

    def noted(self: ImageSearch, least: float, below: float) -> Among:
        told.append((self, run(self, least, below)))
        return told[-1][1]

    source = Source("layer.esti", LAYER)
    program = expand(parse(source), source, {})
    with monkeypatch.context() as patched:
        searched_by_images(patched)
        patched.setattr(ImageSearch, "run", noted)
        choose(program, "main", CUBE, Options(LINKS, capacity_bytes=math.inf, stored_bytes=stored * 2**20 + 1))
    return told[0]


def beyond(search: ImageSearch, plan: Candidate) -> Candidate:
    """A plan with all stored whole that is beyond the limits, and does all else as one does."""
    chosen = list(plan.chosen)
    for n, node in enumerate(search.prover.problem.graph.nodes):
        if node.stored_bytes is not None:
            chosen[n] = int(np.argmax(node.stored_bytes))
    return search.prover.problem.found(chosen)


def test_a_plan_beyond_the_limits_is_repaired_by_what_it_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    search, among = search_of(0.6, monkeypatch)
    assert among.found is not None
    wrong = beyond(search, among.found)
    excess = search.limits.excess(wrong)
    assert excess > image_program.MOST_REPAIRED and search._repaired(wrong, among.ascent, math.inf) is None
    monkeypatch.setattr(image_program, "MOST_REPAIRED", excess)
    monkeypatch.setattr(image_program, "REPAIRED", 9.0)
    found = search._repaired(wrong, among.ascent, math.inf)
    assert found is not None and search.limits.fits(found)
    nodes = search.prover.problem.graph.nodes
    assert all(found.chosen[n] == wrong.chosen[n] for n, node in enumerate(nodes) if node.stored is None)
    assert search._repaired(wrong, among.ascent, found.price) is None, "none is cheaper"
    assert search._repaired(None, among.ascent, math.inf) is None


def test_no_image_stands_for_what_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is repaired whichever of its images it is: also if at a node another choice stands for the one it has."""
    search, among = search_of(0.6, monkeypatch)
    assert among.found is not None
    wrong, problem = beyond(search, among.found), search.prover.problem
    monkeypatch.setattr(image_program, "MOST_REPAIRED", search.limits.excess(wrong))
    monkeypatch.setattr(image_program, "REPAIRED", 9.0)
    node = next(n for n, node in enumerate(problem.graph.nodes) if node.stored is None)
    others = np.arange(len(problem.prices[node])) != wrong.chosen[node]
    prices = []
    for standing in (None, (node, others)):
        object.__setattr__(problem, "representatives", standing)
        found = search._repaired(wrong, among.ascent, math.inf)
        prices.append(None if found is None else found.price)
    assert prices[0] is not None and prices[0] == prices[1]


def test_what_is_alike_is_looked_for_one_phase_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    search, among = search_of(0.6, monkeypatch)
    assert among.found is not None
    plan, problem, asked = (
        dataclasses.replace(among.found, price=10.0),
        search.prover.problem,
        list[tuple[set[Any], float]](),
    )
    nodes = [
        dataclasses.replace(node, phase="prefill" if n % 2 else "decode") for n, node in enumerate(problem.graph.nodes)
    ]
    object.__setattr__(problem, "graph", dataclasses.replace(problem.graph, nodes=tuple(nodes)))

    def cheaper(self: ImageSearch, plan: Candidate, own: DualAscent, below: float, limits: Any) -> Any:
        free = {node.phase for node, prices in zip(nodes, own.prices, strict=True) if np.isfinite(prices).sum() > 1}
        asked.append((free, below))
        return dataclasses.replace(plan, price=below - 1), None

    monkeypatch.setattr(ImageSearch, "_near_fixed", cheaper)
    found = search._alike(plan, among.ascent, stored=True)
    assert found is not None and found.price == 8.0
    phases = [free for free, _ in asked]
    assert phases in ([{"decode"}, {"prefill"}], [{"prefill"}, {"decode"}])
    assert [below for _, below in asked] == [10.0, 9.0]


def test_where_what_a_repair_finds_is_beyond_the_limits_less_room_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    search, among = search_of(0.6, monkeypatch)
    assert among.found is not None
    wrong, near_relaxed, asked = beyond(search, among.found), Prover.near_relaxed, list[float]()
    monkeypatch.setattr(image_program, "MOST_REPAIRED", math.inf)
    monkeypatch.setattr(image_program, "REPAIRED", 9.0)

    def beyond_at_first(self: Prover, ascent: DualAscent, known: Candidate, limits: Any, *others: Any) -> Any:
        asked.append(limits.share)
        return near_relaxed(self, ascent, known, limits, *others) if len(asked) > 1 else (None, wrong)

    monkeypatch.setattr(image_program, "MORE_TIGHTLY", (0.1, 0.3, 0.5))
    monkeypatch.setattr(Prover, "near_relaxed", beyond_at_first)
    found = search._repaired(wrong, among.ascent, math.inf)
    assert found is not None and search.limits.fits(found)
    assert len(asked) == 2 and asked[1] < asked[0] < 1
    always = list[float]()

    def beyond_always(self: Prover, ascent: DualAscent, known: Candidate, limits: Any, *others: Any) -> Any:
        always.append(limits.share)
        return None, wrong

    monkeypatch.setattr(Prover, "near_relaxed", beyond_always)
    assert search._repaired(wrong, among.ascent, math.inf) is None and len(always) == 3


def test_a_plan_found_near_one_beyond_the_limits_is_taken_without_another_being_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spelled, asked = ImageSearch._spelled, list[Candidate]()

    def wrong(self: ImageSearch, plan: Candidate, whole: DualAscent, below: float) -> Any:
        asked.append(plan)
        found = spelled(self, plan, whole, below)[0]
        return None, None if found is None else beyond(self, found)

    monkeypatch.setattr(ImageSearch, "_spelled", wrong)
    monkeypatch.setattr(image_program, "MOST_REPAIRED", math.inf)
    monkeypatch.setattr(image_program, "REPAIRED", 9.0)
    _, among = search_of(0.6, monkeypatch)
    assert among.found is not None and len(asked) == 1
    monkeypatch.setattr(ImageSearch, "_repaired", lambda *_: None)
    search_of(0.6, monkeypatch)
    assert len(asked) > 2, "without it less room is asked for"


def test_what_is_found_by_what_is_stored_is_settled_in_turn_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    improved, asked = ImageSearch._improved, list[Candidate | None]()

    def noted(self: ImageSearch, plan: Candidate | None, whole: DualAscent, enough: float) -> Candidate | None:
        asked.append(plan)
        return improved(self, plan, whole, enough)

    monkeypatch.setattr(ImageSearch, "_improved", noted)
    monkeypatch.setattr(ImageSearch, "_spelled", lambda *_: (None, None))
    _, among = search_of(0.6, monkeypatch)
    first, second = asked
    assert first is None and second is not None and among.found is not None and among.found.price <= second.price


@pytest.mark.parametrize(("bound", "most"), [(8.0, None), (9.995, image_program.FEW)], ids=["far", "near"])
def test_of_many_images_a_small_gap_is_closed_where_few_relaxations_do(
    bound: float, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that costs 10 is within 0.1% of its bound, or far from it; what is asked then says that it is proven."""
    asked, plan = list[tuple[float, int | None]](), Candidate((0,), 10.0, bound)
    settings, columns = SimpleNamespace(gap=1e-9), image_program.MANY_IMAGES

    def by_levels(ascent: Any, known: Any, limits: Any, most_columns: int, gap: float, **how: Any) -> Any:
        asked.append((gap, how["most_relaxed"]))
        return ByLevels(None, 10.0, 10.0)

    prover: Any = SimpleNamespace(problem=SimpleNamespace(settings=settings, columns=columns), by_levels=by_levels)
    small = image_program._Small(prover, cast(Any, SimpleNamespace(bound=lambda: 1.0)))
    monkeypatch.setattr(image_program._Small, "any", lambda *_: (plan, bound, None))
    best, shown = small.cheapest(cast(Any, None), 1.0, math.inf)
    assert best is plan and shown == 10.0
    assert asked == [(1e-9, most)]


def test_parts_of_a_plan_are_settled_in_turn_while_that_makes_it_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    search, among = search_of(0.6, monkeypatch)
    assert among.found is not None
    start, asked = dataclasses.replace(among.found, price=10.0), list[bool]()

    def cheaper(self: ImageSearch, plan: Candidate, whole: DualAscent, stored: bool) -> Candidate | None:
        asked.append(stored)
        prices = {10.0: 8.0, 8.0: 7.0}
        return dataclasses.replace(plan, price=prices[plan.price]) if plan.price in prices else None

    monkeypatch.setattr(ImageSearch, "_alike", cheaper)
    found = search._improved(start, among.ascent, 0.0)
    assert found is not None and found.price == 7.0 and asked == [True, False, True]
    asked.clear()
    found = search._improved(start, among.ascent, 8.0)
    assert found is not None and found.price == 8.0 and asked == [True], "it is near enough"
    assert search._improved(None, among.ascent, 0.0) is None


def test_arcs_of_the_whole_stand_for_arcs_among_images_and_lead_from_image_to_image() -> None:
    whole = problem_of(3, SQUARE, LINKS)
    small = images(whole)
    assert small is not None
    for t, (near, own) in enumerate(zip(whole.distances, small.problem.distances, strict=True)):
        if near is None or own is None or not len(own.arcs):
            continue
        none, one, every = (np.zeros(len(own.arcs), dtype=bool) for _ in range(3))
        one[0], every[:] = True, True
        rows = small.rows[t]
        source, target = rows[near.arcs.source], rows[near.arcs.target]
        assert (small.between(whole, {t: none})[t] == (source == target)).all()
        assert small.between(whole, {t: every})[t].all(), "each arc stands for one, or leads to an image"
        ends = (source == own.arcs.source[0]) & (target == own.arcs.target[0])
        assert ends.any() and (small.between(whole, {t: one})[t] == (ends | (source == target))).all()


def test_groups_of_images_are_of_the_knots_of_those_that_they_stand_for() -> None:
    several = 0
    for seed in range(24):
        problem = problem_of(seed, SQUARE, LINKS)
        found = images(problem)
        if found is not None and problem.groups is not None:
            small = found.problem.groups
            assert small is not None and small.kept == problem.groups.kept
            assert [small.knot[g] for g in found.groups.tolist()] == list(problem.groups.knot)
            several += len(small.knot) < len(problem.groups.knot) and len(small.kept) > 1
    assert several, "some groups stand for several, of more than one knot"
