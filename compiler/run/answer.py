"""Prompts answered with real weights: both phases planned for what is asked, and the emitted modules run with them.

Prompts of a batch have lengths of their own. All are prefilled together, filled up behind with what is masked later;
then they decode in step from where the shortest ends: a sequence whose prompt is not at its end takes its next token
from there. So every token stands at its own position, and one count of filled places holds for all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...ir.dataflow import ops
from ...ir.diagnostics import Diagnostic, fail
from ...ir.expr import size_bounds
from ...ir.mesh import Mesh
from ...ir.program import Iota, Map, Program, Take
from ...ir.record import record
from ...passes.options import Options
from ..emit.jax_function import contexts_of
from ..emit.jax_source import emit_jax
from ..emit.jax_tree import names_of
from ..hf_import.checkpoint import check_checkpoint, open_checkpoint
from ..hf_import.weight_map import ENDING, WeightMap, map_beside
from ..jax.processes import run_processes, sharing
from ..plan.compiled import Compilation, CompiledPhase
from ..plan.pipeline import compile_phases
from ..simulate.pointwise import Array
from .language_model import DECODE, PREFILL, LanguageModel, language_model

CHILD = f"{__package__}.answer_child"
MOST_PROMPTS, MOST_NEW = 4096, 1_000_000


@record
class Asked:
    """What a model is asked. `prompts`: token ids of each sequence. `tokens`: how many each gets at most. `context`:
    how many places are planned, None for as many as are needed. `stops`: tokens that end a sequence.
    `temperature`: 0 for the likeliest token; `seed`: of the others. `scores`: whether scores are wanted."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: int
    context: int | None = None
    stops: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    scores: bool = False


@record
class Answered:
    """What a model answered. `tokens`: those of each sequence, without the prompt. `full`: whether some ended
    because the context was full. `load_s`, `prefill_s`, `decode_s`: seconds, the last of `timed` steps. `steps`:
    how often decode ran. `lost`: how many chosen entries found no room, and how many times a token lost any in a
    layer. `wrong`: how many tokens are not those of the unsharded model, None where it was not asked; `difference`:
    the largest of a score. `scores`: [steps, batch, vocabulary], None where they were not wanted."""

    tokens: tuple[tuple[int, ...], ...]
    full: bool
    load_s: float
    prefill_s: float
    decode_s: float
    timed: int
    steps: int
    lost: tuple[int, int]
    wrong: int | None
    difference: float | None
    scores: Array | None


@record
class Planned:
    """A model planned for what it is asked. `most`: how many places it can have, None for any number. `warnings`: what
    a user should know of the answers."""

    compiled: Compilation
    model: LanguageModel
    weights: WeightMap
    checkpoint: Path
    asked: Asked
    most: int | None
    warnings: tuple[Diagnostic, ...]

    def sent_bytes(self, steps: int) -> float:
        """What each chip sends by the plan in a prefill and `steps` of decode."""
        prefill, decode = (one.estimate.totals().bytes_sent for one in self.compiled)
        return prefill + steps * decode


def weights_of(model: Path, program: Program, checkpoint: Path) -> WeightMap:
    """The weight map beside a model. Raises InputError where there is none, or where it is not that of the
    checkpoint."""
    made = map_beside(model, program)
    if made is None:
        hint = f"`escc import {checkpoint} -o {model.with_suffix('.esti').name}` writes both"
        raise fail(f"There is no weight map `{model.with_suffix(ENDING)}` beside the model.", hint=hint)
    check_checkpoint(made, program, open_checkpoint(checkpoint))
    return made


def plan_for(
    program: Program,
    weights: WeightMap,
    checkpoint: Path,
    mesh: Mesh,
    options: Options,
    asked: Asked,
    limit: int | None = None,
) -> Planned:
    """Plan both phases for prompts. `limit`: for how many places the model was imported, None for any number. Raises
    InputError for prompts that the model or its context cannot take, and where there is no plan."""
    model = language_model(program)
    _check(model, asked)
    longest = max(map(len, asked.prompts))
    most = _most_places(program, max(longest, asked.context or 0), limit)
    needed = longest + asked.tokens - 1
    wanted = asked.context or _rounded(needed, mesh.chips)
    places = wanted if most is None else min(wanted, most)
    if longest > places:
        hint = f"plan for more with `--context {needed}`"
        raise fail(f"A prompt has {longest} tokens, and the context {places}.", hint=hint)
    sizes = {model.batch: len(asked.prompts), **dict.fromkeys(model.counted, places)}
    taken = {PREFILL: min(places, _rounded(longest, mesh.chips)), DECODE: 1}
    phases = tuple(
        replace(p, sizes=tuple((d, {**sizes, model.new: taken[p.name]}.get(d, n)) for d, n in p.sizes), calls=calls)
        for p, calls in ((p, asked.tokens if p.name == DECODE else 1) for p in program.phases if p.name in taken)
    )
    # The largest score comes along where no others do, since of scores that are no numbers a token is picked, too.
    beside = model.scores if asked.scores or asked.temperature or not model.largest else model.largest
    results = (*program.results, *(name for name in beside if name not in program.results))
    fitted = replace(program, phases=phases, results=results)
    compiled = compile_phases(fitted, (PREFILL, DECODE), mesh, options)
    warnings = tuple(turned_otherwise(model, min(map(len, asked.prompts)), places))
    return Planned(compiled, model, weights, checkpoint, asked, most, warnings)


