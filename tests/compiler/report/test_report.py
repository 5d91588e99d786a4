"""The plan as text and as JSON: what must be there, and that the figures add up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from escc.compiler.plan.compiled import Compilation, CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load, parse
from escc.compiler.report.explain import explain_phase
from escc.compiler.report.explain_text import Explained
from escc.compiler.report.hardware import layouts_table
from escc.compiler.report.json import json_text, phase_data
from escc.compiler.report.text import report
from escc.cost.engine_file import load_engine
from escc.cost.estimate import scopes
from escc.cost.formulas.symbolic import Form
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.passes.options import Options
from escc.passes.plan import Objective

EXAMPLES = Path(__file__).parents[3] / "examples"
SCHEMA: dict[str, type | tuple[type, ...]] = {
    "status": str,
    "objective_s": float,
    "bound_s": float,
    "solve_s": float,
    "build_s": float,
    "gap": float,
    "model": str,
    "phase": str,
    "hardware": str,
    "objective": str,
    "mesh": dict,
    "sizes": dict,
    "stored": dict,
    "stored_bytes_per_chip": float,
    "steps": list,
    "totals": dict,
    "totals_once": dict,
    "repeats": list,
    "check": dict,
    "warnings": list,
}
TOTALS = {"compute_s", "memory_s", "op_s", "comm_s", "total_s", "bytes_sent_per_chip", "collectives"}
OP = {"op", "result", "layout", "seconds", "times"}
COLLECTIVE = {"kind", "axes", "tensor", "result", "from", "to", "bytes_sent_per_chip", "seconds", "times"}
NESTED = """
dim B = 64, E = 256
block inner(x: bf16[B,E]) -> bf16[B,E] {
  param W: bf16[E,E2]
  u[B,E2] = x[B,E] * W[E,E2]
  y[B,E] = u[B,E2] * W[E,E2]
  return y
}
block outer(x: bf16[B,E]) -> bf16[B,E] { return repeat 3 inner(x) }
dim E2 = 512
main(x: bf16[B,E]) { return repeat 5 outer(x) }
"""


@cache
def palm(objective: Objective = Objective.TIME) -> CompiledPhase:
    program = load(EXAMPLES / "palm-540b.esti")
    options = Options(Hardware.of_paper("tpu-v4"), objective)
    return compile_phase(program, "decode", Mesh.parse("4x4x4"), options, run=True)


def data(compiled: CompiledPhase) -> dict[str, Any]:
    found = json.loads(json_text(Compilation((compiled,))))
    assert isinstance(found, dict)
    return found


def test_json_has_every_key_with_the_type_that_it_should_have() -> None:
    found = data(palm())
    assert {key: type(found[key]) for key in SCHEMA if not isinstance(found[key], SCHEMA[key])} == {}
    assert (found["status"], found["objective"], found["hardware"]) == ("optimal", "time", "tpu-v4")
    assert found["mesh"] == {"x": 4, "y": 4, "z": 4}
    assert set(found["totals"]) == set(found["totals_once"]) == TOTALS
    for step in found["steps"]:
        assert (OP if "op" in step else COLLECTIVE) <= set(step)
    assert found["check"]["counted_equals_predicted"] is True
    assert found["check"]["chips"] == 64
    assert found["check"]["max_error"] <= 1e-9
    assert found["check"]["counted_bytes"] == found["check"]["predicted_bytes"] > 0
    assert found["stored"]["layer.keys"] == "B_xyzMQ"


def test_the_totals_of_json_are_the_sums_of_its_steps() -> None:
    found = data(palm())
    for totals, times in ((found["totals"], lambda s: s["times"]), (found["totals_once"], lambda s: 1)):
        moves = [s for s in found["steps"] if "kind" in s]
        assert math.isclose(totals["comm_s"], sum(times(s) * s["seconds"] for s in moves))
        assert math.isclose(totals["bytes_sent_per_chip"], sum(times(s) * s["bytes_sent_per_chip"] for s in moves))
        assert math.isclose(totals["op_s"], sum(times(s) * s["seconds"] for s in found["steps"] if "op" in s))
    assert math.isclose(found["objective_s"], found["totals"]["total_s"])
    assert math.isclose(found["stored_bytes_per_chip"], sum(found["stored_bytes"].values()))
    [layer] = found["repeats"]
    assert (layer["name"], layer["count"]) == ("layer", 118)
    assert math.isclose(118 * layer["total_s"], found["totals"]["total_s"])


def test_memory_is_what_is_stored_and_what_is_live_beside_it() -> None:
    used = data(palm())["memory"]
    assert used["stored_bytes"] == data(palm())["stored_bytes_per_chip"]
    assert used["live_bytes"] == sum(used["live"].values()) > 0
    assert used["total_bytes"] == used["stored_bytes"] + used["live_bytes"]
    assert (used["worst_step"], used["worst_repeats"]) == ("layer.return", ["layer"])
    assert "  in all: 19.295 GB, 56.2% of the HBM\n" in report(palm())
    small = replace(palm(), hardware=replace(palm().hardware, hbm_bytes=19.29e9))
    assert "  in all: 19.295 GB, 100.0% of the HBM, more than it has\n" in report(small)


ATTENDING = """
dim B = 4, L = 4096, M = 8192, E = 16
cache keys: bf16[B,M,E] @ B_xME
main(x: bf16[B,L,E]) {
  ks = append(keys, x, L into M)
  s[B,L,M] = x[B,L,E] * ks[B,M,E]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,E] = p[B,L,M] * ks[B,M,E]
  return o
}
"""


def test_scores_in_blocks_are_told_by_their_blocks() -> None:
    one = compile_phase(parse(ATTENDING), "main", Mesh.parse("2"), Options(Hardware.of_paper("tpu-v4")))
    said = "  scores of p, in blocks of 4,096 L x 512 M: 16.8 MB at a time, of 268.4\n"
    assert said in report(one)
    assert f"\n\nAttention\n{said}" in str(Explained(explain_phase(one, Form.EXACT), None))
    used = data(one)["memory"]
    block = {"places": {"L": 4096, "M": 512}, "bytes": 2.0 * 4096 * 512 * 4, "whole_bytes": 2.0 * 4096 * 8192 * 4}
    assert used["scores_in_blocks"] == {"p": block}
    assert (used["worst_step"], used["live"]["p"]) == ("p.max", block["bytes"])
    assert "as p.max is made: p (block), " in report(one)


def test_several_phases_are_a_list_and_one_is_not() -> None:
    assert json.loads(json_text(Compilation((palm(), palm())))) == {"phases": [data(palm()), data(palm())]}


def test_what_is_not_proven_is_feasible() -> None:
    plan = palm().plan
    bound = plan.price * 0.95
    open_plan = replace(plan, phases=(replace(plan.phases[0], bound=bound),), bound=bound)
    compiled = replace(palm(), plan=open_plan)
    assert phase_data(compiled)["status"] == "feasible"
    assert "feasible: the optimum on whole axes may be up to 5.00% lower" in report(compiled)
    assert "optimal" not in report(compiled)
    assert "optimal on whole axes: proven" in report(palm())


def test_least_memory_is_stated_in_bytes() -> None:
    found = data(palm(Objective.MEMORY))
    assert found["objective_s"] is None and found["bound_s"] is None
    assert found["objective_bytes"] == found["stored_bytes_per_chip"] == found["bound_bytes"]
    assert "GB stored" in report(palm(Objective.MEMORY))


def test_a_failed_run_cannot_be_overlooked() -> None:
    checked = palm().checked
    assert checked is not None
    wrong = replace(palm(), checked=replace(checked, max_error=math.inf))
    assert "DIFFERS from the reference" in report(wrong)
    assert data(wrong)["check"]["max_error"] is None
    moves = (replace(checked.moves[0], counted=checked.moves[0].counted + 1), *checked.moves[1:])
    wrong = replace(palm(), checked=replace(checked, moves=moves))
    assert "DIFFERS from the" in report(wrong)
    assert data(wrong)["check"]["counted_equals_predicted"] is False


def test_nested_repeats_each_have_their_totals(tmp_path: Path) -> None:
    path = tmp_path / "nested.esti"
    path.write_text(NESTED)
    compiled = compile_phase(load(path), "main", Mesh.parse("2"), Options(Hardware.of_paper("tpu-v4")))
    outer, inner = scopes(compiled.spmd, compiled.estimate)
    assert (outer.count, inner.count) == (5, 3)
    assert math.isclose(outer.once.op_s, 3 * inner.once.op_s)
    assert math.isclose(compiled.estimate.totals().op_s, 15 * inner.once.op_s)
    assert inner.once.op_s > 0


def test_the_text_says_what_a_reader_needs_within_100_columns() -> None:
    text = report(palm())
    for part in ("118", "21.56", "all-gather", "objective", "bound", "GB", "virtual chips", "as predicted"):
        assert part in text
    assert max(map(len, text.split("\n"))) <= 100
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.split("\n"))


def test_the_layouts_of_a_tensor_are_all_the_legal_ones() -> None:
    lines = layouts_table("[b, d]", {"b": 1, "d": 12}, Mesh.parse("2x3x4"), Dtype.INT4).splitlines()
    rows = [line.split("  ") for line in lines[2:]]
    found = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    # 12 divides by 2, 3, 4, 6 and 12, not by 8 or 24: x and z do not go together.
    assert {row[0] for row in found} == {
        "[b, d]",
        *(f"[b, d/{axes}]" for axes in ("x", "y", "z", "x.y", "y.x", "y.z", "z.y")),
    }
    assert ["[b, d/y.z]", "1x1", "12", "0.5"] in found
    assert [int(row[2]) for row in found] == sorted(int(row[2]) for row in found)


@pytest.mark.parametrize(
    ("tensor", "sizes", "mesh", "message"),
    [
        ("ble", {}, "2", "is not a layout"),
        ("B_xL", {"B": 2, "L": 2}, "2", "is a layout"),
        ("BB", {"B": 2}, "2", "twice"),
        ("BL", {"B": 2}, "2", "`L` has no size"),
        ("B", {"B": 2, "Q": 2}, "2", "no dim `Q`"),
        ("B", {"B": 0}, "2", "between 1 and 2"),
        ("B", {"B": 2**41}, "2", "between 1 and 2"),
        ("BLE", {"B": 256, "L": 256, "E": 256}, "2x2x2x2x2x2x2x2", "layouts on 8 axes"),
    ],
)
def test_what_is_no_tensor_is_refused(tensor: str, sizes: dict[str, int], mesh: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        layouts_table(tensor, sizes, Mesh.parse(mesh), Dtype.BF16)


@pytest.mark.parametrize(("read", "said"), [("c", True), ("ks", False)])
def test_a_cache_that_is_read_as_it_was_is_said_to_be_copied(read: str, said: bool) -> None:
    program = parse(f"""model "kept"
    dim B = 4, L = 1, M = 65536, Q = 1024
    main(x: bf16[B,L,Q]) {{
      cache c: bf16[B,M,Q]
      ks = append(c, x, L into M)
      s[B,L,M] = x[B,L,Q] * ks[B,M,Q]
      t[B,L,M] = x[B,L,Q] * {read}[B,M,Q]
      return s + t
    }}""")
    text = report(compile_phase(program, "main", Mesh.parse("1"), Options(Hardware.load("h100"))))
    line = "  not counted: c is read as it was beside its append, so that XLA copies it: 0.537 GB"
    assert (line in text.splitlines()) == said


@pytest.mark.parametrize(
    ("chip", "said"),
    [
        ("v100", ["of bf16 at the rate of f16: v100 has no arithmetic in bf16"]),
        ("h100", []),
        ("tpu-v5p", []),  # which multiplies f32 in bf16
        (None, ["of f32 at the rate of bf16: the hardware's file has no `peak_f32_flops_per_s`"]),
    ],
)
def test_a_plan_says_at_what_rate_products_are_done_that_have_none_of_their_own(
    chip: str | None, said: list[str]
) -> None:
    program = parse("""dim B = 4, E = 64, F = 64
    main(x: bf16[B,E], n: f32[B,E]) {
      param W: bf16[E,F]
      param V: f32[E,F]
      y[B,F] = x[B,E] * W[E,F]
      z[B,F] = n[B,E] * V[E,F]
      return y, z
    }""")
    hardware = Hardware.load(chip) if chip else replace(Hardware.load("h100"), peak_f32_flops_per_s=None)
    text = report(compile_phase(program, "main", Mesh.parse("1"), Options(hardware)))
    assert [line[len("  products  ") :] for line in text.splitlines() if line.startswith("  products")] == said


def test_a_plan_says_of_which_chip_its_shares_are() -> None:
    """That of a V100's matmuls is published, of no other chip; all else is an H100's."""
    program = load(EXAMPLES / "feed-forward.esti")
    text = report(compile_phase(program, "main", Mesh.parse("4"), Options(Hardware.load("v100"))))
    assert "collectives as measured on h100\n" in text
    assert "those of h100-measured but for compute: compute 66%, HBM 86%" in text
    own = report(compile_phase(program, "main", Mesh.parse("4"), Options(Hardware.load("a100-80"))))
    assert "those of h100-measured: compute 79%" in own


FP4, FP8 = (f"of {name} with bf16 in bf16, as the module does them" for name in ("fp4", "fp8"))
SERVED = "of fp8 with bf16 in fp8, to which vllm brings both"


@pytest.mark.parametrize(
    ("chip", "engine", "said"),
    [
        ("b200", None, [FP4, FP8]),
        ("b200", "vllm", [FP4, SERVED]),
        ("h100", "vllm", [SERVED]),
        ("tpu-v5p", None, []),  # as quick in bf16
    ],
)
def test_a_plan_says_in_what_products_with_fewer_bits_are_done(chip: str, engine: str | None, said: list[str]) -> None:
    program = parse("""model "narrow"
    dim B = 4, E = 64, F = 64
    main(x: bf16[B,E], n: fp8[B,E]) {
      param W, V: fp8[E,F] * f32[F]
      param U: fp4[E,F] * f32[F]
      y[B,F] = x[B,E] * W[E,F]
      z[B,F] = x[B,E] * U[E,F]
      u[B,F] = n[B,E] * V[E,F]
      return y, z, u
    }""")
    hardware = Hardware.load(chip).with_engine(engine and load_engine(engine))
    text = report(compile_phase(program, "main", Mesh.parse("1"), Options(hardware)))
    assert [line[len("  products  ") :] for line in text.splitlines() if line.startswith("  products")] == said
