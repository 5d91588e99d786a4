"""What follows from formulas: the best split, where one layout overtakes another, which is never worse.

The formulas are those of `cost.formulas.symbolic`, of any plan; no result is written down here. All symbols
are positive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import sympy
from sympy import Expr, Symbol


@dataclass(frozen=True)
class Minimum:
    """Where a cost is least, and what it is there."""

    at: Expr
    cost: Expr


@dataclass(frozen=True)
class Regime:
    """From `start` on, up to the next regime's, `name` is the cheapest."""

    start: Expr
    name: str


def regroup(cost: Expr, factors: Sequence[Symbol], product: Symbol) -> Expr:
    """The cost with `product` for that of `factors`; what does not depend on the product alone keeps
    all of them but the last.

    So the axes X, Y, Z become n chips, and B and L a number of tokens.
    """
    *others, last = factors
    return sympy.factor_terms(sympy.cancel(cost.subs(last, product / sympy.Mul(*others))), clear=False)


def minimise(cost: Expr, choice: Symbol) -> Minimum:
    """The least cost over all positive values of `choice`, as if it were continuous.

    Raises ValueError when there is no single stationary point, or when it is not the least.
    """
    slope = sympy.diff(cost, choice)
    points = [p for p in sympy.solve(slope, choice) if p.is_positive]
    if len(points) != 1 or not sympy.simplify(sympy.diff(slope, choice)).is_positive:
        raise ValueError(f"{cost} has no single least value over {choice}")
    at = sympy.simplify(points[0])
    return Minimum(at, sympy.simplify(cost.subs(choice, at)))


def crossovers(first: Expr, second: Expr, over: Symbol) -> tuple[Expr, ...]:
    """The positive values of `over` at which two costs are equal; none where they are always so."""
    found = (sympy.simplify(p) for p in sympy.solve(sympy.numer(sympy.together(first - second)), over))
    return tuple(p for p in found if p.is_positive is not False)


def regimes(costs: Mapping[str, Expr], over: Symbol) -> tuple[Regime, ...]:
    """Which of some costs is the least as `over` grows from 0; of equal ones the first.

    The costs depend on nothing but `over`. Two regimes that follow each other differ in name.
    """
    found = {p for a, b in combinations(costs.values(), 2) for p in crossovers(a, b, over)}
    points = sorted(found)
    starts = [sympy.Integer(0), *points]
    out: list[Regime] = []
    for start, end in zip(starts, [*points, None], strict=True):
        inside = start + 1 if end is None else (start + end) / 2
        here = {name: cost.subs(over, inside) for name, cost in costs.items()}
        name = min(here, key=lambda n: here[n])
        if not out or out[-1].name != name:
            out.append(Regime(start, name))
    return tuple(out)


def as_square(difference: Expr) -> Expr:
    """The difference in a form that shows that it is never negative: positive factors and squares.

    Raises ValueError when it does not factor so over the square roots of its symbols.
    """
    symbols = sorted(difference.free_symbols, key=str)
    roots = {s: Symbol(f"{s}_root", positive=True) for s in symbols}
    factored = sympy.factor(sympy.powdenest(difference.subs({s: r**2 for s, r in roots.items()}), force=True))
    if not factored.is_nonnegative:
        raise ValueError(f"{difference} is not seen to be nonnegative")
    return factored.subs({r: sympy.sqrt(s) for s, r in roots.items()})
