"""The check of emitted JAX modules with experts: they send what was planned, kind by kind, and say what is dropped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from expert_models import Layer
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.emit.jax_packed import packed
from escc.compiler.jax.check import check_jax, jax_check_text
from escc.compiler.jax.hlo import ModuleTransfer, collectives_of
from escc.compiler.jax.planned import planned_memory, too_large, wider_rows
from escc.compiler.plan.compiled import CompiledPhase
from escc.cost.estimate import predict
from escc.ir.choices import with_room
from escc.ir.collective import CollectiveKind
from escc.ir.mesh import Mesh

pytestmark = pytest.mark.usefixtures("forked_jax")

TEXT = """
dim B = 1024, E = 256, X = 16, F = 512
block layer(n: bf16[B,E]) -> bf16[B,E] {
  param Wr: bf16[E,X]
  param Wi: bf16[X,E,F]
  param Wd: bf16[X,F,E]
  s: f32[B,X] = n[B,E] * Wr[E,X]
  m: bf16 = choose(s, over=X, keep=KEEP)
  t[B,X,E] = m[B,X] * n[B,E]
  u[B,X,F] = t[B,X,E] * Wi[X,E,F]
  h = gelu(u)
  d[B,X,E] = h[B,X,F] * Wd[X,F,E]
  y[B,E] = m[B,X] * d[B,X,E]
  return n + y
}
main(n: bf16[B,E]) { return repeat 3 layer(n) }
"""
EXCHANGED = Layer(TEXT.replace("KEEP", "2"), "4", "stored n B_xE\nstored layer.Wi X_xEF\nstored layer.Wd X_xFE\n")


def lines(one: CompiledPhase) -> tuple[bool, list[str]]:
    report = check_jax(one)
    assert report.equal and report.agrees and report.routing and not report.routing.keys() & report.planned.keys()
    return report.lost is not None, jax_check_text(one, report).splitlines()[9:]


def test_a_module_sends_what_its_capacity_plans() -> None:
    counted, text = lines(EXCHANGED.compiled(Fraction(5, 4)))
    sent = 1024 // 4 * 2 * 256 * 2 * 3 * 5 // (4 * 4)  # of a chip's tokens, to three of four
    assert counted and text == [
        "Collectives of the module compiled at full size, after partitioning, with the bytes that a device sends",
        "              axes  bytes each  times planned  times found",
        f"  all-to-all  x        {sent:,}              6            6",
        f"  {6 * sent:,} bytes in all, as planned",
        "  There is room for 1.25 times what is expected of what `layer.m` chooses.",
        "  Which rows are sent is said in 1,152 bytes more, in 3 collectives.",  # a bit for each entry
        text[6],
        "  in the final module: 6 all-to-all",
    ]
    told = re.fullmatch(r"  At small sizes (\d+) of (\d+) tokens lose (\d+) of (\d+) chosen entries, .*", text[6])
    assert told is not None
    tokens, every, lost, entries = map(int, told.groups())
    assert entries == 2 * every and 0 <= tokens <= lost <= 2 * tokens <= entries


def test_masks_go_as_bits_and_room_for_all_is_sent_where_platforms_pad() -> None:
    # Tokens are gathered where each has more experts than there are chips; the mask is gathered beside them.
    gathered = Layer(TEXT.replace("KEEP", "6"), "4", "stored n B_xE\nstored layer.Wi X_xEF\nstored layer.Wd X_xFE\n")
    counted, text = lines(gathered.compiled())
    assert not counted and "  all-gather      x        393,216              3            3" in text
    assert "  There is room for all of what `layer.m` chooses: in whole rows 2.667 times what is expected." in text
    said = "  Which rows are sent is said in 1,152 bytes more, in 3 collectives; the plan counts 18,432 for masks."
    assert said in text and "  The plan counts 2,359,296 bytes, of the rows that are expected." in text


def test_a_module_with_room_for_all_that_takes_more_than_a_chip_has_is_warned_of() -> None:
    one = EXCHANGED.compiled()
    expected, held = (float(each.total_bytes) for each in (one.memory, planned_memory(one)))
    assert held > 1.1 * expected
    [warning] = too_large(replace(one, hardware=replace(one.hardware, hbm_bytes=(held + expected) / 2)))
    assert "has room for all entries that can be chosen" in warning.message and "--capacity" in str(warning.hint)
    for hbm_bytes in (held, expected - 1):  # enough; too little for the plan as well, which then says so
        assert not too_large(replace(one, hardware=replace(one.hardware, hbm_bytes=hbm_bytes)))
    roomy = EXCHANGED.compiled(Fraction(1))
    assert planned_memory(roomy).total_bytes == roomy.memory.total_bytes


@pytest.mark.parametrize(("row", "sent"), [(256, 256), (320, 512), (2880, 3072)])
def test_rows_exchanged_on_a_tpu_fill_sublanes(row: int, sent: int) -> None:
    text, pins = TEXT.replace("KEEP", "2").replace("E = 256", f"E = {row}"), EXCHANGED.pins
    spmd = Layer(text, "4", pins).compiled().spmd
    wider = wider_rows(packed(spmd))
    assert len(wider) == 2 and set(wider.values()) == {Fraction(sent, row)}


def test_bits_that_say_which_rows_are_sent_are_told_from_the_rest() -> None:
    text = """HloModule m

