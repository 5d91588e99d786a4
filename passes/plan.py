"""Plans: what the search has chosen, before it is spelled out as a sharded program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..ir.collective import Collective
from ..ir.diagnostics import Diagnostic, EsccError, InputError
from ..ir.layout import Layout
from ..ir.mesh import Mesh
from ..ir.program import Program
from ..ir.record import record

PROVEN = 1e-9  # a relative gap that counts as none


class Outcome(StrEnum):
    """What came of looking for a plan: OPTIMAL and FEASIBLE are plans, proven cheapest or not; INFEASIBLE and
    UNPROVEN are none, proven or not."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNPROVEN = "unproven"

    @classmethod
    def of(cls, gap: float) -> Outcome:
        """That of a plan which may lie so far above the optimum."""
        return cls.OPTIMAL if gap <= PROVEN else cls.FEASIBLE


class NoPlan(InputError):
    """No plan keeps to what was asked for, or none was found: `outcome` says which."""

    def __init__(self, diagnostics: Iterable[Diagnostic], outcome: Outcome):
        super().__init__(diagnostics)
        self.outcome = outcome


class Cutoff(EsccError):
    """No plan costs less than was asked for. `bound`: what every plan costs at least, as far as that is proven.
    `in_mesh_order`: only layouts were looked at whose axes stand in mesh order, and of others nothing is known."""

    def __init__(self, bound: float, in_mesh_order: bool = False):
        super().__init__(f"every plan costs at least {bound!r}")
        self.bound = bound
        self.in_mesh_order = in_mesh_order


class Objective(StrEnum):
    """What a plan is to have least of. MEMORY: stored bytes on a chip, and of those the least time. COMMUNICATION: the
    time of collectives, and of plans that send nothing the least time. Of others that send the same the one that
    computes least is taken, of one program where few enough are left to tell apart; nothing proves that."""

    TIME = "time"
    COMMUNICATION = "communication"
    MEMORY = "memory"


@record
class OpPlan:
    """How one op runs: the layouts of its operands (the uses of its signature) and of its result."""

    result: str
    uses: tuple[Layout, ...]
    layout: Layout


@record
class Leg:
    """One collective of a value's tree: from a layout that there is to a new one.

    Legs of one `group`, each of another value, run as one collective; None runs alone.
    """

    before: Layout
    after: Layout
    collective: Collective
    group: int | None = None


@record
class Tree:
    """How one value moves: the layout in which it is made, and the collectives, in an order in
    which they can be applied. No two legs lead to one layout."""

    value: str
    root: Layout
    legs: tuple[Leg, ...]


@record
class PhasePlan:
    """What is chosen for one phase.

    `carries`: the layout of each carry, by its name inside. `results`: the layouts in which the
    program's results are handed out. `price` and `bound` are the objective and its proven lower
    bound: seconds for time and communication, bytes for memory. Of the time of one of several phases
    planned together nothing is proven, only of that of all of them: its bound is None. `apart`: no two
    projections run as one, so that ops keep the order of the source; together they may hold more at once.
    `program`: what is planned, its products in the order that is chosen.
    """

    phase: str
    program: Program
    ops: tuple[OpPlan, ...]
    trees: tuple[Tree, ...]
    carries: tuple[tuple[str, Layout], ...]
    results: tuple[tuple[str, Layout], ...]
    price: float
    bound: float | None
    apart: bool = False

    @property
    def gap(self) -> float | None:
        """How far the price may lie above the optimum, relative to the price; None where it has no bound."""
        return None if self.bound is None else relative_gap(self.price, self.bound)

    @property
    def outcome(self) -> Outcome | None:
        """Whether it is proven cheapest; None where nothing is proven of it alone."""
        return None if self.gap is None else Outcome.of(self.gap)


def relative_gap(price: float, bound: float) -> float:
    """How far a price may lie above the optimum, of which a bound is known, relative to the price."""
    return max(0.0, price - bound) / price if price else 0.0


@record
class HandoverPlan:
    """How caches come from one phase to another: a tree for each, from the layout in which the one
    phase leaves it. `price`: seconds for each call of the phase before, all repetitions together."""

    before: str
    after: str
    trees: tuple[Tree, ...]
    price: float


@record
class Timing:
    """Seconds spent on building the problem (bounds included) and in the solver."""

    build_s: float
    solve_s: float


COLUMNS = 10_000  # of a problem whose plans take twice as long to read off as those of small ones


@dataclass
class Work:
    """What searches have looked at, which no clock tells: the plans that they `read` off one by one, as they do where
    memory binds, each as often as it is large."""

    read: float = 0.0

    def add(self, plans: int, columns: int) -> None:
        """Some plans of a problem with so many columns."""
        self.read += plans * (1 + columns / COLUMNS)

    def beyond(self, most: float, begun: float) -> bool:
        """Whether more was read off than `most` since as much was as `begun`."""
        return self.read - begun >= most


@record
class Plan:
    """A plan for each phase, and how caches go from one to the next.

    `stored`: the layout of each parameter, and of what each phase has of its own: its inputs and its
    caches (of several phases those of the last). `price` and `bound` are those of all phases together,
    each as often as it is called, handovers included. `in_mesh_order`: only layouts were looked at whose axes
    stand in mesh order (see `passes/layouts/mesh_order.py`), and the bound is one of these. `parts`: the mesh in
    parts that was searched beside that of whole axes, if any was; `mesh` has the parts that the plan takes.
    `orders_left`: in how many combinations of orders of products nothing was planned; the bound is one of these too.
    `ways_left`: in how many ways of sending tokens once to groups of experts nothing was planned; the bound is not one
    of these.
    """

    mesh: Mesh
    objective: Objective
    stored: tuple[tuple[str, Layout], ...]
    phases: tuple[PhasePlan, ...]
    timing: Timing = field(compare=False)
    handovers: tuple[HandoverPlan, ...] = ()
    price: float = 0.0
    bound: float = 0.0
    in_mesh_order: bool = False
    parts: Mesh | None = None
    orders_left: int = 0
    ways_left: int = 0

    def bounded(self, bound: float) -> Plan:
        """The plan with another bound."""
        own = self.phases
        phases = own if len(own) > 1 else tuple(replace(one, bound=bound) for one in own)
        return replace(self, phases=phases, bound=bound)

    @property
    def gap(self) -> float:
        """How far the price may lie above the optimum, relative to the price."""
        return relative_gap(self.price, self.bound)

    @property
    def least(self) -> float:
        """What every plan costs at the least, of whatever layouts."""
        return 0.0 if self.in_mesh_order else self.bound

    @property
    def outcome(self) -> Outcome:
        """Whether it is proven cheapest of all plans."""
        return Outcome.FEASIBLE if self.in_mesh_order else Outcome.of(self.gap)
