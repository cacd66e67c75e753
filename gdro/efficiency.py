"""What a run spends to get where another ends: training curves at equal pass rates, and at equal costs.

Frames in, frames out, a row a run: `gdro.evidence.paired` compares arms of it seed by seed.
"""

import pandas as pd

from gdro.dynamics import RUN
from gdro.evidence import BASELINE


def smoothed(steps: pd.DataFrame, window: int = 10) -> pd.DataFrame:
    """Pass rate of the batch, each prompt once, as the mean over the ``window`` cycles up to each.

    Columns: scale, arm, seed, cycle, rollouts_total, tokens_total, pass_rate; only whole windows.
    """
    ended = steps.dropna(subset=["pass_rate"])
    table = ended[[*RUN, "cycle", "rollouts_total", "tokens_total", "pass_rate"]].copy()
    table["pass_rate"] = table.groupby(RUN, sort=False)["pass_rate"].transform(
        lambda rates: rates.rolling(window).mean()
    )
    return table.dropna(subset=["pass_rate"]).reset_index(drop=True)


def rollouts_to_match(steps: pd.DataFrame, against: str = BASELINE, window: int = 10) -> pd.DataFrame:
    """Share of ``against``'s rollouts that each run needs to reach the pass rate where it ends, seed by seed.

    Both are means over ``window`` cycles. Columns: scale, arm, seed, share, reached: a run that never gets
    there has reached False and share 1. ``against`` itself may pass its last value before its end.
    """
    table = smoothed(steps, window)
    rows = []
    for (scale, seed), part in table.groupby(["scale", "seed"], sort=False):
        base = part[part["arm"] == against]
        if base.empty:
            continue
        goal, whole = base["pass_rate"].iloc[-1], base["rollouts_total"].iloc[-1]
        for arm, own in part.groupby("arm", sort=False):
            there = own[own["pass_rate"] >= goal]
            share = min(1.0, there["rollouts_total"].iloc[0] / whole) if len(there) else 1.0
            rows.append([scale, arm, seed, share, bool(len(there))])
    return pd.DataFrame(rows, columns=[*RUN, "share", "reached"])


def at_equal(steps: pd.DataFrame, cost: str = "tokens_total", window: int = 10) -> pd.DataFrame:
    """Pass rate of each run where its ``cost`` is that of the cheapest run of its scale and seed.

    ``cost`` "tokens_total" (completion tokens) or "rollouts_total". Columns: scale, arm, seed, pass_rate
    (mean over the ``window`` cycles up to there) and the cost. Raises ``ValueError`` for a run whose first
    window costs more than the cheapest run in all.
    """
    table = smoothed(steps, window)
    ends = table.groupby(RUN, sort=False)[cost].max()
    least = ends.groupby(level=["scale", "seed"]).min().rename("least").reset_index()
    within = table.merge(least, on=["scale", "seed"])
    within = within[within[cost] <= within["least"]]
    late = ends.index.difference(pd.MultiIndex.from_frame(within[RUN]))
    if len(late):
        raise ValueError(
            f"{'/'.join(map(str, late[0]))} spends more {cost} in its first {window} cycles than the "
            "cheapest run of its scale and seed in all: use a smaller window"
        )
    return within.groupby(RUN, sort=False).tail(1)[[*RUN, "pass_rate", cost]].reset_index(drop=True)
