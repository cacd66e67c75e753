"""What the rollouts that arms planned do to the noise of the gradient, from variances that were measured."""

import numpy as np
import pandas as pd

from gdro import statistics


def planned_noise(bins: pd.DataFrame, measured: pd.DataFrame, mean_budget, resamples=2000, seed=0):
    """How far each arm's plans lower the noise of the gradient against equal rollouts, as WSE (33) is summed.

    The noise of a plan is sum_b share_b s_b(n_b), s_b(n)^2 the mean over the prompts measured in bin b of the
    trace of the gradient's covariance with n rollouts, all at one policy; a run's is summed over its cycles.

    Args: ``bins`` of the run store (share and rollouts of every bin and cycle); ``measured`` as
    `gdro.gradients.measure_variance` gives it, one kind of advantage, with a column bin; ``mean_budget`` the
    rollouts of equal plans. Cells whose bin or number of rollouts was not measured are left out of both.
    Columns: scale, arm, estimate (1 - noise / noise of equal rollouts), low, high (95 %, bootstrap over
    prompts within bins and over seeds), seeds, covered (share of the prompts that is not left out).
    """
    rng = np.random.default_rng(seed)
    table = measured.pivot(index=["bin", "prompt"], columns="rollouts", values="variance")
    if mean_budget not in table:
        raise ValueError(
            f"mean_budget={mean_budget} was not measured: the numbers of rollouts are {list(table)}"
        )
    places, numbers = table.index.unique("bin"), list(table.columns)
    draws = np.stack([_bin_noise(table.loc[b].to_numpy(), resamples, rng) for b in places], axis=1)
    shape, equal = draws.shape[1:], numbers.index(mean_budget)
    rows = []
    for (scale, arm), own in bins[bins["share"] > 0].groupby(["scale", "arm"], sort=False):
        drawn, covered = [], []
        for _, run in own.groupby("seed", sort=False):
            at = places.get_indexer(run["bin"]), pd.Index(numbers).get_indexer(run["rollouts"].round())
            known = (at[0] >= 0) & (at[1] >= 0)
            weight = np.zeros(shape)
            np.add.at(weight, (at[0][known], at[1][known]), run["share"].to_numpy()[known])
            spent = np.einsum("rbn,bn->r", draws, weight)
            drawn.append(1 - spent / (draws[:, :, equal] @ weight.sum(axis=1)))
            covered.append(weight.sum() / run["share"].sum())
        ratios = np.array(drawn)
        chosen = rng.integers(len(ratios), size=(resamples, len(ratios)))
        means = ratios[chosen, np.arange(1, resamples + 1)[:, None]].mean(axis=1)
        tail = statistics.tail_probability(0.95, len(ratios))
        low, high = np.quantile(means, [tail, 1 - tail])
        rows.append([scale, arm, ratios[:, 0].mean(), low, high, len(ratios), np.mean(covered)])
    return pd.DataFrame(rows, columns=["scale", "arm", "estimate", "low", "high", "seeds", "covered"])


def _bin_noise(variances, resamples, rng):
    """(1 + resamples, N) root mean variance over the P prompts of (P, N): of all, then of resamples."""
    prompts = len(variances)
    chosen = np.concatenate([np.arange(prompts)[None], rng.integers(prompts, size=(resamples, prompts))])
    return np.sqrt(variances[chosen].mean(axis=1))
