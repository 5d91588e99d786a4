"""The emitted mesh and specs in code of a user's own: plain `jax.jit`, which the compiler partitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from escc import compile, load

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZES = {"B": 8, "E": 16, "F": 32}
JITTED = """
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

from functools import partial
from jax.sharding import NamedSharding
import feed_forward_main_jax as module
import feed_forward_main_specs as specs

rng = np.random.default_rng(0)
arrays = module.tensors(module.SMALL, lambda shape, dtype, terms=1: rng.standard_normal(shape).astype(dtype))
alone = jax.jit(partial(module.dense, module.SMALL))(*arrays)
"""
DENSE = """
mesh = module.make_mesh()
placed = jax.device_put(arrays, jax.tree.map(partial(NamedSharding, mesh), module.SPECS))
found = jax.jit(partial(module.dense, module.SMALL), out_shardings=NamedSharding(mesh, module.RESULTS))(*placed)
"""
OWN = """
mesh = specs.make_mesh()

def held(value, name):
    (spec, _), *_ = specs.CONSTRAINTS[name]
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, spec))

def layer(params, x):
    u = held(jnp.einsum("BLE,EF->BLF", x, params["Wi"]), "u")
    h = held(jax.nn.gelu(u), "h")
    return held(jnp.einsum("BLF,FE->BLE", h, params["Wo"]), "y")

params, x = arrays
params = {name: jax.device_put(array, NamedSharding(mesh, specs.PARAMS[name])) for name, array in params.items()}
found = jax.jit(layer)(params, jax.device_put(x, NamedSharding(mesh, specs.INPUTS["x"])))
"""
JUDGED = """
assert len(found.sharding.device_set) == 4, found.sharding
assert np.abs(np.asarray(found) - np.asarray(alone)).max() <= 1e-4 * np.abs(np.asarray(alone)).max()
"""


@pytest.mark.parametrize("code", [DENSE, OWN], ids=["the emitted dense function", "a function of one's own"])
def test_it_is_jitted(code: str, tmp_path: Path) -> None:
    plan = compile(load(EXAMPLES / "feed-forward.esti", SIZES), "2x2")
    for target in ("jax", "specs"):
        plan.write(target, tmp_path)
    script = tmp_path / "own.py"
    script.write_text(JITTED + code + JUDGED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
