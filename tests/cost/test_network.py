"""What collectives take on a mesh: by hand, and against the simulator that moves blocks over links."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import prod

import numpy as np
import pytest
import sympy

from escc.cost.hardware import Calibrated, Engine, Hardware, Protocols, Switch, Torus, Wrap
from escc.cost.network import Network
from escc.cost.sendings import Sending, from_bytes, quickest_s
from escc.cost.simulate.links import Wire, Wiring, simulate, simulate_permute
from escc.ir.collective import CollectiveKind
from escc.ir.diagnostics import InputError
from escc.ir.mesh import Mesh

FLAT = Network(Hardware.of_paper("tpu-v4"), Mesh.parse("4x2x2"))
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
LINK = 1.0  # bytes a second: seconds are bytes on the busiest link


def torus(wrap: Wrap, at_once: int | None = None, hop_latency_s: float = 0.0, latency_s: float = 0.0) -> Hardware:
    fabric = Torus(3, LINK, wrap, 1 << 20)
    found = Hardware("made-up", 1.0, 1.0, 1.0, 6.0, fabric, hop_latency_s=hop_latency_s, between_bytes_per_s=0.01)
    measured = Calibrated(collective_latency_s=latency_s, axes_at_once=at_once)
    return replace(found, calibrated=measured).with_network("links")


def preset(name: str, mesh: str) -> Network:
    return Network(Hardware.load(name, datasheet=True).with_network("links"), Mesh.parse(mesh))


def seconds(network: Network, kind: str, axes: str | list[str], before: float) -> float:
    ways = network.mesh.size(*axes)
    after = {"all-gather": before * ways, "reduce-scatter": before / ways}.get(kind, before)
    return float(network.collective_s(CollectiveKind(kind), axes, before, after))


def test_flat_a_collective_takes_its_bytes_over_the_bandwidth() -> None:
    assert FLAT.collective_s("all-gather", ["x"], 270e9, 4 * 270e9) == 3.0
    assert FLAT.collective_s("all-reduce", ["y"], 270e9, 270e9) == 1.0
    assert FLAT.collective_s("all-to-all", ["y", "z"], 270e9, 270e9) == 0.75
    assert FLAT.collective_s("slice", ["y"], 270e9, 1.0) == 0.0


def test_flat_axes_of_one_size_are_alike() -> None:
    assert FLAT.axis_class("y") == FLAT.axis_class("z") != FLAT.axis_class("x")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrap", [Wrap.ALWAYS, Wrap.NEVER])
@pytest.mark.parametrize("k", range(1, 9))
def test_one_axis_is_as_simulated(kind: str, wrap: Wrap, k: int) -> None:
    wiring = Wiring.RING if wrap is Wrap.ALWAYS else Wiring.LINE
    traffic = simulate(kind, [Wire("x", k, wiring)], Fraction(840))
    network = Network(torus(wrap), Mesh.parse(f"{k}"))
    assert seconds(network, kind, "x", 840.0) == pytest.approx(float(traffic.busiest_bytes), rel=1e-12)
    assert network.hops(kind, "x") == traffic.hops


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrap", [Wrap.ALWAYS, Wrap.NEVER])
@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (3, 3), (2, 2, 2), (4, 4, 4)])
def test_equal_axes_at_once_are_as_simulated(kind: str, wrap: Wrap, sizes: tuple[int, ...]) -> None:
    wiring = Wiring.RING if wrap is Wrap.ALWAYS else Wiring.LINE
    wires = [Wire(name, size, wiring) for name, size in zip("xyz", sizes, strict=False)]
    traffic = simulate(kind, wires, Fraction(840), together=True)
    network = Network(torus(wrap), Mesh.parse("x".join(map(str, sizes))))
    assert seconds(network, kind, "xyz"[: len(sizes)], 840.0) == pytest.approx(float(traffic.busiest_bytes), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (3, 5), (2, 4, 8), (8, 3, 2)])
def test_axis_by_axis_is_as_simulated(kind: str, sizes: tuple[int, ...]) -> None:
    wires = [Wire(name, size, Wiring.RING) for name, size in zip("xyz", sizes, strict=False)]
    traffic = simulate(kind, wires, Fraction(840))
    network = Network(torus(Wrap.ALWAYS, at_once=1), Mesh.parse("x".join(map(str, sizes))))
    assert seconds(network, kind, "xyz"[: len(sizes)], 840.0) == pytest.approx(float(traffic.busiest_bytes), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", ["4x4x4", "4x4x2", "2x4x4", "4x2x4"])
def test_two_axes_at_once_are_the_two_longest_and_then_the_third(kind: str, mesh: str) -> None:
    network = Network(torus(Wrap.ALWAYS, at_once=2), Mesh.parse(mesh))
    *pair, last = sorted("xyz", key=network.mesh.size, reverse=True)
    assert network.mesh.size(*pair) == 16
    wires = [[Wire(a, network.mesh.size(a), Wiring.RING) for a in stage] for stage in (pair, [last])]
    rates = [
        (network.mesh.size(*stage) - 1) / float(simulate("all-gather", wired, Fraction(1), together=True).busiest_bytes)
        for stage, wired in zip((pair, [last]), wires, strict=True)
    ]
    assert rates[1] == 2.0 and rates[0] == 4.0
    held = Fraction(840)
    if kind == "all-to-all":
        moved = sum(simulate(kind, wired, held, together=True).busiest_bytes for wired in wires)
    else:  # the slow axis first, while blocks are small; a reduce-scatter is its mirror image
        start = held / network.mesh.chips if kind != "all-gather" else held
        along = simulate("all-gather", wires[1], start, together=True).busiest_bytes
        moved = along + simulate("all-gather", wires[0], start * network.mesh.size(last), together=True).busiest_bytes
        moved *= 2 if kind == "all-reduce" else 1
    for order in permutations("xyz"):
        assert seconds(network, kind, list(order), 840.0) == pytest.approx(float(moved), rel=1e-12)
    assert network.hops(kind, "xyz") == Network(torus(Wrap.ALWAYS), Mesh.parse(mesh)).hops(kind, "xyz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [2, 3, 7])
def test_no_more_axes_than_may_be_used_at_once_are_used_at_once(kind: str, at_once: int) -> None:
    limited, free = (Network(torus(Wrap.ALWAYS, n), Mesh.parse("4x4x4")) for n in (at_once, None))
    assert seconds(limited, kind, "xz", 840.0) == seconds(free, kind, "xz", 840.0)
    assert (seconds(limited, kind, "xyz", 840.0) > seconds(free, kind, "xyz", 840.0)) == (at_once < 3)


def test_how_many_axes_are_used_at_once_is_no_matter_behind_a_switch() -> None:
    one = replace(Hardware.load("h100", datasheet=True).with_network("links"), calibrated=Calibrated(axes_at_once=1))
    network = Network(one, Mesh.parse("2x4"))
    assert seconds(network, "all-gather", "xy", 1e6) == seconds(preset("h100", "2x4"), "all-gather", "xy", 1e6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(2, 4), (2, 8), (3, 5), (2, 4, 8)])
def test_unequal_axes_at_once_take_no_longer_than_a_fixed_split_of_the_data(kind: str, sizes: tuple[int, ...]) -> None:
    wires = [Wire(name, size, Wiring.LINE) for name, size in zip("xyz", sizes, strict=False)]
    split = simulate(kind, wires, Fraction(840), together=True)
    network = Network(torus(Wrap.NEVER), Mesh.parse("x".join(map(str, sizes))))
    found = seconds(network, kind, "xyz"[: len(sizes)], 840.0)
    assert found <= float(split.busiest_bytes) * (1 + 1e-12)
    # A chip in a corner has one link along each axis, and takes in what it lacks over those.
    total = {"all-gather": 840 * prod(sizes)}.get(kind, 840)
    corner = total * (1 - 1 / prod(sizes)) / len(sizes) * (2 if kind == "all-reduce" else 1)
    assert kind == "all-to-all" or found >= corner * (1 - 1e-12)


def test_an_axis_too_short_for_its_links_does_not_help_a_long_one_more_than_it_can() -> None:
    # x 2 is a ring (two links), so x and y together could carry 4 bytes a second; but all that a gather
    # over x can ever carry is half of the result, and y (14 of 16 parts at least 7 in turn) is the rest.
    network = Network(torus(Wrap.ALWAYS), Mesh.parse("2x8"))
    assert network.gather_bytes_per_s("xy") == pytest.approx(15 / max(15 / 4, 7 / 2, 1 / 2))


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_a_permute_is_priced_as_the_exchange_of_opposite_chips_of_a_ring(k: int) -> None:
    opposite = [(chip + k // 2) % k for chip in range(k)]
    traffic = simulate_permute([Wire("x", k, Wiring.RING)], opposite, Fraction(840))
    network = Network(torus(Wrap.ALWAYS), Mesh.parse(f"{k}"))
    assert seconds(network, "permute", "x", 840.0) == pytest.approx(float(traffic.busiest_bytes), rel=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_no_permute_along_a_line_takes_longer_than_its_price(k: int) -> None:
    wires = [Wire("x", k, Wiring.LINE)]
    worst = max(simulate_permute(wires, targets, Fraction(840)).busiest_bytes for targets in permutations(range(k)))
    price = seconds(Network(torus(Wrap.NEVER), Mesh.parse(f"{k}")), "permute", "x", 840.0)
    assert float(worst) <= price <= 2 * float(worst)


def test_latency_of_a_collective_and_of_a_hop() -> None:
    network = Network(torus(Wrap.ALWAYS, hop_latency_s=1.0, latency_s=10.0), Mesh.parse("4x8"))
    assert seconds(network, "all-gather", "x", 0.0) == network.latency_s("all-gather", "x") == 10.0 + 2.0
    assert seconds(network, "all-reduce", "xy", 0.0) == network.latency_s("all-reduce", "xy") == 10.0 + 2 * (2 + 4)
    assert seconds(network, "all-gather", "x", 1000.0) == 10.0 + 2.0 + 3000.0 / 2
    assert seconds(network, "slice", "x", 1000.0) == seconds(network, "embed", "x", 1000.0) == 0.0
    assert seconds(Network(network.hardware, Mesh.parse("1x2")), "all-reduce", "x", 1000.0) == 0.0


def test_the_share_of_the_peak_that_is_reached_counts_in_both_conventions() -> None:
    hardware = replace(FLAT.hardware, calibrated=Calibrated(network_efficiency=0.5))
    for convention in ("flat", "links"):
        full, half = (Network(h.with_network(convention), Mesh.parse("4x4x4")) for h in (FLAT.hardware, hardware))
        for kind in (*KINDS, "permute"):
            ideal = seconds(full, kind, "xy", 1e9) - full.latency_s(kind, "xy")
            reached = seconds(half, kind, "xy", 1e9) - half.latency_s(kind, "xy")
            assert reached == pytest.approx(2 * ideal, rel=1e-12)


@pytest.mark.parametrize("convention", ["flat", "links"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_combined_collectives_add_and_the_latency_is_paid_once(convention: str, kind: str) -> None:
    network = Network(FLAT.hardware.with_network(convention), Mesh.parse("4x4x4"))
    sizes = [(64.0 * n, 64.0 * n * {"all-gather": 16, "reduce-scatter": 1 / 16}.get(kind, 1)) for n in (1, 5, 100)]
    ahead = [(sum(b for b, _ in sizes[:n]), sum(a for _, a in sizes[:n])) if n else None for n in range(len(sizes))]
    parts = [network.collective_s(kind, "xy", *size, so_far) for size, so_far in zip(sizes, ahead, strict=True)]
    whole = network.collective_s(kind, "xy", *(sum(each) for each in zip(*sizes, strict=True)))
    assert sum(parts) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "mesh", "levels"),
    [
        ("tpu-v4", "4x4x4", "ring ring ring"),
        ("tpu-v4", "8x4x4", "ring ring ring"),
        ("tpu-v5p", "2x2x4", "line line line"),
        ("tpu-v5p", "4x4", "line line"),
        ("tpu-v5p", "4x4x4x1", "ring ring ring line"),
        ("tpu-v5e", "16x16", "ring ring"),
        ("tpu-v6e", "16x8", "ring line"),
        ("tpu-v5e", "slice=2,x=4,y=16", "between line ring"),
        ("h100", "node=2,gpu=8", "between switch"),
        ("h100", "node=2,gpu=4", "between switch"),
        ("h100", "4x2x4", "between switch switch"),
        ("h100", "16", "between"),
        ("gb200-nvl72", "8x9", "switch switch"),
    ],
)
def test_axes_lie_on_levels(name: str, mesh: str, levels: str) -> None:
    network = preset(name, mesh)
    found = [network.axis_class(axis) for axis in network.mesh.names]
    assert [axis.level for axis in found] == levels.split()  # type: ignore[attr-defined]
    assert [axis.size for axis in found] == list(network.mesh.sizes)  # type: ignore[attr-defined]


def test_axes_of_one_size_differ_by_level() -> None:
    assert preset("h100", "8x8").axis_class("x") != preset("h100", "8x8").axis_class("y")
    assert preset("tpu-v4", "4x4x8").axis_class("x") == preset("tpu-v4", "4x4x8").axis_class("y")


def test_parts_of_axes_of_a_torus_are_not_alike() -> None:
    """Neighbouring parts are one run of chips: of two whole axes one part alone cannot change places."""
    for name, classes in (("tpu-v4", 3), ("h100", 1)):
        network = preset(name, "x=2x2,y=2")
        assert len({network.axis_class(part) for part in network.mesh.names}) == classes


@pytest.mark.parametrize(
    ("name", "mesh", "said"),
    [
        ("tpu-v5e", "4x4x4", "3 axes, and the torus of tpu-v5e has 2 dimensions"),
        ("tpu-v5e", "32x16", "512 chips, and the largest slice of tpu-v5e has 256"),
        ("v100", "node=2,gpu=8", "Axis `node` joins nodes, and v100 has no figure"),
        ("gb200-nvl72", "128", "Axis `x` joins nodes"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(name: str, mesh: str, said: str) -> None:
    network = preset(name, mesh)
    with pytest.raises(InputError) as caught:
        network.axis_class(network.mesh.names[0])
    assert said in caught.value.diagnostics[0].message
    flat = Network(network.hardware.with_network("flat"), network.mesh)
    assert flat.collective_s("all-reduce", flat.mesh.names, 1.0, 1.0) > 0


def test_nodes_by_hand() -> None:
    network = preset("h100", "node=4,gpu=8")
    assert seconds(network, "all-gather", ["gpu"], 450e9) == pytest.approx(7.0)
    assert seconds(network, "all-reduce", ["node"], 50e9) == pytest.approx(2 * 3 / 4)
    assert seconds(network, "all-to-all", ["gpu"], 450e9) == pytest.approx(7 / 8)
    assert seconds(network, "permute", ["node"], 50e9) == pytest.approx(1.0)
    # Between the nodes first, while blocks are small: 3 blocks by the network card, then 7 times 4 by NVLink.
    assert seconds(network, "all-gather", ["node", "gpu"], 1e9) == pytest.approx(3 / 50 + 4 * 7 / 450)
    assert seconds(network, "reduce-scatter", ["gpu", "node"], 32e9) == pytest.approx(3 / 50 + 4 * 7 / 450)
    assert seconds(network, "all-to-all", ["node", "gpu"], 1e9) == pytest.approx(3 / 4 / 50 + 7 / 8 / 450)


def test_two_axes_in_one_node_are_one_switch() -> None:
    assert isinstance(Hardware.of_paper("h100").fabric, Switch)
    two, one = preset("h100", "2x4"), preset("h100", "8")
    for kind in (*KINDS, "permute"):
        assert seconds(two, kind, "xy", 1e6) == pytest.approx(seconds(one, kind, "x", 1e6), rel=1e-12)


@pytest.mark.parametrize("convention", ["flat", "links"])
@pytest.mark.parametrize("kind", [*KINDS, "permute", "slice"])
def test_symbols_arrays_and_numbers_agree(convention: str, kind: str) -> None:
    network = Network(Hardware.load("tpu-v4", datasheet=True).with_network(convention), Mesh.parse("4x4x4"))
    amounts = [1.0, 3e4, 5e8]
    size = sympy.Symbol("D", positive=True)
    formula = network.collective_s(kind, "xz", size, 2 * size)
    found = network.collective_s(kind, "xz", np.array(amounts), 2 * np.array(amounts))
    for amount, price in zip(amounts, found, strict=True):
        assert price == pytest.approx(network.collective_s(kind, "xz", amount, 2 * amount), rel=1e-12)
        assert float(sympy.sympify(formula).subs(size, amount)) == pytest.approx(price, rel=1e-12)


# Behind a switch whose collectives were measured


# On links of 100 bytes a second: with three others in a node 1.3 s, then 50 bytes a second, or 2 s later all 100.
TWO = Protocols(start_s=1.0, member_s=0.1, share=0.5, bulk_start_s=2.0, bulk_share=1.0)
ONE = Protocols(start_s=1.0, member_s=0.1, share=0.5)
NODES = Mesh((("node", 2), ("gpu", 4)))


def measured(protocols: Protocols, kinds: tuple[str, ...] = KINDS, mesh: Mesh = NODES) -> Network:
    """Nodes of four chips, with links of 100 bytes a second in a node and 10 between nodes."""
    chip = Hardware("made-up", 1.0, 1.0, 1.0, 100.0, Switch(4, 100.0), between_bytes_per_s=10.0)
    slow = Calibrated(collective_latency_s=7.0)  # of kinds that were not measured
    found = tuple((CollectiveKind(kind), protocols) for kind in kinds)
    return Network(replace(chip, protocols=found, calibrated=slow), mesh)


# What a chip sends over four chips that hold `before` bytes each.
SENT = {"all-gather": 3.0, "reduce-scatter": 3 / 4, "all-reduce": 2 * 3 / 4, "all-to-all": 3 / 4, "permute": 1.0}


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("sent", [5.0, 199.0, 200.0, 201.0, 4000.0])
def test_a_measured_collective_takes_the_quicker_of_two_protocols(kind: str, sent: float) -> None:
    # In a permute a chip waits for one other.
    wait_s = 1.0 + 0.1 * (1 if kind == "permute" else 3)
    bytes_s = sent / 50 if sent <= 200 else 2 + sent / 100
    before = sent / SENT[kind]
    assert seconds(measured(TWO), kind, ["gpu"], before) == pytest.approx(wait_s + bytes_s)
    assert seconds(measured(ONE), kind, ["gpu"], before) == pytest.approx(wait_s + sent / 50)
    late = replace(TWO, bulk_start_s=None)
    assert seconds(measured(late), kind, ["gpu"], before) == pytest.approx(wait_s + sent / 100)


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("axes", [["gpu"], ["node", "gpu"]])
@pytest.mark.parametrize("sent", [(5.0, 100.0), (150.0, 150.0), (5.0, 4000.0), (300.0, 5.0)])
def test_joined_collectives_that_were_measured_take_what_one_does(
    kind: str, axes: list[str], sent: tuple[float, float]
) -> None:
    network, (first, second) = measured(TWO), (size / SENT[kind] for size in sent)

    def after(before: float) -> float:
        ways = network.mesh.size(*axes)
        return {"all-gather": before * ways, "reduce-scatter": before / ways}.get(kind, before)

    def taken(before: float, ahead: float | None = None) -> float:
        carried = None if ahead is None else (ahead, after(ahead))
        return float(network.collective_s(CollectiveKind(kind), axes, before, after(before), carried))

    assert taken(first) + taken(second, first) == pytest.approx(taken(first + second), rel=1e-12)
    assert taken(first + second) <= taken(first) + taken(second) - network.latency_s(CollectiveKind(kind), axes) + 1e-9
    if axes == ["gpu"]:  # 2 s once, where that pays for both together
        assert taken(first + second) == pytest.approx(
            network.latency_s(CollectiveKind(kind), axes) + min(sum(sent) / 50, 2 + sum(sent) / 100)
        )


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("axes", [["gpu"], ["node"], ["node", "gpu"]])
def test_the_ways_of_a_measured_collective_are_what_it_takes(kind: str, axes: list[str]) -> None:
    for protocols, most in ((ONE, 1), (replace(TWO, bulk_start_s=None), 1), (TWO, 1 + len(axes))):
        network = measured(protocols)
        sendings = network.sendings(CollectiveKind(kind), axes)
        assert 1 <= len(sendings) <= most
        begin = from_bytes(sendings)
        assert begin == sorted(begin)
        for before in (0.5, 10.0, 26.7, 50.0, 100.0, 133.0, 200.0, 266.0, 1e3, 1e5):
            one = seconds(network, kind, axes, before) - network.latency_s(CollectiveKind(kind), axes)
            assert quickest_s(sendings, before) == pytest.approx(one, rel=1e-12)
            at = sum(first <= before for first in begin) - 1
            assert sendings[at].seconds(before) == pytest.approx(one, rel=1e-12)


def test_what_was_not_measured_or_sends_nothing_has_no_ways() -> None:
    assert measured(TWO, ("all-reduce",)).sendings(CollectiveKind.ALL_GATHER, ["gpu"]) == ()
    assert measured(TWO, mesh=Mesh((("gpu", 1),))).sendings(CollectiveKind.ALL_GATHER, ["gpu"]) == ()


@pytest.mark.parametrize("size", [5.0, 199.0, 201.0, 4000.0])
def test_what_is_handed_on_takes_what_a_permute_does_behind_a_switch(size: float) -> None:
    assert quickest_s(measured(TWO).handing_on("gpu"), size) == pytest.approx(
        seconds(measured(TWO), "permute", ["gpu"], size)
    )
    plain = measured(TWO, ())
    assert quickest_s(plain.handing_on("node"), size) == pytest.approx(seconds(plain, "permute", ["node"], size))


def test_measured_collectives_go_over_nodes_in_stages() -> None:
    network = measured(ONE)
    # Both stages wait, for one other node and for three other chips; half the rate of 10 is 5, of 100 it is 50.
    wait_s = 1.0 + 0.1 + 1.0 + 0.3
    both = ["node", "gpu"]
    gather_s = 80 / 5 + 2 * 80 * 3 / 50  # between the nodes while blocks are small
    assert seconds(network, "all-gather", both, 80.0) == pytest.approx(wait_s + gather_s)
    # A reduce-scatter is its mirror image: of 640 bytes an eighth is left.
    assert seconds(network, "reduce-scatter", both, 640.0) == pytest.approx(wait_s + gather_s)
    assert seconds(network, "all-reduce", both, 640.0) == pytest.approx(wait_s + 2 * gather_s)
    assert seconds(network, "all-to-all", both, 80.0) == pytest.approx(wait_s + 80 / 2 / 5 + 80 * 3 / 4 / 50)
    permute_s = 2 * (1.0 + 0.1) + 80 / 5 + 80 / 50
    assert seconds(network, "permute", both, 80.0) == pytest.approx(permute_s)
    # Each stage takes the protocol that is the quicker for what it carries: 80 bytes at 5 or at 10 bytes a second.
    staged = 2 + 80 / 10 + 2 + 2 * 80 * 3 / 100
    assert seconds(measured(TWO), "all-gather", both, 80.0) == pytest.approx(wait_s + staged)
    assert seconds(measured(TWO), "all-gather", both, 8.0) == pytest.approx(wait_s + 8 / 5 + 2 * 8 * 3 / 50)


def test_kinds_that_were_not_measured_take_what_the_links_do() -> None:
    network = measured(TWO, ("all-gather",))
    assert seconds(network, "all-reduce", ["gpu"], 400.0) == pytest.approx(7.0 + 400 * 2 * 3 / 4 / 100)
    assert seconds(network, "all-gather", ["gpu"], 400.0) == pytest.approx(1.3 + 2 + 1200 / 100)
    # Nor does it matter what was measured in the flat convention, on a torus, or where there is nothing to send.
    flat = Network(network.hardware.with_network("flat"), network.mesh)
    assert seconds(flat, "all-gather", ["gpu"], 400.0) == pytest.approx(1200 / 100)
    assert seconds(measured(TWO, mesh=Mesh.parse("gpu=1")), "all-gather", ["gpu"], 400.0) == 0.0
    assert seconds(measured(TWO), "slice", ["gpu"], 400.0) == 0.0
    ring = torus(Wrap.ALWAYS)
    with_protocols = replace(ring, protocols=network.hardware.protocols)
    found = [seconds(Network(one, Mesh.parse("4")), "all-gather", "x", 840.0) for one in (ring, with_protocols)]
    assert found[0] == found[1]


def test_two_axes_in_one_node_that_was_measured_are_one_switch() -> None:
    two, one = measured(TWO, mesh=Mesh.parse("2x2")), measured(TWO, mesh=Mesh.parse("4"))
    for kind in SENT:
        assert seconds(two, kind, "xy", 840.0) == pytest.approx(seconds(one, kind, "x", 840.0), rel=1e-12)


@pytest.mark.parametrize("size", [5.0, 199.0, 201.0, 4000.0])
@pytest.mark.parametrize("axis", ["gpu", "node"])
def test_each_block_that_is_passed_on_is_a_permute_as_measured(axis: str, size: float) -> None:
    for protocols in (ONE, TWO):
        network = measured(protocols)
        taken = quickest_s(network.passing_on(axis, both_ways=False), size)
        assert taken == pytest.approx(seconds(network, "permute", [axis], size))
        assert (network.start_s, network.hop_s(axis)) == (0.0, 1.1)  # each round waits for one other
    plain = measured(TWO, ("all-gather",))
    assert (plain.start_s, plain.hop_s(axis)) == (7.0, 0.0)
    assert plain.passing_on("gpu", both_ways=False) == (Sending(0.0, 1 / 100),)
    assert plain.passing_on("node", both_ways=False) == (Sending(0.0, 1 / 10),)


def test_an_engine_has_its_own_all_reduce_in_a_node_and_that_of_the_chip_over_nodes() -> None:
    chips, engine = measured(TWO), Engine("mine", all_reduce=Protocols(start_s=0.25, member_s=0.0, share=1.0))
    served = replace(chips, hardware=chips.hardware.with_engine(engine))
    assert seconds(served, "all-reduce", ["gpu"], 400.0) == pytest.approx(0.25 + 2 * 300 / 100)
    for axes in (["node"], ["node", "gpu"], ["gpu", "node"]):
        for size in (5.0, 400.0, 5e5):
            assert seconds(served, "all-reduce", axes, size) == seconds(chips, "all-reduce", axes, size)
            ways = [network.sendings(CollectiveKind.ALL_REDUCE, axes) for network in (served, chips)]
            assert ways[0] == ways[1]
    for kind in set(SENT) - {"all-reduce"}:
        assert seconds(served, kind, ["gpu"], 400.0) == seconds(chips, kind, ["gpu"], 400.0)
    # Of a chip of which none was measured it goes over nodes as links do.
    plain = measured(TWO, ("all-gather",))
    alone = replace(plain, hardware=plain.hardware.with_engine(engine))
    for axes, own in ((["gpu"], True), (["node"], False), (["node", "gpu"], False)):
        assert alone.is_measured(CollectiveKind.ALL_REDUCE, axes) == own
        assert (seconds(alone, "all-reduce", axes, 400.0) == seconds(plain, "all-reduce", axes, 400.0)) != own
    # The axes that fill a node are those in it; one chip of a node is no way between nodes.
    wide = replace(served, mesh=Mesh.parse("a=2,b=4"))
    assert (wide.crosses_nodes(["a"]), wide.crosses_nodes(["b"])) == (True, False)
    assert not replace(served, mesh=Mesh.parse("node=1,gpu=4")).crosses_nodes(["node", "gpu"])


@pytest.mark.parametrize("axes", [["gpu"], ["node", "gpu"]])
@pytest.mark.parametrize("kind", SENT)
def test_symbols_and_arrays_agree_of_what_was_measured(kind: str, axes: list[str]) -> None:
    network, size = measured(TWO), sympy.Symbol("D", positive=True)
    amounts, which = np.array([1.0, 300.0, 5e5]), CollectiveKind(kind)
    formula = network.collective_s(which, axes, size, 4 * size)
    for amount, price in zip(amounts, network.collective_s(which, axes, amounts, 4 * amounts), strict=True):
        assert price == pytest.approx(network.collective_s(which, axes, amount, 4 * amount), rel=1e-12)
        assert float(formula.subs(size, amount)) == pytest.approx(price, rel=1e-12)
