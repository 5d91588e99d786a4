"""Parameters and caches in the memory of a host, which come to the chips as they are needed.

A host has DRAM and perhaps NVMe, and links to its chips that several of these may share. What does not fit into the
DRAM lies on NVMe. Of a stored tensor each chip fetches as much as makes one copy with the other chips that hold the
same, and gathers the rest over the chips' own network. New entries of a cache go back the other way.

With a repetition ahead, fetching one starts with the repetition before it that is streamed, so that a run of
repetitions which begins with a streamed one takes as long as these do, or as the next fetch; without, they take turns
(Aminabadi et al. 2022, "DeepSpeed Inference", section 6: ZeRO-Inference). All repetitions are alike and calls
follow each other, so more than one ahead takes room and saves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..ir.collective import CollectiveKind
from ..ir.diagnostics import fail
from ..ir.mesh import Mesh
from ..ir.program import Append, Repeat, Stored, Streamed, walk
from ..ir.spmd import Compute, SpmdProgram, SpmdValue
from .hardware import Hardware, Host
from .network import Network

LocalBytes = Callable[[SpmdValue], float]


class Carrier(StrEnum):
    """What a fetch goes over."""

    LINK = "links to the host"
    DRAM = "DRAM"
    NVME = "NVMe"


@dataclass(frozen=True)
class Fetch:
    """What comes to a chip for one repetition, and goes back. `link_s`, `dram_s` and `nvme_s` pass at once, then the
    chips gather."""

    in_bytes: float
    out_bytes: float
    link_s: float
    dram_s: float
    nvme_s: float
    gather_s: float

    @property
    def incoming_s(self) -> float:
        """Until each chip has its part, which is the same in all layouts."""
        return max(self.link_s, self.dram_s, self.nvme_s)

    @property
    def seconds(self) -> float:
        """Until all of it is there."""
        return self.incoming_s + self.gather_s

    @property
    def binds(self) -> Carrier:
        """The slowest on the way, of equals the first."""
        return max(zip((self.link_s, self.dram_s, self.nvme_s), Carrier, strict=True), key=lambda one: one[0])[1]


@dataclass(frozen=True)
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
        return streamed_s(self.count, self.streamed, self.step_s, self.fetch.seconds, self.ahead)

    @property
    def waiting_s(self) -> float:
        """How long a chip waits for what it needs."""
        return self.seconds - self.count * self.step_s


def streamed_s(count: int, streamed: int, step_s: float, fetch_s: float, ahead: int) -> float:
    """Seconds of `count` repetitions, `streamed` of them fetched and spread evenly among the others, in one of many
    calls that follow each other."""
    if not ahead or not streamed:
        return count * step_s + streamed * fetch_s
    shorter, longer = divmod(count, streamed)  # runs of repetitions from one that is streamed to the next
    return longer * max((shorter + 1) * step_s, fetch_s) + (streamed - longer) * max(shorter * step_s, fetch_s)


def streamed_values(spmd: SpmdProgram) -> dict[str, tuple[Stored, Streamed, int]]:
    """The stored tensors that are streamed, by name, with how many repetitions each has."""
    found = {}
    for placed in walk(spmd.body):
        if isinstance(placed.item, Stored) and placed.item.streamed is not None:
            found[placed.item.value] = placed.item, placed.item.streamed, placed.times
    return found


def host_bytes(spmd: SpmdProgram, host: Host, local: LocalBytes) -> float:
    """What each host of a program's chips holds: of each tensor one copy, divided evenly over the hosts."""
    values, hosts = spmd.table(), math.ceil(spmd.mesh.chips / host.host_chips)
    total = 0.0
    for name, (_, streamed, _) in streamed_values(spmd).items():
        total += streamed.count * local(values[name]) * spmd.mesh.chips / _holders(values[name], spmd.mesh)
    return total / hosts


