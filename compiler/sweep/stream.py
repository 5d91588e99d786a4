"""Streams of requests: on each slice, the batch that serves them best within what is asked for.

A plan tells, by its layouts, which larger batches it would serve as well; so few batches are planned: one, the
largest that its layouts would serve, and so on, until the next ones are planned and refused. Where memory binds smaller
ones may give more: then batches are planned of which bounds do not show that they give no more than the best, those
that promise most first (`rate_bounds.py`).

All slice shapes of so many chips count. Once one serves a batch, of the others only plans are looked for that give more
tokens a second, first of that batch: bounds mostly show that there are none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import combinations, product

from ...cost.estimate import estimate
from ...cost.hardware import Hardware
from ...cost.memory import memory
from ...ir.diagnostics import InputError, size_text
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ...ir.program import Program
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ...passes.choose import choose
from ...passes.layouts.mesh_order import FEW_AXES
from ...passes.layouts.strategies import live_axes
from ...passes.options import Options
from ...passes.plan import PROVEN, Cutoff, NoPlan, Outcome
from ..plan.compiled import Compilation
from ..plan.pipeline import compile_phases
from ..plan.serving import Served, Stream, beside_bytes, of_stream, served
from ..plan.serving import serving as dims_of
from ..plan.shapes import mesh_name
from ..text.processes import completed
from .grid import comparable
from .points import Asked
from .rate_bounds import RateBounds
from .solve import shapes

BEGIN = 32  # the batch that is planned first
MOST_BATCH = 1 << 16
COARSE = 8  # the next probe is larger by this part of a batch
FINE = 64  # the next plan is smaller by this part of a batch, where that does not do and its estimate did
BEYOND = 2  # batches above the best that are planned, to be sure: the next ones, and the next that are split as it is
MOST_PLANS = 16  # for one slice, of larger and larger batches
MOST_BETWEEN = 24  # plans of a place, of batches that may give more than the best of these
CLOSE = 0.01  # so much more, at the most, is not looked for


class Wanted(StrEnum):
    """What a stream is to have most, or least, of."""

    THROUGHPUT = "throughput"
    COST = "cost"
    LATENCY = "latency"


@record
class Limits:
    """The longest time between tokens, and to the first token, that will do; seconds. None: any."""

    token_s: float | None = None
    first_token_s: float | None = None

    def met_by(self, found: Served) -> bool:
        """Whether a stream is within both."""
        return found.token_s <= (self.token_s or math.inf) and found.first_token_s <= (self.first_token_s or math.inf)


@record
class Place:
    """Where a stream is served: chips of one kind, and how weights and caches are stored (None: as the model has
    them)."""

    hardware: Hardware
    chips: int
    weights: Dtype | None
    caches: Dtype | None


@record
class Found:
    """The best batch of a place: what a stream gets, whether it is proven that for its batch no layouts on any slice
    shape are quicker, and the batches above it that were planned on its shape and do not do, or give no more.
    `most_tokens_per_s`: what the quickest plan of no batch gives more than, on any slice shape, infinite where nothing
    is known of other batches; of batches beyond MOST_BATCH nothing is. `reason`:
    why there is none; `beyond_s`: what a token would take, where that is why. `hbm_fraction`: of the room for a
    program, that each phase was given by itself, so that prompts and batches fit together. `ordered`: the shapes of
    which only layouts with axes in mesh order were looked at, and nothing is proven."""

    place: Place
    mesh: str
    batch: int | None = None
    served: Served | None = None
    proven: bool = False
    refused: tuple[int, ...] = ()
    reason: str | None = None
    beyond_s: float = math.inf
    hbm_fraction: float = 1.0
    ordered: tuple[str, ...] = ()
    most_tokens_per_s: float = math.inf

    @property
    def more(self) -> float:
        """How much more another batch may give, as a share of what this one does."""
        return math.inf if self.served is None else max(0.0, self.most_tokens_per_s / self.served.tokens_per_s - 1)

    @property
    def chip_s_per_million(self) -> float | None:
        """The chip-seconds of a million tokens of output; None where nothing is served."""
        return None if self.served is None else self.served.chips * 1e6 / self.served.tokens_per_s

    @property
    def dollars_per_million(self) -> float | None:
        """What a million tokens of output cost; None where nothing is served, or the chip has no price."""
        price, chip_s = self.place.hardware.dollars_per_chip_hour, self.chip_s_per_million
        return None if price is None or chip_s is None else price / 3600 * chip_s

    @property
    def cost(self) -> float | None:
        """Of a million tokens of output: dollars where the chip has a price, else chip-seconds."""
        return self.chip_s_per_million if self.dollars_per_million is None else self.dollars_per_million


@record
class Request(Asked):
    """A model that serves requests of given lengths. `batch`: one that is given, None for the best. `chunk`: tokens of
    a prompt that are taken in at once."""

    input_tokens: int
    output_tokens: int
    limits: Limits
    wanted: Wanted
    batch: int | None = None
    chunk: int | None = None

    def stream(self, batch: int) -> Stream:
        """The stream, of which so many are decoded at once."""
        return Stream(self.input_tokens, self.output_tokens, batch, self.chunk)


def places(
    chips: Sequence[int], hardware: Sequence[Hardware], weights: Sequence[Dtype | None], caches: Sequence[Dtype | None]
) -> tuple[Place, ...]:
    """All combinations; costs are in dollars where each chip has a price. Raises InputError as `comparable` does."""
    return tuple(Place(*values) for values in product(comparable(hardware), chips, weights, caches))


def serve(
    request: Request, where: Sequence[Place], jobs: int | None = None, scheduler: str | None = None
) -> tuple[Found, ...]:
    """What each place gives, the best first: by throughput for each chip or dollar, or by the time of a token."""
    found = completed(partial(best_at, request), list(where), "planning", jobs, scheduler=scheduler)
    return tuple(sorted(found, key=lambda one: _rank(request.wanted, one)))


def _rank(wanted: Wanted, found: Found) -> tuple[float, ...]:
    if found.served is None:
        return (math.inf, found.beyond_s)
    tie = (float(found.served.chips), found.served.token_s)
    match wanted:
        case Wanted.THROUGHPUT:
            return (-found.served.tokens_per_s, *tie)
        case Wanted.COST:
            return (found.cost or 0.0, *tie)
        case Wanted.LATENCY:
            return (found.served.token_s, *tie)


def best_at(request: Request, place: Place) -> Found:
    """The best batch of one place, on the slice shape that serves it best."""
    try:
        meshes = shapes(place.chips, place.hardware, request.any_shape)
    except InputError as error:
        return Found(place, str(place.chips), reason=error.diagnostics[0].message)
    program = request.program(None, place.weights, place.caches)
    searches = [_Search(request, place, mesh, program) for mesh in meshes]
    batch = request.batch or (1 if request.wanted is Wanted.LATENCY else None)
    best, search = None, searches[0]
    waiting = list(searches)
    while waiting:
        one = waiting.pop(0)
        found = one.only(batch, best) if batch is not None else one.best(best)
        if best is None or _rank(request.wanted, found) < _rank(request.wanted, best):
            best, search = found, one
            if found.batch is not None:
                # What others take for this batch is asked as well: they may take less, and are part of the proof.
                waiting = [other for other in searches if other is not one and found.batch not in other.plans]
    assert best is not None, "a count of chips has a shape"
    if best.batch is None:
        return best
    if batch is None:
        best, search = _best_between(searches, best, search)
    others = [other for other in searches if other is not search]
    ordered = tuple(mesh_name(other.mesh) for other in others if best.batch in other.ordered)
    return replace(best, proven=best.proven and all(best.batch not in other.open for other in others), ordered=ordered)


def _best_between(searches: Sequence[_Search], best: Found, search: _Search) -> tuple[Found, _Search]:
    """The best of all batches that may give more than the best so far, and its search, with what no batch gives more
    than; after so many plans, the best of these."""
    plans = 0
    while plans < MOST_BETWEEN:
        assert best.batch is not None, "there is a best one"
        rate = _tokens_per_s(best)
        asked = [(one, best.batch) for one in searches if best.batch not in one.plans]
        if not asked:
            one = max(searches, key=lambda one: one.bounds.promised)
            if one.bounds.promised <= rate * (1 + CLOSE):
                break
            asked = [(one, one.bounds.next())]
        for one, batch in asked:
            found, plans = one.only(batch, best), plans + 1
            if found.served is not None and found.served.tokens_per_s > _tokens_per_s(best):
                best, search = found, one
    assert best.batch is not None, "there is a best one"
    most = max(_tokens_per_s(best), *(one.bounds.most for one in searches))
    again = search.found(best.batch)  # with all that was planned above it
    return replace(again, most_tokens_per_s=most), search


class _Search:
    """Plans of one place on one slice shape, by their batch."""

    def __init__(self, request: Request, place: Place, mesh: Mesh, program: Program) -> None:
        self.request, self.place, self.mesh, self.program = request, place, mesh, program
        self.capacity = request.hbm_fraction * place.hardware.room_bytes
        names = mesh.names
        axes = (some for count in range(1, len(names) + 1) for some in combinations(names, count))
        self.splits = sorted({mesh.size(*some) for some in axes})  # in how many parts some of the axes split a batch
        self.rate = 0.0  # tokens a second: only plans that give more are looked for
        self.plans: dict[int, tuple[Compilation, Served] | Cutoff | str] = {}
        self.most: dict[int, int] = {}  # by a batch, the largest that its plan would serve
        self.given: dict[int, float] = {}  # bytes of a chip that each phase of a batch's plan was given by itself
        self.beyond: dict[int, float] = {}  # what a token takes in plans that are not within what is asked for
        self.ordered: set[int] = set()  # batches of which only layouts with axes in mesh order were looked at
        self._bounds: RateBounds | None = None
        self.open: set[int] = set()  # others of which it is not proven that no plan is quicker than what was found

    @property
    def bounds(self) -> RateBounds:
        """The most that batches may give here."""
        if self._bounds is None:
            self._bounds = self._first_bounds()
        return self._bounds

    def _first_bounds(self) -> RateBounds:
        """By what a prompt takes at the least, planned alone."""
        stream = self.request.stream(1)
        found = RateBounds(self.splits, stream.output_tokens, MOST_BATCH, self.request.limits.token_s or math.inf)
        try:
            program = of_stream(self.program, stream)
            options = Options(self.place.hardware, capacity_bytes=self.capacity)
            prompt = choose(program, program.phases[0].name, self.mesh, options)
        except InputError:  # which batches meet as well
            return found
        found.set_prompt(0.0 if prompt.in_mesh_order else stream.chunks * prompt.bound)
        return found

    @property
    def good(self) -> dict[int, tuple[Compilation, Served]]:
        """The plans that will do, by their batch."""
        return {b: found for b, found in self.plans.items() if isinstance(found, tuple)}

    def plan(self, batch: int) -> tuple[Compilation, Served] | None:
        """The plan of a batch that will do, None where there is none."""
        if batch not in self.plans:
            self.plans[batch] = self._planned(batch)
        return self.good.get(batch)

    def _planned(self, batch: int) -> tuple[Compilation, Served] | Cutoff | str:
        stream, below_s, least_s = self.request.stream(batch), self._below(self.request.stream(batch)), None
        try:
            program = of_stream(self.program, stream)
            compiled, figures = self._compiled(program, stream, self.capacity)
            least_s = math.fsum(plan.bound for plan in compiled.plans)
            self.bounds.add(batch, least_s, not any(plan.in_mesh_order for plan in compiled.plans))
            beside = beside_bytes(compiled)  # a prompt comes in while the caches of the batch are there
            if figures.hbm_bytes > self.capacity and beside > 0:
                compiled, figures = self._compiled(program, stream, self.capacity - beside)
        except Cutoff as beaten:
            self._note(batch, beaten.in_mesh_order, beaten.bound >= below_s * (1 - PROVEN))
            if least_s is None:
                self.bounds.add(batch, below_s if beaten.in_mesh_order else beaten.bound, not beaten.in_mesh_order)
            return Cutoff(beaten.bound, beaten.in_mesh_order)  # the one that was raised holds all that was searched
        except InputError as error:
            unproven = isinstance(error, NoPlan) and error.outcome is Outcome.UNPROVEN
            self._note(batch, unproven and len(live_axes(self.mesh)) > FEW_AXES, not unproven)
            if least_s is None:
                self.bounds.add(batch, math.inf, isinstance(error, NoPlan) and not unproven)
            return error.diagnostics[0].message
        ordered = any(plan.in_mesh_order for plan in compiled.plans)
        self._note(batch, ordered, compiled.outcome is Outcome.OPTIMAL)
        if figures.hbm_bytes > self.capacity:
            return f"The caches of both phases take {size_text(figures.hbm_bytes)} of a chip."
        if not self.request.limits.met_by(figures):
            self.beyond[batch] = figures.token_s
            return (
                f"With {batch} at once a token takes {1e3 * figures.token_s:.4g} ms and the first "
                f"{1e3 * figures.first_token_s:.4g} ms."
            )
        return compiled, figures

    def _note(self, batch: int, ordered: bool, proven: bool) -> None:
        """Keep what is not known of a batch."""
        if ordered:
            self.ordered.add(batch)
        elif not proven:
            self.open.add(batch)

    def _below(self, stream: Stream) -> float:
        """The seconds of all calls in which a batch gives more than what is known, and where something is served its
        tokens come in time: of others it need not be said how long they take."""
        below_s = stream.batch * stream.output_tokens / self.rate if self.rate else math.inf
        longest_s = self.request.limits.token_s if self.rate or self.good else None
        return below_s if longest_s is None else min(below_s, stream.output_tokens * longest_s * (1 + 2 * PROVEN))

    def _compiled(self, program: Program, stream: Stream, given: float) -> tuple[Compilation, Served]:
        self.given[stream.batch] = given
        options = Options(self.place.hardware, capacity_bytes=given, below=self._below(stream))
        names = [phase.name for phase in program.phases]
        compiled = compile_phases(program, names, self.mesh, options)
        return compiled, served(compiled, stream)

    def only(self, batch: int, known: Found | None = None) -> Found:
        """What a batch gets; nothing where another shape is `known` to give as much."""
        self.rate = _tokens_per_s(known)
        found = self.plan(batch)
        return self._none(batch) if found is None else self.found(batch)

    def best(self, known: Found | None) -> Found:
        """The largest batch that will do, or the one that gives most of those that were planned on the way there.
        Nothing where they give no more than is `known` of another shape."""
        self.rate = _tokens_per_s(known)
        batch = self._begin() if known is None or known.batch is None else self._better(known.batch)
        if batch is None:
            return self._none(1)
        ways = 1
        while len(self.plans) < MOST_PLANS:
            compiled, _ = self.good[batch]
            ways = math.lcm(ways, self._ways(compiled))
            larger = self._larger(compiled, batch)
            if larger > batch:
                done = [larger] if self.plan(larger) is not None else []
            else:
                tried = self._following(batch, ways)
                if not tried:
                    break
                done = self._better_of(tried)
            batch = max([batch, *done])
        self._better_of(sorted({batch - batch % ways for ways in self.splits} - set(self.plans) - {0}, reverse=True))
        good = self.good
        return self.found(max(good, key=lambda b: (good[b][1].tokens_per_s, -b)))

    def _begin(self) -> int | None:
        """A batch that will do, None where none does."""
        batch = BEGIN
        while batch > 1 and self.plan(batch) is None:
            batch //= 2
        return batch if self.plan(batch) is not None else None

    def _better(self, known: int) -> int | None:
        """A batch that will do, where the best that another shape serves is `known`: that, or the next that all chips
        divide, if it gives more here. Where it does not fit here, smaller ones may give more."""
        if self.plan(known) is None and isinstance(self.plans[known], str) and not self.good:
            self.rate = 0.0
            return self._begin()
        chips = self.mesh.chips
        return next((b for b in (known, known - known % chips + chips) if self.plan(b) is not None), None)

    def _better_of(self, batches: Sequence[int]) -> list[int]:
        """Those of some batches that will do, and give more than all before."""
        done = []
        for batch in batches:
            self.rate = max(self.rate, *(figures.tokens_per_s for _, figures in self.good.values()))
            if self.plan(batch) is not None:
                done.append(batch)
        return done

    def _following(self, batch: int, ways: int) -> list[int]:
        """The batches above one that are planned to be sure: the next ones, the next that `ways` divide, which may be
        quicker than those between them, as axes do not split these, and the next that any axes of the mesh split."""
        split = [batch - batch % ways + k * ways for k in range(1, BEYOND + 1)]
        split += [batch - batch % some + some for some in self.splits]
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
        before = self.request.stream(decode_batch(decode.spmd, self.program))
        figures = served(compiled, before)
        step_s = estimate(spmd, self.place.hardware).totals().total_s
        token_s = step_s + batch / self.request.output_tokens * figures.prefill_s
        held = memory(decode.spmd).stored_bytes
        more = float(memory(spmd).stored_bytes - held)
        larger = replace(
            figures,
            token_s=token_s,
            first_token_s=self.request.stream(batch).first_token_s(step_s, figures.prefill_s),
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

    def _none(self, batch: int) -> Found:
        """That there is nothing, for what was said of a batch."""
        said = self.plans.get(batch)
        reason = said if isinstance(said, str) else "Another slice shape gives as many tokens a second."
        return Found(self.place, mesh_name(self.mesh), reason=reason, beyond_s=self.beyond.get(batch, math.inf))

    def found(self, batch: int) -> Found:
        """What a batch gets whose plan will do."""
        compiled, figures = self.good[batch]
        refused = tuple(sorted(b for b in self.plans if b > batch and b not in self.good))
        proven = compiled.outcome is Outcome.OPTIMAL
        share = self.given[batch] / self.place.hardware.room_bytes
        return Found(self.place, mesh_name(self.mesh), batch, figures, proven, refused, hbm_fraction=share)


def _tokens_per_s(known: Found | None) -> float:
    return 0.0 if known is None or known.served is None else known.served.tokens_per_s


def decode_batch(spmd: SpmdProgram, program: Program) -> int:
    """The batch of a decode step."""
    return dict(spmd.sizes)[dims_of(program).batch]
