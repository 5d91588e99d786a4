"""What XLA wants to know of a GPU to compile for it where there is none.

Figures of a multiprocessor are those of its compute capability (CUDA C++ programming guide, technical specifications);
how many there are, their clock and the L2 cache are of NVIDIA's descriptions of the architectures; the memory and its
rate come from the file of the hardware.
"""

from __future__ import annotations

from ...cost.hardware import MEASURED, Hardware, Switch
from ...ir.mesh import Mesh
from ...ir.record import record

KB = 1 << 10


@record
class Capability:
    """Of a compute capability: a multiprocessor's shared memory, that of a block of it, its threads and f32 units."""

    major: int
    minor: int
    shared_bytes: int
    block_shared_bytes: int
    threads: int
    units: int


@record
class Gpu:
    """A GPU: its capability, multiprocessors, L2 cache and clock, and what the driver calls it."""

    capability: Capability
    multiprocessors: int
    l2_bytes: int
    clock_ghz: float
    kind: str


AMPERE = Capability(8, 0, 164 * KB, 163 * KB, 2048, 64)
SMALL_AMPERE = Capability(8, 6, 100 * KB, 99 * KB, 1536, 128)
HOPPER = Capability(9, 0, 228 * KB, 227 * KB, 2048, 128)
BLACKWELL = Capability(10, 0, 228 * KB, 227 * KB, 2048, 128)
GPUS = {
    "a100-40": Gpu(AMPERE, 108, 40 * KB * KB, 1.41, "NVIDIA A100-SXM4-40GB"),
    "a100-80": Gpu(AMPERE, 108, 40 * KB * KB, 1.41, "NVIDIA A100-SXM4-80GB"),
    "a6000": Gpu(SMALL_AMPERE, 84, 6 * KB * KB, 1.80, "NVIDIA RTX A6000"),
    "h100": Gpu(HOPPER, 132, 50 * KB * KB, 1.98, "NVIDIA H100 80GB HBM3"),
    "h200": Gpu(HOPPER, 132, 50 * KB * KB, 1.98, "NVIDIA H200"),
    "b200": Gpu(BLACKWELL, 148, 126 * KB * KB, 1.965, "NVIDIA B200"),
    "gb200-nvl72": Gpu(BLACKWELL, 148, 126 * KB * KB, 1.965, "NVIDIA GB200"),
}
EVERY = {  # that is the same of all of them
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 48 * KB,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
    "registers_per_core_limit": 2**16,
    "registers_per_block_limit": 2**16,
}
VERSIONS = "dnn_version_info { major: 9 minor: 10 }\nruntime_version { major: 13 }"


def gpu_target(hardware: Hardware) -> str | None:
    """A GPU as XLA reads it, a GpuTargetConfigProto as text; None where we know too little of the hardware."""
    found = GPUS.get(hardware.name.removesuffix(MEASURED))
    if found is None:
        return None
    capability = found.capability
    figures = EVERY | {
        "core_count": found.multiprocessors,
        "shared_memory_per_core": capability.shared_bytes,
        "shared_memory_per_block_optin": capability.block_shared_bytes,
        "threads_per_core_limit": capability.threads,
        "fpus_per_core": capability.units,
        "l2_cache_size": found.l2_bytes,
        "device_memory_size": int(hardware.hbm_bytes),
        "memory_bandwidth": int(hardware.hbm_bytes_per_s),
    }
    lines = [f"  {name}: {figure}" for name, figure in figures.items()]
    lines.append(f"  clock_rate_ghz: {found.clock_ghz}")
    lines.append(f"  cuda_compute_capability {{ major: {capability.major} minor: {capability.minor} }}")
    told = "\n".join(["gpu_device_info {", *lines, "}", 'platform_name: "CUDA"', VERSIONS])
    return f'{told}\ndevice_description_str: "{found.kind}"\n'


def gpu_topology(hardware: Hardware, mesh: Mesh) -> str:
    """The GPUs of a mesh as PJRT counts them: slices, nodes in each, GPUs in each."""
    node = hardware.fabric.node_chips if isinstance(hardware.fabric, Switch) else mesh.chips
    width = node if mesh.chips % node == 0 else mesh.chips
    return f"1x{mesh.chips // width}x{width}"
