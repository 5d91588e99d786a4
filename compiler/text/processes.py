"""Work shared out over processes, as many as there are cores, or over the workers of a Dask scheduler that is there
already; on a terminal with a bar, elsewhere a line a minute.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection, get_context, parent_process
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...ir.diagnostics import fail
from .extras import optional
from .terminal import note

T = TypeVar("T")
R = TypeVar("R")


def in_processes(function: Callable[[T], R], items: Sequence[T], what: str) -> list[R]:
    """What a function makes of each item, in their order; otherwise as `completed`."""
    made = dict(completed(partial(_numbered, function), list(enumerate(items)), what))
    return [made[number] for number in range(len(items))]


def completed(
    function: Callable[[T], R],
    items: Sequence[T],
    what: str,
    jobs: int | None = None,
    done: int = 0,
    scheduler: str | None = None,
) -> Iterator[R]:
    """What a function makes of each item, as it is made, in any order; `what` is said beside the bar.

    Function, items and what it makes must pickle. One item, or one core, takes no process of its own.
    What the function raises is raised here.

    `jobs`: at most so many processes, as many as there are cores without it. `done`: items that the bar counts
    beside these. `scheduler`: the address of a Dask scheduler, whose workers do it in place of processes here.
    Raises InputError where a process ends before its work is done.
    """
    workers = min(len(items), jobs or os.cpu_count() or 1)
    with _progress() as progress:
        count = _Count(progress, what, done, done + len(items))
        if scheduler is not None:
            for made in on_cluster(function, items, scheduler):
                count.advance()
                yield made
            return
        if workers < 2:
            for item in items:
                made = function(item)
                count.advance()
                yield made
            return
        with ProcessPoolExecutor(workers, get_context("spawn"), _begin, gc.get_threshold()) as pool:
            try:
                for future in as_completed([pool.submit(function, item) for item in items]):
                    count.advance()
                    yield future.result()
            except BrokenProcessPool:
                hint = "was there memory enough? Fewer processes take less: `--jobs 1`"
                raise fail("A process ended before its work was done.", hint=hint) from None
            finally:
                pool.shutdown(cancel_futures=True)


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, each counted when the next one is asked for; `what` is said beside the bar."""
    with _progress() as progress:
        count = _Count(progress, what, 0, len(items))
        for item in items:
            yield item
            count.advance()


def _numbered(function: Callable[[T], R], item: tuple[int, T]) -> tuple[int, R]:
    """What a function makes of an item, with the item's number."""
    number, given = item
    return number, function(given)


def _begin(*garbage: int) -> None:
    """Collect garbage as seldom as the process that started this one. End when that is gone, as nobody else
    would tell it; and silently where a person interrupts it."""
    gc.set_threshold(*garbage)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None, "it was started by another process"

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


MINUTE_S = 60.0


class _Count:
    """How much is done: a bar on a terminal, elsewhere a line a minute."""

    def __init__(self, progress: Progress, what: str, done: int, total: int) -> None:
        self.progress, self.what, self.done, self.total = progress, what, done, total
        self.task = progress.add_task(what, total=total, completed=done)
        self.said_s = time.monotonic()

    def advance(self) -> None:
        """One more."""
        self.done += 1
        self.progress.advance(self.task)
        now_s = time.monotonic()
        if self.progress.disable and now_s - self.said_s >= MINUTE_S:
            self.said_s = now_s
            note(f"{self.what}: {self.done} of {self.total}")


def _progress() -> Progress:
    """A bar on standard error, on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


TIMEOUT_S = 10  # for a scheduler to answer
SHOWN = 100  # characters of an address


def on_cluster(function: Callable[[T], R], items: Sequence[T], address: str) -> Iterator[R]:
    """What a function makes of each item on the workers of a scheduler, as it is made, in any order.

    What a worker was doing when it ended is done by another. What the function raises is raised here. Raises
    InputError where no scheduler answers at `address`, where it ends, and where workers end again and again.
    """
    distributed = optional("distributed", "Work on several machines")
    named = f"`{address[:SHOWN]}`"
    start = "start one with `dask scheduler`, and workers with `dask worker ADDRESS`"
    try:
        client = distributed.Client(address, timeout=TIMEOUT_S)
    except (OSError, ValueError, TypeError):
        raise fail(f"No Dask scheduler answers at {named}.", hint=f"it is as `tcp://host:8786`; {start}") from None
    kept = "what is done is kept where there is a results file; the same command goes on"
    try:
        if not client.scheduler_info()["workers"]:
            raise fail(f"The scheduler at {named} has no workers.", hint=start)
        for future in distributed.as_completed(client.map(function, items, pure=False)):
            yield future.result()
    except distributed.KilledWorker:
        hint = "had they memory enough? " + kept
        raise fail("Workers ended again and again with one piece of the work.", hint=hint) from None
    except (OSError, distributed.client.FutureCancelledError):
        raise fail(f"The scheduler at {named} ended.", hint=kept) from None
    finally:
        client.close(timeout=1)
