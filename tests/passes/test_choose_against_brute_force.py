"""The search against an exact judge that shares no code with it, on hundreds of small programs."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from judge.chosen_families import CHOSEN
from judge.families import FAMILIES, QUANTISED
from judge.few_ops import few_ops, pinned_ends, pins
from judge.generator import Case, generate
from judge.joined import Protocol, joining
from judge.layouts import EVEN, Slowness
from judge.optimum import optimum
from judge.rules import LINK

from escc.compiler.simulate.check import check
from escc.compiler.simulate.check_report import CheckReport
from escc.cost.estimate import estimate, predict
from escc.cost.hardware import Convention, Hardware, Protocols, Switch
from escc.ir.collective import CollectiveKind
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh
from escc.ir.program import Program, walk
from escc.ir.spmd import Move, SpmdProgram
from escc.ir.text.write_spmd import print_spmd
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.once import sent_once, ways_of
from escc.passes.lower.insert import insert
from escc.passes.options import Options

CASES_EACH = 16  # 320 in all
CHOSEN_EACH = 6
MOST_CHIPS = 16
GROUPED = 8
SLOW = (1.0, 0.4, 3.0, 8.0)
MEASURED = {
    "gather": CollectiveKind.ALL_GATHER,
    "exchange": CollectiveKind.ALL_TO_ALL,
    "reduce": CollectiveKind.ALL_REDUCE,
    "scatter": CollectiveKind.REDUCE_SCATTER,
}
RELATIVE, ABSOLUTE_S = 1e-9, 1e-15


def hardware(slow: Slowness) -> Hardware:
    """The paper's chip; behind a switch, as it were measured, where some collectives are slower than others."""
    paper = Hardware.of_paper("tpu-v4")
    if slow == EVEN:
        return paper
    return measured({kind: [Protocol(0.0, times)] for kind, times in slow._asdict().items()})


def measured(protocols: Mapping[str, Sequence[Protocol]]) -> Hardware:
    """The paper's chip behind a switch whose collectives go by the quicker of two protocols."""
    found = []
    for kind, (plain, *bulk) in protocols.items():
        late = {"bulk_start_s": bulk[0].start_s - plain.start_s, "bulk_share": 1 / bulk[0].slow} if bulk else {}
        found.append((MEASURED[kind], Protocols(plain.start_s, 0.0, 1 / plain.slow, **late)))
    paper = Hardware.of_paper("tpu-v4")
    return replace(paper, convention=Convention.LINKS, fabric=Switch(64, LINK), protocols=tuple(found))


def searched(case: Case, seed: int) -> tuple[float, SpmdProgram | None, CheckReport | None]:
    """The seconds that the search proves least, its plan and the check of that; infinite where none fits."""
    stored_bytes = case.capacity_bytes or math.inf
    options = Options(
        hardware(case.slow),
        capacity_bytes=math.inf,
        stored_bytes=stored_bytes,
        pins=pins(case),
    )
    try:
        plan = choose(case.program, "main", case.mesh, options)
    except InputError:
        return math.inf, None, None
    assert plan.phases[0].gap <= RELATIVE
    (spmd,) = insert(plan)
    planned = [one for one in written(case.program) if one.table().keys() <= spmd.table().keys()]
    verify(spmd, max(planned, key=lambda one: len(one.values)))
    return plan.phases[0].price, spmd, check(case.program, spmd, predict, seed)


def written(program: Program) -> list[Program]:
    """The program as it is, and as it may be written with tokens that go once to groups of experts."""
    masks = ways_of(program, "main")
    every = (dict(zip(masks, ways, strict=True)) for ways in itertools.product(*masks.values()))
    return [program, *(once for ways in every if (once := sent_once(program, "main", ways)) is not None)]


def compare(case: Case, seed: int) -> str:
    """The search against the judge, of tokens that go to experts or once to groups of them, and its plan against the
    reference; the plan's text."""
    least = min(optimum(replace(case, program=one)) for one in written(case.program))
    found, spmd, report = searched(case, seed)
    context = f"seed {seed}, {case.label}, mesh {case.mesh}, capacity {case.capacity_bytes}"
    assert found == pytest.approx(least, rel=RELATIVE, abs=ABSOLUTE_S), context
    if report is not None:
        assert report.max_error <= 1e-9, context
        assert report.equal, context
    return print_spmd(spmd) if spmd is not None else ""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_search_finds_the_optimum_and_its_plan_runs(family: str) -> None:
    first = list(FAMILIES).index(family)
    for seed in range(first, CASES_EACH * len(FAMILIES), len(FAMILIES)):
        case = generate(seed)
        assert case.label == family
        if family == "crossed" and case.mesh.chips > MOST_CHIPS:  # which takes the solver long
            case = replace(case, mesh=Mesh(case.mesh.axes[:2]))
        compare(case, seed)


