"""The dims of a model that is written: a name for every size, and those of its feed-forwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...ir.record import record
from .description import Experts, FeedForward

HEADS = "heads"  # the line on which they stand, without a note


@dataclass
class Dims:
    """The dims of a model: a name for every size that layers ask for, with a number where a name has another size.

    `context`: the tokens that phases are written for. `declared`: by note the names that stand on one line, and of each
    its size or its factors. `slots`: dims that phases bind, each with the window that its caches keep, or all of a
    shorter context."""

    context: int = 0
    declared: dict[str, dict[str, str]] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def name(self, wanted: str, size: int | str, note: str = "") -> str:
        """The name of a dim of a size, or of a product, like the one that is wanted; `note` says what it is."""
        number, name = 1, wanted
        while self.sizes.get(name, str(size)) != str(size):
            number += 1
            name = f"{wanted}{number}"
        if name not in self.sizes:
            self.sizes[name] = str(size)
            self.declared.setdefault(note, {})[name] = str(size)
        return name

    def kept(self, window: int | None) -> str:
        """The dim of caches that keep a window or chunk; of those that keep the whole context, where there is none."""
        if window is None:
            return "M"
        known = {size: name for name, size in self.slots.items()}
        name = known.get(window, "W" if not known else f"W{len(known) + 1}")
        self.slots[name] = window
        return name

    def lines(self) -> Iterator[tuple[str, str]]:
        """The declarations, a line for each note: products behind their factors, on lines of their own."""
        known, waiting = set[str](), list[tuple[str, str, str]]()
        for note, dims in self.declared.items():
            plain = [f"{name} = {size}" for name, size in dims.items() if "*" not in size]
            if plain:
                yield f"dim {', '.join(plain)}", note
            known |= {name for name, size in dims.items() if "*" not in size}
            waiting += [(name, size, note) for name, size in dims.items() if "*" in size]
            for product in [one for one in waiting if known.issuperset(one[1].split(" * "))]:
                name, size, own = product
                yield f"dim {name} = {size}", own
                waiting.remove(product)


@record
class ForwardDims:
    """The dims of a feed-forward: its width; of experts their number, and as groups with so many in each, of which
    the best ones, or those of all, count; and the width of the shared one. `whole`: of experts, and of those that do
    nothing, together."""

    width: str
    experts: str = ""
    groups: str = ""
    each: str = ""
    best: str = ""
    shared: str = ""
    whole: str = ""


def forward_dims(forward: FeedForward | Experts | None, dims: Dims) -> ForwardDims | None:
    """The dims of a feed-forward, declared."""
    if forward is None:
        return None
    if isinstance(forward, FeedForward):
        return ForwardDims(dims.name("F", forward.width))
    groups, note = forward.router.groups[0], f"experts, of which each token takes {forward.chosen}"
    width = dims.name("T", forward.width, "the width of an expert")
    shared = dims.name("S", forward.shared, "the width of the expert that all tokens take") if forward.shared else ""
    if groups == 1:
        pair = dims.name("J", 2, "the best two experts of a token") if forward.router.near is not None else ""
        own = dims.name("X", forward.count, note)
        idle = "experts, and those that leave a token as it is"
        whole = dims.name("Y", forward.count + forward.idle, idle) if forward.idle else ""
        return ForwardDims(width, own, best=pair, shared=shared, whole=whole)
    grouped = "groups of experts, and how many are in each"
    group, each = dims.name("Z", groups, grouped), dims.name("Y", forward.count // groups, grouped)
    best = dims.name("J", 2, "the experts by which a group is chosen") if forward.router.correction else ""
    return ForwardDims(width, dims.name("X", f"{group} * {each}", note), group, each, best, shared)
