"""Named layouts against each other: their formulas, where each becomes the cheapest, and what a search finds there.

All are compared by their communication. The layouts of a rival are kept while a dim grows; the search
is free to choose others at each size that it is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from math import isclose, lcm

import sympy
from sympy import Expr, Symbol

from ...cost.formulas.symbolic import Form, SymbolicEstimate
from ...ir.diagnostics import InputError, did_you_mean, fail
from ...ir.layout import format_layout
from ...ir.program import Kind, Pin, PinKind, Program, Stored, operand_names, stored_in, walk
from ...ir.record import record
from ...ir.spmd import Compute, Move, SpmdProgram
from ..plan.compiled import CompiledPhase
from .explain import Line, formulas, ones

ROUNDING = 1e-9  # relative; less is no gain

Search = Callable[[int, Sequence[Pin]], CompiledPhase]  # the plan that sends least at a size of the dim, with some pins


@record
class Turn:
    """From `start` on, up to the next turn's, the layouts called `name` send the least."""

    start: float
    name: str


@record
class Weight:
    """A parameter: the layout in which a plan stores it, and that in which an op reads it."""

    name: str
    stored: str
    used: str


@record
class Sending:
    """What a plan sends: seconds of communication and bytes of a chip, over the whole run."""

    seconds: float
    bytes_sent: float


@record
class Finding:
    """The plan that sends least where the dim has size `at`, beside `rival`, the best of the named ones there.

    `stored_as`: the layouts that give what is stored and what is handed out, None where nothing was
    pinned. `found` is None where there is no plan, for `reason`. `stored_bytes`: of parameters and
    caches, on a chip.
    """

    at: int
    stored_as: str | None
    rival: str
    named: Sending
    found: Sending | None
    weights: tuple[Weight, ...] = ()
    stored_bytes: float = 0.0
    reason: str | None = None

    @property
    def gain(self) -> float:
        """The share of the rival's seconds that the plan saves; 0 for what is rounding."""
        if self.found is None or isclose(self.found.seconds, self.named.seconds, rel_tol=ROUNDING):
            return 0.0
        return 1 - self.found.seconds / self.named.seconds if self.named.seconds else -float("inf")


@record
class Comparison:
    """Rival layouts: the communication of each, over the whole run, and the regimes as a dim, `over`, grows, which has
    the size `planned_at` in the plans whose layouts are kept.

    `findings`: at the size that the dim has, and wherever the cheapest changes.
    """

    layouts: tuple[Line, ...]
    over: str | None = None
    planned_at: int | None = None
    turns: tuple[Turn, ...] = ()
    findings: tuple[Finding, ...] = ()


def check_grows(program: Program, over: str) -> None:
    """Raise InputError when `over` is no dim of a program. Asked before anything is planned, for that takes long."""
    dims = dict(program.phases[0].sizes)
    if over not in dims:
        hint = did_you_mean(over, dims) or f"its dims are {', '.join(dims)}"
        raise fail(f"The program has no dim `{over[:60]}` that could grow.", hint=hint)


def compare(
    rivals: Mapping[str, CompiledPhase],
    form: Form,
    over: str | None,
    drop_ones: bool = False,
    search: Search | None = None,
) -> Comparison:
    """Plans of one phase on one mesh under different pins, by their communication.

    Their layouts are kept while the dim `over` grows from 0, whether or not they divide it. With a
    `search` they are set beside what it finds. `over` is a dim of the program: see `check_grows`.
    """
    found = {name: formulas(one, form, ones(one) - {over} if drop_ones else ()) for name, one in rivals.items()}
    layouts = tuple(
        Line(name, 1, one.comm_s, one.value(one.comm_s), rivals[name].estimate.totals().comm_s)
        for name, one in found.items()
    )
    if over is None:
        return Comparison(layouts)
    costs = {name: _only(one, over) for name, one in found.items()}
    symbol = _symbol(next(iter(found.values())), over)
    turns = cheapest(costs, symbol)
    at = dict(next(iter(rivals.values())).spmd.sizes)[over]
    return Comparison(layouts, over, at, turns, () if search is None else tuple(_findings(rivals, over, turns, search)))


def _findings(
    rivals: Mapping[str, CompiledPhase], over: str, turns: Sequence[Turn], search: Search
) -> Iterator[Finding]:
    exact = {name: formulas(one, Form.EXACT) for name, one in rivals.items()}
    for at in _sizes(rivals, over, turns):
        named = {name: _sending(one, over, at) for name, one in exact.items()}
        rival = _best(named, turns, at)
        for stored_as in (None, rival):
            pins = () if stored_as is None else _stored_pins(rivals[stored_as])
            try:
                compiled = search(at, pins)
            except InputError as error:
                reason = error.diagnostics[0].message
                yield Finding(at, stored_as, rival, named[rival], None, reason=reason)
                continue
            totals = compiled.estimate.totals()
            stored = sum(size for _, size in compiled.estimate.stored_bytes)
            sent = Sending(totals.comm_s, totals.bytes_sent)
            yield Finding(at, stored_as, rival, named[rival], sent, _weights(compiled.spmd), stored)


def _sizes(rivals: Mapping[str, CompiledPhase], over: str, turns: Sequence[Turn]) -> list[int]:
    """The size that the dim has, and the nearest to each turn that the layouts of all rivals divide."""
    ways = 1
    for one in rivals.values():
        for value in one.spmd.values:
            for dim, axes in zip(value.dims, value.layout.dims, strict=True):
                if dim == over:
                    ways = lcm(ways, one.spmd.mesh.size(*axes))
    here = dict(next(iter(rivals.values())).spmd.sizes)[over]
    return sorted({here, *(max(1, round(turn.start / ways)) * ways for turn in turns if turn.start)})


