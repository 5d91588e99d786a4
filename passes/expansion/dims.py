"""Dims: what each stands for, and the sizes that the file, its phases and the settings give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ...ir.diagnostics import Span, listed
from ...ir.expr import Call, Const, Expr, Size
from ...ir.program import Phase
from ...ir.record import record
from ...ir.text.surface import Dim, Dims, Ident, Item, PhaseText
from ...ir.wraps import Wrap, slots_at
from .report import Refused, Report

MAX_SIZE = 2**40
MAX_RANK = 32  # dims of one value
MAX_ELEMENTS = 2**60  # of one value: more than a million chips hold, and exact wherever it is counted
MAX_PLACES = 2**31 - 1  # that are counted, as ids and in contexts: numbers of 32 bits
MAX_DIMS = 1000  # of a file
MAX_PHASES = 100  # of a file


@dataclass
class DimTable:
    """The dims of a file. A product of dims is replaced by its factors; all others are plain.

    `plain`: the size that the file gives each, None where it gives none. `alias`: for a dim that
    has the size of another, the one that has it of none. `factors`: the plain dims of a product, major to minor.
    `pads`: the declared dims that the file pads, with the sizes to which it does. `groups`: for a dim that counts
    groups of places of another, that one, how many places a group has, and where it is declared.
    """

    plain: dict[str, int | None] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    factors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pads: dict[str, tuple[int, Span]] = field(default_factory=dict)
    groups: dict[str, tuple[str, int, Span]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.plain or name in self.factors

    def __iter__(self) -> Iterator[str]:
        yield from self.plain
        yield from self.factors

    def expand(self, names: Iterable[str]) -> tuple[str, ...]:
        """The plain dims that a list of dims stands for."""
        return tuple(plain for name in names for plain in self.factors.get(name, (name,)))

    def root(self, name: str) -> str:
        """The dim whose size `name` has in the end: itself, or what it is an alias of."""
        return self.alias.get(name, name)

    def sized(self, name: str, sizes: Mapping[str, int | None]) -> int | None:
        """The size of a plain dim where those of which others follow have `sizes`, of groups as many as are whole."""
        if name not in self.groups:
            return sizes.get(self.root(name))
        base, each, _ = self.groups[name]
        size = sizes.get(self.root(base))
        return None if size is None else size // each

    def distinct(self, names: Sequence[Ident]) -> tuple[str, ...]:
        """The plain dims of a list of known dims; raises Refused when one stands twice."""
        seen: dict[str, str] = {}  # plain dims, each with what stands for it
        for ident in names:
            for plain in self.expand([ident.name]):
                if plain in seen:
                    hint = f"for two dims of one size declare an alias, as in `dim {plain}2 = {plain}`"
                    products = dict.fromkeys(n for n in (seen[plain], ident.name) if n != plain)
                    factor = f", as a factor of {' and of '.join(f'`{n}`' for n in products)}" if products else ""
                    raise Refused(f"Dim `{plain}` stands here twice{factor}.", ident.span, hint)
                seen[plain] = ident.name
        if len(seen) > MAX_RANK:
            raise Refused(f"A value has at most {MAX_RANK} dims.", names[0].span)
        return self.expand(n.name for n in names)

    def single(self, ident: Ident, where: str) -> str:
        """A known dim that is no product; raises Refused otherwise."""
        if ident.name in self.factors:
            raise Refused(f"{where} takes a dim of its own, and `{ident.name}` is a product of dims.", ident.span)
        return ident.name


def size_expr(names: Sequence[str]) -> Expr:
    """The product of the sizes of plain dims, as a number."""
    result: Expr | None = None
    for name in names:
        result = Size(name) if result is None else Call("multiply", (result, Size(name)))
    return Const(1.0) if result is None else result


def declare_dims(items: Iterable[Item], report: Report) -> DimTable:
    """The dims that a file declares, in order; a derived dim is made of dims declared before it."""
    dims = [dim for item in items if isinstance(item, Dims) for dim in item.dims]
    everything = {dim.name.name: [factor.name for factor in dim.factors] for dim in dims}
    table = DimTable()
    if len(dims) > MAX_DIMS:
        report.add(f"The file declares more than {MAX_DIMS:,} dims.", dims[MAX_DIMS].name.span)
        report.finish()
    for dim in dims:
        name = dim.name.name
        if name in table:
            report.add(f"Dim `{name}` is declared twice.", dim.name.span)
            continue
        if name == "calls":
            report.add("A dim cannot be called `calls`.", dim.name.span, "phases use that word for how often they run")
        if dim.pad is not None and dim.factors:
            hint = f"pad `{dim.factors[0].name}`, from which its size follows"
            report.add(f"Dim `{name}` has no size of its own to pad.", dim.name.span, hint)
        elif dim.pad is not None:
            table.pads[name] = dim.pad, dim.name.span
        if dim.size is not None and not 1 <= dim.size <= MAX_SIZE:
            report.add(out_of_range(f"Dim `{name}`", dim.size), dim.name.span)
        if not dim.factors:
            table.plain[name] = dim.size
        elif not _derive(table, dim, everything, report):
            table.plain[name] = 1  # so that nothing else is said about it
    return table


def _derive(table: DimTable, dim: Dim, everything: Mapping[str, Sequence[str]], report: Report) -> bool:
    """Enter an alias or a product; False, and a finding, when the dim is neither. `everything`: the dims of the file,
    each with those that it is made of."""
    name = dim.name.name
    known = True
    for factor in dim.factors:
        if factor.name in table:
            continue
        known = False
        if _made_of(factor.name, name, everything):
            hint = f"a dim is made of others; give `{name}` a size, or leave it to the phases"
            report.add(f"The size of dim `{name}` follows from itself.", factor.span, hint)
        elif factor.name in everything:
            hint = f"move the declaration of `{name}` below that of `{factor.name}`"
            report.add(f"Dim `{factor.name}` is not declared yet.", factor.span, hint)
        else:
            report.unknown("Dim", factor.name, factor.span, table)
    if not known:
        return False
    try:
        factors = table.distinct(dim.factors)
    except Refused as refused:
        report.refuse(refused)
        return False
    if dim.each is not None:
        return _group(table, dim, factors, report)
    if len(dim.factors) > 1:
        table.factors[name] = factors
        return True
    if len(factors) > 1:
        aliases = ", ".join(f"{factor}2 = {factor}" for factor in factors)
        hint = f"write `dim {aliases}`, then `dim {name} = {' * '.join(f'{factor}2' for factor in factors)}`"
        report.add(
            f"Dim `{name}` cannot be an alias of the product `{dim.factors[0].name}`.", dim.factors[0].span, hint
        )
        return False
    table.plain[name] = None
    table.alias[name] = table.root(factors[0])
    return True


def _made_of(name: str, part: str, everything: Mapping[str, Sequence[str]]) -> bool:
    """Whether a dim is `part`, or is made of it in the end."""
    found, left = {name}, [name]
    while left:
        new = [factor for factor in everything.get(left.pop(), ()) if factor not in found]
        found.update(new)
        left += new
    return part in found


def _group(table: DimTable, dim: Dim, base: Sequence[str], report: Report) -> bool:
    """Enter the groups of a dim; False, and a finding, where they cannot be."""
    [written], each = dim.factors, dim.each or 0
    if len(base) > 1 or base[0] in table.groups:
        kind = "a product" if len(base) > 1 else "groups themselves"
        report.add(f"Dim `{dim.name.name}` cannot count groups of `{written.name}`, which is {kind}.", written.span)
        return False
    if not 1 <= each <= MAX_SIZE:
        report.add(out_of_range("A group", each), dim.name.span)
        return False
    table.plain[dim.name.name] = None
    table.groups[dim.name.name] = base[0], each, dim.name.span
    return True


def check_groups(table: DimTable, phases: Iterable[Phase], report: Report) -> None:
    """Note dims that are not whole groups in a phase; `phases` have the sizes that are compiled, with padding."""
    bound = [(phase.name, dict(phase.sizes)) for phase in phases]
    for base, each, span in table.groups.values():
        for phase, sizes in bound:
            if sizes[base] % each:
                message = f"In phase `{phase}`, {base} = {sizes[base]} is no whole number of groups of {each}."
                report.add(message, span, f"choose `{base}` so that {each} divides it, padded or not")
                break


def out_of_range(what: str, size: int) -> str:
    """What is said of a size that no dim can have."""
    return f"{what} is larger than 2^40." if size > MAX_SIZE else f"{what} must be at least 1."


def bind_phases(
    table: DimTable, phases: Sequence[PhaseText], settings: Mapping[str, int], report: Report
) -> tuple[Phase, ...]:
    """The phases with a size for every plain dim. A file without phases gets one called `main`.

    `settings` override the sizes that the file and its phases give.
    """
    chosen = _settings(table, settings, report)
    if not phases:
        sizes = {name: size for name, size in table.plain.items() if size is not None} | chosen
        if missing := _missing(table, sizes):
            hint = f"give it one, as in `dim {missing[0]} = 64`, or add a phase, or set it for this run"
            report.add(f"Nothing gives a size to {_listed(missing)}.", Span(1, 1), hint)
            return ()
        return (_bound(table, "main", sizes, 1),)
    if len(phases) > MAX_PHASES:
        report.add(f"The file has more than {MAX_PHASES} phases.", phases[MAX_PHASES].name.span)
        report.finish()
    bound: list[Phase] = []
    names: set[str] = set()
    for phase in phases:
        if phase.name.name in names:
            report.add(f"Phase `{phase.name.name}` is declared twice.", phase.name.span)
        names.add(phase.name.name)
        sizes, calls = _bindings(table, phase, report)
        sizes |= chosen
        if missing := _missing(table, sizes):
            hint = f"add `{missing[0]} = ...` to the phase"
            report.add(f"Phase `{phase.name.name}` gives no size to {_listed(missing)}.", phase.name.span, hint)
        else:
            bound.append(_bound(table, phase.name.name, sizes, calls))
    return tuple(bound)


def rewrapped(
    table: DimTable,
    texts: Sequence[PhaseText],
    phases: Sequence[Phase],
    settings: Mapping[str, int],
    wraps: Sequence[Wrap],
    report: Report,
) -> tuple[Phase, ...]:
    """The phases, bound with `settings`, with the slots of caches that wrap at the contexts that these give: see
    `slots_at`. Slots that are set themselves, or whose size follows from other dims, stay as they are."""
    if not (wraps and settings):
        return tuple(phases)
    written = {phase.name: phase for phase in bind_phases(table, texts, {}, Report(report.source))}
    found = list[Phase]()
    for phase in phases:
        before, sizes = written.get(phase.name), dict(phase.sizes)
        if before is not None:
            slots = slots_at(wraps, dict(before.sizes), sizes)
            sizes |= {dim: n for dim, n in slots.items() if dim not in settings and not _follows(table, dim)}
        found.append(_bound(table, phase.name, sizes, phase.calls))
    return tuple(found)


def _settings(table: DimTable, settings: Mapping[str, int], report: Report) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for name, size in settings.items():
        if name not in table:
            report.unknown("Dim", name[:64], None, table)
        elif _follows(table, name):
            report.add(f"Dim `{name}` cannot be set: its size follows from other dims.", None, _derivation(table, name))
        elif not 1 <= size <= MAX_SIZE:
            report.add(out_of_range(f"The setting of dim `{name}`", size), None)
            chosen[name] = 1
        else:
            chosen[name] = size
    return chosen


def _follows(table: DimTable, name: str) -> bool:
    """Whether the size of a dim follows from those of others."""
    return name in table.alias or name in table.factors or name in table.groups


def _derivation(table: DimTable, name: str) -> str:
    if name in table.groups:
        return f"bind `{table.root(table.groups[name][0])}`, of which it counts groups"
    if name in table.alias:
        return f"bind `{table.root(name)}`, of which it is an alias"
    return f"bind its factors {_listed(table.factors[name])}"


def _bindings(table: DimTable, phase: PhaseText, report: Report) -> tuple[dict[str, int], int]:
    """The sizes that the file gives in one phase, and how often the phase runs."""
    given = {name: size for name, size in table.plain.items() if size is not None}
    calls, seen = 1, set[str]()
    for binding in phase.bindings:
        name, span = binding.name.name, binding.name.span
        if name in seen:
            report.add(f"Phase `{phase.name.name}` binds `{name}` twice.", span)
        elif name != "calls" and name not in table:
            report.unknown("Dim", name, span, table, words=("calls",))
        elif not 1 <= binding.value <= MAX_SIZE:
            report.add(out_of_range(f"`{name}` in phase `{phase.name.name}`", binding.value), binding.span)
            given[name] = 1
        elif name == "calls":
            calls = binding.value
        elif _follows(table, name):
            hint = _derivation(table, name)
            report.add(f"A phase cannot bind `{name}`: its size follows from other dims.", span, hint)
        elif table.plain[name] is not None:
            hint = f"declare it free, `dim {name}`, for phases to bind it"
            report.add(f"Dim `{name}` is fixed already, to {table.plain[name]}.", span, hint)
        else:
            given[name] = binding.value
        seen.add(name)
    return given, calls


def _missing(table: DimTable, sizes: Mapping[str, int]) -> list[str]:
    return [name for name in table.plain if name not in sizes and not _follows(table, name)]


def _listed(names: Sequence[str]) -> str:
    shown = listed(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _bound(table: DimTable, phase: str, sizes: Mapping[str, int], calls: int) -> Phase:
    return Phase(phase, tuple((name, table.sized(name, sizes) or 0) for name in table.plain), calls)


@record
class AtMost:
    """In every phase the size of `small` must be at most that of `large`; `hint` says what to do."""

    small: str
    large: str
    span: Span
    hint: str


@record
class Even:
    """In every phase the size of `dim` must be even."""

    dim: str
    span: Span


@record
class Pairs:
    """In every phase `dim` must have `count` pairs, for each of which there is a factor."""

    dim: str
    count: int
    span: Span


@record
class Unpadded:
    """The size of `dim` must be its true one; `why` says so after "padded, and"."""

    dim: str
    span: Span
    why: str


@record
class Holds:
    """The dims `over` have at least `count` elements in every phase."""

    over: tuple[str, ...]
    count: int
    span: Span


@record
class Kept:
    """A cache that wraps holds, in every phase, all that is seen of it."""

    wrap: Wrap
    span: Span


@record
class Numbered:
    """The places along the dims `over`, of all together, are told apart by numbers of 32 bits."""

    over: tuple[str, ...]
    span: Span | None


@record
class Counted:
    """Along `dim` the places of a context are counted."""

    dim: str
    span: Span


@record
class Slots:
    """Along `dim` a cache has slots that entries take by turns; their places are counted along `context`."""

    dim: str
    context: str
    span: Span


Constraint = AtMost | Even | Pairs | Unpadded | Holds | Kept | Numbered | Counted | Slots


@record
class Extent:
    """A value that has some dims, by its name and where it is made or declared."""

    dims: tuple[str, ...]
    name: str = field(compare=False)
    span: Span = field(compare=False)


def too_many(phase: str, name: str) -> str:
    """What is said of a value that has more elements than any can."""
    return f"In phase `{phase}`, `{name[:60]}` has more than 2^{MAX_ELEMENTS.bit_length() - 1} elements."


def check_extents(extents: Iterable[Extent], phases: Iterable[Phase], report: Report) -> None:
    """Note what is too large in a phase; `phases` have the sizes that are compiled, with padding."""
    bound = [(phase.name, dict(phase.sizes)) for phase in phases]
    for extent in extents:
        for phase, sizes in bound:
            if prod(sizes[dim] for dim in extent.dims) > MAX_ELEMENTS:
                report.add(too_many(phase, extent.name), extent.span)
                break


def check_numbers(constraints: Iterable[Constraint], phases: Iterable[Phase], report: Report) -> None:
    """Note what has too many places to count them; `phases` have the sizes that are compiled, with padding."""
    bound = [(phase.name, dict(phase.sizes)) for phase in phases]
    for constraint in dict.fromkeys(constraints):
        for phase, sizes in bound:
            if isinstance(constraint, Numbered) and prod(sizes[d] for d in constraint.over) > MAX_PLACES:
                have = " * ".join(f"{d} = {sizes[d]}" for d in constraint.over)
                hint = "places are numbers of 32 bits: choose it smaller, or go over fewer dims"
                report.add(f"In phase `{phase}`, {have} is more than {MAX_PLACES:,} places.", constraint.span, hint)
                break


def check_contexts(table: DimTable, constraints: Sequence[Constraint], report: Report) -> None:
    """Note where slots of a cache that wraps are taken for the places of a context."""
    found = [one for one in constraints if isinstance(one, Slots)]
    context = {one.dim: one.context for one in found}
    roots = {table.root(one.dim): one.context for one in found if table.root(one.dim) != table.root(one.context)}
    for one in dict.fromkeys(c for c in constraints if isinstance(c, Counted)):
        if of := context.get(one.dim) or roots.get(table.root(one.dim)):
            hint = f"places are those of `{of}`: a mask and `append` take `of={of}`, all else `{of}` itself"
            report.add(f"Along `{one.dim}` are slots of a cache that wraps, not places of a context.", one.span, hint)


def check_sizes(constraints: Iterable[Constraint], phases: Iterable[Phase], report: Report) -> None:
    """Note the phases whose sizes an op cannot take."""
    bound = [(phase.name, dict(phase.sizes)) for phase in phases]
    for constraint in dict.fromkeys(constraints):
        for phase, sizes in bound:
            match constraint:
                case AtMost(small, large, span, hint) if sizes[small] > sizes[large]:
                    what = f"{small} = {sizes[small]} is more than {large} = {sizes[large]}"
                    report.add(f"In phase `{phase}`, {what}.", span, hint)
                case Holds(over, count, span) if prod(sizes[d] for d in over) < count:
                    have = " * ".join(f"{d} = {sizes[d]}" for d in over)
                    report.add(
                        f"In phase `{phase}`, {count} are kept of {have}.", span, "keep at most as many as there are"
                    )
                case Kept(Wrap(query, slots, context, window) as wrap, span) if sizes[slots] < wrap.fewest(sizes):
                    what = f"a window of {window}" if window else "a mask without a window"
                    report.add(
                        f"In phase `{phase}`, {what} is longer than the cache: {slots} = {sizes[slots]} of "
                        f"{context} = {sizes[context]} places are kept, for {query} = {sizes[query]} new ones.",
                        span,
                        f"choose `{slots}` as large as `{context}`, or as the window and `{query}` less one together",
                    )
                case Even(dim, span) if sizes[dim] % 2:
                    report.add(f"In phase `{phase}`, {dim} = {sizes[dim]} is odd, and pairs are turned.", span)
                case Pairs(dim, count, span) if sizes[dim] // 2 != count:
                    have = f"{dim} = {sizes[dim]} has {sizes[dim] // 2} pairs"
                    message = f"In phase `{phase}`, {have}, and there are {count} factors of `longrope`."
                    report.add(message, span, "give as many factors as there are pairs")
                case _:
                    pass
