"""Hardware as text: the list of presets, and one chip with all its figures."""

from __future__ import annotations

from collections.abc import Iterator

from ...cost.hardware import Hardware, Switch, Torus, Wrap, presets
from ..text.table import table

Row = tuple[str, ...]


def preset_table() -> str:
    """The presets with their key figures, a line each."""
    rows: list[Row] = [("name", "linked by", "Tflop/s", "HBM GB", "HBM GB/s", "link GB/s", "network GB/s")]
    for name in presets():
        chip = Hardware.load(name)
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
    """All figures of one chip: datasheet, network, and what was calibrated."""
    parts = [hardware.name]
    for title, rows in (
        ("datasheet", _datasheet(hardware)),
        ("network", _network(hardware)),
        ("calibrated", _calibrated(hardware)),
    ):
        parts += [f"\n{title}", *table(list(rows), left=2)]
    return "\n".join(parts) + "\n"


def _datasheet(chip: Hardware) -> Iterator[Row]:
    yield "bf16", f"{_number(chip.peak_flops_per_s / 1e12)} Tflop/s"
    if chip.peak_int8_ops_per_s is not None:
        yield "int8", f"{_number(chip.peak_int8_ops_per_s / 1e12)} Top/s"
    if chip.peak_fp8_flops_per_s is not None:
        yield "fp8", f"{_number(chip.peak_fp8_flops_per_s / 1e12)} Tflop/s"
    yield "HBM", f"{_number(chip.hbm_bytes / 1e9)} GB at {_number(chip.hbm_bytes_per_s / 1e9)} GB/s"
    if chip.dollars_per_chip_hour is not None:
        yield "price", f"{_number(chip.dollars_per_chip_hour)} dollars an hour"


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
            yield "slice", f"at most {torus.largest_slice_chips} chips"
        case Switch():
            pass


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
    yield "collective", f"{_number(found.collective_latency_s * 1e6)} us whatever it carries (`--network links`)"
    if found.hop_latency_s is not None:
        yield "hop", f"{_number(found.hop_latency_s * 1e6)} us"
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
