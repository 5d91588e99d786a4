"""Formulas as MathML, which browsers typeset by themselves."""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from markupsafe import Markup
from sympy import Expr

TIMES = Markup("<mo>&#8290;</mo>")  # invisible


def mathml(formula: Expr) -> Markup:
    """The formula as a `math` element. Quotients are written as fractions, square roots as such."""
    return Markup('<math display="block">{}</math>').format(_row(_written(formula)))


def _written(formula: Expr) -> Markup:
    match formula:
        case sympy.Symbol():
            return _symbol(formula.name)
        case sympy.Integer() if formula >= 0:
            return _tag("mn", str(formula))
        case sympy.Float():
            return _tag("mn", f"{float(formula):.6g}")
        case sympy.Add():
            return _sum(formula)
        case sympy.Mul() | sympy.Rational():
            return _product(formula)
        case sympy.Pow(args=(base, sympy.Rational(p=1, q=2))):
            return _tag("msqrt", _written(base))
        case sympy.Pow(args=(base, exponent)) if not exponent.is_negative:
            return _tag("msup", _factor(base) + _row(_written(exponent)))
        case sympy.Pow():
            return _product(formula)
        case sympy.Max():
            return _call("max", formula.args)
        case sympy.Min():
            return _call("min", formula.args)
        case sympy.ceiling():
            return _tag("mo", "⌈") + _written(formula.args[0]) + _tag("mo", "⌉")
    return _tag("mtext", sympy.sstr(formula))


def _sum(formula: Expr) -> Markup:
    """The terms in SymPy's order, those with a minus sign subtracted."""
    out = Markup()
    for k, term in enumerate(formula.as_ordered_terms()):
        minus = term.could_extract_minus_sign()
        if minus or k:
            out += _tag("mo", "−" if minus else "+")
        out += _written(-term if minus else term)
    return out


def _product(formula: Expr) -> Markup:
    """Factors side by side, above those with negative exponents; nothing is multiplied out."""
    above: list[Expr] = []
    below: list[Expr] = []
    minus = formula.could_extract_minus_sign()
    for factor in sympy.Mul.make_args(-formula if minus else formula):
        if isinstance(factor, sympy.Rational):
            above += [sympy.Integer(factor.p)] if factor.p != 1 else []
            below += [sympy.Integer(factor.q)] if factor.q != 1 else []
        elif isinstance(factor, sympy.Pow) and factor.exp.is_negative:
            below.append(1 / factor)
        else:
            above.append(factor)
    written = _side(above)
    if below:
        written = _tag("mfrac", _row(written) + _row(_side(below)))
    return _tag("mo", "−") + written if minus else written


def _side(factors: list[Expr]) -> Markup:
    """A product without a quotient: numbers, then symbols, those of one letter first, then sums."""
    if not factors:
        return _tag("mn", "1")
    ordered = sorted(factors, key=_place)
    alone = len(ordered) == 1
    return TIMES.join(_written(f) if alone else _factor(f) for f in ordered)


def _place(factor: Expr) -> tuple[bool, bool, bool, str]:
    """Where a factor stands in a product."""
    base = factor.base if isinstance(factor, sympy.Pow) else factor
    long = isinstance(base, sympy.Symbol) and len(base.name) > 1
    return not base.is_number, not base.is_Symbol, long, sympy.sstr(base)


def _factor(formula: Expr) -> Markup:
    """What stands in a product or under an exponent, in brackets where it is a sum."""
    if not isinstance(formula, sympy.Add):
        return _row(_written(formula))
    return _row(_tag("mo", "(") + _written(formula) + _tag("mo", ")"))


def _call(name: str, arguments: Iterable[Expr]) -> Markup:
    listed = _tag("mo", ",").join(map(_written, sorted(arguments, key=sympy.sstr)))
    return _tag("mi", name) + _tag("mo", "(") + listed + _tag("mo", ")")


def _symbol(name: str) -> Markup:
    """A name, with what follows its first underscore below the line."""
    base, _, index = name.partition("_")
    if base and index:
        return _tag("msub", _tag("mi", base) + _tag("mi", index))
    return _tag("mi", name)


def _row(content: Markup) -> Markup:
    return _tag("mrow", content)


def _tag(name: str, content: str) -> Markup:
    return Markup(f"<{name}>{{}}</{name}>").format(content)
