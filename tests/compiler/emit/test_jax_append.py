"""What helpers of modules write into caches: the entries of a step, where they belong, and nothing else."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from escc.compiler.simulate import numpy_runtime

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
SLOTS, LAYERS = 12, 2


@pytest.mark.parametrize("ways", [1, 2, 3])
@pytest.mark.parametrize("entries", [1, 2, 3, 5, 6, 9, 12])
def test_a_cache_that_wraps_has_each_entry_in_its_slot(ways: int, entries: int) -> None:
    """On chips each of which has a block of the slots: few entries, of which some may wrap, and nearly all slots."""
    jax = pytest.importorskip("jax")
    runtime = pytest.importorskip("escc.compiler.emit.jax_runtime")
    generator = np.random.default_rng(entries)
    stack, new = generator.normal(size=(LAYERS, 2, SLOTS, 3)), generator.normal(size=(2, entries, 3))
    blocks = np.stack(np.split(stack, ways, axis=2))
    axes = ("x",) if ways > 1 else ()

    def write(block: Any, end: Any) -> Any:
        return runtime.append_wrapping(block, new, end, axes, 1, (1,))

    step = jax.jit(jax.vmap(write, in_axes=(0, None), axis_name="x"))
    for end in (*range(entries, entries + SLOTS + 1), 5 * SLOTS + 7):
        found = np.concatenate(np.asarray(step(blocks, end)), axis=2)
        wanted = stack.copy()
        wanted[1] = numpy_runtime.append_wrapping(stack[1], new, 1, end)
        np.testing.assert_array_equal(found, wanted.astype(found.dtype), err_msg=str(end))


@pytest.mark.parametrize(("entries", "written"), [(1, 1), (2, 4), (6, 12), (7, 12), (12, 12)])
def test_a_step_of_few_entries_writes_few_slots(entries: int, written: int) -> None:
    """As its price says; where some may wrap twice, since the half that does is known as the step runs alone."""
    jax = pytest.importorskip("jax")
    runtime = pytest.importorskip("escc.compiler.emit.jax_runtime")
    write = partial(runtime.append_wrapping, axes=(), axis=0)
    made = jax.make_jaxpr(write)(np.zeros(SLOTS), np.zeros(entries), 7)
    updates = [one for one in made.jaxpr.eqns if one.primitive.name == "dynamic_update_slice"]
    assert sum(one.invars[1].aval.size for one in updates) == written
