"""How a command of the command line begins and ends."""

from __future__ import annotations

import gc
import subprocess
import sys

from typer.testing import CliRunner

from escc.compiler.commands.main import app

END = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # called after those that `run` registers
from escc.compiler.commands.main import run
sys.argv = ["escc", "--version"]
run()
"""


def test_no_garbage_is_looked_for_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0 and done.stdout.endswith("\nTrue\n"), done.stdout + done.stderr


def test_garbage_is_looked_for_as_soon_as_a_command_is_there() -> None:
    gc.disable()  # as the entry point has it
    try:
        assert CliRunner().invoke(app, ["models"]).exit_code == 0
        assert gc.isenabled()
    finally:
        gc.enable()
