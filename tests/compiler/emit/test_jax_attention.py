"""Attention in blocks in emitted JAX files: the same numbers as the unsharded program, whatever it masks and whatever
is split, and never its scores as a whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from attending import CASES, compiled, emitted, ragged
from emitted_files import run_files

from escc.compiler.emit.jax_lines import WIDTH, Lines
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax.check import check_jax
from escc.compiler.plan.pipeline import compile_phases
from escc.cost.blocks import in_blocks
from escc.cost.hardware import Hardware
from escc.cost.scores import scores
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

GOLDEN = Path(__file__).parents[2] / "golden" / "jax_attention.txt"
SCALED = "values in bytes with scales, and a gate, over a split context"
BROKEN = [
    (SCALED, "block_along(letters, a, context, start, width) for letters, a in scales", "0 * a + 1 for _, a in scales"),
    (SCALED, " * u[", " * 1 + 0 * u["),
    ("tokens that an indexer chooses", "places - left, None", "0, left"),
    ("tokens that an indexer chooses", "start, first = at(0)", "start, first = at(1)"),
    (
        "tokens that an indexer chooses",
        "lax.fori_loop(1, count, lambda place, whole",
        "lax.fori_loop(2, count, lambda place, whole",
    ),
    ("a chunk and a cap", "sums * beside(shrunk)", "sums"),
    ("a chunk and a cap", "start + jnp.arange(width) >= first", "start + jnp.arange(width) >= 0"),
    ("a window and a sink over a split context", "p_sum * jnp.exp(p_max - ", "p_sum * jnp.exp(0 * p_max - 0 * "),
]


def test_every_attention_in_blocks_agrees_with_the_program_unsharded_and_broken_ones_do_not(tmp_path: Path) -> None:
    texts = {name: ragged(name) for name in CASES}
    for name, right, wrong in BROKEN:
        before, marker, rest = ragged(name).partition("\ndef dense(")
        assert right in before, (name, right)
        texts[f"{name}: {wrong}"] = before.replace(right, wrong) + marker + rest
    passed = [name for name, code in run_files(texts, tmp_path).items() if code == "0"]
    assert passed == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_scores_are_made_in_the_function_of_a_block_alone(name: str) -> None:
    one = compiled(name)
    values, unmade = one.spmd.table(), {n for each in in_blocks(one.spmd) for n in each.unmade}
    assert unmade == {n for n in scores(one.spmd) if "G" in values[n].dims}
    step = emitted(name).partition("\ndef prefill(")[2].partition("\ndef dense(")[0]
    blocks = re.findall(r"\n    def \w+_scores.*?\n\n", step, re.DOTALL)
    rest = "".join(step.split(blocks[0])) if len(blocks) == 1 else step.replace(blocks[0], "").replace(blocks[1], "")
    assert len(blocks) == len(in_blocks(one.spmd))
    assert all('->BLKGM"' in block for block in blocks) and '->BLKGM"' not in rest
    assert [line for line in rest.splitlines() if "None, None] <= p_pos_k" in line] == []


def test_a_step_in_blocks_reads_as_a_person_would_write_it(update_golden: bool) -> None:
    text = emitted("a window and a sink over a split context")
    found = "def prefill(" + text.partition("\n\n\ndef prefill(")[2].partition("\n\n\ndef dense(")[0] + "\n"
    if update_golden:
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_few_scores_stay_whole() -> None:
    assert "attention_in_blocks" not in emitted("a chunk and a cap", new=1)


ONE_HEAD = """
model "attending"
dim B = 1, L = {new}, M = 16384, Q = 8
main(q: bf16[B,L,Q], k: bf16[B,L,Q], i: f32[B,L,M]) {{
  cache keys: bf16[B,M,Q] @ BMQ
  ks = append(keys, k, L into M)
  m = choose(i, over=M, keep=2048, mask=causal(L, M))
  s[B,L,M] = m[B,L,M] * q[B,L,Q] * ks[B,M,Q]
  p = softmax(s, over=M, mask=causal(L, M), among=m)
  o[B,L,Q] = p[B,L,M] * ks[B,M,Q]
  return o
}}
"""


@pytest.mark.parametrize("new", [16384, 64])
def test_what_tokens_choose_of_the_context_is_held_as_rows_where_scores_are_few_alone(new: int) -> None:
    source = Source("a.esti", ONE_HEAD.format(new=new))
    options = Options(Hardware.of_paper("tpu-v4"))
    [one] = compile_phases(expand(parse(source), source), ["main"], Mesh.parse("2"), options)
    module = emit_jax(one.program, one.spmd, one.estimate)
    assert ("routing(" in module) == (new == 64)
    assert ("those that `m` does not choose included" in " ".join(module.split())) == (new == 16384)
    assert ("attention_in_blocks" in module) == (new == 16384)
    report = check_jax(one)
    assert report.sound
    assert report.module == report.planned


@pytest.mark.parametrize("name", [name for name in CASES if "over a split context" in name])
def test_bytes_are_as_planned_and_narrow_floats_differ_by_their_rounding_alone(name: str) -> None:
    report = check_jax(compiled(name))
    assert report.sound
    assert report.module == report.planned
    assert report.narrow is not None
    assert 0 < report.narrow.reference < 0.03


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_head_of_a_function_of_many_arguments_is_cut(count: int) -> None:
    lines = Lines(noted=True)
    arguments = [f"a_layer_that_lends_its_keys_{n}" for n in range(count)]
    lines.definition("scores", arguments)
    lines.line("    return 0")
    text = list(lines.text())
    (made,) = ast.parse("if True:\n" + "\n".join(text)).body[0].body  # type: ignore[attr-defined]
    assert isinstance(made, ast.FunctionDef) and [a.arg for a in made.args.args] == arguments
    assert max(map(len, text)) <= WIDTH and (len(text) > 2) == (count > 3)
