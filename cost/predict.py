"""What a phase of a plan will take: latency, tokens a second, utilisation, memory and money.

Nothing is estimated anew: times are those of the plan's `Estimate`, bytes those of `memory`. A step is one
run of the phase, and its tokens are those of all sequences: decode takes one of each, prefill all of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from enum import StrEnum
from math import exp, fsum

from ..ir.collective import CollectiveKind
from ..ir.program import Program
from ..ir.record import record
from ..ir.spmd import SpmdProgram
from .estimate import Estimate, OpCost
from .hardware import Hardware, Rule
from .memory import MemoryUse
from .network import Network
from .ops import model_flops_by_type
from .tokens import tokens
from .topology import islands


@record
class Shares:
    """Seconds on a chip, in all."""

    compute_s: float = 0.0
    hbm_s: float = 0.0
    network_s: float = 0.0
    latency_s: float = 0.0
    launch_s: float = 0.0
    host_s: float = 0.0

    @property
    def seconds(self) -> tuple[float, ...]:
        """Each of them, in the order of Resource."""
        return self.compute_s, self.hbm_s, self.network_s, self.latency_s, self.launch_s, self.host_s

    @property
    def total_s(self) -> float:
        """All of it."""
        return fsum(self.seconds)

    def times(self, count: float) -> Shares:
        """The same, `count` times."""
        return Shares(*(count * seconds for seconds in self.seconds))

    def __add__(self, other: Shares) -> Shares:
        return Shares(*(a + b for a, b in zip(self.seconds, other.seconds, strict=True)))


def shares(spmd: SpmdProgram, estimate: Estimate, hardware: Hardware) -> Shares:
    """What the time of a program's steps, each by itself, goes to; `estimate`: its cost on `hardware`."""
    network = Network(hardware, spmd.mesh)
    compute = [op.times * _compute_s(op, hardware.calibrated.op_rule) for op in estimate.ops]
    waits = (move for move in estimate.moves if not move.joined)
    latency = [move.times * float(network.latency_s(move.kind, move.axes)) for move in waits]
    launch_s = fsum(op.times * op.launch_s for op in estimate.ops)
    ops_s = fsum(op.times * (op.seconds - op.launch_s) for op in estimate.ops)
    moves_s = fsum(move.times * move.seconds for move in estimate.moves)
    return Shares(fsum(compute), ops_s - fsum(compute), moves_s - fsum(latency), fsum(latency), launch_s)


def _compute_s(op: OpCost, rule: Rule) -> float:
    """How much of an op's time is its arithmetic's."""
    worked_s = op.seconds - op.launch_s
    match rule:
        case Rule.MAX:
            return worked_s if op.compute_s >= op.memory_s else 0.0
        case Rule.SUM:
            return op.compute_s
        case Rule.ROOT_OF_SQUARES:
            return op.compute_s**2 / worked_s if worked_s else 0.0


DEVIATIONS = 2.0  # of the calibration's error to each side, on a scale of ratios: about 95% of cases
MILLION = 1e6
HOUR_S = 3600.0


class Resource(StrEnum):
    """What time is spent on. LATENCY: of the network, whatever it carries. LAUNCH: of kernels, whatever they do,
    and what a serving engine takes beside them. HOST: waiting for what it stores."""

    COMPUTE = "compute"
    HBM = "HBM"
    NETWORK = "network"
    LATENCY = "latency"
    LAUNCH = "launch"
    HOST = "host"


@record
class Part:
    """An op, a collective or a loop of them, by the value that it makes first; `what`: the collective's kind,
    `op` or `loop`; or waiting for the host in a repeat, by its name, `fetch`. `seconds`: on a chip, all its
    repetitions, without what a loop hides."""

    result: str
    what: str
    times: int
    seconds: float


@record
class Prediction:
    """One step of a phase on `chips` chips.

    `seconds`: its latency; `low_s` and `high_s`: where a measurement would lie in about 95% of cases, by what
    the calibration left unexplained, None where some of what the time goes to was not measured. `beyond`: what it goes
    to outside of a node, of which nothing is ever measured, in words. `tokens`: of all sequences.
    `spent`: what the seconds go to, `parts` which steps; each adds up to them. `hbm_bytes`: the most that a
    chip holds, of `hbm_capacity_bytes`. `mfu`: model flops of what the chips could do, None where it takes
    no time. `dollars_per_chip_hour`: None where that is not known.
    """

    chips: int
    tokens: int
    seconds: float
    low_s: float | None
    high_s: float | None
    spent: Shares
    parts: tuple[Part, ...] = field(repr=False)
    mfu: float | None
    hbm_bytes: float
    hbm_capacity_bytes: float
    dollars_per_chip_hour: float | None
    beyond: tuple[str, ...] = ()

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of all sequences a second; None where a step takes no time."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def chip_s_per_million(self) -> float:
        """Chip-seconds that a million tokens take."""
        return self.chips * self.seconds * MILLION / self.tokens

    @property
    def dollars_per_million(self) -> float | None:
        """What a million tokens cost."""
        if self.dollars_per_chip_hour is None:
            return None
        return self.chip_s_per_million * self.dollars_per_chip_hour / HOUR_S

    @property
    def binds(self) -> Resource:
        """What most of the time is spent on; of equals the first."""
        return max(self.shares, key=lambda share: share[1])[0]

    @property
    def shares(self) -> tuple[tuple[Resource, float], ...]:
        """The seconds spent on each resource; on the host only where some are."""
        every = zip(Resource, self.spent.seconds, strict=True)
        return tuple((resource, seconds) for resource, seconds in every if resource is not Resource.HOST or seconds)


