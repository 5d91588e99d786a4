"""A Transformer as a model in the surface language, its block first, laid out to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...ir.dtype import Dtype
from .common import Block, Transformer
from .rotary import number_text

Tensor = tuple[str, str]  # a name, and dims as the language lists them


@dataclass(frozen=True)
class Part:
    """A part of each query and key: the suffix of its names, its dim, and whether rope turns it."""

    suffix: str
    dim: str
    turned: bool


def block_lines(model: Transformer) -> Iterator[str]:
    """The lines of `block layer`."""
    dtype = model.dtype.value
    yield f"block layer(x: {dtype}[B,L,E]) -> {dtype}[B,L,E] {{"
    yield from _indented(declarations("param", _parameters(model), model.dtype))
    yield from _indented(declarations("cache", _caches(model), model.dtype))
    yield ""
    first, second = ("n1", "n2") if model.norms == 2 else ("n", "n")
    yield from _indented([f"{first} = {norm(model, 'x', first[1:])}"])
    yield from _indented(_attention(model, first))
    attention = "x + a + bo" if model.biases.output else "x + a"
    forward = "d + bd" if model.biases.feed_forward else "d"
    if model.block is Block.SERIAL:
        yield f"  y = {attention}"
    yield ""
    if model.norms == 2:
        yield f"  {second} = {norm(model, 'y' if model.block is Block.SERIAL else 'x', '2')}"
    yield from _indented(_feed_forward(model, second))
    yield f"  return {'y' if model.block is Block.SERIAL else attention} + {forward}"
    yield "}"


def declarations(kind: str, tensors: Iterable[Tensor], dtype: Dtype) -> Iterator[str]:
    """A line for all tensors of the same dims."""
    names: dict[str, list[str]] = {}
    for name, dims in tensors:
        names.setdefault(dims, []).append(name)
    for dims, same in names.items():
        yield f"{kind} {', '.join(same)}: {dtype.value}[{dims}]"


def norm_tensors(model: Transformer, number: str) -> list[Tensor]:
    """The parameters of the norm that bears a number."""
    return [(f"scale{number}", "E"), *([(f"bias{number}", "E")] if model.norm.bias else [])]


def norm(model: Transformer, value: str, number: str) -> str:
    """A norm of a value, with the parameters that bear a number."""
    bias = f", bias{number}" if model.norm.bias else ""
    return _norm(model, value, f"scale{number}", "E", bias)


def _norm(model: Transformer, value: str, scale: str, dim: str, bias: str = "") -> str:
    scale = f"1 + {scale}" if model.norm.offset else scale
    return f"{model.norm.function}({value}, {scale}{bias}, over={dim}, eps={number_text(model.norm.epsilon)})"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _parts(model: Transformer) -> list[Part]:
    """The parts of queries and keys: two where rope turns but some of a head."""
    if model.rope is None or model.rope.turned == model.head_dim:
        return [Part("", "Q", model.rope is not None)]
    return [Part("r", "R", True), Part("n", "N", False)]


def _kv(model: Transformer, dim: str) -> str:
    """The dims of a key or value behind those of its token: its head, where it has one, and `dim`."""
    if model.kv_heads == 1:
        return dim
    return f"{'K' if model.grouped else 'H'},{dim}"


def _parameters(model: Transformer) -> Iterator[Tensor]:
    numbers = ("1", "2") if model.norms == 2 else ("",)
    for number in numbers:
        yield from norm_tensors(model, number)
    columns = [
        *((f"q{part.suffix}", f"H,{part.dim}") for part in _parts(model)),
        *((f"k{part.suffix}", _kv(model, part.dim)) for part in _parts(model)),
        ("v", _kv(model, "Q")),
    ]
    yield from ((f"W{name}", f"E,{dims}") for name, dims in columns)
    if model.biases.qkv:
        yield from ((f"b{name}", dims) for name, dims in columns)
    if model.qk_norm:
        yield from (("scale_q", "Q"), ("scale_k", "Q"))
    yield "Wo", "H,Q,E"
    if model.biases.output:
        yield "bo", "E"
    names = ("i", "g") if model.gated else ("i",)
    yield from ((f"W{name}", "E,F") for name in names)
    yield "Wd", "F,E"
    if model.biases.feed_forward:
        yield from ((f"b{name}", "F") for name in names)
        yield "bd", "E"


def _caches(model: Transformer) -> Iterator[Tensor]:
    for part in _parts(model):
        yield f"keys{part.suffix}", f"B,M,{_kv(model, part.dim)}"
    yield "values", f"B,M,{_kv(model, 'Q')}"


def _attention(model: Transformer, n: str) -> Iterator[str]:
    parts = _parts(model)
    made: dict[str, str] = {}  # what becomes of a projection, where something does
    for part in parts:
        for name, dims in ((f"q{part.suffix}", f"H,{part.dim}"), (f"k{part.suffix}", _kv(model, part.dim))):
            yield f"{name}[B,L,{dims}] = {n}[B,L,E] * W{name}[E,{dims}]"
            made[name] = _positioned(model, name, part)
    yield f"v[B,L,{_kv(model, 'Q')}] = {n}[B,L,E] * Wv[E,{_kv(model, 'Q')}]"
    final = {name: name if expression == name else f"r{name}" for name, expression in made.items()}
    for name, expression in made.items():
        if expression != name:
            yield f"{final[name]} = {expression}"
    for part in parts:
        yield f"k{part.suffix}s = append(keys{part.suffix}, {final[f'k{part.suffix}']}, L into M)"
    yield f"vs = append(values, {'v + bv' if model.biases.qkv else 'v'}, L into M)"
    for part in parts:
        keys = f"k{part.suffix}s[B,M,{_kv(model, part.dim)}]"
        yield f"s{part.suffix}[B,L,H,M] = {final[f'q{part.suffix}']}[B,L,H,{part.dim}] * {keys}"
    scores = " + ".join(f"s{part.suffix}" for part in parts)
    if model.scaled_scores:
        scores = f"{scores if len(parts) == 1 else f'({scores})'} / sqrt(size(Q))"
    yield f"p = softmax({scores}, over=M, mask=causal(L, M))"
    yield f"o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,{_kv(model, 'Q')}]"
    yield "a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]"


def _positioned(model: Transformer, name: str, part: Part) -> str:
    """A query or key with its bias, its norm and its rotary position."""
    text = f"{name} + b{name}" if model.biases.qkv else name
    if model.qk_norm:
        text = _norm(model, text, f"scale_{name}", part.dim)
    if model.rope is not None and part.turned:
        scaling = f", scaling={model.rope.scaling}" if model.rope.scaling else ""
        text = f"rope({text}, over={part.dim}, at=L into M, base={number_text(model.rope.base)}{scaling})"
    return text


def _feed_forward(model: Transformer, n: str) -> Iterator[str]:
    names = {"u": "i", "g": "g"} if model.gated else {"u": "i"}
    for name, weight in names.items():
        yield f"{name}[B,L,F] = {n}[B,L,E] * W{weight}[E,F]"
    u, g = ((f"{name} + b{weight}" if model.biases.feed_forward else name) for name, weight in (("u", "i"), ("g", "g")))
    if model.gated:
        yield f"h = {model.activation}({g}) * {f'({u})' if model.biases.feed_forward else u}"
    else:
        yield f"h = {model.activation}({u})"
    yield "d[B,L,E] = h[B,L,F] * Wd[F,E]"


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
