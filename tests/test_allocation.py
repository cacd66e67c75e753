"""Allocations against enumeration of every assignment, closed forms and invariants."""

import time

import allocation_oracle as oracle
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from gdro import budget_tables
from gdro.allocation import (
    assignment_marginals,
    best_assignment,
    one_arm_budgets,
    sample_assignment,
    square_root_law,
    variance_optimal,
)


@st.composite
def problems(draw, logs):
    """(counts, log_probs, arms, budget) small enough to enumerate, the budget within reach of the arms."""
    num_bins, num_arms = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(0, 4), min_size=num_bins, max_size=num_bins))
    first = draw(st.integers(0, 3))
    arms = list(range(first, first + num_arms))
    log_probs = np.array(
        draw(
            st.lists(
                st.lists(logs, min_size=num_arms, max_size=num_arms), min_size=num_bins, max_size=num_bins
            )
        )
    )
    budget = draw(st.integers(sum(counts) * arms[0], sum(counts) * arms[-1]))
    return counts, log_probs, arms, budget


# quarters make sums exact, so that ties are ties; a third of the entries must not be used
COARSE = st.sampled_from([-np.inf, -np.inf, 0.0, -0.25, -0.5, -1.0])
FINITE = st.sampled_from([0.0, -0.25, -0.5])
REAL = st.floats(-20, 0)


@settings(deadline=None, max_examples=300)
@given(problems(COARSE), st.booleans())
def test_best_assignment_is_the_best_of_all(problem, even):
    expected = oracle.best(*problem, even=even)
    assume(expected is not None)
    found = best_assignment(*problem, ties="even" if even else "first")
    np.testing.assert_array_equal(found, expected)


@settings(deadline=None, max_examples=200)
@given(problems(FINITE))
def test_every_budget_within_the_arms_is_met(problem):
    counts, _, arms, budget = problem
    found = best_assignment(*problem)
    np.testing.assert_array_equal(found, oracle.best(*problem))
    np.testing.assert_array_equal(found.sum(axis=1), counts)
    assert (found @ np.array(arms)).sum() == budget


@settings(deadline=None, max_examples=200)
@given(problems(REAL))
def test_no_assignment_beats_the_best(problem):
    found = oracle.assignments(*problem)
    assert found[oracle.key(best_assignment(*problem))] >= max(found.values()) - 1e-8


@settings(deadline=None, max_examples=100)
@given(problems(COARSE))
def test_zero_probability_alone_is_refused(problem):
    assume(not oracle.assignments(*problem))
    with pytest.raises(ValueError, match="no assignment of positive probability"):
        best_assignment(*problem)
    with pytest.raises(ValueError, match="no assignment of positive probability"):
        sample_assignment(*problem, np.random.default_rng(0))


@pytest.mark.parametrize("slope", [0.1, 1 / 3, -np.pi, 1e3 / 7, 1e7 / 3])
def test_ties_survive_rounding(slope):
    """Linear log-probabilities tie all assignments of equal counts; sums of them differ in the last bits."""
    arms = np.arange(2, 13)
    found = best_assignment([3] * 5, np.tile(slope * arms, (5, 1)), arms, 3 * (4 + 5 + 5 + 5 + 6))
    np.testing.assert_array_equal(found @ arms, [15] * 5)
    uneven = best_assignment([3] * 5, np.tile(slope * arms, (5, 1)), arms, 3 * (5 + 5 + 5 + 5 + 6))
    np.testing.assert_array_equal(uneven @ arms, [15, 15, 15, 15, 18])


