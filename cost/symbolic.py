"""What a sharded program costs, as formulas: the figures of `estimate`, in symbols instead of numbers.

A dim is called by its name and an axis by its capital letter; a local size is a dim over axes. All
else comes from the functions that make the numbers, so a formula and a figure cannot part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import sympy
from sympy import Expr, Symbol

from ..ir.program import operand_names
from ..ir.spmd import Compute, Move, SpmdProgram, SpmdRepeat, walk_spmd
from .collectives import bytes_sent
from .estimate import Done, Scale, Sent, quantities
from .hardware import Convention, Hardware
from .network import Network


class Form(StrEnum):
    """How a collective over K chips is written: with its factor (K-1)/K, or for K >> 1, without."""

    EXACT = "exact"
    LARGE = "large"


class Bandwidth(StrEnum):
    """What a collective has of the network: all that a chip has (`bw`), or a share (`W`) for each of its axes."""

    CHIP = "chip"
    AXIS = "axis"


@dataclass(frozen=True)
class Symbols:
    """The symbols of a program's formulas, all positive. `network` is in bytes/s, as `hbm`; `peak` in flop/s."""

    dims: Mapping[str, Expr]
    axes: Mapping[str, Symbol]
    network: Symbol
    peak: Symbol
    hbm: Symbol


@dataclass(frozen=True)
class SymbolicMove:
    """One collective, once. `results`: the values of the steps that it stands for, several where a
    collective runs one dim after another and is written as one."""

    results: tuple[str, ...]
    times: int
    kind: str
    axes: tuple[str, ...]
    bytes_sent: Expr
    seconds: Expr


@dataclass(frozen=True)
class SymbolicOp:
    """One op on one chip, once."""

    result: str
    times: int
    flops: Expr
    hbm_bytes: Expr
    compute_s: Expr
    memory_s: Expr


@dataclass(frozen=True)
class SymbolicEstimate:
    """The formulas of a program's steps, in order.

    `comm_s`: seconds of all collectives. `sizes`: what the symbols are worth here.
    """

    form: Form
    symbols: Symbols
    moves: tuple[SymbolicMove, ...]
    ops: tuple[SymbolicOp, ...]
    comm_s: Expr
    sizes: Mapping[Symbol, sympy.Rational]

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
) -> SymbolicEstimate:
    """The cost of every step of a sharded program in symbols; dims in `numbers` stand as their sizes.

    Collectives of one kind that follow each other on one value, and take together what one over all
    their axes would, are that one in the total, and with K >> 1 in the list as well: the factor that
    is dropped there is that of all the chips among which the value moves.
    """
    symbols = _symbols(spmd, bandwidth, numbers)

    def sent_by(step: Sent) -> Expr:
        return step.bytes_sent if form is Form.EXACT else _large(step)

    def seconds(step: Sent) -> Expr:
        return sent_by(step) / (_shares(step, bandwidth) * symbols.network)

    steps = list(quantities(spmd, Scale(symbols.dims.__getitem__, symbols.axes.__getitem__)))
    sent = [step for step in steps if isinstance(step, Sent)]
    joined = list(_chains(sent, _passed_on(spmd), bandwidth))
    total = tidy(sympy.Add(*(chain[0].times * seconds(_joined(chain)) for chain in joined)))
    chains = joined if form is Form.LARGE else [[step] for step in sent]
    moves = tuple(
        SymbolicMove(tuple(s.result for s in chain), one.times, one.kind, one.axes, sent_by(one), seconds(one))
        for chain in chains
        for one in [_joined(chain)]
    )
    ops = []
    for step in steps:
        if isinstance(step, Done):
            flops, traffic = sympy.sympify(step.work.flops), sympy.sympify(step.work.hbm_bytes)
            ops.append(SymbolicOp(step.result, step.times, flops, traffic, flops / symbols.peak, traffic / symbols.hbm))
    return SymbolicEstimate(form, symbols, moves, tuple(ops), total, _sizes(spmd, hardware, bandwidth, symbols))


