"""Small random programs on small random meshes, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from escc.ir.mesh import Mesh
from escc.ir.program import Einsum, Kind, Program, Stored, walk

from .builder import Builder
from .families import FAMILIES, Family
from .layouts import EVEN, Place, Slowness

LETTERS = "BLMEFHKQV"


@dataclass(frozen=True)
class Case:
    """A program with one phase `main`, a mesh, and the HBM bytes that its stored tensors may take.

    `ends`: the layouts in which some stored tensors lie and some results are handed out; others are free. `slow`: of
    collectives.
    """

    program: Program
    mesh: Mesh
    capacity_bytes: float | None
    label: str
    ends: Mapping[str, Place] = field(default_factory=dict)
    slow: Slowness = EVEN

    def stored(self, value: str, free: Iterable[Place]) -> list[Place]:
        """The layouts in which a stored tensor may lie, or a result be handed out."""
        return [self.ends[value]] if value in self.ends else list(free)


def generate(seed: int, families: Mapping[str, Family] = FAMILIES) -> Case:
    """The case of a seed. Consecutive seeds go through the families in turn."""
    rng = random.Random(seed)
    label = list(families)[seed % len(families)]
    builder = Builder(rng, _sizes(rng))
    program = builder.program(families[label](builder))
    mesh = _mesh(rng, 2 if _heavy(label, program) else 3)
    capacity = _capacity(rng, program, mesh) if rng.random() < 0.35 else None
    return Case(program, mesh, capacity, label)


def _heavy(label: str, program: Program) -> bool:
    """Whether three axes are too many for the judge: wide fans, those that share a parameter too, and what has
    three dims for every expert and back."""
    read = [name for item in program.body.items if isinstance(item, Einsum) for name in item.operands]
    params = {s.value for s in program.body.stored if s.kind is Kind.PARAM}
    return label in ("fan5", "back", "whole") or (label.startswith("fan") and any(read.count(p) > 1 for p in params))


def _mesh(rng: random.Random, most: int) -> Mesh:
    count = rng.choice([1, 2, 2, 3, 3])
    sizes = [rng.choice([1, 2, 2, 2, 3, 4, 4, 4, 4]) for _ in range(count)]
    while sum(size > 1 for size in sizes) > most:
        sizes[rng.randrange(count)] = 1
    return Mesh(tuple(zip("xyz", sizes, strict=False)))


TINY = [1, 2, 3, 4, 6, 8, 12]
# Large enough for arithmetic, HBM and links to compete. The awkward ones: 1021 divides by nothing,
# 1022 by 2, 1020 by 4 and 3, 1026 by 2 and 3.
LARGE = [768, 2048, 3072, 4096, 6144, 16384]
AWKWARD = [1020, 1021, 1022, 1026, 2052, 4092, 8190]


def _sizes(rng: random.Random) -> dict[str, int]:
    """Sizes as in decoding, as in prefill, or tiny ones. Q is even, L at most M, C equals E."""
    kind = rng.choice(["decode", "decode", "decode", "prefill", "prefill", "prefill", "tiny"])
    odd = rng.choice([0.05, 0.3, 0.7])
    sizes = {letter: rng.choice(AWKWARD if rng.random() < odd else LARGE) for letter in LETTERS}
    if kind == "decode":
        sizes |= {"B": rng.choice([1, 2, 3, 4, 6, 8, 16, 64]), "L": rng.choice([1, 1, 2, 6])}
    if kind == "tiny":
        sizes = {letter: rng.choice(TINY) for letter in LETTERS}
    else:
        sizes |= {"Q": rng.choice([64, 126, 128, 250, 256]), "K": rng.choice([6, 8, 16, 48])}
        sizes |= {letter: rng.choice(TINY) for letter in LETTERS if rng.random() < 0.06}
    sizes["Q"] += sizes["Q"] % 2
    sizes["L"] = min(sizes["L"], sizes["M"])
    sizes["C"] = sizes["E"]
    return sizes


def _capacity(rng: random.Random, program: Program, mesh: Mesh) -> float | None:
    """A capacity between the largest and, about, the smallest need; None where little is stored or much."""
    sizes = dict(program.phase("main").sizes)
    whole = [
        _bytes(program, sizes, placed.item.value) * placed.times
        for placed in walk(program.body)
        if isinstance(placed.item, Stored) and placed.item.kind is not Kind.INPUT
    ]
    if not whole or len(whole) > 4:
        return None
    least = sum(whole) / mesh.chips
    return float(round(least + (sum(whole) - least) * rng.choice([0.02, 0.1, 0.4]))) + 1.0


def _bytes(program: Program, sizes: dict[str, int], value: str) -> float:
    tensor = program.table()[value]
    total = tensor.dtype.bits / 8
    for dim in tensor.dims:
        total *= sizes[dim]
    return total
