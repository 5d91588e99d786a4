"""The choice as a whole: odd programs and meshes, objectives, capacity, and the same answer every time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from escc.compiler.simulate.check import check
from escc.cost.estimate import estimate, predict
from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.ir.collective import Slice
from escc.ir.diagnostics import InputError, Source
from escc.ir.layout import format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.ir.spmd import Move, SpmdProgram
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse, read_source
from escc.ir.verify.verify import verify
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Objective, Outcome, Plan

EXAMPLES = Path(__file__).parents[2] / "examples"
HARDWARE = Hardware.of_paper("tpu-v4")


def program(text: str, **sizes: int) -> Program:
    source = Source("test.esti", text)
    return expand(parse(source), source, sizes)


def example(name: str, **sizes: int) -> Program:
    source = read_source(EXAMPLES / f"{name}.esti")
    return expand(parse(source), source, sizes)


def planned(
    layer: Program, mesh: str, objective: Objective = Objective.TIME, capacity: float | None = None, phase: str = ""
) -> tuple[Plan, SpmdProgram]:
    """A plan that has been proven, verified, run, and priced anew."""
    options = Options(HARDWARE, objective, capacity_bytes=capacity)
    plan = choose(layer, phase or layer.phases[0].name, Mesh.parse(mesh), options)
    (spmd,) = insert(plan)
    verify(spmd, layer)
    report = check(layer, spmd, predict)
    assert report.max_error <= 1e-9
    assert report.equal
    found, cost = plan.phases[0], estimate(spmd, HARDWARE)
    price = {
        Objective.TIME: cost.totals().total_s,
        Objective.COMMUNICATION: cost.totals().comm_s,
        Objective.MEMORY: math.fsum(stored for _, stored in cost.stored_bytes),
    }[objective]
    assert found.price == pytest.approx(price, rel=1e-12)
    assert found.gap <= 1e-9
    return plan, spmd


MATMUL = """dim B = 512, E = 1024, F = 4096
param W: bf16[E,F]
main(x: bf16[B,E]) {
  u[B,F] = x[B,E] * W[E,F]
  return u
}
"""


def test_a_program_of_one_op() -> None:
    plan, _ = planned(program(MATMUL), "4")
    # Nothing needs to be sent: the batch, or the weights' own index, is split.
    flops, weights = 2 * 512 * 1024 * 4096 / 4, 1024 * 4096 * 2 / 4
    assert plan.phases[0].price == pytest.approx(max(flops / 275e12, weights / 1.2e12))
    assert [t.legs for t in plan.phases[0].trees] == [(), (), ()]


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("dim B = 4\nmain(x: bf16[B]) { return exp(x) }", "2x2"),  # no parameters
        ("dim B = 4\nmain(x: bf16[B]) { return x }", "2x2"),  # hands out what comes in
        ("dim B = 4\nmain(x: bf16[B]) { y = exp(x)\nreturn y, y, x, x }", "2x2"),  # results that are the same
        ("dim B = 4, E = 6\nmain(x: bf16[B,E]) { y[] = x[B,E]\nreturn y }", "2x3"),  # a scalar
        ("dim B = 1, E = 1\nmain(x: bf16[B,E]) { y[B] = x[B,E]\nreturn exp(y) }", "4x4"),  # nothing to split
        ("dim B = 7, E = 13\nmain(x: bf16[B,E]) { y[B] = x[B,E]\nreturn exp(y) }", "2x2"),  # nothing divides
    ],
)
def test_odd_programs(text: str, mesh: str) -> None:
    planned(program(text), mesh)


@pytest.mark.parametrize("mesh", ["1", "1x1x1", "5", "2x3", "7x1", "3x1x2"])
def test_odd_meshes(mesh: str) -> None:
    planned(program(MATMUL.replace("return u", "h = softmax(u, over=F)\nreturn h")), mesh)


def test_one_chip_sends_nothing() -> None:
    plan, spmd = planned(example("megatron-530b"), "1", capacity=math.inf, phase="decode")
    assert estimate(spmd, HARDWARE).totals().collectives == 0
    assert all(not t.legs for t in plan.phases[0].trees)


FORTY = "".join(f"  h{i} = {'exp' if i % 2 else 'gelu'}(u + {i})\n" for i in range(40))
FORTY += "".join(f"  r{i}[B] = h{i}[B,F]\n" for i in range(40)) + "  return " + ", ".join(f"r{i}" for i in range(40))


@pytest.mark.parametrize("mesh", ["2", "2x2"])
def test_forty_consumers_of_one_value(mesh: str) -> None:
    planned(program(MATMUL.replace("  return u", FORTY)), mesh)


def test_forty_consumers_of_a_gathered_value_pay_once() -> None:
    """The maximum of a split dim is needed whole; one collective serves all who need it."""
    uses = "".join(f"  m{i}[E,F] = x[E] * W{i}[E,F]\n  y{i} = exp(m{i})\n" for i in range(40))
    params = "".join(f"param W{i}: bf16[E,F] @ EF_x\n" for i in range(40))
    results = ", ".join(f"y{i}" for i in range(40))
    text = f"dim E = 4096, F = 4\n{params}main(x: bf16[E] @ E_x) {{\n{uses}  return {results}\n}}"
    _, spmd = planned(program(text), "2")
    assert estimate(spmd, HARDWARE).totals().bytes_sent == 4096 * 2 / 2


NESTED = """dim B = 8, E = 64, E2 = 128
block inner(x: bf16[B,E]) -> bf16[B,E] {
  param W: bf16[E,E2]
  param V: bf16[E2,E]
  u[B,E2] = x[B,E] * W[E,E2]
  g = gelu(u)
  v[B,E] = g[B,E2] * V[E2,E]
  return x + v
}
block outer(x: bf16[B,E]) -> bf16[B,E] {
  param U: bf16[E,E2]
  y = repeat 3 inner(x)
  u[B,E2] = y[B,E] * U[E,E2]
  s[B] = u[B,E2]
  return y * s
}
main(x: bf16[B,E]) { return repeat 2 outer(x) }
"""


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_repeats_in_repeats(mesh: str) -> None:
    plan, _ = planned(program(NESTED), mesh)
    # Of the inner parameters there are six of each, of the outer's two.
    (least, _) = planned(program(NESTED), mesh, Objective.MEMORY)
    assert least.phases[0].price == (6 * 2 * 64 * 128 * 2 + 2 * 64 * 128 * 2) / 4
    assert plan.phases[0].price > 0


def test_memory_is_split_as_far_as_it_goes_and_the_rest_is_time() -> None:
    least, spmd = planned(program(MATMUL), "2x2", Objective.MEMORY)
    assert least.phases[0].price == 1024 * 4096 * 2 / 4
    free, _ = planned(program(MATMUL), "2x2")
    assert free.phases[0].price == pytest.approx(estimate(spmd, HARDWARE).totals().total_s)


def test_communication_alone_ignores_arithmetic() -> None:
    text = MATMUL.replace("return u", "h = max(u, over=F)\nreturn h")
    plan, _ = planned(program(text), "2x2", Objective.COMMUNICATION)
    assert plan.phases[0].price == 0
    assert plan.phases[0].bound == 0


def test_of_plans_that_send_nothing_one_that_computes_little_is_taken() -> None:
    _, spmd = planned(program(MATMUL), "2x2", Objective.COMMUNICATION)
    (matmul,) = estimate(spmd, HARDWARE).ops
    assert matmul.flops == 2 * 512 * 1024 * 4096 / 4


EXPERTS = """
dim B, L
dim E = 64, N = 4, Y = 6, F = 32
dim X = N * Y
main(x: bf16[B,L,E]) {
  param Wr: bf16[E,X]
  param Wi: bf16[X,E,F]
  param Wd: bf16[X,F,E]
  s[B,L,X] = x[B,L,E] * Wr[E,X]
  p = softmax(s, over=X)
  m = choose(p, over=X, keep=2)
  w = m * p / sum(m * p, over=X)
  e[B,L,X,E] = m[B,L,X] * x[B,L,E]
  u[B,L,X,F] = e[B,L,X,E] * Wi[X,E,F]
  h = gelu(u)
  d[B,L,X,E] = h[B,L,X,F] * Wd[X,F,E]
  y[B,L,E] = w[B,L,X] * d[B,L,X,E]
  return x + y
}
phase prefill { B = 12, L = 64 }
phase decode { B = 12, L = 1, calls = 20 }
"""


PROJECTIONS = """
dim B, E = 512, F = 2048
main(x: bf16[B,E]) {
  param W, V: bf16[E,F]
  param D: bf16[F,E]
  u[B,F] = x[B,E] * W[E,F]
  v[B,F] = x[B,E] * V[E,F]
  h = gelu(u) * v
  y[B,E] = h[B,F] * D[F,E]
  return y
}
phase first { B = 64 }
phase second { B = 48, calls = 9 }
"""


@pytest.mark.parametrize(
    ("layer", "mesh", "pins", "slower"),
    [
        (example("feed-forward"), "2x4", "", 1e15),
        (program(PROJECTIONS), "4", "stored W E_xF\nresult y BE", 1e3),
    ],
)
def test_of_plans_that_send_the_same_the_one_that_computes_least_in_all_is_taken(
    layer: Program, mesh: str, pins: str, slower: float
) -> None:
    """It is the quickest on a network so slow that the quickest plan sends as little."""
    phases, chips = [phase.name for phase in layer.phases], Mesh.parse(mesh)
    slow = replace(HARDWARE, network_bytes_per_s=HARDWARE.network_bytes_per_s / slower)
    held = parse_pins(Source("test.pins", pins), layer)

    def seconds(plan: Plan) -> tuple[float, float]:
        """What all calls take for collectives, and for ops."""
        totals = [estimate(spmd, HARDWARE).totals() for spmd in insert(plan)]
        calls = [phase.calls if len(phases) > 1 else 1 for phase in layer.phases]
        each = list(zip(calls, totals, strict=True))
        return math.fsum(n * found.comm_s for n, found in each), math.fsum(n * found.op_s for n, found in each)

    least = choose(layer, phases, chips, Options(HARDWARE, Objective.COMMUNICATION, pins=held))
    sent_s, computed_s = seconds(least)
    assert least.outcome is Outcome.OPTIMAL
    assert least.price == pytest.approx(sent_s)
    assert (sent_s > 0) == bool(pins)
    quickest = choose(layer, phases, chips, Options(slow, pins=held))
    assert seconds(quickest) == pytest.approx((sent_s, computed_s), rel=1e-6)


def test_phases_that_send_nothing_compute_together_what_they_compute_alone() -> None:
    """Weights are whole on every chip in each, so that none has to give way; all calls count."""
    layer, mesh, measured = program(EXPERTS), Mesh.parse("3"), Hardware.load("h100")

    def computed_s(*phases: str) -> float:
        plan = choose(layer, phases, mesh, Options(measured, Objective.COMMUNICATION))
        assert plan.price == plan.bound == 0
        totals = [estimate(spmd, measured).totals() for spmd in insert(plan)]
        return math.fsum(layer.phase(name).calls * found.total_s for name, found in zip(phases, totals, strict=True))

    assert computed_s("prefill", "decode") == pytest.approx(computed_s("prefill") + computed_s("decode"))


def test_tiny_and_large_prices() -> None:
    for scale in (1e-9, 1e9):
        fast = replace(
            HARDWARE,
            peak_flops_per_s=HARDWARE.peak_flops_per_s / scale,
            hbm_bytes_per_s=HARDWARE.hbm_bytes_per_s / scale,
            network_bytes_per_s=HARDWARE.network_bytes_per_s / scale,
        )
        layer = example("feed-forward")
        plan = choose(layer, layer.phases[0].name, Mesh.parse("2x2"), Options(fast))
        usual = choose(layer, layer.phases[0].name, Mesh.parse("2x2"), Options(HARDWARE))
        assert plan.phases[0].price == pytest.approx(usual.phases[0].price * scale, rel=1e-9)
        assert plan.phases[0].gap <= 1e-9
        assert plan.stored == usual.stored


# Capacity


def test_what_is_sliced_over_several_axes_is_held_whole_and_in_its_last_part_alone() -> None:
    layer = program(MATMUL.replace("param W: bf16[E,F]", "param W: bf16[E,F] @ EF"), B=8)
    weights = 2 * 1024 * 4096
    _, spmd = planned(layer, "2x2", capacity=1.4 * weights)  # a half and a quarter beside it would take 1.75 times
    [move] = [step for step in spmd.body.items if isinstance(step, Move) and step.operand == "W"]
    assert isinstance(move.collective, Slice) and set(move.collective.axes) == {"x", "y"}
    assert memory(spmd).total_bytes < 1.3 * weights


def test_a_capacity_is_kept_to_and_costs_no_less() -> None:
    layer = example("feed-forward", B=65536)
    free = float(memory(planned(layer, "2x2", capacity=math.inf)[1]).total_bytes)
    prices = []
    for share in (0.8, 0.9, 0.99, 1.0):
        plan, spmd = planned(layer, "2x2", capacity=share * free)
        assert memory(spmd).total_bytes <= share * free
        prices.append(plan.phases[0].price)
    assert prices == sorted(prices, reverse=True)
    assert prices[0] > prices[-1]
    assert prices[-1] == pytest.approx(planned(layer, "2x2", capacity=math.inf)[0].phases[0].price, rel=1e-9)


def test_what_does_not_fit_is_said_with_figures() -> None:
    with pytest.raises(InputError) as caught:
        planned(program(MATMUL + "\n"), "2x2", capacity=2e6)
    (finding,) = caught.value.diagnostics
    assert "at least 2.097 MB on each of 4 chips, 97.15 kB more than the 2 MB" in finding.message
    assert "tpu-v4" in finding.message
    assert finding.hint is not None and "`W`" in finding.hint
    with pytest.raises(InputError, match=r"at least 8\.389 MB on the one chip, 6\.389 MB more"):
        planned(program(MATMUL + "\n"), "1", capacity=2e6)


def test_inputs_and_results_take_memory_while_they_are_live() -> None:
    text = "dim B = 512, E = 1024\nmain(x: bf16[B,E]) { return exp(x) }"
    planned(program(text), "2", capacity=2 * 512 * 1024 * 2 / 2)
    with pytest.raises(InputError) as caught:
        planned(program(text), "2", capacity=2 * 512 * 1024 * 2 / 2 - 1)
    (finding,) = caught.value.diagnostics
    assert "as `return` is made, 1.049 MB of live values" in finding.message
    assert finding.hint is not None and "`return` 524.3 kB, `x` 524.3 kB" in finding.hint


# Sameness


def test_the_same_input_gives_the_same_plan_again() -> None:
    layer = example("megatron-530b")
    plans = [choose(layer, "decode", Mesh.parse("2x2"), Options(HARDWARE, capacity_bytes=math.inf)) for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]


# The published plan


def test_the_block_of_the_paper_in_decode() -> None:
    layer = example("palm-540b")
    plan, spmd = planned(layer, "4x4x4", phase="decode")
    stored, values = dict(plan.stored), layer.table()
    assert layer.phase("decode").sizes[:3] == (("B", 512), ("L", 1), ("M", 2048))
    for name, layout in stored.items():
        if name.rpartition(".")[2] in ("Wi", "Wg"):
            assert [len(axes) for axes in layout.dims] == [1, 2], format_layout(values[name].dims, layout)
        if name.rpartition(".")[2] in ("keys", "values"):
            assert [len(axes) for axes in layout.dims] == [3, 0, 0]
    assert estimate(spmd, HARDWARE).totals(once=True).bytes_sent <= 21.6e6


@pytest.mark.parametrize(
    ("text", "pins", "sent_bytes"),
    [
        # x of B_x is needed as B_y: both lie on 4 of 8 chips among zeros, and one all-reduce completes it.
        (
            "dim B = 12, E = 3, F = 12\n"
            "main(x: bf16[B,E]) {\n param w: int8[E,F]\n y: f32[F,B] = x[B,E] * w[E,F]\n z: f32 = gelu(y)\n return z }",
            "stored x B_xE\nstored w EF\nstored z F_xB_y",
            18.0,
        ),
        # Blocks of x over x among zeros, those of w over y: each chip multiplies what it has of both.
        (
            "dim B = 12, E = 1\n"
            "main(x: bf16[B,E]) {\n param w: bf16[B,E]\n y: bf16[E] = x[B,E] * w[B,E]\n"
            " z: f32[B,E] = y[E] * w[B,E]\n return z }",
            "stored x B_xE\nstored w B_yE\nstored z B_yE",
            3.5,
        ),
    ],
)
def test_blocks_among_zeros_send_least(text: str, pins: str, sent_bytes: float) -> None:
    layer, mesh = program(text), Mesh.parse("2x4")
    held = parse_pins(Source("test.pins", pins), layer)
    plan = choose(layer, "main", mesh, Options(HARDWARE, Objective.COMMUNICATION, pins=held))
    (spmd,) = insert(plan)
    verify(spmd, layer)
    assert check(layer, spmd, predict).equal
    assert estimate(spmd, HARDWARE).totals().bytes_sent == sent_bytes
