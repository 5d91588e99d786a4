"""A headless Chromium, driven through its DevTools protocol over two pipes: no port, and no library."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and writes to 4. A process of its own puts the ends there and becomes the
# browser: a function between fork and exec would fork this one, with the threads that JAX may have in it.
WIRE = (
    "import os, sys; told, heard = map(int, sys.argv[1:3]); os.dup2(told, 3); os.dup2(heard, 4);"
    "os.closerange(5, max(told, heard) + 1); os.execvp(sys.argv[3], sys.argv[3:])"
)
WAIT_S = 60.0

Message = dict[str, Any]


def find() -> str | None:
    """The browser to use: that of ESCC_CHROMIUM, or the first of the usual names that is installed."""
    return os.environ.get("ESCC_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A browser with one page. `events`: all that the page reported, in order."""

    def __init__(self, program: str, profile: Path) -> None:
        self.events: list[Message] = []
        self._pending, self._number = b"", 0
        self._session: str | None = None
        told, self._out = os.pipe()
        self._in, heard = os.pipe()

        # Both ends may stand where another is to go, so they are put out of the way first.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 5) for end in (told, heard)]
        command = [sys.executable, "-ISc", WIRE, *map(str, ends), program]
        log = (profile.parent / f"{profile.name}.log").open("wb")
        self._process = subprocess.Popen(
            [*command, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=ends,
        )
        for end in (told, heard, *ends):
            os.close(end)
        log.close()

    def __enter__(self) -> Page:
        try:
            self._attach()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _attach(self) -> None:
        """Speak to the page that the browser starts with."""
        targets = self._until(lambda: [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"])
        attached = self.call("Target.attachToTarget", targetId=targets[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> Any:
        """The answer to a command. Raises RuntimeError where the browser refuses it."""
        self._number += 1
        number = self._number
        message: Message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Load an address, and wait until all of it is there. Forgets earlier events."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self._until(lambda: any(event["method"] == "Page.loadEventFired" for event in self.events))

    def run(self, script: str) -> Any:
        """The value of an expression on the page. Raises RuntimeError where it throws."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def scheme(self, name: str) -> None:
        """Ask for the `light` or the `dark` colours."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def size(self, width: int, height: int) -> None:
        """Make the window so many pixels wide and high."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def scripts(self, allowed: bool) -> None:
        """Whether pages that are opened from now on run their scripts."""
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def reported(self, method: str) -> list[Message]:
        """What the page reported by this name, since it was opened."""
        self.run("0")  # what happened before the answer has been read with it
        return [event["params"] for event in self.events if event["method"] == method]

    def _read(self) -> Message:
        """The next message. Raises RuntimeError when none comes."""
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._in], [], [], WAIT_S)
            block = os.read(self._in, 1 << 16) if ready else b""
            if not block:
                raise RuntimeError("the browser ended" if ready else "the browser does not answer")
            self._pending += block
        message, _, self._pending = self._pending.partition(b"\0")
        found = json.loads(message)
        assert isinstance(found, dict)
        return found

    def _until(self, ready: Callable[[], Any]) -> Any:
        """What `ready` gives once it is not empty."""
        end = time.monotonic() + WAIT_S
        while not (found := ready()):
            if time.monotonic() > end:
                raise RuntimeError("the browser takes too long")
            self.call("Target.getTargets")  # lets events come in
            time.sleep(0.02)
        return found
