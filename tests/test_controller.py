"""The controller against sums written out row by row: what it shows the adversaries and the log."""

import json
import math
import statistics as plain

import numpy as np
import pytest
from controllers import BINS, NAN, assert_same_state, controller, rows_of, run
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro.controller import Controller
from gdro.difficulty import OnlineDifficultyClassifier
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO


def test_a_fresh_plan_is_neutral():
    one = controller()
    plan = one.plan([3, 1, 3])
    assert plan.prompt_ids.tolist() == [3, 1, 3]
    assert plan.bins.tolist() == [0, 0, 0]
    assert plan.weights.tolist() == [1, 1, 1]
    assert plan.rollouts.sum() == 12
    assert one.log_rows() == []
    assert one.metrics() == {}


def test_every_prompt_of_a_cycle_is_listed_with_its_outcomes():
    one = controller(rollout=None)
    assert one.prompt_lists() == {}
    plan = one.plan([3, 1, 3])
    one.observe(plan, [2, 2, 2, 0, 0, 0, 0, 2, 1], [1, 1, 0, 0, 1, 0, NAN, 1, NAN])
    assert one.prompt_lists() == {
        "prompt_ids": [3, 1, 3],
        "prompt_rollouts": [3, 0, 4],
        "prompt_correct": [1, 0, 3],
    }


def test_the_controller_times_itself_from_plan_to_observation():
    one = controller()
    plan = one.plan([0, 1])
    planned = one.seconds
    one.observe(plan, rows_of(plan), [1.0] * plan.rollouts.sum(), losses=[0.0] * plan.rollouts.sum())
    assert 0 < planned < one.seconds
    state = one.state_dict()
    assert not any("seconds" in name for name in state)
    one.load_state_dict(state)
    assert one.seconds == 0


def test_weights_and_bins_come_from_the_cycles_before():
    one = controller(rollout=None)
    plan = one.plan([0, 1])
    one.observe(plan, [0] * 4 + [1] * 4, [0, 0, 0, 0, 1, 1, 0, 0])
    # bins were 0 and 0 when the losses 1 and 1/2 were met: S_0 = 3/4
    again = one.plan([0, 1])
    assert again.cycle == 1
    assert again.bins.tolist() == [0, 3]
    np.testing.assert_allclose(again.weights, [math.exp(0.65 * 0.75), 1.0])
    one.observe(again, [0] * 4 + [1] * 4, [0, 0, 0, 0, 1, 1, 1, 0])
    np.testing.assert_allclose(one.prompt.scores, [0.88 * 0.75 + 0.12 * 1.0, 0, 0, 0.25])


class Spy:
    """A part that keeps what it is shown."""

    num_bins, mean_budget = BINS, 4

    def __init__(self):
        self.shown = []

    def plan(self, bins, rng):
        return np.full(bins.size, 4)

    def observe(self, bins, losses, *, variances):
        self.shown.append((bins.copy(), losses.copy(), variances.copy()))


@pytest.mark.parametrize("signal", ["error", "spread", "surrogate"])
def test_the_adversaries_are_shown_the_signal(signal):
    spy = Spy()
    one = Controller(
        OnlineDifficultyClassifier(5, edges=BINS), PromptGDRO(BINS, ema_rate=1.0), spy, signal=signal
    )
    plan = one.plan([4, 2, 0])
    losses = [0.1, 0.2, 0.6, 0.3, -1.0, 7.0, NAN]
    one.observe(plan, [0, 0, 0, 0, 1, 1, 1], [1, 0, 0, 0, 1, NAN, NAN], losses)
    bins, shown, variances = spy.shown[0]
    assert bins.tolist() == [0, 0, -1]  # the third prompt has no row at all
    expected = {
        "error": [0.75, 0.0],
        "spread": [math.sqrt(0.25 * 0.75), 0.0],
        "surrogate": [0.3, -1.0],  # of the scored rows alone
    }[signal]
    np.testing.assert_allclose(shown[:2], expected)
    np.testing.assert_allclose(variances, [plain.variance([1, 0, 0, 0]), NAN, NAN])
    np.testing.assert_allclose(one.prompt.scores[0], np.mean(expected))


@pytest.mark.parametrize("rewards", [[-1.0, 1.0, 1.0, -1.0], [0.1, 0.2, 0.3, 0.4]])
def test_the_rollout_adversary_sees_the_variance_of_rewards_not_of_successes(rewards):
    spy = Spy()
    one = Controller(OnlineDifficultyClassifier(5, edges=BINS), None, spy, success_threshold=0.0)
    one.observe(one.plan([3]), [0] * 4, rewards)
    np.testing.assert_allclose(spy.shown[0][2], [np.var(rewards, ddof=1)])


def test_real_rewards_are_right_above_the_threshold_unless_told():
    one = controller(rollout=None, success_threshold=0.0)
    one.observe(one.plan([0, 1]), [0, 0, 1, 1], [-1.0, 1.0, -1.0, 0.0])
    assert one.classifier.pass_rate([0, 1]).tolist() == [1, 0]
    one = controller(rollout=None)
    one.observe(one.plan([0, 1]), [0, 1], [9.0, -9.0], correct=[False, True])
    assert one.classifier.pass_rate([0, 1]).tolist() == [0, 1]


