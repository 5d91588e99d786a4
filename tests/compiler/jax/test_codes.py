"""The codes of another run: found in its caches, taken where a number lies halfway, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from escc.compiler.jax import check as jax_check
from escc.compiler.jax.check import check_jax
from escc.compiler.jax.codes import appended, rounded_caches, slack_of
from escc.compiler.plan.pipeline import compile_phase, parse
from escc.compiler.simulate.pointwise import Array
from escc.compiler.simulate.reference import Rounded, random_stored, run_reference
from escc.cost.hardware import Hardware
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")
TEXT = """
dim B = 4, L = 3, M = 12, W = 5, E = 6
block layer(x: f32[B,L,E]) -> f32[B,L,E] {
  cache keys: int8[B,W,E] * f32[B,W]
  ks = append(keys, x, L into W, of=M)
  s[B,L,W] = x[B,L,E] * ks[B,W,E]
  y[B,L,E] = s[B,L,W] * ks[B,W,E]
  return x + 0.1 * y
}
main(x: f32[B,L,E]) { return repeat 2 layer(x) }
"""


def test_codes_are_found_in_caches_where_they_wrap() -> None:
    made = parse(TEXT)
    sizes, contexts = dict(made.phases[0].sizes), {"M": 7}
    stored = random_stored(made, sizes, seed=0)
    [(new, op)] = rounded_caches(made).items()
    results = run_reference(made, sizes, stored, contexts)
    codes = appended(made, op, results[op.result], sizes, contexts)
    assert codes is not None and [each.shape for each in codes] == [(4, 3, 6)] * 2
    first = stored["x"] / (np.abs(stored["x"]).max(-1, keepdims=True) / 127)
    assert np.abs(codes[0] - first).max() <= 0.5
    again = run_reference(made, sizes, stored, contexts, rounded={new: Rounded(codes, 0.01)})
    assert all(np.array_equal(again[name], array) for name, array in results.items())


@pytest.mark.parametrize(("off", "taken"), [(0.004, True), (0.02, False)])
def test_of_two_codes_a_number_halfway_may_have_either(off: float, taken: bool) -> None:
    made = parse(TEXT)
    sizes, contexts = dict(made.phases[0].sizes), {"M": 7}
    stored = random_stored(made, sizes, seed=0)
    stored["x"][0, 0] = [127.0, 10.5 + off, 20.5 - off, 3.0, 4.0, 5.0]
    [(new, op)] = rounded_caches(made).items()
    plain = run_reference(made, sizes, stored, contexts)[op.result]
    codes = appended(made, op, plain, sizes, contexts)
    assert codes is not None and codes[0][0, 0].tolist() == [127, 11, 20, 3, 4, 5]
    codes[0] = codes[0].copy()
    codes[0][0, 0] = [127, 10, 21, 3, 4, 6]  # the last is wrong
    found = run_reference(made, sizes, stored, contexts, rounded={new: Rounded(codes, slack_of(Dtype.INT8))})
    [mine, _] = appended(made, op, found[op.result], sizes, contexts) or []
    assert mine[0, 0].tolist() == ([127, 10, 21, 3, 4, 5] if taken else [127, 11, 20, 3, 4, 5])


@pytest.mark.parametrize(("half", "agrees"), [("0.503", True), ("0.6", False)])
def test_what_is_rounded_the_other_way_halfway_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, half: str, agrees: bool
) -> None:
    emit, draw = jax_check.emit_jax, jax_check.random_stored

    def halfway(*arguments: Any, **how: Any) -> dict[str, Array]:
        stored = draw(*arguments, **how)
        stored["x"][..., :2] = [127.0, 10.498]
        return stored

    monkeypatch.setattr(jax_check, "random_stored", halfway)
    monkeypatch.setattr(jax_check, "emit_jax", lambda *a, **k: emit(*a, **k).replace("+ 0.5)", f"+ {half})"))
    report = check_jax(compile_phase(parse(TEXT), "main", Mesh.parse("2"), Options(Hardware.of_paper("tpu-v4"))))
    assert report.agrees == agrees
