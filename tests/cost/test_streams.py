"""What comes from a host: the time of layers beside a simulation, the bytes of a fetch, and what a host may be."""

import math
import random
import re
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from programs import TINY_DECODER

from escc.compiler.plan.pipeline import compile_phase, parse
from escc.compiler.plan.streamed_layers import streaming
from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware, Host, hardware_toml, parse_hardware
from escc.cost.memory import memory
from escc.cost.simulate.streams import play
from escc.cost.streams import Carrier, Fetch, FetchCost, carried_s, host_of_stages, streamed_s
from escc.cost.topology import Hosts, host_numbers, hosts_of
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import most_ways
from escc.ir.mesh import Mesh
from escc.ir.program import Kind
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.text.write_spmd import print_spmd
from escc.ir.verify.verify import verify
from escc.passes.options import Options

H100 = Hardware.load("h100")
HOST = Host(dram_bytes=1e9, dram_bytes_per_s=1e11, link_bytes_per_s=1e10, host_chips=8, link_chips=2)
CHIP = replace(H100, host=HOST)
BOTH = frozenset({Kind.PARAM, Kind.CACHE})


def tiny(streamed: int, kinds: frozenset[Kind] = BOTH, phase: str = "decode", mesh: str = "1", chip: Hardware = CHIP):
    program = streaming(parse(TINY_DECODER), kinds, streamed, 1)
    return compile_phase(program, phase, Mesh.parse(mesh), Options(chip))


def test_layers_take_what_the_simulation_says():
    rng = random.Random(0)
    for _ in range(1000):
        count = rng.randint(1, 30)
        streamed, step_s, ahead = rng.randint(0, count), rng.choice([1.0, rng.uniform(0.1, 3.0)]), rng.randint(0, 3)
        fetch_s = rng.choice([0.1, 3.0, 30.0]) * rng.random()
        found = streamed_s(count, streamed, step_s, fetch_s, ahead)
        played = play(count, streamed, step_s, fetch_s, ahead, calls=60)
        case = count, streamed, step_s, fetch_s, ahead
        # Fetching as soon as there is room may only gain where runs differ in length.
        if not ahead or not streamed or count % streamed == 0:
            assert found == pytest.approx(played), case
        assert max(count * step_s, streamed * fetch_s) <= found * (1 + 1e-9), case
        assert played <= found * (1 + 1e-9), case


def test_all_layers_take_the_longer_of_computing_and_fetching_and_both_without_looking_ahead():
    assert streamed_s(10, 10, 2.0, 3.0, 1) == 30.0
    assert streamed_s(10, 10, 3.0, 2.0, 1) == 30.0
    assert streamed_s(10, 10, 3.0, 2.0, 0) == 50.0
    assert streamed_s(10, 5, 2.0, 4.0, 1) == 20.0


def test_a_fetch_carries_the_bytes_of_a_layer():
    # A layer has 4 * 64 * 64 + 2 * 64 * 128 weights of 2 bytes; each cache 4 * 32 * 64 entries, 1 / 32 of them new.
    weights, caches = 2 * (4 * 64 * 64 + 2 * 64 * 128), 2 * 2 * 4 * 32 * 64
    [cost] = tiny(5).estimate.fetches
    assert (cost.fetch.in_bytes, cost.fetch.out_bytes) == (weights + caches, caches / 32)
    assert cost.fetch.link_s == pytest.approx((weights + caches) / 1e10)  # one chip has the link to itself
    assert (cost.fetch.nvme_s, cost.fetch.gather_s, cost.fetch.binds) == (0.0, 0.0, Carrier.LINK)
    [filled] = tiny(5, phase="prefill").estimate.fetches  # what was in its caches is not read
    assert (filled.fetch.in_bytes, filled.fetch.out_bytes) == (weights, caches)


def test_chips_that_hold_the_same_fetch_parts_over_links_that_they_share():
    alone, [cost] = tiny(5, frozenset({Kind.PARAM})), tiny(5, frozenset({Kind.PARAM}), mesh="2x2").estimate.fetches
    [one] = alone.estimate.fetches
    assert cost.fetch.in_bytes == one.fetch.in_bytes / 4
    assert cost.fetch.link_s == pytest.approx(one.fetch.link_s / 4 * 2)


