"""How a command of the command line begins and ends."""

from __future__ import annotations

import subprocess
import sys

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
