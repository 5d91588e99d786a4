"""A module that compares itself: what hangs on rounding is drawn again, and a mistake is found all the same."""

from __future__ import annotations

from pathlib import Path

from forked_jax import run_code

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.pipeline import compile_phase, parse, with_pins
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.passes.options import Options

# Keys a thousand times as far from what they were exactly as sums of 64 products are.
CHOOSING = """dim B = 64, E = 64, X = 16
main(x: f32[B,E]) {
  param Wr: f32[E,X]
  s[B,X] = x[B,E] * Wr[E,X]
  k = s * 1000 - floor(s * 1000)
  m = choose(k, over=X, keep=2)
  y[B,E] = m[B,X] * s[B,X] * Wr[E,X]
  return y
}"""
PINS = Source("p", "stored x BE_x\nstored Wr E_xX\n")
CACHED = """dim B, L, M, Q = 32
main(x: bf16[B,L,Q]) {
  cache keys: bf16[B,M,Q]
  ks = append(keys, x, L into M)
  s[B,L,M] = x[B,L,Q] * ks[B,M,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  y[B,L,Q] = p[B,L,M] * ks[B,M,Q]
  return y
}
phase decode { B = 8, L = 1, M = 16 }"""
RUN = "import runpy, sys\nfor path in sys.argv[1:]:\n    print('code', runpy.run_path(path, {}, 'm')['main']())"


def emitted(text: str, pins: Source | None = PINS, phase: str = "main") -> str:
    """The module of a program on two chips, which compares itself at full size."""
    program = parse(text) if pins is None else with_pins(parse(text), pins)
    one = compile_phase(program, phase, Mesh.parse("2"), Options(Hardware.load("h100")))
    return emit_jax(one.program, one.spmd, one.estimate, small=one.spmd)


def test_a_choice_that_hangs_on_rounding_is_no_mistake_and_a_row_that_is_wrong_is(tmp_path: Path) -> None:
    text = emitted(CHOOSING)
    step, marker, rest = text.partition("\ndef dense(")
    before, returned, after = step.rpartition("    return y\n")
    assert returned
    (tmp_path / "right.py").write_text(text)
    (tmp_path / "wrong.py").write_text(before + "    return y.at[0].multiply(1.01)\n" + after + marker + rest)
    files = [str(tmp_path / f"{name}.py") for name in ("right", "wrong")]
    done = run_code(RUN, *files, timeout=120)
    assert not done.returncode, done.stderr
    right, wrong, _ = done.stdout.split("code ")
    assert right.count("\n") > 1 and wrong.startswith("0\n")  # more than one draw
    assert done.stdout.endswith("code 1\n")


def test_where_nothing_is_decided_numbers_are_drawn_once() -> None:
    assert "for _ in range(" in emitted(CHOOSING)
    plain = CHOOSING.replace("choose(k, over=X, keep=2)", "exp(k)")
    assert "for _ in range(" not in emitted(plain)


def test_modules_run_where_jax_has_numbers_of_64_bits(tmp_path: Path) -> None:
    path = tmp_path / "cached.py"
    path.write_text(emitted(CACHED, None, "decode"))
    done = run_code(f"import jax\njax.config.update('jax_enable_x64', True)\n{RUN}", str(path), timeout=120)
    assert done.stdout.endswith("code 0\n"), done.stderr
