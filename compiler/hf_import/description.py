"""The Transformers that configs describe: what each layer computes, and what stands before and behind the layers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ...ir.dtype import Dtype
from ...ir.record import record
from .quantised import Quantised


class Block(Enum):
    """How attention and feed-forward stand to each other."""

    SERIAL = "serial"  # one after the other, each with a norm
    PARALLEL = "parallel"  # side by side, with one norm
    PARALLEL_TWO_NORMS = "parallel, two norms"  # side by side, each with a norm


class Norms(Enum):
    """Where the norms of a serial block stand."""

    BEFORE = "before"  # what they norm goes into attention and feed-forward
    AFTER = "after"  # what comes out of these is normed, and then added
    BOTH = "both"
    SUM = "sum"  # what comes out of these is added, and then the sum is normed


class QueryNorm(Enum):
    """How queries and keys are normed."""

    NONE = "none"
    HEAD = "head"  # head by head, all by the same scale
    ALL = "all"  # all heads together
    LAYER = "layer"  # head by head with their means taken off, all by the same scale and shift
    OWN = "own"  # head by head with their means taken off, each by a scale of its own
    PLAIN = "plain"  # head by head, without a scale, after rope has turned them
    TURNED = "turned"  # head by head, all by the same scale, after rope has turned them


class Gate(Enum):
    """What is multiplied into what heads make, by a sigmoid."""

    NONE = "none"
    HEAD = "head"  # a number for each head
    ELEMENT = "element"  # a number for each element of it


class Sharing(Enum):
    """Whether layers see the same keys and values (arXiv:2405.12981)."""

    NONE = "none"
    LENT = "lent"  # its own, which later layers of its kind see, too
    BORROWED = "borrowed"  # those that an earlier layer of its kind lends


@record
class Norm:
    """`function`: rmsnorm or layernorm. `bias`: whether it adds one. `offset`: its scale is stored less 1. `scaled`:
    whether it has one."""

    function: str
    epsilon: float
    bias: bool = False
    offset: bool = False
    scaled: bool = True


@record
class Rope:
    """`turned`: how many elements of a head, an even number. `scaling`: as the language writes it. `halves`: whether
    a checkpoint keeps the two that are turned together half of what is turned apart."""

    base: float
    turned: int
    scaling: str | None = None
    halves: bool = True


@record
class Heat:
    """How queries grow with their place: by `grows` times the logarithm of 1 more than how often `after` is in it.
    `first`: the number of the first place."""

    grows: float
    after: float
    first: int


@record
class Slopes:
    """By what scores fall with how far back a key stands (ALiBi, arXiv:2108.12409): of N heads, a power of two, those
    of head n by 2^(-8 n / N), and of more heads, but not twice as many, those of further ones by the powers that lie
    halfway between. `inside`: whether that is scaled as scores are."""

    inside: bool = False


@record
class Attention:
    """Heads with keys and values of their own, or of groups of them. `kv_heads` divides `heads`. `bias`: of queries,
    keys and values; `output_bias`: of what comes out. `window`: how many tokens back a query sees, itself among them;
    `chunk`: how long the pieces are in which tokens see each other. `scale`: what scores are multiplied by, None for
    1 over the root of `head_dim`. `cap`: between what and its negative they are pressed. `sinks`: whether each head
    has a score that nothing is behind. `heated`: how queries grow with their place, where they do. `value_norm`:
    whether values are normed, without a scale; `shared_value`: whether they are made by the projection of keys;
    `value_dim`: how wide they are, None for as wide as keys; `value_scale`: what they are multiplied by. `clip`:
    between what and its negative queries, keys and values are cut off. `gate`: what is multiplied into what heads make;
    `slopes`: by what scores fall with distance. `sharing`: whose keys and values it sees;
    `shared_as`: what these are called, by which layers that share them are known."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    bias: bool = False
    output_bias: bool = False
    query_norm: QueryNorm = QueryNorm.NONE
    window: int | None = None
    chunk: int | None = None
    scale: float | None = None
    cap: float | None = None
    sinks: bool = False
    heated: Heat | None = None
    value_norm: bool = False
    shared_value: bool = False
    value_dim: int | None = None
    value_scale: float = 1.0
    clip: float | None = None
    gate: Gate = Gate.NONE
    slopes: Slopes | None = None
    sharing: Sharing = Sharing.NONE
    shared_as: str = ""

    @property
    def grouped(self) -> bool:
        """Whether several heads share keys and values, but not all of them."""
        return 1 < self.kv_heads < self.heads


