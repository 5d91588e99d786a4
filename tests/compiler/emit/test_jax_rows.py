"""Packed rows in emitted JAX modules: tokens find their experts in every layout, what overflows is counted, and what
cannot be written on rows is said."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import few_shown
import numpy as np
import pytest
from emitted_files import run_files
from expert_models import Layer, layer
from helpers_exec import Build

from escc.compiler.emit.jax_packed import Packing, packed
from escc.compiler.emit.jax_source import ROWS_RUNTIME, emit_jax
from escc.cost.estimate import estimate, local_bytes
from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.ir.choices import with_room
from escc.ir.chosen import Chosen
from escc.ir.collective import AllGather
from escc.ir.program import Choose, Kind, Program, Reduce
from escc.ir.spmd import SpmdProgram

HARDWARE = Hardware.of_paper("tpu-v4")
SEEDS = (2, 4, 12, 17)  # experts in groups, in a repeat, with biases and shared ones; on three by two chips
TIGHT = Fraction(5, 4)
# Instead of what CPUs lack: every chip sees what all send, and takes the pieces that are for it.
EMULATED = """
def ragged_all_to_all(rows, out, starts, sizes, places, _, *, axis_name):
    every = [lax.all_gather(a, axis_name) for a in (rows, starts, sizes, places)]
    me, ways = lax.axis_index(axis_name), lax.axis_size(axis_name)
    for chip in range(ways):
        sent, start, size, place = (a[chip] for a in every)
        for piece in range(start.shape[0] // ways):
            i = me * (start.shape[0] // ways) + piece
            at = jnp.arange(len(sent))
            inside = (at >= start[i]) & (at < start[i] + size[i])
            out = out.at[jnp.where(inside, at - start[i] + place[i], len(out))].set(sent, mode="drop")
    return out


lax.ragged_all_to_all = ragged_all_to_all
"""

# Rows of three experts, one of which has none, and rows beyond them all: few, many, and more than are taken at a time.
PRODUCTS = """
import numpy as np

weights = np.sin(np.arange(60, dtype=np.float32)).reshape(3, 4, 5)
for rows in (8, 256, 257, 512, 513, 4096, 9000):
    sizes, a = np.array([rows // 3, 0, rows // 2]), np.cos(np.arange(4 * rows, dtype=np.float32)).reshape(rows, 4)
    at = Routing(None, (), 1, rows, 1, (), None, None, jnp.asarray(sizes))
    stack = np.stack([weights * layer for layer in range(4)])

    def both(a, weights, stack):
        alone = expert_dot(a, weights, at, jnp.float32)
        return alone, expert_dot(a, stack[2], at, jnp.float32, (stack, 2))

    found, among = jax.jit(both)(a, weights, stack)
    expert = np.repeat(np.arange(3), sizes)
    wanted = np.einsum("rt,rtc->rc", a[: len(expert)], weights[expert])
    np.testing.assert_allclose(found[: len(expert)], wanted, atol=1e-5)
    assert found.shape == (rows, 5) and not np.any(found[len(expert) :])
    np.testing.assert_allclose(among[: len(expert)], 2 * wanted, atol=1e-5)
    assert among.shape == found.shape and not np.any(among[len(expert) :])
raise SystemExit(0)
"""

# What is added to, and what rows are sent into, is made of what is given: the compiler of GPUs makes what is made of
# nothing for all layers at once. Mixtral's prefill held 3 GB of it.
WAITING = """
def made_of_nothing(function, *given):
    inside = jax.make_jaxpr(function)(*given).jaxpr
    known, found = {id(one) for one in inside.invars}, []
    for each in inside.eqns:
        of_given = [id(one) in known for one in each.invars]
        if each.primitive.name in ("scatter-add", "ragged_all_to_all"):
            found.append(not of_given[("scatter-add", "ragged_all_to_all").index(each.primitive.name)])
        if any(of_given):
            known |= {id(one) for one in each.outvars}
    assert found, inside
    return any(found)

row, a = jnp.zeros(8, jnp.int32), jnp.ones((8, 4), jnp.bfloat16)
at = Routing(jnp.ones((1, 1, 8), bool), (8, 1), 1, 8, 1, (row, row), row, row[None], jnp.ones(1, jnp.int32))
assert not made_of_nothing(lambda a: summed(a, at, (0,)), a)
assert not made_of_nothing(lambda a: block_sums(a, at, at, (0, 1)), a)
assert made_of_nothing(lambda a: jnp.zeros((8, 4), a.dtype).at[row].add(a), a)
for some in (jnp.full(3, jnp.inf, jnp.bfloat16), jnp.full(3, jnp.nan), jnp.full((2, 2), 2**31 - 1, jnp.int32)):
    none = zeros_after(some, (2, 3))
    assert none.shape == (2, 3) and none.dtype == some.dtype and not none.any()
raise SystemExit(0)
"""


def module(one: Layer, capacity: Fraction | None = None) -> str:
    done = one.compiled(capacity)
    assert packed(done.spmd).packings and not packed(done.spmd).reasons, one
    return emit_jax(done.program, done.spmd, done.estimate)


def coded(one: Layer) -> Layer:
    """The layer with matrices of experts as codes, with scales of two places each and zero points."""
    text = one.text.replace("Wi, Wg: bf16[X,E,F]", "Wi, Wg: (int4[X,E,F] - int4[X,E2,F]) * bf16[X,E2,F]")
    text = text.replace("Wd: bf16[X,F,E]", "Wd: int8[X,F,E] * bf16[X,F2,E]")
    return dataclasses.replace(one, text=f"{text}dim E2 = E / 2, F2 = F / 2\n")


def test_generated_layers_agree_with_the_unsharded_program(tmp_path: Path) -> None:
    """One of them in experts that are codes, which are made numbers before rows are multiplied by them."""
    layers = {seed: coded(layer(seed)) if seed == 4 else layer(seed) for seed in SEEDS}
    texts = {str(seed): module(one, TIGHT if seed == 4 else None) for seed, one in layers.items()}
    assert "jnp.repeat(" in texts["4"] and "jnp.repeat(" not in texts["17"]
    made = "\n".join(text.partition("\ndef dense(")[0] for text in texts.values())
    assert all(f"{name}(boxed(" in made for name in ("exchanged", "all_gather", "psum_scatter"))
    assert all(name in made for name in ("arrived(lax.all_gather", "arrived(own_block", "mask_of(", "lax.scan("))
    assert "exchanged(boxed(" not in texts["17"]  # whose rows are of one number each
    ragged = texts.pop("2").replace("cpu=padded, default=ragged", "default=ragged")
    texts["ragged"] = ragged.replace("\n\n\n@dataclass", f"\n\n{EMULATED}\n\n@dataclass", 1)
    texts |= {"products": ROWS_RUNTIME.read_text() + PRODUCTS, "waiting": ROWS_RUNTIME.read_text() + WAITING}
    assert run_files(texts, tmp_path) == dict.fromkeys(texts, "0")


# Two experts of eight for each token, on four chips: a box is four tokens at two experts, and has room for two rows.
SMALL_LAYER = """
dim B = 16, E = 3, X = 8, F = 5
main(n: f32[B,E], s: f32[B,X]) {
  param Wi: f32[X,E,F]
  param Wd: f32[X,F,E]
  m: f32 = choose(s, over=X, keep=2)
  t[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] = t[B,X,E] * Wi[X,E,F]
  h = relu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = m[B,X] * s[B,X] * d[B,X,E]
  return y
}
"""
COUNTING = '''
def main():
    """Exits with 0 where what was dropped is what a box has no room for, and all else is as it should be."""
    rng = np.random.default_rng(0)
    params, n, s = tensors(FULL, lambda shape, dtype, terms=1: rng.standard_normal(shape).astype(dtype))
    y, lost = build(make_mesh())(params, n, s)
    mask = np.zeros((16, 8))
    np.put_along_axis(mask, np.argsort(-s, axis=1)[:, :2], 1, axis=1)
    before = mask.copy()
    for token in range(0, 16, 4):
        for expert in range(0, 8, 2):
            box = mask[token : token + 4, expert : expert + 2]
            for place in np.argwhere(box.T)[2:]:  # by expert, then by token
                box[place[1], place[0]] = 0
    h = np.maximum(np.einsum("bx,be,xef->bxf", mask, n, params["Wi"]), 0)
    expected = np.einsum("bx,bxf,xfe->be", mask * s, h, params["Wd"])
    entries, tokens = lost.sum(0)
    cut = before - mask
    right = lost.shape == (4, 2) and entries == cut.sum() >= tokens == cut.any(1).sum() > 0
    return 0 if right and np.allclose(y, expected, atol=1e-5) else 1


if __name__'''


# One token, whose experts lie on four chips: rows have no token to be told by, and their sum is that of all.
ONE_TOKEN = """
dim B = 1, E = 12, X = 16, F = 8
main(n: f32[B,E]) {
  param Wr: f32[E,X]
  param Wi: f32[X,E,F]
  s[B,X] = n[B,E] * Wr[E,X]
  m: f32 = choose(s, over=X, keep=3)
  t[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] = t[B,X,E] * Wi[X,E,F]
  y[B,F] = m[B,X] * u[B,X,F]
  return y
}
"""


# Each token goes once to every group of experts in which it has one, and comes back as one sum.
ONCE = """
dim B = 64, E = 12, N = 8, Y = 4, F = 10
dim X = N * Y
main(x: f32[B,E]) {
  param Wr: f32[E,X]
  param Wi: f32[X,E,F]
  param Wd: f32[X,F,E]
  s[B,X] = x[B,E] * Wr[E,X]
  m: f32 = choose(s, over=X, keep=3)
  mb = max(m, over=Y)
  c[B,N,E] = mb[B,N] * x[B,E]
  e[B,X,E] = m[B,X] * c[B,N,E]
  u[B,X,F] = e[B,X,E] * Wi[X,E,F]
  h = relu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  z[B,N,E] = m[B,X] * d[B,X,E]
  y[B,E] = z[B,N,E]
  return y
}
"""
ONCE_AMONG_GROUPS = ONCE.replace(
    "  m: f32 = choose(s, over=X",
    "  best = max(s, over=Y)\n  g = choose(best, over=N, keep=3)\n  m: f32 = choose(s, over=X, among=g",
)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_what_finds_no_room_is_dropped_and_counted_and_one_token_and_few_shown_are_right(
    tmp_path: Path,
) -> None:
    pins = "stored n B_xE\nstored s B_xX\nstored Wi X_xEF\nstored Wd X_xFE\n"
    text = module(Layer(SMALL_LAYER, "4", pins), Fraction(1))
    says = "limited(m, 1, (1, 4), cfg.keep_m, cfg.capacity * cfg.keep_m / cfg.X, ())"
    assert "capacity: float = 1.0" in text and says in text
    counting = text.replace("\nif __name__", COUNTING, 1)
    one = module(Layer(ONE_TOKEN, "4", "stored n BE\nstored Wi X_xEF\n"))
    assert "summed(u, m_rows_1, ())" in one
    pins = "stored x B_xyE\nstored Wi N_xY_yEF\nstored Wd N_xY_yFE\n"
    pins += "use e.c B_yN_xE\nresult z BN_xE partialsum-y\n"
    free, grouped = (module(Layer(text, "4x2", pins), Fraction(2)) for text in (ONCE, ONCE_AMONG_GROUPS))
    assert all("of_blocks(c" in text and "block_sums(" in text for text in (free, grouped))
    assert "1 - math.comb(cfg.N * cfg.Y - cfg.Y, cfg.keep_m) / math.comb(cfg.N * cfg.Y, cfg.keep_m)" in _line(free)
    assert "cfg.keep_g / cfg.N * (1 - math.comb(cfg.keep_g * cfg.Y - cfg.Y, cfg.keep_m)" in _line(grouped)
    texts = {"main": text, "counting": counting, "one token": one, "once": free, "among groups": grouped}
    texts |= (shown := {name: few_shown.saving(name, f"{tmp_path}/{n}.npz") for n, name in enumerate(few_shown.PINS)})
    assert all("block_sums(" in text for text in shown.values())
    assert run_files(texts, tmp_path) == dict.fromkeys(texts, "0")
    for n in range(len(shown)):
        few_shown.assert_as_expected(*few_shown.saved(f"{tmp_path}/{n}.npz"))


def test_boxes_have_whole_rows_and_no_more_than_there_can_be() -> None:
    packing = Packing(Chosen("m", ("X",), ("B", "L"), 2), ("B", "L"), ("X",), (4, 1, 4))
    sizes = {"B": 12, "L": 2, "X": 8}  # blocks of six tokens and two experts, where three rows are expected
    rooms = {None: 12, Fraction(1): 3, TIGHT: 4, Fraction(2): 6, Fraction(100): 12}
    assert {capacity: packing.rows(sizes, capacity) for capacity in rooms} == rooms
    assert packing.effective(sizes, TIGHT) == Fraction(4, 3)
    # Of two of eight experts half a token's are in neither group of four with 3 in 14: each has one of 11 tokens in 14.
    blocks = Packing(replace(packing.chosen, over=("N",), merged=((1, "Y"),)), ("B", "L"), ("N",), (2, 1, 2))
    sizes = {"B": 14, "L": 2, "N": 2, "Y": 4}
    rooms = {None: 14, Fraction(1): 11, Fraction(10, 11): 10, Fraction(2): 14}
    assert {capacity: blocks.rows(sizes, capacity) for capacity in rooms} == rooms
    assert blocks.effective(sizes, None) == Fraction(14, 11)
    grouped = replace(blocks, chosen=replace(blocks.chosen, keep=3, within=("g",), groups=("N",), kept_groups=1))
    assert grouped.rows(sizes, Fraction(1)) == 7 == grouped.rows(sizes, None) / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_take_the_memory_that_the_plan_counts(seed: int) -> None:
    spmd = layer(seed).compiled(TIGHT).spmd
    rows = packed(spmd)
    [packing] = rows.packings.values()
    counted = with_room(spmd, {packing.name: packing.effective(rows.sizes, TIGHT)})
    held = [value for value in counted.values if rows.held(value.name)]
    assert held
    for value in held:
        shape = dict(
            zip(value.dims, value.layout.local_shape([rows.sizes[d] for d in value.dims], spmd.mesh), strict=True)
        )
        boxes = int(np.prod(rows.blocks(value.name)))
        row = int(np.prod([shape[d] for d in rows.rest(value.name)])) * value.dtype.bits // 8
        assert local_bytes(value, counted) == boxes * packing.rows(rows.sizes, TIGHT) * row
    assert memory(counted).worst.bytes >= max(local_bytes(value, counted) for value in held)


def built(what: str) -> tuple[Program, SpmdProgram]:
    """A layer of experts in which something stands in the way of rows."""
    b = Build("2", B=8, X=4, E=4, F=6)
    b.stored("n", "B_xE", Kind.INPUT)
    b.stored("s", "B_xX", Kind.INPUT, "f32")
    b.stored("Wi", "XEF")
    b.op(Choose("m", "s", ("X",), 2), "B_xX")
    b.einsum("t", "BX,BE->BXE", "m", "n", layout="B_xXE")
    if what == "no matrices":
        b.move("t'", "t", AllGather(("x",), 0), "BXE")
        b.einsum("y", "BXE->BE", "t'", layout="BE")
        return b.program("y"), b.spmd("y")
    b.einsum("u", "BXE,XEF->BXF", "t", "Wi", layout="B_xXF")
    if what == "a maximum":
        b.op(Reduce("y", "u", ("F",)), "B_xX")
        return b.program("y"), b.spmd("y")
    b.einsum("y", "BXF->BF", "u", layout="B_xF")
    returned = ("u", "y") if what == "returned" else ("y",)
    return b.program(*returned), b.spmd(*returned)


WHOLE = {
    "no matrices": "nothing multiplies them by a matrix for each that is chosen",
    "a maximum": "`y` is none of what can be made of rows",
    "returned": "`u` is returned",
}


@pytest.mark.parametrize("what", WHOLE)
def test_what_cannot_be_rows_is_said(what: str) -> None:
    program, spmd = built(what)
    assert packed(spmd).reasons == (f"What `m` chooses is held and sent whole: {WHOLE[what]}.",)
    text = emit_jax(program, spmd, estimate(spmd, HARDWARE))
    assert "routing(" not in text and WHOLE[what] in re.sub(r"\s+", " ", text)
    assert packed(built("nothing")[1]).reasons == () and "routing(" in emit_jax(
        *built("nothing"), estimate(built("nothing")[1], HARDWARE)
    )
