"""A mixture of experts as lines of the surface language: whom each token takes, and what these make of it."""

from __future__ import annotations

from collections.abc import Iterator

from .description import Experts, Router
from .dims import ForwardDims
from .rotary import number_text

Tensor = tuple[str, str]  # a name, and dims as the language lists them


def activated(activation: str, value: str) -> str:
    """What an activation makes of a value: a function of the language, or the square of `relu`."""
    return f"relu({value}) * relu({value})" if activation == "relu2" else f"{activation}({value})"


def gated_text(activation: str, g: str, u: str, clamp: float | None) -> str:
    """What a gate and what it multiplies make; `clamp`: where both are cut off."""
    if clamp is None:
        return f"{activated(activation, g)} * {f'({u})' if '+' in u else u}"
    most = number_text(clamp)
    return f"minimum({activated(activation, g)}, {most}) * maximum(minimum({u}, {most}), -{most})"


def expert_tensors(experts: Experts, d: ForwardDims, tag: str = "") -> Iterator[Tensor]:
    """The parameters of experts; `tag` begins the names of their matrices."""
    x, t = d.experts, d.width
    yield "Wr", f"E,{d.whole or x}"
    if experts.router.bias:
        yield "br", d.whole or x
    if experts.router.correction:
        yield "correction", d.whole or x
    if experts.router.own_norm:
        yield "scale_r", "E"
    if experts.router.per_expert:
        yield "scale_x", x
    yield from ((f"W{tag}{name}", f"{x},E,{t}") for name in "ig")
    yield f"W{tag}d", f"{x},{t},E"
    if experts.bias:
        yield from ((f"b{name}", f"{x},{t}") for name in "ig")
        yield "bd", f"{x},E"
    if experts.shared:
        yield from ((f"Ws{name}", f"E,{d.shared}") for name in "ig")
        yield "Wsd", f"{d.shared},E"
        if experts.shared_gate:
            yield "Ws", "E"


def router_lines(router: Router, chosen: int, d: ForwardDims, n: str, dtype: str) -> Iterator[str]:
    """The mask `m` of the experts that each token takes, and their weights `w`. Scores are in f32; what they are
    multiplied into has `dtype`, and so have these."""
    x = d.experts
    if d.whole:
        yield from _idle_lines(router, chosen, d, n, dtype)
        return
    yield f"r: f32[B,L,{x}] = {n}[B,L,E] * Wr[E,{x}]"
    if router.near is not None:
        yield from _near_lines(router.near, d, dtype)
        return
    scores = "r + br" if router.bias else "r"
    yield f"rp = softmax({scores}, over={x})" if router.scores == "softmax" else f"rp = sigmoid({scores})"
    keys = "rp + correction" if router.correction else "rp"
    groups, kept = router.groups
    if groups > 1 and kept < groups:
        yield f"rv = {keys}"
        yield from _group_lines(router, d)
        yield f"m: {dtype} = choose(rv, among=mg, over={x}, keep={chosen})"
    else:
        yield f"m: {dtype} = choose({keys}, over={x}, keep={chosen})"
    weights = f"m * rp / sum(m * rp, over={x})" if router.normalised else "m * rp"
    weights += " * scale_x" if router.per_expert else ""
    yield f"w: {dtype} = {weights}" + (f" * {number_text(router.factor)}" if router.factor != 1 else "")


def _idle_lines(router: Router, chosen: int, d: ForwardDims, n: str, dtype: str) -> Iterator[str]:
    """The same where some of those that are chosen leave a token as it is: `idle` is their weight. `same` is 1 at an
    expert's own number among all, and fewer experts than may be taken have a weight that is not 0."""
    x, y = d.experts, d.whole
    keys = "rp + correction" if router.correction else "rp"
    factor = f" * {number_text(router.factor)}" if router.factor != 1 else ""
    yield f"r: f32[B,L,{y}] = {n}[B,L,E] * Wr[E,{y}]"
    yield f"rp = softmax({'r + br' if router.bias else 'r'}, over={y})"
    yield f"all = choose({keys}, over={y}, keep={chosen}) * rp"
    for name, dim in (("nx", x), ("ny", y)):
        yield f"{name}: f32 = positions({dim} into M) - context(M) + size({dim})"
    yield "one = nx * 0 + 1"
    yield f"number[{y},{x}] = ny[{y}] * one[{x}]"
    yield "same = 1 - minimum(abs(number - nx), 1)"
    yield f"wx[B,L,{x}] = all[B,L,{y}] * same[{y},{x}]"
    yield f"m: {dtype} = choose(wx, over={x}, keep={chosen})"
    yield f"w: {dtype} = m * wx{factor}"
    yield f"idle: {dtype} = (sum(all, over={y}) - sum(wx, over={x})){factor}"


