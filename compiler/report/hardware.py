"""Tables of what there is: the chips that are known, the shipped models, the layouts of a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from math import comb, perm, prod

from ...cost.hardware import Hardware, Host, Switch, Torus, Wrap, presets
from ...cost.hardware_file import slices_text
from ...ir.diagnostics import Diagnostic, InputError, did_you_mean, fail, plural
from ...ir.dtype import Dtype
from ...ir.layout import format_layout, parse_layout
from ...ir.mesh import Mesh
from ...ir.program import Kind, Program, Repeat, stored_in, walk
from ...ir.text.read import parse
from ...passes.expansion.dims import MAX_ELEMENTS, MAX_RANK, MAX_SIZE
from ...passes.expansion.expand import expand
from ...passes.layouts.space import tensor_space
from ...passes.layouts.strategies import live_axes
from ..plan.pipeline import model_names, model_source
from ..text.terminal import table

Row = tuple[str, ...]


def preset_table() -> str:
    """The presets with their key figures, a line each."""
    rows: list[Row] = [("name", "linked by", "Tflop/s", "HBM GB", "HBM GB/s", "link GB/s", "network GB/s")]
    for name in presets():
        chip = Hardware.load(name, datasheet=True)
        figures = (
            chip.peak_flops_per_s / 1e12,
            chip.hbm_bytes / 1e9,
            chip.hbm_bytes_per_s / 1e9,
            chip.fabric.link_bytes_per_s / 1e9,
            chip.network_bytes_per_s / 1e9,
        )
        rows.append((name, _fabric(chip), *map(_number, figures)))
    return "\n".join(table(rows, left=2)) + "\n"


def hardware_sheet(hardware: Hardware) -> str:
    """All figures of one chip: datasheet, network, its host where it has one, and what was calibrated."""
    parts = [hardware.name]
    for title, rows in (
        ("datasheet", _datasheet(hardware)),
        ("network", _network(hardware)),
        ("host", () if hardware.host is None else _host(hardware.host)),
        ("calibrated", _calibrated(hardware)),
    ):
        if listed := list(rows):
            parts += [f"\n{title}", *table(listed, left=2)]
    return "\n".join(parts) + "\n"


def _datasheet(chip: Hardware) -> Iterator[Row]:
    yield chip.peak_dtype.value, f"{_number(chip.peak_flops_per_s / 1e12)} Tflop/s"
    if chip.peak_int8_ops_per_s is not None:
        yield "int8", f"{_number(chip.peak_int8_ops_per_s / 1e12)} Top/s"
    if chip.peak_f32_flops_per_s is not None:
        yield "f32", f"{_number(chip.peak_f32_flops_per_s / 1e12)} Tflop/s"
    if chip.peak_fp8_flops_per_s is not None:
        yield "fp8", f"{_number(chip.peak_fp8_flops_per_s / 1e12)} Tflop/s"
    if chip.peak_fp4_flops_per_s is not None:
        yield "fp4", f"{_number(chip.peak_fp4_flops_per_s / 1e12)} Tflop/s"
    yield "HBM", f"{_number(chip.hbm_bytes / 1e9)} GB at {_number(chip.hbm_bytes_per_s / 1e9)} GB/s"
    if chip.room_bytes < chip.hbm_bytes:
        yield "for a program", f"{_number(chip.room_bytes / 1e9)} GB of it, as its compiler has it"
    if chip.dollars_per_chip_hour is not None:
        on = f", {chip.priced_on}" if chip.priced_on else ""
        yield "price", f"{_number(chip.dollars_per_chip_hour)} dollars an hour{on}"


def _network(chip: Hardware) -> Iterator[Row]:
    yield "linked by", _fabric(chip)
    yield "link", f"{_number(chip.fabric.link_bytes_per_s / 1e9)} GB/s in one direction"
    yield "all links", f"{_number(chip.network_bytes_per_s / 1e9)} GB/s a chip, the one bandwidth of `--network flat`"
    if chip.between_bytes_per_s is not None:
        yield "between", f"{_number(chip.between_bytes_per_s / 1e9)} GB/s a chip to other nodes or slices"
    yield "hop", f"{_number(chip.hop_latency_s * 1e6)} us"
    yield "seen as", f"{chip.convention}, unless `--network` says otherwise"
    match chip.fabric:
        case Torus() as torus:
            yield "rings", _rings(torus)
            yield "slice", f"at most {torus.largest_slice_chips} chips{_offered(torus)}"
        case Switch():
            pass


def _host(host: Host) -> Iterator[Row]:
    yield "chips", f"{host.host_chips} to a host"
    yield "DRAM", f"{_number(host.dram_bytes / 1e9)} GB at {_number(host.dram_bytes_per_s / 1e9)} GB/s"
    shared = f", shared by {plural(host.link_chips, 'chip')}" if host.link_chips > 1 else " a chip"
    yield "link", f"{_number(host.link_bytes_per_s / 1e9)} GB/s in one direction{shared}"
    if host.nvme_bytes:
        yield "NVMe", f"{_number(host.nvme_bytes / 1e9)} GB at {_number(host.nvme_bytes_per_s / 1e9)} GB/s"


def _calibrated(chip: Hardware) -> Iterator[Row]:
    found = chip.calibrated
    yield "op", f"{found.op_rule.replace('-', ' ')} of arithmetic and HBM traffic"
    yield (
        "reached",
        (
            f"{_number(100 * found.compute_efficiency)}% of arithmetic, {_number(100 * found.hbm_efficiency)}% of HBM, "
            f"{_number(100 * found.network_efficiency)}% of the network"
        ),
    )
    tokens = (round(chip.compute_bound_tokens(bits / 8)) for bits in (16, 8, 4))
    yield (
        "matmuls",
        "arithmetic in bf16 binds from about {:,} tokens on; from {:,} with weights in int8, {:,} in int4".format(
            *tokens
        ),
    )
    yield "collective", f"{_number(found.collective_latency_s * 1e6)} us whatever it carries (`--network links`)"
    if found.hop_latency_s is not None:
        yield "hop", f"{_number(found.hop_latency_s * 1e6)} us"
    for kind, one in chip.protocols:
        wait = f"{_number(1e6 * one.start_s)} us and {_number(1e6 * one.member_s)} us for each other chip"
        bulk = ""
        if one.bulk_share is not None:
            bulk = f", or {_number(100 * one.bulk_share)}% after {_number(1e6 * (one.bulk_start_s or 0.0))} us more"
        yield str(kind), f"{wait}, then {_number(100 * one.share)}% of the link{bulk}"
    if found.kernel_s:
        yield "kernel", f"{_number(1e6 * found.kernel_s)} us beside its work"
    if found.attention_efficiency is not None:
        yield "caches", f"read at {_number(100 * found.attention_efficiency)}% of HBM"
    if found.fp8_efficiency is not None:
        yield "fp8", f"{_number(100 * found.fp8_efficiency)}% of its arithmetic"
    if chip.matmul_share is not None:
        yield "share", f"{_number(100 * chip.matmul_share)}% of the peak in matmuls, unless `--datasheet` is given"
    if chip.measured_like is not None:
        yield "like", f"{chip.measured_like}, whose shares count unless `--datasheet` is given"
    if isinstance(chip.fabric, Torus):
        yield "axes", "all at once" if found.axes_at_once is None else f"at most {found.axes_at_once} at once"
    if found.error:
        yield "error", f"{_number(100 * found.error)}%, root mean square over what was measured"


def _fabric(chip: Hardware) -> str:
    match chip.fabric:
        case Torus(dimensions):
            return f"{dimensions}D torus"
        case Switch(node_chips):
            return f"switch of {node_chips}"


def _offered(torus: Torus) -> str:
    """The slices that are offered."""
    named = slices_text(torus.slices)
    step = f"sides of multiples of {torus.slice_step_chips}" if torus.slice_step_chips else ""
    return "".join(f"; {what}" for what in (named, step) if what)


def _rings(torus: Torus) -> str:
    match torus.wrap:
        case Wrap.CUBES:
            cube = "x".join([str(torus.wrap_axis_chips)] * torus.dimensions)
            return f"axes close into rings in slices of whole {cube} cubes"
        case Wrap.FULL_AXIS:
            return f"an axis of exactly {torus.wrap_axis_chips} chips closes into a ring"
        case Wrap.ALWAYS:
            return "every axis is a ring"
        case Wrap.NEVER:
            return "no axis is a ring"


def _number(figure: float) -> str:
    return f"{figure:.6g}"


MOST_ROWS = 100_000


def layouts_table(tensor: str, sizes: Mapping[str, int], mesh: Mesh, dtype: Dtype) -> str:
    """Every layout of a complete tensor that divides, fewest shards first; ends in a newline.

    `tensor` names its dims: `BLE` or `[batch, d_model]`. Raises InputError when it is no such list,
    when a dim has no size, or when there are too many layouts to list.
    """
    names = _dims(tensor, sizes)
    shape = [sizes[name] for name in names]
    if prod(shape) > MAX_ELEMENTS:
        raise fail(f"The tensor has more than 2^{MAX_ELEMENTS.bit_length() - 1} elements.")
    axes = live_axes(mesh)
    most = sum(perm(len(axes), k) * comb(k + len(names) - 1, k) for k in range(len(axes) + 1)) if names else 1
    if most > MOST_ROWS:
        hint = "name a smaller mesh"
        raise fail(f"A tensor of {len(names)} dims has up to {most:,} layouts on {len(axes)} axes.", hint=hint)
    space = tensor_space(shape, axes)
    layouts = sorted(
        (space.layout(row) for row in range(len(space))),
        key=lambda layout: (mesh.size(*layout.split_axes), len(layout.split_axes), layout.dims),
    )
    rows = [("layout", "shape on a chip", "shards", "bytes on a chip")]
    for layout in layouts:
        local = layout.local_shape(shape, mesh)
        shards = mesh.size(*layout.split_axes)
        held = prod(local) * dtype.bits / 8
        rows.append((format_layout(names, layout), "x".join(map(str, local)) or "1", str(shards), f"{held:,.15g}"))
    whole = "x".join(map(str, shape)) or "1"
    tensor = f"{format_layout(names, layouts[0])}, {whole} in {dtype}"
    head = f"{plural(len(layouts), 'layout')} of {tensor}, on {mesh}: {mesh.chips} chips"
    return "\n".join([head, *table(rows, left=1)]) + "\n"


def _dims(tensor: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The dims that `tensor` names, each with a legal size."""
    names, layout = parse_layout(tensor)
    if layout.split_axes or layout.partial:
        raise fail(f"`{tensor[:60]}` is a layout.", hint="name the dims alone, as in `BLE` or `[batch, d_model]`")
    if len(names) > MAX_RANK:
        raise fail(f"The tensor has {len(names)} dims; at most {MAX_RANK} are supported.")
    found = [Diagnostic(f"The tensor has the dim `{n}` twice.") for n in dict.fromkeys(names) if names.count(n) > 1]
    for name in dict.fromkeys(names):
        if name not in sizes:
            found.append(Diagnostic(f"Dim `{name}` has no size.", hint=f"add `--dims {name}=...`"))
        elif not 1 <= sizes[name] <= MAX_SIZE:
            found.append(Diagnostic(f"The size of dim `{name}` is not between 1 and 2^40."))
    for name in [name for name in sizes if name not in names][:MAX_RANK]:
        found.append(Diagnostic(f"The tensor has no dim `{name[:60]}`.", hint=did_you_mean(name, names)))
    if found:
        raise InputError(found)
    return names


