"""The public face: what `import escc` gives, and that nothing is imported before it is asked for."""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest
from programs import TINY_DECODER

import escc
from escc.compiler.report.compiled_model import CompileOptions
from escc.cost.hardware import Host

EXAMPLE = Path(__file__).parents[1] / "examples" / "feed-forward.esti"
TEXT = """
model "two"
dim B
dim E = 16, F = 32
param W: bf16[E,F]
main(x: bf16[B,E]) {
  y[B,F] = x[B,E] * W[E,F]
  return y
}
phase few { B = 4 }
phase many { B = 16 }
"""


def small() -> escc.CompiledModel:
    return escc.compile(escc.load(EXAMPLE, {"B": 8, "E": 32, "F": 64}), "2x2", "tpu-v4")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ("ortools", "sympy", "numpy", "lark", "jinja2", "scipy", "matplotlib", "typer")
    assert run(f"import escc, sys; print([name for name in {heavy} if name in sys.modules])") == "[]\n"


def test_every_public_name_is_there() -> None:
    assert set(escc.__all__) == set(escc._HOMES) == {name for name in dir(escc) if not name.startswith("__")}
    assert all(getattr(escc, name).__doc__ for name in escc.__all__)
    with pytest.raises(AttributeError, match="no attribute `plan`"):
        escc.plan  # noqa: B018