def test_a_prompt_without_a_scored_rollout_is_no_visit():
    one, other = controller(), controller()
    plan = one.plan([0, 1])
    index = rows_of(plan)
    rewards = np.where(index == 0, NAN, 1.0)
    one.observe(plan, index, rewards)
    assert one.classifier.visits([0, 1]).tolist() == [0, 1]
    np.testing.assert_allclose(one.prompt.scores[0], 0.0)
    plan = other.plan([0, 1])
    other.observe(plan, index, np.full(index.size, NAN))
    assert other.classifier.visits([0, 1]).tolist() == [0, 0]
    assert other.prompt.state_dict()["seen"].sum() == 0
    assert np.isnan(other.log_rows()[0]["pass_rate"])
    assert "gdro/pass_rate" not in other.metrics()


def test_a_prompt_twice_in_a_batch_is_two_entries_and_two_visits():
    one = controller(rollout=None)
    one.observe(one.plan([5, 5]), [0, 0, 1, 1], [0, 0, 1, 0])
    assert one.classifier.visits([5]).tolist() == [2]
    assert one.classifier.pass_rate([5]).tolist() == [0.5]
    assert one.log_rows()[0]["prompts"] == 2


def test_excluded_prompts_take_no_part():
    classifier = OnlineDifficultyClassifier(3, edges=BINS, exclude_extremes=True)
    classifier.observe([0, 0, 1, 1], [0, 0, 1, 0], [4, 4, 4, 4])
    one = Controller(classifier, PromptGDRO(BINS), RolloutGDRO(BINS, arms=(2, 3, 4, 5, 6), mean_budget=4))
    plan = one.plan([0, 1, 1])
    assert plan.bins.tolist() == [-1, 2, 2]
    assert plan.weights.tolist() == [1, 1, 1]
    assert plan.rollouts.tolist() == [4, 4, 4]
    one.observe(plan, rows_of(plan), np.where(rows_of(plan) == 0, 0.0, 1.0))
    assert one.prompt.scores.tolist() == [0, 0, 0, 0]
    assert one.classifier.visits([0]) == [3]
    rows = one.log_rows()
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert one.metrics()["gdro/excluded"] == pytest.approx(1 / 3)


def expected_rows(plan, outcomes):
    """What `log_rows` counts, from ``outcomes``: a list of (entry, reward) of the scored rows."""
    rows = []
    for b in range(BINS):
        entries = [i for i in range(plan.bins.size) if plan.bins[i] == b]
        groups = [[r for i, r in outcomes if i == entry] for entry in entries]
        groups = [g for g in groups if g]
        rates = [sum(r > 0.5 for r in g) / len(g) for g in groups]
        spread = [plain.variance(g) for g in groups if len(g) > 1]
        losses = [1 - p for p in rates]
        rollouts = [int(plan.rollouts[i]) for i in entries]
        rows.append(
            {
                "cycle": plan.cycle,
                "bin": b,
                "prompts": len(entries),
                "share": len(entries) / plan.bins.size,
                "pass_rate": plain.fmean(rates) if rates else NAN,
                "reward": plain.fmean(plain.fmean(g) for g in groups) if groups else NAN,
                "loss_mean": plain.fmean(losses) if losses else NAN,
                "loss_std": plain.pstdev(losses) if losses else NAN,
                "rollouts": plain.fmean(rollouts) if rollouts else NAN,
                "rollout_share": sum(rollouts) / int(plan.rollouts.sum()),
                "sigma": math.sqrt(plain.fmean(spread)) if spread else NAN,
            }
        )
    return rows


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_log_rows_equal_sums_written_out(seed, real):
    one = controller(prompt=seed % 2 == 0, rollout=[None, "gdro", "sqrt"][seed % 3])
    run(one, 3, seed)
    rng = np.random.default_rng(seed)
    plan = one.plan(rng.integers(0, 12, size=8))
    index = rng.permutation(rows_of(plan))
    index = index[: rng.integers(1, index.size + 1)]
    rewards = rng.normal(size=index.size) if real else rng.integers(0, 2, index.size).astype(float)
    rewards[rng.random(index.size) < 0.2] = NAN
    one.observe(plan, index, rewards)
    scored = [(i, r) for i, r in zip(index.tolist(), rewards.tolist(), strict=True) if not math.isnan(r)]
    for row, expected in zip(one.log_rows(), expected_rows(plan, scored), strict=True):
        for key, value in expected.items():
            assert row[key] == pytest.approx(value, nan_ok=True, abs=1e-12), key
        assert row.keys() == {*expected, "score", "weight", "q", "arm_probabilities"}


def test_log_rows_show_what_the_plan_was_made_with():
    one = controller()
    run(one, 5)
    scores, q, arms = one.prompt.scores, one.prompt.distribution, one.rollout.arm_probabilities
    plan = run(one, 1, start=5)[0]
    rows = one.log_rows()
    np.testing.assert_array_equal([row["score"] for row in rows], scores)
    np.testing.assert_array_equal([row["q"] for row in rows], q)
    assert np.shape([row["arm_probabilities"] for row in rows]) == arms.shape
    for row in rows:
        members = plan.weights[plan.bins == row["bin"]]
        if members.size:
            np.testing.assert_allclose(members, row["weight"])
    json.dumps(rows)


