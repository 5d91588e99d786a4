"""The arithmetic that a model needs, whatever it runs on: what a chip's utilisation is measured by."""

from __future__ import annotations

from ..ir.program import Einsum, Kind, Program, Stored, signature, walk
from .ops import flops


def model_flops(program: Program, phase: str) -> int:
    """Floating-point operations of the einsums that read a parameter, in one run of a phase, unpadded.

    For a Transformer these are 2 N for each token, N being its parameters without its tables: what is
    looked up counts no arithmetic, and attention to earlier tokens is not counted.
    """
    values = program.table()
    sizes = program.true_sizes(dict(program.phase(phase).sizes))
    parameters: set[str] = set()
    total = 0
    for placed in walk(program.body):
        match placed.item:
            case Stored(name, Kind.PARAM):
                parameters.add(name)
            case Einsum(_, names, _, _) as op if parameters & set(names):
                total += placed.times * int(flops(op, signature(op, values), sizes.__getitem__))
    return total
