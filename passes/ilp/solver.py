"""The one place that knows OR-Tools: an integer program in, an answer and a proven bound out."""

from __future__ import annotations

import datetime
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from ortools.math_opt import (
    callback_pb2,
    model_parameters_pb2,
    model_pb2,
    model_update_pb2,
    parameters_pb2,
    result_pb2,
    solution_pb2,
    sparse_containers_pb2,
)
from ortools.math_opt.core.python import solver as core
from pybind11_abseil.status import StatusNotOk

from ...ir.record import record
from ..layouts.space import Array
from .model import Model, continuous, inner, shifted
from .wire import fill

Floats = NDArray[np.float64]

SOLVERS = {
    "highs": parameters_pb2.SOLVER_TYPE_HIGHS,
    "gscip": parameters_pb2.SOLVER_TYPE_GSCIP,
    "cp-sat": parameters_pb2.SOLVER_TYPE_CP_SAT,
}
AGAIN = parameters_pb2.SOLVER_TYPE_GLOP  # what goes on from where it ended
FEASIBLE = solution_pb2.SOLUTION_STATUS_FEASIBLE
MANY_COLUMNS = 20_000  # of a program whose linear ones take seconds
# What HiGHS does to find solutions beside branching: where linear programs take seconds it would get to nothing else.
SMALLER_PROGRAMS = (
    "mip_heuristic_run_feasibility_jump",
    "mip_heuristic_run_rins",
    "mip_heuristic_run_rens",
    "mip_allow_restart",
)
ROUNDED = 1e-7  # of a bound, what tolerances of a solver may come to
SECONDS_A_NODE = 0.01  # of the time that CP-SAT counts, which is that of no clock


@record(eq=False)
class Answer:
    """What the solver found: `x`, None when there is none; the proven bound of the objective; for a
    linear program the reduced costs, and what each row is worth if that was asked for; all in the model's unit.
    `seconds`: the time it took. `none`: that the model has no solution, or none that is of interest, is proven."""

    x: Floats | None
    bound: float
    reduced_costs: Floats | None
    seconds: float
    none: bool = False
    row_worths: Floats | None = None


@record
class Settings:
    """How to solve: the solver by name, the relative gap that counts as proven, a time limit for
    each call; whether a model is reduced before it is solved. `effort`: how much is looked at where memory binds and a
    plan is known, of what there is for one search alone."""

    solver: str = "highs"
    gap: float = 1e-9
    time_limit_s: float = 120.0
    presolve: bool = True
    effort: float = 1.0


