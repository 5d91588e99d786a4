"""Overlap: the loops that hide the most, found as well by trying all; and programs that stay what they were."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest
from judge.generator import generate

from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.compiler.simulate.check import check
from escc.cost.estimate import estimate, predict
from escc.cost.hardware import Convention, Hardware
from escc.cost.memory import memory
from escc.ir.collective import AllGather, ReduceScatter
from escc.ir.diagnostics import InputError, Source
from escc.ir.mesh import Mesh
from escc.ir.program import Program, Region, Repeat, operand_names, walk
from escc.ir.spmd import Compute, Move, SpmdProgram, Step
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify
from escc.passes.ilp.solver import Settings
from escc.passes.options import Options
from escc.passes.overlap.candidates import reduces
from escc.passes.overlap.overlap import overlap
from escc.passes.plan import Objective

SEEDS = range(40)
EXAMPLES = Path(__file__).parents[3] / "examples"
V4 = Hardware.of_paper("tpu-v4")
FAST = replace(V4, hbm_bytes_per_s=1e15)  # a weight may well be read again for each block
LINKS = V4.with_network("links")
QUICK = replace(LINKS, calibrated=replace(V4.calibrated, collective_latency_s=1e-6), hop_latency_s=1e-8)

HEAD = """
sharded "toy" p on x=4 y=4 z=4
sizes B=64 E=64 F=64 G=64
"""

# Loops that share steps: of one value gathered twice, of two terms of a sum, of a chain of scatters.
BLOCK = """
input x: bf16 B_zyE_x
input c: bf16 BF_y
param W: bf16 EF_yx
param V: bf16 EF_yx
param D: bf16 F_yE_xz
param D2: bf16 F_yE_xz
  n   bf16 B_zE_x                 = all-gather(y) B of x
  n'  bf16 B_zE                   = all-gather(x) E of n
  u   bf16 B_zF_yx                = n'[B,E] * W[E,F]
  h   bf16 B_zF_yx                = exp(u)
  g   bf16 B_zF_yx                = n'[B,E] * V[E,F]
  h'  bf16 B_zF_y                 = all-gather(x) F of h
  h'' bf16 BF_y                   = all-gather(z) B of h'
  d   bf16 BE_xz partialsum-y     = h''[B,F] * D[F,E]
  e   bf16 BE_xz partialsum-y     = c[B,F] * D2[F,E]
  s   bf16 BE_xz partialsum-y     = sum(d, e)
  s'  bf16 B_yE_xz                = reduce-scatter(y) B of s
return s', g
"""

# Either of two loops can be made: each has an op that waits for one of the other.
KNOT = """
input a: bf16 B_xE
input b: bf16 B_xE
param W: bf16 EF_x
param V: bf16 EF_x
  a'  bf16 BE    = all-gather(x) B of a
  p   bf16 BF_x  = a'[B,E] * W[E,F]
  p'  bf16 BF_x  = exp(p)
  b'  bf16 BE    = all-gather(x) B of b
  s   bf16 BF_x  = b'[B,E] * V[E,F]
  s'  bf16 BF_x  = exp(s)
  q   bf16 EF_x  = a'[B,E] * s'[B,F]
  r   bf16 EF_x  = b'[B,E] * p'[B,F]
return q, r
"""

# Matmuls that run as one: all of them read what is gathered, or one reads a gathered weight.
JOINED = """
input x: bf16 B_xE
input y: bf16 BE
param W: bf16 EF_x
param V: bf16 EG_x
param U: bf16 E_yF_x
  x'  bf16 BE                 = all-gather(x) B of x
  u   bf16 BF_x               = x'[B,E] * W[E,F]
+ v   bf16 BG_x               = x'[B,E] * V[E,G]
  U'  bf16 EF_x               = all-gather(y) E of U
  w   bf16 BF_x               = y[B,E] * U'[E,F]
