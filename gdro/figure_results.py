"""Figure 1 of Panaganti et al. 2026 and what it is made of: scores, weights and rollouts at the end of runs.

A value that the paper reports is hatched and says "reported"; everything else was measured.
"""

import numpy as np
from matplotlib.figure import Figure

from gdro import tables
from gdro.figure_panels import grid, scales_of
from gdro.figure_style import (
    PLATE,
    WIDTH,
    arm_style,
    bin_colours,
    empty,
    in_two_lines,
    legend_below,
    seeds_note,
    style,
)
from gdro.tables import ALL, label


def fig01(
    scores,
    bins,
    prompt_arm="prompt-gdro",
    rollout_arm="rollout-gdro",
    tail=tables.TAIL,
    scales=None,
    reported=None,
) -> Figure:
    """Figure 1: benchmarks, weight per bin, rollouts per bin; a row a scale.

    ``scores`` from `tables.scores`, ``bins`` of the runs. Left: mean@k per suite and pass@k over all, of GRPO
    and the two adversaries (and the base model where it is among the scores). Centre: ``prompt_arm``'s weight
    per bin, averaged over the last ``tail`` of each run, against uniform. Right: ``rollout_arm``'s rollouts
    per prompt in each bin, likewise, against the mean budget. A scale of ``scales`` without runs says so; its
    left panel shows what the paper reports where ``reported`` (its Table 1) has that model.
    """
    scales = scales_of(scores, scales)
    arms = ["base", "grpo", prompt_arm, rollout_arm]
    with style():
        figure, axes = grid(len(scales), 3, 2.5, foot=0.3, width_ratios=[2.2, 1, 1])
        for row, scale in zip(axes, scales, strict=True):
            own = scores[scores["scale"] == scale]
            if own.empty and reported is not None and scale in set(reported["model"]):
                reported_bars(row[0], reported, scale)
            elif own.empty:
                empty(row[0], f"no run at {scale}")
            else:
                benchmark_bars(row[0], own, arms).set_title(f"{scale}: held-out scores")
            here = bins[bins["scale"] == scale]
            weights, rollouts = (here[here["arm"] == arm] for arm in (prompt_arm, rollout_arm))
            budget = tables.mean_budget(rollouts)
            tail_bars(row[1], weights, "weight", prompt_arm, 1.0, "uniform", tail)
            tail_bars(row[2], rollouts, "rollouts", rollout_arm, budget, "mean budget", tail)
            row[1].set(title=in_two_lines(label(prompt_arm)), ylabel="weight ω (tail mean)")
            row[2].set(title=in_two_lines(label(rollout_arm)), ylabel="rollouts per prompt (tail mean)")
        legend_below(figure, *axes[:, 0])
    return figure


def benchmark_bars(axis, scores, arms):
    """Bars of mean@k per suite and pass@k over all (%), a colour an arm, with intervals; returns the axis."""
    missing = [a for a in arms if a not in set(scores["arm"]) and a != "base"]
    arms = [a for a in arms if a in set(scores["arm"])]
    suites = [s for s in dict.fromkeys(scores["suite"]) if s != ALL]
    k = int(scores["k"].max())
    width = 0.8 / max(len(arms), 1)
    for i, arm in enumerate(arms):
        own = scores[scores["arm"] == arm].set_index(["suite", "metric"])
        rows = own.loc[[*((s, "mean") for s in suites), (ALL, "mean"), (ALL, "pass")]]
        at = np.arange(len(rows)) + (i - (len(arms) - 1) / 2) * width
        errors = 100 * np.abs(rows[["low", "high"]].to_numpy().T - rows["estimate"].to_numpy())
        axis.bar(at, 100 * rows["estimate"], width, color=arm_style(arm)["color"], label=label(arm))
        axis.errorbar(at, 100 * rows["estimate"], yerr=errors, fmt="none", ecolor="black", elinewidth=0.6)
    names = [*suites, f"all\nmean@{k}", f"all\npass@{k}"]
    axis.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
    axis.axvline(len(suites) - 0.5, color="black", linewidth=0.5)
    axis.set(ylabel="share of right answers (%)", ylim=(0, 109), yticks=range(0, 101, 20))
    seeds_note(axis, scores.loc[scores["arm"].isin(arms), "seeds"])
    if missing:
        place = {"transform": axis.transAxes, "va": "top", "fontsize": 6, "bbox": PLATE}
        axis.text(0.01, 0.99, f"no run of {', '.join(missing)}", **place)
    return axis


def tail_bars(axis, bins, value, arm, uniform, uniform_label, tail=tables.TAIL):
    """Tail mean of ``value`` per bin (bars; a dot a seed) against a uniform line; returns the axis."""
    if bins.empty:
        return empty(axis, f"no run of {arm}")
    means = tables.tail_means(bins, value, tail)
    middle = means.groupby("bin")["value"].mean()
    axis.bar(middle.index, middle, 0.75, color=bin_colours(len(middle)), edgecolor="black", linewidth=0.4)
    if means["seed"].nunique() > 1:
        axis.scatter(means["bin"], means["value"], s=5, color="black", zorder=3, linewidths=0)
    if not np.isnan(uniform):
        axis.axhline(uniform, color="black", linestyle="--", linewidth=0.9)
        axis.annotate(
            uniform_label, (len(middle) - 0.5, uniform), ha="right", va="bottom", fontsize=6, bbox=PLATE
        )
    axis.set_xticks(list(middle.index))
    axis.set(xlabel="bin (0 hardest)", ylim=(0, 1.15 * max(np.nanmax(means["value"]), uniform)))
    seeds_note(axis, [means["seed"].nunique()])
    return axis


def reported_bars(axis, reported, model):
    """The paper's own Table 1 for one model, as hatched bars marked "reported"; returns the axis."""
    own = reported[reported["model"] == model]
    methods = list(dict.fromkeys(own["method"]))
    arms = {"GRPO": "grpo", "Prompt-GDRO": "prompt-gdro", "Rollout-GDRO": "rollout-gdro"}
    metrics = list(dict.fromkeys(own["benchmark"]))
    for i, method in enumerate(methods):
        values = own[own["method"] == method].set_index("benchmark").loc[metrics, "value"]
        at = np.arange(len(metrics)) + (i - (len(methods) - 1) / 2) * 0.27
        colour = arm_style(arms[method])["color"]
        axis.bar(
            at, values, 0.27, facecolor="white", edgecolor=colour, hatch="////", label=f"{method} (reported)"
        )
    axis.set_xticks(range(len(metrics)), metrics, rotation=35, ha="right", rotation_mode="anchor")
    axis.set(ylim=(0, 100), title=f"{model}: reported by the paper")
    return axis


def reported_table1(reported) -> Figure:
    """The paper's Table 1 drawn as reported bars, a panel a model, for scales without runs."""
    models = list(dict.fromkeys(reported["model"]))
    with style():
        figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
        axes = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axis, model in zip(axes, models, strict=True):
            reported_bars(axis, reported, model)
        axes[0].set_ylabel("mean@8, pass@8 (%)")
        legend_below(figure, axes[0])
    return figure
