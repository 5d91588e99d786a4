"""The command line: its commands, a file each, are imported when they are asked for.

Exit codes: 0 done; 1 the input is wrong, or no plan fits, of a sweep at any point; 2 wrong usage; 3 the compiler
contradicts itself.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, ParamSpec

import typer
from typer.core import TyperCommand, TyperGroup

from ...ir.diagnostics import Diagnostic, InputError, InternalError
from ..text.terminal import OutputError, complain, forget_output, note, say

LATE = {  # what the list of commands says of each; its module is imported when it is run
    "compile": (".compile", "Find the cheapest sharded program of a model on a mesh."),
    "check": (".check", "Look for errors in a model, or check its plan on a backend."),
    "explain": (".explain", "Show what a plan costs as formulas, and what rivals would."),
    "models": (".tables", "List the models that are shipped, or show one."),
    "import": (".import_", "Turn the config of a Hugging Face model into a model of escc."),
    "run": (".run", "Generate on virtual chips, or answer with a real checkpoint."),
    "validate": (".calibrate", "Predict measured rows, each under its layouts, and compare."),
    "calibrate": (".calibrate", "Fit the figures of a chip to measured times, or measure them."),
    "sweep": (".sweep", "Plan a model at every point of a grid, or for a stream."),
    "schedule": (".schedule", "Divide requests into batches with little padding."),
    "layouts": (".tables", "List the legal partitions of a tensor."),
    "hardware": (".tables", "List the hardware presets, or show one with all its figures."),
}
PLAIN: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}


class LazyGroup(TyperGroup):
    """A group with the commands of LATE."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """All names."""
        return list(LATE)

    def get_command(self, ctx: typer.Context, cmd_name: str):  # type: ignore[no-untyped-def, override]
        """The command of a name, None where there is none: the function `NAME_command` of its module, or an
        app of its own, `NAME_app`."""
        if cmd_name not in LATE:
            return None
        module = import_module(LATE[cmd_name][0], __package__)
        if not gc.isenabled():
            gc.freeze()  # what has been imported is no garbage
            gc.enable()
        own = getattr(module, f"{cmd_name}_app", None)
        if own is None:
            own = typer.Typer(**PLAIN)
            own.command(cmd_name)(reported(getattr(module, f"{cmd_name}_command")))
        return typer.main.get_command(own)

    def format_commands(self, ctx, formatter) -> None:  # type: ignore[no-untyped-def]
        """Lists the commands by their summaries: none is imported for that."""
        listed = [TyperCommand(name, help=said, rich_markup_mode=None) for name, (_, said) in LATE.items()]
        TyperGroup(commands=listed, rich_markup_mode=None).format_commands(ctx, formatter)


WRONG_INPUT, BUG = 1, 3
GARBAGE = 50_000  # objects between two collections; at Python's 700 they take 7% of a compile, and find nothing

P = ParamSpec("P")

app = typer.Typer(
    name="escc",
    cls=LazyGroup,
    help="The layout compiler for sharded Transformers: a text layer in, the cheapest sharded program out.",
    epilog="Exit codes: 0 done; 1 the input is wrong, or no plan fits; 2 wrong usage; 3 a bug in escc.",
    no_args_is_help=True,
    **PLAIN,
)


def run() -> None:
    """The entry point. Ctrl-C and a closed pipe end the process at once, even inside the solver."""
    gc.set_threshold(GARBAGE)
    gc.disable()  # until a command is there
    atexit.register(gc.freeze)  # or Python looks for garbage in all there is, twice, before it lets go of it: 60 ms
    for name in ("SIGINT", "SIGPIPE"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        app()
    except (OSError, OutputError) as error:  # of help and the version, which no command prints
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if isinstance(error, OSError):
            forget_output()
        complain([_unwritable(error.strerror if isinstance(error, OSError) else error)])
        sys.exit(WRONG_INPUT)


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
            complain([_unwritable(error)])
            raise typer.Exit(WRONG_INPUT) from None
        except InternalError as error:
            note(f"escc: internal error: {error}\nThis is a bug in escc; the plan is not shown.")
            raise typer.Exit(BUG) from None

    return guarded


def _unwritable(why: object) -> Diagnostic:
    return Diagnostic(f"Standard output cannot be written to: {why}.")


def _print_version(wanted: bool) -> None:
    if wanted:
        metadata = import_module("importlib.metadata")  # takes a fiftieth of a second, for this alone
        say(f"escc {metadata.version('escc')}\n")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What holds for every command."""


if __name__ == "__main__":
    run()
