"""Streams of requests: on each slice, the batch that serves them best within what is asked for.

A plan tells, by its layouts, which larger batches it would serve as well; so few batches are planned: one, the
largest that its layouts would serve, and so on, until the next ones are planned and refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import product

from ...cost.estimate import estimate
from ...cost.hardware import Hardware
from ...cost.memory import memory
from ...ir.diagnostics import InputError
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.spmd import SpmdProgram
from ...passes.options import Options
from ...passes.plan import Outcome
from ..plan.compiled import Compilation
from ..plan.pipeline import compile_phases
from ..plan.serving import Served, Stream, beside_bytes, of_stream, served
from ..plan.serving import serving as dims_of
from ..plan.shapes import mesh_name
from ..text.processes import completed
from .points import Asked
from .solve import shapes

BEGIN = 32  # the batch that is planned first
MOST_BATCH = 1 << 16
COARSE = 8  # the next probe is larger by this part of a batch
FINE = 64  # the next plan is smaller by this part of a batch, where that does not do and its estimate did
BEYOND = 2  # batches above the best that are planned, to be sure: the next ones, and the next that are split as it is
MOST_PLANS = 16  # for one slice


class Wanted(StrEnum):
    """What a stream is to have most, or least, of."""

    THROUGHPUT = "throughput"
    COST = "cost"
    LATENCY = "latency"


@dataclass(frozen=True)
class Limits:
    """The longest time between tokens, and to the first token, that will do; seconds. None: any."""

    token_s: float | None = None
    first_token_s: float | None = None

    def met_by(self, found: Served) -> bool:
        """Whether a stream is within both."""
        return found.token_s <= (self.token_s or math.inf) and found.first_token_s <= (self.first_token_s or math.inf)


@dataclass(frozen=True)
class Place:
    """Where a stream is served: chips of one kind, and how weights and caches are stored (None: as the model has
    them)."""

    hardware: Hardware
    chips: int
    weights: Dtype | None
    caches: Dtype | None


@dataclass(frozen=True)
class Found:
    """The best batch of a place: what a stream gets, whether that is proven for its batch, and the batches above it
    that were planned and do not do. `reason`: why there is none. `hbm_fraction`: of the room for a program, that each
    phase was given by itself, so that prompts and batches fit together."""

    place: Place
    mesh: str
    batch: int | None = None
    served: Served | None = None
    proven: bool = False
    refused: tuple[int, ...] = ()
    reason: str | None = None
    hbm_fraction: float = 1.0

    @property
    def dollars_per_million(self) -> float | None:
        """What a million tokens of output cost; None where the chip has no price."""
        price = self.place.hardware.dollars_per_chip_hour
        if self.served is None or price is None:
            return None
        return price / 3600 * self.served.chips * 1e6 / self.served.tokens_per_s


@dataclass(frozen=True)
class Request(Asked):
    """A model that serves requests of given lengths. `batch`: one that is given, None for the best. `chunk`: tokens of
    a prompt that are taken in at once."""

    input_tokens: int
    output_tokens: int
    limits: Limits
    wanted: Wanted
    batch: int | None = None
    chunk: int | None = None


def places(
    chips: Sequence[int], hardware: Sequence[Hardware], weights: Sequence[Dtype | None], caches: Sequence[Dtype | None]
) -> tuple[Place, ...]:
    """All combinations."""
    return tuple(Place(*values) for values in product(hardware, chips, weights, caches))


def serve(
    request: Request, where: Sequence[Place], jobs: int | None = None, scheduler: str | None = None
) -> tuple[Found, ...]:
    """What each place gives, the best first: by throughput for each chip or dollar, or by the time of a token."""
    found = completed(partial(best_at, request), list(where), "planning", jobs, scheduler=scheduler)
    return tuple(sorted(found, key=lambda one: _rank(request.wanted, one)))


def _rank(wanted: Wanted, found: Found) -> tuple[float, ...]:
    if found.served is None:
        return (math.inf,)
    tie = (float(found.served.chips), found.served.token_s)
    match wanted:
        case Wanted.THROUGHPUT:
            return (-found.served.tokens_per_s, *tie)
        case Wanted.COST:
            cost = found.dollars_per_million
            return (found.served.chips / found.served.tokens_per_s if cost is None else cost, *tie)
        case Wanted.LATENCY:
            return (found.served.token_s, *tie)


def best_at(request: Request, place: Place) -> Found:
    """The best batch of one place."""
    try:
        mesh = shapes(place.chips, place.hardware, request.any_shape)[0]
    except InputError as error:
        return Found(place, str(place.chips), reason=error.diagnostics[0].message)
    search = _Search(request, place, mesh)
    batch = request.batch or (1 if request.wanted is Wanted.LATENCY else None)
    return search.only(batch) if batch is not None else search.best()


class _Search:
    """Plans of one place by their batch."""

    def __init__(self, request: Request, place: Place, mesh: Mesh) -> None:
        self.request, self.place, self.mesh = request, place, mesh
        self.program = request.program(None, place.weights, place.caches)
        capacity = request.hbm_fraction * place.hardware.room_bytes
        self.capacity = capacity
        self.reserved = 0.0  # bytes of a chip, for a prompt that comes in while the caches of a batch are there
        self.plans: dict[int, tuple[Compilation, Served] | str] = {}
        self.most: dict[int, int] = {}  # by a batch, the largest that its plan would serve
        self.given: dict[int, float] = {}  # bytes of a chip that each phase of a batch's plan was given by itself

    def plan(self, batch: int) -> tuple[Compilation, Served] | None:
        """The plan of a batch that will do, None where there is none."""
        if batch not in self.plans:
            self.plans[batch] = self._planned(batch)
        found = self.plans[batch]
        return None if isinstance(found, str) else found

    def _planned(self, batch: int) -> tuple[Compilation, Served] | str:
        stream = self._stream(batch)
        try:
            program = of_stream(self.program, stream)
            compiled, figures = self._compiled(program, stream)
            beside = beside_bytes(compiled, figures)
            if figures.hbm_bytes > self.capacity and beside > self.reserved:
                self.reserved = beside
                compiled, figures = self._compiled(program, stream)
        except InputError as error:
            return error.diagnostics[0].message
        if figures.hbm_bytes > self.capacity:
            return f"The caches of both phases take {figures.hbm_bytes / 1e9:.1f} GB of a chip."
        if not self.request.limits.met_by(figures):
            return (
                f"With {batch} at once a token takes {1e3 * figures.token_s:.4g} ms and the first "
                f"{1e3 * figures.first_token_s:.4g} ms."
            )
        return compiled, figures

    def _compiled(self, program: Program, stream: Stream) -> tuple[Compilation, Served]:
        self.given[stream.batch] = self.capacity - self.reserved
        options = Options(self.place.hardware, capacity_bytes=self.given[stream.batch])
        names = [phase.name for phase in program.phases]
        compiled = compile_phases(program, names, self.mesh, options)
        return compiled, served(compiled, stream)

    def _stream(self, batch: int) -> Stream:
        return Stream(self.request.input_tokens, self.request.output_tokens, batch, self.request.chunk)

    def only(self, batch: int) -> Found:
        """What a batch gets."""
        found = self.plan(batch)
        if found is None:
            return Found(self.place, mesh_name(self.mesh), reason=str(self.plans[batch]))
        return self._found(batch, found)

    def best(self) -> Found:
        """The largest batch that will do; or smaller ones where they give more tokens a second."""
        batch = self._begin()
        if batch is None:
            return self.only(1)
        ways = 1
        while len(self.plans) < MOST_PLANS:
            planned = self.plan(batch)
            assert planned is not None, "it does"
            compiled, _ = planned
            ways = math.lcm(ways, self._ways(compiled))
            larger = self._larger(compiled, batch)
            tried = [larger] if larger > batch else self._following(batch, ways)
            if not tried:
                break
            done = [b for b in tried if self.plan(b) is not None]
            batch = max([batch, *done])
        good = {b: found for b, found in self.plans.items() if not isinstance(found, str)}
        best = max(good, key=lambda b: (good[b][1].tokens_per_s, -b))
        return self._found(best, good[best])

    def _begin(self) -> int | None:
        """A batch that will do, None where none does."""
        batch = BEGIN
        while batch > 1 and self.plan(batch) is None:
            batch //= 2
        return batch if self.plan(batch) is not None else None

    def _following(self, batch: int, ways: int) -> list[int]:
        """The batches above one that are planned to be sure: the next ones, and the next that `ways` divide, which may
        be quicker than those between them, as axes do not split these."""
        split = [batch - batch % ways + k * ways for k in range(1, BEYOND + 1)]
        return sorted({*range(batch + 1, batch + 1 + BEYOND), *split} - set(self.plans))

    def _larger(self, compiled: Compilation, batch: int) -> int:
        """The largest batch that the layouts of a plan would serve, below those that they divide as well and whose own
        plans do not do; the batch itself where there is none."""
        ways = self._ways(compiled)
        if batch not in self.most:
            self.most[batch] = ways * self._most(compiled, batch // ways, ways)
        count = self.most[batch] // ways
        refused = min((b // ways for b in self.plans if b > batch and b % ways == 0), default=None)
        if refused is not None:  # the estimate was too good: a little less of it, at most half of the way back
            below = refused - max(1, refused // FINE)
            count = min(count, max(below, (batch // ways + refused) // 2))
        return ways * count

    def _most(self, compiled: Compilation, count: int, ways: int) -> int:
        """How many times `ways` the layouts of a plan would serve at most, so many or more: probed by steps that grow
        with the count, up to the first octave that has none, then by halves from the last that would to the next."""
        last, beyond, probe = count, None, count
        while (probe := probe + max(1, probe // COARSE)) <= min(2 * last, MOST_BATCH // ways):
            if self._serves(compiled, ways * probe):
                last, beyond = probe, None
            else:
                beyond = beyond or probe
        beyond = beyond or min(probe, MOST_BATCH // ways + 1)
        while beyond - last > 1:
            middle = (last + beyond) // 2
            if self._serves(compiled, ways * middle):
                last = middle
            else:
                beyond = middle
        return last

    def _serves(self, compiled: Compilation, batch: int) -> bool:
        decode = compiled.phases[1]
        spmd = self._resized(decode.spmd, batch)
        before = self._stream(decode_batch(decode.spmd, self.program))
        figures = served(compiled, before)
        step_s = estimate(spmd, self.place.hardware).totals().total_s
        token_s = step_s + batch / self.request.output_tokens * figures.prefill_s
        held = memory(decode.spmd).stored_bytes
        more = float(memory(spmd).stored_bytes - held)
        larger = replace(
            figures,
            token_s=token_s,
            first_token_s=self._stream(batch).first_token_s(step_s, figures.prefill_s),
            hbm_bytes=figures.hbm_bytes + more,
        )
        return larger.hbm_bytes <= self.capacity and self.request.limits.met_by(larger)

    def _ways(self, compiled: Compilation) -> int:
        """In how many parts the layouts of a plan's decode step split the batch: they serve multiples of these."""
        dim, spmd = dims_of(self.program).batch, compiled.phases[1].spmd
        return math.lcm(
            *(
                spmd.mesh.size(*axes)
                for v in spmd.values
                for d, axes in zip(v.dims, v.layout.dims, strict=True)
                if d == dim
            )
        )

    def _resized(self, spmd: SpmdProgram, batch: int) -> SpmdProgram:
        """A decode step with another batch, which the ways that it is split in divide, in the same layouts."""
        dim = dims_of(self.program).batch
        return replace(spmd, sizes=tuple((d, batch if d == dim else size) for d, size in spmd.sizes))

    def _found(self, batch: int, found: tuple[Compilation, Served]) -> Found:
        compiled, figures = found
        refused = tuple(sorted(b for b, one in self.plans.items() if b > batch and isinstance(one, str)))
        proven = compiled.outcome is Outcome.OPTIMAL
        share = self.given[batch] / self.place.hardware.room_bytes
        return Found(self.place, mesh_name(self.mesh), batch, figures, proven, refused, hbm_fraction=share)


def decode_batch(spmd: SpmdProgram, program: Program) -> int:
    """The batch of a decode step."""
    return dict(spmd.sizes)[dims_of(program).batch]
