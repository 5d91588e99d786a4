"""A layer as a block of the surface language: attention with heads or a latent one, of which an indexer may choose the
tokens that are seen; a feed-forward or experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...ir.dtype import Dtype
from .description import Attention, Block, Experts, FeedForward, Indexer, Latent, Layer, Norm, Norms, Transformer
from .dims import Dims, ForwardDims, forward_dims
from .expert_text import Tensor, activated, expert_lines, expert_tensors, gated_text, router_lines
from .heads_text import HeadDims, head_lines, head_parts, head_tensors, heat_lines, norm_call
from .quantised import Quantised
from .rotary import number_text, rope_text

HEADS = "heads"  # the line on which they stand, without a note
WIDE = ("correction",)  # parameters that stay in f32: a rounding would choose other experts


@dataclass(frozen=True)
class LatentDims:
    """The dims of latent attention: of heads, of what queries and of what keys and values are made of, of keys beside
    what is turned, of that, and of values; of an indexer its heads, and what is not turned of them."""

    heads: str
    query: str
    narrow: str
    key: str
    turned: str
    value: str
    index_heads: str = ""
    index_rest: str = ""


def attention_dims(attention: Attention | Latent | None, dims: Dims) -> HeadDims | LatentDims | None:
    """The dims of attention, declared."""
    if attention is None:
        return None
    if isinstance(attention, Latent):
        a, rope = attention, attention.rope
        return LatentDims(
            dims.name("H", a.heads, HEADS),
            dims.name("A", a.query_rank, "what queries are made of") if a.query_rank else "",
            dims.name("C", a.rank, "what keys and values are made of, and kept as"),
            dims.name("Q", a.head_dim),
            dims.name("R", rope.turned, "of a query or key: what rope turns, beside Q"),
            dims.name("U", a.value_dim),
            *_index_dims(a.indexer, dims),
        )
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


def _index_dims(indexer: Indexer | None, dims: Dims) -> tuple[str, ...]:
    if indexer is None:
        return ()
    note = "heads of the indexer, and what rope leaves of them"
    return dims.name("I", indexer.heads, note), dims.name("N", indexer.head_dim - indexer.rope.turned, note)


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


@dataclass(frozen=True)
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

    def block(self, name: str) -> Iterator[str]:
        """The lines of the layer as a block."""
        layer, dtype = self.layer, self.dtype.value
        yield f"block {name}(x: {dtype}[B,L,E]) -> {dtype}[B,L,E] {{"
        by_type: dict[Dtype, list[Tensor]] = {self.dtype: []}
        for tensor in self.parameters():
            by_type.setdefault(self._stored_as(tensor[0]), []).append(tensor)
        for stored, tensors in by_type.items():
            yield from _indented(declarations("param", tensors, stored))
        yield from _indented(declarations("cache", self._caches(), self.dtype))
        yield ""
        yield from _indented(self._serial() if layer.block is Block.SERIAL else self._parallel())
        yield "}"

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

    def _serial(self) -> Iterator[str]:
        layer = self.layer
        attention, forward = self._attention_sum(), self._forward_sum()
        match layer.norms:
            case Norms.BEFORE:
                yield from self._normed_before(attention, forward)
            case Norms.AFTER:
                yield from self._attention("x")
                yield f"y = x + {norm_text(self.norm, attention, '1')}"
                yield ""
                yield from self._forward("y")
                yield f"return y + {norm_text(self.norm, forward, '2')}"
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
                yield from _latent_tensors(d)
                if latent.indexer is not None:
                    yield from index_tensors(d.query or "E", d.turned, d.index_heads, d.index_rest)

    def _caches(self) -> Iterator[Tensor]:
        match self.attention:
            case HeadDims() as d:
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
                yield from _latent_lines(a, d, n, self.dtype.value)

    def _forward_tensors(self) -> Iterator[Tensor]:
        match self.layer.forward, self.forward:
            case FeedForward() as forward, ForwardDims() as d:
                yield from _feed_forward_tensors(forward, d.width)
            case Experts() as experts, ForwardDims() as d:
                yield from expert_tensors(experts, d)
        if self.layer.beside is not None and self.beside is not None:
            yield from expert_tensors(self.layer.beside, self.beside, "x")
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


def _latent_tensors(d: LatentDims) -> Iterator[Tensor]:
    wide = d.query or "E"
    if d.query:
        yield "Wa", f"E,{d.query}"
        yield "scale_a", d.query
    yield "Wq", f"{wide},{d.heads},{d.key}"
    yield "Wqr", f"{wide},{d.heads},{d.turned}"
    yield "Wc", f"E,{d.narrow}"
    yield "Wkr", f"E,{d.turned}"
    yield "scale_c", d.narrow
    yield "Wk", f"{d.narrow},{d.heads},{d.key}"
    yield "Wv", f"{d.narrow},{d.heads},{d.value}"
    yield "Wo", f"{d.heads},{d.value},E"


def _latent_lines(a: Latent, d: LatentDims, n: str, dtype: str) -> Iterator[str]:
    plain, h = Norm("rmsnorm", a.epsilon), d.heads
    of, wide = (n, "E") if not d.query else ("na", d.query)
    if d.query:
        yield f"ca[B,L,{wide}] = {n}[B,L,E] * Wa[E,{wide}]"
        yield f"na = {_grown(norm_call(plain, 'ca', 'scale_a', wide), a.grown[0])}"
    yield f"q[B,L,{h},{d.key}] = {of}[B,L,{wide}] * Wq[{wide},{h},{d.key}]"
    yield f"qr[B,L,{h},{d.turned}] = {of}[B,L,{wide}] * Wqr[{wide},{h},{d.turned}]"
    yield f"c[B,L,{d.narrow}] = {n}[B,L,E] * Wc[E,{d.narrow}]"
    yield f"kr[B,L,{d.turned}] = {n}[B,L,E] * Wkr[E,{d.turned}]"
    yield f"rqr = {rope_text(a.rope, 'qr', d.turned)}"
    yield f"rkr = {rope_text(a.rope, 'kr', d.turned)}"
    yield f"cs = append(latents, {_grown(norm_call(plain, 'c', 'scale_c', d.narrow), a.grown[1])}, L into M)"
    yield "krs = append(keys, rkr, L into M)"
    mask, among = "", ""
    if a.indexer is not None:
        yield from index_lines(a.indexer, (of, wide), n, d.turned, d.index_heads, d.index_rest)
        mask, among = "mi[B,L,M] * ", ", among=mi"
    key, q, rqr = f"Wk[{d.narrow},{h},{d.key}]", "q", "rqr"
    if a.heated is not None:
        yield from heat_lines(a.heated)
        yield from (f"h{name}: {dtype} = {name} * heat" for name in (q, rqr))
        q, rqr = "hq", "hrqr"
    yield f"sn[B,L,{h},M] = {mask}{q}[B,L,{h},{d.key}] * {key} * cs[B,M,{d.narrow}]"
    yield f"sr[B,L,{h},M] = {mask}{rqr}[B,L,{h},{d.turned}] * krs[B,M,{d.turned}]"
    yield f"p = softmax((sn + sr) * {number_text(a.scale)}, over=M, mask=causal(L, M){among})"
    yield f"o[B,L,{h},{d.value}] = p[B,L,{h},M] * cs[B,M,{d.narrow}] * Wv[{d.narrow},{h},{d.value}]"
    yield f"a[B,L,E] = o[B,L,{h},{d.value}] * Wo[{h},{d.value},E]"


def _grown(text: str, by: float) -> str:
    return text if by == 1 else f"{text} * {number_text(by)}"


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
    return LayerText(layer, model.norm, model.dtype, attention, forward, beside, model.quantised, second)


def index_tensors(wide: str, turned: str, heads: str, rest: str) -> Iterator[Tensor]:
    """Its parameters. `wide`: the dim of what its queries are made of; `turned`, `rest`: what rope turns of a head, and
    what it leaves; `heads`: their dim."""
    yield "Wiqr", f"{wide},{heads},{turned}"
    yield "Wiqn", f"{wide},{heads},{rest}"
    yield "Wikr", f"E,{turned}"
    yield "Wikn", f"E,{rest}"
    yield from ((f"{name}_ikr", turned) for name in ("scale", "bias"))
    yield from ((f"{name}_ikn", rest) for name in ("scale", "bias"))
    yield "Wiw", f"E,{heads}"


def index_lines(
    indexer: Indexer, queries: tuple[str, str], n: str, turned: str, heads: str, rest: str
) -> Iterator[str]:
    """The mask `mi` of the tokens that a query sees. A key's two parts are normed as one. `queries`: what they are made
    of, and its dim; `n`: what all else is."""
    of, wide = queries
    i, size = heads, indexer.head_dim
    yield f"iqr[B,L,{i},{turned}] = {of}[B,L,{wide}] * Wiqr[{wide},{i},{turned}]"
    yield f"iqn[B,L,{i},{rest}] = {of}[B,L,{wide}] * Wiqn[{wide},{i},{rest}]"
    yield f"ikr[B,L,{turned}] = {n}[B,L,E] * Wikr[E,{turned}]"
    yield f"ikn[B,L,{rest}] = {n}[B,L,E] * Wikn[E,{rest}]"
    yield f"im = (sum(ikr, over={turned}) + sum(ikn, over={rest})) / {size}"
    squares = f"sum(ikr * ikr, over={turned}) + sum(ikn * ikn, over={rest})"
    yield f"iv = rsqrt(({squares}) / {size} - im * im + {number_text(indexer.epsilon)})"
    yield "nikr = (ikr - im) * iv * scale_ikr + bias_ikr"
    yield "nikn = (ikn - im) * iv * scale_ikn + bias_ikn"
    yield f"riqr = {rope_text(indexer.rope, 'iqr', turned)}"
    yield f"rikr = {rope_text(indexer.rope, 'nikr', turned)}"
    yield "ikrs = append(index_r, rikr, L into M)"
    yield "ikns = append(index_n, nikn, L into M)"
    yield f"ir[B,L,{i},M] = riqr[B,L,{i},{turned}] * ikrs[B,M,{turned}]"
    yield f"ip[B,L,{i},M] = iqn[B,L,{i},{rest}] * ikns[B,M,{rest}]"
    yield f"is = relu((ir + ip) * {number_text(size**-0.5)})"
    yield f"iw[B,L,{i}] = {n}[B,L,E] * Wiw[E,{i}]"
    yield f"ws = iw * {number_text(indexer.heads**-0.5)}"
    yield f"ix: f32[B,L,M] = ws[B,L,{i}] * is[B,L,{i},M]"
    yield f"mi = choose(ix, over=M, keep={indexer.keep}, mask=causal(L, M))"
