"""Collectives: `apply` against what moving real shards does, and how they print."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from shards import Array, Chip, all_layouts, amounts_to, block, chips, deal

from escc.ir.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Embed,
    LayoutError,
    Permute,
    ReduceScatter,
    Slice,
    apply,
    axes_of,
    describe,
    kind,
)
from escc.ir.layout import Layout, Reduction, parse_layout
from escc.ir.mesh import Mesh

BOTH = (Reduction.SUM, Reduction.MAX)


class Impossible(Exception):
    """The collective cannot be meant: it takes away what is not there, or adds what is."""


def every_collective(rank: int, mesh: Mesh, layout: Layout) -> Iterator[Collective]:
    """Every collective over axes of the mesh, legal or not; of permutes those to a complete layout."""
    for count in range(1, len(mesh.names) + 1):
        for axes in itertools.permutations(mesh.names, count):
            yield AllReduce(axes)
            yield Embed(axes)
            for dim in range(rank):
                yield from (AllGather(axes, dim), ReduceScatter(axes, dim), Slice(axes, dim), Embed(axes, dim))
                yield from (AllToAll(axes, dim, other) for other in range(rank) if other != dim)
    for other in all_layouts((60,) * rank, mesh):
        if not other.split_axes & set(layout.partial):
            yield Permute(other.with_partial(layout.partial, layout.reduction))


def claimed(collective: Collective, before: Layout) -> Layout:
    """The layout that is meant, whether or not the shards come to lie so."""

    def less(layout: Layout, dim: int, axes: Sequence[str]) -> Layout:
        if not set(axes) <= set(layout.dims[dim]):
            raise Impossible
        return layout.replace(dim, [a for a in layout.dims[dim] if a not in axes])

    def more(layout: Layout, dim: int, axes: Sequence[str]) -> Layout:
        if set(axes) & (layout.split_axes | set(layout.partial)):
            raise Impossible
        return layout.replace(dim, (*layout.dims[dim], *axes))

    def complete(layout: Layout, axes: Sequence[str]) -> Layout:
        if not set(axes) <= set(layout.partial):
            raise Impossible
        return layout.with_partial([a for a in layout.partial if a not in axes], layout.reduction)

    match collective:
        case AllGather(axes, dim):
            return less(before, dim, axes)
        case Slice(axes, dim):
            return more(before, dim, axes)
        case ReduceScatter(axes, dim):
            return more(complete(before, axes), dim, axes)
        case AllReduce(axes):
            return complete(before, axes)
        case AllToAll(axes, source, target):
            return more(less(before, source, axes), target, axes)
        case Embed(axes, dim):
            kept = more(before, 0, axes).replace(0, before.dims[0]) if dim is None else less(before, dim, axes)
            return kept.with_partial((*kept.partial, *axes), Reduction.SUM)
        case Permute(layout):
            if layout.split_axes != before.split_axes:
                raise Impossible
            return layout


def perform(collective: Collective, held: list[Array], before: Layout, truth: Array, mesh: Mesh) -> list[Array]:
    """What every chip holds afterwards, each kind of collective done as its name says."""
    every = chips(mesh)
    shards = {tuple(chip.values()): shard for chip, shard in zip(every, held, strict=True)}
    after = claimed(collective, before)

    def group(chip: Chip, axes: Sequence[str]) -> list[Array]:
        """The shards of the chips that differ from `chip` in `axes` alone, the first axis slowest."""
        places = itertools.product(*(range(mesh.size(a)) for a in axes))
        return [shards[tuple({**chip, **dict(zip(axes, at, strict=True))}.values())] for at in places]

    def part(array: Array, dim: int, axes: Sequence[str], chip: Chip) -> Array:
        """The chip's own piece of `dim`, cut for the chips along `axes`."""
        rank = 0
        for axis in axes:
            rank = rank * mesh.size(axis) + chip[axis]
        if array.shape[dim] % mesh.size(*axes):
            raise Impossible
        return np.split(array, mesh.size(*axes), dim)[rank]

    reduce = np.sum if before.reduction is Reduction.SUM else np.max
    result = []
    for chip, shard in zip(every, held, strict=True):
        match collective:
            case AllGather(axes, dim):
                made = np.concatenate(group(chip, axes), dim)
            case Slice(axes, dim):
                made = part(shard, dim, axes, chip)
            case ReduceScatter(axes, dim):
                made = part(reduce(group(chip, axes), axis=0), dim, axes, chip)
            case AllReduce(axes):
                made = reduce(group(chip, axes), axis=0)
            case AllToAll(axes, source, target):
                senders = [a for a in before.dims[source] if a in axes]
                made = np.concatenate([part(s, target, axes, chip) for s in group(chip, senders)], source)
            case Embed(axes, dim):
                wide, own = (block(x, truth.shape, mesh, chip) for x in (after, before))
                made = np.zeros(truth[wide].shape)
                if dim is None:
                    made += shard * all(chip[a] == 0 for a in axes)
                else:
                    inside = tuple(slice(o.start - w.start, o.stop - w.start) for o, w in zip(own, wide, strict=True))
                    if any(i.start < 0 for i in inside) or made[inside].shape != shard.shape:
                        raise Impossible
                    made[inside] = shard
            case Permute():
                raise AssertionError("a permute is judged by its blocks")
        result.append(made)
    return result


