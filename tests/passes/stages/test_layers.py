"""Layers: between which of its blocks a model is divided into stages, however it is written."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from programs import TINY_GROUPS

from escc import Hardware, Mesh, parse
from escc.compiler.simulate.reference import random_stored, run_reference
from escc.compiler.simulate.repetitions import joined, part_of
from escc.ir.diagnostics import InputError
from escc.ir.layout import Layout
from escc.ir.program import Pin, PinKind, Program, stored_in
from escc.passes.options import Options
from escc.passes.plan import Outcome
from escc.passes.stages.choose_stages import _Search, choose_stages, refuse_division
from escc.passes.stages.divide import divide, layers_of
from escc.passes.stages.divisions import Divisions
from escc.passes.stages.layers import (
    layer_count,
    place_kinds,
    repeats_of,
    segments_of,
    stored_by_one,
    whole_repetitions,
)

WHOLE = Layout(((), ()))
BLOCKS = """
model "blocks"
dim B = 64, E = 512, F = 2048, G = 3072
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,F] = x[B,E] * Wi[E,F]
  h = relu(u)
  d[B,E] = h[B,F] * Wd[F,E]
  return x + d
}
block wide(x: bf16[B,E]) -> bf16[B,E] {
  param Wi: bf16[E,G]
  param Wd: bf16[G,E]
  u[B,G] = x[B,E] * Wi[E,G]
  h = relu(u)
  d[B,E] = h[B,G] * Wd[G,E]
  return x + d
}
block scaled(x: bf16[B,E]) -> bf16[B,E] {
  param scale: bf16[E]
  return x * scale
}
block pair(x: bf16[B,E]) -> bf16[B,E] {
  y = layer(x)
  return layer(y)
}
block three(x: bf16[B,E]) -> bf16[B,E] { return repeat 3 layer(x) }
block group(x: bf16[B,E]) -> bf16[B,E] {
  y = repeat 2 layer(x)
  return wide(y)
}
block past(x: bf16[B,E]) -> bf16[B,E] {
  y = layer(x)
  z = wide(y)
  return z + x
}
block around(x: bf16[B,E]) -> bf16[B,E] {
  y = repeat 2 layer(x)
  return y + x
}
block behind(x: bf16[B,E]) -> bf16[B,E] {
  s = scaled(x)
  return layer(s)
}
phase p { calls = 8 }
"""
SIX = {
    "repeat": "return repeat 6 layer(x)",
    "pairs": "return repeat 3 pair(x)",
    "calls": "a = layer(x)  b = layer(a)  c = layer(b)  d = layer(c)  e = layer(d)  return layer(e)",
    "nested": "return repeat 2 three(x)",
    "last": "y = repeat 5 layer(x)  return layer(y)",
}


def blocks(main: str) -> Program:
    """A model whose `main` has these statements, two blanks between them."""
    lines = "\n  ".join(main.split("  "))
    return parse(f"{BLOCKS}main(x: bf16[B,E]) {{\n  {lines}\n}}\n")


@pytest.mark.parametrize(
    ("main", "layers"),
    [
        *((main, 6) for main in SIX.values()),
        ("return repeat 4 group(x)", 12),
        ("return repeat 4 past(x)", 4),  # what enters goes past its blocks
        ("return repeat 4 around(x)", 4),  # and past a repeat of one
        ("return repeat 4 behind(x)", 4),  # a block that multiplies nothing
        ("y = repeat 4 layer(x)  return scaled(y)", 4),
        ("s = scaled(x)  return layer(s)", 1),
        ("return scaled(x)", 0),
    ],
)
def test_layers_are_repetitions_and_blocks_that_hand_on_what_those_do(main: str, layers: int):
    assert layer_count(blocks(main)) == layers
    assert layer_count(whole_repetitions(blocks(main))) == layers_of(blocks(main))


def test_places_are_alike_that_stand_behind_as_much_of_a_repetition():
    kinds = place_kinds(segments_of(blocks("y = repeat 3 group(x)  return wide(y)")))
    assert kinds == [0, 1, 2, 3, 1, 2, 3, 1, 2, 4, 5]
    assert place_kinds(segments_of(blocks(SIX["repeat"]))) == [0, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("layers", [(9,), (1, 8), (4, 5), (2, 1, 2, 4), (3, 3, 3), (1,) * 9])
def test_stages_that_end_inside_of_repetitions_are_the_model(layers: tuple[int, ...]):
    program = parse(TINY_GROUPS)
    sizes = dict(program.phase("decode").sizes)
    stored = random_stored(program, sizes, seed=1)
    expected = run_reference(program, sizes, stored)
    handed: tuple[np.ndarray, ...] = ()
    found: dict[str, list] = {}
    for stage in divide(program, layers):
        own = dict(zip(stage.received, handed, strict=True))
        for name in (one.value for one in stored_in(stage.program.body)):
            if name not in own:
                whole, index = stage.of.get(name, (name, ()))
                own[name] = part_of(stored[whole], index)
        results = run_reference(stage.program, sizes, own)
        handed = tuple(results[name] for name in stage.passed)
        for name, array in results.items():
            whole, index = stage.of.get(name, (name, ()))
            if whole in ("group.layer.ks", "group.layer:2.ks", "logits"):
                found.setdefault(whole, []).append((index, array))
    for name, array in joined(found).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-12)
    assert found.keys() == {"group.layer.ks", "group.layer:2.ks", "logits"}


def test_stages_that_do_the_same_are_equal_wherever_they_end():
    stages = divide(blocks("return repeat 6 pair(x)"), (1, 2, 2, 4, 2, 1))
    assert stages[1] == stages[2] == stages[4] != stages[3]
    assert not any("@" in name for stage in stages for name in stage.program.table())
    # Whole repetitions stay a repeat, between what is written out of others.
    stage = divide(blocks("return repeat 6 group(x)"), (2, 11, 5))[1]
    assert [(r.name, r.count) for r in repeats_of(stage.program)] == [("group", 3), ("group.layer.2", 1)]
    assert {"group.wide.Wi", "group.wide.Wi.2"} <= stage.program.table().keys()


def test_pins_hold_in_every_copy_of_what_they_are_about():
    pins = [
        Pin(PinKind.STORED, "pair.layer.Wi", None, WHOLE, ""),
        Pin(PinKind.USE, "pair.layer.Wi", "pair.layer.u", WHOLE, ""),
    ]
    stage = divide(blocks("return repeat 6 pair(x)"), (1, 6, 5))[1]
    of = {name: stage.of[name] for name in ("pair.layer.Wi", "pair.layer.Wi.2")}
    assert of == {"pair.layer.Wi": ("pair.layer.Wi", ((1, 3),)), "pair.layer.Wi.2": ("pair.layer.Wi", (3,))}
    assert {(one.value, one.op) for one in stage.pins(pins)} == {
        *((name, None) for name in of),
        ("pair.layer.Wi", "pair.layer.u"),
        ("pair.layer.Wi.2", "pair.layer.u.2"),
    }


@pytest.mark.parametrize("chips", ["stage=2,gpu=2", "stage=4,gpu=1"])
def test_a_model_takes_as_long_however_it_is_written(chips: str):
    mesh, options = Mesh.parse(chips), Options(Hardware.load("h100"))
    found = {
        name: choose_stages(blocks(main), ["p"], mesh, "stage", "B", options, {"p": 1}) for name, main in SIX.items()
    }
    least = found["repeat"].price
    assert all(one.price == pytest.approx(least, rel=1e-9) and one.bound <= least for one in found.values())


@pytest.mark.parametrize(
    ("main", "chips"),
    [
        (SIX["pairs"], "stage=3,gpu=2"),
        (SIX["last"], "stage=3,gpu=1"),
        ("y = repeat 2 group(x)  return layer(y)", "stage=3,gpu=1"),
        (
            "o = x * 0.5  a = layer(o)  m = a * 0.5  y = repeat 3 layer(m)  n = y * 0.5  return layer(n)",
            "stage=3,gpu=1",
        ),
    ],
)
def test_no_division_takes_less_than_the_bound(main: str, chips: str):
    """Each of them planned, with values handed on in any layouts. What is around blocks may run as one with them."""
    program, mesh, options = blocks(main), Mesh.parse(chips), Options(Hardware.load("h100"))
    search = _Search(program, ("p",), mesh, "stage", "B", options)
    [split] = search.splits({"p": 1})
    divisions = Divisions(search, split)
    divisions.plan_ends()
    every_s = {}
    for cuts in combinations(range(1, search.layers), 2):
        layers = tuple(end - start for start, end in pairwise((0, *cuts, search.layers)))
        every_s[layers] = search.at(split, layers).bound
        assert search.division_s(split, layers)[0] <= every_s[layers] * (1 + 1e-9)
    assert search.layers_s(split.rounds) <= divisions.bound <= min(every_s.values()) * (1 + 1e-9)
    found = choose_stages(program, ["p"], mesh, "stage", "B", options, {"p": 1})
    assert found.price >= min(every_s.values()) * (1 - 1e-9)
    if found.outcome is Outcome.OPTIMAL:
        assert found.price == pytest.approx(min(every_s.values()), rel=1e-9)


def test_refusals_count_layers_and_where_stages_stream_repetitions():
    program = blocks(SIX["pairs"])
    refuse_division(program, 6, "x")
    with pytest.raises(InputError, match="7 stages along `x` are more than the model's 6 layers"):
        refuse_division(program, 7, "x")
    with pytest.raises(InputError, match="4 stages along `x` are more than the model's 3 repetitions of `pair`"):
        refuse_division(program, 4, "x", whole=True)
    with pytest.raises(InputError, match="has no layers to divide"):
        refuse_division(blocks("return scaled(x)"), 2, "x")


def test_repetitions_that_lie_between_two_places_count_more_than_their_layers():
    """Each by a second, of those that no stage ends in."""
    program = blocks("y = repeat 3 group(x)  z = wide(y)  return repeat 2 pair(z)")
    search = _Search(program, ("p",), Mesh.parse("stage=2"), "stage", "B", Options(Hardware.load("h100")))
    counted = (("p", 1, 1),)
    search.known.more[counted] = (1.0, 0.0, 10.0)
    repetitions = [(n, n + 3, 1.0) for n in (0, 3, 6)] + [(n, n + 2, 10.0) for n in (10, 12)]
    places = np.arange(search.layers + 1)
    found = search.whole_s(counted, places[:, None], places)
    for start, end in combinations(places, 2):
        assert found[start, end] == sum(more for first, last, more in repetitions if start <= first and last <= end)


def test_layers_that_differ_in_names_alone_are_planned_as_one():
    given = ("p",), Mesh.parse("stage=2"), "stage", "B"
    hardware = Hardware.load("h100")
    main = "a = layer(x)  b = layer(a)  c = wide(b)  return layer(c)"
    for pins, kinds in (((), 2), ((Pin(PinKind.STORED, "layer.Wi", None, WHOLE, ""),), 4)):
        search = _Search(blocks(main), *given, Options(hardware, pins=pins))
        assert len({layer for _, layer in search.unlike}) == kinds and len(search.unlike) == 4


def test_what_blocks_share_is_counted_once():
    program = parse(
        BLOCKS.replace("block layer", "param S: bf16[E,F]\nblock layer").replace("x[B,E] * Wi[E,F]", "x[B,E] * S[E,F]")
        + "main(x: bf16[B,E]) {\n  a = layer(x)\n  b = layer(a)\n  return wide(b)\n}\n"
    )
    assert stored_by_one(program) == {"layer.Wd", "layer:2.Wd", "wide.Wi", "wide.Wd"}
