"""Steps in one loop: which runs of marked steps are loops, in which order blocks go round, and what is refused."""

from __future__ import annotations

import pytest

from escc.ir.dataflow import readers
from escc.ir.diagnostics import InputError, Source
from escc.ir.spmd import SpmdProgram
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.text.write_spmd import print_spmd
from escc.ir.verify.fused import CollectiveMatmul, Stage, walk_loops
from escc.ir.verify.verify import verify

LOOPED = """\
sharded "toy" decode on x=2 y=2 z=2
sizes B=16 E=8 F=32 G=64
input x:  bf16 B_yzE_x
param U:  bf16 E_xF_zy
param S:  bf16 B_yzE_x
param V2: bf16 F_zyE_x
repeat 3 layer {
  enter h:  bf16 B_yzE_x = x
  param W:  bf16 E_xG_zy
  param V:  bf16 F_zyE_x
  param W2: bf16 G_zyE_x
  h'  bf16 B_yE_x                = all-gather(z) B of h
~ h'' bf16 BE_x                  = all-gather(y) B of h'
~ g   bf16 BG_zy partialsum-x    = h''[B,E] * W[E,G]
~+u   bf16 BF_zy partialsum-x    = h''[B,E] * U[E,F]
  g'  bf16 BG_zy                 = all-reduce(x) of g
  u'  bf16 BF_zy                 = all-reduce(x) of u
  a   bf16 BF_zy                 = exp(u')
  s   bf16 BE_x partialsum-yz    = embed(yz) B of h
  d   bf16 BE_x partialsum-yz    = a[B,F] * V[F,E]
~ e   bf16 BE_x partialsum-yz    = g'[B,G] * W2[G,E]
~ t   bf16 BE_x partialsum-yz    = sum(s, d, 2 * e)
~ t'  bf16 B_yE_x partialsum-z   = reduce-scatter(y) B of t
~ t'' bf16 B_yzE_x               = reduce-scatter(z) B of t'
  leave k: bf16 B_yzE_x = t''
}
k'  bf16 B_yE_x                  = all-gather(z) B of k
k'' bf16 BE_x                    = all-gather(y) B of k'
r   bf16 BF_zy partialsum-x      = k''[B,E] * U[E,F]
r'  bf16 BF_zyx                  = reduce-scatter(x) F of r
return r', k
"""


def parsed(text: str) -> SpmdProgram:
    return parse_spmd(Source("toy.spmd", text))


def edited(*edits: tuple[str, str]) -> SpmdProgram:
    """The program with lines of its text replaced."""
    text = LOOPED
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return parsed(text)


def results(loop: CollectiveMatmul) -> list[str]:
    return [step.result for step in loop.steps]


def test_loops_verify_and_their_marks_read_back() -> None:
    spmd = parsed(LOOPED)
    verify(spmd)
    text = print_spmd(spmd)
    assert parsed(text) == spmd
    assert "\n~+u " in text and "\n~ t' " in text


def test_the_loops_of_a_program_and_how_often_they_run() -> None:
    spmd = edited(("k'' bf16 BE_x ", "~ k'' bf16 BE_x "), ("r   bf16", "~ r bf16"))
    verify(spmd)
    found = [(results(loop), times) for loop, times in walk_loops(spmd.body)]
    assert found == [
        (["h'", "h''", "g", "u"], 3),
        (["d", "e", "t", "t'", "t''"], 3),
        (["k'", "k''", "r"], 1),
    ]


def test_blocks_go_round_the_ring_of_the_first_gather_and_of_the_last_scatter_first() -> None:
    (gathers, _), (scatters, _) = walk_loops(parsed(LOOPED).body)
    assert (gathers.block, gathers.stages) == ("h", (Stage("z", 0), Stage("y", 0)))
    assert (scatters.block, scatters.stages) == ("t''", (Stage("z", 0), Stage("y", 0)))
    assert len(gathers.moves) == len(scatters.moves) == 2


@pytest.mark.parametrize(
    ("edits", "stages"),
    [
        # Of several axes of one gather the minor one brings neighbouring blocks.
        ([("k'  bf16 B_yE_x                  = all-gather(z) B of k\n", ""),
          ("k'' bf16 BE_x                    = all-gather(y) B of k'", "k'' bf16 BE_x = all-gather(yz) B of k"),
          ("r   bf16", "~ r bf16")], (Stage("z", 0), Stage("y", 0))),
        ([("r'  bf16", "~ r' bf16")],
         (Stage("x", 1),)),
    ],
)  # fmt: skip
def test_stages_of_single_collectives(edits: list[tuple[str, str]], stages: tuple[Stage, ...]) -> None:
    spmd = edited(*edits)
    verify(spmd)
    assert [loop.stages for loop, _ in walk_loops(spmd.body)][-1] == stages


