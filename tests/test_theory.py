"""Section 4's closed forms against enumeration, finite differences, search and brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.special import expit

from gdro import theory
from gdro.allocation import square_root_law

losses_of_bins = st.lists(st.floats(-5, 5), min_size=1, max_size=8).map(np.array)
steps = st.floats(0.01, 20)


@settings(max_examples=100)
@given(losses_of_bins, steps)
def test_the_risk_is_the_maximum_over_the_simplex_and_within_log_b_of_the_worst_bin(losses, eta):
    risk = theory.entropic_risk(losses, eta)
    q = theory.entropic_weights(losses, eta)
    assert theory.entropic_objective(q, losses, eta) == pytest.approx(risk, abs=1e-9)
    others = np.random.default_rng(0).dirichlet(np.ones(losses.size), size=200)
    assert (theory.entropic_objective(others, losses, eta) <= risk + 1e-9).all()
    assert losses.max() - 1e-9 <= risk <= losses.max() + np.log(losses.size) / eta + 1e-9


def test_the_bounds_of_25_are_both_attained():
    equal, far = np.full(6, 0.4), np.array([1.0, -1e4, -1e4])
    assert theory.entropic_risk(equal, 3.0) == pytest.approx(0.4 + np.log(6) / 3)
    assert theory.entropic_risk(far, 3.0) == pytest.approx(1.0)
    assert theory.entropic_risk([1000.0, 1000.0], 50.0) == pytest.approx(1000 + np.log(2) / 50)


@settings(max_examples=50)
@given(st.floats(0.1, 5), st.integers(0, 1000))
def test_the_gradient_is_that_of_finite_differences(eta, seed):
    rng = np.random.default_rng(seed)
    centres, curvatures = rng.normal(size=(5, 3)), rng.uniform(0.5, 2, 5)
    theta = rng.normal(size=3)

    def losses(x):
        return curvatures * ((x - centres) ** 2).sum(axis=1)

    found = theory.entropic_gradient(losses(theta), 2 * curvatures[:, None] * (theta - centres), eta)
    numeric = approx_fprime(theta, lambda x: theory.entropic_risk(losses(x), eta))
    np.testing.assert_allclose(found, numeric, atol=1e-5, rtol=1e-5)


def group_gradient(rewards, p, advantage):
    """(1 / n) sum_j A_j (r_j - p), term by term."""
    mean, std = np.mean(rewards), np.std(rewards)
    if advantage == "group":
        values = [(r - mean) / std if std > 0 else 0.0 for r in rewards]
    else:
        values = [r - (mean if advantage == "centred" else p) for r in rewards]
    return np.mean([a * (r - p) for a, r in zip(values, rewards, strict=True)])


@pytest.mark.parametrize("advantage", theory.ADVANTAGES)
@pytest.mark.parametrize(("p", "n"), [(0.0, 3), (0.13, 1), (0.13, 4), (0.5, 5), (0.9, 6), (1.0, 2)])
def test_moments_are_those_of_all_groups_counted_one_by_one(p, n, advantage):
    groups = np.array(list(itertools.product([0, 1], repeat=n)))
    chances = (p**groups * (1 - p) ** (1 - groups)).prod(axis=1)
    values = np.array([group_gradient(group, p, advantage) for group in groups])
    mean, variance = theory.gradient_moments(p, n, advantage)
    assert mean == pytest.approx(chances @ values, abs=1e-12)
    assert variance == pytest.approx(chances @ (values - chances @ values) ** 2, abs=1e-12)


@settings(max_examples=50)
@given(st.floats(1e-12, 1), st.integers(1, 64))
def test_only_a_known_baseline_makes_the_variance_v_over_n(p, n):
    mean, variance = theory.gradient_moments(p, n, "baseline")
    assert mean == pytest.approx(p * (1 - p), abs=1e-12)
    assert n * variance == pytest.approx(p * (1 - p) * (1 - 2 * p) ** 2, abs=1e-12)


def test_normalisation_breaks_one_over_n_in_both_directions():
    n = np.array([2, 4, 8, 16])
    _, rare = theory.gradient_moments(0.01, n)
    assert (np.diff(rare[:3]) > 0).all()  # a rare success: more rollouts, more variance, at first
    _, even = theory.gradient_moments(0.5, n)
    assert (np.diff(n * even) < 0).all()  # at one half the variance falls faster than 1 / n
    grid = theory.gradient_moments(np.array([[0.2], [0.7]]), np.array([2, 4, 8]))
    assert grid[0].shape == grid[1].shape == (2, 3)
    assert grid[1][1, 2] == theory.gradient_moments(0.7, 8)[1]


def surrogate_by_hand(p, n, step, low, high):
    """Loss (7) averaged over all groups: the policy's gradient by finite differences, the clip row by row."""
    groups = np.array(list(itertools.product([0, 1], repeat=n)))
    chances = (p**groups * (1 - p) ** (1 - groups)).prod(axis=1)
    spread = groups.std(axis=1, keepdims=True)
    values = (groups - groups.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)
    theta = np.log(p / (1 - p))

    def surrogate(x, clipped):
        now = np.where(groups == 1, expit(x), 1 - expit(x))
        ratio = now / np.where(groups == 1, p, 1 - p)
        bounded = np.clip(ratio, 1 - low, 1 + high) if clipped else ratio
        return chances @ np.minimum(ratio * values, bounded * values).mean(axis=1)

    slope = (surrogate(theta + 1e-5, False) - surrogate(theta - 1e-5, False)) / 2e-5
    return -surrogate(theta + step * slope, True)


