"""A point against each slice shape compiled by itself: the best is found, and the others are truly beaten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from escc.compiler.plan.pipeline import compile_phase, load, model_names
from escc.compiler.plan.serving import Serving, serving, sizes_at
from escc.compiler.plan.shapes import mesh_name
from escc.compiler.sweep.grid import read_numbers
from escc.compiler.sweep.points import BEATEN, IN_MESH_ORDER, Point, Record, Status, Sweep, record_of
from escc.compiler.sweep.solve import program_at, shapes, solve
from escc.compiler.sweep.sweep_text import sweep_text
from escc.cost.hardware import Hardware
from escc.cost.predict import predict_phase
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

EXAMPLES = Path(__file__).parents[3] / "examples"
MODEL = """model "layers"
dim B, L, M
dim E = 4096, F = 16384, Q = 4096
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wk, Wq: bf16[E,Q]
  param Wo: bf16[Q,E]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys: bf16[B,M,Q]
  k[B,L,Q] = x[B,L,E] * Wk[E,Q]
  q[B,L,Q] = x[B,L,E] * Wq[E,Q]
  ks = append(keys, k, L into M)
  s[B,L,M] = q[B,L,Q] * ks[B,M,Q]
  o[B,L,Q] = s[B,L,M] * ks[B,M,Q]
  a[B,L,E] = o[B,L,Q] * Wo[Q,E]
  u[B,L,F] = a[B,L,E] * Wi[E,F]
  d[B,L,E] = u[B,L,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,L,E]) { return repeat 4 layer(x) }
phase decode { B = 8, L = 1, M = 64 }
"""
DIMS = Serving("B", ("L",), "M")
WINDOWS = {"gemma-3-27b": 1024, "gpt-oss-120b": 128, "llama-4-scout": 8192}  # what some of the layers keep


def sweep(hbm_fraction: float = 1.0) -> Sweep:
    return Sweep(
        DIMS, (Hardware.load("tpu-v4"),), ("decode",), (Dtype.BF16, Dtype.INT8), (8, 16), (4, 64), (2048,),
        source=Source("layers.esti", MODEL), hbm_fraction=hbm_fraction,
    )  # fmt: skip


@pytest.mark.parametrize("chips", [8, 16])
@pytest.mark.parametrize("batch", [4, 64])
def test_the_best_shape_is_found_and_the_others_are_no_better(chips: int, batch: int) -> None:
    grid = replace(sweep(), any_shape=True)
    point = Point("decode", Dtype.INT8, chips, batch, 2048)
    record = solve(grid, point)
    assert record.status is Status.OPTIMAL
    program = program_at(grid, point)
    prices = {}
    for mesh in shapes(chips, grid.hardware[0], any_shape=True):
        one = compile_phase(program, "decode", mesh, Options(grid.hardware[0]))
        prices["x".join(map(str, mesh.sizes))] = one.plan.price
        if "x".join(map(str, mesh.sizes)) == record.slice:
            expected = predict_phase(program, one.spmd, one.estimate, one.memory, grid.hardware[0])
    assert record.latency_s == pytest.approx(min(prices.values()), rel=1e-9)
    assert record.latency_s == expected.seconds and record.hbm_bytes == expected.hbm_bytes
    assert {one.slice for one in record.tried} == set(prices)
    for one in record.tried:
        if one.status == BEATEN:
            assert one.bound_s is not None
            assert record.latency_s * (1 - 1e-9) <= one.bound_s <= prices[one.slice] * (1 + 1e-9)
        else:
            assert one.status == Status.OPTIMAL and one.seconds == pytest.approx(prices[one.slice], rel=1e-9)
    assert any(one.status == BEATEN for one in record.tried)
    assert record_of(record.data()) == record


def test_what_does_not_fit_says_by_how_much() -> None:
    record = solve(sweep(hbm_fraction=0.01), Point("decode", Dtype.BF16, 8, 64, 2048))
    assert record.status is Status.INFEASIBLE and record.latency_s is None
    assert record.reason is not None and "more than the" in record.reason
    assert all(one.status == Status.INFEASIBLE and one.reason for one in record.tried)
    assert record_of(record.data()) == record


def test_shapes_of_which_not_all_layouts_are_looked_at_leave_the_others_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("escc.passes.layouts.mesh_order.MOST", 10)
    grid = replace(sweep(), hardware=(Hardware.load("h100"),))
    record = solve(grid, Point("decode", Dtype.BF16, 16, 64, 2048))
    assert record.status is Status.OPTIMAL and record.slice in ("node=2,x=8", "node=2,x=2,y=4")
    assert [one.status for one in record.tried if one.slice == "node=2,x=2,y=2,z=2"] == [IN_MESH_ORDER]
    assert record_of(record.data()) == record
    assert "Of node=2,x=2,y=2,z=2 only layouts with axes in mesh order" in sweep_text(grid, [record], None)


def test_a_context_too_short_for_the_phase_is_a_reason() -> None:
    text = sweep().source.text + "\nphase turn { B = 4, L = 64, M = 2048 }\n"
    grid = replace(sweep(), source=Source("palm.esti", text))
    record = solve(grid, Point("turn", Dtype.BF16, 8, 4, 32))
    assert record == Record(record.point, Status.INFEASIBLE, (), reason=record.reason)
    assert record.reason is not None and "a context of 32 does not hold them" in record.reason


def test_shapes_that_are_likely_to_be_quick_come_first() -> None:
    named = ["x".join(map(str, mesh.sizes)) for mesh in shapes(64, Hardware.of_paper("tpu-v4"), any_shape=True)]
    assert named == ["4x4x4", "2x4x8", "8x8", "2x2x16", "4x16", "2x32", "64"]
    assert [mesh.sizes for mesh in shapes(8, Hardware.of_paper("h100"))] == [(8,), (2, 4), (2, 2, 2)]
    assert [mesh.sizes for mesh in shapes(16, Hardware.of_paper("h100"))] == [(2, 8), (2, 2, 4), (2, 2, 2, 2)]
    assert [mesh.sizes for mesh in shapes(64, Hardware.load("tpu-v4"))] == [(4, 4, 4)]


@pytest.mark.parametrize("name", model_names())
def test_shipped_models_say_what_counts_their_sequences(name: str) -> None:
    program = load(Path(name))
    dims = serving(program)
    assert dims == DIMS
    assert sizes_at(program, "prefill", dims, 3, 512) == {"B": 3, "M": 512, "L": 512}
    assert sizes_at(program, "decode", dims, 3, 512) == {"B": 3, "M": 512}
    assert sizes_at(program, "decode", dims, 3, None) == {"B": 3}
    assert {wrap.reach for wrap in program.wraps} == ({WINDOWS[name]} if name in WINDOWS else set())


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("context", [512, 2**20])
def test_shipped_models_keep_a_window_or_chunk_of_a_longer_context(name: str, context: int) -> None:
    sizes = load(Path(name), {"M": context}, phase="decode").phase("decode").sizes
    assert dict(sizes)["W"] == min(WINDOWS[name], context)


def test_other_names_and_no_caches_will_do() -> None:
    text = (EXAMPLES / "feed-forward.esti").read_text(encoding="utf-8")
    source = Source("ff.esti", text)
    assert serving(expand(parse(source), source)) == Serving("B", ("L",), None)


def cached(inputs: str, caches: str, second: str) -> str:
    return f"""model "m"
