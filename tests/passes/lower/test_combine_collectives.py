"""Steps side by side: a run waits for all that it reads, and what follows it does not wait for long."""

from __future__ import annotations

from sharded_text import parsed

from escc.ir.program import Repeat
from escc.ir.spmd import SpmdProgram
from escc.ir.verify.fused import together
from escc.ir.verify.verify import verify
from escc.passes.lower.combine_collectives import join_steps

REDUCED = """
sharded "toy" decode on x=2
sizes B=8 E=4 F=16
input x: bf16 BE_x
input z: bf16 BE_x
param W: bf16 E_xF
param U: bf16 E_xF
param V: bf16 FE
a  bf16 BF partialsum-x = x[B,E] * W[E,F]
a' bf16 BF              = all-reduce(x) of a
c  bf16 BF              = exp(a')
y  bf16 BE_x            = x * z
b  bf16 BF partialsum-x = y[B,E] * U[E,F]
b' bf16 BF              = all-reduce(x) of b
d  bf16 BF              = exp(b')
e  bf16 BE              = c[B,F] * V[F,E]
return e, d
"""

PROJECTED = """
sharded "toy" decode on x=2
sizes B=8 E=4 F=16 G=32
input x: bf16 BE
param W: bf16 EF_x
param U: bf16 EG_x
param V: bf16 F_xG
a bf16 BF_x             = x[B,E] * W[E,F]
b bf16 BF_x             = exp(a)
c bf16 BG partialsum-x  = b[B,F] * V[F,G]
c' bf16 BG_x            = reduce-scatter(x) G of c
u bf16 BG_x             = x[B,E] * U[E,G]
h bf16 BG_x             = exp(u)
r bf16 BG_x             = sum(c', h)
return r
"""


def order(spmd: SpmdProgram) -> list[list[str]]:
    runs = together(spmd.body.items)
    return [[step.result for step in run if not isinstance(step, Repeat)] for run in runs]


def test_collectives_wait_for_all_that_they_carry() -> None:
    joined = join_steps(parsed(REDUCED), {"a'": 3, "b'": 3})
    verify(joined)
    assert order(joined) == [["a"], ["y"], ["b"], ["a'", "b'"], ["d"], ["c"], ["e"]]


def test_without_groups_nothing_moves() -> None:
    spmd = parsed(REDUCED)
    assert join_steps(spmd, {}) == spmd


def test_what_is_made_earlier_is_used_earlier() -> None:
    spmd = parsed(PROJECTED)
    joined = join_steps(spmd, {})
    verify(joined)
    assert order(joined) == [["a", "u"], ["h"], ["b"], ["c"], ["c'"], ["r"]]
    assert join_steps(spmd, {}, apart=True) == spmd