@record
class Indexer:
    """Which tokens attention sees: the `keep` of the highest scores of narrow heads, which have a cache of their own
    (DeepSeek-V3.2, section 2.1). `heads`, `head_dim`: theirs; rope turns the first elements of each."""

    heads: int
    head_dim: int
    keep: int
    rope: Rope
    epsilon: float = 1e-6


@record
class Latent:
    """Keys and values made of a narrow one that all heads share (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    `query_rank`: how wide what queries are made of is, None where they are made of the whole; `rank`: what keys and
    values are made of. `head_dim`: of a key, beside the `rope.turned` elements that have a position; `value_dim`: of
    a value. `scale`: what scores are multiplied by. `epsilon`: of the norms of the narrow ones. `indexer`: what chooses
    the tokens that are seen, None for all. `heated`: how queries grow with their place, where they do. `grown`: by how
    much the narrow values are multiplied of which queries, and of which keys and values are made.
    """

    heads: int
    query_rank: int | None
    rank: int
    head_dim: int
    value_dim: int
    rope: Rope
    scale: float
    epsilon: float
    indexer: Indexer | None = None
    heated: Heat | None = None
    grown: tuple[float, float] = (1.0, 1.0)


@record
class FeedForward:
    """`width`: its own. `activation`: by its name in the language, or `relu2`, the square of relu, or `xielu`, which
    has two numbers of its own (arXiv:2411.13010). `gated`: whether one projection is multiplied by the activation of
    another. `clamp`: at most what such an activation is, and between what and its negative what it multiplies. `above`:
    by how many standard deviations what goes into the activation is more than the mean of a token, where only that
    much of it counts."""

    width: int
    activation: str
    gated: bool = True
    bias: bool = False
    clamp: float | None = None
    above: float | None = None


@record
class Streams:
    """Several streams of values, of which layers work on one (alternating updates, arXiv:2301.13310), and beside its
    attention a residual of low rank. `count`: of streams; `rank`: of the residual."""

    count: int
    rank: int


@record
class Router:
    """How experts are chosen and weighed. `scores`: softmax over all, or sigmoid of each. `normalised`: whether
    the weights of those chosen add to 1. `factor`: what they are multiplied by. `bias`: whether the scores have
    one; `correction`: whether one is added to them to choose by, and not to weigh. `groups`: into how many groups
    the experts go, and of how many groups those chosen are. `own_norm`: whether it has a norm of its own, times
    the root of the width; `per_expert`: whether weights are multiplied by a number of each expert. `near`: of two
    experts each is weighed by its softmax among those whose scores are less than its own by no more than that
    share, the second without the first (SparseMixer, arXiv:2409.12136); None for weights by all scores."""

    scores: str
    normalised: bool
    factor: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: tuple[int, int] = (1, 1)
    own_norm: bool = False
    per_expert: bool = False
    near: float | None = None


@record
class Experts:
    """`chosen` of `count` feed-forwards for each token, and maybe one that all tokens go through.

    `limit`: gates are at most that, and what they multiply is between it and its negative and 1 more, and `alpha` is
    what a gate is multiplied by in its sigmoid (gpt-oss); None for a plain gate. `before`: whether tokens are weighed
    before they go through an expert. `shared_gate`: whether the shared one is weighed by a sigmoid. `clamp`,
    `shared_clamp`: as of a feed-forward, of all of them and of the shared one. `idle`: how many there are besides that
    leave a token as it is, and are chosen like others.
    """

    count: int
    chosen: int
    width: int
    activation: str
    router: Router
    bias: bool = False
    limit: float | None = None
    alpha: float = 1.0
    before: bool = False
    shared: int = 0
    shared_gate: bool = False
    clamp: float | None = None
    shared_clamp: float | None = None
    idle: int = 0


