"""An explanation as text, LaTeX or JSON. Formulas are in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from ..cost.hardware import Convention
from ..cost.symbolic import Form
from .explain import Comparison, Explanation, Line
from .text_table import table

FORMS = {
    Form.EXACT: "exact: with the factor (K-1)/K of a collective over K chips",
    Form.LARGE: "K >> 1: a collective over K chips without its factor (K-1)/K",
}


@dataclass(frozen=True)
class Explained:
    """What is shown of one phase."""

    explanation: Explanation
    comparison: Comparison | None


def as_text(explained: Explained) -> str:
    """The formulas in plain text, ending in a newline."""
    one = explained.explanation
    parts = [_header(one)]
    if one.collectives:
        parts.append(_table("Collectives, each once", one.collectives, times=True))
    parts.append(_table("Whole program", one.totals))
    if explained.comparison is not None:
        parts.append(_table("Communication of the layouts", explained.comparison.layouts))
        parts += _regimes(explained.comparison)
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _header(one: Explanation) -> Iterator[str]:
    estimate = one.estimate
    symbols = estimate.symbols
    rates = ((symbols.network, "bytes/s"), (symbols.peak, "flop/s"), (symbols.hbm, "bytes/s"))
    unit = dict(rates)
    sizes = " ".join(f"{symbol}={value}" for symbol, value in estimate.sizes.items() if symbol not in unit)
    yield f"Formulas of {json.dumps(one.name)}, phase {one.phase}, in seconds"
    yield f"  form   {FORMS[estimate.form]}"
    yield f"  sizes  {sizes}"
    yield "  rates  " + ", ".join(f"{s}={float(estimate.sizes[s]):.6g} {name}" for s, name in rates)
    if one.network is not Convention.FLAT:
        yield f"  plan   its figures count the {one.network} of the network; the formulas, one bandwidth for a chip"


def _table(title: str, lines: Sequence[Line], times: bool = False) -> Iterator[str]:
    yield title
    rows = [("", "formula", "here", "plan", *(["times"] if times else []))]
    for line in lines:
        figures = (_plain(line.formula), _time(line.value_s), _time(line.plan_s))
        rows.append((line.what, *figures, *([str(line.times)] if times else [])))
    yield from table(rows, left=2)


def _regimes(comparison: Comparison) -> Iterator[Iterator[str]]:
    if comparison.over is not None:
        rows = [(f"from {comparison.over} =", "least communication")]
        rows += [(f"{turn.start:,.10g}", turn.name) for turn in comparison.turns]
        yield iter([f"As {comparison.over} grows", *table(rows, left=2)])


def _plain(formula: Expr) -> str:
    """A formula as text, with spaces between factors and `^` for powers."""
    return str(sympy.sstr(formula)).replace("**", "^").replace("*", " ")


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


def as_json(found: Sequence[Explained]) -> str:
    """All phases as one JSON object, ending in a newline. Formulas are in the syntax of SymPy and Python."""
    return json.dumps({"phases": [_phase(one) for one in found]}, indent=2) + "\n"


def _phase(explained: Explained) -> dict[str, Any]:
    one, rivals = explained.explanation, explained.comparison
    out: dict[str, Any] = {
        "name": one.name,
        "phase": one.phase,
        "network": one.network.value,
        "form": one.estimate.form.value,
        "sizes": {str(symbol): float(value) for symbol, value in one.estimate.sizes.items()},
        "collectives": [_line(line) for line in one.collectives],
        "totals": [_line(line) for line in one.totals],
    }
    if rivals is not None:
        out["against"] = [_line(line) for line in rivals.layouts]
        if rivals.over is not None:
            turns = [{"from": turn.start, "cheapest": turn.name} for turn in rivals.turns]
            out["regimes"] = {"over": rivals.over, "turns": turns}
    return out


def _line(line: Line) -> dict[str, Any]:
    return {
        "what": line.what,
        "times": line.times,
        "formula": sympy.sstr(line.formula),
        "value_s": line.value_s,
        "plan_s": line.plan_s,
    }
