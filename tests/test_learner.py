"""GRPO on the two-mode policy, against sums over all rollout groups, closed forms and finite differences."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from gdro import learner
from gdro.learner import Learner, Prompts, Update


def prompts(count=1, family=0, difficulty=0.0, guess=1e-9, top=1 - 1e-9):
    values = (family, difficulty, guess, top)
    kinds = (int, float, float, float)
    return Prompts(*(np.broadcast_to(v, count).astype(k) for v, k in zip(values, kinds, strict=True)))


def groups(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


# the advantages


@settings(max_examples=40)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5))
def test_advantages_are_those_of_each_group_alone(outcomes):
    index, correct = groups([len(g) for g in outcomes]), np.concatenate(outcomes).astype(bool)
    expected = [(r - np.mean(g)) / (np.std(g) + 1e-4) for g in outcomes for r in g]
    np.testing.assert_allclose(learner.advantages(index, correct), expected, atol=1e-12)
    several = [g for g in outcomes if len(g) > 1]
    if several:
        found = learner.advantages(groups([len(g) for g in several]), np.concatenate(several), "sample", 0.6)
        expected = [(r - np.mean(g)) / (np.std(g, ddof=1) + 1e-4) for g in several for r in g]
        np.testing.assert_allclose(found, np.clip(expected, -0.6, 0.6), atol=1e-12)


# the expected gradient


@pytest.mark.parametrize("std", ["population", "sample"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_expected_gradient_is_the_sum_over_all_rollout_groups(n, std):
    q, guess, top = 0.3, 0.15, 0.9
    total = 0.0
    for modes in product([False, True], repeat=n):
        for right in product([False, True], repeat=n):
            chance = 1.0
            for works, correct in zip(modes, right, strict=True):
                rate = top if works else guess
                chance *= (q if works else 1 - q) * (rate if correct else 1 - rate)
            values = learner.advantages(np.zeros(n, dtype=int), np.array(right), std)
            total += chance * np.mean(values * (np.array(modes) - q))
    found = learner.expected_gradient(np.array(q), n, guess, top, std)
    assert found == pytest.approx(total, rel=1e-12)


def test_the_expected_gradient_has_its_known_limits():
    q = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(learner.expected_gradient(q, 2), q * (1 - q), rtol=3e-4)
    np.testing.assert_allclose(learner.expected_gradient(q, 2000), np.sqrt(q * (1 - q)), rtol=3e-3)
    found = [learner.expected_gradient(q, n) for n in range(2, 13)]
    assert (np.diff(found, axis=0) > 0).all(), "more rollouts find a difference more often"
    np.testing.assert_allclose(learner.expected_gradient(q, 4, 0.5, 0.5), 0.0, atol=0)


def test_one_step_on_many_prompts_is_the_expected_gradient():
    count, n, rate = 10_000, 4, 0.5
    policy = Learner([0.3], Update(learning_rate=rate, steps=1, optimizer="sgd", noise=1.0))
    rows, rng = prompts(count * n, guess=0.2, top=0.9), np.random.default_rng(0)
    works, correct = policy.sample(rows, rng)
    policy.train(rows, groups([n] * count), works, correct, np.ones(count * n), rng)
    moved = policy.abilities[0] - 0.3
    expected = rate * learner.expected_gradient(expit(0.3), n, 0.2, 0.9)
    assert moved == pytest.approx(float(expected), abs=4 * rate * np.sqrt(1.25 / (count * n)))


# the update


def test_a_single_prompt_with_a_constant_signal_follows_its_difference_equation():
    """Two of four right each time, working always right: the ability rises by rate / 2 a step, whatever q."""
    policy = Learner([-3.0], Update(learning_rate=0.2, steps=1, optimizer="sgd"))
    rows, right = prompts(4), np.array([True, False, True, False])
    path = []
    for _ in range(30):
        policy.train(rows, np.zeros(4, dtype=int), right, right, np.ones(4), np.random.default_rng(0))
        path.append(policy.abilities[0])
    np.testing.assert_allclose(path, -3.0 + 0.2 * 0.5 * np.arange(1, 31), atol=1e-3)


def test_a_full_family_follows_the_difference_equation_of_its_pass_rate():
    count, rate = 6_000, 1.0
    policy = Learner([-1.0], Update(learning_rate=rate, steps=1, optimizer="sgd"))
    rows, rng, expected = prompts(count * 2), np.random.default_rng(1), -1.0
    for _ in range(40):
        works, correct = policy.sample(rows, rng)
        policy.train(rows, groups([2] * count), works, correct, np.ones(2 * count), rng)
        expected += rate * expit(expected) * (1 - expit(expected))
    assert policy.abilities[0] == pytest.approx(expected, abs=0.06)
    assert expected > 1.5


def test_the_gradient_is_that_of_the_clipped_loss():
    """Off the old policy, with KL and weights, against a finite difference of the loss (6) itself."""
    rng = np.random.default_rng(2)
    rows, index = prompts(8, difficulty=0.4, guess=0.3, top=0.8), groups([4, 4])
    works, correct = rng.random(8) < 0.5, np.array([1, 0, 1, 1, 0, 1, 0, 0], dtype=bool)
    factors = np.repeat([1.5, 0.5], 4)
    values = learner.advantages(index, correct) * factors
    start, old, update = 0.9, 0.2, Update(learning_rate=1.0, steps=1, optimizer="sgd", beta=0.3)

    def loss(ability, old_ability):
        logp = np.where(works, np.log(expit(ability - 0.4)), np.log(expit(0.4 - ability)))
        before = np.where(works, np.log(expit(old_ability - 0.4)), np.log(expit(0.4 - old_ability)))
        reference = np.where(works, np.log(expit(start - 0.4)), np.log(expit(0.4 - start)))
        ratio, gap = np.exp(logp - before), reference - logp
        clipped = np.minimum(ratio * values, np.clip(ratio, 0.8, 1.28) * values)
        return (0.3 * (np.exp(gap) - gap - 1) - clipped).mean()

    policy = Learner([start], update)
    policy.abilities[:] = old
    policy.train(rows, index, works, correct, factors, rng)
    slope = (loss(old + 1e-6, old) - loss(old - 1e-6, old)) / 2e-6
    assert policy.abilities[0] == pytest.approx(old - slope, abs=1e-7)


def test_a_clipped_ratio_gives_no_gradient_and_its_loss_is_the_clipped_one():
    policy = Learner([0.0], Update())
    raw, ratio = np.array([1.0, 1.0, -1.0, -1.0, 0.0]), np.array([1.5, 0.5, 1.5, 0.5, 1.0])
    slope, losses = policy._surrogate(ratio, np.zeros(5), raw, np.full(5, 2.0))
    np.testing.assert_allclose(slope, [0.0, 1.0, -3.0, 0.0, 0.0])
    np.testing.assert_allclose(losses, [-1.28, -0.5, 1.5, 0.8, 0.0])


def test_one_minibatch_without_kl_leaves_the_surrogate_empty():
    rng = np.random.default_rng(3)
    rows, index = prompts(12), groups([4, 4, 4])
    policy = Learner([0.2], Update(steps=1))
    works, correct = policy.sample(rows, rng)
    losses = policy.train(rows, index, works, correct, np.ones(12), rng)
    np.testing.assert_allclose(np.bincount(index, losses), 0.0, atol=1e-12)


@pytest.mark.parametrize(("transfer", "expected"), [(0.0, [0.5, 0.0]), (1.0, [0.5, 0.5]), (0.3, [0.5, 0.15])])
def test_transfer_is_the_share_that_moves_the_other_family(transfer, expected):
    policy = Learner([0.0, 0.0], Update(learning_rate=1.0, steps=1, optimizer="sgd"), transfer)
    right = np.array([True, False])
    policy.train(prompts(2), np.zeros(2, dtype=int), right, right, np.ones(2), np.random.default_rng(0))
    np.testing.assert_allclose(policy.abilities, expected, rtol=3e-4)


def test_under_adam_a_common_factor_changes_nothing_and_the_first_step_has_the_rates_length():
    paths = []
    for factor in (1.0, 7.0):
        policy, rng = Learner([0.0, 0.5], Update(learning_rate=0.1), transfer=0.2), np.random.default_rng(4)
        rows, index = prompts(40, family=np.repeat([0, 1], 20)), groups([4] * 10)
        for _ in range(5):
            works, correct = policy.sample(rows, rng)
            policy.train(rows, index, works, correct, np.full(40, factor), rng)
        paths.append(policy.abilities)
    np.testing.assert_allclose(*paths, rtol=1e-6)
    policy = Learner([0.0], Update(learning_rate=0.1, steps=1))
    right = np.array([True, False])
    policy.train(prompts(2), np.zeros(2, dtype=int), right, right, np.ones(2), np.random.default_rng(0))
    assert policy.abilities[0] == pytest.approx(0.1, rel=1e-6)


@settings(max_examples=30)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2),
    st.floats(1e-6, 0.5),
    st.floats(0.51, 1 - 1e-6),
)
def test_pass_rates_stay_inside_zero_and_one_at_any_ability(abilities, guess, top):
    rates = prompts(2, family=np.array([0, 1]), guess=guess, top=top).pass_rate(np.array(abilities))
    assert (rates > 0).all()
    assert (rates < 1).all()
    assert (rates >= guess).all()
    assert (rates <= top).all()


def test_rollouts_are_right_as_often_as_the_pass_rate_says():
    policy, rows = Learner([logit(0.3)], Update()), prompts(50_000, guess=0.2, top=0.9)
    works, correct = policy.sample(rows, np.random.default_rng(5))
    assert works.mean() == pytest.approx(0.3, abs=0.006)
    assert correct.mean() == pytest.approx(rows.pass_rate(policy.abilities)[0], abs=0.006)
    assert correct[works].mean() == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; the known ones are 'adam', 'sgd'"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"advantage_std": "biased"}, "unknown advantage_std"),
        ({"advantage_clip": 0}, "advantage_clip must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Update(**changes)
    with pytest.raises(ValueError, match="transfer must be at most 1"):
        Learner([0.0], Update(), transfer=1.5)
