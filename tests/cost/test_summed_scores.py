"""Which scores are summed in blocks, found in sharded programs by hand, and what that takes."""

from __future__ import annotations

import pytest
from sharded_text import parsed

from escc.cost.blocks import blocks_of, in_blocks, perhaps_in_blocks
from escc.cost.kernels import launches
from escc.cost.memory import points
from escc.cost.summed_scores import summed_scores

INDEXER = """\
sharded "indexer" main on x=2
sizes B=4 L=4096 M=8192 I=8 Q=6
input q: bf16 B_xLIQ
input k: bf16 B_xLQ
input w: bf16 B_xLI
cache keys: bf16 B_xMQ
ks bf16 B_xMQ  = append(keys, k, L into M)
s  bf16 B_xLIM = q[B,L,I,Q] * ks[B,M,Q]
r  bf16 B_xLIM = relu(s)
t  f32 B_xLM   = w[B,L,I] * r[B,L,I,M]
n  f32 B_xLM   = choose(t, keep=2048, over=M)
o  f32 B_xLQ   = n[B,L,M] * ks[B,M,Q]
return o
"""


def test_scores_of_an_indexer_are_summed_over_its_heads_in_blocks() -> None:
    spmd = parsed(INDEXER)
    [one] = in_blocks(spmd)
    assert summed_scores(spmd) == (one,)
    assert one.unmade == {"s", "r"} and one.reads == {"q", "ks", "w"}
    assert {part.value: part.labels for part in one.parts} == {
        "q": ("B", "L", "I", "Q"),
        "ks": ("B", "M", "Q"),
        "w": ("B", "L", "I"),
    }
    [block] = blocks_of(spmd)
    assert (block.name, block.places) == ("t", (("L", 1024), ("M", 512)))  # 2 of B by 8 heads: 2**23 in bf16
    assert block.whole_bytes == 2 * 8 * 4096 * 8192 * (2 + 2)
    assert block.bytes == 2 * 8 * 1024 * 512 * (2 + 2)
    assert perhaps_in_blocks(spmd) == {"s", "r"}


def test_memory_holds_a_block_and_what_it_is_made_of() -> None:
    whole, cut = parsed(INDEXER.replace("return o", "return o, r")), parsed(INDEXER)
    [made] = [point for point in points(cut) if point.step == "t"]
    assert {live.label for live in made.live} == {"q", "w", "t", "t (block)"}
    assert all("s" not in {live.name for live in point.live} for point in points(cut))
    assert any("r" in {live.name for live in point.live} for point in points(whole))


@pytest.mark.parametrize(("queries", "rows"), [(4096, 512), (64, 2 * 64)])
def test_to_choose_rows_of_keys_are_sorted(queries: int, rows: int) -> None:
    """Integers in the order of the keys, the sorted keys, and where they stood, of 2**22 keys at the most."""
    spmd = parsed(INDEXER.replace("L=4096", f"L={queries}"))
    [chosen] = [point for point in points(spmd) if point.step == "n"]
    taken = {live.label: live.bytes for live in chosen.live}
    assert taken["t"] == 2 * queries * 8192 * 4
    assert taken["t (sorted)"] == rows * 8192 * (4 + 4 + 4)


def test_scores_and_what_weighs_and_sums_them_are_one_kernel() -> None:
    program = parsed(INDEXER)
    found = launches(program, dict(program.sizes))
    assert [found[name].kernels for name in ("s", "r", "t")] == [1, 0, 0]
    assert not found["s"].writes and not found["r"].writes
    assert found["n"].writes and "n" in found["o"].reads and found["o"].kernels == 1  # once all of it is chosen
    program = parsed(INDEXER.replace("w[B,L,I] * r[B,L,I,M]", "q[B,L,I,Q] * r[B,L,I,M]"))  # not a weighing
    apart = launches(program, dict(program.sizes))
    assert apart["t"].kernels == 1 and apart["r"].writes


def test_what_is_chosen_along_the_context_is_no_row_that_is_added_in_f32() -> None:
    spmd = parsed(INDEXER.replace("o  f32", "o  bf16"))
    [made] = [point for point in points(spmd) if point.step == "o"]
    assert {live.label for live in made.live} == {"n", "o", "q", "w"}


# What is changed of the text, each for another reason to make scores whole.
SUM = "t  f32 B_xLM   = w[B,L,I] * r[B,L,I,M]"
OTHERS = {
    "few": [("L=4096 M=8192 I=8", "L=64 M=8192 I=8")],
    "scores that are returned": [("return o", "return o, r")],
    "scores that others read": [("return o", "z  f32 B_xLI  = r[B,L,I,M]\nreturn o, z")],
    "scores that are sent": [
        ("input w: bf16 B_xLI", "input w: bf16 BLI"),
        (
            SUM,
            "g  bf16 BLIM  = all-gather(x) B of r\n"
            "u  f32 BLM  = w[B,L,I] * g[B,L,I,M]\n"
            "t  f32 B_xLM  = slice(x) B of u",
        ),
    ],
    "scores that are chosen otherwise": [("r  bf16 B_xLIM = relu(s)", "r  bf16 B_xLIM = choose(s, keep=2, over=I)")],
    "a context that is summed": [
        (SUM, "u  f32 B_xLI  = r[B,L,I,M]\nt  f32 B_xLM  = u[B,L,I] * q[B,L,I,Q] * ks[B,M,Q]"),
    ],
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_few_read_elsewhere_or_sent_is_made_whole(name: str) -> None:
    text = INDEXER
    for before, after in OTHERS[name]:
        assert before in text
        text = text.replace(before, after)
    assert in_blocks(parsed(text)) == ()
