"""What pipelines take at the least where there are pins."""

import re

import pytest

from escc import Hardware, Mesh, parse
from escc.compiler.plan.pipeline import with_pins
from escc.ir.diagnostics import InputError, Source
from escc.passes.options import Options
from escc.passes.stages.choose_stages import _Search

# Sending takes longest: a pin that has to be moved away from costs a good part of the time.
SENDS = """
name = "sends"
[datasheet]
peak_flops_per_s = 100e12
hbm_bytes = 16e9
hbm_bytes_per_s = 1000e9
[network]
network_bytes_per_s = 20e9
between_bytes_per_s = 10e9
hop_latency_s = 0
[switch]
node_chips = 4
link_bytes_per_s = 20e9
[calibrated]
op_rule = "max"
"""
TEXT = """
model "layers"
dim B = 8, L = 64, E = 512, F = 3072, G = 4096
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  d[B,L,E] = u[B,L,F] * Wd[F,E]
  return d
}
block wide(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,G]
  param Wd: bf16[G,E]
  u[B,L,G] = x[B,L,E] * Wi[E,G]
  d[B,L,E] = u[B,L,G] * Wd[G,E]
  return d
}
"""
REPEATED = "main(x: bf16[B,L,E]) { return repeat 6 layer(x) }\n"
CALLED = "main(x: bf16[B,L,E]) {\n  y = layer(x)\n  z = layer(y)\n  return wide(z)\n}\n"


@pytest.mark.parametrize(
    ("main", "pin"),
    [
        (REPEATED, "stored x [B, L, E/gpu]"),  # moved once, before the first layer
        (CALLED, "result layer.u [B, L, F]"),  # of one of the calls
        (CALLED, "stored wide.d [B, L, E]"),  # made in any layout, and handed out so
    ],
)
def test_a_pin_counts_in_those_layers_alone_that_it_is_about(main, pin, tmp_path):
    path = tmp_path / "sends.toml"
    path.write_text(SENDS)
    program = with_pins(parse(TEXT + main), Source("pins", pin + "\n"))
    search = _Search(program, ("main",), Mesh.parse("stage=2,gpu=4"), "stage", "B", Options(Hardware.load(str(path))))
    for split in search.splits({}):
        halves = (search.layers // 2, search.layers - search.layers // 2)
        found = search.at(split, halves)
        assert search.computing_s(split) <= found.price * (1 + 1e-9)
        assert search.division_s(split, halves)[0] <= found.price * (1 + 1e-9)


def batches(*pins: str, size: int = 8) -> _Search:
    program = with_pins(parse(TEXT + REPEATED, {"B": size}), Source("pins", "".join(pin + "\n" for pin in pins)))
    return _Search(program, ("main",), Mesh.parse("stage=2,gpu=4"), "stage", "B", Options(Hardware.load("h100")))


@pytest.mark.parametrize("pin", ["stored x [B/gpu, L, E]", "result layer.u [B/gpu, L, F]"])
def test_batches_are_divided_into_what_pins_split_further(pin):
    counts = [each.micro_batches for split in batches(pin).splits({}) for _, each in split.rounds]
    assert counts == [1, 2]  # of 8 and of 4
    assert len(batches().splits({})) == 4


def test_micro_batches_that_are_asked_for_and_pins_that_no_batch_holds_are_refused():
    pin = "stored x [B/gpu, L, E]"
    said = f"In 4 micro-batches of phase `main`: The pin `{pin}` cannot hold: dim `B` = 2 does not divide"
    with pytest.raises(InputError, match=re.escape(said)):
        batches(pin).splits({"main": 4})
    with pytest.raises(InputError, match=re.escape(f"error: The pin `{pin}` cannot hold: dim `B` = 6 does not divide")):
        batches(pin, size=6).splits({})
