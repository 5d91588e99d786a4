"""Resharding: each arc is a collective that leads where it says, none is missing, and pruning loses nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pytest
from shards import all_layouts

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
    kind,
)
from escc.ir.layout import Layout, Reduction
from escc.ir.mesh import Mesh
from escc.passes.layouts import reshard
from escc.passes.layouts.reshard import KINDS, Arcs, collective, leaving, needed, price_arcs
from escc.passes.layouts.space import TensorSpace, tensor_space

CASES = [
    ("2", (4,)),
    ("2x2", (4, 4)),
    ("2x4", (4, 8)),
    ("2x3", (6, 12)),
    ("4x2x2", (8, 4)),
    ("2x2x2", (2, 4, 8)),
    ("2x4x8", (8, 64)),
    ("3x1x2", (1, 6)),
    ("5", ()),
]


def space_of(mesh: Mesh, shape: tuple[int, ...]) -> TensorSpace:
    live = [(name, size) for name, size in mesh.axes if size > 1]
    every = frozenset(mesh.names)
    return tensor_space(shape, live, every, every)


def candidates(layout: Layout, mesh: Mesh, every: list[Layout]) -> Iterator[Collective]:
    """Collectives, legal or not, on live axes."""
    live = [name for name, size in mesh.axes if size > 1]
    rank = range(len(layout.dims))
    for count in range(1, len(live) + 1):
        for axes in permutations(live, count):
            yield AllReduce(axes)
            for d in rank:
                yield AllGather(axes, d)
                yield ReduceScatter(axes, d)
                yield Slice(axes, d)
                if count == 1:
                    yield Embed(axes, d)
                yield from (AllToAll(axes, d, e) for e in rank)
            if count == 1:
                yield Embed(axes)
    for after in every:
        same_ways = all(mesh.size(*a) == mesh.size(*b) for a, b in zip(layout.dims, after.dims, strict=True))
        if same_ways and after != layout:
            yield Permute(after)


def legal(layout: Layout, mesh: Mesh, every: list[Layout]) -> set[tuple[str, Layout, int]]:
    """What single collectives make of a layout: kind, result, over how many chips."""
    found = set()
    for move in candidates(layout, mesh, every):
        try:
            after = apply(move, layout)
        except (LayoutError, AssertionError):
            continue
        if after in every:
            # A permute is counted over all chips among which blocks may move.
            axes = layout.split_axes if isinstance(move, Permute) else axes_of(move, layout)
            found.add((kind(move), after, mesh.size(*axes)))
    return found


@pytest.mark.parametrize(("mesh", "shape"), CASES)
def test_the_arcs_are_all_the_legal_collectives(mesh: str, shape: tuple[int, ...]) -> None:
    on = Mesh.parse(mesh)
    every = list(all_layouts(shape, on, [Reduction.SUM, Reduction.MAX]))
    space = space_of(on, shape)
    arcs = leaving(space.space)
    listed: dict[Layout, list[tuple[str, Layout, int]]] = {layout: [] for layout in every}
    for a in range(len(arcs)):
        before, after = space.layout(int(arcs.source[a])), space.layout(int(arcs.target[a]))
        kind = KINDS[int(arcs.kind[a])]
        axes = [name for i, name in enumerate(space.space.axis_names) if arcs.axes[a] >> i & 1]
        if kind == "permute":
            assert tuple(axes) == axes_of(collective(kind, before, after), before)
            axes = sorted(before.split_axes)
        listed[before].append((kind, after, on.size(*axes)))
    sample = every if len(every) <= 100 else every[:: len(every) // 60]
    for layout in sample:
        assert len(listed[layout]) == len(set(listed[layout]))
        assert set(listed[layout]) == legal(layout, on, every), layout


@pytest.mark.parametrize(("mesh", "shape"), CASES)
def test_an_arc_is_the_collective_that_it_is_turned_into(mesh: str, shape: tuple[int, ...]) -> None:
    space = space_of(Mesh.parse(mesh), shape)
    arcs = leaving(space.space)
    for a in range(0, len(arcs), max(1, len(arcs) // 4000)):
        before, after = space.layout(int(arcs.source[a])), space.layout(int(arcs.target[a]))
        name = KINDS[int(arcs.kind[a])]
        move = collective(name, before, after)
        assert kind(move) == name
        assert apply(move, before) == after


def test_arcs_come_in_one_order() -> None:
    arcs = leaving(space_of(Mesh.parse("2x4"), (4, 8)).space)
    keys = list(zip(arcs.source.tolist(), arcs.target.tolist(), arcs.kind.tolist(), strict=True))
    assert keys == sorted(keys)


@pytest.mark.parametrize("most", [1, 7, 100])
def test_arcs_do_not_depend_on_how_many_are_made_together(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(Mesh.parse("4x2x2"), (8, 4)).space
    every = leaving(space)
    leaving.cache_clear()
    monkeypatch.setattr(reshard, "MOST_PUT", most)
    again = leaving(space)
    leaving.cache_clear()
    assert again is not every and len(again) == len(every) > most
    for name in ("source", "target", "kind", "axes", "sending"):
        assert np.array_equal(getattr(again, name), getattr(every, name))


def test_no_collective_is_no_collective() -> None:
    layout = Layout(((),))
    with pytest.raises(KeyError):
        collective("broadcast", layout, layout)
    assert len(leaving(space_of(Mesh.parse("1"), (4,)).space)) == 0


def shortest(arcs: Arcs, price: np.ndarray, count: int) -> np.ndarray:
    """All-pairs shortest distances, by Floyd and Warshall."""
    best = np.full((count, count), np.inf)
    np.fill_diagonal(best, 0.0)
    np.minimum.at(best, (arcs.source, arcs.target), price)
    for k in range(count):
        np.minimum(best, best[:, k : k + 1] + best[k : k + 1, :], out=best)
    return best


SIZES = {"x": 4, "y": 2, "z": 8}  # what `volume` takes the axes for, whatever the mesh


def volume(name: str, axes: list[str], before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Bytes sent, over 1 GB/s, and 1 us for each collective that sends."""
    ways = math.prod(SIZES[a] for a in axes)
    share = (ways - 1) / ways
    sent = {
        "all-gather": after * share,
        "reduce-scatter": before * share,
        "all-reduce": 2 * before * share,
        "all-to-all": before * share,
        "permute": before,
        "slice": 0 * before,
        "embed": 0 * before,
    }[name]
    return sent / 1e9


