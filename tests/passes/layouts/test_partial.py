"""Which axes a value can be partial over: where sums arise, what passes them on, and what does not."""

from __future__ import annotations

import pytest

from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import signature
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.layouts.partial import PartialAxes, partial_axes

HEAD = "dim B = 7, E = 8, F = 11, G = 10, V = 5\n"  # of which two chips split E and G alone


def found(body: str, mesh: str = "2") -> PartialAxes:
    source = Source("test.esti", HEAD + body)
    program = expand(parse(source), source, {})
    return partial_axes(program, dict(program.phases[0].sizes), Mesh.parse(mesh))


MAIN = "main(x: bf16[B,E], w: bf16[E,F], z: bf16[B,F], v: bf16[E,V]) {\n"


def test_a_sum_arises_where_a_contracted_index_is_split() -> None:
    partial = found(MAIN + "y[B,F] = x[B,E] * w[E,F]\nreturn y }")
    assert partial.sums("y") == {"x"}
    assert partial.sums("z") == partial.maxima("y") == frozenset()


def test_only_axes_that_divide_count() -> None:
    assert found(MAIN + "y[B,F] = x[B,E] * w[E,F]\nreturn y }", "3x2x1").sums("y") == {"y"}
    assert found("main(v: bf16[B,V]) {\ny[B] = v[B,V]\nreturn y }").sums("y") == frozenset()


def test_linear_ops_pass_sums_on_and_others_do_not() -> None:
    partial = found(MAIN + "y[B,F] = x[B,E] * w[E,F]\nh = y * 2\ng = gelu(y)\nreturn h, g }")
    assert partial.sums("h") == {"x"}
    assert partial.sums("g") == frozenset()


def test_a_maximum_arises_and_a_sum_does_not_pass_through_it() -> None:
    text = MAIN.replace("w:", "k: bf16[E,G], w:")
    partial = found(text + "y[B,G] = x[B,E] * k[E,G]\nm = max(y, over=G)\nreturn m }")
    assert partial.maxima("m") == {"x"}
    assert partial.sums("m") == frozenset()


def test_terms_of_a_sum_may_be_embedded_beside_partial_ones() -> None:
    partial = found(MAIN + "y[B,F] = x[B,E] * w[E,F]\ns = y + z\nreturn s }")
    assert partial.join["z"] == partial.sums("z") == partial.sums("s") == {"x"}
    assert found(MAIN + "s = z + gelu(z)\nreturn s }").join == {}


def test_blocks_may_stand_among_zeros_where_an_axis_can_split_a_dim() -> None:
    body = MAIN + "g = gelu(x)\nreturn g }"
    assert found(body, "2").sums("x") == found(body, "2x3").sums("x") == found(body, "2").sums("g") == {"x"}
    assert found(body, "2x3x4").sums("x") == {"x", "z"}
    assert found(body, "3").sums("x") == found(body, "2").sums("z") == found(body, "2").maxima("x") == frozenset()
    assert found(body, "2x4").join == {}


@pytest.mark.parametrize(
    ("body", "reads"), [("s = y + z", {"y": {"x"}, "z": {"x"}}), ("s = y * z", {"y": {"x"}, "z": set()})]
)
def test_what_an_op_may_read_partial(body: str, reads: dict[str, set[str]]) -> None:
    text = HEAD + MAIN + f"y[B,F] = x[B,E] * w[E,F]\n{body}\nreturn s }}"
    source = Source("test.esti", text)
    program = expand(parse(source), source, {})
    partial = partial_axes(program, dict(program.phases[0].sizes), Mesh.parse("2"))
    op = next(op for op in program.body.items if getattr(op, "result", "") == "s")
    assert partial.readable(signature(op, program.table())) == reads  # type: ignore[arg-type]
