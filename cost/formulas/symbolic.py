"""What a sharded program costs, as formulas: the figures of `estimate`, in symbols instead of numbers.

A dim is called by its name and an axis by its capital letter; a local size is a dim over axes. All
else comes from the functions that make the numbers, so a formula and a figure cannot part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

import sympy
from sympy import Expr, Symbol

from ...ir.collective import CollectiveKind
from ...ir.dataflow import readers
from ...ir.dtype import Dtype
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ..arithmetic import arithmetics
from ..estimate import OpWork, Scale, Transfer, concrete_sizes, local_bytes, step_costs
from ..hardware import Convention, Hardware
from ..network import Network, Terms, bytes_sent
from ..streams import FetchCost
from .streams import SymbolicFetch, symbolic_fetches


class Form(StrEnum):
    """How a collective over K chips is written: with its factor (K-1)/K, or for K >> 1, without."""

    EXACT = "exact"
    LARGE = "large"


class Bandwidth(StrEnum):
    """What a collective has of the network.

    CHIP: all that a chip has (`bw`), the flat convention. AXIS: a share (`W`) for each of its axes,
    as if all axes were alike and nothing else counted. LINKS: what the links convention gives it,
    with a rate (`W`) for each axis and latencies.
    """

    CHIP = "chip"
    AXIS = "axis"
    LINKS = "links"


@record
class Symbols:
    """The symbols of a program's formulas, all positive.

    `rates`: what a chip can take in along each axis, in bytes/s as `hbm`; axes of one rate share a
    symbol, and all do where a chip has one bandwidth. `peak` is in flop/s, `peaks` of arithmetic in
    types with a peak of their own. `caches` is the rate at which attention reads them. `start` and `hop`: seconds of
    latency of a collective and of a hop. Those that do not count here, or are what others are, are None. `means`: of
    dims that ops are timed at a mean size of.
    """

    dims: Mapping[str, Expr]
    axes: Mapping[str, Symbol]
    rates: Mapping[str, Symbol]
    peak: Symbol
    hbm: Symbol
    start: Symbol | None = None
    hop: Symbol | None = None
    caches: Symbol | None = None
    means: Mapping[str, Symbol] = field(default_factory=dict)
    peaks: Mapping[Dtype, Symbol] = field(default_factory=dict)

    @property
    def network(self) -> Symbol:
        """The one symbol of the network's rates, where there is one."""
        return next(iter(self.rates.values()))


@record
class SymbolicMove:
    """One collective, once. `results`: the values of the steps that it stands for, several where a
    collective runs one dim after another and is written as one. `joined`: it is part of the one
    before it, and `seconds` are what it adds."""

    results: tuple[str, ...]
    times: int
    kind: CollectiveKind
    axes: tuple[str, ...]
    bytes_sent: Expr
    seconds: Expr
    joined: bool = False


@record
class SymbolicOp:
    """One op on one chip, once."""

    result: str
    times: int
    flops: Expr
    hbm_bytes: Expr
    compute_s: Expr
    memory_s: Expr


@record
class SymbolicEstimate:
    """The formulas of a program's steps, in order.

    `comm_s`: seconds of all collectives. `sizes`: what the symbols are worth here. `fetches`: what comes from the
    host.
    """

    form: Form
    symbols: Symbols
    moves: tuple[SymbolicMove, ...]
    ops: tuple[SymbolicOp, ...]
    comm_s: Expr
    sizes: Mapping[Symbol, sympy.Rational]
    fetches: tuple[SymbolicFetch, ...] = ()

    @property
    def compute_s(self) -> Expr:
        """Seconds that the arithmetic alone would take."""
        return tidy(sympy.Add(*(op.times * op.compute_s for op in self.ops)))

    @property
    def memory_s(self) -> Expr:
        """Seconds that the HBM traffic alone would take."""
        return tidy(sympy.Add(*(op.times * op.memory_s for op in self.ops)))

    def value(self, formula: Expr) -> float:
        """What a formula comes to here. Its symbols must all have sizes."""
        return float(formula.xreplace(dict(self.sizes)))


