"""Measures how emitted modules load checkpoints, and writes `loading.md`: `make bench-load`.

A checkpoint with random weights is written as a folder of safetensors, imported, planned and emitted as a user does
it, and loaded by processes of their own onto CPU devices, with nothing of it in the page cache. Not a test: a bar that
is missed is shown in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ABOUT = (
    "# Loading checkpoints",
    "",
    "Written by `make bench-load`. Folders of random weights onto 8 CPU devices, 2x4, nothing of them in the page",
    "cache. Extra is what the resident set of a process grows by at most beyond the parameters that it holds in the",
    "end, mapped pages of files included; the disk's rate is that of reading the same files whole. Bars: extra at most",
    "1.3 times the largest shard of a device, at least half the disk's rate; the best of three of both. Copies are",
    "shared by as many threads as there are cores: where other work has these, the rate is lower, and the seconds of",
    "CPU say what loading takes.",
)
RESULTS = Path(__file__).resolve().parent / "loading.md"
ESCC = Path(sysconfig.get_path("scripts")) / "escc"
DEVICES, WIDTH, FORWARD, HEAD = 8, 2048, 8192, 128
PLANNED = ("--chips", "2x4", "--phase", "decode", "--emit", "jax", "--set", "B=8")
TIMES = 3
MOST_EXTRA, LEAST_RATE = 1.3, 0.5
TYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}
CHILD = """
import importlib.util, json, sys, time
import jax
import numpy as np
module_file, checkpoint, process, processes, address, room = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8 // int(processes))
if int(processes) > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(processes), int(process))
spec = importlib.util.spec_from_file_location("emitted", module_file)
module = importlib.util.module_from_spec(spec)
sys.modules["emitted"] = module
spec.loader.exec_module(module)
mesh = module.make_mesh()
# A virtual machine is given memory page by page when it first writes there, which takes longer than a disk does.
np.ones(int(room), np.uint8)

def kept(field):  # bytes
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024

def read():
    line = next(line for line in open("/proc/self/io") if line.startswith("read_bytes"))
    return int(line.split()[1])

before, had = kept("VmRSS"), read()
open("/proc/self/clear_refs", "w").write("5")
begun, used = time.perf_counter(), time.process_time()
params = jax.block_until_ready(module.load(checkpoint, mesh))
took, used = time.perf_counter() - begun, time.process_time() - used
shards = [[s.data for s in leaf.addressable_shards] for leaf in jax.tree.leaves(params)]
held = {one.unsafe_buffer_pointer(): one.nbytes for leaf in shards for one in leaf}
print(json.dumps({
    "extra_bytes": kept("VmHWM") - before - sum(held.values()),
    "largest_bytes": max(one.nbytes for leaf in shards for one in leaf),
    "held_bytes": sum(held.values()),
    "read_bytes": read() - had,
    "took_s": took,
    "cpu_s": used,
}))
"""


@dataclass(frozen=True)
class Case:
    """A checkpoint of so many files, and how it is loaded; `pins` as `escc compile --pin` reads them."""

    dtype: str
    files: int
    tied: bool
    name: str
    pins: str
    processes: int


def tensors(layers: int, known: int, tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of a Llama with `known` tokens."""
    yield "model.embed_tokens.weight", (known, WIDTH)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{at}self_attn.{name}.weight", (WIDTH, WIDTH)
        yield f"{at}mlp.gate_proj.weight", (FORWARD, WIDTH)
        yield f"{at}mlp.up_proj.weight", (FORWARD, WIDTH)
        yield f"{at}mlp.down_proj.weight", (WIDTH, FORWARD)
        yield f"{at}input_layernorm.weight", (WIDTH,)
        yield f"{at}post_attention_layernorm.weight", (WIDTH,)
    yield "model.norm.weight", (WIDTH,)
    if not tied:
        yield "lm_head.weight", (known, WIDTH)


