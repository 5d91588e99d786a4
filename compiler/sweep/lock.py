"""A lock on a file: one process at a time, and whoever is kept out is told who has it.

The system's own lock (flock) on a file beside it, `.NAME.lock`, so it ends with its process however that ends, and what
a killed one leaves behind is in nobody's way. The file says who holds it: process, host, and since when.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from ...ir.diagnostics import InputError, fail

MOST_BYTES = 1000  # of what a lock's file says
SHOWN = 60  # characters of a host's name


class FileLock:
    """The lock on `path`, taken at once and held until `release`, or the end of a `with`.

    Raises InputError where another has it, whom it names, or where no lock can be had.
    """

    def __init__(self, path: Path):
        self.path = path
        self._beside = path.with_name(f".{path.name}.lock")
        try:
            self._handle = self._taken()
        except OSError as error:
            raise fail(f"`{path}` cannot be locked: {error.strerror}.") from None

    def release(self) -> None:
        """Let others have it. The second time does nothing."""
        if self._handle >= 0:
            with suppress(OSError):  # what is left there is in nobody's way
                self._beside.unlink()
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _taken(self) -> int:
        """A handle of the lock's file, locked, with this process written into it."""
        while True:
            handle = os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current(handle):
                    self._sign(handle)
                    return handle
            except BlockingIOError:
                refusal = self._held(handle)
                os.close(handle)
                raise refusal from None
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def _is_current(self, handle: int) -> bool:
        """Whether the name still stands for what is locked: whoever had it before has removed its file."""
        try:
            now = os.stat(self._beside, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(handle))

    def _sign(self, handle: int) -> None:
        """Write down who has it. What is no lock's is left as it is."""
        before = os.pread(handle, MOST_BYTES + 1, 0)
        if before and _holder(before) is None:
            raise fail(f"`{self._beside}` is in the way, and no lock.", hint="remove it, or name another file")
        since = datetime.now(UTC).isoformat(timespec="seconds")
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode(), 0)

    def _held(self, handle: int) -> InputError:
        who = _holder(os.pread(handle, MOST_BYTES + 1, 0)) or "another process"
        hint = "wait until it ends, and start the same command again; or name another file with `-o`"
        return fail(f"`{self.path}` is being written by {who}.", hint=hint)


def _holder(content: bytes) -> str | None:
    """Who has a lock, by what its file says; None where that is no lock's."""
    try:
        data = json.loads(content)
        pid, host, since = int(data["pid"]), str(data["host"]), datetime.fromisoformat(data["since"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    shown = "".join(c if c.isprintable() else "?" for c in host[:SHOWN])
    return f"process {pid} on {shown}, since {since:%Y-%m-%d %H:%M:%S} UTC"
