"""`escc check --backend gpu`: the module compiled for devices that are here, or why it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forked_jax import run_code
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.jax import gpu
from escc.compiler.jax.gpu_targets import GPUS, gpu_target, gpu_topology
from escc.compiler.jax.module_text import module_check_data, module_check_text
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, parse
from escc.cost.hardware import Hardware, presets
from escc.ir.diagnostics import InputError, InternalError
from escc.ir.mesh import Mesh
from escc.passes.options import Options

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
MODEL = """
model "halves"
dim B = 64, E = 256, F = 1024
param Wi: f32[E,F] @ EF_g
param Wd: f32[F,E] @ F_gE
main(x: f32[B,E]) {
  u[B,F] = x[B,E] * Wi[E,F]
  d[B,E] = u[B,F] * Wd[F,E]
  return d
}
"""
MEMORY = {"argument": 70, "output": 20, "alias": 15, "temp": 5, "generated_code": 1}
HERE = {"kind": "NVIDIA H100", "count": 8}
# As XLA writes them for GPUs: a sum over both of 64x256 numbers of 2 bytes, begun and ended apart.
FINAL = """HloModule jit_main
%sum (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %s = bf16[] add(%a, %b)
}
ENTRY %main (p: bf16[64,256]) -> bf16[64,256] {
  %p = bf16[64,256]{1,0} parameter(0)
  %ar = bf16[64,256]{1,0} all-reduce-start(%p), channel_id=1, replica_groups={{0,1}}, to_apply=%sum
  ROOT %done = bf16[64,256]{1,0} all-reduce-done(%ar)
}
"""


@pytest.fixture(scope="module")
def halves() -> CompiledPhase:
    return compile_phase(parse(MODEL), "main", Mesh.parse("g=2"), Options(Hardware.load("h100")))


def test_a_module_is_compiled_for_the_devices_that_are_here(halves: CompiledPhase) -> None:
    found = gpu.check_gpu(halves, platform="cpu")
    assert found.compiled_for == "2 x cpu" and found.module
    assert found.equal, module_check_text(halves, found)
    held = module_check_data(halves, found)["memory_bytes"]
    assert held["argument"] >= 2 * 256 * 512 * 4, "half of both weights"


def left(monkeypatch: pytest.MonkeyPatch, **files: Any) -> None:
    """The child leaves these files behind."""

    def run(commands: Any, devices: int, platform: str) -> None:
        [(_, folder)] = commands
        assert (devices, platform) == (2, "cuda,cpu")
        told = json.loads((Path(folder) / "slice.json").read_text())
        assert told["platform"] == "cuda" and told["target"] == gpu_target(Hardware.load("h100"))
        assert (told["topology"], told["sizes"], told["names"]) == ("1x1x2", [2], ["g"])
        for name, left in files.items():
            as_text = isinstance(left, str)
            path = Path(folder) / f"{name}{'.txt' if as_text else '.json'}"
            path.write_text(left if as_text else json.dumps(left))

    monkeypatch.setattr(gpu, "run_processes", run)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"absent": "Unknown backend cuda.\nAvailable backends are ['cpu']"}, "finds no GPU on this machine: Unknown"),
        ({"devices": HERE | {"count": 1}}, "The mesh has 2 chips, and this machine 1 x NVIDIA H100."),
        ({"devices": HERE, "refused": "RESOURCE_EXHAUSTED: Out of memory"}, "does not fit NVIDIA H100: RESOURCE"),
    ],
)
def test_what_cannot_be_compiled_is_said(
    halves: CompiledPhase, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any], message: str
) -> None:
    left(monkeypatch, **files)
    with pytest.raises(InputError) as caught:
        gpu.check_gpu(halves)
    assert message in str(caught.value) and caught.value.diagnostics[0].hint


def test_where_other_gpus_alone_are_compiled_for_without_any_that_is_said(
    halves: CompiledPhase, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(monkeypatch, absent="Unknown backend cuda.")
    other = replace(halves, hardware=replace(halves.hardware, name="mine"))
    with pytest.raises(InputError) as caught, monkeypatch.context() as patched:
        patched.setattr(
            gpu, "run_processes", lambda commands, *_, **__: (Path(commands[0][1]) / "absent.txt").write_text("no")
        )
        gpu.check_gpu(other)
    hint = caught.value.diagnostics[0].hint or ""
    assert "pip install" not in hint and "h100, h200" in hint and "mine is none of these" in hint
    with pytest.raises(InputError) as caught:
        gpu.check_gpu(halves)
    assert "pip install" in (caught.value.diagnostics[0].hint or "")


def test_collectives_that_gpus_start_and_end_apart_are_read(
    halves: CompiledPhase, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(monkeypatch, devices=HERE, memory=MEMORY, final=FINAL)
    found = gpu.check_gpu(halves)
    assert found.compiled_for == "2 x NVIDIA H100" and found.peak_bytes == 80
    assert {kind.value: float(sent) for kind, (_, sent) in found.bytes_by_kind.items()}["all-reduce"] == 64 * 256 * 2
    left(monkeypatch, devices=HERE, refused="INTERNAL: no")
    with pytest.raises(InternalError, match="does not take phase `main`"):
        gpu.check_gpu(halves)


def test_it_says_that_it_was_compiled_ahead_of_time(halves: CompiledPhase, monkeypatch: pytest.MonkeyPatch) -> None:
    left(monkeypatch, devices=HERE | {"ahead": True}, memory=MEMORY, final=FINAL)
    assert gpu.check_gpu(halves).compiled_for == "2 x NVIDIA H100, ahead of time"


def test_gpus_are_described_as_their_compiler_reads_them() -> None:
    found = gpu_target(Hardware.load("a100-80"))
    assert found is not None
    lines = [line.strip() for line in found.splitlines()]
    assert {"core_count: 108", "cuda_compute_capability { major: 8 minor: 0 }", 'platform_name: "CUDA"'} <= set(lines)
    assert "shared_memory_per_block_optin: 166912" in lines and "device_memory_size: 80000000000" in lines
    assert found.count("{") == found.count("}") == 4
    assert gpu_target(Hardware.load("tpu-v4")) is None is gpu_target(Hardware.load("v100"))
    assert set(GPUS) <= set(presets())


@pytest.mark.parametrize(
    ("mesh", "topology"), [("8", "1x1x8"), ("4", "1x1x4"), ("node=2,gpu=8", "1x2x8"), ("node=3,gpu=4", "1x1x12")]
)
def test_gpus_of_a_mesh_stand_in_nodes(mesh: str, topology: str) -> None:
    assert gpu_topology(Hardware.load("h100"), Mesh.parse(mesh)) == topology


DEVICES = """
import json, pathlib, sys, types
from escc.compiler.jax import compile_child as child

