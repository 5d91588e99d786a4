"""Sweeps on a cluster of two workers: the same file, also where one is killed; and clusters that are not there."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from escc.compiler.commands.main import app
from escc.compiler.text.processes import on_cluster
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of a cluster that is being killed

MODEL = """model "tiny"
dim B, L, M
dim E = 512, F = 2048, Q = 64
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq: bf16[E,Q]
  param Wo: bf16[Q,E]
  cache keys: bf16[B,M,Q]
  q[B,L,Q] = x[B,L,E] * Wq[E,Q]
  ks = append(keys, q, L into M)
  s[B,L,M] = q[B,L,Q] * ks[B,M,Q]
  p = softmax(s, over=M)
  o[B,L,Q] = p[B,L,M] * ks[B,M,Q]
  a[B,L,E] = o[B,L,Q] * Wo[Q,E]
  return x + a
}
main(x: bf16[B,L,E]) { return repeat 2 layer(x) }
phase decode { B = 8, L = 1, M = 64 }
"""
GRID = ("--chips", "4,8", "--batch", "8,16,32,64", "--context", "64")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.esti"
    path.write_text(MODEL)
    return str(path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as found:
        yield found


def sweep(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *arguments])


def test_a_sweep_on_workers_ends_with_the_same_file_though_one_is_killed(
    model: str, tmp_path: Path, cluster: object
) -> None:
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    assert sweep(model, *GRID, "--jobs", "1", "-o", str(here)).exit_code == 0
    killed = []

    def kill() -> None:
        while not there.exists() or there.read_bytes().count(b"\n") < 2:
            time.sleep(0.01)
        pid = cluster.workers[0].pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    done = sweep(model, *GRID, "--scheduler", cluster.scheduler_address, "-o", str(there))  # type: ignore[attr-defined]
    assert done.exit_code == 0, done.output
    thread.join(timeout=10)
    assert killed and there.read_bytes() == here.read_bytes()


def test_what_is_raised_there_is_raised_here(cluster: object) -> None:
    with pytest.raises(InputError, match="There is no hardware preset"):
        list(on_cluster(Hardware.load, ["x"], cluster.scheduler_address))  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{free}", "nowhere", "tcp://", "http:://x", "\x07"])
def test_an_address_that_does_not_answer(model: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("escc.compiler.text.processes.TIMEOUT_S", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address.replace("{free}", str(free.getsockname()[1]))
        done = sweep(model, *GRID, "--scheduler", address)
    assert done.exit_code == 1 and "No Dask scheduler answers" in done.output


def test_a_scheduler_that_dies_loses_nothing(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, silence_logs=50
    ) as short:

        def close() -> None:
            while not out.exists() or out.read_bytes().count(b"\n") < 2:
                time.sleep(0.01)
            short.close(timeout=1)

        thread = threading.Thread(target=close, daemon=True)
        thread.start()
        done = sweep(model, *GRID, "--scheduler", short.scheduler_address, "-o", str(out))
        thread.join(timeout=20)
    assert done.exit_code == 1 and "ended" in done.output, done.output
    kept = out.read_bytes().count(b"\n")
    assert kept >= 2
    assert sweep(model, *GRID, "--jobs", "1", "-o", str(out)).exit_code == 0
    assert out.read_bytes().count(b"\n") == 9 > kept
