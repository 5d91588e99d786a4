"""Which tensors have arcs that are priced, and grouped, alike."""

from __future__ import annotations

import numpy as np
import pytest

from escc.passes.search.prices import _numbered


@pytest.mark.parametrize(
    ("groups", "numbers"),
    [([5, -1, 2, 5, 2, 9], [0, -1, 2, 0, 2, 3]), ([-1, 7, 7], [-1, 1, 1]), ([-1, -1], [-1, -1]), ([], [])],
)
def test_groups_are_numbered_as_they_come(groups: list[int], numbers: list[int]) -> None:
    """Arcs alone, which are of none, are counted where they come."""
    found = np.frombuffer(_numbered(np.array(groups, dtype=np.int64)), dtype=np.int64)
    assert found.tolist() == numbers
