"""The part of a probe that needs JAX, a process of its own: `python -m escc.compiler.calibrate.probe_child FILE`.

It times matmuls, copies and all-gathers on the devices that JAX finds, each in several sizes, after a
warm-up, and writes the medians into FILE as JSON: seconds beside flops, or bytes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LEAST_RUNS, MOST_RUNS = 3, 9  # of what is timed
ENOUGH_S = 0.5  # for all runs together, once there are LEAST_RUNS
LONG_S = 0.1  # a size that takes longer is the last that is tried
MATMUL_SIDES = (512, 1024, 2048, 4096, 8192)
COPY_BYTES = tuple(1 << n for n in (26, 28, 30))
GATHER_BYTES = tuple(1 << n for n in (10, 20, 22, 24, 26))  # that each device holds after it


def main(file: Path) -> None:
    """Time everything, and write it."""
    devices = jax.devices()
    measured = {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "devices": len(devices),
        "memory_bytes": _memory_bytes(devices[0], len(devices)),
        "matmuls": _matmuls(devices[0]),
        "copies": _copies(devices[0]),
        "gathers": _gathers(devices) if len(devices) > 1 else [],
    }
    file.write_text(json.dumps(measured), encoding="utf-8")


def _memory_bytes(device: Any, count: int) -> int:
    """What a device may hold; devices of the CPU share the machine's memory."""
    stats = device.memory_stats() or {}
    return int(stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count)


def _matmuls(device: Any) -> list[tuple[float, float]]:
    """Flops and seconds of square matmuls in bf16."""
    found = []
    for side in MATMUL_SIDES:
        matrix = jax.device_put(jnp.ones((side, side), jnp.bfloat16), device)
        seconds = _median_s(jax.jit(jnp.matmul), matrix, matrix)
        found.append((2.0 * side**3, seconds))
        if seconds > LONG_S:
            break
    return found


def _copies(device: Any) -> list[tuple[float, float]]:
    """Bytes read and written, and seconds, of negations in bf16."""
    found = []
    for size in COPY_BYTES:
        array = jax.device_put(jnp.ones(size // 2, jnp.bfloat16), device)
        seconds = _median_s(jax.jit(jnp.negative), array)
        found.append((2.0 * size, seconds))
        if seconds > LONG_S:
            break
    return found


def _gathers(devices: list[Any]) -> list[tuple[float, float]]:
    """Bytes that each device takes in, and seconds, of all-gathers over all devices."""
    mesh, count = Mesh(np.array(devices), ("x",)), len(devices)
    split, whole = PartitionSpec("x"), PartitionSpec()

    def gather(shard: jax.Array) -> jax.Array:
        return jax.lax.all_gather(shard, "x", tiled=True)

    gathered = jax.jit(jax.shard_map(gather, mesh=mesh, in_specs=split, out_specs=whole, check_vma=False))
    found = []
    for size in GATHER_BYTES:
        elements = size // 2 // count * count
        array = jax.device_put(jnp.ones(elements, jnp.bfloat16), NamedSharding(mesh, split))
        seconds = _median_s(gathered, array)
        found.append((2.0 * elements * (count - 1) / count, seconds))
        if seconds > LONG_S:
            break
    return found


def _median_s(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of a call, the median of several after a warm-up."""
    jax.block_until_ready(function(*arguments))
    taken: list[float] = []
    while len(taken) < LEAST_RUNS or (len(taken) < MOST_RUNS and sum(taken) < ENOUGH_S):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
