"""The weight map of a model: for each parameter the tensor of a checkpoint that it is made of, and how, as text.

A line is `layer.Wq = model.layers.{}.self_attn.q_proj.weight | transpose | heads 32 | pairs`: `{}` counts the
repetitions of a block, and the steps change the last dim, but for the first. What comes out is reshaped to the dims
of the parameter. Where layers come in patterns, the number of one is made of several counters, `{6a+b+3}`: `a` counts
the repetitions of the outermost block, the next letters those in it, and the letters behind these the first dims of the
parameter itself, such as experts. A part of a tensor that all layers share has such a number, too: `part {a+1} of 30`.

The line `context 8192` says for how many places the model was imported; where there is none, for any number.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, Source, Span, did_you_mean
from ...ir.program import Kind, Program, stored_in
from ...ir.record import record
from ...ir.text.read import read_source
from ...passes.expansion.lookup import LARGEST
from .parameter_parts import counters_of, tensor_called

STEPS: Mapping[str, str] = {
    "kept": "codes and scales as the checkpoint has them",
    "scaled S": "numbers of few bits, block by block times the tensor of that name with S behind it",
    "transpose": "the last two dims exchanged",
    "heads N": "the last dim split into N heads",
    "part I of N": "the I-th of N equal parts of the last dim",
    "first N": "the first N entries of the last dim",
    "after N": "all but the first N entries of the last dim",
    "every N from I": "the I-th of each N entries of the last dim",
    "roll": "the first dim put behind the others",
    "pairs": "the two halves of the last dim put beside each other, pair by pair, as rope turns them here",
}
_NUMBER = r"[1-9]\d{0,8}"
COUNTERS = "abcdef"
KEPT = "kept"  # the first step of what stays codes
_TERM = rf"(?:(?:{_NUMBER})?[{COUNTERS}]|{_NUMBER})"
_SUM = rf"\{{{_TERM}(?:\+{_TERM})*\}}"
_PLACE = rf"(?:{_SUM}|\{{\}})"
_STEP = re.compile(
    rf"kept|scaled _[a-z_]{{1,40}}|transpose|heads {_NUMBER}|part ({_NUMBER}|{_SUM}) of {_NUMBER}|"
    rf"(first|after) {_NUMBER}|every {_NUMBER} from {_NUMBER}|roll|pairs"
)
_TENSOR = re.compile(rf"[A-Za-z0-9_.\-]+({_PLACE}[A-Za-z0-9_.\-]*)*")
_CONTEXT = re.compile(r"context ([1-9]\d{0,12})")
ENDING = ".weights"


@record
class Made:
    """What a parameter is made of: a tensor, `{}` in its name for each repeat around the parameter, and steps."""

    tensor: str
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " | ".join((self.tensor, *self.steps))

    def at(self, places: Sequence[int]) -> Made:
        """The same where the counters stand so."""
        return Made(tensor_called(self.tensor, places), tuple(tensor_called(step, places) for step in self.steps))

    @property
    def scale(self) -> str:
        """What stands behind the names of its tensors in those of their scales; empty where they have none."""
        return next((step.split()[1] for step in self.steps if step.startswith("scaled ")), "")

    @property
    def counters(self) -> int:
        """How many counters its name and its steps have."""
        return counters_of(str(self))

    def shape(self, tensor: Sequence[int]) -> tuple[int, ...] | None:
        """The shape that comes out of a tensor, by steps without counters; None where they do not go with it."""
        shape = tuple(tensor)
        for step in self.steps:
            word, *numbers = (int(w) if w.isdigit() else w for w in re.sub("of |from ", "", step).split())
            if not shape:
                return None
            if word in ("scaled", KEPT):
                continue
            last = shape[-1]
            match [word, *numbers]:
                case ["transpose"] if len(shape) >= 2:
                    shape = (*shape[:-2], shape[-1], shape[-2])
                case ["heads", int(n)] if last % n == 0:
                    shape = (*shape[:-1], n, last // n)
                case ["part", int(i), int(n)] if 1 <= i <= n and last % n == 0:
                    shape = (*shape[:-1], last // n)
                case ["first", int(n)] if n <= last:
                    shape = (*shape[:-1], n)
                case ["after", int(n)] if n < last:
                    shape = (*shape[:-1], last - n)
                case ["roll"] if len(shape) >= 2:
                    shape = (*shape[1:], shape[0])
                case ["every", int(n), int(i)] if i <= n and last % n == 0:
                    shape = (*shape[:-1], last // n)
                case ["pairs"] if last % 2 == 0:
                    continue
                case _:
                    return None
        return shape


WeightMap = Mapping[str, Made]


@record
class Parameter:
    """A parameter of a program: its true shape without repeats, and how often each repeat around it runs."""

    name: str
    shape: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its elements, of one repetition."""
        return math.prod(self.shape)