dim B = 4, C = 4, L = 1, M = 8, N = 8, E = 16, Q = 16
main(x: bf16[{inputs},E]) {{
  cache a: bf16[{caches},M,Q]
  cache b: bf16[{caches},{second},Q]
  param W: bf16[E,Q]
  y[{inputs},Q] = x[{inputs},E] * W[E,Q]
  s = append(a, y, L into M)
  t = append(b, y, L into {second})
  u[{inputs},M] = y[{inputs},Q] * s[{caches},M,Q]
  v[{inputs},{second}] = y[{inputs},Q] * t[{caches},{second},Q]
  return u, v
}}
phase decode {{ }}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (cached("B,L", "B", "N"), "grow along several dims, `M`, `N`"),
        (cached("B,C,L", "B,C", "M"), "and there are several, `B`, `C`"),
        (cached("L", "C", "M").replace("[C,", "["), "and there are none beside `L`"),
        (cached("B,L", "B", "M").replace("W: bf16[E,Q]", "W: bf16[E,Q]\n  param Z: bf16[B,L,E]"), "no dim that counts"),
    ],
)
def test_models_that_leave_it_open_are_refused(text: str, said: str) -> None:
    source = Source("m.esti", text)
    with pytest.raises(InputError, match=said):
        serving(expand(parse(source), source))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8..64", (8, 16, 32, 64)),
        ("1..1", (1,)),
        ("3, 5", (3, 5)),
        ("1..4,24 , 64..128", (1, 2, 4, 24, 64, 128)),
    ],
)
def test_numbers_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert read_numbers(text, "--chips", 1 << 20) == (numbers, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["an empty place"]),
        ("8,,9", ["an empty place"]),
        ("8..", ["`8..`, which is no number"]),
        ("64..8", ["ends below its start"]),
        ("6..64,8..12", ["6 is no power of two", "12 is no power of two"]),
        ("8,1..16", ["names 8 twice"]),
        ("0,-1,1e3,2000000", ["`0`", "`-1`", "`1e3`", "`2000000`"]),
    ],
)
def test_what_is_no_list_of_numbers_is_said_part_by_part(text: str, said: list[str]) -> None:
    _, found = read_numbers(text, "--chips", 1 << 20)
    assert len(found) == len(said)
    assert all(part in one.message for part, one in zip(said, found, strict=True))


def test_a_mesh_of_the_table_parses() -> None:
    for mesh in (*shapes(16, Hardware.of_paper("tpu-v4"), any_shape=True), *shapes(16, Hardware.load("h100"))):
        assert Mesh.parse(mesh_name(mesh)) == mesh
