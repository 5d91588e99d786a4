"""What items make and read, of programs and of sharded ones."""

from __future__ import annotations

from escc import parse
from escc.ir.dataflow import defined, makes, origins, readers, reads
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


def test_values_are_defined_in_order_and_read_so_often() -> None:
    spmd = parse_spmd(Source("a", SHARDED))
    assert defined(spmd.body) == ["x", "y", "z", "w", "v"]
    assert readers(spmd) == {"x": 1, "y": 1, "z": 2, "w": 1, "v": 1}


def test_copies_of_copies_are_of_the_first() -> None:
    assert origins(parse_spmd(Source("a", SHARDED))) == {"y": "x", "z": "x"}
