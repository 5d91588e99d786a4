"""Sharded programs that tests write by hand."""

from __future__ import annotations

from escc.ir.diagnostics import Source
from escc.ir.spmd import SpmdProgram
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify


def parsed(text: str) -> SpmdProgram:
    """The program of a text, which the verifier accepts."""
    spmd = parse_spmd(Source("t.spmd", text))
    verify(spmd)
    return spmd
