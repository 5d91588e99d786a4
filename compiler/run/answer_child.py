"""The part of an answer that runs in JAX, as a process of its own.

`python -m escc.compiler.run.answer_child FOLDER ID COUNT ADDRESS` is process ID of COUNT, which share the mesh and
all do the same; they meet at ADDRESS. FOLDER holds `prefill.py` and `decode.py`, two emitted modules, and
`told.json`. Beside them come `answer.json` and, where scores are kept, `scores.npy`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import Progress

from ..jax.check_child import load
from .generate_child import meet, started, whole
from .tokens import tokenizer_of

Array = np.ndarray
Tree = Any


def main(folder: Path, process: int, processes: int, address: str) -> None:
    """Answer as the files in `folder` say."""
    meet(process, processes, address)
    told = json.loads((folder / "told.json").read_text())
    modules = {name: load(folder / f"{name}.py") for name in ("prefill", "decode")}
    mesh = modules["decode"].make_mesh()
    begun = time.perf_counter()
    sharded = _Model(told, modules, mesh, alone=False, tell=process == 0)
    load_s = time.perf_counter() - begun
    writer = _Writer(told) if process == 0 and told["stream"] else None
    done = _generated(told, sharded, writer)
    wrong = difference = None
    if told["check"] and done["unknown"] is None:
        types = (AxisType.Auto,) * len(mesh.axis_names)
        sizes = (1,) * len(mesh.axis_names)
        one = jax.make_mesh(sizes, mesh.axis_names, axis_types=types, devices=jax.local_devices()[:1])
        wrong, difference = _compared(done, _generated(told, _Model(told, modules, one, alone=True, tell=False), None))
    if process == 0:
        if told["keep"]:
            np.save(folder / "scores.npy", np.stack(done["kept"]))
        keys = ("tokens", "full", "unknown", "prefill_s", "decode_s", "timed", "steps", "lost")
        answer = {key: done[key] for key in keys} | {"load_s": load_s, "wrong": wrong, "difference": difference}
        (folder / "answer.json").write_text(json.dumps(answer))


class _Model:
    """The emitted phases with the weights of a checkpoint on a mesh; `alone`: unsharded, on a mesh of one device."""

    def __init__(self, told: dict[str, Any], modules: dict[str, Any], mesh: Any, alone: bool, tell: bool) -> None:
        self.told, self.modules, self.mesh, self.alone = told, modules, mesh, alone
        decode = modules["decode"]
        leaves = len(jax.tree.leaves(decode.WEIGHTS))
        shown = tell and sys.stdout.isatty()
        with Progress(console=Console(file=sys.stdout), disable=not shown, transient=True) as progress:
            task = progress.add_task("loading", total=leaves)
            self.params = decode.load(told["checkpoint"], mesh, tell=lambda name: progress.advance(task))
        if alone:
            self.steps = {name: jax.jit(partial(m.dense, m.FULL)) for name, m in modules.items()}
        else:
            self.steps = {name: m.build(mesh) for name, m in modules.items()}
        self.caches: Tree = None
        self.lost = np.zeros(2, int)  # chosen entries that found no room, and tokens that lost any in a layer

    def run(self, phase: str, tokens: Array, filled: int) -> list[Any]:
        """Run a phase on tokens [batch, new], with so many places filled after them; its results."""
        module = self.modules[phase]
        forms = module.tensors(module.FULL, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))
        if self.caches is None:
            self.caches = self._placed(forms[1], module.CACHES, lambda form: np.zeros(form.shape, form.dtype))
        else:
            self.caches = self._moved(self.caches, module.CACHES)
        order = tokens if self.told["batch_first"] else tokens.T
        taken = self._placed(forms[2], module.SPECS[2], lambda form: order.astype(form.dtype))
        everywhere = jax.device_put(np.int32(filled), NamedSharding(self.mesh, P()))
        contexts = [everywhere] * self.told["phases"][phase]["contexts"]
        results, self.caches, *lost = self.steps[phase](self.params, self.caches, taken, *contexts)
        for counts in lost:
            self.lost += whole(self.mesh, counts).sum(0)
        return list(results) if isinstance(results, tuple) else [results]

    def _moved(self, caches: Tree, specs: Tree) -> Tree:
        places = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs, is_leaf=lambda s: isinstance(s, P))
        return caches if self.alone else jax.device_put(caches, places)

    def _placed(self, forms: Tree, specs: Tree, made: Callable[[Any], Array]) -> Tree:
        def placed(form: Any, spec: P) -> jax.Array:
            array = made(form)
            return jax.make_array_from_callback(form.shape, NamedSharding(self.mesh, spec), lambda at: array[at])

        return jax.tree.map(placed, forms, specs)


class _Writer:
    """Texts on standard output: of one sequence as they come, of several one after the other when they are whole."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.tokenizer = tokenizer_of(Path(told["checkpoint"]))
        self.prompts, self.said = told["prompts"], 0

    def heard(self, tokens: list[list[int]], last: bool) -> None:
        """Write what is new."""
        if len(self.prompts) > 1:
            if last:
                texts = (self.tokenizer.text([*p, *t]) for p, t in zip(self.prompts, tokens, strict=True))
                print("\n\n".join(texts), flush=True)
            return
        text = self.tokenizer.text([*self.prompts[0], *tokens[0]])
        if last or not text.endswith("\ufffd"):  # a character of several tokens is whole when the last has come
            print(text[self.said :], end="\n" if last else "", flush=True)
            self.said = len(text)


