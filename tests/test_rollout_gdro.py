"""Rollout-GDRO: exact budgets, probabilities and price by hand, propensities, the released rule."""

import itertools

import allocation_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_steps import assert_same_state, cycle, plans, rng

from gdro import RolloutGDRO


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=12),
    st.sampled_from([(2, 4, 3), (2, 4, 2.5), (3, 5, 4.25), (2, 12, 4), (3, 4, 10 / 3), (5, 5, 5)]),
    st.sampled_from(["map", "sample"]),
    st.integers(0, 2**32 - 1),
)
def test_the_budget_is_met_to_the_rollout(bins, case, selection, seed):
    low, high, mean = case
    bins = np.repeat(bins, 12)  # makes P * mean whole
    adversary = RolloutGDRO(4, tuple(range(low, high + 1)), mean, selection=selection)
    for step in range(3):
        losses = rng(seed + step).random(bins.size)
        rollouts = cycle(adversary, bins, losses, seed + step)
        assert rollouts.dtype == np.int64
        assert rollouts.sum() == round(bins.size * mean)
        assert adversary.realised_mean == pytest.approx(mean)
        check_shape(bins, rollouts, low, high, mean)


def check_shape(bins, rollouts, low, high, mean):
    """One arm a bin, one bin split between neighbours at most; bin -1 on the mean rounded down or up."""
    split = 0
    for b in np.unique(bins):
        arms = np.unique(rollouts[bins == b])
        if b == -1:
            assert arms.min() >= np.floor(mean)
            assert arms.max() <= np.ceil(mean)
            continue
        assert low <= arms.min()
        assert arms.max() <= high
        assert arms.size == 1 or (arms.size == 2 and arms[1] == arms[0] + 1)
        split += arms.size - 1
    assert split <= 1


def test_a_whole_mean_budget_never_splits_a_bin():
    """With all bins on the mean the budget is met, whatever the counts; so one arm a bin always does."""
    adversary = RolloutGDRO(5, selection="sample")
    for seed in range(30):
        bins = rng(seed).integers(-1, 5, size=37)
        rollouts = cycle(adversary, bins, rng(seed).random(37), seed)
        assert all(np.unique(rollouts[bins == b]).size <= 1 for b in range(5))
        assert (rollouts[bins == -1] == 4).all()


def test_a_split_bin_is_split_by_chance():
    adversary = RolloutGDRO(1, (2, 3, 4), 2.5)
    seen = np.array(plans(adversary, [0, 0, 0, 0], range(50)))
    assert (seen.sum(axis=1) == 10).all()
    assert set(np.unique(seen)) == {2, 3}
    assert (seen.std(axis=0) > 0).all()


def test_the_excluded_give_way_so_that_no_bin_is_split():
    adversary = RolloutGDRO(2, (2, 3, 4), 2.5)
    # two in a bin and two excluded: 2 * 3 + (2 + 2) spares the split that 5 + (2 + 3) would need
    np.testing.assert_array_equal(adversary.plan([0, 0, -1, -1], rng()), [3, 3, 2, 2])
    # three in a bin spend 6 or 9 unsplit, which 10 less 2 or 3 never is
    np.testing.assert_array_equal(np.sort(adversary.plan([0, 0, 0, -1], rng())), [2, 2, 3, 3])


def test_nothing_seen_is_no_preference():
    adversary = RolloutGDRO(3)
    np.testing.assert_allclose(adversary.arm_probabilities, 1 / 11)
    np.testing.assert_array_equal(adversary.plan([0, 1, 1, 2, -1], rng()), [4] * 5)
    assert adversary.shadow_price == 0
    assert adversary.asked_mean == pytest.approx(7)  # the middle of 2..12


