"""Lets tests import the helper modules that lie beside them in `tests/`, and rewrites golden files on demand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the golden files should hold")
    parser.addoption("--fuzz", type=int, default=40, help="how many broken inputs of each kind are tried")


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> int:
    """How many broken inputs of each kind are tried."""
    return int(request.config.getoption("--fuzz"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))
