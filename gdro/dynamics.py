"""How prompts, weights and rollouts move between bins while a model learns: frames of bins in, frames out.

A batch's prompts have shares over the bins, an adversary has a distribution q over them, and rollouts have
shares of their own; each figure of the paper's dynamics compares two of these. An index counts bins from 0,
the hardest.
"""

import numpy as np
import pandas as pd
from scipy.special import xlogy

from gdro import statistics

RUN = ["scale", "arm", "seed"]
CYCLE = [*RUN, "cycle", "step"]
MIDDLE, EASY = 3, 8  # Figure 4's thresholds, of ten bins (Panaganti et al. 2026)
UPPER = 5  # Figure 8's threshold, of ten bins
QUARTERS = (0.1, 0.4, 0.7, 1.0)  # of a run: start, early-mid, late-mid, end (Figures 5 and 9)


def curves(bins: pd.DataFrame) -> pd.DataFrame:
    """One row a run and cycle with the quantities of Figures 4, 6 and 8 of Panaganti et al. 2026.

    Columns: scale, arm, seed, cycle, step, and
      mean_bin, weighted_bin, gradient_bin, rollout_bin: the mean bin under the prompts' share, under q (15),
        under share x weight (what the gradient sees), and under the rollouts' share;
      lead, gradient_lead: weighted_bin and gradient_bin minus mean_bin. ``lead`` is eq. (32) as the paper has
        it; it is not 0 for uniform q, as ``gradient_lead`` is;
      hardest, middle_up, easy_up, upper: share of prompts in bin 0 and in bins from 3, 8 and 5 up;
        upper_rollouts: share of rollouts in bins from 5 up;
      share_entropy, weight_entropy, rollout_entropy: in nats; support: exp(weight_entropy), in bins;
      wse, wse_uniform: eq. (33), sum_b share_b sigma_b / sqrt(n_b), with the rollouts of the run and with
        their mean in every bin; wse_least: the least that any n_b of that mean could reach,
        (sum_b share_b sigma_b^(2/3))^(3/2) / sqrt(mean), which no rule can know in advance.
    What needs an adversary that the run did not have is NaN, as is a standard error where a bin that held
    prompts has no sigma.
    """
    numbers = ["bin", "share", "weight", "q", "rollouts", "rollout_share", "sigma"]
    bins = bins.astype(dict.fromkeys(numbers, float))  # without rows they have no type
    b = bins["bin"]
    pull = bins["share"] * bins["weight"]
    held = bins["share"] > 0
    sums = _sums(
        bins,
        mean_bin=b * bins["share"],
        weighted_bin=b * bins["q"],
        pulled_bin=b * pull,
        pull=pull,
        rollout_bin=b * bins["rollout_share"],
        hardest=bins["share"].where(b == 0, 0.0),
        middle_up=bins["share"].where(b >= MIDDLE, 0.0),
        easy_up=bins["share"].where(b >= EASY, 0.0),
        upper=bins["share"].where(b >= UPPER, 0.0),
        upper_rollouts=bins["rollout_share"].where(b >= UPPER, 0.0),
        share_entropy=-xlogy(bins["share"], bins["share"]),
        weight_entropy=-xlogy(bins["q"], bins["q"]),
        rollout_entropy=-xlogy(bins["rollout_share"], bins["rollout_share"]),
        budget=(bins["share"] * bins["rollouts"]).where(held, 0.0),
        wse=(bins["share"] * bins["sigma"] / np.sqrt(bins["rollouts"])).where(held, 0.0),
        spread=(bins["share"] * bins["sigma"]).where(held, 0.0),
        root=(bins["share"] * bins["sigma"] ** (2 / 3)).where(held, 0.0),
    )
    sums["gradient_bin"] = sums["pulled_bin"] / sums["pull"]
    sums["lead"] = sums["weighted_bin"] - sums["mean_bin"]
    sums["gradient_lead"] = sums["gradient_bin"] - sums["mean_bin"]
    sums["support"] = np.exp(sums["weight_entropy"])
    sums["wse_uniform"] = sums["spread"] / np.sqrt(sums["budget"])
    sums["wse_least"] = sums["root"] ** 1.5 / np.sqrt(sums["budget"])
    return sums.drop(columns=["pulled_bin", "pull", "budget", "spread", "root"]).reset_index()


def _sums(bins, **terms):
    """Sums of the terms over the bins of each cycle; NaN where one of them is."""
    table = pd.DataFrame(terms).set_index(pd.MultiIndex.from_frame(bins[CYCLE]))
    grouped = table.groupby(level=CYCLE, sort=False)
    return grouped.sum().mask(table.isna().groupby(level=CYCLE, sort=False).any())


