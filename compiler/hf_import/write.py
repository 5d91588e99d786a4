"""A Transformer as a model in the surface language, its layers first, laid out to be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...ir.record import record
from .description import Attention, Experts, FeedForward, Latent, Layer, Run, Sharing, Transformer, runs_of
from .dims import HEADS, Dims
from .layer_text import LayerText, declarations, norm_tensors, norm_text, text_of
from .own_text import ARGUMENTS, SHARED
from .rotary import number_text
from .streams_text import end_tensors, parted_lines

FIRST = "first"  # the embedding of the model, where layers are given it
BATCH, CONTEXT, CALLS = 64, 2048, 64  # what the phases are made for, to be changed at will


@record
class Placed:
    """A layer where a program has it: the prefix of its parameters, and as which layers of the model it runs: the
    first, and how many further on each counter of the repeats around it goes, outermost first."""

    kind: Layer
    prefix: str
    first: int
    strides: tuple[int, ...]


class Model:
    """The text of a model: its blocks, by what they are, and where they stand."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.dims = Dims(_context(model))
        self.dims.name("E", model.model_dim)
        self.texts: dict[Layer, LayerText] = {kind: text_of(kind, model, self.dims) for kind in model.kinds}
        self.streams = self.texts[model.layers[0]].streams
        narrow, note = model.embedding_width, "how wide embeddings are"
        self.narrow = self.dims.name("C", narrow, note) if narrow else "E"
        self.dims.name("V", model.vocabulary)
        if model.places:
            self.dims.name("P", model.places, "places that have a learned position")
        self.names = names_of(model.kinds)
        self.groups: dict[tuple[Layer, ...], str] = {}
        for run in runs_of(model.layers):
            self._name_groups(run)

    def placed(self) -> Iterator[Placed]:
        """Every layer that the text calls, in order."""
        yield from self._placed(runs_of(self.model.layers), "", 0, ())

    def _placed(self, runs: Sequence[Run], prefix: str, first: int, strides: tuple[int, ...]) -> Iterator[Placed]:
        called: Counter[str] = Counter()
        for run in runs:
            own, inner = self._called(run), strides + ((len(run.kinds),) if self._repeats(run) else ())
            called[own] += 1
            path = f"{prefix}{own}" + (f":{called[own]}" if called[own] > 1 else "") + "."
            if len(run.kinds) == 1:
                yield Placed(run.kinds[0], path, first + run.first, inner)
            else:
                yield from self._placed(runs_of(run.kinds), path, first + run.first, inner)

    def text(self, title: str) -> str:
        """The text of the model, called `title`."""
        blocks = [text.block(self.names[kind]) for kind, text in self.texts.items()]
        groups = [self._group(kinds, name) for kinds, name in self.groups.items()]
        parts = (self._head(title), self._dims(), self._shared(), *blocks, *groups, self._main(), self._phases())
        return "\n".join("".join(f"{line}\n" for line in part) for part in parts)

    def _name_groups(self, run: Run) -> None:
        if len(run.kinds) == 1:
            return
        for inner in runs_of(run.kinds):
            self._name_groups(inner)
        number = len(self.groups) + 1
        self.groups.setdefault(run.kinds, "group" if number == 1 else f"group{number}")

    def _repeats(self, run: Run) -> bool:
        """Whether a run is a repeat; a model of one layer has one, too."""
        return run.times > 1 or len(self.model.layers) == 1

    def _called(self, run: Run) -> str:
        return self.names[run.kinds[0]] if len(run.kinds) == 1 else self.groups[run.kinds]

    def _group(self, kinds: Sequence[Layer], name: str) -> Iterator[str]:
        """A pattern of layers as a block."""
        carried = self.texts[kinds[0]].carried()
        arguments = ", ".join(f"{one}: {kind}" for one, kind in (*carried, *self._given(kinds).items()))
        yield f"block {name}({arguments}) -> {', '.join(kind for _, kind in carried)} {{"
        yield from self._calls(runs_of(kinds), "x", "y")
        yield f"  return {', '.join(self._streams('y'))}"
        yield "}"

    def _calls(self, runs: Sequence[Run], x: str, last: str, first: str = FIRST) -> Iterator[str]:
        """The lines that call runs of layers one after the other, the result of the last called `last`. `first`: what
        the embedding of the model is called."""
        for number, run in enumerate(runs, 1):
            result = last if number == len(runs) else f"y{number}"
            repeat = f"repeat {run.times} " if self._repeats(run) else ""
            given = ", ".join((*self._streams(x), *(first if one == FIRST else one for one in self._given(run.kinds))))
            lent = [f"{name}_{_shared_as(kind)}" for kind in run.kinds for name, _ in self.texts[kind].lent()]
            yield f"  {', '.join((*self._streams(result), *lent))} = {repeat}{self._called(run)}({given})"
            x = result

    def _streams(self, name: str) -> tuple[str, ...]:
        """What layers carry on, by the name of the one stream: it, and the others where there are some."""
        return (name,) if self.streams is None else (name, f"{name}s")

    def _given(self, kinds: Sequence[Layer]) -> dict[str, str]:
        """What layers of these kinds are given beside what the one before them made, with its types: keys and values
        by the kind of attention that lends them."""
        passed = {name for name, _ in ARGUMENTS}
        return {
            name if name in passed else f"{name}_{_shared_as(kind)}": type_
            for kind in kinds
            for name, type_ in self.texts[kind].arguments()
        }

    def _head(self, title: str) -> Iterator[str]:
        model = self.model
        yield f"# Imported from a Hugging Face config of architecture {model.architecture}."
        ropes = [layer.attention.rope for layer in model.kinds if layer.attention is not None]
        if any(rope is not None and rope.halves for rope in ropes):
            yield "# Rope turns neighbours (2i, 2i+1) of a head; the checkpoint keeps such a pair half a head apart."
        if model.quantised is not None:
            yield "# Matrices are stored as codes with scales, as in the checkpoint."
        if model.caches is not None:
            yield "# Keys and values are kept in 8 bits, as the config says, with a scale for each token and head."
        if model.norm.offset:
            yield "# The scales of norms are less 1, as in the checkpoint."
        yield f'model "{title}"'

    def _dims(self) -> Iterator[str]:
        bound = ", ".join(("B, L, M", *self.dims.slots))
        wraps = f", {', '.join(self.dims.slots)} those of a window" if self.dims.slots else ""
        yield _noted(f"dim {bound}", f"bound by each phase; M counts the context after this step's tokens{wraps}")
        for text, note in self.dims.lines():
            yield text if note in ("", HEADS) else _noted(text, note)

    def _shared(self) -> Iterator[str]:
        model = self.model
        table = f"param table: {model.dtype.value}[V,{self.narrow}]"
        yield _noted(table, "tied: it embeds tokens, and scores the next ones") if model.tied else table
        more = [("places", "P,E")] if model.places else []
        more += [] if model.tied else [("Wu", f"{self.narrow},V")]
        more += [("We", f"{self.narrow},E"), ("Wn", f"E,{self.narrow}")] if model.embedding_width else []
        more += [("bu", "V")] if model.head_bias else []
        more += end_tensors(self.streams) if self.streams is not None else []
        more += [(SHARED, text.own.width) for text in self.texts.values() if text.own is not None][:1]
        yield from declarations("param", more, model.dtype)

    def _main(self) -> Iterator[str]:
        model = self.model
        yield "main(tokens: i32[B,L]) {"
        first = norm_tensors(model.norm, "0") if model.embedding_norm else []
        norms = [*first, *(norm_tensors(model.norm, "") if model.final_norm else [])]
        yield from (f"  {line}" for line in declarations("param", norms, model.dtype))
        yield ""
        if model.places:
            yield "  at = positions(L into M)"
        x = "take(table, tokens, over=V)"
        if model.embedding_width:
            yield f"  te = {x}"
            yield f"  tx[B,L,E] = te[B,L,{self.narrow}] * We[{self.narrow},E]"
            x = "tx"
        x += f" * {model.embedding}" if model.embedding else ""
        x += " + take(places, at, over=P)" if model.places else ""
        if model.embedding_norm:
            yield f"  t0 = {x}"
            x = norm_text(model.norm, "t0", "0")
        yield f"  x = {x}"
        if self.streams is not None:
            yield from (f"  {line}" for line in parted_lines(self.streams, "xs", "x", "x[B,L,E]", "Wsx"))
        yield from self._calls(runs_of(model.layers), "x", "y", first="x")
        yield "  " + _noted("z = last(y, over=L)", "its next token is wanted", 30)
        z = "z"
        if self.streams is not None:
            d = self.streams
            yield "  zs = last(ys, over=L)"
            yield from (f"  {line}" for line in parted_lines(d, "us", "z", f"zs[B,{d.others},E]", "Wsy"))
            z = f"(z + sum(us, over={d.others})) / size({d.every})"
        if model.final_norm:
            yield f"  n = {norm_text(model.norm, z, '')}"
        yield from self._scores("n" if model.final_norm else "z")
        yield "}"

    def _scores(self, n: str) -> Iterator[str]:
        model = self.model
        e = self.narrow
        if model.embedding_width:
            yield f"  ne[B,{e}] = {n}[B,E] * Wn[E,{e}]"
            n = "ne"
        weight = f"table[V,{e}]" if model.tied else f"Wu[{e},V]"
        plain = not (model.head_bias or model.head_norm) and model.logit_scale == 1 and model.logit_cap is None
        yield f"  {'logits' if plain else 't'}[B,V] = {n}[B,{e}] * {weight}"
        if not plain:
            scores = "t + bu" if model.head_bias else "t"
            if model.head_norm:
                yield f"  squares = sum(Wu * Wu, over={e})"
                scores = "t * rsqrt(maximum(squares, 1e-24))"
            scores += f" * {number_text(model.logit_scale)}" if model.logit_scale != 1 else ""
            cap = None if model.logit_cap is None else number_text(model.logit_cap)
            yield f"  logits = {scores if cap is None else f'tanh(({scores}) / {cap}) * {cap}'}"
        yield "  return argmax(logits, over=V)"

    def _phases(self) -> Iterator[str]:
        context = self.dims.context
        whole = "".join(f", {name} = {context}" for name in self.dims.slots)
        kept = "".join(f", {name} = {min(window, context)}" for name, window in self.dims.slots.items())
        yield f"phase prefill {{ B = {BATCH}, L = {context}, M = {context}{whole} }}"
        yield f"phase decode  {{ B = {BATCH}, L = 1, M = {context}{kept}, calls = {CALLS} }}"


