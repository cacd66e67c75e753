"""Controllers under hostile numbers: everything stays finite, on the simplex, and within the budget."""

import numpy as np
import pytest
from controllers import BINS, NAN, controller, rows_of

from gdro.exp3p import Exp3P
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO

PROMPTS, MEAN = 12, 4
LOSSES = {
    "1e308": lambda cycle, rng, size: np.full(size, 1e308),
    "minus 1e308": lambda cycle, rng, size: np.full(size, -1e308),
    "denormal": lambda cycle, rng, size: np.full(size, 5e-324),
    "all equal": lambda cycle, rng, size: np.full(size, 0.7),
    "alternating": lambda cycle, rng, size: np.full(size, 1e308 * (-1) ** cycle),
    "mixed": lambda cycle, rng, size: rng.choice([1e308, -1e308, 5e-324, 0.0, 1e-300, 1.0], size=size),
}


def assert_controlled(one, plan):
    assert plan.rollouts.sum() == MEAN * plan.prompt_ids.size
    assert np.isfinite(plan.weights).all()
    assert (plan.weights > 0).all()
    for row in (one.prompt.distribution, *one.rollout.arm_probabilities):
        assert (row >= 0).all()
        assert row.sum() == pytest.approx(1)
    assert np.isfinite(one.rollout.shadow_price)
    for name, value in one.state_dict().items():
        if isinstance(value, np.ndarray):
            assert np.isfinite(value).all(), name


@pytest.mark.parametrize("cycles", [25, pytest.param(1000, marks=pytest.mark.faults)])
@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("extreme", ["none", "right", "wrong"])
def test_a_controller_stays_in_control(losses, extreme, cycles):
    one = controller(PROMPTS, signal="surrogate")
    rng = np.random.default_rng(0)
    for cycle in range(cycles):
        plan = one.plan(rng.integers(0, PROMPTS, size=6))
        index = rows_of(plan)
        rewards = {
            "none": np.full(index.size, NAN),
            "right": np.ones(index.size),
            "wrong": np.zeros(index.size),
        }
        one.observe(plan, index, rewards[extreme], losses=LOSSES[losses](cycle, rng, index.size))
        assert_controlled(one, one.plan(np.arange(PROMPTS)))


@pytest.mark.parametrize("score", ["ema", "cumulative"])
@pytest.mark.parametrize("normalization", ["none", "mean_one"])
@pytest.mark.parametrize("share_normalized", [False, True])
@pytest.mark.parametrize("losses", LOSSES)
def test_weights_stay_finite(losses, score, normalization, share_normalized):
    one = PromptGDRO(BINS, score=score, normalization=normalization, share_normalized=share_normalized)
    rng = np.random.default_rng(1)
    for cycle in range(40):
        bins = rng.integers(-1, BINS, size=9)
        one.observe(bins, LOSSES[losses](cycle, rng, 9))
        weights = one.weights_for(np.arange(BINS))
        assert np.isfinite(weights).all()
        assert (weights >= 0).all()
        assert (weights <= one.settings.max_weight).all()
        assert one.distribution.sum() == pytest.approx(1)
        assert (one.distribution >= 0.01 / BINS * (1 - 1e-12)).all()


@pytest.mark.parametrize("utility", ["loss", "adversarial", "variance"])
@pytest.mark.parametrize("rate", [0.4, None])
@pytest.mark.parametrize("losses", LOSSES)
def test_rollouts_stay_on_the_budget(losses, rate, utility):
    one = RolloutGDRO(BINS, mean_budget=MEAN, arm_ema_rate=rate, utility=utility)
    rng = np.random.default_rng(2)
    for cycle in range(40):
        bins = rng.integers(-1, BINS, size=9)
        rollouts = one.plan(bins, rng)
        assert rollouts.sum() == 9 * MEAN
        values = LOSSES[losses](cycle, rng, 9)
        one.observe(bins, values, variances=np.where(rng.random(9) < 0.2, NAN, np.abs(values)))
        np.testing.assert_allclose(one.arm_probabilities.sum(axis=1), 1)
        assert np.isfinite(one.scores).all()
        assert np.isfinite(one.shadow_price)


def lone_bin(cycles):
    """A controller of which one bin alone is ever seen, after ``cycles``."""
    one = controller(PROMPTS, signal="surrogate", bins=[2] * PROMPTS)
    ids = np.arange(3)
    for cycle in range(cycles):
        plan = one.plan(ids)
        index = rows_of(plan)
        one.observe(plan, index, (index + cycle) % 2.0, losses=np.full(index.size, 1e3 * (-1) ** cycle))
    return one


@pytest.mark.parametrize("cycles", [100, pytest.param(10**5, marks=pytest.mark.faults)])
def test_one_bin_only_for_very_long(cycles):
    one = lone_bin(cycles)
    assert_controlled(one, one.plan(np.arange(PROMPTS)))
    assert one.cycle == cycles
    others = np.arange(BINS) != 2
    assert (one.prompt.scores[others] == 0).all()
    assert (one.rollout.scores[others] == 0).all()


@pytest.mark.parametrize("rounds", [10**3, pytest.param(10**5, marks=pytest.mark.faults)])
def test_exp3p_with_one_arm_for_ever(rounds):
    bandit = Exp3P(3, horizon=rounds)
    for _ in range(rounds):
        bandit.observe(1, 1.0)
    assert bandit.probabilities.sum() == pytest.approx(1)
    assert (bandit.probabilities >= bandit.settings.exploration / 3 * (1 - 1e-12)).all()
    assert bandit.probabilities.argmax() == 1
