"""Rollout budgets met exactly: the best assignment, a draw, the variance optimum, the square-root law.

An assignment gives every bin one arm (a number of rollouts for each of its prompts) so that the prompts
together spend the budget to the rollout. Only where no such assignment exists, exactly one bin is split
between two adjacent arms, and its log-probability is the prompt-weighted mean of theirs.
"""

from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np

from gdro import checks
from gdro.budget_tables import (
    Problem,
    Total,
    best_split,
    best_totals,
    drawn_split,
    drawn_totals,
    leave_one_out,
)


def best_assignment(counts, log_probs, arms, budget, *, ties="even"):
    """The assignment of largest joint log-probability that spends the budget exactly.

    max sum_b log p_b(n_b) over bins with prompts, each counted once whatever its size, subject to sum_b
    counts_b n_b = budget, eq. (19), section 3.3, Panaganti et al. 2026. A dynamic programme over the bins,
    all budgets at once. The paper leaves ties open: the smallest sum_b counts_b (n_b - budget/P)^2 wins, then
    the lexicographically smallest arms (with a split: rollouts per bin). Differences up to 1e-9 at a bin, or
    1e-12 of the largest log-probability, are ties, so that rounding errors decide nothing.

    Args: ``counts`` (B,) prompts in each bin, >= 0; ``log_probs`` (B, A) real, or -inf for an arm not to be
    used; ``arms`` (A,) consecutive integers >= 0; ``budget`` in [P * min, P * max], P = sum counts;
    ``ties`` "even" (above) or "first" (lexicographic at once).
    Returns (B, A) int64: prompts of each bin on each arm, rows summing to ``counts``.
    Raises ``ValueError`` for a budget out of reach, also where only arms of probability 0 would meet it.

    >>> best_assignment([2, 1], np.log([[0.5, 0.5], [0.9, 0.1]]), [2, 3], 8)
    array([[0, 2],
           [1, 0]])
    >>> best_assignment([2], np.log([[0.5, 0.5]]), [2, 3], 5)
    array([[1, 1]])
    """
    checks.one_of("ties", ties, ("even", "first"))
    active, problem, shape = _problem(counts, log_probs, arms, budget)
    problem = replace(problem, even=ties == "even")
    totals = best_totals(problem)
    if totals is None:
        totals = best_split(problem)
    return _as_prompts(totals, active, problem, shape)


def sample_assignment(counts, log_probs, arms, budget, rng):
    """An assignment drawn with probability proportional to prod_b p_b(n_b) among those that spend the budget.

    The product distribution conditioned on eq. (19), Panaganti et al. 2026, who take the arg max instead.
    Sums over the bins in the log domain, then a draw bin by bin against them: exact, without rejection. Where
    no assignment of one arm to each bin has positive probability, the draw is among those with exactly one
    bin split, in proportion to exp of their joint log-probability.

    Args: as `best_assignment`, and ``rng`` a numpy Generator. Returns and raises as it does.

    >>> sample_assignment([1, 1], np.zeros((2, 3)), [2, 3, 4], 8, np.random.default_rng(0))
    array([[0, 0, 1],
           [0, 0, 1]])
    """
    active, problem, shape = _problem(counts, log_probs, arms, budget)
    totals = drawn_totals(problem, checks.generator("rng", rng))
    if totals is None:
        totals = drawn_split(problem, rng)
    return _as_prompts(totals, active, problem, shape)


