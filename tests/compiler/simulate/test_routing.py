"""Chosen values in runs: masks that keep all alike, what is sent of them, and that what is wrong is found."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers_exec import Build, call
from jax_cases import OTHERS
from numpy.typing import NDArray
from shards import block, chips

from escc.compiler.simulate.check import check
from escc.compiler.simulate.routing import Mask, even_mask, kept_entries
from escc.compiler.simulate.spmd_interpreter import ExecutionError, run_spmd
from escc.compiler.simulate.traffic import elements_sent
from escc.cost.estimate import predict
from escc.ir.chosen import Chosen
from escc.ir.collective import AllGather, AllReduce, AllToAll, Collective, LayoutError, ReduceScatter, apply
from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.ir.program import Choose, Kind
from escc.ir.spmd import SpmdProgram


@pytest.mark.parametrize(
    ("dims", "over", "keep"), [("BX", "X", 2), ("XB", "X", 3), ("BLX", "X", 1), ("BNXL", "NX", 4), ("X", "X", 2)]
)
def test_an_even_mask_keeps_all_as_often(dims: str, over: str, keep: int) -> None:
    sizes = {"B": 12, "L": 24, "X": 6, "N": 2}
    mask = even_mask(tuple(dims), sizes, tuple(over), keep)
    assert mask.shape == tuple(sizes[d] for d in dims) and set(np.unique(mask)) <= {0.0, 1.0}
    axes = tuple(dims.index(d) for d in over)
    assert (mask.sum(axes) == keep).all()
    entries = math.prod(sizes[d] for d in over)
    for dim in set(dims) - set(over):  # in each block along a dim, whatever the others are
        rows = np.moveaxis(mask, dims.index(dim), 0)
        for start in range(0, sizes[dim], entries // keep):
            assert (rows[start : start + entries // keep].sum(0) == 1).all()


@pytest.mark.parametrize(("entries", "keep"), [(7, 3), (6, 4), (5, 5), (8, 7)])
def test_each_element_keeps_as_many_whatever_divides(entries: int, keep: int) -> None:
    mask = even_mask(("B", "X"), {"B": 11, "X": entries}, ("X",), keep)
    assert (mask.sum(1) == keep).all()


def test_entries_of_a_value_that_calls_its_dims_otherwise() -> None:
    kept = even_mask(("X", "B"), {"X": 4, "B": 3}, ("X",), 1)
    mask = Mask(Chosen("m", ("X",), ("B",), 1), ("X", "B"), kept)
    renamed = Chosen("m", ("Y",), ("T",), 1)
    found = kept_entries(("T", "E", "Y"), (renamed,), {"m": mask})
    assert found.shape == (3, 1, 4)
    assert (found[:, 0, :] == kept.T).all()


MESHES = ["2x2", "2x3", "4", "2x2x2"]


def moved(rng: random.Random, mesh: Mesh, rank: int) -> tuple[Collective, Layout, Layout] | None:
    """A random collective between random layouts; None where it does not fit."""
    split: list[list[str]] = [[] for _ in range(rank)]
    partial = []
    for axis in rng.sample(mesh.names, len(mesh.names)):
        place = rng.randint(-2, rank - 1)
        if place >= 0:
            split[place].append(axis)
        elif place == -1:
            partial.append(axis)
    before = Layout(tuple(map(tuple, split)), tuple(sorted(partial)), Reduction.SUM)
    axes = tuple(rng.sample(mesh.names, rng.randint(1, len(mesh.names))))
    one, two = rng.randrange(rank), rng.randrange(rank)
    collective = rng.choice([AllGather(axes, one), ReduceScatter(axes, one), AllReduce(axes), AllToAll(axes, one, two)])
    try:
        return collective, before, apply(collective, before)
    except LayoutError:
        return None


def by_elements(
    mesh: Mesh, shape: tuple[int, ...], collective: Collective, before: Layout, after: Layout, kept: NDArray[np.float64]
) -> Fraction:
    """What the busiest chip sends, element by element and chip by chip."""
    kept = np.broadcast_to(kept, shape)
    everyone = chips(mesh)

    def holds(layout: Layout) -> list[set[tuple[int, ...]]]:
        blocks = [block(layout, shape, mesh, chip) for chip in everyone]
        ranges = [[range(part.start, part.stop) for part in parts] for parts in blocks]
        return [{at for at in itertools.product(*each) if kept[at]} for each in ranges]

    held, needed = holds(before), holds(after)
    most = Fraction(0)
    for i, sender in enumerate(everyone):
        rest = [a for a in mesh.names if a not in collective.axes]
        group = [j for j, c in enumerate(everyone) if j != i and all(c[a] == sender[a] for a in rest)]
        if isinstance(collective, AllReduce):
            sent = 2 * Fraction(len(held[i]) * len(group), len(group) + 1)
        else:
            sent = Fraction(sum(len(held[i] & needed[j]) for j in group))
        most = max(most, sent)
    return most


@pytest.mark.parametrize("chips_text", MESHES)
def test_what_is_sent_of_a_chosen_value_element_by_element(chips_text: str) -> None:
    rng, mesh = random.Random(chips_text), Mesh.parse(chips_text)
    numbers, tried = np.random.default_rng(3), set()
    for _ in range(400):  # one axis alone has few different ones
        if (found := moved(rng, mesh, 3)) and found not in tried and len(tried) < 40:
            shape = (12, 24, 12)
            mask = (numbers.random([rng.choice([1, 12]), 24, rng.choice([1, 12])]) < 0.3).astype(float)
            assert elements_sent(mesh, shape, *found, mask) == by_elements(mesh, shape, *found, mask), found
            tried.add(found)
    assert {type(collective) for collective, _, _ in tried} == {AllGather, ReduceScatter, AllReduce, AllToAll}


def layer(wrong: bool) -> tuple[Build, tuple[str, ...]]:
    """Experts over X, whose hidden values are not zero beside what is chosen where it is `wrong`."""
    b = Build("2x2", B=8, X=4, E=6)
    b.stored("x", "B_xyE", Kind.INPUT)
    b.stored("s", "B_xyX", Kind.INPUT)
    b.op(Choose("m", "s", ("X",), 2), "B_xyX")
    b.einsum("e", "BX,BE->BXE", "m", "x", layout="B_xyXE")
    b.map("h", call("add", "e", 1.0) if wrong else call("silu", "e"), "B_xyXE")
    b.move("h'", "h", AllGather(("y",), 0), "B_xXE")
    b.move("h''", "h'", AllToAll(("x",), 0, 1), "BX_xE")
    return b, ("h''",)


def claimed(spmd: SpmdProgram) -> SpmdProgram:
    """The program, with all values that have X called chosen."""
    one = Chosen("m", ("X",), ("B",), 2)
    values = tuple(replace(v, chosen=(one,)) if v.name[0] in "meh" else v for v in spmd.values)
    return replace(spmd, values=values)


def stored() -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(8, 6)), "s": rng.normal(size=(8, 4))}


def test_a_value_that_is_called_chosen_and_is_not_is_found() -> None:
    builder, results = layer(wrong=True)
    run_spmd(builder.spmd(*results), stored())
    with pytest.raises(ExecutionError, match="`h` is not zero where `m` keeps nothing"):
        run_spmd(claimed(builder.spmd(*results)), stored())
    builder, results = layer(wrong=False)
    assert claimed(builder.spmd(*results)) == builder.spmd(*results)
    run_spmd(builder.spmd(*results), stored())


def test_evenly_chosen_is_sent_as_predicted_and_by_numbers_about_that() -> None:
    builder, results = layer(wrong=False)
    spmd = builder.spmd(*results)
    even = [m.bytes_sent for m in run_spmd(spmd, stored(), evenly=True).moves]
    assert even == list(predict(spmd))
    by_numbers = [m.bytes_sent for m in run_spmd(spmd, stored()).moves]
    assert all(p / 2 <= n <= 2 * p for n, p in zip(by_numbers, even, strict=True))


@pytest.mark.parametrize("name", ["experts", "experts in groups"])
def test_layers_of_experts_agree_and_send_what_was_predicted(name: str) -> None:
    program, spmd = OTHERS[name]()
    report = check(program, spmd, predict)
    assert report.max_error < 1e-12
    assert report.equal and all(move.even and move.counted == move.predicted for move in report.moves)


def test_a_prediction_of_the_dense_bytes_is_found_wrong() -> None:
    program, spmd = OTHERS["experts"]()
    report = check(program, spmd, lambda one: tuple(2 * sent for sent in predict(one)))
    assert not report.equal
