"""Closed forms of section 4: the entropic surrogate, what a signal says, and what rollouts do to a variance.

The policies here have one parameter a prompt, the logit of its pass rate, so that every expectation over
rollout groups is a sum over a binomial; `gdro.gradients` measures the same on language models.
"""

import numpy as np
from scipy.special import expit, logit, logsumexp
from scipy.stats import binom

from gdro import checks
from gdro.allocation import square_root_law
from gdro.simplex import entropy, log_softmax

ADVANTAGES = ("group", "centred", "baseline")


def entropic_objective(q, losses, step_size):
    """sum_b q_b L_b + H(q) / eta, the inner maximisation of Lemma 4.1, eqs. (22) and (23).

    Panaganti et al. 2026, no departure.

    Args: ``q`` (..., B) on the simplex; ``losses`` (..., B) finite; ``step_size`` eta > 0.

    >>> float(entropic_objective([0.5, 0.5], [1.0, 0.0], 2.0).round(4))
    0.8466
    """
    eta = checks.real_number("step_size", step_size, above=0)
    return (np.asarray(q) * np.asarray(losses)).sum(axis=-1) + entropy(q) / eta


def entropic_risk(losses, step_size):
    """R_eta = (1 / eta) log sum_b exp(eta L_b), eq. (24): the maximum of `entropic_objective` over q.

    Panaganti et al. 2026, Lemma 4.1, no departure. By (25) max_b L_b <= R_eta <= max_b L_b + log(B) / eta.

    Args: ``losses`` (..., B) finite; ``step_size`` eta > 0. Returns (...).

    >>> float(entropic_risk([1.0, 1.0], 1.0).round(4))
    1.6931
    """
    eta = checks.real_number("step_size", step_size, above=0)
    return logsumexp(eta * np.asarray(losses, dtype=np.float64), axis=-1) / eta


def entropic_weights(losses, step_size):
    """softmax(eta L), (..., B): the q that attains `entropic_risk`, and its derivative by L; Lemma 4.1.

    >>> entropic_weights([np.log(3.0), 0.0], 1.0).round(2)
    array([0.75, 0.25])
    """
    eta = checks.real_number("step_size", step_size, above=0)
    return np.exp(log_softmax(eta * np.asarray(losses, dtype=np.float64)))


def entropic_gradient(losses, jacobian, step_size):
    """Gradient of R_eta(L(theta)) by theta, eq. (26): sum_b softmax_b(eta L) dL_b / dtheta.

    Panaganti et al. 2026, no departure. Args: ``losses`` (B,); ``jacobian`` (B, D). Returns (D,).

    >>> entropic_gradient([0.0, 0.0], [[2.0], [4.0]], 1.0)
    array([3.])
    """
    return entropic_weights(losses, step_size) @ np.asarray(jacobian, dtype=np.float64)


def gradient_moments(pass_rate, rollouts, advantage="group"):
    """Mean and variance, over rollout groups, of a prompt's policy gradient under a policy of one parameter.

    The rollouts of a group are right independently with probability p = expit(theta), so d log pi / d theta
    is r - p, and with c of n right and m = c / n the gradient (1 / n) sum_j A_j (r_j - p) is
      "group"     A of eq. (3), population std, eps 0: sqrt(m (1 - m)), and 0 in a group without variance;
      "centred"   A = r - m: m (1 - m);
      "baseline"  A = r - p, as if p were known: m (1 - p)^2 + (1 - m) p^2, a mean of independent terms.
    Only for "baseline" is the variance v / n as (28) supposes, with v = p (1 - p) (1 - 2p)^2. The paper makes
    no such calculation.

    Args: ``pass_rate`` p in [0, 1]; ``rollouts`` n >= 1, integers; broadcast together. Returns two arrays.

    >>> mean, variance = gradient_moments(0.5, 2)
    >>> float(mean.round(4)), float(variance.round(4))
    (0.25, 0.0625)
    """
    checks.one_of("advantage", advantage, ADVANTAGES)
    p, n = _rates_and_rollouts(pass_rate, rollouts)
    right = np.arange(n.max() + 1)
    chances = binom.pmf(right, n[..., None], p[..., None])  # 0 beyond n
    m = np.minimum(right / n[..., None], 1.0)
    if advantage == "baseline":
        values = m * (1 - p[..., None]) ** 2 + (1 - m) * p[..., None] ** 2
    else:
        values = m * (1 - m) if advantage == "centred" else np.sqrt(m * (1 - m))
    mean = (chances * values).sum(axis=-1)
    return mean, (chances * (values - mean[..., None]) ** 2).sum(axis=-1)


