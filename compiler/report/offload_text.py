"""What is streamed from a host, as text and as data: how many layers, what they take to come, and batches tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...cost.hardware import Host
from ...ir.diagnostics import size_text
from ...passes.plan import Outcome
from ..plan.compiled import CompiledPhase
from ..plan.offload import Batched, Offloaded
from ..plan.staged import Staged
from ..plan.tries import Try
from ..text.terminal import bound_text, count_text, gap_text, table, time_text
from .text import PROOF

SAME_LAYERS = " on tensors of the same layers"  # of which the streams are that are chosen among


def offload_text(found: Offloaded) -> str:
    """What is streamed, what that takes beside what chips do, and what is proven of it."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Offloaded) -> Iterator[str]:
    host = found.compiled[0].hardware.host
    assert host is not None, "`compile_offloaded` refuses hardware without a host"
    if found.streamed:
        yield from _streams(found, host)
    else:
        yield "Streams: none, the chips hold all; of plans with streams and without"
    yield f"  bound         {bound_text(found.bound)}{SAME_LAYERS if found.bound else ''}"
    if found.outcome is Outcome.OPTIMAL:
        yield f"  status        optimal{SAME_LAYERS}: {PROOF}"
    else:
        yield f"  status        feasible: {gap_text(found.gap, SAME_LAYERS)}"


def _streams(found: Offloaded, host: Host) -> Iterator[str]:
    """What is streamed, and what that takes."""
    yield f"Streams: {found.what} of {found.streamed} of {found.layers} layers, {_ahead(found.ahead)}"
    size = max(one.host_bytes for one in found.compiled)
    below = max(0.0, size - host.dram_bytes)
    where = f", {size_text(below)} of it on NVMe" if below else ""
    yield f"  a host holds {size_text(size)} for at most {host.host_chips} chips{where}"
    rows: list[tuple[str, ...]] = [("", "to a chip", "back", "comes in", "by", "a layer takes", "waiting")]
    for one in found.compiled:
        for fetch in one.estimate.fetches:
            name = f"{one.phase}, {fetch.repeat}"
            sizes = [size_text(fetch.fetch.in_bytes), size_text(fetch.fetch.out_bytes)]
            comes, by = time_text(fetch.fetch.seconds), str(fetch.fetch.binds)
            waits = time_text(fetch.waiting_s) if fetch.waiting_s else "none"
            rows.append((name, *sizes, comes, by, time_text(fetch.step_s), waits))
    yield from table(rows, 1)
    yield f"  with waiting  {time_text(found.price, 6)}"


def offload_data(found: Offloaded) -> dict[str, Any]:
    """The same for JSON. The objective counts waiting, and like its bound is of all calls of all phases, or of one call
    of one; both are of plans that stream tensors of the same layers."""
    return {
        "kinds": sorted(kind.value for kind in found.kinds),
        "placed": list(found.placed),
        "tensors": list(found.tensors),
        "streamed_layers": found.streamed,
        "layers": found.layers,
        "ahead": found.ahead,
        "objective_s": found.price,
        "bound_s": found.bound,
        "gap": found.gap,
        "status": found.outcome.value,
    }


def _ahead(ahead: int) -> str:
    return f"{ahead} ahead of need" if ahead else "as they are needed"


def batches_text(tried: Sequence[Batched[Offloaded]]) -> str:
    """The batches that were tried, the one with most sequences a second first."""
    rows: list[tuple[str, ...]] = [("batch", "streamed", "all calls", "sequences a second", "Tflop/s a chip")]
    for one in tried:
        if one.found is None:
            rows.append((str(one.batch), "-", *_takes(one), "-"))
            continue
        compiled = one.found.compiled
        rate = f"{chip_flops_per_s(compiled[0]) / 1e12:.4g}" if len(compiled) == 1 else "-"
        rows.append((str(one.batch), str(one.found.streamed), *_takes(one), rate))
    return _batches(rows)


def staged_batches_text(tried: Sequence[Batched[tuple[Try, ...]]]) -> str:
    """The batches that were tried, each with its quickest pipeline, or plan without stages, that with most sequences a
    second first."""
    rows: list[tuple[str, ...]] = [("batch", "stages", "micro-batches", "streamed", "all calls", "sequences a second")]
    for one in tried:
        found = one.found[0].found if one.found is not None else None
        if found is None:
            rows.append((str(one.batch), "-", "-", "-", *_takes(one)))
        elif isinstance(found, Staged):
            micro = ", ".join(str(rounds.micro_batches) for rounds in found.rounds.values())
            streamed = str(sum(found.streamed_layers))
            rows.append((str(one.batch), str(len(found.stages)), micro, streamed, *_takes(one)))
        else:
            streamed = str(sum(fetch.streamed for fetch in found[0].estimate.fetches))
            rows.append((str(one.batch), "-", "-", streamed, *_takes(one)))
    return _batches(rows)


def _takes(one: Batched[Any]) -> tuple[str, str]:
    if one.beaten:
        return f"{time_text(one.least)} or more", f"{count_text(one.batch / one.least)} or less"
    if one.found is None:
        return "-", "does not fit"
    return time_text(one.price), count_text(one.sequences_per_s)


def _batches(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(["Batches, most sequences a second first", *table(rows, 0)]) + "\n"


def chip_flops_per_s(one: CompiledPhase) -> float:
    """The flops of the model's parameters that a chip does in a second of a phase."""
    return (one.prediction.mfu or 0.0) * one.hardware.peak_flops_per_s
