"""The forms of hardware and engine files: their tables and fields, what is wrong with one that differs, and how one
is written.

What the fields mean is said in `hardware`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..ir.diagnostics import Diagnostic, InputError, Source, Span, did_you_mean, fail
from ..ir.inert import comment, visible
from ..ir.mesh import DEFAULT_NAMES, MAX_CHIPS
from ..ir.record import record

Tables = dict[str, dict[str, Any]]  # by name of the table, "" for the top

LARGEST = 1e30  # of a figure: beyond it something was mistyped
SLOWEST = 1e3  # of a rate, a second: below it something was mistyped, and times are of more digits than anyone reads
LEAST_SHARE = 1e-6  # of a peak that is reached, likewise
LONGEST = 2_000  # characters of a line: a key of 50,000 parts takes tomllib minutes
MOST_FINDINGS = 50  # reported at once
LARGE = 1e6  # figures from here on are written as 4.5e10


@record
class Field:
    """A field: what its value must be, in words, and whether it must stand there.

    `form` is `number` (0 only where `zero`, at least `least`, at most `most`), `count` (at most `most`), `text`,
    `choice` or `slices`.
    """

    form: str
    required: bool = True
    zero: bool = False
    least: float = 0.0
    most: float = LARGEST
    choices: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """The values that the field takes, in words."""
        match self.form:
            case "text":
                return "a name of 1 to 60 printable characters"
            case "choice":
                return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
            case "slices":
                return 'shapes of slices as in "1 2x2 4x4x8"'
            case "count":
                return f"a whole number from 1 to {self.most:,.0f}"
        wanted = "a number, 0 or more" if self.zero else "a number above 0"
        if self.most != LARGEST:
            wanted += f" and at most {self.most:g}"
        return wanted if not self.least else f"{wanted}, {'if not 0 then ' * self.zero}{self.least:g} or more"

    def admits(self, value: object) -> bool:
        """Whether `value`, as TOML gives it, will do."""
        match self.form:
            case "text":
                return isinstance(value, str) and 0 < len(value) <= 60 and value.isprintable()
            case "choice":
                return isinstance(value, str) and value in self.choices
            case "slices":
                return isinstance(value, str) and len(value) < LONGEST and bool(SLICES.fullmatch(value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.form == "count" and not isinstance(value, int):
            return False
        return (self.zero and value == 0) or (value > 0 and self.least <= value <= self.most)


SLICES = re.compile(r"([1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){0,7}( |$))*")


def read_slices(text: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of `1 2x2 4x4x8`: sides from the shortest up, without those of one chip."""
    sides = (sorted(map(int, shape.split("x"))) for shape in text.split())
    return tuple(tuple(side for side in shape if side > 1) for shape in sides)


def slices_text(slices: tuple[tuple[int, ...], ...]) -> str:
    """Shapes as `read_slices` reads them."""
    return " ".join("x".join(map(str, shape)) or "1" for shape in slices)


NUMBER, MAYBE = Field("number"), Field("number", required=False)
RATE = Field("number", least=SLOWEST)
MAYBE_RATE = replace(RATE, required=False)
CHIPS = Field("count", most=MAX_CHIPS)
AXES = Field("count", most=len(DEFAULT_NAMES))  # no mesh has more
LATENCY = Field("number", required=False, zero=True, most=1.0)
SHARE = Field("number", required=False, least=LEAST_SHARE, most=1.0)
MOST_ERROR = 10.0  # of log(predicted / measured): predictions that are further off say nothing


@record
class Form:
    """The tables that a file may have, each with its fields, and those that it must have; `what` it is called.
    `one_of`: tables of which it has exactly one."""

    what: str
    tables: Mapping[str, Mapping[str, Field]]
    required: tuple[str, ...]
    one_of: tuple[str, ...] = ()


PROTOCOLS = {
    "start_s": replace(LATENCY, required=True),
    "member_s": replace(LATENCY, required=True),
    "share": replace(SHARE, required=True),
    "bulk_start_s": LATENCY,
    "bulk_share": SHARE,
}

