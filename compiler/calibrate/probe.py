"""A probe: the rates of the JAX devices of this machine, measured in a process of its own.

Of matmuls the best rate of several sizes counts, as a datasheet's peak would; of copies and all-gathers that
of the longest, which no cache holds. What a collective takes is a start and its bytes over a rate; the
start is the time of one with next to no bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ...cost.hardware import MEASURED, Calibrated, Convention, Hardware, Switch, hardware_toml
from ...ir.diagnostics import fail, plural
from ...ir.record import record
from ..jax.check import require_jax
from ..jax.processes import with_cpu_devices
from ..text.terminal import table

CHILD = f"{__package__}.probe_child"
MOST_SECONDS = 600
CPU_DEVICES = 2  # where there is no accelerator: the least that can exchange anything

Timings = tuple[tuple[float, float], ...]  # of flops, or bytes, and seconds


@record
class Probe:
    """What was timed. `gathers`: of the bytes that each device takes in; empty where there is one device."""

    platform: str
    kind: str
    devices: int
    memory_bytes: int
    matmuls: Timings
    copies: Timings
    gathers: Timings

    @property
    def flops_per_s(self) -> float:
        """Of matmuls in bf16."""
        return max(flops / seconds for flops, seconds in self.matmuls)

    @property
    def memory_bytes_per_s(self) -> float:
        """Read and written."""
        size, seconds = self.copies[-1]
        return size / seconds

    @property
    def start_s(self) -> float:
        """What a collective takes with next to no bytes."""
        return self.gathers[0][1]

    @property
    def network_bytes_per_s(self) -> float:
        """What a device takes in while a collective runs, its start left out."""
        size, seconds = self.gathers[-1]
        return size / max(seconds - self.start_s, seconds / 2)  # a start is never most of the longest


def probe() -> Probe:
    """Measure the devices that JAX finds; of the CPU, CPU_DEVICES.

    Raises InputError where JAX is missing or too old, or where the measuring does not run.
    """
    require_jax()
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        file = Path(folder) / "measured.json"
        command = [sys.executable, "-P", "-m", CHILD, str(file)]
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=with_cpu_devices(CPU_DEVICES),
                timeout=MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise fail(f"The probe did not end within {MOST_SECONDS} s.") from None
        if ended.returncode:
            said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            raise fail(f"The probe does not run here: {said[-1][:200] if said else 'it said nothing'}.")
        measured = json.loads(file.read_text(encoding="utf-8"))
    for name in ("matmuls", "copies", "gathers"):
        measured[name] = tuple((size, seconds) for size, seconds in measured[name])
    return Probe(**measured)


def probed(found: Probe) -> Hardware:
    """Hardware with the rates of a probe. Raises InputError where one device has no network to measure."""
    if not found.gathers:
        raise fail(
            "There is one device here, and no hardware file without the rate of a network.",
            hint="without `-o` its other rates are printed",
        )
    rate = found.network_bytes_per_s
    return Hardware(
        name=f"{_plain(found.kind)}{MEASURED}",
        peak_flops_per_s=_short(found.flops_per_s),
        hbm_bytes=found.memory_bytes,
        hbm_bytes_per_s=_short(found.memory_bytes_per_s),
        network_bytes_per_s=_short(rate),
        fabric=Switch(found.devices, _short(rate)),
        calibrated=Calibrated(collective_latency_s=_short(found.start_s)),
        convention=Convention.LINKS,
    )


def _short(figure: float) -> float:
    """What a measurement is good for: three digits."""
    return float(f"{figure:.3g}")


def _plain(kind: str) -> str:
    """The name of a kind of device as that of a hardware file."""
    return "".join(c if c.isalnum() else "-" for c in kind.lower())[:40].strip("-") or "device"


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
    lines = [f"Measured: {plural(found.devices, 'device')} of kind {found.kind}", *table(rows, left=1)]
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
