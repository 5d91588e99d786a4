"""Generation, run: a model prefilled and decoded step by step on virtual chips, and beside it densely.

Each phase runs under its own plan on shrunken dims, with random weights and prompts. Caches pass from
step to step, and from prefill to decode, as whole arrays: what it takes to bring them from one layout
into another is no part of what is counted. Non-goals: real weights, sampling, prompts of unequal length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ...ir.dataflow import ops
from ...ir.diagnostics import InternalError, fail
from ...ir.mesh import Mesh
from ...ir.program import Einsum, Kind, Program, Take, operand_names, stored_in
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ...passes.options import Options
from ...passes.stages.divide import Stage, layers_of
from ..plan.compiled import Compilation
from ..plan.offload import compile_offloaded
from ..plan.pipeline import compile_phases
from ..plan.staged import Staged, streamed_what
from ..plan.tries import tries
from ..plan.way import Offload
from ..simulate.check import largest_difference
from ..simulate.check_report import ERROR_TOLERANCE
from ..simulate.pointwise import Array
from ..simulate.reference import fan_in, random_stored, rows, run_reference
from ..simulate.shrink import true_part, zero_padded
from ..simulate.spmd_interpreter import ExecutionError
from ..simulate.staged import SmallPhase, small_phases
from .language_model import DECODE, PREFILL, LanguageModel, language_model

VOCABULARY, WIDTH = 64, 16  # of the small image, at least: in a smaller one all tokens soon are alike
EMBEDDED, ALIKE = 2.0, 0.3  # the standard deviations of what a token brings in, and of what all have in common
MOST_TOKENS = 512  # that a run generates: a step takes about as long as a check of the phase


@record
class Trace:
    """What one way of running a model generates.

    `tokens`: [steps, batch]. `scores`: for each step the scores that its tokens were picked from.
    `prefill_bytes`, `decode_bytes`: what a chip sent in all runs of the phase, by declared dtypes; of several stages
    one of that whose chips send most, without what is handed on.
    """

    tokens: Array
    scores: tuple[tuple[Array, ...], ...]
    prefill_bytes: Fraction = Fraction(0)
    decode_bytes: Fraction = Fraction(0)


@record
class Generation:
    """Tokens generated on virtual chips, and by the dense reference.

    `mesh`: that of all chips. `sizes`: the shrunken dims of decode, of all its sequences; `whole`: whether repeats run
    as often as ever. `stages`: how many, and along which axis; None for none. `streamed`: what comes from the host, in
    words; None where nothing does. `prefills`, `turns`: how often prefill ran, and each step of decode, each time for
    other sequences of the batch. `prompt`: [batch, tokens]. `errors`: for each step the largest difference between
    scores, relative to the largest score; infinite where one is not a number.
    """

    name: str
    mesh: Mesh
    sizes: tuple[tuple[str, int], ...]
    whole: bool
    stages: tuple[int, str] | None
    streamed: str | None
    prefills: int
    turns: int
    prompt: Array
    sharded: Trace
    dense: Trace
    errors: tuple[float, ...]

    @property
    def wrong_step(self) -> int | None:
        """The first step whose tokens or scores are not the reference's; None where all are."""
        for step, error in enumerate(self.errors):
            same = np.array_equal(self.sharded.tokens[step], self.dense.tokens[step])
            if not same or error > ERROR_TOLERANCE:
                return step
        return None


