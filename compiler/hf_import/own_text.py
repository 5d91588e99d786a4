"""Embeddings that a layer has for itself, as lines of the surface language (Gemma 3n and 4).

Each token has a narrow vector in every layer, of a table of that layer and of what the model's own embedding is
projected to. A gate that reads what the layer made is multiplied into it, and what comes out is added.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.record import record
from .description import Norm
from .dims import Dims
from .expert_text import Tensor, activated
from .heads_text import norm_call

ARGUMENTS = (("tokens", "i32[B,L]"), ("first", "{dtype}[B,L,E]"))  # what a layer is given for them
SHARED = "scale_o"  # the scale of a norm that all layers share


@record
class OwnDims:
    """The dims of such embeddings: how wide they are, and of how many tokens there are some."""

    width: str
    vocabulary: str


def own_dims(width: int, vocabulary: int, whole: int, dims: Dims) -> OwnDims | None:
    """The dims, declared, of embeddings so wide of so many tokens, of `whole` that the model has; None of a layer that
    has none."""
    if not width:
        return None
    name = dims.name("D", width, "the width of embeddings that a layer has for itself")
    return OwnDims(name, "V" if vocabulary == whole else dims.name("V2", vocabulary, "tokens that have such"))


def own_tensors(d: OwnDims) -> Iterator[Tensor]:
    """Their parameters: the table, the projection of the model's embedding, the gate, and the way back."""
    yield "own", f"{d.vocabulary},{d.width}"
    yield "Wop", f"E,{d.width}"
    yield "Wog", f"E,{d.width}"
    yield "Wod", f"{d.width},E"


def own_lines(d: OwnDims, activation: str, norm: Norm, z: str) -> Iterator[str]:
    """What they make, `od`, of what the layer made, `z`."""
    yield f"op[B,L,{d.width}] = first[B,L,E] * Wop[E,{d.width}]"
    yield f"on = {norm_call(norm, 'op / sqrt(size(E))', SHARED, d.width)}"
    yield f"oe = take(own, tokens, over={d.vocabulary}) * sqrt(size({d.width}))"
    yield f"og[B,L,{d.width}] = {z}[B,L,E] * Wog[E,{d.width}]"
    yield f"oh = {activated(activation, 'og')} * (on + oe) / sqrt(2)"
    yield f"od[B,L,E] = oh[B,L,{d.width}] * Wod[{d.width},E]"
