"""Equations (12) to (16) by hand-computed numbers, their invariants, and what the options do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro.prompt_gdro import PromptGDRO

losses_and_bins = st.lists(
    st.tuples(st.integers(-1, 4), st.floats(-5, 5, allow_subnormal=False)), min_size=1, max_size=30
)


def split(pairs):
    return np.array([b for b, _ in pairs]), np.array([x for _, x in pairs])


def test_scores_by_hand():
    adversary = PromptGDRO(3, ema_rate=0.25)
    adversary.observe([0, 0, 2], [0.2, 0.4, 1.0])
    np.testing.assert_allclose(adversary.scores, [0.3, 0.0, 1.0])  # the first observation sets the score
    adversary.observe([0, 1, 1], [0.7, 0.1, 0.3])
    np.testing.assert_allclose(adversary.scores, [0.75 * 0.3 + 0.25 * 0.7, 0.2, 1.0])  # absent bins stay


def test_weights_and_distribution_by_hand():
    adversary = PromptGDRO(3, step_size=0.5, exploration=0.1, score_clip=2.0, max_weight=2.0)
    adversary.observe([0, 1, 2], [np.log(4.0), -8.0, 8.0])
    omega = np.array([2.0, np.exp(-1.0), np.exp(1.0)])  # the scores of the outer bins are clipped to -2 and 2
    np.testing.assert_allclose(adversary.weights, omega)
    np.testing.assert_allclose(adversary.distribution, 0.9 * omega / omega.sum() + 0.1 / 3)
    np.testing.assert_allclose(adversary.weights_for([2, 1, 0, -1]), [2.0, np.exp(-1.0), 2.0, 1.0])


def test_mean_one_by_hand():
    adversary = PromptGDRO(3, step_size=1.0, exploration=0.0, max_weight=1.4, normalization="mean_one")
    adversary.observe([0, 1, 2], [np.log(3.0), np.log(2.0), 0.0])  # q = 3/6, 2/6, 1/6
    # the batch's mean of q over bins 1, 1, 2 is 5/18
    np.testing.assert_allclose(adversary.weights_for([1, 1, 2, -1]), [1.2, 1.2, 0.6, 1.0])
    # over 0, 2: mean 1/3, so 1.5 and 0.5, and the cap comes last
    np.testing.assert_allclose(adversary.weights_for([0, 2]), [1.4, 0.5])


def test_share_normalisation_by_hand():
    adversary = PromptGDRO(3, share_normalized=True, share_floor=0.3)
    adversary.observe([0, 0, 0, 1, -1], [0.6, 0.6, 0.6, 0.6, 9.0])  # shares 3/4 and 1/4 of the participating
    np.testing.assert_allclose(adversary.scores, [0.6 / 0.75, 0.6 / 0.3, 0.0])


def test_cumulative_scores_by_hand():
    adversary = PromptGDRO(2, score="cumulative", step_size=0.5, exploration=0.0, score_clip=1.0)
    for losses in ([1.0, 0.5], [1.0, 0.0], [2.0, 0.5]):
        adversary.observe([0, 1], losses)
    np.testing.assert_allclose(adversary.scores, [4.0, 1.0])
    np.testing.assert_allclose(adversary.distribution[0] / adversary.distribution[1], np.exp(0.5 * 3.0))
    np.testing.assert_allclose(adversary.weights, np.exp([0.5, 0.5]))  # (14) clips, and says no more then


def test_ema_is_the_weighted_history():
    rng = np.random.default_rng(0)
    history = rng.normal(size=12)
    adversary = PromptGDRO(1, ema_rate=0.12)
    for loss in history:
        adversary.observe([0], [loss])
    powers = 0.88 ** np.arange(11, -1, -1)
    powers[1:] *= 0.12
    np.testing.assert_allclose(adversary.scores, powers @ history)


@settings(max_examples=100)
@given(
    st.lists(losses_and_bins, max_size=6),
    st.floats(0, 1),
    st.sampled_from(["none", "mean_one"]),
    st.sampled_from(["ema", "cumulative"]),
    st.booleans(),
)
def test_the_distribution_is_on_the_simplex_with_its_floor(batches, exploration, normalization, score, share):
    adversary = PromptGDRO(
        5, exploration=exploration, normalization=normalization, score=score, share_normalized=share
    )
    for batch in batches:
        adversary.observe(*split(batch))
        q = adversary.distribution
        assert q.sum() == pytest.approx(1)
        assert (q >= exploration / 5 - 1e-15).all()
        weights = adversary.weights_for(split(batch)[0])
        assert (weights[split(batch)[0] < 0] == 1).all()
        assert (weights > 0).all()
        assert (weights <= 15).all()


@settings(max_examples=100)
@given(losses_and_bins, st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_the_prompts_does_not_matter(batch, random, share):
    first, second = (PromptGDRO(5, share_normalized=share) for _ in range(2))
    first.observe(*split(batch))
    random.shuffle(batch)
    second.observe(*split(batch))
    np.testing.assert_allclose(first.scores, second.scores, rtol=1e-12, atol=1e-12)


@settings(max_examples=100)
@given(losses_and_bins, st.integers(0, 4), st.integers(2, 9))
def test_frequency_does_not_bias_scores_without_share_normalisation(batch, bin_, times):
    """Repeating every prompt of one bin leaves all scores; with share normalisation it lowers that bin's."""
    repeated = [pair for pair in batch for _ in range(times if pair[0] == bin_ else 1)]
    first, second = PromptGDRO(5), PromptGDRO(5)
    first.observe(*split(batch))
    second.observe(*split(repeated))
    np.testing.assert_allclose(first.scores, second.scores, rtol=1e-12, atol=1e-12)