def symbolic(
    spmd: SpmdProgram,
    hardware: Hardware,
    form: Form = Form.EXACT,
    bandwidth: Bandwidth = Bandwidth.CHIP,
    numbers: Collection[str] = (),
    fetches: tuple[FetchCost, ...] = (),
) -> SymbolicEstimate:
    """The cost of every step of a sharded program in symbols; dims in `numbers` stand as their sizes. `fetches`: what
    comes from the host, in numbers.

    Collectives of one kind that follow each other on one value, and take together what one over all
    their axes would, are that one in the total, and with K >> 1 in the list as well: the factor that
    is dropped there is that of all the chips among which the value moves.

    With `Bandwidth.LINKS` formulas hold for the levels on which the axes of this mesh lie: which links
    are the busiest and which rings are closed. Raises InputError when the mesh does not fit them.
    """
    many = form is Form.LARGE
    symbols = _symbols(spmd, hardware, bandwidth, numbers)
    network = _network(spmd, hardware, bandwidth, symbols, many)

    def sent_by(step: Transfer) -> Expr:
        return sympy.sympify(bytes_sent(step.kind, step.before_bytes, step.after_bytes, step.ways, many))

    def seconds(step: Transfer) -> Expr:
        if bandwidth is Bandwidth.AXIS:
            return sent_by(step) * step.load / (_shares(step, bandwidth) * symbols.network)
        return sympy.sympify(step.seconds(network))

    of_ops = {**symbols.dims, **symbols.means}
    whole = symbols.dims.__getitem__, symbols.axes.__getitem__
    steps = list(step_costs(spmd, Scale(*whole, concrete_sizes(spmd), of_ops.__getitem__)))
    sent = [step for step in steps if isinstance(step, Transfer)]
    passed_on = frozenset(name for name, count in readers(spmd).items() if count == 1)  # what one step alone reads
    chains = list(_chains(sent, passed_on, bandwidth))
    total = tidy(sympy.Add(*(chain[0].times * seconds(_whole(chain)) for chain in chains)))
    moves = []
    for chain in chains if form is Form.LARGE else [[step] for step in sent]:
        one, results = _whole(chain), tuple(step.result for step in chain)
        priced = sent_by(one), seconds(one)
        moves.append(SymbolicMove(results, one.times, one.kind, one.axes, *priced, one.joined))
    ops = []
    for step in steps:
        if isinstance(step, OpWork):
            ops.append(_op(step, symbols, hardware))
    worth = _sizes(spmd, hardware, bandwidth, symbols)
    taken = {str(symbol) for symbol in worth} | {dim for dim, _ in spmd.sizes}

    def named(name: str) -> Symbol:
        while name in taken:
            name += "_"
        taken.add(name)
        return Symbol(name, positive=True)

    scale = Scale(symbols.dims.__getitem__, symbols.axes.__getitem__)
    sides = (lambda value: float(local_bytes(value, spmd))), scale.local_bytes
    found, more = symbolic_fetches(spmd, hardware, fetches, network, sides, scale.ways, named)
    return SymbolicEstimate(form, symbols, tuple(moves), tuple(ops), total, {**worth, **more}, found)


def _op(step: OpWork, symbols: Symbols, hardware: Hardware) -> SymbolicOp:
    flops, traffic = sympy.sympify(step.work.flops), sympy.sympify(step.work.hbm_bytes)
    peak = symbols.peaks.get(hardware.done_in(step.work.arithmetic), symbols.peak)
    memory_s = traffic / symbols.hbm
    if symbols.caches is not None:
        caches = sympy.sympify(step.work.cache_bytes)
        memory_s = (traffic - caches) / symbols.hbm + caches / symbols.caches
    return SymbolicOp(step.result, step.times, flops, traffic, flops / peak, memory_s)


def tidy(formula: Expr) -> Expr:
    """A formula with what its terms share in front."""
    return sympy.factor_terms(formula, clear=False)


def _symbols(spmd: SpmdProgram, hardware: Hardware, bandwidth: Bandwidth, numbers: Collection[str]) -> Symbols:
    """Symbols with names of their own: dims as they are called, the others out of their way."""
    sizes = dict(spmd.sizes)
    taken = set(sizes)

    def new(*names: str) -> Symbol:
        name = next((n for n in names if n not in taken), names[-1])
        while name in taken:
            name += "_"
        taken.add(name)
        return Symbol(name, positive=True)

    dims = {d: sympy.Integer(sizes[d]) if d in numbers else Symbol(d, positive=True) for d in sizes}
    axes = {a: new(a.upper(), a) if len(a) == 1 else new(a) for a in spmd.mesh.names}
    means = {d: new(f"{d}_mean") for d, _ in spmd.mean}
    own_rate = hardware.calibrated.attention_efficiency is not None
    types = {hardware.done_in(one) for one in arithmetics(spmd)}

    def rates_of_ops() -> dict[str, Any]:
        peaks = {dtype: new(f"peak{dtype.bits}") for dtype in hardware.peaks if dtype in types}
        return {"peaks": peaks, "caches": new("caches") if own_rate else None}

    if bandwidth is not Bandwidth.LINKS:
        rate = new("bw" if bandwidth is Bandwidth.CHIP else "W")
        rates = dict.fromkeys(axes, rate)
        return Symbols(dims, axes, rates, new("peak"), new("hbm"), **rates_of_ops(), means=means)
    figures = _axis_rates(spmd, hardware)
    alike = len(set(figures.values())) == 1
    named: dict[float, Symbol] = {}
    for axis, figure in figures.items():
        if figure not in named:
            named[figure] = new("W" if alike else f"W_{axis}")
    start = new("latency") if hardware.calibrated.collective_latency_s else None
    hop = new("hop") if hardware.hop_s else None
    rates = {axis: named[figure] for axis, figure in figures.items()}
    return Symbols(dims, axes, rates, new("peak"), new("hbm"), start, hop, **rates_of_ops(), means=means)


