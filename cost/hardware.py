"""Hardware: what a chip can do a second, and the time that work takes on it.

A preset is a TOML file beside this one; a user's own file looks the same. The network of a mesh of
such chips is in `network`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from ..ir.collective import CollectiveKind
from ..ir.diagnostics import Source, did_you_mean, fail
from ..ir.dtype import Dtype
from ..ir.record import record
from ..ir.text.read import read_source
from .arithmetic import Arithmetic
from .elementwise import larger, root_of_squares
from .hardware_file import HARDWARE, MEASURED_KINDS, Tables, file_text, place_of, read_slices, read_tables
from .ops import FP8_KERNELS, Work

BORROWED_ERROR = 0.25  # of log(predicted / measured), for a chip with the shares of another
LANES = 128  # of a tile in a TPU's memory, whatever the type
PRESETS = Path(__file__).parent / "presets"
MEASURED = "-measured"  # ends the name of hardware whose calibrated figures were fitted to measurements


class Convention(StrEnum):
    """How the network is seen."""

    FLAT = "flat"  # one bandwidth for a chip, no latency: Pope et al. 2022, appendix A.1
    LINKS = "links"  # each axis of the mesh has links of its own, and steps take time


class Wrap(StrEnum):
    """When the axes of a torus close into rings."""

    CUBES = "cubes"  # all of them, when the slice is made of whole cubes of `wrap_axis_chips` a side
    FULL_AXIS = "full-axis"  # an axis of exactly `wrap_axis_chips`
    ALWAYS = "always"
    NEVER = "never"


class Rule(StrEnum):
    """What an op takes, given the seconds of its arithmetic and of its HBM traffic."""

    MAX = "max"
    SUM = "sum"
    ROOT_OF_SQUARES = "root-of-squares"


@record
class Torus:
    """Chips with links to their neighbours along each of `dimensions` axes.

    `link_bytes_per_s`: one link, one direction. `slices`: the shapes of slice that are offered, sides from the
    shortest up, without those of one chip; `slice_step_chips`: those whose sides are all multiples of it are, too.
    With neither all shapes count as offered.
    """

    dimensions: int
    link_bytes_per_s: float
    wrap: Wrap
    largest_slice_chips: int
    wrap_axis_chips: int = 1
    slices: tuple[tuple[int, ...], ...] = ()
    slice_step_chips: int | None = None

    def offers(self, sides: Sequence[int]) -> bool:
        """Whether a slice of such sides is offered, in whatever order they stand."""
        shape = tuple(sorted(side for side in sides if side > 1))
        step = self.slice_step_chips
        if not self.slices and step is None:
            return True
        whole = step is not None and len(shape) == self.dimensions and all(side % step == 0 for side in shape)
        return shape in self.slices or (whole and prod(shape) <= self.largest_slice_chips)


@record
class Switch:
    """Nodes of `node_chips` chips behind a switch. `link_bytes_per_s`: of a chip, one direction."""

    node_chips: int
    link_bytes_per_s: float


@record
class Host:
    """The machine that some chips are plugged into, and its memory, where what these do not hold may be stored.

    Rates are those of all its chips together: of DRAM and of NVMe, 0 where it has none. `link_bytes_per_s`: of a link
    to the chips, one direction; `link_chips` share it. `host_chips`: that the host has.
    """

    dram_bytes: float
    dram_bytes_per_s: float
    link_bytes_per_s: float
    host_chips: int
    link_chips: int = 1
    nvme_bytes: float = 0.0
    nvme_bytes_per_s: float = 0.0


@record
class TpuCompiler:
    """What the TPU's compiler calls a chip. `topology`: the first part of the names of its slices, as in `v5e:4x8`;
    `config`: how it sees the cores of a chip, None where its default is one device for each chip. `program_hbm_bytes`:
    what it lets a program use of the HBM, less what no plan counts; None for all. `gathers`: `ahead`, where what is
    gathered next is under way while something is computed, and has its room by then."""

    topology: str
    config: str | None = None
    program_hbm_bytes: float | None = None
    gathers: str = "in-turn"


@record
class Protocols:
    """What a collective of one kind takes behind a switch, as measured: the quicker of two protocols.

    Each chip waits `start_s` and `member_s` for each of the others. Then what it sends goes at `share` of the
    rate of its link; or, `bulk_start_s` later, at `bulk_share`. None: there is one protocol.
    """

    start_s: float
    member_s: float
    share: float
    bulk_start_s: float | None = None
    bulk_share: float | None = None


@record
class Engine:
    """What a program that serves a model takes beside what the chips do: of a step, and of each repetition of a
    repeat. `quantises`: the types of few bits in which its kernels multiply what has them by other values, which they
    bring to these on the way; all else is done as a module does it. `all_reduce`: its own all-reduce among chips of one
    node behind a switch, None where it has the chip's; over nodes it has that anyway, as vLLM has, whose own reaches no
    further than memory that chips read of each other. `error`: as of Calibrated, of whole steps with this engine, 0
    where none were measured. They ran on some chip, which need not be the one that is planned for: so a prediction is
    as sure as the less sure of engine and chip."""

    name: str
    step_s: float = 0.0
    layer_s: float = 0.0
    quantises: tuple[Dtype, ...] = ()
    all_reduce: Protocols | None = None
    error: float = 0.0


@record
class Calibrated:
    """What was measured: how the two times of an op combine, the shares of the peaks that are
    reached, and the seconds that a collective takes whatever it carries.

    `hop_latency_s`: of each of its steps from chip to chip, None where the datasheet's figure stands.
    `axes_at_once`: along how many axes of a torus a collective uses the links at once, None for all;
    over more it goes in stages. `kernel_s`: what a kernel takes beside its work. `attention_efficiency`: the
    share of the HBM rate at which caches are read, None where it is that of all else. `fp8_efficiency`: of the
    peaks of fp8 and fp4, None where it is that of bf16. `error`: the root mean square of
    log(predicted / measured) over what the figures were fitted to, 0 where nothing was.
    """

    op_rule: Rule = Rule.MAX
    compute_efficiency: float = 1.0
    hbm_efficiency: float = 1.0
    network_efficiency: float = 1.0
    collective_latency_s: float = 0.0
    hop_latency_s: float | None = None
    axes_at_once: int | None = None
    kernel_s: float = 0.0
    attention_efficiency: float | None = None
    fp8_efficiency: float | None = None
    error: float = 0.0


@record
class Hardware:
    """One chip and its network, and what serves on it.

    `peak_flops_per_s` is dense bf16, or f16 where the chip has no bf16 (`peak_dtype`). `peak_f32_flops_per_s`: of
    products of f32 as XLA does them where no precision is asked for, as modules do not: in TF32 on GPUs that have
    it, in bf16, None here, on TPUs. `network_bytes_per_s` is all that a chip can send, the one bandwidth of the
    flat convention. `between_bytes_per_s` is what a chip can send to other nodes or slices, None where that is not
    known. Latencies count in the links convention only. `measured_like`: the preset of the nearest chip that was
    measured, whose shares and latencies count where none are known of this one. `matmul_share`: the share of the
    peak that its large matmuls are published to reach; it counts in the place of that chip's. `protocols`: what
    collectives behind a switch take, of the kinds that were measured, without what `engine` has of its own.
    `engine`: what serves. `priced_on`: when the price held. `host`: None where that is not known. `tpu_compiler`:
    None where there is none.
    """

    name: str
    peak_flops_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    network_bytes_per_s: float
    fabric: Torus | Switch
    peak_int8_ops_per_s: float | None = None
    peak_f32_flops_per_s: float | None = None
    peak_fp8_flops_per_s: float | None = None
    peak_fp4_flops_per_s: float | None = None
    matmul_share: float | None = None
    dollars_per_chip_hour: float | None = None
    priced_on: str | None = None
    between_bytes_per_s: float | None = None
    hop_latency_s: float = 0.0
    measured_like: str | None = None
    calibrated: Calibrated = field(default_factory=Calibrated)
    convention: Convention = Convention.LINKS
    protocols: tuple[tuple[CollectiveKind, Protocols], ...] = ()
    engine: Engine | None = None
    host: Host | None = None
    tpu_compiler: TpuCompiler | None = None
    peak_dtype: Dtype = Dtype.BF16

    @classmethod
    def load(cls, name: str, datasheet: bool = False) -> Hardware:
        """The preset called `name` with the figures fitted to measurements of that chip, or of the chip that its
        file names as the nearest that was measured; with `datasheet` as its file says. Or the hardware of the file
        `name` when that ends in `.toml`.

        Raises InputError when there is no such preset or file, or with all that is wrong in the file.
        """
        if name.endswith(".toml"):
            own = parse_hardware(read_source(Path(name)))
            return own if datasheet else _like(own)
        if datasheet:
            return _preset(name)
        if name + MEASURED in presets():
            return _preset(name + MEASURED)
        return _like(_preset(name))

    @classmethod
    def of_paper(cls, name: str) -> Hardware:
        """The preset called `name` in the convention of Pope et al. 2022, appendix A.1: at its peaks, with one
        bandwidth for a chip and no latency."""
        return cls.load(name, datasheet=True).with_network(Convention.FLAT)

    @property
    def room_bytes(self) -> float:
        """What a program may use of the HBM of a chip: what its compiler leaves, where that is known and the network is
        seen as it is; in the paper's convention all of it."""
        most = self.tpu_compiler.program_hbm_bytes if self.tpu_compiler else None
        paper = self.convention is Convention.FLAT
        return self.hbm_bytes if most is None or paper else min(self.hbm_bytes, most)

    @property
    def lanes(self) -> int:
        """How many places of the last dim of a value stand side by side in memory: those of a tile, or 1."""
        return LANES if self.tpu_compiler else 1

    @property
    def fuses_products(self) -> bool:
        """Whether products that are never there, as `cost.products` has it of the TPU's compiler, take no room: where
        it gathers ahead, what comes next takes about as much."""
        return self.tpu_compiler is not None and self.tpu_compiler.gathers == "in-turn"

    @property
    def at_peaks(self) -> bool:
        """Whether nothing was measured, so that peaks count as if they were reached."""
        return self.ops_at_peaks and self.links_at_peak and not self.protocols

    @property
    def ops_at_peaks(self) -> bool:
        """Whether nothing was measured of what ops take."""
        return self.calibrated.compute_efficiency == self.calibrated.hbm_efficiency == 1.0

    @property
    def links_at_peak(self) -> bool:
        """Whether the rate of links is the datasheet's, for collectives without protocols of their own."""
        return self.calibrated.network_efficiency == 1.0

    @property
    def unmeasured_kinds(self) -> tuple[CollectiveKind, ...]:
        """Of the kinds of collectives that can be measured those that were not among chips of one node, as the network
        is seen."""
        own = self.protocols_over(nodes=False) if self.convention is Convention.LINKS else {}
        kinds = (CollectiveKind(kind) for kind in MEASURED_KINDS)
        return tuple(kind for kind in kinds if kind not in own) if self.links_at_peak else ()

    def protocols_over(self, nodes: bool) -> Mapping[CollectiveKind, Protocols]:
        """What collectives behind a switch take, of the kinds that were measured: those over several `nodes`, or those
        of one node, where an engine's own all-reduce is in the place of the chip's. None on a torus."""
        if not isinstance(self.fabric, Switch):
            return {}
        own = None if nodes or self.engine is None else self.engine.all_reduce
        return dict(self.protocols) | ({} if own is None else {CollectiveKind.ALL_REDUCE: own})

    def with_network(self, convention: str | None) -> Hardware:
        """The same chip with its network seen by another convention, `flat` or `links`; None leaves its own."""
        return self if convention is None else replace(self, convention=Convention(convention))

    def with_figures(self, **figures: Any) -> Hardware:
        """The same chip with other figures in `calibrated`."""
        return replace(self, calibrated=replace(self.calibrated, **figures))

    def with_price(self, dollars_per_chip_hour: float | None) -> Hardware:
        """The same chip at another price; None leaves its own."""
        if dollars_per_chip_hour is None:
            return self
        return replace(self, dollars_per_chip_hour=dollars_per_chip_hour, priced_on=None)

    def with_engine(self, engine: Engine | None) -> Hardware:
        """The same chip under a serving engine; None leaves it bare."""
        return replace(self, engine=engine)

    @property
    def chip(self) -> str:
        """The name of the chip, whether its figures are the datasheet's or measured."""
        return self.name.removesuffix(MEASURED)

    @property
    def hop_s(self) -> float:
        """Seconds of a collective's step from chip to chip: as measured, or else the datasheet's."""
        measured = self.calibrated.hop_latency_s
        return self.hop_latency_s if measured is None else measured

    def peak(self, dtype: Dtype = Dtype.BF16) -> float:
        """The flops a second that are reached in the arithmetic of a type; that of bf16 where the chip has no other."""
        found, share = self.calibrated, self.calibrated.compute_efficiency
        if dtype in self.narrow_peaks and found.fp8_efficiency is not None:
            share = found.fp8_efficiency
        return self.peaks.get(dtype, self.peak_flops_per_s) * share

    @property
    def peaks(self) -> dict[Dtype, float]:
        """The peaks of the arithmetic in types that have one of their own, in flop/s."""
        wide = {} if self.peak_f32_flops_per_s is None else {Dtype.F32: self.peak_f32_flops_per_s}
        return wide | self.narrow_peaks

    @property
    def narrow_peaks(self) -> dict[Dtype, float]:
        """The peaks of the arithmetic in types of fewer bits than bf16 that the chip has, in flop/s."""
        peaks = {Dtype.FP8: self.peak_fp8_flops_per_s, Dtype.FP4: self.peak_fp4_flops_per_s}
        return {dtype: peak for dtype, peak in peaks.items() if peak is not None}

    def done_in(self, arithmetic: Arithmetic) -> Dtype:
        """The type in which a product is done: as a module does it, or in that of fewer bits to which the engine brings
        its factors, where the chip has arithmetic in this."""
        types = () if self.engine is None else self.engine.quantises
        fewer = arithmetic.fewer
        return arithmetic.dtype if fewer is None or fewer not in types or fewer not in self.narrow_peaks else fewer

    def compute_s(self, flops: Any, dtype: Dtype = Dtype.BF16) -> Any:
        """Seconds of arithmetic."""
        return flops / self.peak(dtype)

    def memory_s(self, hbm_bytes: Any, cache_bytes: Any = 0) -> Any:
        """Seconds of HBM traffic, of which `cache_bytes` are read from caches."""
        found = self.calibrated
        seconds = hbm_bytes / (self.hbm_bytes_per_s * found.hbm_efficiency)
        if found.attention_efficiency is None:
            return seconds
        slower = 1 / found.attention_efficiency - 1 / found.hbm_efficiency
        return seconds + cache_bytes * slower / self.hbm_bytes_per_s

    def compute_bound_tokens(self, weight_bytes: float) -> float:
        """The tokens of a batch from which on a matmul takes longer to do than its weights, of so many bytes each, to
        read (J. Austin et al., How to Scale Your Model, 2025: rooflines)."""
        return float(self.memory_s(weight_bytes) / self.compute_s(2))

    def launch_s(self, work: Work) -> float:
        """Seconds of an op beside its work: the kernel that starts with it, and what the engine takes."""
        engine_s = 0.0 if self.engine is None else work.layers * self.engine.layer_s + work.steps * self.engine.step_s
        return self.kernels_s(work) + engine_s

    def kernels_s(self, work: Work) -> float:
        """Seconds in which the kernels of an op start."""
        return self.kernels(work) * self.calibrated.kernel_s

    def kernels(self, work: Work) -> int:
        """How many kernels start with an op, with one that brings an operand to fewer bits where the engine does so."""
        brought = self.done_in(work.arithmetic) is not work.arithmetic.dtype
        return work.kernels * (FP8_KERNELS if brought else 1)

    def work_s(self, work: Work) -> Any:
        """Seconds of an op on one chip; numbers, arrays or symbols."""
        compute = self.compute_s(work.flops, self.done_in(work.arithmetic))
        memory = self.memory_s(work.hbm_bytes, work.cache_bytes)
        return self.launch_s(work) + self.together_s(compute, memory)

    def together_s(self, compute_s: Any, memory_s: Any) -> Any:
        """Seconds of an op by those of its arithmetic and of its HBM traffic."""
        match self.calibrated.op_rule:
            case Rule.MAX:
                return larger(compute_s, memory_s)
            case Rule.SUM:
                return compute_s + memory_s
            case Rule.ROOT_OF_SQUARES:
                return root_of_squares(compute_s, memory_s)


