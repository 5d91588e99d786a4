"""Processes with JAX as forks of one that has imported it, which takes longer than most of what they do."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

READY = ["jax", "jax.numpy", "numpy"]


def run_module(module: str, arguments: Sequence[str], environment: Mapping[str, str], out: str, said: str) -> None:
    """Be `python -m module` in an environment, in a process whose JAX has not yet looked for devices."""
    import jax

    for path, descriptor in ((out, 1), (said, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    jax.config.update("jax_platforms", environment["JAX_PLATFORMS"])  # read as it was imported
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Fork:
    """What `run_processes` needs of a Popen. One that is heard, without `stdout`, writes where this process does."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: IO[str],
        stderr: IO[str],
        env: Mapping[str, str],
        text: bool,
    ) -> None:
        _, safe, as_module, module, *arguments = command
        assert (safe, as_module, stdin, text) == ("-P", "-m", subprocess.DEVNULL, True)
        numbers = (1 if stdout is None else stdout.fileno(), stderr.fileno())
        files = (f"/proc/{os.getpid()}/fd/{number}" for number in numbers)
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(READY)
        self._process = context.Process(target=run_module, args=(module, arguments, dict(env), *files))
        self._process.start()

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        code = self._process.exitcode
        assert code is None or isinstance(code, int)
        return code

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def wait(self) -> None:
        """Until it has ended."""
        self._process.join()


FORKED = SimpleNamespace(Popen=Fork, DEVNULL=subprocess.DEVNULL) if Path("/proc/self/fd").exists() else subprocess
