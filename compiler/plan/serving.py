"""What a model serves: the dims that count sequences, new tokens and context, and a stream of requests as phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ...cost.tokens import token_dims
from ...ir.dataflow import appends
from ...ir.diagnostics import Diagnostic, InputError, fail, listed
from ...ir.program import Kind, Phase, Program, stored_in
from ...ir.record import record
from ...ir.wraps import slots_at
from ...passes.expansion.dims import MAX_ELEMENTS, MAX_SIZE, out_of_range, too_many
from .compiled import Compilation
from .floors import largest_of_floors


@record
class Serving:
    """`batch`: the dim that counts sequences. `new`: the dims that count the tokens of a step, of each of
    them. `context`: the dim that counts the context after the step, None for a model without caches."""

    batch: str
    new: tuple[str, ...]
    context: str | None


def serving(program: Program) -> Serving:
    """The dims that a sweep sets.

    Of the dims that count tokens, those that caches are appended along are `new`, and one is left; without
    caches the first counts sequences. Raises InputError where it is not one, or where caches grow along
    several dims.
    """
    grown = list(appends(program).values())
    counted = token_dims(program)
    if not counted:
        raise fail("The model has no dim that counts sequences: every dim of its inputs is one of a parameter.")
    if not grown:
        return Serving(counted[0], counted[1:], None)
    targets = tuple(dict.fromkeys(op.counted for op in grown))
    if len(targets) > 1:
        raise fail(f"The caches of the model grow along several dims, {listed(targets)}: which is the context?")
    new = tuple(dict.fromkeys(op.source for op in grown))
    batch = tuple(dim for dim in counted if dim not in new)
    if len(batch) != 1:
        which = f"several, {listed(batch)}" if batch else f"none beside {listed(new)}"
        raise fail(f"One dim of the model's inputs should count sequences, and there are {which}.")
    return Serving(batch[0], new, targets[0])


def sizes_at(program: Program, phase: str, dims: Serving, batch: int, context: int | None) -> dict[str, int]:
    """The sizes of dims at a point of a sweep. A phase whose new tokens are all of its context, such as
    prefill, takes as many as the context; any other keeps its own, such as one.

    Raises InputError where the new tokens are more than the context.
    """
    sizes = dict(program.phase(phase).sizes)
    found = {dims.batch: batch}
    if dims.context is None or context is None:
        return found
    found[dims.context] = context
    for dim in dims.new:
        if sizes[dim] == sizes[dims.context] > 1:
            found[dim] = context
        elif sizes[dim] > context:
            raise fail(
                f"Phase `{phase}` takes {sizes[dim]} new tokens of each sequence, {dim} = {sizes[dim]}, "
                f"and a context of {context} does not hold them.",
                hint="the context counts the new tokens",
            )
    return found


@record
class Stream:
    """Requests that keep coming, so that `batch` sequences are decoded at any time: each has `input_tokens`, and
    gets `output_tokens`. `chunk`: tokens of a prompt that are taken in at once, with decode steps between them; None:
    all of them."""

    input_tokens: int
    output_tokens: int
    batch: int
    chunk: int | None = None

    @property
    def context(self) -> int:
        """The mean context of a decode step: the input, and half of the output."""
        return self.input_tokens + (self.output_tokens + 1) // 2

    @property
    def places(self) -> int:
        """Those that the caches of a sequence have, which it fills by and by: the input, and the output."""
        return self.input_tokens + self.output_tokens

    @property
    def new(self) -> int:
        """The tokens of a prompt that are taken in at once."""
        return min(self.chunk or self.input_tokens, self.input_tokens)

    @property
    def chunks(self) -> int:
        """Of a prompt; the last one is priced as if it were whole."""
        return -(-self.input_tokens // self.new)

    @property
    def chunk_context(self) -> int:
        """The mean context of a chunk, with its own tokens: what attention does is linear in it."""
        return min(self.input_tokens, -(-self.new * (self.chunks + 1) // 2))

    @property
    def chunks_beside(self) -> int:
        """The most chunks that are taken in beside one decode step, so that prompts keep up."""
        return -(-self.chunks * self.batch // self.output_tokens)

    def first_token_s(self, step_s: float, prefill_s: float) -> float:
        """The longest time from a request to its first token, where requests come evenly, as fast as they are served:
        one in each output / batch of a step and a prompt.

        After each step the chunks that wait are taken in, first come first served, and those that come meanwhile too,
        until `chunks_beside` are or none waits; then the next step begins. It takes longest of those that come after a
        step began with none waiting, the first right behind. From there chunk j has ceil(j / beside) steps before
        it, and all chunks up to it; request m comes m - 1 spaces later, and ends with chunk m * chunks: it takes its
        own prompt, and ceil(m * chunks / beside) - (m - 1) * output / batch steps. Of those that end beside step
        i + 1 the first waits longest, where m - 1 = floor(i * beside / chunks); `chunks` steps later all is as it was,
        or better, as prompts keep up.
        """
        chunks, beside = self.chunks, self.chunks_beside
        waited = largest_of_floors(chunks, self.batch, -self.output_tokens, beside, chunks)
        return prefill_s + (1 + waited / self.batch) * step_s

    def pause_s(self, step_s: float, prefill_s: float) -> float:
        """The longest time between two tokens of a request: a step, and the chunks beside it."""
        return step_s + self.chunks_beside * prefill_s / self.chunks


def of_stream(program: Program, stream: Stream) -> Program:
    """The program with two phases, as often as one batch needs them: prefill of one prompt, or of a chunk of one, and
    the decode step. Their caches have places for all that comes, and ops are timed at the mean context. A handover is
    counted for each chunk, at most.

    While a batch gets its output, as many prompts as it has sequences are taken in. Raises InputError where the
    program has no such phases: one that fills its context, and one of one new token; or where they are too large.
    """
    dims = serving(program)
    if dims.context is None or not dims.new:
        raise fail("A stream of requests needs a model with caches that it appends to.")
    prefill, decode = _prefill(program, dims), _decode(program, dims)
    first = {dims.batch: 1, **dict.fromkeys(dims.new, stream.new)}
    calls = stream.batch * stream.chunks, stream.output_tokens
    phases = (
        _filled(program, prefill, dims, first, (stream.input_tokens, stream.chunk_context), calls[0]),
        _filled(program, decode, dims, {dims.batch: stream.batch}, (stream.places, stream.context), calls[1]),
    )
    return replace(program, phases=phases)


def of_batches(program: Program, batch: int, new: int, context: int) -> Program:
    """The program with one phase: `batch` sequences that take `new` tokens each, of a context of so many with these.

    Raises InputError where it has no phase that fills its context, to be sized so; or where that is too large.
    """
    dims = serving(program)
    if dims.context is None or not dims.new:
        raise fail("Batches of contexts and endings need a model with caches that it appends to.")
    sizes = {dims.batch: batch, dims.context: context, **dict.fromkeys(dims.new, new)}
    return replace(program, phases=(_sized(program, _prefill(program, dims), sizes, 1),))


def slots_of_batches(program: Program, new: int, context: int) -> dict[str, int]:
    """The slots of the caches that wrap of such a program, by their dims. Raises InputError as `of_batches` does."""
    dims = serving(program)
    before = dict(_prefill(program, dims).sizes)
    after = before | dict.fromkeys(dims.new, new) | {dims.context or "": context}
    return {wrap.slots: before[wrap.slots] for wrap in program.wraps} | slots_at(program.wraps, before, after)


def sized_by_stream(program: Program) -> dict[str, str]:
    """The dims that a stream of requests gives sizes, by the option that does so."""
    dims = serving(program)
    counted = {dim: "--input" for dim in (*dims.new, dims.context) if dim is not None}
    return counted | {dims.batch: "--batch"}


def refuse_twice(settings: Mapping[str, int], by_option: Mapping[str, str]) -> None:
    """Raise InputError for dims that `--set` gives a size, and another option others."""
    found = [
        Diagnostic(f"`--set` gives dim `{dim}` a size, and `{by_option[dim]}` others.", hint=f"leave out `--set {dim}`")
        for dim in settings
        if dim in by_option
    ]
    if found:
        raise InputError(found)


def _filled(
    program: Program, phase: Phase, dims: Serving, sizes: Mapping[str, int], contexts: tuple[int, int], calls: int
) -> Phase:
    """A phase with other sizes, whose caches have places for the first of two contexts and are filled to the second on
    average."""
    assert dims.context is not None, "a stream has caches"
    most, mean = contexts
    sized = _sized(program, phase, {**sizes, dims.context: most}, calls)
    full, before = dict(sized.sizes), dict(phase.sizes)
    timed = full | {wrap.slots: before[wrap.slots] for wrap in program.wraps} | {dims.context: mean}
    timed |= slots_at(program.wraps, before, timed)
    return replace(sized, mean=tuple((dim, n) for dim, n in timed.items() if n != full[dim]))


def _sized(program: Program, phase: Phase, sizes: Mapping[str, int], calls: int) -> Phase:
    """A phase with other sizes, and caches that wrap of as many slots as these need. No dim and no value may be larger
    than a file's: figures are exact up to there."""
    found = {dim: sizes.get(dim, size) for dim, size in phase.sizes}
    found |= slots_at(program.wraps, dict(phase.sizes), found)
    for dim, size in found.items():
        if size > MAX_SIZE:
            raise fail(out_of_range(f"Dim `{dim}` in phase `{phase.name}`", size))
    for value in program.values:
        if prod(found[dim] for dim in value.dims) > MAX_ELEMENTS:
            raise fail(too_many(phase.name, value.name))
    return replace(phase, sizes=tuple(found.items()), calls=calls)