def models_table() -> str:
    """The shipped models, a line each."""
    rows = [("name", "dims of its weights", "repeats", "parameters")]
    for name in model_names():
        source = model_source(name)
        program = expand(parse(source), source)
        rows.append((name, _split_dims(program), str(_layers(program)), f"{parameter_count(program) / 1e9:.2f}e9"))
    return "\n".join(table(rows, left=2)) + "\n"


OF_CODES = (".scale", ".zero")  # what is stored beside codes is called


def parameter_count(program: Program) -> int:
    """How many elements the parameters of a program have, in all repetitions together, without padding, and without the
    scales and zero points of those that are codes."""
    values, sizes = program.table(), program.true_sizes(dict(program.phases[0].sizes))
    params = {one.value: placed.times for one, placed in stored_in(program.body, Kind.PARAM).items()}
    return sum(
        times * math.prod(sizes[dim] for dim in values[name].dims)
        for name, times in params.items()
        if not any(name.removesuffix(ending) in params for ending in OF_CODES if name.endswith(ending))
    )


def _layers(program: Program) -> int:
    return sum(placed.times * placed.item.count for placed in walk(program.body) if isinstance(placed.item, Repeat))


def _split_dims(program: Program) -> str:
    values = program.table()
    named = {dim for one in stored_in(program.body, Kind.PARAM) for dim in values[one.value].dims}
    sizes = program.true_sizes(dict(program.phases[0].sizes))
    return " ".join(f"{dim}={size}" for dim, size in sizes.items() if dim in named)