folder, here, target = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
gpus = [types.SimpleNamespace(device_kind="GPU", id=n) for n in range(8)]


def devices(platform):
    if not here:
        raise RuntimeError("no " + platform)
    return gpus[:here]


def described(wanted):
    if wanted["target"] == "unknown":
        raise NotImplementedError("topology not implemented for cuda")
    return gpus


child.jax.devices, child._described = devices, described
found, ahead = child._devices("cuda", {"sizes": [2, 2]} | ({"target": target} if target else {}), folder)
print(None if found is None else len(found), [*sorted(path.name for path in folder.iterdir())], ahead)
"""


@pytest.mark.parametrize(
    ("here", "target", "said"),
    [
        (8, "", "4 ['devices.json']"),
        (8, "known", "4 ['devices.json']"),
        (2, "", "None ['devices.json']"),
        (2, "known", "4 ['devices.json']"),
        (0, "known", "4 ['devices.json']"),
        (0, "unknown", "None ['absent.txt']"),
        (2, "unknown", "None ['devices.json']"),
        (0, "", "None ['absent.txt']"),
    ],
)
def test_devices_that_are_here_come_first(here: int, target: str, said: str, tmp_path: Path) -> None:
    done = run_code(DEVICES, str(tmp_path), str(here), target, timeout=120)
    ahead = here < 4 and target == "known"
    assert done.stdout.strip() == f"{said} {ahead}", done.stderr
    if (tmp_path / "devices.json").exists():
        assert json.loads((tmp_path / "devices.json").read_text())["ahead"] == ahead
    else:
        assert (tmp_path / "absent.txt").read_text() == "no cuda"


def test_the_command_says_why_where_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(monkeypatch, absent="Unknown backend cuda.")
    (tmp_path / "halves.esti").write_text(MODEL)
    told = ["check", str(tmp_path / "halves.esti"), "--backend", "gpu", "--chips", "g=2", "--hardware", "h100"]
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 1 and "JAX finds no GPU on this machine: Unknown backend cuda." in done.output
    assert "--backend jax" in done.output


LOWERED = """
import sys
sys.argv = ["", ""]
from escc.compiler.jax import compile_child


class Module:
    FULL, triton = None, "what compiles kernels"

    def __init__(self, error):
        self.error = error

    def build(self, mesh, cfg):
        return self

    def lower(self):
        if self.triton is None:
            return "in blocks"
        raise self.error


compile_child.step_arguments = lambda *_: ()
assert compile_child._lowered(Module(RuntimeError("No supported GPU devices found")), None, False) == "in blocks"
try:
    compile_child._lowered(Module(NotImplementedError("erf")), None, False)
except NotImplementedError:
    print("raised")
"""


def test_a_module_is_lowered_without_kernels_only_where_jax_does_not_know_the_gpu() -> None:
    done = run_code(LOWERED)
    assert done.stdout.strip() == "raised", done.stderr
