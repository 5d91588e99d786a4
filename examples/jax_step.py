"""Times a step of a module that escc emitted, on all devices of one host or of many.

    python jax_step.py layer_decode_jax.py                # one host
    python jax_step.py layer_decode_jax.py --many-hosts   # started on each host of a TPU slice or of a Slurm job

Weights, caches and inputs are zeros of their full sizes, made where they lie: no host ever holds a whole tensor.
"""

import argparse
import importlib.util
import inspect
import sys
import time
from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding


def load(path: str) -> ModuleType:
    """The emitted module in the file `path`."""
    spec = importlib.util.spec_from_file_location("step", path)
    assert spec is not None and spec.loader is not None, f"{path} is no Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules["step"] = module
    spec.loader.exec_module(module)
    return module


def main(path: str, steps: int) -> None:
    """Run a step once to compile it, then `steps` times, and print how long one takes."""
    module = load(path)
    cfg, mesh = module.FULL, module.make_mesh()
    step = module.build(mesh)
    filled = [name for name in inspect.signature(step).parameters if name.startswith("filled_")]

    def zeros():
        contexts = (jnp.int32(getattr(cfg, name.removeprefix("filled_"))) for name in filled)
        return (*module.tensors(cfg, lambda shape, dtype, *_: jnp.zeros(shape, dtype)), *contexts)

    arguments = list(jax.jit(zeros, out_shardings=jax.tree.map(partial(NamedSharding, mesh), module.SPECS))())
    has_caches = hasattr(module, "CACHES")

    def run():
        results = step(*arguments)
        if has_caches:
            arguments[1] = results[-1]  # they were donated, and written in place
        return results

    jax.block_until_ready(run())
    start = time.perf_counter()
    for _ in range(steps):
        results = run()
    jax.block_until_ready(results)
    seconds = (time.perf_counter() - start) / steps
    if jax.process_index() == 0:
        print(f"{1e3 * seconds:.3f} ms a step; devices: {mesh.size}, hosts: {jax.process_count()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="a file that `escc compile --emit jax` wrote")
    parser.add_argument("--many-hosts", action="store_true", help="other hosts run this file, too")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    told = parser.parse_args()
    if told.many_hosts:
        jax.distributed.initialize()  # a TPU slice and a Slurm job are found by themselves
    main(told.module, told.steps)
