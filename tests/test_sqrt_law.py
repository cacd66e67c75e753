"""The rules without a bandit: their running variances by hand, their plans against the variance optimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro.allocation import square_root_law, variance_optimal
from gdro.batch_budget import Budget
from gdro.reward_variance import RewardVariance
from gdro.sqrt_law import LossProportional, SquareRootLaw

ARMS = tuple(range(2, 13))


def rng(seed=0):
    return np.random.default_rng(seed)


def taught(variances, **more):
    """A rule that saw one prompt a bin with these variances."""
    rule = SquareRootLaw(len(variances), ARMS, 4, **more)
    rule.observe(np.arange(len(variances)), np.zeros(len(variances)), variances=variances)
    return rule


def test_running_variance_by_hand():
    rule = taught([0.2, 0.1, np.nan], ema_rate=0.25)
    np.testing.assert_allclose(rule.variances, [0.2, 0.1, 0.15])  # the unseen bin: mean of the seen
    rule.observe([0, 0, 1, -1], np.zeros(4), variances=[0.4, 0.6, np.nan, 9.0])
    np.testing.assert_allclose(rule.variances, [0.75 * 0.2 + 0.25 * 0.5, 0.1, (0.275 + 0.1) / 2])
    np.testing.assert_array_equal(SquareRootLaw(3, ARMS, 4).variances, [0, 0, 0])


def test_plain_mean_counts_every_prompt_once():
    running = RewardVariance(2, rate=None)
    running.observe(np.array([0, 0, 0]), [0.1, 0.2, 0.3])
    running.observe(np.array([0, 1]), [0.6, 0.5])
    np.testing.assert_allclose(running.values, [0.3, 0.5])
    np.testing.assert_array_equal(running.counts, [4, 1])


def test_arms_and_a_whole_mean_are_plain_numbers():
    rule = SquareRootLaw(2, np.arange(2, 5), np.float64(3.0))
    assert rule.arms == (2, 3, 4)
    assert type(rule.mean_budget) is int
    SquareRootLaw(2, (2, 3, 4), 3).load_state_dict(rule.state_dict())


@pytest.mark.parametrize(
    ("arms", "mean", "counts", "excluded", "shares"),
    [
        ((2, 3, 4), 2.5, [1, 1, 1, 1], 4, (10, 10)),
        ((2, 3, 4), 2.25, [2], 2, (4, 5)),  # 5 + 4 would split the bin
        ((2, 3), 2.75, [2], 6, (6, 16)),  # and so would 5 + 17
    ],
)
def test_the_excluded_get_the_nearest_number_that_splits_no_bin(arms, mean, counts, excluded, shares):
    assert Budget(arms, mean).shares(counts, excluded) == shares


def test_before_any_variance_the_plan_is_even():
    np.testing.assert_array_equal(SquareRootLaw(3, ARMS, 4).plan([0, 1, 1, 2, -1], rng()), [4] * 5)
    np.testing.assert_array_equal(taught([0.2, 0.2, 0.2]).plan([0, 1, 1, 2, -1], rng()), [4] * 5)


def test_where_the_law_is_whole_the_plan_is_the_law():
    variances = [0.01, 0.09, 0.04]
    bins = np.array([0, 1, 2, 2])
    law = square_root_law([1, 1, 2], variances, 4)
    np.testing.assert_allclose(law, [2, 6, 4])
    np.testing.assert_array_equal(taught(variances).plan(bins, rng()), [2, 6, 4, 4])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(-1, 2), min_size=1, max_size=15),
    st.lists(st.floats(0, 0.3), min_size=3, max_size=3),
    st.integers(2, 12),
)
def test_the_plan_spends_the_budget_and_is_variance_optimal(bins, variances, mean):
    bins = np.array(bins)
    rule = SquareRootLaw(3, ARMS, mean)
    rule.observe(np.arange(3), np.zeros(3), variances=variances)
    rollouts = rule.plan(bins, rng())
    assert rollouts.sum() == bins.size * mean
    assert (rollouts[bins == -1] == mean).all()
    counts = np.bincount(bins[bins >= 0], minlength=3)
    best = variance_optimal(counts, variances, ARMS, int(counts.sum()) * mean)
    for b in range(3):
        np.testing.assert_array_equal(np.sort(rollouts[bins == b]), np.repeat(ARMS, best[b]))


def test_planning_changes_nothing_and_a_fractional_mean_is_met():
    rule = SquareRootLaw(1, ARMS, 4.5)
    before = rule.state_dict()
    assert rule.plan([0, 0, 0, 0], rng()).sum() == 18
    assert all(np.array_equal(rule.state_dict()[name], before[name]) for name in before)
    with pytest.raises(ValueError, match=r"3 prompts times mean_budget 4\.5 is 13\.5"):
        rule.plan([0, 0, 0], rng())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3), st.integers(3, 8))
def test_rollouts_in_proportion_to_the_loss_are_the_law_of_its_square(losses, mean):
    rule = LossProportional(3, ARMS, mean)
    rule.observe([0, 1, 2], losses)
    plan = rule.plan([0, 1, 2, 2], rng())
    best = variance_optimal([1, 1, 2], np.square(losses), ARMS, 4 * mean)
    assert plan.sum() == 4 * mean
    for b, place in enumerate(([0], [1], [2, 3])):
        np.testing.assert_array_equal(np.sort(plan[place]), np.repeat(ARMS, best[b]))


def test_where_it_is_whole_the_share_of_rollouts_is_the_share_of_the_loss():
    rule = LossProportional(4, ARMS, 4, ema_rate=0.25)
    rule.observe([0, 1, 2, -1], [0.2, 0.4, 0.6, 9.0])
    np.testing.assert_array_equal(rule.plan([0, 1, 2], rng()), [2, 4, 6])
    np.testing.assert_allclose(rule.variances[3], 0.4**2)  # a bin not seen counts as the mean of the others
    rule.observe([0, 0], [0.4, 0.6])
    np.testing.assert_allclose(rule.variances[0], (0.75 * 0.2 + 0.25 * 0.5) ** 2)


def test_a_negative_loss_has_no_proportion_and_changes_nothing():
    rule = LossProportional(2, ARMS, 4)
    rule.observe([0, 1], [0.2, 0.4])
    with pytest.raises(ValueError, match=r"a loss is -0\.1: .* signal 'error' or 'spread'"):
        rule.observe([0, 1], [0.3, -0.1])
    np.testing.assert_allclose(rule.variances, [0.04, 0.16])
    rule.observe([0, 1], [0.0, 0.0])
    np.testing.assert_allclose(rule.variances, [0.18**2, 0.36**2])
    with pytest.raises(ValueError, match=r"state of LossProportional .*num_bins: saved 2, here 3"):
        LossProportional(3, ARMS, 4).load_state_dict(rule.state_dict())


def test_state_round_trip_and_foreign_states():
    rule = taught([0.2, 0.01, 0.1])
    other = SquareRootLaw(3, ARMS, 4)
    other.load_state_dict(rule.state_dict())
    bins = [0, 0, 1, 2, 1, 2]
    np.testing.assert_array_equal(other.plan(bins, rng()), rule.plan(bins, rng()))
    slower = taught([0.0, 0.0, 0.2], ema_rate=0.05)
    with pytest.raises(ValueError, match=r"ema_rate: saved 0\.1, here 0\.05"):
        slower.load_state_dict(rule.state_dict())
    np.testing.assert_allclose(slower.variances, [0, 0, 0.2])
    with pytest.raises(ValueError, match="SquareRootLaw lacks 'variance_counts'"):
        other.load_state_dict(
            {name: value for name, value in rule.state_dict().items() if name != "variance_counts"}
        )


@pytest.mark.parametrize(
    ("bins", "losses", "variances", "words"),
    [
        ([0, 1], [0.0, 0.0], None, "needs variances"),
        ([0, 1], [0.0, 0.0], [0.1, -0.2], r"variances\[1\] is -0\.2"),
        ([0, 1], [0.0, 0.0], [0.1], r"variances must have shape \(2,\)"),
        ([0, 1], [0.0], [0.1, 0.2], r"losses must have shape \(2,\)"),
        ([0, 1], [0.0, np.nan], [0.1, 0.2], r"losses\[1\] is nan"),
        ([0, 3], [0.0, 0.0], [0.1, 0.2], r"bins\[1\] is 3, above the limit 2"),
        ([0, -2], [0.0, 0.0], [0.1, 0.2], r"bins\[1\] is -2, below the limit -1"),
    ],
)
def test_bad_observations_change_nothing(bins, losses, variances, words):
    rule = taught([0.2, 0.01, 0.1])
    with pytest.raises(ValueError, match=words):
        rule.observe(bins, losses, variances=variances)
    np.testing.assert_allclose(rule.variances, [0.2, 0.01, 0.1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, (1, 2), 2), "below the limit 2"),
        ((3, ARMS, 13), "mean_budget 13 is outside the arms"),
        ((3, ARMS, 4, 0.0), "ema_rate must be above 0"),
        ((3, ARMS, 4, 1.1), "ema_rate must be at most 1"),
        ((0, ARMS, 4), "num_bins must be at least 1"),
    ],
)
def test_settings_out_of_range_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        SquareRootLaw(*arguments)