def _context(model: Transformer) -> int:
    """How many tokens phases are made for: no more than the model was made for, and as many as an indexer chooses, or
    as there are heads whose scores fall with distance, or experts some of which do nothing: these are counted along the
    context."""
    attentions = [kind.attention for kind in model.kinds]
    chosen = [a.indexer.keep for a in attentions if isinstance(a, Latent) and a.indexer is not None]
    sloped = [a.heads for a in attentions if isinstance(a, Attention) and a.slopes is not None]
    idle = [one.count + one.idle for kind in model.kinds if (one := kind.beside) is not None and one.idle]
    return max(min(model.context, max(CONTEXT, *chosen, 1)), *sloped, *idle, 1)


def model_text(model: Transformer, title: str) -> str:
    """The text of a model called `title`."""
    return Model(model).text(title)


def names_of(kinds: Sequence[Layer]) -> dict[Layer, str]:
    """What blocks are called: `layer` where there is one, else by what they differ in."""
    if len(kinds) == 1:
        return {kinds[0]: "layer"}
    attentions = {kind.attention for kind in kinds}
    forwards = {kind.forward for kind in kinds}
    found: dict[Layer, str] = {}
    taken: Counter[str] = Counter()
    for kind in kinds:
        words = [_attention_word(kind.attention)] if len(attentions) > 1 else []
        words += [_forward_word(kind.forward)] if len(forwards) > 1 else []
        word = "_".join(words) or "layer"
        taken[word] += 1
        found[kind] = word if taken[word] == 1 else f"{word}{taken[word]}"
    return found


def _forward_word(forward: FeedForward | Experts | None) -> str:
    if forward is None:
        return "alone"
    return "experts" if isinstance(forward, Experts) else "dense"


def _attention_word(attention: Attention | Latent | None) -> str:
    if attention is None:
        return "unmixed"
    if isinstance(attention, Latent):
        return "latent"
    return (
        _reach_word(attention)
        if attention.sharing is Sharing.NONE
        else f"{_reach_word(attention)}_{attention.sharing.value}"
    )


def _shared_as(kind: Layer) -> str:
    assert isinstance(kind.attention, Attention)
    return kind.attention.shared_as


def _reach_word(attention: Attention) -> str:
    if attention.window is not None:
        return "window"
    if attention.chunk is not None:
        return "chunk"
    return "full"


def _noted(text: str, comment: str, width: int = 32) -> str:
    return f"{text:<{width}}# {comment}"
