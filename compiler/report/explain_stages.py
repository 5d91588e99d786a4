"""A pipeline explained: what all calls of its phases take, as formulas of its stages' times; then each stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import sympy
from sympy import Expr, Symbol

from ...cost.formulas.symbolic import Form
from ...ir.diagnostics import Diagnostic
from ...ir.record import record
from ..plan.staged import Staged
from ..text.terminal import table, time_text
from .explain_text import Explained, as_json, as_text, explained_phase, plain


@record
class PhaseFormula:
    """All calls of a phase: a formula of `sizes`, and the plan's figure. Where all stages take the same, `even` is what
    it comes to, of the time of one."""

    phase: str
    formula: Expr
    even: Expr
    sizes: dict[Symbol, float]
    plan_s: float

    @property
    def value_s(self) -> float:
        """What the formula comes to."""
        return float(self.formula.subs(self.sizes))


@record
class ExplainedPipeline:
    """What is shown of a pipeline, and printed: the formulas of all calls of its `phases`; and of its `stages` each
    phase, in seconds of one micro-batch. `warnings`: what a user should know of the plan, and may well want."""

    name: str
    phases: tuple[PhaseFormula, ...]
    stages: tuple[tuple[Explained, ...], ...]
    warnings: tuple[Diagnostic, ...] = ()

    def __str__(self) -> str:
        return pipeline_text(self)


def explain_pipeline(staged: Staged, form: Form, drop_ones: bool = False) -> ExplainedPipeline:
    """The formulas of a compiled pipeline and of its stages; `form` and `drop_ones` as `explain_phase` has them."""
    stages = (tuple(explained_phase(one, form, drop_ones) for one in stage) for stage in staged.stages)
    return ExplainedPipeline(staged.program.name, phase_formulas(staged), tuple(stages))


def phase_formulas(staged: Staged) -> tuple[PhaseFormula, ...]:
    """The formulas of a pipeline's phases, by `cost.stages`."""
    together, slowest, m, n, stages = (Symbol(name, positive=True) for name in ("T", "t", "m", "n", "P"))
    found = []
    for phase, rounds in staged.plan.rounds:
        symbolic = replace(rounds, calls=n if rounds.calls > 1 else 1, micro_batches=m)
        formula = sympy.sympify(symbolic.seconds(together, slowest, sympy.Max))
        even = sympy.simplify(sympy.sympify(symbolic.seconds(stages * slowest, slowest, _even)))
        seconds = staged.stages_s(phase)
        sizes = {together: sum(seconds), slowest: max(seconds), m: rounds.micro_batches, n: rounds.calls}
        sizes[stages] = len(seconds)
        found.append(PhaseFormula(phase, formula, even, sizes, staged.phase_s(phase)))
    return tuple(found)


def _even(first: Expr, second: Expr) -> Expr:
    """The larger of two times that are as many times that of a stage."""
    slowest = Symbol("t", positive=True)
    return sympy.Max(sympy.cancel(first / slowest), sympy.cancel(second / slowest)) * slowest


def pipeline_text(explained: ExplainedPipeline) -> str:
    """The formulas in plain text, ending in a newline."""
    parts = ["\n".join(_lines(explained)) + "\n"]
    return "\n".join([*parts, *(as_text(one) for stage in explained.stages for one in stage)])


def pipeline_json(explained: ExplainedPipeline) -> str:
    """The same as data."""
    phases = [
        {
            "phase": one.phase,
            "formula": sympy.sstr(one.formula),
            "even_stages": sympy.sstr(one.even),
            "sizes": {str(symbol): value for symbol, value in one.sizes.items()},
            "value_s": one.value_s,
            "plan_s": one.plan_s,
        }
        for one in explained.phases
    ]
    stages = json.loads(as_json([one for stage in explained.stages for one in stage]))
    return json.dumps({"pipeline": phases} | stages, indent=2) + "\n"


def _lines(explained: ExplainedPipeline) -> Iterator[str]:
    yield f"Formulas of the pipeline of {json.dumps(explained.name)}, in seconds"
    yield "  T  what a micro-batch takes in all stages, with handing on and waiting for the host"
    yield "  t  in the slowest of them"
    yield "  P  stages; m micro-batches; n calls"
    yield ""
    rows: list[tuple[str, ...]] = [("", "all calls", "of even stages", "m", "n", "T", "t", "here", "plan")]
    for one in explained.phases:
        worth = {str(symbol): value for symbol, value in one.sizes.items()}
        times = time_text(worth["T"]), time_text(worth["t"])
        figures = f"{worth['m']}", f"{worth['n']}", *times, time_text(one.value_s, 6), time_text(one.plan_s, 6)
        rows.append((one.phase, plain(one.formula), plain(one.even), *figures))
    yield from table(rows, left=3)
