"""Which attentions run in blocks, found in sharded programs by hand, and how large their blocks are."""

from __future__ import annotations

import pytest
from sharded_text import parsed

from escc.cost.attention import attentions, waiting
from escc.cost.blocks import blocks_of

ATTENTION = """\
sharded "attention" main on x=2
sizes B=4 L=4096 M=8192 H=4 Q=6
input q: bf16 B_xLHQ
input k: bf16 B_xLQ
input seen: bf16 B_xM
input y: bf16 B_xLM
cache keys: bf16 B_xMQ
ks bf16 B_xMQ  = append(keys, k, L into M)
s  bf16 B_xLHM = q[B,L,H,Q] * ks[B,M,Q]
c  bf16 B_xLHM = tanh(s) + seen
m  f32 B_xLH   = max(c, over=M)
e  bf16 B_xLHM = exp(c - where(equal(m, -inf), 0, m))
u  f32 B_xLH   = e[B,L,H,M]
p  bf16 B_xLHM = e / where(equal(u, 0), 1, u)
o  bf16 B_xLHQ = p[B,L,H,M] * ks[B,M,Q]
return o
"""


def test_a_softmax_between_two_products_runs_in_blocks() -> None:
    [one] = attentions(parsed(ATTENTION))
    assert [op.result for op in one.scores] == ["s", "c"]
    assert one.unmade == {"s", "c", "e", "p"}
    assert one.reads == {"q", "ks", "seen"}
    assert {part.value: part.labels for part in one.parts} == {
        "q": ("B", "L", "H", "Q"),
        "ks": ("B", "M", "Q"),
        "seen": ("B", "M"),
    }
    assert (one.query, one.context, one.top, one.total, one.rescaled) == ("L", "M", "m", "u", False)
    assert (one.values, one.scales, one.factors) == ("ks", (), ())


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_values_are_stored_with_scales_and_gates_weigh_what_comes_of_them(order: tuple[int, ...]) -> None:
    terms = ["p[B,L,H,M]", "ks[B,M,Q]", "scale[B,M]", "gate[B,L,H]"]
    text = ATTENTION.replace("cache keys", "input scale: f32 B_xM\ninput gate: bf16 B_xLH\ncache keys")
    text = text.replace("p[B,L,H,M] * ks[B,M,Q]", " * ".join(terms[n] for n in order))
    [one] = attentions(parsed(text))
    assert (one.values, one.scales, one.factors) == ("ks", ("scale",), ("gate",))
    assert one.reads == {"q", "ks", "seen", "scale"}


# What is changed of the text, each line for another reason not to run in blocks.
OTHERS = {
    "few": ("L=4096 M=8192", "L=64 M=8192"),
    "scores that are returned": ("return o", "return o, c"),
    "scores that others read": ("return o", "z f32 B_xLH = c[B,L,H,M]\nreturn o, z"),
    "exps that others read": ("return o", "z f32 B_xLH = max(e, over=M)\nreturn o, z"),
    "shares that others read": ("return o", "z f32 B_xLH = p[B,L,H,M]\nreturn o, z"),
    "scores that are sent": ("m  f32", "g  bf16 BLHM = all-gather(x) B of c\nm  f32"),
    "another shift": ("exp(c - where(equal(m, -inf), 0, m))", "exp(c - m)"),
    "another share": ("e / where(equal(u, 0), 1, u)", "e / (u + 1)"),
    "another base": ("exp(c - where(equal(m, -inf), 0, m))", "tanh(c - where(equal(m, -inf), 0, m))"),
    "a narrow maximum": ("m  f32 B_xLH ", "m  bf16 B_xLH "),
    "no new entries": ("ks bf16 B_xMQ  = append(keys, k, L into M)", "ks bf16 B_xMQ  = keys * 2"),
    "a product that keeps the context": (
        "o  bf16 B_xLHQ = p[B,L,H,M] * ks[B,M,Q]",
        "o  bf16 B_xLHM = p[B,L,H,M] * seen[B,M]",
    ),
    "shares that another number for each of them weighs": (
        "p[B,L,H,M] * ks[B,M,Q]",
        "y[B,L,M] * p[B,L,H,M] * ks[B,M,Q]",
    ),
    "a product that sums a factor": ("p[B,L,H,M] * ks[B,M,Q]", "p[B,L,H,M] * ks[B,M,Q] * q[B,L,H,R]"),
    "shares twice": ("p[B,L,H,M] * ks[B,M,Q]", "p[B,L,H,M] * p[B,L,H,M] * ks[B,M,Q]"),
    "queries that are summed": ("o  bf16 B_xLHQ = p[B,L,H,M] * ks[B,M,Q]", "o  bf16 B_xHQ = p[B,L,H,M] * ks[B,M,Q]"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_softmax_of_many_scores_alone_stays_whole(name: str) -> None:
    before, after = OTHERS[name]
    assert before in ATTENTION
    assert attentions(parsed(ATTENTION.replace(before, after))) == ()


FROM_TOP = "exp(c - where(equal(m, -inf), 0, m))"
SPARSE = (
    ATTENTION.replace("input seen: bf16 B_xM", "input seen: bf16 B_xLM")
    .replace("s  bf16 B_xLHM = q[B,L,H,Q] * ks[B,M,Q]", "n  bf16 B_xLM  = choose(seen, keep=2048, over=M)\nSCORES")
    .replace("SCORES", "s  bf16 B_xLHM = n[B,L,M] * q[B,L,H,Q] * ks[B,M,Q]")
    .replace("tanh(s) + seen", "where(n, tanh(s), -inf)")
    .replace(FROM_TOP, f"where(n, {FROM_TOP}, 0)")
)


def test_the_mask_of_chosen_tokens_is_cut_into_blocks_as_all_that_scores_are_made_of() -> None:
    spmd = parsed(SPARSE)
    [one] = attentions(spmd)
    assert one.unmade == {"s", "c", "e", "p"} and one.reads == {"q", "ks", "n"}
    assert {part.value: part.labels for part in one.parts}["n"] == ("B", "L", "M")
    [block] = blocks_of(spmd)
    assert block.whole_bytes == 2 * 4096 * 8192 * 4 * (2 + 2)  # as of all scores: blocks have zeros too


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("choose(seen, keep=2048, over=M)", "choose(seen, keep=2048, over=L)"),
        (f"where(n, {FROM_TOP}, 0)", FROM_TOP),  # which is no softmax of what was chosen
        ("where(n, tanh(s), -inf)", "tanh(s)"),
    ],
)
def test_what_is_chosen_along_another_dim_or_not_masked_by_it_is_whole(before: str, after: str) -> None:
    assert before in SPARSE
    found = attentions(parsed(SPARSE.replace(before, after)))
    assert (found == ()) == ("exp" not in before), found