def _best(named: Mapping[str, Sending], turns: Sequence[Turn], at: int) -> str:
    """Which rival sends least; of equal ones that which does from here on."""
    least = min(sending.seconds for sending in named.values())
    equal = [name for name, sending in named.items() if isclose(sending.seconds, least, rel_tol=ROUNDING)]
    later = [turn.name for turn in turns if turn.start <= at * (1 + ROUNDING)][-1]
    return later if later in equal else equal[0]


def _stored_pins(compiled: CompiledPhase) -> list[Pin]:
    """Pins of the layouts in which a plan stores what it is given, and hands out its results."""
    spmd, values = compiled.spmd, compiled.spmd.table()
    stored = {one.value: one.value for one in stored_in(spmd.body)}
    handed_out = dict(zip(compiled.program.results, spmd.results, strict=True))
    pins = []
    for name, held in (stored | handed_out).items():
        value = values[held]
        pins.append(Pin(PinKind.STORED, name, None, value.layout, format_layout(value.dims, value.layout)))
    return pins


def _weights(spmd: SpmdProgram) -> tuple[Weight, ...]:
    """The parameters that ops read, in each layout in which they are read."""
    values = spmd.table()
    text = {name: format_layout(value.dims, value.layout) for name, value in values.items()}
    of: dict[str, str] = {}  # the parameter that a value holds, whatever its layout
    weights: dict[Weight, None] = {}
    for placed in walk(spmd.body):
        match placed.item:
            case Stored(name, Kind.PARAM):
                of[name] = name
            case Move(result, operand) if operand in of:
                of[result] = of[operand]
            case Compute(op):
                read = (name for name in operand_names(op) if name in of)
                weights |= dict.fromkeys(Weight(of[name], text[of[name]], text[name]) for name in read)
    return tuple(weights)


def _sending(estimate: SymbolicEstimate, over: str, at: int) -> Sending:
    sizes = dict(estimate.sizes) | {_symbol(estimate, over): sympy.Integer(at)}
    sent = sympy.Add(*(move.times * move.bytes_sent for move in estimate.moves))
    return Sending(float(estimate.comm_s.xreplace(sizes)), float(sent.xreplace(sizes)))


def _symbol(estimate: SymbolicEstimate, over: str) -> Symbol:
    symbol = estimate.symbols.dims[over]
    assert isinstance(symbol, Symbol)
    return symbol


def _only(estimate: SymbolicEstimate, over: str) -> Expr:
    """The communication with all symbols but one at their sizes."""
    kept = _symbol(estimate, over)
    sizes = {symbol: size for symbol, size in estimate.sizes.items() if symbol != kept}
    return sympy.sympify(estimate.comm_s).xreplace(sizes)


def crossovers(first: Expr, second: Expr, over: Symbol) -> tuple[Expr, ...]:
    """The positive values of `over` at which two costs are equal; none where they are always so. What is the least or
    the largest of some, as of two protocols of a collective, depends on nothing but `over`."""
    difference = first - second
    chosen = difference.atoms(sympy.Min, sympy.Max)
    if not chosen:
        return _roots(difference, over)
    pairs = (pair for one in chosen for pair in combinations(one.args, 2))
    edges = sorted({point for a, b in pairs for point in crossovers(a, b, over)})
    found = set()
    for start, end in _between(edges):
        piece = _piece(difference, over, _inside(start, end))
        found |= {p for p in _roots(piece, over) if start <= p and (end is None or p <= end)}
    return tuple(sorted(found))


def _roots(difference: Expr, over: Symbol) -> tuple[Expr, ...]:
    """The positive values of `over` at which a difference of two costs is 0; none where it always is."""
    found = (sympy.simplify(p) for p in sympy.solve(sympy.numer(sympy.together(difference)), over))
    return tuple(p for p in found if p.is_positive is not False)


def _piece(formula: Expr, over: Symbol, at: Expr) -> Expr:
    """A formula with each least or largest of some as the one that it is around a point."""
    many = formula.atoms(sympy.Min, sympy.Max)
    outer = [one for one in many if not any(one is not other and other.has(one) for other in many)]
    taken = {}
    for one in outer:
        here = one.subs(over, at)
        taken[one] = _piece(next(each for each in one.args if each.subs(over, at) == here), over, at)
    return formula.xreplace(taken)


def _between(points: Sequence[Expr]) -> list[tuple[Expr, Expr | None]]:
    """What lies between some points in turn, from 0 on; None is no end."""
    return list(zip([sympy.Integer(0), *points], [*points, None], strict=True))


def _inside(start: Expr, end: Expr | None) -> Expr:
    return start + 1 if end is None else (start + end) / 2


def cheapest(costs: Mapping[str, Expr], over: Symbol) -> tuple[Turn, ...]:
    """Which of some costs is the least as `over` grows from 0; of equal ones the first.

    The costs depend on nothing but `over`. Two turns that follow each other differ in name.
    """
    points = sorted({p for a, b in combinations(costs.values(), 2) for p in crossovers(a, b, over)})
    out: list[Turn] = []
    for start, end in _between(points):
        here = {name: cost.subs(over, _inside(start, end)) for name, cost in costs.items()}
        name = min(here, key=lambda n: here[n])
        if not out or out[-1].name != name:
            out.append(Turn(float(start), name))
    return tuple(out)
