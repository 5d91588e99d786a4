"""examples/jax_step.py runs what was emitted: on one host, and on the hosts that Slurm tells of."""

from __future__ import annotations

import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from escc.compiler.calibrate.measurements import read_measurements
from escc.compiler.commands.main import app
from escc.compiler.jax.processes import with_cpu_devices
from escc.compiler.plan.pipeline import model_source

SCRIPT = Path(__file__).parent.parent / "examples" / "jax_step.py"
MODEL = """\
model "tiny"
dim B, L, M
dim E = 16, H = 8
param W: bf16[E,H]
main(x: bf16[B,L,E]) {
  cache keys: bf16[B,M,H]
  k[B,L,H] = x[B,L,E] * W[E,H]
  ks = append(keys, k, L into M)
  s[B,L,M] = k[B,L,H] * ks[B,M,H]
  return s
}
phase decode { B = 8, L = 1, M = 16 }
"""

CACHED = """
dim B, L, capacity
dim H = 8
block layer(x: bf16[B,L,H]) -> bf16[B,L,H] {
  cache keys: bf16[B,capacity,H]
  ks = append(keys, x, L into capacity)
  s[B,L,capacity] = x[B,L,H] * ks[B,capacity,H]
  y[B,L,H] = s[B,L,capacity] * ks[B,capacity,H]
  return tanh(x + y)
}
main(x: bf16[B,L,H]) { return repeat 2 layer(x) }
phase decode { B = 8, L = 1, capacity = 16 }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module emitted for two nodes of four devices."""
    folder = tmp_path_factory.mktemp("step")
    (folder / "tiny.esti").write_text(MODEL)
    told = ["compile", str(folder / "tiny.esti"), "--chips", "node=2,gpu=4", "--hardware", "h100"]
    result = CliRunner().invoke(app, [*told, "--emit", "jax", "-o", str(folder / "out")])
    assert result.exit_code == 0, result.output
    return folder / "out" / "tiny_decode_jax.py"


def start(module: Path, devices: int, *options: str, **environment: str) -> subprocess.Popen[str]:
    """A host with this many devices that runs the script."""
    others = {name: value for name, value in with_cpu_devices(devices).items() if not name.startswith("SLURM_")}
    told = others | {"JAX_PLATFORMS": "cpu"} | environment
    command = [sys.executable, "-P", str(SCRIPT), str(module), "--steps", "2", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env=told, text=True)


def free_job() -> int:
    """The number of a job whose port, which JAX derives from it, nobody listens at."""
    for job in range(2**12):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 65535 - 2**12 + 1 + job)) != 0:
                return job
    raise AssertionError("all ports are taken")


def test_on_one_host_whose_time_is_a_row_that_is_validated(module: Path) -> None:
    table, model = module.parent / "mine.csv", str(module.parent.parent / "tiny.esti")
    said, errors = start(module, 8, "--row", str(table), "--model", model, "--hardware", "h100").communicate(
        timeout=120
    )
    found = re.fullmatch(r"([\d.]+) ms a step; devices: 8, hosts: 1\n", said)
    assert found, errors
    [row] = read_measurements(table, "h100").rows
    assert (row.id, row.phase, row.batch, row.input_tokens) == ("tiny_decode_jax-1", "decode-step", 8, 16)
    assert row.mesh is not None and (row.mesh.names, row.mesh.sizes) == (("node", "gpu"), (2, 4))
    assert row.seconds == pytest.approx(float(found[1]) / 1e3, rel=1e-2)
    done = CliRunner().invoke(app, ["validate", str(table), "--hardware", "h100"])
    assert done.exit_code == 0 and "tiny_decode_jax-1" in done.output, done.output


