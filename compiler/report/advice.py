"""What a user may do next: what makes a step quicker, or tokens cheaper, by what most of its time goes to."""

from __future__ import annotations

from collections import Counter
from math import prod

from ...cost.ops import model_flops_by_type
from ...cost.predict import Resource
from ...ir.dataflow import appends, origins
from ...ir.dtype import Dtype
from ...ir.program import Kind, operand_names, stored_in, walk
from ...ir.spmd import Compute
from ..plan.compiled import Compilation, CompiledPhase

FEW_CHIPS = 4  # along an axis, of which no parts are proposed
LARGER = "a larger batch reads the weights for more tokens"


def advice(compiled: Compilation) -> str:
    """What to do next, a line for what binds in each phase."""
    lines = ["Next"]
    found: dict[str, list[str]] = {}
    for one in compiled:
        if one.prediction.tokens_per_s is not None:
            found.setdefault(what_helps(one), []).append(one.phase)
    for line, phases in found.items():
        named = f"{', '.join(phases)}: " if len(compiled) > 1 else ""
        lines.append(f"  {named}{line}")
    plan = compiled[0].plan
    long = [name for name in plan.mesh.divisible if plan.mesh.size(name) > FEW_CHIPS]
    if long and not plan.parts and not any(one.estimate.fetches for one in compiled):
        lines.append(f"  `--parts` also looks at layouts that split {long[0]} in parts, which takes longer to plan.")
    lines.append("  `--program` prints the sharded program, `-o DIR` writes it, `--emit jax` is source that runs,")
    run = "" if all(one.checked for one in compiled) else "`--check` runs it on virtual chips, "
    lines.append(f"  {run}`escc explain` has its cost as formulas.")
    return "\n".join(lines) + "\n"


def what_helps(one: CompiledPhase) -> str:
    """What makes a step of a phase quicker, or its tokens cheaper."""
    match one.prediction.binds:
        case Resource.COMPUTE:
            return f"Compute binds: more chips make a step quicker{_more_in_fewer_bits(one)}."
        case Resource.HBM:
            return _of_hbm(one)
        case Resource.NETWORK:
            hides = "" if one.overlapped else "`--overlap` hides collectives, and "
            return f"The network binds: {hides}a larger batch or fewer chips send less for each token."
        case Resource.LATENCY:
            return "Latency binds: fewer chips, or a larger batch, make fewer and larger collectives."
        case Resource.LAUNCH:
            return "Starting kernels, or the engine, binds: a larger batch does more in each step."
        case Resource.HOST:
            fewer = _fewer_bits(one, Kind.PARAM)
            return f"The host binds: a larger batch does more with each layer that comes{fewer and f', and {fewer}'}."


def _of_hbm(one: CompiledPhase) -> str:
    """What helps where reading and writing takes most of the time: of caches, weights or what is made on the way."""
    read = _read_bytes(one)
    most = max(read, key=lambda kind: read[kind])
    fewer = "" if most is Kind.INPUT else _fewer_bits(one, most)
    if most is Kind.CACHE:
        return f"The HBM binds, caches most of all: {fewer or 'shorter contexts, or more chips, read less'}."
    helps = [LARGER] if most is Kind.PARAM and _has_room(one) else []
    helps += [fewer] if fewer else []
    return f"The HBM binds: {', and '.join(helps) or 'on more chips each reads less'}."


def _read_bytes(one: CompiledPhase) -> dict[Kind, float]:
    """What a chip reads and writes in ops on caches, in those on weights, and in all others, which are `input`."""
    first, kinds = origins(one.spmd), {stored.value: stored.kind for stored in stored_in(one.spmd.body)}
    kinds |= {op.result: kinds[cache] for cache, op in appends(one.spmd).items() if cache in kinds}
    moved = {op.result: op.times * op.hbm_bytes for op in one.estimate.ops}
    found = {Kind.PARAM: 0.0, Kind.CACHE: 0.0, Kind.INPUT: 0.0}
    for placed in walk(one.spmd.body):
        if isinstance(placed.item, Compute):
            own = {kinds.get(first.get(name, name)) for name in operand_names(placed.item.op)}
            kind = next((kind for kind in (Kind.CACHE, Kind.PARAM) if kind in own), Kind.INPUT)
            found[kind] += moved.get(placed.item.op.result, 0.0)
    return found


def _has_room(one: CompiledPhase) -> bool:
    """Whether each chip has room for twice the batch, with twice the caches and twice what is made on the way."""
    kinds = {stored.value: stored.kind for stored in stored_in(one.spmd.body)}
    held = (*one.memory.stored, *one.memory.shared)
    weights_bytes = sum(float(size) for name, size in held if kinds[name] is Kind.PARAM)
    return weights_bytes + 2 * (float(one.memory.total_bytes) - weights_bytes) <= one.prediction.hbm_capacity_bytes


def _fewer_bits(one: CompiledPhase, kind: Kind) -> str:
    """What fewer bits of weights or caches save; nothing where there are none."""
    values, sizes = one.spmd.table(), dict(one.spmd.sizes)
    bits: Counter[int] = Counter()
    for stored, placed in stored_in(one.spmd.body, kind).items():
        value = values[stored.value]
        bits[value.dtype.bits] += placed.times * prod(sizes[dim] for dim in value.dims)
    [(most, _)] = bits.most_common(1) or [(0, 0)]
    name = "caches" if kind is Kind.CACHE else "weights"
    says = {16: f"`--{name} int8` halves the bytes of {name}", 8: f"{name} in 4 bits are half as many bytes"}
    return says.get(most, "")


def _more_in_fewer_bits(one: CompiledPhase) -> str:
    """That a chip does more in fp8 than in bf16, where most is done in that, and an engine brings products to fp8."""
    hardware, done = one.hardware, model_flops_by_type(one.phase_plan.program, one.phase)
    most = hardware.done_in(max(done, key=lambda each: done[each])) if done else Dtype.FP8
    if most is not Dtype.BF16 or hardware.narrow_peaks.get(Dtype.FP8, 0.0) <= hardware.peak_flops_per_s:
        return ""
    if hardware.engine is None:
        return ", and so do weights in fp8 under an engine that multiplies in that (`--engine vllm`)"
    return ", and so do weights in fp8, in which these chips do more" * (Dtype.FP8 in hardware.engine.quantises)