TABLES: Mapping[str, Mapping[str, Field]] = {
    "": {"name": Field("text"), "measured_like": Field("text", required=False)},
    "datasheet": {
        "peak_flops_per_s": RATE,
        "peak_dtype": Field("choice", required=False, choices=("bf16", "f16")),
        "peak_int8_ops_per_s": MAYBE_RATE,
        "peak_f32_flops_per_s": MAYBE_RATE,
        "peak_fp8_flops_per_s": MAYBE_RATE,
        "peak_fp4_flops_per_s": MAYBE_RATE,
        "matmul_share": SHARE,
        "hbm_bytes": NUMBER,
        "hbm_bytes_per_s": RATE,
        "dollars_per_chip_hour": MAYBE,
        "priced_on": Field("text", required=False),
    },
    "network": {
        "network_bytes_per_s": RATE,
        "between_bytes_per_s": MAYBE_RATE,
        "hop_latency_s": LATENCY,
        "convention": Field("choice", required=False, choices=("flat", "links")),
    },
    "torus": {
        "dimensions": AXES,
        "link_bytes_per_s": RATE,
        "wrap": Field("choice", choices=("cubes", "full-axis", "always", "never")),
        "wrap_axis_chips": replace(CHIPS, required=False),
        "largest_slice_chips": CHIPS,
        "slices": Field("slices", required=False),
        "slice_step_chips": replace(CHIPS, required=False),
    },
    "switch": {"node_chips": CHIPS, "link_bytes_per_s": RATE},
    "host": {
        "dram_bytes": NUMBER,
        "dram_bytes_per_s": RATE,
        "link_bytes_per_s": RATE,
        "host_chips": CHIPS,
        "link_chips": replace(CHIPS, required=False),
        "nvme_bytes": Field("number", required=False, zero=True),
        "nvme_bytes_per_s": replace(MAYBE_RATE, zero=True),
    },
    "tpu-compiler": {
        "topology": Field("text"),
        "config": Field("text", required=False),
        "program_hbm_bytes": MAYBE,
        "gathers": Field("choice", required=False, choices=("in-turn", "ahead")),
    },
    "calibrated": {
        "op_rule": Field("choice", required=False, choices=("max", "sum", "root-of-squares")),
        "compute_efficiency": SHARE,
        "hbm_efficiency": SHARE,
        "network_efficiency": SHARE,
        "collective_latency_s": LATENCY,
        "hop_latency_s": LATENCY,
        "axes_at_once": replace(AXES, required=False),
        "kernel_s": LATENCY,
        "attention_efficiency": SHARE,
        "fp8_efficiency": SHARE,
        "error": Field("number", required=False, zero=True, most=MOST_ERROR),
    },
}
MEASURED_KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
HARDWARE = Form(
    "a hardware file",
    {**TABLES, **dict.fromkeys(MEASURED_KINDS, PROTOCOLS)},
    ("datasheet", "network"),
    ("torus", "switch"),
)
ENGINE = Form(
    "an engine's file",
    {
        "": {"name": Field("text")},
        "engine": {
            "step_s": LATENCY,
            "layer_s": LATENCY,
            "quantises": Field("choice", required=False, choices=("fp8", "fp8 fp4")),  # none has kernels of fp4 alone
            "error": TABLES["calibrated"]["error"],
        },
        "all-reduce": PROTOCOLS,
    },
    ("engine",),
)


def read_tables(source: Source, form: Form = HARDWARE) -> Tables:
    """The tables of a file, complete and of the right types.

    Raises InputError with every table and field that is unknown, missing or wrong, in source order.
    """
    found: list[Diagnostic] = []
    tables = _tables(_toml(source), form, source, found)
    for name in form.required:
        if name not in tables:
            found.append(Diagnostic(f"The table `[{name}]` is missing.", source=source))
    chosen = [name for name in form.one_of if name in tables]
    if form.one_of and len(chosen) != 1:
        held = "both" if chosen else "neither"
        hint = "say how the chips of a node or slice are linked in one of the two"
        listed = " and ".join(f"`[{name}]`" for name in form.one_of)
        found.append(Diagnostic(f"The file has {held} of the tables {listed}.", None, hint, source))
    for name, fields in tables.items():
        found += _fields(name, fields, form, source)
    if found:
        ordered = sorted(found, key=lambda d: (d.span is None, d.span.line if d.span else 0))
        raise InputError(ordered[:MOST_FINDINGS])
    return tables


def _toml(source: Source) -> dict[str, Any]:
    for number, line in enumerate(source.text.split("\n"), start=1):
        if len(line) > LONGEST:
            raise fail(f"The line has more than {LONGEST:,} characters.", Span(number, 1), source=source)
    try:
        return tomllib.loads(source.text)
    except RecursionError:
        raise fail("The file is not TOML: it is nested too deeply.", source=source) from None
    except ValueError as error:
        place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        span = Span(int(place[1]), int(place[2])) if place and place[1] else None
        reason = str(error)[: place.start()] if place else str(error)
        raise fail(f"The file is not TOML: {reason[:200]}.", span, source=source) from None