def test_probabilities_and_price_by_hand():
    """Two cycles of utility "loss", arms 2..4, mean 3; everything written out."""
    eta, gamma, rate, alpha = 0.7, 0.1, 0.5, 0.2
    adversary = RolloutGDRO(2, (2, 3, 4), 3, eta, gamma, rate, alpha)
    scores, price, arms = np.zeros((2, 3)), 0.0, np.array([2, 3, 4])
    bins = np.array([0, 1, 1, 1])
    for losses in ([0.8, 0.2, 0.4, 0.3], [0.1, 0.9, 0.6, 0.9]):
        weights = np.exp(eta * (scores - price * (arms - 3)))
        p = (1 - gamma) * weights / weights.sum(axis=1, keepdims=True) + gamma / 3
        np.testing.assert_allclose(adversary.arm_probabilities, p)
        rollouts = cycle(adversary, bins, losses)
        asked = 0.25 * p[0] @ arms + 0.75 * p[1] @ arms
        assert adversary.asked_mean == pytest.approx(asked)
        price += alpha * (asked - 3)
        assert adversary.shadow_price == pytest.approx(price)
        for b in (0, 1):
            n = rollouts[bins == b][0]
            mean = np.mean(np.array(losses)[bins == b])
            scores[b, n - 2] = (1 - rate) * scores[b, n - 2] - rate * mean
        np.testing.assert_allclose(adversary.scores, scores)


def test_the_price_pulls_what_is_asked_to_the_mean():
    """Asked for 7 at first, budget 4: the price rises until the bandits ask for 4, and then rests."""
    adversary = RolloutGDRO(2, price_step_size=0.2)
    for _ in range(60):
        cycle(adversary, [0, 1], [0.5, 0.5])
    assert adversary.shadow_price > 0.1
    assert adversary.asked_mean == pytest.approx(4, abs=0.1)
    cheap = RolloutGDRO(2, mean_budget=11, price_step_size=0.2)
    for _ in range(60):
        cycle(cheap, [0, 1], [0.5, 0.5])
    assert cheap.shadow_price < -0.1


@pytest.mark.parametrize(("utility", "sign"), [("loss", -1), ("adversarial", 1)])
@pytest.mark.parametrize("rate", [None, 0.25])
def test_only_the_given_arm_learns(utility, sign, rate):
    adversary = RolloutGDRO(3, (2, 3, 4), 3, arm_ema_rate=rate, utility=utility)
    expected = np.zeros((3, 3))
    for losses in ([0.2, 0.4, 0.9], [0.5, 0.7, 0.0]):
        rollouts = cycle(adversary, [0, 0, 2], losses)
        for b, mean in ((0, np.mean(losses[:2])), (2, losses[2])):
            cell = (b, rollouts[[0, 0, 2][b]] - 2)
            new = sign * mean
            expected[cell] = expected[cell] + new if rate is None else 0.75 * expected[cell] + 0.25 * new
    np.testing.assert_allclose(adversary.scores, expected)
    assert not adversary.scores[1].any()


def test_utility_variance_tells_every_arm():
    adversary = RolloutGDRO(3, (2, 3, 4), 3, utility="variance", arm_ema_rate=0.25)
    bins = [0, 0, 1, 2]
    cycle(adversary, bins, np.zeros(4), variances=[0.2, 0.4, 0.1, np.nan])
    arms = np.array([2, 3, 4])
    np.testing.assert_allclose(adversary.scores, [-0.3 / arms, -0.1 / arms, 0 * arms])
    cycle(adversary, bins, np.zeros(4), variances=[np.nan, 0.1, np.nan, 0.5])
    np.testing.assert_allclose(adversary.scores, [-0.25 / arms, -0.1 / arms, -0.5 / arms])


def test_utility_variance_without_a_rate_sums_over_a_plain_mean():
    adversary = RolloutGDRO(1, (2, 3), 2, utility="variance", arm_ema_rate=None)
    cycle(adversary, [0, 0], np.zeros(2), variances=[0.2, 0.4])
    cycle(adversary, [0, 0], np.zeros(2), variances=[0.6, np.nan])
    np.testing.assert_allclose(adversary.scores[0], -(0.3 + 0.4) / np.array([2, 3]))


def test_utility_variance_sends_rollouts_where_rewards_vary():
    adversary = RolloutGDRO(3, utility="variance")
    bins = np.repeat([0, 1, 2], 8)
    for _ in range(5):
        cycle(adversary, bins, np.zeros(24), variances=np.repeat([0.0, 0.25, 0.01], 8))
    rollouts = adversary.plan(bins, rng())
    assert rollouts[8] > rollouts[16] >= rollouts[0]
    assert rollouts.sum() == 24 * 4


