"""What a plan is asked to be: what it minimises, on which hardware, within which memory."""

from __future__ import annotations

import math
from dataclasses import field

from ..cost.hardware import Hardware
from ..cost.stages import NO_PASSING, Passing
from ..ir.program import Pin
from ..ir.record import record
from .ilp.solver import Settings
from .plan import Objective, Work


@record
class Options:
    """What to minimise, on which hardware, within which memory.

    `capacity_bytes` bounds what a chip holds at any program point: what is stored, live values and
    gathered copies; None takes the hardware's. `stored_bytes` bounds parameters and caches alone.
    `pins` hold beside those of the program, and values lie in none of the layouts `barred`. `overlap`: whether steps of
    the program that is made of the plan are put into loops; the choice does not count on what they hide. `below`: only
    plans that cost less are looked for. `passing`: what a stage of a pipeline pays for results that it hands to the
    next one. `parts`: whether axes may be split in parts. `work`: what searches that are made with these add to.
    `gathering`: how much of it counts, of one phase, that chips gather of what they fetched parts of from their host;
    what is planned with that is priced otherwise than it is run. `silent`: only plans that send nothing are looked for.
    """

    hardware: Hardware
    objective: Objective = Objective.TIME
    capacity_bytes: float | None = None
    stored_bytes: float = math.inf
    pins: tuple[Pin, ...] = ()
    barred: tuple[Pin, ...] = ()
    settings: Settings = field(default_factory=Settings)
    overlap: bool = False
    below: float = math.inf
    passing: Passing = NO_PASSING
    parts: bool = False
    work: Work = field(default_factory=Work, compare=False)
    gathering: float = 0.0
    silent: bool = False

    @property
    def capacity(self) -> float:
        """The bytes that a chip may hold."""
        return self.hardware.room_bytes if self.capacity_bytes is None else self.capacity_bytes

    @property
    def most_stored(self) -> float:
        """The bytes of parameters and caches that a chip may hold."""
        return min(self.capacity, self.stored_bytes)
