"""The games behind the guarantees, small enough to play to the end: regrets, a saddle point, rollouts under a
budget.

Every regret is against the best fixed choice in hindsight on the losses or gains that were met.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gdro import checks
from gdro.allocation import best_assignment
from gdro.batch_budget import Budget
from gdro.exp3p import Exp3PSettings, updated_log_weights
from gdro.simplex import softmax_with_floor

RULES = ("exp3p", "hedge", "ema")
SEQUENCES = ("steady", "late", "chasing")
_EMA_RATE, _EMA_STEP, _EMA_EXPLORATION = 0.12, 0.65, 0.01  # eqs. (12) to (15), appendix A


def gains(sequence, t, horizon, p, rng):
    """Gains (S, K) in [0, 1] that an adversary gives in round ``t`` of ``horizon`` to S players with
    probabilities ``p``.

    "steady": every arm gains 1 with probability 0.4, arm 0 with 0.6. "late": arm 0 always gains one half, the
    last arm nothing in the first quarter and 1 afterwards. "chasing": the arm that the player likes least
    gains 1, the others nothing.
    """
    checks.one_of("sequence", sequence, SEQUENCES)
    if sequence == "steady":
        return (rng.random(p.shape) < np.where(np.arange(p.shape[1]) == 0, 0.6, 0.4)).astype(float)
    if sequence == "chasing":
        return (np.arange(p.shape[1]) == p.argmin(axis=1)[:, None]).astype(float)
    values = np.zeros(p.shape)
    values[:, 0], values[:, -1] = 0.5, t >= horizon / 4
    return values


def play_regret(rule, sequence, num_arms, horizon, seeds, *, delta=0.05, seed=0):
    """Regret of a rule after each round, (horizon, seeds): best fixed arm so far minus what the rule gained.

    ``rule`` "exp3p": `gdro.exp3p.Exp3P`, which draws an arm and sees its gain alone; "hedge": exponential
    weights on cumulated gains with step sqrt(8 ln K / T), which sees all gains and gains p . g; "ema": the
    same with the scores and the distribution of Prompt-GDRO, (12) to (15), at the settings of appendix A.

    Args: ``sequence`` as in `gains`; ``num_arms`` K, ``horizon`` T, ``seeds`` S, whole numbers.

    >>> play_regret("hedge", "late", 3, 100, 1).shape
    (100, 1)
    """
    checks.one_of("rule", rule, RULES)
    settings = Exp3PSettings(num_arms, horizon, delta)
    rng = np.random.default_rng(seed)
    state = np.zeros((seeds, num_arms))
    totals, own, regret = np.zeros((seeds, num_arms)), np.zeros(seeds), np.empty((horizon, seeds))
    for t in range(horizon):
        p = _probabilities(rule, state, settings)
        values = gains(sequence, t, horizon, p, rng)
        if rule == "exp3p":
            arms = (p.cumsum(axis=1)[:, :-1] <= rng.random(seeds)[:, None]).sum(axis=1)
            gained = values[np.arange(seeds), arms]
            state = updated_log_weights(state, arms, gained, settings)
        else:
            gained = (p * values).sum(axis=1)
            mixed = (1 - _EMA_RATE) * state + _EMA_RATE * values if t else values
            state = state + values if rule == "hedge" else mixed
        own += gained
        totals += values
        regret[t] = totals.max(axis=1) - own
    return regret


def _probabilities(rule, state, settings):
    if rule == "exp3p":
        return softmax_with_floor(state, settings.exploration)
    if rule == "ema":
        return softmax_with_floor(_EMA_STEP * state, _EMA_EXPLORATION)
    return softmax_with_floor(np.sqrt(8 * np.log(settings.num_arms) / settings.horizon) * state, 0.0)


def hedge_bound(num_arms, horizon):
    """sqrt(T ln(K) / 2), the regret that "hedge" never exceeds for gains in [0, 1].

    Cesa-Bianchi and Lugosi 2006, theorem 2.2.

    >>> round(hedge_bound(4, 800), 3)
    23.548
    """
    return float(np.sqrt(horizon * np.log(num_arms) / 2))


@dataclass(frozen=True, eq=False)
class QuadraticGame:
    """min over theta, max over q, of sum_b q_b L_b(theta), with L_b = a_b / 2 |theta - c_b|^2 + d_b.

    The form of (9), Panaganti et al. 2026, with losses whose minimum is a closed form.
    Args: ``curvatures`` a (B,) > 0; ``centres`` c (B, D); ``offsets`` d (B,).

    >>> game = QuadraticGame([1.0, 1.0], [[-1.0], [1.0]], [0.0, 0.0])
    >>> game.duality_gap(np.array([0.0]), np.array([0.5, 0.5]))
    0.0
    """

    curvatures: np.ndarray
    centres: np.ndarray
    offsets: np.ndarray

    def __post_init__(self):
        a = checks.finite_array("curvatures", self.curvatures)
        c, d = (
            np.asarray(self.centres, dtype=float),
            checks.finite_array("offsets", self.offsets, size=a.size),
        )
        if not (a > 0).all() or c.ndim != 2 or len(c) != a.size:
            raise ValueError(
                f"curvatures {a.tolist()} must be above 0, and centres of shape ({a.size}, D), got {c.shape}"
            )
        for name, value in (("curvatures", a), ("centres", c), ("offsets", d)):
            object.__setattr__(self, name, value)

    def losses(self, theta):
        """L (..., B) at theta (..., D)."""
        squares = ((theta[..., None, :] - self.centres) ** 2).sum(axis=-1)
        return self.curvatures / 2 * squares + self.offsets

    def gradient(self, theta, q):
        """Gradient (D,) of sum_b q_b L_b at theta (D,)."""
        return (q * self.curvatures) @ (theta - self.centres)

    def minimiser(self, q):
        """theta (..., D) at which sum_b q_b L_b is least, for q (..., B) >= 0 of any sum above 0."""
        pull = q * self.curvatures
        return pull @ self.centres / pull.sum(axis=-1, keepdims=True)

    def least(self, q):
        """min over theta of sum_b q_b L_b, (...)."""
        return (q * self.losses(self.minimiser(q))).sum(axis=-1)

    def duality_gap(self, theta, q):
        """max_b L_b(theta) - min over theta' of sum_b q_b L_b(theta'): 0 exactly at a saddle point."""
        gap = self.losses(theta).max(axis=-1) - self.least(q)
        return float(gap) if np.ndim(gap) == 0 else gap


def play_saddle(game, adversary, rounds, learning_rate):
    """Gradient descent on theta against an adversary on q; eq. (27), Panaganti et al. 2026, round by round.

    Args: ``game`` a `QuadraticGame`; ``adversary`` a `gdro.prompt_gdro.PromptGDRO` of its B bins, which sees
    every loss ("cumulative" scores make it exponentiated gradient, "ema" the paper's rule); ``rounds`` >= 1;
    ``learning_rate`` constant, in (0, 1 / max curvature], so that theta stays among the centres.
    Returns a frame with a row a round: gap (of the averaged theta and q), theta_regret and q_regret (so far,
    each against its best fixed choice), bound (their sum over the number of rounds, which gap never exceeds),
    last_gap (of the round's own theta and q), worst (max_b L_b at the averaged theta).
    """
    rounds = checks.whole_number("rounds", rounds, low=1)
    checks.real_number("learning_rate", learning_rate, above=0, high=1 / float(game.curvatures.max()))
    bins = np.arange(game.curvatures.size)
    theta = game.centres.mean(axis=0)
    thetas, qs = np.empty((rounds, theta.size)), np.empty((rounds, bins.size))
    for t in range(rounds):
        thetas[t], qs[t] = theta, adversary.distribution
        adversary.observe(bins, game.losses(theta))
        theta = theta - learning_rate * game.gradient(theta, qs[t])
    number = np.arange(1, rounds + 1)
    losses = game.losses(thetas)
    met = (qs * losses).sum(axis=1).cumsum()
    theta_regret = met - game.least(qs.cumsum(axis=0))
    q_regret = losses.cumsum(axis=0).max(axis=1) - met
    mean_theta, mean_q = thetas.cumsum(axis=0) / number[:, None], qs.cumsum(axis=0) / number[:, None]
    return pd.DataFrame(
        {
            "round": number,
            "gap": game.duality_gap(mean_theta, mean_q),
            "theta_regret": theta_regret,
            "q_regret": q_regret,
            "bound": (theta_regret + q_regret) / number,
            "last_gap": game.duality_gap(thetas, qs),
            "worst": game.losses(mean_theta).max(axis=1),
        }
    )


def play_rollouts(adversary, counts, losses, rng, noise=0.0, chase=0.0):
    """Let a `gdro.rollout_gdro.RolloutGDRO` plan round after round against a table of losses.

    Args: ``adversary`` of B bins and A arms; ``counts`` (B,) prompts of each bin, the same every round;
    ``losses`` (T, B, A) mean loss of a bin under each arm; ``rng`` a Generator for plans and noise; ``noise``
    the half-width of a uniform error on what the adversary sees of each prompt, not on what is paid;
    ``chase`` a loss added, every round, to the arms of the assignment that is most likely then: a world that
    knows the arm probabilities, but not what will be drawn.
    Returns a frame with a row a round: loss (paid, mean over prompts), regret (so far, against the best fixed
    feasible assignment on the rounds so far), asked and realised (rollouts per prompt), price (that the plan
    was made at), and arm_0 to arm_{B-1} (mean rollouts of each bin).
    """
    counts = checks.integer_array("counts", counts, low=1, size=adversary.num_bins)
    losses = np.array(losses, dtype=np.float64)
    shape = (adversary.num_bins, len(adversary.arms))
    if losses.ndim != 3 or losses.shape[1:] != shape:
        raise ValueError(f"losses must have shape (rounds, {shape[0]}, {shape[1]}), got {losses.shape}")
    bins = np.repeat(np.arange(counts.size), counts)
    budget, _ = Budget(adversary.arms, adversary.mean_budget).shares(counts, 0)
    paid, rows = np.empty(len(losses)), []
    for t, table in enumerate(losses):
        price = adversary.shadow_price
        if chase:
            logs = np.log(np.maximum(adversary.arm_probabilities, np.finfo(float).tiny))
            likely = best_assignment(counts, logs, adversary.arms, budget)
            table += chase * (likely > 0)
        rollouts = adversary.plan(bins, rng)
        met = table[bins, rollouts - adversary.arms[0]]
        paid[t] = met.mean()
        rows.append((adversary.asked_mean, adversary.realised_mean, price, *_means(bins, rollouts)))
        adversary.observe(bins, met + noise * rng.uniform(-1, 1, met.size))
    frame = pd.DataFrame(
        rows, columns=["asked", "realised", "price", *(f"arm_{b}" for b in range(counts.size))]
    )
    best = best_fixed_losses(counts, losses, adversary.arms, adversary.mean_budget)
    frame.insert(0, "regret", paid.cumsum() - best)
    frame.insert(0, "loss", paid)
    return frame.rename_axis("round").reset_index()


def best_fixed_losses(counts, losses, arms, mean_budget):
    """(T,) total loss, after each round, of the assignment within the budget that is best up to that round.

    One arm a bin (one bin split where nothing else spends P * mean_budget), found by
    `gdro.allocation.best_assignment`: minus the loss stands where it has a log-probability.

    >>> best_fixed_losses([1, 1], [[[0.5, 0.3, 0.2], [0.1, 0.1, 0.1]]], [2, 3, 4], 3)
    array([0.15])
    """
    counts = np.asarray(counts)
    cumulated = (np.asarray(losses) * counts[:, None] / counts.sum()).cumsum(axis=0)
    budget, _ = Budget(arms, mean_budget).shares(counts, 0)
    totals = np.empty(len(cumulated))
    for t, table in enumerate(cumulated):
        chosen = best_assignment(counts, -table, arms, budget)
        totals[t] = (chosen / counts[:, None] * table).sum()
    return totals


def _means(bins, rollouts):
    return np.bincount(bins, rollouts) / np.bincount(bins)
