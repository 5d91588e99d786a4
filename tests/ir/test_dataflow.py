"""What items make and read, of programs and of sharded ones."""

from __future__ import annotations

from escc import parse
from escc.ir.dataflow import defined, makes, origins, readers, reads, regions, rewritten
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Repeat
from escc.ir.spmd import unsharded
from escc.ir.text.read_spmd import parse_spmd

MODEL = """
model "two"
dim B = 4, E = 8
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param W: bf16[E,E2]
  return gelu(x) + x
}
main(x: bf16[B,E]) { return repeat 2 layer(x) }
""".replace("  param W: bf16[E,E2]\n", "")
SHARDED = """sharded "a" run on x=2
sizes B=4 E=8
input x: f32 B_xE
y f32 BE = all-gather(x) B of x
z f32 B_xE = slice(x) B of y
w f32 B_xE = gelu(z)
v f32 B_xE = z * w
return v
"""


def test_a_repeat_reads_what_enters_it_and_what_its_body_reads() -> None:
    program = parse(MODEL)
    [repeat] = [item for item in program.body.items if isinstance(item, Repeat)]
    [carry] = repeat.carries
    assert makes(repeat) == (carry.result,)
    assert reads(repeat)[0] == carry.initial == "x"
    assert set(reads(repeat)) >= {carry.initial, carry.inside}
    spmd = unsharded(program, program.phases[0].name, Mesh.parse("1"))
    [same] = [item for item in spmd.body.items if isinstance(item, Repeat)]
    assert (makes(same), reads(same)) == (makes(repeat), reads(repeat))


NESTED = """
model "nested"
dim B = 4, E = 8
block inner(x: bf16[B,E]) -> bf16[B,E] { return exp(x) }
block outer(x: bf16[B,E]) -> bf16[B,E] { return repeat 3 inner(x) }
main(x: bf16[B,E]) { return repeat 2 outer(x) }
"""


def test_regions_run_as_often_as_all_repeats_around_them() -> None:
    assert [times for _, times in regions(parse(NESTED).body)] == [1, 2, 6]


def test_items_are_written_anew_in_the_innermost_repeat_too() -> None:
    body = parse(NESTED).body
    assert rewritten(body, lambda op: [op]) == body
    assert [len(region.items) for region, _ in regions(rewritten(body, lambda op: []))] == [1, 1, 0]
    assert [len(region.items) for region, _ in regions(rewritten(body, lambda op: [op, op]))] == [1, 1, 2]


def test_values_are_defined_in_order_and_read_so_often() -> None:
    spmd = parse_spmd(Source("a", SHARDED))
    assert defined(spmd.body) == ["x", "y", "z", "w", "v"]
    assert readers(spmd) == {"x": 1, "y": 1, "z": 2, "w": 1, "v": 1}


def test_copies_of_copies_are_of_the_first() -> None:
    assert origins(parse_spmd(Source("a", SHARDED))) == {"y": "x", "z": "x"}
