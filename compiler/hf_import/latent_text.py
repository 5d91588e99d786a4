"""Latent attention as lines of the surface language, and an indexer that chooses the tokens that are seen."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.record import record
from .description import Indexer, Latent, Norm
from .dims import HEADS, Dims
from .expert_text import Tensor
from .heads_text import heat_lines, norm_call
from .rotary import number_text, rope_text


@record
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


def latent_dims(a: Latent, dims: Dims) -> LatentDims:
    """The dims of latent attention, declared."""
    return LatentDims(
        dims.name("H", a.heads, HEADS),
        dims.name("A", a.query_rank, "what queries are made of") if a.query_rank else "",
        dims.name("C", a.rank, "what keys and values are made of, and kept as"),
        dims.name("Q", a.head_dim),
        dims.name("R", a.rope.turned, "of a query or key: what rope turns, beside Q"),
        dims.name("U", a.value_dim),
        *_index_dims(a.indexer, dims),
    )


def _index_dims(indexer: Indexer | None, dims: Dims) -> tuple[str, ...]:
    if indexer is None:
        return ()
    note = "heads of the indexer, and what rope leaves of them"
    return dims.name("I", indexer.heads, note), dims.name("N", indexer.head_dim - indexer.rope.turned, note)


def latent_tensors(a: Latent, d: LatentDims) -> Iterator[Tensor]:
    """Its parameters, and those of its indexer."""
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
    if a.indexer is not None:
        yield from index_tensors(d.query or "E", d.turned, d.index_heads, d.index_rest)


def latent_lines(a: Latent, d: LatentDims, n: str, dtype: str) -> Iterator[str]:
    """What it makes, `a`, of a value of a type by its name, `n`."""
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
        yield from index_lines(a.indexer, (of, wide), n, d, dtype)
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


def index_lines(indexer: Indexer, queries: tuple[str, str], n: str, d: LatentDims, dtype: str) -> Iterator[str]:
    """The mask `mi` of the tokens that a query sees, of the type of all that it is multiplied with. A key's two parts
    are normed as one; what chooses is in f32, as it is where the model was published, and nothing after it. `queries`:
    what they are made of, and its dim; `n`: what all else is."""
    of, wide = queries
    i, turned, rest, size = d.index_heads, d.turned, d.index_rest, indexer.head_dim
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
    yield f"ir: f32[B,L,{i},M] = riqr[B,L,{i},{turned}] * ikrs[B,M,{turned}]"
    yield f"ip: f32[B,L,{i},M] = iqn[B,L,{i},{rest}] * ikns[B,M,{rest}]"
    yield f"is = relu((ir + ip) * {number_text(size**-0.5)})"
    yield f"iw[B,L,{i}] = {n}[B,L,E] * Wiw[E,{i}]"
    yield f"ws: f32 = iw * {number_text(indexer.heads**-0.5)}"
    yield f"ix: f32[B,L,M] = ws[B,L,{i}] * is[B,L,{i},M]"
    yield f"mi: {dtype} = choose(ix, over=M, keep={indexer.keep}, mask=causal(L, M))"
