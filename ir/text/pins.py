"""Pins: layouts that a person fixes, in a model (`param W: bf16[E,F] @ E_xF`) or in a file beside it.

A pins file has one pin on a line, `#` beginning a comment:

    stored layer.Wi  E_xF_zy     the layout in which a parameter, cache or input is stored
    stored return    BLE_xzy     for a value that the program returns: the layout in which it is handed out
    use    layer.u.Wi  EF_z      the layout in which the op that makes `layer.u` reads `Wi`
    result layer.u   BLF_zy partialsum-x     the layout in which the op that makes it leaves a value
    place  layer.Wi  host    in the memory of the chips' host, in every layer, from where chips fetch it
    place  layer.Wd  chip    on the chips, whatever else is streamed

Values are called as in the expanded program. Whether a mesh has the axes, and whether sizes divide
by them, is not asked here: a pin holds for any mesh.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..diagnostics import Diagnostic, InputError, Source, Span, did_you_mean, fail, listed
from ..layout import Layout, parse_layout
from ..program import Kind, Pin, PinKind, Place, Program, Repeat, Stored, Value, operand_names, stored_in, walk

MAX_FINDINGS = 20  # reported at once; each may be compared with every name

_LINE = re.compile(r"(?P<kind>\S+)(?:\s+(?P<name>\S+)(?:\s+(?P<layout>.*\S))?)?\s*")


def parse_pins(source: Source, *programs: Program) -> tuple[Pin, ...]:
    """The pins of a file, for the values of a program; of several, which run one model in their own ways, for those
    of any.

    Raises InputError with a finding for every line that is no pin, names no value, op or result, or
    has a layout that the value cannot have, and for what is pinned twice.
    """
    names = _Names.of(programs)
    pins: dict[tuple[PinKind, str, str | None], Pin] = {}
    findings: list[Diagnostic] = []
    for number, line in enumerate(source.text.split("\n"), 1):
        content = line.split("#")[0].rstrip()
        if not content.strip() or is_place(line):
            continue
        try:
            pin = _pin(content, number, names)
            key = (pin.kind, pin.value, pin.op)
            if key in pins:
                raise fail(f"`{pin.text}` pins what is pinned already, by `{pins[key].text}`.", _span(content, number))
            pins[key] = pin
        except InputError as error:
            findings += [Diagnostic(d.message, d.span, d.hint, source) for d in error.diagnostics]
        if len(findings) >= MAX_FINDINGS:
            break
    if findings:
        raise InputError(findings)
    return tuple(pins.values())


def merge_pins(inline: Sequence[Pin], beside: Sequence[Pin]) -> tuple[Pin, ...]:
    """The pins of a model and of a file beside it; the file's replace the model's of the same place."""
    merged = {(pin.kind, pin.value, pin.op): pin for pin in (*inline, *beside)}
    return tuple(merged.values())


def pinned_layout(text: str, value: Value, kind: PinKind, factors: Mapping[str, Sequence[str]] | None = None) -> Layout:
    """The layout that `text` gives `value`.

    `factors`: dims that are products, with their factors; such a dim may stand for its factors where
    it is not split. Raises InputError, without a place, when the text is no layout, has other dims
    than the value, or is partial where a value is stored.
    """
    if not text:
        raise fail("A layout is missing after `@`.", hint="write `@ BLE_xyz`")
    written, layout = parse_layout(text)
    names: list[str] = []
    dims: list[tuple[str, ...]] = []
    for name, axes in zip(written, layout.dims, strict=True):
        parts = (factors or {}).get(name, (name,))
        if len(parts) > 1 and axes:
            hint = "write its factors " + " ".join(parts) + ", each with its own axes"
            raise fail(f"The pin `{text[:60]}` splits `{name}`, which is a product of dims.", hint=hint)
        names += parts
        dims += [axes] if len(parts) == 1 else [()] * len(parts)
    if tuple(names) != value.dims:
        hint = f"the dims of `{value.name}` are {' '.join(value.dims) or 'none'}, in this order"
        raise fail(f"The pin `{text[:60]}` does not have the dims of `{value.name}`.", hint=hint)
    if kind is PinKind.STORED and layout.partial:
        raise fail(f"The pin `{text[:60]}` leaves a stored value partial.", hint="what is stored is complete")
    return Layout(tuple(dims), layout.partial, layout.reduction)


@dataclass
class _Names:
    """What pins can name."""

    values: dict[str, Value]
    results: dict[str, None]
    stored: dict[str, None] = field(default_factory=dict)
    ops: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what the op that makes a value reads

    @classmethod
    def of(cls, programs: Sequence[Program]) -> _Names:
        """The names of all of a model's programs, one for each phase."""
        names = cls({}, {})
        for program in programs:
            names.values |= program.table()
            names.results |= dict.fromkeys(program.results)
            for placed in walk(program.body):
                match placed.item:
                    case Stored(value):
                        names.stored[value] = None
                    case Repeat():
                        pass
                    case op:
                        read = (*names.ops.get(op.result, ()), *operand_names(op))
                        names.ops[op.result] = tuple(dict.fromkeys(read))
        return names


def _span(content: str, line: int, part: str | None = None) -> Span:
    """Where a part of a line stands; without one, the whole of its content."""
    start = len(content) - len(content.lstrip())
    column = content.rindex(part) if part else start
    return Span(line, column + 1, len(part or content.lstrip()))