def play_turns(layers: int, chips: int, step_s: float, part_s: float, room: int) -> float:
    """Seconds a layer, at last, of chips that share a link and take turns on it: of a layer one of them fetches what
    all would, each part in `part_s` over the whole link, and hands it on at no cost. All run a layer when it is
    there, and have room for so many beside it."""
    ran_s = [0.0] * (1 + room)
    link_s = now_s = middle_s = 0.0
    for layer in range(layers):
        if layer == layers // 2:
            middle_s = now_s
        place = layer % len(ran_s)
        link_s = max(link_s, ran_s[place]) + chips * part_s
        now_s = ran_s[place] = max(now_s, link_s) + step_s
    return (now_s - middle_s) / (layers - layers // 2)


def test_chips_of_one_link_that_take_turns_have_what_a_share_of_it_gives():
    rng = random.Random(1)
    for _ in range(100):
        chips, step_s, part_s = rng.choice([2, 4]), rng.uniform(0.1, 3.0), rng.uniform(0.1, 3.0)
        halves_s = part_s * chips  # each with its share of the rate
        taken = play_turns(400, chips, step_s, part_s, 1)
        assert taken == pytest.approx(streamed_s(1, 1, step_s, halves_s, 1), rel=0.02)


def test_what_the_dram_does_not_hold_comes_from_nvme():
    whole = tiny(5, frozenset({Kind.PARAM}))
    half = replace(HOST, dram_bytes=whole.host_bytes / 2, nvme_bytes=1e9, nvme_bytes_per_s=1e8)
    [cost] = tiny(5, frozenset({Kind.PARAM}), chip=replace(H100, host=half)).estimate.fetches
    assert cost.fetch.nvme_s == pytest.approx(cost.fetch.in_bytes / 2 / 1e8)
    assert cost.fetch.dram_s == pytest.approx(1.5 * cost.fetch.in_bytes / 1e11)
    assert cost.fetch.binds is Carrier.NVME
    with pytest.raises(InputError, match="of each host of h100-measured, which has"):
        tiny(5, chip=replace(H100, host=replace(HOST, dram_bytes=1e3)))


def test_a_chip_has_room_for_what_stays_and_for_one_layer_more_than_are_ahead():
    weights = 2 * (4 * 64 * 64 + 2 * 64 * 128)
    held = [float(memory(tiny(n, frozenset({Kind.PARAM})).spmd).stored_bytes) for n in range(6)]
    assert [(held[0] - one) / weights for one in held] == [0, 0, 0, 1, 2, 3]


def test_what_is_there_in_time_is_not_waited_for_by_a_rounding():
    rng = random.Random(2)
    for _ in range(1000):
        count = rng.randint(1, 200)
        streamed, step_s = rng.randint(1, count), rng.uniform(0.1, 3.0)
        fetch = Fetch(0.0, 0.0, 0.9 * step_s * rng.random(), 0.0, 0.0, 0.0, 0.0)
        assert FetchCost("layer", count, streamed, 1, step_s, fetch).waiting_s == 0.0
        late = FetchCost("layer", count, streamed, 0, step_s, fetch)
        assert late.waiting_s == pytest.approx(streamed * fetch.link_s)


def test_waiting_is_a_part_of_the_time():
    found = tiny(5, chip=replace(H100, host=replace(HOST, link_bytes_per_s=1e8)))
    totals = found.estimate.totals()
    assert totals.waiting_s > 0
    assert totals.total_s == pytest.approx(totals.apart_s + totals.waiting_s)
    assert sum(seconds for _, seconds in found.prediction.shares) == pytest.approx(found.prediction.seconds)
    assert sum(part.seconds for part in found.prediction.parts) == pytest.approx(found.prediction.seconds)
    assert found.plan.price == pytest.approx(totals.apart_s)


def test_streams_are_written_and_read_back_and_verified():
    spmd = tiny(3).spmd
    text = print_spmd(spmd)
    assert text.count(" streamed 3 ahead 1\n") == 8  # six weights, two caches
    assert parse_spmd(Source("plan", text)) == spmd
    for wrong in ("streamed 6 ahead 1", "streamed 0 ahead 1"):
        with pytest.raises(InputError, match="can be streamed"):
            verify(parse_spmd(Source("plan", text.replace("streamed 3 ahead 1", wrong))))
    nowhere = re.sub(r"(param table: +bf16 VE)", r"\1 streamed 1 ahead 1", text)
    assert nowhere != text
    with pytest.raises(InputError, match="Of `table` no 1 repetitions can be streamed"):
        verify(parse_spmd(Source("plan", nowhere)))


@pytest.mark.parametrize(
    ("mesh", "axis", "own", "used"),
    [
        ("s=2,g=8", "s", 8, 8),
        ("s=2,g=2", "s", 2, 4),
        ("s=8,g=1", "s", 1, 8),
        ("g=2,s=4", "s", 2, 8),
        ("s=4,g=4", "s", 4, 4),  # of 16 chips 4 are in each node
        ("g=4,s=4", "s", 1, 4),
        ("node=3,g=4", "node", 4, 4),
        ("g=4,node=3", "node", 4, 4),
        ("g=2,node=3,s=2", "s", 2, 4),
    ],
)
def test_stages_share_a_host_as_they_share_its_chips(mesh: str, axis: str, own: int, used: int):
    host = replace(HOST, nvme_bytes=2e9, nvme_bytes_per_s=1e8)
    share = host_of_stages(replace(CHIP, host=host), Mesh.parse(mesh), axis)
    assert (share.host_chips, share.dram_bytes, share.nvme_bytes) == (own, 1e9 * own / used, 2e9 * own / used)
    # All chips of a host that fetch as much at once take as long, stage by stage with its share.
    assert carried_s(share, own, 3e6, 1e6, 0.5) == pytest.approx(carried_s(host, used, 3e6, 1e6, 0.5))


@pytest.mark.parametrize(("mesh", "each"), [("s=3,g=1,h=2", 4), ("s=3,g=2", 4), ("s=3,node=2", 2)])
def test_hosts_with_more_chips_of_one_stage_than_of_another_are_refused(mesh: str, each: int):
    with pytest.raises(InputError, match=f"do not have hosts of {each} chips evenly") as caught:
        host_of_stages(replace(CHIP, host=replace(HOST, host_chips=each)), Mesh.parse(mesh), "s")
    assert caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("mesh", "node_chips", "host_chips", "hosts"),
    [
        ("node=4,gpu=2", 8, 8, Hosts(4, 2)),
        ("gpu=2,node=4", 8, 8, Hosts(4, 2)),
        ("x=4,y=4", 8, 8, Hosts(4, 4)),  # the last axes that fill no more than a node are in one
        ("node=2,gpu=8", 8, 4, Hosts(4, 4)),
        ("node=2,gpu=6", 8, 4, Hosts(4, 4)),  # in each node one of 4 and one of 2
        ("x=2,y=2", 2, 4, Hosts(1, 4)),  # chips of two nodes in one host
        ("x=3", 8, 8, Hosts(1, 3)),
    ],
)
def test_chips_of_different_nodes_have_different_hosts(mesh: str, node_chips: int, host_chips: int, hosts: Hosts):
    fabric = replace(H100.fabric, node_chips=node_chips)
    chip, mesh = replace(CHIP, fabric=fabric, host=replace(HOST, host_chips=host_chips)), Mesh.parse(mesh)
    assert hosts_of(mesh, chip) == hosts
    numbers = host_numbers(mesh, chip)
    found, counts = np.unique(numbers, return_counts=True)
    assert (len(found), max(counts), numbers.shape) == (hosts.count, hosts.most_chips, mesh.sizes)
    if "node" in mesh.names:
        by_node = np.moveaxis(numbers, mesh.names.index("node"), 0)
        assert all(not np.isin(one, other).any() for one, other in combinations(by_node, 2))