def tidy(formula: Expr) -> Expr:
    """A formula with what its terms share in front."""
    return sympy.factor_terms(formula, clear=False)


def _symbols(spmd: SpmdProgram, bandwidth: Bandwidth, numbers: Collection[str]) -> Symbols:
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
    return Symbols(dims, axes, new("bw" if bandwidth is Bandwidth.CHIP else "W"), new("peak"), new("hbm"))


def _sizes(
    spmd: SpmdProgram, hardware: Hardware, bandwidth: Bandwidth, symbols: Symbols
) -> dict[Symbol, sympy.Rational]:
    """What the symbols are worth, exactly; the share `W` of an axis is given by no hardware."""
    flat = Network(hardware.with_network(Convention.FLAT), spmd.mesh)
    dims = {s: sympy.Integer(size) for d, size in spmd.sizes if isinstance(s := symbols.dims[d], Symbol)}
    axes = {symbols.axes[a]: sympy.Integer(size) for a, size in spmd.mesh.axes}
    rates = {
        symbols.peak: 1 / sympy.Rational(hardware.compute_s(1.0)),
        symbols.hbm: 1 / sympy.Rational(hardware.memory_s(1.0)),
    }
    network = 1 / sympy.Rational(flat.collective_s("permute", (), 1.0, 1.0))
    return {**dims, **axes, **({symbols.network: network} if bandwidth is Bandwidth.CHIP else {}), **rates}


def _passed_on(spmd: SpmdProgram) -> frozenset[str]:
    """The values that one step reads, and nothing else."""
    reads = Counter(spmd.results)
    for placed in walk_spmd(spmd.body):
        match placed.item:
            case Compute(op):
                reads.update(operand_names(op))
            case Move(_, operand):
                reads[operand] += 1
            case SpmdRepeat(_, _, carries):
                for carry in carries:
                    reads.update((carry.initial, carry.next))
    return frozenset(name for name, count in reads.items() if count == 1)


def _shares(step: Sent, bandwidth: Bandwidth) -> int:
    """How many times the bandwidth of the symbol a collective has."""
    return len(step.axes) if bandwidth is Bandwidth.AXIS else 1


def _chains(sent: list[Sent], passed_on: frozenset[str], bandwidth: Bandwidth) -> Iterator[list[Sent]]:
    """The collectives, those together that take what one would, in the order of their last steps."""
    chains: dict[str, list[Sent]] = {}
    for step in sent:
        before = chains.get(step.operand, []) if step.operand in passed_on else []
        if before and _is_one([*before, step], bandwidth):
            del chains[step.operand]
            chains[step.result] = [*before, step]
        else:
            chains[step.result] = [step]
    yield from chains.values()


def _is_one(chain: list[Sent], bandwidth: Bandwidth) -> bool:
    """Whether collectives in a row take, exactly, what one over all their axes would."""
    if len({(s.kind, s.times) for s in chain}) > 1:
        return False
    together = _joined(chain)
    apart = sympy.Add(*(s.bytes_sent / _shares(s, bandwidth) for s in chain))
    return bool(sympy.cancel(apart - together.bytes_sent / _shares(together, bandwidth)) == 0)


def _joined(chain: list[Sent]) -> Sent:
    """Collectives in a row, as one over all their axes."""
    first, last = chain[0], chain[-1]
    axes = tuple(a for s in chain for a in s.axes)
    ways = sympy.Mul(*(s.ways for s in chain))
    return Sent(last.result, first.operand, last.times, last.kind, axes, first.before_bytes, last.after_bytes, ways)


def _large(step: Sent) -> Expr:
    """The bytes that a collective sends when it goes over many chips, by the limit of its formula."""
    formula, before, after = _limit(step.kind)
    return sympy.sympify(formula.xreplace({before: step.before_bytes, after: step.after_bytes}))


@cache
def _limit(kind: str) -> tuple[Expr, Symbol, Symbol]:
    before, after, ways = sympy.symbols("before after ways", positive=True)
    formula = sympy.sympify(bytes_sent(kind, before, after, ways))
    return sympy.limit(formula, ways, sympy.oo), before, after