ENTRY %main (p: u8[8,4]) -> u8[8,4] {
  %p = u8[8,4] parameter(0)
  %q = s8[8,4] parameter(1)
  %a = u8[8,4] all-to-all(%p), replica_groups={{0,1,2,3}}, dimensions={0}
  %b = s8[8,4] all-to-all(%q), replica_groups={{0,1,2,3}}, dimensions={0}
}
"""
    found = collectives_of(text, Mesh.parse("4"))
    kind = CollectiveKind.ALL_TO_ALL
    assert set(found) == {ModuleTransfer(kind, ("x",), Fraction(24), routing) for routing in (False, True)}


def test_a_capacity_multiplies_what_is_sent_and_computed() -> None:
    plain, roomy = (EXCHANGED.compiled(capacity) for capacity in (None, Fraction(3, 2)))
    assert [Fraction(3, 2) * sent for sent in predict(plain.spmd)] == list(predict(roomy.spmd))
    work = {op.result: op.flops for op in plain.estimate.ops}
    grown = {op.result for op in roomy.estimate.ops if op.flops == 1.5 * work[op.result]}
    assert grown >= {"layer.t", "layer.u", "layer.h", "layer.d", "layer.y"} and "layer.s" not in grown
    most = with_room(plain.spmd, {"layer.m": Fraction(100)})
    assert predict(most) == tuple(8 * sent for sent in predict(plain.spmd))  # all entries, 16 of which 2 are kept


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much", "0.99", "1e2", "", "1.2.3"])
@pytest.mark.parametrize("command", ["compile", "check"])
def test_a_capacity_of_nothing_is_refused(command: str, text: str) -> None:
    more = ["--backend", "jax"] if command == "check" else []
    done = CliRunner().invoke(app, [command, "mixtral-8x7b", "--chips", "2", f"--capacity={text}", *more])
    assert done.exit_code == 1 and "Traceback" not in done.output
    assert "hint: write `--capacity 1.25`, times the expected load, or `--capacity full`" in done.output


@pytest.mark.parametrize("text", ["0", "0.99", "nan", "much", ""])
def test_a_load_below_the_mean_is_refused(text: str) -> None:
    done = CliRunner().invoke(app, ["compile", "mixtral-8x7b", "--chips", "2", f"--skew={text}"])
    assert done.exit_code == 1 and "hint: write `--skew 1.5`" in done.output


def test_uneven_loads_cost_more_where_experts_are_split() -> None:
    shapes = ["--chips", "x=8", "--hardware", "h100", "--phase", "prefill", "--set", "B=4,L=512,M=512"]
    prices = []
    for skew in ("1", "1.25", "8"):
        done = CliRunner().invoke(app, ["compile", "mixtral-8x7b", *shapes, "--skew", skew, "--emit", "json"])
        prices.append(json.loads(done.stdout)["objective_s"])
    assert prices == sorted(prices) and prices[0] < prices[2]


def test_random_weights_run_with_room_for_all() -> None:
    done = CliRunner().invoke(app, ["run", "mixtral-8x7b", "--chips", "2", "--capacity", "1.25"])
    assert done.exit_code == 1 and "all chosen entries have room" in done.output
    assert "hint: leave `--capacity` out, or name weights with `--checkpoint`" in done.output
