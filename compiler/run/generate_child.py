"""The part of a generation that runs in JAX, as a process of its own.

`python -m escc.compiler.run.generate_child FOLDER ID COUNT ADDRESS` is process ID of COUNT, which share the mesh and
all do the same; they meet at ADDRESS. FOLDER holds `prefill.py` and `decode.py`, two emitted modules, beside those of
their stages where they are pipelines; `stored.npz`, what they take, called arr_0, arr_1, ...; and `told.json`, a
`Told`. Beside them comes `tokens.npy`: [steps, batch].
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypedDict

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ..jax.check_child import load
from ..simulate.repetitions import Index, joined, part_of

PHASES = ("prefill", "decode")


class ToldStage(TypedDict):
    """A stage of a phase, or all of it. `sizes`: by field of its `Config`. `leaves`: names of all that it takes, in the
    order in which its `tensors` makes them; `of`: of those that repeats hold what the whole program calls them, and of
    which repetitions they are. `contexts`: how many arguments say how much of a context is filled."""

    sizes: dict[str, int]
    leaves: list[str]
    of: dict[str, tuple[str, list[int | list[int]]]]
    contexts: int


class ToldPhase(TypedDict):
    """A phase. `picked`: which result the next tokens are read from; `kept`: the true sizes of that result."""

    stages: list[ToldStage]
    picked: int
    kept: list[int]


class Told(TypedDict):
    """What a generation does. `stored`: the names of the arrays. `caches`: their axes of the batch, from the end;
    `axes`: those of the batch and of new tokens in `prompt`. `sequences`: in all; `at_once`: in a prefill, and in a
    step of decode; `length`: of a prompt. `steps`: the tokens for each sequence. `scores`: whether results are scores.
    `staged`: whether modules are pipelines."""

    stored: list[str]
    caches: dict[str, int]
    prompt: str
    axes: tuple[int, int]
    sequences: int
    at_once: tuple[int, int]
    length: int
    steps: int
    scores: bool
    staged: bool
    phases: dict[str, ToldPhase]


def main(folder: Path, process: int, processes: int, address: str) -> None:
    """Generate as the files in `folder` say."""
    meet(process, processes, address)
    told: Told = json.loads((folder / "told.json").read_text())
    with np.load(folder / "stored.npz") as file:
        arrays = {name: file[f"arr_{i}"] for i, name in enumerate(told["stored"])}
    if told["staged"]:
        sys.path.insert(0, str(folder))  # where pipelines find their stages
        stages = _Pipeline(folder, 0, told, arrays), _Pipeline(folder, 1, told, arrays)
        tokens = _generated_in_stages(told, *stages, arrays)
    else:
        tokens = _generated(told, _Phase(folder, 0, told, arrays), _Phase(folder, 1, told, arrays), arrays)
    if process == 0:
        np.save(folder / "tokens.npy", tokens)


class _Step:
    """A step, or that of a stage, with devices of its own: how what it takes goes to them, and comes back."""

    def __init__(self, module: ModuleType, mesh: Any, stage: ToldStage) -> None:
        self.module, self.mesh = module, mesh
        self.config, leaves = replace(module.SMALL, **stage["sizes"]), iter(stage["leaves"])
        self.forms = module.tensors(self.config, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))
        self.names = module.tensors(self.config, lambda shape, dtype, terms=1: next(leaves))
        self.streams = hasattr(module, "divided")
        specs = module.SPECS[: len(self.forms)]
        self.places = module.places(mesh, specs) if self.streams else jax.tree.map(partial(NamedSharding, mesh), specs)

    def placed(self, part: int, arrays: Mapping[str, np.ndarray]) -> Any:
        """What the step takes as its argument `part` on the devices, or in the memory of their host, of arrays by name,
        which every process holds whole; they are grown with zeros to the shape that they have there."""
        given: Any = jax.tree.map(lambda name, form: _grown(arrays[name], form), self.names[part], self.forms[part])
        if self.streams:
            every = [jax.tree.map(lambda form: np.zeros(form.shape, form.dtype), forms) for forms in self.forms]
            given = self.module.divided(self.config, *every[:part], given, *every[part + 1 :])[part]
        return jax.tree.map(_put, given, self.places[part])

    def wholes(self, part: int, tree: Any) -> dict[str, np.ndarray]:
        """The arrays of what the step gives in the form of its argument `part`, by name, in every process."""
        arrays = jax.tree.map(partial(whole, self.mesh), tree)
        if self.streams:
            arrays = self.module.whole(arrays)
        return dict(zip(jax.tree.leaves(self.names[part]), jax.tree.leaves(arrays), strict=True))


class _Phase:
    """An emitted step on real devices."""

    def __init__(self, folder: Path, n: int, told: Told, stored: Mapping[str, np.ndarray]) -> None:
        module, self.phase, self.told = load(folder / f"{PHASES[n]}.py"), told["phases"][PHASES[n]], told
        [self.stage] = self.phase["stages"]
        self.mesh = module.make_mesh()
        self.taken = _Step(module, self.mesh, self.stage)
        self.step = module.build(self.mesh, self.taken.config)
        self.params = self.taken.placed(0, stored)

    def run(self, caches: Any, ids: np.ndarray, context: int) -> tuple[np.ndarray, Any]:
        """The next token of each sequence, and the next versions of caches, which are as `placed` has them."""
        prompt = self.taken.placed(2, {self.told["prompt"]: ids})
        filled = [_put(np.asarray(context, np.int32), NamedSharding(self.mesh, P()))] * self.stage["contexts"]
        results, caches = self.step(self.params, caches, prompt, *filled)
        picked = whole(self.mesh, jax.tree.leaves(results)[self.phase["picked"]])
        return _picked(self.told, self.phase, picked), caches

    def placed(self, caches: Mapping[str, np.ndarray]) -> Any:
        """Whole caches as the step takes them."""
        return self.taken.placed(1, caches)

    def wholes(self, caches: Any) -> dict[str, np.ndarray]:
        """The whole of such caches."""
        return self.taken.wholes(1, caches)


class _Pipeline:
    """An emitted pipeline on real devices."""

    def __init__(self, folder: Path, n: int, told: Told, stored: Mapping[str, np.ndarray]) -> None:
        module, self.phase, self.told = load(folder / f"{PHASES[n]}.py"), told["phases"][PHASES[n]], told
        stages, self.width = self.phase["stages"], told["at_once"][n]
        meshes, self.cached, self.takes = module.make_meshes(), module.CACHED, module.TAKES
        self.taken = [_Step(*each) for each in zip(module.STAGES, meshes, stages, strict=True)]
        self.step = module.build(meshes, tuple(each.config for each in self.taken))
        self.params = [each.placed(0, self._layers(s, stored)) for s, each in enumerate(self.taken)]
        self.slots = [np.arange(at, at + self.width) for at in range(0, told["sequences"], self.width)]

    def run(self, caches: Any, ids: np.ndarray, context: int) -> tuple[np.ndarray, Any]:
        """The next token of each sequence, and the next versions of caches, as `divided` has them."""
        filled = {name: np.int32(context) for takes in self.takes for name in takes if name.startswith("filled_")}
        prompt, axis = self.told["prompt"], self.told["axes"][0]
        batches = [{prompt: np.take(ids, slots, axis).astype(np.int32), **filled} for slots in self.slots]
        results, caches = self.step(self.params, caches, batches)
        found = [np.asarray(result[self.phase["picked"]]) for result in results]
        return np.concatenate([_picked(self.told, self.phase, one) for one in found]), caches

    def divided(self, caches: Mapping[str, np.ndarray]) -> Any:
        """Whole caches as each stage has them of each micro-batch."""
        return [
            [
                taken.placed(1, {name: np.take(a, slots, self._batch(s, name)) for name, a in own.items()})
                if cached
                else None
                for slots in self.slots
            ]
            for s, (taken, cached) in enumerate(zip(self.taken, self.cached, strict=True))
            for own in [self._layers(s, caches)]
        ]

    def joined(self, caches: Any) -> dict[str, np.ndarray]:
        """The whole of such caches."""
        found: dict[str, list[tuple[Index, np.ndarray]]] = {}
        for s in (s for s, cached in enumerate(self.cached) if cached):
            parts = [self.taken[s].wholes(1, one) for one in caches[s]]
            for name in parts[0]:
                batches = [part[name] for part in parts]
                own, index = self._of(s, name)
                found.setdefault(own, []).append((index, np.concatenate(batches, self._batch(s, name))))
        return joined(found)

    def _layers(self, s: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What a stage has of arrays of the whole program, as it calls them: of those of layers, its own layers'."""
        named = [(name, *self._of(s, name)) for name in self.phase["stages"][s]["leaves"]]
        return {name: part_of(arrays[own], index) for name, own, index in named if own in arrays}

    def _of(self, s: int, name: str) -> tuple[str, Index]:
        """What the whole program calls what a stage has, and of which repetitions that is."""
        return self.phase["stages"][s]["of"].get(name, (name, []))

    def _batch(self, s: int, name: str) -> int:
        """Where the batch stands in the array of a cache of a stage."""
        return self.told["caches"][self._of(s, name)[0]]