@pytest.mark.parametrize(
    ("model", "how", "options"),
    [
        ("llama-3-8b", (), ()),
        ("llama-3-8b", (), ("--unrolled",)),
        ("mixtral-8x7b", ("--capacity", "1.25"), ()),  # which counts what finds no room beside its caches
    ],
)
def test_stacks_and_tuples_of_their_parts_are_made(
    model: str, how: tuple[str, ...], options: tuple[str, ...], tmp_path: Path
) -> None:
    text, layers = re.subn(r"repeat \d+ ", "repeat 2 ", model_source(model).text)
    assert layers == 1
    (tmp_path / "few.esti").write_text(text)
    sizes = {"B": 4, "M": 32, "E": 64, "T" if "mixtral" in model else "F": 128, "V": 500}
    told = ["compile", str(tmp_path / "few.esti"), "--phase", "decode", "--chips", "gpu=2", "--hardware", "h100"]
    told += ["--emit", "jax", *how]
    told += [word for dim, size in sizes.items() for word in ("--set", f"{dim}={size}")]
    result = CliRunner().invoke(app, [*told, "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    [file] = tmp_path.glob("*_decode_jax.py")
    said, errors = start(file, 2, *options).communicate(timeout=120)
    assert re.fullmatch(r"[\d.]+ ms a step; devices: 2, hosts: 1\n", said), errors


@pytest.mark.parametrize("unrolled", [(), ("--unrolled",)], ids=["stacks", "tuples"])
def test_caches_without_parameters_and_contexts_called_as_settings(unrolled: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "tiny.esti").write_text(CACHED)
    told = ["compile", str(tmp_path / "tiny.esti"), "--chips", "gpu=2", "--hardware", "h100", "--emit", "jax"]
    result = CliRunner().invoke(app, [*told, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    [file] = (tmp_path / "out").glob("*_jax.py")
    assert "PARAMS" not in file.read_text() and "filled_capacity_1" in file.read_text()
    said, errors = start(file, 2, *unrolled).communicate(timeout=120)
    assert re.fullmatch(r"[\d.]+ ms a step; devices: 2, hosts: 1\n", said), errors


def test_a_module_that_streams_from_the_host_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("def divided(): ...")
    said, errors = start(tmp_path / "step.py", 1).communicate(timeout=120)
    assert not said and "step.py is not timed: it streams" in errors and "Traceback" not in errors


def drawn(dtype: str, most: int) -> Any:
    jax = pytest.importorskip("jax")
    script = runpy.run_path(str(SCRIPT))
    here = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    return np.asarray(script["drawing"]((40, 50), jax.numpy.dtype(dtype), most, here)()).astype(float)


def test_what_it_multiplies_is_as_good_as_random() -> None:
    floats, ids = drawn("float32", 127), drawn("int32", 500)
    assert (
        np.abs(floats).max() <= 0.02 and abs(floats.mean()) < 1e-3 and floats.std() == pytest.approx(0.0115, rel=0.05)
    )
    assert ids.min() >= 0 and ids.max() == 499 and len(np.unique(ids)) > 450
    assert drawn("float8_e8m0fnu", 127).min() > 0


def test_rows_are_added_only_to_tables_of_rows(module: Path, tmp_path: Path) -> None:
    script, mesh = runpy.run_path(str(SCRIPT)), SimpleNamespace(size=4, shape={"x": 2, "y": 2})
    told = SimpleNamespace(
        model="m",
        hardware="tpu-v4",
        weights="int8",
        ffn_layout="ws2d",
        attention_layout="batch",
        row=tmp_path / "a.csv",
    )

    def cells(**sizes: int) -> list[str]:
        return script["row"](SimpleNamespace(FULL=SimpleNamespace(**sizes)), mesh, told)

    for n in (1, 2):
        script["add_row"](told.row, "m", cells(B=2, L=64, M=64), 1.5, mesh)
        lines = told.row.read_text().splitlines()
        assert lines[n] == f'm-{n},jax_step,m,tpu-v4,prefill,4,2,64,0,int8,ws2d,batch,1.5,"x=2,y=2"'
    assert len(lines) == 3 and lines[0].startswith("id,source,model")
    with pytest.raises(SystemExit, match="a row is of"):
        cells(B=2, L=8, M=64)
    (tmp_path / "other.csv").write_text("a,b\n")
    with pytest.raises(SystemExit, match="left as it is"):
        script["add_row"](tmp_path / "other.csv", "m", cells(B=2, L=1, M=64), 1.5, mesh)
    assert (tmp_path / "other.csv").read_text() == "a,b\n"


def test_on_the_hosts_of_a_slurm_job(module: Path) -> None:
    job = {"SLURM_JOB_ID": str(free_job()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    hosts = [
        start(module, 4, "--many-hosts", **job, SLURM_PROCID=str(i), SLURM_LOCALID=str(i), SLURM_STEP_NUM_NODES="2")
        for i in range(2)
    ]
    said = [host.communicate(timeout=120) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert re.search(r"^[\d.]+ ms a step; devices: 8, hosts: 2$", said[0][0], re.MULTILINE)
    assert "ms a step" not in said[1][0]
