"""The small games: regrets under their bounds, a saddle point reached, rollouts against brute force."""

import itertools

import numpy as np
import pytest

from gdro import games
from gdro.exp3p import Exp3P
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO

HORIZON, ARMS = 2500, 4


@pytest.mark.parametrize("sequence", games.SEQUENCES)
def test_exp3p_and_hedge_stay_below_their_bounds_all_the_way(sequence):
    bandit = games.play_regret("exp3p", sequence, ARMS, HORIZON, 100)
    bound = Exp3P(ARMS, HORIZON).regret_bound
    assert bound < HORIZON / 2
    assert (bandit[-1] <= bound).mean() >= 0.95
    hedge = games.play_regret("hedge", sequence, ARMS, HORIZON, 20)
    assert (hedge <= games.hedge_bound(ARMS, HORIZON)).all()


def test_hedge_by_hand():
    totals, regret = np.zeros(3), []
    own, step = 0.0, np.sqrt(8 * np.log(3) / 40)
    for t in range(40):
        p = np.exp(step * totals) / np.exp(step * totals).sum()
        values = np.array([0.5, 0.0, float(t >= 10)])
        own, totals = own + p @ values, totals + values
        regret.append(totals.max() - own)
    np.testing.assert_allclose(games.play_regret("hedge", "late", 3, 40, 2), np.array([regret, regret]).T)


def test_the_moving_average_plays_as_prompt_gdro_does_and_keeps_losing():
    """Its distribution stays near uniform for ever, so that its regret grows with the rounds, not their
    root."""
    adversary, own, totals, rng = PromptGDRO(3), 0.0, np.zeros(3), np.random.default_rng(0)
    for t in range(50):
        p = adversary.distribution
        values = games.gains("steady", t, 50, p[None], rng)[0]
        own, totals = own + p @ values, totals + values
        adversary.observe(np.arange(3), values)
    assert games.play_regret("ema", "steady", 3, 50, 1)[-1, 0] == pytest.approx(totals.max() - own)
    regret = games.play_regret("ema", "steady", 4, 4000, 20).mean(axis=1)
    assert regret[-1] > 0.8 * 2 * regret[1999]
    assert regret[-1] > games.hedge_bound(4, 4000)


def test_the_chasing_adversary_pays_the_arm_that_is_least_likely():
    p = np.array([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]])
    assert games.gains("chasing", 0, 9, p, None).tolist() == [[0, 1, 0], [1, 0, 0]]


GAME = games.QuadraticGame([1.0, 2.0, 0.5], [[-1.0, 0.0], [1.0, 1.0], [0.0, -2.0]], [0.2, 0.0, 0.1])


def test_losses_gradient_and_minimiser_agree():
    q, theta, small = np.array([0.2, 0.5, 0.3]), np.array([0.3, -0.7]), 1e-6
    for axis in range(2):
        step = small * np.eye(2)[axis]
        slope = (q @ GAME.losses(theta + step) - q @ GAME.losses(theta - step)) / (2 * small)
        assert GAME.gradient(theta, q)[axis] == pytest.approx(slope, abs=1e-8)
    np.testing.assert_allclose(GAME.gradient(GAME.minimiser(q), q), 0, atol=1e-12)
    np.testing.assert_allclose(GAME.minimiser(7 * q), GAME.minimiser(q))
    others = np.random.default_rng(0).normal(size=(200, 2))
    assert GAME.least(q) <= (GAME.losses(others) @ q).min()


@pytest.mark.parametrize("score", ["cumulative", "ema"])
def test_the_gap_is_never_negative_nor_above_its_bound_27(score):
    adversary = PromptGDRO(3, score=score, step_size=0.2, exploration=0.0, score_clip=100.0)
    played = games.play_saddle(GAME, adversary, 400, 0.2)
    assert (played["gap"] >= -1e-12).all()
    assert (played["gap"] <= played["bound"] + 1e-12).all()
    np.testing.assert_allclose(played["bound"] * played["round"], played["theta_regret"] + played["q_regret"])
    first = GAME.duality_gap(GAME.centres.mean(axis=0), np.full(3, 1 / 3))
    assert played["gap"].iloc[0] == played["last_gap"].iloc[0] == pytest.approx(first)


def test_exponentiated_gradient_reaches_the_saddle_and_the_moving_average_its_entropic_neighbour():
    """Scores that forget hold q at softmax(eta L): descent on R_eta, whose optimum is off by at most log(B) /
    eta."""
    hedge = PromptGDRO(3, score="cumulative", step_size=0.1, exploration=0.0)
    assert games.play_saddle(GAME, hedge, 4000, 0.1)["gap"].iloc[-1] < 0.005
    ema = PromptGDRO(3, step_size=0.65, exploration=0.0, score_clip=100.0)
    played = games.play_saddle(GAME, ema, 4000, 0.1)
    assert 0.02 < played["last_gap"].iloc[-1] < np.log(3) / 0.65
    assert played["last_gap"].iloc[-1] == pytest.approx(played["last_gap"].iloc[-500], abs=1e-6)