@record
class Layer:
    """One layer; either of its two parts may be missing where norms stand before them. `residual`: what they are
    multiplied by before they are added. `beside`: experts beside the feed-forward, each with norms of their own, or
    where norms stand before, of what the layer is given. `second`: a layer that follows within it, before what the
    experts beside add, which then read what the feed-forward does (a shortcut, arXiv:2404.05019). `own`: how wide the
    embeddings are that it has for itself, 0 for none. `streams`: of which it works on one. `scaled`: whether the whole
    is multiplied by a number."""

    attention: Attention | Latent | None
    forward: FeedForward | Experts | None
    block: Block = Block.SERIAL
    norms: Norms = Norms.BEFORE
    residual: float = 1.0
    beside: Experts | None = None
    second: Layer | None = None
    own: int = 0
    streams: Streams | None = None
    scaled: bool = False

    @property
    def scales(self) -> tuple[str, ...]:
        """The numbers that its norms bear, in the order in which they stand."""
        if self.block is Block.PARALLEL:
            return ("",)
        if self.norms is Norms.BOTH:
            own = ("8",) if self.own else ()
            return ("1", "2", "3", "4", *(("5", "6", "7") if self.beside is not None else ()), *own)
        parts = {"1": self.attention, "2": self.forward, "3": None if self.second else self.beside}
        return tuple(number for number, part in parts.items() if part is not None)


@record
class Stack:
    """What a model computes. `context`: the most tokens that it was made for. `norm`: what all its norms are like.
    `layers`: each of them, from the first. `tied`: one table embeds and scores. `places`: how many positions are
    learned, 0 for none. `final_norm`: whether there is a norm behind the layers; `embedding_width`: how wide embeddings
    are that are projected to the model, and back before they score, 0 for as wide. `embedding_norm`: whether there is a
    norm behind the table. `embedding`: what embeddings are multiplied by, as the language writes it. `head_bias`:
    whether scores have one; `head_norm`: whether the columns that make them are divided by their lengths.
    `logit_scale`: what they are multiplied by; `logit_cap`: between what and its negative they are pressed.
    `own_vocabulary`: how many tokens the embeddings of single layers have, 0 where there are none."""

    model_dim: int
    vocabulary: int
    context: int
    norm: Norm
    layers: tuple[Layer, ...]
    tied: bool
    places: int = 0
    final_norm: bool = True
    embedding_width: int = 0
    embedding_norm: bool = False
    embedding: str = ""
    head_bias: bool = False
    head_norm: bool = False
    logit_scale: float = 1.0
    logit_cap: float | None = None
    own_vocabulary: int = 0

    @property
    def kinds(self) -> tuple[Layer, ...]:
        """Its layers that differ."""
        return tuple(dict.fromkeys(self.layers))

    @property
    def limit(self) -> int | None:
        """For how many places what is described here holds, as wider windows and scalings of longer contexts are left
        out; None for any number, as where scores fall with distance, which goes on as it is."""
        sloped = (isinstance(one.attention, Attention) and one.attention.slopes is not None for one in self.kinds)
        return None if any(sloped) else self.context


@record(kw_only=True)
class Transformer(Stack):
    """A model, by the architecture that its config names, and how its weights are stored: in `dtype`, and matrices that
    are `quantised` in few bits. `caches`: the type of keys and values that are kept, None for `dtype`."""

    architecture: str
    dtype: Dtype
    quantised: Quantised | None = None
    caches: Dtype | None = None


@record
class Run:
    """Layers that follow each other: `kinds` one by one, `times` over, from layer `first` on."""

    kinds: tuple[Layer, ...]
    times: int
    first: int


def runs_of(layers: Sequence[Layer]) -> list[Run]:
    """Layers as runs that repeat, as few as may be: patterns such as five of one kind and one of another, what stands
    before them, and what is left behind them."""
    found: list[Run] = []
    numbers: dict[Layer, int] = {}
    text = "".join(chr(numbers.setdefault(layer, len(numbers))) for layer in layers)  # which is compared quickly
    at = 0
    while at < len(layers):
        best = (1, 1)
        for period in range(1, (len(layers) - at) // 2 + 1):
            times = 1
            while text[at + times * period : at + (times + 1) * period] == text[at : at + period]:
                times += 1
            # What repeats covers most; of those that cover as much the shortest.
            if times > 1 and times * period > best[0] * best[1]:
                best = (period, times)
        period, times = best
        found.append(Run(tuple(layers[at : at + period]), times, at))
        at += period * times
    return found
