"""Tables of measured kernels and steps of GPUs: collectives, matmuls and decode steps, from CSV files.

Of a file the rows of one chip are taken: those whose `gpu` or `system` names it. What each column holds is said at
the three readers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ...cost.hardware import Switch
from ...cost.hardware_file import MEASURED_KINDS
from ...ir.collective import CollectiveKind
from ...ir.diagnostics import Diagnostic, InputError, Source, Span, fail
from ...ir.dtype import Dtype
from ...ir.record import record
from ...ir.text.read import read_source
from ..text.csv_lines import MOST_FINDINGS, Row, csv_rows
from .refusals import QUICKER

MOST_ROWS = 50_000
LARGEST = 1 << 40  # of a count
KINDS = {kind.replace("-", ""): kind for kind in MEASURED_KINDS}  # as written without dashes
DTYPES = {"bfloat16": Dtype.BF16, "bf16": Dtype.BF16, "half": Dtype.BF16, "float16": Dtype.BF16, "fp8": Dtype.FP8}
WEIGHTS = {**DTYPES, "int8": Dtype.INT8}


@record
class TimedCollective:
    """A collective over `chips` of one node; `bytes`: of the whole, that each ends with, or begins with."""

    kind: CollectiveKind
    chips: int
    bytes: float
    seconds: float
    place: Span

    @property
    def sent_bytes(self) -> float:
        """What each chip sends."""
        twice = 2 if self.kind is CollectiveKind.ALL_REDUCE else 1
        return twice * self.bytes * (self.chips - 1) / self.chips


@record
class TimedMatmul:
    """A matmul of `m` by `k` with `k` by `n`."""

    dtype: Dtype
    m: int
    n: int
    k: int
    seconds: float
    place: Span

    @property
    def flops(self) -> float:
        """Of its arithmetic."""
        return 2.0 * self.m * self.n * self.k

    @property
    def hbm_bytes(self) -> float:
        """Operands read and the result, in bf16, written."""
        return (self.m * self.k + self.k * self.n) * self.dtype.bits / 8 + 2.0 * self.m * self.n


@record
class TimedStep:
    """The time between the tokens of a model that serves `batch` sequences on `chips` chips by tensor parallelism.
    `input_tokens`, `output_tokens`: of each."""

    model: str
    weights: Dtype
    batch: int
    chips: int
    input_tokens: int
    output_tokens: int
    seconds: float
    place: Span


def _number(row: Row, name: str, least: float = 0.0) -> float:
    """A number above `least`; 1 where it is none, which is said."""
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if value > least and math.isfinite(value):
        return value
    row.complain(name, f"`{name}` must be a number above {least:g}, not `{row[name][:40]}`.")
    return 1.0


def _count(row: Row, name: str) -> int:
    """A whole number of at least 1."""
    value = _number(row, name)
    if value != int(value) or value > LARGEST:
        row.complain(name, f"`{name}` must be a whole number of at most 2^40, not `{row[name][:40]}`.")
        return 1
    return max(1, int(value))


SOCKET = re.compile("sxm[0-9]?")  # what a name that says nothing else stands for
SLOT = "pcie"


def _names(named: str, chip: str) -> bool:
    """Whether a row's `gpu` or `system` names the chip: the same family, nothing else that the chip's own name does not
    say, and both or neither in a slot, where links and clocks are others.

    `h100` and `h100_sxm` name h100, and `h100_pcie` and `h100_nvl` do not; `a100_80gb` names a100-80, not a100-40. A
    size of memory counts where the chip's name has one.
    """
    (family, *said), (own_family, *own) = _parts(named), _parts(chip)
    sized = any(part.isdigit() for part in own)
    told = {part for part in said if sized or not part.isdigit()}
    return family == own_family and told <= set(own) and (SLOT in told) == (SLOT in own)


def _parts(name: str) -> list[str]:
    family, *said = name.lower().replace("_", "-").split("-")
    return [family, *(part.removesuffix("gb") for part in said if not SOCKET.fullmatch(part))]


Timed = TypeVar("Timed")


def read_collectives(
    file: Path, chip: str, node: Switch, only: CollectiveKind | None = None
) -> tuple[tuple[TimedCollective, ...], int]:
    """The collectives of a file with the columns gpu, op_name, num_gpus, bytes and us (busbw_GBs may stand beside
    them, and has to agree); and how many rows are left out, as they are of one chip, which sends nothing. Where all
    are of `only` one kind there need be no op_name.

    Raises InputError with all that is wrong, with rows over more chips than a `node` has among that, where no row is of
    several chips, and where the sizes cannot be bytes or the times microseconds on the links of a node.
    """

    def one(row: Row) -> TimedCollective | None:
        name = row["op_name"] if "op_name" in row.cells else str(only)
        name = name.replace("_", "").replace("-", "")
        if name not in KINDS:
            row.complain("op_name", f"There is no collective `{row['op_name'][:40]}`.", f"they are {', '.join(KINDS)}")
            return None
        kind, chips = CollectiveKind(KINDS[name]), _count(row, "num_gpus")
        timed = TimedCollective(kind, chips, _number(row, "bytes"), _number(row, "us") * 1e-6, row.span)
        if chips > node.node_chips:
            message = f"This is over {chips:,} chips, and a node of {chip} has {node.node_chips}."
            row.complain("num_gpus", message, "leave out the rows over several nodes: what is fitted is within one")
        if "busbw_GBs" in row.cells:
            told = _number(row, "busbw_GBs", least=-1.0)  # 0 where it is rounded off
            rate = timed.sent_bytes / timed.seconds / 1e9
            if told > 1 and not 0.8 < rate / told < 1.25:
                message = f"The size and the time give {rate:.3g} GB/s, and `busbw_GBs` says {told:g}."
                row.complain("bytes", message, "sizes are in bytes, not in elements, and times in microseconds")
        return timed

    source = read_source(file)
    columns = ("gpu", *(() if only else ("op_name",)), "num_gpus", "bytes", "us")
    rows = _read(source, chip, columns, one)
    sending = tuple(row for row in rows if row.chips > 1)
    if not sending:
        hint = "`num_gpus` is how many GPUs a collective is over, at least 2"
        raise fail("All rows are of one chip, which sends nothing.", rows[0].place, hint, source)
    _refuse_units(sending, source, node.link_bytes_per_s)
    return sending, len(rows) - len(sending)


def _refuse_units(rows: Sequence[TimedCollective], source: Source, link_bytes_per_s: float) -> None:
    """Raise InputError where the rates that sizes and times give are none that such links have."""
    best = max(rows, key=lambda row: row.sent_bytes / row.seconds)
    share = best.sent_bytes / best.seconds / link_bytes_per_s
    if share > QUICKER:
        hint = "sizes are in bytes and times in microseconds; or the chip's file has the link of another"
        raise fail(f"This is {share:.3g} times what a link carries.", best.place, hint, source)
    if max(row.bytes for row in rows) >= 2**26 and share < 0.45:
        hint = "sizes are in bytes, not in elements, and times in microseconds"
        raise fail(f"No collective reaches more than {share:.0%} of what a link carries.", best.place, hint, source)


def read_matmuls(file: Path, chip: str, peak_flops_per_s: float) -> tuple[TimedMatmul, ...]:
    """The matmuls of a file with the columns gpu, gemm_dtype, m, n, k and us.

    Raises InputError with all that is wrong, and where a time is shorter than `peak_flops_per_s` allows.
    """

    def one(row: Row) -> TimedMatmul | None:
        if row["gemm_dtype"] not in DTYPES:
            row.complain("gemm_dtype", f"There is no type `{row['gemm_dtype'][:40]}`.", f"known: {', '.join(DTYPES)}")
            return None
        m, n, k = _count(row, "m"), _count(row, "n"), _count(row, "k")
        return TimedMatmul(DTYPES[row["gemm_dtype"]], m, n, k, _number(row, "us") * 1e-6, row.span)

    source = read_source(file)
    rows = _read(source, chip, ("gpu", "gemm_dtype", "m", "n", "k", "us"), one)
    best = max(rows, key=lambda row: row.flops / row.seconds)
    if best.flops / best.seconds > QUICKER * peak_flops_per_s:
        message = f"This is {best.flops / best.seconds / peak_flops_per_s:.3g} times the chip's peak."
        raise fail(message, best.place, "times are in microseconds, and the peak is that of dense matrices", source)
    return rows


STEP_COLUMNS = (
    "model_path",
    "system",
    "gemm_quant_mode",
    "isl",
    "osl",
    "batch_size",
    "tp_size",
    "attention_dp_size",
    "tpot_ms",
)


def read_steps(file: Path, chip: str, models: Callable[[str], str | None]) -> tuple[tuple[TimedStep, ...], int]:
    """The decode steps of a file with the columns model_path, system, gemm_quant_mode, isl, osl, batch_size, tp_size,
    attention_dp_size and tpot_ms; and how many rows are left out.

    Taken are rows of models for which `models` has the name of one that is shipped, without data parallelism,
    with more output than input: in others the time between tokens has prefills of other requests in it.
    """
    left_out = 0

    def one(row: Row) -> TimedStep | None:
        nonlocal left_out
        model, weights = models(row["model_path"]), WEIGHTS.get(row["gemm_quant_mode"])
        lengths = _count(row, "isl"), _count(row, "osl")
        if model is None or weights is None or _number(row, "attention_dp_size") != 1 or lengths[1] <= lengths[0]:
            left_out += 1
            return None
        chips, batch = _count(row, "tp_size"), _count(row, "batch_size")
        return TimedStep(model, weights, batch, chips, *lengths, _number(row, "tpot_ms") * 1e-3, row.span)

    return _read(read_source(file), chip, STEP_COLUMNS, one), left_out


def _read(source: Source, chip: str, columns: Sequence[str], one: Callable[[Row], Timed | None]) -> tuple[Timed, ...]:
    """The rows of `chip`, each as `one` makes it. Raises InputError with all that is wrong in the file."""
    found: list[Diagnostic] = []
    rows, others = [], dict[str, None]()
    for row in csv_rows(source, columns, (), found):
        named = row["gpu"] if "gpu" in row.cells else row["system"]
        if not _names(named, chip):
            others[named[:60]] = None
            continue
        made = one(row)
        if made is not None:
            rows.append(made)
        if len(rows) > MOST_ROWS:
            break
    if len(rows) > MOST_ROWS:
        found.append(Diagnostic(f"The file has more than {MOST_ROWS:,} rows.", None, None, source))
    if found:
        raise InputError(found[:MOST_FINDINGS])
    if not rows:
        hint = f"it has rows of {', '.join(f'`{name}`' for name in others)}" if others else None
        raise fail(f"The file has no row of `{chip}` to fit to.", None, hint, source)
    return tuple(rows)