def tail(table: pd.DataFrame, share: float) -> pd.DataFrame:
    """Rows of the last ``share``, in (0, 1], of each run's cycles."""
    if not 0 < share <= 1:
        raise ValueError(f"tail={share} must lie in (0, 1]: it is the share of a run that is averaged")
    last = table.groupby(RUN)["cycle"].transform("max")
    return table[table["cycle"] > last - share * (last + 1)]


def summary(table: pd.DataFrame, columns) -> pd.DataFrame:
    """Means of ``columns`` over the rows of each run, then over its seeds, each with half the seeds' range.

    Columns: scale, arm, seeds, and each column with its "± " beside it, NaN with one seed.
    """
    by_run = table.groupby(RUN, sort=False)[list(columns)].mean()
    groups = by_run.groupby(level=["scale", "arm"], sort=False)
    found = groups.size().rename("seeds").to_frame()
    reach = ((groups.max() - groups.min()) / 2).where(found["seeds"] > 1)
    for name in columns:
        found[name], found[f"± {name}"] = groups.mean()[name], reach[name]
    return found.reset_index()


def ends(bins: pd.DataFrame, value: str) -> pd.DataFrame:
    """``value`` of `curves` at the last cycle of each run: scale, arm, seed and the value, NaN left out."""
    table = curves(bins)
    last = table["cycle"] == table.groupby(RUN)["cycle"].transform("max")
    return table.loc[last, [*RUN, value]].dropna().reset_index(drop=True)


def snapshots(bins: pd.DataFrame, steps=None, window: int = 10) -> pd.DataFrame:
    """Shares of prompts and of rollouts over the bins at a few steps of each run (Figures 5 and 9).

    Each is a mean over the ``window`` cycles up to the step, because one batch is few prompts. ``steps``
    those to show, in [1, last step] of every scale; None: at 10, 40, 70 and 100 per cent of a scale's runs.
    Columns: scale, arm, seed, snapshot (0, 1, ...), step (the last of the window), bin, share, rollout_share.
    """
    parts = []
    for _, own in bins.groupby("scale", sort=False):
        last = int(own["step"].max())
        wanted = [round(q * last) for q in QUARTERS] if steps is None else list(steps)
        for number, step in enumerate(wanted):
            if not 1 <= step <= last:
                raise ValueError(f"snapshot step {step} lies outside the runs' steps, 1 to {last}")
            cycle = own.loc[own["step"] <= step, "cycle"].max()
            near = own[(own["cycle"] <= cycle) & (own["cycle"] > cycle - window)]
            means = near.groupby([*RUN, "bin"], sort=False)[["share", "rollout_share"]].mean().reset_index()
            parts.append(means.assign(snapshot=number, step=step))
    if not parts:
        return pd.DataFrame(columns=[*RUN, "snapshot", "step", "bin", "share", "rollout_share"])
    joined = pd.concat(parts, ignore_index=True)
    return joined[[*RUN, "snapshot", "step", "bin", "share", "rollout_share"]]


def maps(bins: pd.DataFrame, *values: str) -> pd.DataFrame:
    """Means over seeds of each value by scale, arm, step and bin (Figures 3 and 7).

    NaN where no seed has a value: a bin that held no prompt has no reward and no rollouts.
    """
    by = ["scale", "arm", "step", "bin"]
    return bins.groupby(by, sort=False)[list(values)].mean().reset_index()


def batch_pass(steps: pd.DataFrame, k: int = 2) -> pd.Series:
    """Pass@k of each cycle's batch of one run, by step: the mean over its prompts of the unbiased estimate.

    Prompts with fewer than ``k`` scored rollouts are left out; every rule here plans at least two. Empty for
    runs without outcomes by prompt.
    """
    if "prompt_correct" not in steps:
        return pd.Series(dtype=float)
    ended = steps.dropna(subset=["prompt_correct"])
    long = ended.set_index("step")[["prompt_correct", "prompt_rollouts"]].explode(
        ["prompt_correct", "prompt_rollouts"]
    )
    long = long[long["prompt_rollouts"] >= k].astype(int)
    found = statistics.pass_at_k(long["prompt_correct"], long["prompt_rollouts"], k)
    return pd.Series(found, index=long.index).groupby(level="step").mean()


def standard_errors(bins: pd.DataFrame) -> pd.DataFrame:
    """How far each run lowered the weighted standard error (33) against equal rollouts, over all its cycles.

    Columns: scale, arm, seed, reduction = 1 - sum wse / sum wse_uniform, and possible, the same for
    wse_least; both at most 1, and negative where the rollouts went to the wrong bins.
    """
    table = curves(bins).dropna(subset=["wse", "wse_uniform"])
    totals = table.groupby(RUN, sort=False)[["wse", "wse_uniform", "wse_least"]].sum()
    found = pd.DataFrame(
        {
            "reduction": 1 - totals["wse"] / totals["wse_uniform"],
            "possible": 1 - totals["wse_least"] / totals["wse_uniform"],
        }
    )
    return found.reset_index()
