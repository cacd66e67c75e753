"""The trials of the classifier: laws that its errors must follow, counts by hand, and their figures."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from gdro import difficulty_figures as draw
from gdro import difficulty_trials as trials
from gdro.difficulty_trials import Trial
from gdro.learner import expected_gradient

RATES = trials.known_rates(3000)
TRUTH = 1 - (1 - RATES) ** 4


def small():
    """Two visits of three prompts and two bins."""
    truths = np.array([[0.2, 0.6, 0.8]] * 2)
    estimates = np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
    bins = np.array([[0, 1, 0], [1, 1, 1]])
    return Trial(truths, estimates, bins, np.array([[0, 1, 1]] * 2), np.full((2, 3), 4), 2)


def test_errors_are_counted_by_hand():
    found = trials.errors(small())
    np.testing.assert_allclose(found["bias"], [-0.2, -0.1 / 3])
    np.testing.assert_allclose(found["rmse"], np.sqrt([(0.04 + 0.16 + 0.64) / 3, (0.09 + 0.01 + 0.09) / 3]))
    np.testing.assert_allclose(found["right"], [2 / 3, 2 / 3])
    np.testing.assert_allclose(found["moves"], [0, 2 / 3])
    assert (found["within_one"] == 1).all()


def test_confusion_is_a_share_of_each_true_bin():
    np.testing.assert_allclose(trials.confusion(small(), 1), [[1, 0], [0.5, 0.5]])
    np.testing.assert_allclose(trials.confusion(small(), 2), [[0, 1], [0, 1]])
    certain = trials.watch(np.repeat([0.0, 1.0], 5), 1)
    matrix = trials.confusion(certain, 1)
    assert matrix[0, 0] == matrix[9, 9] == 1
    assert np.isnan(matrix[1:9]).all()
    with pytest.raises(ValueError, match="visits must be at most 2"):
        trials.confusion(small(), 3)


def test_the_papers_estimate_is_a_mean_of_coins():
    found = trials.errors(trials.watch(RATES, 20))
    law = np.sqrt((TRUTH * (1 - TRUTH)).mean() / np.arange(1, 21))
    np.testing.assert_allclose(found["rmse"], law, rtol=0.06)
    np.testing.assert_allclose(found["bias"], 0, atol=4 * law[0] / np.sqrt(RATES.size))


@pytest.mark.parametrize("rollouts", [2, 12])
def test_any_is_biased_by_the_number_of_rollouts_and_the_counts_are_not(rollouts):
    seen = trials.watch(RATES, 20, rollouts)
    away = (seen.estimates[-1] - (1 - (1 - RATES) ** rollouts)).mean()
    assert away == pytest.approx(0, abs=4 * 0.5 / np.sqrt(20 * RATES.size))
    assert abs((seen.estimates[-1] - TRUTH).mean()) > 0.05
    fair = trials.watch(RATES, 20, rollouts, estimator="unbiased")
    assert trials.errors(fair)["bias"].iloc[-1] == pytest.approx(0, abs=0.005)


def test_rollouts_by_bin_follow_the_bin_before_the_visit():
    by_bin = np.array([8, 2])
    seen = trials.watch(RATES[:50], 6, by_bin, edges=2)
    np.testing.assert_array_equal(seen.rollouts[0], 8)
    np.testing.assert_array_equal(seen.rollouts[1:], by_bin[seen.bins[:-1]])


def test_a_window_is_the_mean_of_the_truths_it_looks_back_on():
    rates = trials.improving(np.full(4000, 0.2), 30, 3.0)
    for window in (5, 30):
        seen = trials.watch(rates, window=window)
        expected = seen.truths[-window:].mean()
        assert seen.estimates[-1].mean() == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(4000 * window))
    found = trials.errors_by_window({"rising": rates, "still": rates * 0 + 0.2}, (5, 30))
    assert found["rising"].iloc[1] > found["still"].iloc[1]
    assert found["still"].iloc[1] < found["still"].iloc[0]


def test_margins_keep_prompts_where_they_are():
    found = trials.compare(RATES[::10], 40, {m: {"hysteresis": m} for m in (0.0, 0.06)}, window=20)
    moves = found[found["visits"] > 20].groupby("variant")["moves"].mean()
    assert moves[0.06] < 0.6 * moves[0.0]
    again = trials.compare(RATES[::10], 5, {"a": {}, "b": {"window": 100}})
    np.testing.assert_array_equal(*(again[again["variant"] == v].drop(columns="variant") for v in "ab"))


def test_bias_by_truth_averages_parts_of_the_prompts():
    found = trials.bias_by_truth(small(), after=1, chunks=3)
    np.testing.assert_allclose(found["truth"], [0.2, 0.6, 0.8])
    np.testing.assert_allclose(found["bias"], [0.3, -0.1, -0.3])


def test_known_rates_have_the_distributions_mean_and_lie_inside():
    assert trials.known_rates(5000, 2, 3).mean() == pytest.approx(0.4, abs=1e-3)
    assert 0 < RATES.min() < RATES.max() < 1
    with pytest.raises(ValueError, match="visits must be at least 1"):
        trials.watch(RATES, 0)


# the figures


def test_every_figure_shows_each_of_its_variants():
    found = trials.compare(RATES[::30], 5, {"any": {}, "unbiased": {"estimator": "unbiased"}})
    lines = draw.errors_by_visits(found, np.full(5, 0.1)).axes[0].get_lines()
    assert [line.get_label() for line in lines][:2] == ["any", "unbiased"]
    seen = trials.watch(RATES[::30], 5)
    matrices = {("any", v): trials.confusion(seen, v) for v in (1, 5)}
    assert [a.get_title() for a in draw.confusions(matrices, ["any"]).axes[:2]] == [
        "any, 1 visit",
        "any, 5 visits",
    ]
    bias = {"any": trials.bias_by_truth(seen, 1, 5)}
    assert isinstance(draw.rollout_bias(RATES, {"any": TRUTH}, [TRUTH], bias), Figure)
    table = trials.errors_by_window({"still": seen.truths}, (2, 5))
    right = draw.window_lag(seen.truths.mean(axis=1), {"window 5": seen.estimates.mean(axis=1)}, table).axes[
        1
    ]
    np.testing.assert_array_equal(right.get_lines()[0].get_xdata(), [2, 5])
    shares = trials.shares(seen.bins, 10)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert isinstance(draw.true_and_assigned(shares, shares, "GRPO"), Figure)
    drawn = draw.expected_signal(RATES, {2: expected_gradient(RATES, 2)}).axes[0].get_lines()
    assert len(drawn) == 2