def _tables(toml: dict[str, Any], form: Form, source: Source, found: list[Diagnostic]) -> Tables:
    """The tables that are known, the fields at the top in a table of their own."""
    tables: Tables = {"": {}}
    known = [name for name in form.tables if name]
    for name, value in toml.items():
        if name in known and isinstance(value, dict):
            tables[name] = value
        elif name in known:
            hint = f"write `[{name}]` on a line, and its fields below"
            found.append(Diagnostic(f"`{name}` is a table.", place_of(source, "", name), hint, source))
        elif isinstance(value, dict):
            hint = did_you_mean(name, known) or f"the tables are {', '.join(known)}"
            span = place_of(source, name[:60], None)
            found.append(Diagnostic(f"There is no table `{name[:60]}` in {form.what}.", span, hint, source))
        else:
            tables[""][name] = value
    return tables


def _fields(table: str, fields: Mapping[str, Any], form: Form, source: Source) -> list[Diagnostic]:
    known, found = form.tables[table], []
    place = f"`[{table}]`" if table else "the top of the file"
    for name, value in fields.items():
        span = place_of(source, table, name)
        if name not in known:
            hint = did_you_mean(name, known) or _elsewhere(name, form) or f"it has {', '.join(known)}"
            found.append(Diagnostic(f"There is no field `{name[:60]}` in {place}.", span, hint, source))
        elif not known[name].admits(value):
            found.append(Diagnostic(f"`{name}` must be {known[name].wanted}.", span, source=source))
    missing = [n for n, field in known.items() if field.required and n not in fields]
    if table == "torus" and fields.get("wrap") in ("cubes", "full-axis") and "wrap_axis_chips" not in fields:
        missing.append("wrap_axis_chips")
    if table == "host" and fields.get("nvme_bytes") and not fields.get("nvme_bytes_per_s"):
        missing.append("nvme_bytes_per_s")
    header = place_of(source, table, None)
    found += [
        Diagnostic(f"The field `{n}` is missing from {place}.", header, f"it is {known[n].wanted}", source)
        for n in missing
    ]
    return found


def _elsewhere(name: str, form: Form) -> str | None:
    homes = (table for table, fields in form.tables.items() if name in fields)
    tables = [f"[{table}]" if table else "the top, before the tables" for table in homes]
    return f"it belongs in {tables[0]}" if tables else None


def place_of(source: Source, table: str, field: str | None) -> Span | None:
    """Where a field of a table is written, or the table's header; None where it is written otherwise."""
    return _places(source).get((table, field))


@lru_cache(maxsize=1)
def _places(source: Source) -> Mapping[tuple[str, str | None], Span]:
    """Where each field of each table is written first, and each table's header."""
    now, found = "", dict[tuple[str, str | None], Span]()
    for number, line in enumerate(source.text.split("\n"), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            now = header[1].strip()
            found.setdefault((now, None), Span(number, line.index(now, header.start(1)) + 1, len(now)))
        elif key := re.match(r"\s*([\w-]+)\s*=", line):
            found.setdefault((now, key[1]), Span(number, key.start(1) + 1, len(key[1])))
    return found


def file_text(form: Form, parts: Mapping[str, object], top: Sequence[str], above: Mapping[str, Sequence[str]]) -> str:
    """The text of a file whose tables say what `parts` have under the names of their fields. `top` and `above`:
    comments, at the top and above a table."""
    lines = _comments(top)
    for table, part in parts.items():
        if table:
            lines += ["", f"[{table}]"]
        lines += _comments(above.get(table, ()))
        found = {name: getattr(part, name) for name in form.tables[table]}
        lines += [f"{name} = {_value(value)}" for name, value in found.items() if value not in (None, ())]
    return "\n".join(lines) + "\n"


def _comments(texts: Sequence[str]) -> list[str]:
    """Texts as comments, a line each, whatever they hold."""
    return [comment(text) for text in texts]


def _value(value: str | float | tuple[str, ...] | tuple[tuple[int, ...], ...]) -> str:
    """A value as TOML has it."""
    if isinstance(value, tuple):
        value = " ".join(each if isinstance(each, str) else slices_text((each,)) for each in value)
    if isinstance(value, str):
        return '"' + visible(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, int) or abs(value) < LARGE:
        return repr(value)
    digits, exponent = f"{value:.15e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
