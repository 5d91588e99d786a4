"""A compiled phase explained: the formulas of its cost, and what they come to beside the plan's figures.

Formulas speak of the network as the plan's own figures do: of one bandwidth for each chip and no
latency (`bw`), the convention of the literature, or of a rate for each axis (`W`) and latencies.
"""

from __future__ import annotations

from collections.abc import Collection

from sympy import Expr, Symbol

from ...cost.blocks import Block, blocks_of
from ...cost.formulas.symbolic import Bandwidth, Form, SymbolicEstimate, symbolic
from ...cost.hardware import Convention
from ...ir.record import record
from ..plan.compiled import CompiledPhase


@record
class Line:
    """A formula, what it comes to here, and the plan's figure; seconds. `times`: how often it is paid."""

    what: str
    times: int
    formula: Expr
    value_s: float
    plan_s: float


@record
class Explanation:
    """The formulas of a phase. `collectives` are single ones, each paid `times`; `totals` are of the whole run.

    `network`: what the formulas and the plan's figures go by. `blocks`: the attentions that have their scores in
    blocks, whose kernels are priced as if these stayed on the chip.
    """

    name: str
    phase: str
    network: Convention
    estimate: SymbolicEstimate
    collectives: tuple[Line, ...]
    totals: tuple[Line, ...]
    blocks: tuple[Block, ...]


def explain_phase(compiled: CompiledPhase, form: Form, drop_ones: bool = False) -> Explanation:
    """The formulas of a compiled phase, with their values at its sizes; `drop_ones`: without dims of size 1."""
    found = formulas(compiled, form, ones(compiled) if drop_ones else ())
    paid = {cost.result: cost.seconds for cost in compiled.estimate.moves}
    collectives = tuple(
        Line(
            f"{'+ ' * move.joined}{', '.join(move.results)}: {move.kind}({' '.join(move.axes)})",
            move.times,
            move.seconds,
            found.value(move.seconds),
            sum(paid[result] for result in move.results),
        )
        for move in found.moves
        if move.bytes_sent != 0
    )
    totals = compiled.estimate.totals()
    parts: tuple[tuple[str, Expr, float], ...] = (
        ("communication", found.comm_s, totals.comm_s),
        ("compute", found.compute_s, totals.compute_s),
        ("memory", found.memory_s, totals.memory_s),
    )
    for fetch in found.fetches:
        comes, all_of_it = fetch.cost.fetch.seconds, fetch.cost.seconds
        parts += (
            (f"{fetch.cost.repeat}: one comes from the host", fetch.incoming_s, comes),
            (f"{fetch.cost.repeat}: all, with waiting", fetch.seconds, all_of_it),
        )
    return Explanation(
        compiled.spmd.name,
        compiled.phase,
        compiled.hardware.convention,
        found,
        collectives,
        tuple(Line(name, 1, formula, found.value(formula), plan_s) for name, formula, plan_s in parts),
        blocks_of(compiled.spmd),
    )


def formulas(compiled: CompiledPhase, form: Form, numbers: Collection[str] = ()) -> SymbolicEstimate:
    """The formulas in the convention of the compiled hardware; dims in `numbers` stand as their sizes."""
    bandwidth = Bandwidth.LINKS if compiled.hardware.convention is Convention.LINKS else Bandwidth.CHIP
    return symbolic(compiled.spmd, compiled.hardware, form, bandwidth, numbers, compiled.estimate.fetches)


def ones(compiled: CompiledPhase) -> set[str]:
    """The dims of size 1."""
    return {dim for dim, size in compiled.spmd.sizes if size == 1}


def rates_of(estimate: SymbolicEstimate) -> dict[Symbol, str]:
    """What is given by the hardware, or taken from the plan, with its units."""
    symbols = estimate.symbols
    latencies = [symbol for symbol in (symbols.start, symbols.hop) if symbol is not None]
    rates = dict.fromkeys(symbols.rates.values(), "bytes/s") | dict.fromkeys(latencies, "s")
    rates |= {symbols.peak: "flop/s", symbols.hbm: "bytes/s"}
    rates |= dict.fromkeys(symbols.peaks.values(), "flop/s")
    rates |= {} if symbols.caches is None else {symbols.caches: "bytes/s"}
    taken = [symbol for fetch in estimate.fetches for symbol in (fetch.step, fetch.fetch)]
    sizes = [*symbols.dims.values(), *symbols.axes.values(), *symbols.means.values()]
    beyond = {*estimate.sizes} - {*rates, *taken, *sizes}
    rates |= {symbol: "bytes/s" for symbol in estimate.sizes if symbol in beyond}  # of the host
    return rates | dict.fromkeys(taken, "s")
