"""A pipeline as a JAX module: it runs the modules of its stages, which lie beside it, each on devices of its own.

What one stage hands to the next goes from each device to the one at its place; calls are dispatched one after the
other and run when their devices are free, so that stages work at the same time on micro-batches that follow each
other. JAX takes care of that; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.inert import docstring, literal
from ...ir.program import Kind
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ...ir.streams import host_tensors
from .jax_main import DRAW
from .jax_source import step_names
from .jax_text import NARROW


@record
class StageModule:
    """The module of a stage, by the name of its file without `.py`. `received`: those of its inputs that the stage
    before hands on, its first results in this order."""

    file: str
    spmd: SpmdProgram
    received: tuple[str, ...]


def emit_pipeline(model: str, stages: Sequence[StageModule]) -> str:
    """The text of the module that runs a phase of a pipeline, beside the modules of its stages."""
    first = stages[0].spmd
    names = [step_names(stage.spmd) for stage in stages]
    takes = [(*each.inputs.values(), *each.contexts.values()) for each in names]
    after = [tuple(each.inputs[name] for name in stage.received) for each, stage in zip(names, stages, strict=True)]
    handed = [*after[1:], ()]
    sizes, axes = repr(first.mesh.sizes), ", ".join(map(literal, first.mesh.names))
    imports = [f"import {stage.file} as stage_{n}" for n, stage in enumerate(stages, 1)]
    said = docstring(
        f"Model {model}, phase {first.phase}: {len(stages)} stages of {first.mesh.chips} chips, "
        f"{first.micro_batches} micro-batches."
    )
    streams = [bool(host_tensors(stage.spmd)) for stage in stages]
    listed = ", ".join(f"stage_{n}" for n in range(1, len(stages) + 1))
    return TEXT.format(
        narrow=NARROW,
        said=said,
        draw=DRAW,
        imports="\n".join(imports),
        stages=listed,
        takes=_rows(takes),
        handed=_rows(handed),
        streamed=f"\nSTREAMED = {streams}  # whether a stage has layers in the host's memory" if any(streams) else "",
        placing=PLACING_STREAMS if any(streams) else PLACING,
        joining=JOINING_STREAMS if any(streams) else "",
        cached=[bool(each.of(Kind.CACHE)) for each in names],
        micro_batches=first.micro_batches,
        ways=len(stages),
        chips=first.mesh.chips,
        sizes=sizes,
        axes=f"{axes},",
        rank=len(first.mesh.names),
    )


def _rows(rows: Sequence[Sequence[str]]) -> str:
    texts = ["(" + "".join(f"{literal(name)}, " for name in row).rstrip() + ")" for row in rows]
    return f"({', '.join(texts)},)"


PLACING = """\
    pairs = zip(meshes, STAGES, strict=True)
    places = [jax.tree.map(partial(NamedSharding, mesh), stage.SPECS) for mesh, stage in pairs]"""
PLACING_STREAMS = """\
    pairs = list(zip(STAGES, STREAMED, strict=True))
    params = [
        stage.divided(cfg, *each)[0] if streamed else each[0]
        for (stage, streamed), cfg, each in zip(pairs, configs, drawn, strict=True)
    ]
    places = [
        stage.places(mesh, stage.SPECS) if streamed else jax.tree.map(partial(NamedSharding, mesh), stage.SPECS)
        for (stage, streamed), mesh in zip(pairs, meshes, strict=True)
    ]
    caches = [
        [stage.divided(cfg, each[0], one)[1] if streamed and cached else one for one in some]
        for (stage, streamed), cfg, each, some, cached in zip(pairs, configs, drawn, caches, CACHED, strict=True)
    ]"""
JOINING_STREAMS = """
    after = [
        [stage.whole(one) if streamed and cached else one for one in some]
        for (stage, streamed), some, cached in zip(pairs, after, CACHED, strict=True)
    ]"""

TEXT = '''"""A pipeline in JAX: micro-batches go through stages, each a module beside this file on devices of its own.

{said}
Run as a program, this file sends micro-batches through all stages at small sizes, on CPU devices, and compares with the
stages unsharded.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

{imports}

STAGES = ({stages})
TAKES = {takes}  # what each stage takes beside params and caches
HANDED = {handed}  # what the next stage calls the first results of each
CACHED = {cached}  # whether a stage has caches{streamed}
MICRO_BATCHES = {micro_batches}


