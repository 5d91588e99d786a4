"""Which blocks of scores masks hide: counted beside brute force over the masks, and as emitted modules run them."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from emitted_files import run_files

from escc.compiler import emit
from escc.compiler.plan.pipeline import compile_phases
from escc.cost import hidden, scores
from escc.cost.attention import attentions
from escc.cost.estimate import local_bytes
from escc.cost.formulas.symbolic import symbolic
from escc.cost.hardware import Hardware
from escc.cost.hidden import Shown, run_share, shown
from escc.cost.memory import points
from escc.cost.scores import block_places, local_sizes
from escc.cost.shown_blocks import runs
from escc.ir.diagnostics import Source
from escc.ir.expr import Const, Context, Operand, Size
from escc.ir.mesh import Mesh
from escc.ir.spmd import SpmdProgram, unsharded
from escc.ir.text.read import parse
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify
from escc.passes.expansion.arguments import add, subtract
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

PROGRAM = """\
sharded "attention" main on x=2 y=2
sizes B=2 L={new} M={places} T={context} Q=2
input q: bf16 BL{l}Q
input k: bf16 BLQ
input e: bf16 BLQ
cache keys: bf16 BM{m}Q
cache every: bf16 BTQ
ks  bf16 BM{m}Q  = append(keys, k, L into M{of})
es  bf16 BTQ     = append(every, e, L into T)
at  f32 L{l}     = iota(L)
to  f32 M{m}     = iota(M)
{made}
s   bf16 BL{l}M{m} = q[B,L,Q] * ks[B,M,Q]
c   bf16 BL{l}M{m} = {scores}
m   f32 BL{l}{whole}  = max(c, over=M)
{moved}e1  bf16 BL{l}M{m} = exp(c - where(equal({top}, -inf), 0, {top}))
u   f32 BL{l}{part}    = e1[B,L,M]
{summed}p   bf16 BL{l}M{m} = e1 / where(equal({total}, 0), 1, {total})
o   bf16 BL{l}Q{part}  = p[B,L,M] * ks[B,M,Q]
{made_whole}return {result}, es
"""
HERE = "at + (context({place}) - size(L))"
SEEN = "where(less_equal({key}, " + HERE + "), {inner}, -inf)"


def masked(rng: random.Random) -> tuple[str, str, Callable[[int, int], bool], int, int, int, bool]:
    """What makes limits, the masked scores, the mask by its meaning, sizes (new, slots, context), whether it wraps."""
    new = rng.choice([8, 12, 24])
    context = new + rng.choice([0, 4, 12])
    kind = rng.choice(["causal", "window", "chunk", "wraps"])
    reach = rng.choice([2, 5, 8])

    def causal(query: int, key: int) -> bool:
        return key <= query

    if kind == "causal":
        return "", SEEN.format(key="to", place="M", inner="s"), causal, new, context, context, False
    if kind == "wraps":
        context += 4 * reach
        slots = new + 8
        made = "pl  f32 M{m}     = to + size(M) * floor((context(T) - 1 - to + 0.5) / size(M))\n"
        made += f"fi  f32 L{{l}}     = maximum(({HERE.format(place='T')}) - {reach - 1}, 0)"
        inner = "where(less_equal(fi, pl), s, -inf)"

        def wrapped(query: int, slot: int) -> bool:
            key = max(p for p in range(-slots, context) if p % slots == slot)
            return max(query - reach + 1, 0) <= key <= query

        return made, SEEN.format(key="pl", place="T", inner=inner), wrapped, new, slots, context, True
    here = HERE.format(place="M")
    first = f"({here}) - {reach - 1}" if kind == "window" else f"{reach} * floor(({here} + 0.5) / {reach})"
    inner = "where(less_equal(fi, to), s, -inf)"

    def near(query: int, key: int) -> bool:
        low = query - reach + 1 if kind == "window" else query // reach * reach
        return low <= key <= query

    made = f"fi  f32 L{{l}}     = {first}"
    return made, SEEN.format(key="to", place="M", inner=inner), near, new, context, context, False


def program(rng: random.Random) -> tuple[SpmdProgram, Callable[[int, int], bool], bool]:
    made, scores, mask, new, slots, context, wraps = masked(rng)
    over, along = rng.choice(["", "_x", "_xy"]), rng.choice(["", "_y"])
    if over == "_xy":
        along = ""
    axis = along[1:]
    moved = f"mt  f32 BL{over} = all-reduce({axis}) of m\n" if axis else ""
    text = PROGRAM.format(
        new=new,
        places=slots,
        context=context,
        l=over,
        m=along,
        of=", of=T" if wraps else "",
        made=made.format(l=over, m=along),
        scores=scores,
        whole=f" partialmax-{axis}" if axis else "",
        part=f" partialsum-{axis}" if axis else "",
        moved=moved,
        top="mt" if axis else "m",
        summed=f"ut  f32 BL{over} = all-reduce({axis}) of u\n" if axis else "",
        total="ut" if axis else "u",
        made_whole=f"ot  bf16 BL{over}Q = all-reduce({axis}) of o\n" if axis else "",
        result="ot" if axis else "o",
    )
    spmd = parse_spmd(Source("t.spmd", text))
    verify(spmd)
    return spmd, mask, wraps


def starts(size: int, block: int) -> list[int]:
    return [min(first, size - block) for first in range(0, size, block)]


@pytest.mark.parametrize("seed", range(60))
def test_blocks_that_run_are_those_of_which_a_mask_shows_some(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for module in (scores, hidden):
        monkeypatch.setattr(module, "WHOLE_BYTES", 1)
    monkeypatch.setattr(scores, "BLOCK_BYTES", 48)
    monkeypatch.setattr(scores, "CONTEXT_BLOCK", rng.choice([3, 4]))
    monkeypatch.setattr(scores, "LEAST_BLOCK", 2)
    spmd, mask, wraps = program(rng)
    [one] = attentions(spmd)
    sizes, local = dict(spmd.sizes), local_sizes(spmd.table()[one.masked], spmd)
    height, width = block_places(local["L"], local["M"], local["B"], 16)
    filled = sizes["T"] if wraps else sizes["M"]
    most = 0
    for l0, m0 in product(range(0, sizes["L"], local["L"]), range(0, sizes["M"], local["M"])):
        count = 0
        for first in starts(local["L"], height):
            queries = [filled - sizes["L"] + l0 + first + n for n in range(height)]
            seen = [
                any(mask(q, m0 + start + n) for q in queries for n in range(width))
                for start in starts(local["M"], width)
            ]
            count += max(sum(seen), 1)
        most = max(most, count)
    every = len(starts(local["L"], height)) * len(starts(local["M"], width))
    found = {run_share(each, one_chip(spmd), sizes.__getitem__) for each in shown(spmd).values()}
    assert len(shown(spmd)) == len(one.unmade) + 3
    [share] = found
    if wraps:  # a block whose entries are of two rounds may run for nothing
        assert Fraction(most, every) <= share <= 1
    else:
        assert share == Fraction(most, every)


def one_chip(spmd: SpmdProgram) -> Callable[[str], int]:
    """How much a chip has of each dim that its scores, queries or keys have."""
    values = spmd.table()
    local = {dim: size for name in ("q", "ks", "c") for dim, size in local_sizes(values[name], spmd).items()}
    return local.__getitem__


RUN = """
first, places = jnp.arange(12.0) + (20 - 12), jnp.arange(20.0)
limits = [("M", places, "L", first), ("L", first - {reach}, "M", places)][:{count}]
kept = [l[:, None] <= u if a == "L" else l <= u[:, None] for a, l, _, u in limits]
mask = kept[0] & kept[-1]
q, k, counted = jnp.cos(jnp.arange(48.0).reshape(12, 4)), jnp.sin(jnp.arange(80.0).reshape(20, 4)), []


