"""Generation in JAX: both emitted phases, run with the weights and prompts of virtual chips; both runs as text."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...ir.program import Choose, Kind, Repeat, walk
from ...ir.spmd import Compute
from ..emit.jax_function import contexts_of
from ..emit.jax_source import emit_jax
from ..emit.jax_tree import Names, names_of
from ..jax.processes import free_address, run_processes
from ..plan.compiled import CompiledPhase
from ..simulate.check import ERROR_TOLERANCE
from ..simulate.finite import representable
from ..simulate.pointwise import Array
from .generate import Generation, Prepared, Small

CHILD = f"{__package__}.generate_child"
PARTS = (Kind.PARAM, Kind.CACHE, Kind.INPUT)  # what a step takes, in this order


def check_processes(mesh: Mesh, processes: int) -> None:
    """Raise InputError unless `processes` have equal shares of the chips."""
    if processes < 1 or mesh.chips % processes:
        shares = ", ".join(str(n) for n in range(1, mesh.chips + 1) if mesh.chips % n == 0)
        raise fail(f"{mesh.chips} chips cannot be shared by {processes} processes.", hint=f"choose from {shares}")


def held_exactly(prepared: Prepared) -> Prepared:
    """The same with weights that the declared types hold exactly, so that all runs start with the same numbers."""
    return replace(prepared, stored=representable(prepared.model.program, prepared.stored))


def generate_jax(prepared: Prepared, processes: int = 1) -> Array:
    """The tokens of the emitted modules, [steps, batch], run on CPU devices in floats of 32 bits.

    The devices, as many as chips, are shared by `processes`. Raises InternalError where a module does not run.
    """
    model, prefill = prepared.model, prepared.prefill
    arrays = prepared.held | {model.prompt.name: prepared.prompts}
    phases = zip(prepared.compiled, (prefill, prepared.decode), strict=True)
    caches = [leaf.value for leaf in _names(prepared.compiled[0]).of(Kind.CACHE)]
    told = {
        "stored": list(arrays),
        "caches": {name: model.batch_axis(name) for name in caches},
        "prompt": model.prompt.name,
        "axes": [model.prompt.dims.index(dim) for dim in (model.batch, model.new)],
        "sequences": prepared.prompt.shape[model.prompt.dims.index(model.batch)],
        "at_once": prefill.sizes[model.batch],
        "length": prefill.sizes[model.new],
        "steps": prepared.tokens,
        "scores": model.chosen is None,
        "phases": {one.phase: _told(prepared, one, small) for one, small in phases},
    }
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        for one in prepared.compiled:
            text = emit_jax(one.program, one.spmd, one.estimate)  # for the CPU devices that run it here
            (path / f"{one.phase}.py").write_text(text, encoding="utf-8")
        (path / "told.json").write_text(json.dumps(told), encoding="utf-8")
        np.savez(path / "stored.npz", *arrays.values())
        run_processes(_commands(folder, processes), prefill.spmd.mesh.chips // processes)
        tokens: Array = np.load(path / "tokens.npy")
    return tokens


def _commands(folder: str, processes: int) -> Sequence[Sequence[str]]:
    address = free_address()
    return [(CHILD, folder, str(process), str(processes), address) for process in range(processes)]


def _names(one: CompiledPhase) -> Names:
    return names_of(one.spmd, contexts_of(one.spmd), ())


def _told(prepared: Prepared, one: CompiledPhase, small: Small) -> dict[str, object]:
    """What is said of a phase; `small` is the same on shrunken dims."""
    model, names = prepared.model, _names(one)
    repeats = {p.item.name: p.item.count for p in walk(small.spmd.body) if isinstance(p.item, Repeat)}
    result = model.chosen or model.scores[0]
    true = model.program.true_sizes(small.sizes)
    steps = [placed.item for placed in walk(small.spmd.body) if isinstance(placed.item, Compute)]
    keeps = {names.keeps[step.op.result]: step.op.keep for step in steps if isinstance(step.op, Choose)}
    return {
        "sizes": {names.fields[name]: size for name, size in (small.sizes | repeats).items()} | keeps,
        "leaves": [leaf.value for kind in PARTS for leaf in names.of(kind)],
        "contexts": len(names.contexts),
        "picked": model.program.results.index(result),
        "kept": [true[dim] for dim in model.program.table()[result].dims],
    }


MOST_SEQUENCES = 8  # that are shown
WIDTH = 120  # columns


def generation_text(done: Generation) -> str:
    """The tokens, the largest difference between scores and the bytes that a chip sent, ending in a newline."""
    batch, length = done.prompt.shape
    steps = len(done.errors)
    sizes = ", ".join(f"{dim}={size}" for dim, size in done.sizes)
    prefill = "one run" if done.prefills == 1 else f"{done.prefills} runs"
    lines = [
        f"Generation with {json.dumps(done.name)} on {done.mesh.chips} virtual chips",
        f"  mesh      {done.mesh}",
        f"  dims      {sizes}; each repeat runs twice at most",
        f"  prompts   {batch} of {length} random tokens",
        f"  prefill   {prefill}, a chip sends {_bytes(float(done.sharded.prefill_bytes))} in all",
        f"  decode    {steps - 1} steps, a chip sends {_bytes(float(done.sharded.decode_bytes))} in all",
        "",
        "Prompts, and the tokens that follow",
    ]
    for before, after in list(zip(done.prompt, done.sharded.tokens.T, strict=True))[:MOST_SEQUENCES]:
        lines.append(_fitting(f"  {_listed(before)} -> {_listed(after)}"))
    if batch > MOST_SEQUENCES:
        lines.append(f"  and {batch - MOST_SEQUENCES} more")
    return "\n".join([*lines, "", *_verdict(done)]) + "\n"


def _verdict(done: Generation) -> list[str]:
    same = int((done.sharded.tokens == done.dense.tokens).sum())
    return [
        "Against the dense reference",
        f"  tokens    {same} of {done.dense.tokens.size} equal",
        f"  scores    largest difference {max(done.errors):.2e} of the largest score",
    ]


def disagreement(done: Generation) -> str | None:
    """A sentence on the first step that is not the reference's; None where all are."""
    step = done.wrong_step
    if step is None:
        return None
    other = np.flatnonzero(done.sharded.tokens[step] != done.dense.tokens[step])
    if not len(other):
        return (
            f"The scores of step {step + 1} differ from the reference's by {done.errors[step]:.2e} of the largest, "
            f"more than {ERROR_TOLERANCE:.0e}."
        )
    found, wanted = (int(trace.tokens[step, other[0]]) for trace in (done.sharded, done.dense))
    return f"Step {step + 1} picks token {found} for sequence {other[0] + 1}, and the reference picks {wanted}."


def jax_text(done: Generation, tokens: Array, processes: int) -> str:
    """What the emitted modules generated beside the virtual chips, `tokens`: [steps, batch]; ends in a newline."""
    same = int((tokens == done.sharded.tokens).sum())
    each = f"{done.mesh.chips // processes} in each of {processes} processes" if processes > 1 else "in one process"
    lines = ["", "In JAX, in floats of 32 bits", f"  devices   {done.mesh.chips}, {each}"]
    return "\n".join([*lines, f"  tokens    {same} of {tokens.size} equal to those of the virtual chips"]) + "\n"


def jax_disagreement(done: Generation, tokens: Array) -> str | None:
    """A sentence on the first token that JAX picks otherwise; None where there is none."""
    for step, sequence in np.argwhere(tokens != done.sharded.tokens)[:1]:
        found, wanted = (int(each[step, sequence]) for each in (tokens, done.sharded.tokens))
        return (
            f"In JAX, step {step + 1} picks token {found} for sequence {sequence + 1}, and on virtual chips {wanted}."
        )
    return None


def _listed(tokens: Array) -> str:
    return " ".join(str(int(token)) for token in tokens)


def _fitting(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 4] + " ..."


def _bytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