def solve(
    model: Model,
    settings: Settings,
    nodes: int | None = None,
    rows: Floats | None = None,
    worths: bool = False,
    first: Array | None = None,
    ranks: Array | None = None,
    second: bool = False,
    most: float = np.inf,
) -> Answer:
    """Solve a model, as a linear program if it has no integers; search at most so many `nodes`. `rows`: what each row
    of a linear program may be worth; from near the true worths it is solved in a fraction of the time. `worths`:
    whether it is asked for what each row of a linear program is worth. `first`: columns that are branched on before all
    others, which SCIP knows how to do, those of high `ranks` sooner, and with them settled hardly anything is left
    open; HiGHS is kept from looking for solutions in smaller programs then, and where there are many columns. `second`:
    whether another solver has said what is asked again. `most`: HiGHS need not solve a linear program that is shown to
    cost more.

    One thread and a fixed seed: the same model gives the same answer. Columns bounded by 0 are not
    shown to the solver. Raises KeyError for a solver that is not in SOLVERS.
    """
    started = time.perf_counter()
    if rows is not None and not model.integer.any():
        near, worth = shifted(model, rows)
        answer = solve(near, replace(settings, presolve=False), worths=worths, most=most - worth)
        if answer.x is None and not answer.none and most == np.inf:  # it gave up; from the start it may get further
            again = solve(model, settings, worths=worths)
            return replace(again, seconds=time.perf_counter() - started)
        columns = slice(len(model.cost))
        return replace(
            answer,
            x=None if answer.x is None else answer.x[columns],
            bound=answer.bound + worth,
            reduced_costs=None if answer.reduced_costs is None else answer.reduced_costs[columns],
            row_worths=None if answer.row_worths is None else answer.row_worths + rows,
            seconds=time.perf_counter() - started,
        )
    live = np.flatnonzero(model.upper > 0)
    proto = _proto(model, live, np.arange(len(model.low)))
    wanted = _wanted(worths)
    if first is not None:
        some = model.upper[first] > 0
        each = np.zeros(len(first), dtype=np.int64) if ranks is None else ranks
        fill(wanted.branching_priorities, ids=np.searchsorted(live, first[some]), values=1 + each[some])
    whole = bool(model.integer.all())
    parameters = _parameters(settings, nodes, whole)
    if settings.solver == "highs" and most < np.inf:
        parameters.highs.double_options["objective_bound"] = most
    if settings.solver == "highs" and (first is not None or len(live) > MANY_COLUMNS):
        for option in SMALLER_PROGRAMS:
            parameters.highs.bool_options[option] = False
    elif first is not None:  # branching alone: with these settled hardly anything is left to reduce, cut off or guess
        parameters.presolve = parameters_pb2.EMPHASIS_LOW
        parameters.cuts = parameters.heuristics = parameters_pb2.EMPHASIS_OFF
    result = _ask(proto, settings, parameters, wanted)
    infeasible = result is not None and result.termination.reason == result_pb2.TERMINATION_REASON_INFEASIBLE
    if settings.solver != "cp-sat" and (result is None or (infeasible and settings.presolve and not second)):
        # All presolve is that by which models with known solutions have been reduced to nothing.
        result = _ask(proto, settings, _parameters(replace(settings, presolve=False), nodes, whole), wanted)
    if result is None:
        return Answer(None, -np.inf, None, time.perf_counter() - started)
    if result.termination.reason == result_pb2.TERMINATION_REASON_INFEASIBLE:
        return Answer(None, -np.inf, None, time.perf_counter() - started, none=True)
    x, reduced_costs, row_worths = None, None, None
    best = result.solutions[0] if result.solutions else solution_pb2.SolutionProto()
    if best.primal_solution.feasibility_status == FEASIBLE:
        x = _spread(best.primal_solution.variable_values, live, len(model.cost))
    if not model.integer.any() and best.dual_solution.feasibility_status == FEASIBLE:
        reduced_costs = _spread(best.dual_solution.reduced_costs, live, len(model.cost))
        if worths:
            row_worths = _spread(best.dual_solution.dual_values, np.arange(len(model.low)), len(model.low))
    cut_short = result.termination.reason == result_pb2.TERMINATION_REASON_NO_SOLUTION_FOUND
    bound = result.termination.objective_bounds.dual_bound if x is not None or cut_short else -np.inf
    return Answer(x, bound, reduced_costs, time.perf_counter() - started, row_worths=row_worths)