def test_readers_are_steps_carries_and_results() -> None:
    count = readers(parsed(LOOPED))
    assert {name: count[name] for name in ("h''", "h", "x", "t''", "k", "U", "r", "r'", "S")} == {
        "h''": 2,  # two einsums
        "h": 2,  # a gather and an embedding
        "x": 1,  # enters the repeat
        "t''": 1,  # is handed on
        "k": 2,  # a gather and a result
        "U": 2,
        "r": 1,
        "r'": 1,
        "S": 0,
    }


def test_a_value_that_one_op_reads_twice_has_one_reader() -> None:
    spmd = edited(("a   bf16 BF_zy                 = exp(u')", "a bf16 BF_zy = u' * u'"))
    assert readers(spmd)["u'"] == 1


def toy(steps: str, returned: str) -> SpmdProgram:
    """Steps on some stored tensors, for each axis and for none."""
    return parsed(
        f"""
        sharded "toy" p on x=2 y=2 z=2
        sizes B=16 E=8 F=32 G=8
        input x: bf16 B_yE
        input c: bf16 BF_y
        input v: bf16 F_y
        input t: bf16 B_zE_y
        param W: bf16 EF_y
        param W2: bf16 EF_y
        param R: bf16 EF
        param S: bf16 EG
        param D: bf16 F_yE
        param D2: bf16 F_yE
        {steps}
        return {returned}
        """
    )