def uneven(name: str, axes: list[str], before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Prices without any law but that slices and embeds are nearly free."""
    if name in ("slice", "embed"):
        return np.full(len(before), 1e-3)
    return np.random.default_rng(len(before) + len(axes)).uniform(1, 5, len(before))


@pytest.mark.parametrize("price", [volume, uneven])
@pytest.mark.parametrize(("mesh", "shape"), [c for c in CASES if c[0] != "2x4x8"])
def test_pruning_keeps_all_distances(mesh: str, shape: tuple[int, ...], price: object) -> None:
    space = space_of(Mesh.parse(mesh), shape).space
    arcs = leaving(space)
    seconds = price_arcs(space, arcs, 1024.0, price)  # type: ignore[arg-type]
    kept = needed(space, arcs, seconds)
    all_of_them = shortest(arcs, seconds, len(space))
    np.testing.assert_allclose(shortest(arcs.take(kept), seconds[kept], len(space)), all_of_them, rtol=1e-12)
    assert not len(arcs) > 100 or kept.sum() < len(arcs)


@pytest.mark.parametrize("latency_s", [1e-9, 1e-7, 1e-5])
@pytest.mark.parametrize(("mesh", "shape"), [("4x2", (16, 16)), ("2x2x2", (8, 8)), ("2x4", (8, 1, 16))])
def test_pruning_keeps_all_distances_whatever_groups_are_open(
    mesh: str, shape: tuple[int, ...], latency_s: float
) -> None:
    """Collectives of one kind over the same axes are a group; in any set of groups the latency may be saved."""
    space = space_of(Mesh.parse(mesh), shape).space
    arcs = leaving(space)
    free = np.isin(arcs.kind, [KINDS.index("slice"), KINDS.index("embed")])
    keys, group = np.unique(np.stack([arcs.kind, arcs.axes]), axis=1, return_inverse=True)
    group = np.where(free, -1, group.reshape(-1))
    transfer = price_arcs(space, arcs, 1024.0, volume)
    full = transfer + np.where(free, 0.0, latency_s) + 1e-15
    saved = np.where(free, 0.0, latency_s)
    kept = needed(space, arcs, full, group, saved)
    rng = np.random.default_rng(0)
    chances = [np.zeros(keys.shape[1]), np.ones(keys.shape[1])]
    chances += [rng.integers(0, 2, keys.shape[1]) for _ in range(20)]
    chances += [np.eye(keys.shape[1])[g] for g in range(keys.shape[1])]
    for chance in chances:
        now = full - np.where((group >= 0) & (chance[group] > 0), saved, 0.0)
        found = shortest(arcs.take(kept), now[kept], len(space))
        np.testing.assert_allclose(found, shortest(arcs, now, len(space)), rtol=1e-9)


@pytest.mark.parametrize("most", [1, 500, 10**6])
@pytest.mark.parametrize("grouped", [False, True])
def test_pruning_leaves_out_what_two_arcs_replace_and_nothing_else(
    most: int, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One arc after the other, by the definition; however many ways are looked at together."""
    monkeypatch.setattr(reshard, "MOST_WAYS", most)
    space = space_of(Mesh.parse("2x2"), (8, 8)).space
    arcs = leaving(space)
    rng = np.random.default_rng(1)
    seconds, group = rng.integers(2, 9, len(arcs)).astype(float), rng.integers(-1, 4, len(arcs))
    saved = np.where(group >= 0, rng.integers(0, 3, 4)[group], 0).astype(float)
    ends = list(zip(arcs.source.tolist(), arcs.target.tolist(), strict=True))
    direct: dict[tuple[int, int], float] = {}
    for way, price in zip(ends, seconds.tolist(), strict=True):
        direct[way] = min(price, direct.get(way, np.inf))
    some = (group, saved) if grouped else ()
    for arc, kept in enumerate(needed(space, arcs, seconds, *some).tolist()):
        legs = [a for a in range(len(arcs)) if ends[a][0] == ends[arc][0] and (ends[a][1], ends[arc][1]) in direct]
        ways = {a: seconds[a] + direct[ends[a][1], ends[arc][1]] for a in legs}
        wanted = seconds[arc] < min([np.inf, *ways.values()]) and seconds[arc] <= direct[ends[arc]]
        if grouped and group[arc] >= 0:
            paid = [way - (saved[a] if group[a] == group[arc] else 0.0) for a, way in ways.items()]
            wanted |= seconds[arc] - saved[arc] < min([np.inf, *paid])
        twins = [a for a in range(arc) if ends[a] == ends[arc] and seconds[a] <= seconds[arc]]
        assert kept == (wanted and not (twins and (not grouped or group[arc] < 0))), arc


def test_prices_are_those_of_local_blocks() -> None:
    space = space_of(Mesh.parse("4x2"), (16, 16))
    arcs = leaving(space.space)
    seconds = price_arcs(space.space, arcs, 512.0, volume)
    both, one = Layout((("x", "y"), ())), Layout((("x",), ()))
    found = {
        KINDS[int(arcs.kind[a])]: float(seconds[a] * 1e9)
        for a in range(len(arcs))
        if arcs.source[a] == space.index(both) and arcs.target[a] == space.index(one)
    }
    assert found == {"all-gather": pytest.approx(512 / 4 / 2)}
