"""The dense reference: a Program run whole, on one machine, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir.dataflow import ops
from ...ir.dtype import Dtype
from ...ir.expr import Call, Const, Expr, Rotate, operands
from ...ir.program import (
    Append,
    Choose,
    Einsum,
    Iota,
    Kind,
    Map,
    Op,
    Program,
    Reduce,
    Region,
    Repeat,
    Sum,
    Take,
    TopK,
    Value,
    operand_names,
    stored_in,
    walk,
)
from ...ir.record import record
from .finite import Watch
from .pointwise import Array, Frame, evaluate


def random_stored(
    program: Program, sizes: Mapping[str, int], seed: int, counts: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Random data for every stored tensor, by name; one leading dim for each repeat around it.

    Floats are normal, parameters scaled by 1 / sqrt(what they are summed over), so that values stay
    near 1 however deep the program. Integers are rows of the table that they pick from. `counts`
    overrides how often the repeats of these names run.
    """
    rng = np.random.default_rng(seed)
    values, override = program.table(), counts or {}
    data: dict[str, Array] = {}
    for stored, placed in stored_in(program.body).items():
        value = values[stored.value]
        stack = [override.get(r.name, r.count) for r in placed.repeats]
        shape = [*stack, *(sizes[d] for d in value.dims)]
        if value.dtype is Dtype.I32:
            data[value.name] = rng.integers(0, rows(program, value, sizes), size=shape)
        else:
            fan = fan_in(program, value, sizes) if stored.kind is Kind.PARAM else 1
            data[value.name] = rng.standard_normal(shape) / math.sqrt(fan)
    return data


def rows(program: Program, ids: Value, sizes: Mapping[str, int]) -> int:
    """The range of integers `ids`: the rows of the shortest table that they pick from."""
    picks = [op for op in ops(program) if isinstance(op, Take) and op.ids == ids.name]
    return min((math.prod(sizes[d] for d in take.over) for take in picks), default=2)


def fan_in(program: Program, param: Value, sizes: Mapping[str, int]) -> int:
    """How many products the first einsum that reads `param` sums for one element; 1 without one."""
    for placed in walk(program.body):
        match placed.item:
            case Einsum(_, names, indices, output) if param.name in names:
                at = names.index(param.name)
                summed = {i: d for i, d in zip(indices[at], param.dims, strict=True) if i not in output}
                return math.prod(sizes[d] for d in summed.values())
    return 1


def run_reference(
    program: Program,
    sizes: Mapping[str, int],
    stored: Mapping[str, Array],
    contexts: Mapping[str, int] | None = None,
    watch: Sequence[str] = (),
    finite: Watch | None = None,
    rounded: Mapping[str, Rounded] | None = None,
) -> dict[str, Array]:
    """The program's results by name, and every version of a cache that an append makes.

    `stored` is as random_stored makes it. A cache version in a repeat has one leading dim for each
    repeat around it. Repeats run as often as the program says. `contexts`: how many places are filled,
    with this step's entries, along the dims of which not all are. `watch`: values that no repeat
    makes, returned beside the results. `finite` sees what every op makes. Rows that a table lacks are zeros. `rounded`:
    by the names of results of maps, how another run rounded these.
    """
    given = {name: (iter(one.codes), one.slack) for name, one in (rounded or {}).items()}
    run = _Run(program.table(), sizes, stored, contexts or {}, finite or Watch(), given)
    with np.errstate(all="ignore"):
        env = run.region(program.body, {}, ())
    results = {name: env[name] for name in (*program.results, *watch)}
    for placed in walk(program.body):
        if isinstance(placed.item, Append):
            name = placed.item.result
            shape = run.versions[name][0].shape
            stack = [repeat.count for repeat in placed.repeats]
            results[name] = np.stack(run.versions[name]).reshape(*stack, *shape)
    return results


@record
class Rounded:
    """What another run rounded to integers: `codes`, of one execution after the other. Of two that a number lies
    between it may have either, where that is no farther than `slack` from the middle."""

    codes: Sequence[Array]
    slack: float


