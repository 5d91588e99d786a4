"""From the surface tree to a program of primitive ops: the checks, and what each construct becomes.

Dims are declared first, then shared tensors; every block is expanded once, on its own, and put in
place wherever it is called; `main` comes last and makes the program. A product of dims is replaced
by its factors everywhere. All findings of a file come at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.choices import with_choices
from ...ir.dataflow import makes
from ...ir.diagnostics import Source, Span
from ...ir.expr import Operand
from ...ir.program import Kind, Map, Op, Program, Region, Value
from ...ir.text.surface import Block, Declaration, Line, Main, Model, Parameter, PhaseText, Return, Title, Type
from .alike import pairs_of
from .body import Body, Context, Template
from .composites import COMPOSITES
from .declared import claim, declare, declared_value, store
from .dims import (
    Kept,
    Numbered,
    bind_phases,
    check_contexts,
    check_extents,
    check_groups,
    check_numbers,
    check_sizes,
    declare_dims,
    rewrapped,
)
from .functions import FUNCTIONS
from .lines import expand_lines
from .masking import mask_padding
from .padding import pad_phases
from .report import Report, TooLarge


def expand(
    model: Model,
    source: Source,
    settings: Mapping[str, int] | None = None,
    pads: Mapping[str, int] | None = None,
    phase: str | None = None,
) -> Program:
    """The program of a model, with every dim bound in every phase, and masks where padding needs them.

    `settings`: sizes of dims that override those of the file and its phases; `pads`: sizes to which
    dims are padded, likewise. `phase`: the only one that is wanted; sizes that another one could not have
    are no matter, and it has no other. `source`: where the model was parsed from, for messages. Raises
    InputError with all that is wrong, in source order; TooLarge, which is one, where that is sizes alone.
    """
    report = Report(source)
    context = Context(report, declare_dims(model.items, report), pairs=pairs_of(model))
    texts = [item for item in model.items if isinstance(item, PhaseText)]
    phases = bind_phases(context.dims, texts, settings or {}, report)
    phases = tuple(bound for bound in phases if bound.name == phase) or phases
    context.blocks = {item.name.name for item in model.items if isinstance(item, Block)}
    shared = _shared(model, context)
    for item in model.items:
        if isinstance(item, Block):
            _block(item, context)
    main = _the_main(model, report)
    body, results = _main(main, context) if main else (Body(context), [])
    wraps = tuple(dict.fromkeys(one.wrap for one in context.constraints if isinstance(one, Kept)))
    phases = rewrapped(context.dims, texts, phases, settings or {}, wraps, report)
    check_sizes(context.constraints, phases, report)
    check_groups(context.dims, phases, report)
    check_contexts(context.dims, context.constraints, report)
    phases, padding = pad_phases(context.dims, phases, pads or {}, context.constraints, report)
    check_groups(context.dims, phases if len(report) == 0 else (), report)
    name = _title(model, report)
    report.finish()
    check_extents(context.extents, phases, report)
    declared = {dim: span for dim, (_, span) in context.dims.pads.items()}
    # What lies beyond a true size is told by its place.
    beyond = [Numbered((dim,), declared.get(dim)) for dim, _ in padding]
    check_numbers([*context.constraints, *beyond], phases, report)
    report.finish(TooLarge)
    inputs = len(main.parameters) if main else 0
    stored = (*body.stored[:inputs], *shared.stored, *body.stored[inputs:])
    values = body.values | shared.values
    pins = (*shared.pins, *body.pins)
    region: Region[Op] = Region(stored, tuple(body.items))
    given = name, tuple(values.values()), region, tuple(results), phases, pins, padding
    program = Program(*given, wraps=wraps, blocks=tuple(body.blocks))
    return with_choices(mask_padding(program))


def _title(model: Model, report: Report) -> str:
    titles = [item for item in model.items if isinstance(item, Title)]
    for title in titles[1:]:
        report.add("The model is named twice.", title.span)
    return titles[0].name if titles else "program"


def _the_main(model: Model, report: Report) -> Main | None:
    mains = [item for item in model.items if isinstance(item, Main)]
    for main in mains[1:]:
        report.add("`main` is declared twice.", main.span)
    if not mains:
        hint = "write `main(x: bf16[B,L,E]) { return ... }`"
        report.add("The file has no `main`.", Span(1, 1), hint)
    return mains[0] if mains else None


def _shared(model: Model, context: Context) -> Body:
    """The tensors declared outside of blocks."""
    body = Body(context)
    for item in model.items:
        if isinstance(item, Declaration):
            for name in item.names:
                if claim(body, name):
                    declare(body, name, item)
    context.shared = {name: body.values.get(name) for name in [*body.names, *body.values]}
    context.scales, context.zeros = body.scales, body.zeros
    context.caches = body.caches
    return body


def _block(block: Block, context: Context) -> None:
    """Expand a block into a template."""
    name, report = block.name.name, context.report
    if name in context.templates:
        report.add(f"Block `{name}` is declared twice.", block.name.span)
        return
    if name in FUNCTIONS:
        what = "a composite" if name in COMPOSITES else "a function"
        report.add(f"Block `{name}` has the name of {what}.", block.name.span, "rename it")
        return
    before = len(report)
    body = Body(context)
    for parameter in block.parameters:
        _parameter(body, parameter)
    declared = _types(body, block.results)
    results = expand_lines(body, block.lines, declared)
    if not _returns(block.lines):
        report.add(f"Block `{name}` returns nothing.", block.name.span, "end it with `return`")
    parameters = tuple(body.parameters.values())
    if len(report) > before or results is None:
        known = tuple(value for value in declared if value is not None)
        outcome = known if known and len(known) == len(declared) else None
        context.templates[name] = Template(name, parameters, known, Region((), ()), outcome, (), frozenset(), (), 0)
        return
    context.templates[name] = Template(
        name,
        parameters,
        tuple(body.values.values()),
        body.region(),
        tuple(body.value(result) for result in results),
        tuple(body.pins),
        frozenset(body.appended & context.caches),
        tuple(body.blocks),
        body.depth,
    )


def _returns(lines: Sequence[Line]) -> bool:
    return any(isinstance(line, Return) for line in lines)


def _parameter(body: Body, parameter: Parameter) -> None:
    """An argument of a block: a value that the call hands over."""
    name = parameter.name.name
    if not claim(body, parameter.name):
        return
    value = declared_value(body, name, parameter.type)
    body.names[name] = None if value is None else name
    if value is not None:
        body.parameters[name] = value
    if parameter.pin is not None:
        hint = "pin what is stored, or the result of an op"
        body.context.report.add("An argument of a block has no layout of its own.", parameter.pin.span, hint)


def _types(body: Body, types: Sequence[Type]) -> list[Value | None]:
    """The declared results of a block, as values called `return`, `return:2`, ..."""
    names = ["return", *(f"return:{number}" for number in range(2, len(types) + 1))]
    return [declared_value(body, name, kind) for name, kind in zip(names, types, strict=False)]


def _main(main: Main, context: Context) -> tuple[Body, list[str]]:
    """Expand `main`. Every result is made by an op of its own, so that it can be handed out as it is."""
    body = Body(context)
    for parameter in main.parameters:
        if claim(body, parameter.name):
            value = declared_value(body, parameter.name.name, parameter.type)
            store(body, parameter.name, Kind.INPUT, value, parameter.pin)
    results = expand_lines(body, main.lines, _types(body, main.results))
    if not _returns(main.lines):
        context.report.add("`main` returns nothing.", main.span, "end it with `return`")
    if results is None:
        return body, []
    handed_out: list[str] = []
    made = {name for item in body.items for name in makes(item)}
    for result in results:
        if result not in made or result in handed_out:
            value = body.value(result)
            result = body.emit(Map(body.fresh("return"), Operand(result)), value.dims, value.dtype)
        handed_out.append(result)
    return body, handed_out
