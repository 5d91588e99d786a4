"""Processes with JAX on this machine, each with its share of CPU devices; the first that fails ends all."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO

from ...ir.diagnostics import InternalError

MOST_SECONDS = 900
BETWEEN_LOOKS_S = 0.02


def run_processes(
    commands: Sequence[Sequence[str]], devices: int, heard: bool = False, platform: str | None = None
) -> None:
    """Run Python with each of `commands` at once, the name of a module and its arguments.

    `devices`: of each process, on the CPU unless `platform` or, where it is heard, JAX_PLATFORMS names another one.
    `heard`: what the first writes goes on to where this process writes, for as long as it takes. Raises InternalError,
    with what it said, when one does not end well.
    """
    platform = platform or (os.environ.get("JAX_PLATFORMS") if heard else None) or "cpu"
    environment = with_cpu_devices(devices) | {"JAX_PLATFORMS": platform}
    with ExitStack() as open_until_the_end:
        running: list[tuple[subprocess.Popen[str], IO[str]]] = []
        open_until_the_end.callback(_end, running)
        for module, *arguments in commands:
            said = open_until_the_end.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            command = [sys.executable, "-P", "-m", module, *arguments]
            out = None if heard and not running else said
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=said, env=environment, text=True
            )
            running.append((process, said))
        _wait(running, math.inf if heard else MOST_SECONDS)


def sharing(module: str, folder: str, processes: int) -> list[tuple[str, ...]]:
    """The commands of so many processes that share what a folder holds: each knows which it is, and where they meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # where nobody listens
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    return [(module, folder, str(process), str(processes), address) for process in range(processes)]


def with_cpu_devices(count: int) -> dict[str, str]:
    """The environment of a process whose CPU is to be so many devices; flags of XLA that are there stay."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return os.environ | {"XLA_FLAGS": flags.strip()}


def _wait(running: Sequence[tuple[subprocess.Popen[str], IO[str]]], limit_s: float) -> None:
    """Until all have ended well, or one has not."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        codes = [process.poll() for process, _ in running]
        for code, (_, said) in zip(codes, running, strict=True):
            if code:
                said.seek(0)
                raise InternalError(f"the emitted program does not run: {_error(said.read())}")
        if all(code == 0 for code in codes):
            return
        time.sleep(BETWEEN_LOOKS_S)
    raise InternalError(f"the emitted program did not end within {limit_s:.0f} s")


def _error(said: str) -> str:
    """The line of a process's output that says what went wrong."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(" ")]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "it said nothing")[:300]


def _end(running: Sequence[tuple[subprocess.Popen[str], IO[str]]]) -> None:
    for process, _ in running:
        if process.poll() is None:
            process.kill()
            process.wait()
