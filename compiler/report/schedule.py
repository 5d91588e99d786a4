"""A schedule of requests as text, as JSON, and its batches as comma-separated values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...cost.stages import Rounds
from ...ir.diagnostics import size_text
from ...passes.batches.batches import Batch, Runs
from ...passes.stages.layers import dividing
from ..plan.shapes import mesh_name
from ..sweep.schedule import (
    BY_SHARED_TOKENS,
    BY_TOKENS,
    PLAIN_CONTEXTS,
    PLAIN_REQUESTS,
    SATURATED,
    SHARING,
    Rates,
    Rung,
    Schedule,
    Scheduled,
    Step,
)
from ..text.lengths import Lengths
from ..text.terminal import count_text, table, time_text

COLUMNS = ("batch", "runs", "part", "cached", "tokens", "member", "share")


def schedule_text(found: Schedule, rungs: Sequence[Rung]) -> str:
    """A schedule in figures; with `rungs` also what it takes without some of its steps."""
    job, best = found.job, found.best
    requests, contexts = len(job.requests.endings), len(job.requests.contexts)
    stages = ", ".join(map(str, best.layers))
    lines = [f'Schedule of {requests:,} requests in {contexts:,} contexts, model "{job.program.name}"']
    lines += [
        f"  chips      {mesh_name(job.mesh)} {job.hardware.name}"
        + (f" in {job.stages} stages of {stages} {dividing(job.program, sum(best.layers))}" if job.stages > 1 else ""),
        *_thresholds(found),
    ]
    held, capacity = size_text(best.held_bytes), size_text(job.hardware.hbm_bytes)
    lines += [
        f"  memory     about {held} of {capacity}",
        "",
        f"  All of it takes {time_text(best.total_s)}: {count_text(requests / best.total_s)} requests a second.",
        *_waiting(found),
        *(f"  {remark}" for remark in split_remarks(found)),
        f"  Of {best.tokens:,} tokens {best.padding:,} are padding, {_share(best.padding, best.tokens)}.",
        f"  {_saved(found)}",
        "",
        *table([("", "batches", "sequences", "tokens each", "tokens", "padding"), *_kinds(best.batches)], 1),
        *_short(best.batches),
    ]
    if found.rates is not None:
        lines += ["", *_rates(found.rates)]
    if rungs:
        lines += [
            "",
            "Step by step",
            *table([("", "time", "batches", "tokens", "padding", "bubbles"), *_rungs(rungs)], 1),
            *(f"  {remark}" for remark in step_remarks(found, rungs)),
        ]
    return "\n".join(lines) + "\n"


def _thresholds(found: Schedule) -> Iterator[str]:
    """What a batch has at least, and what contexts share, by the step with which all takes least."""
    if found.step in BY_TOKENS:
        origin = "" if found.rates is None else ", found"
        yield f"  batches    of {found.threshold:,} tokens at least{origin}"
    else:
        yield f"  batches    of {PLAIN_REQUESTS} requests" + (
            ", in the order of the file" if found.step is Step.PLAIN else ""
        )
    if found.step in BY_SHARED_TOKENS:
        origin = "" if found.job.context_threshold else ", found"
        yield f"  contexts   in parts that share {found.context_threshold:,} tokens at least{origin}"
    elif found.step in SHARING:
        yield f"  contexts   in parts of {PLAIN_CONTEXTS}"
    elif found.job.requests.shared:
        yield "  contexts   with each of their endings: none is cached"


def _saved(found: Schedule) -> str:
    """How much padding a schedule saves, or has more: few large batches can take less time than many small ones that
    are padded less."""
    saved, plain = found.padding_saved, f"{PLAIN_REQUESTS} requests at a time, in the order of the file, have"
    of = f"{found.plain.padding:,} of {found.plain.tokens:,}"
    return f"{saved:,} are saved: {plain} {of}." if saved >= 0 else f"That is {-saved:,} more than {plain}: {of}."


def step_remarks(found: Schedule, rungs: Sequence[Rung]) -> Iterator[str]:
    """Which of the steps is the schedule's, where that is not the last one, and which take less time than it does; and
    over how many of them all chips at once, which stages are beside, split a batch."""
    best = found.best
    own = [rung.name for rung in rungs if rung.scheduled is best]
    if own and rungs[-1].scheduled is not best:
        yield f"The schedule is that of: {own[0]}."
    quicker = [rung.name for rung in rungs if rung.fits and rung.scheduled.total_s < best.total_s]
    if quicker:
        yield f"Quicker without the thresholds or stages that are given: {', '.join(quicker)}."
    ways = len(rungs[0].scheduled.batches[0].shares) if rungs and found.job.stages > 1 else 1
    if ways > 1:
        yield f"All chips at once split each batch over {ways} of them."


def split_remarks(found: Schedule) -> Iterator[str]:
    """Over how many chips a batch is split, where several run one together, and what empty rows this takes; what all of
    it takes where they split it otherwise."""
    if found.job.mesh.chips == found.job.stages:
        return
    best, ways = found.best, found.plan.ways
    if ways > 1:
        share = _share(best.empty, best.tokens)
        yield f"Each batch is split over {ways} chips; {best.empty:,} tokens are of rows left empty for it, {share}."
    else:
        yield "No batch is split over the chips that run it together."
    others = ", ".join(map(_otherwise, found.others))
    if others:
        yield f"By plans that split them otherwise it takes {others}."


def _otherwise(found: Schedule) -> str:
    room = found.best.held_bytes <= found.job.hardware.room_bytes
    over = f"over {found.plan.ways}" if found.plan.ways > 1 else "over none"
    return f"{time_text(found.best.total_s)} {over}" + ("" if room else ", without room for it")


def _waiting(found: Schedule) -> Iterator[str]:
    """What stages wait, beside what they would with batches that are alike."""
    best = found.best
    if found.job.stages > 1:
        each_s = best.seconds.mean(axis=1)  # of a stage, a batch
        even = Rounds(1, len(best.batches), wait=False).seconds(float(each_s.sum()), float(each_s.max()))
        share = f"{best.timeline.bubbles:.1%}"
        yield f"  Stages wait for {share} of that; with batches all alike it would take {time_text(even)}."


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}"


def _kinds(batches: Sequence[Batch]) -> Iterator[tuple[str, ...]]:
    for kind in Runs:
        own = [batch for batch in batches if batch.runs is kind]
        if own:
            yield (
                str(kind),
                f"{len(own):,}",
                _range([len(batch.members) for batch in own]),
                _range([batch.new for batch in own]),
                f"{sum(batch.tokens for batch in own):,}",
                f"{sum(batch.tokens - batch.own for batch in own):,}",
            )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _short(batches: Sequence[Batch]) -> Iterator[str]:
    """What is below its threshold, because nothing is left to fill it with."""
    for kind in Runs:
        own = [batch for batch in batches if batch.runs is kind and batch.short]
        if own:
            tokens = sum(batch.tokens for batch in own)
            which = "batch stays" if len(own) == 1 else "batches stay"
            yield f"  {len(own):,} {which} below the threshold of {kind}: no more fill them ({tokens:,} tokens)."


def _rates(rates: Rates) -> Iterator[str]:
    yield "Tflop/s of a chip, by the length of sequences (down) and how many a batch has (across)"
    rows = [("", *(f"{n:,}" for n in rates.batches))]
    for length, row in zip(rates.lengths, rates.flops_per_s, strict=True):
        rows.append((f"{length:,}", *(f"{rate / 1e12:.1f}" for rate in row)))
    yield from table(rows, 1)
    yield f"  {SATURATED:.0%} of the best are reached by {rates.busy_tokens:,} tokens; thresholds are multiples of it."


def _rungs(rungs: Sequence[Rung]) -> Iterator[tuple[str, ...]]:
    for rung in rungs:
        one = rung.scheduled
        yield (
            rung.name + ("" if rung.fits else ", no room"),
            time_text(one.total_s),
            f"{len(one.batches):,}",
            f"{one.tokens:,}",
            _share(one.padding, one.tokens),
            f"{max(0.0, one.timeline.bubbles):.1%}",
        )


def schedule_data(found: Schedule, rungs: Sequence[Rung], lengths: Lengths) -> str:
    """A schedule as JSON: its figures, and each batch with its members, requests by their lines and contexts by their
    ids. Chips split its `rows` into shares that are as large: the first members are those of the first, and so on, as
    many as `share_sizes` says, and what a share has besides is empty."""
    job, best = found.job, found.best
    data: dict[str, Any] = {
        "model": job.program.name,
        "hardware": job.hardware.name,
        "mesh": dict(job.mesh.axes),
        "stages": job.stages,
        "layers": list(best.layers),
        "step": found.step,
        "threshold_tokens": found.threshold if found.step in BY_TOKENS else None,
        "context_threshold_tokens": found.context_threshold if found.step in BY_SHARED_TOKENS else None,
        "batch_shares": found.plan.ways,
        "hbm_bytes": best.held_bytes,
        **_figures(best),
        "padding_saved_tokens": found.padding_saved,
    }
    if found.others:
        data["otherwise"] = [{"batch_shares": other.plan.ways, **_figures(other.best)} for other in found.others]
    if found.rates is not None:
        data["rates"] = {
            "lengths": list(found.rates.lengths),
            "batches": list(found.rates.batches),
            "flops_per_s": found.rates.flops_per_s.tolist(),
            "busy_tokens": found.rates.busy_tokens,
        }
    if rungs:
        data["ladder"] = [{"name": rung.name, "fits": rung.fits, **_figures(rung.scheduled)} for rung in rungs]
    timeline = best.timeline
    data["batches"] = [
        {
            "runs": str(batch.runs),
            "part": batch.part,
            "cached": batch.cached,
            "tokens": batch.new,
            "members": _members(batch, lengths),
            "rows": batch.rows,
            "share_sizes": [len(share) for share in batch.shares],
            "short": batch.short,
            "starts_s": timeline.starts[:, n].tolist(),
            "ends_s": timeline.ends[:, n].tolist(),
        }
        for n, batch in enumerate(best.batches)
    ]
    return json.dumps(data, indent=1) + "\n"


def _figures(one: Scheduled) -> dict[str, Any]:
    return {
        "total_s": one.total_s,
        "bubbles": max(0.0, one.timeline.bubbles),
        "tokens": one.tokens,
        "padding_tokens": one.padding,
        "empty_tokens": one.empty,
        "batch_count": len(one.batches),
    }


def _members(batch: Batch, lengths: Lengths) -> list[str] | list[int]:
    if batch.runs is Runs.CONTEXTS:
        return [lengths.names[n] for n in batch.members]
    return [lengths.endings[n][2] for n in batch.members]


def schedule_csv(found: Schedule, lengths: Lengths) -> str:
    """The batches of a schedule in order, a line for each of their members: a request by its line, a context by its id.
    `tokens`: what each member takes, padded, after `cached` ones. `share`: in which it is, from 0 on, of the shares
    into which chips split the batch."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, batch in enumerate(found.best.batches):
        part = "" if batch.part is None else batch.part
        shares = [place for place, share in enumerate(batch.shares) for _ in share]
        for member, share in zip(_members(batch, lengths), shares, strict=True):
            writer.writerow((number, batch.runs, part, batch.cached, batch.new, member, share))
    return out.getvalue()
