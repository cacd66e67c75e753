"""What the tests of Rollout-GDRO share."""

import numpy as np


def rng(seed=0):
    return np.random.default_rng(seed)


def cycle(adversary, bins, losses, seed=0, **more):
    """Plan and observe once; the plan."""
    rollouts = adversary.plan(bins, rng(seed))
    adversary.observe(bins, losses, **more)
    return rollouts


def plans(adversary, bins, seeds):
    return [adversary.plan(bins, rng(seed)).tolist() for seed in seeds]


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