def _near_lines(near: float, d: ForwardDims, dtype: str) -> Iterator[str]:
    """The two best experts, each weighed among those near it: `rest` is 0 at the first, and 1 at all others."""
    x, share = d.experts, number_text(near)
    yield f"best, ids = top_k(r, over={x}, keep={d.best})"
    yield f"first = max(best, over={d.best})"
    yield f"second = -max(-best, over={d.best})"
    yield "rest = minimum((first - r) * 1e30, 1)"
    for name in ("first", "second"):
        away = f"({name} - r) / maximum(abs(r), {name})"
        yield f"by_{name} = minimum(floor({share} / maximum({away}, 1e-9)), 1)"
    yield f"w_first = 1 / sum(by_first * exp(r - first), over={x})"
    yield f"w_second = 1 / sum(rest * by_second * exp(minimum(r, second) - second), over={x})"
    yield f"m: {dtype} = choose(r, over={x}, keep=2)"
    yield f"w: {dtype} = m * (rest * w_second + (1 - rest) * w_first)"


def _group_lines(router: Router, d: ForwardDims) -> Iterator[str]:
    """The mask `mg` of the groups: those whose two best experts are best together, or of one whose best is."""
    if router.correction:
        yield f"best, ids = top_k(rv, over={d.each}, keep={d.best})"
        yield f"rg = sum(best, over={d.best})"
    else:
        yield f"rg = max(rv, over={d.each})"
    yield f"mg = choose(rg, over={d.groups}, keep={router.groups[1]})"


def expert_lines(experts: Experts, d: ForwardDims, n: str, tag: str = "") -> Iterator[str]:
    """What the experts make of a token, `e`, and what the shared one does, `sd`; `tag` as of their parameters."""
    x, t = d.experts, d.width
    yield f"t[B,L,{x},E] = {'w' if experts.before else 'm'}[B,L,{x}] * {n}[B,L,E]"
    for name, weight in (("u", "i"), ("g", "g")):
        yield f"{tag}{name}[B,L,{x},{t}] = t[B,L,{x},E] * W{tag}{weight}[{x},E,{t}]"
        if experts.bias:
            yield f"{name}b[B,L,{x},{t}] = m[B,L,{x}] * b{weight}[{x},{t}]"
    u, g = ("u + ub", "g + gb") if experts.bias else (f"{tag}u", f"{tag}g")
    if experts.limit is None:
        yield f"{tag}h = {gated_text(experts.activation, g, u, experts.clamp)}"
    else:
        most = number_text(experts.limit)
        yield f"gl = minimum({g}, {most})"
        yield f"h = (maximum(minimum({u}, {most}), -{most}) + 1) * gl * sigmoid(gl * {number_text(experts.alpha)})"
    yield f"{tag}d[B,L,{x},E] = {tag}h[B,L,{x},{t}] * W{tag}d[{x},{t},E]"
    if experts.before:
        yield f"e[B,L,E] = {tag}d[B,L,{x},E]"
    else:
        yield f"e[B,L,E] = w[B,L,{x}] * {tag}d[B,L,{x},E]"
    if experts.bias:
        yield f"eb[B,L,E] = w[B,L,{x}] * bd[{x},E]"
    if experts.shared:
        s = d.shared
        yield f"su[B,L,{s}] = {n}[B,L,E] * Wsi[E,{s}]"
        yield f"sg[B,L,{s}] = {n}[B,L,E] * Wsg[E,{s}]"
        yield f"sh = {gated_text(experts.activation, 'sg', 'su', experts.shared_clamp)}"
        yield f"sd[B,L,E] = sh[B,L,{s}] * Wsd[{s},E]"
        if experts.shared_gate:
            yield f"sw[B,L] = {n}[B,L,E] * Ws[E]"
            yield "sdw = sd * sigmoid(sw)"