def make_meshes():
    """The mesh of each stage: {chips} devices each, in the order that JAX has them in."""
    if len(jax.devices()) < {ways} * {chips}:
        raise RuntimeError(f"This program takes {{{ways} * {chips}}} devices, and JAX has {{len(jax.devices())}}.")
    parts = [jax.devices()[n * {chips} : (n + 1) * {chips}] for n in range({ways})]
    types = (AxisType.Auto,) * {rank}
    return [jax.make_mesh({sizes}, ({axes}), axis_types=types, devices=part) for part in parts]


def build(meshes, configs=tuple(stage.FULL for stage in STAGES)):
    """The step of (params, caches, batches): the params of each stage; for each stage its caches of each micro-batch,
    which are donated; for each micro-batch what the model takes, by name. It gives the results of each micro-batch, a
    tuple, and the caches."""
    calls = [stage.build(mesh, cfg) for stage, mesh, cfg in zip(STAGES, meshes, configs, strict=True)]
    specs = [stage.SPECS[len(stage.SPECS) - len(names) :] for stage, names in zip(STAGES, TAKES, strict=True)]
    places = [tuple(NamedSharding(mesh, spec) for spec in each) for mesh, each in zip(meshes, specs, strict=True)]

    def step(params, caches, batches):
        results, caches = [], [list(each) for each in caches]
        for m, batch in enumerate(batches):
            values, left = dict(batch), ()
            for s, call in enumerate(calls):
                given = jax.device_put(tuple(values[name] for name in TAKES[s]), places[s])
                held = (params[s], caches[s][m]) if CACHED[s] else (params[s],)
                made = call(*held, *given)
                if CACHED[s]:
                    made, caches[s][m] = made
                made = made if isinstance(made, tuple) else (made,)
                values |= dict(zip(HANDED[s], made, strict=False))
                left += made[len(HANDED[s]) :]
            results.append(left)
        return results, caches

    return step


def main() -> int:
    """Compare micro-batches through all stages with the stages unsharded, at small sizes in float32, on CPU devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", {ways} * {chips})
    rng = np.random.default_rng(0)

{draw}

    def difference(a, b):
        a, b = np.asarray(a, float), np.asarray(b, float)
        return np.abs(a - b).max() / (np.abs(b).max() or 1)

    configs = tuple(stage.SMALL for stage in STAGES)
    drawn = [stage.tensors(cfg, draw) for stage, cfg in zip(STAGES, configs, strict=True)]
    params = [each[0] for each in drawn]
    batches, caches = [], [[] for _ in STAGES]
    for _ in range(MICRO_BATCHES):
        given = {{}}
        for s, (stage, cfg) in enumerate(zip(STAGES, configs, strict=True)):
            own = stage.tensors(cfg, draw)
            caches[s].append(own[1] if CACHED[s] else None)
            filled = [jnp.int32(getattr(cfg, name.removeprefix("filled_"))) for name in TAKES[s] if "filled_" in name]
            inputs = own[2 if CACHED[s] else 1 :]
            given |= {{name: a for name, a in zip(TAKES[s], (*inputs, *filled), strict=True) if name not in given}}
        batches.append(given)
    expected, kept = [], [[] for _ in STAGES]
    for m, batch in enumerate(batches):
        values, left = dict(batch), ()
        for s, (stage, cfg) in enumerate(zip(STAGES, configs, strict=True)):
            held = (params[s], caches[s][m]) if CACHED[s] else (params[s],)
            made = jax.jit({narrow}(partial(stage.dense, cfg)))(*held, *(values[name] for name in TAKES[s]))
            if CACHED[s]:
                made, after = made
                kept[s].append(after)
            made = made if isinstance(made, tuple) else (made,)
            values |= dict(zip(HANDED[s], made, strict=False))
            left += made[len(HANDED[s]) :]
        expected.append(left)
    meshes = make_meshes()
{placing}
    held = [jax.device_put(each, place[0]) for each, place in zip(params, places, strict=True)]
    stored = [
        [jax.device_put(each, place[1]) if cached else None for each in some]
        for some, place, cached in zip(caches, places, CACHED, strict=True)
    ]
    actual, after = build(meshes, configs)(held, stored, batches){joining}
    after = [some for some, cached in zip(after, CACHED, strict=True) if cached]
    kept = [some for some, cached in zip(kept, CACHED, strict=True) if cached]
    worst = np.max(jax.tree.leaves(jax.tree.map(difference, (actual, after), (expected, kept))))
    print(f"largest relative difference on {{{ways} * {chips}}} devices: {{worst:.2e}}")
    return 0 if worst <= 1e-5 else 1


if __name__ == "__main__":
    raise SystemExit(main())
'''