+ t   bf16 BG_x               = y[B,E] * V[E,G]
return u, v, w, t
""".replace("  v'  bf16 B_yE partialsum-x  = slice(y) B of v0\n", "")

# A sum of three terms, two of them read gathered values, and two scatters in a row.
ADDED = """
input f: bf16 B_zF_xy
input g: bf16 B_zF_xy
input k: bf16 B_zE_xy
param D: bf16 F_xE
param D2: bf16 F_xE
param D3: bf16 F_xyE
  f'  bf16 B_zF_x                = all-gather(y) F of f
  d   bf16 B_zE partialsum-x     = f'[B,F] * D[F,E]
  e   bf16 B_zE partialsum-x     = f'[B,F] * D2[F,E]
  k'  bf16 B_zE partialsum-xy    = embed(xy) E of k
  d'  bf16 B_zE partialsum-xy    = embed(y) of d
  e'  bf16 B_zE partialsum-xy    = embed(y) of e
  m   bf16 B_zE partialsum-xy    = g[B,F] * D3[F,E]
  s   bf16 B_zE partialsum-xy    = sum(k', m, d', e')
  s'  bf16 B_zE_x partialsum-y   = reduce-scatter(x) E of s
  s'' bf16 B_zE_xy               = reduce-scatter(y) E of s'
return s''
"""
TEXTS = {"block": BLOCK, "knot": KNOT, "joined": JOINED, "added": ADDED}


def parsed(name: str) -> SpmdProgram:
    spmd = parse_spmd(Source("toy.spmd", HEAD + TEXTS[name]))
    verify(spmd)
    return spmd


# Trying all: which sets of steps the verifier lets run in loops, arranged in any order that it accepts.


def reads(step: Step) -> tuple[str, ...]:
    return (step.operand,) if isinstance(step, Move) else operand_names(step.op)


def arranged(items: Sequence[Step], loops: Sequence[Sequence[Step]]) -> list[Step] | None:
    """The steps with those of each loop side by side, or None where that cannot be."""
    within = {step.result for loop in loops for step in loop}
    units = [(loop[0], *(replace(step, looped=True) for step in loop[1:])) for loop in loops]
    for step in items:
        if step.result in within:
            continue
        if step.joined:
            units[-1] = (*units[-1], step)
        else:
            units.append((step,))
    left = list(units)
    out: list[Step] = []
    while left:
        missing = {step.result for unit in left for step in unit}
        ready = [u for u in left if not (missing - {s.result for s in u}) & {n for s in u for n in reads(s)}]
        if not ready:
            return None
        out += ready[0]
        left.remove(ready[0])
    return out


def marked(spmd: SpmdProgram, loops: Sequence[Sequence[Step]]) -> SpmdProgram | None:
    """The program with these loops, or None where it does not hold together."""
    items = arranged([item for item in spmd.body.items if not isinstance(item, Repeat)], loops)
    if items is None:
        return None
    table = spmd.table()
    order = [stored.value for stored in spmd.body.stored] + [step.result for step in items]
    made = replace(spmd, body=Region(spmd.body.stored, tuple(items)), values=tuple(table[name] for name in order))
    try:
        verify(made)
    except InputError:
        return None
    return made


@cache
def possible(name: str) -> tuple[tuple[Step, ...], ...]:
    """Every loop that the verifier accepts in a program by itself."""
    spmd = parsed(name)
    steps = [item for item in spmd.body.items if not isinstance(item, Repeat)]
    ops = [step for step in steps if isinstance(step, Compute)]
    found = []
    for kind in (AllGather, ReduceScatter):
        moves = [step for step in steps if isinstance(step, Move) and isinstance(step.collective, kind)]
        for taken, some in ((m, o) for m in subsets(moves) for o in subsets(ops)):
            loop = (*taken, *some) if kind is AllGather else (*some, *taken)
            if marked(spmd, [loop]) is not None:
                found.append(loop)
    return tuple(found)


def subsets(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    return chain.from_iterable(combinations(steps, n) for n in range(1, len(steps) + 1))


@cache
def arrangements(name: str) -> tuple[tuple[tuple[Step, ...], ...], ...]:
    """Every set of loops with which a program holds together."""
    spmd, loops = parsed(name), possible(name)
    found: list[tuple[tuple[Step, ...], ...]] = [()]
    for loop in loops:
        for others in list(found):
            apart = not {s.result for s in loop} & {s.result for other in others for s in other}
            if apart and (not others or marked(spmd, [*others, loop]) is not None):
                found.append((*others, loop))
    return tuple(found)


def most_hidden(spmd: SpmdProgram, name: str, hardware: Hardware) -> float:
    alone = {}
    for loop in possible(name):
        made = marked(spmd, [loop])
        assert made is not None
        alone[loop] = estimate(made, hardware).loops[0].hidden_s
    return max(sum(alone[loop] for loop in loops) for loops in arrangements(name))


def sized(spmd: SpmdProgram, seed: int) -> SpmdProgram:
    """The program with other sizes, such that arithmetic, HBM or the network may take longest."""
    rng = random.Random(seed)
    return replace(spmd, sizes=tuple((dim, 64 * rng.choice([1, 3, 8, 32, 100])) for dim, _ in spmd.sizes))


@pytest.mark.parametrize("name", TEXTS)
def test_no_set_of_loops_hides_more(name: str) -> None:
    assert possible(name)
    for seed in range(12):
        spmd = sized(parsed(name), seed)
        for hardware in (V4, QUICK):
            looped = overlap(spmd, hardware)
            verify(looped)
            hidden_s = estimate(looped, hardware).totals().hidden_s
            assert hidden_s == pytest.approx(most_hidden(spmd, name, hardware), rel=1e-7, abs=1e-15), seed


def test_there_is_something_to_choose() -> None:
    """The programs above have loops that share steps, wait for each other, and more than one at once."""
    assert {len(loops) for loops in arrangements("block")} >= {1, 2, 3}
    waiting = [loop for loop in possible("knot") if len(loop) == 3]
    assert len(waiting) == 2 and {len(loops) for loops in arrangements("knot")} == {0, 1}
    joined = [{step.result for step in loop} for loop in possible("joined")]
    assert {"x'", "u", "v"} in joined and not any("U'" in loop for loop in joined)


def test_of_loops_that_wait_for_each_other_one_is_made() -> None:
    looped = overlap(parsed("knot"), V4)
    (loop,) = estimate(looped, V4).loops
    assert len(loop.results) == 3


# Three all-reduces: of what an einsum makes, of which a loop can take the first half; of a maximum, of
# which none can; and of what is too small to be worth a step more.
REDUCED = """
input x: bf16 B_xE_y
input z: bf16 E_y
param W: bf16 E_yF
  u   bf16 B_xF partialsum-y  = x[B,E] * W[E,F]
  u'  bf16 B_xF               = all-reduce(y) of u
  m   f32 B_x partialmax-y    = max(x, over=E)
  m'  f32 B_x                 = all-reduce(y) of m
  t   f32 [] partialsum-y     = z[E]
  t'  f32 []                  = all-reduce(y) of t
return u', m', t'
"""


def test_an_all_reduce_is_split_where_a_loop_can_take_a_half() -> None:
    spmd = parse_spmd(Source("toy.spmd", HEAD.replace("B=64 E=64 F=64", "B=4096 E=65536 F=65536") + REDUCED))
    verify(spmd)
    looped = overlap(spmd, V4)
    verify(looped)
    moves = [(m.result, type(m.collective).__name__) for p in walk(looped.body) if isinstance(m := p.item, Move)]
    assert moves == [("u''", "ReduceScatter"), ("u'", "AllGather"), ("m'", "AllReduce"), ("t'", "AllReduce")]
    (loop,) = estimate(looped, V4).loops
    assert loop.results == ("u", "u''")
    # Along F, which W has: along B each block would read W again.
    assert looped.table()["u''"].layout.dims == (("x",), ("y",))
    assert sum(predict(looped)) == sum(predict(spmd))
    assert estimate(looped, V4).totals().total_s < estimate(spmd, V4).totals().total_s


def test_what_runs_as_one_is_not_split() -> None:
    spmd = parse_spmd(Source("toy.spmd", HEAD + REDUCED))
    steps = tuple(replace(item, joined=isinstance(item, Move) and item.result == "t'") for item in spmd.body.items)
    assert [move.result for move in reduces(replace(spmd, body=replace(spmd.body, items=steps)))] == ["u'"]
    assert [move.result for move in reduces(spmd)] == ["u'", "t'"]


@pytest.mark.parametrize("solver", ["gscip", "cp-sat"])
def test_any_solver_finds_them(solver: str) -> None:
    for text in ("block", "knot"):
        found = (overlap(parsed(text), V4, settings=settings) for settings in (Settings(solver), Settings()))
        hidden = [estimate(looped, V4).totals().hidden_s for looped in found]
        assert hidden[0] == pytest.approx(hidden[1]) and hidden[0] > 0


def test_no_loop_where_none_hides_anything() -> None:
    slow = replace(LINKS, hop_latency_s=1.0)
    spmd = parsed("block")
    assert overlap(spmd, slow) == spmd


# Memory.

# A loop whose steps stand apart: side by side, `V'` is held beside `z'`, which `t` reads in between. And one
# whose steps do not.
APART = """
input x: bf16 B_xE
input z: bf16 G_yE
param W: bf16 EF_x
param V: bf16 E_yF_x
param D: bf16 F_xE
  z'  bf16 GE     = all-gather(y) G of z
  x'  bf16 BE     = all-gather(x) B of x
  u   bf16 BF_x   = x'[B,E] * W[E,F]
  t   bf16 G      = z'[G,E]
  V'  bf16 EF_x   = all-gather(y) E of V
  v   bf16 BF_x   = x'[B,E] * V'[E,F]
  d   bf16 BE partialsum-x = v[B,F] * D[F,E]
  d'  bf16 B_xE            = reduce-scatter(x) B of d
return u, t, d'
"""


def test_the_steps_of_a_loop_come_side_by_side_only_where_there_is_room() -> None:
    spmd = parse_spmd(Source("toy.spmd", HEAD + APART))
    verify(spmd)
    free = overlap(spmd, FAST)
    verify(free)
    assert [loop.results for loop in estimate(free, FAST).loops] == [("x'", "u", "v"), ("d", "d'")]
    needed, had = memory(free).total_bytes, memory(spmd).total_bytes
    assert needed > had
    tight = overlap(spmd, FAST, float(had))
    verify(tight)
    assert [loop.results for loop in estimate(tight, FAST).loops] == [("d", "d'")]
    assert memory(tight).total_bytes == had
    assert overlap(spmd, FAST, float(needed)) == free


# Programs that were chosen.


@cache
def chosen(seed: int) -> tuple[Program, CompiledPhase, Hardware]:
    """A random program, its plan, and the hardware that it was made for."""
    case, hardware = generate(seed), (V4, QUICK)[seed % 2]
    objective = (Objective.TIME, Objective.MEMORY)[seed // 2 % 2]  # what is stored in least memory is gathered
    options = Options(hardware, objective, capacity_bytes=float("inf"))
    return case.program, compile_phase(case.program, "main", case.mesh, options), hardware


@pytest.mark.parametrize("seed", SEEDS)
def test_a_chosen_program_computes_the_same_and_is_never_slower(seed: int) -> None:
    program, plain, hardware = chosen(seed)
    looped = overlap(plain.spmd, hardware)
    verify(looped, program)
    before, after = plain.estimate.totals(), estimate(looped, hardware).totals()
    assert after.total_s <= before.total_s and after.hidden_s >= 0
    # An all-reduce that became its two halves starts twice.
    start_s = 0.0 if hardware.convention is Convention.FLAT else hardware.calibrated.collective_latency_s
    started_s = (after.collectives - before.collectives) * start_s
    assert (after.op_s, after.comm_s) == (pytest.approx(before.op_s), pytest.approx(before.comm_s + started_s))
    assert sum(predict(looped)) == sum(predict(plain.spmd))
    assert set(looped.values) >= set(plain.spmd.values)
    assert overlap(plain.spmd, hardware) == looped
    assert check(program, looped, predict).max_error < 1e-9


def test_many_chosen_programs_have_loops() -> None:
    plans = [chosen(seed) for seed in SEEDS]
    found = [bool(estimate(overlap(plain.spmd, hardware), hardware).loops) for _, plain, hardware in plans]
    assert sum(found) >= len(SEEDS) / 4


@pytest.mark.parametrize(("phase", "chips"), [("prefill", "8x16"), ("decode", "4x4x4")])
def test_palm(phase: str, chips: str) -> None:
    program = load(EXAMPLES / "palm-540b.esti")
    plain = compile_phase(program, phase, Mesh.parse(chips), Options(V4))
    looped = overlap(plain.spmd, V4, V4.hbm_bytes)
    verify(looped, program)
    assert memory(looped).total_bytes <= V4.hbm_bytes
    cost = estimate(looped, V4)
    inside = {step.item.result for step in walk(looped.body) if isinstance(step.item, Compute | Move) and step.repeats}
    assert len(cost.loops) >= 2 and all(loop.times == 118 and loop.first in inside for loop in cost.loops)
    # A good part of the communication is hidden, and no score becomes a tensor that has to be stored.
    assert cost.totals().hidden_s > 0.3 * cost.totals().comm_s
    touched = {name for loop in cost.loops for name in loop.results}
    assert not touched & {"layer.s", "layer.o"}