def test_share_normalisation_favours_rare_bins():
    scores = {}
    for share in (False, True):
        adversary = PromptGDRO(2, share_normalized=share)
        adversary.observe([0] * 9 + [1], np.full(10, 0.5))
        scores[share] = adversary.scores
    np.testing.assert_allclose(scores[False], 0.5)
    np.testing.assert_allclose(scores[True], [0.5 / 0.9, 0.5 / 0.1])


@pytest.mark.parametrize("normalization", ["none", "mean_one"])
def test_equal_losses_leave_the_bins_equal(normalization):
    adversary = PromptGDRO(4, normalization=normalization)
    for _ in range(50):
        adversary.observe([0, 1, 1, 2, 3, 3, 3], np.full(7, 0.3))
    np.testing.assert_allclose(adversary.distribution, 0.25)
    weights = adversary.weights_for([0, 1, 2, 3])
    np.testing.assert_allclose(weights, 1.0 if normalization == "mean_one" else np.exp(0.65 * 0.3))


def test_one_bin_is_plain_training_under_mean_one():
    adversary = PromptGDRO(1, normalization="mean_one")
    adversary.observe([0, 0], [5.0, 1.0])
    np.testing.assert_allclose(adversary.distribution, 1.0)
    np.testing.assert_allclose(adversary.weights_for([0, 0, 0]), 1.0)


def test_a_fresh_adversary_is_neutral_and_ignores_excluded_prompts():
    adversary = PromptGDRO(3)
    adversary.observe([-1, -1], [3.0, 4.0])
    adversary.observe([], [])
    assert adversary.scores.tolist() == [0, 0, 0]
    assert adversary.weights_for([0, 1, 2, -1]).tolist() == [1, 1, 1, 1]
    assert adversary.weights_for([]).shape == (0,)


def test_mean_one_with_every_prompt_excluded_is_one():
    adversary = PromptGDRO(3, normalization="mean_one")
    adversary.observe([0], [1.0])
    assert adversary.weights_for([-1, -1]).tolist() == [1, 1]


def test_the_adversary_maximises_its_entropic_objective():
    """Lemma 4.1: softmax(eta S) attains max_q q.S + H(q)/eta = log(sum exp(eta S)) / eta; no other q does
    better."""
    rng = np.random.default_rng(1)
    adversary = PromptGDRO(6, exploration=0.0)
    adversary.observe(np.arange(6), rng.normal(size=6))
    scores, q = adversary.scores, adversary.distribution

    def objective(p):
        return p @ scores - np.sum(p * np.log(p)) / 0.65

    assert objective(q) == pytest.approx(np.log(np.exp(0.65 * scores).sum()) / 0.65)
    others = rng.dirichlet(np.ones(6), size=500)
    assert max(objective(p) for p in others) < objective(q)


