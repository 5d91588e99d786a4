"""A layer as a block of the surface language: attention with heads or a latent one, of which an indexer may choose the
tokens that are seen; a feed-forward or experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ...ir.dtype import Dtype
from ...ir.record import record
from .description import (
    Attention,
    Block,
    Experts,
    FeedForward,
    Latent,
    Layer,
    Norm,
    Norms,
    Sharing,
    Transformer,
)
from .dims import HEADS, Dims, ForwardDims, forward_dims
from .expert_text import Tensor, activated, expert_lines, expert_tensors, gated_text, router_lines
from .heads_text import HeadDims, head_lines, head_parts, head_tensors, norm_call, seen
from .latent_text import LatentDims, latent_dims, latent_lines, latent_tensors
from .own_text import ARGUMENTS, OwnDims, own_dims, own_lines, own_tensors
from .quantised import Quantised
from .rotary import number_text
from .streams_text import StreamDims, corrected_lines, low_rank_lines, predicted_lines, stream_dims, stream_tensors

WIDE = ("correction",)  # parameters that stay in f32: a rounding would choose other experts


def attention_dims(attention: Attention | Latent | None, dims: Dims) -> HeadDims | LatentDims | None:
    """The dims of attention, declared."""
    if attention is None:
        return None
    if isinstance(attention, Latent):
        return latent_dims(attention, dims)
    head = dims.name("Q", attention.head_dim)
    if attention.grouped:
        note = "kv-heads, and the heads of each"
        kv = dims.name("K", attention.kv_heads, note)
        each = dims.name("G", attention.heads // attention.kv_heads, note)
        heads = dims.name("H", f"{kv} * {each}", HEADS)
    else:
        heads = dims.name("H", attention.heads, HEADS)
        kv = "" if attention.kv_heads == 1 else heads
    value = head if attention.value_dim in (None, attention.head_dim) else dims.name("U", attention.value_dim or 0)
    kept = dims.kept(attention.window or attention.chunk)
    return HeadDims(heads, kv, head, value, head_parts(attention, head, dims), kept)


def declarations(kind: str, tensors: Iterable[Tensor], dtype: Dtype) -> Iterator[str]:
    """A line for all tensors of the same dims."""
    names: dict[str, list[str]] = {}
    for name, dims in tensors:
        names.setdefault(dims, []).append(name)
    for dims, same in names.items():
        yield f"{kind} {', '.join(same)}: {dtype.value}[{dims}]"


def norm_tensors(norm: Norm, number: str) -> list[Tensor]:
    """The parameters of the norm that bears a number."""
    return [(f"scale{number}", "E")] * norm.scaled + [(f"bias{number}", "E")] * norm.bias


def norm_text(norm: Norm, value: str, number: str) -> str:
    """A norm of a value, with the parameters that bear a number."""
    return norm_call(norm, value, f"scale{number}", "E", f", bias{number}" if norm.bias else "")


@record
class LayerText:
    """A layer of a model, its dims, and what it is called."""

    layer: Layer
    norm: Norm
    dtype: Dtype
    attention: HeadDims | LatentDims | None
    forward: ForwardDims | None
    beside: ForwardDims | None
    quantised: Quantised | None = None
    second: LayerText | None = None
    own: OwnDims | None = None
    streams: StreamDims | None = None
    caches: Dtype | None = None

    def block(self, name: str) -> Iterator[str]:
        """The lines of the layer as a block."""
        layer, carried = self.layer, self.carried()
        arguments = ", ".join(f"{name}: {kind}" for name, kind in (*carried, *self.arguments()))
        yield f"block {name}({arguments}) -> {', '.join(kind for _, kind in (*carried, *self.lent()))} {{"
        by_type: dict[Dtype, list[Tensor]] = {self.dtype: []}
        for tensor in self.parameters():
            by_type.setdefault(self._stored_as(tensor[0]), []).append(tensor)
        for stored, tensors in by_type.items():
            yield from _indented(declarations("param", tensors, stored))
        yield from _indented(map(self._kept, declarations("cache", self._caches(), self.caches or self.dtype)))
        yield ""
        *lines, last = self._serial() if layer.block is Block.SERIAL else self._parallel()
        yield from _indented((*lines, ", ".join((last, *(name for name, _ in self.lent())))))
        yield "}"

    def carried(self) -> list[Tensor]:
        """What the layer before it made, and it makes in its place, by names and types."""
        beside = [] if self.streams is None else [("xs", self.streams.beside)]
        return [(name, f"{self.dtype.value}[{dims}]") for name, dims in (("x", "B,L,E"), *beside)]

    def arguments(self) -> list[Tensor]:
        """What it is given beside what the layer before it made, by names and types."""
        own = ARGUMENTS if self.own is not None else ()
        return [*((name, kind.format(dtype=self.dtype.value)) for name, kind in own), *self._seen(Sharing.BORROWED)]

    def lent(self) -> list[Tensor]:
        """What it gives beside what it made: keys and values for later layers, by names and types."""
        return self._seen(Sharing.LENT)

    def _seen(self, sharing: Sharing) -> list[Tensor]:
        match self.layer.attention, self.attention:
            case Attention() as a, HeadDims() as d if a.sharing is sharing:
                return [(name, f"{self.dtype.value}[{dims}]") for name, dims in seen(d)]
        return []

    def parameters(self) -> list[Tensor]:
        """The parameters of the layer, in the order in which they are declared."""
        norms = [tensor for number in self.layer.scales for tensor in norm_tensors(self.norm, number)]
        further = [] if self.second is None else [(f"{name}_2", dims) for name, dims in self.second.parameters()]
        return [*norms, *self._attention_tensors(), *self._forward_tensors(), *further]

    def _stored_as(self, name: str) -> Dtype:
        """The type of a parameter: matrices may be stored in few bits, but for those that choose experts."""
        if name in WIDE:
            return Dtype.F32
        if self.quantised is None or not name.startswith("W") or name in ("Wr", "Ws"):
            return self.dtype
        attention = name in {tensor for tensor, _ in self._attention_tensors()}
        narrow = self.quantised.attention if attention else self.quantised.forward
        return self.quantised.dtype if narrow else self.dtype

    def _kept(self, line: str) -> str:
        """The declaration of a cache, of few bits with a scale for each token and head."""
        return line if self.caches is None else f"{line} * f32[{line.partition('[')[2].rpartition(',')[0]}]"

    def _serial(self) -> Iterator[str]:
        layer = self.layer
        attention, forward = self._attention_sum(), self._forward_sum()
        if self.streams is not None and self.own is not None:
            yield from self._streamed(self.streams, self.own)
            return
        match layer.norms:
            case Norms.BEFORE:
                yield from self._normed_before(attention, forward)
            case Norms.AFTER:
                yield from self._attention("x")
                yield f"y = x + {norm_text(self.norm, attention, '1')}"
                yield ""
                yield from self._forward("y")
                yield f"return y + {norm_text(self.norm, forward, '2')}"
            case Norms.SUM:
                yield from self._attention("x")
                yield f"y0 = x + {attention}"
                yield f"y = {norm_text(self.norm, 'y0', '1')}"
                yield ""
                yield from self._forward("y")
                yield f"y1 = y + {forward}"
                yield f"return {norm_text(self.norm, 'y1', '2')}"
            case Norms.BOTH:
                yield f"n1 = {norm_text(self.norm, 'x', '1')}"
                yield from self._attention("n1")
                yield f"y = x + {self._scaled(norm_text(self.norm, attention, '2'))}"
                yield ""
                yield f"n3 = {norm_text(self.norm, 'y', '3')}"
                yield from self._forward("n3")
                if layer.beside is not None:
                    yield from self._beside(layer.beside, forward)
                    forward = "f1 + f2"
                whole = f"y + {self._scaled(norm_text(self.norm, forward, '4'))}"
                if self.own is not None and layer.forward is not None:
                    yield f"z = {whole}"
                    yield ""
                    yield from own_lines(self.own, layer.forward.activation, self.norm, "z")
                    whole = f"z + {norm_text(self.norm, 'od', '8')}"
                yield f"return ({whole}) * factor" if layer.scaled else f"return {whole}"

    def _normed_before(self, attention: str, forward: str) -> Iterator[str]:
        """The lines of a layer with norms before its parts, which add to what it is given."""
        layer, y = self.layer, "x"
        if layer.attention is not None:
            yield f"n1 = {norm_text(self.norm, 'x', '1')}"
            yield from self._attention("n1")
            y = f"x + {self._scaled(attention)}"
        if layer.forward is None:
            yield f"return {y}"
            return
        if layer.attention is not None:
            yield f"y = {y}"
            yield ""
            y = "y"
        yield f"n2 = {norm_text(self.norm, y, '2')}"
        yield from self._forward("n2")
        y = f"{y} + {self._scaled(forward)}"
        if layer.beside is not None and self.beside is not None and self.second is not None:
            yield ""
            yield from router_lines(layer.beside.router, layer.beside.chosen, self.beside, "n2", self.dtype.value)
            yield from expert_lines(layer.beside, self.beside, "n2", "x")
            yield ""
            yield f"z = {y}"
            idle = " + idle * n2" if layer.beside.idle else ""
            yield from (f"{line}{f' + e{idle}' if line.startswith('return ') else ''}" for line in self._follow())
            return
        if layer.beside is not None and self.beside is not None:
            yield ""
            yield f"n3 = {norm_text(self.norm, 'x', '3')}"
            yield from router_lines(layer.beside.router, layer.beside.chosen, self.beside, "n3", self.dtype.value)
            yield from expert_lines(layer.beside, self.beside, "n3", "x")
            y = f"{y} + e"
        yield f"return {y}"

    def _streamed(self, streams: StreamDims, own: OwnDims) -> Iterator[str]:
        """The lines of a layer that works on one of several streams."""
        assert isinstance(self.layer.forward, FeedForward)
        yield from predicted_lines(streams, self.norm)
        yield ""
        yield f"n1 = {norm_text(self.norm, 'px', '1')}"
        yield from low_rank_lines(streams, self.norm, "n1")
        yield from self._attention("n1")
        yield f"y = (px + {norm_text(self.norm, self._attention_sum(), '2')} + lx) / sqrt(2)"
        yield ""
        yield f"n3 = {norm_text(self.norm, 'y', '3')}"
        yield from self._forward("n3")
        yield f"z = y + {norm_text(self.norm, self._forward_sum(), '4')}"
        yield ""
        yield from corrected_lines(streams, self.norm, "z")
        yield ""
        yield from own_lines(own, self.layer.forward.activation, self.norm, "cz")
        yield f"return cx, cxs + {norm_text(self.norm, 'od', '8')}"

    def _follow(self) -> Iterator[str]:
        """The lines of the layer that follows within this one, of `z`, its names with a number behind them."""
        assert self.second is not None
        lines = list(self.second._serial())
        made = {found[1] for line in lines if (found := re.match(r"(\w+)(?:\[.*?\]|: \w+(?:\[.*?\])?)? = ", line))}
        made |= {name for name, _ in (*self.second.parameters(), *self.second._caches())}
        names = re.compile(rf"\b({'|'.join(sorted(made | {'x'}))})\b")
        yield from (names.sub(lambda found: "z" if found[1] == "x" else f"{found[1]}_2", line) for line in lines)

    def _beside(self, experts: Experts, forward: str) -> Iterator[str]:
        """Experts beside the feed-forward, with norms of their own."""
        assert self.beside is not None
        yield f"f1 = {norm_text(self.norm, forward, '5')}"
        yield ""
        yield f"n6 = {norm_text(self.norm, 'y', '6')}"
        scores = "n6"
        if experts.router.own_norm:
            yield f"nr = {norm_call(self.norm, 'y', 'scale_r', 'E')} / sqrt(size(E))"
            scores = "nr"
        yield from router_lines(experts.router, experts.chosen, self.beside, scores, self.dtype.value)
        yield from expert_lines(experts, self.beside, "n6", "x")
        yield f"f2 = {norm_text(self.norm, 'e', '7')}"

    def _parallel(self) -> Iterator[str]:
        first, second = ("n", "n") if self.layer.block is Block.PARALLEL else ("n1", "n2")
        yield f"{first} = {norm_text(self.norm, 'x', first[1:])}"
        yield from self._attention(first)
        yield ""
        if second != first:
            yield f"{second} = {norm_text(self.norm, 'x', '2')}"
        yield from self._forward(second)
        yield f"return x + {self._attention_sum()} + {self._forward_sum()}"

    def _scaled(self, text: str) -> str:
        factor = self.layer.residual
        if factor == 1:
            return text
        return f"{f'({text})' if '+' in text else text} * {number_text(factor)}"

    def _attention_sum(self) -> str:
        return "a + bo" if isinstance(self.layer.attention, Attention) and self.layer.attention.output_bias else "a"

    def _forward_sum(self) -> str:
        forward = self.layer.forward
        if isinstance(forward, Experts):
            shared = " + sdw" if forward.shared_gate else " + sd" if forward.shared else ""
            return ("e + eb" if forward.bias else "e") + shared
        return "d + bd" if forward is not None and forward.bias else "d"

    def _attention_tensors(self) -> Iterator[Tensor]:
        match self.layer.attention, self.attention:
            case Attention() as a, HeadDims() as d:
                yield from head_tensors(a, d)
            case Latent() as latent, LatentDims() as d:
                yield from latent_tensors(latent, d)

    def _caches(self) -> Iterator[Tensor]:
        match self.attention:
            case HeadDims() as d if not self._seen(Sharing.BORROWED):
                for part in d.parts:
                    yield f"keys{part.suffix}", f"B,{d.slots},{d.key(part.dim)}"
                yield "values", f"B,{d.slots},{d.key(d.value)}"
            case LatentDims() as d:
                yield "latents", f"B,M,{d.narrow}"
                yield "keys", f"B,M,{d.turned}"
                if d.index_heads:
                    yield "index_r", f"B,M,{d.turned}"
                    yield "index_n", f"B,M,{d.index_rest}"
        if self.second is not None:
            yield from ((f"{name}_2", dims) for name, dims in self.second._caches())

    def _attention(self, n: str) -> Iterator[str]:
        match self.layer.attention, self.attention:
            case Attention() as a, HeadDims() as d:
                yield from head_lines(a, d, self.norm, n, self.dtype.value)
            case Latent() as a, LatentDims() as d:
                yield from latent_lines(a, d, n, self.dtype.value)

    def _forward_tensors(self) -> Iterator[Tensor]:
        match self.layer.forward, self.forward:
            case FeedForward() as forward, ForwardDims() as d:
                yield from _feed_forward_tensors(forward, d.width)
            case Experts() as experts, ForwardDims() as d:
                yield from expert_tensors(experts, d)
        if self.layer.beside is not None and self.beside is not None:
            yield from expert_tensors(self.layer.beside, self.beside, "x")
        if self.own is not None:
            yield from own_tensors(self.own)
        if self.streams is not None:
            yield from stream_tensors(self.streams)
        if self.layer.scaled:
            yield "factor", ""

    def _forward(self, n: str) -> Iterator[str]:
        match self.layer.forward, self.forward:
            case FeedForward() as forward, ForwardDims() as d:
                yield from _feed_forward_lines(forward, d.width, n)
            case Experts() as experts, ForwardDims() as d:
                yield from router_lines(experts.router, experts.chosen, d, n, self.dtype.value)
                yield from expert_lines(experts, d, n)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)


def _feed_forward_tensors(forward: FeedForward, width: str) -> Iterator[Tensor]:
    names = ("i", "g") if forward.gated else ("i",)
    yield from ((f"W{name}", f"E,{width}") for name in names)
    yield "Wd", f"{width},E"
    if forward.bias:
        yield from ((f"b{name}", width) for name in names)
        yield "bd", "E"
    if forward.activation == "xielu":
        yield from ((name, "") for name in ("alpha_p", "alpha_n"))


def _feed_forward_lines(forward: FeedForward, width: str, n: str) -> Iterator[str]:
    names = {"u": "i", "g": "g"} if forward.gated else {"u": "i"}
    for name, weight in names.items():
        yield f"{name}[B,L,{width}] = {n}[B,L,E] * W{weight}[E,{width}]"
    u, g = ((f"{name} + b{weight}" if forward.bias else name) for name, weight in (("u", "i"), ("g", "g")))
    if forward.above is not None:
        yield f"gm = {g} - mean({g}, over={width})"
        yield f"gs = sqrt(mean(gm * gm, over={width}))"
        yield f"ga = relu(gm - gs * {number_text(forward.above)})"
        g = "ga"
    if forward.activation == "xielu":
        yield from _xielu_lines(u)
    elif forward.gated:
        yield f"h = {gated_text(forward.activation, g, u, forward.clamp)}"
    else:
        yield f"h = {activated(forward.activation, u)}"
    yield f"d[B,L,E] = h[B,L,{width}] * Wd[{width},E]"


def _xielu_lines(u: str) -> Iterator[str]:
    """xIELU (arXiv:2411.13010, equation 11): what is above 0 is squared, what is below grows as exp does. Code for it
    takes what lies within 1e-6 below 0 as if it were -1e-6, against slopes that are rounded; that is left out here."""
    for name in ("alpha_p", "alpha_n"):
        yield f"s{name} = maximum({name}, 0) + log(1 + exp(-abs({name})))"
    yield f"below = minimum({u}, 0)"
    yield f"above = maximum({u}, 0)"
    yield f"h = salpha_p * above * above + (salpha_n + 0.5) * (exp(below) - 1 - below) + 0.5 * ({u})"


def text_of(layer: Layer, model: Transformer, dims: Dims) -> LayerText:
    """A layer of a model, with its dims declared."""
    forward = forward_dims(layer.forward, dims)
    attention = attention_dims(layer.attention, dims)
    beside = forward_dims(layer.beside, dims)
    second = None if layer.second is None else text_of(layer.second, model, dims)
    own = own_dims(layer.own, model.own_vocabulary, model.vocabulary, dims)
    streams = stream_dims(layer.streams, dims)
    parts = attention, forward, beside, model.quantised, second, own, streams
    return LayerText(layer, model.norm, model.dtype, *parts, model.caches)
