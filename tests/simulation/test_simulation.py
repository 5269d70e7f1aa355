"""Some seconds of simulation: a seed that everybody runs, and one that nobody has seen."""

import random

import pytest
import simulate

KNOWN, NEW = (1, 20.0), (random.SystemRandom().randrange(10**9), 3.0)


@pytest.mark.parametrize(("seed", "seconds"), [KNOWN, NEW], ids=["known", "new"])
def test_every_promise_is_kept_whatever_happens(seed, seconds):
    said: list[str] = [f"SEED={seed}"]
    with simulate.store() as real:
        found = simulate.search(seed, real, seconds=seconds, say=said.append)
    assert found is None, "\n".join(
        [*said, *found[1].broken, f"again: make simulate SECONDS=1 SEED={found[0]}"]
    )


def test_a_seed_says_all():
    """The same run twice: the same steps in the same order."""
    plan = simulate.Plan.drawn(11)
    with simulate.store() as real:
        first, second = (simulate.run(plan, real) for _ in range(2))
    assert first.trace == second.trace
    assert first.steps == second.steps