def test_a_hard_bin_gains_on_the_others_round_after_round():
    adversary = PromptGDRO(2, ema_rate=0.2)
    adversary.observe([0, 1], [0.5, 0.5])
    ratios = []
    for _ in range(30):
        adversary.observe([0, 1], [0.9, 0.1])
        ratios.append(adversary.distribution[0])
    assert (np.diff(ratios) > 0).all()
    assert adversary.scores == pytest.approx([0.9, 0.1], abs=1.001 * 0.4 * 0.8**30)


@pytest.mark.parametrize("score", ["ema", "cumulative"])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("step_size", [0.65, 50.0])
def test_the_largest_losses_do_not_overflow(score, share, step_size):
    adversary = PromptGDRO(3, score=score, share_normalized=share, step_size=step_size)
    bins = [0, 0, 0, 1, 2]
    for sign in (1, 1, -1, 1):
        adversary.observe(bins, np.array([1.7e308, 1.7e308, 1.7e308, -1.7e308, 0.0]) * sign)
        for values in (
            adversary.scores,
            adversary.weights,
            adversary.distribution,
            adversary.weights_for(bins),
        ):
            assert np.isfinite(values).all()
    adversary.observe(bins, [0.5] * 5)
    assert adversary.distribution.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("bins", "losses", "message"),
    [
        ([0, 1], [0.1, float("nan")], r"losses\[1\] is nan"),
        ([0, 1], [float("inf"), 0.1], r"losses\[0\] is inf"),
        ([0, 3], [0.1, 0.1], r"bins\[1\] is 3, above the limit 2"),
        ([0, -2], [0.1, 0.1], r"bins\[1\] is -2, below the limit -1"),
        ([0, 1], [0.1], r"losses must have shape \(2,\)"),
    ],
)
def test_bad_observations_are_refused_and_change_nothing(bins, losses, message):
    adversary = PromptGDRO(3)
    adversary.observe([0, 1], [0.3, 0.2])
    with pytest.raises(ValueError, match=message):
        adversary.observe(bins, losses)
    assert adversary.scores.tolist() == [0.3, 0.2, 0.0]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_bins": 0}, "num_bins must be at least 1, got 0"),
        ({"step_size": -1.0}, "step_size must be at least 0, got -1.0"),
        ({"step_size": float("nan")}, "step_size must be finite"),
        ({"step_size": 200.0}, "exp of it overflows"),
        ({"exploration": 1.5}, "exploration must be at most 1, got 1.5"),
        ({"ema_rate": 0.0}, "ema_rate must be above 0"),
        ({"score": "mean"}, "unknown score 'mean'; the known ones are 'ema', 'cumulative'"),
        ({"score_clip": 0.0}, "score_clip must be above 0"),
        ({"max_weight": 0.0}, "max_weight must be above 0"),
        ({"share_floor": 0.0}, "share_floor must be above 0"),
        ({"normalization": "sum"}, "the known ones are 'none', 'mean_one'"),
    ],
)
def test_bad_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        PromptGDRO(**{"num_bins": 3, **kwargs})


@settings(max_examples=50)
@given(st.lists(losses_and_bins, min_size=2, max_size=6), st.integers(0, 5))
def test_a_restored_adversary_goes_on_alike(batches, cut):
    first, second = PromptGDRO(5), PromptGDRO(5)
    for batch in batches[:cut]:
        first.observe(*split(batch))
    second.load_state_dict(first.state_dict())
    for batch in batches[cut:]:
        first.observe(*split(batch))
        second.observe(*split(batch))
    np.testing.assert_array_equal(first.scores, second.scores)
    np.testing.assert_array_equal(first.distribution, second.distribution)


def test_a_foreign_state_is_refused():
    adversary = PromptGDRO(3)
    with pytest.raises(ValueError, match=r"ema_rate: saved 0\.12, here 0\.2"):
        PromptGDRO(3, ema_rate=0.2).load_state_dict(adversary.state_dict())
    state = adversary.state_dict()
    with pytest.raises(ValueError, match="scores"):
        adversary.load_state_dict({**state, "scores": np.zeros(4)})
    with pytest.raises(ValueError, match=r"saved scores\[0\] is nan"):
        adversary.load_state_dict({**state, "scores": np.full(3, np.nan)})
    with pytest.raises(ValueError, match="not a state of PromptGDRO"):
        adversary.load_state_dict({})
