"""The command line: `escc layouts` and `hardware`; the others, a file each, are imported when they are asked for.

Exit codes: 0 done; 1 the input is wrong, or no plan fits; 2 wrong usage; 3 the compiler contradicts
itself.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, ParamSpec

import typer
from typer.core import TyperGroup

from ...cost.hardware import Hardware
from ...ir.diagnostics import Diagnostic, InputError
from ...ir.dtype import Dtype
from ...ir.mesh import Mesh
from ..plan.pipeline import InternalError
from ..report.hardware import hardware_sheet, layouts_table, preset_table
from ..text.terminal import OutputError, complain, note, say
from .options import Chips, bindings

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
    "schedule": ".schedule",
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


WRONG_INPUT, BUG = 1, 3
GARBAGE = 50_000  # objects between two collections; at Python's 700 they take 7% of a compile, and find nothing

P = ParamSpec("P")

app = typer.Typer(
    name="escc",
    cls=LazyGroup,
    help="The layout compiler for sharded Transformers: a text layer in, the cheapest sharded program out.",
    epilog="Exit codes: 0 done; 1 the input is wrong, or no plan fits; 2 wrong usage; 3 a bug in escc.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run() -> None:
    """The entry point. Ctrl-C and a closed pipe end the process at once, even inside the solver."""
    gc.set_threshold(GARBAGE)
    for name in ("SIGINT", "SIGPIPE"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    app()


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with what goes wrong said on standard error and as an exit code."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            complain(error.diagnostics)
            raise typer.Exit(WRONG_INPUT) from None
        except OutputError as error:
            complain([Diagnostic(f"Standard output cannot be written to: {error}.")])
            raise typer.Exit(WRONG_INPUT) from None
        except InternalError as error:
            note(f"escc: internal error: {error}\nThis is a bug in escc; the plan is not shown.")
            raise typer.Exit(BUG) from None

    return guarded


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"escc {version('escc')}\n")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What holds for every command."""


@app.command("layouts")
@reported
def layouts_command(
    tensor: Annotated[str, typer.Argument(help="Its dims: `BLE`, or `[batch, d_model]`.")],
    dims: Annotated[list[str], typer.Option(metavar="DIM=N,...", help="The sizes of its dims. May be repeated.")],
    chips: Chips,
    dtype: Annotated[Dtype, typer.Option(help="The type of its elements.")] = Dtype.BF16,
) -> None:
    """List the legal partitions of a tensor."""
    say(layouts_table(tensor, bindings(dims, "--dims"), Mesh.parse(chips), dtype))


@app.command("hardware")
@reported
def hardware_command(
    name: Annotated[
        str | None, typer.Argument(help="A preset or a file, NAME.toml, to show.", show_default=False)
    ] = None,
) -> None:
    """List the hardware presets, or show one with all its figures."""
    say(preset_table() if name is None else hardware_sheet(Hardware.load(name, datasheet=True)))


if __name__ == "__main__":
    run()
