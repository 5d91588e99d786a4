"""Commands whose modules are imported when they are asked for.

What `explain` and pages need takes longer to import than `compile` takes to start; the others are rarely asked for.
"""

from __future__ import annotations

from importlib import import_module

import typer
from typer.core import TyperGroup

# The module of a command, relative to this package; it has an `app`.
LATE = {
    "compile": ".compile",
    "check": ".check",
    "explain": ".explain",
    "models": ".models",
    "import": ".import_",
    "run": ".run",
    "validate": ".validate",
    "calibrate": ".calibrate",
    "sweep": ".sweep",
}


class LazyGroup(TyperGroup):
    """A group with the commands of LATE beside its own."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """All names, those of LATE first."""
        return [*LATE, *super().list_commands(ctx)]

    def get_command(self, ctx: typer.Context, cmd_name: str):  # type: ignore[no-untyped-def, override]
        """The command of a name, None where there is none."""
        if cmd_name in LATE:
            return typer.main.get_command(import_module(LATE[cmd_name], __package__).app)
        return super().get_command(ctx, cmd_name)