def presets() -> tuple[str, ...]:
    """The names of the shipped hardware files, sorted."""
    return names_in(PRESETS)


def names_in(folder: Path) -> tuple[str, ...]:
    """The names of the files of figures in a folder, sorted."""
    return tuple(sorted(file.stem for file in folder.iterdir() if file.suffix == ".toml"))


def _like(hardware: Hardware) -> Hardware:
    """A chip with the shares and latencies of the one that it is measured like, if there is one and it has none of its
    own, with which it is like no other."""
    if hardware.measured_like is None or not hardware.at_peaks:
        return replace(hardware, measured_like=None)
    other = _preset(hardware.measured_like)
    error = max(other.calibrated.error, BORROWED_ERROR)
    share = hardware.matmul_share or other.calibrated.compute_efficiency
    borrowed = replace(other.calibrated, error=error, compute_efficiency=share)
    return replace(hardware, calibrated=borrowed, protocols=other.protocols)


@lru_cache(maxsize=64)
def _preset(name: str) -> Hardware:
    if name not in presets():
        known = ", ".join(presets())
        hint = did_you_mean(name, presets()) or f"known: {known}; or a file of your own, `NAME.toml`"
        raise fail(f"There is no hardware preset `{name[:60]}`.", hint=hint)
    text = (PRESETS / f"{name}.toml").read_text(encoding="utf-8")
    return parse_hardware(Source(f"{name}.toml", text))


