"""Programs of two or three random ops on two or three axes, with all ends pinned or none, from a seed.

What matters here is how values get from one layout to another, so dims are small and often do not
divide by two axes at once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.program import Pin, PinKind, Repeat, Stored, operand_names, walk

from .builder import Builder, call
from .generator import Case
from .layouts import Place, complete

DIMS = "BEFH"
SIZES = [1, 2, 3, 4, 6, 8, 9, 12, 12, 16, 24]
MESHES = [(2, 2), (2, 4), (4, 2), (2, 3), (3, 2), (4, 4), (3, 3), (2, 2, 2), (2, 8)]


def few_ops(seed: int, ops: int, pinned: bool) -> Case:
    """The case of a seed, with that many `ops`."""
    rng = random.Random(seed)
    builder = Builder(rng, {dim: rng.choice(SIZES) for dim in DIMS})
    values = [builder.input(_dims(rng))]
    for _ in range(ops):
        values.append(_op(builder, rng, values))
    program = builder.program(_unread(builder, values))
    mesh = Mesh(tuple(zip("xyz", rng.choice(MESHES), strict=False)))
    case = Case(program, mesh, None, f"{ops} ops, seed {seed}")
    return pinned_ends(case, seed) if pinned else case


def pinned_ends(case: Case, seed: int) -> Case:
    """The same with random layouts for what is stored and handed out, and no limit of memory."""
    return replace(case, capacity_bytes=None, ends=_ends(case, random.Random(seed)))


def pins(case: Case) -> tuple[Pin, ...]:
    """The case's ends as pins."""

    def names(axes: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(case.mesh.names[a] for a in axes)

    return tuple(
        Pin(PinKind.STORED, value, None, Layout(tuple(map(names, place.dims))), f"stored {value}")
        for value, place in case.ends.items()
    )


def _dims(rng: random.Random) -> str:
    return "".join(rng.sample(DIMS, rng.choice([1, 2, 2, 3])))


def _op(b: Builder, rng: random.Random, values: list[str]) -> str:
    """One more op, that reads the last value or, at times, an earlier one."""
    value = values[-1] if rng.random() < 0.8 else rng.choice(values)
    dims = b.dims(value)
    match rng.choice(["einsum", "einsum", "einsum", "map", "product", "sum", "reduce"]):
        case "map":
            return b.map(call(rng.choice(["exp", "negate"]), value))
        case "product":
            return b.map(call("multiply", value, _other(b, rng, "".join(rng.sample(dims, rng.randint(1, len(dims)))))))
        case "sum":
            return b.sum(value, _other(b, rng, dims))
        case "reduce" if len(dims) > 1:
            return b.reduce(value, rng.choice(dims))
        case _:
            other = _other(b, rng, _dims(rng))
            every = "".join(dict.fromkeys(dims + b.dims(other)))
            kept = [d for d in every if rng.random() < 0.6] or [rng.choice(every)]
            return b.einsum("".join(rng.sample(kept, len(kept))), value, other)


def _other(b: Builder, rng: random.Random, dims: str) -> str:
    return b.param(dims) if rng.random() < 0.7 else b.input(dims)


def _unread(b: Builder, values: list[str]) -> list[str]:
    """Of values those that ops make and nothing reads."""
    items = [placed.item for placed in walk(b.program(values).body)]
    ops = [item for item in items if not isinstance(item, Stored | Repeat)]
    read = {name for op in ops for name in operand_names(op)}
    return [op.result for op in ops if op.result not in read]


def _ends(case: Case, rng: random.Random) -> Mapping[str, Place]:
    values, sizes = case.program.table(), dict(case.program.phase("main").sizes)
    stored = [p.item.value for p in walk(case.program.body) if isinstance(p.item, Stored)]
    return {
        v: rng.choice(complete(tuple(sizes[d] for d in values[v].dims), case.mesh.sizes))
        for v in (*stored, *case.program.results)
    }
