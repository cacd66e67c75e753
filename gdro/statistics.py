"""Estimates from repeated sampling, and how sure one may be of them: pass@k, bootstrap intervals,
differences.

The bootstrap resamples seeds, then prompts. Where all seeds saw the same prompts (the usual study) one draw
of prompts serves every seed, so that a hard prompt is hard in all of them; with ``prompts="nested"`` every
seed has its own draw. Few seeds make percentile intervals too narrow, so their ends are moved out
(`tail_probability`). Nothing here reads a global random state: the seed is an argument.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from gdro import checks

_CHUNK = 1 << 22  # numbers held at once while resampling: 32 MiB
_AT_ONCE = 128  # resamples whose counts of a thousand prompts stay in a processor's cache


@dataclass(frozen=True)
class Interval:
    """A point estimate with the ends of its interval, all in the unit of the data."""

    estimate: float
    low: float
    high: float

    def __post_init__(self):
        if not (np.isfinite([self.estimate, self.low, self.high]).all() and self.low <= self.high):
            raise ValueError(f"an interval needs finite ends, low <= high, got {self.low}, {self.high}")


def pass_at_k(correct, rollouts, k):
    """Unbiased estimate of the probability that at least one of k rollouts is right: 1 - C(n-c, k) / C(n, k).

    Eq. (1), Chen et al. 2021 (Codex); written as prod_{i<k} (n-c-i)/(n-i), which neither overflows nor
    cancels. No departure.

    Args: ``correct`` c and ``rollouts`` n, integers, broadcast together, 0 <= c <= n; ``k`` at least 1.
    Returns an array in [0, 1]; exactly 0 for c = 0 and exactly 1 for n - c < k.
    Raises ``ValueError`` where n < k (the estimate does not exist) or c > n, with the values.

    >>> pass_at_k([0, 1, 4], 4, 2)
    array([0. , 0.5, 1. ])
    """
    k = checks.whole_number("k", k, low=1)
    correct, rollouts = _counts(correct, rollouts)
    if rollouts.size and rollouts.min() < k:
        raise ValueError(
            f"pass@{k} needs at least {k} rollouts a prompt, got {rollouts.min()}; sample more or lower k"
        )
    return 1.0 - miss_probability(correct, rollouts, k)


def miss_probability(correct, rollouts, k):
    """C(n-c, k) / C(n, k) without checks, for integer arrays of one shape with 0 <= c <= n and n >= k: the
    share of k-subsets that miss.

    >>> miss_probability(np.array([1]), np.array([4]), 2)
    array([0.5])
    """
    miss = np.ones(np.shape(rollouts))
    for i in range(k):
        miss *= np.maximum(rollouts - correct - i, 0) / (rollouts - i)
    return miss


def mean_at_k(correct, rollouts):
    """Mean@k of each prompt, c / n: the share of its k = n rollouts that are right.

    Args: ``correct`` c and ``rollouts`` n >= 1, integers, broadcast together, 0 <= c <= n. Raises
    ``ValueError`` else.

    >>> mean_at_k([0, 2], 4)
    array([0. , 0.5])
    """
    correct, rollouts = _counts(correct, rollouts)
    if rollouts.size and rollouts.min() < 1:
        raise ValueError(
            "mean@k needs at least 1 rollout a prompt, got 0; drop prompts that were not sampled"
        )
    return correct / rollouts


def _counts(correct, rollouts):
    pair = []
    for name, values in (("correct", correct), ("rollouts", rollouts)):
        array = np.asarray(values)
        pair.append(checks.integer_array(name, array.ravel(), low=0).reshape(array.shape))
    correct, rollouts = np.broadcast_arrays(*pair)
    if (correct > rollouts).any():
        at = tuple(np.argwhere(correct > rollouts)[0])
        raise ValueError(f"correct is {correct[at]} of {rollouts[at]} rollouts; it cannot exceed them")
    return correct, rollouts


def mean_by(labels, values, num_labels):
    """Mean of ``values`` (n,) for each label in [0, num_labels), NaN for a label without one; unchecked.

    Values whose sum could overflow are scaled by a power of two first, which is exact.

    >>> mean_by(np.array([0, 0, 2]), np.array([1e308, 1.5e308, 3.0]), 3)
    array([1.25e+308,       nan, 3.00e+000])
    """
    counts = np.bincount(labels, minlength=num_labels)
    peak = np.abs(values).max(initial=0.0)
    shift = 64 if peak > 1e280 else 0
    if shift:
        values, peak = np.ldexp(values, -shift), np.ldexp(peak, -shift)
    means = np.bincount(labels, values, minlength=num_labels) / np.where(counts > 0, counts, np.nan)
    # rounding must not carry a mean beyond the largest value
    means = np.minimum(np.maximum(means, -peak), peak)
    return np.ldexp(means, shift) if shift else means


def beta_prior(correct, rollouts):
    """Shapes (a, b) of the Beta distribution of pass rates over a population, by moments of the
    beta-binomial.

    Kleinman 1973, JASA 68(341), with weights n_i: mu = (sum c + 1/2) / (sum n + 1), kept off 0 and 1 by the
    Jeffreys half; the intra-prompt correlation rho solves sum n_i (c_i/n_i - cbar)^2 = cbar (1-cbar) [rho
    (sum n - sum n^2 / sum n) + (1-rho) (N-1)], is kept in [1/1001, 1/2], and a + b = 1/rho - 1. Where no
    prompt has two rollouts, or all or none are right, rho is not identified and is 1/3, that of the uniform
    distribution.

    Args: ``correct`` c and ``rollouts`` n >= 1, integers (N,), N >= 1.
    Returns a, b > 0 with 1 <= a + b <= 1000.

    >>> beta_prior(np.array([0, 4]), np.array([4, 4]))
    (0.5, 0.5)
    """
    c, n = np.asarray(correct, dtype=np.float64), np.asarray(rollouts, dtype=np.float64)
    total, prompts = n.sum(), n.size
    mu = (c.sum() + 0.5) / (total + 1)
    pooled = c.sum() / total
    spread = pooled * (1 - pooled)
    free = total - (n**2).sum() / total - (prompts - 1)
    rho = 1 / 3
    if spread > 0 and free > 1e-9 * total:
        between = (n * (c / n - pooled) ** 2).sum() / spread
        rho = min(max((between - (prompts - 1)) / free, 1 / 1001), 1 / 2)
    strength = 1 / rho - 1
    return float(mu * strength), float((1 - mu) * strength)


def bootstrap_interval(
    values_by_seed, statistic=np.mean, level=0.95, resamples=4000, seed=0, *, prompts="shared"
) -> Interval:
    """Percentile interval for the mean over seeds of ``statistic`` over prompts, by resampling seeds, then
    prompts.

    The two-way ("pigeonhole") bootstrap of Owen 2007, Annals of Applied Statistics 1(2); with
    ``prompts="nested"`` the hierarchical one, which takes the prompts of different seeds for different ones.
    Percentile ends, moved out by `tail_probability`, so a range-preserving statistic keeps its range. With
    one seed the interval speaks of prompts alone. No resample lies beyond the seeds, so where seeds decide,
    an interval over S of them covers at most 1 - 2^(1-S): half with two, 75 % with three, 94 % with five.

    Args: ``values_by_seed`` (S, P) array, or S arrays (P_s,), finite; ``statistic`` takes (values, axis=...);
    ``level`` in (0, 1); ``seed`` an int or a Generator; ``prompts`` "shared" (same prompts, same order, in
    every seed) or "nested".
    Raises ``ValueError`` for shared prompts of unequal number, no values, or a value that is not finite.

    >>> bootstrap_interval([[1.0, 1.0], [1.0, 1.0]])
    Interval(estimate=1.0, low=1.0, high=1.0)
    """
    named = {"values_by_seed": values_by_seed}
    return bootstrap_intervals(named, statistic, level, resamples, seed, prompts=prompts)["values_by_seed"]


def bootstrap_intervals(
    named, statistic=np.mean, level=0.95, resamples=4000, seed=0, *, prompts="shared"
) -> dict:
    """`bootstrap_interval` of several quantities, {name: values by seed}, in far less time than one by one.

    Those with as many seeds and prompts share their draws; ``seed`` must be an integer where not all have.

    >>> bootstrap_intervals({"a": [[0.0]], "b": [[1.0], [1.0]]})["b"]
    Interval(estimate=1.0, low=1.0, high=1.0)
    """
    alike: dict = {}
    for name, values in named.items():
        alike.setdefault(tuple(map(np.size, values)), {})[name] = values
    found = {}
    for some in alike.values():
        groups = _groups(some, prompts)
        estimates = _estimate(groups, statistic)
        draws = _resample(groups, statistic, resamples, seed, prompts)
        for name, estimate, own in zip(some, estimates, draws.T, strict=True):
            found[name] = _percentiles(estimate, own, level, len(groups))
    return {name: found[name] for name in named}


def paired_difference(a, b, level=0.95, resamples=4000, seed=0, *, prompts="shared") -> Interval:
    """Interval for mean(a) - mean(b), where a and b have the same seeds and prompts, resampled together.

    Pairing takes out what the two have in common, so the interval is that of the differences. Arguments and
    errors as ``bootstrap_interval``; a and b must agree in seeds and in prompts of each seed.

    >>> paired_difference([[0.5, 1.0]], [[0.25, 0.75]])
    Interval(estimate=0.25, low=0.25, high=0.25)
    """
    groups = _groups({"a": a, "b": b}, prompts)
    draws = _resample(groups, np.mean, resamples, seed, prompts)
    estimate = _estimate(groups, np.mean)
    return _percentiles(estimate[0] - estimate[1], draws[:, 0] - draws[:, 1], level, len(groups))


def relative_difference(a, b, level=0.95, resamples=4000, seed=0, *, prompts="shared") -> Interval:
    """Interval for mean(a) / mean(b) - 1, paired by seed and prompt; 0.1 reads "ten per cent better".

    Arguments as ``paired_difference``. Raises ``ValueError`` where the mean of b, or of a resample of it, is
    0: the ratio has no interval then.

    >>> relative_difference([[0.5, 1.0]], [[0.25, 0.5]]).estimate
    1.0
    """
    groups = _groups({"a": a, "b": b}, prompts)
    estimate = _estimate(groups, np.mean)
    draws = _resample(groups, np.mean, resamples, seed, prompts)
    if estimate[1] == 0 or (draws[:, 1] == 0).any():
        raise ValueError(
            f"the mean of b is {estimate[1]}, and 0 in {(draws[:, 1] == 0).sum()} of {resamples} resamples, "
            "so the ratio has no interval; use paired_difference"
        )
    return _percentiles(estimate[0] / estimate[1] - 1, draws[:, 0] / draws[:, 1] - 1, level, len(groups))


def holm(p_values):
    """Holm's step-down adjustment of p values: reject where the result is at most alpha, family-wise error <=
    alpha.

    Holm 1979, Scandinavian Journal of Statistics 6(2): max_{j<=i} min(1, (m-j+1) p_(j)).

    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p = checks.finite_array("p_values", p_values)
    if p.size and (p.min() < 0 or p.max() > 1):
        raise ValueError(f"p values lie in [0, 1], got {p.min()} to {p.max()}")
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, np.arange(p.size, 0, -1) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def _groups(named, prompts):
    """S arrays (M, P_s): the M named quantities of every seed side by side."""
    checks.one_of("prompts", prompts, ("shared", "nested"))
    rows = {
        name: [
            checks.finite_array(f"{name}[{s}]", row, remedy="a prompt needs a value in every seed")
            for s, row in enumerate(v)
        ]
        for name, v in named.items()
    }
    sizes = {name: [row.size for row in v] for name, v in rows.items()}
    first, *others = sizes.values()
    if not first or 0 in first:
        raise ValueError(f"every seed needs at least one value, got {first} values by seed")
    if any(other != first for other in others):
        raise ValueError(f"paired values must agree in seeds and prompts, got {sizes} values by seed")
    if prompts == "shared" and len(set(first)) > 1:
        raise ValueError(
            f'the seeds have {first} prompts; prompts="shared" needs equal numbers, else use "nested"'
        )
    return [np.stack(parts) for parts in zip(*rows.values(), strict=True)]


