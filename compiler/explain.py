"""A compiled phase explained: the formulas of its cost, and what they come to beside the plan's figures.

Rival layouts are shown by their formulas, their costs here, and where each becomes the cheapest.
Formulas speak of one bandwidth for each chip and no latency (`bw`), the convention of the literature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr, Symbol

from ..cost.derive import regimes
from ..cost.hardware import Convention
from ..cost.symbolic import Form, SymbolicEstimate, symbolic
from ..ir.diagnostics import did_you_mean, fail
from .driver import Compiled


@dataclass(frozen=True)
class Line:
    """A formula, what it comes to here, and the plan's figure; seconds. `times`: how often it is paid."""

    what: str
    times: int
    formula: Expr
    value_s: float
    plan_s: float


@dataclass(frozen=True)
class Explanation:
    """The formulas of a phase. `collectives` are single ones, each paid `times`; `totals` are of the whole run.

    `network`: what the plan's own figures go by, which are those of the formulas where it is flat.
    """

    name: str
    phase: str
    network: Convention
    estimate: SymbolicEstimate
    collectives: tuple[Line, ...]
    totals: tuple[Line, ...]


@dataclass(frozen=True)
class Turn:
    """From `start` on, a number of what grows, the layouts called `name` send the least."""

    start: float
    name: str


@dataclass(frozen=True)
class Comparison:
    """Rival layouts: the communication of each, over the whole run, and the regimes as a dim, `over`, grows."""

    layouts: tuple[Line, ...]
    over: str | None
    turns: tuple[Turn, ...]


def explain(compiled: Compiled, form: Form, drop_ones: bool = False) -> Explanation:
    """The formulas of a compiled phase, with their values at its sizes; `drop_ones`: without dims of size 1."""
    found = symbolic(compiled.spmd, compiled.hardware, form, numbers=_ones(compiled) if drop_ones else ())
    paid = {cost.result: cost.seconds for cost in compiled.estimate.moves}
    collectives = tuple(
        Line(
            f"{', '.join(move.results)}: {move.kind}({' '.join(move.axes)})",
            move.times,
            move.seconds,
            found.value(move.seconds),
            sum(paid[result] for result in move.results),
        )
        for move in found.moves
        if move.bytes_sent != 0
    )
    totals = compiled.estimate.totals()
    parts = (
        ("communication", found.comm_s, totals.comm_s),
        ("compute", found.compute_s, totals.compute_s),
        ("memory", found.memory_s, totals.memory_s),
    )
    return Explanation(
        compiled.spmd.name,
        compiled.phase,
        compiled.hardware.convention,
        found,
        collectives,
        tuple(Line(name, 1, formula, found.value(formula), plan_s) for name, formula, plan_s in parts),
    )


def compare(rivals: Mapping[str, Compiled], form: Form, over: str | None, drop_ones: bool = False) -> Comparison:
    """Plans of one phase on one mesh under different pins, by their communication.

    Their layouts are kept while the dim `over` grows from 0, whether or not they divide it. Raises
    InputError when `over` is no dim of the program.
    """
    found = {
        name: symbolic(one.spmd, one.hardware, form, numbers=_ones(one) - {over} if drop_ones else ())
        for name, one in rivals.items()
    }
    layouts = tuple(
        Line(name, 1, one.comm_s, one.value(one.comm_s), rivals[name].estimate.totals().comm_s)
        for name, one in found.items()
    )
    if over is None:
        return Comparison(layouts, None, ())
    costs = {name: _only(one, over) for name, one in found.items()}
    turns = regimes(costs, _symbol(next(iter(found.values())), over))
    return Comparison(layouts, over, tuple(Turn(float(turn.start), turn.name) for turn in turns))


def _ones(compiled: Compiled) -> set[str]:
    return {dim for dim, size in compiled.spmd.sizes if size == 1}


def _symbol(estimate: SymbolicEstimate, over: str) -> Symbol:
    dims = estimate.symbols.dims
    if over not in dims:
        hint = did_you_mean(over, dims) or f"its dims are {', '.join(dims)}"
        raise fail(f"The program has no dim `{over[:60]}` that could grow.", hint=hint)
    symbol = dims[over]
    assert isinstance(symbol, Symbol)
    return symbol


def _only(estimate: SymbolicEstimate, over: str) -> Expr:
    """The communication with all symbols but one at their sizes."""
    kept = _symbol(estimate, over)
    sizes = {symbol: size for symbol, size in estimate.sizes.items() if symbol != kept}
    return sympy.sympify(estimate.comm_s).xreplace(sizes)
