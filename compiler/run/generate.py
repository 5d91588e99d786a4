"""Generation, run: a model prefilled and decoded step by step on virtual chips, and beside it densely.

Each phase runs under its own plan on shrunken dims, with random weights and prompts. Caches pass from
step to step, and from prefill to decode, as whole arrays: what it takes to bring them from one layout
into another is no part of what is counted. Non-goals: real weights, sampling, prompts of unequal length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...ir.diagnostics import InternalError, fail
from ...ir.mesh import Mesh
from ...ir.program import Einsum, Kind, Program, Stored, Take, operand_names, walk
from ...ir.spmd import SpmdProgram
from ...passes.choose import Options
from ..plan.compiled import Compilation
from ..plan.pipeline import compile_phases
from ..simulate.check import ERROR_TOLERANCE, largest_difference, refuse_large
from ..simulate.pointwise import Array
from ..simulate.reference import fan_in, random_stored, rows, run_reference
from ..simulate.shrink import shrink, true_part, zero_padded
from ..simulate.spmd_interpreter import ExecutionError, run_spmd
from .language_model import DECODE, PREFILL, LanguageModel, language_model, ops

VOCABULARY, WIDTH = 64, 16  # of the small image, at least: in a smaller one all tokens soon are alike
EMBEDDED, ALIKE = 2.0, 0.3  # the standard deviations of what a token brings in, and of what all have in common
MOST_TOKENS = 512  # that a run generates: a step takes about as long as a check of the phase


@dataclass(frozen=True)
class Trace:
    """What one way of running a model generates.

    `tokens`: [steps, batch]. `scores`: for each step the scores that its tokens were picked from.
    `prefill_bytes`, `decode_bytes`: what a chip sent in all runs of the phase, by declared dtypes.
    """

    tokens: Array
    scores: tuple[tuple[Array, ...], ...]
    prefill_bytes: Fraction = Fraction(0)
    decode_bytes: Fraction = Fraction(0)


@dataclass(frozen=True)
class Generation:
    """Tokens generated on virtual chips, and by the dense reference.

    `sizes`: the shrunken dims of decode. `prefills`: how often prefill ran, each time for other
    sequences of the batch. `prompt`: [batch, tokens]. `errors`: for each step the largest
    difference between scores, relative to the largest score; infinite where one is not a number.
    """

    name: str
    mesh: Mesh
    sizes: tuple[tuple[str, int], ...]
    prefills: int
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


@dataclass(frozen=True)
class Small:
    """A phase on shrunken dims."""

    program: Program
    spmd: SpmdProgram

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dim, padded ones as they are held."""
        return dict(self.spmd.sizes)


@dataclass(frozen=True)
class Prepared:
    """What a model generates with, however it is run.

    `compiled`: both phases at full size. `stored`: parameters and caches of true sizes.
    `prompt`: ids of the model's input, of its dims. `tokens`: how many each sequence gets.
    """

    compiled: Compilation
    model: LanguageModel
    prefill: Small
    decode: Small
    stored: Mapping[str, Array]
    prompt: Array
    tokens: int

    @property
    def held(self) -> dict[str, Array]:
        """What is stored, with zeros beyond true sizes."""
        return zero_padded(self.model.program, self.decode.sizes, self.stored)

    @property
    def prompts(self) -> Array:
        """The prompt, with zeros beyond true sizes."""
        sizes = {**self.decode.sizes, self.model.new: self.prefill.sizes[self.model.new]}
        ids = self.model.prompt.name
        return zero_padded(self.model.program, sizes, {ids: self.prompt})[ids]


def prepare(program: Program, mesh: Mesh, options: Options, tokens: int, seed: int) -> Prepared:
    """Compile both phases of a model that is to generate `tokens` tokens for each sequence of a batch, the first from
    prefill; shrink them, and draw weights and prompts from `seed`.

    Raises InputError when the model does not generate, when a phase has no plan or is too large to run, and for a
    number of tokens out of bounds; InternalError when a plan does not hold together.
    """
    if not 1 <= tokens <= MOST_TOKENS:
        raise fail(f"{tokens} tokens cannot be generated.", hint=f"choose from 1 to {MOST_TOKENS}")
    language_model(program)
    compiled = compile_phases(program, (PREFILL, DECODE), mesh, options, separate=True)
    prefill, decode = _small(program, compiled, tokens)
    model = language_model(prefill.program)
    rng = np.random.default_rng([seed, 1])  # not the numbers that the weights are made of
    ids = model.prompt
    sizes = model.program.true_sizes(decode.sizes)
    stored = _weights(model, sizes, seed)
    order = {**sizes, model.new: prefill.sizes[model.new]}
    prompt = rng.integers(0, rows(model.program, ids, sizes), size=[order[d] for d in ids.dims])
    return Prepared(compiled, model, prefill, decode, stored, prompt, tokens)


