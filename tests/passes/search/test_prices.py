"""Which tensors have arcs that are priced, and grouped, alike; and which arcs send nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from escc.passes.search.prices import Moves, _numbered


@pytest.mark.parametrize(
    ("groups", "numbers"),
    [([5, -1, 2, 5, 2, 9], [0, -1, 2, 0, 2, 3]), ([-1, 7, 7], [-1, 1, 1]), ([-1, -1], [-1, -1]), ([], [])],
)
def test_groups_are_numbered_as_they_come(groups: list[int], numbers: list[int]) -> None:
    """Arcs alone, which are of none, are counted where they come."""
    found = np.frombuffer(_numbered(np.array(groups, dtype=np.int64)), dtype=np.int64)
    assert found.tolist() == numbers


def test_what_sends_nothing_is_what_takes_no_time() -> None:
    arcs: Any = SimpleNamespace(take=lambda some: some.tolist())
    seconds = [np.array([0.0, 2.0, 0.0, 1e-12]), np.array([3.0])]
    found = Moves([arcs, None], seconds, None).silent
    assert found.arcs == [[0, 2], None]
    assert [own.tolist() for own in found.seconds] == [[0.0, 0.0], []]