GATHER = "n bf16 BE = all-gather(y) B of x\n ~ u bf16 BF_y = n[B,E] * W[E,F]\n"
SCATTER = "d bf16 BE partialsum-y = c[B,F] * D[F,E]\n ~ d' bf16 B_yE = reduce-scatter(y) B of d\n"
PARTS = "d bf16 BE partialsum-y = c[B,F] * D[F,E]\n ~ e bf16 BE partialsum-y = c[B,F] * D2[F,E]\n"
ADDED = PARTS + "~ s bf16 BE partialsum-y = sum(d, e)\n ~ s' bf16 B_yE = reduce-scatter(y) B of s\n"
ORDER = "a loop is gathers and then ops, or ops and then scatters"
KINDS = "only gathers that an einsum reads, or reduce-scatters of what one makes, run in a loop"
CHAIN = "the collectives of a loop each take what the one before made, and nothing else reads it"
WRONG = [
    # the marks
    ("~ " + GATHER, "u", "`n`", "nothing stands before it"),
    (GATHER + "~ a bf16 BF_y = exp(u)\n", "a", "`a`", "`n` is read by steps that are not in the loop"),
    (
        GATHER + "~ a bf16 BE = exp(n)\n",
        "u, a",
        "`a`",
        "the op that makes `a` is no einsum that reads `n` once",
    ),
    (GATHER + "~ c' bf16 BF = all-gather(y) F of c\n", "u, c'", "`c'`", ORDER),
    ("a bf16 BF_y = exp(c)\n ~ b bf16 BF_y = exp(a)\n", "b", "`b`", ORDER),
    ("n bf16 BE = all-gather(y) B of x\n ~ c' bf16 BF = all-gather(y) F of c\n", "n, c'", "`c'`", ORDER),
    (
        GATHER.replace("W[E", "W2[E") + "+ w bf16 BF_y = n[B,E] * W[E,F]\n",
        "u, w",
        "`w`",
        "it runs as one with what is in another loop, or in none",
    ),
    (
        "n bf16 BE = all-gather(y) B of x\n w bf16 BF_y = n[B,E] * W[E,F]\n ~+ u bf16 BF_y = n[B,E] * W2[E,F]\n",
        "u, w",
        "`u`",
        ORDER,
    ),
    # gathers
    (GATHER + "a bf16 BE = exp(n)\n", "u, a", "`u`", "`n` is read by steps that are not in the loop"),
    (GATHER, "u, n", "`u`", "`n` is read by steps that are not in the loop"),
    (
        GATHER + "~ a bf16 B = n[B,E] * n[B,E]\n",
        "u, a",
        "`a`",
        "the op that makes `a` is no einsum that reads `n` once",
    ),
    (
        GATHER + "~ a bf16 EF_y = n[B,E] * u[B,F]\n",
        "u, a",
        "`a`",
        "the einsum that makes `a` reads what is made in the loop",
    ),
    (
        GATHER.replace("BF_y = n[B,E] * W", "BF = n[B,E] * R"),
        "u",
        "`u`",
        "all chips along an axis of the loop would do the same for `u`",
    ),
    (
        GATHER.replace("n[B,E] * W[E,F]", "n[B,E] * S[E,E] * W[E,F]"),
        "u",
        "`u`",
        "the einsum that makes `u` names an index twice in one operand",
    ),
    (
        "n bf16 BE = all-gather(y) B of x\n ~+ c' bf16 BF = all-gather(y) F of c\n ~ u bf16 BF_y = n[B,E] * W[E,F]\n",
        "u, c'",
        "`u`",
        "a collective that runs as one with another does not run in a loop",
    ),
    (
        "t' bf16 B_zE = all-gather(y) E of t\n ~ t'' bf16 BE = all-gather(z) B of t'\n"
        "~ u bf16 BF_y = t''[B,E] * W[E,F]\n",
        "u, t'",
        "`u`",
        CHAIN,
    ),
    (
        "t' bf16 B_zE = all-gather(y) E of t\n ~ n bf16 BE = all-gather(y) B of x\n ~ u bf16 BF_y = n[B,E] * W[E,F]\n",
        "u, t'",
        "`u`",
        CHAIN,
    ),
    (
        "t' bf16 B_zyE = all-to-all(y) E->B of t\n ~ u bf16 B_zyF = t'[B,E] * R[E,F]\n",
        "u",
        "`u`",
        KINDS,
    ),
    # scatters
    (SCATTER, "d', d", "`d'`", "the loop does not reduce `d`, or something else reads it"),
    (
        PARTS + "~ d' bf16 B_yE = reduce-scatter(y) B of d\n",
        "d', e",
        "`d'`",
        "the loop does not reduce `e`, or something else reads it",
    ),
    (
        "m bf16 B partialmax-y = max(c, over=F)\n ~ m' bf16 B_y = reduce-scatter(y) B of m\n",
        "m'",
        "`m'`",
        "only sums are reduced in a loop",
    ),
    (ADDED.replace("~ e", "+ e"), "s'", "`s'`", "an einsum that runs as one with another is not made block by block"),
    (ADDED.replace("sum(d, e)", "sum(e)"), "s', d", "`s'`", "what is made in the loop is a term of `s`"),
    (ADDED, "s', d", "`s'`", "what is made in the loop is a term of `s` and nothing else reads it"),
    (
        ADDED.replace("~ e", "e").replace("~ s ", "s "),
        "s'",
        "`s'`",
        "no einsum makes a term of `s` in the loop",
    ),
    (
        ADDED.replace("sum(d, e)", "d + e"),
        "s'",
        "`s'`",
        "`s` is no sum of what is made before it",
    ),
    (
        ADDED.replace("c[B,F] * D2[F,E]", "-d2").replace(
            "d bf16", "d2 bf16 BE partialsum-y = c[B,F] * D2[F,E]\n d bf16"
        ),
        "s'",
        "`s'`",
        "the op that makes `e` is no einsum that can be made block by block",
    ),
    (
        ADDED.replace("e bf16 BE partialsum-y = c[B,F]", "e bf16 E partialsum-y = v[F]"),
        "s'",
        "`s'`",
        "the op that makes `e` is no einsum that can be made block by block",
    ),
]


@pytest.mark.parametrize(("steps", "returned", "name", "why"), WRONG)
def test_what_cannot_run_in_one_loop_is_refused(steps: str, returned: str, name: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        verify(toy(steps, returned))
    found = [diagnostic.message for diagnostic in error.value.diagnostics]
    assert any(f"{name} cannot be made in one loop with what precedes it: {why}" in message for message in found), found


@pytest.mark.parametrize(("steps", "returned"), [(GATHER, "u"), (SCATTER, "d'"), (ADDED, "s'")])
def test_what_can_run_in_one_loop_is_accepted(steps: str, returned: str) -> None:
    verify(toy(steps, returned))
    verify(toy(steps.replace("~", ""), returned))
