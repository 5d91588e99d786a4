"""Generation in JAX: both emitted phases, run with the weights and prompts of virtual chips; both runs as text."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...ir.dataflow import ops, repeat_counts
from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...ir.program import Choose, Kind
from ...ir.spmd import SpmdProgram
from ...passes.stages.opened import Origin
from ..emit.jax_function import contexts_of
from ..emit.jax_pipeline import StageModule, emit_pipeline
from ..emit.jax_source import emit_jax
from ..emit.jax_streams import Streams
from ..emit.jax_tree import names_of
from ..jax.processes import run_processes, sharing
from ..plan.compiled import Compilation, CompiledPhase
from ..plan.staged import Staged
from ..simulate.check_report import ERROR_TOLERANCE
from ..simulate.finite import representable
from ..simulate.pointwise import Array
from ..simulate.staged import SmallPhase
from .generate import Generation, Prepared
from .language_model import DECODE, PREFILL

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
    small = (prefill, prepared.decode)
    told = {
        "stored": list(arrays),
        "caches": {name: model.batch_axis(name) for name, _ in model.caches},
        "prompt": model.prompt.name,
        "axes": [model.prompt.dims.index(dim) for dim in (model.batch, model.new)],
        "sequences": prepared.prompt.shape[model.prompt.dims.index(model.batch)],
        "at_once": [one.sizes[model.batch] for one in small],
        "length": prefill.sizes[model.new],
        "steps": prepared.tokens,
        "scores": model.chosen is None,
        "staged": isinstance(prepared.compiled, Staged),
        "phases": {one.spmds[0].phase: _told(prepared, n, one) for n, one in enumerate(small)},
    }
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        for name, text in _modules(prepared.compiled).items():
            (path / name).write_text(text, encoding="utf-8")
        (path / "told.json").write_text(json.dumps(told), encoding="utf-8")
        np.savez(path / "stored.npz", *arrays.values())
        run_processes(sharing(CHILD, folder, processes), prepared.mesh.chips // processes)
        tokens: Array = np.load(path / "tokens.npy")
    return tokens


def _modules(compiled: Compilation | Staged) -> dict[str, str]:
    """The modules of both phases, for the CPU devices that run them here."""
    texts: dict[str, str] = {}
    for n, phase in enumerate((PREFILL, DECODE)):
        if not isinstance(compiled, Staged):
            texts[f"{phase}.py"] = _module(compiled[n])
            continue
        modules = []
        for k, (stage, planned) in enumerate(zip(compiled.stages, compiled.plan.stages, strict=True)):
            file = f"{phase}_{k}"
            texts[f"{file}.py"] = _module(stage[n])
            modules.append(StageModule(file, stage[n].spmd, planned.stage.received))
        texts[f"{phase}.py"] = emit_pipeline(compiled.program.name, modules)
    return texts


def _module(one: CompiledPhase) -> str:
    return emit_jax(one.program, one.spmd, one.estimate)


def _told(prepared: Prepared, n: int, small: SmallPhase) -> dict[str, object]:
    """What is said of a phase, the `n`-th; `small` is the same on shrunken dims."""
    model, compiled = prepared.model, prepared.compiled
    result = model.chosen or model.scores[0]
    true = model.program.true_sizes(small.sizes)
    stages = zip(compiled.stages, small.spmds, small.of, strict=True)
    returned = [name for one in small.stages for name in one.program.results[len(one.passed) :]]
    return {
        "stages": [_told_stage(stage[n], spmd, of) for stage, spmd, of in stages],
        "picked": returned.index(result),
        "kept": [true[dim] for dim in model.program.table()[result].dims],
    }


def _told_stage(one: CompiledPhase, small: SpmdProgram, of: Mapping[str, Origin]) -> dict[str, object]:
    """What is said of a stage of a phase, or of the phase that is not divided; `of`: of which repetitions of the whole
    program its values are."""
    names = names_of(one.spmd, contexts_of(one.spmd), ())
    counts = repeat_counts(small)
    keeps = {names.keeps[op.result]: op.keep for op in ops(small) if isinstance(op, Choose)}
    streamed = Streams(small, names).layers()
    leaves = [leaf.value for kind in PARTS for leaf in names.of(kind)]
    return {
        "sizes": {names.fields[name]: size for name, size in (dict(small.sizes) | counts).items()} | keeps | streamed,
        "leaves": leaves,
        "of": {name: of[name] for name in leaves if name in of},
        "contexts": len(names.contexts),
    }


MOST_SEQUENCES = 8  # that are shown
WIDTH = 120  # columns


def generation_text(done: Generation) -> str:
    """The tokens, the largest difference between scores and the bytes that a chip sent, ending in a newline."""
    batch, length = done.prompt.shape
    steps = len(done.errors)
    sizes = ", ".join(f"{dim}={size}" for dim, size in done.sizes)
    prefill = "one run" if done.prefills == 1 else f"{done.prefills} runs"
    each = f"{steps - 1} steps" if done.turns == 1 else f"{steps - 1} steps of {done.turns} micro-batches"
    staged = () if done.stages is None else (f"  stages    {done.stages[0]} along {done.stages[1]}",)
    lines = [
        f"Generation with {json.dumps(done.name)} on {done.mesh.chips} virtual chips",
        f"  mesh      {done.mesh}",
        *staged,
        *([] if done.streamed is None else [f"  streams   {done.streamed}, from the host"]),
        f"  dims      {sizes}" + ("" if done.whole else "; each repeat runs twice at most"),
        f"  prompts   {batch} of {length} random tokens",
        f"  prefill   {prefill}, a chip sends {_bytes(float(done.sharded.prefill_bytes))} in all",
        f"  decode    {each}, a chip sends {_bytes(float(done.sharded.decode_bytes))} in all",
        "",
        "Prompts, and the tokens that follow",
    ]
    for before, after in list(zip(done.prompt, done.sharded.tokens.T, strict=True))[:MOST_SEQUENCES]:
        line = f"  {_listed(before)} -> {_listed(after)}"
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 4] + " ...")
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


def _bytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