def parameters(program: Program) -> dict[str, Parameter]:
    """The parameters of a program by name. Their sizes are the same in all phases."""
    sizes, values = program.true_sizes(dict(program.phases[0].sizes)), program.table()
    found = {}
    for one, placed in stored_in(program.body, Kind.PARAM).items():
        shape, counts = tuple(sizes[d] for d in values[one.value].dims), tuple(r.count for r in placed.repeats)
        found[one.value] = Parameter(one.value, shape, counts)
    return found


def map_text(made: WeightMap, title: str, context: int | None = None) -> str:
    """A weight map as text, of a model that was imported for so many places of context; None for any number."""
    width = max(map(len, made))
    head = [
        f'# What the parameters of "{title}" are made of: tensors of its checkpoint. `{{}}` counts blocks from 0.',
        *(
            f"# {step}: {what}."
            for step, what in STEPS.items()
            if any(_is(step, s) for m in made.values() for s in m.steps)
        ),
    ]
    if context is not None:
        head += ["# context N: for how many places the model was imported.", f"context {context}"]
    return "\n".join([*head, *(f"{name:<{width}} = {one}" for name, one in made.items())]) + "\n"


def _is(step: str, text: str) -> bool:
    return step.split()[0] == text.split()[0]


def read_map(source: Source, program: Program) -> WeightMap:
    """The weight map of a program from its text. Raises InputError with all lines that are wrong, and with the
    parameters that have none."""
    wanted, findings, made = parameters(program), list[Diagnostic](), dict[str, Made]()
    for number, line in enumerate(source.text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or _CONTEXT.fullmatch(line.strip()):
            continue
        name, equals, rest = (part.strip() for part in line.partition("="))
        tensor, *steps = (part.strip() for part in rest.split("|"))
        at = Span(number, len(line) - len(line.lstrip()) + 1)
        message, hint = _objection(name, bool(equals), tensor, steps, wanted, made)
        if message:
            findings.append(Diagnostic(message, at, hint, source))
        else:
            made[name] = Made(tensor, tuple(steps))
    if not findings:
        implied = implied_scales(program)
        missing = [name for name in wanted if name not in made and name not in implied]
        findings += [Diagnostic(f"No line says what `{name}` is made of.", source=source) for name in missing[:20]]
        for name, of in implied.items():
            if name.endswith(".zero") and of in made and KEPT not in made[of].steps:
                hint = f"write `{KEPT}` as its first step, for a checkpoint that keeps codes"
                message = f"`{of}` has zero points, which are not made of numbers."
                findings.append(Diagnostic(message, None, hint, source))
    if findings:
        raise InputError(findings)
    return {name: made[name] for name in wanted if name in made}


def implied_scales(program: Program) -> dict[str, str]:
    """The scales and zero points of quantised parameters, by name, each with what it belongs to. Where a map has no
    line for one, they are made of what the line of the other gives."""
    names = {one.value for one in stored_in(program.body, Kind.PARAM)}
    values = program.table()
    whole = {f"{name}.{part}": name for name in names if values[name].dtype in LARGEST for part in ("scale", "zero")}
    return {scale: name for scale, name in whole.items() if scale in names}


def fitted_map(made: WeightMap, program: Program) -> WeightMap:
    """What parameters are made of for a plan: the lines of a map, and steps behind them where the program has more
    places than the tensors, or stores a matrix as codes with scales that the checkpoint does not have."""
    sizes, values, wanted = dict(program.phases[0].sizes), program.table(), parameters(program)
    implied = {scale: name for scale, name in implied_scales(program).items() if scale not in made}
    quantised = {name: scale for scale, name in implied.items() if scale.endswith(".scale")}
    found = dict[str, Made]()
    for name in wanted:
        source = implied.get(name, name)
        dims, one, true = values[source].dims, made[source], wanted[source].shape
        steps = list(one.steps)
        if KEPT in steps:
            if name != source:
                counted = one.counters - len(wanted[source].counts)
                each = code_groups(program, source)[counted:]
                word = "zeros" if name.endswith(".zero") else "blocks"
                steps.append(f"{word} {'x'.join(map(str, each))} of {'x'.join(map(str, true[counted:]))}")
                dims, true = values[name].dims, wanted[name].shape
            if true != tuple(sizes[d] for d in dims):
                steps.append(f"padded from {'x'.join(map(str, true))}")
            found[name] = Made(one.tensor, tuple(steps))
            continue
        if true != tuple(sizes[d] for d in dims):
            steps.append(f"padded from {'x'.join(map(str, true))}")
        if source in quantised:
            kept, dtype = values[quantised[source]].dims, values[source].dtype
            over = [f"{at - len(dims)}:{sizes[d]}" for at, d in enumerate(dims) if d not in kept]
            word = "codes" if name == source else "scales"
            steps.append(f"{word} {dtype.value} to {LARGEST[dtype]:g} over {' '.join(over)}")
        found[name] = Made(one.tensor, tuple(steps))
    return found


def code_groups(program: Program, name: str) -> tuple[int, ...]:
    """How many places along each dim of a quantised parameter share a scale."""
    sizes, values = program.true_sizes(dict(program.phases[0].sizes)), program.table()
    groups = dict(next(one for one in stored_in(program.body) if one.value == name).groups)
    kept = values[f"{name}.scale"].dims
    return tuple(
        1 if d in kept else sizes[d] // sizes[groups[d]] if groups.get(d) in kept else sizes[d]
        for d in values[name].dims
    )


def ordered_map(made: WeightMap, orders: Mapping[str, Sequence[int]]) -> WeightMap:
    """The lines of a fitted map where parameters have their dims in other orders: for each place the one before."""
    steps = {name: f"order {' '.join(map(str, order))}" for name, order in orders.items()}
    return {n: Made(one.tensor, (*one.steps, steps[n])) if n in steps else one for n, one in made.items()}


def map_beside(model: Path, program: Program) -> WeightMap | None:
    """The weight map beside the file of a model; None where there is none. Raises InputError where it is wrong."""
    path = model.with_suffix(ENDING) if model.suffix else None
    return read_map(read_source(path), program) if path is not None and path.is_file() else None


def context_beside(model: Path) -> int | None:
    """For how many places of context the weight map beside the file of a model says that it was imported; None for any
    number, and where there is no map."""
    path = model.with_suffix(ENDING) if model.suffix else None
    if path is None or not path.is_file():
        return None
    found = map(_CONTEXT.fullmatch, (line.strip() for line in read_source(path).text.splitlines()))
    return min((int(one[1]) for one in found if one), default=None)


def _objection(
    name: str, equals: bool, tensor: str, steps: Iterable[str], wanted: Mapping[str, Parameter], made: WeightMap
) -> tuple[str | None, str | None]:
    """What is wrong with a line, and a hint."""
    if not equals or not _TENSOR.fullmatch(tensor):
        return "A line is `PARAMETER = TENSOR | STEP | ...`.", None
    if name not in wanted:
        return f"The model has no parameter `{name[:60]}`.", did_you_mean(name, wanted)
    if name in made:
        return f"`{name}` has a line already.", None
    repeats = len(wanted[name].counts)
    steps = list(steps)
    if not repeats <= Made(tensor, tuple(steps)).counters <= repeats + len(wanted[name].shape):
        return f"`{tensor}` needs a `{{}}` for each repeat around `{name}`.", None
    for step in steps:
        if not _STEP.fullmatch(step):
            return f"There is no step `{step[:60]}`.", f"there are {', '.join(f'`{known}`' for known in STEPS)}"
    return None, None


def check_map(made: WeightMap, program: Program, shapes: Mapping[str, Sequence[int]], where: str) -> list[Diagnostic]:
    """What is wrong between a map and the tensors of a checkpoint, by name: those that are missing, or of other
    shapes than the parameters. `where` is what the checkpoint is called."""
    findings = []
    wanted = parameters(program)
    for name, one in made.items():
        parameter = wanted[name]
        for place in _places(one, parameter):
            made_of = one.at(place)
            tensor = made_of.tensor
            if tensor not in shapes:
                near = did_you_mean(tensor, shapes)
                findings.append(
                    Diagnostic(f"`{where}` has no tensor `{tensor}`, of which `{name}` is made.", hint=near)
                )
            else:
                shape = made_of.shape(shapes[tensor])
                made_here = parameter.shape[one.counters - len(parameter.counts) :]
                heads = sum(step.startswith("heads ") for step in one.steps if "roll" not in one.steps)
                if shape is None or not splits(shape, made_here, heads):
                    have, want = _listed(shapes[tensor]), _listed(made_here)
                    message = f"`{tensor}` is {have}, which does not make `{name}` of {want}."
                    findings.append(Diagnostic(message, hint=f"it is made as `{one}`"))
    return findings


def tensors_of(one: Made, parameter: Parameter) -> list[str]:
    """The tensors that a parameter is made of, for each repetition, and for each entry along its first dims where its
    name counts these too."""
    return list(dict.fromkeys(one.at(place).tensor for place in _places(one, parameter)))


def _places(one: Made, parameter: Parameter) -> Iterator[tuple[int, ...]]:
    """Where the counters of a parameter stand, one place after the other."""
    return itertools.product(*map(range, (*parameter.counts, *parameter.shape)[: one.counters]))


def splits(shape: Sequence[int], finer: Sequence[int], heads: int = 0) -> bool:
    """Whether `finer` is a shape with dims split, and nothing else, but that those which as many steps `heads` have
    made of its last dim may be one again."""
    have, want = ([math.prod(one[:n]) for n in range(len(one) + 1)] for one in (shape, finer))
    if have[-1] != want[-1] or not {*have[: len(shape) - heads]} <= {*want}:
        return False
    common = sorted({*have} & {*want})
    return all(
        not (any(a < n < b for n in have) and any(a < n < b for n in want)) for a, b in itertools.pairwise(common)
    )


def _listed(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a number"