def surrogate_after_step(pass_rate, rollouts, learning_rate, clip_low=0.2, clip_high=0.28):
    """Expected prompt loss (7), without KL, of fresh rows after one gradient step on the prompt's own rows.

    A policy of one parameter steps along the mean of `gradient_moments`, times ``learning_rate``; then with
    m = c / n the clipped surrogate of a group is sqrt(m (1 - m)) (min(rho+, 1 + clip_high) - max(rho-, 1 -
    clip_low)), eqs. (3) and (5), Panaganti et al. 2026, rho+ and rho- the ratios of right and wrong rollouts.
    The loss is minus its mean: 0 at learning rate 0, where every ratio is 1, and never above 0 after a step.

    Args: ``pass_rate`` in (0, 1); ``rollouts`` n >= 1; ``learning_rate`` >= 0 in units of the logit.

    >>> surrogate_after_step([0.1, 0.5], 4, 0.2).round(4)
    array([-0.0047, -0.0326])
    """
    rate = checks.real_number("learning_rate", learning_rate, low=0)
    p, n = _rates_and_rollouts(pass_rate, rollouts)
    if ((p == 0) | (p == 1)).any():
        raise ValueError(
            "pass_rate must lie strictly between 0 and 1: at the ends one of the ratios is 0 / 0"
        )
    spread = gradient_moments(p, n)[0]
    moved = expit(logit(p) + rate * spread)
    right = np.minimum(moved / p, 1 + clip_high)
    wrong = np.maximum((1 - moved) / (1 - p), 1 - clip_low)
    return -spread * (right - wrong) + 0.0  # adding 0.0 turns -0.0 into 0.0


def variance_proxy(counts, variances, rollouts):
    """sum_b q_b v_b / n_b, eq. (28), q = counts / P: the variance of a batch's gradient, up to a factor.

    Panaganti et al. 2026, no departure. Args: ``counts`` (B,) prompts >= 0, not all 0; ``variances`` (..., B)
    >= 0; ``rollouts`` (..., B) > 0 where there are prompts. Bins without prompts do not count.

    >>> float(variance_proxy([1, 1], [1.0, 9.0], [2, 6]))
    1.0
    """
    counts = checks.integer_array("counts", counts, low=0)
    n = np.where(counts > 0, rollouts, 1.0)
    if not counts.any() or not (n > 0).all():
        raise ValueError(
            f"counts {counts.tolist()} need a prompt, and rollouts {np.asarray(rollouts).tolist()} must be "
            "above 0 in every bin with prompts"
        )
    return (counts / counts.sum() * np.asarray(variances) / n).sum(axis=-1)


def rollouts_at_price(variances, price, bounds=(0.0, np.inf)):
    """n_b(mu) = sqrt(v_b / mu) within ``bounds``, eq. (31): what minimises v_b / n + mu n.

    Panaganti et al. 2026; there without bounds. Args: ``variances`` (B,) >= 0; ``price`` mu > 0.

    >>> rollouts_at_price([1.0, 4.0], 0.25)
    array([2., 4.])
    """
    mu = checks.real_number("price", price, above=0)
    return np.clip(np.sqrt(np.asarray(variances, dtype=np.float64) / mu), *bounds)


def shadow_price(counts, variances, mean_budget, bounds=(0.0, np.inf)):
    """mu of (31) at which the bins ask for the mean budget; unbounded, (sum_b q_b sqrt(v_b) / n_bar)^2.

    It is what one more rollout per prompt would take off the proxy (28): minus its derivative by n_bar, with
    bounds the one from above, max v_b / n_b^2 over the bins that may still rise; 0 where none may.
    Panaganti et al. 2026, theorem 4.2; there without bounds.

    Args: as `gdro.allocation.square_root_law`, whose optimum this is the price of.

    >>> shadow_price([1, 1], [1.0, 9.0], 4)
    0.25
    """
    n = square_root_law(counts, variances, mean_budget, bounds)
    may_rise = (np.asarray(counts) > 0) & (n < bounds[1] * (1 - 1e-12)) & (np.asarray(variances) > 0)
    values = np.asarray(variances, dtype=np.float64)[may_rise] / n[may_rise] ** 2
    return float(values.max(initial=0.0))


def _rates_and_rollouts(pass_rate, rollouts):
    p = np.asarray(pass_rate, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"pass_rate must be within [0, 1], got {p[~((p >= 0) & (p <= 1))][0]}")
    n = np.asarray(rollouts)
    n = checks.integer_array("rollouts", n.ravel(), low=1).reshape(n.shape)
    return np.broadcast_arrays(p, n)