def test_a_layer_comes_to_each_host_for_the_chips_of_its_own_node():
    """Of each weight every chip of 4 nodes of 2 fetches an eighth: as many hosts, half of what one of 4 chips holds."""
    slow = replace(CHIP, host=replace(HOST, dram_bytes_per_s=1e9, host_chips=4))
    apart, packed = (
        tiny(5, frozenset({Kind.PARAM}), mesh=mesh, chip=slow) for mesh in ("node=4,gpu=2", "node=2,gpu=4")
    )
    [one], [other] = apart.estimate.fetches, packed.estimate.fetches
    assert one.fetch.in_bytes == other.fetch.in_bytes and apart.host_bytes == packed.host_bytes / 2
    assert one.fetch.dram_s == pytest.approx(other.fetch.dram_s / 2) == pytest.approx(2 * one.fetch.in_bytes / 1e9)


def test_hardware_without_a_host_streams_nothing():
    with pytest.raises(InputError, match="h100-measured has no host") as caught:
        estimate(tiny(5).spmd, H100)
    assert "[host]" in str(caught.value.diagnostics[0].hint)


def test_a_host_is_written_and_read_back():
    chip = replace(CHIP, host=replace(HOST, nvme_bytes=2e12, nvme_bytes_per_s=5e9))
    assert parse_hardware(Source("mine.toml", hardware_toml(chip, [], []))) == chip


def test_a_host_without_rates_is_refused():
    text = hardware_toml(replace(CHIP, host=replace(HOST, nvme_bytes=2e12)), [], [])
    text = text.replace("dram_bytes_per_s = 1e11\n", "").replace("nvme_bytes_per_s = 0.0\n", "")
    with pytest.raises(InputError) as caught:
        parse_hardware(Source("mine.toml", text))
    assert [one.message for one in caught.value.diagnostics] == [
        "The field `dram_bytes_per_s` is missing from `[host]`.",
        "The field `nvme_bytes_per_s` is missing from `[host]`.",
    ]
    assert all(one.hint and one.span for one in caught.value.diagnostics)


def test_the_most_parts_are_those_of_the_best_way_to_give_axes_to_dims():
    rng = random.Random(1)
    for _ in range(200):
        shape = [rng.choice([1, 2, 3, 4, 6, 12, 20]) for _ in range(rng.randint(0, 3))]
        ways = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 3))]
        best = 1
        for given in product([*range(len(shape)), None], repeat=len(ways)):
            split = [math.prod(w for w, at in zip(ways, given, strict=True) if at == n) for n in range(len(shape))]
            if all(size % w == 0 for size, w in zip(shape, split, strict=True)):
                best = max(best, math.prod(split))
        assert most_ways(shape, Mesh(tuple(zip("xyz", ways, strict=False)))) == best
