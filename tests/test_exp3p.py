"""EXP3.P: its update by hand, and its regret against adversaries over many seeds."""

import numpy as np
import pytest

from gdro.exp3p import Exp3P, Exp3PSettings, updated_log_weights
from gdro.simplex import softmax_with_floor


def test_rates_by_hand():
    s = Exp3PSettings(4, 1000, 0.1)
    np.testing.assert_allclose(s.bias, np.sqrt(np.log(40) / 4000))
    np.testing.assert_allclose(s.step_size, 0.95 * np.sqrt(np.log(4) / 4000))
    np.testing.assert_allclose(s.exploration, 1.05 * np.sqrt(4 * np.log(4) / 1000))
    np.testing.assert_allclose(Exp3P(4, 1000, 0.1).regret_bound, 5.15 * np.sqrt(4000 * np.log(40)))


def test_update_by_hand():
    bandit = Exp3P(2, 100, delta=0.05)
    s, weights, p = bandit.settings, np.ones(2), np.array([0.5, 0.5])
    for arm, gain in ((1, 1.0), (0, 0.25), (1, 0.0)):
        bandit.observe(arm, gain)
        estimates = np.array([((i == arm) * gain + s.bias) / p[i] for i in range(2)])
        weights = weights * np.exp(s.step_size * estimates)
        p = (1 - s.exploration) * weights / weights.sum() + s.exploration / 2
        np.testing.assert_allclose(bandit.probabilities, p)


def test_draws_follow_the_probabilities():
    bandit = Exp3P(3, 200)
    for _ in range(20):
        bandit.observe(2, 1.0)
    rng = np.random.default_rng(0)
    share = np.bincount([bandit.draw(rng) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(share, bandit.probabilities, atol=0.04)


def test_weights_too_large_for_floats_do_no_harm():
    bandit = Exp3P(3, 50)
    large = bandit.state_dict() | {"log_weights": np.array([2000.0, 0.0, -2000.0])}
    bandit.load_state_dict(large)
    bandit.observe(0, 1.0)
    assert bandit.state_dict()["log_weights"][0] > 2000
    np.testing.assert_allclose(bandit.probabilities[1:], bandit.settings.exploration / 3)
    np.testing.assert_allclose(bandit.probabilities.sum(), 1)


def test_the_horizon_is_the_number_of_rounds_that_can_be_played():
    bandit, rng = Exp3P(2, 5), np.random.default_rng(0)
    for _ in range(5):
        bandit.observe(bandit.draw(rng), 0.5)
    last = bandit.probabilities
    again = Exp3P(2, 5)
    again.load_state_dict(bandit.state_dict())
    for over in (bandit, again):
        with pytest.raises(ValueError, match="all 5 rounds of the horizon were played"):
            over.draw(rng)
        with pytest.raises(ValueError, match="all 5 rounds of the horizon were played"):
            over.observe(0, 0.5)
        np.testing.assert_array_equal(over.probabilities, last)
    with pytest.raises(ValueError, match="saved rounds must be at most 5, got 6"):
        again.load_state_dict(bandit.state_dict() | {"rounds": 6})
    with pytest.raises(ValueError, match="saved rounds must be at least 0, got -1"):
        again.load_state_dict(bandit.state_dict() | {"rounds": -1})


def late_arm(t, horizon, p):
    """Arm 0 gains one half; the last arm nothing in the first quarter, then always, and is the best."""
    gains = np.zeros_like(p)
    gains[:, 0] = 0.5
    gains[:, -1] = t >= horizon / 4
    return gains


def chases_the_bandit(t, horizon, p):
    """An adaptive adversary: the arm that the bandit likes least gains 1."""
    return (p == p.min(axis=1, keepdims=True)).astype(float)


@pytest.mark.parametrize("adversary", [late_arm, chases_the_bandit])
def test_regret_stays_below_its_bound(adversary):
    """300 seeds at once; the bound is below T/2, so that it is no empty promise (regret is at most T)."""
    seeds, num_arms, horizon = 300, 4, 4000
    bandit = Exp3P(num_arms, horizon, delta=0.05)
    assert bandit.regret_bound < horizon / 2
    settings, rng = bandit.settings, np.random.default_rng(3)
    log_weights = np.zeros((seeds, num_arms))
    totals, own = np.zeros((seeds, num_arms)), np.zeros(seeds)
    for t in range(horizon):
        p = softmax_with_floor(log_weights, settings.exploration)
        arms = (p.cumsum(axis=1)[:, :-1] <= rng.random(seeds)[:, None]).sum(axis=1)
        gains = adversary(t, horizon, p)
        played = gains[np.arange(seeds), arms]
        log_weights = updated_log_weights(log_weights, arms, played, settings)
        totals += gains
        own += played
    regret = totals.max(axis=1) - own
    assert (regret <= bandit.regret_bound).mean() >= 0.95
    if adversary is late_arm:
        blind = totals.max(axis=1) - totals.mean(axis=1)
        assert regret.mean() < 0.6 * blind.mean()


def test_one_bandit_does_what_many_do():
    bandit, rows = Exp3P(3, 100), np.zeros((2, 3))
    for arm, gain in ((0, 0.3), (2, 1.0), (1, 0.0)):
        bandit.observe(arm, gain)
        rows = updated_log_weights(rows, np.array([arm, 0]), np.array([gain, 0.5]), bandit.settings)
    np.testing.assert_array_equal(bandit.state_dict()["log_weights"], rows[0])


def test_state_round_trip_and_foreign_states():
    bandit = Exp3P(3, 100)
    bandit.observe(1, 0.7)
    other = Exp3P(3, 100)
    other.load_state_dict(bandit.state_dict())
    np.testing.assert_array_equal(other.probabilities, bandit.probabilities)
    assert other.draw(np.random.default_rng(1)) == bandit.draw(np.random.default_rng(1))
    longer = Exp3P(3, 200)
    with pytest.raises(ValueError, match=r"state of Exp3P was .*horizon: saved 100, here 200"):
        longer.load_state_dict(bandit.state_dict())
    np.testing.assert_allclose(longer.probabilities, 1 / 3)
    with pytest.raises(ValueError, match=r"saved log_weights\[1\] is nan.*the file was damaged"):
        other.load_state_dict({**bandit.state_dict(), "log_weights": np.array([0, np.nan, 0])})
    np.testing.assert_array_equal(other.probabilities, bandit.probabilities)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 100), "num_arms must be at least 2, got 1"),
        ((2, 0), "horizon must be at least 1, got 0"),
        ((2, 100, 0.0), "delta must be above 0, got 0.0"),
        ((2, 100, 1.0), "delta must be below 1, got 1.0"),
        ((10, 20), "horizon 20 is too short for 10 arms.*at least 26 rounds"),
    ],
)
def test_settings_out_of_range_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        Exp3P(*arguments)
    Exp3P(10, 26)


@pytest.mark.parametrize(("arm", "gain"), [(2, 0.5), (-1, 0.5), (0, 1.1), (0, -0.1), (0, np.nan), (0.0, 0.5)])
def test_bad_observations_change_nothing(arm, gain):
    bandit = Exp3P(2, 100)
    with pytest.raises((ValueError, TypeError), match=r"arm|gain"):
        bandit.observe(arm, gain)
    np.testing.assert_array_equal(bandit.probabilities, [0.5, 0.5])
