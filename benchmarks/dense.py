"""Stages and tensor splits of the dense models of DeepSpeed's table, beside each other: `make dense`.

Plans each model of `examples/deepspeed-dense` on the fewest A100 of 40 GB that hold it, parts of a node or whole nodes,
in every way to divide these into stages and chips that split tensors, and writes `docs/dense.md`. Half an hour.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from escc.compiler.plan.pipeline import load
from escc.compiler.plan.staged import Staged
from escc.compiler.plan.tries import tries
from escc.compiler.report.hardware import parameter_count
from escc.compiler.text.terminal import time_text
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.choose import Options
from escc.passes.plan import relative_gap
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
    for one in tries(program, phases, meshes, Options(Hardware.load(CHIP)), stages):
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


def main() -> int:
    """Write the document."""
    name, batch, counts = LARGER
    larger = [planned(name, batch, count)[0] for count in counts]
    DOCUMENT.write_text(document({name: planned(name) for name in MESHES}, larger), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
