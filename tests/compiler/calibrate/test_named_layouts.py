"""Named layouts: the pins that they are, and that plans under them send what is published."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest

from escc.compiler.calibrate.named_layouts import AttentionLayout, FeedForwardLayout, named_pins
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import PinKind, Program
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options
from escc.passes.plan import Objective

CUBE = Mesh.parse("4x4x4")
B, E, F = 128, 256, 1024  # of a small feed-forward; one token of each sequence


def pins(
    program: Program, phase: str, mesh: Mesh, feed_forward: FeedForwardLayout, attention: str
) -> dict[tuple[str, str, str | None], str]:
    """The layouts that are pinned, by kind, value and op, without the layer's prefix."""
    table = program.table()
    sizes = dict(program.phase(phase).sizes)
    found = named_pins(program, sizes, mesh, feed_forward, AttentionLayout(attention))
    return {
        (pin.kind.value, pin.value.split(".")[-1], pin.op and pin.op.split(".")[-1]): format_layout(
            table[pin.value].dims, pin.layout
        )
        for pin in found
    }


def model(name: str, batch: int = 512, tokens: int = 1, context: int = 2048) -> Program:
    return load(Path(name), {"B": batch, "L": tokens, "M": context})


def test_what_is_found_is_not_pinned() -> None:
    palm, found = model("palm-540b"), FeedForwardLayout.FOUND
    assert not pins(palm, "decode", CUBE, found, "found")
    assert {name for _, name, _ in pins(palm, "decode", CUBE, found, "batch")} == {"keys", "values"}
    assert ("stored", "keys", None) not in pins(palm, "decode", CUBE, FeedForwardLayout.WS2D, "found")
    assert not named_pins(palm, {}, Mesh.parse("2"), found, AttentionLayout.FOUND)


def test_two_dimensional_weight_stationary_palm() -> None:
    found = pins(model("palm-540b"), "decode", CUBE, FeedForwardLayout.WS2D, "batch")
    stored = {name: layout for (kind, name, _), layout in found.items() if kind == "stored"}
    assert stored == {
        "Wq": "E_xH_zyQ",
        "Wo": "H_zyQE_x",
        "Wi": "E_xF_zy",
        "Wg": "E_xF_zy",
        "Wd": "F_zyE_x",
        "keys": "B_xyzMQ",
        "values": "B_xyzMQ",
    }
    assert found["use", "Wd", "d"] == "F_zyE_x"
    assert found["use", "n", "u"] == "BLE_x"
    assert found["result", "u", None] == "BLF_zy partialsum-x"
    assert found["result", "a", None] == "BLE_x partialsum-yz"
    assert ("stored", "Wk", None) not in found  # it has no wide dim


@pytest.mark.parametrize(
    ("layout", "stored", "used", "result"),
    [
        (FeedForwardLayout.WS1D, "EF_zyx", "EF_zyx", "BLF_zyx"),
        (FeedForwardLayout.WG_X, "E_xF_zy", "EF_zy", "B_xLF_zy"),
        (FeedForwardLayout.WG_XY, "E_xF_zy", "EF_z", "B_xyLF_z"),
        (FeedForwardLayout.WG_XYZ, "E_xF_zy", "EF", "B_xyzLF"),
    ],
)
def test_the_other_layouts_of_a_feed_forward(layout: FeedForwardLayout, stored: str, used: str, result: str) -> None:
    found = pins(model("palm-540b", tokens=2048), "prefill", CUBE, layout, "batch")
    assert found["stored", "Wi", None] == stored
    assert found["use", "Wi", "u"] == used
    assert found["result", "u", None] == result


def test_what_cannot_be_split_is_left_to_the_search() -> None:
    found = pins(model("palm-8b", batch=2), "decode", CUBE, FeedForwardLayout.WG_X, "batch")
    assert ("use", "n", "u") not in found and ("result", "u", None) not in found  # a batch of 2 over 4 chips
    assert found["use", "Wi", "u"] == "EF_zy"
    one = pins(model("palm-8b"), "decode", CUBE, FeedForwardLayout.WS1D, "heads")
    assert ("stored", "Wq", None) not in one and one["stored", "Wi", None] == "EF_zyx"  # 16 heads over 64 chips


