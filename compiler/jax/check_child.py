"""The part of a check that needs JAX, as a process of its own: `python -m escc.compiler.jax.check_child FOLDER`.

FOLDER holds `step.py`, an emitted module, and `stored.npz`: what its step takes, in order, for the
sizes of its `SMALL`. The step is run with wide and with narrow floats, the unsharded program with wide
ones, and the step is compiled at full size from shapes alone; beside them come `wide.npz`, `narrow.npz`
and `dense.npz` (results and caches, in the order of `jax.tree.leaves`), where rows may be dropped `lost.npz` (how many
were, by device), `partitioned.txt` and `final.txt`
(the module after SPMD partitioning, and at last).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

PARTITIONING = "spmd-partitioning"  # XLA's name of the pass
# What is compiled here runs once at the most. Machine code of little care comes in a third of the time; collectives,
# and what is computed, are the same.
QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


def main(folder: Path) -> None:
    """Run and compile the step in `folder`."""
    module = load(folder / "step.py")
    mesh = module.make_mesh()
    with np.load(folder / "stored.npz") as file:
        stored = [file[f"arr_{i}"] for i in range(len(file.files))]
    chosen = {f.name: getattr(module.FULL, f.name) for f in fields(module.FULL)}
    narrow = {name: value for name, value in chosen.items() if isinstance(value, type)}
    for name, config in (("wide", module.SMALL), ("narrow", replace(module.SMALL, **narrow))):
        results = _run(module, mesh, config, iter(stored))
        np.savez(folder / f"{name}.npz", *(results[:-1] if hasattr(config, "capacity") else results))
    if hasattr(module.FULL, "capacity"):  # as it is routed at random
        tight = replace(module.SMALL, capacity=module.FULL.capacity)
        np.savez(folder / "lost.npz", _run(module, mesh, tight, iter(stored))[-1])
    np.savez(folder / "dense.npz", *_run(module, None, module.SMALL, iter(stored)))
    _compile(module, mesh, folder)


def load(path: Path) -> ModuleType:
    """An emitted module, imported from its file."""
    spec = importlib.util.spec_from_file_location(f"emitted_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _run(module: ModuleType, mesh: Any, config: Any, stored: Iterator[np.ndarray]) -> list[np.ndarray]:
    """The step's results on real devices, as wide floats or as they are; without a mesh the unsharded program's."""

    def make(shape: tuple[int, ...], dtype: Any, terms: int = 1) -> np.ndarray:
        return next(stored).reshape(shape).astype(dtype)

    arrays = module.tensors(config, make)
    arrays = (*arrays, *(np.int32(end) for end in stored))
    if mesh is None:
        return _wide(_called(partial(module.dense, config), arrays))
    streams = hasattr(module, "divided")
    placed = jax.device_put(module.divided(config, *arrays) if streams else arrays, _places(module, mesh))
    results = _called(module.build(mesh, config), placed)
    return _wide(module.whole(results) if streams else results)


def _called(function: Any, arguments: Any) -> Any:
    """What a function gives, compiled quickly where XLA knows all of the options for that."""
    try:
        return jax.jit(function, compiler_options=QUICKLY)(*arguments)
    except jax.errors.JaxRuntimeError:
        return jax.jit(function)(*arguments)


def _places(module: ModuleType, mesh: Any) -> Any:
    """Where everything that a step takes lies."""
    if hasattr(module, "places"):
        return module.places(mesh, module.SPECS)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), module.SPECS)


def _wide(results: Any) -> list[np.ndarray]:
    """Arrays in the order of `jax.tree.leaves`, floats as such of 32 bits."""
    leaves = jax.tree.leaves(results)
    return [np.asarray(a) if a.dtype == jnp.int32 else np.asarray(a, np.float32) for a in leaves]


def step_arguments(module: ModuleType, mesh: Any, parts: bool = False) -> Any:
    """What the step of an emitted module takes at full size, as shapes that lie on `mesh`; `parts`: unrolled."""
    shapes = module.tensors(module.FULL, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))
    ends = [jax.ShapeDtypeStruct((), jnp.int32)] * (len(module.SPECS) - len(shapes))
    every = (*shapes, *ends)
    if hasattr(module, "divided"):
        every = jax.eval_shape(partial(module.divided, module.FULL), *every)
    places = _places(module, mesh)
    if hasattr(module, "by_rows"):
        places = (module.by_rows(places[0]), *places[1:])
    if parts:
        every = jax.eval_shape(
            lambda trees: tuple(module.unstacked(t) if isinstance(t, dict) else t for t in trees), every
        )
        places = jax.tree.map(partial(NamedSharding, mesh), module.specs(unrolled(module)))

    def placed(place: Any, leaves: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), leaves)

    return jax.tree.map(placed, places, every)


def unrolled(module: ModuleType) -> Any:
    """The full sizes of a module that takes tuples of parts in place of stacks, where it takes these."""
    return replace(module.FULL, unrolled=True)


def _compile(module: ModuleType, mesh: Any, folder: Path) -> None:
    """Compile the step at full size, and keep the text of the module on the way and at the end."""
    passes = folder / "passes"
    lowered = module.build(mesh).lower(*step_arguments(module, mesh))
    options = {"xla_dump_to": str(passes), "xla_dump_hlo_pass_re": PARTITIONING}
    try:
        compiled = lowered.compile(compiler_options=QUICKLY | options)
    except jax.errors.JaxRuntimeError:  # here, too
        compiled = lowered.compile(compiler_options=options)
    final = compiled.as_text()
    texts = [path.read_text() for path in sorted(passes.glob(f"*.after_{PARTITIONING}.*"))]
    (folder / "partitioned.txt").write_text(texts[0] if texts else final)  # one device: nothing is partitioned
    (folder / "final.txt").write_text(final)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
