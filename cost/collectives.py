"""What collectives send: the bytes that leave each chip.

Source: Pope et al. 2022, appendix A.1; all-to-all: each chip keeps 1/K of what it has.
"""

from __future__ import annotations

from typing import Any


def bytes_sent(kind: str, before_bytes: Any, after_bytes: Any, ways: Any, many: bool = False) -> Any:
    """Bytes that each chip sends in a collective over `ways` chips.

    `before_bytes` and `after_bytes` are what a chip holds before and after. Numbers, fractions,
    arrays and symbols all do. A maximum is reduce-scattered as an all-to-all and a local maximum,
    which sends the same as a sum. In a permute the whole block leaves a chip. With `many` the form
    for many chips (K >> 1), which drops the factor (K - 1) / K.
    Raises KeyError for a kind that is not a collective.
    """
    all_of_it = _ALL_OF_IT[kind](before_bytes, after_bytes)
    return all_of_it if many or kind not in KEEPS_ONE_PART else all_of_it * (ways - 1) / ways


KEEPS_ONE_PART = frozenset({"all-gather", "reduce-scatter", "all-reduce", "all-to-all"})
FREE = frozenset({"slice", "embed"})  # kinds that send nothing

_ALL_OF_IT = {
    "all-gather": lambda before, after: after,
    "reduce-scatter": lambda before, after: before,
    "all-reduce": lambda before, after: 2 * before,
    "all-to-all": lambda before, after: before,
    "permute": lambda before, after: before,
    "slice": lambda before, after: 0 * before,
    "embed": lambda before, after: 0 * before,
}
