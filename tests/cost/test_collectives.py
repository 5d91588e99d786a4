"""What collectives send, against appendix A.1 and against chips that count what they lack."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import sympy

from escc.cost.network import bytes_sent

WAYS = [2, 3, 4, 64]


@pytest.mark.parametrize("k", WAYS)
def test_an_all_gather_brings_what_a_chip_lacks(k: int) -> None:
    block = Fraction(120)
    assert bytes_sent("all-gather", block, k * block, k) == (k - 1) * block


@pytest.mark.parametrize("k", WAYS)
def test_a_reduce_scatter_sends_all_blocks_but_ones_own(k: int) -> None:
    whole = Fraction(64 * 3 * k)
    assert bytes_sent("reduce-scatter", whole, whole / k, k) == sum([whole / k] * (k - 1))


@pytest.mark.parametrize("k", WAYS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(k: int) -> None:
    whole = Fraction(7 * k)
    scattered = bytes_sent("reduce-scatter", whole, whole / k, k)
    assert bytes_sent("all-reduce", whole, whole, k) == scattered + bytes_sent("all-gather", whole / k, whole, k)


@pytest.mark.parametrize("k", WAYS)
def test_an_all_to_all_keeps_one_part(k: int) -> None:
    assert bytes_sent("all-to-all", Fraction(k), Fraction(k), k) == k - 1


def test_a_permute_sends_its_block_and_a_slice_nothing() -> None:
    assert bytes_sent("permute", 10, 10, 4) == 10
    assert bytes_sent("slice", 10, 5, 2) == bytes_sent("embed", 10, 20, 2) == 0


def test_symbols_and_arrays_do_as_numbers_do() -> None:
    d, k = sympy.symbols("D K", positive=True)
    formula = bytes_sent("all-gather", d / k, d, k)
    assert sympy.simplify(formula - d * (k - 1) / k) == 0
    found = bytes_sent("all-reduce", np.array([8.0, 16.0]), np.array([8.0, 16.0]), np.array([2, 4]))
    assert found.tolist() == [8.0, 24.0]


def test_what_is_no_collective() -> None:
    with pytest.raises(KeyError):
        bytes_sent("broadcast", 1, 1, 2)
