"""What of a module for GPUs runs as one kernel: which attention, with its scores as the kernel makes them, and which
rows are multiplied by the matrices of their experts.

A kernel of attention (jax_kernel_runtime.py) makes scores of some queries and some of the context, for one of each of
all else that there are scores of, such as sequences and heads. It multiplies matrices of floats of 16 bits, and does
all else in those of 32. Attention that takes more than that runs in blocks of scores, as elsewhere. One of experts
(jax_expert_runtime.py) takes their matrices as they are stored, codes with a scale for each group of places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ...cost.attention import Attention
from ...cost.scores import Part, local_sizes
from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Expr, context_dims, functions, operands, rotated_dims
from ...ir.program import Einsum, Map, Op, Sum, operand_names
from ...ir.record import record
from ...ir.spmd import SpmdProgram, SpmdValue
from .jax_ops import beside

LEAST_QUERIES = 32  # of fewer a kernel fills no tile, and what takes time is to read the caches
MOST_FEATURES = 640  # a kernel holds all that there is of a query and of its result
MOST_OF_ONE, PAIR_FEATURES = 512, 64
STORED = frozenset({Dtype.BF16, Dtype.FP8, Dtype.FP4, Dtype.INT8, Dtype.INT4})
SCALES = frozenset({Dtype.BF16, Dtype.F32, Dtype.E8M0})
# The functions that Pallas compiles by Triton, and those that do not jump.
SMOOTH = frozenset(
    {"relu", "add", "subtract", "multiply", "divide", "negate", "tanh", "exp", "sigmoid", "maximum", "minimum"}
)
COMPILED = SMOOTH | {"log", "sqrt", "rsqrt", "abs", "floor", "power", "silu", "where", "less_equal", "equal"}
INDEXED_BYTES = 2**31  # Pallas counts what is not larger than twice this in 32 bits, with a sign
LEAST_TILE = 32  # terms and columns; of groups of terms half as many
READ = frozenset({Dtype.BF16, Dtype.F32, Dtype.I32})


@record
class KernelScores:
    """The scores of an attention as a kernel makes them: by `ops` from `parts`, with `values` as these have them, for
    one of each of the dims `rows`. `widened`: what it reads as floats of 32 bits; `contexts`: the dims of which it asks
    how much is filled."""

    ops: tuple[Op, ...]
    parts: tuple[Part, ...]
    values: Mapping[str, SpmdValue]
    rows: frozenset[str]
    widened: tuple[str, ...]
    contexts: tuple[str, ...]


def kernel_scores(one: Attention, spmd: SpmdProgram) -> KernelScores | None:
    """The scores of an attention for a kernel; None where it runs in blocks."""
    found = _Suits(one, spmd, spmd.table(), dict(spmd.sizes))
    if not found.suits():
        return None
    pointwise = [op for op in one.scores if not isinstance(op, Einsum)]
    read = {name for op in pointwise for name in operand_names(op)}
    widened = tuple(p.value for p in found.parts if p.value in read and found.values[p.value].dtype is Dtype.BF16)
    wide = {name: replace(found.values[name], dtype=Dtype.F32) for name in (*widened, *(o.result for o in one.scores))}
    ops = tuple(replace(op, expr=_without_division(op.expr)) if isinstance(op, Map) else op for op in one.scores)
    contexts = dict.fromkeys(dim for op in ops if isinstance(op, Map) for dim in sorted(context_dims(op.expr)))
    return KernelScores(ops, found.parts, {**found.values, **wide}, found.rows, widened, tuple(contexts))


def experts_in_kernel(op: Einsum, weights: str, experts: Collection[str], spmd: SpmdProgram) -> bool:
    """Whether an einsum of rows of bf16 and of a matrix for each of `experts`, which are indices of it, is a kernel."""
    values, sizes = spmd.table(), dict(spmd.sizes)

    def local(name: str) -> dict[str, int]:
        own = local_sizes(values[name], spmd)
        every = zip(op.indices[op.operands.index(name)], own.items(), strict=True)
        return {index: n for index, (dim, n) in every if index not in experts and sizes[dim] > 1}

    codes, aside = local(weights), beside(op, values, sizes)
    stored_bytes = math.prod(local_sizes(values[weights], spmd).values()) * values[weights].dtype.bits // 8
    if op.zeros or values[weights].dtype not in STORED or len(codes) != 2:
        return False
    if INDEXED_BYTES < stored_bytes <= 2 * INDEXED_BYTES:
        return False
    if any(math.gcd(n, 64) < LEAST_TILE for n in codes.values()):
        return False
    for scale in (name for name, host in aside.items() if host == weights):
        groups = {index: n // local(scale).get(index, 1) for index, n in codes.items()}
        tiled = (n in (codes[i], 1 if i in op.output else 0) or n % (LEAST_TILE // 2) == 0 for i, n in groups.items())
        if values[scale].dtype not in SCALES or not all(tiled):
            return False
    return True


@record
class _Suits:
    """Whether a kernel takes an attention."""

    one: Attention
    spmd: SpmdProgram
    values: Mapping[str, SpmdValue]
    sizes: Mapping[str, int]

    @cached_property
    def rows(self) -> frozenset[str]:
        """The dims that a kernel has one of."""
        return frozenset(self.values[self.one.masked].dims) - {self.one.query, self.one.context}

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All that scores are made of: beside what blocks take a part of, what is the same for a whole row."""
        known = {*(part.value for part in self.one.parts), *(op.result for op in self.one.scores)}
        names = dict.fromkeys(name for op in self.one.scores for name in operand_names(op))
        return (*self.one.parts, *(Part(name, self.values[name].dims) for name in names if name not in known))

    def suits(self) -> bool:
        """Whether it does."""
        one = self.one
        if one.query is None or local_sizes(self.values[one.masked], self.spmd)[one.query] < LEAST_QUERIES:
            return False
        if one.scales:
            return False
        read = [*((part.value, part.labels) for part in self.parts), (one.values, one.indices(one.values))]
        every = [*read, (one.product.result, one.product.output)]
        if any(self.values[name].dtype not in READ for name, _ in every):
            return False
        if not all(self.stands(name, labels) for name, labels in every):
            return False
        held, made = ({*self.inner(name, labels)} for name, labels in every[-2:])
        features = held - {one.context}
        plain = len(held) == 2 and one.context in held and made == {one.query, *features}
        narrow = all(self.values[name].dtype is Dtype.BF16 for name in (one.shares, one.values))
        return plain and narrow and self.wide() <= MOST_FEATURES and all(map(self.makes, one.scores))

    def wide(self) -> int:
        """The features of a query, and those that what has a number for each query and place is worth."""
        total = 0
        for part in self.parts:
            local = dict(zip(part.labels, local_sizes(self.values[part.value], self.spmd).values(), strict=True))
            inner = {*self.inner(part.value, part.labels)}
            if {self.one.query, self.one.context} <= inner:
                total += PAIR_FEATURES
            elif self.one.query in inner and len(inner) > 1:
                total += math.prod(1 << (local[a] - 1).bit_length() for a in inner - {self.one.query})
        return total

    def inner(self, name: str, labels: Sequence[str]) -> tuple[str, ...]:
        """The labels that the local array of a value has in a kernel."""
        pairs = zip(labels, self.values[name].dims, strict=True)
        return tuple(label for label, dim in pairs if self.sizes[dim] > 1 and label not in self.rows)

    def stands(self, name: str, labels: Sequence[str]) -> bool:
        """Whether a value has a matrix at most in a kernel, not too wide, and rows as scores have them."""
        inner, dims = self.inner(name, labels), self.values[name].dims
        local = dict(zip(labels, local_sizes(self.values[name], self.spmd).values(), strict=True))
        wide = max([local[label] for label in inner if label not in (self.one.query, self.one.context)], default=1)
        alike = all((label in self.rows) == (dim in self.rows) for label, dim in zip(labels, dims, strict=True))
        return alike and len({*inner}) == len(inner) <= 2 and wide <= MOST_OF_ONE

    def makes(self, op: Op) -> bool:
        """Whether a kernel makes a score: a product of two matrices, or something pointwise."""
        match op:
            case Einsum(result, (a, b), (left, right), output, ()):
                factors = [self.inner(a, left), self.inner(b, right)]
                summed = {*factors[0]} & {*factors[1]}
                plain = all(len(each) == 2 for each in factors) and len(summed) == 1
                same = {self.values[name].dtype for name in (a, b)} == {Dtype.BF16}
                read = {a, b}.isdisjoint(each.result for each in self.one.scores)
                return plain and same and read and {*self.inner(result, output)} == {*factors[0], *factors[1]} - summed
            case Map(_, expr):
                return not rotated_dims(expr) and functions(expr) <= COMPILED
            case Sum():
                return True
        return False


def _without_division(expr: Expr) -> Expr:
    """An expression that multiplies where another divides by what is the same everywhere, which takes GPUs longer; not
    where something that jumps, such as a comparison, reads the quotient."""
    match expr:
        case Call("divide", (a, b)) if not operands(b) and not context_dims(b):
            return Call("multiply", (_without_division(a), Call("divide", (Const(1.0), b))))
        case Call("where", (condition, *branches)):
            return Call("where", (condition, *map(_without_division, branches)))
        case Call(function, arguments) if function in SMOOTH:
            return Call(function, tuple(map(_without_division, arguments)))
    return expr
