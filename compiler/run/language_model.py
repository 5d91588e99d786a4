"""What generation must know of a model: where tokens enter and leave, and what counts its context."""

from __future__ import annotations

from ...ir.dataflow import appends, ops
from ...ir.diagnostics import fail, listed
from ...ir.dtype import Dtype
from ...ir.expr import context_dims
from ...ir.program import Kind, Map, Op, Program, Reduce, Take, Value, operand_names, stored_in
from ...ir.record import record

PREFILL, DECODE = "prefill", "decode"  # the phases that generate
TWO_PHASES = "generation runs `prefill` on a prompt, then `decode` on one token at a time"


@record
class LanguageModel:
    """A program that maps tokens to next tokens, and keeps caches.

    `prompt`: its one input, ids of dims `batch` and `new`. They pick rows of `table` along its dims
    `vocabulary`; its others are `width`. `chosen`: the result that holds the next
    token of each sequence; None where the program returns their scores, of which the largest counts.
    `scores`: the values from which next tokens are picked, made outside of repeats, of dims `batch`
    and others; `largest`: that of each sequence, where `chosen` is its place. `counted`: the dims
    along which the context grows. `caches`: each with the append that makes its next version.
    """

    program: Program
    prompt: Value
    batch: str
    new: str
    table: str
    vocabulary: tuple[str, ...]
    width: tuple[str, ...]
    chosen: str | None
    scores: tuple[str, ...]
    largest: tuple[str, ...]
    counted: tuple[str, ...]
    caches: tuple[tuple[str, str], ...]

    def batch_axis(self, name: str) -> int:
        """Where the dim `batch` stands in the array of a value, counted from the end."""
        dims = self.program.table()[name].dims
        return dims.index(self.batch) - len(dims)


def language_model(program: Program) -> LanguageModel:
    """The parts that tokens and caches play in `program`.

    Raises InputError, with one sentence, where it is no model that generates token by token.
    """
    values = program.table()
    prompt = _prompt(program)
    grown = list(appends(program).values())
    if not grown:
        raise fail("The model keeps no cache, so decoding has nothing to go on from.", hint="see `escc models`")
    new = grown[0].source
    if any(op.source != new for op in grown) or new not in prompt.dims:
        dims = ", ".join(dict.fromkeys(f"`{op.source}`" for op in grown))
        raise fail(f"The caches grow along {dims}, and the tokens have the dims {listed(prompt.dims) or 'none'}.")
    (batch,) = (d for d in prompt.dims if d != new)
    for op in grown:
        if batch not in values[op.cache].dims:
            raise fail(f"Cache `{op.cache}` lacks the dim `{batch}` of the tokens, so sequences would share it.")
    chosen = _chosen(program, batch)
    scores = _scores(program, chosen, batch) if chosen else _returned_scores(program, batch, new)
    largest = tuple(
        op.result
        for op in ops(program)
        if isinstance(op, Reduce) and chosen and op.operand in scores and values[op.result].dims == (batch,)
    )
    counted = {op.target for op in grown} | {
        dim for op in ops(program) if isinstance(op, Map) for dim in context_dims(op.expr)
    }
    caches = tuple((op.cache, op.result) for op in grown)
    table, vocabulary = _embedding(program, prompt.name)
    width = tuple(d for d in values[table].dims if d not in vocabulary)
    model = LanguageModel(
        program, prompt, batch, new, table, vocabulary, width, chosen, scores, largest, tuple(sorted(counted)), caches
    )
    _check_phases(model)
    return model


def _prompt(program: Program) -> Value:
    values = program.table()
    inputs = [values[one.value] for one in stored_in(program.body, Kind.INPUT)]
    if len(inputs) != 1 or inputs[0].dtype is not Dtype.I32 or len(inputs[0].dims) != 2:
        found = ", ".join(f"`{v.name}: {v.dtype}[{','.join(v.dims)}]`" for v in inputs) or "none"
        hint = "a model that generates takes `tokens: i32[B,L]` alone"
        raise fail(f"The model does not take tokens: its inputs are {found}.", hint=hint)
    return inputs[0]