def test_the_search_finds_the_optimum_of_codes_with_scales_of_groups() -> None:
    texts = [compare(generate(seed, QUANTISED), seed) for seed in range(GROUPED)]
    assert any(" groups " in text and " - " in text for text in texts)


@pytest.mark.parametrize("family", CHOSEN)
@pytest.mark.parametrize("pinned", [False, True])
def test_the_search_finds_the_optimum_of_what_is_chosen(family: str, pinned: bool) -> None:
    first = list(CHOSEN).index(family)
    for seed in range(first, CHOSEN_EACH * len(CHOSEN), len(CHOSEN)):
        case = generate(seed, CHOSEN)
        assert case.label == family
        if family == "gated" and case.mesh.chips > MOST_CHIPS:  # which takes the judge long
            case = replace(case, mesh=Mesh(case.mesh.axes[:2]))
        case = pinned_ends(case, seed) if pinned else case
        text = compare(case, seed)
        assert "choose(" in text or not text


@pytest.mark.parametrize(("ops", "pinned", "cases", "least"), [(2, True, 60, 2), (3, True, 30, 1), (3, False, 30, 0)])
def test_nothing_is_cheaper_between_ends_that_are_pinned_or_free(
    ops: int, pinned: bool, cases: int, least: int
) -> None:
    """At `least` so many plans have blocks that stand among zeros."""
    embeds = [compare(few_ops(seed, ops, pinned), seed).count("embed(") for seed in range(cases)]
    assert sum(map(bool, embeds)) >= least


@pytest.mark.parametrize(("ops", "pinned", "cases"), [(2, True, 60), (3, False, 20)])
def test_nothing_is_cheaper_where_collectives_of_some_kinds_are_slow(ops: int, pinned: bool, cases: int) -> None:
    """Of odd seeds on one axis: there a gather is what an all-reduce of blocks among zeros is, sooner or later."""
    embeds = 0
    for seed in range(cases):
        rng, case = random.Random(seed), few_ops(seed, ops, pinned=False)
        slow = Slowness(*(rng.choice(SLOW) for _ in Slowness._fields))
        case = replace(case, mesh=Mesh(case.mesh.axes[:1])) if seed % 2 else case
        case = replace(pinned_ends(case, seed) if pinned else case, slow=slow)
        embeds += "embed(" in compare(case, seed)
    assert embeds >= 5 or not pinned


def test_the_cases_cover_meshes_and_capacities() -> None:
    cases = [generate(seed) for seed in range(CASES_EACH * len(FAMILIES))]
    assert {len(c.mesh.axes) for c in cases} == {1, 2, 3}
    assert {size for c in cases for size in c.mesh.sizes} == {1, 2, 3, 4}
    real = Counter(sum(size > 1 for size in c.mesh.sizes) for c in cases)
    assert real[2] >= 80 and real[3] >= 60
    assert sum(c.capacity_bytes is not None for c in cases) >= 60


@pytest.mark.parametrize(("several", "seeds", "least"), [(False, range(40), 5), (True, range(40, 48), 2)])
def test_nothing_is_cheaper_where_what_runs_as_one_starts_a_protocol_once(
    several: bool, seeds: range, least: int
) -> None:
    """At `least` so many plans have collectives that run as one."""
    joined = 0
    for seed in seeds:
        judge = joining(seed, several)
        case, chip = judge.case, measured(judge.protocols)
        plan = choose(case.program, "main", case.mesh, Options(chip, pins=pins(case)))
        (spmd,) = insert(plan)
        verify(spmd, case.program)
        assert plan.phases[0].gap <= RELATIVE, case.label
        assert plan.phases[0].price == pytest.approx(judge.least(), rel=RELATIVE, abs=ABSOLUTE_S), case.label
        assert estimate(spmd, chip).totals().total_s == pytest.approx(plan.phases[0].price, rel=RELATIVE), case.label
        assert check(case.program, spmd, predict, seed).max_error <= 1e-9, case.label
        joined += any(isinstance(placed.item, Move) and placed.item.joined for placed in walk(spmd.body))
    assert joined >= least
