"""A Transformer as a model in the surface language, laid out to be read."""

from __future__ import annotations

from collections.abc import Iterator

from .transformer import Transformer
from .write_block import block_lines, declarations, norm, norm_tensors

BATCH, CONTEXT, CALLS = 64, 2048, 64  # what the phases are made for, to be changed at will


def model_text(model: Transformer, title: str) -> str:
    """The text of a model called `title`."""
    parts = (_head(model, title), _dims(model), _shared(model), block_lines(model), _main(model), _phases(model))
    return "\n".join("".join(f"{line}\n" for line in part) for part in parts)


def _head(model: Transformer, title: str) -> Iterator[str]:
    yield f"# Imported from a Hugging Face config of architecture {model.architecture}."
    if model.rope is not None:
        yield "# Rope turns neighbours (2i, 2i+1) of a head; the checkpoint keeps such a pair half a head apart."
    if model.norm.offset:
        yield "# The scales of norms are less 1, as in the checkpoint."
    yield f'model "{title}"'


def _dims(model: Transformer) -> Iterator[str]:
    yield _noted("dim B, L, M", "bound by each phase; M counts the context after this step's tokens")
    yield f"dim E = {model.model_dim}, F = {model.ff_dim}, Q = {model.head_dim}, V = {model.vocabulary}"
    if model.grouped:
        yield _noted(
            f"dim K = {model.kv_heads}, G = {model.heads // model.kv_heads}", "kv-heads, and the heads of each"
        )
        yield "dim H = K * G"
    else:
        yield f"dim H = {model.heads}"
    if model.rope is not None and model.rope.turned < model.head_dim:
        still = model.head_dim - model.rope.turned
        yield _noted(f"dim R = {model.rope.turned}, N = {still}", "of a query or key: what rope turns, and the rest")
    if model.places:
        yield _noted(f"dim P = {model.places}", "places that have a learned position")


def _shared(model: Transformer) -> Iterator[str]:
    table = f"param table: {model.dtype.value}[V,E]"
    yield _noted(table, "tied: it embeds tokens, and scores the next ones") if model.tied else table
    more = [("places", "P,E")] if model.places else []
    more += [] if model.tied else [("Wu", "E,V")]
    more += [("bu", "V")] if model.biases.head else []
    yield from declarations("param", more, model.dtype)


def _main(model: Transformer) -> Iterator[str]:
    yield "main(tokens: i32[B,L]) {"
    yield from (f"  {line}" for line in declarations("param", norm_tensors(model, ""), model.dtype))
    yield ""
    if model.places:
        yield "  at = positions(L into M)"
    x = "take(table, tokens, over=V)"
    x += " * sqrt(size(E))" if model.scaled_embedding else ""
    x += " + take(places, at, over=P)" if model.places else ""
    yield f"  x = {x}"
    yield f"  y = repeat {model.layers} layer(x)"
    yield "  " + _noted("z = last(y, over=L)", "its next token is wanted", 30)
    yield f"  n = {norm(model, 'z', '')}"
    weight = "table[V,E]" if model.tied else "Wu[E,V]"
    if model.biases.head:
        yield f"  t[B,V] = n[B,E] * {weight}"
        yield "  logits = t + bu"
    else:
        yield f"  logits[B,V] = n[B,E] * {weight}"
    yield "  return argmax(logits, over=V)"
    yield "}"


def _phases(model: Transformer) -> Iterator[str]:
    context = min(model.context, CONTEXT)
    yield f"phase prefill {{ B = {BATCH}, L = {context}, M = {context} }}"
    yield f"phase decode  {{ B = {BATCH}, L = 1, M = {context}, calls = {CALLS} }}"


def _noted(text: str, comment: str, width: int = 32) -> str:
    return f"{text:<{width}}# {comment}"
