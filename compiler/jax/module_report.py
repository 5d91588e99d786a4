"""What a compiler makes of an emitted module at full size, beside the plan: what it sends, holds, copies and hides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from ...ir.choices import chooses
from ...ir.collective import CollectiveKind
from ...ir.diagnostics import InternalError
from ...ir.record import record
from ..plan.compiled import CompiledPhase
from .hlo import ModuleTransfer, transfers_of
from .hlo_schedule import Copy, Hidden, copies_of, hidden_in
from .hlo_text import ModuleError, read_module
from .planned import planned_memory, planned_of

SMALL_BYTES = 1024  # collectives of less are none of the plan's, and listed apart
COPY_BYTES = 16e6  # of parameters and caches, from here on
ROOM = 1.05  # of what was planned: a module that takes more is asked to do with so much
TOLERANCE = 0.01  # of the bytes that loops and chosen rows send; of others nothing is let pass


@record
class ModuleReport:
    """What compiling an emitted program for devices showed, which are called `compiled_for`.

    `planned` and `module`: how often each collective runs, in the plan and in the optimised module; `small`: those of
    the module that send less than SMALL_BYTES, of kinds that the plan has not. `memory`: bytes of a chip, by what takes
    them, `live` the most that is live at once, between which room may be lost; `planned_bytes`: the most that it holds
    by the plan, with room for as many chosen entries as the module has. `copies`: of parameters and caches, of
    COPY_BYTES and more. `hidden`: what runs beside the collectives that do not wait; `nearly`: the plan has loops,
    whose transfers the compiler may merge with others, or chosen values, with whose rows it may send what says which
    they are.
    `short_bytes`: the most that it holds where the compiler is asked to do with ROOM times what was planned, None
    where it takes no more anyway, or where the compiler does not say. `far_bytes`: the most that it holds with nothing
    in the memory near the arithmetic, asked where it takes less than was planned by as much.
    """

    compiled_for: str
    planned: Counter[ModuleTransfer]
    module: Counter[ModuleTransfer]
    small: Counter[ModuleTransfer]
    memory: dict[str, int]
    planned_bytes: float
    copies: tuple[Copy, ...]
    hidden: tuple[Hidden, ...]
    nearly: bool
    short_bytes: float | None = None
    far_bytes: float | None = None

    @property
    def bytes_by_kind(self) -> dict[CollectiveKind, tuple[Fraction, Fraction]]:
        """Of each kind the bytes that a chip sends by the plan, and those in the module."""
        sums = [_by_kind(which) for which in (self.planned, self.module)]
        return {kind: (sums[0][kind], sums[1][kind]) for kind in CollectiveKind if sums[0][kind] or sums[1][kind]}

    @property
    def equal(self) -> bool:
        """Whether the module sends what was planned, of each kind; `nearly` all but TOLERANCE of it."""
        allowed = TOLERANCE if self.nearly else 0.0
        return all(abs(found - wanted) <= allowed * wanted for wanted, found in self.bytes_by_kind.values())

    @property
    def peak_bytes(self) -> int:
        """The most that the module holds on a chip."""
        return peak_of(self.memory)


def peak_of(found: Mapping[str, int]) -> int:
    """The most bytes that a module holds on a chip: what it is given, what it makes elsewhere, and temporaries."""
    return found["argument"] + found["output"] - found["alias"] + found["temp"]


def report_of(
    compiled: CompiledPhase,
    compiled_for: str,
    text: str,
    memory: dict[str, int],
    short_bytes: float | None = None,
    far_bytes: float | None = None,
) -> ModuleReport:
    """What the text of an optimised module and the memory that it takes say. Raises InternalError where it cannot be
    read."""
    spmd = compiled.spmd
    try:
        module = read_module(text)
        every = transfers_of(module, spmd.mesh)
        found = Counter({sent: times for sent, times in every.items() if sent.bytes and not sent.routing})
        planned = planned_of(compiled)
        kinds = {sent.kind for sent in planned}
        small = Counter({s: n for s, n in found.items() if s.bytes < SMALL_BYTES and s.kind not in kinds})
        copies, hidden = copies_of(module, COPY_BYTES), hidden_in(module)
    except ModuleError as error:
        raise InternalError(f"the compiled module of phase `{spmd.phase}` cannot be read: {error}") from error
    nearly = bool(compiled.estimate.loops) or chooses(spmd)
    held = float(planned_memory(compiled).total_bytes)
    sent = planned, found - small, small
    return ModuleReport(compiled_for, *sent, memory, held, copies, hidden, nearly, short_bytes, far_bytes)


def _by_kind(collectives: Counter[ModuleTransfer]) -> dict[CollectiveKind, Fraction]:
    sums = dict.fromkeys(CollectiveKind, Fraction(0))
    for sent, times in collectives.items():
        sums[sent.kind] += sent.bytes * times
    return sums