def parse_hardware(source: Source) -> Hardware:
    """The hardware that a TOML text describes. Raises InputError with all that is wrong in it."""
    tables: Tables = read_tables(source)
    _check_like(source, tables[""].get("measured_like"))
    calibrated = dict(tables.get("calibrated", {}))
    if "op_rule" in calibrated:
        calibrated["op_rule"] = Rule(calibrated["op_rule"])
    fabric: Torus | Switch
    if "torus" in tables:
        torus = tables["torus"]
        offered = read_slices(torus.get("slices", ""))
        fabric = Torus(**torus | {"wrap": Wrap(torus["wrap"]), "slices": offered})
    else:
        fabric = Switch(**tables["switch"])
    network = dict(tables["network"])
    if "convention" in network:
        network["convention"] = Convention(network["convention"])
    parts = tables[""] | tables["datasheet"] | network
    if "peak_dtype" in parts:
        parts["peak_dtype"] = Dtype(parts["peak_dtype"])
    measured = Calibrated(**calibrated)
    return Hardware(
        **parts,
        fabric=fabric,
        calibrated=measured,
        protocols=read_protocols(tables),
        host=Host(**tables["host"]) if "host" in tables else None,
        tpu_compiler=TpuCompiler(**tables["tpu-compiler"]) if "tpu-compiler" in tables else None,
    )


