"""What emitted JAX files compare for equality with its maximum is made once, behind a barrier."""

from __future__ import annotations

import re

import pytest

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.plan.pipeline import compile_phase, parse
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.options import Options

MODEL = """
dim B = 16, E = 8, V = 64

main(x: bf16[B,E]) {{
  param table: bf16[E,V]{pin}
  param shift: bf16[V]
  scores[B,V] = x[B,E] * table[E,V]
  {keys}
  return argmax(keys, over=V)
}}
"""


@pytest.mark.parametrize(
    ("keys", "once"),
    [
        ("keys = scores + shift", ["keys"]),
        ("keys = 30 * tanh(scores / 30)", ["keys"]),
        ("keys[B,V] = scores[B,V] * shift[V]", ["keys"]),
        ("keys[B,V] = x[B,E] * table[E,V]", []),  # a sum of products is not made again
        ("keys = softmax(scores, over=V)", ["keys"]),  # whose own maximum is compared with minus infinity alone
    ],
)
@pytest.mark.parametrize("pin", ["", " @ EV_y"], ids=["free", "split"])
def test_keys_are_made_once(keys: str, once: list[str], pin: str) -> None:
    one = compile_phase(
        parse(MODEL.format(keys=keys, pin=pin)), "main", Mesh.parse("2x2"), Options(Hardware.load("tpu-v4"))
    )
    step = emit_jax(one.program, one.spmd, one.estimate)
    # Once in the step, and once in the unsharded one.
    assert re.findall(r"(\w+) = \(?\s*lax\.optimization_barrier\(", step) == 2 * once
