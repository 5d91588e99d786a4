"""Stages and tensor splits of the dense models of DeepSpeed's table, beside each other: `make dense`.

Plans each model of `examples/deepspeed-dense` on the fewest A100 of 40 GB that hold it, parts of a node or whole nodes,
in every way to divide these into stages and chips that split tensors; and Megatron-530B as FasterTransformer ran it,
beside the times that were measured; and writes `docs/dense.md`. Half an hour, of which the last part takes a minute.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from escc.compiler.calibrate.measurements import own_measurements
from escc.compiler.calibrate.named_layouts import AttentionLayout, FeedForwardLayout, named_pins
from escc.compiler.plan.pipeline import load
from escc.compiler.plan.staged import Staged
from escc.compiler.plan.tries import tries
from escc.compiler.report.hardware import parameter_count
from escc.compiler.text.terminal import time_text
from escc.cost.engine_file import load_engine
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.passes.choose import choose
from escc.passes.options import Options
from escc.passes.plan import relative_gap
from escc.passes.stages.choose_stages import choose_stages
from escc.passes.stages.divide import layers_of

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "deepspeed-dense"
DOCUMENT = ROOT / "docs" / "dense.md"
CHIP = "a100-40"
MESHES = {  # the fewest chips that hold the weights: parts of a node, in two ways where they have two, or nodes of 8
    "1.5b": ("gpu=1",),
    "2.7b": ("gpu=1",),
    "6b": ("gpu=1",),
    "13b": ("gpu=1",),
    "20b": ("gpu=2",),
    "50b": ("gpu=4", "pair=2,gpu=2"),
    "87b": ("gpu=8", "pair=2,gpu=4"),
    "175b": ("node=2,gpu=8",),
    "530b": ("node=5,gpu=8",),
}

LARGER = "530b", 64, (1, 5)  # a batch with which stages are quicker, and the counts of them that are compared

# What FasterTransformer splits Megatron-530B over: nodes of 8 chips, and stages. Tensors split over what a stage has.
WAYS = {"tp16": (2, 1), "tp32": (4, 1), "pp3-tp8": (3, 3)}
PROMPT, GENERATED = 20, 8
MOST_TOKENS = 2048  # of a micro-batch

# The prompt of GPT-3 with 24 sequences in 2 stages, each a node of A100 (Aminabadi et al. 2022): how many times as
# quick it is with more micro-batches than a token has, and than tensors split over all chips.
HYBRID = "node=2,gpu=8", 24, 512
IN_DECODE, PUBLISHED = 2, {"as in decode": 1.18, "tensors over all": 3.06}


@dataclass(frozen=True)
class Row:
    """One way to divide the chips of a model: all calls of both phases in `seconds`, of which `gap` is not proven.
    `axis`: along which there are stages, None for none; `micro_batches`: of a prompt, and of a token."""

    mesh: str
    axis: str | None
    seconds: float
    gap: float
    micro_batches: tuple[int, ...]


def planned(name: str, batch: int | None = None, stages: int | None = None) -> list[Row]:
    """What came of each way to divide the chips of a model, the quickest first; of another batch, or of so many stages
    alone."""
    program = load(FOLDER / f"{name}.esti", {} if batch is None else {"B": batch})
    phases = [phase.name for phase in program.phases]
    meshes = [Mesh.parse(text) for text in MESHES[name]]
    rows = []
    for one in tries(program, phases, meshes, Options(Hardware.load(CHIP)), stages, every=True):
        if one.found is not None:
            rounds = one.found.plan.rounds if isinstance(one.found, Staged) else ()
            micro = tuple(each.micro_batches for _, each in rounds)
            gap = relative_gap(one.price, one.bound)
            rows.append(Row(",".join(f"{axis}={n}" for axis, n in one.mesh.axes), one.axis, one.price, gap, micro))
    return rows


def best_of(rows: Sequence[Row], staged: bool) -> Row | None:
    """The quickest row with stages, or without."""
    return next((row for row in rows if (row.axis is not None) is staged), None)


def document(found: Mapping[str, Sequence[Row]], larger: Sequence[Row] = ()) -> str:
    """The models and what is found for each, as Markdown; `larger`: without stages and with, of `LARGER`."""
    lines = [
        "# Dense models in stages",
        "",
        "Written by `make dense`: the models of DeepSpeed's table of dense ones (Aminabadi et al. 2022, table I), all "
        "as blocks of GPT-3's kind ([`examples/deepspeed-dense`](../examples/deepspeed-dense)), on the fewest A100 of "
        "40 GB that hold them: a batch of 16, a prompt of 512 tokens, and 50 more of them. Without stages all chips "
        "split tensors; with stages those of a stage do. Seconds are of all calls of both phases.",
        "",
        "| model | parameters | layers | hidden | chips | tensors over all | stages | tensor degree | micro-batches "
        "| in stages | found |",
        "|---|---:|---:|---:|---|---:|---:|---:|---|---:|---|",
    ]
    for name, rows in found.items():
        program = load(FOLDER / f"{name}.esti")
        sizes = dict(program.phases[0].sizes)
        layers = layers_of(program)
        alone, staged = best_of(rows, False), best_of(rows, True)
        mesh = Mesh.parse(rows[0].mesh)
        cells = ["-"] * 4
        if staged is not None and staged.axis is not None:
            own = Mesh.parse(staged.mesh)
            count = own.size(staged.axis)
            micro = ", ".join(map(str, staged.micro_batches))
            cells = [str(count), str(own.chips // count), micro, time_text(staged.seconds)]
        which = f"{cells[0]} stages" if rows[0].axis is not None else f"tensors over {mesh.chips}"
        lines.append(
            f"| {name} | {parameter_count(program) / 1e9:.1f}e9 | {layers} | {sizes['E']} | {mesh.chips} "
            f"| {'-' if alone is None else time_text(alone.seconds)} | {' | '.join(cells)} "
            f"| {which if mesh.chips > 1 else 'one chip'} |"
        )
    gap = max(row.gap for rows in found.values() for row in rows)
    lines += [
        "",
        f"No row could be more than {gap:.1%} quicker. With so few sequences stages wait for each other, and each "
        "micro-batch reads the weights again, so that splitting tensors is quicker, even over nodes.",
    ]
    if larger:
        alone, staged = larger
        name, batch, (_, count) = LARGER
        lines.append(
            f"Of a batch of {batch} that is not so: {name} takes {time_text(alone.seconds)} with tensors over all "
            f"chips, and {time_text(staged.seconds)} in {count} stages, with "
            f"{' and '.join(map(str, staged.micro_batches))} micro-batches."
        )
    lines.append("")
    return "\n".join(lines)


def hybrid_s(micro_batches: int | None = None) -> tuple[int, dict[str, float]]:
    """The micro-batches that are found for the prompt of `HYBRID`, if none are given, and what it takes: with those,
    with as many as there are of a token, and with tensors split over all chips, in the layouts of Megatron and in the
    best ones."""
    text, batch, length = HYBRID
    program, mesh = load("gpt-3-175b", {"B": batch, "L": length, "M": length}, phase="prefill"), Mesh.parse(text)
    options = Options(Hardware.load(CHIP))
    named = FeedForwardLayout.WS1D, AttentionLayout.HEADS
    pinned = replace(options, pins=named_pins(program, dict(program.phase("prefill").sizes), mesh, *named))
    given = {} if micro_batches is None else {"prefill": micro_batches}
    found = choose_stages(program, ["prefill"], mesh, "node", "B", options, given)
    few = choose_stages(program, ["prefill"], mesh, "node", "B", options, {"prefill": IN_DECODE})
    return dict(found.rounds)["prefill"].micro_batches, {
        "in stages": found.price,
        "as in decode": few.price,
        "tensors over all": choose(program, "prefill", mesh, pinned).price,
        "in any layout": choose(program, "prefill", mesh, options).price,
    }


def hybrid(micro_batches: int, seconds: Mapping[str, float]) -> str:
    """What many micro-batches in a prompt bring beside few, as Markdown."""
    _, batch, length = HYBRID
    gain = {name: each_s / seconds["in stages"] for name, each_s in seconds.items()}
    return "\n".join(
        (
            "",
            "## Many micro-batches in the prompt",
            "",
            f"A prompt of GPT-3 of {batch} sequences of {length} tokens on 2 nodes of 8 A100 of 40 GB takes "
            f"{time_text(seconds['in stages'])} in 2 stages with {micro_batches} micro-batches, as found. With "
            f"{IN_DECODE}, as of a token, it takes {gain['as in decode']:.2f} times as long "
            f"({PUBLISHED['as in decode']} was published: Aminabadi et al. 2022); with tensors split over both nodes "
            f"as Megatron does {gain['tensors over all']:.2f} times, and in the best layouts "
            f"{gain['in any layout']:.2f} times ({PUBLISHED['tensors over all']} was published; nothing between "
            "the nodes is as slow here).",
            "",
        )
    )


def published_s() -> dict[int, dict[str, float]]:
    """Seconds of prompt and tokens that FasterTransformer took, by batch and `WAYS`: Pope et al. 2022, table D.2."""
    rows = csv.DictReader(line for line in own_measurements().text.splitlines() if not line.startswith("#"))
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["hardware"] == "a100-80":
            found.setdefault(int(row["batch"]), {})[row["ffn_layout"]] = float(row["time_ms"]) / 1e3
    return found


@cache
def _served() -> Hardware:
    return Hardware.load("a100-80").with_engine(load_engine("fastertransformer"))


def micro_batches(batch: int, tokens: int, stages: int) -> int:
    """Into how many micro-batches FasterTransformer divides a batch of sequences with so many new tokens each: one for
    each stage where that leaves no sequence over and else one, and both halved while they have more than `MOST_TOKENS`
    (getLocalBatchSize in nccl_utils.cc of NVIDIA's repository at 0311bc6a; later versions have another limit)."""
    size = batch // stages if batch % stages == 0 else batch
    while size * tokens > MOST_TOKENS and size % 2 == 0:
        size //= 2
    return batch // size


def predicted_s(batch: int, way: str) -> float:
    """The same in the layouts of Megatron. Stages are nodes, with the micro-batches of FasterTransformer."""
    nodes, stages = WAYS[way]
    mesh = Mesh.parse(f"node={nodes},gpu=8")
    inner = mesh if stages == 1 else mesh.without("node")
    layouts = FeedForwardLayout.WS1D, AttentionLayout.HEADS
    total = 0.0
    for phase in _megatron(batch).phases:
        sizes = dict(phase.sizes)
        parts = micro_batches(batch, sizes["L"], stages)
        options = Options(_served(), pins=named_pins(_megatron(batch), sizes, inner, *layouts))
        if stages == 1:
            total += parts * phase.calls * choose(_megatron(batch // parts), phase.name, mesh, options).price
        else:
            given = {phase.name: parts}
            total += choose_stages(_megatron(batch), [phase.name], mesh, "node", "B", options, given).price
    return total


def _megatron(batch: int) -> Program:
    program = load("megatron-530b")
    sized = {"B": batch, "L": PROMPT, "M": PROMPT}, {"B": batch, "L": 1, "M": PROMPT + GENERATED}
    phases = (
        replace(phase, sizes=tuple((d, sizes.get(d, n)) for d, n in phase.sizes), calls=calls)
        for phase, sizes, calls in zip(program.phases, sized, (1, GENERATED - 1), strict=True)
    )
    return replace(program, phases=tuple(phases))


def compared(published: Mapping[int, Mapping[str, float]], found: Mapping[int, Mapping[str, float]]) -> str:
    """Predicted times beside the published ones, as Markdown."""
    lines = [
        "",
        "## Megatron-530B as FasterTransformer ran it",
        "",
        f"Milliseconds of {PROMPT} tokens in and {GENERATED} out on A100 of 80 GB, with tensors split over 16 and 32 "
        "chips, and in 3 stages of 8: predicted with `--engine fastertransformer` (one fitted figure), and as measured "
        "(Pope et al. 2022, table D.2). FasterTransformer gives each stage a micro-batch only where they divide the "
        f"batch, which 3 never do here, and halves micro-batches of more than {MOST_TOKENS:,} tokens. So a token has "
        "one, and so has a prompt, but for 2 at batch 128 and 4 at 256.",
        "",
        f"| batch | {' | '.join(f'{way} | measured | off' for way in WAYS)} | ranked |",
        f"|---:|{'---:|' * 3 * len(WAYS)}---|",
    ]
    ratios = []
    for batch, measured in published.items():
        cells = []
        for way in WAYS:
            ratio = found[batch][way] / measured[way]
            ratios.append(ratio)
            cells += [f"{found[batch][way] * 1e3:.0f}", f"{measured[way] * 1e3:.0f}", f"{ratio - 1:+.1%}"]
        ranked = sorted(WAYS, key=found[batch].__getitem__) == sorted(WAYS, key=measured.__getitem__)
        lines.append(f"| {batch} | {' | '.join(cells)} | {'as measured' if ranked else 'otherwise'} |")
    errors = [ratio - 1 for ratio in ratios]
    mean = math.fsum(map(abs, errors)) / len(errors)
    root = math.sqrt(math.fsum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios))
    worst = max(errors, key=abs)
    lines += ["", f"Mean error {mean:.1%}, worst {worst:+.1%}; root mean square of the logarithms {root:.4f}.", ""]
    return "\n".join(lines)


def main() -> int:
    """Write the document."""
    name, batch, counts = LARGER
    larger = [planned(name, batch, count)[0] for count in counts]
    text = document({name: planned(name) for name in MESHES}, larger) + hybrid(*hybrid_s())
    published = published_s()
    text += compared(published, {batch: {way: predicted_s(batch, way) for way in WAYS} for batch in published})
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
