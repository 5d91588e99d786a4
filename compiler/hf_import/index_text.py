"""An indexer as lines of the surface language: narrow heads that choose the tokens which attention sees."""

from __future__ import annotations

from collections.abc import Iterator

from .description import Indexer
from .expert_text import Tensor
from .rotary import number_text, rope_text


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