@record
class Prepared:
    """What a model generates with, however it is run.

    `compiled`: both phases at full size, of a pipeline in its stages. `stored`: parameters and caches of true sizes.
    `prompt`: ids of the model's input, of its dims. `tokens`: how many each sequence gets.
    """

    compiled: Compilation | Staged
    model: LanguageModel
    prefill: SmallPhase
    decode: SmallPhase
    stored: Mapping[str, Array]
    prompt: Array
    tokens: int

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dim in decode, padded ones as they are held; of the batch of all sequences."""
        sizes, model = self.decode.sizes, self.model
        return sizes | {model.batch: sequences(model, self.prefill, self.decode)}

    @property
    def held(self) -> dict[str, Array]:
        """What is stored, with zeros beyond true sizes."""
        return zero_padded(self.model.program, self.sizes, self.stored)

    @property
    def prompts(self) -> Array:
        """The prompt, with zeros beyond true sizes."""
        sizes = {**self.sizes, self.model.new: self.prefill.sizes[self.model.new]}
        ids = self.model.prompt.name
        return zero_padded(self.model.program, sizes, {ids: self.prompt})[ids]

    @property
    def mesh(self) -> Mesh:
        """The mesh of all chips."""
        return self.compiled.plan.mesh if isinstance(self.compiled, Staged) else self.decode.spmds[0].mesh


Plan = Callable[[Program, tuple[str, ...]], Compilation | Staged]  # how phases of a program are planned


def alone_on(mesh: Mesh, options: Options) -> Plan:
    """Each phase planned by itself."""
    return lambda program, phases: compile_phases(program, phases, mesh, options, separate=True)


def streaming_on(mesh: Mesh, options: Options, offload: Offload, ahead: int) -> Plan:
    """Both phases planned together, with streams from the host."""
    return lambda program, phases: compile_offloaded(program, phases, mesh, options, offload, ahead).compiled


def in_stages(
    mesh: Mesh,
    options: Options,
    stages: int | None,
    micro_batches: Mapping[str, int],
    offload: Offload = Offload.NONE,
    ahead: int = 1,
) -> Plan:
    """Both phases planned in the quickest way to have so many stages, or with `None` any number or none, and with
    streams from the host."""

    def plan(program: Program, phases: tuple[str, ...]) -> Compilation | Staged:
        how = options, stages, micro_batches
        found = tries(program, phases, [mesh], *how, offload=offload, ahead=ahead)[0].found
        assert found is not None, "what is tried first fits"
        return found

    return plan


def prepare(program: Program, plan: Plan, tokens: int, seed: int) -> Prepared:
    """Plan both phases of a model that is to generate `tokens` tokens for each sequence of a batch, the first from
    prefill; shrink them, and draw weights and prompts from `seed`.

    Raises InputError when the model does not generate, when a phase has no plan or is too large to run, and for a
    number of tokens out of bounds; InternalError when a plan does not hold together.
    """
    if not 1 <= tokens <= MOST_TOKENS:
        raise fail(f"{tokens} tokens cannot be generated.", hint=f"choose from 1 to {MOST_TOKENS}")
    model = language_model(program)
    compiled = plan(program, (PREFILL, DECODE))
    prefill, decode = _small(model, compiled, tokens)
    model = replace(model, program=prefill.program)
    rng = np.random.default_rng([seed, 1])  # not the numbers that the weights are made of
    ids = model.prompt
    prepared = Prepared(compiled, model, prefill, decode, {}, np.zeros(0), tokens)
    sizes = model.program.true_sizes(prepared.sizes)
    order = {**sizes, model.new: prefill.sizes[model.new]}
    prompt = rng.integers(0, rows(model.program, ids, sizes), size=[order[d] for d in ids.dims])
    return replace(prepared, stored=_weights(model, sizes, seed), prompt=prompt)


def sequences(model: LanguageModel, prefill: SmallPhase, decode: SmallPhase) -> int:
    """How many run at small sizes, as they are held: all micro-batches of either phase divide them."""
    one, other = prefill.sizes[model.batch], decode.sizes[model.batch]
    return math.lcm(one, other) if prefill.turns == decode.turns == 1 else math.lcm(one, other) * 2


def run_prepared(prepared: Prepared) -> Generation:
    """Generate on virtual chips and densely. Raises InternalError when a plan does not run."""
    model, prefill, decode, prompt = prepared.model, prepared.prefill, prepared.decode, prepared.prompt
    sizes = model.program.true_sizes(prepared.sizes)
    try:
        sharded = _on_chips(prepared)
    except ExecutionError as error:
        raise InternalError(f"the plan does not run: {error}") from error
    dense = _densely(model, sizes, prepared.stored, prompt, prepared.tokens)
    errors = tuple(
        max(largest_difference(a, b) for a, b in zip(*each, strict=True))
        for each in zip(sharded.scores, dense.scores, strict=True)
    )
    compiled = prepared.compiled
    return Generation(
        model.program.name,
        prepared.mesh,
        tuple(prepared.sizes.items()),
        decode.whole,
        (len(compiled.stages), compiled.plan.axis) if isinstance(compiled, Staged) else None,
        _streamed(compiled),
        -(-sizes[model.batch] // prefill.sizes[model.batch]),
        -(-sizes[model.batch] // decode.sizes[model.batch]),
        prompt if model.prompt.dims == (model.batch, model.new) else prompt.T,
        sharded,
        dense,
        errors,
    )


def _streamed(compiled: Compilation | Staged) -> str | None:
    """What comes from the host in prefill, and so in decode, in words; None where nothing does."""
    first = [stage[0] for stage in compiled.stages]
    layers = sum(fetch.streamed for one in first for fetch in one.estimate.fetches)
    if not layers:
        return None
    every = layers_of(compiled.program if isinstance(compiled, Staged) else first[0].program)
    return f"{streamed_what([one.spmd for one in first])} of {layers} of {every} layers"


def _small(model: LanguageModel, compiled: Compilation | Staged, tokens: int) -> tuple[SmallPhase, SmallPhase]:
    """Prefill and decode on shrunken dims, the context longer than prompt and tokens."""
    program = model.program
    margins = {model.vocabulary[-1]: VOCABULARY, **dict.fromkeys(model.counted, tokens)}
    margins |= dict.fromkeys(model.width, WIDTH)
    stages = [Stage(program, layers_of(program), (), ())]
    if isinstance(compiled, Staged):
        stages = [one.stage for one in compiled.plan.stages]
    phases = [[_growing(model, stage[n].spmd) for stage in compiled.stages] for n in range(2)]
    prefill, decode = small_phases(program, stages, phases, margins)
    end = prefill.sizes[model.new] + tokens - 1
    for dim in model.counted:
        if min(prefill.sizes[dim], decode.sizes[dim]) < end:
            raise fail(f"Dim `{dim}` counts a context, and no cache grows along it.")
    return prefill, decode


def _growing(model: LanguageModel, spmd: SpmdProgram) -> SpmdProgram:
    """A phase whose caches keep two places at the least: at small sizes they keep the whole context, as a window's do
    that is longer, but a dim of one place stays one."""
    sizes = tuple((dim, max(2, size) if dim in model.counted else size) for dim, size in spmd.sizes)
    return replace(spmd, sizes=sizes)


def _weights(model: LanguageModel, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Random data for all that is stored, in which it matters which token is read.

    The rows of the embedding stand out, and what is alike for all tokens is small: biases, and
    whatever else no einsum reads and no row is taken of.
    """
    program, values = model.program, model.program.table()
    stored = random_stored(program, sizes, seed)
    mixed = {name for op in ops(program) if isinstance(op, Einsum | Take) for name in operand_names(op)}
    for name in (one.value for one in stored_in(program.body, Kind.PARAM)):
        if name == model.table:
            stored[name] *= EMBEDDED * math.sqrt(fan_in(program, values[name], sizes))
        elif name not in mixed:
            stored[name] *= ALIKE
    return stored


