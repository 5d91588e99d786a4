"""What loops take: by hand, and the laws that hold for every loop."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from math import isclose, prod

import pytest
from sharded_text import parsed

from escc.cost.estimate import Estimate, estimate, predict, scopes
from escc.cost.hardware import Hardware
from escc.cost.network import Network
from escc.ir.collective import AllGather, CollectiveKind
from escc.ir.diagnostics import InputError
from escc.ir.program import walk
from escc.ir.spmd import Move, SpmdProgram

V4, H100 = (
    Hardware.of_paper("tpu-v4"),
    Hardware.of_paper("h100"),
)
LINKS = V4.with_network("links")
ROUND = replace(V4.calibrated, collective_latency_s=10e-6)
EXACT = replace(LINKS, calibrated=ROUND, hop_latency_s=1e-6)


def gathered(mesh: str, batch: int = 512) -> SpmdProgram:
    """One loop, of a gather over z, one over y and an einsum, in a repeat."""
    return parsed(
        f"""
        sharded "toy" p on {mesh}
        sizes B={batch} E=4096 F=16384
        input x: bf16 B_yzE_x
        repeat 5 layer {{
          enter h: bf16 B_yzE_x = x
          param W: bf16 E_xF_zy
            h'  bf16 B_yE_x               = all-gather(z) B of h
          ~ h'' bf16 BE_x                 = all-gather(y) B of h'
          ~ u   bf16 BF_zy partialsum-x   = h''[B,E] * W[E,F]
            u'  bf16 BF_zy                = all-reduce(x) of u
          leave k: bf16 B_yzE_x = h
        }}
        return k
        """
    )


def seconds(cost: Estimate, *results: str) -> float:
    return sum(step.seconds for step in (*cost.ops, *cost.moves) if step.result in results)


def test_a_loop_in_the_flat_convention_takes_the_longer_of_arithmetic_and_transfer() -> None:
    cost = estimate(gathered("x=4 y=4 z=4"), V4)
    (loop,) = cost.loops
    # A block of 32 rows of 1024 elements goes 15 times to a chip, cut in two halves.
    assert (loop.first, loop.results, loop.times) == ("h'", ("h'", "h''", "u"), 5)
    assert (loop.halves, loop.permutes, loop.permute_bytes) == (2, 30, Fraction(32 * 1024 * 2, 2))
    assert loop.transfer_s == pytest.approx(15 * 32 * 1024 * 2 / 270e9)
    # Each half of each block, read as it comes, is multiplied with all of W, which is read anew for it; the sums
    # are not written, as nothing reads them.
    assert loop.op_s == pytest.approx((32 * 1024 * 1024 + 512 * 1024) * 2 / 1.2e12)
    assert loop.op_s > 2 * 512 * 1024 * 1024 / 275e12
    assert loop.seconds == max(loop.op_s, loop.transfer_s + loop.op_s / 16)
    assert loop.hidden_s == pytest.approx(seconds(cost, "h'", "h''", "u") - loop.seconds)


@pytest.mark.parametrize(("batch", "summed"), [(64, True), (64, False), (4096, True), (4096, False)])
def test_weights_that_have_the_dim_of_the_blocks_are_read_once(batch: int, summed: bool) -> None:
    weight, read = ("E_xF_zy", "BE_xy") if summed else ("F_zyE_x", "BF_zyx")
    loop_text = (
        """
          h'  bf16 BE_x                 = all-gather(y) E of h
        ~ u   bf16 BF_zy partialsum-x   = h'[B,E] * W[E,F]
        return u'
        """
        if summed
        else """
          u   bf16 BE_x partialsum-zy   = h[B,F] * W[F,E]
        ~ u'  bf16 BE_xz partialsum-y   = reduce-scatter(z) E of u
        return u''
        """
    )
    end = "u' bf16 BF_zy = all-reduce(x) of u" if summed else "u'' bf16 BE_xz = all-reduce(y) of u'"
    spmd = parsed(
        f"""
        sharded "toy" p on x=4 y=4 z=4
        sizes B={batch} E=4096 F=16384
        input h: bf16 {read if summed else "BF_zy"}
        param W: bf16 {weight}
        {loop_text.replace("return", end + chr(10) + "        return")}
        """
    )
    cost = estimate(spmd, V4)
    (loop,) = cost.loops
    if summed:
        assert loop.op_s == seconds(cost, "u")
    else:  # of h every chip needs all its rows for each half of each of the four blocks, and u is written
        values = 8 * batch * 1024 + 1024 * 1024 + batch * 1024
        assert loop.op_s == pytest.approx(max(2 * batch * 1024 * 1024 / 275e12, 2 * values / 1.2e12))
    moved_s = seconds(cost, *(["h'"] if summed else ["u'"]))
    assert loop.hidden_s == pytest.approx(
        seconds(cost, "u") + moved_s - max(loop.op_s, loop.transfer_s + loop.op_s / 4)
    )


def test_a_loop_on_links_pays_one_start_and_a_hop_each_round() -> None:
    cost = estimate(gathered("x=4 y=4 z=4"), EXACT)
    (loop,) = cost.loops
    # 45 GB/s on a link, both directions of a ring in use: first 3 blocks along z, then 4 times 3 along y.
    assert loop.transfer_s == pytest.approx(15 * 65536 / 90e9 + 15e-6)
    assert loop.start_s == pytest.approx(10e-6)
    assert loop.seconds == pytest.approx(10e-6 + max(loop.op_s, 15 * 65536 / 90e9 + 15e-6 + loop.op_s / 16))
    apart = seconds(cost, "h'", "h''", "u")
    assert apart == pytest.approx(seconds(cost, "u") + 2 * (10e-6 + 2e-6) + 15 * 65536 / 90e9)
    assert loop.hidden_s == pytest.approx(apart - loop.seconds)


@pytest.mark.parametrize("batch", [16, 512, 2**17])
def test_each_block_of_a_loop_behind_a_switch_takes_what_a_permute_of_it_does(batch: int) -> None:
    spmd, chip = gathered("x=2 y=2 z=2", batch), Hardware.load("h100-measured")
    [loop] = estimate(spmd, chip).loops
    network, block = Network(chip, spmd.mesh), float(loop.permute_bytes)
    one_s = float(network.collective_s(CollectiveKind.PERMUTE, ["z"], block, block))
    assert (loop.permutes, loop.start_s) == (3, 0.0)
    assert loop.transfer_s == pytest.approx(3 * one_s, rel=1e-12)
    latency_s = network.latency_s(CollectiveKind.PERMUTE, ["z"])
    assert loop.hops_s == pytest.approx(3 * latency_s)
    measured = dict(chip.protocols)[CollectiveKind.ALL_TO_ALL]
    assert measured.bulk_start_s is not None and measured.bulk_share is not None
    late = block / 450e9 / measured.share > measured.bulk_start_s + block / 450e9 / measured.bulk_share
    assert late == (batch > 16), "both protocols are looked at"
    if late:  # the start of the quick one each time
        sent_s = block / 450e9 / measured.bulk_share
        assert loop.transfer_s == pytest.approx(3 * (latency_s + measured.bulk_start_s + sent_s), rel=1e-12)


@pytest.mark.parametrize(
    ("mesh", "batch", "hardware", "halves", "bytes_per_s"),
    [
        ("x=4 y=4 z=4", 512, EXACT, 2, 90e9),
        ("x=4 y=4 z=4", 16, EXACT, 1, 45e9),  # one row cannot be cut
        ("x=4 y=2 z=8", 512, EXACT, 1, 45e9),  # no cubes, so no rings
        ("x=4 y=4 z=4", 16, V4, 1, 270e9),
        ("x=4 y=2 z=8", 512, V4, 1, 270e9),
        ("x=2 y=2 z=2", 512, H100.with_network("links"), 1, None),
    ],
)
def test_blocks_are_cut_in_halves_where_a_ring_closes(
    mesh: str, batch: int, hardware: Hardware, halves: int, bytes_per_s: float | None
) -> None:
    spmd = gathered(mesh, batch)
    (loop,) = estimate(spmd, hardware).loops
    ways = spmd.mesh.size("y", "z")
    block = batch // ways * 4096 // spmd.mesh.size("x") * 2
    assert (loop.halves, loop.permutes) == (halves, halves * (ways - 1))
    assert loop.permute_bytes * halves == block
    if bytes_per_s is not None:
        hops = (ways - 1) * 1e-6 if hardware is EXACT else 0.0
        assert loop.transfer_s == pytest.approx((ways - 1) * block / bytes_per_s + hops)


def test_every_block_starts_a_kernel() -> None:
    spmd = gathered("x=4 y=4 z=4")
    (plain,) = estimate(spmd, V4).loops
    (slow,) = estimate(spmd, replace(V4, calibrated=replace(V4.calibrated, kernel_s=1e-6))).loops
    assert slow.op_s == pytest.approx(plain.op_s + 2 * 16 * 1e-6)  # 16 blocks in two halves
    assert (plain.kernels_s, slow.kernels_s) == (0, pytest.approx(31e-6))
    assert slow.apart_s == pytest.approx(plain.apart_s + 1e-6)
    assert slow.transfer_s == plain.transfer_s


def test_a_mesh_that_does_not_fit_the_torus_has_no_rings_where_that_does_not_count() -> None:
    spmd = parsed(
        """
        sharded "toy" p on x=4 y=4 z=4 w=4
        sizes B=64 E=64 F=512
        input x: bf16 B_xE
        param W: bf16 EF_xyzw
          x' bf16 BE = all-gather(x) B of x
        ~ u bf16 BF_xyzw = x'[B,E] * W[E,F]
        return u
        """
    )
    assert [loop.halves for loop in estimate(spmd, V4).loops] == [1]
    with pytest.raises(InputError, match="dimensions"):
        estimate(spmd, LINKS)


def test_totals_count_what_is_hidden_as_often_as_it_is() -> None:
    spmd = gathered("x=4 y=4 z=4")
    cost = estimate(spmd, V4)
    whole, once = cost.totals(), cost.totals(once=True)
    hidden_s = cost.loops[0].hidden_s
    assert (whole.hidden_s, once.hidden_s) == (pytest.approx(5 * hidden_s), hidden_s)
    assert whole.apart_s == whole.op_s + whole.comm_s
    assert whole.total_s == pytest.approx(5 * (sum(c.seconds for c in (*cost.ops, *cost.moves)) - hidden_s))
    (scope,) = scopes(spmd, cost)
    assert scope.once.hidden_s == hidden_s


AXES = ("x", "y", "z")


def random_loop(seed: int) -> tuple[SpmdProgram, bool]:
    """A loop of up to three collectives over up to three axes, of one dim or two; and whether it fits a torus."""
    rng = random.Random(seed)
    sizes = rng.choice([(4, 4, 4), (4, 4, 8), (2, 3, 4), (2, 4, 4), (5, 2, 1)])
    axes = [axis for axis, size in zip(AXES, sizes, strict=True) if size > 1]
    rng.shuffle(axes)
    axes = axes[: rng.randint(1, len(axes))]
    cuts = sorted(rng.sample(range(1, len(axes)), rng.randint(0, len(axes) - 1)))
    pieces = [axes[a:b] for a, b in zip([0, *cuts], [*cuts, len(axes)], strict=True)]
    dims = [rng.choice("BE") for _ in pieces]
    split = {
        dim: "".join(axis for piece, d in zip(pieces, dims, strict=True) if d == dim for axis in piece) for dim in "BE"
    }

    def layout(of: dict[str, str], partial: str = "") -> str:
        body = "".join(dim + ("_" + of[dim] if of[dim] else "") for dim in "BE")
        return body + (f" partialsum-{''.join(sorted(partial))}" if partial else "")

    all_axes = "".join(axes)
    ways = prod(sizes)
    head = f'sharded "toy" p on {" ".join(f"{a}={s}" for a, s in zip(AXES, sizes, strict=True))}\n'
    head += f"sizes B={ways * rng.randint(1, 9)} E={ways * rng.randint(1, 9)} F={ways * rng.choice([1, 7, 500])}\n"
    left, lines, name = dict(split), [], "v"
    if rng.random() < 0.5:
        head += f"input v: bf16 {layout(left)}\nparam W: bf16 EF_{all_axes}\n"
        for piece, dim in reversed(list(zip(pieces, dims, strict=True))):
            left[dim] = left[dim].removesuffix("".join(piece))
            lines.append(f"{name}' bf16 {layout(left)} = all-gather({''.join(piece)}) {dim} of {name}")
            name += "'"
        lines.append(f"~ u bf16 BF_{all_axes} = {name}[B,E] * W[E,F]\nreturn u")
    else:
        head += f"input c: bf16 BF_{all_axes}\nparam W: bf16 F_{all_axes}E\n"
        left, partial = {"B": "", "E": ""}, all_axes
        lines.append(f"v bf16 {layout(left, partial)} = c[B,F] * W[F,E]")
        for piece, dim in zip(pieces, dims, strict=True):
            left[dim] += "".join(piece)
            partial = "".join(axis for axis in partial if axis not in piece)
            lines.append(f"~ {name}' bf16 {layout(left, partial)} = reduce-scatter({''.join(piece)}) {dim} of {name}")
            name += "'"
        lines.append(f"return {name}")
    body = "\n".join(line if line.startswith("~") or n == 0 else f"~ {line}" for n, line in enumerate(lines[:-1]))
    return parsed(f"{head}{body}\n{lines[-1]}\n"), sizes in ((4, 4, 4), (4, 4, 8))


def by_blocks_s(spmd: SpmdProgram, halves: int) -> float:
    """Seconds of the einsum of a random loop on tpu-v4. W, which has no B, is read for each block along B; where
    products are scattered, the other factor, which has no E, for each along E. Gathered blocks are read one by
    one. The result is written once."""
    moves = [placed.item for placed in walk(spmd.body) if isinstance(placed.item, Move)]
    along = [(axis, move.collective.dim) for move in moves for axis in move.collective.axes]
    gathers = isinstance(moves[0].collective, AllGather)
    outermost = moves[0] if gathers else moves[-1]

    def blocks(dim: int) -> int:
        ways = prod(spmd.mesh.size(axis) for axis, d in along if d == dim)
        return ways * (halves if outermost.collective.dim == dim else 1)

    sizes, ways = dict(spmd.sizes), spmd.mesh.size(*(axis for axis, _ in along))
    rows, wide, split = sizes["B"], sizes["E"], sizes["F"] // ways
    weight, narrow = blocks(0) * wide * split, rows * split
    values = weight + rows * wide + narrow if gathers else weight + blocks(1) * narrow + rows * wide
    return max(2 * rows * wide * split / 275e12, 2 * values / 1.2e12)


@pytest.mark.parametrize("seed", range(60))
def test_the_laws_of_every_loop(seed: int) -> None:
    spmd, rings = random_loop(seed)
    flat = estimate(spmd, V4)
    (loop,) = flat.loops
    # The permutes carry the bytes of the collectives, no more and no less.
    assert loop.permutes * loop.permute_bytes == sum(predict(spmd))
    assert (loop.halves == 1) or rings
    moved_s, alone_s = sum(move.seconds for move in flat.moves), sum(op.seconds for op in flat.ops)
    assert isclose(loop.transfer_s, moved_s, rel_tol=1e-9)
    assert isclose(loop.op_s, by_blocks_s(spmd, loop.halves), rel_tol=1e-9) and loop.op_s >= alone_s * (1 - 1e-9)
    # Nothing comes beside the ops on the block that is there first, or that is made first.
    waits_s = loop.transfer_s + loop.op_s / (loop.permutes // loop.halves + 1)
    assert isclose(loop.hidden_s, moved_s + alone_s - max(loop.op_s, waits_s), rel_tol=1e-9)
    for hardware in (LINKS, H100.with_network("links")):
        cost = estimate(spmd, hardware)
        (linked,) = cost.loops
        moves = sum(move.seconds for move in cost.moves)
        assert linked.permutes * linked.permute_bytes == sum(predict(spmd))
        # Axis after axis it sends no quicker than the collectives, whose starts alone it can save.
        saved = (len(cost.moves) - 1) * linked.start_s
        assert linked.start_s + linked.transfer_s >= moves - saved - 1e-12
        assert linked.hidden_s <= min(sum(op.seconds for op in cost.ops), moves) + saved + 1e-12
