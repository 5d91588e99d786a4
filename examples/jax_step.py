"""Times a step of a module that escc emitted, on all devices of one host or of many.

    python jax_step.py layer_decode_jax.py                # one host
    python jax_step.py layer_decode_jax.py --many-hosts   # started on each host of a TPU slice or of a Slurm job

Weights, caches and inputs have their full sizes, and are made where they lie: no host ever holds a whole tensor. They
are as good as random: to multiply zeros takes less power, and a prompt on an H200 5% less time, and equal tokens go to
the same experts.

    python jax_step.py llama-3-70b_decode_jax.py --row mine.csv --model llama-3-70b --hardware tpu-v4

adds the time to a table that `escc validate mine.csv` and `escc calibrate mine.csv` read. MODEL and CHIP are what the
module was compiled from and for: a name that escc knows, or a file, and a name that `escc hardware` lists.
"""

import argparse
import csv
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

COLUMNS = ("id", "source", "model", "hardware", "phase", "chips", "batch", "input_tokens", "output_tokens", "weights")
COLUMNS += ("ffn_layout", "attention_layout", "time_ms", "mesh")


def load(path: str) -> ModuleType:
    """The emitted module in the file `path`."""
    spec = importlib.util.spec_from_file_location("step", path)
    assert spec is not None and spec.loader is not None, f"{path} is no Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules["step"] = module
    spec.loader.exec_module(module)
    return module


def row(module: ModuleType, mesh: jax.sharding.Mesh, told: argparse.Namespace) -> list[str]:
    """What was timed, as the columns of a table of measurements before the time, and the mesh. Of a prompt, or of one
    token of each sequence: what else a module may process at once has no row."""
    sizes = [getattr(module.FULL, dim, None) for dim in "BLM"]
    batch, tokens, context = sizes
    if None in sizes or tokens not in (1, context):
        raise SystemExit(f"a row is of B sequences, and of 1 or all M of their tokens, not of B, L, M = {sizes}")
    phase = "decode-step" if tokens == 1 else "prefill"
    counts = [str(n) for n in (mesh.size, batch, context, 1 if tokens == 1 else 0)]
    return ["jax_step", told.model, told.hardware, phase, *counts, told.weights, told.ffn_layout, told.attention_layout]