def _on_chips(prepared: Prepared) -> Trace:
    """Prefill, then decode, as many sequences at a time as each takes."""
    model, prefill, decode = prepared.model, prepared.prefill, prepared.decode
    chips, context = _Chips(prepared), prefill.sizes[model.new]
    token, score = chips.step(prefill, prepared.prompts, context)
    chosen, scores = [token], [score]
    for _ in range(prepared.tokens - 1):
        context += 1
        entered = {model.prompt.name: _one_each(model, token)}
        ids = zero_padded(model.program, prepared.sizes | {model.new: 1}, entered)[model.prompt.name]
        token, score = chips.step(decode, ids, context)
        chosen.append(token)
        scores.append(score)
    return Trace(np.stack(chosen), tuple(scores), *(max(chips.sent[phase]) for phase in (PREFILL, DECODE)))


class _Chips:
    """The virtual chips. `caches`: those of all sequences. `sent`: what each chip of each stage has sent in each phase,
    in bytes."""

    def __init__(self, prepared: Prepared) -> None:
        self.model, self.held = prepared.model, prepared.held
        self.sequences = prepared.prompt.shape[self.model.prompt.dims.index(self.model.batch)]
        self.caches = {cache: self.held[cache].copy() for cache, _ in self.model.caches}
        stages = len(prepared.decode.stages)
        self.sent = {phase: [Fraction(0)] * stages for phase in (PREFILL, DECODE)}

    def step(self, small: SmallPhase, ids: Array, context: int) -> tuple[Array, tuple[Array, ...]]:
        """Run a phase for all sequences, each time into other slots of the caches: the next tokens, and the scores
        that they were picked from."""
        model, width, phase = self.model, small.sizes[self.model.batch], small.spmds[0].phase
        picked = []
        for first in range(0, self.sequences, width):
            slots = np.arange(first, first + width)
            changing = self.caches | {model.prompt.name: ids}
            part = {name: np.take(a, slots, axis=model.batch_axis(name)) for name, a in changing.items()}
            ran = small.run(self.held | part, dict.fromkeys(model.counted, context), model.scores)
            self.sent[phase] = [a + b for a, b in zip(self.sent[phase], ran.sent_bytes, strict=True)]
            picked.append(_picked(model, ran.results, small.sizes))
            for cache, version in model.caches:
                axis = model.batch_axis(cache)
                np.moveaxis(self.caches[cache], axis, 0)[slots] = np.moveaxis(ran.results[version], axis, 0)
        scores = zip(*(score for _, score in picked), strict=True)
        return np.concatenate([token for token, _ in picked]), tuple(map(np.concatenate, scores))


