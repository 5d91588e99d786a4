"""Plans among which one is looked for that keeps to limits: a side."""

from __future__ import annotations

from ...ir.record import record
from .detours import Detours
from .limits import JointLimits, Limits
from .problem import Problem

MANY_ARCS = 2_500  # over all readers of all values, of a side that is seldom settled otherwise than copy by copy


@record(eq=False)
class Side:
    """All plans of a problem, or where some collectives may run as one, those in which some do, or none."""

    problem: Problem
    limits: Limits | JointLimits
    detours: Detours