def brute_force(counts, table, arms, budget):
    """Least prompt-weighted loss among all assignments of one arm to each bin that spend the budget."""
    shares = np.array(counts) / np.sum(counts)
    choices = itertools.product(range(len(arms)), repeat=len(counts))
    return min(
        sum(shares[b] * table[b][n] for b, n in enumerate(choice))
        for choice in choices
        if sum(counts[b] * arms[n] for b, n in enumerate(choice)) == budget
    )


def test_the_best_fixed_assignment_is_that_of_enumeration():
    rng = np.random.default_rng(4)
    counts, arms = [2, 1, 3], (2, 3, 4, 5)
    losses = rng.random((6, 3, 4))
    found = games.best_fixed_losses(counts, losses, arms, 3)
    expected = [brute_force(counts, losses[: t + 1].sum(axis=0), arms, 18) for t in range(6)]
    np.testing.assert_allclose(found, expected)


def test_a_played_game_pays_what_its_table_says():
    counts, arms = np.array([2, 2]), (2, 3, 4)
    losses = np.random.default_rng(1).random((30, 2, 3))
    adversary = RolloutGDRO(2, arms, 3, selection="sample")
    played = games.play_rollouts(adversary, counts, losses, np.random.default_rng(2))
    chosen = played[["arm_0", "arm_1"]].to_numpy()
    assert (chosen.sum(axis=1) == 6).all()
    assert (played["realised"] == 3).all()
    paid = losses[np.arange(30)[:, None], [0, 1], chosen.astype(int) - 2].mean(axis=1)
    np.testing.assert_allclose(played["loss"], paid)
    best = brute_force(counts, losses.sum(axis=0), arms, 12)
    assert played["regret"].iloc[-1] == pytest.approx(paid.sum() - best)
    moved = played["price"].diff().iloc[1:].to_numpy()
    np.testing.assert_allclose(moved, 0.05 * (played["asked"].iloc[:-1] - 3))


def test_noise_is_seen_and_not_paid():
    losses = np.full((20, 2, 3), 0.4)
    adversary = RolloutGDRO(2, (2, 3, 4), 3)
    played = games.play_rollouts(adversary, [1, 3], losses, np.random.default_rng(0), noise=0.3)
    np.testing.assert_allclose(played["loss"], 0.4)
    np.testing.assert_allclose(played["regret"], 0, atol=1e-12)
    assert np.ptp(adversary.scores) > 0.02


def test_a_world_that_chases_always_meets_the_arg_max_and_seldom_a_draw():
    """The most likely assignment is what "map" plays, so every round costs it the whole extra loss."""
    base, paid = np.full((200, 2, 5), 0.1), {}
    for selection in ("map", "sample"):
        adversary = RolloutGDRO(2, (2, 3, 4, 5, 6), 4, selection=selection, price_step_size=0.0)
        played = games.play_rollouts(adversary, [2, 2], base, np.random.default_rng(0), chase=0.5)
        paid[selection] = played["loss"]
        assert played["regret"].iloc[-1] > 0
    np.testing.assert_allclose(paid["map"], 0.6)
    assert paid["sample"].mean() < 0.45
    assert (base == 0.1).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: games.play_regret("exp3", "late", 3, 100, 1), "known ones are 'exp3p', 'hedge', 'ema'"),
        (
            lambda: games.play_regret("exp3p", "early", 3, 100, 1),
            "known ones are 'steady', 'late', 'chasing'",
        ),
        (lambda: games.QuadraticGame([1.0, 0.0], [[0.0], [1.0]], [0.0, 0.0]), "must be above 0"),
        (lambda: games.QuadraticGame([1.0], [[0.0], [1.0]], [0.0]), r"shape \(1, D\), got \(2, 1\)"),
        (lambda: games.play_saddle(GAME, PromptGDRO(3), 5, 0.6), "learning_rate must be at most 0.5"),
        (
            lambda: games.play_rollouts(RolloutGDRO(2, (2, 3)), [1, 1], np.zeros((4, 2, 3)), None),
            "mean_budget 4 is outside",
        ),
        (
            lambda: games.play_rollouts(RolloutGDRO(2, (3, 4)), [1, 1], np.zeros((4, 2, 3)), None),
            r"losses must have shape \(rounds, 2, 2\), got \(4, 2, 3\)",
        ),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
