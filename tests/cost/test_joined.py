"""Sets of ops are joined just where each can still run as a whole, before or after any other."""

from __future__ import annotations

import random

from escc.cost.joined import Joined


def runs(sets: list[set[int]], makers: list[set[int]], complete: set[int]) -> bool:
    """Whether the sets can run one after the other, none of which reads of its own what is known when all has run."""
    left, done = [*sets], set[int]()
    while left:
        ready = [own for own in left if all(makers[n] <= own - complete | done for n in own)]
        if not ready:
            return False
        done.update(*ready)
        left = [own for own in left if own not in ready]
    return True


def test_two_sets_are_apart_just_where_they_could_not_run_as_one() -> None:
    rng, answers = random.Random(0), [0, 0]
    for _ in range(60):
        count = rng.randint(2, 12)
        order = rng.sample(range(count), count)
        makers: list[set[int]] = [set() for _ in order]
        for place, n in enumerate(order):
            makers[n] = set(rng.sample(order[:place], min(place, rng.randint(0, 2))))
        complete = {n for n in order if rng.random() < 0.2}
        joined = Joined(makers, order, complete)
        sets = [{n} for n in range(count)]
        for _ in range(20):
            m, n = rng.sample(range(count), 2)
            one, other = (next(own for own in sets if k in own) for k in (m, n))
            rest = [own for own in sets if own not in (one, other)]
            together = one is other or runs([*rest, one | other], makers, complete)
            assert joined.apart(m, n) != together
            answers[together] += 1
            if together:
                joined.join([m, n])
                sets = [*rest, one | other]
        assert len({joined.root(n) for n in range(count)}) == len(sets)
        assert all(joined.root(n) == joined.root(min(own)) for own in sets for n in own)
    assert min(answers) > 100
