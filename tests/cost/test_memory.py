"""Memory of a chip: by hand, and against a walk over the program with its repeats unrolled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import prod
from pathlib import Path

import pytest
from helpers_exec import Build
from sharded_text import parsed

from escc.compiler.plan.pipeline import compile_phase, load, parse
from escc.cost.hardware import Hardware
from escc.cost.memory import memory, points, points_without_blocks
from escc.ir.collective import ReduceScatter
from escc.ir.dataflow import regions
from escc.ir.diagnostics import Source
from escc.ir.dtype import Dtype
from escc.ir.expr import rotated_dims
from escc.ir.layout import Layout
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Carry, Einsum, Kind, Map, Reduce, Region, Repeat, Stored, Sum, Take, operand_names
from escc.ir.spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify
from escc.passes.options import Options

EXAMPLES = Path(__file__).parents[2] / "examples"

FEED_FORWARD = """\
sharded "ff" main on x=2 y=2
sizes B=8 E=16 F=32
input x: bf16 B_xE
param scale: f32 E
repeat 3 layer {
  enter a: bf16 B_xE = x
  param Wi: bf16 E_xF_y
  param Wo: int8 F_yE
  Wi'  bf16 EF_y             = all-gather(x) E of Wi
  u    bf16 B_xF_y           = a[B,E] * Wi'[E,F]
  h    bf16 B_xF_y           = relu(u)
  d    bf16 B_xE partialsum-y = h[B,F] * Wo[F,E]
  d'   bf16 B_xE             = all-reduce(y) of d
  b    bf16 B_xE             = a + d' * scale
  leave y: bf16 B_xE = b
}
return y
"""

GATED = FEED_FORWARD.replace(
    "  h    bf16 B_xF_y           = relu(u)",
    "+ v    bf16 B_xF_y           = a[B,E] * Wi'[E,F]\n  h    bf16 B_xF_y           = relu(u) * v",
)

ATTENTION = """\
sharded "attention" main on x=2
sizes B=4 L=2 M=8 H=3 Q=6
input q: bf16 B_xLHQ
input k: bf16 B_xLQ
cache keys: bf16 B_xMQ
ks bf16 B_xMQ  = append(keys, k, L into M)
s  bf16 B_xLHM = q[B,L,H,Q] * ks[B,M,Q]
m  f32 B_xLH   = max(s, over=M)
p  bf16 B_xLHM = exp(s - m)
o  bf16 B_xLHQ = p[B,L,H,M] * ks[B,M,Q]
r  bf16 B_xLHQ = o * 2
return r
"""

MOVED_SCORES = """\
sharded "attention" main on x=2
sizes B=4 L=2 M=8 H=4 Q=6
input q: bf16 BLH_xQ
input k: bf16 BLQ
cache keys: bf16 BMQ
ks bf16 BMQ    = append(keys, k, L into M)
s  bf16 BLH_xM = q[B,L,H,Q] * ks[B,M,Q]
s' bf16 BLHM   = all-gather(x) H of s
p  bf16 BLHM   = exp(s')
o  bf16 BLHQ   = p[B,L,H,M] * ks[B,M,Q]
return o
"""

ATTENTION_IN_BLOCKS = """\
sharded "attention" main on x=2 y=2
sizes B=4 L=4096 M=8192 H=4 Q=6
input q: bf16 BLH_xQ
input k: bf16 BLQ
cache keys: bf16 BM_yQ
ks bf16 BM_yQ             = append(keys, k, L into M)
s  bf16 BLH_xM_y          = q[B,L,H,Q] * ks[B,M,Q]
m  f32 BLH_x partialmax-y = max(s, over=M)
m' f32 BLH_x              = all-reduce(y) of m
e  bf16 BLH_xM_y          = exp(s - where(equal(m', -inf), 0, m'))
u  f32 BLH_x partialsum-y = e[B,L,H,M]
u' f32 BLH_x              = all-reduce(y) of u
p  bf16 BLH_xM_y          = e / where(equal(u', 0), 1, u')
o  bf16 BLH_xQ partialsum-y = p[B,L,H,M] * ks[B,M,Q]
r  bf16 BLH_xQ partialsum-y = o * 2
r' bf16 BLH_xQ            = all-reduce(y) of r
return r'
"""

NESTED = """\
sharded "nested" main on x=2
sizes B=8 E=16
input x: f32 B_xE
input seen: f32 B_xE
repeat 4 outer {
  enter a: f32 B_xE = x
  param w: f32 E_x
  w' f32 E    = all-gather(x) E of w
  t  f32 B_xE = a * w'
  repeat 5 inner {
    enter c: f32 B_xE = t
    u f32 B_xE = c * w'
    d f32 B_xE = u + seen
    leave e: f32 B_xE = d
  }
  b f32 B_xE = e + a
  leave y: f32 B_xE = b
}
return y
"""


@cache
def compiled(name: str, phase: str, chips: str) -> SpmdProgram:
    return compile_phase(
        load(EXAMPLES / name),
        phase,
        Mesh.parse(chips),
        Options(Hardware.of_paper("tpu-v4")),
    ).spmd


def names(spmd: SpmdProgram, step: str) -> set[str]:
    [point] = [p for p in points(spmd) if p.step == step]
    return {value.name for value in point.live}


def test_a_feed_forward_by_hand() -> None:
    spmd = parsed(FEED_FORWARD)
    use = memory(spmd)
    assert use.stored == (("Wi", 3 * 16 * 32 * 2 // 4), ("Wo", 3 * 32 * 16 // 2))
    assert use.shared == (("scale", 64),)
    live = {"a": 4 * 16 * 2, "h": 4 * 16 * 2, "Wi'": 16 * 16 * 2}
    assert {v.name: v.bytes for v in use.worst.live} == live
    assert (use.worst.step, use.worst.repeats) == ("u", ("layer",))
    assert use.worst.bytes == sum(live.values()) == 768
    assert use.worst.copied_bytes == 512
    assert [v.copy_of for v in use.worst.live if v.name == "Wi'"] == ["Wi"]
    assert use.stored_bytes == 768 + 768 + 64
    assert use.total_bytes == use.stored_bytes + 768


def test_what_is_live_at_each_step() -> None:
    spmd = parsed(FEED_FORWARD)
    assert [(p.step, {v.name for v in p.live}) for p in points(spmd)] == [
        (None, {"x"}),
        ("Wi'", {"a", "Wi'"}),
        ("u", {"a", "Wi'", "h"}),  # h is made in the place of u
        ("h", {"a", "h"}),
        ("d", {"a", "h", "d"}),
        ("d'", {"a", "d", "d'"}),
        ("b", {"a", "d'", "b"}),
    ]


def test_few_scores_of_attention_are_held_whole_and_what_they_are_made_of_until_they_are_used() -> None:
    spmd = parsed(ATTENTION)
    assert names(spmd, "s") == {"q", "s"}
    assert names(spmd, "m") == {"q", "s", "m"}
    assert names(spmd, "p") == {"q", "s", "m", "p"}
    assert names(spmd, "o") == {"q", "m", "p", "o"}
    assert names(spmd, "r") == {"o", "r"}
    assert points_without_blocks(spmd) == points(spmd)


def test_scores_that_a_collective_moves_are_stored() -> None:
    spmd = parsed(MOVED_SCORES)
    assert names(spmd, "s'") == {"s", "s'"}
    assert names(spmd, "o") == {"s'", "p", "o"}
    [at_start, *_, last] = points_without_blocks(spmd)
    assert {value.name for value in at_start.live} == {"q", "k"}
    assert {value.name for value in last.live} == {"s'", "p", "o"}


def test_attention_in_blocks_holds_a_block_of_scores_and_all_that_it_makes() -> None:
    spmd = parsed(ATTENTION_IN_BLOCKS)
    assert names(spmd, "s") == {"q"}
    assert names(spmd, "m") == {"q", "p", "m", "u", "o"}  # a block of p; a chip's own sum and product
    assert names(spmd, "m'") == {"q", "m", "m'", "u", "o"}
    assert names(spmd, "e") == {"q", "m", "m'", "u", "o"}
    assert names(spmd, "u") == {"q", "m", "m'", "u", "o"}
    assert names(spmd, "u'") == {"q", "m'", "u", "u'", "o"}
    assert names(spmd, "o") == {"q", "m'", "u", "u'", "o"}
    assert names(spmd, "r") == {"o", "r"}
    [point] = [point for point in points(spmd) if point.step == "m"]
    [block] = [value for value in point.live if value.form == "block"]
    # of H on a chip 2, of L 2**24 bytes in bf16 by 512 places, of M those; as it is made and as it is multiplied
    assert (block.name, block.bytes) == ("p", 2 * 4 * 2 * 2048 * 512 * 2)
    assert "p" not in {value.name for point in points_without_blocks(spmd) for value in point.live}
    for counted, least in zip(points(spmd), points_without_blocks(spmd), strict=True):
        assert counted.bytes >= least.bytes


def test_a_new_version_of_a_cache_is_the_cache() -> None:
    for point in points(parsed(ATTENTION)):
        assert not {"keys", "ks"} & {value.name for value in point.live}


def test_a_carry_is_held_where_nothing_reads_it_any_more() -> None:
    text = FEED_FORWARD.replace("= a + d' * scale", "= d' * scale")
    assert names(parsed(text), "d") == {"a", "h", "d"}
    assert names(parsed(text), "b") == {"d'", "b"}


def test_what_is_read_after_a_repeat_or_by_every_repetition_is_held_through_it() -> None:
    kept = FEED_FORWARD.replace("return y", "return y, x")
    assert all("x" in names(parsed(kept), step) for step in ("u", "d", "b"))
    again = FEED_FORWARD.replace("= a + d' * scale", "= a + d' * scale + x")
    assert all("x" in names(parsed(again), step) for step in ("u", "d", "b"))


def test_a_repeat_in_a_repeat_holds_what_is_around_it() -> None:
    spmd = parsed(NESTED)
    assert names(spmd, "u") == {"a", "c", "seen", "u", "w'"}
    assert names(spmd, "b") == {"a", "b", "e", "seen"}
    assert [p.repeats for p in points(spmd) if p.step in ("t", "d")] == [("outer",), ("outer", "inner")]


def test_steps_that_run_as_one_hold_all_that_they_read_and_make() -> None:
    spmd = parsed(GATED.replace("  d    bf16", "  t    bf16 B_xF_y           = u + v\n  d    bf16"))
    assert [p.step for p in points(spmd)] == [None, "Wi'", "u", "h", "t", "d", "d'", "b"]
    assert names(spmd, "u") == {"a", "Wi'", "u", "v"}
    assert names(spmd, "h") == {"a", "u", "v", "h"}


def test_a_gate_is_made_where_the_later_product_is_over_the_earlier() -> None:
    apart = GATED.replace("+ v ", "  v ")
    for text, step in ((GATED, "u"), (apart, "v")):
        assert names(parsed(text), step) == {"a", "Wi'", "h"}  # h in the place of v, over u
        assert names(parsed(text), "h") == {"a", "h"}
        check(parsed(text))
    assert names(parsed(apart), "u") == {"a", "Wi'", "u"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  d    bf16", "  t    bf16 B_xF_y           = relu(v)\n  d    bf16"),  # v is read once more
        ("  h    bf16", "  t    bf16 B_xE             = exp(a)\n  h    bf16"),  # something else stands between
        ("= relu(u) * v", "= rotate(v, F) * u"),  # that does not go element by element
        ("  h    bf16", "  v'   bf16 B_xF             = all-gather(y) F of v\n  h    bf16"),
        ("v    bf16 B_xF_y", "v    f32 B_xF_y"),  # that is larger
    ],
)
def test_a_product_is_there_where_it_is_not_made_into_what_reads_it(old: str, new: str) -> None:
    text = GATED.replace("+ v ", "  v ").replace(old, new, 1)
    if "v' " in new:
        text = text.replace("bf16 B_xF_y           = relu(u) * v", "bf16 B_xF             = relu(u') * v'")
        text = text.replace("  h    bf16", "  u'   bf16 B_xF             = all-gather(y) F of u\n  h    bf16", 1)
        text = text.replace("Wo: int8 F_yE", "Wo: int8 FE").replace("partialsum-y", "").replace("d'", "d")
        text = "\n".join(line for line in text.splitlines() if "all-reduce" not in line) + "\n"
    spmd = parsed(text)
    assert {"v'" if "v' " in new else "v", "h"} < names(spmd, "h")
    check(spmd)


@pytest.mark.parametrize(
    ("places", "rows", "row", "copied"),
    [
        (128, 4096, 192, 4096 * 256),  # on a chip rows of 96, as wide as a tile then
        (128, 4096, 256, 0),  # whole lanes
        (128, 4080, 192, 4080 * 256 + 16 * 192),  # padding all columns by 16 of 2,048 takes less
        (128, 96, 192, 0),  # padding 2 x 48 to 128 takes more
        (1, 4096, 192, 0),
    ],
)
def test_rows_that_do_not_fill_lanes_are_looked_up_in_a_copy(places: int, rows: int, row: int, copied: int) -> None:
    b = Build("2", B=8, V=rows, E=row)
    b.stored("ids", "B", Kind.INPUT, "i32")
    b.stored("table", "VE_x")
    b.op(Take("found", "table", "ids", ("V",)), "BE_x")
    spmd = b.spmd("found")
    less, more = (points(spmd, lanes)[-1].bytes for lanes in (1, places))
    assert more - less == copied


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ((4, 2880, 2880), Fraction(2944, 2880)),
        ((4, 2880, 1008), Fraction(1024, 1008)),  # of the dim that is filled with least
        ((4, 2880, 1024), Fraction(1)),
        ((128, 1000, 3), Fraction(1)),
        ((16, 24, 40), Fraction(128, 40)),
        ((4, 8, 40), Fraction(1)),  # less than a square of lanes
    ],
)
def test_what_fills_no_lanes_takes_those_that_are_begun(sizes: tuple[int, int, int], times: Fraction) -> None:
    """What is stored, and not what goes in or is made."""
    b = Build("2", **dict(zip("AEF", sizes, strict=True)), B=1000)
    b.stored("x", "BAE", Kind.INPUT)
    b.stored("w", "AEF")
    b.einsum("y", "BAE,AEF->BF", "x", "w", layout="BF")
    spmd = b.spmd("y")
    plain, lanes = (memory(spmd, n).total_bytes for n in (1, 128))
    assert lanes - plain == (times - 1) * prod(sizes) * 2


@pytest.mark.parametrize(
    ("layers", "sizes", "places"),
    [
        (60, (6, 56, 16), 128 * 6 * 56 * 16 + 60 * 6 * 56 * 128),  # layers in lanes, and then anew
        (60, (6, 16, 56), 128 * 6 * 16 * 56 + 60 * 6 * 16 * 128),
        (60, (12, 8, 2), 128 * 12 * 8 * 2 + 60 * 12 * 8 * 128),  # much where it is anew, though little as it is
        (60, (6, 56, 72), 60 * 6 * 56 * 128 * 2),  # the last dim leaves over less than layers
        (60, (6, 16, 120), 60 * 6 * 16 * 128),  # little more: as it is
        (60, (6, 120, 16), 60 * 6 * 128 * 16),
        (126, (6, 128, 16), 126 * 6 * 128 * 16),  # a dim that is whole lanes
        (60, (7,), 60 * 7),  # less than a square of lanes
    ],
)
def test_layers_in_lanes_are_laid_out_anew(layers: int, sizes: tuple[int, ...], places: int) -> None:
    lengths = ", ".join(f"{dim} = {size}" for dim, size in zip("CDF", sizes, strict=False))
    dims = "CDF"[: len(sizes)]
    text = f"""
        dim A = 2, {lengths}
        block layer(x: f32[A]) -> f32[A] {{
          param w: f32[{",".join(dims)}]
          y[A] = x[A] * w[{",".join(dims)}]
          return x + y
        }}
        main(x: f32[A]) {{ return repeat {layers} layer(x) }}
    """
    spmd = compile_phase(parse(text), "main", Mesh.parse("1"), Options(Hardware.load("tpu-v4"))).spmd
    plain, lanes = (memory(spmd, n).total_bytes for n in (1, 128))
    assert lanes - plain == 4 * (places - layers * prod(sizes))


@pytest.mark.parametrize(
    ("places", "row", "held"),
    [
        (128, 2 * 1000, 1024),  # on a chip rows of 1,000: padded to whole lanes they are handed over
        (128, 2 * 896, 896),  # 7 times 128: neither padded nor copied
        (128, 2 * 912, 1024),  # an eighth more is the most
        (128, 2 * 908, 908 + 1024),  # of more a copy is made
        (1, 2 * 1000, 1000),
    ],
)
def test_rows_that_nearly_fill_lanes_are_handed_over_padded(places: int, row: int, held: int) -> None:
    b = Build("2", B=8, V=4096, E=row)
    b.stored("ids", "B", Kind.INPUT, "i32")
    b.stored("table", "VE_x")
    b.op(Take("found", "table", "ids", ("V",)), "BE_x")
    spmd = b.spmd("found")
    beside = sum(value.bytes for value in points(spmd)[-1].live)
    assert memory(spmd, places).total_bytes - beside == 2 * 4096 * held


@pytest.mark.parametrize(
    ("rows", "dtype", "partial", "copied"),
    [
        (64, "bf16", "partialsum-x", 0),  # 16 rows for each chip
        (16, "bf16", "partialsum-x", 16 * 512 * 2),
        (64, "f32", "partialsum-x", 0),
        (16, "f32", "partialsum-x", 16 * 512 * 4),
        (16, "bf16", "partialmax-x", 0),  # of which none is a reduce-scatter
    ],
)
def test_a_sum_that_is_scattered_as_rows_is_held_twice(rows: int, dtype: str, partial: str, copied: int) -> None:
    b = Build("4", B=rows, E=512, F=8)
    b.stored("a", "BF_xE", Kind.INPUT, dtype)
    op = Reduce("s", "a", ("F",)) if "max" in partial else Einsum("s", ("a",), (("B", "F", "E"),), ("B", "E"))
    b.op(op, f"BE {partial}", dtype)
    b.move("t", "s", ReduceScatter(("x",), 0), "B_xE")
    spmd = b.spmd("t")
    less, more = (points(spmd, lanes)[-1].bytes for lanes in (1, 128))
    assert more - less == copied


def test_partial_values_and_inputs_count_whole() -> None:
    spmd = parsed(FEED_FORWARD)
    [point] = [p for p in points(spmd) if p.step == "d'"]
    assert {v.name: v.bytes for v in point.live} == {"a": 128, "d": 128, "d'": 128}


@dataclass(frozen=True)
class Event:
    """A step of the unrolled program: the buffers that it reads and the one that it writes, and when.
    Steps that run as one do so at one time."""

    reads: frozenset[str]
    writes: str
    when: int
    op: object


class Unrolled:
    """The program with its repeats unrolled, every value of every repetition a buffer of its own."""

    def __init__(self, spmd: SpmdProgram) -> None:
        self.spmd = spmd
        self.events: list[Event] = []
        self.origin: dict[str, str] = {}  # buffer -> value
        self.reserved: list[tuple[str, str]] = []  # a carry's old buffer, held until the new one
        self.appends = [s.op for s in steps(spmd.body) if isinstance(s, Compute) and isinstance(s.op, Append)]
        scope: dict[str, str] = {}
        self.region(spmd.body, scope)
        self.results = [scope[name] for name in spmd.results]

    def buffer(self, value: str) -> str:
        fresh = f"{value}#{len(self.origin)}"
        self.origin[fresh] = value
        return fresh

    def region(self, region: Region[Step], scope: dict[str, str]) -> None:
        for stored in region.stored:
            scope[stored.value] = self.buffer(stored.value) if stored.kind is Kind.INPUT else ""
        for item in region.items:
            match item:
                case Repeat(_, count, carries, body):
                    now = {c.inside: scope[c.initial] for c in carries}
                    for _ in range(count):
                        inner = scope | now
                        self.region(body, inner)
                        self.reserved += [(now[c.inside], inner[c.next]) for c in carries]
                        now = {c.inside: inner[c.next] for c in carries}
                    scope |= {c.result: now[c.inside] for c in carries}
                case Move(result, operand):
                    self.step(result, [operand], scope, item.joined, None)
                case Compute(Append(result)):
                    self.step(result, operand_names(item.op), scope, item.joined, item.op)
                    scope[result] = ""
                case Compute(op):
                    self.step(op.result, operand_names(op), scope, item.joined, op)

    def step(self, result: str, reads: Sequence[str], scope: dict[str, str], joined: bool, op: object) -> None:
        buffers = frozenset(scope[name] for name in reads)
        scope[result] = self.buffer(result)
        now = self.events[-1].when if self.events else -1
        self.events.append(Event(buffers, scope[result], now if joined else now + 1, op))

    def score(self, buffer: str) -> bool:
        """Whether it is a score that no collective touches."""
        value = self.spmd.table()[self.origin[buffer]]
        moved = {s.operand for s in steps(self.spmd.body) if isinstance(s, Move)}
        moved |= {s.result for s in steps(self.spmd.body) if isinstance(s, Move)}
        two = any(a.source in value.dims and a.target in value.dims for a in self.appends)
        return two and value.name not in moved and value.name not in self.spmd.results

    def own(self, buffer: str, event: Event) -> bool:
        """Whether a step alone reads a buffer, in whatever layout, of the dims and type of what it makes."""
        table, moved = self.spmd.table(), {s.result: s.operand for s in steps(self.spmd.body) if isinstance(s, Move)}

        def first(name: str) -> str:
            return first(moved[name]) if name in moved else name

        value, made = table[self.origin[buffer]], table[self.origin[event.writes]]
        read = [name for s in steps(self.spmd.body) if isinstance(s, Compute) for name in operand_names(s.op)]
        read += [*self.spmd.results, *(n for c in carries(self.spmd.body) for n in (c.initial, c.next))]
        alone = [first(name) for name in read].count(first(value.name)) == 1
        [home] = [
            r for r, _ in regions(self.spmd.body) if made.name in {s.result for s in r.items if isinstance(s, Compute)}
        ]
        makers = [s.op.result for s in home.items if isinstance(s, Compute)]
        return alone and first(value.name) in makers and (value.dims, value.dtype) == (made.dims, made.dtype)

    def fused(self) -> Iterator[tuple[Event, Event]]:
        """Each matmul that the pointwise step right after it, by itself, is made with, and that step."""
        for event in self.events:
            made = [before for before in self.events if before.when == event.when - 1 and before.writes in event.reads]
            table, pairs = self.spmd.table(), [{a.source, a.target} for a in self.appends]
            touched = {*event.reads, event.writes}.union(*(before.reads for before in made)) - {""}
            if isinstance(event.op, Sum | Map) and not any(
                pair <= {*table[self.origin[b]].dims} for pair in pairs for b in touched
            ):
                whole = not (isinstance(event.op, Map) and rotated_dims(event.op.expr))
                found = [before for before in made if whole and matmul(before.op) and self.own(before.writes, event)]
                yield from [(before, event) for before in found[-1:]]

    def size(self, buffer: str) -> Fraction:
        value = self.spmd.table()[self.origin[buffer]]
        total = Fraction(value.dtype.bits, 8)
        for dim, axes in zip(value.dims, value.layout.dims, strict=True):
            total *= Fraction(dict(self.spmd.sizes)[dim], self.spmd.mesh.size(*axes))
        return total

    def peak(self) -> Fraction:
        """The most bytes between the first writing and the last reading of all buffers."""
        versions = {a.result for a in self.appends}
        blocks = any(self.score(b) and self.size(b) > 2**26 for b in self.origin)
        stays = {b for b in self.origin if self.origin[b] not in versions and not (blocks and self.score(b))}
        starts = dict.fromkeys(self.origin, -1) | {e.writes: e.when for e in self.events}
        late = dict(starts)
        ends = dict(starts) | dict.fromkeys(self.results, len(self.events))
        early = {event.writes: before for before, event in self.fused()}
        stays -= {before.writes for before in early.values()}
        starts |= {made: before.when for made, before in early.items()}
        for event in reversed(self.events):
            if event.writes in early:
                event = replace(event, when=event.when - 1)
            # a score is read as late as what is made of it, and so is what it is made of
            last = max(event.when, ends[event.writes]) if self.score(event.writes) else event.when
            for read in event.reads - {""}:
                ends[read] = max(ends[read], last)
        for score in filter(self.score, self.origin):  # itself it is held no longer than it is read
            ends[score] = max([starts[score], *(event.when for event in self.events if score in event.reads)])
        for old, new in self.reserved:
            ends[old] = max(ends[old], late[new] - 1)
        for before, event in self.fused():  # over one of the others, if it may
            others = [b for b in event.reads - {"", before.writes} if self.own(b, event)]
            for over in others[:1]:
                ends[over] = before.when - 1
        found = Fraction(0)
        for now in range(-1, len(self.events)):
            found = max(found, sum((self.size(b) for b in stays if starts[b] <= now <= ends[b]), Fraction(0)))
        return found


def matmul(op: object) -> bool:
    """Whether an op is one of two operands or more that sums over something."""
    return isinstance(op, Einsum) and len(op.operands) > 1 and bool({i for of in op.indices for i in of} - {*op.output})


def carries(region: Region[Step]) -> Iterator[Carry]:
    for item in region.items:
        if isinstance(item, Repeat):
            yield from item.carries
            yield from carries(item.body)


def steps(region: Region[Step]) -> Iterator[Compute | Move]:
    for item in region.items:
        if isinstance(item, Repeat):
            yield from steps(item.body)
        else:
            yield item


def shortened(region: Region[Step]) -> Region[Step]:
    """Three repetitions show all there is: a first, a middle and a last one."""
    items = (Repeat(i.name, 3, i.carries, shortened(i.body)) if isinstance(i, Repeat) else i for i in region.items)
    return Region(region.stored, tuple(items))


def check(spmd: SpmdProgram) -> None:
    short = SpmdProgram(spmd.name, spmd.phase, spmd.mesh, spmd.sizes, spmd.values, shortened(spmd.body), spmd.results)
    assert memory(spmd).worst == memory(short).worst
    assert memory(spmd).worst.bytes == Unrolled(short).peak() > 0


@pytest.mark.parametrize(
    "text",
    [
        FEED_FORWARD,
        FEED_FORWARD.replace("return y", "return y, x"),
        FEED_FORWARD.replace("= a + d'", "= d'"),
        FEED_FORWARD.replace("* scale", "* scale + x"),
        FEED_FORWARD.replace("sizes B=8 E=16 F=32", "sizes B=512 E=16 F=4"),
        FEED_FORWARD.replace("input x", "input unused: bf16 BEF\ninput x"),
        ATTENTION,
        MOVED_SCORES,
        NESTED,
    ],
)
def test_the_peak_is_that_of_the_unrolled_program(text: str) -> None:
    check(parsed(text))


@pytest.mark.parametrize(
    ("name", "phase", "chips"),
    [
        ("palm-540b.esti", "decode", "4x4x4"),
        ("palm-540b.esti", "prefill", "4x16"),
        ("feed-forward.esti", "main", "2x2"),
    ],
)
def test_the_peak_of_compiled_programs_is_that_of_the_unrolled_ones(name: str, phase: str, chips: str) -> None:
    check(compiled(name, phase, chips))


class Random:
    """A program of made-up steps: only who reads what matters, and how large values are."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values: list[SpmdValue] = []
        inputs = tuple(Stored(self.value(), Kind.INPUT) for _ in range(2))
        scope = [s.value for s in inputs]
        items = self.items(scope, depth=0)
        results = tuple(self.rng.sample(scope, 2))
        sizes = tuple((f"D{n}", n) for n in range(1, 30))
        mesh = Mesh.parse("1")
        body = Region(inputs, items)
        self.program = SpmdProgram("random", "main", mesh, sizes, tuple(self.values), body, results)

    def value(self, like: str | None = None) -> str:
        """A new value, of any size or of that of another."""
        name, sizes = f"v{len(self.values)}", {v.name: v.dims for v in self.values}
        dims = (f"D{self.rng.randrange(1, 30)}",) if like is None else sizes[like]
        self.values.append(SpmdValue(name, dims, Dtype.INT4, Layout(((),))))
        return name

    def step(self, scope: list[str], like: str | None = None) -> Compute:
        read = tuple(self.rng.sample(scope, min(len(scope), self.rng.randrange(1, 4))))
        scope.append(self.value(like))
        return Compute(Sum(scope[-1], read, (1.0,) * len(read)))

    def items(self, scope: list[str], depth: int) -> tuple[Compute | Move | Repeat[Step], ...]:
        """Steps that read values of `scope` and add theirs to it."""
        out: list[Compute | Move | Repeat[Step]] = []
        for _ in range(self.rng.randrange(1, 6)):
            if depth < 2 and self.rng.random() < 0.35:
                out.append(self.repeat(scope, depth))
            else:
                out.append(self.joined(self.step(scope), out))
        return tuple(out)

    def joined(self, step: Compute, before: Sequence[Compute | Move | Repeat[Step]]) -> Compute:
        """A step that may run as one with those before it, where it reads nothing that they make."""
        run: list[str] = []
        for item in reversed(before):
            if not isinstance(item, Compute):
                break
            run.append(item.result)
            if not item.joined:
                break
        free = bool(run) and not set(run) & set(operand_names(step.op))
        return replace(step, joined=free and self.rng.random() < 0.5)

    def repeat(self, scope: list[str], depth: int) -> Repeat[Step]:
        """A repeat with up to two carries, each of which hands on what some step makes."""
        initials = self.rng.sample(scope, self.rng.randrange(3))
        inside = [self.value(like) for like in initials]
        inner = scope + inside
        items = (*self.items(inner, depth + 1), *(self.step(inner, like) for like in initials))
        items += self.items(inner, depth + 1)
        large = {v.name: v.dims for v in self.values}
        following = []
        for like in initials:
            made = [n for n in inner[len(scope) + len(inside) :] if large[n] == large[like] and n not in following]
            following.append(self.rng.choice(made))
        results = [self.value(like) for like in initials]
        scope += results
        carries = tuple(map(Carry, initials, inside, following, results))
        return Repeat(f"r{depth}", 3, carries, Region((), items))


@pytest.mark.parametrize("seed", range(300))
def test_the_peak_of_any_program_is_that_of_the_unrolled_one(seed: int) -> None:
    check(Random(seed).program)


SUMMED = """input g: f32 BC_xy
  param w: f32 C_xyE
  h f32 BE partialsum-xy = g[B,C] * w[C,E]"""


@pytest.mark.parametrize("ways", ["gather", "scatter"])
def test_what_goes_in_two_stages_is_held_between_them(ways: str) -> None:
    """Over all of 4 x 2 chips: of a gather what 2 chips have, of a reduce-scatter the part of 4 of what comes in."""
    start, move, after = {
        "gather": ("input h: f32 B_xyE", "all-gather(xy) B of h", "BE"),
        "scatter": (SUMMED, "reduce-scatter(xy) B of h", "B_xyE"),
    }[ways]
    spmd = parse_spmd(
        Source(
            "toy.spmd",
            f"""sharded "toy" main on x=4 y=2
sizes B=1024 C=8 E=256
  {start}
  k f32 {after} = {move}
return k
""",
        )
    )
    verify(spmd)
    less, more = (points(spmd, lanes)[-1] for lanes in (1, 128))
    [stage] = [value for value in more.live if value.form == "first stage"]
    whole = 1024 * 256 * 4
    assert stage.label == "h (first stage)" and stage.bytes == (whole / 8 * 2 if ways == "gather" else whole / 4)
    assert more.bytes - less.bytes == stage.bytes
