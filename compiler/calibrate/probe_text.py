"""A probe as text, as data for JSON, and as a hardware file."""

from __future__ import annotations

from ...cost.hardware_toml import hardware_toml
from ..text.table import table
from .probe import Probe, Timings, probed


def probe_text(found: Probe) -> str:
    """What was measured, size by size."""
    rows = [("measured", "size", "ms", "rate")]
    for name, timings, size_unit, rate_unit in (
        ("matmul, bf16", found.matmuls, "Gflop", "Gflop/s"),
        ("memory, read and written", found.copies, "GB", "GB/s"),
        ("all-gather, taken in", found.gathers, "GB", "GB/s"),
    ):
        for size, seconds in timings:
            rate = f"{size / seconds / 1e9:,.4g} {rate_unit}"
            rows.append((name, f"{size / 1e9:.4g} {size_unit}", f"{1e3 * seconds:.4g}", rate))
    plural = "" if found.devices == 1 else "s"
    lines = [f"Measured: {found.devices} device{plural} of kind {found.kind}", *table(rows, left=1)]
    if not found.gathers:
        lines.append("\n  One device has no network to measure.")
    return "\n".join(lines) + "\n"


def probe_data(found: Probe) -> dict[str, object]:
    """The probe for JSON, in flops, bytes and seconds."""

    def pairs(timings: Timings, what: str) -> list[dict[str, float]]:
        return [{what: size, "seconds": seconds} for size, seconds in timings]

    return {
        "platform": found.platform,
        "kind": found.kind,
        "devices": found.devices,
        "memory_bytes": found.memory_bytes,
        "matmuls": pairs(found.matmuls, "flops"),
        "copies": pairs(found.copies, "bytes"),
        "gathers": pairs(found.gathers, "bytes"),
    }


def probed_hardware(found: Probe) -> str:
    """The text of the hardware file. Raises InputError where there is no network to measure."""
    comments = [
        f"{found.kind}: {found.devices} devices, measured. Sources: `escc calibrate --probe` on the machine itself.",
        "Peaks are the best rate of a matmul in bf16, and those of the longest copy and all-gather.",
    ]
    calibrated = ["Peaks count as reached; the latency is that of a small all-gather."]
    return hardware_toml(probed(found), comments, calibrated)