class Relaxation:
    """The linear program of a model, solved again and again, each time with other columns bounded by 0, from where the
    last time ended: a dual simplex has few steps to go then. `rows`: what its rows may be worth; there it begins.

    What an answer says is shown by its rows' worths in arithmetic of our own, or by another solver."""

    def __init__(self, model: Model, settings: Settings, rows: Floats):
        self._model, self._settings, self._rows = continuous(model), settings, rows
        near, self._worth = shifted(self._model, rows)
        self._live, self._binding = np.flatnonzero(near.upper > 0), _binding(near)
        self._own = self._live[self._live < len(model.cost)]
        self._upper = near.upper[self._own]
        proto = _proto(near, self._live, self._binding)
        self._solver = core.new(AGAIN, proto, parameters_pb2.SolverInitializerProto())
        self.steps = 0

    def solve(self, upper: Floats, most: float = np.inf) -> Answer:
        """The answer with these upper bounds of columns, none of which is above that of the model; it has no solution
        where that costs more than `most`."""
        started = time.perf_counter()
        self._bound(upper)
        said = self._ask(most)
        self.steps = said.solve_stats.simplex_iterations
        answer = self._answer(said)
        if not self._is_shown(answer, upper, most):
            answer = solve(replace(self._model, upper=upper), self._settings, worths=True, second=answer.none)
        none = answer.none or (answer.x is None and answer.bound >= most)
        return replace(answer, none=none, seconds=time.perf_counter() - started)

    def _bound(self, upper: Floats) -> None:
        """Tell the solver of upper bounds that are others than the last ones."""
        now = upper[self._own]
        other = np.flatnonzero(now != self._upper)
        self._upper = now
        update = model_update_pb2.ModelUpdateProto()
        fill(update.variable_updates.upper_bounds, ids=other, values=now[other])
        self._solver.update(update)

    def _ask(self, most: float) -> result_pb2.SolveResultProto:
        parameters = parameters_pb2.SolveParametersProto(threads=1)
        parameters.presolve = parameters_pb2.EMPHASIS_OFF
        parameters.lp_algorithm = parameters_pb2.LP_ALGORITHM_DUAL_SIMPLEX
        parameters.time_limit.FromTimedelta(datetime.timedelta(seconds=self._settings.time_limit_s))
        if most < np.inf:
            parameters.best_bound_limit = most - self._worth
        none = callback_pb2.CallbackRegistrationProto()
        return self._solver.solve(parameters, _wanted(True), None, none, None, None)

    def _answer(self, result: result_pb2.SolveResultProto) -> Answer:
        """What the solver has said, of the model as it was handed in."""
        if result.termination.reason == result_pb2.TERMINATION_REASON_INFEASIBLE:
            return Answer(None, -np.inf, None, 0.0, none=True)
        bound = result.termination.objective_bounds.dual_bound + self._worth
        if not result.solutions or not result.solutions[0].HasField("dual_solution"):
            return Answer(None, -np.inf, None, 0.0)
        best, count = result.solutions[0], len(self._model.cost) + len(self._live)
        worths = _spread(best.dual_solution.dual_values, self._binding, len(self._rows)) + self._rows
        if result.termination.reason != result_pb2.TERMINATION_REASON_OPTIMAL:
            return Answer(None, bound, None, 0.0, row_worths=worths)
        x = _spread(best.primal_solution.variable_values, self._live, count)
        reduced_costs = _spread(best.dual_solution.reduced_costs, self._live, count)
        columns = slice(len(self._model.cost))
        return Answer(x[columns], bound, reduced_costs[columns], 0.0, row_worths=worths)

    def _is_shown(self, answer: Answer, upper: Floats, most: float) -> bool:
        """Whether the worths of rows show the bound that an answer has: any are a bound, what rows ask for at these
        prices and what columns cost beside them at the least."""
        if answer.row_worths is None:
            return False
        model = self._model
        end = np.where(answer.row_worths > 0, model.low, model.high)
        worth = np.where(np.isfinite(end), answer.row_worths, 0.0)  # worths of rows without end are 0 but for rounding
        left = model.cost - np.bincount(model.column, model.coefficient * worth[model.row], len(model.cost))
        bound = inner(worth, np.where(worth != 0, end, 0.0)) + inner(np.minimum(0.0, left), upper)
        return bound >= min(answer.bound, most) - ROUNDED * abs(answer.bound)


def _binding(model: Model) -> Array:
    """The rows that say something of the columns that are not bounded by 0."""
    some = (model.upper[model.column] > 0) & (model.coefficient != 0)
    more, less = np.zeros(len(model.low), dtype=bool), np.zeros(len(model.low), dtype=bool)
    more[model.row[some & (model.coefficient > 0)]] = True
    less[model.row[some & (model.coefficient < 0)]] = True
    asks = (model.low > 0) | (model.high < 0)
    return np.flatnonzero(asks | (more & (model.high < np.inf)) | (less & (model.low > -np.inf)))


def _spread(found: sparse_containers_pb2.SparseDoubleVectorProto, live: Array, columns: int) -> Floats:
    """What was found for the columns that the solver saw, where it is not 0, as an array of all columns."""
    out = np.zeros(columns)
    out[live[np.array(found.ids, dtype=np.int64)]] = found.values
    return out


