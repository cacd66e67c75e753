"""What a cycle showed, per bin and per prompt for the run store and flat for a logger."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Adversaries:
    """What the adversaries held when they made a plan: arrays (B,), arm probabilities (B, A) or None; NaN
    where none."""

    score: np.ndarray
    q: np.ndarray
    weight: np.ndarray
    arm_probabilities: np.ndarray | None
    shadow_price: float
    asked_mean: float


def bin_rows(plan, outcomes, adversaries):
    """One dictionary a bin, hardest first.

    Keys: cycle, bin; prompts and share (of the batch's prompts that are in a bin); pass_rate, reward,
    loss_mean, loss_std (of this cycle's visited prompts; loss is the signal, std the population's over
    prompts); score, weight, q (those that the plan was made with; NaN, 1, NaN without a prompt adversary);
    rollouts (mean planned number for a prompt) and rollout_share (of those planned in bins);
    arm_probabilities (list or None); sigma, the root of the mean unbiased reward variance within a prompt,
    that of (33). An empty bin has share and rollout_share 0 and NaN means.
    """
    table = _bin_table(plan, outcomes, adversaries)
    arms = adversaries.arm_probabilities
    rows = []
    for b in range(adversaries.weight.size):
        row = {"cycle": plan.cycle, "bin": b, "prompts": int(table["prompts"][b])}
        row.update({name: float(values[b]) for name, values in table.items() if name != "prompts"})
        row["arm_probabilities"] = None if arms is None else np.asarray(arms)[b].tolist()
        rows.append(row)
    return rows


def prompt_lists(plan, outcomes):
    """{name: list (P,)} of integers, what became of each prompt of the plan, in its order.

    Keys: prompt_ids (rows of the data set), prompt_rollouts (scored ones) and prompt_correct (of these). Any
    grouping of the prompts, not the bins alone, can be followed through a run with them.
    """
    return {
        "prompt_ids": plan.prompt_ids.tolist(),
        "prompt_rollouts": outcomes.scored.tolist(),
        "prompt_correct": outcomes.correct.tolist(),
    }


def _bin_table(plan, outcomes, adversaries):
    """{name: (B,)} of everything in a row but its arm probabilities."""
    size = adversaries.weight.size
    visited = np.where(outcomes.scored > 0, plan.bins, -1)
    loss = _means(visited, outcomes.signal, size)
    prompts = _sums(plan.bins, np.ones(plan.bins.size), size)
    rollouts = _sums(plan.bins, plan.rollouts, size)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        centred = outcomes.signal - np.append(loss, np.nan)[visited]
        return {
            "prompts": prompts,
            "share": prompts / max(prompts.sum(), 1),
            "pass_rate": _means(visited, outcomes.pass_rate, size),
            "reward": _means(visited, outcomes.reward, size),
            "loss_mean": loss,
            "loss_std": np.sqrt(_means(visited, centred * centred, size)),
            "score": adversaries.score,
            "weight": adversaries.weight,
            "q": adversaries.q,
            "rollouts": rollouts / np.where(prompts > 0, prompts, np.nan),
            "rollout_share": rollouts / max(rollouts.sum(), 1),
            "sigma": np.sqrt(_means(visited, outcomes.reward_variance, size)),
        }


def _sums(bins, values, size):
    """Sum over the prompts of each bin, (size,); bin -1 and NaN values left out."""
    use = (bins >= 0) & ~np.isnan(values)
    return np.bincount(bins[use], values[use], minlength=size)


def _means(bins, values, size):
    counts = _sums(bins, np.where(np.isnan(values), np.nan, 1.0), size)
    with np.errstate(invalid="ignore", over="ignore"):
        return _sums(bins, values, size) / np.where(counts > 0, counts, np.nan)


def flat_metrics(plan, outcomes, adversaries):
    """{"gdro/...": float} for a logger, without what is NaN (an empty bin's rate, the price without a rollout
    adversary).

    Over the batch: pass_rate, frac_zero_variance (of visited prompts, those whose scored rewards are all
    equal), mean_bin, excluded (share of prompts in bin -1), entropies in nats of the prompts' share
    (share_entropy), of q (weight_entropy) and of the rollouts' share (rollout_entropy), weight_min and
    weight_max over the prompts, shadow_price, asked_mean, realised_mean (rollouts planned for a prompt). Per
    bin, "gdro/bin_03/...": share, pass_rate, weight, rollouts.
    """
    table = _bin_table(plan, outcomes, adversaries)
    visited = outcomes.scored > 0
    placed = plan.bins >= 0
    values = {
        "pass_rate": _mean(outcomes.pass_rate[visited]),
        "frac_zero_variance": _mean(outcomes.flat[visited]),
        "mean_bin": _mean(plan.bins[placed]),
        "excluded": 1.0 - placed.mean(),
        "share_entropy": _entropy(table["share"]),
        "weight_entropy": _entropy(adversaries.q),
        "rollout_entropy": _entropy(table["rollout_share"]),
        "weight_min": plan.weights.min(),
        "weight_max": plan.weights.max(),
        "shadow_price": adversaries.shadow_price,
        "asked_mean": adversaries.asked_mean,
        "realised_mean": plan.rollouts.mean(),
    }
    for name in ("share", "pass_rate", "weight", "rollouts"):
        values.update({f"bin_{b:02d}/{name}": value for b, value in enumerate(table[name])})
    return {f"gdro/{name}": float(value) for name, value in values.items() if not np.isnan(value)}


def _mean(values):
    return values.mean() if values.size else np.nan


def _entropy(p):
    """Entropy in nats; that of an all-zero share (no prompt in a bin) is NaN."""
    if np.isnan(p).any() or p.sum() == 0:
        return np.nan
    p = p[p > 0]
    return max(float(-(p * np.log(p)).sum()), 0.0)