def test_importance_weights_divide_by_the_true_propensity():
    """Propensities from enumerating every assignment that meets the budget."""
    adversary = RolloutGDRO(
        2, (2, 3, 4), 3, arm_ema_rate=0.5, selection="sample", importance_weighted=True, loss_bounds=(-1, 1)
    )
    bins, scores = [0, 1, 1], np.zeros((2, 3))
    for seed in range(4):
        found = oracle.assignments([1, 2], np.log(adversary.arm_probabilities), [2, 3, 4], 9)
        weights = np.exp(list(found.values()))
        used = np.array(list(found)).reshape(-1, 2, 3) > 0
        propensity = (weights[:, None, None] * used).sum(axis=0) / weights.sum()
        losses = rng(seed).uniform(-1, 1, 3)
        rollouts = cycle(adversary, bins, losses, seed)
        estimates = np.zeros((2, 3))
        for b, n, loss in ((0, rollouts[0], losses[0]), (1, rollouts[1], losses[1:].mean())):
            estimates[b, n - 2] = (1 - (loss + 1) / 2) / propensity[b, n - 2]
        scores = 0.5 * scores + 0.5 * estimates
        np.testing.assert_allclose(adversary.scores, scores)


@pytest.mark.parametrize("budget", ["exact", "dual"])
def test_importance_weighted_scores_are_unbiased(budget):
    """Each arm has a gain of its own; the mean estimate over draws is that gain."""
    gains = np.array([[0.1, 0.5, 0.9], [0.8, 0.3, 0.2]])
    total, draws = np.zeros((2, 3)), 3000
    bins = np.array([0, 1])
    start = RolloutGDRO(
        2, (2, 3, 4), 3, budget=budget, selection="sample", utility="adversarial", importance_weighted=True
    ).state_dict()
    for seed in range(draws):
        adversary = RolloutGDRO(
            2,
            (2, 3, 4),
            3,
            arm_ema_rate=0.4,
            budget=budget,
            selection="sample",
            utility="adversarial",
            importance_weighted=True,
        )
        adversary.load_state_dict({**start, "scores": np.array([[0.0, 1.0, -1.0], [0.5, 0.0, 0.0]])})
        before = adversary.scores
        rollouts = adversary.plan(bins, rng(seed))
        adversary.observe(bins, gains[bins, rollouts - 2])
        total += (adversary.scores - 0.6 * before) / 0.4
    np.testing.assert_allclose(total / draws, gains, atol=0.1)


def test_sampling_explores_what_the_arg_max_never_tries():
    greedy = RolloutGDRO(2, (2, 3, 4), 3, selection="map")
    drawn = RolloutGDRO(2, (2, 3, 4), 3, selection="sample")
    assert len({tuple(plan) for plan in plans(greedy, [0, 1], range(40))}) == 1
    assert {tuple(plan) for plan in plans(drawn, [0, 1], range(40))} == {(2, 4), (3, 3), (4, 2)}


def test_dual_mode_reaches_the_budget_on_average():
    """(21): total price movement is the step size times the overshoot; a bounded price means a met budget."""
    adversary = RolloutGDRO(3, mean_budget=4.5, budget="dual")
    bins, total, steps = np.array([0, 1, 1, 2]), 0.0, 1500
    for step in range(steps):
        cycle(adversary, bins, np.full(4, 0.5), step)
        total += adversary.realised_mean - 4.5
    np.testing.assert_allclose(adversary.shadow_price, 0.05 * total, atol=1e-9)
    assert abs(total / steps) < 0.05
    assert 0 < adversary.shadow_price < 3


def test_dual_mode_draws_from_the_arm_probabilities():
    adversary = RolloutGDRO(1, (2, 3, 4), 3, budget="dual")
    cycle(adversary, [0], [1.0])
    share = np.bincount([adversary.plan([0], rng(seed))[0] - 2 for seed in range(3000)], minlength=3) / 3000
    np.testing.assert_allclose(share, adversary.arm_probabilities[0], atol=0.03)


def test_planning_again_changes_nothing_and_observe_means_the_last_plan():
    adversary = RolloutGDRO(2, (2, 3, 4), 3, selection="sample")
    before = adversary.state_dict()
    plans(adversary, [0, 0, 1, 1], range(5))
    assert_same_state(adversary.state_dict(), before)
    last = adversary.plan([1, 0], rng(8))
    adversary.observe([1, 0], [0.5, 0.25])
    expected = np.zeros((2, 3))
    expected[1, last[0] - 2], expected[0, last[1] - 2] = -0.4 * 0.5, -0.4 * 0.25
    np.testing.assert_allclose(adversary.scores, expected)
    with pytest.raises(ValueError, match="no plan to observe"):
        adversary.observe([1, 0], [0.5, 0.25])


