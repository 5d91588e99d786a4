"""A layer as a block of the surface language: attention with heads or a latent one, a feed-forward or experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ...ir.dtype import Dtype
from .description import Attention, Block, Experts, FeedForward, Latent, Layer, Norm, Norms, QueryNorm, Rope, Router
from .rotary import number_text

HEADS = "heads"  # the line on which they stand, without a note
WIDE = ("correction",)  # parameters that stay in f32: a rounding would choose other experts
Tensor = tuple[str, str]  # a name, and dims as the language lists them


@dataclass
class Dims:
    """The dims of a model: a name for every size that layers ask for, with a number where a name has another size.

    `declared`: by note the names that stand on one line, and of each its size or its factors."""

    declared: dict[str, dict[str, str]] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)

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

    def lines(self) -> Iterator[tuple[str, str]]:
        """The declarations, a line for each note: products behind their factors, on lines of their own."""
        for note, dims in self.declared.items():
            plain = [f"{name} = {size}" for name, size in dims.items() if "*" not in size]
            products = [f"{name} = {size}" for name, size in dims.items() if "*" in size]
            for text in ([", ".join(plain)] if plain else []) + products:
                yield f"dim {text}", note


@dataclass(frozen=True)
class Part:
    """A part of each query and key: the suffix of its names, its dim, and whether rope turns it."""

    suffix: str
    dim: str
    turned: bool


@dataclass(frozen=True)
class HeadDims:
    """The dims of attention with heads: `heads`, those of keys and values (empty where all heads share one), of a
    head, and the parts of queries and keys."""

    heads: str
    kv: str
    head: str
    parts: tuple[Part, ...]

    def key(self, dim: str) -> str:
        """The dims of a key or value behind those of its token."""
        return f"{self.kv},{dim}" if self.kv else dim


@dataclass(frozen=True)
class LatentDims:
    """The dims of latent attention: of heads, of what queries and of what keys and values are made of, of keys beside
    what is turned, of that, and of values."""

    heads: str
    query: str
    narrow: str
    key: str
    turned: str
    value: str


@dataclass(frozen=True)
class ForwardDims:
    """The dims of a feed-forward: its width; of experts their number, and as groups with so many in each, of which
    the best ones count; and the width of the shared one."""

    width: str
    experts: str = ""
    groups: str = ""
    each: str = ""
    best: str = ""
    shared: str = ""


def attention_dims(attention: Attention | Latent, dims: Dims) -> HeadDims | LatentDims:
    """The dims of attention, declared."""
    if isinstance(attention, Latent):
        a, rope = attention, attention.rope
        return LatentDims(
            dims.name("H", a.heads, HEADS),
            dims.name("A", a.query_rank, "what queries are made of") if a.query_rank else "",
            dims.name("C", a.rank, "what keys and values are made of, and kept as"),
            dims.name("Q", a.head_dim),
            dims.name("R", rope.turned, "of a query or key: what rope turns, beside Q"),
            dims.name("U", a.value_dim),
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
    return HeadDims(heads, kv, head, _parts(attention, head, dims))


def _parts(attention: Attention, head: str, dims: Dims) -> tuple[Part, ...]:
    """The parts of queries and keys: two where rope turns but some of a head."""
    rope = attention.rope
    if rope is None or rope.turned == attention.head_dim:
        return (Part("", head, rope is not None),)
    note = "of a query or key: what rope turns, and the rest"
    turned, rest = dims.name("R", rope.turned, note), dims.name("N", attention.head_dim - rope.turned, note)
    return Part("r", turned, True), Part("n", rest, False)


def forward_dims(forward: FeedForward | Experts, dims: Dims) -> ForwardDims:
    """The dims of a feed-forward, declared."""
    if isinstance(forward, FeedForward):
        return ForwardDims(dims.name("F", forward.width))
    groups, note = forward.router.groups[0], f"experts, of which each token takes {forward.chosen}"
    width = dims.name("T", forward.width, "the width of an expert")
    shared = dims.name("S", forward.shared, "the width of the expert that all tokens take") if forward.shared else ""
    if groups == 1:
        return ForwardDims(width, dims.name("X", forward.count, note), shared=shared)
    grouped = "groups of experts, and how many are in each"
    group, each = dims.name("Z", groups, grouped), dims.name("Y", forward.count // groups, grouped)
    best = dims.name("J", 2, "the experts by which a group is chosen") if forward.router.correction else ""
    return ForwardDims(width, dims.name("X", f"{group} * {each}", note), group, each, best, shared)


def declarations(kind: str, tensors: Iterable[Tensor], dtype: Dtype) -> Iterator[str]:
    """A line for all tensors of the same dims."""
    names: dict[str, list[str]] = {}
    for name, dims in tensors:
        names.setdefault(dims, []).append(name)
    for dims, same in names.items():
        yield f"{kind} {', '.join(same)}: {dtype.value}[{dims}]"


def norm_tensors(norm: Norm, number: str) -> list[Tensor]:
    """The parameters of the norm that bears a number."""
    return [(f"scale{number}", "E"), *([(f"bias{number}", "E")] if norm.bias else [])]


def norm_text(norm: Norm, value: str, number: str) -> str:
    """A norm of a value, with the parameters that bear a number."""
    return _norm(norm, value, f"scale{number}", "E", f", bias{number}" if norm.bias else "")


def _norm(norm: Norm, value: str, scale: str, dim: str, bias: str = "", epsilon: float | None = None) -> str:
    scale = f"1 + {scale}" if norm.offset and scale != "1" else scale
    eps = number_text(norm.epsilon if epsilon is None else epsilon)
    return f"{norm.function}({value}, {scale}{bias}, over={dim}, eps={eps})"


@dataclass(frozen=True)
class LayerText:
    """A layer of a model, its dims, and what it is called."""

    layer: Layer
    norm: Norm
    dtype: Dtype
    attention: HeadDims | LatentDims
    forward: ForwardDims

    def block(self, name: str) -> Iterator[str]:
        """The lines of the layer as a block."""
        layer, dtype = self.layer, self.dtype.value
        yield f"block {name}(x: {dtype}[B,L,E]) -> {dtype}[B,L,E] {{"
        plain = [tensor for tensor in self.parameters() if tensor[0] not in WIDE]
        yield from _indented(declarations("param", plain, self.dtype))
        yield from _indented(declarations("param", [t for t in self.parameters() if t[0] in WIDE], Dtype.F32))
        yield from _indented(declarations("cache", self._caches(), self.dtype))
        yield ""
        yield from _indented(self._serial() if layer.block is Block.SERIAL else self._parallel())
        yield "}"

    def parameters(self) -> list[Tensor]:
        """The parameters of the layer, in the order in which they are declared."""
        norms = [tensor for number in self.layer.scales for tensor in norm_tensors(self.norm, number)]
        return [*norms, *self._attention_tensors(), *self._forward_tensors()]

    def _serial(self) -> Iterator[str]:
        layer = self.layer
        attention, forward = self._attention_sum(), self._forward_sum()
        match layer.norms:
            case Norms.BEFORE:
                yield f"n1 = {norm_text(self.norm, 'x', '1')}"
                yield from self._attention("n1")
                yield f"y = x + {self._scaled(attention)}"
                yield ""
                yield f"n2 = {norm_text(self.norm, 'y', '2')}"
                yield from self._forward("n2")
                yield f"return y + {self._scaled(forward)}"
            case Norms.AFTER:
                yield from self._attention("x")
                yield f"y = x + {norm_text(self.norm, attention, '1')}"
                yield ""
                yield from self._forward("y")
                yield f"return y + {norm_text(self.norm, forward, '2')}"
            case Norms.BOTH:
                yield f"n1 = {norm_text(self.norm, 'x', '1')}"
                yield from self._attention("n1")
                yield f"y = x + {norm_text(self.norm, attention, '2')}"
                yield ""
                yield f"n3 = {norm_text(self.norm, 'y', '3')}"
                yield from self._forward("n3")
                yield f"return y + {norm_text(self.norm, forward, '4')}"

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
        return "d + bd" if forward.bias else "d"

    def _attention_tensors(self) -> Iterator[Tensor]:
        match self.layer.attention, self.attention:
            case Attention() as a, HeadDims() as d:
                yield from _head_tensors(a, d)
            case Latent(), LatentDims() as d:
                yield from _latent_tensors(d)

    def _caches(self) -> Iterator[Tensor]:
        match self.attention:
            case HeadDims() as d:
                for part in d.parts:
                    yield f"keys{part.suffix}", f"B,M,{d.key(part.dim)}"
                yield "values", f"B,M,{d.key(d.head)}"
            case LatentDims() as d:
                yield "latents", f"B,M,{d.narrow}"
                yield "keys", f"B,M,{d.turned}"

    def _attention(self, n: str) -> Iterator[str]:
        match self.layer.attention, self.attention:
            case Attention() as a, HeadDims() as d:
                yield from _head_lines(a, d, self.norm, n)
            case Latent() as a, LatentDims() as d:
                yield from _latent_lines(a, d, n)

    def _forward_tensors(self) -> Iterator[Tensor]:
        match self.layer.forward:
            case FeedForward() as forward:
                yield from _feed_forward_tensors(forward, self.forward.width)
            case Experts() as experts:
                yield from _expert_tensors(experts, self.forward)

    def _forward(self, n: str) -> Iterator[str]:
        match self.layer.forward:
            case FeedForward() as forward:
                yield from _feed_forward_lines(forward, self.forward.width, n)
            case Experts() as experts:
                yield from _router_lines(experts.router, experts.chosen, self.forward, n)
                yield from _expert_lines(experts, self.forward, n)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)


def _columns(d: HeadDims) -> list[Tensor]:
    """The projections into queries, keys and values, with the dims of what each gives."""
    return [
        *((f"q{part.suffix}", f"{d.heads},{part.dim}") for part in d.parts),
        *((f"k{part.suffix}", d.key(part.dim)) for part in d.parts),
        ("v", d.key(d.head)),
    ]


def _head_tensors(a: Attention, d: HeadDims) -> Iterator[Tensor]:
    yield from ((f"W{name}", f"E,{dims}") for name, dims in _columns(d))
    if a.bias:
        yield from ((f"b{name}", dims) for name, dims in _columns(d))
    if a.query_norm is QueryNorm.HEAD:
        yield from ((f"scale_{name}{part.suffix}", part.dim) for part in d.parts for name in "qk")
    elif a.query_norm is QueryNorm.ALL:
        for part in d.parts:
            yield from ((f"scale_q{part.suffix}", f"{d.heads},{part.dim}"), (f"scale_k{part.suffix}", d.key(part.dim)))
    if a.sinks:
        yield "sinks", d.heads
    yield "Wo", f"{d.heads},{d.head},E"
    if a.output_bias:
        yield "bo", "E"


def _head_lines(a: Attention, d: HeadDims, norm: Norm, n: str) -> Iterator[str]:
    made: dict[str, str] = {}  # what becomes of a projection, where something does
    for part in d.parts:
        for name, dims in ((f"q{part.suffix}", f"{d.heads},{part.dim}"), (f"k{part.suffix}", d.key(part.dim))):
            yield f"{name}[B,L,{dims}] = {n}[B,L,E] * W{name}[E,{dims}]"
            made[name] = _positioned(a, d, norm, name, part)
    yield f"v[B,L,{d.key(d.head)}] = {n}[B,L,E] * Wv[E,{d.key(d.head)}]"
    if a.query_norm in (QueryNorm.ALL, QueryNorm.HEAD) and len(d.parts) > 1:
        yield from _normed_parts(a, d, norm)
    final = {name: name if expression == name else f"r{name}" for name, expression in made.items()}
    for name, expression in made.items():
        if expression != name:
            yield f"{final[name]} = {expression}"
    if a.heated is not None:
        yield from _heated(a.heated, final, d)
    for part in d.parts:
        yield f"k{part.suffix}s = append(keys{part.suffix}, {final[f'k{part.suffix}']}, L into M)"
    yield f"vs = append(values, {'v + bv' if a.bias else 'v'}, L into M)"
    for part in d.parts:
        keys = f"k{part.suffix}s[B,M,{d.key(part.dim)}]"
        yield f"s{part.suffix}[B,L,{d.heads},M] = {final[f'q{part.suffix}']}[B,L,{d.heads},{part.dim}] * {keys}"
    scores = " + ".join(f"s{part.suffix}" for part in d.parts)
    yield f"p = softmax({_scored(a, d, scores)}, over=M, mask={_mask(a)}{', sink=sinks' if a.sinks else ''})"
    yield f"o[B,L,{d.heads},{d.head}] = p[B,L,{d.heads},M] * vs[B,M,{d.key(d.head)}]"
    yield f"a[B,L,E] = o[B,L,{d.heads},{d.head}] * Wo[{d.heads},{d.head},E]"


def _heated(heated: tuple[float, float], final: dict[str, str], d: HeadDims) -> Iterator[str]:
    """Queries that grow with the place at which they stand, from a place on."""
    grows, after = map(number_text, heated)
    yield "at: f32 = positions(L into M)"
    yield f"heat = log(floor((at + 1) / {after}) + 1) * {grows} + 1"
    for part in d.parts:
        name = f"q{part.suffix}"
        yield f"h{name} = {final[name]} * heat"
        final[name] = f"h{name}"


def _mask(a: Attention) -> str:
    extra = f", window={a.window}" if a.window is not None else f", chunk={a.chunk}" if a.chunk is not None else ""
    return f"causal(L, M{extra})"


def _scored(a: Attention, d: HeadDims, scores: str) -> str:
    """Scores as they go into the softmax."""
    text = f"({scores})" if len(d.parts) > 1 else scores
    if a.scale is None:
        text = f"{text} / sqrt(size({d.head}))"
    elif a.scale != 1:
        text = f"{text} * {number_text(a.scale)}"
    else:
        text = scores
    return text if a.cap is None else f"tanh(({text}) / {number_text(a.cap)}) * {number_text(a.cap)}"


def _positioned(a: Attention, d: HeadDims, norm: Norm, name: str, part: Part) -> str:
    """A query or key with its bias, its norm and its rotary position."""
    text = f"{name} + b{name}" if a.bias else name
    if a.query_norm in (QueryNorm.ALL, QueryNorm.HEAD) and len(d.parts) > 1:
        text = f"n{name}"
    elif a.query_norm is QueryNorm.HEAD:
        text = _norm(norm, text, f"scale_{name}", part.dim)
    elif a.query_norm is QueryNorm.ALL:
        over = f"{d.heads},{part.dim}" if name[0] == "q" else d.key(part.dim)
        text = _norm(norm, text, f"scale_{name}", f"[{over}]" if "," in over else over)
    if a.rope is not None and part.turned:
        text = rope_text(a.rope, text, part.dim)
    if a.query_norm is QueryNorm.PLAIN:
        text = _norm(Norm("rmsnorm", norm.epsilon), text, "1", part.dim, epsilon=1e-6)
    return text


def _normed_parts(a: Attention, d: HeadDims, norm: Norm) -> Iterator[str]:
    """Queries and keys normed where rope turns but some of each head: the parts have one mean square."""
    every = a.query_norm is QueryNorm.ALL
    for letter in "qk":
        names = [f"{letter}{part.suffix}" for part in d.parts]
        dims = [f"{d.heads},{p.dim}" if letter == "q" else d.key(p.dim) for p in d.parts]
        over = dims if every else [p.dim for p in d.parts]
        values = [f"{name} + b{name}" if a.bias else name for name in names]
        squares = " + ".join(
            f"sum(({v}) * ({v}), over=[{o}])" if "," in o else f"sum(({v}) * ({v}), over={o})"
            for v, o in zip(values, over, strict=True)
        )
        heads = a.heads if letter == "q" else a.kv_heads
        count = heads * a.head_dim if every else a.head_dim
        yield f"root_{letter} = rsqrt(({squares}) / {count} + {number_text(norm.epsilon)})"
        for name, value in zip(names, values, strict=True):
            scale = f"(1 + scale_{name})" if norm.offset else f"scale_{name}"
            yield f"n{name} = ({value}) * root_{letter} * {scale}"


def rope_text(rope: Rope, text: str, dim: str) -> str:
    """A query or key turned by where it stands."""
    scaling = f", scaling={rope.scaling}" if rope.scaling else ""
    return f"rope({text}, over={dim}, at=L into M, base={number_text(rope.base)}{scaling})"


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


def _latent_lines(a: Latent, d: LatentDims, n: str) -> Iterator[str]:
    plain, h = Norm("rmsnorm", a.epsilon), d.heads
    of, wide = (n, "E") if not d.query else ("na", d.query)
    if d.query:
        yield f"ca[B,L,{wide}] = {n}[B,L,E] * Wa[E,{wide}]"
        yield f"na = {_norm(plain, 'ca', 'scale_a', wide)}"
    yield f"q[B,L,{h},{d.key}] = {of}[B,L,{wide}] * Wq[{wide},{h},{d.key}]"
    yield f"qr[B,L,{h},{d.turned}] = {of}[B,L,{wide}] * Wqr[{wide},{h},{d.turned}]"
    yield f"c[B,L,{d.narrow}] = {n}[B,L,E] * Wc[E,{d.narrow}]"
    yield f"kr[B,L,{d.turned}] = {n}[B,L,E] * Wkr[E,{d.turned}]"
    yield f"rqr = {rope_text(a.rope, 'qr', d.turned)}"
    yield f"rkr = {rope_text(a.rope, 'kr', d.turned)}"
    yield f"cs = append(latents, {_norm(plain, 'c', 'scale_c', d.narrow)}, L into M)"
    yield "krs = append(keys, rkr, L into M)"
    key = f"Wk[{d.narrow},{h},{d.key}]"
    yield f"sn[B,L,{h},M] = q[B,L,{h},{d.key}] * {key} * cs[B,M,{d.narrow}]"
    yield f"sr[B,L,{h},M] = rqr[B,L,{h},{d.turned}] * krs[B,M,{d.turned}]"
    yield f"p = softmax((sn + sr) * {number_text(a.scale)}, over=M, mask=causal(L, M))"
    yield f"o[B,L,{h},{d.value}] = p[B,L,{h},M] * cs[B,M,{d.narrow}] * Wv[{d.narrow},{h},{d.value}]"
    yield f"a[B,L,E] = o[B,L,{h},{d.value}] * Wo[{h},{d.value},E]"


def _feed_forward_tensors(forward: FeedForward, width: str) -> Iterator[Tensor]:
    names = ("i", "g") if forward.gated else ("i",)
    yield from ((f"W{name}", f"E,{width}") for name in names)
    yield "Wd", f"{width},E"
    if forward.bias:
        yield from ((f"b{name}", width) for name in names)
        yield "bd", "E"


def _feed_forward_lines(forward: FeedForward, width: str, n: str) -> Iterator[str]:
    names = {"u": "i", "g": "g"} if forward.gated else {"u": "i"}
    for name, weight in names.items():
        yield f"{name}[B,L,{width}] = {n}[B,L,E] * W{weight}[E,{width}]"
    u, g = ((f"{name} + b{weight}" if forward.bias else name) for name, weight in (("u", "i"), ("g", "g")))
    if forward.gated:
        yield f"h = {forward.activation}({g}) * {f'({u})' if forward.bias else u}"
    else:
        yield f"h = {forward.activation}({u})"
    yield f"d[B,L,E] = h[B,L,{width}] * Wd[{width},E]"


def _expert_tensors(experts: Experts, d: ForwardDims) -> Iterator[Tensor]:
    x, t = d.experts, d.width
    yield "Wr", f"E,{x}"
    if experts.router.bias:
        yield "br", x
    if experts.router.correction:
        yield "correction", x
    yield from ((f"W{name}", f"{x},E,{t}") for name in "ig")
    yield "Wd", f"{x},{t},E"
    if experts.bias:
        yield from ((f"b{name}", f"{x},{t}") for name in "ig")
        yield "bd", f"{x},E"
    if experts.shared:
        yield from ((f"Ws{name}", f"E,{d.shared}") for name in "ig")
        yield "Wsd", f"{d.shared},E"
        if experts.shared_gate:
            yield "Ws", "E"


def _router_lines(router: Router, chosen: int, d: ForwardDims, n: str) -> Iterator[str]:
    """The mask `m` of the experts that each token takes, and their weights `w`."""
    x = d.experts
    yield f"r: f32[B,L,{x}] = {n}[B,L,E] * Wr[E,{x}]"
    scores = "r + br" if router.bias else "r"
    yield f"rp = softmax({scores}, over={x})" if router.scores == "softmax" else f"rp = sigmoid({scores})"
    keys = "rp + correction" if router.correction else "rp"
    groups, kept = router.groups
    if groups > 1 and kept < groups:
        yield f"rv = {keys}"
        yield from _group_lines(router, d)
        yield f"m = choose(rv, mg, over={x}, keep={chosen})"
    else:
        yield f"m = choose({keys}, over={x}, keep={chosen})"
    weights = f"m * rp / sum(m * rp, over={x})" if router.normalised else "m * rp"
    yield f"w = {weights}" + (f" * {number_text(router.factor)}" if router.factor != 1 else "")


def _group_lines(router: Router, d: ForwardDims) -> Iterator[str]:
    """The mask `mg` of the groups: those whose two best experts are best together, or of one whose best is."""
    if router.correction:
        yield f"best, ids = top_k(rv, over={d.each}, keep={d.best})"
        yield f"rg = sum(best, over={d.best})"
    else:
        yield f"rg = max(rv, over={d.each})"
    yield f"mg = choose(rg, over={d.groups}, keep={router.groups[1]})"


def _expert_lines(experts: Experts, d: ForwardDims, n: str) -> Iterator[str]:
    """What the experts make of a token, `e`, and what the shared one does, `sd`."""
    x, t = d.experts, d.width
    yield f"t[B,L,{x},E] = {'w' if experts.before else 'm'}[B,L,{x}] * {n}[B,L,E]"
    for name, weight in (("u", "i"), ("g", "g")):
        yield f"{name}[B,L,{x},{t}] = t[B,L,{x},E] * W{weight}[{x},E,{t}]"
        if experts.bias:
            yield f"{name}b[B,L,{x},{t}] = m[B,L,{x}] * b{weight}[{x},{t}]"
    u, g = ("u + ub", "g + gb") if experts.bias else ("u", "g")
    if experts.limit is None:
        yield f"h = {experts.activation}({g}) * {f'({u})' if experts.bias else u}"
    else:
        most = number_text(experts.limit)
        yield f"gl = minimum({g}, {most})"
        yield f"h = (maximum(minimum({u}, {most}), -{most}) + 1) * gl * sigmoid(gl * {number_text(experts.alpha)})"
    yield f"d[B,L,{x},E] = h[B,L,{x},{t}] * Wd[{x},{t},E]"
    if experts.before:
        yield f"e[B,L,E] = d[B,L,{x},E]"
    else:
        yield f"e[B,L,E] = w[B,L,{x}] * d[B,L,{x},E]"
    if experts.bias:
        yield f"eb[B,L,E] = w[B,L,{x}] * bd[{x},E]"
    if experts.shared:
        s = d.shared
        yield f"su[B,L,{s}] = {n}[B,L,E] * Wsi[E,{s}]"
        yield f"sg[B,L,{s}] = {n}[B,L,E] * Wsg[E,{s}]"
        yield f"sh = {experts.activation}(sg) * su"
        yield f"sd[B,L,E] = sh[B,L,{s}] * Wsd[{s},E]"
        if experts.shared_gate:
            yield f"sw[B,L] = {n}[B,L,E] * Ws[E]"
            yield "sdw = sd * sigmoid(sw)"


def text_of(layer: Layer, norm: Norm, dtype: Dtype, dims: Dims) -> LayerText:
    """A layer with its dims declared."""
    forward = forward_dims(layer.forward, dims)
    return LayerText(layer, norm, dtype, attention_dims(layer.attention, dims), forward)