def test_a_difference_above_the_tolerance_decides_against_evenness():
    log_probs = np.array([[1e-6, 0.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(best_assignment([1, 1], log_probs, [2, 3, 4], 6), [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(
        best_assignment([1, 1], log_probs * 1e-6, [2, 3, 4], 6), [[0, 1, 0], [0, 1, 0]]
    )


def test_evenness_is_of_squares():
    """Two assignments tie: (0, 4, 4) has the smaller sum of cubes, (1, 2, 5) that of squares."""
    log_probs = np.full((3, 6), -np.inf)
    log_probs[[0, 0, 1, 1, 2, 2], [0, 1, 4, 2, 4, 5]] = 0.0
    found = best_assignment([2, 2, 2], log_probs, np.arange(6), 16)
    np.testing.assert_array_equal(found @ np.arange(6), [2, 4, 10])


def test_the_even_split_of_ties():
    """An excess of 5 on two bins of two prompts: 2 + 3 is more even than 1 + 4, and 0 + 5 comes first."""
    even = best_assignment([2, 2], np.zeros((2, 4)), [2, 3, 4, 5], 13)
    np.testing.assert_array_equal(even, [[0, 2, 0, 0], [0, 1, 1, 0]])
    first = best_assignment([2, 2], np.zeros((2, 4)), [2, 3, 4, 5], 13, ties="first")
    np.testing.assert_array_equal(first, [[2, 0, 0, 0], [0, 0, 1, 1]])


def test_ties_beside_a_split_bin():
    """Bin 0 must be split; the others share 4 as 2 + 2, or 0 + 4, which comes first."""
    log_probs = np.full((3, 5), -np.inf)
    log_probs[0, :2] = log_probs[1:, ::2] = 0.0
    for ties, arms in (("even", [2, 2]), ("first", [0, 4])):
        found = best_assignment([2, 1, 1], log_probs, np.arange(5), 5, ties=ties)
        assert found[0].tolist() == [1, 1, 0, 0, 0]
        assert found[1:].argmax(axis=1).tolist() == arms


def test_blocks_do_not_change_what_is_found(monkeypatch):
    counts, arms, budget = [3, 2, 4, 1, 2], np.arange(2, 7), 47
    log_probs = np.random.default_rng(1).choice([0.0, -0.5, -1.0], size=(5, 5))

    def found():
        return [
            best_assignment(counts, log_probs, arms, budget),
            best_assignment(counts, log_probs, arms, budget, ties="first"),
            assignment_marginals(counts, log_probs, arms, budget),
            sample_assignment(counts, log_probs, arms, budget, np.random.default_rng(2)),
        ]

    whole = found()
    monkeypatch.setattr(budget_tables, "_BLOCK", 5)
    for left, right in zip(whole, found(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_draws_stand_small_probabilities():
    log_probs = np.array([[-2000.0, -2000.0 + np.log(3)], [-900.0, -900.0]])
    rng = np.random.default_rng(0)
    drawn = [sample_assignment([1, 1], log_probs, [2, 3], 5, rng)[0, 1] for _ in range(400)]
    assert np.mean(drawn) == pytest.approx(0.75, abs=0.08)


def test_each_bin_counts_once_whatever_its_size():
    """All want the higher arm. By prompts 6 * 1.5 would win over 3 * 1 + 3 * 1; by bins, 1 + 1 wins."""
    log_probs = [[-1.0, 0.0], [-1.5, 0.0], [-1.0, 0.0]]
    found = best_assignment([3, 6, 3], log_probs, [2, 3], 30)
    np.testing.assert_array_equal(found, [[0, 3], [6, 0], [0, 3]])


def test_reductions():
    one_bin = best_assignment([5], [[0.0, -1.0, -2.0]], [2, 3, 4], 20)
    np.testing.assert_array_equal(one_bin, [[0, 0, 5]])
    one_arm = best_assignment([5, 0, 2], np.zeros((3, 1)), [4], 28)
    np.testing.assert_array_equal(one_arm, [[5], [0], [2]])
    nobody = best_assignment([0, 0], np.zeros((2, 3)), [2, 3, 4], 0)
    assert not nobody.any()
    assert not sample_assignment([0, 0], np.zeros((2, 3)), [2, 3, 4], 0, np.random.default_rng(0)).any()
    assert not assignment_marginals([0, 0], np.zeros((2, 3)), [2, 3, 4], 0).any()
    assert variance_optimal([], [], [2, 3], 0).shape == (0, 2)


@settings(deadline=None, max_examples=100)
@given(problems(REAL), st.integers(0, 2**32 - 1))
def test_a_draw_is_one_of_the_allowed_assignments(problem, seed):
    found = sample_assignment(*problem, np.random.default_rng(seed))
    assert oracle.key(found) in oracle.assignments(*problem)


@pytest.mark.parametrize(
    ("counts", "budget"),
    [([1, 2, 1], 14), ([2, 0, 3], 16), ([2, 2, 2], 17), ([2, 4], 19), ([3, 3], 20)],
    ids=["one arm a bin", "an empty bin", "split, even counts", "split, unequal counts", "split, two bins"],
)
def test_draws_follow_the_conditioned_distribution(counts, budget):
    rng = np.random.default_rng(5)
    log_probs = np.log(rng.dirichlet(np.ones(4), size=len(counts)))
    problem = (counts, log_probs, [2, 3, 4, 5], budget)
    found = oracle.assignments(*problem)
    assert len(found) > 1
    expected = np.exp(list(found.values()))
    draws = 4000
    seen = dict.fromkeys(found, 0)
    for _ in range(draws):
        seen[oracle.key(sample_assignment(*problem, rng))] += 1
    assert chisquare(list(seen.values()), draws * expected / expected.sum()).pvalue > 1e-3


@settings(deadline=None, max_examples=100)
@given(problems(REAL))
def test_marginals_are_sums_over_assignments(problem):
    counts, _, arms, _ = problem
    found = oracle.one_arm_assignments(*problem)
    if not found:
        with pytest.raises(ValueError, match="use a whole mean budget"):
            assignment_marginals(*problem)
        return
    weights = np.exp(np.array(list(found.values())) - max(found.values()))
    used = np.array(list(found)).reshape(len(found), len(counts), len(arms)) > 0
    expected = (weights[:, None, None] * used).sum(axis=0) / weights.sum()
    np.testing.assert_allclose(assignment_marginals(*problem), expected, atol=1e-9)


def test_probabilities_too_small_for_floats_are_still_compared():
    """exp(-2000) is 0; the conditional distribution is not."""
    log_probs = np.array([[0.0, -2000.0], [0.0, -2000.0 + np.log(3)]])
    np.testing.assert_allclose(
        assignment_marginals([1, 1], log_probs, [2, 3], 5), [[0.75, 0.25], [0.25, 0.75]]
    )


@settings(deadline=None, max_examples=150)
@given(problems(st.sampled_from([0.0, 0.25, 1.0, 4.0])))
def test_variance_optimal_has_the_least_variance_proxy(problem):
    counts, table, arms, budget = problem
    assume(arms[0] >= 1)
    variances = table[:, 0]
    found = variance_optimal(counts, variances, arms, budget)
    allowed = [np.array(rows) for rows in oracle.assignments(counts, np.zeros_like(table), arms, budget)]
    costs = [(matrix * variances[:, None] / np.array(arms)).sum() for matrix in allowed]
    own = (found * variances[:, None] / np.array(arms)).sum()
    assert oracle.key(found) in map(oracle.key, allowed)
    assert own <= min(costs) + 1e-7
    np.testing.assert_array_equal(variance_optimal(counts, variances * 1e300, arms, budget), found)
    np.testing.assert_array_equal(variance_optimal(counts, variances * 1e-300, arms, budget), found)


def test_variance_optimal_without_variance_is_even():
    found = variance_optimal([4, 7, 2], [0.0, 0.0, 0.0], np.arange(2, 13), 13 * 4)
    np.testing.assert_array_equal(found[:, 2], [4, 7, 2])


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 0.3)), min_size=1, max_size=6),
    st.integers(2, 12),
)
def test_the_integer_optimum_lies_between_the_square_root_law_and_an_even_plan(bins, mean):
    counts, variances = np.array([b[0] for b in bins]), np.array([b[1] for b in bins])
    arms = np.arange(2, 13)
    real = square_root_law(counts, variances, mean, bounds=(2, 12))
    whole = variance_optimal(counts, variances, arms, int(counts.sum()) * mean)
    cost = (whole * variances[:, None] / arms).sum()
    even = (counts * variances / mean).sum()
    assert (counts * variances / real).sum() <= cost + 1e-9
    assert cost <= even + 1e-9


def test_square_root_law_by_hand():
    np.testing.assert_allclose(square_root_law([1, 1], [1.0, 4.0], 3), [2, 4])
    np.testing.assert_allclose(square_root_law([3, 1], [1.0, 9.0], 3), [2, 6])
    # (31): n = sqrt(v / mu) with one mu for all bins
    n = square_root_law([5, 2, 9], [0.1, 0.2, 0.05], 4)
    np.testing.assert_allclose(np.array([0.1, 0.2, 0.05]) / n**2, 0.1 / n[0] ** 2)
    # empty bins follow the law without weighing on it
    np.testing.assert_allclose(square_root_law([1, 1, 0], [1.0, 4.0, 9.0], 3), [2, 4, 6])


@pytest.mark.parametrize(
    ("variances", "mean", "bounds", "expected"),
    [
        ([0.0, 0.0], 4, None, [4, 4]),
        ([0.0, 0.0], 4, (2, 12), [4, 4]),
        ([0.0, 1.0], 4, None, [0, 8]),
        ([0.0, 1.0], 4, (2, 12), [2, 6]),
        ([0.0, 1.0], 8, (2, 12), [4, 12]),
        ([1.0, 100.0], 4, (2, 12), [2, 6]),
        ([1.0, 1.0], 12, (2, 12), [12, 12]),
        ([1.0, 0.0], 2, (2, 12), [2, 2]),
        ([0.3, 0.3], 4.5, (2, 12), [4.5, 4.5]),
        ([1e-320, 1e-320], 4, (2, 12), [4, 4]),
        ([1.0, 4.0], 3, (0, 3.5), [2.5, 3.5]),
        ([1.0, 4.0], 3, (2.5, np.inf), [2.5, 3.5]),
        ([1.0, 9.0], 8, (2.5, np.inf), [4, 12]),
        ([1.0, 9.0], 0.5, (0.5, 5), [0.5, 0.5]),
        ([1.0, 9.0], 2, (0, 5), [1, 3]),
    ],
)
def test_square_root_law_at_its_corners(variances, mean, bounds, expected):
    np.testing.assert_allclose(square_root_law([1, 1], variances, mean, bounds), expected)


@settings(deadline=None, max_examples=200)
@example(bins=[(1, 0.0), (4, 0.0), (1, 1.0)], mean=12.0)  # rounding must not pass the upper bound
@given(
    bins=st.lists(
        st.tuples(st.integers(0, 9), st.one_of(st.just(0.0), st.floats(1e-9, 1e6))), min_size=1, max_size=6
    ),
    mean=st.floats(2, 12),
)
def test_water_filling_meets_the_budget_and_the_optimality_conditions(bins, mean):
    counts, variances = np.array([b[0] for b in bins]), np.array([b[1] for b in bins])
    assume(counts.sum() > 0)
    n = square_root_law(counts, variances, mean, bounds=(2, 12))
    assert ((n >= 2) & (n <= 12)).all()
    np.testing.assert_allclose(counts @ n / counts.sum(), mean)
    use = counts > 0
    gain, n = variances[use] / n[use] ** 2, n[use]  # what one more rollout saves
    inside = (n > 2 + 1e-6) & (n < 12 - 1e-6)
    if inside.any():
        price = gain[inside]
        np.testing.assert_allclose(price, price[0], rtol=1e-5, atol=1e-12)
        assert (gain[n >= 12 - 1e-6] >= price[0] * (1 - 1e-5)).all()
        assert (gain[n <= 2 + 1e-6] <= price[0] * (1 + 1e-5)).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=0, max_size=4), st.integers(1, 4))
def test_one_arm_budgets_are_those_with_an_assignment(counts, num_arms):
    arms = list(range(num_arms))
    expected = [
        bool(oracle.one_arm_assignments(counts, np.zeros((len(counts), num_arms)), arms, budget))
        for budget in range(sum(counts) * (num_arms - 1) + 1)
    ]
    assert one_arm_budgets(counts, num_arms).tolist() == expected


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"budget": 5}, ValueError, r"budget 5 is outside \[6, 12\].*arms 2\.\.4"),
        ({"budget": 13}, ValueError, r"budget 13 is outside \[6, 12\]"),
        ({"budget": 9.0}, TypeError, "budget must be a whole number, got 9.0"),
        ({"arms": [2, 3, 5]}, ValueError, r"consecutive rising integers.*\[2, 3, 5\]"),
        ({"arms": [4, 3, 2]}, ValueError, "consecutive rising integers"),
        ({"arms": [-1, 0, 1]}, ValueError, "below the limit 0"),
        ({"arms": [2.0, 3.0, 4.0]}, TypeError, "arms must be integers"),
        ({"counts": [1, -2]}, ValueError, r"counts\[1\] is -2"),
        ({"log_probs": np.zeros((2, 2))}, ValueError, r"shape \(2, 3\).*got \(2, 2\)"),
        ({"log_probs": np.array([[0, np.nan, 0], [0, 0, 0]])}, ValueError, "got nan"),
        ({"log_probs": np.array([[0, np.inf, 0], [0, 0, 0]])}, ValueError, "got inf"),
    ],
)
def test_bad_input_is_named(change, error, words):
    problem = {"counts": [1, 2], "log_probs": np.zeros((2, 3)), "arms": [2, 3, 4], "budget": 9, **change}
    for function, more in ((best_assignment, {}), (sample_assignment, {"rng": np.random.default_rng(0)})):
        with pytest.raises(error, match=words):
            function(**problem, **more)


