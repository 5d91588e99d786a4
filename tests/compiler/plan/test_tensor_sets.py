"""Sets of tensors: which are gone over, and what each stands for."""

import numpy as np

from escc.compiler.plan import tensor_sets
from escc.compiler.plan.tensor_sets import sets_of


def test_of_tensors_that_are_alike_a_set_has_the_first_ones():
    sets = sets_of(["a", "b", "c", "d"], ["d"], {"a": 1, "b": 2, "c": 1}, {"a": 4.0, "b": 9.0, "c": 4.0})
    assert {sets.of(row) for row in range(len(sets.members))} == {
        ("d",),
        ("a", "d"),
        ("a", "c", "d"),
        ("b", "d"),
        ("a", "b", "d"),
        ("a", "b", "c", "d"),
    }
    [row] = [row for row in range(6) if sets.of(row) == ("a", "d")]
    assert sets.alike[row].tolist() == [True, False, True, True], "c as well as a"
    assert not sets.small.any()


def test_of_too_many_the_smallest_are_streamed_together(monkeypatch):
    monkeypatch.setattr(tensor_sets, "MOST_SETS", 8)
    names = ["a", "b", "c", "d"]
    sets = sets_of(names, [], {name: name for name in names}, dict(zip(names, (1.0, 8.0, 2.0, 4.0), strict=True)))
    assert sets.small.tolist() == [True, False, True, False]
    assert {sets.of(row) for row in range(len(sets.members))} == {
        (),
        ("a", "c"),
        ("d",),
        ("a", "c", "d"),
        ("b",),
        ("a", "b", "c"),
        ("b", "d"),
        ("a", "b", "c", "d"),
    }
    # Bounds count them as if they were streamed, and came in no time.
    assert np.all(sets.at_most[:, sets.small]) and not np.any(sets.at_least[:, sets.small])
