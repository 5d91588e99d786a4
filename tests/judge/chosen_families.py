"""Kinds of small programs with chosen indices, each after a part of a mixture of experts, drawn with variations.

Dims: B tokens, E model, F feed-forward, H more features, K experts, V groups of them.
"""

from __future__ import annotations

from .builder import Builder, call
from .families import Family


def _experts(b: Builder) -> None:
    """A number of experts, and of groups of them, that axes divide or not."""
    b.sizes |= {"K": b.rng.choice([4, 6, 8, 12, 16]), "V": b.rng.choice([2, 3, 4])}


def _mask(b: Builder, x: str, most: int = 8) -> tuple[str, str]:
    """Scores of the experts, and a mask of the best."""
    s = b.einsum("BK", x, b.param("EK")) if b.rng.random() < 0.6 else b.input("BK")
    return s, b.choose(s, "K", b.rng.randint(1, min(most, b.sizes["K"])))


def _bent(b: Builder, x: str) -> str:
    """What is 0 at 0."""
    form = b.rng.choice(["gelu", "negate", "tanh", "multiply"])
    return b.map(call("multiply", x, 0.5) if form == "multiply" else call("relu" if form == "gelu" else form, x))


def router(b: Builder) -> list[str]:
    """Weights of the chosen, which add up to one."""
    _experts(b)
    x = b.input("BE")
    s, m = _mask(b, x)
    w = b.map(call("multiply", m, s))
    total = b.einsum("B", w)
    w = b.map(call("divide", w, total))
    return [w] if b.rng.random() < 0.5 else [b.einsum("BE", w, b.param("KE"))]


def into(b: Builder) -> list[str]:
    """Tokens to their experts, and one matrix of each expert."""
    _experts(b)
    x = b.input("BE")
    _, m = _mask(b, x)
    e = b.einsum("BKE", m, x)
    u = b.einsum("BKF", e, b.param("KEF"))
    if b.rng.random() < 0.5:
        u = _bent(b, u)
    return [b.einsum("BF", u)] if b.rng.random() < 0.5 else [u]


def back(b: Builder) -> list[str]:
    """What experts have, summed over them with weights; sometimes beside what was there."""
    _experts(b)
    h = b.input("BKF")
    s, m = _mask(b, b.input("BE"))
    w = b.map(call("multiply", m, s)) if b.rng.random() < 0.5 else m
    y = b.einsum("BE", w, b.einsum("BKF", m, h), b.param("KFE"))
    return [b.sum(y, b.input("BE"))] if b.rng.random() < 0.5 else [y]


def whole(b: Builder) -> list[str]:
    """There, a matrix, and back."""
    _experts(b)
    x = b.input("BE")
    _, m = _mask(b, x)
    e = b.einsum("BKE", m, x)
    d = b.einsum("BKH", e, b.param("KEH"))
    return [b.einsum("BH", m, d)]


def gated(b: Builder) -> list[str]:
    """Two products of what is chosen, multiplied or added."""
    _experts(b)
    x = b.input("BE")
    _, m = _mask(b, x)
    e = b.einsum("BKE", m, x) if b.rng.random() < 0.5 else m
    u, g = b.einsum("BKF", e, b.param("KEF")), b.einsum("BKF", m, b.input("BF"))
    h = b.sum(u, g) if b.rng.random() < 0.5 else b.map(call("multiply", call("relu", g), u))
    return [b.einsum("BF", h)]


def loads(b: Builder) -> list[str]:
    """What each expert gets of all tokens: summed over these, and no longer chosen."""
    _experts(b)
    x = b.input("BE")
    _, m = _mask(b, x)
    if b.rng.random() < 0.3:
        return [b.einsum("K", m)]
    sums = b.einsum("KE", m, x)
    return [b.einsum("KF", sums, b.param("EF"))] if b.rng.random() < 0.5 else [sums]


def groups(b: Builder) -> list[str]:
    """Groups chosen first, then experts among them."""
    _experts(b)
    s = b.einsum("BVK", b.input("BE"), b.param("EVK")) if b.rng.random() < 0.5 else b.input("BVK")
    p = b.map(call("exp", s))
    best = b.choose(b.reduce(p, "K"), "V", b.rng.randint(1, b.sizes["V"]))
    q = b.map(call("multiply", best, p), b.dims(p))
    m = b.choose(q, "VK", b.rng.randint(1, b.sizes["K"]))
    if b.rng.random() < 0.5:
        return [b.einsum("BV", m, q)]
    return [b.einsum("BF", b.einsum("BVKE", m, b.input("BE")), b.param("VKEF"))]


def once(b: Builder) -> list[str]:
    """Tokens to groups of experts, once to each that has one of theirs, and one sum back."""
    _experts(b)
    x, s = b.input("BE"), b.input("BVK")
    if b.rng.random() < 0.4:
        best = b.choose(b.reduce(s, "K"), "V", b.rng.randint(1, b.sizes["V"]))
        s = b.map(call("multiply", best, s), b.dims(s))
    m = b.choose(s, "VK", b.rng.randint(1, b.sizes["K"]))
    c = b.einsum("BVE", b.reduce(m, "K"), x)
    if b.rng.random() < 0.3:
        return [b.einsum("BVH", c, b.param("VEH"))]
    u = b.einsum("BVKF", b.einsum("BVKE", m, c), b.param("VKEF"))
    return [b.einsum("BF", b.einsum("BVF", m, u))]


CHOSEN: dict[str, Family] = {f.__name__: f for f in (router, into, back, whole, gated, loads, groups, once)}