def scores(q, k, mask):
    jax.debug.callback(lambda: counted.append(1))
    found = jnp.where(mask, q @ k.T, -jnp.inf)
    return found.T if turned else found


@jax.jit
def attended(q, k):
    parts, blocks = [("LQ", q), ("MQ", k), ("LM", mask)], {{"L": {height}, "M": {width}}}
    return attention_in_blocks(scores, parts, "LM,MQ->LQ", k, blocks, jnp.float32, jnp.float32, limits)[0]


@jax.jit
def made(q, k):
    parts, blocks = [("LQ", q), ("MQ", k), ("LM", mask)], {{"L": {height}, "M": {width}}}
    return made_in_blocks(scores, parts, "{out}", blocks, limits)


turned = False
assert jnp.abs(attended(q, k) - jax.nn.softmax(jnp.where(mask, q @ k.T, -jnp.inf)) @ k).max() < 1e-5
jax.effects_barrier()
several, turned = len(counted), "{out}" == "ML"
found = made(q, k).T if turned else made(q, k)
jax.effects_barrier()
assert jnp.abs(jnp.where(mask, found, 0) - jnp.where(mask, q @ k.T, 0)).max() < 1e-5
raise SystemExit(f"{{several}} {{len(counted) - several}}")
"""


def test_modules_run_as_many_blocks_as_are_counted(tmp_path: Path) -> None:
    runtime = (Path(emit.__file__).parent / "jax_scores_runtime.py").read_text()
    texts, counted, rng = {}, {}, random.Random(0)
    for height, width, reach, count in product((4, 5, 12), (3, 4), (2, 7), (1, 2)):
        name = f"{height} {width} {reach} {count}"
        texts[name] = runtime + RUN.format(
            height=height, width=width, reach=reach, count=count, out=rng.choice(["LM", "ML"])
        )
        first = add(Operand("L"), subtract(Context("M"), Size("L")))
        both = ((Operand("M"), first), (subtract(first, Const(reach)), Operand("M")))
        share = runs(both[:count], ("L", "M"), (12, 20), (height, width), (("L", 12), ("M", 20)))
        every = share * len(starts(12, height)) * len(starts(20, width))
        counted[name] = f"{every} {every}"
    assert run_files(texts, tmp_path) == counted
    assert len(set(counted.values())) > 5


MODEL = """
model "attending"
dim B = 8, L = 4096, M = 8192, E = 32, Q = 8, K = 4
param Wq: bf16[E,K,Q]
param Wk: bf16[E,K,Q]
main(x: bf16[B,L,E]) {
  cache keys: bf16[B,M,K,Q] @ LAYOUT
  q[B,L,K,Q] = x[B,L,E] * Wq[E,K,Q]
  k[B,L,K,Q] = x[B,L,E] * Wk[E,K,Q]
  ks = append(keys, k, L into M)
  s[B,L,K,M] = q[B,L,K,Q] * ks[B,M,K,Q]
  p = softmax(s, over=M, mask=causal(L, M, window=512))
  o[B,L,K,Q] = p[B,L,K,M] * ks[B,M,K,Q]
  return o
}
phase prefill { }
"""


@pytest.mark.parametrize("layout", ["BMKQ", "B_xM_yKQ", "BMK_xyQ", "BM_xyKQ"])
def test_the_search_an_estimate_formulas_and_times_of_many_sizes_count_the_same_share(layout: str) -> None:
    source = Source("a.esti", MODEL.replace("LAYOUT", layout))
    chip = Hardware.of_paper("tpu-v4")
    options = Options(chip)
    [one] = compile_phases(expand(parse(source), source), ["prefill"], Mesh.parse("2x2"), options)
    found = shown(one.spmd)  # compiling compares what the search and the estimate count
    assert found == shown(unsharded(one.program, "prefill", one.spmd.mesh))
    values, sizes = one.spmd.table(), dict(one.spmd.sizes)
    [attends] = attentions(one.spmd)
    assert set(found) == {*attends.unmade, attends.largest.result, attends.sum.result, attends.product.result}
    local = local_sizes(values[attends.masked], one.spmd)
    share = run_share(found[attends.shares], local.__getitem__, sizes.__getitem__)
    assert 0 < share < 1
    done = {op.result: op for op in one.estimate.ops}
    pairs = local["B"] * local["L"] * local["K"] * local["M"]
    assert done[attends.scores[0].result].flops == pytest.approx(2 * pairs * 8 * float(share))
    written = symbolic(one.spmd, chip)
    flops = {op.result: written.value(op.flops) for op in written.ops}
    assert flops == pytest.approx({name: op.flops for name, op in done.items()})
    new = np.array([1024.0, 4096.0, 8.0, 1024.0])
    several = run_share(
        found[attends.shares],
        lambda d: new * local["L"] / sizes["L"] if d == "L" else float(local[d]),
        lambda d: new if d == "L" else float(sizes[d]),
    )
    assert several[1] == float(share)
    assert several[2] == 1  # few scores are made whole
    assert several[0] == several[3] < 1


@pytest.mark.parametrize(("query", "cut"), [("L", {"L", "M"}), (None, {"B", "M"})])
def test_of_one_query_what_is_read_has_all_indices_of_scores_that_masks_cut(query: str | None, cut: set[str]) -> None:
    """Of many it has the query and the key."""
    scores = ("B", *([query] if query else []), "M")
    assert Shown(scores, query, "M", (), 16, 32, (query, "M"), ()).cut == cut


def test_of_scores_that_two_attentions_read_each_reads_the_blocks_that_it_runs() -> None:
    """They are written whole by what makes them, and held whole."""
    other = "  w = softmax(s, over=M, mask=causal(L, M))\n  t[B,L,K,Q] = w[B,L,K,M] * ks[B,M,K,Q]\n  return o, t"
    source = Source("a.esti", MODEL.replace("LAYOUT", "BM_xyKQ").replace("  return o", other))
    chip = Hardware.of_paper("tpu-v4")
    [one] = compile_phases(expand(parse(source), source), ["prefill"], Mesh.parse("2x2"), Options(chip))
    values, sizes, done = one.spmd.table(), dict(one.spmd.sizes), {op.result: op for op in one.estimate.ops}
    assert [attends.masked for attends in attentions(one.spmd)] == ["p.masked", "w.masked"]
    assert any("s" in [live.name for live in point.live if not live.form] for point in points(one.spmd))
    whole, local = float(local_bytes(values["s"], one.spmd)), local_sizes(values["s"], one.spmd)
    shares = [float(run_share(shown(one.spmd)[f"{n}.masked"], local.__getitem__, sizes.__getitem__)) for n in "pw"]
    assert 0 < shares[0] < shares[1] < 1
    assert [done[f"{n}.masked"].hbm_bytes for n in "pw"] == pytest.approx([share * whole for share in shares])
    assert done["s"].hbm_bytes > whole
    written = symbolic(one.spmd, chip)
    moved = {op.result: written.value(op.hbm_bytes) for op in written.ops}
    assert moved == pytest.approx({name: op.hbm_bytes for name, op in done.items()})


def test_scores_that_are_parts_of_a_sum_are_made_whole() -> None:
    limit = Operand("M"), Operand("L")
    one = Shown(("B", "L", "M"), "L", "M", ("Q",), 16, 16, ("L", "M"), (limit,))
    sizes = {"B": 64, "L": 2**14, "M": 2**14, "Q": 2}
    assert run_share(one, sizes.__getitem__, sizes.__getitem__) < 1
    assert run_share(one, (sizes | {"Q": 1}).__getitem__, sizes.__getitem__) == 1
    assert run_share(None, sizes.__getitem__, sizes.__getitem__) == 1


@pytest.mark.parametrize(("keep", "share"), [(8192, None), (512, 512 / 8192)])
def test_of_chosen_scores_those_that_a_mask_shows_count_or_those_that_are_kept(keep: int, share: float | None) -> None:
    text = MODEL.replace("LAYOUT", "BMK_xyQ").replace(", window=512", "")
    text = text.replace("  s[B,L,K,M] = ", f"  m = choose(i, over=M, keep={keep})\n  s[B,L,K,M] = m[B,L,M] * ")
    text = text.replace("x: bf16[B,L,E]", "x: bf16[B,L,E], i: f32[B,L,M]").replace(
        "causal(L, M))", "causal(L, M), among=m)"
    )
    source = Source("a.esti", text)
    [one] = compile_phases(
        expand(parse(source), source), ["prefill"], Mesh.parse("2x2"), Options(Hardware.of_paper("tpu-v4"))
    )
    [attends] = attentions(one.spmd)
    local, sizes = local_sizes(one.spmd.table()[attends.masked], one.spmd), dict(one.spmd.sizes)
    seen = run_share(shown(one.spmd)[attends.masked], local.__getitem__, sizes.__getitem__)
    assert 0.5 < seen < 1
    done = {op.result: op for op in one.estimate.ops}[attends.product.result]
    pairs = local["B"] * local["L"] * local["K"] * local["M"]
    assert done.flops == pytest.approx(2 * pairs * 8 * float(share or seen))
