"""A sharded program as text, which ir.text.read_spmd reads back.

    sharded "ffn" decode on x=4 y=4
    sizes B=512 L=1 E=18432 F=73728
    input x:  bf16 BLE_x
    param Wi: bf16 E_xF_y
    u  bf16 BLF_y partialsum-x = x[B,L,E] * Wi[E,F]
    u' bf16 BLF_y              = all-reduce(x) of u                                 # 18.9 MB 105 us
    return u'

A line that ends in an operator, a comma or `=` goes on in the next; from `#` on, a line is comment.
Where batches take turns, each with caches of its own, `micro-batches 4` after the sizes says how many.
A step marked by `+` runs as one with the step before it, one marked by `~` in one loop with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from ..collective import describe
from ..dataflow import reads
from ..layout import format_layout
from ..program import Region, Repeat, walk
from ..record import record
from ..spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from .expressions import NAME
from .ops import format_op

WIDTH = 100
NAME_COLUMN, TYPE_COLUMN = 24, 36  # no column is padded beyond these; what is longer stands out
PHASE = r"[A-Za-z_][\w-]*"  # a phase's name that needs no quotes
RESERVED = ("inf",)  # names that would read as numbers


CALLED = (  # what steps are together, by the steps that they have: what `passes.expansion.composites` calls them
    ({"exp", "sum"}, "softmax"),
    ({"square_sum", "sum"}, "layernorm"),
    ({"square_sum"}, "rmsnorm"),
    ({"max", "lowest"}, "argmax"),
    ({"index"}, "rope"),
    ({"place"}, "last"),
)


@record
class Fold:
    """Steps that print as one line, that of the last: `text` in place of its op, and the steps `within`."""

    text: str
    within: tuple[str, ...]


def folded(spmd: SpmdProgram) -> dict[str, Fold]:
    """The steps of norms, softmaxes and the like, by the value that they make: what stands right before a value and is
    called after it. Their collectives are named; what they read is in parentheses."""
    found: dict[str, Fold] = {}
    regions = [spmd.body, *(p.item.body for p in walk(spmd.body) if isinstance(p.item, Repeat))]
    for region in regions:
        run: list[Step] = []
        for item in region.items:
            if isinstance(item, Repeat) or item.joined or item.looped:
                run = []
                continue
            inner = [step for step in run if step.result.startswith(f"{item.result}.")]
            if isinstance(item, Compute) and inner and inner == run[-len(inner) :]:
                found[item.result] = _fold(spmd, inner, item)
            run.append(item)
    return found


def _fold(spmd: SpmdProgram, inner: Sequence[Step], last: Compute) -> Fold:
    """The steps `inner` and the one after them as one."""
    steps = [*inner, last]
    made = {step.result for step in steps}
    read = dict.fromkeys(name for step in steps for name in reads(step) if name not in made)
    names = [step.result.removeprefix(f"{last.result}.") for step in inner if isinstance(step, Compute)]
    called = next((name for has, name in CALLED if has <= {*names}), f"{{{', '.join(names)}}}")
    values = spmd.table()
    moves = [describe(s.collective, values[s.result].dims) for s in inner if isinstance(s, Move)]
    over = f", with {', '.join(moves)}" if moves else ""
    return Fold(f"{called}({', '.join(read)}){over}", tuple(step.result for step in inner))


def print_spmd(
    spmd: SpmdProgram, annotations: Mapping[str, str] | None = None, folds: Mapping[str, Fold] | None = None
) -> str:
    """The program as text, at most 100 columns wide where names allow.

    `annotations` gives for the name of a value the comment beside its line. `folds`: steps that print as one line,
    for people: such a text cannot be read back. Raises ValueError for a
    value whose name could not be read back. Every value must be listed once, in definition order;
    parse_spmd of the text then equals `spmd`.
    """
    for value in spmd.values:
        if not re.fullmatch(NAME, value.name, re.ASCII) or value.name in RESERVED:
            raise ValueError(f"`{value.name}` cannot name a value in text")
    phase = spmd.phase if re.fullmatch(PHASE, spmd.phase, re.ASCII) else json.dumps(spmd.phase)
    lines = [f"sharded {json.dumps(spmd.name)} {phase} on {spmd.mesh}"]
    lines += _filled("sizes", [f"{dim}={size}" for dim, size in spmd.sizes])
    lines += _filled("mean", [f"{dim}={size}" for dim, size in spmd.mean])
    if spmd.micro_batches > 1:
        lines.append(f"micro-batches {spmd.micro_batches}")
    lines += _Printer(spmd.table(), annotations or {}, folds or {}).region(spmd.body, "")
    lines += _wrapped(" ".join(["return", ", ".join(spmd.results)]).rstrip(), "")
    return "\n".join(lines) + "\n"


def _filled(head: str, words: Sequence[str]) -> Iterator[str]:
    """Lines that begin with `head` and hold as many words as fit."""
    line = head
    for word in words:
        if len(line) + 1 + len(word) > WIDTH and line != head:
            yield line
            line = head
        line += f" {word}"
    if line != head:
        yield line


def _wrapped(text: str, indent: str) -> list[str]:
    """The text, broken after operators, commas and `=` where it is too wide."""
    lines, line = [], indent
    for piece in re.split(r"(?<=[=+\-*/,]) ", text):
        if len(line) + len(piece) > WIDTH and line != indent:
            lines.append(line.rstrip())
            line = " " * len(indent) + "    "
        line += piece + " "
    return [*lines, line.rstrip()]


def _marks(step: Step) -> str:
    """What stands in the two columns before a step."""
    return f"{'~' * step.looped}{'+' * step.joined}".ljust(2)


class _Printer:
    """Prints regions, with what is said about each value beside it."""

    def __init__(
        self, values: Mapping[str, SpmdValue], annotations: Mapping[str, str], folds: Mapping[str, Fold]
    ) -> None:
        self.values, self.annotations, self.folds = values, annotations, folds
        self.hidden = {name for fold in folds.values() for name in fold.within}

    def region(self, region: Region[Step], indent: str) -> Iterator[str]:
        """The lines of a region."""
        width = max((len(f"{s.kind} {s.value}:") for s in region.stored), default=0)
        for stored in region.stored:
            head = f"{stored.kind} {stored.value}:"
            whole = f" whole {','.join(stored.whole)}" if stored.whole else ""
            whole += f" groups {','.join(f'{d}:{n}' for d, n in stored.groups)}" if stored.groups else ""
            streams = stored.streamed
            streamed = f" streamed {streams.count} ahead {streams.ahead}" if streams else ""
            yield from self.line(stored.value, f"{head:<{width}} {self.type(stored.value)}{whole}{streamed}", indent)
        shown = [item for item in region.items if isinstance(item, Repeat) or item.result not in self.hidden]
        steps = [item.result for item in shown if not isinstance(item, Repeat)]
        names = max((len(n) for n in steps if len(n) <= NAME_COLUMN), default=0)
        types = max((len(t) for n in steps if len(t := self.type(n)) <= TYPE_COLUMN), default=0)
        marked = any(item.joined or item.looped for item in region.items if not isinstance(item, Repeat))
        outer = indent if indent or not marked else "  "  # the marks stand where the indent is
        for item in shown:
            match item:
                case Repeat():
                    yield from self.repeat(item, indent)
                    continue
                case Move(_, operand, collective):
                    body = f"{describe(collective, self.values[item.result].dims)} of {operand}"
                case Compute(op):
                    fold = self.folds.get(op.result)
                    body = fold.text if fold else format_op(op, self.values[op.result].dims)
            head = f"{item.result:<{names}} {self.type(item.result):<{types}}"
            margin = outer[:-2] + _marks(item) if marked else outer
            yield from self.line(item.result, f"{head} = {body}", margin)

    def repeat(self, repeat: Repeat[Step], indent: str) -> Iterator[str]:
        """A repeat: what enters, its region, what leaves."""
        inner = indent + "  "
        yield f"{indent}repeat {repeat.count} {repeat.name} {{"
        for carry in repeat.carries:
            text = f"enter {carry.inside}: {self.type(carry.inside)} = {carry.initial}"
            yield from self.line(carry.inside, text, inner)
        yield from self.region(repeat.body, inner)
        for carry in repeat.carries:
            text = f"leave {carry.result}: {self.type(carry.result)} = {carry.next}"
            yield from self.line(carry.result, text, inner)
        yield f"{indent}}}"

    def type(self, name: str) -> str:
        """The dtype and layout of a value."""
        value = self.values[name]
        return f"{value.dtype} {format_layout(value.dims, value.layout)}"

    def line(self, name: str, text: str, indent: str) -> list[str]:
        """The line that defines `name`, wrapped, its comment at the right edge or on a line of its own."""
        lines = _wrapped(text, indent)
        within = self.folds[name].within if name in self.folds else ()
        note = ", ".join(self.annotations[step] for step in (*within, name) if step in self.annotations)
        if note:
            comment = "# " + " ".join(note.split())
            if len(lines[-1]) + 2 + len(comment) <= WIDTH:
                lines[-1] += comment.rjust(WIDTH - len(lines[-1]))
            else:
                lines.append(comment.rjust(WIDTH))
        return lines