def run_prepared(prepared: Prepared) -> Generation:
    """Generate on virtual chips and densely. Raises InternalError when a plan does not run."""
    model, prefill, decode, prompt = prepared.model, prepared.prefill, prepared.decode, prepared.prompt
    sizes = model.program.true_sizes(decode.sizes)
    try:
        sharded = _on_chips(prepared)
    except ExecutionError as error:
        raise InternalError(f"the plan does not run: {error}") from error
    dense = _densely(model, sizes, prepared.stored, prompt, prepared.tokens)
    errors = tuple(
        max(largest_difference(a, b) for a, b in zip(*each, strict=True))
        for each in zip(sharded.scores, dense.scores, strict=True)
    )
    return Generation(
        decode.spmd.name,
        decode.spmd.mesh,
        decode.spmd.sizes,
        -(-sizes[model.batch] // prefill.sizes[model.batch]),
        prompt if model.prompt.dims == (model.batch, model.new) else prompt.T,
        sharded,
        dense,
        errors,
    )


def _small(program: Program, compiled: Compilation, tokens: int) -> tuple[Small, Small]:
    """Prefill and decode on shrunken dims, the context longer than prompt and tokens."""
    model = language_model(program)
    margins = {model.vocabulary[-1]: VOCABULARY, **dict.fromkeys(model.counted, tokens)}
    margins |= dict.fromkeys(model.width, WIDTH)
    shrunken = shrink(program, [one.spmd for one in compiled], margins)
    prefill, decode = (Small(shrunken.program, spmd) for spmd in shrunken.spmds)
    end = prefill.sizes[model.new] + tokens - 1
    for dim in model.counted:
        if min(prefill.sizes[dim], decode.sizes[dim]) < end:
            raise fail(f"Dim `{dim}` counts a context, and no cache grows along it.")
    for one in (prefill, decode):
        refuse_large(one.spmd)
    return prefill, decode


def _weights(model: LanguageModel, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Random data for all that is stored, in which it matters which token is read.

    The rows of the embedding stand out, and what is alike for all tokens is small: biases, and
    whatever else no einsum reads and no row is taken of.
    """
    program, values = model.program, model.program.table()
    stored = random_stored(program, sizes, seed)
    mixed = {name for op in ops(program) if isinstance(op, Einsum | Take) for name in operand_names(op)}
    for placed in walk(program.body):
        if isinstance(placed.item, Stored) and placed.item.kind is Kind.PARAM:
            name = placed.item.value
            if name == model.table:
                stored[name] *= EMBEDDED * math.sqrt(fan_in(program, values[name], sizes))
            elif name not in mixed:
                stored[name] *= ALIKE
    return stored


def _on_chips(prepared: Prepared) -> Trace:
    """Prefill as many sequences at a time as it can, each time into other slots of the caches; then decode."""
    model, prefill, decode = prepared.model, prepared.prefill, prepared.decode
    chips, width, ids = _Chips(model), prefill.sizes[model.batch], model.prompt
    held, prompts = prepared.held, {ids.name: prepared.prompts}
    caches = {cache: held[cache].copy() for cache, _ in model.caches}
    context, picked = prefill.sizes[model.new], []
    for first in range(0, prepared.prompt.shape[ids.dims.index(model.batch)], width):
        slots = np.arange(first, first + width)
        part = {name: np.take(a, slots, axis=model.batch_axis(name)) for name, a in (caches | prompts).items()}
        made = chips.step(prefill, held | part, context)
        picked.append(_picked(model, made, prefill.sizes))
        for cache, version in model.caches:
            axis = model.batch_axis(cache)
            np.moveaxis(caches[cache], axis, 0)[slots] = np.moveaxis(made[version], axis, 0)
    chosen = [np.concatenate([token for token, _ in picked])]
    scores = [tuple(np.concatenate(parts) for parts in zip(*(score for _, score in picked), strict=True))]
    for _ in range(prepared.tokens - 1):
        context += 1
        entered = zero_padded(model.program, decode.sizes, {ids.name: _one_each(model, chosen[-1])})
        made = chips.step(decode, held | caches | entered, context)
        caches = {cache: made[version] for cache, version in model.caches}
        token, score = _picked(model, made, decode.sizes)
        chosen.append(token)
        scores.append(score)
    return Trace(np.stack(chosen), tuple(scores), chips.sent[PREFILL], chips.sent[DECODE])


class _Chips:
    """The virtual chips. `sent`: what each of them has sent in each phase, in bytes."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.sent = {PREFILL: Fraction(0), DECODE: Fraction(0)}

    def step(self, one: Small, arrays: Mapping[str, Array], context: int) -> Mapping[str, Array]:
        """Run a phase once: results, scores and versions of caches, called as in the program."""
        run = run_spmd(one.spmd, arrays, dict.fromkeys(self.model.counted, context), self.model.scores)
        self.sent[one.spmd.phase] += sum((m.times * m.bytes_sent for m in run.moves), Fraction(0))
        names = zip(self.model.program.results, one.spmd.results, strict=True)
        return {**run.results, **{name: run.results[left] for name, left in names}}


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
