"""The functions of the language as data: how each is called, and what it means.

Composites say so where they are defined; here are the functions of numbers, those of a dim, and what
keywords take. `entries` lists all of them, for messages and for the reference in `docs/language.md`, and
`OTHERWISE` what has a name elsewhere, and none here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...ir.record import record
from .composites import COMPOSITES
from .keywords import NARROWING
from .scalings import ARGUMENTS


@record
class Function:
    """A function: the names of its arguments, of which the last `optional` may be missing, in a few words what it
    gives, and the keywords that it may take."""

    arguments: tuple[str, ...]
    meaning: str
    allowed: tuple[str, ...] = ()
    optional: int = 0


# Element by element; values broadcast by dim names.
POINTWISE: Mapping[str, Function] = {
    "exp": Function(("x",), "e to the x"),
    "log": Function(("x",), "the natural logarithm"),
    "sqrt": Function(("x",), "the square root"),
    "rsqrt": Function(("x",), "1 / sqrt(x)"),
    "tanh": Function(("x",), "the hyperbolic tangent"),
    "erf": Function(("x",), "the error function"),
    "sigmoid": Function(("x",), "1 / (1 + exp(-x))"),
    "silu": Function(("x",), "x * sigmoid(x)"),
    "gelu": Function(("x",), "x * Phi(x), Phi by its usual approximation with tanh"),
    "gelu_exact": Function(("x",), "x * Phi(x), Phi(x) being (1 + erf(x / sqrt(2))) / 2"),
    "relu": Function(("x",), "maximum(x, 0)"),
    "abs": Function(("x",), "the magnitude"),
    "floor": Function(("x",), "the largest whole number that is not above x"),
    "maximum": Function(("a", "b"), "the larger of two"),
    "minimum": Function(("a", "b"), "the smaller of two"),
    "power": Function(("a", "b"), "a to the b"),
    "swiglu": Function(("g", "u"), "silu(g) * u"),
    "geglu": Function(("g", "u"), "gelu(g) * u"),
}
GATES = {"swiglu": "silu", "geglu": "gelu"}  # those of them that are function(g) * u
NUMBERS: Mapping[str, Function] = {
    "size": Function(("E",), "the size of a dim, as a number; of a padded dim the true one"),
    "context": Function(("M",), "how many places of a context are filled, with those of this step"),
}
# What only the keywords take that are named with them.
KEYWORD_VALUES: Mapping[str, tuple[str, Function]] = {
    "causal": (
        "mask",
        Function(("L", "M"), "query l stands at context(M) - L + l, and sees the keys up to there", NARROWING),
    ),
    "linear": ("scaling", Function(ARGUMENTS["linear"], "all frequencies are divided by `factor`")),
    "first": ("scaling", Function(ARGUMENTS["first"], "only the first pairs turn, as many as are said")),
    "llama3": (
        "scaling",
        Function(
            ARGUMENTS["llama3"],
            "frequencies of less than `low` turns in `original` positions are divided by `factor`, those of more "
            "than `high` stay; between them the share that stays grows linearly",
        ),
    ),
    "yarn": (
        "scaling",
        Function(
            ARGUMENTS["yarn"],
            "frequencies of less than `beta_slow` turns in `original` positions are divided by `factor`, those of more "
            "than `beta_fast` stay; between them the share that stays falls linearly from pair to pair, from and to "
            "whole pairs, with the word `exact` from and to fractions of them; cos and sin are multiplied by "
            "`attention`, without it 0.1 * log(factor) + 1",
            optional=2,
        ),
    ),
    "longrope": (
        "scaling",
        Function(
            ARGUMENTS["longrope"],
            "the frequency of each pair is divided by its own of the `factors`, a list such as `[1, 1.02]`; cos and "
            "sin are multiplied by `attention`; where M of `at=L into M` has more than `original` places, by the last "
            "two in their place",
            optional=3,
        ),
    ),
}
FUNCTIONS = frozenset({*POINTWISE, *COMPOSITES, *NUMBERS})


@record
class Otherwise:
    """What other libraries have under some names, in lines of this language. Case and `_` do not matter in a name. The
    lines take the names of the frame in `docs/language.md`, so that they show what goes where."""

    names: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def code(self) -> str:
        """The lines as one says them."""
        return ", then ".join(f"`{line}`" for line in self.lines)


OTHERWISE = (
    Otherwise(("softcap", "logit_softcap", "tanh_cap"), ("30 * tanh(x / 30)",)),
    Otherwise(("clip", "clamp"), ("minimum(maximum(x, -7), 7)",)),
    Otherwise(("swish",), ("silu(x)",)),
    Otherwise(("gelu_tanh", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), ("gelu(x)",)),
    Otherwise(("gelu_erf",), ("gelu_exact(x)",)),
    Otherwise(("quick_gelu",), ("x * sigmoid(1.702 * x)",)),
    Otherwise(("relu2", "squared_relu", "relu_squared"), ("power(relu(x), 2)",)),
    Otherwise(("relu6",), ("minimum(relu(x), 6)",)),
    Otherwise(("leaky_relu",), ("maximum(x, 0.01 * x)",)),
    Otherwise(("softplus",), ("maximum(x, 0) + log(1 + exp(-abs(x)))",)),
    Otherwise(("mish",), ("x * tanh(maximum(x, 0) + log(1 + exp(-abs(x))))",)),
    Otherwise(("glu",), ("sigmoid(x) * y",)),
    Otherwise(("reglu",), ("relu(x) * y",)),
    Otherwise(("square",), ("x * x",)),
    Otherwise(("pow",), ("power(x, 3)",)),
    Otherwise(("reciprocal",), ("1 / x",)),
    Otherwise(("neg", "negative"), ("-x",)),
    Otherwise(("add",), ("x + y",)),
    Otherwise(("sub", "subtract"), ("x - y",)),
    Otherwise(("mul", "multiply"), ("x * y",)),
    Otherwise(("div", "divide"), ("x / y",)),
    Otherwise(("reduce_sum",), ("sum(x, over=E)",)),
    Otherwise(("reduce_mean", "average", "avg"), ("mean(x, over=E)",)),
    Otherwise(("amax", "reduce_max"), ("max(x, over=E)",)),
    Otherwise(("min", "amin", "reduce_min"), ("-max(-x, over=E)",)),
    Otherwise(("variance", "var"), ("mean(x * x, over=E) - power(mean(x, over=E), 2)",)),
    Otherwise(("std",), ("sqrt(mean(x * x, over=E) - power(mean(x, over=E), 2))",)),
    Otherwise(("l2norm", "normalize"), ("x * rsqrt(sum(x * x, over=E))",)),
    Otherwise(("logsumexp",), ("top = max(x, over=E)", "top + log(sum(exp(x - top), over=E))")),
    Otherwise(("log_softmax",), ("top = max(x, over=E)", "x - top - log(sum(exp(x - top), over=E))")),
    Otherwise(("matmul", "mm", "bmm", "dot", "einsum", "dense", "proj"), ("u[B,L,F] = x[B,L,E] * W[E,F]",)),
    Otherwise(
        ("concat", "cat", "concatenate"), ("u[B,L,F] = x[B,L,E] * W[E,F]", "v[B,L,F] = y[B,L,E] * W2[E,F]", "u + v")
    ),
    Otherwise(("transpose", "swapaxes", "moveaxis"), ("t[L,B,E] = x[B,L,E]",)),
    Otherwise(("where", "select"), ("mask * x + (1 - mask) * y",)),
    Otherwise(("masked_fill", "padding_mask", "key_padding_mask"), ("softmax(s, over=M, among=kept)",)),
    Otherwise(("tril", "triu", "causal_mask"), ("softmax(s, over=M, mask=causal(L, M))",)),
    Otherwise(
        ("alibi",), ("at: f32 = positions(M into M)", "bias[H,M] = slopes[H] * at[M]", "softmax(s + bias, over=M)")
    ),
    Otherwise(("reshape", "view", "flatten", "unflatten"), ("dim H = K * G", "t[B,L,K,G,Q] = q[B,L,H,Q]")),
    Otherwise(("outer",), ("o[B,L,E,F] = x[B,L,E] * f[F]",)),
    Otherwise(("repeat_kv", "repeat_interleave"), ("dim H = K * G", "t[B,L,H,M] = q[B,L,H,Q] * keys[B,M,K,Q]")),
    Otherwise(
        ("attention", "self_attention", "sdpa", "scaled_dot_product_attention", "flash_attention", "mha", "gqa"),
        (
            "t[B,L,H,M] = q[B,L,H,Q] * keys[B,M,K,Q]",
            "p = softmax(t / sqrt(size(Q)), over=M, mask=causal(L, M))",
            "o[B,L,H,Q] = p[B,L,H,M] * values[B,M,K,Q]",
        ),
    ),
    Otherwise(
        ("rotary", "rotary_embedding", "apply_rotary", "apply_rotary_pos_emb"), ("rope(q, over=Q, at=L into M)",)
    ),
    Otherwise(("position_ids", "arange", "iota"), ("positions(L into M)",)),
    Otherwise(("embed", "embedding", "gather", "lookup"), ("take(table, ids, over=V)",)),
    Otherwise(
        ("moe", "experts", "router", "gate_top_k"),
        ("m = choose(scores, over=X, keep=2)", "e[B,L,X,E] = m[B,L,X] * x[B,L,E]"),
    ),
)
_BY_NAME = {name.replace("_", ""): one for one in OTHERWISE for name in one.names}


def otherwise(name: str) -> str | None:
    """A hint that says how this language writes what has a name elsewhere, or None."""
    one = _BY_NAME.get(name.lower().replace("_", ""))
    return None if one is None else f"write {one.code}"


@record
class Entry:
    """A function as a reader looks it up. `required` and `allowed`: the names of its keywords. `into`:
    whether its last argument is `L into M`. `optional`: how many of its last arguments may be missing.
    `results`: how many values it gives. `keyword`: the one that takes it, where it stands nowhere else."""

    name: str
    arguments: tuple[str, ...]
    meaning: str
    required: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    into: bool = False
    optional: int = 0
    results: tuple[str, ...] = ("result",)
    keyword: str | None = None

    @property
    def call(self) -> str:
        """How it is called: `rope(x, over=, at=, [base=], [scaling=])`."""
        least = len(self.arguments) - self.optional
        words = [name if at < least else f"[{name}]" for at, name in enumerate(self.arguments)]
        words += ["L into M"] * self.into
        words += [f"{word}=" for word in self.required] + [f"[{word}=]" for word in self.allowed]
        before = f"{', '.join(self.results)} = " if len(self.results) > 1 else ""
        within = f"{self.keyword}=" if self.keyword else ""
        return f"{before}{within}{self.name}({', '.join(words)})"


def entries() -> Iterator[Entry]:
    """Every function: those of numbers, of dims, composites, and what only keywords take."""
    for name, function in {**POINTWISE, **NUMBERS}.items():
        yield Entry(name, function.arguments, function.meaning)
    for name, one in COMPOSITES.items():
        yield Entry(
            name, one.values, one.meaning, one.required, one.allowed, one.into, one.optional, results=one.results
        )
    for name, (keyword, function) in KEYWORD_VALUES.items():
        given = function.arguments, function.meaning
        yield Entry(name, *given, allowed=function.allowed, optional=function.optional, keyword=keyword)


def listing(blocks: Iterable[str]) -> str:
    """A hint that names all functions, and the blocks that there are."""
    functions = f"the functions are {', '.join(sorted(FUNCTIONS))}"
    names = sorted(blocks)
    if not names:
        return functions
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{functions}; the blocks above are {', '.join(names[:8])}{more}"
