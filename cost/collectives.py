"""What collectives send: the bytes that leave each chip.

Source: Pope et al. 2022, appendix A.1, exact form; all-to-all: each chip keeps 1/K of what it has.
"""

from __future__ import annotations

from typing import Any


def bytes_sent(kind: str, before_bytes: Any, after_bytes: Any, ways: Any) -> Any:
    """Bytes that each chip sends in a collective over `ways` chips.

    `before_bytes` and `after_bytes` are what a chip holds before and after. Numbers, fractions,
    arrays and symbols all do. A maximum is reduce-scattered as an all-to-all and a local maximum,
    which sends the same as a sum. In a permute the whole block leaves a chip.
    Raises KeyError for a kind that is not a collective.
    """
    return _BYTES_SENT[kind](before_bytes, after_bytes, ways)


_BYTES_SENT = {
    "all-gather": lambda before, after, ways: after * (ways - 1) / ways,
    "reduce-scatter": lambda before, after, ways: before * (ways - 1) / ways,
    "all-reduce": lambda before, after, ways: 2 * before * (ways - 1) / ways,
    "all-to-all": lambda before, after, ways: before * (ways - 1) / ways,
    "permute": lambda before, after, ways: before,
    "slice": lambda before, after, ways: 0 * before,
    "embed": lambda before, after, ways: 0 * before,
}