def test_a_caller_who_changes_the_plan_or_bins_changes_nothing_here():
    adversary = RolloutGDRO(2, (2, 3, 4), 3)
    bins = np.array([0, 1])
    rollouts = adversary.plan(bins, rng())
    rollouts[:] = 99
    bins[:] = 1
    adversary.observe([0, 1], [0.5, 0.5])
    np.testing.assert_allclose(adversary.scores[:, 1], [-0.2, -0.2])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-1, 3), st.floats(0, 1)), min_size=1, max_size=20), st.randoms())
def test_the_order_of_prompts_does_not_matter(prompts, random):
    shuffled = random.sample(prompts, len(prompts))
    one, other = RolloutGDRO(4), RolloutGDRO(4)
    for _ in range(2):
        rollouts = [
            dict(zip(bins, cycle(adversary, list(bins), list(losses)).tolist(), strict=True))
            for adversary, (bins, losses) in (
                (one, zip(*prompts, strict=True)),
                (other, zip(*shuffled, strict=True)),
            )
        ]
        assert rollouts[0] == rollouts[1]
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-12)


def test_a_bin_learns_its_mean_loss_whatever_its_size():
    adversary = RolloutGDRO(2)
    cycle(adversary, [0] * 9 + [1], np.full(10, 0.6))
    np.testing.assert_allclose(adversary.scores[0], adversary.scores[1])


def test_excluded_prompts_take_no_part():
    adversary = RolloutGDRO(2, (2, 3, 4), 3)
    adversary.plan([-1, -1, -1], rng())
    assert np.isnan(adversary.asked_mean)
    assert adversary.realised_mean == 3
    adversary.observe([-1, -1, -1], [1e9, 5.0, 0.0])
    assert not adversary.scores.any()
    assert adversary.shadow_price == 0
    # a prompt may drop out after planning, when nothing came of it
    adversary.plan([0, 0, 1], rng())
    adversary.observe([0, -1, -1], [0.5, 9.0, 9.0])
    np.testing.assert_allclose(adversary.scores, [[0, -0.2, 0], [0, 0, 0]])


def test_reductions():
    one_arm = RolloutGDRO(3, (4,), 4)
    np.testing.assert_array_equal(cycle(one_arm, [0, 1, 2], [0.1, 0.2, 0.3]), [4, 4, 4])
    assert one_arm.shadow_price == 0
    one_bin = RolloutGDRO(1)
    np.testing.assert_array_equal(cycle(one_bin, [0, 0], [0.1, 0.9]), [4, 4])
    equal = RolloutGDRO(3, utility="variance")
    for _ in range(5):
        rollouts = cycle(equal, [0, 1, 2], [0.5] * 3, variances=[0.2] * 3)
    np.testing.assert_array_equal(rollouts, [4, 4, 4])
    assert RolloutGDRO(2).plan([], rng()).shape == (0,)


def released_loop(bins, arms, budget):
    """The loop itself: bins as they appear, arms ascending, totals in the order found, strict gains only."""
    order = list(dict.fromkeys(bins))
    table = {0: (0.0, ())}
    for b in order:
        new = {}
        for arm, (total, (value, chosen)) in itertools.product(arms, table.items()):
            spent, worth = total + arm * bins.count(b), value - np.log(len(arms))
            if spent not in new or worth > new[spent][0]:
                new[spent] = (worth, (*chosen, arm))
        table = new
    return dict(zip(order, table[budget][1], strict=True))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(2, 5))
def test_the_released_rule_is_its_loop_and_never_learns(bins, mean):
    adversary = RolloutGDRO.released(5, (2, 3, 4, 5), mean)
    expected = released_loop(bins, (2, 3, 4, 5), len(bins) * mean)
    for _ in range(2):
        rollouts = cycle(adversary, bins, np.linspace(0, 1, len(bins)))
        assert rollouts.tolist() == [expected[b] for b in bins]
        np.testing.assert_allclose(adversary.arm_probabilities, 0.25)
        assert adversary.shadow_price == 0