@pytest.mark.parametrize("step", [0.0, 0.1, 0.6, 3.0])
@pytest.mark.parametrize(("p", "n"), [(0.08, 4), (0.5, 4), (0.93, 3), (0.4, 6)])
def test_the_surrogate_after_a_step_is_the_one_counted_by_hand(p, n, step):
    found = theory.surrogate_after_step(p, n, step, 0.2, 0.28)
    assert found == pytest.approx(surrogate_by_hand(p, n, step, 0.2, 0.28), abs=1e-7)


def test_the_surrogate_is_empty_at_ratio_one_and_most_negative_at_one_half():
    rates = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(theory.surrogate_after_step(rates, 4, 0.0), 0, atol=1e-15)
    after = theory.surrogate_after_step(rates, 4, 0.05)
    assert (after < 0).all()
    assert rates[after.argmin()] == pytest.approx(0.5)
    np.testing.assert_allclose(after, after[::-1], rtol=0.05)  # alike for p and 1 - p, to first order


@pytest.mark.parametrize("bounds", [(0.0, np.inf), (2, 12), (3, 5)])
def test_the_price_is_the_slope_of_the_optimum_and_reproduces_it(bounds):
    counts, variances = [3, 1, 4, 2], [0.02, 0.25, 0.11, 0.2]

    def optimum(mean_budget):
        n = square_root_law(counts, variances, mean_budget, bounds)
        return theory.variance_proxy(counts, variances, n)

    price = theory.shadow_price(counts, variances, 4, bounds)
    assert price == pytest.approx((optimum(4) - optimum(4 + 1e-5)) / 1e-5, rel=1e-3)
    asked = theory.rollouts_at_price(variances, price, bounds)
    np.testing.assert_allclose(asked, square_root_law(counts, variances, 4, bounds), rtol=1e-9)


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=5), st.integers(0, 999))
def test_no_other_allocation_of_the_budget_has_a_smaller_proxy(variances, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 9, len(variances))
    best = theory.variance_proxy(counts, variances, square_root_law(counts, variances, 4))
    others = rng.uniform(0.1, 1, (300, len(variances)))
    others *= 4 / (others @ (counts / counts.sum()))[:, None]
    assert (theory.variance_proxy(counts, variances, others) >= best * (1 - 1e-12)).all()
    price = theory.shadow_price(counts, variances, 4)
    assert price == pytest.approx((counts / counts.sum() @ np.sqrt(variances) / 4) ** 2)


def test_empty_bins_and_bins_that_may_not_rise():
    assert theory.variance_proxy([2, 0], [0.5, 9.0], [2, 0]) == pytest.approx(0.25)
    assert theory.shadow_price([1, 1], [0.25, 0.1], 5, (2, 5)) == 0
    assert theory.shadow_price([1, 1], [0.0, 0.0], 4) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.entropic_risk([1.0], 0.0), "step_size must be above 0"),
        (lambda: theory.entropic_objective([0.5, 0.6], [1.0, 1.0], 1.0), "must sum to 1"),
        (lambda: theory.gradient_moments(1.2, 4), r"pass_rate must be within \[0, 1\], got 1.2"),
        (lambda: theory.gradient_moments(0.2, 0), r"rollouts\[0\] is 0, below the limit 1"),
        (lambda: theory.gradient_moments(0.2, 4, "std"), "known ones are 'group', 'centred', 'baseline'"),
        (lambda: theory.surrogate_after_step(1.0, 4, 0.1), "strictly between 0 and 1"),
        (lambda: theory.surrogate_after_step(0.5, 4, -0.1), "learning_rate must be at least 0"),
        (lambda: theory.variance_proxy([1, 1], [1.0, 1.0], [2, 0]), "must be above 0 in every bin"),
        (lambda: theory.variance_proxy([0, 0], [1.0, 1.0], [2, 2]), "need a prompt"),
        (lambda: theory.rollouts_at_price([1.0], 0.0), "price must be above 0"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
