"""Parameters that a checkpoint keeps as codes with scales, declared so in the text of a model.

A tensor that is kept in blocks of one scale each (`Kept`) becomes a parameter with a scale for each run of places,
along each of its dims, that lie in one block: in `Wd: int4[F,E] * f16[F128,E]` for every 128 of F. Where heads or parts
of a tensor begin within a block the runs are shorter, and parts of one block have the same scale twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from ...ir.diagnostics import Source
from ...ir.dtype import Dtype
from ...ir.program import Program
from ...ir.record import record
from ...ir.text.read import parse
from ...ir.text.surface import Block, Declaration, Dims, Ident, Item, Line, Main, Model, Type
from .parameter_parts import block_numbers
from .quantised import Quantised
from .weight_map import KEPT, Made, Parameter, WeightMap, parameters, tensors_of

Kept = tuple[tuple[int, ...], str]  # the shape of a tensor, and its codes, scales and blocks, like `int4 f16 1x128`


@record
class Codes:
    """How a parameter is stored: the types of codes and scales, how many places along each dim share one, and the type
    of zero points; None where there are none."""

    dtype: Dtype
    scale: Dtype
    each: tuple[int, ...]
    zero: Dtype | None = None


def coded(
    source: Source, program: Program, made: WeightMap, kept: Mapping[str, Kept]
) -> tuple[str, WeightMap, frozenset[str]]:
    """The text of an imported model with such parameters declared as codes, what they are made of, and the tensors of
    which they are. `kept`: those that are codes."""
    wanted, found = parameters(program), dict[tuple[str, str], Codes | None]()
    for name, one in wanted.items():
        own = codes_of(made[name], one, kept)
        found[_place(name)] = own if found.get(_place(name), own) == own else None
    into = {place: codes for place, codes in found.items() if codes is not None}
    lines = {name: Made(one.tensor, (KEPT, *_plain(one))) for name, one in made.items() if _place(name) in into}
    tensors = {t for name, one in wanted.items() if _place(name) in into for t in tensors_of(made[name], one)}
    return _text(source, parse(source), program, into), {**made, **lines}, frozenset(tensors)


def codes_of(one: Made, parameter: Parameter, kept: Mapping[str, Kept]) -> Codes | None:
    """How a parameter is stored, all of whose tensors are kept alike; None for any other."""
    tensors = tensors_of(one, parameter)
    if not all(name in kept for name in tensors) or len({kept[name] for name in tensors}) != 1:
        return None
    shape, said = kept[tensors[0]]
    code, scale, _, *zero = said.split()
    counted = one.counters - len(parameter.counts)
    first = one.at([0] * one.counters)
    each = (*(1 for _ in range(counted)), *runs(shape, said, _plain(first), parameter.shape[counted:]))
    return Codes(Dtype(code), Dtype(scale), each, Dtype(zero[0]) if zero else None)


def kept_by_config(program: Program, made: WeightMap, quantised: Quantised) -> dict[str, Kept]:
    """What the tensors of a model are kept as, by its config alone: those of parameters that are declared in few bits.
    Their shapes follow from those of the parameters; of a matrix with other steps than these nothing is said."""
    values, found = program.table(), dict[str, Kept]()
    wanted = {name: one for name, one in parameters(program).items() if values[name].dtype is quantised.dtype}
    shapes = {name: one.shape[made[name].counters - len(one.counts) :] for name, one in wanted.items()}
    behind: dict[str, int] = {}  # how wide the last dim of a tensor is, where a part of it goes up to the end
    for name, own in shapes.items():
        for step in made[name].steps:
            if step.startswith("after "):
                width = math.prod(own[1:]) // _heads(made[name]) if _heads(made[name]) > 1 else own[-1]
                behind[made[name].tensor] = int(step.split()[1]) + width
    for name, one in wanted.items():
        shape = _tensor_shape(made[name], shapes[name], behind.get(made[name].tensor, 0))
        if shape is not None:
            turned = "transpose" in made[name].steps
            each = quantised.blocks if turned else quantised.blocks[::-1]
            last = (each[0] or shape[-2], each[1] or shape[-1])
            blocks = "x".join(map(str, (*(1 for _ in shape[2:]), *last)))
            said = f"{quantised.dtype.value} {quantised.scale.value} {blocks}"
            said += f" {quantised.dtype.value}" if quantised.zeros else ""
            found |= dict.fromkeys(tensors_of(made[name], one), (shape, said))
    return found


def _heads(one: Made) -> int:
    """Into how many heads its steps split the last dim."""
    return math.prod(int(step.split()[1]) for step in one.steps if step.startswith("heads "))


def _tensor_shape(one: Made, own: tuple[int, ...], behind: int) -> tuple[int, ...] | None:
    """The shape of the tensor that a parameter of shape `own` is made of; `behind`: the width of which `first` takes a
    part, where another parameter goes up to its end."""
    turned, heads = "transpose" in one.steps, _heads(one)
    if len(own) < 2 or (heads > 1 and not turned):
        return None
    width = math.prod(own[1:]) // heads if heads > 1 else own[-1]
    for step in reversed(one.steps):
        match step.split():
            case ["part", _, "of", count] | ["every", count, "from", _] | ["heads", count]:
                width *= int(count)
            case ["after", count]:
                width += int(count)
            case ["first", count]:
                width = max(int(count), behind)
            case ["transpose"] | ["pairs"]:
                pass
            case _:
                return None
    if turned:
        return width, own[0] if heads > 1 else math.prod(own[:-1])
    return (*own[:-1], width)


def _plain(one: Made) -> tuple[str, ...]:
    """Its steps, without what makes numbers of codes."""
    return tuple(step for step in one.steps if step != KEPT and not step.startswith("scaled "))


def runs(shape: tuple[int, ...], said: str, steps: Iterable[str], own: tuple[int, ...]) -> tuple[int, ...]:
    """Along each dim of a parameter how many places lie in one block of a tensor, wherever they begin."""
    each = list(own)
    for number, order in block_numbers(shape, said, list(steps), own):
        moving = [axis for axis, step in enumerate(number.strides) if step and number.shape[axis] > 1]
        some = number[tuple(slice(None) if axis in moving else slice(0, 1) for axis in range(number.ndim))]
        if order is not None and order[1] % number.ndim in moving:
            some = np.take(some, order[0], order[1])
        for axis in moving:
            first = np.moveaxis(some, axis, 0)
            changes = np.flatnonzero((first[1:] != first[:-1]).reshape(len(first) - 1, -1).any(axis=1)) + 1
            each[axis] = math.gcd(each[axis], *changes.tolist())
    return tuple(each)


def _place(name: str) -> tuple[str, str]:
    """The block in which a parameter is declared, and what it is called there."""
    path, _, local = name.rpartition(".")
    return path.rpartition(".")[2].partition(":")[0], local.partition(":")[0]


def _text(source: Source, model: Model, program: Program, into: Mapping[tuple[str, str], Codes]) -> str:
    """The text with such declarations in place of its own, line by line, and the dims that these need."""
    sizes = dict(program.phases[0].sizes)
    dims = [dim for item in model.items if isinstance(item, Dims) for dim in item.dims]
    factors = {dim.name.name: tuple(f.name for f in dim.factors) for dim in dims if len(dim.factors) > 1}
    added: dict[str, str] = {}
    by_line: dict[int, list[str]] = {}
    for block, line in _declarations(model.items):
        out = list[Declaration]()
        for name in line.names:
            codes = into.get((block, name.name))
            one = replace(line, names=(name,))
            if codes is not None:
                one = _declared(one, codes, sizes, factors, added)
            if out and (out[-1].type, out[-1].scale, out[-1].zero) == (one.type, one.scale, one.zero):
                out[-1] = replace(out[-1], names=(*out[-1].names, name))
            else:
                out.append(one)
        by_line.setdefault(line.type.span.line, []).extend(map(_declaration_text, out))
    table, dtype = into.get(("", "table")), program.table()["table"].dtype.value if "table" in program.table() else ""
    wide = table is not None and dtype != Dtype.BF16.value  # rows of codes are in bf16 unless it is said
    lines, last = list[str](), 0
    for number, text in enumerate(source.text.splitlines(), 1):
        indent = text[: len(text) - len(text.lstrip())]
        new = by_line.get(number, [])
        same = not new or (len(new) == 1 and text.split("#")[0].strip() == new[0])
        text = text.replace("  x = take(table", f"  x: {dtype} = take(table") if wide else text
        lines += [text] if same else [indent + one for one in new]
        last = len(lines) if text.startswith("dim ") else last
    return "\n".join([*lines[:last], *added.values(), *lines[last:]]) + "\n"


def _declared(
    line: Declaration,
    codes: Codes,
    sizes: Mapping[str, int],
    factors: Mapping[str, tuple[str, ...]],
    added: dict[str, str],
) -> Declaration:
    """A declaration as one of codes; `added` takes up the dims that count groups."""
    span, each, dims = line.type.span, iter(codes.each), list[str]()
    for dim in line.type.dims:
        own = [(part, next(each)) for part in factors.get(dim.name, (dim.name,))]
        if all(n == 1 for _, n in own):
            dims.append(dim.name)
            continue
        for part, n in own:
            if 1 < n < sizes[part]:
                name = f"{part}{n}" if f"{part}{n}" not in sizes else f"{part}_{n}"
                added.setdefault(name, f"{f'dim {name} = {part} / {n}':<32}# groups of weights with one scale")
                dims.append(name)
            elif n == 1:
                dims.append(part)
    scale = Type(Ident(codes.scale.value, span), tuple(Ident(dim, span) for dim in dims), span)
    zero = None if codes.zero is None else replace(scale, dtype=Ident(codes.zero.value, span))
    return replace(line, type=replace(line.type, dtype=Ident(codes.dtype.value, span)), scale=scale, zero=zero)


def _declaration_text(line: Declaration) -> str:
    codes, zero, scale = (
        "" if one is None else f"{one.dtype.name}[{','.join(dim.name for dim in one.dims)}]"
        for one in (line.type, line.zero, line.scale)
    )
    stored = f"({codes} - {zero})" if zero else codes
    return f"{line.kind.value} {', '.join(n.name for n in line.names)}: {stored}" + (f" * {scale}" if scale else "")


def _declarations(items: Iterable[Item | Line], block: str = "") -> Iterable[tuple[str, Declaration]]:
    """All declarations, each with the block in which it stands."""
    for item in items:
        if isinstance(item, Declaration):
            yield block, item
        elif isinstance(item, Block):
            yield from _declarations(item.lines, item.name.name)
        elif isinstance(item, Main):
            yield from _declarations(item.lines)
