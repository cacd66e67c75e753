"""Group-relative advantages for rollout groups of any sizes, and the per-row surrogate loss (torch)."""

import torch
from trl.trainer.utils import nanstd

EPSILON = 1e-4  # TRL's; the paper writes "eps" without a value


def group_statistics(rewards, sizes, std="sample"):
    """Mean and std of each rollout group, ignoring NaN, repeated for its rows.

    Groups of one size are reduced together, so equal sizes give the very operations of TRL on a (P, n) view,
    bit for bit.

    Args: ``rewards`` (R, ...) with NaN where not scored; ``sizes`` (P,) int64 rows of each group,
    consecutive, summing to R; ``std`` "sample" (n - 1, TRL) or "population" (n, paper). A group with no score
    has mean NaN; with one score the sample std is NaN.
    Returns: two tensors shaped like ``rewards``.
    """
    mean, spread = torch.full_like(rewards, torch.nan), torch.full_like(rewards, torch.nan)
    row_sizes = torch.repeat_interleave(sizes, sizes)
    for size in torch.unique(sizes).tolist():
        rows = row_sizes == size
        grouped = rewards[rows].view(-1, size, *rewards.shape[1:])
        mean[rows] = torch.nanmean(grouped, dim=1).repeat_interleave(size, dim=0)
        spread[rows] = _std(grouped, std, dim=1).repeat_interleave(size, dim=0)
    return mean, spread


def _std(values, kind, dim=None):
    if kind == "sample":
        return nanstd(values, dim=dim)
    mean = torch.nanmean(values, dim=dim, keepdim=True) if dim is not None else torch.nanmean(values)
    squares = (values - mean) ** 2
    return torch.sqrt(torch.nanmean(squares, dim=dim) if dim is not None else torch.nanmean(squares))


def total_reward(rewards_per_func, weights):
    """(R,) weighted sum over the reward functions that scored a row; NaN where none did.

    Args: ``rewards_per_func`` (R, F) with NaN for None; ``weights`` (F,).
    """
    total = (rewards_per_func * weights.to(rewards_per_func.device).unsqueeze(0)).nansum(dim=1)
    total[torch.isnan(rewards_per_func).all(dim=1)] = torch.nan
    return total


def advantages(
    rewards_per_func, weights, sizes, *, scale="group", aggregation="sum_then_normalize", std="sample"
):
    """(R,) advantages, eq. (3), Panaganti et al. 2026, and the std that scaled each row.

    As TRL: (r - mean) / (std + 1e-4) within the group; rows nobody scored get 0. ``scale`` "none" does not
    divide, "batch" divides by the std of the whole batch. ``aggregation`` "normalize_then_sum" normalises
    each reward function within the group, sums with weights, and normalises over the batch.

    Departure from the paper: std "sample" by default, so that equal sizes give GRPO as TRL has it.
    Errors: ``ValueError`` for an unknown scale or aggregation.
    """
    if aggregation == "normalize_then_sum":
        mean, spread = group_statistics(rewards_per_func, sizes, std)
        scores = total_reward((rewards_per_func - mean) / (spread + EPSILON), weights)
        scores = torch.where(torch.isnan(rewards_per_func).all(dim=1), torch.nan, scores.nan_to_num(nan=0.0))
        spread = _std(scores, std).expand_as(scores)
        return torch.nan_to_num((scores - torch.nanmean(scores)) / (spread + EPSILON), nan=0.0), spread
    if aggregation != "sum_then_normalize":
        raise ValueError(
            f"unknown multi_objective_aggregation {aggregation!r}; "
            "known: 'sum_then_normalize', 'normalize_then_sum'"
        )
    rewards = total_reward(rewards_per_func, weights)
    mean, spread = group_statistics(rewards, sizes, std)
    centred = rewards - mean
    if scale == "batch":
        spread = _std(rewards, std).expand_as(rewards)
    elif scale not in ("group", "none"):
        raise ValueError(f"unknown scale_rewards {scale!r}; known: 'group', 'batch', 'none'")
    if scale != "none":
        centred = centred / (spread + EPSILON)
    return torch.nan_to_num(centred, nan=0.0), spread


def clipped(values, limit):
    """``values`` within [-limit, limit]; unchanged where ``limit`` is None."""
    return values if limit is None else values.clamp(-limit, limit)


def surrogate_loss(
    logps, old_logps, ref_logps, values, mask, *, low, high, beta, sequence_level, corrected_kl
):
    """(R,) per-response loss -J_clip + beta KL, eqs. (5) and (6), Panaganti et al. 2026.

    Token mean over the response of -min(rho A, clip(rho, 1 - low, 1 + high) A) + beta * kl, rho = exp(logps -
    old_logps), kl = exp(d) - d - 1 with d = ref_logps - logps, the estimator TRL uses; ``corrected_kl``
    multiplies it by rho as TRL does by default (departure: the paper names no estimator). ``sequence_level``
    takes one rho a response (GSPO).

    Args: ``logps``, ``old_logps``, ``ref_logps``, ``mask`` (R, T), ``ref_logps`` None where beta is 0;
    ``values`` (R,) advantages. A response without tokens has loss 0.
    """
    lengths = mask.sum(-1).clamp(min=1.0)
    log_ratio = logps - old_logps
    if sequence_level:
        log_ratio = ((log_ratio * mask).sum(-1) / lengths).unsqueeze(-1)
    ratio = torch.exp(log_ratio)
    values = values.unsqueeze(1)
    loss = -torch.min(ratio * values, ratio.clamp(1 - low, 1 + high) * values)
    if beta != 0.0:
        gap = ref_logps - logps
        kl = torch.exp(gap) - gap - 1
        loss = loss + beta * (kl * ratio if corrected_kl else kl)
    return (loss * mask).sum(-1) / lengths