@pytest.mark.parametrize(
    ("name", "attention", "batch", "layout"),
    [
        ("megatron-530b", "heads", 8, "BMH_zyxQ"),
        ("palm-540b", "heads", 8, "BMQ"),
        ("llama-3-70b", "heads", 8, "BMK_zQ"),
        ("megatron-530b", "batch", 8, "B_xMHQ"),
        ("palm-540b", "batch", 2, "BMQ"),
        ("palm-540b", "batch", 64, "B_xyzMQ"),
    ],
)
def test_the_caches(name: str, attention: str, batch: int, layout: str) -> None:
    found = pins(model(name, batch), "decode", CUBE, FeedForwardLayout.WS2D, attention)
    assert found["stored", "keys", None] == found["stored", "values", None] == layout


def test_grouped_heads_are_split_as_far_as_they_go() -> None:
    found = pins(model("llama-3-70b"), "decode", CUBE, FeedForwardLayout.WS2D, "batch")
    # 8 heads of keys over z; the 8 queries of each over y.
    assert found["stored", "Wq", None] == "E_xK_zG_yQ"
    assert found["stored", "Wo", None] == "K_zG_yQE_x"


def test_a_mesh_with_too_few_axes_is_refused() -> None:
    program = model("palm-8b")
    for layout, mesh, ok in (
        (FeedForwardLayout.WS2D, "8", False),
        (FeedForwardLayout.WG_XY, "4x4", False),
        (FeedForwardLayout.WS1D, "8", True),
        (FeedForwardLayout.WG_X, "4x4", True),
        (FeedForwardLayout.WG_XYZ, "2x2x1", True),
        (FeedForwardLayout.WS2D, "1", True),
    ):
        if ok:
            pins(program, "decode", Mesh.parse(mesh), layout, "batch")
        else:
            with pytest.raises(InputError, match=r"needs \d axes"):
                pins(program, "decode", Mesh.parse(mesh), layout, "batch")


def test_a_model_without_layers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flat.esti"
    path.write_text('model "flat"\ndim B = 8, E = 4\nmain(x: bf16[B,E]) { return x + x }\n')
    program = load(path)
    with pytest.raises(InputError, match="has no repeated layer"):
        named_pins(program, {"B": 8, "E": 4}, CUBE, FeedForwardLayout.WS2D, AttentionLayout.BATCH)


LAYERS = f"""model "layers"
dim B = {B}, E = {E}, F = {F}
block layer(x: bf16[B,E]) -> bf16[B,E] {{
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,F] = x[B,E] * Wi[E,F]
  h = gelu(u)
  d[B,E] = h[B,F] * Wd[F,E]
  return d
}}
main(x: bf16[B,E]) {{ return repeat 8 layer(x) }}
"""


def gathered(elements: int, ways: int) -> Fraction:
    """Elements that a chip sends in an all-gather of so many in all on a chip, or in a reduce-scatter."""
    return Fraction(elements * (ways - 1), ways)


# Pope et al. 2022, appendix A.2, with the factors (K-1)/K: elements that a chip sends in one layer, X = Y = Z = 4.
PUBLISHED = {
    FeedForwardLayout.WS1D: 2 * gathered(B * E, 64),
    FeedForwardLayout.WS2D: 2 * gathered(B * E // 4, 16) + 2 * gathered(B * F // 16, 4),
    FeedForwardLayout.WG_X: 2 * gathered(E * F // 16, 4) + 2 * gathered(B * E // 4, 16),
    FeedForwardLayout.WG_XY: 2 * gathered(E * F // 4, 16) + 2 * gathered(B * E // 16, 4),
    FeedForwardLayout.WG_XYZ: 2 * gathered(E * F, 64),
}


@pytest.mark.parametrize("layout", PUBLISHED)
def test_a_feed_forward_sends_what_is_published(layout: FeedForwardLayout) -> None:
    source = Source("layers.esti", LAYERS)
    program = expand(parse(source), source)
    [phase] = program.phases
    found = named_pins(program, dict(phase.sizes), CUBE, layout, AttentionLayout.BATCH)
    assert len({pin.value for pin in found if pin.kind is PinKind.STORED}) == 2
    options = Options(Hardware.of_paper("tpu-v4"), Objective.COMMUNICATION, math.inf, pins=found)
    compiled = compile_phase(program, phase.name, CUBE, options)
    sent = sum(Fraction(move.bytes_sent) for move in compiled.estimate.moves if move.times == 8)
    assert sent / 2 == PUBLISHED[layout]
