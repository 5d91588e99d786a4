"""The ways to have stages, and batches of most sequences a second in them, where pins split the batch."""

import math
from dataclasses import replace

import pytest

from escc import Hardware, Mesh, parse
from escc.compiler.plan.offload import on_meshes
from escc.compiler.plan.pipeline import with_pins
from escc.compiler.plan.tries import most_sequences_staged, outcome_of, tries
from escc.compiler.plan.way import Offload
from escc.ir.diagnostics import InputError, Source
from escc.ir.program import Program
from escc.passes.options import Options
from escc.passes.plan import Outcome

# Little is sent between nodes in a second: stages, which send least, are the quickest where chips are small.
HARDWARE = """
name = "slow between"
[datasheet]
peak_flops_per_s = 100e12
hbm_bytes = 16e9
hbm_bytes_per_s = 1000e9
[network]
network_bytes_per_s = 50e9
between_bytes_per_s = 4e9
hop_latency_s = 0
[switch]
node_chips = 4
link_bytes_per_s = 50e9
[host]
dram_bytes = 256e9
dram_bytes_per_s = 200e9
link_bytes_per_s = 25e9
host_chips = 4
[calibrated]
op_rule = "max"
"""
LAYERS = """
model "layers"
dim B = 6, L = 64, E = 512, F = 3072
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  u[B,L,F] = x[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,L,E]) { return repeat 6 layer(x) }
"""
SMALL = 0.018e9  # bytes: of half the weights, and not of all
MESHES = [Mesh.parse("node=2,gpu=2")]


@pytest.fixture
def options(tmp_path) -> Options:
    path = tmp_path / "hardware.toml"
    path.write_text(HARDWARE)
    return Options(Hardware.load(str(path)))


@pytest.fixture
def split() -> Program:
    """With a batch that is split over two chips."""
    return with_pins(parse(LAYERS), Source("pins", "stored x [B/gpu, L, E]\n"))


def test_stages_are_quickest_under_a_pin_that_some_micro_batches_do_not_hold(split, options):
    """Of 6 sequences 2 and 6 micro-batches leave an odd number."""
    small = replace(options, capacity_bytes=SMALL)
    asked = [tries(split, ["main"], MESHES, small, 2, {"main": count})[0].price for count in (1, 3)]
    found = tries(split, ["main"], MESHES, small, None)
    assert found[0].axis == "node" and found[0].price == pytest.approx(min(asked), rel=1e-9)
    assert outcome_of(found)[0] is Outcome.OPTIMAL
    for offload in (Offload.NONE, Offload.AUTO):
        with pytest.raises(InputError, match="In 2 micro-batches of phase `main`: The pin"):
            tries(split, ["main"], MESHES, small, 2, {"main": 2}, offload=offload)


def test_stages_stream_under_such_a_pin(split, options):
    small = replace(options, capacity_bytes=SMALL)
    found = tries(split, ["main"], MESHES, small, 2, offload=Offload.AUTO)
    assert found[0].axis == "node" and found[0].price < math.inf


def test_batches_are_those_that_pins_split(split, options):
    """Others are no batches that do not fit."""
    staged = most_sequences_staged(split, ["main"], MESHES, options, 2, {"main": 4})
    assert all(one.batch % 8 == 0 for one in staged) and staged[0].found is not None
    streamed = on_meshes(split, ["main"], MESHES, options, Offload.AUTO, 1, best_batch=True)
    assert all(one.batch % 2 == 0 for one in streamed)
    assert [one.batch for one in streamed if one.found is None and not one.beaten] == []
