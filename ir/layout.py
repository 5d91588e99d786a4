"""Layouts: which mesh axes split which dimension, in which order, and what is still partial.

Text forms: `BLE_xyz`, `E_xF_zy`, `BLF_zy partialsum-x` where every dim is one capital letter and
every axis one small letter; `[batch, d_model/node.gpu:2] partialmax-x` otherwise. Both parse.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

from .diagnostics import fail
from .mesh import Mesh
from .record import record


class Reduction(StrEnum):
    """How partial values are completed."""

    SUM = "sum"
    MAX = "max"


@record
class Layout:
    """How one value lies on the mesh.

    `dims`: for each dimension of the value the axes that split it, major to minor. Order matters:
    `F_yz` and `F_zy` put different blocks on a chip.
    `partial`: the axes over which the value is still to be reduced, in name order.
    `reduction`: what completes it; SUM when nothing is partial.

    Invariants: an axis stands in a layout at most once; `partial` is sorted; without partial axes
    the reduction is SUM. What is not named is replicated.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    reduction: Reduction = Reduction.SUM

    def __post_init__(self) -> None:
        named = [a for axes in self.dims for a in axes] + list(self.partial)
        assert len(set(named)) == len(named), f"an axis stands twice in {self}"
        assert self.partial == tuple(sorted(self.partial)), "partial axes are sorted"
        assert self.partial or self.reduction is Reduction.SUM, "nothing is partial"

    @property
    def split_axes(self) -> frozenset[str]:
        """The axes that split some dimension."""
        return frozenset(a for axes in self.dims for a in axes)

    def replace(self, dim: int, axes: Sequence[str]) -> Layout:
        """The same layout with the axes of dimension `dim` replaced."""
        dims = (*self.dims[:dim], tuple(axes), *self.dims[dim + 1 :])
        return Layout(dims, self.partial, self.reduction)

    def with_partial(self, partial: Sequence[str], reduction: Reduction) -> Layout:
        """The same split with other partial axes."""
        return Layout(self.dims, tuple(sorted(partial)), reduction if partial else Reduction.SUM)

    def local_shape(self, sizes: Sequence[int], mesh: Mesh) -> tuple[int, ...]:
        """The shape that each chip holds of a value of shape `sizes` (elements)."""
        return tuple(size // mesh.size(*axes) for size, axes in zip(sizes, self.dims, strict=True))


def most_ways(shape: Sequence[int], mesh: Mesh) -> int:
    """Into how many parts of one shape axes of the mesh can divide a value at the most, each axis one dim."""
    left = {tuple(shape)}  # what a part has, in each way to divide
    for _, ways in mesh.axes:
        left |= {
            (*rest[:n], size // ways, *rest[n + 1 :])
            for rest in left
            for n, size in enumerate(rest)
            if size % ways == 0
        }
    return max(math.prod(shape) // math.prod(rest) for rest in left)


def format_layout(names: Sequence[str], layout: Layout) -> str:
    """The layout of a value with dims `names` as text; parse_layout reads it back."""
    axes = [*layout.split_axes, *layout.partial]
    short = all(re.fullmatch("[A-Z]", n) for n in names) and all(re.fullmatch("[a-z]", a) for a in axes) and names
    if short:
        body = "".join(n + ("_" + "".join(s) if s else "") for n, s in zip(names, layout.dims, strict=True))
        return body + (f" partial{layout.reduction}-{''.join(layout.partial)}" if layout.partial else "")
    body = ", ".join(n + ("/" + ".".join(s) if s else "") for n, s in zip(names, layout.dims, strict=True))
    return f"[{body}]" + (f" partial{layout.reduction}-{'.'.join(layout.partial)}" if layout.partial else "")


_PARTIAL = r"(?:\s+partial(?P<reduction>sum|max)-(?P<partial>[a-z][a-z0-9_.:]*))?"
_SHORT = re.compile(r"(?P<body>(?:[A-Z](?:_[a-z]+)?)+)" + _PARTIAL)
_LONG = re.compile(r"\[(?P<body>[^\]]*)\]" + _PARTIAL)
_AXIS = r"[a-z][a-z0-9_]*(?::\d+)?"  # a part of an axis has its number behind it
_NAME = r"[A-Za-z][A-Za-z0-9_]*"


def parse_layout(text: str) -> tuple[tuple[str, ...], Layout]:
    """The dim names and the layout of a layout's text.

    Raises InputError when the text is no layout or names an axis twice.
    """
    text = text.strip()
    hint = "write `BLE_xyz`, `BLF_zy partialsum-x`, or `[batch, d_model/node.x]`"
    if match := _SHORT.fullmatch(text):
        parts = re.findall(r"([A-Z])(?:_([a-z]+))?", match["body"])
        names = tuple(n for n, _ in parts)
        dims = tuple(tuple(axes) for _, axes in parts)
        partial = tuple(match["partial"] or "")
    elif match := _LONG.fullmatch(text):
        entries = [e.strip() for e in match["body"].split(",")] if match["body"].strip() else []
        if not all(re.fullmatch(rf"{_NAME}(/{_AXIS}(\.{_AXIS})*)?", e) for e in entries):
            raise fail(f"`{text[:60]}` is not a layout.", hint=hint)
        names = tuple(e.split("/")[0] for e in entries)
        dims = tuple(tuple(e.split("/")[1].split(".")) if "/" in e else () for e in entries)
        partial = tuple(match["partial"].split(".")) if match["partial"] else ()
    else:
        raise fail(f"`{text[:60]}` is not a layout.", hint=hint)
    named = [a for axes in dims for a in axes] + list(partial)
    twice = next((axis for axis, times in Counter(named).items() if times > 1), None)
    if twice is not None:
        raise fail(f"The layout `{text[:60]}` names the axis `{twice[:60]}` twice.")
    reduction = Reduction(match["reduction"]) if match["reduction"] else Reduction.SUM
    return names, Layout(dims, tuple(sorted(partial)), reduction)


def spelled_out(text: str, axes: Sequence[str]) -> str | None:
    """A hint where the text of a layout names one of some axes in the short form, in which each letter is an axis."""
    name = next((each for each in axes if len(each) > 1 and each in text), None)
    if name is None or "[" in text:
        return None
    return f"an axis of several letters needs the long form, as in `[B, E/{name}]` or `[B, E] partialsum-{name}`"


def unsplittable(names: Sequence[str], layout: Layout, sizes: Mapping[str, int], mesh: Mesh) -> str | None:
    """Why `layout` cannot hold a value with dims `names`, or None when it can.

    A size-1 dim is never split; any other is split only by what divides it. The sentence names the
    dim, the axes, and the nearest sizes that would do.
    """
    for name, axes in zip(names, layout.dims, strict=True):
        ways, size = mesh.size(*axes), sizes[name]
        if axes and size == 1:
            return f"dim `{name}` has size 1 and is never split"
        if size % ways:
            below, above = size // ways * ways, -(-size // ways) * ways
            near = f"{below} or {above}" if below else f"{above}"
            return f"dim `{name}` = {size} does not divide by axes {', '.join(axes)} ({ways} ways); {near} would"
    return None