def _rounded(count: int, chips: int) -> int:
    """A count that any part of the chips divides."""
    return -(-count // chips) * chips


def _check(model: LanguageModel, asked: Asked) -> None:
    """Raise InputError for prompts and counts that no model takes."""
    if not 1 <= asked.tokens <= MOST_NEW:
        raise fail(f"{asked.tokens} tokens cannot be generated.", hint=f"choose from 1 to {MOST_NEW:,}")
    if not 1 <= len(asked.prompts) <= MOST_PROMPTS:
        raise fail(f"There are {len(asked.prompts):,} prompts.", hint=f"give from 1 to {MOST_PROMPTS:,}")
    sizes = model.program.true_sizes(dict(model.program.phases[0].sizes))
    known = int(np.prod([sizes[dim] for dim in model.vocabulary]))
    for number, prompt in enumerate(asked.prompts, 1):
        if not prompt:
            raise fail(f"Prompt {number} is empty.")
        wrong = [token for token in prompt if not 0 <= token < known]
        if wrong:
            raise fail(f"Prompt {number} has token {wrong[0]}, and the model knows {known:,}, from 0.")
    if len(model.scores) != 1:
        raise fail("The model picks its tokens from several scores.", hint="only one is understood here")


def _most_places(program: Program, wanted: int, limit: int | None) -> int | None:
    """How many places the model can have; None for any number. Raises InputError where more are wanted."""
    learned = _learned_places(program)
    most = min((one for one in (learned, limit) if one is not None), default=None)
    if most is None or wanted <= most:
        return most
    if most == learned:
        raise fail(f"The model has learned {most} positions, and {wanted} are asked for.")
    hint = f"the line `context {most}` of the weight map says so; what matters beyond alone was left out"
    raise fail(f"The model was imported for {most:,} positions, and {wanted:,} are asked for.", hint=hint)


def turned_otherwise(model: LanguageModel, shortest: int, places: int) -> Iterator[Diagnostic]:
    """What to say where the size of a context decides how rope turns, and prompts by themselves have a smaller one."""
    maps = [op.expr for op in ops(model.program) if isinstance(op, Map)]
    for most in sorted({most for expr in maps for dim, most in size_bounds(expr) if dim in model.counted}):
        if shortest <= most < places:
            message = f"In contexts of more than {most:g} places rope turns by other factors, and {places} are planned"
            hint = f"`--context {most:g}` plans for the others"
            yield Diagnostic(f"{message}, for the shortest prompt, too.", hint=hint, severity="warning")


def _learned_places(program: Program) -> int | None:
    """How many positions have learned embeddings; None where positions are computed."""
    at = {op.result for op in ops(program) if isinstance(op, Iota)}
    sizes = program.true_sizes(dict(program.phases[0].sizes))
    found = [int(np.prod([sizes[d] for d in op.over])) for op in ops(program) if isinstance(op, Take) and op.ids in at]
    return min(found, default=None)


def answer(planned: Planned, processes: int, check: bool, stream: bool) -> Answered:
    """Run the emitted modules with a checkpoint. `check`: also the unsharded model. `stream`: whether texts are
    written to standard output as they come. Raises InputError where scores are no numbers, and InternalError where a
    module does not run."""
    asked, model = planned.asked, planned.model
    program = planned.compiled[0].program
    told = {
        "checkpoint": str(planned.checkpoint),
        "prompts": asked.prompts,
        "tokens": asked.tokens,
        "stops": asked.stops,
        "temperature": asked.temperature,
        "seed": asked.seed,
        "scores": program.results.index(model.scores[0]) if model.scores[0] in program.results else None,
        "largest": [program.results.index(name) for name in model.largest if name in program.results],
        "chosen": program.results.index(model.chosen) if model.chosen else None,
        "vocabulary_last": _last(program, model),
        "batch_first": model.prompt.dims[0] == model.batch,
        "places": dict(planned.compiled[1].spmd.sizes)[model.counted[0]],
        "check": check,
        "stream": stream,
        "keep": asked.scores,
        "phases": {one.phase: _told(one, program, model) for one in planned.compiled},
    }
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        for one in planned.compiled:
            text = emit_jax(one.program, one.spmd, one.estimate, planned.weights, platform=one.platform)
            (path / f"{one.phase}.py").write_text(text, encoding="utf-8")
        (path / "told.json").write_text(json.dumps(told), encoding="utf-8")
        devices = planned.compiled[0].spmd.mesh.chips // processes
        run_processes(sharing(CHILD, folder, processes), devices, heard=True)
        done = json.loads((path / "answer.json").read_text())
        if (row := done.pop("unknown")) is not None:
            hint = "weights of the checkpoint are none, or values that are made of them leave the range of their type"
            after = f"prompt {row + 1}" + (f" and {len(done['tokens'][row])} tokens" if done["tokens"][row] else "")
            raise fail(f"The scores of what follows {after} are no numbers (NaN).", hint=hint)
        scores = np.load(path / "scores.npy") if asked.scores else None
    done |= {"tokens": tuple(map(tuple, done["tokens"])), "lost": tuple(done["lost"])}
    return Answered(scores=scores, **done)


def _last(program: Program, model: LanguageModel) -> int:
    """How many scores there are of each sequence."""
    sizes, values = program.true_sizes(dict(program.phases[0].sizes)), program.table()
    return int(np.prod([sizes[d] for d in values[model.scores[0]].dims if d != model.batch]))


def _told(one: CompiledPhase, program: Program, model: LanguageModel) -> Mapping[str, object]:
    """What the child is told of a phase: how many tokens it takes, and by the order of its arguments whether each
    counts what is filled."""
    names = names_of(one.spmd, contexts_of(one.spmd), ())
    return {"new": dict(one.spmd.sizes)[model.new], "contexts": len(names.contexts)}
