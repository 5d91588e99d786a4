"""Caches that are copied since something reads them as they were."""

from __future__ import annotations

import pytest
from sharded_text import parsed

from escc.cost.kept_caches import kept_bytes

HEAD = """\
sharded "caches" main on x=2
sizes B=4 L=1 M=64 Q=8
input x: bf16 B_xLQ
cache c: bf16 B_xMQ
"""
OTHERS = {
    "the result alone": ("ks bf16 B_xMQ = append(c, x, L into M)", "t f32 B_xQ = ks[B,M,Q]", 0),
    "read afterwards": ("ks bf16 B_xMQ = append(c, x, L into M)", "t f32 B_xQ = c[B,M,Q]", 2 * 64 * 8 * 2),
    "read before": ("t f32 B_xQ = c[B,M,Q]", "ks bf16 B_xMQ = append(c, x, L into M)", 2 * 64 * 8 * 2),
    "sent": ("a bf16 BMQ = all-gather(x) B of c\nt f32 BQ = a[B,M,Q]", "ks bf16 B_xMQ = append(c, x, L into M)", 2048),
    "what entries are made of": (
        "t f32 B_xQ = c[B,M,Q]\ny bf16 B_xLQ = x + t",
        "ks bf16 B_xMQ = append(c, y, L into M)",
        0,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_cache_is_copied_if_what_its_entries_are_not_made_of_reads_it(name: str) -> None:
    first, second, kept = OTHERS[name]
    assert kept_bytes(parsed(f"{HEAD}{first}\n{second}\nreturn t, ks\n")) == ({"c": kept} if kept else {})


def test_of_a_repeat_the_caches_of_all_repetitions_are_copied() -> None:
    text = """\
sharded "caches" main on x=2
sizes B=4 L=1 M=64 Q=8
input x: bf16 B_xLQ
repeat 5 layer {
  enter y: bf16 B_xLQ = x
  cache c: bf16 B_xMQ
  ks bf16 B_xMQ = append(c, y, L into M)
  t bf16 B_xQ = c[B,M,Q]
  z bf16 B_xLQ = y + t
  leave r: bf16 B_xLQ = z
}
return r
"""
    assert kept_bytes(parsed(text)) == {"c": 5 * 2 * 64 * 8 * 2}
