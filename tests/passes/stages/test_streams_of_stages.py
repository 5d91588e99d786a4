"""What stages stream of the layers that come from hosts: their part, or none where all of it would be there anyway."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from programs import TINY_DECODER as TINY

from escc import Hardware, Mesh, parse
from escc.compiler.plan.staged_offload import compile_streamed_stages
from escc.compiler.plan.streamed_layers import streaming
from escc.compiler.plan.way import Offload
from escc.cost.hardware import Host
from escc.ir.program import Kind, Program, stored_in
from escc.passes.options import Options
from escc.passes.stages.bounds import in_stages
from escc.passes.stages.divide import divide, layers_of
from escc.passes.stages.layers import whole_repetitions
from escc.passes.stages.opened import has_mean_streamed, with_least_streams, with_mean_streams

REPEAT = "y = repeat 5 layer(x)"
TWO = TINY.replace(REPEAT, "w = repeat 2 layer(x)\n  y = repeat 3 layer(w)")
PAIR = "block pair(x: bf16[B,L,E]) -> bf16[B,L,E] { return repeat 2 layer(x) }\nmain("
INNER = TINY.replace("main(", PAIR).replace(REPEAT, "y = repeat 7 pair(x)")


def streamed(program: Program, kind: Kind = Kind.PARAM) -> list[int]:
    """How many of each tensor of a kind are streamed, of those that are not all there."""
    return [one.streamed.count for one in stored_in(program.body, kind) if one.streamed]


@pytest.mark.parametrize(("ahead", "first", "last"), [(0, 2, 3), (1, 0, 3), (2, 0, 0)])
def test_weights_of_a_stage_that_would_all_be_there_as_they_come_do_not(ahead: int, first: int, last: int) -> None:
    program = streaming(parse(TINY), {Kind.PARAM}, 5, ahead)
    for stage, count in zip(divide(program, [2, 3]), (first, last), strict=True):
        assert {*streamed(stage.program)} == ({count} if count else set())


def test_caches_of_a_stage_come_however_few_they_are() -> None:
    """Of several batches that take turns fewer are there at once."""
    program = streaming(parse(TINY), {Kind.CACHE}, 5, 1)
    assert [set(streamed(stage.program, Kind.CACHE)) for stage in divide(program, [2, 3])] == [{2}, {3}]


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("text", [TINY, TWO, INNER, TINY.replace("repeat 5", "repeat 9")])
@pytest.mark.parametrize("ahead", [0, 1])
def test_stages_together_stream_no_less_than_is_counted(text: str, ahead: int, stages: int) -> None:
    """And one of them the mean, where that is said."""
    whole = whole_repetitions(parse(text))
    every, said = layers_of(whole), 0
    for layers in range(every + 1):
        program = streaming(whole, {Kind.PARAM}, layers, ahead)
        least, mean = (sum(streamed(some(program, stages))) for some in (with_least_streams, with_mean_streams))
        for cuts in combinations(range(1, every), stages - 1):
            division = [end - start for start, end in pairwise((0, *cuts, every))]
            each = [sum(streamed(stage.program)) for stage in divide(program, division)]
            assert sum(each) >= least
            if has_mean_streamed(program, stages):
                said += 1
                assert max(each) >= mean
                bound = in_stages(least, mean, stages)
                assert sum(bound) <= sum(each) + 1e-9 and max(bound) <= max(each)
    assert said or text == TWO or every <= stages * (1 + ahead)


def test_a_pipeline_is_the_same_however_its_layers_are_repeated() -> None:
    """One stage streamed two layers, and waited for them, though it has room for both."""
    host = Host(dram_bytes=1e9, dram_bytes_per_s=1e9, link_bytes_per_s=1e8, host_chips=2)
    options = Options(replace(Hardware.load("h100"), host=host), capacity_bytes=235e3)
    given = ["prefill"], Mesh.parse("2x1"), "x", options, Offload.WEIGHTS
    found = [compile_streamed_stages(parse(text.replace("B = 4", "B = 2")), *given) for text in (TINY, TWO)]
    one, two = (each.plan for each in found)
    assert one.price == pytest.approx(two.price, rel=1e-12) and one.gap == pytest.approx(0.0, abs=1e-6)
    assert found[0].streamed_layers == (0, 3)
