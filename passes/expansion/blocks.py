"""Calls of blocks: an expanded block put in place, once or as a repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...ir.dataflow import makes
from ...ir.diagnostics import Span, plural
from ...ir.expr import Operand
from ...ir.program import Carry, Kind, Map, Op, Region, Repeat, Value, with_operands
from ...ir.text.surface import Call, Repeated
from .body import Body, Template
from .report import Refused

MAX_COUNT = 2**20  # repetitions
MAX_DEPTH = 16  # calls nested in each other


class Broken(Exception):
    """A block that is called has errors, which are reported where they are."""


def call_block(body: Body, call: Call, given: Sequence[str]) -> list[str]:
    """Put the ops of a block in place; returns the values that it returns."""
    template, results = _checked(body, call, given)
    prefix = _enter(body, template, call.span)
    names = _renaming(template, prefix, dict(zip(_names(template.parameters), given, strict=True)))
    region = _place(body, template, prefix, names)
    body.stored += region.stored
    body.items += region.items
    body.caches |= {s.value for s in region.stored if s.kind is Kind.CACHE}
    return [names.get(value.name, value.name) for value in results]


def repeat_block(body: Body, node: Repeated, given: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Put a block in place as a repeat, whose results are called `targets`; returns them.

    The first arguments, as many as the block returns values, are carried from one repetition to the
    next; the others are the same in every one.
    """
    template, results = _checked(body, node.call, given)
    if not 1 <= node.count <= MAX_COUNT:
        raise Refused(f"A block is repeated between 1 and {MAX_COUNT:,} times.", node.span)
    if template.appended:
        name = sorted(template.appended)[0]
        hint = "declare the cache in the block, for one in each repetition"
        raise Refused(f"Cache `{name}` would be appended to in every repetition.", node.span, hint)
    if not 1 <= len(results) <= len(given):
        returns, takes = plural(len(results), "value"), plural(len(given), "argument")
        message = f"Block `{template.name}` returns {returns} and takes {takes}."
        raise Refused(message, node.call.span, "a repeated block returns as many values as it carries")
    carried = template.parameters[: len(results)]
    for parameter, result in zip(carried, results, strict=True):
        if (parameter.dims, parameter.dtype) != (result.dims, result.dtype):
            message = f"A repetition takes {describe(parameter)} and hands on {describe(result)}."
            raise Refused(message, node.call.span, f"block `{template.name}` must return what it takes")
    prefix = _enter(body, template, node.span)
    inside = {p.name: f"{prefix}.{p.name}" for p in carried}
    outside = dict(zip(_names(template.parameters)[len(results) :], given[len(results) :], strict=True))
    names = _renaming(template, prefix, inside | outside)
    for parameter in carried:
        body.values[inside[parameter.name]] = replace(parameter, name=inside[parameter.name])
    region = _place(body, template, prefix, names)
    carries: list[Carry] = []
    for parameter, initial, result, target in zip(carried, given, results, targets, strict=False):
        body.values[target] = replace(result, name=target)
        following, region = _handed_on(body, region, names.get(result.name, result.name), carries, prefix)
        carries.append(Carry(initial, inside[parameter.name], following, target))
    body.items.append(Repeat(prefix, node.count, tuple(carries), region))
    return [carry.result for carry in carries]


def type_text(value: Value) -> str:
    """A value's type, as messages show it."""
    return f"`{value.dtype.value}[{','.join(value.dims)}]`"


def describe(value: Value) -> str:
    """A value with its type, as messages show it."""
    return f"`{value.name}: {value.dtype.value}[{','.join(value.dims)}]`"


def _handed_on(
    body: Body, region: Region[Op], name: str, earlier: Sequence[Carry], prefix: str
) -> tuple[str, Region[Op]]:
    """The value that a repetition hands on. It is made in the body and handed on once, so anything
    else is copied first."""
    if name in {made for item in region.items for made in makes(item)} and name not in {c.next for c in earlier}:
        return name, region
    copy = Map(body.fresh(f"{prefix}.return"), Operand(name))
    body.values[copy.result] = replace(body.value(name), name=copy.result)
    return copy.result, Region(region.stored, (*region.items, copy))


def _names(values: Sequence[Value]) -> list[str]:
    return [value.name for value in values]


def _checked(body: Body, call: Call, given: Sequence[str]) -> tuple[Template, tuple[Value, ...]]:
    """The block that is called and what it returns, once the arguments fit its parameters."""
    template = body.context.templates[call.function.name]
    if len(given) != len(template.parameters):
        takes = ", ".join(map(describe, template.parameters)) or "nothing"
        message = f"Block `{template.name}` takes {plural(len(template.parameters), 'argument')}, not {len(given)}."
        raise Refused(message, call.span, f"it takes {takes}")
    for parameter, name in zip(template.parameters, given, strict=True):
        value = body.value(name)
        if (value.dims, value.dtype) != (parameter.dims, parameter.dtype):
            message = f"Block `{template.name}` takes {describe(parameter)}, not {describe(value)}."
            raise Refused(message, call.span)
    if template.results is None:
        raise Broken
    return template, template.results


def _enter(body: Body, template: Template, span: Span) -> str:
    """Account for one more call; returns the prefix for the names of its values."""
    body.context.count(len(template.values) + 2 * len(template.parameters), span)
    twice = template.appended & body.appended
    if twice:
        raise Refused(f"Cache `{sorted(twice)[0]}` is appended to twice.", span, "append once, and read the result")
    body.appended |= template.appended
    body.depth = max(body.depth, template.depth + 1)
    if body.depth > MAX_DEPTH:
        raise Refused(f"Calls are nested more than {MAX_DEPTH} deep.", span)
    return body.prefix(template.name)


def _renaming(template: Template, prefix: str, arguments: Mapping[str, str]) -> dict[str, str]:
    return {value.name: f"{prefix}.{value.name}" for value in template.values} | dict(arguments)


def _place(body: Body, template: Template, prefix: str, names: Mapping[str, str]) -> Region[Op]:
    """The region of a block under new names, its values, pins and calls taken over by `body`."""
    for value in template.values:
        chosen = tuple(replace(one, mask=names.get(one.mask, one.mask)) for one in value.chosen)
        body.values[names[value.name]] = replace(value, name=names[value.name], chosen=chosen)
    body.pins += [replace(pin, value=names.get(pin.value, pin.value)) for pin in template.pins]
    body.blocks += [prefix, *(f"{prefix}.{inner}" for inner in template.blocks)]
    return _region(template.region, prefix, names)


def _region(region: Region[Op], prefix: str, names: Mapping[str, str]) -> Region[Op]:
    stored = tuple(replace(s, value=names[s.value]) for s in region.stored)
    return Region(stored, tuple(_item(item, prefix, names) for item in region.items))


def _item(item: Op | Repeat[Op], prefix: str, names: Mapping[str, str]) -> Op | Repeat[Op]:
    def new(name: str) -> str:
        return names.get(name, name)

    match item:
        case Repeat(name, count, carries, inner):
            renamed = (Carry(*map(new, (c.initial, c.inside, c.next, c.result))) for c in carries)
            return Repeat(f"{prefix}.{name}", count, tuple(renamed), _region(inner, prefix, names))
        case op:
            return replace(with_operands(op, names), result=new(op.result))
