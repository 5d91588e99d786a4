"""Scalings with an attention factor: YaRN and LongRoPE, against their formulas written out pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from model_text import print_model

from escc.compiler.simulate.reference import run_reference
from escc.ir.diagnostics import InputError, Source
from escc.ir.program import Program
from escc.ir.text.read import parse
from escc.passes.expansion.expand import expand

FIRST, LAST = 3, 9  # the positions, of a context of 9


def program(size: int, scaling: str, base: str = ", base=10000", dims: str = "", rest: str = "") -> Program:
    call = f"rope(x, over=Q, at=L into M{base}, scaling={scaling})"
    text = f"dim L = {LAST - FIRST}, M = {LAST}{dims or f', Q = {size}'}\nmain(x: f32[L,Q]) {{ return {call} }}\n{rest}"
    source = Source("a.esti", text)
    return expand(parse(source), source)


def turned(size: int, scaling: str, base: str = ", base=10000") -> np.ndarray:
    """What rope makes of pairs (1, 0), as complex numbers: cos + i sin, times the attention factor."""
    one = program(size, scaling, base)
    x = np.zeros((LAST - FIRST, size))
    x[:, 0::2] = 1.0
    found = run_reference(one, dict(one.phases[0].sizes), {"x": x})[one.results[0]]
    return np.asarray(found[:, 0::2] + 1j * found[:, 1::2])


def expected(frequencies: list[float], attention: float) -> np.ndarray:
    return np.asarray(attention * np.exp(1j * np.arange(FIRST, LAST)[:, None] * np.array(frequencies)))


def yarn(size: int, base: float, factor: float, fast: float, slow: float, original: float, exact: bool) -> list[float]:
    """Pair by pair: its own frequency, that of interpolation, or both in part."""
    found = []
    low = size / 2 * math.log(original / (fast * 2 * math.pi)) / math.log(base)
    high = size / 2 * math.log(original / (slow * 2 * math.pi)) / math.log(base)
    if not exact:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high = high if high != low else low + 0.001
    for pair in range(size // 2):
        frequency = base ** (-2 * pair / size)
        divided = min(max((pair - low) / (high - low), 0), 1)
        found.append(frequency * (1 - divided) + frequency / factor * divided)
    return found


@pytest.mark.parametrize(
    ("size", "base", "numbers"),
    [
        (64, 150000, (32, 32, 1, 4096)),  # gpt-oss
        (64, 10000, (40, 32, 1, 4096)),  # DeepSeek-V3
        (128, 1000000, (4, 32, 1, 32768)),  # Qwen3
        (16, 10000, (8, 32, 1, 100)),  # all but one pair turn less than the fast beta
        (16, 10000, (8, 2, 2, 2 * 2 * math.pi)),  # the ramp begins and ends at the first pair
        (16, 10000, (8, 32, 1, 5)),  # no pair turns once
        (8, 1.5, (0.5, 32, 1, 4096)),  # all pairs turn often; a factor below 1 has no attention factor
        (6, 10000, (8, 4, 1, 64)),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_yarn(size: int, base: float, numbers: tuple[float, ...], exact: bool) -> None:
    factor = numbers[0]
    written = ", ".join(map(str, numbers))
    frequencies = yarn(size, base, *numbers, exact)  # type: ignore[arg-type]
    attention = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    for given, multiplied in (("", attention), (", 1.25", 1.25), (", 1", 1.0)):
        found = turned(size, f"yarn({written}{given}{', exact' if exact else ''})", f", base={base}")
        np.testing.assert_allclose(found, expected(frequencies, multiplied), rtol=1e-12)


def test_yarn_in_numbers() -> None:
    """gpt-oss, worked out by hand: the ramp goes from pair 8.09 to 17.40, or from 8 to 18."""
    for word, share in ((", exact", (12 - 8.0928) / (17.3980 - 8.0928)), ("", 4 / 10)):
        found = turned(64, f"yarn(32, 32, 1, 4096{word})", ", base=150000")
        frequency = 150000 ** (-24 / 64)
        wanted = frequency * (1 - share) + frequency / 32 * share
        assert np.angle(found[1, 12] / found[0, 12]) == pytest.approx(wanted, rel=1e-4)
        assert abs(found[0, 0]) == pytest.approx(1.34657359)


@pytest.mark.parametrize("size", [2, 4, 10, 96, 128, 130, 300])
@pytest.mark.parametrize("plateau", [False, True])
def test_longrope_divides_each_pair_by_its_own(size: int, plateau: bool) -> None:
    factors = [1 + (pair // 7 if plateau else pair) * 0.37 for pair in range(size // 2)]
    found = turned(size, f"longrope(1.19, {factors})")
    frequencies = [10000 ** (-2 * pair / size) / factor for pair, factor in enumerate(factors)]
    np.testing.assert_allclose(found, expected(frequencies, 1.19), rtol=1e-12)


@pytest.mark.parametrize("original", [LAST - 1, LAST, LAST + 1])
def test_longrope_has_other_factors_of_longer_contexts(original: int) -> None:
    """By the size of the context, wherever a token stands in it."""
    found = turned(6, f"longrope(1.19, [1, 2, 3], {original}, 1.5, [4, 5, 6.5])")
    factors, attention = ([4, 5, 6.5], 1.5) if original < LAST else ([1, 2, 3], 1.19)
    frequencies = [10000 ** (-2 * pair / 6) / factor for pair, factor in enumerate(factors)]
    np.testing.assert_allclose(found, expected(frequencies, attention), rtol=1e-12)


def test_a_table_of_one_factor_is_a_number() -> None:
    one = program(8, "longrope(1, [2, 2, 2, 2])")
    assert "where" not in str(one.body.items)
    np.testing.assert_allclose(turned(8, "longrope(1, [2, 2, 2, 2])"), turned(8, "linear(2)"))


def test_scalings_are_written_as_they_are_read() -> None:
    table = "[1, 1.02, 1e-07, 64.5]"
    longropes = f"longrope(1.19, {table})", f"longrope(1.19, {table}, 4096, 1.2, {table})"
    for scaling in ("yarn(32, 32, 1, 4096, exact)", *longropes):
        call = f"rope(x, over=Q, at=L into M, scaling={scaling})"
        text = f"dim L = 2, M = 4, Q = 8\nmain(x: f32[L,Q]) {{ return {call} }}\n"
        model = parse(Source("a.esti", text))
        assert scaling in print_model(model)
        assert parse(Source("b.esti", print_model(model))) == model


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ("yarn(4)", "`yarn` takes numbers above 0: `factor`, `beta_fast`, `beta_slow`, `original`; the word `exact`"),
        ("yarn(4, 32, 1, 4096, 1, 1)", "`original`, `attention`; the word `exact` may stand behind them."),
        ("yarn(4, 32, 1, 4096, 0)", "`yarn` takes numbers above 0"),
        ("yarn(4, 32, 1, 4096, rough)", "`yarn` takes numbers above 0"),
        ("yarn(4, 32, 1, exact, 4096)", "`yarn` takes numbers above 0"),
        ("yarn(exact)", "`yarn` takes numbers above 0"),
        ("yarn()", "`yarn` takes numbers above 0"),
        ("yarn(4, 1, 32, 4096)", "The fast beta of `yarn` is not below the slow one."),
        ("longrope(1.19)", "`longrope` takes the attention factor, and a number above 0 for each pair in a list."),
        ("longrope([1, 2, 3, 4])", "write `scaling=longrope(1.19, [1, 1.02, 1.05])`"),
        ("longrope(0, [1, 2, 3, 4])", "`longrope` takes the attention factor"),
        ("longrope(1, [1, 2, 0, 4])", "`longrope` takes the attention factor"),
        ("longrope(1, 2)", "`longrope` takes the attention factor"),
        ("longrope(1, [1, 2, 3])", "In phase `main`, Q = 8 has 4 pairs, and there are 3 factors of `longrope`."),
        ("longrope(1, [1, 2, 3, 4], 8)", "`longrope` takes the attention factor"),
        ("longrope(1, [1, 2, 3, 4], 8, 1)", "`longrope` takes the attention factor"),
        ("longrope(1, [1, 2, 3, 4], 0, 1, [1, 2, 3, 4])", "`longrope` takes the attention factor"),
        ("longrope(1, [1, 2, 3, 4], 8, 1, [1, 2, 3])", "there are 3 factors of `longrope`."),
        ("longrope(1, [1, 2, 3, 4, 5])", "give as many factors as there are pairs"),
        ("longrope(1, [Q])", "error"),
        ("longrope(1, [])", "error"),
        ("linear([4])", "`linear` takes numbers above 0: `factor`."),
    ],
)
def test_what_does_not_fit_is_refused(scaling: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        program(8, scaling)
    assert said in str(error.value)


def test_yarn_needs_frequencies_that_fall() -> None:
    with pytest.raises(InputError, match="`yarn` needs a base above 1"):
        program(8, "yarn(4, 32, 1, 4096)", ", base=1")


def test_the_factors_are_counted_in_every_phase() -> None:
    with pytest.raises(InputError) as error:
        program(8, "longrope(1, [1, 2])", dims=", Q", rest="phase a { Q = 4 }\nphase b { Q = 6 }\n")
    assert "In phase `b`, Q = 6 has 3 pairs, and there are 2 factors" in str(error.value)
    assert "phase `a`" not in str(error.value)


@pytest.mark.parametrize("place", ["return x + [1, 2]", "return exp([1])", "return f([1])", "return sum([1], over=L)"])
def test_a_list_has_no_place_elsewhere(place: str) -> None:
    source = Source("a.esti", f"dim L = 2\nblock f(x: f32[L]) {{ return x }}\nmain(x: f32[L]) {{ {place} }}\n")
    with pytest.raises(InputError):
        expand(parse(source), source)