def _pin(content: str, line: int, names: _Names) -> Pin:
    """The pin on one line; raises InputError when it is none."""
    match = _LINE.fullmatch(content.strip())
    parts = match.groupdict() if match else {"kind": None, "name": None, "layout": None}
    kind, name, layout = parts["kind"], parts["name"], parts["layout"]
    if kind not in list(PinKind) or name is None or layout is None:
        hint = "write `stored W E_xF`, `use u.W EF_z` or `result u BLF_zy partialsum-x`"
        raise fail("The line is no pin.", _span(content, line), hint)
    place = Span(line, content.index(name, content.index(kind) + len(kind)) + 1, len(name))
    op: str | None = None
    match PinKind(kind):
        case PinKind.STORED:
            _check_known(name, (names.stored, names.results), "stored or returned", place, names)
            value = name
        case PinKind.RESULT:
            _check_known(name, (names.ops,), "made by an op", place, names)
            value = name
        case PinKind.USE:
            op, value = _use(name, place, names)
    text = " ".join(content.split())
    try:
        return Pin(PinKind(kind), value, op, pinned_layout(layout, names.values[value], PinKind(kind)), text)
    except InputError as error:
        span = _span(content, line, layout)
        raise InputError([Diagnostic(d.message, span, d.hint) for d in error.diagnostics]) from None


def _check_known(name: str, owners: Sequence[Collection[str]], what: str, place: Span, names: _Names) -> None:
    if any(name in owner for owner in owners):
        return
    known = [one for owner in owners for one in owner]
    shown = name[:64]
    if name not in names.values:
        if name == "return":
            raise fail("What is returned has a name.", place, f"the results are {', '.join(names.results)}")
        longer = next((f"did you mean `{k}`?" for k in known if k.endswith(f".{name}")), None)
        raise fail(f"The program has no value `{shown}`.", place, longer or did_you_mean(name, known))
    if name in names.ops:
        raise fail(f"Value `{shown}` is not {what}.", place, f"to fix how its op leaves it, write `result {shown} ...`")
    if name in names.stored:
        raise fail(f"Value `{shown}` is not {what}.", place, f"to fix how it is stored, write `stored {shown} ...`")
    raise fail(f"Value `{shown}` is not {what}.", place, "it is carried through a repeat")


def _use(name: str, place: Span, names: _Names) -> tuple[str, str]:
    """The op and the value that `op.value` names: the value ends in what follows the op's name."""
    seen: str | None = None
    for cut in sorted((i for i, c in enumerate(name) if c == "."), reverse=True)[:20]:
        op, rest = name[:cut], name[cut + 1 :]
        if op not in names.ops or not rest:
            continue
        seen = op
        reads = names.ops[op]
        found = [v for v in reads if v == rest] or [v for v in reads if v.endswith(f".{rest}")]
        if len(found) == 1:
            return op, found[0]
        if found:
            raise fail(f"`{name[:64]}` may be any of {listed(found)}.", place, "write more of the name")
    if seen is not None:
        reads = names.ops[seen]
        raise fail(
            f"The op of `{seen}` reads no `{name[len(seen) + 1 :][:64]}`.",
            place,
            f"it reads {listed(reads) or 'nothing'}",
        )
    guess = did_you_mean(name.rpartition(".")[0], names.ops)
    raise fail(f"`{name[:64]}` names no op and operand.", place, guess or "write `use layer.u.Wi ...`")


KEYWORD = "place"


def is_place(line: str) -> bool:
    """Whether a line of a pins file says where something is stored."""
    return line.split("#")[0].split()[:1] == [KEYWORD]


def parse_places(source: Source, program: Program) -> tuple[tuple[str, Place], ...]:
    """What the places of a pins file say of the tensors of a program; of one that earlier pins placed, this counts.

    Raises InputError with a finding for every line that names no parameter or cache of a layer, or no place, and for
    what is placed twice.
    """
    held = stored_in(program.body, Kind.PARAM, Kind.CACHE)
    layered = {one.value: bool(placed.repeats) for one, placed in held.items()}
    found: dict[str, Place] = {}
    findings: list[Diagnostic] = []
    for number, line in enumerate(source.text.split("\n"), 1):
        if not is_place(line):
            continue
        words, span = line.split("#")[0].split()[1:], Span(number, line.index(KEYWORD) + 1, len(KEYWORD))
        problem, hint = None, f"write `{KEYWORD} layer.W host` or `{KEYWORD} layer.W chip`"
        if len(words) != 2 or words[1] not in list(Place):
            problem = "The line does not say where a tensor is."
        elif words[0] not in layered:
            problem = f"The program stores no parameter or cache `{words[0][:64]}`."
            hint = did_you_mean(words[0], layered) or hint
        elif words[1] == Place.HOST and not layered[words[0]]:
            problem = (
                f"`{words[0]}` is of no layer that is repeated, and what comes from the host comes layer by layer."
            )
            hint = "leave it on the chips"
        elif words[0] in found:
            problem, hint = f"`{words[0]}` has its place already.", "leave one of the lines out"
        if problem is None:
            found[words[0]] = Place(words[1])
        else:
            findings.append(Diagnostic(problem, span, hint, source))
    if findings:
        raise InputError(findings)
    return tuple(({**dict(program.places), **found}).items())