def _check_like(source: Source, like: str | None) -> None:
    """Raises InputError where a file names a chip that it is measured like, and that is none, or was not measured."""
    if like is None:
        return
    place = place_of(source, "", "measured_like")
    if like not in presets():
        measured = [name for name in presets() if name.endswith(MEASURED)]
        hint = did_you_mean(like, measured) or f"name one that was measured: {', '.join(measured)}"
        raise fail(f"There is no hardware preset `{like}`.", place, hint, source)
    if _preset(like).at_peaks:
        hint = f"name one that ends in `{MEASURED}`"
        raise fail(f"`measured_like` names {like}, of which nothing was measured.", place, hint, source)


def read_protocols(tables: Tables) -> tuple[tuple[CollectiveKind, Protocols], ...]:
    """What collectives take that a file has a table of."""
    return tuple((kind, Protocols(**tables[kind])) for kind in CollectiveKind if kind in tables)


def hardware_toml(hardware: Hardware, comments: Sequence[str], calibrated: Sequence[str]) -> str:
    """The text of a hardware file: `comments` at the top, `calibrated` above the figures that are."""
    fabric = "torus" if isinstance(hardware.fabric, Torus) else "switch"
    parts: dict[str, object] = {
        "": hardware,
        "datasheet": hardware,
        "network": hardware,
        fabric: hardware.fabric,
        **({} if hardware.host is None else {"host": hardware.host}),
        **({} if hardware.tpu_compiler is None else {"tpu-compiler": hardware.tpu_compiler}),
        "calibrated": hardware.calibrated,
        **dict(hardware.protocols),
    }
    return file_text(HARDWARE, parts, comments, {"calibrated": calibrated})
