"""A compiled phase as text: what is stored where, the sharded program, what it takes, and phases together.

The text depends on the plan alone, never on how long it took to find. MB are 10^6 bytes, GB 10^9.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any

from ...cost.blocks import Block, blocks_of
from ...cost.estimate import Estimate, Totals, local_bytes
from ...cost.hardware import Convention, Rule
from ...cost.kept_caches import kept_bytes
from ...cost.memory import Point
from ...cost.network import Network
from ...ir.dataflow import moves
from ...ir.diagnostics import plural
from ...ir.layout import format_layout
from ...ir.program import Kind, stored_in
from ...ir.spmd import SpmdProgram
from ...ir.streams import copies_held
from ...ir.text.write_spmd import folded, print_spmd
from ...passes.lower.insert import spell_handovers
from ...passes.plan import Objective, Outcome, Plan
from ..plan.compiled import Compilation, CompiledPhase, memory_is_limit
from ..simulate.check_report import ERROR_TOLERANCE, CheckReport
from ..text.terminal import count_text, gap_text, share_text, table, time_text
from .priced_at import basis_text, engine_text, network_text, products_text

MOST_NAMED = 3  # of the values that are live at the worst point
LEAST_SHOWN_S = 5e-8  # an op that takes less is not annotated

OBJECTIVES = {
    Objective.TIME: "least time",
    Objective.COMMUNICATION: "least communication",
    Objective.MEMORY: "least memory, then least time",
}


class Detail(StrEnum):
    """How much of a plan is told: all but the sharded program; that too, with norms, softmaxes and the like on one
    line each; all of it, as it can be read back."""

    SUMMARY = "summary"
    PROGRAM = "program"
    VERBOSE = "verbose"


def report(compiled: CompiledPhase, detail: Detail = Detail.PROGRAM) -> str:
    """The plan as text for people, ending in a newline; at most 100 columns where names allow."""
    head = [_header(compiled), *_verdict(compiled)]
    shown = [] if detail is Detail.SUMMARY else [_program(compiled, detail)]
    parts = [*head, _stored(compiled), _takes(compiled), *shown]
    return "\n\n".join("\n".join(part).rstrip() for part in parts) + "\n"


RULES = {
    Rule.MAX: "the longer of its compute and memory times",
    Rule.SUM: "its compute and memory times together",
    Rule.ROOT_OF_SQUARES: "the root of the sum of the squares of its compute and memory times",
}


def _header(compiled: CompiledPhase) -> Iterator[str]:
    spmd, hardware = compiled.spmd, compiled.hardware
    yield f"Plan of {json.dumps(spmd.name)}, phase {spmd.phase}, {OBJECTIVES[compiled.plan.objective]}"
    yield f"  mesh      {spmd.mesh}: {plural(spmd.mesh.chips, 'chip')}"
    yield (
        f"  hardware  {hardware.name}: {hardware.peak_flops_per_s / 1e12:.6g} Tflop/s, "
        f"HBM {hardware.hbm_bytes / 1e9:.2f} GB at {hardware.hbm_bytes_per_s / 1e9:.6g} GB/s"
        + (f", {hardware.room_bytes / 1e9:.2f} GB for a program" if hardware.room_bytes < hardware.hbm_bytes else "")
    )
    network = Network(hardware, spmd.mesh)
    yield f"  network   {network_text(network)}"
    yield f"  priced at {basis_text(network)}"
    if hardware.engine is not None or hardware.calibrated.kernel_s:
        yield f"  engine    {engine_text(hardware.engine)}"
    yield from (f"  products  {said}" for said in products_text(compiled))
    sizes = dict(spmd.sizes)
    pads = [f"{dim} {sizes[own]} to {sizes[dim]}" for dim, own in compiled.program.padding if sizes[own] < sizes[dim]]
    if pads:
        yield f"  padding   {', '.join(pads)}"
    if spmd.mean:
        yield f"  timed at  {mean_text(spmd)}"
    capacity = next((one.capacity for value in spmd.values for one in value.chosen), None)
    if capacity is not None:
        yield f"  capacity  {float(capacity):g} times what is expected to be chosen"


def mean_text(spmd: SpmdProgram) -> str:
    """The sizes at which ops are timed, of dims that count what caches hold by and by."""
    sizes = dict(spmd.sizes)
    return ", ".join(f"the mean {dim} of {mean:,}, with places for {sizes[dim]:,}" for dim, mean in spmd.mean)


def _stored(compiled: CompiledPhase) -> Iterator[str]:
    """A row for each stored tensor: its layout, and what a chip holds of it."""
    spmd = compiled.spmd
    values, sizes = spmd.table(), dict(spmd.sizes)
    total = dict(compiled.estimate.stored_bytes)
    rows = [("", "layout", "shape on a chip", "MB", "copies", "GB")]
    for stored, placed in stored_in(spmd.body).items():
        value = values[stored.value]
        shape = "x".join(map(str, value.layout.local_shape([sizes[d] for d in value.dims], spmd.mesh)))
        kept = copies_held(stored, placed.repeats, spmd.micro_batches)
        every = placed.times * (spmd.micro_batches if stored.kind is Kind.CACHE else 1)
        copies = f"{kept} of {every}" if stored.streamed else str(placed.times)
        counted = f"{total[value.name] / 1e9:.3f}" if stored.kind is not Kind.INPUT else "-"
        rows.append(
            (
                f"{stored.kind:<5} {value.name}",
                f"{value.dtype:<4} {format_layout(value.dims, value.layout)}",
                shape or "1",
                _mb(float(local_bytes(value, spmd))),
                str(copies),
                counted,
            )
        )
    yield "Stored on each chip"
    yield from table(rows, left=2)
    room = compiled.hardware.hbm_bytes
    used = compiled.memory
    held, live, whole = (float(n) for n in (used.stored_bytes, used.worst.bytes, used.total_bytes))
    yield f"  parameters and caches: {held / 1e9:.3f} GB, {held / room:.1%} of the HBM"
    yield f"  live at most: {live / 1e9:.3f} GB, {live / room:.1%}, {_worst(used.worst)}"
    for block in blocks_of(compiled.spmd):
        yield f"  {block_text(block)}"
    over = "" if whole <= room else ", more than it has"
    yield f"  in all: {whole / 1e9:.3f} GB, {whole / room:.1%} of the HBM{over}"
    for name, size in kept_bytes(compiled.spmd).items():
        copied = f"{float(size) / 1e9:.3f} GB"
        yield f"  not counted: {name} is read as it was beside its append, so that XLA copies it: {copied}"


def _worst(point: Point) -> str:
    """Where most is live, and the largest of what is."""
    where = "at the start" if point.step is None else f"as {point.step} is made"
    largest = sorted(point.live, key=lambda value: (-value.bytes, value.name))[:MOST_NAMED]
    return where + (": " + ", ".join(value.label for value in largest) if largest else "")


def block_text(block: Block) -> str:
    """What an attention has of its scores at a time."""
    sides = " x ".join(f"{places:,} {dim}" for dim, places in block.places)
    sizes = f"{float(block.bytes) / 1e6:,.1f} MB at a time, of {float(block.whole_bytes) / 1e6:,.1f}"
    return f"scores of {block.name}, in blocks of {sides}: {sizes}"


HEADING = "Sharded program"  # before what `escc check` reads


def _program(compiled: CompiledPhase, detail: Detail) -> Iterator[str]:
    yield f"{HEADING}, on the right the MB that a chip sends and the time, for one execution"
    if compiled.estimate.loops:
        yield "A step marked by `~` runs in one loop with the step before it; beside the first, what that hides"
    yield ""
    folds = {} if detail is Detail.VERBOSE else folded(compiled.spmd)
    yield print_spmd(compiled.spmd, _annotations(compiled.estimate), folds)


def _annotations(estimate: Estimate) -> dict[str, str]:
    """What is said beside each step: MB sent and time of a collective, time of an op; what a loop hides
    beside its first."""
    out = {c.result: _us(c.seconds) for c in estimate.ops if c.seconds >= LEAST_SHOWN_S}
    for cost in estimate.moves:
        out[cost.result] = f"{_mb(cost.bytes_sent)} MB {_us(cost.seconds)}" if cost.bytes_sent else "free"
    for loop in estimate.loops:
        hides = f"loop hides {_us(loop.hidden_s)}"
        out[loop.first] = f"{out[loop.first]}, {hides}" if loop.first in out else hides
    return out


def _verdict(compiled: CompiledPhase) -> Iterator[Iterator[str]]:
    """What a step takes, what binds it, and what is proven."""
    yield chain(_prediction(compiled), _proof(compiled))
    if compiled.checked is not None:
        yield _checked(compiled.checked)


def _prediction(compiled: CompiledPhase) -> Iterator[str]:
    """The prediction as a few lines of the report; nothing of a phase that takes no time."""
    found = compiled.prediction
    if found.tokens_per_s is None:
        return
    bar = ""
    if found.low_s is not None and found.high_s is not None:
        bar = f" ({time_text(found.low_s)} to {time_text(found.high_s)} in 95% of cases)"
    elif found.beyond and not compiled.hardware.ops_at_peaks:
        bar = f" (no range: {' and '.join(found.beyond)} was not measured)"
    rate = f"{found.tokens:,} token{'' if found.tokens == 1 else 's'}, {count_text(found.tokens_per_s)} a second"
    yield f"  A step takes {time_text(found.seconds)}{bar}: {rate}."
    dollars = found.dollars_per_million
    hour, on = compiled.hardware.dollars_per_chip_hour, compiled.hardware.priced_on
    at = f" at {hour:g} an hour for a chip{f' ({on})' if on else ''}" if hour is not None else ""
    money = "" if dollars is None else f", {count_text(dollars)} dollars{at}"
    yield f"  A million tokens take {count_text(found.chip_s_per_million)} chip-seconds{money}."
    spent = ", ".join(f"{resource} {seconds / found.seconds:.0%}" for resource, seconds in found.shares)
    yield f"  Most of the time goes to {found.binds}: {spent}."


def _proof(compiled: CompiledPhase) -> Iterator[str]:
    plan = compiled.plan
    if compiled.together:
        yield "  Planned together with the other phases; what is proven is said of all."
    else:
        yield f"  objective  {objective_text(plan)}"
        yield f"  bound      {_priced(plan, plan.bound)}"
        yield f"  status     {status_text(plan)}"
        if plan.parts:
            yield f"  parts      axes were split as far as {plan.parts}"
        if plan.orders_left:
            yield f"  orders     of products: {plan.orders_left:,} combinations were bounded, but not planned"
        yield from _ways_left(plan)
    if waiting_s := compiled.estimate.totals().waiting_s:
        yield f"  waiting    {time_text(waiting_s)} for the host, which the objective leaves out"
    yield from _overlap(compiled)


def ways_text(plan: Plan) -> str:
    """Among which plans one is proven cheapest, where some ways of sending tokens to experts were not looked at."""
    return " in the ways of sending that were looked at" if plan.ways_left else ""


def _ways_left(plan: Plan) -> Iterator[str]:
    if count := plan.ways_left:
        ways = "1 way was not looked at" if count == 1 else f"{count:,} ways were not looked at"
        yield f"  sending    of tokens once to groups, and back from each expert: {ways}"


def status_text(plan: Plan) -> str:
    """What is proven of a plan, and of which plans."""
    proven = Outcome.of(plan.gap) is Outcome.OPTIMAL
    among = ("" if plan.parts or not plan.mesh.divisible else " on whole axes") + ways_text(plan)
    if plan.in_mesh_order:
        best = "cheapest, within a gap of 1e-9," if proven else f"within {share_text(plan.gap)} of the cheapest"
        return f"feasible: {best} among layouts{among} in mesh order"
    return f"optimal{among}: {PROOF}" if proven else f"feasible: {gap_text(plan.gap, among)}"


PROOF = "proven within a gap of 1e-9"


def _takes(compiled: CompiledPhase) -> Iterator[str]:
    """A row for one repetition of each repeat, and one for the whole program."""
    rows: list[tuple[str, ...]] = [("", "compute", "memory", "ops", "communication", "total", "MB sent", "collectives")]
    for scope in compiled.scopes:
        rows.append(_totals_row(f"{scope.name}, one of {scope.count}", scope.once))
    rows.append(_totals_row("whole program", compiled.estimate.totals()))
    yield "Each chip takes"
    yield from table(rows, left=1)
    yield f"  An op takes {RULES[compiled.hardware.calibrated.op_rule]}; the total is ops and communication."
    if compiled.estimate.loops:
        yield f"  Less what loops hide, {time_text(compiled.estimate.totals().hidden_s)} of the whole program."
    for fetch in compiled.estimate.fetches:
        waits = f"waiting for {fetch.streamed} of {fetch.count} repetitions of {fetch.repeat} to come from the host"
        yield f"  The whole program with {time_text(fetch.waiting_s)} of {waits}."
    if (used := compiled.prediction.mfu) is not None:
        yield f"  MFU {used:.1%}: the flops of the model's parameters, without padding, of what the chips could do."


def checked_text(compiled: Compilation) -> str:
    """What the runs of phases showed, where there were any, for what is written without a word of it."""
    return "\n".join(
        f"phase {one.phase}\n" + "\n".join(_checked(one.checked)) for one in compiled if one.checked is not None
    )


def _overlap(compiled: CompiledPhase) -> Iterator[str]:
    """What loops hide, and what is proven nevertheless."""
    if not compiled.overlapped:
        return
    count = len(compiled.estimate.loops)
    if not count:
        yield "  overlap    no loop would hide anything"
        return
    hide = f"{plural(count, 'loop')} {'hides' if count == 1 else 'hide'}"
    line = f"  overlap    {hide} {time_text(compiled.estimate.totals().hidden_s)}"
    if compiled.plan.objective is not Objective.TIME or compiled.together:
        yield line
        return
    yield f"{line}; the plan is chosen and proven by the time before that"
    if compiled.hardware.convention is Convention.FLAT:
        yield "             no plan can hide more than half of its time, nor take less than half the bound"


def _checked(checked: CheckReport) -> Iterator[str]:
    """What the run showed, sentence by sentence."""
    agrees = "equal to" if checked.max_error <= ERROR_TOLERANCE else "DIFFERS from"
    dims = " ".join(f"{dim}={size}" for dim, size in checked.sizes)
    repeats = "".join(f", {name} {count} times" for name, count in checked.repeats)
    counted, predicted = (float(n) for n in (checked.counted_bytes, checked.predicted_bytes))
    yield f"  Run on {plural(checked.chips, 'virtual chip')} at {dims}{repeats}:"
    yield f"  result     {agrees} the reference, largest relative error {checked.max_error:.1e}"
    if checked.not_finite is not None:
        yield f"             NaN and infinity are equal where both have them; first, {checked.not_finite.sentence}"
    if all(move.equal for move in checked.moves):
        yield f"  traffic    {counted:,.15g} bytes sent by a chip, as predicted"
    else:
        yield f"  traffic    {counted:,.15g} bytes sent by a chip, DIFFERS from the {predicted:,.15g} predicted"
    (came, back), wanted = map(float, checked.host.counted), tuple(map(float, checked.host.predicted))
    if came or back or not checked.host.equal:
        says = (
            "as predicted" if checked.host.equal else "DIFFERS from the {:,.15g} and {:,.15g} predicted".format(*wanted)
        )
        yield f"  host       {came:,.15g} bytes came to a chip, {back:,.15g} went back, {says}"


def _totals_row(name: str, totals: Totals) -> tuple[str, ...]:
    seconds = (totals.compute_s, totals.memory_s, totals.op_s, totals.comm_s, totals.total_s)
    return (name, *map(time_text, seconds), _mb(totals.bytes_sent), str(totals.collectives))


def objective_text(plan: Plan) -> str:
    """What was minimised, and what of it there is: of several phases in which least memory is a limit also that."""
    stored = f", where {max(one.price for one in plan.phases) / 1e9:.6g} GB are stored" if memory_is_limit(plan) else ""
    return _priced(plan, plan.price) + stored


def _priced(plan: Plan, price: float) -> str:
    if plan.objective is Objective.TIME or memory_is_limit(plan):
        return time_text(price, 6)
    return (
        f"{price / 1e9:.6g} GB stored"
        if plan.objective is Objective.MEMORY
        else f"{time_text(price, 6)} of communication"
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _mb(size: float) -> str:
    return f"{size / 1e6:.2f}"


Data = dict[str, Any]


def together_text(compiled: Compilation) -> str:
    """What phases that were planned together take in all: a block beside their own."""
    return "\n".join(_together(compiled))


def _together(compiled: Compilation) -> Iterator[str]:
    [plan] = compiled.plans
    rows: list[tuple[str, ...]] = [("", "calls", "each", "all")]
    handed = {h.before: h for h in plan.handovers}
    for one in compiled:
        each_s, calls = one.estimate.totals().total_s, one.calls
        rows.append((one.phase, str(calls), time_text(each_s), time_text(calls * each_s)))
        if one.phase in handed:
            handover = handed[one.phase]
            name = f"{handover.before} to {handover.after}"
            rows.append((name, str(calls), time_text(handover.price), time_text(calls * handover.price)))
    rows.append(("together", "", "", time_text(compiled.total_s)))
    yield "Phases together: each parameter stored once, caches handed on"
    yield from table(rows, left=1)
    for spmd in spell_handovers(plan):
        yield f"  caches from {spmd.phase}: {_moved(spmd)}"
    if any(one.estimate.loops for one in compiled):
        yield "  of times, what loops hide is taken off; the plan is chosen and proven by those before that"
    yield ""
    yield f"  objective  {objective_text(plan)}"
    yield f"  bound      {_priced(plan, plan.bound)}"
    yield f"  status     {status_text(plan)}"
    if plan.parts:
        yield f"  parts      axes were split as far as {plan.parts}"
    yield from _ways_left(plan)


def _counted_s(one: CompiledPhase) -> float:
    """What is minimised of one call of a phase, before any of it is hidden."""
    totals = one.estimate.totals()
    return totals.comm_s if one.plan.objective is Objective.COMMUNICATION else totals.apart_s


def _moved(spmd: SpmdProgram) -> str:
    count = len(moves(spmd))
    if not count:
        return "they lie as the next phase has them"
    return f"moved by {count} collectives" if count > 1 else "moved by one collective"


def sharing_text(alone: Sequence[CompiledPhase], together: Plan | None, reason: str | None) -> str:
    """What it costs to store parameters once: phases planned alone beside the plan of all, or why there is none."""
    total = sum(one.calls * _counted_s(one) for one in alone)
    what = ", in communication" if alone[0].plan.objective is Objective.COMMUNICATION else ""
    lines = [f"What sharing the stored parameters costs{what}"]
    if together is None:
        return "\n".join([*lines, f"  together there is no plan: {reason}"])
    rows: list[tuple[str, ...]] = [("", "calls", "alone", "together")]
    prices = {phase.phase: phase.price for phase in together.phases}
    for one in alone:
        # Where least memory was asked for, a phase's price is in bytes: only the whole has a time to compare.
        shared = "-" if together.objective is Objective.MEMORY else time_text(prices[one.phase])
        rows.append((one.phase, str(one.calls), time_text(_counted_s(one)), shared))
    handed = sum(next(o.calls for o in alone if o.phase == h.before) * h.price for h in together.handovers)
    rows.append(("handovers", "", "-", time_text(handed)))
    rows.append(("in all", "", time_text(total), time_text(together.price)))
    lines += table(rows, left=1)
    more = round(together.price / total - 1, 4) + 0.0 if total else 0.0  # a rounding error is no less
    lines.append(f"  {more:.2%} more than each phase as if it had the chips to itself, nothing handed over")
    return "\n".join(lines)


def together_data(compiled: Compilation) -> Data:
    """The same as an object: the calls of each phase, the handovers, the whole and its bound."""
    [plan], program = compiled.plans, compiled[0].program
    return {
        "price_s": plan.price,
        "bound_s": plan.bound,
        "gap": plan.gap,
        "status": plan.outcome.value,
        "in_mesh_order": plan.in_mesh_order,
        "orders_left": plan.orders_left,
        "ways_left": plan.ways_left,
        "calls": {phase.phase: program.phase(phase.phase).calls for phase in plan.phases},
        "handovers": [{"before": h.before, "after": h.after, "seconds": h.price} for h in plan.handovers],
    }
