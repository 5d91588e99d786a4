"""How many collectives run is a whole number: what a linear relaxation says of fewer than it takes, and of more.

Where values are small a collective costs its latency, whatever it sends. Where memory asks for some a relaxation takes
parts of one, and says neither what the first costs in full nor, by its reduced costs, which it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..ilp.model import Model, continuous, inner
from ..ilp.solver import Answer, Settings, solve
from ..ilp.thinned import thinned
from ..layouts.space import Array
from .reduced_program import INTEGRAL, Reduced, fixed

MOST_COLUMNS = 24_000  # of a relaxation that is asked again, which takes some seconds with more
MOST_OPEN = 5_000  # of these times the share of the price that is open: the further, the more steps it takes
ROUNDS = 3  # times that the number is said to be larger
WORTH = 0.5  # of what is left between a relaxation and a price: what the rest of a collective has to cost
NOTHING = Answer(None, math.inf, None, 0.0, none=True)


def counted(reduced: Reduced, relaxed: Answer, price: float, settings: Settings) -> tuple[Answer, Model]:
    """What the relaxation says of all plans that cost no more than a price, in the solver's unit, if each runs a whole
    number of collectives: a bound of them, the reduced costs of what they may take, without an end where they may not
    take it, and the solution that the bound is of. It is as it was where that promises little. Rows are worth what
    they were, and its seconds are those that this took. And the program, with a row for how many run at the least."""
    best, seconds, fewest = relaxed, 0.0, 0.0
    for _ in range(ROUNDS):
        sends, cost = reduced.program.sends, reduced.model.cost
        if best.x is None or best.reduced_costs is None or not len(sends) or not math.isfinite(price):
            break
        count = float(best.x[sends].sum())
        fewer = math.floor(count + INTEGRAL)
        each = inner(best.x[sends], cost[sends]) / count if count > INTEGRAL else 0.0
        if count - fewer <= INTEGRAL or (1 - count + fewer) * each < WORTH * (price - best.bound):
            break
        left = fixed(reduced.model, best, price)
        columns = np.count_nonzero(left.upper)
        if columns > MOST_COLUMNS or columns * (price - best.bound) > MOST_OPEN * abs(price):
            break
        some = _within(left, sends, -np.inf, fewer, best, price, settings)
        more = _within(left, sends, fewer + 1.0, np.inf, best, price, settings)
        seconds += some.seconds + more.seconds
        if (some.x is None and not some.none) or (more.x is None and not more.none):
            break  # the solver gave up
        if some.none and more.none:
            return replace(NOTHING, seconds=seconds), reduced.model
        best = _either(some, more, left)
        if not some.none:
            break
        fewest = fewer + 1.0
    model = _running(reduced.model, reduced.program.sends, fewest, np.inf) if fewest else reduced.model
    return replace(best, seconds=seconds), model


def _within(
    left: Model, sends: Array, low: float, high: float, near: Answer, price: float, settings: Settings
) -> Answer:
    """The relaxation of plans that run from `low` to `high` collectives; NOTHING where they cost more than a price."""
    thin, rows = thinned(_running(continuous(left), sends, low, high)), None
    if near.row_worths is not None:
        rows = np.append(near.row_worths, 0.0)[thin.rows]
    answer = thin.whole(solve(thin.model, settings, rows=rows, worths=True, most=np.inf if rows is None else price))
    if answer.none or (answer.x is None and answer.bound > price):
        return replace(NOTHING, seconds=answer.seconds)
    return replace(answer, row_worths=near.row_worths)


def _running(left: Model, sends: Array, low: float, high: float) -> Model:
    """The program of plans that run from `low` to `high` collectives."""
    return replace(
        left,
        row=np.append(left.row, np.full(len(sends), len(left.low))),
        column=np.append(left.column, sends),
        coefficient=np.append(left.coefficient, np.ones(len(sends))),
        low=np.append(left.low, low),
        high=np.append(left.high, high),
    )


def _either(one: Answer, other: Answer, left: Model) -> Answer:
    """What is so of the plans of two programs of what is `left`: what it costs at the least to take a column is the
    less of both."""
    least = min(one, other, key=lambda answer: answer.bound)
    costs = [a.bound + a.reduced_costs for a in (one, other) if not a.none and a.reduced_costs is not None]
    reduced_costs = np.minimum.reduce(costs) - least.bound
    return replace(least, reduced_costs=np.where(left.upper > 0, reduced_costs, np.inf))
