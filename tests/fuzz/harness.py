"""Runs the command line on an input in this process, and says what no input may do to it."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# So that what matplotlib keeps at home is there before anything is watched.
import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.figure  # noqa: F401

from escc.compiler.commands.main import app

MOST_CPU_S = 10.0  # that an input of under 100 kB may take to be refused
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = dict.fromkeys(("os.remove", "os.mkdir", "os.rmdir", "os.truncate"), 0) | dict.fromkeys(
    ("os.rename", "os.link", "os.symlink"), 1
)  # the place of the changed path among an event's arguments


class TooLong(BaseException):
    """The limit on the CPU is reached. Nothing that catches Exception swallows it."""


@dataclass(frozen=True)
class Outcome:
    """What came of a command: its exit code, what it said, and what is wrong with that, None where nothing is."""

    code: int
    said: str
    wrong: str | None


class _Watch:
    """The paths that are written to, renamed, made or removed while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.paths: list[str] = []
        sys.addaudithook(self._hear)  # for as long as the process lives: it cannot be taken back

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self.paths.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")
        elif event == "os.mkdir" and os.path.isdir(arguments[0]):
            return  # nothing changes: it is asked for whether there or not
        elif event in CHANGING and isinstance(arguments[CHANGING[event]], str | bytes | os.PathLike):
            self.paths.append(os.fsdecode(arguments[CHANGING[event]]))


_WATCH = _Watch()


def run(arguments: Sequence[str], output: Path | None = None) -> Outcome:
    """What the command does. It may exit with 0, 1 or 2, must say why where it does not with 0, takes MOST_CPU_S
    at most, and writes to nothing but `output` and what is below it, or beside a file of that name."""
    _WATCH.paths.clear()
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))  # as escc's own are
    code, wrong, began = 0, None, (time.process_time(), time.monotonic())
    try:
        with redirect_stdout(out), redirect_stderr(err), _limited():
            _WATCH.on = True
            app(list(arguments), prog_name="escc")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except TooLong as late:
        took = f"{time.process_time() - began[0]:.3g} s in {time.monotonic() - began[1]:.3g} s"
        wrong = f"takes more than {MOST_CPU_S:g} s of CPU, {took}\n"
        wrong += "".join(traceback.format_tb(late.__traceback__)[-4:])
    except BaseException as error:
        wrong = f"ends with {error!r:.200}\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])
    finally:
        _WATCH.on = False
    told, complained = (_text(stream) for stream in (out, err))
    outside = [path for path in _WATCH.paths if not _allowed(path, output)]
    if wrong is None and code not in (0, 1, 2):
        wrong = f"exits with {code}: {complained[-300:]}"
    elif wrong is None and code and not complained.strip():
        wrong = "says nothing of why it failed"
    elif wrong is None and outside:
        wrong = f"writes to {outside[0]}"
    return Outcome(code, told + complained, wrong)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


def _allowed(path: str, output: Path | None) -> bool:
    if path == os.devnull or os.path.isdir(path):  # of which tempfile says that it opens it
        return True
    if output is None:
        return False
    full = Path(os.path.abspath(path))
    return full == output or output in full.parents or (full.parent == output.parent and output.name in full.name)


@contextmanager
def _limited() -> Iterator[None]:
    """Raise TooLong in what takes more CPU than it may: the process's own, so that a busy machine does not count. A
    signal that comes sooner, or when all is done, is not about that, and raises nothing; one that was on its way as the
    timer was stopped would end the process, were it not ignored."""
    began, running = time.process_time(), True

    def late(_number: int, _frame: object) -> None:
        left = MOST_CPU_S - (time.process_time() - began)
        if running and left > 0:
            signal.setitimer(signal.ITIMER_PROF, max(left, 1e-3))
        elif running:
            raise TooLong

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
