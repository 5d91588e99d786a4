"""Parameters and caches in the memory of a host, which come to the chips as they are needed.

A host has DRAM and perhaps NVMe, and links to its chips that several of these may share. What does not fit into the
DRAM lies on NVMe. Of a stored tensor each chip fetches as much as makes one copy with the other chips that hold the
same, where dims divide, and gathers the rest over the chips' own network. New entries of a cache go back the other way.
Chips that share a link may take turns, one fetching odd and the other even layers: the link carries as many bytes as if
each had half of its rate all the time, and a layer comes no sooner; what turns avoid, contention, is not priced.

With a repetition ahead, fetching one starts with the repetition before it that is streamed, so that a run of
repetitions which begins with a streamed one takes as long as these do, or as the next fetch; without, they take turns
(Aminabadi et al. 2022, "DeepSpeed Inference", section 6: ZeRO-Inference). All repetitions are alike and calls
follow each other, so more than one ahead takes room and saves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np

from ..ir.collective import CollectiveKind
from ..ir.dataflow import appends
from ..ir.diagnostics import Diagnostic, InputError, fail
from ..ir.layout import most_ways
from ..ir.mesh import Mesh
from ..ir.program import Kind, Program, Repeat, stored_in
from ..ir.record import record
from ..ir.spmd import SpmdProgram, SpmdValue, Step
from ..ir.streams import HostTensor, copies_held, host_tensors, is_filled_anew, places_sent_back, sets_of
from .elementwise import Larger, larger
from .hardware import Hardware, Host
from .network import Network
from .topology import host_numbers, hosts_of

ROUNDING = 1e-9  # relative: of sums of bytes
LocalBytes = Callable[[SpmdValue], Any]


class HostFull(InputError):
    """Hosts cannot hold what is streamed from them."""


class Carrier(StrEnum):
    """What a fetch goes over."""

    LINK = "links to the host"
    DRAM = "DRAM"
    NVME = "NVMe"


@record
class Fetch:
    """What comes to a chip for one repetition, and goes back. `link_s`, `dram_s` and `nvme_s` pass at once, then the
    chips gather. `least_s`: what coming in takes in any layout, each chip having as small a part as axes divide."""

    in_bytes: float
    out_bytes: float
    link_s: float
    dram_s: float
    nvme_s: float
    gather_s: float
    least_s: float

    @property
    def incoming_s(self) -> float:
        """Until each chip has its part."""
        return max(self.link_s, self.dram_s, self.nvme_s)

    @property
    def seconds(self) -> float:
        """Until all of it is there."""
        return self.incoming_s + self.gather_s

    @property
    def binds(self) -> Carrier:
        """The slowest on the way, of equals the first."""
        return max(zip((self.link_s, self.dram_s, self.nvme_s), Carrier, strict=True), key=lambda one: one[0])[1]


@record
class FetchCost:
    """The fetches of a repeat that stands in no other: `streamed` of its `count` repetitions, each of `step_s` when
    all is there."""

    repeat: str
    count: int
    streamed: int
    ahead: int
    step_s: float
    fetch: Fetch

    @property
    def seconds(self) -> float:
        """The whole repeat."""
        return float(streamed_s(self.count, self.streamed, self.step_s, self.fetch.seconds, self.ahead))

    @property
    def waiting_s(self) -> float:
        """How long a chip waits for what it needs: none, without rounding, where everything is there in time."""
        at_once_s = streamed_s(self.count, self.streamed, self.step_s, 0.0, self.ahead)
        return float(self.seconds - at_once_s)


def streamed_s(count: int, streamed: int, step_s: Any, fetch_s: Any, ahead: int, larger: Larger = larger) -> Any:
    """Seconds of `count` repetitions, `streamed` of them fetched and spread evenly among the others, in one of many
    calls that follow each other. Numbers or symbols, for which `larger` says which is larger."""
    if not ahead or not streamed:
        return count * step_s + streamed * fetch_s
    shorter, longer = divmod(count, streamed)  # runs of repetitions from one that is streamed to the next
    short, long = larger(shorter * step_s, fetch_s), larger((shorter + 1) * step_s, fetch_s)
    return longer * long + (streamed - longer) * short


def bytes_moved(tensor: HostTensor, spmd: SpmdProgram, local: LocalBytes) -> tuple[Any, Any]:
    """The bytes of one repetition that come to a chip, and that go back. A cache that is filled anew does not come."""
    part = local(replace(tensor.value, layout=tensor.parts))
    if tensor.append is None:
        return part, 0
    sent, held = places_sent_back(tensor.append, tensor.value, spmd)
    return 0 if is_filled_anew(tensor.append, dict(spmd.sizes)) else part, part * sent / held


def host_traffic(spmd: SpmdProgram, local: LocalBytes) -> tuple[Any, Any]:
    """The bytes that come to a chip from its host in a whole call, and that go back."""
    moved = [(one.streamed.count, *bytes_moved(one, spmd, local)) for one in host_tensors(spmd).values()]
    return sum(count * into for count, into, _ in moved), sum(count * out for count, _, out in moved)


def host_bytes(spmd: SpmdProgram, hardware: Hardware, local: LocalBytes) -> float:
    """What each host of a program's chips holds: a part for each chip, of chips divided evenly over the hosts, and of
    caches as many as there are batches that take turns. `hardware` has a host."""
    sets = {Kind.CACHE: spmd.micro_batches}
    parts = (
        sets.get(one.kind, 1) * one.streamed.count * local(replace(one.value, layout=one.parts))
        for one in host_tensors(spmd).values()
    )
    return math.fsum(parts) * spmd.mesh.chips / hosts_of(spmd.mesh, hardware).count


def fetch_costs(
    spmd: SpmdProgram, hardware: Hardware, own_s: Mapping[str, float], local: LocalBytes
) -> tuple[FetchCost, ...]:
    """The fetches of each outermost repeat that has any; `own_s`: what one repetition of it takes when all is there.

    Raises InputError where the hardware has no host, HostFull where that cannot hold what is streamed.
    """
    if not host_tensors(spmd):
        return ()
    host = host_of(hardware)
    held = host_bytes(spmd, hardware, local)
    room = host.dram_bytes + host.nvme_bytes
    if held > room:
        message = (
            f"What is streamed takes {held / 1e9:.4g} GB of each host of {hardware.name}, which has {room / 1e9:.4g}."
        )
        raise HostFull([Diagnostic(message, hint="take more hosts, fewer bits, or a smaller batch")])
    network, from_nvme = Network(hardware, spmd.mesh), nvme_share(spmd, hardware, local)
    found = []
    for repeat, most, tensors in streamed_repeats(spmd):
        ahead = min(one.streamed.ahead for one, _ in tensors)
        fetch = _fetch(spmd, network, from_nvme, tensors, local)
        found.append(FetchCost(repeat.name, repeat.count, most, ahead, own_s[repeat.name], fetch))
    return tuple(found)


def host_of(hardware: Hardware) -> Host:
    """The machine that chips are plugged into. Raises InputError where hardware has none."""
    if hardware.host is None:
        raise fail(
            f"{hardware.name} has no host to store parameters or caches in.",
            hint="give its file a table `[host]`, with dram_bytes, dram_bytes_per_s, link_bytes_per_s and host_chips",
        )
    return hardware.host


def nvme_share(spmd: SpmdProgram, hardware: Hardware, local: LocalBytes) -> float:
    """The share of what is streamed that does not fit into the DRAM of the hosts."""
    return max(0.0, 1 - host_of(hardware).dram_bytes / host_bytes(spmd, hardware, local))


def streamed_repeats(spmd: SpmdProgram) -> Iterator[tuple[Repeat[Step], int, list[tuple[HostTensor, Fraction]]]]:
    """Each outermost repeat of which something is streamed, how many of its repetitions, and what of them: beside each
    tensor how much of one repetition of it that is. Repeats in the repeat are fetched with it, as evenly."""
    for repeat in (item for item in spmd.body.items if isinstance(item, Repeat)):
        inside = {one.value for one in stored_in(repeat.body)}
        found = [one for name, one in host_tensors(spmd).items() if name in inside]
        if found:
            most = max(-(-one.streamed.count * repeat.count // one.times) for one in found)
            yield repeat, most, [(one, Fraction(one.streamed.count, most)) for one in found]


def _fetch(
    spmd: SpmdProgram,
    network: Network,
    from_nvme: float,
    shares: Sequence[tuple[HostTensor, Fraction]],
    local: LocalBytes,
) -> Fetch:
    """What one repetition takes; beside each tensor: how much of one repetition of it that is."""
    into, out, least_in, least_out = 0.0, 0.0, 0.0, 0.0
    gathered: dict[tuple[str, ...], float] = {}
    for tensor, part in shares:
        share = float(part)
        comes, returns = bytes_moved(tensor, spmd, local)
        into, out = into + share * comes, out + share * returns
        held = share * local(tensor.value)
        least = held * spmd.mesh.size(*tensor.value.layout.split_axes) / tensor.most
        least_out += least * _new_share(tensor, spmd)
        if comes:
            least_in += least
            gathered[tensor.gathered_axes] = gathered.get(tensor.gathered_axes, 0.0) + held
    ways = {axes: spmd.mesh.size(*axes) for axes in gathered}
    gather_s = math.fsum(
        float(network.collective_s(CollectiveKind.ALL_GATHER, axes, held / ways[axes], held))
        for axes, held in gathered.items()
        if ways[axes] > 1
    )
    host, chips = host_of(network.hardware), hosts_of(spmd.mesh, network.hardware).most_chips
    over = carried_s(host, chips, into, out, from_nvme)
    return Fetch(into, out, *over, gather_s, max(carried_s(host, chips, least_in, least_out, from_nvme)))


def carried_s(
    host: Host, chips: int, into: Any, out: Any, from_nvme: Any, larger: Larger = larger
) -> tuple[Any, Any, Any]:
    """What bytes of a chip take over the links, DRAM and NVMe, when so many chips of a host have as many. Numbers or
    symbols, for which `larger` says which is larger."""
    link_s = larger(into, out) * min(host.link_chips, chips) / host.link_bytes_per_s  # both directions at once
    both = chips * (into + out)
    dram_s = both * (1 + from_nvme) / host.dram_bytes_per_s  # what is on NVMe goes through it, too
    return link_s, dram_s, both * from_nvme / host.nvme_bytes_per_s if np.any(from_nvme) else 0.0


@record
class CopyBytes:
    """One repetition of a stored tensor, in bytes: what a chip stores of it, what lies for it with the host where it is
    streamed, and what of that comes in a call and goes back."""

    stored: float
    hosted: float
    into: float
    out: float


def least_fetched_s(
    program: Program, mesh: Mesh, hardware: Hardware, phase: str | None = None, stages: int = 1
) -> float:
    """What the weights that a program streams take at the least to come to the chips of a mesh, once for all, and if a
    `phase` is named its caches to come and go: in any layouts, of which each chip has as small a part as axes divide.
    Infinite where the hosts have no room for it, in caches as many as there are batches that take turns. `stages`: as
    `hosted_s` has it."""
    bound = program.phase(phase or program.phases[0].name)
    least = least_copies(program, bound.name, mesh)
    every = list(stored_in(program.body, Kind.PARAM, *([Kind.CACHE] if phase else [])))
    streamed = [(one, one.streamed.count, least[one.value]) for one in every if one.streamed is not None]
    hosted = math.fsum(n * size.hosted * sets_of(one, bound.micro_batches) for one, n, size in streamed)
    into = math.fsum(n * size.into for _, n, size in streamed)
    out = math.fsum(n * size.out for _, n, size in streamed)
    return float(hosted_s(hosted, into, out, mesh, hardware, stages))


def hosted_s(hosted: Any, into: Any, out: Any, mesh: Mesh, hardware: Hardware, stages: int = 1) -> Any:
    """What bytes take to come to each chip of a mesh, and to go back, of which `hosted` lie with the hosts for it: from
    NVMe what does not fit into DRAM; infinite where there is no room for it. `stages`: so many have a mesh and hosts
    like these, and hold together what is `hosted` for a chip; what comes to them comes one after the other. Numbers or
    arrays of them."""
    host, hosts = host_of(hardware), hosts_of(mesh, hardware)
    held = np.asarray(hosted) * mesh.chips / hosts.count
    beyond = held > stages * (host.dram_bytes + host.nvme_bytes) * (1 + ROUNDING)
    from_nvme: Any = 0.0
    if host.nvme_bytes:
        from_nvme = np.maximum(0.0, 1 - stages * host.dram_bytes / np.where(held > 0, held, 1.0)) * (held > 0)
    over = carried_s(host, hosts.most_chips, into, out, from_nvme, np.maximum)
    return np.where(beyond, math.inf, np.maximum(np.maximum(over[0], over[1]), over[2]))


def least_stored_bytes(program: Program, phase: str, mesh: Mesh) -> float:
    """What the chips of a mesh hold at the least in a phase of what is stored: of what is streamed the layers that
    stay, and those that are on their way."""
    turns, least = program.phase(phase).micro_batches, least_copies(program, phase, mesh)
    return math.fsum(
        copies_held(one, placed.repeats, turns) * least[one.value].stored
        for one, placed in stored_in(program.body, Kind.PARAM, Kind.CACHE).items()
    )


def least_copies(program: Program, phase: str, mesh: Mesh) -> dict[str, CopyBytes]:
    """What a chip has at the least of each parameter and cache, in any layout. A cache that is filled anew does not
    come."""
    sizes, table, written = dict(program.phase(phase).sizes), program.table(), appends(program)
    found = {}
    for one in stored_in(program.body, Kind.PARAM, Kind.CACHE):
        value, append = table[one.value], written.get(one.value)
        whole = math.prod(sizes[d] for d in value.dims) * value.dtype.bits / 8
        size = whole / most_ways(one.shape(value.dims, sizes), mesh)
        into = 0.0 if append and is_filled_anew(append, sizes) else size
        out = size * min(1.0, sizes[append.source] / sizes[append.target]) if append else 0.0
        found[one.value] = CopyBytes(size, size, into, out)
    return found


def host_of_stages(hardware: Hardware, mesh: Mesh, axis: str) -> Host:
    """What each stage along an axis has of its hosts: all of them, or as large a share of one as it has of the chips.

    Raises InputError where hosts have more chips of one stage than of another, or than other hosts, and where the
    hardware has none.
    """
    host, hosts = host_of(hardware), hosts_of(mesh, hardware)
    stages = np.indices(mesh.sizes)[mesh.names.index(axis)]
    numbers = host_numbers(mesh, hardware) * mesh.size(axis) + stages
    counts, used = np.unique(numbers, return_counts=True)[1], hosts.most_chips
    if mesh.chips != hosts.count * used or len(set(counts)) > 1:
        raise fail(
            f"Stages along `{axis}` of {mesh} do not have hosts of {host.host_chips} chips evenly.",
            hint="let each host have as many chips of one stage as of another",
        )
    own = int(counts[0])
    share, link_chips = own / used, min(host.link_chips, used)
    return replace(
        host,
        dram_bytes=host.dram_bytes * share,
        dram_bytes_per_s=host.dram_bytes_per_s * share,
        nvme_bytes=host.nvme_bytes * share,
        nvme_bytes_per_s=host.nvme_bytes_per_s * share,
        link_bytes_per_s=host.link_bytes_per_s * min(own, link_chips) / link_chips,
        link_chips=min(own, link_chips),
        host_chips=own,
    )


def _new_share(tensor: HostTensor, spmd: SpmdProgram) -> float:
    """The share of a cache that a call writes; none of what is no cache."""
    sizes = dict(spmd.sizes)
    return 0.0 if tensor.append is None else min(1.0, sizes[tensor.append.source] / sizes[tensor.append.target])
