"""What the prices of a plan rest on, as its head says it: network, shares of peaks, engine, types of products."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...cost.arithmetic import arithmetics, multiplied
from ...cost.hardware import MEASURED, Convention, Engine, Hardware, Switch, presets
from ...cost.hardware_file import MEASURED_KINDS
from ...cost.network import Network
from ...cost.topology import islands
from ...ir.dtype import Dtype
from ..plan.compiled import CompiledPhase


def network_text(network: Network) -> str:
    """The network as the prices see it: links in a node or slice, and what joins several, where the mesh has any."""
    hardware, mesh = network.hardware, network.mesh
    if hardware.convention is Convention.FLAT:
        return f"flat: {hardware.network_bytes_per_s / 1e9:.6g} GB/s for a chip, no latency"
    far = network.crosses_nodes(mesh.names)
    near = not far or any(not network.crosses_nodes([axis]) for axis in mesh.names if mesh.size(axis) > 1)
    rates = [f"{hardware.fabric.link_bytes_per_s / 1e9:.6g} GB/s"] if near else []
    if far and hardware.between_bytes_per_s is not None:
        rates.append(f"{hardware.between_bytes_per_s / 1e9:.6g} GB/s between {_joined(network)}")
    links = f"links of {' and '.join(rates)}"
    if hardware.protocols_over(nodes=False):
        like = f" on {hardware.measured_like.removesuffix(MEASURED)}" if hardware.measured_like else ""
        rest = f", others at {'that rate' if len(rates) == 1 else 'these rates'}" if hardware.unmeasured_kinds else ""
        return f"{links}, {_measured_kinds(hardware)} as measured{like}{' in a node' if far else ''}{rest}"
    starts, hops = hardware.calibrated.collective_latency_s, hardware.hop_s
    waits = [f"{1e6 * seconds:.3g} us a {what}" for what, seconds in (("collective", starts), ("hop", hops)) if seconds]
    return f"{links}, {' and '.join(waits) or 'no latency'}"


def _joined(network: Network) -> str:
    """The nodes or slices that a mesh takes several of: how many, and how many of its chips are in each."""
    mesh = network.mesh
    several = prod(mesh.size(axis) for axis in mesh.names if network.crosses_nodes([axis]))
    return f"{several} {islands(network.hardware)} of {mesh.chips // several}"


def _measured_kinds(hardware: Hardware) -> str:
    """The collectives that were measured."""
    rest = hardware.unmeasured_kinds
    own = hardware.protocols_over(nodes=False)
    return ", ".join(kind for kind in own if kind not in rest) if rest else "collectives"


def basis_text(network: Network) -> str:
    """What prices rest on."""
    hardware = network.hardware
    found, rest = hardware.calibrated, hardware.unmeasured_kinds
    far, bare = "", len(rest) == len(MEASURED_KINDS)
    if not bare and hardware.convention is Convention.LINKS and network.crosses_nodes(network.mesh.names):
        kind = islands(hardware)
        far = f"; between {kind} as in a {kind.removesuffix('s')}, which was not measured"
    if hardware.ops_at_peaks and bare:
        rests = "peaks, which no chip reaches"
        preset = hardware.chip in presets()
        known = preset and not Hardware.load(hardware.chip).at_peaks
        return rests + (
            "; leave out `--datasheet` for measured figures" if known else "; `escc calibrate` fits figures"
        )
    if hardware.ops_at_peaks:
        return f"peaks of arithmetic and HBM, which no chip reaches; {_measured_kinds(hardware)} as measured{far}"
    own = " but for compute" if hardware.matmul_share else ""
    like = f", those of {hardware.measured_like}{own}" if hardware.measured_like else ""
    compute, hbm = found.compute_efficiency, found.hbm_efficiency
    kernel = f", {1e6 * found.kernel_s:.2g} us a kernel" if found.kernel_s else ""
    some = "" if bare else f" in {', '.join(rest)}"
    links = f"; links at the datasheet's rate{some}" if rest else ""
    return f"shares of the peaks that were measured{like}: compute {compute:.0%}, HBM {hbm:.0%}{kernel}{links}{far}"


def engine_text(engine: Engine | None) -> str:
    """What serves, and what that takes beside kernels and collectives."""
    if engine is None:
        return "none: kernels and collectives alone"
    layer = f", {1e6 * engine.layer_s:.3g} us a layer" if engine.layer_s else ""
    return f"{engine.name}: {1e3 * engine.step_s:.3g} ms a step{layer}"


def products_text(compiled: CompiledPhase) -> Iterator[str]:
    """Of products that are done in another type than their own, or at the rate of another: of each kind how. These are
    values in few bits with others where the chip could do it quicker, and types that it has no arithmetic in, or none
    of a known rate."""
    hardware, done_in = compiled.hardware, arithmetics(compiled.spmd)
    for one in sorted(done_in, key=lambda each: (each.dtype, each.fewer or "")):
        if one.fewer is not None and hardware.narrow_peaks.get(one.fewer, 0.0) > hardware.peak_flops_per_s:
            done = hardware.done_in(one)
            engine = hardware.engine if done is one.fewer else None
            how = "as the module does them" if engine is None else f"to which {engine.name} brings both"
            yield f"of {one.fewer} with {one.dtype} in {done}, {how}"
    if hardware.peak_dtype is Dtype.F16 and Dtype.BF16 in multiplied(compiled.spmd):
        yield f"of bf16 at the rate of f16: {hardware.chip} has no arithmetic in bf16"
    wide = any(one.dtype is Dtype.F32 for one in done_in)
    if wide and isinstance(hardware.fabric, Switch) and hardware.peak_f32_flops_per_s is None:
        yield f"of f32 at the rate of {hardware.peak_dtype}: the hardware's file has no `peak_f32_flops_per_s`"
