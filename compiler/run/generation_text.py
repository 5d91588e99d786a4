"""What a run of generation shows, as text for people."""

from __future__ import annotations

import json

import numpy as np

from ..simulate.check import ERROR_TOLERANCE
from ..simulate.pointwise import Array
from .generate import Generation

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
