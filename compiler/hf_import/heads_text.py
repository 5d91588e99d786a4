"""Attention with heads as lines of the surface language: its queries, keys and values, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.record import record
from .description import Attention, Gate, Heat, Norm, QueryNorm, Sharing
from .dims import Dims
from .expert_text import Tensor
from .rotary import number_text, rope_text

CENTRED = (QueryNorm.LAYER, QueryNorm.OWN)  # norms that take the mean off
SCALED = (QueryNorm.HEAD, QueryNorm.ALL, *CENTRED)  # norms that stand before rope
SHARED = (QueryNorm.HEAD, QueryNorm.TURNED, QueryNorm.LAYER)  # that all heads share


@record
class Part:
    """A part of each query and key: the suffix of its names, its dim, and whether rope turns it."""

    suffix: str
    dim: str
    turned: bool


@record
class HeadDims:
    """The dims of attention with heads: `heads`, those of keys and values (empty where all heads share one), of a
    head, of a value, the parts of queries and keys, and how much of the context caches keep."""

    heads: str
    kv: str
    head: str
    value: str
    parts: tuple[Part, ...]
    slots: str

    @property
    def into(self) -> str:
        """Where new entries go: at the end of the context, or where those of the window wrap."""
        return "L into M" if self.slots == "M" else f"L into {self.slots}, of=M"

    def key(self, dim: str) -> str:
        """The dims of a key or value behind those of its token."""
        return f"{self.kv},{dim}" if self.kv else dim


def norm_call(norm: Norm, value: str, scale: str, dim: str, bias: str = "") -> str:
    """A norm of a value over a dim, with a scale by its name, or 1."""
    scale = "1" if not norm.scaled else f"1 + {scale}" if norm.offset and scale != "1" else scale
    return f"{norm.function}({value}, {scale}{bias}, over={dim}, eps={number_text(norm.epsilon)})"


def head_parts(attention: Attention, head: str, dims: Dims) -> tuple[Part, ...]:
    """The parts of queries and keys: two where rope turns but some of a head."""
    rope = attention.rope
    if rope is None or rope.turned == attention.head_dim:
        return (Part("", head, rope is not None),)
    note = "of a query or key: what rope turns, and the rest"
    turned, rest = dims.name("R", rope.turned, note), dims.name("N", attention.head_dim - rope.turned, note)
    return Part("r", turned, True), Part("n", rest, False)


def _columns(a: Attention, d: HeadDims) -> list[Tensor]:
    """The projections into queries, keys and values, with the dims of what each gives."""
    queries = [(f"q{part.suffix}", f"{d.heads},{part.dim}") for part in d.parts]
    if a.sharing is Sharing.BORROWED:
        return queries
    keys = [(f"k{part.suffix}", d.key(part.dim)) for part in d.parts]
    return [*queries, *keys, *([] if a.shared_value else [("v", d.key(d.value))])]


def seen(d: HeadDims) -> Iterator[Tensor]:
    """The keys and values that queries meet, those of this step among them, with their dims."""
    yield from ((f"k{part.suffix}s", f"B,{d.slots},{d.key(part.dim)}") for part in d.parts)
    yield "vs", f"B,{d.slots},{d.key(d.value)}"


def head_tensors(a: Attention, d: HeadDims) -> Iterator[Tensor]:
    """Its parameters."""
    yield from ((f"W{name}", f"E,{dims}") for name, dims in _columns(a, d))
    if a.bias:
        yield from ((f"b{name}", dims) for name, dims in _columns(a, d))
    if a.query_norm in SHARED:
        letters = "q" if a.sharing is Sharing.BORROWED else "qk"
        yield from ((f"scale_{name}{part.suffix}", part.dim) for part in d.parts for name in letters)
    if a.query_norm is QueryNorm.LAYER:
        yield from ((f"bias_{name}{part.suffix}", part.dim) for part in d.parts for name in "qk")
    elif a.query_norm in (QueryNorm.ALL, QueryNorm.OWN):
        for part in d.parts:
            yield from ((f"scale_q{part.suffix}", f"{d.heads},{part.dim}"), (f"scale_k{part.suffix}", d.key(part.dim)))
    if a.sinks:
        yield "sinks", d.heads
    if a.gate is not Gate.NONE:
        yield "Wz", f"E,{d.heads},{d.value}" if a.gate is Gate.ELEMENT else f"E,{d.heads}"
    yield "Wo", f"{d.heads},{d.value},E"
    if a.output_bias:
        yield "bo", "E"


def head_lines(a: Attention, d: HeadDims, norm: Norm, n: str, dtype: str) -> Iterator[str]:
    """What it makes, `a`, of a value of a type by its name, `n`; `norm`: what the norms of the model are like."""
    made: dict[str, str] = {}  # what becomes of a projection, where something does
    borrowed = a.sharing is Sharing.BORROWED
    for part in d.parts:
        both = ((f"q{part.suffix}", f"{d.heads},{part.dim}"), (f"k{part.suffix}", d.key(part.dim)))
        for name, dims in both[:1] if borrowed else both:
            yield f"{name}[B,L,{dims}] = {n}[B,L,E] * W{name}[E,{dims}]"
            made[name] = _positioned(a, d, norm, name, part)
    if not (a.shared_value or borrowed):
        yield f"v[B,L,{d.key(d.value)}] = {n}[B,L,E] * Wv[E,{d.key(d.value)}]"
    if a.query_norm in SCALED and len(d.parts) > 1:
        yield from _normed_parts(a, d, norm)
    final = {name: name if expression == name else f"r{name}" for name, expression in made.items()}
    for name, expression in made.items():
        if expression != name:
            yield f"{final[name]} = {expression}"
    if a.heated is not None:
        yield from _heated(a.heated, final, d, dtype)
    if not borrowed:
        yield from _kept(a, d, norm, final)
    for part in d.parts:
        keys = f"k{part.suffix}s[B,{d.slots},{d.key(part.dim)}]"
        yield f"s{part.suffix}[B,L,{d.heads},{d.slots}] = {final[f'q{part.suffix}']}[B,L,{d.heads},{part.dim}] * {keys}"
    if a.slopes is not None:
        yield from _slope_lines(a.heads, d)
    scores = " + ".join(f"s{part.suffix}" for part in d.parts)
    shares = "p" if a.slopes is None else f"p: {dtype}"  # places are f32, and so are scores to which they are added
    sink = ", sink=sinks" if a.sinks else ""
    yield f"{shares} = softmax({_scored(a, d, scores)}, over={d.slots}, mask={_mask(a, d)}{sink})"
    yield f"o[B,L,{d.heads},{d.value}] = p[B,L,{d.heads},{d.slots}] * vs[B,{d.slots},{d.key(d.value)}]"
    out = "o"
    if a.gate is not Gate.NONE:
        gated = f"{d.heads},{d.value}" if a.gate is Gate.ELEMENT else d.heads
        yield f"z[B,L,{gated}] = {n}[B,L,E] * Wz[E,{gated}]"
        yield "zo = o * sigmoid(z)"
        out = "zo"
    yield f"a[B,L,E] = {out}[B,L,{d.heads},{d.value}] * Wo[{d.heads},{d.value},E]"


def _kept(a: Attention, d: HeadDims, norm: Norm, final: dict[str, str]) -> Iterator[str]:
    """Keys and values as caches keep them. `final`: what has become of keys."""
    for part in d.parts:
        yield f"k{part.suffix}s = append(keys{part.suffix}, {final[f'k{part.suffix}']}, {d.into})"
    value = "k" if a.shared_value else "v"
    value += f" + b{value}" if a.bias else ""
    value = _clipped(norm_call(norm, value, "1", d.head) if a.value_norm else value, a.clip)
    if a.value_scale != 1:
        value = f"{f'({value})' if '+' in value else value} * {number_text(a.value_scale)}"
    yield f"vs = append(values, {value}, {d.into})"


def _clipped(text: str, clip: float | None) -> str:
    """What is left of a value that is cut off."""
    return text if clip is None else f"maximum(minimum({text}, {number_text(clip)}), -{number_text(clip)})"


def _slope_lines(heads: int, d: HeadDims) -> Iterator[str]:
    """What is added to scores. How far back a key stands is counted from the end of the cache: what that adds to all
    scores of a query is nothing to their softmax."""
    even = 1 << (heads.bit_length() - 1)  # the power of two of heads that there are at least
    power = f"(nth + 1) * {number_text(8 / even)}"
    yield f"nth: f32 = positions({d.heads} into {d.slots}) - context({d.slots}) + size({d.heads})"
    if even < heads:
        yield f"further = minimum(maximum(nth - {even - 1}, 0), 1)"
        between = f"((nth - {even}) * 2 + 1) * {number_text(4 / even)}"
        power = f"(1 - further) * ({power}) + further * ({between})"
    yield f"slope = power(2, -({power}))"
    yield f"place: f32 = positions({d.slots} into {d.slots})"
    yield f"far[{d.heads},{d.slots}] = slope[{d.heads}] * place[{d.slots}]"


def heat_lines(heat: Heat) -> Iterator[str]:
    """What queries are multiplied by, `heat`, where they stand."""
    place = f"(at + {heat.first})" if heat.first else "at"
    yield "at: f32 = positions(L into M)"
    yield f"heat = log(floor({place} / {number_text(heat.after)}) + 1) * {number_text(heat.grows)} + 1"


def _heated(heat: Heat, final: dict[str, str], d: HeadDims, dtype: str) -> Iterator[str]:
    """Queries that grow with the place at which they stand, from a place on, in the type of the model."""
    yield from heat_lines(heat)
    for part in d.parts:
        name = f"q{part.suffix}"
        yield f"h{name}: {dtype} = {final[name]} * heat"
        final[name] = f"h{name}"


def _mask(a: Attention, d: HeadDims) -> str:
    extra = f", window={a.window}" if a.window is not None else f", chunk={a.chunk}" if a.chunk is not None else ""
    return f"causal(L, {d.slots}{extra}{'' if d.slots == 'M' else ', of=M'})"


def _scored(a: Attention, d: HeadDims, scores: str) -> str:
    """Scores as they go into the softmax."""
    inside = a.slopes is not None and a.slopes.inside
    scores = f"{scores} + far" if inside else scores
    text = f"({scores})" if "+" in scores else scores
    if a.scale is None:
        text = f"{text} / sqrt(size({d.head}))"
    elif a.scale != 1:
        text = f"{text} * {number_text(a.scale)}"
    else:
        text = scores
    text = f"{text} + far" if a.slopes is not None and not inside else text
    return text if a.cap is None else f"tanh(({text}) / {number_text(a.cap)}) * {number_text(a.cap)}"


def _positioned(a: Attention, d: HeadDims, norm: Norm, name: str, part: Part) -> str:
    """A query or key with its bias, its norm and its rotary position."""
    text = f"{name} + b{name}" if a.bias else name
    if a.query_norm in SCALED and len(d.parts) > 1:
        text = f"n{name}"
    elif a.query_norm in CENTRED:
        bias = f", bias_{name}" if a.query_norm is QueryNorm.LAYER else ""
        text = norm_call(Norm("layernorm", norm.epsilon), text, f"scale_{name}", part.dim, bias)
    elif a.query_norm is QueryNorm.HEAD:
        text = norm_call(norm, text, f"scale_{name}", part.dim)
    elif a.query_norm is QueryNorm.ALL:
        over = f"{d.heads},{part.dim}" if name[0] == "q" else d.key(part.dim)
        text = norm_call(norm, text, f"scale_{name}", f"[{over}]" if "," in over else over)
    text = _clipped(text, a.clip)
    if a.rope is not None and part.turned:
        text = rope_text(a.rope, text, part.dim)
    if a.query_norm is QueryNorm.PLAIN:
        text = norm_call(Norm("rmsnorm", norm.epsilon), text, "1", part.dim)
    elif a.query_norm is QueryNorm.TURNED:
        text = norm_call(norm, text, f"scale_{name}", part.dim)
    return text


def _normed_parts(a: Attention, d: HeadDims, norm: Norm) -> Iterator[str]:
    """Queries and keys normed where rope turns but some of each head: the parts have one mean, and one mean square."""
    every = a.query_norm is QueryNorm.ALL
    for letter in "qk":
        names = [f"{letter}{part.suffix}" for part in d.parts]
        dims = [f"{d.heads},{p.dim}" if letter == "q" else d.key(p.dim) for p in d.parts]
        over = [f"[{dim}]" if "," in dim else dim for dim in (dims if every else [p.dim for p in d.parts])]
        values = [f"({name} + b{name})" if a.bias else name for name in names]
        heads = a.heads if letter == "q" else a.kv_heads
        count = heads * a.head_dim if every else a.head_dim
        if a.query_norm in CENTRED:
            sums = " + ".join(f"sum({v}, over={o})" for v, o in zip(values, over, strict=True))
            yield f"mean_{letter} = ({sums}) / {count}"
            yield from (f"c{name} = {value} - mean_{letter}" for name, value in zip(names, values, strict=True))
            values = [f"c{name}" for name in names]
        squares = " + ".join(f"sum({v} * {v}, over={o})" for v, o in zip(values, over, strict=True))
        yield f"root_{letter} = rsqrt(({squares}) / {count} + {number_text(norm.epsilon)})"
        for name, value in zip(names, values, strict=True):
            scale = f"(1 + scale_{name})" if norm.offset and a.query_norm not in CENTRED else f"scale_{name}"
            shift = f" + bias_{name}" if a.query_norm is QueryNorm.LAYER else ""
            yield f"n{name} = {value} * root_{letter} * {scale}{shift}"