def obeys(collective: Collective, held: list[Array], before: Layout, truth: Array, mesh: Mesh) -> bool:
    """Whether the shards lie as is meant, once moved."""
    try:
        if isinstance(collective, Permute):
            return claimed(collective, before) == collective.layout
        return amounts_to(perform(collective, held, before, truth, mesh), truth, claimed(collective, before), mesh)
    except Impossible:
        return False


@pytest.mark.parametrize(("mesh", "shape"), [("2x3", (12, 18)), ("2", (2, 4)), ("2x2", (8,)), ("2x2x2", (8, 16))])
def test_apply_is_what_moving_shards_does(mesh: str, shape: tuple[int, ...]) -> None:
    grid, rng = Mesh.parse(mesh), np.random.default_rng(3)
    truth = rng.uniform(0.3, 2.0, shape) * rng.choice([-1, 1], shape)
    cases = [(x, c) for x in all_layouts(shape, grid, BOTH) for c in every_collective(len(shape), grid, x)]
    if len(cases) > 4000:
        cases = [cases[i] for i in sorted(rng.choice(len(cases), 4000, replace=False))]
    legal = 0
    for before, collective in cases:
        held = deal(truth, before, grid, rng)
        try:
            after = apply(collective, before)
        except LayoutError:
            assert not obeys(collective, held, before, truth, grid), f"{collective} refused on {before}"
            continue
        assert after == claimed(collective, before)
        if all(n % grid.size(*axes) == 0 for n, axes in zip(shape, after.dims, strict=True)):
            assert obeys(collective, held, before, truth, grid), f"{collective} allowed on {before}"
            legal += 1
    assert 10 < legal < len(cases) / 2


def test_a_dim_that_is_not_there_is_refused() -> None:
    for dim in (-1, 2):
        with pytest.raises(LayoutError):
            apply(AllGather(("x",), dim), Layout((("x",), ())))


def test_an_all_to_all_moves_between_two_dims() -> None:
    with pytest.raises(LayoutError, match="between two dims"):
        apply(AllToAll(("x",), 0, 0), Layout((("x",), ())))


@pytest.mark.parametrize(
    ("collective", "before", "text"),
    [
        (AllGather(("y", "z"), 0), "B_yzLE_x", "all-gather(yz) B"),
        (ReduceScatter(("x",), 2), "BLE partialsum-x", "reduce-scatter(x) E"),
        (AllReduce(("x", "y")), "BLE partialsum-xy", "all-reduce(xy)"),
        (AllToAll(("z",), 2, 0), "BLE_z", "all-to-all(z) E->B"),
        (Slice(("x",), 1), "BLE", "slice(x) L"),
        (Embed(("x",)), "BLE", "embed(x)"),
        (Embed(("x",), 2), "BLE_x", "embed(x) E"),
        (Permute(parse_layout("B_yLE_x")[1]), "B_xLE_y", "permute B_yLE_x"),
        (AllGather(("node", "x"), 0), "[B/node.x, L, E]", "all-gather(node.x) B"),
    ],
)
def test_description(collective: Collective, before: str, text: str) -> None:
    names, layout = parse_layout(before)
    assert describe(collective, names) == text
    assert text.startswith(kind(collective))
    apply(collective, layout)


def test_a_permute_exchanges_over_the_axes_that_change_place() -> None:
    def moved(before: str, after: str) -> tuple[str, ...]:
        return axes_of(Permute(parse_layout(after)[1]), parse_layout(before)[1])

    assert moved("B_xyE_z", "B_yxE_z") == ("x", "y")
    assert moved("B_xyE_z", "B_zyE_x") == ("x", "z")
    assert moved("B_xE", "B_xE") == ()
