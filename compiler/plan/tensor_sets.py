"""Sets of tensors of each layer that come from the host, in place of all of its weights or caches.

A layer that comes needs room beside the one that runs: where chips lack little memory, few whole layers free less than
they bring, and the fewest bytes come with few tensors of many layers. So all sets are gone over at once, in all counts
of layers, as arrays. What each takes at the least bounds all plans. With the layouts of plans that were found it is
known, too, in how many layers a set has to be streamed to fit, and what that takes: the one that takes least is planned
next, and then what its layouts say of others is looked at.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TypeVar

import numpy as np

from ...cost.estimate import local_bytes
from ...cost.streamed_sets import Bools, Floats, StreamedSets, stored_by_count
from ...cost.streams import CopyBytes, HostFull, bytes_moved, fetch_costs
from ...ir.diagnostics import EsccError
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, stored_in
from ...ir.record import record
from ...ir.spmd import SpmdProgram, SpmdValue
from ...ir.streams import copies_held, host_tensors, restreamed
from ...passes.options import Options
from ...passes.plan import Cutoff, NoPlan
from .compiled import Compilation, CompiledPhase
from .streamed_layers import WORTH, Family, Quickest, layers_least_s, of_layers, refuse, streamed_names, streaming

MOST_SETS = 1024  # that are gone over: of more the smallest tensors are streamed together
NEAR = 0.02  # of the time: what may by bounds be less by no more is not planned for that alone
PRICED = 8  # sets of which gathers are priced, too, with layouts that were found
MOST_PLANNED = 3  # sets
ROUNDING = 1e-12  # relative: of sums of bytes

Found = TypeVar("Found")


@record
class Sets:
    """Sets of the tensors called `names`: `members` [sets, tensors]; `small` [tensors]: those that a set has all of, or
    none. A set stands for all that have as many of the tensors that are alike: `alike` [sets, tensors] has those."""

    names: tuple[str, ...]
    members: Bools
    small: Bools
    alike: Bools

    @property
    def at_most(self) -> Bools:
        """The sets, each with all small tensors."""
        return self.members | self.small

    @property
    def at_least(self) -> Bools:
        """The sets without small tensors."""
        return self.members & ~self.small

    def of(self, row: int) -> tuple[str, ...]:
        """The names of a set's tensors."""
        return tuple(name for name, member in zip(self.names, self.members[row], strict=True) if member)


def sets_of(
    names: Sequence[str], always: Sequence[str], alike: Mapping[str, object], size: Mapping[str, float]
) -> Sets:
    """All sets of tensors, with those that are `always` there, of tensors that are `alike` the first ones. Of too many
    the smallest by `size` are taken together."""
    classes: dict[object, list[int]] = {}
    for n, name in enumerate(names):
        if name not in always:
            classes.setdefault(alike[name], []).append(n)
    every = sorted(classes.values(), key=lambda one: (-size[names[one[0]]], one[0]))
    small: list[int] = []
    while math.prod(len(one) + 1 for one in every) * (2 if small else 1) > MOST_SETS:
        small += every.pop()
    choices = [[one[:n] for n in range(len(one) + 1)] for one in every] + ([[[], small]] if small else [])
    members = np.zeros((math.prod(map(len, choices)), len(names)), dtype=bool)
    members[:, [name in always for name in names]] = True
    whole = members.copy()
    for row, chosen in enumerate(product(*choices)):
        members[row, [n for one in chosen for n in one]] = True
        whole[row, [n for one, every in zip(chosen, choices, strict=True) if one for n in every[-1]]] = True
    return Sets(tuple(names), members, np.isin(np.arange(len(names)), small), whole)


@record
class Turn:
    """A set by its row and in how many layers it is streamed, by its place among counts; and what that may take."""

    seconds: float
    fetched_s: float
    row: int
    count: int


