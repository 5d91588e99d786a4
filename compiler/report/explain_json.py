"""An explanation as JSON. Times are seconds, sizes bytes; formulas are in the syntax of SymPy and Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import sympy

from ...cost.simulate.trace import Trace
from .compare import Comparison, Finding
from .explain import Line
from .explain_text import Explained, sentence

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
        "agree": trace.agrees,
    }


def _comparison(rivals: Comparison) -> Data:
    out: Data = {"against": [_line(line) for line in rivals.layouts]}
    if rivals.over is not None:
        turns = [{"from": turn.start, "cheapest": turn.name} for turn in rivals.turns]
        findings = [_finding(finding, rivals.over) for finding in rivals.findings]
        out["regimes"] = {"over": rivals.over, "turns": turns, "search": findings}
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