def predict_phase(
    program: Program, spmd: SpmdProgram, cost: Estimate, use: MemoryUse, hardware: Hardware
) -> Prediction:
    """What one step of a planned phase takes; `cost` is the estimate of `spmd` on `hardware`, `use` its memory."""
    seconds, chips = cost.totals().total_s, spmd.mesh.chips
    error, beyond = _error(spmd, cost, hardware), _beyond(spmd, cost, hardware)
    ratio = None if error is None or beyond else exp(DEVIATIONS * error)
    return Prediction(
        chips=chips,
        tokens=tokens(program, spmd.phase),
        seconds=seconds,
        low_s=seconds / ratio if ratio else None,
        high_s=seconds * ratio if ratio else None,
        spent=_spent(spmd, cost, hardware),
        parts=_parts(cost),
        mfu=utilisation(program, spmd.phase, seconds, chips, hardware),
        hbm_bytes=float(use.total_bytes),
        hbm_capacity_bytes=hardware.hbm_bytes,
        dollars_per_chip_hour=hardware.dollars_per_chip_hour,
        beyond=beyond,
    )


def _error(spmd: SpmdProgram, cost: Estimate, hardware: Hardware) -> float | None:
    """The root mean square of log(measured / seconds) of steps like this one. None where it is not known: where nothing
    was measured of ops, of the links or a kind of collective that runs, or of steps with an engine that takes time.
    """
    error, engine = hardware.calibrated.error, hardware.engine
    looped = {name for loop in cost.loops for name in loop.results}
    # In loops blocks are passed on, whatever the collective in their place.
    moves = ((CollectiveKind.PERMUTE if m.result in looped else m.kind, m.axes) for m in cost.moves if m.seconds)
    known = not hardware.ops_at_peaks and links_measured(Network(hardware, spmd.mesh), moves)
    errors = [error if known else 0.0]
    if engine is not None and (engine.step_s or engine.layer_s):
        errors.append(engine.error)
    return max(errors) if all(errors) else None


def _beyond(spmd: SpmdProgram, cost: Estimate, hardware: Hardware) -> tuple[str, ...]:
    """What the time of a step goes to outside of a node: figures are fitted to what goes on inside, and rates of
    network cards and hosts are those of their datasheets."""
    network = Network(hardware, spmd.mesh)
    across = any(move.seconds and network.crosses_nodes(move.axes) for move in cost.moves)
    return (*((between(hardware),) if across else ()), *(("what comes from hosts",) if cost.fetches else ()))


def between(hardware: Hardware) -> str:
    """What goes over axes that join nodes or slices, in words."""
    return f"what goes between {islands(hardware)}"


def links_measured(network: Network, moves: Iterable[tuple[CollectiveKind, Sequence[str]]]) -> bool:
    """Whether what collectives take, each of a kind and over some axes, was measured in a node, or the share of the
    links that they reach."""
    return not network.hardware.links_at_peak or all(network.is_measured(kind, axes) for kind, axes in moves)


def utilisation(program: Program, phase: str, seconds: float, chips: int, hardware: Hardware) -> float | None:
    """The flops that the model's parameters need in a step, unpadded, over those that the chips could do in the
    time, each in the type in which it is done; None where it takes no time."""
    peaks, done = hardware.peaks, model_flops_by_type(program, phase)
    types = ((hardware.done_in(arithmetic), flops) for arithmetic, flops in done.items())
    least_s = fsum(flops / peaks.get(dtype, hardware.peak_flops_per_s) for dtype, flops in types) / chips
    return least_s / seconds if seconds else None


def _spent(spmd: SpmdProgram, cost: Estimate, hardware: Hardware) -> Shares:
    """What the time goes to. In a loop its ops count, or its transfer and the ops on a block; the rest is hidden."""
    looped = {name for loop in cost.loops for name in loop.results}
    steps = {op.result for op in cost.ops} | {move.result for move in cost.moves}
    total = shares(spmd, _some(cost, steps - looped), hardware)
    for loop in cost.loops:
        ops = [op for op in cost.ops if op.result in loop.results]
        again_s = loop.op_s - loop.kernels_s - fsum(op.seconds for op in ops)  # what is read for each block
        own = shares(spmd, _some(cost, {op.result for op in ops}), hardware)
        own += Shares(hbm_s=loop.times * again_s, launch_s=loop.times * loop.kernels_s)
        if not loop.waits:
            total += own
        else:
            hops_s = loop.times * loop.hops_s
            total += own.times(1 / loop.blocks)
            total += Shares(network_s=loop.times * loop.transfer_s - hops_s, latency_s=hops_s)
        total += Shares(latency_s=loop.times * loop.start_s)
    return total + Shares(host_s=cost.totals().waiting_s)


def _some(cost: Estimate, results: set[str]) -> Estimate:
    """The steps that make `results`, each by itself."""
    ops = tuple(op for op in cost.ops if op.result in results)
    moves = tuple(move for move in cost.moves if move.result in results)
    return replace(cost, ops=ops, moves=moves, loops=())


def _parts(cost: Estimate) -> tuple[Part, ...]:
    looped = {name for loop in cost.loops for name in loop.results}
    steps = [Part(op.result, "op", op.times, op.times * op.seconds) for op in cost.ops if op.result not in looped]
    steps += [Part(m.result, m.kind, m.times, m.times * m.seconds) for m in cost.moves if m.result not in looped]
    steps += [Part(loop.first, "loop", loop.times, loop.times * loop.seconds) for loop in cost.loops]
    steps += [Part(fetch.repeat, "fetch", 1, fetch.waiting_s) for fetch in cost.fetches if fetch.waiting_s]
    return tuple(steps)
