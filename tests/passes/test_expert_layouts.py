"""The ways to run a mixture of experts that the literature describes, each found with no layout of the experts pinned,
at sizes where it is the cheapest, as the search proves.

Expert parallelism is GShard's (Lepikhin et al. 2021); expert slicing and the coordinated exchange are DeepSpeed-MoE's
(Rajbhandari et al. 2022); data-parallel attention before experts over all chips is DeepSeek-V3's (2024). Where pins
stand, they say how the layers around leave tokens and want them back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from escc.compiler.simulate.check import check
from escc.cost.estimate import estimate, predict
from escc.cost.hardware import Hardware
from escc.ir.collective import kind
from escc.ir.diagnostics import Source
from escc.ir.layout import format_layout
from escc.ir.mesh import Mesh
from escc.ir.program import operand_names, walk
from escc.ir.spmd import Compute, Move, SpmdProgram
from escc.ir.text.pins import parse_pins
from escc.ir.text.read import parse
from escc.ir.verify.verify import verify
from escc.passes import choose as choose_module
from escc.passes.choose import choose
from escc.passes.expansion.expand import expand
from escc.passes.ilp.solver import Settings
from escc.passes.lower.insert import insert
from escc.passes.options import Options
from escc.passes.plan import Plan

V4 = Hardware.of_paper("tpu-v4")

EXPERTS = """
  param Wr: bf16[E,X]
  param Wi: bf16[X,E,F]
  param Wd: bf16[X,F,E]
  s[B,X] = n[B,E] * Wr[E,X]
  m = choose(s, over=X, keep=KEEP)
  e[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] = e[B,X,E] * Wi[X,E,F]
  h = gelu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = m[B,X] * d[B,X,E]
