"""Processes with JAX as forks of one that has imported it, which takes longer than most of what they do."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

READY = ["jax", "jax.numpy", "numpy", "jax.experimental.pallas.triton"]
FORKS = Path("/proc/self/fd").exists()


def be(environment: Mapping[str, str], out: str, said: str) -> None:
    """Be a process that was started in an environment and writes to these paths; its JAX has not yet looked for
    devices."""
    import jax

    for path, descriptor in ((out, 1), (said, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    jax.config.update("jax_platforms", environment.get("JAX_PLATFORMS"))  # read as it was imported


def run_module(module: str, arguments: Sequence[str], *process: Any) -> None:
    """Be `python -m module`, as such a `process`."""
    be(*process)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_text(code: str, arguments: Sequence[str], *process: Any) -> None:
    """Be `python -c code`, as such a `process`."""
    be(*process)
    sys.argv[:] = ["-c", *arguments]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(main))


def started(target: Any, text: str, arguments: Sequence[str], env: Mapping[str, str], numbers: Sequence[int]) -> Any:
    """A fork that runs `target`, and writes to what this process has open under two numbers."""
    files = (f"/proc/{os.getpid()}/fd/{number}" for number in numbers)
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(READY)
    process = context.Process(target=target, args=(text, arguments, dict(env), *files))
    process.start()
    return process


def run_code(code: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """What `python -c code` gives, with JAX. Raises subprocess.TimeoutExpired after so many seconds."""
    command = [sys.executable, "-c", code, *arguments]
    if not FORKS:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        process = started(run_text, code, arguments, os.environ, (out.fileno(), said.fileno()))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout)
        for file in (out, said):
            file.seek(0)
        return subprocess.CompletedProcess(command, process.exitcode, out.read(), said.read())


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
        self._process = started(run_module, module, arguments, env, numbers)

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


FORKED = SimpleNamespace(Popen=Fork, DEVNULL=subprocess.DEVNULL) if FORKS else subprocess