def _prefill(program: Program, dims: Serving) -> Phase:
    for phase in program.phases:
        sizes = dict(phase.sizes)
        if all(sizes[dim] == sizes[dims.context or dim] > 1 for dim in dims.new):
            return phase
    raise fail("The model has no phase that fills its context, such as prefill.")


def _decode(program: Program, dims: Serving) -> Phase:
    for phase in program.phases:
        if all(dict(phase.sizes)[dim] == 1 for dim in dims.new):
            return phase
    raise fail("The model has no phase of one new token, such as decode.")


@record
class Served:
    """What a stream gets: `token_s`, the time between the tokens of a request, of which `step_s` is a decode step and
    the rest the prompts that come in meanwhile, `prefill_s` each; `first_token_s`: the longest time from a request to
    its first token, where requests come evenly; `pause_s`: the longest between two tokens. `hbm_bytes`: the most that a
    chip holds, caches of both included, filled by all that comes."""

    step_s: float
    prefill_s: float
    token_s: float
    first_token_s: float
    pause_s: float
    tokens_per_s: float
    hbm_bytes: float
    chips: int

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens a second of one request."""
        return 1 / self.token_s


def served(compiled: Compilation, stream: Stream) -> Served:
    """What a stream gets of a compiled program that `of_stream` gave: in steady state each decode step is accompanied
    by batch / output prompts."""
    step_s = compiled[1].estimate.totals().total_s
    return served_by((compiled,), compiled.total_s, step_s, compiled[1].spmd.mesh.chips, stream)


def served_by(
    stages: Sequence[Compilation], whole_s: float, step_s: float, chips: int, stream: Stream, alone_s: float = 0.0
) -> Served:
    """What a stream gets of stages, or of one that is all of a program. `whole_s`: of all prefills, all handovers and
    all steps of a batch; `alone_s`: of a prompt by itself, where that is more than its share of these."""
    token_s = whole_s / stream.output_tokens
    prefill_s = (whole_s - stream.output_tokens * step_s) / stream.batch
    more_s = max(0.0, alone_s - prefill_s)
    return Served(
        step_s=step_s,
        prefill_s=prefill_s,
        token_s=token_s,
        first_token_s=stream.first_token_s(step_s, prefill_s) + more_s,
        pause_s=stream.pause_s(step_s, prefill_s) + more_s / stream.chunks,
        tokens_per_s=stream.batch / token_s,
        hbm_bytes=max(map(_held_bytes, stages)),
        chips=chips,
    )


def _held_bytes(compiled: Compilation) -> float:
    """The most that a chip holds of both phases."""
    prefill, decode = compiled.phases
    held, own = decode.memory, prefill.memory
    caches = {one.value for one in stored_in(prefill.spmd.body, Kind.CACHE)}
    beside = float(own.total_bytes - own.stored_bytes) + sum(
        size for name, size in prefill.estimate.stored_bytes if name in caches
    )
    return float(held.stored_bytes) + max(float(held.total_bytes - held.stored_bytes), beside)


def beside_bytes(*stages: Compilation) -> float:
    """What a chip holds for prompts that come in, beside the most that the batch takes by itself; of stages the most
    of any."""
    return max(_held_bytes(one) - float(one[1].memory.total_bytes) for one in stages)
