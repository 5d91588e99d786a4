"""Plans explained: their formulas, as text or LaTeX. Formulas are in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import sympy
from sympy import Expr

from ...cost.formulas.symbolic import Form
from ...cost.hardware import Convention
from ...cost.simulate.trace import MOST_CHIPS, Trace, traces
from ...ir.diagnostics import Diagnostic
from ...ir.record import record
from ..plan.compiled import CompiledPhase
from ..text.terminal import table
from .compare import Comparison, Finding, Sending, Weight
from .explain import Explanation, Line, explain_phase, rates_of
from .text import block_text

FORMS = {
    Form.EXACT: "exact: with the factor (K-1)/K of a collective over K chips",
    Form.LARGE: "K >> 1: a collective over K chips without its factor (K-1)/K",
}


NO_LINKS = "Nothing is traced: `--network flat` gives a chip one bandwidth and no links; add `--network links`."


@record
class Explained:
    """What is shown of one phase. `traces`: its collectives as simulated, None where that was not asked
    for or is impossible; `note`: why it is. `warnings`: what a user should know of the plan, and may well want."""

    explanation: Explanation
    comparison: Comparison | None = None
    traces: tuple[Trace, ...] | None = None
    note: str | None = None
    warnings: tuple[Diagnostic, ...] = ()

    def __str__(self) -> str:
        return as_text(self)


def explained_phase(
    compiled: CompiledPhase, form: Form, drop_ones: bool = False, trace: bool = False, rivals: Comparison | None = None
) -> Explained:
    """A compiled phase explained, beside its rivals; with `trace` its collectives are moved over links, where the
    network is seen so."""
    linked = compiled.hardware.convention is Convention.LINKS
    found = traces(compiled.spmd, compiled.hardware) if trace and linked else None
    note = NO_LINKS if trace and not linked else None
    return Explained(explain_phase(compiled, form, drop_ones), rivals, found, note, compiled.warnings)


def as_text(explained: Explained) -> str:
    """The formulas in plain text, ending in a newline."""
    one = explained.explanation
    parts = [_header(one)]
    if one.collectives:
        parts.append(formula_table("Collectives, each once", one.collectives, times=True))
    parts.append(formula_table("Whole program", one.totals))
    if one.blocks:
        parts.append(iter(["Attention", *(f"  {block_text(block)}" for block in one.blocks)]))
    if explained.traces:
        parts.append(_traces(explained.traces))
    if explained.note is not None:
        parts.append(iter([explained.note]))
    if explained.comparison is not None:
        parts.append(formula_table("Communication of the layouts", explained.comparison.layouts))
        parts += _regimes(explained.comparison)
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _header(one: Explanation) -> Iterator[str]:
    estimate = one.estimate
    rates = rates_of(estimate)
    sizes = " ".join(f"{symbol}={value}" for symbol, value in estimate.sizes.items() if symbol not in rates)
    yield f"Formulas of {json.dumps(one.name)}, phase {one.phase}, in seconds"
    yield f"  form   {FORMS[estimate.form]}"
    yield f"  sizes  {sizes}"
    yield "  rates  " + ", ".join(f"{s}={float(estimate.sizes[s]):.6g} {unit}" for s, unit in rates.items())


def formula_table(title: str, lines: Sequence[Line], times: bool = False) -> Iterator[str]:
    """A table under a title: what each formula is of, the formula, its value and the plan's, in seconds; with `times`
    how often it counts."""
    yield title
    rows = [("", "formula", "here", "plan", *(["times"] if times else []))]
    for line in lines:
        figures = (plain(line.formula), _time(line.value_s), _time(line.plan_s))
        rows.append((line.what, *figures, *([str(line.times)] if times else [])))
    yield from table(rows, left=2)


def _traces(traces: Sequence[Trace]) -> Iterator[str]:
    yield "Simulated on the links, each once"
    rows = [("", "MB on the busiest link", "hops", "simulated", "formula", "")]
    for trace in traces:
        what = f"{', '.join(trace.results)}: {trace.kind}({' '.join(trace.axes)})"
        run = trace.run
        size, hops, seconds = "-", "-", "-"
        if run is not None:
            size, hops, seconds = f"{float(run.busiest_bytes) / 1e6:.6g}", str(run.hops), _time(run.seconds)
        rows.append((what, size, hops, seconds, _time(trace.formula_s), _verdict(trace)))
    yield from table(rows, left=2)


def _verdict(trace: Trace) -> str:
    if trace.run is None:
        return f"not simulated: {trace.chips:,} chips" + (f", over {MOST_CHIPS}" if trace.chips > MOST_CHIPS else "")
    match trace.agrees:
        case None if trace.measured:
            return "formula is measured"
        case None:
            return "formula is a bound"
        case True:
            return "agree"
        case False:
            return "DIFFER"


def _regimes(comparison: Comparison) -> Iterator[Iterator[str]]:
    if comparison.over is not None:
        rows = [(f"from {comparison.over} =", "least communication")]
        rows += [(f"{turn.start:,.10g}", turn.name) for turn in comparison.turns]
        at = f"{comparison.over} = {comparison.planned_at:,}"
        yield iter([f"As {comparison.over} grows, each in the layouts that are planned at {at}", *table(rows, left=2)])
    if comparison.findings:
        over = comparison.over or ""
        sentences = [f"  {sentence(finding, over)}" for finding in comparison.findings]
        yield iter(["What a search for the least communication finds", *sentences])


def sentence(finding: Finding, over: str) -> str:
    """What a search found where the dim `over` has a size, in one sentence."""
    kept = "nothing pinned" if finding.stored_as is None else f"all that is stored as in {finding.stored_as}"
    start = f"At {over} = {finding.at:,}, {kept}: "
    if finding.found is None:
        return f"{start}no plan. {finding.reason}"
    less = f"{finding.gain:.1%} less than"
    judged = less if finding.gain > 0 else "as much as" if finding.gain == 0 else "more than"
    weights = ", ".join(map(_weight, finding.weights))
    read = f"; weights are read as {weights}" if weights else ""
    stored = f"; {finding.stored_bytes / 1e9:,.3f} GB stored on a chip" if finding.stored_bytes else ""
    return f"{start}{_sent(finding.found)}, {judged} {finding.rival}'s {_sent(finding.named)}{read}{stored}."


def _sent(sending: Sending) -> str:
    return f"{sending.bytes_sent / 1e6:,.2f} MB in {_time(sending.seconds)}" if sending.bytes_sent else "nothing sent"


def _weight(weight: Weight) -> str:
    return f"{weight.name} {weight.used}" + (f" (stored {weight.stored})" if weight.stored != weight.used else "")


DIGITS = 6  # shown of a measured figure in a formula


def plain(formula: Expr) -> str:
    """A formula as text, with spaces between factors and `^` for powers."""
    short = {number: sympy.Float(number, DIGITS) for number in formula.atoms(sympy.Float)}
    return str(sympy.sstr(formula.xreplace(short))).replace("**", "^").replace("*", " ")


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.6g} us"


def as_latex(explained: Explained) -> str:
    """The formulas as `align*` environments, for a document with amsmath."""
    one = explained.explanation
    lines = [*one.collectives, *one.totals, *(explained.comparison.layouts if explained.comparison else ())]
    upright = {s: rf"\mathrm{{{_escaped(s.name)}}}" for s in one.estimate.sizes if len(s.name) > 1}
    rows = [
        rf"  T_{{\text{{{_escaped(line.what)}}}}} &= {sympy.latex(line.formula, symbol_names=upright)}"
        for line in lines
    ]
    body = " \\\\\n".join(rows)
    return f"% {one.name}, phase {one.phase}, {FORMS[one.estimate.form]}\n\\begin{{align*}}\n{body}\n\\end{{align*}}\n"


def _escaped(text: str) -> str:
    return "".join("\\" + c if c in "_&%$#{}" else c for c in text)


Data = dict[str, object]


def as_json(found: Sequence[Explained]) -> str:
    """All phases as one JSON object, ending in a newline."""
    return json.dumps({"phases": [_phase(one) for one in found]}, indent=2, allow_nan=False) + "\n"


def _phase(explained: Explained) -> Data:
    one = explained.explanation
    out: Data = {
        "name": one.name,
        "phase": one.phase,
        "network": one.network.value,
        "form": one.estimate.form.value,
        "sizes": {str(symbol): float(value) for symbol, value in one.estimate.sizes.items()},
        "collectives": [_line(line) for line in one.collectives],
        "totals": [_line(line) for line in one.totals],
    }
    if explained.traces is not None:
        out["trace"] = [_trace(trace) for trace in explained.traces]
    if explained.note is not None:
        out["trace_note"] = explained.note
    return out | (_comparison(explained.comparison) if explained.comparison else {})


def _line(line: Line) -> Data:
    return {
        "what": line.what,
        "times": line.times,
        "formula": sympy.sstr(line.formula),
        "value_s": line.value_s,
        "plan_s": line.plan_s,
    }


def _trace(trace: Trace) -> Data:
    run = trace.run
    return {
        "results": list(trace.results),
        "kind": trace.kind,
        "axes": list(trace.axes),
        "chips": trace.chips,
        "busiest_link_bytes": None if run is None else float(run.busiest_bytes),
        "hops": None if run is None else run.hops,
        "simulated_s": None if run is None else run.seconds,
        "formula_s": trace.formula_s,
        "formula_is_exact": trace.exact,
        "formula_is_measured": trace.measured,
        "agree": trace.agrees,
    }


def _comparison(rivals: Comparison) -> Data:
    out: Data = {"against": [_line(line) for line in rivals.layouts]}
    if rivals.over is not None:
        turns = [{"from": turn.start, "cheapest": turn.name} for turn in rivals.turns]
        findings = [_finding(finding, rivals.over) for finding in rivals.findings]
        out["regimes"] = {"over": rivals.over, "planned_at": rivals.planned_at, "turns": turns, "search": findings}
    return out


def _finding(finding: Finding, over: str) -> Data:
    found = finding.found
    return {
        "at": finding.at,
        "stored_as": finding.stored_as,
        "best_named": {"name": finding.rival, **asdict(finding.named)},
        "found": None if found is None else asdict(found),
        "gain": None if found is None else finding.gain,
        "weights": [asdict(weight) for weight in finding.weights],
        "stored_bytes": finding.stored_bytes,
        "reason": finding.reason,
        "sentence": sentence(finding, over),
    }
