"""Kinds of small programs, each after something that a Transformer does, drawn with variations.

Every family takes a Builder and returns the program's results. Dims: B batch, L tokens, M context,
E model, F feed-forward, H more
features, K heads, Q head, V vocabulary, C another index as long as E.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from escc.ir.dtype import Dtype
from escc.ir.expr import Operand, Rotate

from .builder import Builder, call

Family = Callable[[Builder], list[str]]


def chain(b: Builder) -> list[str]:
    """Matrix after matrix, with pointwise steps between some."""
    dims = b.rng.sample("EFHV", b.rng.randint(2, 4))
    x = b.input("B" + dims[0])
    for here, there in itertools.pairwise(dims):
        x = b.einsum("B" + there, x, b.param(here + there))
        if b.rng.random() < 0.5:
            x = _pointwise(b, x)
    return [x]


def _pointwise(b: Builder, x: str) -> str:
    return b.map(b.rng.choice([call("gelu", x), call("negate", x), call("multiply", x, 0.5), call("add", x, 1.0)]))


def _fan(b: Builder, consumers: int) -> list[str]:
    """One value with many consumers, whose results are summed, or go two ways."""
    x = b.einsum("BE", b.input("BF"), b.param("FE")) if b.rng.random() < 0.7 else b.input("BE")
    shared = b.param("EH")
    made = [b.einsum("BH", x, shared)]
    again = b.rng.choice([-1, *range(1, consumers)])  # which consumer reads that parameter too
    while len(made) < consumers:
        match b.rng.randint(0, 5):
            case _ if len(made) == again:
                made.append(b.einsum("H", b.map(call("relu", x)), shared))
            case 0:
                made.append(b.einsum("H", x, b.param("EH")))
            case 1:
                made.append(b.einsum("B", x))
            case 2:
                made.append(b.reduce(x, "E"))
            case 3 | 4:
                wide = b.rng.choice("FVM")
                made.append(b.einsum("B", b.map(call("gelu", b.einsum("B" + wide, x, b.param("E" + wide))))))
            case _:
                made.append(b.einsum("BH", x, b.param("EH")))
    b.rng.shuffle(made)
    if b.rng.random() < 0.4:
        return [b.sum(*made[:2]), b.sum(*made[2:])] if len(made) > 3 else [b.sum(*made[:-1]), made[-1]]
    return [b.sum(*made)]


def fan3(b: Builder) -> list[str]:
    """Three consumers."""
    return _fan(b, 3)


def fan4(b: Builder) -> list[str]:
    """Four consumers."""
    return _fan(b, 4)


def fan5(b: Builder) -> list[str]:
    """Five consumers."""
    return _fan(b, 5)


def partial(b: Builder) -> list[str]:
    """A product whose partial result may flow on through what is linear in it."""
    y = b.einsum("BF", b.input("BE"), b.param("EF"))
    if b.rng.random() < 0.7:
        z = b.map(call(b.rng.choice(["multiply", "divide"]), y, b.input(b.rng.choice(["B", "F", "BF"]))), "BF")
    else:
        z = b.map(call("negate", y))
    last = b.rng.choice(["product", "sum", "where"])
    if last == "product":
        z = b.einsum("BH", z, b.param("FH"))
    elif last == "sum":
        z = b.einsum("B", z)
    else:
        z = b.map(call("where", call("less_equal", b.input("F"), 0.5), z, 0.0))
    return [z]


def sums(b: Builder) -> list[str]:
    """A residual and two branches in one sum, as in a parallel block."""
    x = b.input("BE")
    n = b.map(call("multiply", x, b.param("E"))) if b.rng.random() < 0.5 else x
    a = b.einsum("BE", b.einsum("BF", n, b.param("EF")), b.param("FE"))
    terms = [x, a]
    if b.rng.random() < 0.6:
        terms.append(b.einsum("BE", b.map(call("silu", b.einsum("BH", n, b.param("EH")))), b.param("HE")))
    if b.rng.random() < 0.5:
        terms.append(b.param("E"))
    b.rng.shuffle(terms)
    y = b.sum(*terms)
    return [y, b.einsum("B", y)] if b.rng.random() < 0.3 else [y]


def reduce(b: Builder) -> list[str]:
    """Maxima, also of maxima, and sums of them with partial sums."""
    y = b.einsum("BEF", b.input("BE"), b.input("BF")) if b.rng.random() < 0.5 else b.input("BEF")
    m = b.reduce(y, b.rng.choice(["E", "F"]))
    match b.rng.randint(0, 3):
        case 0:
            return [b.reduce(m, "B")]
        case 1:
            return [b.map(call("subtract", y, m))]
        case 2:
            return [b.sum(m, b.einsum(b.dims(m), y)), m]
        case _:
            return [m, b.reduce(m, b.dims(m)[1])]


def norm(b: Builder) -> list[str]:
    """A mean of squares, which reads a value twice, then a product."""
    x = b.input("BE")
    squares = b.einsum("B", x, x)
    n = b.map(call("multiply", x, call("rsqrt", call("add", squares, 1.0))))
    y = b.einsum("BF", n, b.param("EF"))
    if b.rng.random() < 0.5:
        y = b.map(call("multiply", call("silu", y), b.einsum("BF", n, b.param("EF"))))
    return [y]


def _softmax(b: Builder, s: str, over: str, mask: bool) -> str:
    if mask:
        s = b.map(call("where", call("less_equal", b.iota(over), 3.0), s, -1e9))
    e = b.map(call("exp", call("subtract", s, b.reduce(s, over))), b.dims(s))
    z = b.einsum(b.dims(s).replace(over, ""), e)
    return b.map(call("divide", e, z), b.dims(s))


def softmax(b: Builder) -> list[str]:
    """A softmax, sometimes masked by position, sometimes with a product after it."""
    s = b.einsum("HM", b.input("HQ"), b.input("MQ")) if b.rng.random() < 0.5 else b.input("HM")
    p = _softmax(b, s, "M", b.rng.random() < 0.4)
    return [b.einsum("HQ", p, b.input("MQ"))] if b.rng.random() < 0.5 else [p]


def append(b: Builder) -> list[str]:
    """A cache that grows, read afterwards; sometimes as it was before."""
    cache = b.cache(b.rng.choice(["BMQ", "MQB", "MB"]))
    rest = b.dims(cache).replace("M", "")
    new = b.einsum("L" + rest, b.input("LE"), b.param("E" + rest)) if b.rng.random() < 0.6 else b.input("L" + rest)
    version = b.append(cache, new, "L", "M")
    read = b.einsum(b.rng.choice([rest, "B", "BM"]), version)
    results = [read]
    match b.rng.randint(0, 3):
        case 0:
            results = [b.einsum("B", read, b.einsum("B", cache))]
        case 1:
            results.append(version)
        case 2:
            results = [b.einsum("BH", read, b.param("HB"))]
    return results


def attention(b: Builder) -> list[str]:
    """One query against a cache that has just grown."""
    keys = b.cache("BMQ")
    ks = b.append(keys, b.input("BLQ"), "L", "M")
    s = b.einsum("BKM", b.input("BKQ"), ks)
    if b.rng.random() < 0.5:
        return [b.einsum("BKQ", b.map(call("exp", s)), ks)]
    p = _softmax(b, s, "M", False)
    return [b.einsum("BKQ", p, ks)]


def serving(b: Builder) -> list[str]:
    """Attention on a cache, between its projections: weights and cache want different splits."""
    x = b.input("BE")
    keys = b.cache("BMQ")
    if b.rng.random() < 0.5:
        new = b.einsum("BLQ", x, b.param("LEQ"))
        keys = b.append(keys, new, "L", "M")
    q = b.einsum("BKQ", x, b.param("EKQ"))
    s = b.einsum("BKM", q, keys)
    o = b.einsum("BKQ", b.map(call("exp", s)), keys)
    return [b.einsum("BE", o, b.param("KQE"))]


def repeat(b: Builder) -> list[str]:
    """A body with a carry, parameters of its own, and sometimes a value from outside."""
    x = b.einsum("BE", b.input("BF"), b.param("FE")) if b.rng.random() < 0.4 else b.input("BE")
    outside = b.rng.choice(["", "input", "param", "op", "initial"])
    y = {"input": lambda: b.input("BE"), "param": lambda: b.param("E"), "op": lambda: _pointwise(b, b.input("BE"))}
    captured = x if outside == "initial" else y[outside]() if outside else ""
    (inside,) = b.open_repeat(x)
    h = b.einsum("BH", inside, b.param("EH"))
    if b.rng.random() < 0.5:
        h = b.map(call("silu", h))
    if b.rng.random() < 0.3:  # a repeat in the repeat
        (deeper,) = b.open_repeat(h)
        (h,) = b.close_repeat(b.rng.choice([2, 5]), [h], [deeper], [b.map(call("multiply", deeper, b.param("H")))])
    terms = [b.einsum("BE", h, b.param("HE"))]
    terms += [inside] if b.rng.random() < 0.6 else []
    terms += [captured] if captured else []
    following = b.sum(*terms)
    (out,) = b.close_repeat(b.rng.choice([1, 2, 3, 12]), [x], [inside], [following])
    if captured and b.rng.random() < 0.5:
        out = b.sum(out, captured)
    return [out]


def growing(b: Builder) -> list[str]:
    """A repeat with a cache in its body."""
    x = b.input("BQ")
    (inside,) = b.open_repeat(x)
    cache = b.cache("BMQ")
    new = b.map(call("negate", b.einsum("BLQ", inside, b.param("LQ"))))
    version = b.append(cache, new, "L", "M")
    read = b.einsum("BQ", inside, version)
    following = b.sum(read, inside) if b.rng.random() < 0.5 else b.map(call("tanh", read))
    return b.close_repeat(b.rng.choice([2, 3, 8]), [x], [inside], [following])


def two_carries(b: Builder) -> list[str]:
    """Two values go round together; one does not change dims on the way."""
    x, y = b.input("BE"), b.input("BF")
    ins = b.open_repeat(x, y)
    there = b.einsum("BF", ins[0], b.param("EF"))
    back = b.einsum("BE", ins[1], b.param("FE"))
    following = [b.sum(back, ins[0]), b.map(call("add", there, ins[1]))]
    outs = b.close_repeat(b.rng.choice([2, 4]), [x, y], ins, following)
    return outs if b.rng.random() < 0.5 else [b.einsum("EF", *outs)]


def take(b: Builder) -> list[str]:
    """An embedding, sometimes tied to the last product."""
    table = b.param("VE")
    x = b.take(table, b.input("B", Dtype.I32), "V")
    match b.rng.randint(0, 2):
        case 0:
            return [b.einsum("BV", _pointwise(b, x), table)]
        case 1:
            return [b.sum(x, b.input("BE"))]
        case _:
            return [b.einsum("BF", x, b.param("EF"))]


def largest(b: Builder) -> list[str]:
    """The largest of scores over V, or of those over V first and then over H, and where they stand."""
    table = b.param("HVE")
    b.sizes["K"] = min(b.sizes["K"], b.sizes["V"])
    scores = b.einsum("BHV", b.input("BE"), table)
    places = b.iota("V") if b.rng.random() < 0.6 else b.einsum("BV", b.input("BF"), b.param("FV"))
    values, ids = b.top_k(scores, scores, "V", "K"), b.top_k(scores, places, "V", "K")
    if b.rng.random() < 0.5:
        return [b.top_k(values, ids, "HK", "K")]
    return [values, ids]


def scaled(b: Builder) -> list[str]:
    """Products with weights and their scales: of each output, of each input, or of neither alone."""
    x = b.input("BE") if b.rng.random() < 0.5 else b.einsum("BE", b.input("BH"), b.param("HE"))
    u = b.einsum("BF", x, b.param("EF"), b.param(b.rng.choice(["F", "E", "EF"])))
    if b.rng.random() < 0.5:
        return [u]
    return [b.einsum("BE", b.map(call("silu", u)), b.param("FE"), b.param("E"))]


def rotate(b: Builder) -> list[str]:
    """Pairs along Q turned, as in rope."""
    q = b.einsum("BQ", b.input("BE"), b.param("EQ")) if b.rng.random() < 0.6 else b.input("BQ")
    angle = b.map(call("cos", b.iota("B"))) if b.rng.random() < 0.4 else b.input("B")
    turned = b.map(call("add", q, call("multiply", Rotate(Operand(q), "Q"), angle)), "BQ")
    return [b.einsum("BF", turned, b.param("QF"))] if b.rng.random() < 0.5 else [turned, b.einsum("B", turned)]


def twice(b: Builder) -> list[str]:
    """One op that reads a value twice, by the same indices or by others."""
    x = b.einsum("BE", b.input("BH"), b.param("HE")) if b.rng.random() < 0.5 else b.input("BE")
    if b.rng.random() < 0.4:
        return [b.einsum("B", x, x)]
    w = b.param("FE")
    return [b.einsum("BF", x, w, w, indices=["BE", "FE", "FC"])]


def crossed(b: Builder) -> list[str]:
    """A product of a value with itself that wants it split by one axis here and by another there.

    The sizes are such that it pays to exchange blocks: a permute.
    """
    b.sizes |= {"F": b.rng.choice([1021, 1022, 2051]), "E": 4096, "C": 4096}
    w = b.einsum("FE", b.input("FH"), b.param("HE"))
    y = b.einsum("E", w, w, indices=["FE", "FC"])
    return [y, b.einsum("F", w)] if b.rng.random() < 0.3 else [y]


def grouped(b: Builder) -> list[str]:
    """Products with codes whose scales count groups, of one dim or of both, and perhaps have zero points."""
    b.sizes |= {"K": b.rng.choice([2, 3, 4, 6, 8]), "M": b.rng.choice([2, 3, 4, 6])}
    b.sizes |= {"E": b.sizes["K"] * b.rng.choice([1, 2, 32]), "F": b.sizes["M"] * b.rng.choice([1, 3, 16])}
    x = b.input("BE") if b.rng.random() < 0.6 else b.einsum("BE", b.input("BH"), b.param("HE"))
    blocks, less = b.rng.random() < 0.4, b.rng.random() < 0.5
    groups = {"E": "K", "F": "M"} if blocks else {"E": "K"}
    read = b.codes("EF", "KM" if blocks else "KF", groups, less)
    zeros = ((1, 2),) if less else ()
    y = b.einsum("BF", x, *read, indices=["BE", *("EF" for _ in read)], zeros=zeros)
    return [y] if b.rng.random() < 0.5 else [b.einsum("BH", b.map(call("silu", y)), b.param("FH"))]


def mixed(b: Builder) -> list[str]:
    """Any op on any values so far."""
    pool = [b.input(d) for d in b.rng.sample(["BE", "EF", "BF", "E", "FB"], 2)]
    unused = list(pool)
    for _ in range(b.rng.randint(2, 4)):
        first = b.rng.choice(unused or pool)
        second = b.rng.choice([p for p in pool if p != first])
        union = list(dict.fromkeys(b.dims(first) + b.dims(second)))
        b.rng.shuffle(union)
        kept = "".join(b.rng.sample(union, min(b.rng.choice([0, 1, 1, 2, 2, 2]), len(union))))
        match b.rng.randint(0, 6):
            case 0 | 1:
                made, read = b.einsum(kept, first, second), [first, second]
            case 2:
                w = b.param(kept or "E")
                made, read = b.einsum(kept, first, second, w), [first, second]
            case 3:
                made, read = b.sum(first, second), [first, second]
            case 4 if b.dims(first):
                made, read = b.reduce(first, b.dims(first)[-1]), [first]
            case 5:
                made, read = b.map(call("multiply", call("tanh", first), second)), [first, second]
            case _:
                made, read = _pointwise(b, first), [first]
        unused = [u for u in unused if u not in read] + [made]
        pool.append(made)
    return unused if len(unused) <= 2 else [unused[0], b.sum(*unused[1:])]


FAMILIES: dict[str, Family] = {
    f.__name__: f
    for f in (
        *(chain, fan3, fan4, fan5, partial, sums, reduce, norm, softmax, append),
        *(attention, serving, repeat, growing, two_carries, take, largest, scaled, rotate, twice, crossed, mixed),
    )
}
QUANTISED: dict[str, Family] = {grouped.__name__: grouped}
