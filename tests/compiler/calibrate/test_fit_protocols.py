"""Protocols of collectives: those that made the times come out again, as many as the rows tell, as plans pay them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from escc.compiler.calibrate.fit_protocols import fit_protocols, protocols_of
from escc.compiler.calibrate.tables import TimedCollective
from escc.cost.hardware import Convention, Hardware, Protocols
from escc.cost.network import Network
from escc.ir.collective import CollectiveKind
from escc.ir.diagnostics import InputError, Source, Span
from escc.ir.mesh import Mesh

H100 = Hardware.load("h100", datasheet=True)
MADE = Protocols(5e-6, 1e-6, 0.25, 2e-5, 0.7)
ONE = Protocols(5e-6, 1e-6, 0.6)
SIZES = [2**k for k in range(9, 30)]


def rows_of(
    made: Protocols,
    kind: CollectiveKind = CollectiveKind.ALL_GATHER,
    counts: Sequence[int] = (2, 4, 8),
    sizes: Sequence[int] = tuple(SIZES),
    chip: Hardware = H100,
    noise: float = 0.0,
) -> tuple[list[TimedCollective], Source]:
    """Rows of what plans pay by such protocols, a line each."""
    linked = replace(chip, protocols=((kind, made),), convention=Convention.LINKS)
    rng, rows = np.random.default_rng(1), []
    for chips in counts:
        network = Network(linked, Mesh((("x", chips),)))
        for size in sizes:
            held = (size / chips, size) if kind is CollectiveKind.ALL_GATHER else (size, size / chips)
            seconds = float(network.collective_s(kind, ("x",), *held)) * (1 + noise * rng.standard_normal())
            rows.append(TimedCollective(kind, chips, size, seconds, Span(len(rows) + 2, 1)))
    return rows, Source("t.csv", "\n" * (len(rows) + 2))


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"])
def test_protocols_that_made_the_times_come_out(kind: str) -> None:
    found = fit_protocols(rows_of(MADE, CollectiveKind(kind))[0], H100)
    assert abs(found.errors).max() < 0.01
    assert found.protocols.start_s == pytest.approx(MADE.start_s, rel=0.05)
    assert found.protocols.member_s == pytest.approx(MADE.member_s, rel=0.05)
    shares = found.protocols.share, found.protocols.bulk_share
    assert shares == pytest.approx((MADE.share, MADE.bulk_share), rel=0.05)
    assert not found.notes


def test_rates_and_errors_are_those_that_plans_are_priced_with() -> None:
    """On a chip that reaches a share of its links already."""
    slow = H100.with_figures(network_efficiency=0.5)
    found = fit_protocols(rows_of(MADE, chip=slow)[0], slow)
    shares = found.protocols.share, found.protocols.bulk_share
    assert shares == pytest.approx((MADE.share, MADE.bulk_share), rel=0.05)
    assert abs(found.errors).max() < 0.01
    other = fit_protocols(rows_of(MADE, chip=slow)[0], H100)
    assert other.protocols.share == pytest.approx(MADE.share / 2, rel=0.05)


def test_one_protocol_stands_where_the_rows_do_not_tell_two_apart() -> None:
    """Those of one count of chips, of which what each other adds is no figure of its own."""
    rows, source = rows_of(ONE, counts=(8,))
    found = protocols_of(rows, H100, source)
    assert found.protocols == Protocols(pytest.approx(ONE.start_s + 7 * ONE.member_s), 0.0, pytest.approx(ONE.share))
    assert abs(found.errors).max() < 0.01
    assert found.notes == ("the rows do not tell two protocols apart; it has one",)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE])
@pytest.mark.parametrize("largest", [2**16, 2**20, 2**21])
def test_small_rows_alone_do_not_say_what_large_ones_take(kind: CollectiveKind, largest: int, noise: float) -> None:
    rows, source = rows_of(MADE, kind, sizes=[size for size in SIZES if size <= largest], noise=noise)
    with pytest.raises(InputError, match="do not say at which rate large ones go") as error:
        protocols_of(rows, H100, source)
    [found] = error.value.diagnostics
    assert found.span == rows[-1].place and "add larger ones" in (found.hint or "")


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_large_rows_alone_do_not_say_what_small_ones_take(noise: float) -> None:
    rows, source = rows_of(MADE, sizes=[size for size in SIZES if size >= 2**24], noise=noise)
    with pytest.raises(InputError, match="do not say what small ones take") as error:
        protocols_of(rows, H100, source)
    [found] = error.value.diagnostics
    assert found.span == rows[0].place and "add smaller ones" in (found.hint or "")


def test_a_figure_that_is_hardly_known_is_said() -> None:
    rows, source = rows_of(replace(MADE, member_s=2e-9), noise=0.02)
    found = protocols_of(rows, H100, source)
    assert [note.split(":")[0] for note in found.notes] == ["member_s is not identified by the data"]


def test_too_few_rows_are_refused() -> None:
    rows, source = rows_of(MADE, counts=(8,), sizes=SIZES[:4])
    with pytest.raises(InputError, match="4 rows of all-gather cannot give 5 figures"):
        protocols_of(rows, H100, source)
