"""The mesh: ordered, named axes of chips, some of them in parts.

An axis of 8 chips may be two axes of the mesh, of 2 and of 4: `gpu=2x4` has the parts `gpu:1` (of the two halves) and
`gpu:2` (in each half), outer ones first. Chips are numbered as those of the whole axis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from .diagnostics import fail
from .record import record

DEFAULT_NAMES = "xyzwvuts"  # names of the axes of `4x4x4`, in order
MAX_CHIPS = 1 << 20


@record
class Mesh:
    """Ordered axes as (name, size) pairs.

    Invariants: at least one axis; names differ and are lower-case identifiers; sizes are at least 1.
    A mesh of one axis of size 1 is legal: it is one chip. `part_of`: all axes of the mesh that these chips are a
    part of, such as a stage of a pipeline; none where they are all there are.
    """

    axes: tuple[tuple[str, int], ...]
    part_of: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        assert self.axes, "a mesh has at least one axis"
        assert len({name for name, _ in self.axes}) == len(self.axes), "axis names differ"
        assert all(size >= 1 for _, size in self.axes), "axis sizes are positive"

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """The mesh of `4x4x4` (axes x, y, z, ...) or of `node=2,gpu=8` (named axes), where `gpu=2x4` is an axis in
        parts; `gpu=8 of node=2,gpu=8` are some chips of a mesh.

        Raises InputError when the text is neither, or no text.
        """
        if not isinstance(text, str):
            raise fail(f"A mesh is a text, which `{text!r:.60}` is not.", hint="write sizes, as `4x4x4`")
        part, of, whole = text.partition(" of ")
        if of:
            return replace(cls.parse(part), part_of=cls.parse(whole).axes)
        plain = re.fullmatch(r"\d+(x\d+)*", text.strip())
        named = re.fullmatch(rf"{_AXIS}([, ]\s*{_AXIS})*", text.strip())
        if plain:
            sizes = [_number(n) for n in text.strip().split("x")]
            if len(sizes) > len(DEFAULT_NAMES):
                raise fail(f"`{text[:60]}` has {len(sizes)} axes; at most {len(DEFAULT_NAMES)} are supported.")
            axes = tuple(zip(DEFAULT_NAMES, sizes, strict=False))
        elif named:
            pairs = [part.split("=") for part in re.split(r"[, ]\s*", text.strip())]
            axes = tuple(part for name, sizes in pairs for part in _parts(name, map(_number, sizes.split("x"))))
        else:
            raise fail(
                f"`{text[:60]}` is not a mesh.", hint="write sizes as `4x4x4`, or names and sizes as `node=2,gpu=8`"
            )
        if len(axes) > len(DEFAULT_NAMES):
            raise fail(f"The mesh has {len(axes)} axes; at most {len(DEFAULT_NAMES)} are supported.")
        names = [name for name, _ in axes]
        for name in names:
            if names.count(name) > 1 or (part_of(name) != name and part_of(name) in names):
                raise fail(f"The mesh names the axis `{part_of(name)}` twice.")
            if len(name) > 1 and set(name) <= set(names):
                raise fail(f"The axis `{name}` reads like the axes {', '.join(name)} together.", hint="rename it")
        if any(size == 0 for _, size in axes):
            raise fail(f"`{text[:60]}` has an axis of size 0.", hint="every axis has at least one chip")
        if math.prod(size for _, size in axes) > MAX_CHIPS:
            raise fail(f"The mesh has more than {MAX_CHIPS} chips.")
        return cls(axes)

    @property
    def names(self) -> tuple[str, ...]:
        """Axis names, in order."""
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Axis sizes, in order."""
        return tuple(size for _, size in self.axes)

    @property
    def chips(self) -> int:
        """How many chips the mesh has."""
        return math.prod(self.sizes)

    def size(self, *axes: str) -> int:
        """The product of the sizes of `axes`; 1 for none.

        Raises KeyError for a name that is not an axis.
        """
        sizes = dict(self.axes)
        return math.prod(sizes[a] for a in axes)

    def without(self, axis: str) -> Mesh:
        """The chips at one place of an axis. Of a mesh that has no other axis one chip is left."""
        rest = tuple((name, size) for name, size in self.axes if name != axis)
        return Mesh(rest or (("chip", 1),), self.part_of or self.axes)

    def parts(self, axis: str) -> tuple[str, ...]:
        """The names of the parts of an axis, outer ones first; its own where it is whole, none where it is no axis."""
        return tuple(name for name, _ in self.axes if axis in (name, part_of(name)))

    def in_parts(self, axis: str, sizes: Sequence[int]) -> Mesh:
        """The mesh with an axis in parts of such sizes, outer ones first; those it has had are gone."""
        assert math.prod(sizes) == self.size(*self.parts(axis)), "parts make up the axis"
        axes: dict[str, int] = {}
        for name, size in self.axes:
            axes |= dict(_parts(axis, sizes)) if part_of(name) == axis else {name: size}
        return replace(self, axes=tuple(axes.items()))

    @property
    def divisible(self) -> tuple[str, ...]:
        """The axes that could be in more parts."""
        return tuple(name for name, size in self.axes if any(size % k == 0 for k in range(2, math.isqrt(size) + 1)))

    @property
    def spelled(self) -> tuple[tuple[str, str], ...]:
        """Whole axes with their sizes as text, `2x4` where they are in parts."""
        return tuple(_spelled(self.axes).items())

    def __str__(self) -> str:
        spelled = (_spelled(axes).items() for axes in (self.axes, self.part_of))
        axes, whole = (" ".join(f"{name}={size}" for name, size in some) for some in spelled)
        return f"{axes} of {whole}" if whole else axes


_AXIS = r"[a-z][a-z0-9_]*=\d+(?:x\d+)*"


def part_of(axis: str) -> str:
    """The axis that an axis of a mesh is a part of, itself where it is whole."""
    return axis.partition(":")[0]


def _parts(name: str, sizes: Iterable[int]) -> tuple[tuple[str, int], ...]:
    some = tuple(sizes)
    return ((name, some[0]),) if len(some) == 1 else tuple((f"{name}:{n}", size) for n, size in enumerate(some, 1))


def _spelled(axes: Sequence[tuple[str, int]]) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, size in axes:
        whole = part_of(name)
        out[whole] = f"{out[whole]}x{size}" if whole in out else str(size)
    return out


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 10 else MAX_CHIPS + 1
