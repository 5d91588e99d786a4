"""Random models in the surface language, from a seed: whatever a person may write that is small.

Scalars, dims of size 1 and of sizes that no axis divides, lookups, the largest and where they stand, caches of one
dim and more, repeats, padding, numbers alone, several phases; and meshes of odd axes.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from escc.ir.mesh import Mesh

SIZES = [1, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 24, 30]
FIXED = "EFGHQ"
TAME = ["tanh", "erf", "sigmoid", "gelu", "gelu_exact", "silu", "relu", "abs"]
WILD = ["exp", "log", "sqrt", "rsqrt"]
NUMBERS = ["0", "1", "2", "0.5", "3", "-2", "size(E)", "sqrt(size(F))", "1 / size(E)", "silu(2)", "-0.0"]
WILD_NUMBERS = ["3e9", "1e12", "1 / 0", "log(0)", "exp(1000)", "sqrt(-1)", "power(0, -1)", "1 / (size(E) - size(E))"]
PLAIN_FORMS = ["{x} + {n}", "{x} * {n}", "{n} - {x}", "maximum({x}, {n})", "minimum({n}, {x})", "swiglu({n}, {x})"]
WILD_FORMS = ["{x} / {n}", "{n} / {x}", "power({x}, {n})"]
PAIRS = ["{x} * {y}", "{x} + {y}", "{x} - 2 * {y}", "maximum({x}, {y})", "minimum({x}, {y})", "{x} / (1 + abs({y}))"]
WILD_PAIRS = ["{x} / {y}", "power({x}, {y})"]
KINDS = [
    *("product", "product", "product", "number", "unary", "binary", "binary", "sum", "reduce", "softmax", "norm"),
    *("take", "take", "argmax", "top_k", "top_k", "last", "positions", "append", "append", "repeat", "gate", "scalar"),
    *("experts", "experts"),
]


@dataclass(frozen=True)
class Generated:
    """A model as text, and a mesh. `wild`: its numbers may become infinite or none at all."""

    text: str
    mesh: Mesh
    wild: bool


def generate(seed: int, most_chips: int = 60) -> Generated:
    """The model and the mesh of a seed."""
    rng = random.Random(seed)
    writer = _Writer(rng, wild=rng.random() < 0.1)
    text = writer.model()
    return Generated(text, _mesh(rng, most_chips), writer.wild)


def _mesh(rng: random.Random, most: int) -> Mesh:
    while True:
        sizes = [rng.choice([2, 3, 4, 5]) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
        mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
        if mesh.chips <= most:
            return mesh


@dataclass
class _Writer:
    """A model in the making. `floats` and `ids`: values with their dims; of ids also the dims that they are rows of."""

    rng: random.Random
    wild: bool
    lines: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    floats: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ids: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        self.fixed = {d: rng.choice(SIZES) for d in FIXED} | {"V": rng.choice(SIZES), "W": rng.choice([1, 2, 3, 5])}
        self.fixed["K"] = rng.choice([1, 2, 2, 3])
        self.padded = rng.random() < 0.2
        self.phases = []
        context = rng.choice([4, 6, 8, 10, 12, 15])
        for name in rng.choice([["only"], ["only"], ["prefill", "decode"], ["one", "two", "three"]]):
            new = 1 if name == "decode" else rng.choice([1, 2, 3, context])
            self.phases.append((name, {"B": rng.choice(SIZES), "L": min(new, context), "M": context}))
        self.fixed["P"] = context + rng.choice([0, 0, 3, 8])

    def model(self) -> str:
        """The whole text."""
        for _ in range(self.rng.randint(1, 3)):
            self.input(self.dims(3))
        for _ in range(self.rng.randint(1, 7)):
            getattr(self, self.rng.choice(KINDS))()
        made = [*self.floats, *self.ids, *self.chosen]
        results = self.rng.sample(made, min(len(made), self.rng.randint(1, 3)))
        if made[-1] not in results:
            results.append(made[-1])
        sizes = ", ".join(f"{d} = {n}" for d, n in self.fixed.items() if d != "H" or not self.padded)
        pad = f"dim H = {self.fixed['H']} pad {self.fixed['H'] + self.rng.choice([1, 2, 6])}\n" if self.padded else ""
        phases = "\n".join(
            f"phase {name} {{ {', '.join(f'{d} = {n}' for d, n in bound.items())} }}" for name, bound in self.phases
        )
        body = "\n".join(f"  {line}" for line in [*self.lines, f"return {', '.join(results)}"])
        blocks = "".join(f"{block}\n" for block in self.blocks)
        head = f'model "generated"\ndim B, L, M\ndim {sizes}\n{pad}'
        return f"{head}{blocks}main({', '.join(self.arguments)}) {{\n{body}\n}}\n{phases}\n"

    # Names, dims and what is stored

    def new(self, letter: str = "v") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def dims(self, most: int, among: str = "BLEFGHQ") -> tuple[str, ...]:
        return tuple(self.rng.sample(among, min(self.rng.randint(0, most), len(among))))

    def smallest(self, dim: str) -> int:
        """The size of a dim in the phase in which it is smallest."""
        return min(bound.get(dim, self.fixed.get(dim, 0)) for _, bound in self.phases)

    def kind(self) -> str:
        """The type of a value."""
        return self.rng.choice(["f32", "f32", "bf16", "bf16", "f16"])

    def input(self, dims: tuple[str, ...]) -> str:
        name = self.new("x")
        self.arguments.append(f"{name}: {self.kind()}[{','.join(dims)}]")
        self.floats[name] = dims
        return name

    def param(self, dims: tuple[str, ...], scaled: bool = True) -> str:
        """A parameter of these dims; an input where its size is not that of all phases."""
        if len(self.phases) > 1 and set(dims) & set("BLM"):
            return self.input(dims)
        name = self.new("w")
        kind, scale = self.kind(), ""
        if scaled and self.rng.random() < 0.15 and not {"H", "B", "L", "M"} & set(dims):
            kind = self.rng.choice(["int8", "fp8", "fp4"])
            kept = [d for d in dims if self.rng.random() < 0.5]
            scale = f" * f32[{','.join(kept)}]" if self.rng.random() < 0.7 else ""
        self.lines.append(f"param {name}: {kind}[{','.join(dims)}]{scale}")
        return name

    def some(self) -> str:
        return self.rng.choice(list(self.floats)[-4:])

    def set(self, name: str, dims: tuple[str, ...], text: str) -> None:
        left = f"{name}: {self.kind()}" if self.rng.random() < 0.1 else name
        self.lines.append(f"{left} = {text}")
        self.floats[name] = dims

    def union(self, *names: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d for n in names for d in self.floats[n]))

    # Statements

    def product(self) -> None:
        a = self.some()
        if self.rng.random() < 0.2:
            parts = [(a, self.floats[a])]
        else:
            other = [n for n in self.floats if len(set(self.floats[n]) | set(self.floats[a])) <= 4]
            b = self.rng.choice(other)
            dims = self.floats[b]
            if self.rng.random() < 0.5:
                shared = self.rng.sample(self.floats[a], min(1, len(self.floats[a])))
                dims = tuple(dict.fromkeys([*shared, *self.dims(1)]))
                b = self.param(dims)
            parts = [(a, self.floats[a]), (b, dims)]
        every = list(dict.fromkeys(d for _, dims in parts for d in dims))
        out = tuple(self.rng.sample(every, self.rng.randint(0, min(3, len(every)))))
        name = self.new()
        text = " * ".join(f"{n}[{','.join(dims)}]" for n, dims in parts)
        self.lines.append(f"{name}[{','.join(out)}] = {text}")
        self.floats[name] = out

    def number(self) -> None:
        numbers = NUMBERS + (WILD_NUMBERS if self.wild else [])
        x, n = self.some(), self.rng.choice(numbers)
        form = self.rng.choice(PLAIN_FORMS + (WILD_FORMS if self.wild else []))
        self.set(self.new(), self.floats[x], form.format(x=x, n=f"({n})"))

    def scalar(self) -> None:
        """A stored value without dims."""
        if self.rng.random() < 0.5:
            self.set(self.new(), (), f"{self.param(())} * {self.rng.choice(['2', 'size(B)', '-1'])}")
        else:
            numbers = NUMBERS + (WILD_NUMBERS if self.wild else [])
            self.set(self.new(), (), f"{self.param(())} / ({self.rng.choice(numbers)} + 2)")

    def unary(self) -> None:
        x, name = self.some(), self.rng.choice(TAME + (WILD if self.wild else []))
        self.set(self.new(), self.floats[x], f"{name}({x})")

    def covered(self, x: str) -> str:
        """A value whose dims are among those of `x`."""
        return self.rng.choice([n for n in self.floats if set(self.floats[n]) <= set(self.floats[x])])

    def gate(self) -> None:
        x, y = self.some(), self.some()
        if set(self.floats[y]) <= set(self.floats[x]):
            self.set(self.new(), self.floats[x], f"{self.rng.choice(['swiglu', 'geglu'])}({x}, {y})")

    def binary(self) -> None:
        x = self.some()
        y = self.covered(x)
        form = self.rng.choice(PAIRS + (WILD_PAIRS if self.wild else []))
        self.set(self.new(), self.floats[x], form.format(x=x, y=y))

    def sum(self) -> None:
        x = self.some()
        names = list(dict.fromkeys([x, *(self.covered(x) for _ in range(self.rng.randint(0, 3)))]))
        self.rng.shuffle(names)
        if names:
            terms = [self.rng.choice(["{n}", "2 * {n}", "{n} / 3", "-{n}", "tanh({n})"]).format(n=n) for n in names]
            self.set(self.new(), self.floats[x], " + ".join(terms))

    def over(self, x: str, most: int = 2, without: str = "") -> tuple[str, ...]:
        """Some dims of a value in any order; none where it has none that will do."""
        dims = [d for d in self.floats[x] if d not in without]
        return tuple(self.rng.sample(dims, min(len(dims), self.rng.randint(1, most)))) if dims else ()

    def reduce(self) -> None:
        x = self.some()
        over = self.over(x, 3)
        if over:
            rest = tuple(d for d in self.floats[x] if d not in over)
            self.set(self.new(), rest, f"{self.rng.choice(['sum', 'max', 'mean'])}({x}, over=[{','.join(over)}])")

    def softmax(self) -> None:
        x = self.some()
        over = self.over(x)
        if over:
            narrow = self.rng.choice(["", ", window=2", ", chunk=3"])
            causal = {"L", "M"} <= set(self.floats[x]) and self.rng.random() < 0.7
            mask = f", mask=causal(L, M{narrow})" if causal else ""
            rest = tuple(d for d in self.floats[x] if d not in over)
            sink = f", sink={self.param(rest)}" if self.rng.random() < 0.3 else ""
            self.set(self.new(), self.floats[x], f"softmax({x}, over=[{','.join(over)}]{mask}{sink})")

    def norm(self) -> None:
        x = self.some()
        over = self.over(x)
        if over:
            scale = self.param(tuple(d for d in self.floats[x] if d in over))
            self.set(
                self.new(),
                self.floats[x],
                f"{self.rng.choice(['rmsnorm', 'layernorm'])}({x}, {scale}, over=[{','.join(over)}])",
            )

    def take(self) -> None:
        if self.ids and self.rng.random() < 0.6:
            ids = self.rng.choice(list(self.ids))
        else:
            ids, over = self.new("t"), self.rng.choice([("V",), ("V",), ("V", "W"), ("W", "V")])
            dims = self.dims(2)
            self.arguments.append(f"{ids}: i32[{','.join(dims)}]")
            self.ids[ids] = (dims, over)
        dims, over = self.ids[ids]
        if not over or "H" in over or set(over) & set(dims) or (len(over) > 1 and len(dims) > 2):
            return
        rest = [d for d in self.dims(2) if d not in (*over, *dims)]
        shared = [d for d in dims[:1] if self.rng.random() < 0.15]
        columns = [*over, *rest, *shared]
        self.rng.shuffle(columns)
        table = self.param(tuple(columns), scaled=len(over) == 1)
        left = [d for d in columns if d not in (*over, *dims)]
        self.set(self.new(), (*dims, *left), f"take({table}, {ids}, over=[{','.join(over)}])")

    def argmax(self) -> None:
        x = self.some()
        over = self.over(x, 2)
        if over:
            name = self.new("i")
            self.lines.append(f"{name} = argmax({x}, over=[{','.join(over)}])")
            dims = tuple(d for d in self.floats[x] if d not in over)
            self.ids[name] = (dims, () if set(over) & {"B", "L", "M"} else over)

    def top_k(self) -> None:
        x = self.some()
        over = self.over(x, 3, "HK")
        if over and self.smallest(over[-1]) >= self.fixed["K"] and "K" not in self.floats[x]:
            values, ids = self.new(), self.new("i")
            self.lines.append(f"{values}, {ids} = top_k({x}, over=[{','.join(over)}], keep=K)")
            dims = (*(d for d in self.floats[x] if d not in over), "K")
            self.floats[values] = dims
            self.ids[ids] = (dims, () if set(over) & {"B", "L", "M"} else over)

    def experts(self) -> None:
        """A mask, products with it, something pointwise, and a product that sums what was chosen from, or not."""
        x, k = self.some(), self.rng.randint(1, 3)
        over = self.over(x, 2)
        if self.wild or not over or math.prod(self.smallest(d) for d in over) < k:
            return
        mask, e = self.new("m"), self.new("e")
        self.lines.append(f"{mask} = choose({x}, over=[{','.join(over)}], keep={k})")
        y = self.rng.choice([n for n in self.floats if len({*self.floats[n], *self.floats[x]}) <= 4])
        dims = self.shuffled(self.union(x, y))
        self.lines.append(f"{e}[{dims}] = {mask}[{','.join(self.floats[x])}] * {y}[{','.join(self.floats[y])}]")
        bent = self.rng.choice(["relu({e})", "silu({e}) * {e}", "{e} * 3", "exp({e} / 9) * {m}", "{e} - tanh({e})"])
        h = self.new("h")
        self.lines.append(f"{h} = {bent.format(e=e, m=mask)}")
        self.chosen += [mask, e, h]
        every = self.union(x, y)
        weights = tuple(dict.fromkeys([*over, *self.dims(1, "EFGQ")]))
        out = tuple(d for d in dict.fromkeys((*every, *weights)) if d not in over or self.rng.random() < 0.2)[:4]
        name, w = self.new(), self.param(weights)
        self.lines.append(f"{name}[{','.join(out)}] = {h}[{dims}] * {w}[{','.join(weights)}]")
        if set(self.floats[x]) <= set(out):
            self.chosen.append(name)
        else:
            self.floats[name] = out

    def shuffled(self, dims: tuple[str, ...]) -> str:
        return ",".join(self.rng.sample(dims, len(dims)))

    def last(self) -> None:
        x = self.some()
        if "L" in self.floats[x]:
            self.set(self.new(), tuple(d for d in self.floats[x] if d != "L"), f"last({x}, over=L)")

    def positions(self) -> None:
        name = self.new("i")
        self.lines.append(f"{name} = positions(L into M)")
        self.ids[name] = (("L",), ("P",))

    def append(self) -> None:
        cache, result = self.new("c"), self.new()
        rest = list(self.dims(2, "BEFGQ"))
        dims = [*rest, "M"]
        self.rng.shuffle(dims)
        wanted = tuple("L" if d == "M" else d for d in dims)
        same = [n for n in self.floats if self.floats[n] == wanted]
        new = self.rng.choice(same) if same and self.rng.random() < 0.7 else self.input(wanted)
        kind = self.rng.choice(["f32", "bf16", "bf16", "f16"])
        self.lines += [f"cache {cache}: {kind}[{','.join(dims)}]", f"{result} = append({cache}, {new}, L into M)"]
        self.floats[result] = tuple(dims)
        if self.rng.random() < 0.3:
            self.floats[cache] = tuple(dims)  # as it was before

    def repeat(self) -> None:
        x = self.some()
        dims, block = self.floats[x], self.new("block")
        listed, turned = ",".join(dims), ",".join(self.rng.sample(dims, len(dims)))
        kind = "f32"
        if len(self.phases) > 1 and set(dims) & set("BLM"):
            return
        lines = [f"param w: {self.kind()}[{listed}]"]
        product = f"z[{turned}] = x[{listed}] * w[{listed}]\n  r = relu(z)\n  y[{listed}] = r[{turned}] * w[{listed}]"
        middle = self.rng.choice(["y = tanh(x * w)", product, "y = x + 2 * w"])
        if "L" in dims and "M" not in dims and self.rng.random() < 0.6:
            grown = ",".join("M" if d == "L" else d for d in dims)
            lines += [f"cache c: {self.kind()}[{grown}]", "k = append(c, x, L into M)", "s = max(k, over=M)"]
            middle = "y = x * w + s / 8"
        lines += [*middle.split("\n  "), f"h: {kind} = x / 2 + y", "return h"]
        body = "\n".join(f"  {line}" for line in lines)
        self.blocks.append(f"block {block}(x: {kind}[{listed}]) -> {kind}[{listed}] {{\n{body}\n}}")
        start, name = self.new(), self.new()
        self.lines += [
            f"{start}: {kind} = {x} * 1",
            f"{name} = repeat {self.rng.choice([1, 2, 3, 7])} {block}({start})",
        ]
        self.floats[name] = dims


# A decoder of five layers with caches and a tied table, in two phases.
TINY_DECODER = """
model "tiny"
dim B, L, M
dim E = 64, F = 128, H = 4, Q = 16, V = 96
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk, Wv: bf16[E,H,Q]
  param Wo: bf16[H,Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys, values: bf16[B,M,H,Q]
  q[B,L,H,Q] = x[B,L,E] * Wq[E,H,Q]
  k[B,L,H,Q] = x[B,L,E] * Wk[E,H,Q]
  v[B,L,H,Q] = x[B,L,E] * Wv[E,H,Q]
  ks = append(keys, k, L into M)
  vs = append(values, v, L into M)
  s[B,L,H,M] = q[B,L,H,Q] * ks[B,M,H,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,H,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  u[B,L,F] = a[B,L,E] * Wi[E,F]
  h = relu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}
main(tokens: i32[B,L]) {
  param table: bf16[V,E]
  x = take(table, tokens, over=V)
  y = repeat 5 layer(x)
  logits[B,L,V] = y[B,L,E] * table[V,E]
  return logits
}
phase prefill { B = 4, L = 32, M = 32 }
phase decode { B = 4, L = 1, M = 32, calls = 8 }
"""
# The same layers, three in each repetition, of which two are repetitions themselves.
TINY_GROUPS = TINY_DECODER.replace(
    "main(",
    """block group(x: bf16[B,L,E]) -> bf16[B,L,E] {
  y = repeat 2 layer(x)
  return layer(y)
}
main(""",
).replace("repeat 5 layer(x)", "repeat 3 group(x)")


def in_pairs(model: str) -> str:
    """A model of three repetitions of `layer`, with two layers in each."""
    pair = "block pair(x: bf16[B,L,E]) -> bf16[B,L,E] {\n  y = layer(x)\n  return layer(y)\n}\n"
    return model.replace("main(", f"{pair}main(").replace("repeat 3 layer(x)", "repeat 3 pair(x)")
