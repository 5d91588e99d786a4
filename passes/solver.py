"""The one place that knows OR-Tools: an integer program in, an answer and a proven bound out."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from .model import Model

Floats = NDArray[np.float64]

SOLVERS = {"highs": mathopt.SolverType.HIGHS, "gscip": mathopt.SolverType.GSCIP, "cp-sat": mathopt.SolverType.CP_SAT}


@dataclass(frozen=True, eq=False)
class Answer:
    """What the solver found: its `status`; `x`, None when there is none; the objective and the
    proven bound in the model's unit."""

    status: str
    x: Floats | None
    objective: float
    bound: float
    seconds: float


def solve(model: Model, solver: str, gap: float, time_limit_s: float) -> Answer:
    """Solve to a relative `gap`. One thread and a fixed seed: the same model gives the same answer.

    Raises KeyError for a solver that is not in SOLVERS.
    """
    started = time.perf_counter()
    params = mathopt.SolveParameters(relative_gap_tolerance=gap, absolute_gap_tolerance=0.0, random_seed=1)
    if np.isfinite(time_limit_s):
        params.time_limit = datetime.timedelta(seconds=time_limit_s)
    if solver == "highs":
        params.highs.bool_options["mip_root_presolve_only"] = True
    proto = mathopt.Model.from_model_proto(_proto(model))
    result = mathopt.solve(proto, SOLVERS[solver], params=params)
    x = None
    if result.has_primal_feasible_solution():
        values = result.variable_values()
        x = np.array([values[v] for v in proto.variables()])
    reason = result.termination.reason
    bounds = result.termination.objective_bounds
    status = reason.name.lower()
    return Answer(status, x, bounds.primal_bound, bounds.dual_bound, time.perf_counter() - started)


def _proto(model: Model) -> model_pb2.ModelProto:
    """The model as MathOpt's protocol buffer, filled from arrays at once."""
    proto = model_pb2.ModelProto()
    columns, rows = len(model.cost), len(model.low)
    proto.variables.ids.extend(range(columns))
    proto.variables.lower_bounds.extend(np.zeros(columns))
    proto.variables.upper_bounds.extend(model.upper)
    proto.variables.integers.extend(model.integer.tolist())
    nonzero = np.flatnonzero(model.cost)
    proto.objective.linear_coefficients.ids.extend(nonzero)
    proto.objective.linear_coefficients.values.extend(model.cost[nonzero])
    proto.linear_constraints.ids.extend(range(rows))
    proto.linear_constraints.lower_bounds.extend(model.low)
    proto.linear_constraints.upper_bounds.extend(model.high)
    order = np.lexsort((model.column, model.row))
    row, column, coefficient = model.row[order], model.column[order], model.coefficient[order]
    # An entry given twice is the sum of the two.
    first = np.flatnonzero(np.concatenate([[True], (row[1:] != row[:-1]) | (column[1:] != column[:-1])]))
    coefficient = np.add.reduceat(coefficient, first)
    keep = coefficient != 0
    proto.linear_constraint_matrix.row_ids.extend(row[first][keep])
    proto.linear_constraint_matrix.column_ids.extend(column[first][keep])
    proto.linear_constraint_matrix.coefficients.extend(coefficient[keep])
    return proto
