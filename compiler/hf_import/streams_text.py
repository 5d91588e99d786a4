"""Several streams of values in the place of one, as lines of the surface language (Gemma 3n).

A layer works on one stream alone. What all of them come to is predicted before, by a matrix that each token makes for
itself, and corrected after, by how far the prediction of the one was off (alternating updates, arXiv:2301.13310).
Beside attention stands a residual of low rank (arXiv:2411.07501). The stream that layers work on is `x`, the others
are `xs`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.record import record
from .description import Norm, Streams
from .dims import Dims
from .expert_text import Tensor
from .heads_text import norm_call


@record
class StreamDims:
    """The dims of streams: of all, of those beside the one, of these once more, of the model once more, and of the
    residual of low rank."""

    every: str
    others: str
    alias: str
    model: str
    rank: str

    @property
    def beside(self) -> str:
        """The dims of the streams beside the one."""
        return f"B,L,{self.others},E"


def stream_dims(streams: Streams | None, dims: Dims) -> StreamDims | None:
    """The dims of streams, declared; None of a layer that has but one."""
    if streams is None:
        return None
    note = "streams, those that layers do not work on, and these once more"
    every, others = dims.name("A", streams.count, note), dims.name("Y", streams.count - 1, note)
    alias, model = dims.name("Y2", others, note), dims.name("E2", "E", "E once more")
    return StreamDims(every, others, alias, model, dims.name("R", streams.rank, "the rank of a residual"))


def stream_tensors(d: StreamDims) -> Iterator[Tensor]:
    """The parameters by which a layer predicts and corrects, and those of its residual of low rank."""
    yield "scale_m", "E"
    yield "Wm", f"E,{d.every}"
    yield "Poo", f"{d.every}"
    yield "Pof", f"{d.every},{d.others}"
    yield "Pfo", f"{d.every},{d.others}"
    yield "Pff", f"{d.every},{d.others},{d.alias}"
    yield "Co", f"{d.every}"
    yield "Cf", f"{d.every},{d.others}"
    yield "scale_c", "E"
    yield "Wl", f"E,{d.rank}"
    yield "Wlr", f"{d.rank},E"
    yield "scale_l", "E"


def predicted_lines(d: StreamDims, norm: Norm) -> Iterator[str]:
    """What the streams come to, `px` and `pxs`: each itself and a sum of all, by numbers that a token makes of the
    one."""
    a, y = d.every, d.others
    yield from _modal_lines(d, norm, "x", "1")
    yield f"poo[B,L] = m1[B,L,{a}] * Poo[{a}]"
    yield f"pof[B,L,{y}] = m1[B,L,{a}] * Pof[{a},{y}]"
    yield f"pfo[B,L,{y}] = m1[B,L,{a}] * Pfo[{a},{y}]"
    yield f"pff[B,L,{y},{d.alias}] = m1[B,L,{a}] * Pff[{a},{y},{d.alias}]"
    yield f"po[B,L,E] = pof[B,L,{y}] * xs[B,L,{y},E]"
    yield f"pf[B,L,{y},E] = pff[B,L,{y},{d.alias}] * xs[B,L,{d.alias},E]"
    yield "px = x * (poo + 1) + po"
    yield f"pd[B,L,{y},E] = pfo[B,L,{y}] * x[B,L,E]"
    yield "pxs = xs + pf + pd"


def low_rank_lines(d: StreamDims, norm: Norm, n: str) -> Iterator[str]:
    """The residual of low rank, `lx`, of what attention reads, `n`."""
    yield f"l[B,L,{d.rank}] = {n}[B,L,E] * Wl[E,{d.rank}]"
    yield f"lr[B,L,E] = l[B,L,{d.rank}] * Wlr[{d.rank},E]"
    yield f"lx = {n} + {norm_call(norm, 'lr', 'scale_l', 'E')}"


def corrected_lines(d: StreamDims, norm: Norm, z: str) -> Iterator[str]:
    """The streams after a layer has made `z` of the one, `cx` and `cxs`, and what its own embeddings read, `cz`."""
    a, y = d.every, d.others
    yield from _modal_lines(d, norm, z, "2")
    yield f"co[B,L] = m2[B,L,{a}] * Co[{a}]"
    yield f"cf[B,L,{y}] = m2[B,L,{a}] * Cf[{a},{y}]"
    yield f"off = {z} - px"
    yield "cx = px + off * (co + 1)"
    yield f"cd[B,L,{y},E] = cf[B,L,{y}] * off[B,L,E]"
    yield "cxs = pxs + off + cd"
    yield "cz = cx * scale_c"


def _modal_lines(d: StreamDims, norm: Norm, value: str, number: str) -> Iterator[str]:
    """The numbers, one for each stream, of which a token makes what it multiplies streams by."""
    yield f"nm{number} = {norm_call(norm, value, 'scale_m', 'E')} / size(E)"
    yield f"tm{number}[B,L,{d.every}] = nm{number}[B,L,E] * Wm[E,{d.every}]"
    yield f"m{number} = tanh(tm{number})"


def end_tensors(d: StreamDims) -> Iterator[Tensor]:
    """The parameters by which the streams are made of the embedding, and made one again."""
    yield from ((name, f"{d.others},{d.model},E") for name in ("Wsx", "Wsy"))


def parted_lines(d: StreamDims, name: str, x: str, dims: str, weight: str) -> Iterator[str]:
    """The streams beside `x`, each as large as it is: made by `weight` of a value over `dims`, which is the one or the
    streams themselves; they are called `name`."""
    value, lead = dims.split("[")[0], dims.split("[")[1].removesuffix("]")
    whole = ",".join((*(one for one in lead.split(",") if one not in (d.others, "E")), d.others, "E"))
    yield f"t{name}[{whole}] = {value}[{lead.replace('E', d.model)}] * {weight}[{d.others},{d.model},E]"
    size = f"rsqrt(maximum(mean(t{name} * t{name}, over=E), 1e-5))"
    yield f"{name} = t{name} * {size} * sqrt(mean({x} * {x}, over=E))"