@dataclass
class _Run:
    values: Mapping[str, Value]
    sizes: Mapping[str, int]
    stored: Mapping[str, Array]
    contexts: Mapping[str, int]
    finite: Watch
    rounded: Mapping[str, tuple[Iterator[Array], float]] = field(default_factory=dict)
    versions: dict[str, list[Array]] = field(default_factory=dict)  # by append, in order of execution

    def region(self, region: Region[Op], env: Mapping[str, Array], at: tuple[int, ...]) -> dict[str, Array]:
        """Run a region in the repetition `at` (one number for each repeat); every value by name."""
        env = dict(env)
        for stored in region.stored:
            env[stored.value] = self.stored[stored.value][at]
        for item in region.items:
            if isinstance(item, Repeat):
                env |= self.repeat(item, env, at)
                continue
            env[item.result] = self.op(item, env)
            self.finite.see(item, env[item.result], {name: env[name] for name in operand_names(item)})
            if isinstance(item, Append):
                self.versions.setdefault(item.result, []).append(env[item.result])
        return env

    def repeat(self, repeat: Repeat[Op], env: Mapping[str, Array], at: tuple[int, ...]) -> dict[str, Array]:
        """Run a repeat; what it returns by name."""
        carried = {c.inside: env[c.initial] for c in repeat.carries}
        for i in range(repeat.count):
            after = self.region(repeat.body, {**env, **carried}, (*at, i))
            carried = {c.inside: after[c.next] for c in repeat.carries}
        return {c.result: carried[c.inside] for c in repeat.carries}

    def op(self, op: Op, env: Mapping[str, Array]) -> Array:
        """The result of one op."""
        dims = self.values[op.result].dims
        frame = Frame(dims, tuple(self.sizes[d] for d in dims), self.sizes, self.contexts)

        def aligned(name: str) -> Array:
            return frame.align(env[name], self.values[name].dims)

        match op:
            case Einsum(_, names, indices, output):
                known = list(dict.fromkeys(i for each in indices for i in each))
                terms: list[Any] = []
                read = [self.ungrouped(env[name], each) for name, each in zip(names, indices, strict=True)]
                for codes, zero in op.zeros:
                    own = [indices[zero].index(i) for i in indices[codes] if i in indices[zero]]
                    lacking = [axis for axis, i in enumerate(indices[codes]) if i not in indices[zero]]
                    read[codes] = read[codes] - np.expand_dims(read[zero].transpose(own), lacking)
                for n, each in enumerate(indices):
                    if n not in dict(op.zeros).values():
                        terms += [read[n], [known.index(i) for i in each]]
                return np.asarray(np.einsum(*terms, [known.index(i) for i in output], optimize=True))
            case Map(_, expr):
                given = {name: aligned(name) for name in operands(expr)}
                made = evaluate(expr, given, frame)
                if op.result not in self.rounded:
                    return made
                another, slack = self.rounded[op.result]
                return as_rounded(expr, given, frame, made, next(another), slack)
            case Sum(_, names, coefficients):
                scaled = [c * aligned(n) for c, n in zip(coefficients, names, strict=True)]
                return frame.spread(np.sum(np.broadcast_arrays(*scaled), axis=0))
            case Reduce(_, name, over):
                have = self.values[name].dims
                highest = env[name].max(axis=tuple(have.index(d) for d in over))
                return frame.align(highest, [d for d in have if d not in over])
            case Take(_, table, ids, over):
                have = self.values[table].dims
                rows = np.moveaxis(env[table], [have.index(d) for d in over], range(len(over)))
                inside = (env[ids] >= 0) & (env[ids] < math.prod(rows.shape[: len(over)]))
                places = np.unravel_index(np.where(inside, env[ids], 0).astype(int), rows.shape[: len(over)])
                found = np.where(np.expand_dims(inside, [*range(inside.ndim, rows[places].ndim)]), rows[places], 0.0)
                return frame.align(found, [*self.values[ids].dims, *(d for d in have if d not in over)])
            case TopK(_, keys, picked, over, keep):
                return self.largest(env, keys, picked, over, self.sizes[keep])
            case Choose(_, keys, over, keep):
                return self.kept(env[keys], frame, over, keep)
            case Iota(_, dim):
                return np.arange(self.sizes[dim], dtype=float)
            case Append(_, cache, new, source, target, context):
                entries = frame.align(env[new], [target if d == source else d for d in self.values[new].dims])
                return self.append(env[cache], frame, entries, target, context)

    def ungrouped(self, array: Array, indices: Sequence[str]) -> Array:
        """An operand with an element for each place of its indices: those of groups as often as these have places."""
        for axis, index in enumerate(indices):
            group = self.sizes.get(index, array.shape[axis]) // array.shape[axis]
            array = array if group == 1 else array.repeat(group, axis)
        return array

    def largest(self, env: Mapping[str, Array], keys: str, picked: str, over: tuple[str, ...], count: int) -> Array:
        """The entries of `picked` at the `count` largest of `keys`, row by row."""
        have = self.values[keys].dims
        rest = [d for d in have if d not in over]
        frame = Frame((*rest, *over), tuple(self.sizes[d] for d in (*rest, *over)), self.sizes)
        flat = [frame.spread(frame.align(env[n], self.values[n].dims)) for n in (keys, picked)]
        rows = [a.reshape(math.prod(frame.shape[: len(rest)]), -1) for a in flat]
        found = np.empty((len(rows[0]), count))
        for i, (key, entry) in enumerate(zip(*rows, strict=True)):
            order = sorted(range(len(key)), key=lambda place: (-key[place], place))
            found[i] = entry[order[:count]]
        return found.reshape(*frame.shape[: len(rest)], count)

    def kept(self, keys: Array, frame: Frame, over: tuple[str, ...], count: int) -> Array:
        """1 at the `count` largest of `keys`, row by row, or at all above minus infinity, where these are fewer."""
        axes = [frame.dims.index(d) for d in over]
        rows = np.moveaxis(keys, axes, range(-len(axes), 0))
        found = np.zeros(rows.shape)
        for row in np.ndindex(rows.shape[: rows.ndim - len(axes)]):
            shown = [place for place in np.ndindex(rows[row].shape) if rows[row][place] != -math.inf]
            for place in sorted(shown, key=lambda place: (-rows[row][place], place))[:count]:
                found[row][place] = 1.0
        return np.moveaxis(found, range(-len(axes), 0), axes)

    def append(self, cache: Array, frame: Frame, entries: Array, target: str, context: str | None) -> Array:
        """The cache with new entries in the last places of the context along `target`; with a `context` in the slots
        of its last places."""
        axis = frame.dims.index(target)
        end = frame.context(context or target)
        if context is not None:
            out = np.moveaxis(cache.copy(), axis, 0)
            for entry, place in zip(np.moveaxis(entries, axis, 0), range(end - entries.shape[axis], end), strict=True):
                out[place % len(out)] = entry
            return np.moveaxis(out, 0, axis)
        before = np.take(cache, np.arange(end - entries.shape[axis]), axis=axis)
        beyond = np.take(cache, np.arange(end, cache.shape[axis]), axis=axis)
        return np.concatenate([before, entries, beyond], axis=axis)


def as_rounded(expr: Expr, read: Mapping[str, Array], frame: Frame, made: Array, codes: Array, slack: float) -> Array:
    """What an expression that rounds is, with the other code of two that lie `slack` from halfway, where `codes` has
    that."""
    either = [evaluate(_shifted(expr, by), read, frame) for by in (-slack, slack)]
    return np.where((codes == either[0]) | (codes == either[1]), codes, made)


def _shifted(expr: Expr, by: float) -> Expr:
    """The expression with what it rounds down larger by a number."""
    match expr:
        case Call("floor", (argument,)):
            return Call("floor", (Call("add", (argument, Const(by))),))
        case Call(function, arguments):
            return Call(function, tuple(_shifted(a, by) for a in arguments))
        case Rotate(inner, dim):
            return Rotate(_shifted(inner, by), dim)
        case _:
            return expr
