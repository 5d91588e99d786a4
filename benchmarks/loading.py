"""Measures how emitted modules load checkpoints: extra memory, and rate beside that of the disk: `make bench-loading`.

A checkpoint with random weights is written as a folder of safetensors, imported, planned and emitted as a user does
it, and loaded by processes of their own onto CPU devices, with nothing of it in the page cache. Extra is what the
resident set of a process grows by beyond the parameters that it then holds, mapped pages of the files included. The
bars: at most 1.3 times the largest shard of a device, at least half the rate at which the same files are read whole.
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
from pathlib import Path

import numpy as np

ESCC = Path(sysconfig.get_path("scripts")) / "escc"
DEVICES, WIDTH, FORWARD, HEAD = 8, 2048, 8192, 128
PLANNED = ("--chips", "2x4", "--phase", "decode", "--emit", "jax", "--set", "B=8")
MOST_EXTRA, LEAST_RATE = 1.3, 0.5
TYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}
CHILD = """
import importlib.util, json, sys, time
import jax
module_file, checkpoint, process, processes, address = sys.argv[1:]
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

def kept(field):  # bytes
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024

def read():
    line = next(line for line in open("/proc/self/io") if line.startswith("read_bytes"))
    return int(line.split()[1])

before, had = kept("VmRSS"), read()
open("/proc/self/clear_refs", "w").write("5")
begun = time.perf_counter()
params = jax.block_until_ready(module.load(checkpoint, mesh))
took = time.perf_counter() - begun
shards = [[s.data for s in leaf.addressable_shards] for leaf in jax.tree.leaves(params)]
held = {one.unsafe_buffer_pointer(): one.nbytes for leaf in shards for one in leaf}
print(json.dumps({
    "extra_bytes": kept("VmHWM") - before - sum(held.values()),
    "largest_bytes": max(one.nbytes for leaf in shards for one in leaf),
    "held_bytes": sum(held.values()),
    "read_bytes": read() - had,
    "took_s": took,
}))
"""


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


def write_checkpoint(folder: Path, dtype: str, files: int, tied: bool, all_bytes: float) -> None:
    """A folder of so many bytes of random weights."""
    kind, wide = TYPES[dtype]
    known = 32000
    block = 4 * WIDTH * WIDTH + 3 * WIDTH * FORWARD
    layers = max(1, round((all_bytes / wide - (1 if tied else 2) * known * WIDTH) / block))
    every = list(tensors(layers, known, tied))
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
        "torch_dtype": dtype,
        "tie_word_embeddings": tied,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng, index = np.random.default_rng(0), dict[str, str]()
    for n in range(files):
        own = every[n::files]
        name = "model.safetensors" if files == 1 else f"model-{n + 1:05}-of-{files:05}.safetensors"
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
                if dtype == "bfloat16":
                    file.write((made.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                else:
                    file.write(made.tobytes())
                index[called] = name
    if files > 1:
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
    started = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, *given, str(n), str(processes), "127.0.0.1:47731"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    return [json.loads(one.communicate()[0].splitlines()[-1]) for one in started]


def measured(dtype: str, files: int, tied: bool, pins: str, processes: int, all_bytes: float, root: Path) -> str:
    """A line of the table; `pins` as `escc compile --pin` reads them."""
    with tempfile.TemporaryDirectory(dir=root) as name:
        folder = Path(name) / "saved"
        folder.mkdir()
        write_checkpoint(folder, dtype, files, tied, all_bytes)
        model, pinned = Path(name) / "model.esti", Path(name) / "pins"
        pinned.write_text(pins)
        calls = (
            [str(ESCC), "import", str(folder), "-o", str(model)],
            [str(ESCC), "compile", str(model), *PLANNED, "--pin", str(pinned), "-o", name],
        )
        for call in calls:
            subprocess.run(call, check=True, stdout=subprocess.DEVNULL)
        [module] = Path(name).glob("*_jax.py")
        rate = disk_bytes_per_s(folder)
        found = loaded(module, folder, processes)
        extra = max(one["extra_bytes"] / one["largest_bytes"] for one in found)
        took_s = max(one["took_s"] for one in found)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        share = size / took_s / rate
        good = "yes" if extra <= MOST_EXTRA and share >= LEAST_RATE else "no"
        read = "/".join(f"{one['read_bytes'] / size:.2f}" for one in found)
        held = "/".join(f"{one['held_bytes'] / 1e9:.2f}" for one in found)
        largest = max(one["largest_bytes"] for one in found) / 1e6
        kind = ("tied, " if tied else "") + ("pinned" if pins else "as planned")
        return (
            f"| {dtype} | {files} | {kind} | {processes} | {size / 1e9:.2f} | {held} | {read} | {largest:.1f} | "
            f"{extra:.2f} | {rate / 1e9:.2f} | {share:.2f} | {good} |"
        )


# Split along the dim that lies closest in the files, and not at all.
COLUMNS = "stored layer.Wi E_xyF\nstored layer.Wd FE_xy\n"
WHOLE = "stored layer.Wq EHQ\n"
CASES = (
    ("bfloat16", 1, False, "", 1),
    ("bfloat16", 4, True, "", 1),
    ("float32", 3, False, "", 1),
    ("bfloat16", 1, False, COLUMNS, 1),
    ("bfloat16", 1, False, WHOLE, 1),
    ("bfloat16", 2, False, "", 2),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=float, default=2e9, help="the size of a checkpoint")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written for the time")
    parser.add_argument("--only", type=int, help="the number of one case, from 0")
    given = parser.parse_args()
    print("| type | files | parameters | processes | GB | GB held | read | largest shard, MB | extra / shard | "
          "disk, GB/s | rate / disk | met |")  # fmt: skip
    print("|" + "---|" * 12)
    for case in CASES if given.only is None else [CASES[given.only]]:
        print(measured(*case, given.bytes, given.folder or Path(tempfile.gettempdir())), flush=True)


if __name__ == "__main__":
    main()