def _put(array: np.ndarray, place: NamedSharding) -> jax.Array:
    """An array where it belongs, of which every process holds all."""
    return jax.make_array_from_callback(array.shape, place, lambda at: array[at])


def _grown(array: np.ndarray, form: Any) -> np.ndarray:
    """An array grown with zeros to the shape that it has on devices."""
    grown: np.ndarray = np.zeros(form.shape, form.dtype)
    grown[tuple(slice(n) for n in array.shape)] = array
    return grown


def _picked(told: Told, phase: ToldPhase, result: np.ndarray) -> np.ndarray:
    """The next tokens, from a result that holds them or their scores, the batch in front."""
    true = result[tuple(slice(n) for n in phase["kept"])]
    return true.reshape(len(true), -1).argmax(axis=1) if told["scores"] else true


def _generated_in_stages(
    told: Told, prefill: _Pipeline, decode: _Pipeline, stored: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Prefill all sequences, then decode, each in micro-batches."""
    caches = {name: stored[name] for name in told["caches"]}
    tokens, held = prefill.run(prefill.divided(caches), stored[told["prompt"]], told["length"])
    chosen, held = [tokens], decode.divided(prefill.joined(held))
    for context in range(told["length"] + 1, told["length"] + told["steps"]):
        tokens, held = decode.run(held, np.expand_dims(chosen[-1], told["axes"][1]), context)
        chosen.append(tokens)
    return np.stack(chosen)


def _generated(told: Told, prefill: _Phase, decode: _Phase, stored: Mapping[str, np.ndarray]) -> np.ndarray:
    """Prefill as many sequences at a time as it takes, each time into other slots of the caches; then decode."""
    (batch_axis, new_axis), picked = told["axes"], []
    kept = {name: stored[name].copy() for name in told["caches"]}
    for first in range(0, told["sequences"], told["at_once"][0]):
        slots = np.arange(first, first + told["at_once"][0])
        part = {name: np.take(kept[name], slots, axis) for name, axis in told["caches"].items()}
        prompts = np.take(stored[told["prompt"]], slots, batch_axis)
        tokens, made = prefill.run(prefill.placed(part), prompts, told["length"])
        picked.append(tokens)
        for name, array in prefill.wholes(made).items():
            axis = told["caches"][name]
            np.moveaxis(kept[name], axis, 0)[slots] = np.moveaxis(array, axis, 0)
    chosen, caches = [np.concatenate(picked)], decode.placed(kept)
    for context in range(told["length"] + 1, told["length"] + told["steps"]):
        tokens, caches = decode.run(caches, np.expand_dims(chosen[-1], new_axis), context)
        chosen.append(tokens)
    return np.stack(chosen)


def meet(process: int, processes: int, address: str) -> None:
    """Let this process have its share of the devices of all, which meet at an address; one has them alone."""
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, processes, process)


def whole(mesh: Any, array: jax.Array) -> np.ndarray:
    """All of an array, in every process."""
    return np.asarray(jax.device_put(array, NamedSharding(mesh, P())))


def started(main: Callable[[Path, int, int, str], None]) -> None:
    """Run `main` with the arguments of this process, which ends at once where something goes wrong."""
    sys.excepthook = end_at_once
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])


def end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say what went wrong and end. The usual way out would wait for the other processes, which wait for this one."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    started(main)
