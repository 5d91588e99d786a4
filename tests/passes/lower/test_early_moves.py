"""Collectives that attention in blocks would wait for run before its maximum."""

from __future__ import annotations

from escc.cost.attention import attentions
from escc.ir.diagnostics import Source
from escc.ir.spmd import SpmdProgram
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.text.write_spmd import print_spmd
from escc.ir.verify.verify import verify
from escc.passes.lower.early_moves import move_early

ATTENTION = """\
sharded "attention" main on x=2 y=2
sizes B=4 L=4096 M=8192 H=4 Q=8
input q: bf16 B_xLH_yQ
input k: bf16 B_xLQ
cache keys: bf16 B_xMQ
cache values: bf16 B_xMQ_y
ks bf16 B_xMQ  = append(keys, k, L into M)
s  bf16 B_xLH_yM = q[B,L,H,Q] * ks[B,M,Q]
m  f32 B_xLH_y   = max(s, over=M)
e  bf16 B_xLH_yM = exp(s - where(equal(m, -inf), 0, m))
u  f32 B_xLH_y   = e[B,L,H,M]
p  bf16 B_xLH_yM = e / where(equal(u, 0), 1, u)
LATE
o  bf16 B_xLH_yQ = p[B,L,H,M] * READ[B,M,Q]
return o
"""
MOVED = """\
values' bf16 BMQ_y = all-gather(x) B of values
values'' bf16 BM_xQ_y = slice(x) M of values'
values^ bf16 B_xMQ_y = all-to-all(x) M->B of values''
values^^ bf16 B_xMQ = all-gather(y) Q of values^
""".replace("^^", 4 * "'").replace("^", 3 * "'")
LAST = "values" + 4 * "'"


def parsed(late: str, read: str) -> SpmdProgram:
    spmd = parse_spmd(Source("t.spmd", ATTENTION.replace("LATE", late).replace("READ", read)))
    verify(spmd)
    return spmd


def made(spmd: SpmdProgram) -> list[str]:
    return [item.result for item in spmd.body.items]  # type: ignore[union-attr]


def test_all_collectives_on_the_way_to_late_values_go_before_the_maximum() -> None:
    spmd = parsed(MOVED.strip(), LAST)
    assert attentions(spmd) == ()
    early = move_early(spmd)
    verify(early)
    [one] = attentions(early)
    assert one.values == LAST
    assert made(early) == ["ks", "s", *("values" + n * "'" for n in range(1, 5)), "m", "e", "u", "p", "o"]
    assert sorted(print_spmd(early).splitlines()) == sorted(print_spmd(spmd).splitlines())


def test_values_that_an_op_makes_late_stay_where_they_are() -> None:
    spmd = parsed("w bf16 B_xMQ_y = tanh(values)\nw' bf16 B_xMQ = all-gather(y) Q of w", "w'")
    assert move_early(spmd) == spmd


def test_few_scores_wait_for_nothing() -> None:
    text = print_spmd(parsed(MOVED.strip(), LAST)).replace("L=4096", "L=4")
    few = parse_spmd(Source("t.spmd", text))
    assert move_early(few) == few