def test_a_mask_that_is_made_of_queries_and_keys_is_made_in_blocks_with_the_scores() -> None:
    text = SPARSE.replace(
        "n  bf16 B_xLM  = choose(seen, keep=2048, over=M)", "n  bf16 B_xLM  = seen[B,L,M] * ks[B,M,Q]"
    )
    [one] = attentions(parsed(text))
    assert one.unmade == {"n", "s", "c", "e", "p"} and one.reads == {"q", "ks", "seen"}
    [kept] = attentions(parsed(text.replace("return o", "return o, n")))
    assert kept.unmade == {"s", "c", "e", "p"} and kept.reads == {"q", "ks", "n"}
    assert attentions(parsed(text.replace("where(n, tanh(s), -inf)", "tanh(s)"))) == ()


def test_values_that_come_after_the_maximum_leave_it_whole() -> None:
    late = ATTENTION.replace("u  f32", "w  bf16 B_xMQ  = ks * 2\nu  f32").replace(
        "* ks[B,M,Q]\nreturn", "* w[B,M,Q]\nreturn"
    )
    assert attentions(parsed(late)) == ()
    assert waiting(parsed(late)) == {"m": {"w"}}
    assert waiting(parsed(ATTENTION)) == {}
    lines = late.splitlines()
    lines.insert(8, lines.pop(next(n for n, line in enumerate(lines) if line.startswith("w "))))
    [one] = attentions(parsed("\n".join(lines) + "\n"))
    assert one.values == "w"


def test_scores_that_others_read_may_be_what_blocks_are_made_of() -> None:
    text = ATTENTION.replace("return o", "z f32 B_xLH = s[B,L,H,M]\nreturn o, z")
    [one] = attentions(parsed(text))
    assert [op.result for op in one.scores] == ["c"]
    assert {part.value for part in one.parts} == {"s", "seen"}


@pytest.mark.parametrize(
    ("sizes", "places"),
    [
        ("B=4 L=4096 M=8192 H=4 Q=6", (("L", 2048), ("M", 512))),  # 2 of B by 4 heads: 2**23 scores in bf16
        ("B=4 L=1024 M=8192 H=4 Q=6", (("L", 1024), ("M", 512))),
        ("B=4 L=16 M=300 H=4096 Q=6", (("L", 2), ("M", 300))),
        ("B=4 L=2 M=8192 H=65536 Q=6", (("L", 1), ("M", 128))),
        ("B=128 L=1 M=8192 H=128 Q=6", (("M", 512),)),
    ],
)
def test_blocks_hold_as_many_scores_as_stay_near_the_arithmetic(
    sizes: str, places: tuple[tuple[str, int], ...]
) -> None:
    [block] = blocks_of(parsed(ATTENTION.replace("B=4 L=4096 M=8192 H=4 Q=6", sizes)))
    assert block.places == places
    whole = {dim: int(size) for dim, size in (pair.split("=") for pair in sizes.split())}
    assert block.whole_bytes == whole["B"] // 2 * whole["L"] * whole["M"] * whole["H"] * (2 + 2)
    share = 1.0
    for dim, size in places:
        share *= size / whole[dim]
    assert float(block.bytes) == pytest.approx(float(block.whole_bytes) * share)
