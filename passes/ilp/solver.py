"""The one place that knows OR-Tools: an integer program in, an answer and a proven bound out."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from ortools.math_opt import (
    callback_pb2,
    model_parameters_pb2,
    model_pb2,
    parameters_pb2,
    result_pb2,
    solution_pb2,
    sparse_containers_pb2,
)
from ortools.math_opt.core.python import solver as core
from pybind11_abseil.status import StatusNotOk

from ..layouts.space import Array
from .model import Model, shifted

Floats = NDArray[np.float64]

SOLVERS = {
    "highs": parameters_pb2.SOLVER_TYPE_HIGHS,
    "gscip": parameters_pb2.SOLVER_TYPE_GSCIP,
    "cp-sat": parameters_pb2.SOLVER_TYPE_CP_SAT,
}
FEASIBLE = solution_pb2.SOLUTION_STATUS_FEASIBLE
MANY_COLUMNS = 20_000  # of a program whose linear ones take seconds
# What HiGHS does to find solutions beside branching: where linear programs take seconds it would get to nothing else.
SMALLER_PROGRAMS = (
    "mip_heuristic_run_feasibility_jump",
    "mip_heuristic_run_rins",
    "mip_heuristic_run_rens",
    "mip_heuristic_run_root_reduced_cost",
    "mip_allow_restart",
)
SECONDS_A_NODE = 0.01  # of the time that CP-SAT counts, which is that of no clock


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True)
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
    most: float | None = None,
) -> Answer:
    """Solve a model, as a linear program if it has no integers; search at most so many `nodes`. `rows`: what each row
    of a linear program may be worth; from near the true worths it is solved in a fraction of the time. `worths`:
    whether it is asked for what each row of a linear program is worth. `first`: columns that are branched on before all
    others, which SCIP knows how to do, those of high `ranks` sooner, and with them settled hardly anything is left
    open; HiGHS is kept from looking for solutions in smaller programs then, and where there are many columns. `most`:
    what a solution that is of interest costs at most.

    One thread and a fixed seed: the same model gives the same answer. Columns bounded by 0 are not
    shown to the solver. Raises KeyError for a solver that is not in SOLVERS.
    """
    started = time.perf_counter()
    if rows is not None and not model.integer.any():
        near, worth = shifted(model, rows)
        answer = solve(near, replace(settings, presolve=False), worths=worths)
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
    proto = _proto(model, live)
    wanted = _wanted(worths)
    if first is not None:
        some = model.upper[first] > 0
        wanted.branching_priorities.ids.extend(np.searchsorted(live, first[some]).tolist())
        each = np.zeros(len(first), dtype=np.int64) if ranks is None else ranks
        wanted.branching_priorities.values.extend((1 + each[some]).tolist())
    parameters = _parameters(settings, nodes)
    if settings.solver == "highs" and (first is not None or len(live) > MANY_COLUMNS):
        for option in SMALLER_PROGRAMS:
            parameters.highs.bool_options[option] = False
    elif first is not None:  # branching alone: with these settled hardly anything is left to reduce, cut off or guess
        parameters.presolve = parameters_pb2.EMPHASIS_LOW
        parameters.cuts = parameters.heuristics = parameters_pb2.EMPHASIS_OFF
    if most is not None:
        parameters.cutoff_limit = most
    result = _ask(proto, settings, parameters, wanted)
    if result is not None and result.termination.limit == result_pb2.LIMIT_CUTOFF:
        return Answer(None, -np.inf, None, time.perf_counter() - started, none=True)
    infeasible = result is not None and result.termination.reason == result_pb2.TERMINATION_REASON_INFEASIBLE
    if result is None or (infeasible and settings.presolve):
        # HiGHS has been seen to reduce a model with a known solution to nothing; without presolve it does not.
        careful = _parameters(settings, nodes)
        careful.presolve = parameters_pb2.EMPHASIS_OFF
        result = _ask(proto, settings, careful, wanted)
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


def _parameters(settings: Settings, nodes: int | None) -> parameters_pb2.SolveParametersProto:
    params = parameters_pb2.SolveParametersProto(
        relative_gap_tolerance=settings.gap, absolute_gap_tolerance=0.0, random_seed=1, node_limit=nodes
    )
    params.time_limit.FromTimedelta(datetime.timedelta(seconds=settings.time_limit_s))
    if not settings.presolve:
        params.presolve = parameters_pb2.EMPHASIS_OFF
    if settings.solver == "highs":
        params.highs.bool_options["mip_root_presolve_only"] = True
    if settings.solver == "cp-sat":  # it counts no nodes
        params.threads = 1
        params.ClearField("node_limit")
        if nodes is not None:
            params.cp_sat.max_deterministic_time = nodes * SECONDS_A_NODE
    return params


def _proto(model: Model, live: Array) -> model_pb2.ModelProto:
    """The model's `live` columns as MathOpt's protocol buffer, filled from arrays at once."""
    proto = model_pb2.ModelProto()
    rows = len(model.low)
    proto.variables.ids.extend(range(len(live)))
    proto.variables.lower_bounds.extend(np.zeros(len(live)))
    proto.variables.upper_bounds.extend(model.upper[live])
    proto.variables.integers.extend(model.integer[live].tolist())
    nonzero = np.flatnonzero(model.cost[live])
    proto.objective.linear_coefficients.ids.extend(nonzero)
    proto.objective.linear_coefficients.values.extend(model.cost[live][nonzero])
    proto.linear_constraints.ids.extend(range(rows))
    proto.linear_constraints.lower_bounds.extend(model.low)
    proto.linear_constraints.upper_bounds.extend(model.high)
    place = np.full(len(model.cost), -1)
    place[live] = np.arange(len(live))
    column = place[model.column]
    kept = np.flatnonzero(column >= 0)
    order = kept[np.lexsort((column[kept], model.row[kept]))]
    row, column, coefficient = model.row[order], column[order], model.coefficient[order]
    # An entry given twice is the sum of the two.
    starts = np.ones(len(row), dtype=bool)
    starts[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
    first = np.flatnonzero(starts)
    coefficient = np.add.reduceat(coefficient, first)
    some = coefficient != 0
    proto.linear_constraint_matrix.row_ids.extend(row[first][some])
    proto.linear_constraint_matrix.column_ids.extend(column[first][some])
    proto.linear_constraint_matrix.coefficients.extend(coefficient[some])
    return proto