def add_row(file: Path, name: str, cells: list[str], milliseconds: float, mesh: jax.sharding.Mesh) -> None:
    """Add a line to a table of measurements, which is begun where there is none."""
    lines = list(csv.reader(file.read_text().splitlines())) if file.exists() else []
    if lines and lines[0] != list(COLUMNS):
        raise SystemExit(f"{file} is left as it is: its first line does not name the columns {', '.join(COLUMNS)}")
    axes = ",".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    with file.open("a", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        if not lines:
            writer.writerow(COLUMNS)
        writer.writerow([f"{name}-{max(len(lines), 1)}", *cells, f"{milliseconds:.6g}", axes])


@cache
def drawing(shape: tuple[int, ...], dtype: jnp.dtype, most: int, place: Any) -> Callable[[], jax.Array]:
    """What makes a tensor: floats up to 0.02, as small as weights are, of four bits up to 4; of integers those below
    `most`."""

    def drawn():
        n = jnp.zeros(shape, jnp.uint32)
        for axis, size in enumerate(shape):
            n = n * np.uint32(size) + lax.broadcasted_iota(jnp.uint32, shape, axis)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            n = (n ^ (n >> shift)) * np.uint32(factor)
        if jnp.issubdtype(dtype, jnp.integer):
            return (n % np.uint32(most)).astype(dtype)
        signed = n.astype(jnp.int32).astype(jnp.float32) * ((4 if jnp.finfo(dtype).bits == 4 else 0.02) / 2**31)
        return (jnp.maximum(jnp.abs(signed), 2**-20) if dtype == jnp.float8_e8m0fnu else signed).astype(dtype)

    return jax.jit(drawn, out_shardings=place)


def tensors(module: ModuleType, cfg: Any, mesh: jax.sharding.Mesh) -> list[Any]:
    """All that a step takes, but for how much of its contexts is filled."""
    rows = []  # of tables, which ids pick from

    def form(shape, dtype, terms=1):
        rows.extend([terms] if dtype == jnp.int32 else [])
        return jax.ShapeDtypeStruct(shape, dtype)

    trees = module.tensors(cfg, form)
    specs = module.SPECS
    if hasattr(cfg, "unrolled") and cfg.unrolled:
        specs = module.specs(cfg)
        trees = jax.eval_shape(lambda all_: [module.unstacked(t) if isinstance(t, dict) else t for t in all_], trees)
    places = jax.tree.map(partial(NamedSharding, mesh), specs)
    if hasattr(module, "by_rows"):
        places = (module.by_rows(places[0]), *places[1:])

    def made(place, forms):
        return jax.tree.map(
            lambda one: drawing(one.shape, one.dtype, min(rows) if one.dtype == jnp.int32 else 127, place)(), forms
        )

    return [jax.tree.map(made, place, tree) for place, tree in zip(places, trees, strict=False)]


def main(told: argparse.Namespace) -> None:
    """Run a step once to compile it, then so many times as were `told`, and print how long one takes."""
    path, steps = told.module, told.steps
    module = load(path)
    if hasattr(module, "divided"):
        raise SystemExit(f"{path} is not timed: it streams what it keeps on the host, which this does not hand over")
    cfg, mesh = module.FULL, module.make_mesh()
    cells = row(module, mesh, told) if told.row else []
    if hasattr(cfg, "unrolled"):  # GPUs read what stands alone where it lies, and copy parts of stacks
        cfg = replace(cfg, unrolled=told.unrolled or mesh.devices.flat[0].platform == "gpu")
    step = module.build(mesh, cfg)
    arguments = tensors(module, cfg, mesh)
    names = list(inspect.signature(step).parameters)
    filled = [name for name in names if name.startswith("filled_")]
    for name, spec in zip(filled, module.SPECS[len(arguments) :], strict=True):
        context = np.int32(getattr(cfg, name.removeprefix("filled_")))
        arguments.append(jax.device_put(context, NamedSharding(mesh, spec)))

    def run():
        results = step(*arguments)
        if "caches" in names:
            arguments[names.index("caches")] = results[1]  # they were donated, and written in place
        return results

    jax.block_until_ready(run())
    start = time.perf_counter()
    for _ in range(steps):
        results = run()
    jax.block_until_ready(results)
    seconds = (time.perf_counter() - start) / steps
    if jax.process_index() == 0:
        print(f"{1e3 * seconds:.3f} ms a step; devices: {mesh.size}, hosts: {jax.process_count()}")
        if told.row:
            add_row(told.row, Path(path).stem, cells, 1e3 * seconds, mesh)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="a file that `escc compile --emit jax` wrote")
    parser.add_argument("--many-hosts", action="store_true", help="other hosts run this file, too")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    parser.add_argument("--unrolled", action="store_true", help="tuples in place of stacks, as GPUs always get them")
    parser.add_argument("--row", type=Path, metavar="FILE", help="add the time to this table of measurements")
    parser.add_argument("--model", help="with --row: what the module was compiled from")
    parser.add_argument(
        "--hardware", metavar="CHIP", help="with --row: the chips that it was compiled for, and runs on"
    )
    parser.add_argument("--weights", default="bf16", help="with --row: the format of weights (bf16)")
    parser.add_argument("--ffn-layout", default="found", help="with --row: ws2d and the like, where it was pinned so")
    parser.add_argument(
        "--attention-layout", default="found", help="with --row: heads or batch, where it was pinned so"
    )
    told = parser.parse_args()
    if told.row and not (told.model and told.hardware):
        parser.error("--row goes with --model and --hardware")
    if told.many_hosts:
        jax.distributed.initialize()  # a TPU slice and a Slurm job are found by themselves
    main(told)
