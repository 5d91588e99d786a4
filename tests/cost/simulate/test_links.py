"""The link simulator, by hand on small meshes, and the formulas of collectives against it."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from statistics import mean

import pytest

from escc.cost.network import bytes_sent
from escc.cost.simulate.links import Link, Wire, Wiring, simulate, simulate_permute

KINDS = ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]
SIZES = range(1, 9)
TORI = [(2, 2), (4, 4), (3, 5), (8, 2), (2, 3, 4), (4, 4, 4), (1, 4, 1), (5, 1, 3)]
D = Fraction(840)  # bytes on a chip before; 840 divides by all of 1 to 8


def axis(size: int, wiring: Wiring) -> list[Wire]:
    return [Wire("x", size, wiring)]


def axes(sizes: tuple[int, ...], wiring: Wiring) -> list[Wire]:
    return [Wire(name, size, wiring) for name, size in zip("xyz", sizes, strict=False)]


def formula(kind: str, ways: int) -> Fraction:
    after = {"all-gather": D * ways, "reduce-scatter": D / ways}.get(kind, D)
    return Fraction(bytes_sent(kind, D, after, ways))


@pytest.mark.parametrize("wiring", Wiring)
@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_of_what_a_chip_sends_is_exact_on_one_axis(kind: str, wiring: Wiring) -> None:
    for k in SIZES:
        traffic = simulate(kind, axis(k, wiring), D)
        assert mean(traffic.sent_bytes) == formula(kind, k)
        if wiring is not Wiring.LINE:  # the ends of a line send less than its middle
            assert set(traffic.sent_bytes) == {formula(kind, k)}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("wiring", Wiring)
@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_of_what_a_chip_sends_is_exact_on_several_axes(kind: str, wiring: Wiring, together: bool) -> None:
    for sizes in TORI:
        traffic = simulate(kind, axes(sizes, wiring), D, together)
        assert mean(traffic.sent_bytes) == formula(kind, math.prod(sizes))


@pytest.mark.parametrize("k", SIZES)
def test_a_ring_uses_both_directions(k: int) -> None:
    """Gathers: half of what a chip sends on each direction; an all-to-all by the shorter way round."""
    ring = axis(k, Wiring.RING)
    for kind in KINDS[:3]:
        assert simulate(kind, ring, D).busiest_bytes == formula(kind, k) / 2
    exchanged = D * k / 8 if k % 2 == 0 else D * (k * k - 1) / (8 * k)
    assert simulate("all-to-all", ring, D).busiest_bytes == exchanged
    hops = [simulate(kind, ring, D).hops for kind in KINDS]
    assert hops == [k // 2, k // 2, 2 * (k // 2), k // 2]


@pytest.mark.parametrize("k", SIZES)
def test_without_wraparound_a_link_carries_twice_as_much(k: int) -> None:
    for kind in KINDS:
        line = simulate(kind, axis(k, Wiring.LINE), D)
        assert line.busiest_bytes == 2 * simulate(kind, axis(k, Wiring.RING), D).busiest_bytes
        assert line.hops == (k - 1) * (2 if kind == "all-reduce" else 1)


@pytest.mark.parametrize("k", SIZES)
def test_behind_a_switch_a_link_carries_what_a_chip_sends(k: int) -> None:
    for kind in KINDS:
        switched = simulate(kind, axis(k, Wiring.SWITCH), D)
        assert switched.busiest_bytes == formula(kind, k)
        assert switched.hops == (k > 1) * (2 if kind == "all-reduce" else 1)
        assert simulate(kind, axis(k, Wiring.DIRECT), D).busiest_bytes * (k - 1) == switched.busiest_bytes


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_an_all_to_all_costs_a_quarter_of_a_gather(k: int) -> None:
    """Of an array of D bytes in all; without the factor (K - 1)/K of the gather."""
    gather, exchange = (simulate(kind, axis(k, Wiring.RING), D / k) for kind in ("all-gather", "all-to-all"))
    assert 4 * exchange.busiest_bytes == gather.busiest_bytes * k / (k - 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("rank", [2, 3])
def test_equal_axes_together_are_as_many_times_as_fast(kind: str, n: int, rank: int) -> None:
    wires = axes((n,) * rank, Wiring.RING)
    apart, together = (simulate(kind, wires, D, t) for t in (False, True))
    assert together.busiest_bytes * rank == apart.busiest_bytes
    assert together.hops == apart.hops
    if kind != "all-to-all":
        assert apart.busiest_bytes == formula(kind, n**rank) / 2


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4, 3), (8, 4)])
def test_axis_by_axis_a_gather_grows_and_an_all_to_all_does_not(sizes: tuple[int, ...]) -> None:
    wires = axes(sizes, Wiring.RING)
    gather = simulate("all-gather", wires, D)
    exchange = simulate("all-to-all", wires, D)
    held = D
    for wire, stage, other in zip(wires, gather.stages, exchange.stages, strict=True):
        assert stage.busiest_bytes == held * (wire.size - 1) / 2
        assert other.busiest_bytes == simulate("all-to-all", [wire], D).busiest_bytes
        held *= wire.size
    scatter = simulate("reduce-scatter", list(reversed(wires)), held)
    assert [s.busiest_bytes for s in scatter.stages] == [s.busiest_bytes for s in reversed(gather.stages)]


def test_every_direction_of_a_ring_is_as_busy() -> None:
    [stage] = simulate("all-gather", axis(4, Wiring.RING), D).stages
    links = {Link("x", chip, port) for chip, port in product(range(4), "+-")}
    assert dict(stage.loads) == dict.fromkeys(links, D * 3 / 2)


def test_on_a_line_of_three_by_hand() -> None:
    [stage] = simulate("all-gather", axis(3, Wiring.LINE), D).stages
    want = {("+", 0): D, ("+", 1): 2 * D, ("-", 2): D, ("-", 1): 2 * D}
    assert {(link.port, link.chip): load for link, load in stage.loads} == want


def test_a_permute_to_the_next_chip_and_to_the_opposite_one() -> None:
    ring = axis(4, Wiring.RING)
    step = simulate_permute(ring, [1, 2, 3, 0], D)
    assert (step.busiest_bytes, step.hops, set(step.sent_bytes)) == (D, 1, {D})
    far = simulate_permute(ring, [2, 3, 0, 1], D)
    assert (far.busiest_bytes, far.hops, set(far.sent_bytes)) == (D, 2, {D})
    still = simulate_permute(ring, [0, 1, 2, 3], D)
    assert (still.busiest_bytes, still.hops, set(still.sent_bytes)) == (0, 0, {0})
    swap = simulate_permute(axes((2, 2), Wiring.RING), [0, 2, 1, 3], D)
    assert swap.sent_bytes == (0, D, D, 0)


def test_time_is_that_of_the_busiest_link_and_of_the_hops() -> None:
    traffic = simulate("all-gather", axis(4, Wiring.RING), D)
    assert traffic.seconds(100.0, 0.5) == float(D) * 1.5 / 100 + 2 * 0.5


def test_one_chip_and_no_axis_send_nothing() -> None:
    for kind in KINDS:
        for wires in ([], axes((1, 1), Wiring.RING)):
            traffic = simulate(kind, wires, D, together=True)
            assert (traffic.busiest_bytes, traffic.hops, traffic.sent_bytes) == (0, 0, (0,))


def test_what_is_no_collective() -> None:
    with pytest.raises(KeyError):
        simulate("broadcast", axis(2, Wiring.RING), D)
