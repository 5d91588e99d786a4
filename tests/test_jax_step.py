"""examples/jax_step.py runs what was emitted: on one host, and on the hosts that Slurm tells of."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.jax.processes import with_cpu_devices

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


def test_on_one_host(module: Path) -> None:
    said, errors = start(module, 8).communicate(timeout=120)
    assert re.fullmatch(r"[\d.]+ ms a step; devices: 8, hosts: 1\n", said), errors


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
