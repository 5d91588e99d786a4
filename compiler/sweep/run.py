"""Running a sweep: its points over all cores, each kept as soon as it is solved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from ...cost.hardware import Hardware
from ...ir.diagnostics import fail
from ...ir.record import record
from ..plan.pipeline import read_model
from ..plan.way import Offload, ahead_of
from ..text.arguments import checked, refuse_no_share, skew_of
from ..text.files import path_of
from ..text.processes import completed
from .answers import Answer, Target, answer
from .grid import grid
from .points import Asked, Point, Record, Sweep
from .results import ResultsFile
from .solve import solve
from .sweep_text import sweep_text


@record
class SweepResult:
    """A sweep and what was found at each of its points. Printed, it is its table, with a plot."""

    sweep: Sweep
    records: tuple[Record, ...]

    def answer(self, max_latency_s: float | None = None, max_cost: float | None = None) -> Answer:
        """The cheapest point with steps of `max_latency_s` at most, or the quickest where a million tokens cost
        `max_cost` at most (dollars where the hardware has a price, else chip-seconds)."""
        return answer(self.records, Target(max_latency_s, max_cost))

    def __str__(self) -> str:
        return sweep_text(self.sweep, self.records, None)


@checked
def sweep(
    model: str | Path,
    chips: str | int | Sequence[int],
    batch: str | int | Sequence[int],
    hardware: Hardware | str | Sequence[Hardware | str] = "tpu-v4",
    *,
    context: str | int | Sequence[int] | None = None,
    weights: str | Sequence[str] = "bf16",
    phase: str | None = None,
    settings: Mapping[str, int] | None = None,
    pads: Mapping[str, int] | None = None,
    hbm_fraction: float = 1.0,
    results: str | Path | None = None,
    jobs: int | None = None,
    any_shape: bool = False,
    scheduler: str | None = None,
    offload: str = Offload.NONE,
    ahead: int | None = None,
    stages: int | str | None = None,
    caches: str | Sequence[str] | None = None,
    skew: float | str = 1,
) -> SweepResult:
    """Plan a model, a file or a shipped one, at every point of a grid, on every shape of slice.

    Lists are numbers, or texts as `escc sweep` takes them (`8..256`, `8,24`; of `hardware` names, `h100,h200`).
    `caches`: types, without them as the model has it. `any_shape`: on slices that are not offered as well.
    `scheduler`: the address of a Dask scheduler, `tcp://host:8786`. `results`: a file, NAME.jsonl, that keeps what is
    solved. `offload`, `ahead`: what may be streamed from the host at each point, and how many layers
    before it is needed, 1 without it; `stages`: into how many layers are divided, or `auto`. `skew`: how many times the
    mean load of chosen entries the busiest chip has.
    Raises InputError with all that is wrong, InternalError where a plan does not hold together. With more than one
    job, processes are spawned: a script calls this under `if __name__ == "__main__"`.
    """
    refuse_no_share(hbm_fraction)
    named = hardware.split(",") if isinstance(hardware, str) else hardware
    each = [named] if isinstance(named, Hardware) else named
    kinds = [one if isinstance(one, Hardware) else Hardware.load(one.strip()) for one in each]
    of_contexts, of_caches = (None if one is None else _list(one) for one in (context, caches))
    lists = _list(chips), _list(batch), of_contexts, _list(weights), of_caches
    if offload not in [*Offload]:
        hint = f"they are {', '.join(Offload)}"
        raise fail(f"There is no kind of tensors to offload `{offload[:60]}`.", hint=hint)
    if not (stages is None or stages == "auto" or (type(stages) is int and stages > 0)):
        raise fail(f"`stages` is {stages!r:.60}.", hint="it is a count, or `auto`")
    count = 0 if stages == "auto" else stages
    assert not isinstance(count, str)
    asked = Asked(
        source=read_model(path_of(model)),
        settings=tuple((settings or {}).items()),
        pads=tuple((pads or {}).items()),
        hbm_fraction=hbm_fraction,
        any_shape=any_shape,
        skew=skew_of(str(skew)),
    )
    planned = grid(asked, kinds, lists, phase, Offload(offload), ahead_of(ahead, offload != Offload.NONE), count)
    return SweepResult(planned, run_sweep(planned, None if results is None else path_of(results), jobs, scheduler))


def _list(items: str | int | Sequence[object]) -> str:
    return ",".join(map(str, items)) if isinstance(items, Sequence) and not isinstance(items, str) else str(items)


def run_sweep(
    sweep: Sweep, path: Path | None, jobs: int | None = None, scheduler: str | None = None
) -> tuple[Record, ...]:
    """The records of all points, in the sweep's order; those that the results file `path` has are not solved
    again, and it has all of them in the end.

    At most `jobs` processes run, as many as there are cores without it; or the workers of a Dask `scheduler`.
    Raises InputError where the file
    cannot be used or written to, or where another process has it.
    """
    if path is None:
        records = {record.point: record for record in _solved(sweep, (), jobs, scheduler)}
    else:
        with ResultsFile(path, sweep) as file:
            for record in _solved(sweep, tuple(file.records), jobs, scheduler):
                file.add(record)
            file.finish()
            records = file.records
    return tuple(records[point] for point in sweep.points)


def _solved(sweep: Sweep, known: Sequence[Point], jobs: int | None, scheduler: str | None) -> Iterator[Record]:
    """The points of a sweep that are not known yet, as they are solved."""
    done = set(known)
    left = [point for point in sweep.points if point not in done]
    return completed(partial(solve, sweep), _long_first(left), "planning", jobs, len(known), scheduler)


def _long_first(points: Sequence[Point]) -> list[Point]:
    """Points that take long to solve before others, so that no process is left with one at the end: many
    chips have many slice shapes, and long contexts and large batches leave little memory to plan with."""
    return sorted(points, key=lambda point: (-point.chips, -point.batch * (point.context or 1)))