def _ask(
    proto: model_pb2.ModelProto,
    settings: Settings,
    parameters: parameters_pb2.SolveParametersProto,
    wanted: model_parameters_pb2.ModelSolveParametersProto,
) -> result_pb2.SolveResultProto | None:
    """What the solver says; None where it gave up.

    MathOpt's call under its Python classes: these take a tenth of a second to import, and make an object of every
    column's basis status, which takes as long as a solve."""
    try:
        return core.solve(
            proto,
            SOLVERS[settings.solver],
            parameters_pb2.SolverInitializerProto(),
            parameters,
            wanted,
            None,
            callback_pb2.CallbackRegistrationProto(),
            None,
            None,
        )
    except StatusNotOk:
        return None


def _wanted(worths: bool) -> model_parameters_pb2.ModelSolveParametersProto:
    """What an answer is to hold: most of the time that it takes to read goes to what is 0, or never looked at.
    `worths`: what rows are worth is looked at."""
    wanted = model_parameters_pb2.ModelSolveParametersProto()
    wanted.variable_values_filter.skip_zero_values = True
    wanted.reduced_costs_filter.skip_zero_values = True
    wanted.dual_values_filter.skip_zero_values = True
    wanted.dual_values_filter.filter_by_ids = not worths
    return wanted


def _parameters(settings: Settings, nodes: int | None, whole: bool) -> parameters_pb2.SolveParametersProto:
    """How to solve. `whole`: whether all columns are whole numbers.

    Of CP-SAT's presolve two steps are left out that have had a part in it where a model with known solutions was said
    to have none: one of sets of columns of which at most one is 1, and where columns are not all whole numbers what is
    done before they are made so. So what it refutes need not be asked again."""
    params = parameters_pb2.SolveParametersProto(
        relative_gap_tolerance=settings.gap, absolute_gap_tolerance=0.0, random_seed=1, node_limit=nodes
    )
    params.time_limit.FromTimedelta(datetime.timedelta(seconds=settings.time_limit_s))
    if not settings.presolve:
        params.presolve = parameters_pb2.EMPHASIS_OFF
    if settings.solver == "highs":
        params.highs.bool_options["mip_root_presolve_only"] = True
        params.highs.bool_options["mip_heuristic_run_root_reduced_cost"] = False  # a third of small programs
    if settings.solver == "cp-sat":  # it counts no nodes
        params.threads = 1
        params.cp_sat.linearization_level, params.cp_sat.cut_level = 2, 0  # sums of bytes are settled by relaxations
        params.cp_sat.merge_at_most_one_work_limit = 0.0
        if not whole:
            params.cp_sat.mip_presolve_level = 0
        params.ClearField("node_limit")
        if nodes is not None:
            params.cp_sat.max_deterministic_time = nodes * SECONDS_A_NODE
    return params


def _proto(model: Model, live: Array, rows: Array) -> model_pb2.ModelProto:
    """The model's `live` columns, and some of its `rows`, as MathOpt's protocol buffer, filled from arrays at once."""
    proto = model_pb2.ModelProto()
    columns, upper, cost = np.arange(len(live)), model.upper[live], model.cost[live]
    fill(
        proto.variables, ids=columns, lower_bounds=np.zeros(len(live)), upper_bounds=upper, integers=model.integer[live]
    )
    nonzero = np.flatnonzero(cost)
    fill(proto.objective.linear_coefficients, ids=nonzero, values=cost[nonzero])
    low, high = model.low[rows], model.high[rows]
    fill(proto.linear_constraints, ids=np.arange(len(rows)), lower_bounds=low, upper_bounds=high)
    column, row = _places(live, len(model.cost))[model.column], _places(rows, len(model.low))[model.row]
    kept = np.flatnonzero((column >= 0) & (row >= 0))
    order = kept[np.argsort(row[kept] * len(live) + column[kept], kind="stable")]
    row, column, coefficient = row[order], column[order], model.coefficient[order]
    # An entry given twice is the sum of the two.
    starts = np.ones(len(row), dtype=bool)
    starts[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
    first = np.flatnonzero(starts)
    coefficient = np.add.reduceat(coefficient, first)
    some = coefficient != 0
    at = first[some]
    fill(proto.linear_constraint_matrix, row_ids=row[at], column_ids=column[at], coefficients=coefficient[some])
    return proto


def _places(kept: Array, count: int) -> Array:
    """The place of each of `count` among those that are kept, -1 where it is not."""
    out = np.full(count, -1)
    out[kept] = np.arange(len(kept))
    return out
