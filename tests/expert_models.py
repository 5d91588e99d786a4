"""Generated layers of experts, with layouts pinned at random, so that tokens find their experts in all ways."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, parse
from escc.cost.hardware import Hardware
from escc.ir.choices import with_capacity
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.pins import parse_pins
from escc.passes.options import Options

SIZES = {"B": 48, "E": 24, "F": 48, "S": 24, "N": 24, "Y": 4, "X": 24}
MESHES = ("1", "2", "4", "2x2", "3x2", "2x4", "2x2x2")


@dataclass(frozen=True)
class Layer:
    """The text of a model, its mesh, and lines of pins."""

    text: str
    mesh: str
    pins: str

    def compiled(self, capacity: Fraction | None = None) -> CompiledPhase:
        """Its plan: the search finds what is not pinned."""
        program = with_capacity(parse(self.text), capacity)
        program = replace(program, pins=parse_pins(Source("layer.pins", self.pins), program))
        return compile_phase(program, "main", Mesh.parse(self.mesh), Options(Hardware.of_paper("tpu-v4")))


def layer(seed: int) -> Layer:
    """The layer of a seed: experts in groups or not, with biases and shared experts or not, in a repeat or not."""
    rng = random.Random(seed)
    mesh, t = rng.choice(MESHES), rng.choice(["B", "B,L"])
    grouped, bias, shared, repeated = (rng.random() < share for share in (0.3, 0.4, 0.4, 0.4))
    keep = rng.choice([1, 2, 5])
    first = ["best = max(r, over=Y)", "mg = choose(best, over=N, keep=2)"] if grouped else []
    lines = [
        "param Wr: f32[E,X]",
        "param Wi, Wg: bf16[X,E,F]",
        "param Wd: bf16[X,F,E]",
        f"s[{t},X] = n[{t},E] * Wr[E,X]",
        "r = sigmoid(s)",
        *first,
        f"m = choose(r, over=X, keep={keep}{', among=mg' if grouped else ''})",
        f"w = {rng.choice(['m * r', 'm * r / sum(m * r, over=X)'])}",
        f"t[{t},X,E] = m[{t},X] * n[{t},E]",
        f"u[{t},X,F] = t[{t},X,E] * Wi[X,E,F]",
        f"g[{t},X,F] = t[{t},X,E] * Wg[X,E,F]",
        *(["param bi: bf16[X,F]", f"b[{t},X,F] = m[{t},X] * bi[X,F]"] if bias else []),
        f"h = silu(g) * {'(u + b)' if bias else 'u'}",
        f"d[{t},X,E] = h[{t},X,F] * Wd[X,F,E]",
        f"y[{t},E] = w[{t},X] * d[{t},X,E]",
        *(
            ["param Ws: bf16[E,S]", f"z[{t},S] = n[{t},E] * Ws[E,S]", f"v[{t},E] = z[{t},S] * Ws[E,S]"]
            if shared
            else []
        ),
        f"return n + y{' + v' if shared else ''}",
    ]
    kind, inner = f"bf16[{t},E]", "".join(f"  {line}\n" for line in lines)
    text = f"main(n: {kind}) {{\n{inner}}}\n"
    if repeated:
        text = f"block layer(n: {kind}) -> {kind} {{\n{inner}}}\nmain(n: {kind}) {{ return repeat 3 layer(n) }}\n"
    sizes = {"L": rng.choice([1, 4])} | {d: n for d, n in SIZES.items() if d != "X" or not grouped}
    groups = "dim X = N * Y\n" if grouped else ""
    dims = f"dim {', '.join(f'{d} = {n}' for d, n in sizes.items())}\n{groups}"
    chips, experts = Mesh.parse(mesh), ["N", "Y"] if grouped else ["X"]
    first_layout = _layout(rng, chips, [*experts, "E", "F"])
    pins = [f"stored n {_layout(rng, chips, [*t.replace(',', ''), 'E'])}"]
    for name, own in (("Wi", "EF"), ("Wg", "EF"), ("Wd", "FE")):
        if rng.random() < 0.8:
            alike = rng.random() < 0.7 and name != "Wd"
            layout = first_layout if alike else _layout(rng, chips, [*experts, *own])
            pins.append(f"stored {'layer.' if repeated else ''}{name} {layout}")
    return Layer(dims + text, mesh, "\n".join(pins) + "\n")


def _layout(rng: random.Random, mesh: Mesh, dims: Sequence[str]) -> str:
    """A layout in which axes split what they can: the first dim as often as all others."""
    split = {dim: list[str]() for dim in dims}
    for axis in rng.sample(mesh.names, len(mesh.names)):
        dim = rng.choice([dims[0], rng.choice(dims)])
        if rng.random() < 0.9 and SIZES.get(dim, 1) % mesh.size(axis, *split[dim]) == 0:
            split[dim].append(axis)
    return "".join(dim + (f"_{''.join(own)}" if own else "") for dim, own in split.items())
