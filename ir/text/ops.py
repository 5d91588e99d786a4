"""Ops as text, without what they make: `n[B,L,E] * Wi[E,F]`, `sum(x, a)`; printed and read back.

An einsum names indices in square brackets; the result's come after `->` where they are not its dims; codes less their
zero points stand in parentheses, `(W[E,F] - W.zero[E,F])`.
A map is an expression. The others are calls: `sum(x, 0.5 * d)`, `max(s, over=H,M)`,
`take(table, ids, over=V)`, `top_k(s, ids, keep=K, over=V)`, `choose(s, keep=2, over=X)`, `iota(M)`,
`append(keys, k, L into M)`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK
from .expressions import NAME, ExprParser, format_expr, format_number


def format_op(op: Op, dims: Sequence[str]) -> str:
    """What an op computes, without its result, whose dims are `dims`."""
    match op:
        case Einsum(_, operands, indices, output):
            read = [f"{name}[{','.join(i)}]" for name, i in zip(operands, indices, strict=True)]
            less = dict(op.zeros)
            apart = [n for n in range(len(read)) if n not in less.values()]
            factors = [f"({read[n]} - {read[less[n]]})" if n in less else read[n] for n in apart]
            return " * ".join(factors) + ("" if output == tuple(dims) else f" -> [{','.join(output)}]")
        case Map(_, expr):
            return format_expr(expr)
        case Sum(_, operands, coefficients):
            pairs = zip(operands, coefficients, strict=True)
            return f"sum({', '.join(n if c == 1 else f'{format_number(c)} * {n}' for n, c in pairs)})"
        case Reduce(_, operand, over):
            return f"max({operand}, over={','.join(over)})"
        case Take(_, table, ids, over):
            return f"take({table}, {ids}, over={','.join(over)})"
        case TopK(_, keys, picked, over, keep):
            return f"top_k({keys}, {picked}, keep={keep}, over={','.join(over)})"
        case Choose(_, keys, over, keep):
            return f"choose({keys}, keep={keep}, over={','.join(over)})"
        case Iota(_, dim):
            return f"iota({dim})"
        case Append(_, cache, new, source, target, context):
            return f"append({cache}, {new}, {source} into {target}{f', of={context}' if context else ''})"


def read_op(text: str, result: str, dims: tuple[str, ...]) -> Op:
    """The op that `text` says, which makes `result`, of dims `dims`. Raises ExprError."""
    words = ExprParser(text)
    head = re.match(rf"(?P<name>{NAME}) *(?P<bracket>[(\[])", text, re.ASCII)
    product = re.match(rf"\(?{NAME} *\[", text, re.ASCII)  # perhaps of codes less a zero point
    match ("", "[") if product else (head["name"], head["bracket"]) if head else ("", ""):
        case (_, "["):
            op: Op = _read_einsum(words, result, dims)
        case ("sum", _):
            op = _read_sum(words, result)
        case ("max", _):
            (operand,) = _call(words, 1)
            _keyword(words, "over")
            op = Reduce(result, operand, words.names("a dim"))
            words.expect(")")
        case ("take", _):
            table, ids = _call(words, 2)
            _keyword(words, "over")
            op = Take(result, table, ids, words.names("a dim"))
            words.expect(")")
        case ("top_k", _):
            keys, picked = _call(words, 2)
            _keyword(words, "keep")
            keep = words.name("a dim")
            _keyword(words, "over")
            op = TopK(result, keys, picked, words.names("a dim"), keep)
            words.expect(")")
        case ("choose", _):
            (operand,) = _call(words, 1)
            _keyword(words, "keep")
            count = words.whole()
            _keyword(words, "over")
            op = Choose(result, operand, words.names("a dim"), count)
            words.expect(")")
        case ("iota", _):
            (dim,) = _call(words, 1)
            op = Iota(result, dim)
            words.expect(")")
        case ("append", _):
            cache, new = _call(words, 2)
            words.expect(",")
            source = words.name("a dim")
            words.expect("into")
            target, context = words.name("a dim"), None
            if words.token.text == ",":
                _keyword(words, "of")
                context = words.name("a dim")
            op = Append(result, cache, new, source, target, context)
            words.expect(")")
        case _:
            op = Map(result, words.expression())
    words.end()
    return op


def _call(words: ExprParser, count: int) -> list[str]:
    """Take a function's name, `(`, and `count` names."""
    words.advance()
    words.expect("(")
    found = [words.name()]
    while len(found) < count:
        words.expect(",")
        found.append(words.name())
    return found


def _keyword(words: ExprParser, keyword: str) -> None:
    for text in (",", keyword, "="):
        words.expect(text)


def _read_einsum(words: ExprParser, result: str, dims: tuple[str, ...]) -> Einsum:
    operands: list[str] = []
    indices: list[tuple[str, ...]] = []
    zeros: list[tuple[int, int]] = []
    while not operands or words.accept("*"):
        less = words.accept("(")
        for sign in ("", "-") if less else ("",):
            if sign:
                words.expect(sign)
            operands.append(words.name("a value"))
            indices.append(_read_indices(words))
        if less:
            words.expect(")")
            zeros.append((len(operands) - 2, len(operands) - 1))
    output = _read_indices(words) if words.accept("->") else dims
    return Einsum(result, tuple(operands), tuple(indices), output, tuple(zeros))


def _read_indices(words: ExprParser) -> tuple[str, ...]:
    words.expect("[")
    if words.accept("]"):
        return ()
    found = words.names("an index")
    words.expect("]")
    return found


def _read_sum(words: ExprParser, result: str) -> Sum:
    words.advance()
    words.expect("(")
    operands: list[str] = []
    coefficients: list[float] = []
    while not operands or words.accept(","):
        scaled = words.token.kind == "number" or words.token.text in ("-", "inf")
        coefficients.append(words.number() if scaled else 1.0)
        if scaled:
            words.expect("*")
        operands.append(words.name("a value"))
    words.expect(")")
    return Sum(result, tuple(operands), tuple(coefficients))