def test_the_types_of_compile_have_all_of_its_options() -> None:
    named = {name for name, one in signature(escc.compile).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert named == {"stages", *CompileOptions.__annotations__}


def test_a_script_of_ten_lines_compiles_palm_and_prints_its_plan() -> None:
    text = run(
        "import escc\n"
        "model = escc.load('palm-540b')\n"
        "mesh, chip = escc.Mesh.parse('4x4x4'), escc.Hardware.load('tpu-v4')\n"
        "plan = escc.compile(model, mesh, chip, phases='decode')\n"
        "print(plan)\n"
        "print(plan.report())\n"
    )
    assert text.startswith('Plan of "palm-540b", phase decode') and "\nNext\n" in text
    assert 'sharded "palm-540b" decode on x=4 y=4 z=4' in text


def test_a_compiled_model_has_what_the_commands_give(tmp_path: Path) -> None:
    plan = small()
    assert plan.outcome is escc.Outcome.OPTIMAL and plan.seconds == plan["main"].estimate.totals().total_s
    assert "Sharded program" in plan.report() and "Sharded program" not in str(plan)
    for target in ("numpy", "jax", "specs"):
        ast.parse(plan.emit(target))
        assert plan.write(target, tmp_path)[0].read_text() == plan.emit(target)
    assert plan.emit("json").startswith("{")
    assert plan._repr_html_().startswith("<iframe srcdoc=") and "<script" not in plan._repr_html_()
    assert [report.equal for report in plan.check()] == [True]
    assert len(repr(plan["main"].prediction)) < 600  # without what each step takes


def test_a_count_of_chips_is_ranked() -> None:
    plan = escc.compile(escc.load(EXAMPLE, {"B": 8, "E": 32, "F": 64}), 4, "tpu-v4", any_shape=True)
    assert len(plan.shapes) == 2 and plan.mesh == plan.shapes[0].mesh
    assert plan.report().startswith("Slice shapes, cheapest first")


def test_what_a_user_should_know_of_the_chips_is_a_warning() -> None:
    model = escc.load(EXAMPLE, {"B": 24, "E": 24, "F": 24})
    plan = escc.compile(model, "24", "tpu-v4")
    (said,) = plan.warnings
    assert said.message == "No slice of 24 chips of tpu-v4 is offered."
    (explained,) = escc.explain(model, "24", "tpu-v4")
    assert explained.warnings == (said,)
    idle = escc.compile(model, "x=24,y=5", "tpu-v4")
    assert ["axis `y` (5) can split no dim" in one.message for one in idle.warnings] == [True]
    (formulas,) = escc.explain(model, "x=24,y=5", "tpu-v4")
    assert formulas.warnings == idle.warnings
    assert plan.module_warnings == () == small().warnings
    for one in (plan, idle):
        told = [each.message for each in one.warnings]
        assert json.loads(one.emit("json"))["warnings"] == told
        assert all(f'<p class="warning">{message}</p>' in one.emit("html") for message in told)


def test_what_a_user_should_know_of_stages_is_a_warning() -> None:
    model, asked = escc.parse(TINY_DECODER.replace("repeat 5", "repeat 2")), {"decode": 1}
    plan = escc.compile(model, "10", "tpu-v4", phases="decode", stages=2, micro_batches=asked)
    assert isinstance(plan, escc.CompiledPipeline)
    said = [one.message for one in plan.warnings]
    assert said[0] == "No slice of 10 chips of tpu-v4 is offered."
    assert len(said) == len(set(said)), "what is said of two stages is said once"
    assert "In phase `decode` axis `y` (5) can split no dim of the program; it replicates." in said
    explained = escc.explain(model, "10", "tpu-v4", phases="decode", stages=2, micro_batches=asked)
    assert isinstance(explained, escc.ExplainedPipeline) and explained.warnings == plan.warnings
    data = json.loads(plan.emit("json"))
    of_stages = [message for stage in data["stages"] for message in stage["warnings"]]
    assert [*data["pipeline"]["warnings"], *dict.fromkeys(of_stages)] == said
    assert [plan.emit("html").count(f'<p class="warning">{message}</p>') for message in said] == [1] * len(said)


def test_figures_of_the_datasheet_are_of_a_chip_that_is_named() -> None:
    model, measured = escc.load(EXAMPLE, {"B": 8, "E": 32, "F": 64}), escc.Hardware.load("tpu-v4")
    peaks = escc.Hardware.load("tpu-v4", datasheet=True)
    named = escc.compile(model, "2x2", "tpu-v4", datasheet=True)
    assert escc.compile(model, "2x2", peaks, datasheet=True).seconds == named.seconds != small().seconds
    for asked in (escc.compile, escc.explain):
        with pytest.raises(
            escc.InputError, match="`datasheet` is of a chip that is named, and tpu-v4-measured is"
        ) as e:
            asked(model, "2x2", measured, datasheet=True)
        assert (
            e.value.diagnostics[0].hint == 'name it, as "tpu-v4", or load it by `Hardware.load(NAME, datasheet=True)`'
        )


def test_phases_are_chosen_and_named() -> None:
    model = escc.parse(TEXT)
    plan = escc.compile(model, "2", "tpu-v4")
    assert [one.phase for one in plan.phases] == ["few", "many"]
    assert [one.phase for one in escc.compile(model, "2", phases=["many"]).phases] == ["many"]
    assert plan.emit("numpy", "few") != plan.emit("numpy", "many")
    for wrong in (lambda: plan.emit("numpy"), lambda: plan.emit("numpi"), lambda: plan.emit("numpy", "fwe")):
        with pytest.raises(escc.EsccError):
            wrong()


def test_stages_and_streams_are_options_of_compile(tmp_path: Path) -> None:
    model = escc.parse(TINY_DECODER.replace("repeat 5", "repeat 2"))
    pipeline = escc.compile(model, "2", "h100", phases="decode", stages=2, micro_batches={"decode": 1})
    assert isinstance(pipeline, escc.CompiledPipeline)
    assert len(pipeline.stages) == 2 and pipeline.micro_batches == {"decode": 1}
    assert pipeline.seconds == min(one.price for one in pipeline.tried)
    assert str(pipeline).count("Pipeline of") == 1
    written = pipeline.write("json", tmp_path)
    assert any(path.name == "tiny_pipeline.json" for path in written)
    explained = escc.explain(model, "2", "h100", phases="decode", stages=2, micro_batches={"decode": 1})
    assert isinstance(explained, escc.ExplainedPipeline)
    assert explained.phases[0].plan_s == pytest.approx(pipeline.seconds)
    assert [one.explanation.phase for stage in explained.stages for one in stage] == ["decode"] * 2
    assert str(explained).startswith('Formulas of the pipeline of "tiny"')
    alone = escc.compile(model, "1", "h100", phases="decode", stages=1)
    assert isinstance(alone, escc.CompiledModel) and alone.outcome == "optimal"
    slow = replace(alone, tried=(replace(alone.tried[0], bound=alone.tried[0].price / 2),))
    assert slow.outcome == "feasible", "what is proven is proven of all that was tried"
    assert json.loads(slow.emit("json"))["tried"][0]["bound_s"] == slow.tried[0].bound
    assert isinstance(escc.explain(model, "1", "h100", phases="decode", stages=1), tuple)
    with pytest.raises(escc.InputError, match="`ahead` is of streams from the host"):
        escc.compile(model, "1", "h100", phases="decode", ahead=1)
    for ahead in (-1, 17):
        with pytest.raises(
            escc.InputError, match=f"`ahead` is {ahead}.\n  hint: it is a count of layers, from 0 to 16"
        ):
            escc.compile(model, "1", "h100", phases="decode", offload="auto", ahead=ahead)
        with pytest.raises(escc.InputError, match=f"`ahead` is {ahead}."):
            escc.sweep("palm-8b", 4, 4, "h100", offload="auto", ahead=ahead)
    with pytest.raises(escc.InputError, match=r"A skew is .* and the model chooses none"):
        escc.compile(model, "1", "h100", skew=2)
    with pytest.raises(escc.InputError, match=r"A capacity is .* and the model chooses none"):
        escc.compile(model, "1", "h100", capacity=1.25)
    chip = replace(escc.Hardware.load("h100"), hbm_bytes=190e3, host=Host(1e9, 1e11, 1e10, 8))
    streamed = escc.compile(model, "1", chip, phases="decode", offload="auto", ahead=0)
    assert streamed.offloaded is not None and 0 < streamed.offloaded.streamed <= streamed.offloaded.layers
    assert str(streamed).startswith("Streams: ")
    assert streamed.seconds == pytest.approx(streamed.offloaded.price)
    slow = replace(streamed, offloaded=replace(streamed.offloaded, bound=streamed.offloaded.price / 2))
    assert (slow.outcome, slow.phases.outcome) == ("feasible", "optimal"), "waiting counts"
    said = json.loads(slow.emit("json"))["offload"]
    assert said["status"] == "feasible" and 2 * said["bound_s"] == said["objective_s"] == slow.offloaded.price


def test_formulas_are_explained() -> None:
    [explained] = escc.explain(escc.load(EXAMPLE), "4x4", "tpu-v4", drop_ones=True)
    assert str(explained).startswith('Formulas of "feed-forward"')
    line = explained.explanation.totals[0]
    assert line.value_s == pytest.approx(line.plan_s)


def test_a_sweep_is_a_table() -> None:
    found = escc.sweep("llama-2-13b", [8], [1, 8], context=1024, phase="decode", jobs=1)
    assert [record.point.batch for record in found.records] == [1, 8]
    assert str(found).startswith("Sweep of llama-2-13b") and found.answer(max_latency_s=1.0).met


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: escc.load("nowhere.esti"), "nowhere.esti"),
        (lambda: escc.parse("main() {"), "text:"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2xx"), "not a mesh"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", "tpu-v9"), "no hardware preset"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", phases="mian"), "did you mean `main`"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", phases=[]), "No phase"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", solver="cplex"), "no solver"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", objective="tine"), "no objective"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", network="lnks"), "no network"),
        (lambda: small().check("torch"), "no backend"),
        (lambda: small()["mian"], "did you mean `main`"),
        (lambda: small().emit("jax", phase="few"), "no compiled phase `few`"),
        (lambda: escc.compile(escc.load(EXAMPLE), None), "`mesh` of `escc.compile` is None"),
        (lambda: escc.compile(escc.load(EXAMPLE), (2, 4)), "`mesh` of `escc.compile`"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", hbm_fraction="0.5"), "`hbm_fraction` of"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", hbm_fraction=1.5), "share of the memory"),
        (lambda: escc.sweep(EXAMPLE, 4, 4, hbm_fraction=math.nan), "share of the memory"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", hbm_fraction=math.nan), "share of the memory"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", overlap="yes"), "`overlap` of"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", phases=3), "`phases` of"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", stages="two"), "`stages` is 'two'"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", micro_batches={"main": 2}), "those of stages"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", stages=2, micro_batches={"mian": 2}), "did you mean `main`"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", offload="all"), "no kind of tensors to offload"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", offload="auto"), "has no host"),
        (lambda: escc.compile(escc.load(EXAMPLE), "2", offload="auto", stages=2), "no layers to divide"),
        (lambda: escc.compile("palm-8b", "2", phases="decode", offload="auto", stages=2), "has no host to store"),
        (lambda: escc.compile(None, "2"), "it takes Program or str or Path"),
        (lambda: escc.load(3), "`file` of `escc.load`"),
        (lambda: escc.load(EXAMPLE, {"B": "8"}), "Mapping of str to int"),
        (lambda: escc.load(EXAMPLE, ["B=8"]), "`settings` of"),
        (lambda: escc.load(EXAMPLE, pins="a.pins"), "Sequence of str or Path"),
        (lambda: escc.load(EXAMPLE, phase="mian"), "did you mean `main`"),
        (lambda: escc.parse(3), "`text` of"),
        (lambda: escc.explain(escc.load(EXAMPLE), "2", form="foo"), "no form `foo`"),
        (lambda: escc.explain(escc.load(EXAMPLE), "2", stages=2, trace=True), "`trace` does not go with `stages`"),
        (lambda: escc.sweep(escc.load(EXAMPLE), "4", "32"), "`model` of `escc.sweep`"),
    ],
)
def test_what_is_wrong_is_an_error_of_its_own(call: object, says: str) -> None:
    with pytest.raises(escc.EsccError, match=says):
        call()  # type: ignore[operator]


