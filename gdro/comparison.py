"""Measured values beside those that the paper reports: every row says which of the two it is."""

import pandas as pd

from gdro import statistics, tables
from gdro.dynamics import RUN
from gdro.suites import TITLES

MEASURED = "measured"  # the reported rows say "reported" of themselves
COLUMNS = ["scale", "method", "value", "low", "high", "seeds", "status"]
APPENDIX = "appendix A (reported)"
NOT_STATED = "not stated"


def over_seeds(values: pd.DataFrame, value: str) -> pd.DataFrame:
    """Mean of one value a run over the seeds of each scale and arm, with a 95 % bootstrap interval over
    seeds.

    Columns: scale, arm, estimate, low, high, seeds. One seed has no interval (NaN).
    """
    rows = []
    for (scale, arm), own in values.groupby(["scale", "arm"], sort=False):
        column = own[value].to_numpy()[:, None]
        found = statistics.bootstrap_interval(column)
        low, high = (found.low, found.high) if len(column) > 1 else (float("nan"), float("nan"))
        rows.append([scale, arm, found.estimate, low, high, len(column)])
    return pd.DataFrame(rows, columns=["scale", "arm", "estimate", "low", "high", "seeds"])


def gains(evaluations: pd.DataFrame, against: str = "grpo") -> pd.DataFrame:
    """Relative gain in pass@k over ``against``, over all suites, paired by seed and prompt, 95 % intervals.

    Columns: scale, arm, estimate (0.1 is ten per cent more), low, high, seeds; scales without ``against`` are
    left out, and seeds that only one of the two has.
    """
    rows = []
    for scale, part in evaluations.groupby("scale", sort=False):
        base = part[part["arm"] == against]
        for arm, own in part.groupby("arm", sort=False):
            seeds = sorted(set(own["seed"]) & set(base["seed"]))
            if arm == against or not seeds:
                continue
            a, b = (tables.per_prompt(f[f["seed"].isin(seeds)], "pass") for f in (own, base))
            found = statistics.relative_difference(a, b)
            rows.append([scale, arm, found.estimate, found.low, found.high, len(seeds)])
    return pd.DataFrame(rows, columns=["scale", "arm", "estimate", "low", "high", "seeds"])


def beside(measured, reported, quantity, factor=100, reported_factor=1) -> pd.DataFrame:
    """Measured rows (scale, arm, estimate, low, high, seeds), then what the paper reports, in one unit.

    ``factor`` and ``reported_factor`` bring the two to it: ours are fractions, the paper's mostly per cent.
    ``reported`` as `study.reported` gives it; a ``quantity`` that it lacks raises and lists those it has.
    Columns: scale, method, value, low, high, seeds, status, which is "measured" or "reported".
    """
    there = list(dict.fromkeys(reported["quantity"]))
    if quantity not in there:
        raise ValueError(f"the paper's {quantity!r} is not among the reported values: {', '.join(there)}")
    own = pd.DataFrame(
        {
            "scale": measured["scale"],
            "method": [tables.label(arm) for arm in measured["arm"]],
            "value": measured["estimate"] * factor,
            "low": measured["low"] * factor,
            "high": measured["high"] * factor,
            "seeds": measured["seeds"].astype("Int64"),
            "status": MEASURED,
        }
    )
    theirs = reported[reported["quantity"] == quantity].rename(columns={"model": "scale"})
    theirs["value"] *= reported_factor
    return pd.concat([f for f in (own, theirs) if len(f)], ignore_index=True).reindex(columns=COLUMNS)


def table1(measured: pd.DataFrame, reported: pd.DataFrame) -> pd.DataFrame:
    """Table 1 with, under each measured scale that the paper has too, its rows marked "(reported)".

    The paper's suites go by its names.
    """
    measured, parts = measured.rename(columns=TITLES), []
    for scale, own in measured.groupby("scale", sort=False):
        theirs = reported[reported["model"] == scale]
        parts.append(own)
        if len(theirs):
            wide = theirs.pivot(index="method", columns="benchmark", values="value").reset_index()
            wide["method"] += " (reported)"
            parts.append(wide.assign(scale=scale))
    return pd.concat(parts, ignore_index=True).astype(object).fillna("") if parts else measured


def settings(chosen: dict, reported: pd.DataFrame) -> pd.DataFrame:
    """The settings of study arms beside those of appendix A: a row a setting, a column an arm.

    Args: ``chosen`` {arm: settings}, as `study.settings` gives them; ``reported`` the table "appendix_a". A
    setting that an arm does not set has an empty cell; where the paper says nothing, that stands there.
    """
    said = reported.set_index("setting")["value"].astype(str)
    names = list(dict.fromkeys([*said.index, *(name for fields in chosen.values() for name in fields)]))
    rows = []
    for name in names:
        cells = {tables.label(arm): str(fields.get(name, "")) for arm, fields in chosen.items()}
        rows.append({"setting": name, APPENDIX: said.get(name, NOT_STATED), **cells})
    return pd.DataFrame(rows)


def overhead(steps: pd.DataFrame) -> pd.DataFrame:
    """What a cycle of each run cost: seconds in all, those of the controller, tokens and rollouts.

    Means over a run's cycles, of the controller's seconds the median (a first call loads code). Columns:
    scale, arm, seed, seconds, controller_seconds (NaN for runs that did not record it), tokens, rollouts.
    """
    rows = []
    for names, own in steps.groupby(RUN, sort=False):
        cycles = own["cycle"].nunique()
        timed = own["controller_seconds"].median() if "controller_seconds" in own else float("nan")
        counts = [own[c].max() / cycles for c in ("tokens_total", "rollouts_total")]
        rows.append([*names, own["seconds"].sum() / cycles, timed, *counts])
    return pd.DataFrame(rows, columns=[*RUN, "seconds", "controller_seconds", "tokens", "rollouts"])


def controller_share(costs: pd.DataFrame) -> pd.DataFrame:
    """The controller's part of a cycle by scale and arm, from `overhead`; runs that did not time it are left
    out.

    Columns: scale, arm, controller (ms a cycle), cycle (s), share (per cent), each a mean over the runs, and
    runs.
    """
    timed = costs.dropna(subset=["controller_seconds"])
    timed = timed.assign(
        controller=1000 * timed["controller_seconds"],
        cycle=timed["seconds"],
        share=100 * timed["controller_seconds"] / timed["seconds"],
    )
    found = timed.groupby(["scale", "arm"], sort=False)[["controller", "cycle", "share"]].mean()
    return found.assign(runs=timed.groupby(["scale", "arm"], sort=False).size()).reset_index()


def spent(steps: pd.DataFrame) -> pd.DataFrame:
    """Where the seconds of a training go: sampling (with grading), updates, the controller; means over runs.

    A cycle's first step samples and updates, every other one updates alone: what the first takes longer than
    these do is counted as sampling, and the controller's time apart where it was recorded. Columns: scale,
    arm, sampling, updates, controller, total, runs. Cycles of a single step say nothing of the two (NaN).
    """
    steps = steps.assign(first=~steps.duplicated([*RUN, "cycle"]))
    rows = []
    for names, own in steps.groupby(RUN, sort=False):
        total, controller = own["seconds"].sum(), own["controller_seconds"].sum()
        updates = len(own) * own.loc[~own["first"], "seconds"].mean()
        rows.append([*names, total - updates - controller, updates, controller, total])
    columns = ["sampling", "updates", "controller", "total"]
    by_arm = pd.DataFrame(rows, columns=[*RUN, *columns]).groupby(["scale", "arm"], sort=False)
    return by_arm[columns].mean().assign(runs=by_arm.size()).reset_index()