def _estimate(groups, statistic):
    return np.mean([statistic(group, axis=-1) for group in groups], axis=0)


def _resample(groups, statistic, resamples, seed, prompts):
    """(resamples, M) statistics: per resample S seeds with replacement, per seed (or once) its prompts."""
    resamples = checks.whole_number("resamples", resamples, low=1)
    quantities, seeds = groups[0].shape[0], len(groups)
    widest = max(group.shape[1] for group in groups)
    if prompts == "shared" and statistic is np.mean:
        return _sums_of_means(np.stack(groups), resamples, seed) / seeds
    step = max(1, _CHUNK // widest)
    rng = np.random.default_rng(seed)
    totals = np.zeros((resamples, quantities))
    seeds_chosen = rng.integers(seeds, size=(resamples, seeds))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        chosen = seeds_chosen[start : start + size]
        shared = rng.integers(widest, size=(size, widest)) if prompts == "shared" else None
        for s, group in enumerate(groups):
            for slot in range(seeds):
                rows = np.flatnonzero(chosen[:, slot] == s)
                width = group.shape[1]
                draw = rng.integers(width, size=(rows.size, width)) if shared is None else shared[rows]
                if rows.size:
                    totals[start + rows] += _of_drawn(group, draw, statistic)
    return totals / seeds


def _of_drawn(group, draw, statistic):
    """(R, M) statistics of M quantities (M, P) over the prompts that each row of ``draw`` (R, P) names."""
    if statistic is np.mean:
        return _counted(draw, group.shape[1]) @ group.T / group.shape[1]
    return np.stack([statistic(own[draw], axis=-1) for own in group], axis=-1)


def _counted(draw, prompts):
    """How often each row (R, P) of ``draw`` names each of the prompts."""
    places = draw + prompts * np.arange(len(draw))[:, None]
    return np.bincount(places.ravel(), minlength=len(draw) * prompts).reshape(len(draw), prompts)


def _sums_of_means(groups, resamples, seed):
    """(R, M) sums over drawn seeds of the means over drawn prompts of (S, M, P) values.

    Prompts are counted instead of gathered, and a table's many comparisons over as many seeds and prompts
    share their draws: both far quicker.
    """
    seeds, quantities, width = groups.shape
    draw = _draws if isinstance(seed, int) else _draws.__wrapped__  # a Generator goes on from where it is
    chosen, counts = draw(seed, resamples, seeds, width)
    totals = np.empty((resamples, quantities))
    for start in range(0, resamples, _AT_ONCE):
        own = slice(start, min(start + _AT_ONCE, resamples))
        means = groups @ (counts[own].T / width)  # (S, M, R)
        totals[own] = means[chosen[own], :, np.arange(own.stop - start)[:, None]].sum(axis=1)
    return totals


@lru_cache(maxsize=8)  # of 11 MB each at 4,000 resamples of 1,404 prompts
def _draws(seed, resamples, seeds, prompts):
    """Seeds drawn (R, S), and how often each prompt is (R, P)."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(seeds, size=(resamples, seeds))
    counts = np.empty((resamples, prompts), dtype=np.min_scalar_type(prompts))
    for start in range(0, resamples, step := max(1, _CHUNK // prompts)):
        size = min(step, resamples - start)
        counts[start : start + size] = _counted(rng.integers(prompts, size=(size, prompts)), prompts)
    return chosen, counts


def tail_probability(level, seeds):
    """Probability that lies beyond each end of a percentile interval over ``seeds`` seeds.

    Half of 1 - level for one seed. For more it is Phi(-sqrt(S / (S-1)) t), t the quantile of Student's
    distribution with S - 1 degrees of freedom: the expanded percentile interval of Hesterberg 2015, The
    American Statistician 69(4), whose ends lie as far out as those of the t interval do.

    >>> [round(tail_probability(0.95, seeds), 4) for seeds in (1, 5, 10, 1000)]
    [0.025, 0.001, 0.0086, 0.0248]
    """
    tail = (1 - checks.real_number("level", level, above=0, below=1)) / 2
    if seeds == 1:
        return tail
    return float(stats.norm.cdf(np.sqrt(seeds / (seeds - 1)) * stats.t.ppf(tail, seeds - 1)))


def _percentiles(estimate, draws, level, seeds):
    tail = tail_probability(level, seeds)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(estimate), float(low), float(high))
