"""Lets tests import the helper modules that lie beside them in `tests/`, has XLA compile them quickly and Python look
for garbage seldom, and rewrites golden files on demand."""

import gc
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


# What tests run in JAX runs once: machine code of little care comes in a third of the time, from the same modules, and
# in one piece in less than in 32.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)


def pytest_configure(config: pytest.Config) -> None:
    """Ask XLA, in all processes that tests start, for little care, where it knows how: of other flags it dies."""
    if hasattr(config, "workerinput") or "XLA_FLAGS" in os.environ:
        return
    command = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.make_cpu_client()"]
    environment = os.environ | {"XLA_FLAGS": QUICKLY}
    if subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0:
        os.environ["XLA_FLAGS"] = QUICKLY


GARBAGE = 50_000  # objects between two collections, as in a command; a fifth of all time went to them


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and never among what is there before the first test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the golden files should hold")
    parser.addoption("--fuzz", type=int, default=40, help="how many broken inputs of each kind are tried")


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> int:
    """How many broken inputs of each kind are tried."""
    return int(request.config.getoption("--fuzz"))


@pytest.fixture
def forked_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes with JAX come as forks of one that has imported it. Tests of how they are started do without."""
    monkeypatch.setattr("escc.compiler.jax.processes.subprocess", import_module("forked_jax").FORKED)


@pytest.fixture(scope="module")
def plans_of_file() -> Any:
    """The plans that tests of a file have asked for."""
    return import_module("known_plans").KnownPlans()


@pytest.fixture
def known_plans(monkeypatch: pytest.MonkeyPatch, plans_of_file: Any) -> None:
    """A plan is searched for once in a file. For tests of what is done with plans; those of the search do without."""
    monkeypatch.setattr("escc.passes.choose.choose_on", plans_of_file.choose_on)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))
