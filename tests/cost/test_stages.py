"""The time of a pipeline: its formula beside the pipeline played out event by event, and as published."""

import itertools
import random
from fractions import Fraction

import pytest
import sympy

from escc.cost.elementwise import larger
from escc.cost.simulate.stages import play
from escc.cost.stages import Rounds


def test_formula_equals_the_simulation_of_a_thousand_random_schedules():
    rng = random.Random(0)
    for _ in range(1000):
        stages_s = [rng.choice([1.0, 2.0, rng.uniform(0.1, 9.0)]) for _ in range(rng.randint(1, 6))]
        rounds = Rounds(rng.randint(1, 5), rng.randint(1, 9), rng.random() < 0.5)
        turns = play(stages_s, rounds.calls, rounds.micro_batches, rounds.wait)
        assert rounds.seconds(sum(stages_s), max(stages_s)) == pytest.approx(max(t.end_s for t in turns)), rounds


def test_a_stage_has_one_micro_batch_at_a_time_and_each_goes_through_all_in_order():
    turns = play([3.0, 1.0, 2.0], calls=2, micro_batches=3, wait=True)
    for stage in range(3):
        own = [t for t in turns if t.stage == stage]
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(own))
    for a, b in itertools.pairwise(turns):
        assert b.stage == 0 or (a.end_s <= b.start_s and a.stage + 1 == b.stage and a.micro_batch == b.micro_batch)
    assert len(turns) == 2 * 3 * 3


def test_even_stages_take_what_is_published():
    # Aminabadi et al. 2022, section 4.2: (m + P - 1) t for a prompt, max(P, m) t for each token after it.
    t, m, stages = sympy.symbols("t m P", positive=True)
    prompt = Rounds(1, m, wait=False).seconds(stages * t, t)
    assert sympy.simplify(prompt - (m + stages - 1) * t) == 0
    calls = 64
    tokens = Rounds(calls, m, wait=True).seconds(stages * t, t, larger=sympy.Max)
    assert sympy.simplify(tokens - ((calls - 1) * sympy.Max(stages * t, m * t) + (m + stages - 1) * t)) == 0


def test_times_of_calls_are_as_exact_as_those_of_stages():
    third, seventh = Fraction(1, 3), Fraction(1, 7)
    assert Rounds(3, 2, wait=True).seconds(third, seventh) == third + seventh + 2 * third
    assert int(larger(2**53 + 1, 1.0)) == 2**53 + 1


def test_many_micro_batches_in_the_prompt_and_few_in_tokens_are_the_hybrid_schedule():
    # A prompt computes, so that a micro-batch takes its part of the time; a token reads all weights.
    def whole(prompt: int, token: int) -> float:
        prompt_s, token_s = 0.1 + 8.0 / prompt, 1.0 + 0.1 / token
        first = Rounds(1, prompt, wait=False).seconds(2 * prompt_s, prompt_s)
        return float(first + Rounds(50, token, wait=True).seconds(2 * token_s, token_s))

    assert whole(8, 2) < whole(2, 2)
    assert whole(8, 2) < whole(8, 8)


def test_weight_is_the_time_of_even_stages():
    assert Rounds(1, 8, wait=False).weight(4) == 11
    assert Rounds(3, 2, wait=True).weight(4) == 2 * 4 + 5
    assert Rounds(3, 8, wait=True).weight(4) == 2 * 8 + 11
    assert Rounds(16, 1, wait=False).weight(2) == 17


def test_stages_that_are_the_slowest_share_what_the_slowest_counts_for():
    assert Rounds(1, 5, wait=False).counts([2.0, 1.0, 2.0]) == (3, 1, 3)
    assert Rounds(1, 4, wait=False).counts([2.0, 1.0, 2.0]) == (Fraction(5, 2), 1, Fraction(5, 2))
    assert Rounds(3, 8, wait=True).counts([1.0, 2.0]) == (1, 8 + 2 * 8)
    assert Rounds(3, 8, wait=True).counts([1.0] * 4) == (Fraction(Rounds(3, 8, wait=True).weight(4), 4),) * 4


def test_seconds_are_the_largest_of_the_sums_that_count_stages():
    random_ = random.Random(5)
    for _ in range(300):
        rounds = Rounds(random_.choice((1, 2, 9)), random_.randint(1, 6), random_.random() < 0.5)
        here, there = ([random_.choice((9.0, random_.uniform(1, 9))) for _ in range(3)] for _ in range(2))
        counted = [sum(n * s for n, s in zip(rounds.counts(here), one, strict=True)) for one in (here, there)]
        assert counted[0] == pytest.approx(rounds.seconds(sum(here), max(here)), rel=1e-12)
        assert counted[1] <= rounds.seconds(sum(there), max(there)) * (1 + 1e-12)