def _embedding(program: Program, prompt: str) -> tuple[str, tuple[str, ...]]:
    """The table that tokens pick rows of, and along which of its dims."""
    for op in ops(program):
        if isinstance(op, Take) and op.ids == prompt:
            return op.table, op.over
    raise fail(f"The model looks nothing up by the tokens `{prompt}`.", hint="write `take(table, tokens, over=V)`")


def _chosen(program: Program, batch: str) -> str | None:
    """The result that holds the next tokens, one for each sequence."""
    values = program.table()
    found = [name for name in program.results if values[name].dtype is Dtype.I32]
    if len(found) > 1:
        raise fail(f"The model returns tokens {len(found)} times: {listed(found)}.", hint="return the greedy ones")
    if found and values[found[0]].dims != (batch,):
        dims = listed(values[found[0]].dims) or "none"
        raise fail(f"The model returns tokens of the dims {dims}, and one for each `{batch}` is needed.")
    return found[0] if found else None


def _scores(program: Program, chosen: str, batch: str) -> tuple[str, ...]:
    """The floats from which `chosen` is computed through nothing but integers."""
    values = program.table()
    made = {item.result: item for item in program.body.items if isinstance(item, Op)}
    found: dict[str, None] = {}
    left, seen = [chosen], {chosen}
    while left:
        op = made.get(left.pop())
        for name in operand_names(op) if op else ():
            if name in seen:
                continue
            seen.add(name)
            if values[name].dtype is Dtype.I32:
                left.append(name)
            elif name in made and batch in values[name].dims and len(values[name].dims) > 1:
                found[name] = None
    if not found:
        raise fail(f"The next tokens, `{chosen}`, are not picked from scores.", hint="return `argmax(logits, over=V)`")
    return tuple(found)


def _returned_scores(program: Program, batch: str, new: str) -> tuple[str, ...]:
    """The one result, where the program returns scores of next tokens."""
    values = program.table()
    dims = values[program.results[0]].dims
    if len(program.results) != 1 or dims[:1] != (batch,) or len(dims) < 2:
        raise fail(
            "The model returns neither next tokens nor their scores.",
            hint=f"return `argmax(logits, over=V)` or `logits`, one or one row for each `{batch}`",
        )
    if new in dims:
        raise fail(
            f"The model returns scores for every token along `{new}`, and those of the last one are needed.",
            hint=f"return `last({program.results[0]}, over={new})`",
        )
    return program.results


def _check_phases(model: LanguageModel) -> None:
    """Raise InputError unless prefill hands over caches that decode can take."""
    program, batch, new = model.program, model.batch, model.new
    phases = {phase.name: dict(phase.sizes) for phase in program.phases}
    missing = [name for name in (PREFILL, DECODE) if name not in phases]
    if missing:
        raise fail(f"The model has no phase {listed(missing)}.", hint=TWO_PHASES)
    before, after = phases[PREFILL], phases[DECODE]
    if after[new] != 1:
        raise fail(f"In phase `{DECODE}`, {new} = {after[new]} tokens are taken at a time.", hint=TWO_PHASES)
    if after[batch] % before[batch]:
        raise fail(
            f"The caches of {before[batch]} sequences do not fill those of {after[batch]}.",
            hint=f"`{batch}` of phase `{PREFILL}` divides that of phase `{DECODE}`",
        )
    for value in (program.table()[one.value] for one in stored_in(program.body)):
        for dim in value.dims:
            if dim not in (batch, new, *model.counted) and before[dim] != after[dim]:
                raise fail(
                    f"`{value.name}` has {dim} = {before[dim]} in phase `{PREFILL}`, and {after[dim]} in "
                    f"phase `{DECODE}`."
                )