def test_bad_variances_and_bounds_are_named():
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        variance_optimal([1, 2], [0.1, -1.0], [2, 3], 7)
    with pytest.raises(ValueError, match=r"variances\[0\] is nan"):
        square_root_law([1, 2], [np.nan, 1.0], 4)
    with pytest.raises(ValueError, match="below the limit 1"):
        variance_optimal([1], [1.0], [0, 1], 1)
    with pytest.raises(ValueError, match=r"mean_budget 13.0 is outside bounds \(2.0, 12.0\)"):
        square_root_law([1, 2], [1.0, 1.0], 13, bounds=(2, 12))
    for law in (square_root_law, lambda counts, *_: one_arm_budgets(counts, 2)):
        with pytest.raises(ValueError, match=r"counts\[1\] is -1, below the limit 0"):
            law([2, -1], [1.0, 1.0], 4)
    with pytest.raises(ValueError, match="mean_budget must be above 0, got 0"):
        square_root_law([1, 2], [1.0, 1.0], 0)
    for law in (square_root_law, lambda *given: variance_optimal(*given[:2], [2, 3], 6)):
        with pytest.raises(ValueError, match=r"variances must have shape \(2,\), got shape \(1,\)"):
            law([1, 1], [1.0], 4)
    with pytest.raises(ValueError, match="counts are all 0"):
        square_root_law([0, 0], [1.0, 1.0], 4)
    with pytest.raises(ValueError, match=r"unknown ties 'odd'.*'even', 'first'"):
        best_assignment([1], [[0.0]], [2], 2, ties="odd")


def test_a_study_sized_allocation_is_quick():
    """2,048 rollouts over 10 bins and 11 arms: about 1 ms each; asserted with room for a busy machine."""
    rng = np.random.default_rng(0)
    counts, arms = rng.multinomial(512, np.full(10, 0.1)), np.arange(2, 13)
    log_probs = np.log(rng.dirichlet(np.ones(11), size=10))
    for function in (
        lambda: best_assignment(counts, log_probs, arms, 2048),
        lambda: best_assignment(counts, np.zeros((10, 11)), arms, 2048),
        lambda: sample_assignment(counts, log_probs, arms, 2048, rng),
        lambda: variance_optimal(counts, log_probs[:, 0] ** 2, arms, 2048),
    ):
        assert fastest(function, 30) < 6e-3


def fastest(function, repeats):
    """Seconds of the quickest of several calls: what other work on the machine disturbs least."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def test_a_budget_beyond_what_the_bins_can_spend_has_no_totals():
    problem = budget_tables.Problem(np.array([1, 1]), np.zeros((2, 3)), 5)
    assert budget_tables.best_totals(problem) is None
    assert budget_tables.drawn_totals(problem, np.random.default_rng(0)) is None