def test_a_refusal_says_whether_it_is_proven() -> None:
    with pytest.raises(escc.NoPlan) as error:
        escc.compile(escc.load("palm-540b"), "1", phases="decode")
    assert error.value.outcome is escc.Outcome.INFEASIBLE


def test_the_documents_use_what_is_public() -> None:
    root = Path(__file__).parents[1]
    text = "\n".join((root / name).read_text() for name in ("README.md", "docs/api.md"))
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 2
    used = {node.attr for block in blocks for node in ast.walk(ast.parse(block)) if is_public(node)}
    assert used and used <= set(escc.__all__)
    assert set(escc.__all__) <= set(re.findall(r"\b\w+\b", (root / "docs/api.md").read_text())) | {"Explained"}


def is_public(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "escc"


def test_seconds_of_phases_count_what_hands_their_caches_on() -> None:
    found = escc.compile(escc.parse(TINY_DECODER), "2", "tpu-v4")
    phases = list(found.phases)
    plan = phases[0].plan
    [handover] = plan.handovers
    calls = {one.phase: one.calls for one in phases}
    dearer = replace(plan, handovers=(replace(handover, price=handover.price + 1.0),))
    other = replace(found, phases=replace(found.phases, phases=tuple(replace(one, plan=dearer) for one in phases)))
    assert other.seconds == pytest.approx(found.seconds + calls[handover.before], rel=1e-9)
    assert found.seconds == pytest.approx(plan.price, rel=1e-9)