def test_without_adversaries_the_log_says_so():
    one = controller(prompt=False, rollout=None)
    run(one, 1)
    for row in one.log_rows():
        assert row["weight"] == 1
        assert np.isnan(row["score"])
        assert np.isnan(row["q"])
        assert row["arm_probabilities"] is None
    metrics = one.metrics()
    assert metrics["gdro/realised_mean"] == 4
    assert not {"gdro/shadow_price", "gdro/asked_mean", "gdro/weight_entropy"} & metrics.keys()


def test_metrics_by_hand():
    one = controller(rollout=None)
    one.observe(one.plan([0, 1]), [0] * 4 + [1] * 4, [0, 0, 0, 0, 1, 1, 0, 0])
    one.observe(one.plan([0, 1]), [0] * 4 + [1] * 4, [0, 0, 0, 0, 1, 0, 0, 0])
    metrics = one.metrics()
    expected = {
        "gdro/pass_rate": 0.125,
        "gdro/frac_zero_variance": 0.5,
        "gdro/mean_bin": 1.5,
        "gdro/excluded": 0.0,
        "gdro/share_entropy": math.log(2),
        "gdro/rollout_entropy": math.log(2),
        "gdro/weight_min": 1.0,
        "gdro/weight_max": math.exp(0.65 * 0.75),
        "gdro/realised_mean": 4.0,
        "gdro/bin_00/share": 0.5,
        "gdro/bin_03/share": 0.5,
        "gdro/bin_00/pass_rate": 0.0,
        "gdro/bin_03/pass_rate": 0.25,
        "gdro/bin_03/rollouts": 4.0,
        "gdro/bin_00/weight": math.exp(0.65 * 0.75),
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value), name
    assert "gdro/bin_01/pass_rate" not in metrics
    assert 0 < metrics["gdro/weight_entropy"] < math.log(BINS)
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_a_group_of_equal_rewards_has_zero_variance_whatever_the_rewards():
    one = controller(rollout=None)
    one.observe(one.plan([0, 1, 2]), [0, 0, 0, 1, 1, 1, 2, 2], [0.1, 0.1, 0.1, 0.1, 0.1, 0.2, NAN, 5.0])
    assert one.metrics()["gdro/frac_zero_variance"] == pytest.approx(2 / 3)


def test_fixed_bins_decide_and_the_classifier_still_observes():
    labels = [0, 1, 2, 2]
    classifier = OnlineDifficultyClassifier(4)
    one = Controller(classifier, PromptGDRO(3, score="cumulative"), mean_budget=2, bins=labels)
    plan = one.plan([3, 0, 1])
    assert plan.bins.tolist() == [2, 0, 1]
    one.observe(plan, [0, 0, 1, 1, 2, 2], [1, 1, 0, 0, 1, 0])
    assert one.plan([3, 0, 1]).bins.tolist() == [2, 0, 1]
    assert classifier.bins([3, 0]).tolist() == [9, 0]
    assert one.prompt.scores.tolist() == [1.0, 0.5, 0.0]
    assert Controller(classifier, mean_budget=2, bins=labels).num_bins == 3


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_the_order_of_the_rows_does_not_matter(seed):
    first, second = controller(), controller()
    for cycle in range(3):
        rng = np.random.default_rng([seed, cycle])
        ids = rng.integers(0, 12, size=6)
        plan, same = first.plan(ids), second.plan(ids)
        assert plan == same
        index = rows_of(plan)
        rewards = rng.integers(0, 2, index.size).astype(float)
        order = rng.permutation(index.size)
        first.observe(plan, index, rewards)
        second.observe(same, index[order], rewards[order])
    assert_same_state(first.state_dict(), second.state_dict())


def test_seeds_and_cycles_have_their_own_streams():
    draws = {
        (seed, cycle): one._generator("rollouts").random()
        for seed in (0, 1)
        for one in [controller(seed=seed)]
        for cycle in range(2)
        if setattr(one, "cycle", cycle) is None
    }
    assert len(set(draws.values())) == 4


def test_a_plan_cannot_be_written_to():
    given_ids = np.array([1, 2])
    plan = controller().plan(given_ids)
    given_ids[0] = 9
    assert plan.prompt_ids.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        plan.weights[0] = 5.0
    with pytest.raises(AttributeError):
        plan.cycle = 3


def test_the_largest_losses_pass_through():
    one = controller(signal="surrogate")
    for _ in range(3):
        plan = one.plan([0, 1, 2])
        index = rows_of(plan)
        one.observe(plan, index, np.ones(index.size), losses=np.where(index == 1, -1.7e308, 1.7e308))
        assert np.isfinite(one.prompt.distribution).all()
        assert len(one.log_rows()) == BINS
        assert np.isfinite(one.plan([0, 1, 2]).weights).all()
