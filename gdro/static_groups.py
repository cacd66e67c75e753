"""The worst of fixed groups of prompts (family x level), whatever bins an arm used: section 4.2.3's study.

Bins move with the model; these groups do not, so that arms with bins of their own can be held against each
other. Frames in, frames out.
"""

import numpy as np
import pandas as pd

from gdro.dynamics import RUN

RANDOM_GROUPS = 10
LISTS = ["prompt_ids", "prompt_rollouts", "prompt_correct"]


def names(suites, levels) -> np.ndarray:
    """(P,) name of each prompt's group, "family level".

    >>> names(["times-1"], [3]).tolist()
    ['times-1 03']
    """
    return np.array([f"{suite} {level:02d}" for suite, level in zip(suites, levels, strict=True)])


def by_length(texts, groups: int = 10) -> list[str]:
    """Name of each prompt's group by its length in characters: equal numbers, "length 00" the shortest.

    For prompts of which nothing else is known before training. Equal lengths are parted by their order.

    >>> by_length(["abc", "a", "abcd", "ab"], groups=2)
    ['length 01', 'length 00', 'length 01', 'length 00']
    """
    if not 1 <= groups <= len(texts):
        raise ValueError(f"{len(texts)} prompts cannot be parted into {groups} groups: ask for fewer")
    order = np.argsort([len(text) for text in texts], kind="stable")
    place = np.empty(len(texts), dtype=np.int64)
    place[order] = np.arange(len(texts)) * groups // len(texts)
    return [f"length {group:02d}" for group in place]


def by_chance(count: int) -> list[str]:
    """Name of each of ``count`` prompts' group by a draw, the same every time: as many as the main comparison
    has bins, equally large.

    >>> sorted(by_chance(3))
    ['random 00', 'random 01', 'random 02']
    """
    return [f"random {label:02d}" for label in np.random.default_rng(0).permutation(count) % RANDOM_GROUPS]


def recorded(steps: pd.DataFrame) -> bool:
    """Whether the runs hold what became of each prompt; those of an earlier version do not."""
    return set(LISTS) <= set(steps.columns)


def pass_rates(steps: pd.DataFrame, groups, window: int = 10) -> pd.DataFrame:
    """Pass@1 of every group through training, from the outcomes that each step recorded.

    Means over the prompts that a run met in ``window`` cycles, a prompt's pass rate being correct / rollouts,
    so that rollouts given to easy prompts lift nothing. ``groups`` (N,) name of each prompt of the training
    data. Columns: scale, arm, seed, step (the last of the window), group, pass_rate, prompts. Raises
    ``ValueError`` for runs without outcomes by prompt.
    """
    if not recorded(steps):
        raise ValueError(
            f"the runs do not hold {', '.join(LISTS)}: they were recorded by an earlier version; make them "
            "again"
        )
    ended = steps.dropna(subset=LISTS)
    long = ended[[*RUN, "cycle", "step", *LISTS]].explode(LISTS)
    long = long[long["prompt_rollouts"] > 0]
    long["group"] = np.asarray(groups)[long["prompt_ids"].astype(int)]
    long["pass_rate"] = (long["prompt_correct"] / long["prompt_rollouts"]).astype(float)
    long["window"] = long["cycle"] // window
    found = long.groupby([*RUN, "window", "group"], sort=False)
    rates = found.agg(pass_rate=("pass_rate", "mean"), prompts=("pass_rate", "size")).reset_index()
    last = long.groupby([*RUN, "window"], sort=False)["step"].max().rename("step").reset_index()
    return rates.merge(last, on=[*RUN, "window"]).drop(columns="window")


def held_out(evaluations: pd.DataFrame, leave_out=("outside",)) -> pd.DataFrame:
    """Pass@1 of every held-out group of the rows given: the mean over its prompts of correct / k.

    ``leave_out`` suites that the training data do not have. Columns: scale, arm, seed, group, pass_rate,
    prompts.
    """
    used = evaluations[~evaluations["suite"].isin(leave_out)]
    table = used.assign(group=names(used["suite"], used["level"]), pass_rate=used["correct"] / used["k"])
    found = table.groupby([*RUN, "group"], sort=False)
    return found.agg(pass_rate=("pass_rate", "mean"), prompts=("pass_rate", "size")).reset_index()


def worst(rates: pd.DataFrame) -> pd.DataFrame:
    """The group with the lowest pass rate of each run (and step, where there are steps).

    Columns: those keys, group, pass_rate, mean (over the groups), groups (how many). The lowest of many
    estimates lies below the lowest true rate; equally for all arms that met as many prompts.
    """
    by = [*RUN, *(["step"] if "step" in rates.columns else [])]
    lowest = rates.loc[rates.groupby(by, sort=False)["pass_rate"].idxmin()]
    rest = rates.groupby(by, sort=False)["pass_rate"].agg(mean="mean", groups="size").reset_index()
    return lowest.merge(rest, on=by)[[*by, "group", "pass_rate", "mean", "groups"]].reset_index(drop=True)
