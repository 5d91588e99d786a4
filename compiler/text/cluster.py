"""Work shared out over machines: a Dask scheduler that is there already, and its workers, which have escc installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ...ir.diagnostics import fail
from .extras import optional

T = TypeVar("T")
R = TypeVar("R")
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
