"""The least time where collectives that are ready together run as one, each by the quicker of two protocols.

What runs as one is one collective of all its bytes. So of each set of values that are ready together, and each kind of
collective over some axes, either none runs as one, or some do, by the one protocol or by the other, whose start is then
paid once: all of these are tried, and between them values move by themselves. A value is part of each once, and of
several in one order that is the same for all, or they would wait for each other.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from escc.ir.mesh import Mesh
from escc.ir.program import Einsum

from .builder import Builder, call
from .few_ops import pinned_ends
from .generator import Case
from .layouts import FREE, SAME, Floats, Order, Place, Price, closed, fits, steps
from .optimum import optimum

REDUCING = ("scatter", "reduce")
KINDS = (*REDUCING, "exchange", "gather")  # in the order in which a value is part of them


class Protocol(NamedTuple):
    """A start, and how many times as long as over the links of the paper's chips a byte takes after it."""

    start_s: float
    slow: float

    def seconds(self, link_s: float) -> float:
        return self.start_s + self.slow * link_s


Protocols = Mapping[str, tuple[Protocol, ...]]  # of each kind, one or two
Key = tuple[int, str, Order]  # the number of a set of values, a kind, axes


@dataclass(frozen=True)
class Joining:
    """A case whose collectives go by `protocols`; `together`: sets of values that are ready together."""

    case: Case
    protocols: Protocols
    together: tuple[frozenset[str], ...]

    def least(self) -> float:
        """The least time in seconds."""
        choices = [[None, *self.protocols[kind]] for _, kind, _ in self.keys]
        return min(
            self._with({key: way for key, way in zip(self.keys, ways, strict=True) if way is not None})
            for ways in itertools.product(*choices)
        )

    @property
    def keys(self) -> list[Key]:
        """What may run as one, and starts with something. On more axes than one only sums are reduced as one here: of
        what moves before they are, and after, the judge knows nothing."""
        axes = [a for a, size in enumerate(self.case.mesh.sizes) if size > 1]
        some = [order for n in range(1, len(axes) + 1) for order in itertools.combinations(axes, n)]
        over = sorted(some, key=lambda order: sum(1 << axis for axis in order))
        kinds = [kind for kind in KINDS if any(way.start_s for way in self.protocols[kind])]
        assert len(axes) == 1 or set(kinds) <= set(REDUCING)
        return [(n, kind, order) for n in range(len(self.together)) for kind in kinds for order in over]

    def _with(self, running: Mapping[Key, Protocol]) -> float:
        """The least time if these collectives run, each by one protocol, for all that has to do with them."""
        set_of = {value: n for n, values in enumerate(self.together) for value in values}

        def moving(value: str, shape: tuple[int, ...], top: bool, unit_s: float, times: int) -> Floats:
            assert times == 1, "nothing repeats here"

            def alone(kind: str, _: Order, sent: float) -> float:
                ways = () if kind == FREE else self.protocols[SAME.get(kind, kind)]
                return min((way.seconds(sent * unit_s) for way in ways), default=0.0)

            mesh = self.case.mesh.sizes
            found = apart = closed(steps(shape, mesh, top, alone))
            for key in (key for key in self.keys if key in running and key[0] == set_of.get(value)):
                part = steps(shape, mesh, top, self._part(key, running, unit_s))
                found = np.minimum(found, _then(_then(found, part), apart))
            return found

        return optimum(self.case, moving) + sum(way.start_s for way in running.values())

    @staticmethod
    def _part(key: Key, running: Mapping[Key, Protocol], unit_s: float) -> Price:
        """What being part of a collective takes; no other is looked at."""

        def price(kind: str, axes: Order, sent: float) -> float:
            return running[key].slow * sent * unit_s if (kind, axes) == key[1:] else math.inf

        return price


def _then(first: Floats, second: Floats) -> Floats:
    """The least that the one takes and then the other, between any two layouts."""
    return np.asarray((first[:, :, None] + second[None]).min(axis=1))


class _Plain(random.Random):
    """Takes the first of all choices, so that values are of one type."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]


SIZES = [2, 4, 6, 8, 12, 16, 24]


def joining(seed: int, several: bool = False) -> Joining:
    """A case of a seed: projections of one value, or terms of a sum; on one axis, or `several`."""
    rng = random.Random(seed)
    builder = Builder(_Plain(0), {dim: rng.choice(SIZES) for dim in "BEFGH"})
    if seed % 2 or several:
        x = builder.input("BE")
        made = [builder.einsum("B" + dim, x, builder.param("E" + dim)) for dim in "FGH"[: rng.choice([2, 3])]]
        program, together = builder.program(made), [made]
    else:
        read = [builder.input("BE"), builder.input("BF")]
        made = [builder.einsum("BG", x, builder.param(builder.dims(x)[1] + "G")) for x in read]
        program, together = builder.program([builder.map(call("add", *made))]), [read, made]
    sizes = rng.choice([(2, 2), (2, 4), (4, 2)]) if several else (rng.choice([2, 4, 8]),)
    case = Case(program, Mesh(tuple(zip("xyz", sizes, strict=False))), None, f"joining, seed {seed}")
    case = _alike(pinned_ends(case, seed), rng.random() < 0.6) if rng.random() < 0.8 else case
    own = [rng.choice(REDUCING)] if several else rng.sample(KINDS, 1 if len(together) > 1 else 2)
    return Joining(case, dict(_protocols(rng, own, case)), tuple(map(frozenset, together)))


def _alike(case: Case, contracted: bool) -> Case:
    """The same with all results handed out in one layout, as far as their sizes divide; if `contracted`, what the
    matmuls sum over is split by all axes where that divides, so that sums are to be completed."""
    values, sizes = case.program.table(), dict(case.program.phase("main").sizes)
    ends, mesh = dict(case.ends), case.mesh.sizes
    first, every = ends[case.program.results[0]], tuple(range(len(mesh)))
    wanted = dict.fromkeys(case.program.results, first)
    for op in (item for item in case.program.body.items if isinstance(item, Einsum) and contracted):
        dim = values[op.operands[0]].dims[1]
        for name in op.operands:
            wanted[name] = Place(tuple(every if d == dim else () for d in values[name].dims))
    for value, place in wanted.items():
        if fits(place.dims, [sizes[dim] for dim in values[value].dims], mesh):
            ends[value] = place
    return replace(case, ends=ends)


def _protocols(rng: random.Random, own: list[str], case: Case) -> Iterator[tuple[str, tuple[Protocol, ...]]]:
    """Of each kind its protocols; of those of `own` one starts about as late as what it saves on a value takes, and
    either may wait before that."""
    sizes = dict(case.program.phase("main").sizes)
    value_s = 2 * sizes["B"] * sizes["G"] / 270e9
    for kind in KINDS:
        slow = rng.choice([1.0, 2.0, 3.0])
        wait_s = rng.choice([0.0, 0.0, 0.1, 0.5]) * value_s
        quick = Protocol(wait_s + rng.choice([0.2, 0.5, 1.0, 2.0]) * value_s, slow * rng.choice([0.1, 0.3]))
        yield kind, (Protocol(wait_s, slow), quick) if kind in own else (Protocol(0.0, slow),)