"""
LAYER = f"main(n: bf16[B,E]) {{{EXPERTS}  return y\n}}"
# Multi-head attention on one cached vector of each token, and experts behind it.
WITH_ATTENTION = f"""
main(x: bf16[B,E]) {{
  param Wq: bf16[E,H,C]
  param Wc: bf16[L,E,C]
  param Wo: bf16[H,C,E]
  cache latents: bf16[B,M,C]
  q[B,H,C] = x[B,E] * Wq[E,H,C]
  c[B,L,C] = x[B,E] * Wc[L,E,C]
  cs = append(latents, c, L into M)
  t[B,H,M] = q[B,H,C] * cs[B,M,C]
  p = softmax(t, over=M)
  o[B,H,C] = p[B,H,M] * cs[B,M,C]
  a[B,E] = o[B,H,C] * Wo[H,C,E]
  n = x + a
{EXPERTS}
  return n + y
}}
"""


@dataclass(frozen=True)
class Found:
    """The plan of a model: what is sent of each value, and how the einsums read their operands."""

    spmd: SpmdProgram
    seconds: float

    def sent(self) -> dict[str, list[str]]:
        """For each value the collectives that move it, with their axes, but for those that send nothing."""
        origin: dict[str, str] = {}
        found: dict[str, list[str]] = {}
        for placed in walk(self.spmd.body):
            match placed.item:
                case Move(result, operand, collective):
                    origin[result] = origin.get(operand, operand)
                    if (what := kind(collective)) not in ("slice", "embed"):
                        axes = "".join(collective.axes) if hasattr(collective, "axes") else ""
                        found.setdefault(origin[result], []).append(f"{what}({axes})")
        return found

    def layout(self, name: str) -> str:
        value = self.spmd.table()[name]
        return format_layout(value.dims, value.layout)

    def read(self, stored: str) -> str:
        """The layout in which an op reads what is stored, moved there or not."""
        copies = {stored}
        for placed in walk(self.spmd.body):
            match placed.item:
                case Move(result, operand, _) if operand in copies:
                    copies.add(result)
                case Compute(op) if reads := copies & set(operand_names(op)):
                    return self.layout(reads.pop())
        raise AssertionError(f"nothing reads {stored}")

    @property
    def bytes_sent(self) -> float:
        return sum(m.bytes_sent * m.times for m in estimate(self.spmd, V4).moves)


def planned(
    text: str,
    mesh: str,
    keep: int,
    pins: str = "",
    stored_bytes: float = math.inf,
    hardware: Hardware = V4,
    **sizes: int,
) -> Found:
    """The proven optimum of a layer, verified, and run on virtual chips."""
    dims = "dim " + ", ".join(f"{d} = {n}" for d, n in sizes.items())
    source = Source("layer.esti", f"{dims}\n{text.replace('KEEP', str(keep))}")
    program = expand(parse(source), source)
    fixed = parse_pins(Source("layer.pins", pins), program)
    options = Options(hardware, capacity_bytes=math.inf, stored_bytes=stored_bytes, pins=fixed)
    plan = choose(program, "main", Mesh.parse(mesh), options)
    assert plan.phases[0].gap <= 1e-9
    (spmd,) = insert(plan)
    verify(spmd, plan.phases[0].program)
    report = check(program, spmd, predict)
    assert report.max_error <= 1e-9
    assert report.equal
    return Found(spmd, plan.phases[0].price)


def weights_bytes(x: int, e: int, f: int) -> int:
    return 2 * x * e * f * 2


def exchanged(found: Found, name: str) -> bool:
    """Whether a value is sent by all-to-alls alone."""
    moves = found.sent().get(name, [])
    return bool(moves) and all(move.startswith("all-to-all") for move in moves)


def test_expert_parallelism() -> None:
    b, e, x, k, chips = 1024, 4096, 16, 2, 4
    found = planned(LAYER, "4", k, "stored n B_xE\nstored y B_xE", B=b, E=e, X=x, F=4096)
    assert found.read("Wi") == "X_xEF" and found.read("Wd") == "X_xFE"
    assert found.layout("e") == "B_xXE" and found.layout("u") == "BX_xF" and found.layout("d") == "BX_xE"
    assert found.sent() == {"e": ["all-to-all(x)"], "d": ["all-to-all(x)"]}
    # Each chip sends of its tokens' copies, k for each, all that are not for itself, and gets as many back.
    assert found.bytes_sent == pytest.approx(2 * (b / chips) * k * e * 2 * (chips - 1) / chips, rel=1e-12)


def test_tokens_on_every_chip_and_experts_apart() -> None:
    # One token cannot be split: every chip runs those of its experts that it chose, and the sums are completed.
    found = planned(LAYER, "4", 8, B=1, E=4096, X=16, F=4096)
    assert found.read("Wi") == "X_xEF" and found.read("Wd") == "X_xFE"
    assert found.layout("e") == "BX_xE" and found.layout("y") == "BE partialsum-x"
    assert found.sent().keys() == {"s", "y"} and found.sent()["y"][0] in ("reduce-scatter(x)", "all-reduce(x)")


@pytest.mark.parametrize("keep", [1, 2, 3, 5, 6, 8])
def test_tokens_are_gathered_and_sums_scattered_where_each_has_more_experts_than_there_are_chips(keep: int) -> None:
    found = planned(LAYER, "4", keep, "stored n B_xE\nstored y B_xE", B=1024, E=4096, X=16, F=4096)
    assert found.read("Wi") == "X_xEF"
    if keep > 4:
        assert found.sent().keys() == {"m", "n", "y"}
        assert found.sent()["n"] == ["all-gather(x)"] and found.sent()["y"] == ["reduce-scatter(x)"]
    else:
        assert exchanged(found, "e") and exchanged(found, "d")
        assert not {"n", "y"} & found.sent().keys()


def test_expert_slicing() -> None:
    # Two experts on four chips, of which each takes a part of the hidden features of both.
    found = planned(LAYER, "4", 1, B=64, E=4096, X=2, F=4096)
    assert found.read("Wi") == "XEF_x" and found.read("Wd") == "XF_xE"
    assert found.layout("u") == "BXF_x" and found.layout("d") == "BXE partialsum-x"


def test_slicing_of_experts_that_are_apart() -> None:
    # Four experts on eight chips: apart over y, and each sliced over x.
    found = planned(LAYER, "2x4", 2, B=8, E=1023, X=4, F=4096, stored_bytes=1.1 * weights_bytes(4, 1023, 4096) / 8)
    assert found.read("Wi") == "X_yEF_x" and found.read("Wd") == "X_yF_xE"


TENSOR_PARALLEL = "stored n B_yE\nstored y B_yE"  # as attention leaves tokens, the same on all chips along x


def test_coordinated_exchange_of_experts_over_all_axes() -> None:
    # Tokens are there on all chips along x, so the way to experts along x is a slice; only y has to exchange.
    found = planned(LAYER, "2x4", 2, TENSOR_PARALLEL, B=1024, E=2048, X=64, F=1024)
    assert found.read("Wi") == "X_xyEF" and found.read("Wd") == "X_xyFE"
    assert found.sent()["e"] == ["all-to-all(y)"]
    assert "all-gather(x)" in found.sent()["y"]


def test_coordinated_exchange_of_experts_over_the_other_axes() -> None:
    # As many experts as there are chips along y: all-to-alls there and back over y alone, of the slice of each token
    # that a chip along x takes, and an all-gather over x at the end.
    b, e, x, f, k = 2048, 2048, 4, 1024, 1
    found = planned(LAYER, "2x4", k, TENSOR_PARALLEL, 1.05 * weights_bytes(x, e, f) / 4, B=b, E=e, X=x, F=f)
    assert found.spmd.table()["u"].layout.dims[1] == ("y",)
    assert found.sent()["e"] == found.sent()["d"] == ["all-to-all(y)"]
    assert found.sent()["y"] == ["all-gather(x)"]
    moves = {m.result: m.bytes_sent for m in estimate(found.spmd, V4).moves}
    exchange = b / 4 * k * e / 2 * 2 * 3 / 4  # of a half of each token, to three of four chips
    assert moves["e'"] == moves["d'"] == pytest.approx(exchange, rel=1e-12)
    assert moves["y'"] == pytest.approx(b / 4 * e * 2 / 2, rel=1e-12)


def test_data_parallel_attention_with_expert_parallelism() -> None:
    found = planned(WITH_ATTENTION, "4x4", 4, B=4096, L=1, M=2048, E=1024, H=16, C=256, X=64, F=512)
    for name in ("latents", "q", "t", "n", "e"):
        tokens, *others = found.spmd.table()[name].layout.dims
        assert set(tokens) == {"x", "y"} and not any(others), name
    assert set(found.spmd.table()["u"].layout.dims[1]) == {"x", "y"}
    moves = found.sent()
    assert moves.keys() == {"e", "d"} and exchanged(found, "e") and exchanged(found, "d")


def test_weights_are_gathered_over_experts_where_tokens_are_many() -> None:
    b, e, x, f = 65536, 1023, 4, 1021  # sizes that no axis divides, so that only X is left to split weights by
    found = planned(LAYER, "4", 2, B=b, E=e, X=x, F=f, stored_bytes=1.2 * weights_bytes(x, e, f) / 4)
    assert found.layout("Wi") == "X_xEF" and found.read("Wi") == "XEF" and found.read("Wd") == "XFE"
    assert found.sent() == {"Wi": ["all-gather(x)"], "Wd": ["all-gather(x)"]}
    assert found.bytes_sent == pytest.approx(weights_bytes(x, e, f) * 3 / 4, rel=1e-12)


def test_the_ways_cross_where_their_bytes_do() -> None:
    """Expert parallelism against gathered tokens, by formulas: k copies of each token against one for each chip."""
    b, e, x, chips = 1024, 4096, 16, 4
    for k in (3, 5):
        found = planned(LAYER, "4", k, "stored n B_xE\nstored y B_xE", B=b, E=e, X=x, F=4096)
        copies = min(k, chips)
        mask = b / chips * k * 2 * (chips - 1) / chips if k > chips else 0.0
        expected = 2 * b / chips * e * copies * 2 * (chips - 1) / chips + mask
        assert found.bytes_sent == pytest.approx(expected, rel=1e-12)


def test_tokens_go_once_to_a_chip_of_several_of_their_experts() -> None:
    b, e, n, y, k, chips = 2048, 4096, 8, 8, 8, 8
    text = LAYER.replace("main(", "dim X = N * Y\nmain(")
    pins, hardware = "stored n [B/node, E]\nstored y [B/node, E]", Hardware.load("h100")
    found = planned(text, "node=8", k, pins, hardware=hardware, B=b, E=e, N=n, Y=y, F=4096)
    assert found.read("Wi") == "[N/node, Y, E, F]"
    assert (found.layout("e.sent"), found.layout("y.sums")) == ("[B/node, N, E]", "[B, E, N/node]")
    assert exchanged(found, "e.sent") and exchanged(found, "y.sums") and not {"e", "d"} & found.sent().keys()
    met = n * (1 - math.comb(n * y - y, k) / math.comb(n * y, k))  # of the groups, in place of k experts
    masks = sum(move.bytes_sent for move in estimate(found.spmd, V4).moves if move.result[0] in "mw")
    assert met < 0.75 * k
    there = (b / chips) * met * e * 2 * (chips - 1) / chips
    assert found.bytes_sent - masks == pytest.approx(2 * there, rel=1e-12)


@pytest.mark.parametrize(("tokens", "first", "then"), [(2048, "once", ["to each", "there"]), (1, "to each", [])])
def test_what_promises_more_is_planned_first_and_the_other_is_held_to_its_price(
    tokens: int, first: str, then: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned_below, seen = choose_module.planned, list[tuple[str, float]]()

    def noted(task: Any, below: float) -> Plan:
        [program] = task.programs.values()
        way = "once" if "y.sums" in program.table() else "there" if "e.sent" in program.table() else "to each"
        seen.append((way, below))
        return planned_below(task, below)

    monkeypatch.setattr(choose_module, "planned", noted)
    text = LAYER.replace("main(", "dim X = N * Y\nmain(")
    pins = "stored n B_xE\nstored y B_xE" if tokens > 1 else ""
    found = planned(text, "8", 8, pins, B=tokens, E=4096, N=8, Y=8, F=4096)
    assert seen[0] == (first, math.inf)
    assert [way for way, _ in seen[1:]] == then
    assert ("e.sent" in found.spmd.table()) == (first == "once")
    assert all(found.seconds <= below * (1 + 1e-9) < math.inf for _, below in seen[1:])


PHASES = """
dim B, E = 2048, F = 64, N = 8, Y = 16
dim X = N * Y
main(n: bf16[B,E] @ B_xyE) {
  param Wi: bf16[X,E,F] @ N_xyYEF
  param Wd: bf16[X,F,E] @ N_xyYFE
  param Wr: bf16[E,X] @ ENY
  s[B,X] @ B_xyNY = n[B,E] * Wr[E,X]
  m = choose(s, over=X, keep=8)
  e[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] @ BN_xyYF = e[B,X,E] * Wi[X,E,F]
  h = relu(u)
  d[B,X,E] @ BN_xyYE = h[B,X,F] * Wd[X,F,E]
  w = m * exp(s)
  y[B,E] = w[B,X] * d[B,X,E]
  return y
}
phase prefill { B = 65536 }
phase decode { B = 8, calls = 3000 }
"""


def test_each_phase_sends_tokens_as_is_cheapest_for_it() -> None:
    """Of many tokens it is quicker to send each once, of few it is not; with all parameters pinned phases that are
    planned together cost what they do apart."""
    source = Source("layer.esti", PHASES)
    h100, mesh = Hardware.load("h100", datasheet=True), Mesh.parse("2x4")
    options = Options(h100.with_figures(collective_latency_s=1e-6), capacity_bytes=math.inf)
    program = expand(parse(source), source)
    both = choose(program, ["prefill", "decode"], mesh, options)
    prefill, decode = (choose(program, name, mesh, options) for name in ("prefill", "decode"))
    assert both.price == pytest.approx(prefill.price + 3000 * decode.price, rel=1e-9) and both.gap <= 1e-9
    assert ["e.sent" in phase.program.table() for phase in both.phases] == [True, False]
    near = choose(program, ["prefill", "decode"], mesh, replace(options, settings=Settings(gap=0.5)))
    assert near.bound <= both.price and near.gap > 0.1  # ways that may be but so much cheaper are bounded alone


def test_tokens_go_once_to_a_node_and_there_to_each_of_their_experts() -> None:
    # As DeepEP's kernels for many tokens do: links between nodes are slow, and all experts of a token on one node, in a
    # group that was chosen first, ask for it once.
    text = LAYER.replace("main(", "dim X = N * Y\nmain(").replace("over=X, keep", "over=X, among=g, keep")
    text = text.replace("  m = ", "  best = max(s, over=Y)\n  g = choose(best, over=N, keep=1)\n  m = ")
    pins = "stored n [B/node.gpu, E]\nuse u.Wi [N/node, Y/gpu, E, F]\nuse d.Wd [N/node, Y/gpu, F, E]\n"
    sizes = {"B": 65536, "E": 7168, "N": 4, "Y": 4, "F": 2048}
    sent = planned(text, "node=4,gpu=2", 4, pins, hardware=Hardware.load("h100"), **sizes).sent()
    over_nodes = {name: move for name, moves in sent.items() for move in moves if "node" in move and name[0] in "edy"}
    assert over_nodes.keys() == {"e.sent", "y.sums"}