def _generated(told: dict[str, Any], model: _Model, writer: _Writer | None) -> dict[str, Any]:
    """Prefill all prompts, then decode from where the shortest ends until all have what they want, or one of them
    (`unknown`) has scores that are no numbers."""
    prompts, stops, places = told["prompts"], set(told["stops"]), told["places"]
    lengths = [len(prompt) for prompt in prompts]
    new = told["phases"]["prefill"]["new"]
    filled = np.zeros((len(prompts), new), np.int32)
    for row, prompt in zip(filled, prompts, strict=True):
        row[: len(prompt)] = prompt
    begun = time.perf_counter()
    jax.block_until_ready(model.run("prefill", filled, new))
    prefill_s = time.perf_counter() - begun
    rng = np.random.default_rng(told["seed"])
    tokens: list[list[int]] = [[] for _ in prompts]
    over = [False] * len(prompts)
    kept: list[Array] = []
    times: list[float] = []
    unknown = None
    for at in range(min(lengths) - 1, places):  # the place of the token that goes in
        # What a sequence that is at its end goes on with is never looked at.
        entered = [([*p, *t][at : at + 1] or [0])[0] for p, t in zip(prompts, tokens, strict=True)]
        begun = time.perf_counter()
        results = model.run("decode", np.array(entered, np.int32)[:, None], at + 1)
        picked, scores, known = _picked(told, model, results, rng)
        times.append(time.perf_counter() - begun)
        if scores is not None and told["keep"]:
            kept.append(scores)
        heard = [row for row in range(len(prompts)) if at >= lengths[row] - 1 and not over[row]]
        unknown = next((row for row in heard if not known[row]), None)
        for row, token in ((row, int(picked[row])) for row in heard if unknown is None):
            over[row] = token in stops or len(tokens[row]) + 1 >= told["tokens"]
            if token not in stops:
                tokens[row].append(token)
        if all(over) or unknown is not None:
            break
        if writer is not None:
            writer.heard(tokens, last=False)
    if writer is not None:
        writer.heard(tokens, last=True)
    timed = times[1:]  # the first waits for the compiler
    return {
        "tokens": tokens,
        "full": not all(over),
        "unknown": unknown,
        "prefill_s": prefill_s,
        "decode_s": sum(timed),
        "timed": len(timed),
        "steps": len(times),
        "kept": kept,
        "lost": model.lost.tolist(),
    }


def _picked(told: dict[str, Any], model: _Model, results: list[Any], rng: np.random.Generator) -> Any:
    """The next token of each sequence, the scores [batch, vocabulary] where they are wanted, and of each sequence
    whether its scores are numbers."""
    scores, batch = None, len(told["prompts"])
    largest = [whole(model.mesh, results[n])[:batch].astype(np.float32) for n in told["largest"]]
    known = ~np.any([np.isnan(one) for one in largest], axis=0) if largest else np.ones(batch, bool)
    if told["scores"] is not None:
        found = whole(model.mesh, results[told["scores"]]).astype(np.float32)
        scores = found.reshape(batch, -1)[:, : told["vocabulary_last"]]
        known &= ~np.isnan(scores).any(axis=1)
    if scores is not None and told["temperature"]:
        heat = scores.astype(np.float64) / told["temperature"]
        share = np.exp(heat - heat.max(axis=1, keepdims=True)).cumsum(axis=1)
        drawn = rng.random(len(share)) * share[:, -1]
        picked = [int(np.searchsorted(row, one, side="right")) for row, one in zip(share, drawn, strict=True)]
    elif told["chosen"] is not None:
        picked = whole(model.mesh, results[told["chosen"]])[:batch].tolist()
    else:
        assert scores is not None, "a model returns tokens or scores"
        picked = scores.argmax(axis=1).tolist()
    return picked, scores, known


def _compared(done: dict[str, Any], dense: dict[str, Any]) -> tuple[int, float | None]:
    """How many tokens are others than those of the unsharded model, and the largest difference of a score."""
    pairs = zip(done["tokens"], dense["tokens"], strict=True)
    wrong = sum(sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b)) for a, b in pairs)
    apart = [float(np.abs(a - b).max()) for a, b in zip(done["kept"], dense["kept"], strict=False)]
    return wrong, max(apart, default=None) if apart else None


if __name__ == "__main__":
    started(main)
