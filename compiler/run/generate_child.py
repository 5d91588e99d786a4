"""The part of a generation that runs in JAX, as a process of its own.

`python -m escc.compiler.run.generate_child FOLDER ID COUNT ADDRESS` is process ID of COUNT,
which share the mesh and all do the same; they meet at ADDRESS. FOLDER holds `prefill.py` and
`decode.py`, two emitted modules; `stored.npz`, what they take, called arr_0, arr_1, ...; and
`told.json`, a `Told`. Beside them comes `tokens.npy`: [steps, batch].
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ..jax.check_child import load


class ToldPhase(TypedDict):
    """A phase. `sizes`: by field of its `Config`. `leaves`: names of all that it takes, in the order in which its
    `tensors` makes them. `contexts`: how many arguments say how much of a context is filled. `picked`: which
    result the next tokens are read from; `kept`: the true sizes of that result."""

    sizes: dict[str, int]
    leaves: list[str]
    contexts: int
    picked: int
    kept: list[int]


class Told(TypedDict):
    """What a generation does. `stored`: the names of the arrays. `caches`: their axes of the batch, from the end;
    `axes`: those of the batch and of new tokens in `prompt`. `sequences`: in all; `at_once`: in a prefill;
    `length`: of a prompt. `steps`: the tokens for each sequence. `scores`: whether results are scores."""

    stored: list[str]
    caches: dict[str, int]
    prompt: str
    axes: tuple[int, int]
    sequences: int
    at_once: int
    length: int
    steps: int
    scores: bool
    phases: dict[str, ToldPhase]


def main(folder: Path, process: int, processes: int, address: str) -> None:
    """Generate as the files in `folder` say."""
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, processes, process)
    told: Told = json.loads((folder / "told.json").read_text())
    with np.load(folder / "stored.npz") as file:
        arrays = {name: file[f"arr_{i}"] for i, name in enumerate(told["stored"])}
    prefill, decode = (_Phase(folder / f"{name}.py", told["phases"][name], told) for name in ("prefill", "decode"))
    tokens = _generated(told, prefill, decode, arrays)
    if process == 0:
        np.save(folder / "tokens.npy", tokens)


class _Phase:
    """An emitted step on real devices."""

    def __init__(self, path: Path, phase: ToldPhase, told: Told) -> None:
        module, self.phase, self.told = load(path), phase, told
        config, leaves = replace(module.SMALL, **phase["sizes"]), iter(phase["leaves"])
        self.mesh = module.make_mesh()
        self.step = module.build(self.mesh, config)
        self.forms = module.tensors(config, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))
        self.names = module.tensors(config, lambda shape, dtype, terms=1: next(leaves))
        self.specs = module.SPECS[: len(self.forms)]
        self.kept: dict[str, jax.Array] = {}

    def run(self, arrays: Mapping[str, Any], context: int) -> tuple[np.ndarray, dict[str, jax.Array]]:
        """The next token of each sequence, and the next versions of caches, called as the caches are."""
        changing = {*self.told["caches"], self.told["prompt"]}

        def placed(name: str, form: Any, spec: P) -> jax.Array:
            if name in changing:
                return self._place(arrays[name], form, spec)
            if name not in self.kept:
                self.kept[name] = self._place(arrays[name], form, spec)
            return self.kept[name]

        taken = jax.tree.map(placed, self.names, self.forms, self.specs)
        filled = jax.ShapeDtypeStruct((), np.int32)
        contexts = [self._place(np.asarray(context), filled, P())] * self.phase["contexts"]
        results, caches = self.step(*taken, *contexts)
        [names] = [tree for tree in map(jax.tree.leaves, self.names) if {*tree} == {*self.told["caches"]}]
        versions = dict(zip(names, jax.tree.leaves(caches), strict=True))
        return self._picked(jax.tree.leaves(results)[self.phase["picked"]]), versions

    def whole(self, array: jax.Array) -> np.ndarray:
        """All of an array, in every process."""
        return np.asarray(jax.device_put(array, NamedSharding(self.mesh, P())))

    def _place(self, array: np.ndarray | jax.Array, form: Any, spec: P) -> jax.Array:
        """An array on the devices, grown with zeros to the shape it has there; every process holds all of it."""
        if isinstance(array, jax.Array):
            return array
        grown = np.zeros(form.shape, form.dtype)
        grown[tuple(slice(n) for n in array.shape)] = array
        return jax.make_array_from_callback(form.shape, NamedSharding(self.mesh, spec), lambda at: grown[at])

    def _picked(self, result: jax.Array) -> np.ndarray:
        """The next tokens, from a result that holds them or their scores, the batch in front."""
        true = self.whole(result)[tuple(slice(n) for n in self.phase["kept"])]
        return true.reshape(len(true), -1).argmax(axis=1) if self.told["scores"] else true


def _generated(told: Told, prefill: _Phase, decode: _Phase, stored: Mapping[str, np.ndarray]) -> np.ndarray:
    """Prefill as many sequences at a time as it takes, each time into other slots of the caches; then decode."""
    prompt, (batch_axis, new_axis), picked = told["prompt"], told["axes"], []
    whole = {name: stored[name].copy() for name in told["caches"]}
    for first in range(0, told["sequences"], told["at_once"]):
        slots = np.arange(first, first + told["at_once"])
        part: dict[str, Any] = {name: np.take(whole[name], slots, axis) for name, axis in told["caches"].items()}
        part[prompt] = np.take(stored[prompt], slots, batch_axis)
        tokens, made = prefill.run({**stored, **part}, told["length"])
        picked.append(tokens)
        for name, axis in told["caches"].items():
            np.moveaxis(whole[name], axis, 0)[slots] = np.moveaxis(prefill.whole(made[name]), axis, 0)
    chosen, caches = [np.concatenate(picked)], dict[str, Any](whole)
    for context in range(told["length"] + 1, told["length"] + told["steps"]):
        entered = np.expand_dims(chosen[-1], new_axis)
        tokens, caches = decode.run({**stored, **caches, prompt: entered}, context)
        chosen.append(tokens)
    return np.stack(chosen)


def end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say what went wrong and end. The usual way out would wait for the other processes, which wait for this one."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.excepthook = end_at_once
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
