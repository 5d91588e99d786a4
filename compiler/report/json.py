"""A compiled phase as data for JSON. Times are seconds, sizes bytes; only `build_s` and `solve_s` vary.

`seconds` and `bytes_sent_per_chip` of a step are those of one execution; `times` says how often it
runs. `totals` are of the whole program, `totals_once` count each step once. `loops`, and what they
hide, are there only where overlap was asked for, `fetches` where something comes from a host. `status`, `gap` and the
bound of a phase that was planned with others are null: what is proven is proven of all of them, and stands in
`together`. What a stream of requests gets, where one was asked for, stands in `stream`. Where streams from a host were
asked for, what is proven of these stands in `offload`, and where stages were and none are quickest, what was tried in
`tried`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction

from ...cost.blocks import blocks_of
from ...cost.estimate import MoveCost, OpCost, Totals
from ...cost.loops import LoopCost
from ...cost.memory import MemoryUse
from ...cost.ops import model_flops
from ...ir.diagnostics import Diagnostic
from ...ir.layout import format_layout
from ...ir.program import Kind, stored_in, walk
from ...ir.spmd import Compute, Move, SpmdProgram, SpmdValue
from ...passes.plan import Objective
from ..plan.compiled import Compilation, CompiledPhase
from ..plan.shapes import Shape, ranking_data
from ..simulate.check_report import CheckReport
from .text import together_data

Data = dict[str, object]


def json_text(
    phases: Compilation,
    shapes: Sequence[Shape] = (),
    chosen: Data | None = None,
    said: Sequence[Diagnostic] = (),
) -> str:
    """One phase as an object, several as `{"phases": [...]}`; ends in a newline.

    `shapes`: the slice shapes that were compiled, cheapest first; they add `slice_shapes`. `chosen`: what is to be said
    of the choice among streams and stages, and of a stream of requests. `said`: warnings of no phase by itself, which
    stand beside those of one.
    """
    objects = [phase_data(compiled) for compiled in phases]
    whole: Data = objects[0] if len(objects) == 1 else {"phases": objects}
    if phases.together:
        whole |= {"together": together_data(phases)}
    whole |= chosen or {}
    if said:
        whole["warnings"] = [warning.message for warning in [*said, *(phases[0].warnings if len(phases) == 1 else ())]]
    if shapes:
        whole = {"slice_shapes": ranking_data(shapes)} | whole
    return json.dumps(whole, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def phase_data(compiled: CompiledPhase) -> Data:
    """All that is known of one compiled phase."""
    spmd, cost, plan = compiled.spmd, compiled.estimate, compiled.phase_plan
    values = spmd.table()
    stored = stored_in(spmd.body)
    hidden = compiled.overlapped
    return {
        "model": spmd.name,
        "phase": spmd.phase,
        "sizes": dict(spmd.sizes),
        **({"mean_sizes": dict(spmd.mean)} if spmd.mean else {}),
        "true_sizes": {dim: dict(spmd.sizes)[true] for dim, true in compiled.program.padding},
        "mesh": dict(spmd.mesh.axes),
        "chips": spmd.mesh.chips,
        "hardware": compiled.hardware.name,
        "objective": compiled.plan.objective.value,
        "status": None if plan.outcome is None else compiled.plan.outcome.value,
        "in_mesh_order": compiled.plan.in_mesh_order,
        "orders_left": compiled.plan.orders_left,
        "ways_left": compiled.plan.ways_left,
        "parts": None if compiled.plan.parts is None else dict(compiled.plan.parts.axes),
        **_priced(compiled),
        "gap": plan.gap,
        "build_s": compiled.plan.timing.build_s,
        "solve_s": compiled.plan.timing.solve_s,
        "model_flops": model_flops(plan.program, compiled.phase),
        "mfu": compiled.prediction.mfu,
        "prediction": _prediction(compiled),
        "totals": _totals(cost.totals(), hidden),
        "totals_once": _totals(cost.totals(once=True), hidden),
        "repeats": [{"name": s.name, "count": s.count, **_totals(s.once, hidden)} for s in compiled.scopes],
        "stored_bytes_per_chip": math.fsum(size for _, size in cost.stored_bytes),
        "memory": _memory(compiled.memory, compiled.spmd),
        "hbm_bytes_per_chip": compiled.hardware.hbm_bytes,
        "stored": {s.value: _layout(values[s.value]) for s in stored},
        "stored_bytes": dict(cost.stored_bytes),
        "kinds": {s.value: Kind(s.kind).value for s in stored},
        "results": {name: _layout(values[name]) for name in spmd.results},
        "steps": _steps(compiled),
        **({"loops": [_loop(loop) for loop in cost.loops]} if hidden else {}),
        "check": None if compiled.checked is None else _check(compiled.checked),
        "warnings": [warning.message for warning in compiled.warnings],
    }


def _prediction(compiled: CompiledPhase) -> Data:
    """The prediction as an object. Times are seconds, sizes bytes."""
    found = compiled.prediction
    return {
        "latency_s": found.seconds,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "not_measured": list(found.beyond),
        "tokens": found.tokens,
        "tokens_per_s": found.tokens_per_s,
        "mfu": found.mfu,
        "hbm_bytes_per_chip": found.hbm_bytes,
        "chip_s_per_million_tokens": found.chip_s_per_million,
        "dollars_per_million_tokens": found.dollars_per_million,
        "binds": found.binds.value,
        "spent_s": {resource.value: seconds for resource, seconds in found.shares},
        **({"fetches": [asdict(fetch) for fetch in compiled.estimate.fetches]} if compiled.estimate.fetches else {}),
        "parts": [
            {"result": part.result, "what": part.what, "times": part.times, "seconds": part.seconds}
            for part in found.parts
        ],
    }


def _priced(compiled: CompiledPhase) -> Data:
    """The objective and its proven bound, if it has one of its own, in seconds, or in bytes where memory is
    minimised."""
    plan = compiled.phase_plan
    unit = "bytes" if compiled.plan.objective is Objective.MEMORY else "s"
    prices: Data = dict.fromkeys(("objective_s", "bound_s", "objective_bytes", "bound_bytes"))
    return prices | {f"objective_{unit}": plan.price, f"bound_{unit}": plan.bound}


def _totals(totals: Totals, hidden: bool) -> Data:
    return {
        "compute_s": totals.compute_s,
        "memory_s": totals.memory_s,
        "op_s": totals.op_s,
        "comm_s": totals.comm_s,
        **({"hidden_s": totals.hidden_s} if hidden else {}),
        **({"waiting_s": totals.waiting_s} if totals.waiting_s else {}),
        "total_s": totals.total_s,
        "bytes_sent_per_chip": totals.bytes_sent,
        "collectives": totals.collectives,
    }


def _steps(compiled: CompiledPhase) -> list[Data]:
    """The steps in program order, those in repeats once."""
    values = compiled.spmd.table()
    ops = {c.result: c for c in compiled.estimate.ops}
    moves = {c.result: c for c in compiled.estimate.moves}
    steps: list[Data] = []
    for placed in walk(compiled.spmd.body):
        match placed.item:
            case Compute(op):
                steps.append(_op(type(op).__name__.lower(), values[op.result], ops[op.result]))
            case Move(result, operand):
                steps.append(_move(values[operand], values[result], moves[result]))
    return steps


def _op(name: str, result: SpmdValue, cost: OpCost) -> Data:
    return {
        "op": name,
        "result": result.name,
        "layout": _layout(result),
        "flops": cost.flops,
        "hbm_bytes": cost.hbm_bytes,
        "seconds": cost.seconds,
        "times": cost.times,
    }


def _move(before: SpmdValue, after: SpmdValue, cost: MoveCost) -> Data:
    return {
        "kind": cost.kind,
        "axes": list(cost.axes),
        "tensor": before.name,
        "result": after.name,
        "from": _layout(before),
        "to": _layout(after),
        "bytes_sent_per_chip": cost.bytes_sent,
        "seconds": cost.seconds,
        "times": cost.times,
    }


def _loop(cost: LoopCost) -> Data:
    """A loop, once; `results` are those of its steps."""
    return {
        "results": list(cost.results),
        "times": cost.times,
        "halves": cost.halves,
        "permutes": cost.permutes,
        "permute_bytes": _number(cost.permute_bytes),
        "op_s": cost.op_s,
        "transfer_s": cost.transfer_s,
        "start_s": cost.start_s,
        "seconds": cost.seconds,
        "hidden_s": cost.hidden_s,
    }


def _memory(used: MemoryUse, spmd: SpmdProgram) -> Data:
    """Bytes on a chip: what is stored, what is live beside it at the worst point, by value, and both; of attention in
    blocks, what a block of its scores takes."""
    worst = used.worst
    live = dict.fromkeys((value.name for value in worst.live), 0.0)
    for value in worst.live:
        live[value.name] += float(value.bytes)
    return {
        "stored_bytes": float(used.stored_bytes),
        "live_bytes": float(worst.bytes),
        "copied_bytes": float(worst.copied_bytes),
        "total_bytes": float(used.total_bytes),
        "worst_step": worst.step,
        "worst_repeats": list(worst.repeats),
        "live": live,
        "scores_in_blocks": {
            block.name: {
                "places": dict(block.places),
                "bytes": float(block.bytes),
                "whole_bytes": float(block.whole_bytes),
            }
            for block in blocks_of(spmd)
        },
    }


def _check(checked: CheckReport) -> Data:
    finite, odd = math.isfinite(checked.max_error), checked.not_finite
    return {
        "max_error": checked.max_error if finite else None,
        "not_finite": None if odd is None else {"value": odd.value, "nan": odd.nan, "chip": dict(odd.chip)},
        "chips": checked.chips,
        "sizes": dict(checked.sizes),
        "repeats": dict(checked.repeats),
        "counted_bytes": _number(checked.counted_bytes),
        "predicted_bytes": _number(checked.predicted_bytes),
        **({"host_bytes": [float(n) for n in checked.host.counted]} if any(checked.host.counted) else {}),
        "counted_equals_predicted": checked.equal,
    }


def _layout(value: SpmdValue) -> str:
    return format_layout(value.dims, value.layout)


def _number(exact: Fraction) -> int | float:
    return int(exact) if exact.denominator == 1 else float(exact)
