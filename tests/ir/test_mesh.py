"""Meshes from text: what parses to which axes, and what is refused, with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escc.ir.diagnostics import InputError
from escc.ir.mesh import MAX_CHIPS, Mesh


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("1", (("x", 1),)),
        ("5", (("x", 5),)),
        ("2x3", (("x", 2), ("y", 3))),
        ("7x1", (("x", 7), ("y", 1))),
        ("4x4x4", (("x", 4), ("y", 4), ("z", 4))),
        ("1x1x1x1x1x1x1x2", tuple(zip("xyzwvuts", (1, 1, 1, 1, 1, 1, 1, 2), strict=True))),
        ("node=2,gpu=8", (("node", 2), ("gpu", 8))),
        ("x=4 y=4 z=4", (("x", 4), ("y", 4), ("z", 4))),
        (" node_0=2, gpu=8 ", (("node_0", 2), ("gpu", 8))),
        ("node=2,gpu=2x4", (("node", 2), ("gpu:1", 2), ("gpu:2", 4))),
    ],
)
def test_meshes_that_parse(text: str, axes: tuple[tuple[str, int], ...]) -> None:
    assert Mesh.parse(text).axes == axes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`` is not a mesh."),
        ("4x", "`4x` is not a mesh."),
        ("4 x 4", "`4 x 4` is not a mesh."),
        ("-4", "`-4` is not a mesh."),
        ("4x4x4\x00", "is not a mesh."),
        ("X=4", "`X=4` is not a mesh."),
        ("x=4,,y=2", "is not a mesh."),
        ("0", "`0` has an axis of size 0."),
        ("4x0", "`4x0` has an axis of size 0."),
        ("x=2,x=4", "The mesh names the axis `x` twice."),
        ("x=2,y=2,xy=2", "The axis `xy` reads like the axes x, y together."),
        ("1x1x1x1x1x1x1x1x1", "has 9 axes; at most 8 are supported."),
        ("a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", "The mesh has 9 axes; at most 8 are supported."),
        ("x=2x4,x=8", "The mesh names the axis `x` twice."),
        ("x=8,x=2x4", "The mesh names the axis `x` twice."),
        ("x=2x", "`x=2x` is not a mesh."),
        ("x:1=2", "`x:1=2` is not a mesh."),
        ("x=2x0", "has an axis of size 0."),
        ("2048x1024", f"The mesh has more than {MAX_CHIPS} chips."),
        ("9" * 5000, f"The mesh has more than {MAX_CHIPS} chips."),
    ],
)
def test_meshes_that_do_not(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Mesh.parse(text)
    assert message in error.value.diagnostics[0].message


def test_a_mesh_that_is_no_text() -> None:
    with pytest.raises(InputError, match="A mesh is a text, which `64` is not"):
        Mesh.parse(64)  # type: ignore[arg-type]


AXES = st.lists(
    st.tuples(st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), st.integers(1, 6)),
    min_size=1,
    max_size=7,
    unique_by=lambda axis: axis[0],
).filter(lambda axes: not any(len(n) > 1 and set(n) <= {m for m, _ in axes} for n, _ in axes))


@given(AXES)
def test_a_mesh_reads_back(axes: list[tuple[str, int]]) -> None:
    mesh = Mesh(tuple(axes))
    assert Mesh.parse(str(mesh)) == mesh


@given(AXES)
def test_chips_are_the_product_of_the_axes(axes: list[tuple[str, int]]) -> None:
    mesh = Mesh(tuple(axes))
    assert mesh.chips == mesh.size(*mesh.names)
    assert mesh.size() == 1
    for name, size in axes:
        assert mesh.size(name) == size
    with pytest.raises(KeyError):
        mesh.size("no such axis")


def test_axes_in_parts_are_printed_as_they_parse() -> None:
    mesh = Mesh.parse("node=2x4x8,gpu=8")
    assert str(mesh) == "node=2x4x8 gpu=8" and Mesh.parse(str(mesh)) == mesh and mesh.chips == 512
    assert mesh.parts("node") == ("node:1", "node:2", "node:3") and mesh.parts("gpu") == ("gpu",)
    assert mesh.parts("node:2") == ("node:2",) and mesh.parts("x") == ()
    assert mesh.in_parts("node", (8, 8)) == Mesh.parse("node=8x8,gpu=8")
    assert mesh.in_parts("node", (64,)).in_parts("gpu", (2, 4)) == Mesh.parse("node=64,gpu=2x4")
    assert str(Mesh.parse("gpu=2x4 of node=2,gpu=2x4")) == "gpu=2x4 of node=2 gpu=2x4"