def write_checkpoint(folder: Path, case: Case, all_bytes: float) -> None:
    """A folder of so many bytes of random weights."""
    kind, wide = TYPES[case.dtype]
    known = 32000
    block = 4 * WIDTH * WIDTH + 3 * WIDTH * FORWARD
    layers = max(1, round((all_bytes / wide - (1 if case.tied else 2) * known * WIDTH) / block))
    every = list(tensors(layers, known, case.tied))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": FORWARD,
        "num_hidden_layers": layers,
        "num_attention_heads": WIDTH // HEAD,
        "vocab_size": known,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "torch_dtype": case.dtype,
        "tie_word_embeddings": case.tied,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng, index = np.random.default_rng(0), dict[str, str]()
    for n in range(case.files):
        own = every[n :: case.files]
        name = "model.safetensors" if case.files == 1 else f"model-{n + 1:05}-of-{case.files:05}.safetensors"
        header, end = {}, 0
        for called, shape in own:
            size = int(np.prod(shape)) * wide
            header[called] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for called, shape in own:
                made = (rng.random(shape, np.float32) - np.float32(0.5)) / np.float32(32)
                if case.dtype == "bfloat16":
                    file.write((made.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                else:
                    file.write(made.tobytes())
                index[called] = name
    if case.files > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def evict(folder: Path) -> None:
    """Take the files of a folder out of the page cache."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_bytes_per_s(folder: Path) -> float:
    """The rate at which the files are read whole, one after the other."""
    evict(folder)
    buffer, done, begun = bytearray(1 << 24), 0, time.perf_counter()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                done += count
    return done / (time.perf_counter() - begun)


def loaded(module: Path, folder: Path, processes: int) -> list[dict[str, float]]:
    """What each process says of loading a folder."""
    evict(folder)
    given = [str(module), str(folder)]
    room = 2 * sum(path.stat().st_size for path in folder.glob("*.safetensors")) // processes
    started = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, *given, str(n), str(processes), "127.0.0.1:47731", str(room)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    return [json.loads(one.communicate()[0].splitlines()[-1]) for one in started]


def measured(case: Case, all_bytes: float, root: Path) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory(dir=root) as name:
        folder = Path(name) / "saved"
        folder.mkdir()
        write_checkpoint(folder, case, all_bytes)
        model, pinned = Path(name) / "model.esti", Path(name) / "pins"
        pinned.write_text(case.pins)
        calls = (
            [str(ESCC), "import", str(folder), "-o", str(model)],
            [str(ESCC), "compile", str(model), *PLANNED, "--pin", str(pinned), "-o", name],
        )
        for call in calls:
            subprocess.run(call, check=True, stdout=subprocess.DEVNULL)
        [module] = Path(name).glob("*_jax.py")
        rates, every = list[float](), list[list[dict[str, float]]]()
        for _ in range(TIMES):  # in turn, as what else runs comes and goes
            rates.append(disk_bytes_per_s(folder))
            every.append(loaded(module, folder, case.processes))
        rate, found = max(rates), min(every, key=lambda run: max(one["took_s"] for one in run))
        extra = max(one["extra_bytes"] / one["largest_bytes"] for one in found)
        took_s = max(one["took_s"] for one in found)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        share = size / took_s / rate
        good = "yes" if extra <= MOST_EXTRA and share >= LEAST_RATE else "no"
        read = "/".join(f"{one['read_bytes'] / size:.2f}" for one in found)
        held = "/".join(f"{one['held_bytes'] / 1e9:.2f}" for one in found)
        largest = max(one["largest_bytes"] for one in found) / 1e6
        said = (case.dtype, case.files, case.name, case.processes, f"{size / 1e9:.2f}", held, read, f"{largest:.1f}")
        cpu = sum(one["cpu_s"] for one in found) / size * 1e9
        return f"| {' | '.join(map(str, said))} | {extra:.2f} | {cpu:.2f} | {rate / 1e9:.2f} | {share:.2f} | {good} |"


# The table is split, so that the largest shard is one of many layers. COLUMNS: along the dim that lies closest in the
# files; WHOLE: a copy of queries on every device.
SPLIT = "stored table V_xyE\n"
COLUMNS = f"{SPLIT}stored layer.Wi E_xyF\nstored layer.Wd FE_xy\n"
WHOLE = f"{SPLIT}stored layer.Wq EHQ\n"
CASES = (
    Case("bfloat16", 1, False, "split", SPLIT, 1),
    Case("bfloat16", 4, True, "split, tied", SPLIT, 1),
    Case("float32", 3, False, "split", SPLIT, 1),
    Case("bfloat16", 1, False, "split by columns", COLUMNS, 1),
    Case("bfloat16", 1, False, "queries whole", WHOLE, 1),
    Case("bfloat16", 2, False, "split", SPLIT, 2),
)
HEAD_LINES = (
    "| type | files | parameters | processes | GB | GB held | share read | largest shard, MB | extra / shard "
    "| CPU s a GB | disk, GB/s | rate / disk | met |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def main() -> None:
    """Write the table, and print it as it comes."""
    parser = argparse.ArgumentParser(description="Measures how emitted modules load checkpoints.")
    parser.add_argument("--bytes", type=float, default=2e9, help="the size of a checkpoint")
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="where checkpoints are for the time")
    parser.add_argument("--only", type=int, help="the number of one case, from 0; nothing is written")
    given = parser.parse_args()
    lines = list(HEAD_LINES)
    print("\n".join(lines))
    for case in CASES if given.only is None else [CASES[given.only]]:
        lines.append(measured(case, given.bytes, given.folder))
        print(lines[-1], flush=True)
    if given.only is None:
        wanted = f"and on average {os.getloadavg()[2]:.0f} processes that wanted one."
        load = f"Here there were {os.cpu_count()} cores, {wanted}"
        RESULTS.write_text("\n".join([*ABOUT, load, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