def assignment_marginals(counts, log_probs, arms, budget):
    """Probability that `sample_assignment` gives bin b the arm n: the propensity of importance weights.

    P(n_b = n | budget) is proportional to p_b(n) times the probability that the other bins spend the rest.

    Args: as `best_assignment`. Returns (B, A), rows summing to 1, rows of empty bins 0.
    Raises ``ValueError`` also where no assignment with one arm a bin meets the budget.

    >>> assignment_marginals([1, 1], np.log([[0.5, 0.5], [0.8, 0.2]]), [2, 3], 5).round(3)
    array([[0.2, 0.8],
           [0.8, 0.2]])
    """
    active, problem, shape = _problem(counts, log_probs, arms, budget)
    marginals = np.zeros(shape)
    for b, table in leave_one_out(problem, Total):
        logits = problem.logs[b] + table.at(problem, problem.budget - problem.spends[b])
        if logits.max() == -np.inf:
            raise ValueError(
                f"no assignment of one arm to each bin spends {budget} on prompts {list(counts)} with arms "
                f"{arms[0]}..{arms[-1]}; a split bin has two arms and no propensity, use a whole mean budget"
            )
        weights = np.exp(logits - logits.max())
        marginals[active[b]] = weights / weights.sum()
    return marginals


def variance_optimal(counts, variances, arms, budget):
    """The integer assignment of least sum_b counts_b v_b / n_b that spends the budget exactly.

    Minimises the variance proxy (28), Panaganti et al. 2026, of which (30) is the real-valued optimum. One
    arm a bin, the split and ties are as in `best_assignment` (a split bin costs what its prompts cost
    together; differences up to 1e-9 of the largest cost are ties).

    Args: ``counts`` (B,); ``variances`` (B,) finite, >= 0, any unit; ``arms`` (A,) consecutive integers >= 1;
    ``budget`` in [P * min, P * max].
    Returns (B, A) int64, rows summing to ``counts``.

    >>> variance_optimal([1, 1], [1.0, 9.0], [2, 3, 4, 5, 6], 8)
    array([[1, 0, 0, 0, 0],
           [0, 0, 0, 0, 1]])
    """
    counts = checks.integer_array("counts", counts, low=0)
    variances = _checked_variances(variances, counts.size)
    arms = consecutive_arms(arms, low=1)
    costs = np.where(counts > 0, variances, 0.0)
    for factor in (1.0, counts):  # twice, so that nothing overflows and the largest cost is 1
        costs = costs * factor
        costs /= costs.max(initial=0.0) or 1.0
    return best_assignment(counts, -costs[:, None] * (arms[0] / arms), arms, budget)


def square_root_law(counts, variances, mean_budget, bounds=None):
    """Real rollouts per bin of least variance: n_b = n_bar sqrt(v_b) / sum_j q_j sqrt(v_j), q = counts / P.

    Eq. (30), Panaganti et al. 2026. With ``bounds``, the optimum within them: n_b = clip(level * sqrt(v_b)),
    the level, 1 / sqrt(mu) in (31), such that sum_b q_b n_b = n_bar. Bins of variance 0 get the lower bound
    (0 without bounds); where all others are at the upper bound, they share the rest equally. Where all bins
    with prompts have variance 0, every bin gets n_bar.

    Args: ``counts`` (B,) >= 0, not all 0; ``variances`` (B,) finite, >= 0; ``mean_budget`` > 0 rollouts per
    prompt; ``bounds`` (low, high) containing it, or None. Returns (B,) float, also for bins without prompts.

    >>> square_root_law([1, 1], [1.0, 9.0], 4)
    array([2., 6.])
    >>> square_root_law([1, 1], [1.0, 9.0], 4, bounds=(2, 5))
    array([3., 5.])
    """
    counts = checks.integer_array("counts", counts, low=0)
    roots = np.sqrt(_checked_variances(variances, counts.size))
    mean_budget = checks.real_number("mean_budget", mean_budget, above=0)
    if not counts.any():
        raise ValueError(f"counts are all 0 ({counts.tolist()}); at least one bin needs a prompt")
    low, high = (0.0, np.inf) if bounds is None else map(float, bounds)
    if not low <= mean_budget <= high:
        raise ValueError(f"mean_budget {mean_budget} is outside bounds ({low}, {high}); move one of them")
    shares = counts / counts.sum()
    if not roots[counts > 0].any():
        return np.full(counts.size, mean_budget)
    return _water_filled(shares, roots / roots[counts > 0].max(), mean_budget, low, high)


