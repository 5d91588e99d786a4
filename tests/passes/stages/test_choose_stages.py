"""What is said where no pipeline fits, or none is quick enough, is true of all of them."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from escc import Hardware, Mesh, parse
from escc.cost.streams import least_stored_bytes
from escc.ir.diagnostics import size_text
from escc.passes.options import Options
from escc.passes.plan import NoPlan, Outcome
from escc.passes.stages.choose_stages import choose_stages
from escc.passes.stages.divide import divide
from escc.passes.stages.layers import layer_count
from escc.passes.stages.staged_plan import SlowPipelines


def feed_forward(name: str, hidden: str) -> str:
    return f"""
block {name}(x: bf16[B,E]) -> bf16[B,E] {{
  param Wi: bf16[E,{hidden}]
  param Wd: bf16[{hidden},E]
  h[B,{hidden}] = x[B,E] * Wi[E,{hidden}]
  d[B,E] = h[B,{hidden}] * Wd[{hidden},E]
  return x + d
}}
"""


DIMS = 'model "layers"\ndim B = 8, E = 64, F = 256, G = 1024\n'
BLOCKS = DIMS + feed_forward("narrow", "F") + feed_forward("wide", "G")


def fullest(program, ways: int, inner: Mesh) -> float:
    """What is stored at the least on a chip of the fullest stage of the least full division."""
    count = layer_count(program)
    divisions = ([*pairwise((0, *cuts, count))] for cuts in combinations(range(1, count), ways - 1))
    each = (divide(program, [end - start for start, end in ends]) for ends in divisions)
    return min(max(least_stored_bytes(one.program, "main", inner) for one in stages) for stages in each)


@pytest.mark.parametrize(
    ("body", "ways"),
    [("return repeat 6 narrow(x)", 2), ("y = repeat 4 narrow(x)\n  return repeat 6 wide(y)", 3)],  # few, and many
)
def test_the_least_full_division_says_why_none_fits(body, ways):
    program = parse(f"{BLOCKS}main(x: bf16[B,E]) {{\n  {body}\n}}\n")
    mesh = Mesh((("stage", ways), ("gpu", 2)))
    stored = fullest(program, ways, mesh.without("stage"))
    hardware = Hardware.load("h100")
    with pytest.raises(NoPlan, match=f"take at least {size_text(stored)} on each of 2 chips") as refused:
        choose_stages(program, ["main"], mesh, "stage", "B", Options(hardware, capacity_bytes=stored * 0.99))
    assert refused.value.outcome is Outcome.INFEASIBLE
    live = f"live values and {size_text(stored)} of parameters"  # with least of them of one sequence in turn
    with pytest.raises(NoPlan, match=live) as refused:
        choose_stages(program, ["main"], mesh, "stage", "B", Options(hardware, capacity_bytes=stored * 1.0001))
    assert refused.value.outcome is Outcome.INFEASIBLE


# Layers leave chips little room: those that have more of them send more.
SENDS = """
name = "sends"
[datasheet]
peak_flops_per_s = 100e12
hbm_bytes = 16e9
hbm_bytes_per_s = 1000e9
[network]
network_bytes_per_s = 50e9
between_bytes_per_s = 5e9
hop_latency_s = 2e-6
[switch]
node_chips = 3
link_bytes_per_s = 50e9
[calibrated]
op_rule = "sum"
"""


@pytest.mark.parametrize(("capacity_bytes", "share"), [(65e6, 0.99), (68e6, 0.99), (68e6, 0.95)])
def test_bounds_show_that_no_division_takes_less_than_is_asked_for(capacity_bytes, share, tmp_path):
    path = tmp_path / "sends.toml"
    path.write_text(SENDS)
    blocks = BLOCKS.replace("B = 8, E = 64, F = 256, G = 1024", "B = 1536, E = 512, F = 2048, G = 4096")
    program = parse(f"{blocks}main(x: bf16[B,E]) {{\n  y = repeat 5 narrow(x)\n  return repeat 12 wide(y)\n}}\n")
    mesh, options = Mesh.parse("node=2,gpu=3"), Options(Hardware.load(str(path)), capacity_bytes=capacity_bytes)
    given = program, ["main"], mesh, "node", "B"
    price = choose_stages(*given, options, {"main": 4}).price
    with pytest.raises(SlowPipelines) as slow:
        choose_stages(*given, replace(options, below=share * price), {"main": 4})
    assert share * price * (1 - 1e-9) <= slow.value.bound <= price