def fetch_costs(
    spmd: SpmdProgram, hardware: Hardware, own_s: Mapping[str, float], local: LocalBytes
) -> tuple[FetchCost, ...]:
    """The fetches of each outermost repeat that has any; `own_s`: what one repetition of it takes when all is there.

    Raises InputError where the hardware has no host, or where that cannot hold what is streamed.
    """
    if not streamed_values(spmd):
        return ()
    host = hardware.host
    if host is None:
        raise fail(f"{hardware.name} has no host to store parameters or caches in.", hint=NO_HOST)
    held = host_bytes(spmd, host, local)
    room = host.dram_bytes + host.nvme_bytes
    if held > room:
        raise fail(
            f"What is streamed takes {held / 1e9:.4g} GB of each host of {hardware.name}, which has {room / 1e9:.4g}.",
            hint="take more hosts, fewer bits, or a smaller batch",
        )
    from_nvme = max(0.0, 1 - host.dram_bytes / held)
    return tuple(_costs(spmd, Network(hardware, spmd.mesh), host, from_nvme, own_s, local))


NO_HOST = "give its file a table `[host]`, with dram_bytes, dram_bytes_per_s, link_bytes_per_s and host_chips"


def _costs(
    spmd: SpmdProgram, network: Network, host: Host, from_nvme: float, own_s: Mapping[str, float], local: LocalBytes
) -> Iterator[FetchCost]:
    for repeat in (item for item in spmd.body.items if isinstance(item, Repeat)):
        inside = {p.item.value for p in walk(repeat.body) if isinstance(p.item, Stored)}
        found = {name: one for name, one in streamed_values(spmd).items() if name in inside}
        if not found:
            continue
        # Repeats in the repeat are fetched with it, as evenly.
        most = max(-(-streamed.count * repeat.count // times) for _, streamed, times in found.values())
        shares = {name: streamed.count / most for name, (_, streamed, _) in found.items()}
        ahead = min(streamed.ahead for _, streamed, _ in found.values())
        fetch = _fetch(spmd, network, host, from_nvme, shares, local)
        yield FetchCost(repeat.name, repeat.count, most, ahead, own_s[repeat.name], fetch)


def _fetch(
    spmd: SpmdProgram,
    network: Network,
    host: Host,
    from_nvme: float,
    shares: Mapping[str, float],
    local: LocalBytes,
) -> Fetch:
    """What one repetition takes; `shares`: how much of one repetition of each tensor that is, on average."""
    values, mesh = spmd.table(), spmd.mesh
    into, out = 0.0, 0.0
    gathered: dict[tuple[str, ...], float] = {}
    for name, share in shares.items():
        held = share * local(values[name])
        part = held / _holders(values[name], mesh)
        new = _new_share(spmd, name)
        into += part * (1.0 if new is None else float(new < 1))  # a cache that is filled anew is not read
        out += 0.0 if new is None else part * new
        if new is None or new < 1:
            over = _holding_axes(values[name], mesh)
            gathered[over] = gathered.get(over, 0.0) + held
    chips = min(mesh.chips, host.host_chips)
    link_s = max(into, out) * min(host.link_chips, chips) / host.link_bytes_per_s  # both directions at once
    both = chips * (into + out)
    dram_s = both * (1 + from_nvme) / host.dram_bytes_per_s  # what is on NVMe goes through it, too
    nvme_s = both * from_nvme / host.nvme_bytes_per_s if from_nvme else 0.0
    ways = {axes: mesh.size(*axes) for axes in gathered}
    gather_s = math.fsum(
        float(network.collective_s(CollectiveKind.ALL_GATHER, axes, held / ways[axes], held))
        for axes, held in gathered.items()
        if ways[axes] > 1
    )
    return Fetch(into, out, link_s, dram_s, nvme_s, gather_s)


def _holding_axes(value: SpmdValue, mesh: Mesh) -> tuple[str, ...]:
    """The axes along which chips hold the same of a value."""
    split = {axis for axes in value.layout.dims for axis in axes}
    return tuple(name for name, size in mesh.axes if size > 1 and name not in split)


def _holders(value: SpmdValue, mesh: Mesh) -> int:
    """How many chips hold the same of a value."""
    return mesh.size(*_holding_axes(value, mesh))


def _new_share(spmd: SpmdProgram, name: str) -> float | None:
    """The share of a cache that a call writes; None for what is no cache."""
    sizes = dict(spmd.sizes)
    for placed in walk(spmd.body):
        match placed.item:
            case Compute(Append(_, cache, _, source, target)) if cache == name:
                return sizes[source] / sizes[target]
    return None