def _water_filled(shares, roots, mean_budget, low, high):
    """clip(level * roots, low, high) of the given mean, which is piecewise linear and rising in the level."""
    free = np.array([low, high])[:, None] / np.where(roots > 0, roots, np.nan)
    knots = np.unique(free[np.isfinite(free)])
    means = np.clip(knots[:, None] * roots, low, high) @ shares
    above = np.searchsorted(means, mean_budget)
    if above < knots.size and above > 0:
        span = means[above] - means[above - 1]
        step = knots[above] - knots[above - 1]
        level = knots[above - 1] + step * (mean_budget - means[above - 1]) / span
    elif above == 0:
        level = 0.0
    elif np.isinf(high):
        # past the last knot every bin rises: scale what lies above it
        level = knots[-1] + (mean_budget - means[-1]) / (shares @ roots)
    else:
        rest = shares[roots == 0].sum()
        spent = shares[roots > 0].sum() * high
        shared = np.clip((mean_budget - spent) / rest, low, high) if rest > 0 else low  # clips rounding
        return np.where(roots > 0, high, shared)
    return np.clip(level * roots, low, high)


def consecutive_arms(arms, low):
    """``arms`` as (A,) int64 after a check that they are consecutive integers rising from at least ``low``.

    >>> consecutive_arms((2, 3), low=2)
    array([2, 3])
    """
    array = checks.integer_array("arms", arms, low=low)
    if array.size == 0 or (array != np.arange(array[0], array[0] + array.size)).any():
        raise ValueError(f"arms must be consecutive rising integers, at least one, got {array.tolist()}")
    return array


def one_arm_budgets(counts, num_arms):
    """(P * (A - 1) + 1,) bool: which excess budgets some assignment of one arm to each bin meets.

    >>> one_arm_budgets([2, 3], 2)
    array([ True, False,  True,  True, False,  True])
    """
    counts = checks.integer_array("counts", counts, low=0)
    reached = 1  # bit t tells whether the total t is met
    for count in counts[counts > 0].tolist():
        reached = reduce(or_, (reached << count * arm for arm in range(num_arms)))
    totals = int(counts.sum()) * (num_arms - 1) + 1
    packed = np.frombuffer(reached.to_bytes(totals // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=totals, bitorder="little").astype(bool)


def _problem(counts, log_probs, arms, budget):
    """Active bins, their problem in excess units, and the shape (B, A) of the answer; checks everything."""
    counts = checks.integer_array("counts", counts, low=0)
    arms = consecutive_arms(arms, low=0)
    budget = checks.whole_number("budget", budget)
    logs = np.asarray(log_probs, dtype=np.float64)
    if logs.shape != (counts.size, arms.size):
        raise ValueError(
            f"log_probs must have shape {(counts.size, arms.size)} (bins, arms), got {logs.shape}"
        )
    if not (logs < np.inf).all():
        raise ValueError(f"log_probs must be finite or -inf, got {logs[~(logs < np.inf)][0]}")
    prompts = int(counts.sum())
    low, high = prompts * int(arms[0]), prompts * int(arms[-1])
    if not low <= budget <= high:
        raise ValueError(
            f"budget {budget} is outside [{low}, {high}], what {prompts} prompts can spend with arms "
            f"{arms[0]}..{arms[-1]}; change the budget or the arms"
        )
    active = np.flatnonzero(counts)
    return active, Problem(counts[active], logs[active], budget - low), logs.shape


def _as_prompts(totals, active, problem, shape):
    """(B, A) prompts per bin and arm from the excess total of each active bin."""
    result = np.zeros(shape, dtype=np.int64)
    arm, upper = np.divmod(np.asarray(totals, dtype=np.int64), problem.counts)
    result[active, arm] = problem.counts - upper
    split = upper > 0
    result[active[split], arm[split] + 1] = upper[split]
    return result


def _checked_variances(variances, size):
    variances = checks.finite_array("variances", variances, size=size)
    if (variances < 0).any():
        raise ValueError(f"variances must not be negative, got {variances.min()}; pass squared spreads")
    return variances
