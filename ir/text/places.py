"""Places: where a person wants a parameter or cache to be stored, in lines of a pins file.

place layer.Wi  host     in the memory of the chips' host, in every layer, from where chips fetch it
place layer.Wd  chip     on the chips, whatever else is streamed
"""

from __future__ import annotations

from ..diagnostics import Diagnostic, InputError, Source, Span, did_you_mean
from ..program import Kind, Place, Program, Stored, walk

KEYWORD = "place"


def is_place(line: str) -> bool:
    """Whether a line of a pins file says where something is stored."""
    return line.split("#")[0].split()[:1] == [KEYWORD]


def parse_places(source: Source, program: Program) -> tuple[tuple[str, Place], ...]:
    """What the places of a pins file say of the tensors of a program; of one that earlier pins placed, this counts.

    Raises InputError with a finding for every line that names no parameter or cache of a layer, or no place, and for
    what is placed twice.
    """
    layered = {
        placed.item.value: bool(placed.repeats)
        for placed in walk(program.body)
        if isinstance(placed.item, Stored) and placed.item.kind is not Kind.INPUT
    }
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