def _densely(
    model: LanguageModel, sizes: Mapping[str, int], stored: Mapping[str, Array], prompt: Array, tokens: int
) -> Trace:
    """The whole batch prefilled at once, then decoded."""
    arrays, taken = dict(stored) | {model.prompt.name: prompt}, prompt.shape[model.prompt.dims.index(model.new)]
    context, chosen, scores = 0, [], []
    for _ in range(tokens):
        context += taken
        contexts = dict.fromkeys(model.counted, context)
        made = run_reference(model.program, {**sizes, model.new: taken}, arrays, contexts, model.scores)
        token, score = _picked(model, made, sizes)
        chosen.append(token)
        scores.append(score)
        arrays |= {cache: made[version] for cache, version in model.caches}
        arrays[model.prompt.name] = _one_each(model, token)
        taken = 1
    return Trace(np.stack(chosen), tuple(scores))


def _picked(
    model: LanguageModel, made: Mapping[str, Array], sizes: Mapping[str, int]
) -> tuple[Array, tuple[Array, ...]]:
    """The next token of each sequence, and the scores that it was picked from, the batch in front.

    Both without what lies beyond true sizes; `sizes` are those of the phase that made them.
    """

    def true(name: str) -> Array:
        return np.moveaxis(true_part(model.program, sizes, name, made[name]), model.batch_axis(name), 0)

    scores = tuple(true(name) for name in model.scores)
    if model.chosen is not None:
        return true(model.chosen).astype(int), scores
    return scores[0].reshape(len(scores[0]), -1).argmax(axis=1), scores


def _one_each(model: LanguageModel, tokens: Array) -> Array:
    """One token for each sequence, as the model takes them."""
    return np.expand_dims(tokens, model.prompt.dims.index(model.new))