def _axis_rates(spmd: SpmdProgram, hardware: Hardware) -> dict[str, float]:
    """What a chip can take in along each axis that has more than one chip, bytes/s."""
    network = Network(hardware.with_network(Convention.LINKS), spmd.mesh)
    return {axis: network.axis_bytes_per_s(axis) for axis, size in spmd.mesh.axes if size > 1}


def _network(spmd: SpmdProgram, hardware: Hardware, bandwidth: Bandwidth, symbols: Symbols, many: bool) -> Network:
    """The network whose prices are in symbols."""
    convention = Convention.LINKS if bandwidth is Bandwidth.LINKS else Convention.FLAT
    axes, rates = symbols.axes.__getitem__, symbols.rates.__getitem__
    all_of_it = symbols.network if symbols.rates else sympy.oo  # one chip sends nothing
    terms = Terms(axes, rates, all_of_it, symbols.start or 0, symbols.hop or 0, many)
    return Network(hardware.with_network(convention), spmd.mesh, terms)


def _sizes(
    spmd: SpmdProgram, hardware: Hardware, bandwidth: Bandwidth, symbols: Symbols
) -> dict[Symbol, sympy.Rational]:
    """What the symbols are worth, exactly; the share `W` of an axis is given by no hardware."""
    dims = {s: sympy.Integer(size) for d, size in spmd.sizes if isinstance(s := symbols.dims[d], Symbol)}
    dims |= {symbols.means[d]: sympy.Integer(size) for d, size in spmd.mean}
    axes = {symbols.axes[a]: sympy.Integer(size) for a, size in spmd.mesh.axes}
    figures = {symbols.peak: 1 / sympy.Rational(hardware.compute_s(1.0))}
    figures[symbols.hbm] = 1 / sympy.Rational(hardware.memory_s(1.0))
    for dtype, peak in symbols.peaks.items():
        figures[peak] = 1 / sympy.Rational(hardware.compute_s(1.0, dtype))
    if symbols.caches is not None:
        figures[symbols.caches] = 1 / sympy.Rational(hardware.memory_s(1.0, 1.0))
    match bandwidth:
        case Bandwidth.CHIP:
            flat = Network(hardware.with_network(Convention.FLAT), spmd.mesh)
            figures[symbols.network] = 1 / sympy.Rational(flat.collective_s(CollectiveKind.PERMUTE, (), 1.0, 1.0))
        case Bandwidth.LINKS:
            for axis, rate in _axis_rates(spmd, hardware).items():
                figures[symbols.rates[axis]] = sympy.Rational(rate)
            for latency, seconds in (
                (symbols.start, hardware.calibrated.collective_latency_s),
                (symbols.hop, hardware.hop_s),
            ):
                if latency is not None:
                    figures[latency] = sympy.Rational(seconds)
    return {**dims, **axes, **figures}


def _shares(step: Transfer, bandwidth: Bandwidth) -> int:
    """How many times the bandwidth of the symbol a collective has."""
    return len(step.axes) if bandwidth is Bandwidth.AXIS else 1


def _chains(sent: list[Transfer], passed_on: frozenset[str], bandwidth: Bandwidth) -> Iterator[list[Transfer]]:
    """The collectives, those together that take what one would, in the order of their last steps."""
    chains: dict[str, list[Transfer]] = {}
    for step in sent:
        before = chains.get(step.operand, []) if step.operand in passed_on else []
        if before and _is_one([*before, step], bandwidth):
            del chains[step.operand]
            chains[step.result] = [*before, step]
        else:
            chains[step.result] = [step]
    yield from chains.values()


def _is_one(chain: list[Transfer], bandwidth: Bandwidth) -> bool:
    """Whether collectives in a row take, exactly, what one over all their axes would."""
    if bandwidth is Bandwidth.LINKS or len({(s.kind, s.times) for s in chain}) > 1:
        return False  # on links each has a latency of its own
    if any(s.load != 1 for s in chain):
        return False
    together = _whole(chain)
    apart = sympy.Add(*(s.bytes_sent / _shares(s, bandwidth) for s in chain))
    return bool(sympy.cancel(apart - together.bytes_sent / _shares(together, bandwidth)) == 0)


def _whole(chain: list[Transfer]) -> Transfer:
    """Collectives in a row, as one over all their axes."""
    first, last = chain[0], chain[-1]
    axes = tuple(a for s in chain for a in s.axes)
    ways = sympy.Mul(*(s.ways for s in chain))
    held = first.before_bytes, last.after_bytes
    return Transfer(last.result, first.operand, last.times, last.kind, axes, *held, ways, last.ahead, last.load)
