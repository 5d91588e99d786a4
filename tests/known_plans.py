"""Plans that are made once for all tests of a file that ask for the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.passes.choose import choose_on
from escc.passes.options import Options
from escc.passes.plan import Plan, Work


class KnownPlans:
    """What stands in for `choose_on`: a plan that was asked for before is that of then, and counts as much work."""

    def __init__(self) -> None:
        self.known: dict[tuple[Program, tuple[str, ...], Mesh, Options], tuple[Plan, float]] = {}

    def choose_on(self, program: Program, phases: str | Sequence[str], mesh: Mesh, options: Options) -> Plan:
        """The plan, of `choose_on` where it is not known."""
        names = (phases,) if isinstance(phases, str) else tuple(phases)
        asked = program, names, mesh, replace(options, work=Work())
        if (found := self.known.get(asked)) is None:
            before = options.work.read
            plan = choose_on(program, phases, mesh, options)
            self.known[asked] = plan, options.work.read - before
            return plan
        plan, read = found
        options.work.read += read
        return plan