@dataclass
class SetFamily(Family[Found]):
    """A family that leaves most room, of whole layers and of sets of their tensors. `mesh`: of all chips."""

    phases: Sequence[str]
    mesh: Mesh
    options: Options
    tried_sets: dict[tuple[int, int], Found | EsccError] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def least_copies(self) -> Sequence[Mapping[str, CopyBytes]]:
        """What a chip has at the least of each stored tensor, in each phase."""

    @abstractmethod
    def sets_least_s(self) -> Floats:
        """What all take at the least with each set in each count of layers [sets, counts]; infinite where none fits."""

    @abstractmethod
    def seeds(self) -> Iterator[Found]:
        """What was found whose layouts may serve sets."""

    @abstractmethod
    def stages(self, found: Found) -> Sequence[Compilation]:
        """What was found, stage by stage."""

    @abstractmethod
    def divided(self, found: Found, program: Program) -> Sequence[Program]:
        """A program, divided in stages as what was found is."""

    @abstractmethod
    def computing_s(self, found: Found, stage: int) -> Sequence[float]:
        """What one call of each phase takes in a stage, without waiting for the host."""

    @abstractmethod
    def together_s(self, found: Found, phase: int, each_s: Sequence[Floats]) -> Floats:
        """Seconds of all calls of a phase; `each_s`: of one in each stage."""

    @abstractmethod
    def laid_out(self, program: Program, below: float) -> Found:
        """What is planned of a program. Raises as `planned` does."""

    @cached_property
    def counts(self) -> range:
        """How many layers may be streamed: all, where some tensors have their place with the host."""
        return range(self.layers if self.program.on_host else 0, self.layers + 1)

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The program with all streamed that may be, by count."""
        return tuple(map(self.streaming, self.counts))

    @cached_property
    def sets(self) -> Sets:
        """The sets of what may be streamed."""
        may, every = set(streamed_names(self.program, self.kinds)), self.least_copies()
        stored = {one.value: (one, at) for one, at in stored_in(self.program.body).items() if one.value in may}
        sizes = {name: tuple(copies[name] for copies in every) for name in stored}
        repeats = {name: tuple(repeat.name for repeat in at.repeats) for name, (_, at) in stored.items()}
        alike = {name: (one.kind, repeats[name], sizes[name]) for name, (one, _) in stored.items()}
        largest = {name: max(one.stored for one in sizes[name]) for name in stored}
        return sets_of(tuple(stored), self.program.on_host, alike, largest)

    def what(self, row: int) -> tuple[frozenset[Kind], tuple[str, ...]]:
        """The kinds of which a set has all tensors, and the names of its others."""
        of, places = set(self.sets.of(row)), dict(self.program.places)
        whole = {kind: set(streamed_names(self.program, {kind})) - set(places) for kind in self.kinds}
        kinds = frozenset(kind for kind, names in whole.items() if names and names <= of)
        others = of.difference(places, *(whole[kind] for kind in kinds))
        return kinds, tuple(name for name in self.sets.names if name in others)

    def streaming_set(self, row: int, count: int) -> Program:
        """The program with a set streamed in so many layers."""
        kinds, tensors = self.what(row)
        return streaming(self.program, kinds.union(tensors), self.counts[count], self.ahead)

    def known(self) -> Iterator[tuple[Bools, Found | EsccError]]:
        """What was planned, and which sets in which counts [sets, counts] have no more room."""
        for (kinds, layers), one in self.tried.items():
            yield self._no_more(set(streamed_names(self.program, kinds)), layers), one
        for (row, count), one in self.tried_sets.items():
            yield self._no_more(set(self.sets.of(row)), self.counts[count]), one

    def _no_more(self, names: set[str], layers: int) -> Bools:
        others = [name not in names for name in self.sets.names]
        every = self.sets.alike | self.sets.small
        counts, within = np.asarray(self.counts), np.logical_not(np.any(every[:, others], axis=1))
        found: Bools = np.logical_and.outer(within, counts <= layers) | (counts == 0)  # nothing has less room than none
        return found

    def full_sets(self) -> Bools:
        """Which sets in which counts have more with hosts than what did not fit there."""
        found = np.zeros((len(self.sets.members), len(self.counts)), dtype=bool)
        for (kinds, layers), one in self.tried.items():
            if isinstance(one, HostFull):
                names = set(streamed_names(self.program, kinds))
                has = [name in names for name in self.sets.names]
                more = np.all(self.sets.at_least[:, has], axis=1)
                found |= np.logical_and.outer(more, np.asarray(self.counts) >= layers)
        return found

    def turn(self, most: float) -> Turn | None:
        """The set to plan next: the one that takes least with layouts that were found, if that is less than `most`, or
        the one that may by bounds, unless it is nearly as much. None where there is neither, or nothing fits."""
        if isinstance(self.tried.get(self.key(self.layers)), NoPlan):
            return None
        least_s = self.sets_least_s()
        if least_s.min() * (1 + WORTH) >= most:
            return None
        turns = [one for seed in self.seeds() for one in self._turns(seed, most)]
        if turns:
            return min(turns, key=lambda one: (one.seconds, one.fetched_s))
        least_s[[row for row, _ in self.tried_sets], [count for _, count in self.tried_sets]] = math.inf
        least_s[:, np.asarray(self.counts) == 0] = math.inf
        row, count = map(int, np.unravel_index(least_s.argmin(), least_s.shape))
        seconds = float(least_s[row, count])
        return Turn(seconds, 0.0, row, count) if seconds * (1 + NEAR) < most and seconds < math.inf else None

    def _turns(self, seed: Found, most: float) -> Iterator[Turn]:
        """The sets that take less than `most` with the layouts of a seed, each in as few layers as fit; the first of
        them with what waits for gathers."""
        members, stages = self.sets.members, self.stages(seed)
        divided = [self.divided(seed, program) for program in self.programs]
        fits = np.ones((len(members), len(self.counts)), dtype=bool)
        held: list[list[StreamedSets]] = []
        for n, stage in enumerate(stages):
            programs = [every[n] for every in divided]
            stored = stored_by_count(programs)
            held.append([])
            for one in stage:
                table = StreamedSets.of(self.sets.names, stored, _copies(one, programs[-1]), one.spmd.micro_batches)
                bytes_ = table.stored_bytes(members)
                room = self.options.capacity - float(one.memory.worst.bytes)
                fits &= bytes_ <= min(room, self.options.stored_bytes) * (1 + ROUNDING)
                held[-1].append(table)
        count, rows = fits.argmax(axis=1), np.arange(len(members))
        seconds, fetched_s = np.zeros(len(members)), np.zeros(len(members))
        for phase in range(len(stages[0])):
            each_s = []
            for n, stage in enumerate(stages):
                mesh, hardware = stage[phase].spmd.mesh, stage[phase].hardware
                comes_s = held[n][phase].fetched_s(members, mesh, hardware)[rows, count]
                fits[~np.isfinite(comes_s)] = False
                comes_s[~np.isfinite(comes_s)] = 0.0  # it does not fit, whatever it takes
                own_s = self.computing_s(seed, n)[phase]
                each_s.append(np.maximum(own_s, comes_s) if self.ahead else own_s + comes_s)
                fetched_s += comes_s
            seconds += self.together_s(seed, phase, each_s)
        seconds[~fits.any(axis=1)] = math.inf
        for row in np.lexsort((rows, fetched_s, seconds))[:PRICED]:
            at = int(row), int(count[row])
            if seconds[row] * (1 + WORTH) < most and self.counts[at[1]] and not self._was_tried(at):
                exactly_s = self._exactly_s(seed, *at)
                if exactly_s * (1 + WORTH) < most:
                    yield Turn(exactly_s, float(fetched_s[row]), *at)

    def _was_tried(self, at: tuple[int, int]) -> bool:
        kinds, tensors = self.what(at[0])
        return at in self.tried_sets or (not tensors and (kinds, self.counts[at[1]]) in self.tried)

    def _exactly_s(self, seed: Found, row: int, count: int) -> float:
        """What the layouts of a seed take with a set streamed, with all that waits for it."""
        programs, stages = self.divided(seed, self.streaming_set(row, count)), self.stages(seed)
        together_s = 0.0
        for phase in range(len(stages[0])):
            each_s = []
            for n, stage in enumerate(stages):
                try:
                    waiting_s = _waiting_s(stage[phase], programs[n])
                except HostFull:
                    return math.inf
                each_s.append(np.asarray(self.computing_s(seed, n)[phase] + waiting_s))
            together_s += float(self.together_s(seed, phase, each_s))
        return together_s

    def plan_set(self, turn: Turn, below: float) -> Found | EsccError:
        """What came of planning a set, if that takes less than `below`."""
        at = turn.row, turn.count
        try:
            self.tried_sets[at] = self.laid_out(self.streaming_set(*at), below)
        except (Cutoff, NoPlan, HostFull) as error:
            self.tried_sets[at] = error
        return self.tried_sets[at]


def _streamed(one: CompiledPhase, program: Program) -> SpmdProgram:
    """A phase with streamed what `program` streams."""
    streamed = {each.value: each.streamed for each in stored_in(program.body) if each.streamed is not None}
    return restreamed(one.spmd, streamed)


def _copies(one: CompiledPhase, program: Program) -> dict[str, CopyBytes]:
    """What a chip has of each stored tensor in the layouts of a phase; of what `program` streams, with the host."""
    local = _local(one)
    spmd, sizes = _streamed(one, program), dict((*one.memory.stored, *one.memory.shared))
    hosted = {
        name: CopyBytes(0.0, local(replace(tensor.value, layout=tensor.parts)), *bytes_moved(tensor, spmd, local))
        for name, tensor in host_tensors(spmd).items()
    }
    found = {}
    for each, placed in stored_in(one.spmd.body, Kind.PARAM, Kind.CACHE).items():
        stored = float(sizes[each.value]) / copies_held(each, placed.repeats, one.spmd.micro_batches)
        found[each.value] = replace(hosted.get(each.value, CopyBytes(0.0, 0.0, 0.0, 0.0)), stored=stored)
    return found


def _waiting_s(one: CompiledPhase, program: Program) -> float:
    """How long a call of a phase waits for what `program` streams, in its layouts. Raises HostFull."""
    once_s = {scope.name: scope.once.total_s for scope in one.scopes}
    fetches = fetch_costs(_streamed(one, program), one.hardware, once_s, _local(one))
    return math.fsum(each.waiting_s for each in fetches)


def _local(one: CompiledPhase) -> Callable[[SpmdValue], float]:
    """What a chip holds of values of a phase, in bytes."""

    def local(value: SpmdValue) -> float:
        return float(local_bytes(value, one.spmd))

    return local


def quickest(families: Sequence[SetFamily[Found]], options: Options, below: float = math.inf) -> Quickest[Found]:
    """The quickest of whole layers of all families, or of sets of the tensors of the first one, which has all of them.
    The bound is of all sets, each in any count of layers. Raises as `refuse` does."""
    best, first = of_layers(families, options, below), families[0]
    for _ in range(MOST_PLANNED):
        most = below if best is None else min(below, best.price)
        turn = first.turn(most)
        if turn is None:
            break
        found = first.plan_set(turn, most)
        if isinstance(found, EsccError):
            continue
        price = first.price(found)
        if best is None or price < best.price:
            kinds, tensors = first.what(turn.row)
            best = Quickest(found, kinds, first.counts[turn.count], price, 0.0, tensors)
    bound = float(first.sets_least_s().min())
    if best is None:
        refuse(first, min(bound, layers_least_s(families)), below)
    return replace(best, bound=min(best.price, bound))
