"""Reads the text of a sharded program, as ir.text.write_spmd writes it.

The text is read line by line, so that one wrong line does not hide what is wrong in the others.
Whether the program holds together (names defined, layouts that follow) is left to ir.verify.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..choices import with_sharded_choices
from ..collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveKind,
    Embed,
    Permute,
    ReduceScatter,
    Slice,
)
from ..diagnostics import Diagnostic, InputError, Source, Span, did_you_mean
from ..dtype import Dtype
from ..layout import Layout, parse_layout, spelled_out
from ..mesh import Mesh
from ..program import Carry, Kind, Region, Repeat, Stored, Streamed
from ..record import record
from ..spmd import Compute, Move, SpmdProgram, SpmdValue, Step
from .expressions import NAME, ExprError
from .ops import read_op
from .write_spmd import PHASE

MAX_ERRORS = 20
MAX_NESTING = 50  # of repeats
MAX_LENGTH = 20_000  # of a statement, in characters

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TYPE = r"(?P<type>(?P<dtype>[a-z]\w*) +(?P<layout>(?:\[[^\]]*\]|[A-Z][A-Za-z_]*)(?: +partial[\w.:-]+)?))"
_DIMS = r"[A-Za-z]\w*(?:,[A-Za-z]\w*)*"
_GROUPS = r"[A-Za-z]\w*:[A-Za-z]\w*(?:,[A-Za-z]\w*:[A-Za-z]\w*)*"
_CODE = re.compile(rf"(?:{_QUOTED}|[^#])*")  # a line up to its comment
_HEADER = re.compile(rf"sharded +(?P<name>{_QUOTED}) +(?P<phase>{PHASE}|{_QUOTED}) +on +(?P<mesh>.+)", re.ASCII)
_SIZE = re.compile(r"(?P<dim>[A-Za-z]\w*)=(?P<size>\d{1,20})", re.ASCII)
_STORED = re.compile(
    rf"(?P<kind>param|cache|input) +(?P<name>{NAME}): +{_TYPE}(?: +whole +(?P<whole>{_DIMS}))?"
    rf"(?: +groups +(?P<groups>{_GROUPS}))?"
    r"(?: +streamed +(?P<count>\d{1,20}) +ahead +(?P<ahead>\d{1,20}))?",
    re.ASCII,
)
_CARRY = re.compile(rf"(?P<way>enter|leave) +(?P<name>{NAME}): +{_TYPE} += +(?P<other>{NAME})", re.ASCII)
_REPEAT = re.compile(rf"repeat +(?P<count>\d{{1,20}}) +(?P<name>{NAME}) *\{{", re.ASCII)
_STEP = re.compile(rf"(?P<looped>~)?(?P<joined>\+)? *(?P<name>{NAME}) +{_TYPE} += +(?P<body>.+)", re.ASCII)
_RETURN = re.compile(rf"return(?: +(?P<names>{NAME}(?: *, *{NAME})*))?", re.ASCII)
_MOVE = re.compile(
    rf"(?P<kind>[a-z-]+)(?:\((?P<axes>[a-z0-9_.:]*)\))?(?: +(?P<where>\S.*?))? +of +(?P<operand>{NAME})", re.ASCII
)


def parse_spmd(source: Source) -> SpmdProgram:
    """The program that the text describes. Raises InputError with what is wrong in it, line by line."""
    return _Parser(source).program()


@record
class _Line:
    """A statement: one line of the source, or several that are joined.

    `starts[i]`: from which offset of `text` on it stands at line and column `places[i]`.
    """

    text: str
    starts: tuple[int, ...]
    places: tuple[tuple[int, int], ...]

    def span(self, at: int, length: int = 1) -> Span:
        """Where the text from offset `at` on stands in the source."""
        i = bisect_right(self.starts, at) - 1
        line, column = self.places[i]
        return Span(line, column + at - self.starts[i], max(1, length))


def _lines(source: Source) -> Iterator[_Line]:
    parts: list[str] = []
    starts: list[int] = []
    places: list[tuple[int, int]] = []
    length = 0
    for number, line in enumerate(source.text.splitlines(), 1):
        match = _CODE.match(line) if "#" in line else None
        code = (match[0] if match else line).rstrip()
        text = code.lstrip()
        if not text:
            continue
        parts.append(text)
        starts.append(length)
        places.append((number, len(code) - len(text) + 1))
        length += len(text) + 1
        if text[-1] not in "=+-*/,":
            yield _Line(" ".join(parts), tuple(starts), tuple(places))
            parts, starts, places, length = [], [], [], 0
    if parts:
        yield _Line(" ".join(parts), tuple(starts), tuple(places))


class _Wrong(Exception):
    """A statement is wrong: what, at which offset of its text."""

    def __init__(self, message: str, at: int = 0, length: int = 1, hint: str | None = None):
        super().__init__(message)
        self.message, self.at, self.length, self.hint = message, at, length, hint


@dataclass
class _Frame:
    """A region that is being read, and the carries of the repeat it belongs to."""

    name: str = ""
    count: int = 1
    line: _Line | None = None
    stage: int = 0
    entering: list[tuple[str, str]] = field(default_factory=list)  # (inside, initial)
    leaving: list[tuple[str, str]] = field(default_factory=list)  # (result, next)
    stored: list[Stored] = field(default_factory=list)
    items: list[Step | Repeat[Step]] = field(default_factory=list)

    def region(self) -> Region[Step]:
        """What was read of it, in order."""
        return Region(tuple(self.stored), tuple(self.items))


_STAGES = ("what enters", "stored tensors", "what runs", "what leaves")


class _Parser:
    """Reads statement by statement, and keeps what is wrong."""

    def __init__(self, source: Source):
        self.source = source
        self.found: list[Diagnostic] = []
        self.mesh: Mesh | None = None
        self.name = self.phase = ""
        self.sizes: list[tuple[str, int]] = []
        self.mean: list[tuple[str, int]] = []
        self.values: list[SpmdValue] = []
        self.frames = [_Frame()]
        self.micro_batches = 1
        self.results: tuple[str, ...] | None = None

    def program(self) -> SpmdProgram:
        """The program, read statement by statement."""
        for line in _lines(self.source):
            try:
                self.statement(line)
            except _Wrong as wrong:
                span = line.span(wrong.at, wrong.length)
                self.found.append(Diagnostic(wrong.message, span, wrong.hint, self.source))
                if self.mesh is None or len(self.found) >= MAX_ERRORS:
                    raise InputError(self.found) from None
        if self.mesh is None:
            self.found.append(Diagnostic("The text of a sharded program is empty.", source=self.source))
        elif len(self.frames) > 1 and self.frames[-1].line is not None:
            name, span = self.frames[-1].name, self.frames[-1].line.span(0)
            self.found.append(Diagnostic(f"The repeat `{name}` is not closed.", span, "close it with `}`", self.source))
        elif self.results is None:
            self.found.append(Diagnostic("The program does not end with `return`.", source=self.source))
        if self.found or self.mesh is None:
            raise InputError(self.found)
        region, sizes, values = self.frames[0].region(), tuple(self.sizes), tuple(self.values)
        beside = self.results or (), self.micro_batches, tuple(self.mean)
        return with_sharded_choices(SpmdProgram(self.name, self.phase, self.mesh, sizes, values, region, *beside))

    def statement(self, line: _Line) -> None:
        """Read one statement, or raise _Wrong."""
        text = line.text
        if len(text) > MAX_LENGTH:
            raise _Wrong(f"The statement is longer than {MAX_LENGTH} characters.")
        if self.mesh is None:
            self.header(text)
        elif self.results is not None:
            raise _Wrong("Nothing comes after `return`.", length=len(text))
        elif match := _STORED.fullmatch(text):
            name = self.value(match, 1)
            whole = tuple(match["whole"].split(",")) if match["whole"] else ()
            streamed = Streamed(int(match["count"]), int(match["ahead"])) if match["count"] else None
            pairs = (text.split(":") for text in match["groups"].split(",")) if match["groups"] else ()
            groups = tuple((dim, count) for dim, count in pairs)
            self.frames[-1].stored.append(Stored(name, Kind(match["kind"]), whole, streamed, groups))
        elif match := _CARRY.fullmatch(text):
            self.carry(match)
        elif match := _STEP.fullmatch(text):
            name = self.value(match, 2)
            self.frames[-1].items.append(self.step(match, name))
        elif text.endswith("{"):
            self.open(line)
        elif text == "}":
            self.close()
        elif match := _RETURN.fullmatch(text):
            if len(self.frames) > 1:
                raise _Wrong("A repeat ends with `leave` and `}`, not with `return`.", length=len(text))
            self.results = tuple(re.split(" *, *", match["names"])) if match["names"] else ()
        elif match := re.match(r"(sizes|mean)(?= )", text):
            self.read_sizes(text, match[0], self.sizes if match[0] == "sizes" else self.mean)
        elif match := re.fullmatch(r"micro-batches +(?P<count>[1-9][0-9]{0,8})", text, re.ASCII):
            self.micro_batches = int(match["count"])
        else:
            hint = (
                "write `NAME DTYPE LAYOUT = OPERATION`, `param NAME: DTYPE LAYOUT`, `repeat N NAME {` or `return NAME`"
            )
            raise _Wrong(f"`{text[:40]}` is no statement of a sharded program.", length=len(text), hint=hint)

    def header(self, text: str) -> None:
        """Read the first line: name, phase and mesh."""
        match = _HEADER.fullmatch(text)
        if not match:
            hint = 'begin with `sharded "NAME" PHASE on x=4 y=4`'
            raise _Wrong("The text does not begin as a sharded program does.", length=len(text), hint=hint)
        quoted = {key: match[key] for key in ("name", "phase") if match[key].startswith('"')}
        for key, word in quoted.items():
            try:
                quoted[key] = json.loads(word)
            except json.JSONDecodeError:
                raise _Wrong(f"{word[:40]} is no string.", match.start(key), len(word)) from None
        self.name, self.phase = quoted["name"], quoted.get("phase", match["phase"])
        try:
            self.mesh = Mesh.parse(match["mesh"])
        except InputError as error:
            raise _at(error, match.start("mesh"), len(match["mesh"])) from None

    def read_sizes(self, text: str, head: str, sizes: list[tuple[str, int]]) -> None:
        """Note what `sizes B=8 L=1` says, after its `head`. Raises _Wrong at a word that is no size."""
        for word in re.finditer(r"\S+", text[len(head) :]):
            match = _SIZE.fullmatch(word[0])
            if not match:
                at = word.start() + len(head)
                raise _Wrong(f"`{word[0][:40]}` is no dim with its size.", at, len(word[0]), "write `B=512`")
            sizes.append((match["dim"], int(match["size"])))

    def value(self, match: re.Match[str], stage: int) -> str:
        """Note the value that a statement defines; returns its name."""
        frame = self.frames[-1]
        if stage < frame.stage:
            raise _Wrong(
                f"In a region, {_STAGES[stage]} must stand before {_STAGES[frame.stage]}.", length=len(match[0])
            )
        frame.stage = stage
        if match["dtype"] not in list(Dtype):
            hint = did_you_mean(match["dtype"], list(Dtype))
            raise _Wrong(f"There is no dtype `{match['dtype'][:40]}`.", match.start("dtype"), len(match["dtype"]), hint)
        dims, layout = self.layout(match["layout"], match.start("layout"))
        self.values.append(SpmdValue(match["name"], dims, Dtype(match["dtype"]), layout))
        return match["name"]

    def carry(self, match: re.Match[str]) -> None:
        """Note what `enter` or `leave` says. Raises _Wrong outside repeats."""
        frame = self.frames[-1]
        if len(self.frames) == 1:
            raise _Wrong("Values enter and leave repeats, and this is in none.", length=len(match[0]))
        if match["way"] == "enter":
            frame.entering.append((self.value(match, 0), match["other"]))
        else:
            frame.leaving.append((self.value(match, 3), match["other"]))

    def open(self, line: _Line) -> None:
        """Begin a repeat. Raises _Wrong where the line lacks a count or a name, and too deep in others."""
        match = _REPEAT.fullmatch(line.text)
        name, count = (match["name"], int(match["count"])) if match else ("?", 1)
        self.frames[-1].stage = 2
        self.frames.append(_Frame(name, count, line))
        if not match:
            raise _Wrong("A repeat opens with how often it runs and a name.", hint="write `repeat 4 layer {`")
        if len(self.frames) > MAX_NESTING:
            raise _Wrong(f"Repeats are nested more than {MAX_NESTING} deep.")

    def close(self) -> None:
        """End the innermost repeat. Raises _Wrong where there is none, or where other values leave it than enter."""
        if len(self.frames) == 1:
            raise _Wrong("This closes no repeat.")
        frame = self.frames.pop()
        if len(frame.entering) != len(frame.leaving):
            raise _Wrong(f"In `{frame.name}`, {len(frame.entering)} values enter and {len(frame.leaving)} leave.")
        pairs = zip(frame.entering, frame.leaving, strict=True)
        carries = tuple(Carry(initial, inside, handed, result) for (inside, initial), (result, handed) in pairs)
        self.frames[-1].items.append(Repeat(frame.name, frame.count, carries, frame.region()))

    def step(self, match: re.Match[str], name: str) -> Step:
        """The step that makes `name`, the last value noted."""
        body, at, dims = match["body"], match.start("body"), self.values[-1].dims
        joined, looped = match["joined"] is not None, match["looped"] is not None
        if move := _MOVE.fullmatch(body):
            return Move(name, move["operand"], self.collective(move, at, dims), joined, looped)
        try:
            return Compute(read_op(body, name, dims), joined, looped)
        except ExprError as error:
            raise _Wrong(str(error), at + error.at, error.length, error.hint) from None

    def collective(self, move: re.Match[str], at: int, dims: tuple[str, ...]) -> Collective:
        """The collective of a move; `at` is where it begins in the statement."""
        kind, where = move["kind"], move["where"]
        axes = self.axes(move["axes"] or "", at + move.start("axes"))

        def dim(name: str) -> int:
            if name not in dims:
                raise _Wrong(f"The value has no dim `{name[:40]}`.", at + move.start("where"), len(where))
            return dims.index(name)

        match kind, where:
            case (CollectiveKind.ALL_GATHER, str()):
                return AllGather(axes, dim(where))
            case (CollectiveKind.REDUCE_SCATTER, str()):
                return ReduceScatter(axes, dim(where))
            case (CollectiveKind.SLICE, str()):
                return Slice(axes, dim(where))
            case (CollectiveKind.ALL_REDUCE, None):
                return AllReduce(axes)
            case (CollectiveKind.EMBED, None):
                return Embed(axes)
            case (CollectiveKind.EMBED, str()):
                return Embed(axes, dim(where))
            case (CollectiveKind.ALL_TO_ALL, str()) if where.count("->") == 1:
                source, target = where.split("->")
                return AllToAll(axes, dim(source.strip()), dim(target.strip()))
            case (CollectiveKind.PERMUTE, str()):
                names, layout = self.layout(where, at + move.start("where"))
                if names != dims:
                    raise _Wrong("A permute keeps the dims of its value.", at + move.start("where"), len(where))
                return Permute(layout)
        hint = "write `all-gather(yz) E of x`, `all-reduce(x) of u`, `all-to-all(z) H->B of q` or `permute E_zy of x`"
        raise _Wrong(f"`{move[0][:40]}` is no collective.", at, len(move[0]), hint)

    def axes(self, text: str, at: int) -> tuple[str, ...]:
        """The axes of `yz` or `node.gpu`."""
        known = self.mesh.names if self.mesh else ()
        axes = (text,) if text in known else tuple(text.split(".") if {".", ":"} & set(text) else text)
        for axis in axes:
            if axis not in known:
                raise _Wrong(f"The mesh has no axis `{axis[:40]}`.", at, len(text), did_you_mean(axis, known))
        return axes

    def layout(self, text: str, at: int) -> tuple[tuple[str, ...], Layout]:
        """The dims and the layout of a layout's text. Raises _Wrong where it is none, or spells an axis out in the
        short form."""
        known = self.mesh.names if self.mesh else ()
        hint = spelled_out(text, known)
        try:
            dims, layout = parse_layout(text)
        except InputError as error:
            raise _at(error, at, len(text), hint) from None
        unknown = sorted(layout.split_axes.union(layout.partial).difference(known))
        if hint and unknown:
            raise _Wrong(f"The mesh has no axis `{unknown[0]}`.", at, len(text), hint)
        return dims, layout


def _at(error: InputError, at: int, length: int, hint: str | None = None) -> _Wrong:
    """A finding about a piece of a statement, put in its place; `hint`: where it has none."""
    return _Wrong(error.diagnostics[0].message, at, length, error.diagnostics[0].hint or hint)
