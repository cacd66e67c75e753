"""What the runs say, as tables: scores with intervals, Table 1 in the paper's form, how adversaries moved.

Frames in, frames out; every value is measured here unless its column says "reported".
"""

import numpy as np
import pandas as pd

from gdro import dynamics, statistics
from gdro.arms import ARMS

_LATEX = str.maketrans({"\\": r"\textbackslash{}"} | {c: f"\\{c}" for c in "&%$#_{}"})
TAIL = 0.4  # share of a run, at its end, that tail averages are taken over (Figure 1, Panaganti et al. 2026)
ALL = "all"


def final_step(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Rows of each run's last evaluated step."""
    last = evaluations.groupby(["scale", "arm", "seed"])["step"].transform("max")
    return evaluations[evaluations["step"] == last]


def base_as_arm(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Step 0 of each scale and seed, once, as an arm "base", which every arm starts from."""
    rows = evaluations[evaluations["step"] == 0].drop_duplicates(["scale", "seed", "prompt_id"])
    return rows.assign(arm="base")


def per_prompt(evaluations: pd.DataFrame, metric: str) -> np.ndarray:
    """(S, P) values by seed and prompt: "mean" gives c / k, "pass" whether any of the k is right.

    All seeds must have the same prompts; raises ``ValueError`` else.
    """
    measures = {"mean": statistics.mean_at_k, "pass": lambda c, k: statistics.pass_at_k(c, k, int(np.min(k)))}
    if metric not in measures:
        raise ValueError(f"unknown metric {metric!r}: the known ones are {', '.join(measures)}")
    values = measures[metric](evaluations["correct"].to_numpy(), evaluations["k"].to_numpy())
    wide = evaluations.assign(value=values).pivot(index="seed", columns="prompt_id", values="value")
    wide = wide[evaluations["prompt_id"].unique()]  # the order decides which prompts a bootstrap draws
    if wide.isna().any(axis=None):
        raise ValueError(
            f"seeds {', '.join(map(str, wide.index))} were not evaluated on the same prompts: evaluate them "
            "on the same suites"
        )
    return wide.to_numpy()


def scores(evaluations: pd.DataFrame, resamples: int = 4000) -> pd.DataFrame:
    """mean@k and pass@k of each scale, arm and suite, and over all suites, with 95 % bootstrap intervals over
    seeds and prompts.

    Give it the rows of one step a run (`final_step`, `base_as_arm`). "all" is the mean over all prompts of
    all suites. Columns: scale, arm, suite, metric ("mean" or "pass"), k, estimate, low, high (each in [0,
    1]), seeds, prompts.
    """
    rows = []
    for (scale, arm), run in evaluations.groupby(["scale", "arm"], sort=False):
        for suite in [*run["suite"].unique(), ALL]:
            part = run if suite == ALL else run[run["suite"] == suite]
            for metric in ("mean", "pass"):
                values = per_prompt(part, metric)
                found = statistics.bootstrap_interval(values, resamples=resamples)
                rows.append(
                    {
                        "scale": scale,
                        "arm": arm,
                        "suite": suite,
                        "metric": metric,
                        "k": int(part["k"].min()),
                        "estimate": found.estimate,
                        "low": found.low,
                        "high": found.high,
                        "seeds": values.shape[0],
                        "prompts": values.shape[1],
                    }
                )
    columns = ["scale", "arm", "suite", "metric", "k", "estimate", "low", "high", "seeds", "prompts"]
    return pd.DataFrame(rows, columns=columns)


def table1(found: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the paper's form from `scores`: a row a scale and method, mean@k per suite, pass@k over all,
    in per cent.

    Cells read "estimate [low, high]", or the estimate alone where there is no interval.
    """
    by_suite = found[(found["metric"] == "mean") & (found["suite"] != ALL)]
    overall = found[(found["suite"] == ALL)]
    suites = list(dict.fromkeys(by_suite["suite"]))
    k = int(found["k"].max())
    rows = []
    for (scale, arm), part in found.groupby(["scale", "arm"], sort=False):
        mine = by_suite[(by_suite["scale"] == scale) & (by_suite["arm"] == arm)].set_index("suite")
        both = overall[(overall["scale"] == scale) & (overall["arm"] == arm)].set_index("metric")
        cells = {suite: _percent(mine.loc[suite]) if suite in mine.index else "" for suite in suites}
        cells |= {f"mean@{k}": _percent(both.loc["mean"]), f"pass@{k}": _percent(both.loc["pass"])}
        rows.append({"scale": scale, "method": label(arm), **cells, "seeds": int(part["seeds"].iloc[0])})
    return pd.DataFrame(rows)


def label(arm: str) -> str:
    """The name of an arm as figures and tables print it; any other, such as a contrast's, is its own.

    >>> label("grpo"), label("base"), label("effect of the data")
    ('GRPO', 'base model', 'effect of the data')
    """
    return ARMS[arm].label if arm in ARMS else {"base": "base model"}.get(arm, arm)


def _percent(row) -> str:
    return f"{100 * row['estimate']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def tail_means(bins: pd.DataFrame, value: str, tail: float = TAIL) -> pd.DataFrame:
    """Mean of ``value`` over the last ``tail`` of each run, by scale, arm, seed and bin.

    Cycles count by the prompts that the bin held, so a bin that stayed empty has no mean (NaN). Column
    "value".
    """
    late = dynamics.tail(bins, tail)
    late = late.assign(weighted=(late[value] * late["prompts"]).where(late["prompts"] > 0))
    by_bin = late.groupby([*dynamics.RUN, "bin"], sort=False)[["weighted", "prompts"]]
    total = by_bin.sum(min_count=1).reset_index()
    total["value"] = total["weighted"] / total["prompts"].where(total["prompts"] > 0)
    return total.drop(columns="weighted")


def figure1(
    found: pd.DataFrame, bins: pd.DataFrame, prompt_arm, rollout_arm, tail: float = TAIL
) -> pd.DataFrame:
    """The numbers behind Figure 1 in one table: `scores`, then tail means of weights and rollouts by bin."""
    panels = [found.assign(panel="scores")]
    for panel, value, arm in (("weights", "weight", prompt_arm), ("rollouts", "rollouts", rollout_arm)):
        means = tail_means(bins[bins["arm"] == arm], value, tail).rename(columns={"value": "estimate"})
        panels.append(means.drop(columns="prompts").assign(panel=panel))
    joined = pd.concat([p for p in panels if len(p)] or panels[:1], ignore_index=True)
    return joined[["panel", *(c for c in joined.columns if c != "panel")]]


def mean_budget(bins: pd.DataFrame) -> float:
    """Rollouts for a prompt that every cycle keeps on average, NaN without runs."""
    used = bins[bins["prompts"] > 0]
    if used.empty:
        return float("nan")
    return float((used["rollouts"] * used["prompts"]).sum() / used["prompts"].sum())


def spread(bins: pd.DataFrame, tail: float = TAIL) -> pd.DataFrame:
    """How far each arm moved from uniform at the end of its runs; an arm that does nothing shows 1.00 and
    equal rollouts.

    Columns: scale, arm, weight_min, weight_max, weight_ratio (largest over smallest, of bins that held
    prompts), rollouts_min, rollouts_max (a prompt), all tail means averaged over seeds.
    """
    rows = []
    weights, rollouts = (tail_means(bins, value, tail) for value in ("weight", "rollouts"))
    for (scale, arm), part in weights.groupby(["scale", "arm"], sort=False):
        own = rollouts[(rollouts["scale"] == scale) & (rollouts["arm"] == arm)]
        w, n = (frame.groupby("seed")["value"].agg(["min", "max"]).mean() for frame in (part, own))
        rows.append(
            {
                "scale": scale,
                "arm": arm,
                "weight_min": w["min"],
                "weight_max": w["max"],
                "weight_ratio": w["max"] / w["min"],
                "rollouts_min": n["min"],
                "rollouts_max": n["max"],
            }
        )
    return pd.DataFrame(rows)


def to_latex(table: pd.DataFrame, caption: str) -> str:
    """The table for a paper, with booktabs rules; text is escaped, the first two columns align left.

    >>> print(to_latex(pd.DataFrame({"a": ["50 %"]}), "Share").splitlines()[4])
    50 \\% \\\\
    """
    columns = "l" * min(2, table.shape[1]) + "r" * max(0, table.shape[1] - 2)
    lines = [f"% {caption}", rf"\begin{{tabular}}{{{columns}}}"]
    lines.append(r"\toprule " + " & ".join(_escape(c) for c in table.columns) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join(_escape(v) for v in row) + r" \\" for row in table.itertuples(index=False)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def as_text(table: pd.DataFrame, digits: int = 2) -> pd.DataFrame:
    """The table with its numbers as text, for `to_latex`: fractions to ``digits`` places, nothing for NaN.

    >>> as_text(pd.DataFrame({"a": [0.125, float("nan")], "b": [2, 3]})).to_numpy().tolist()
    [['0.12', '2'], ['', '3']]
    """
    return table.map(lambda v: "" if pd.isna(v) else f"{v:.{digits}f}" if isinstance(v, float) else str(v))


def _escape(value) -> str:
    return str(value).translate(_LATEX)
