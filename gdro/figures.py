"""Figures of the study: frames in, a Figure out, no file read.

One colour for a study arm everywhere (Okabe and Ito 2008, safe for colour-blind readers, with a dash of its
own as a second sign), bins from hard to easy along one ordered map, 95 % intervals with the number of seeds
on the figure. A value that the paper reports is hatched and says "reported"; everything else was measured.
"""

from contextlib import contextmanager
from types import MappingProxyType

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gdro import tables
from gdro.tables import ALL, label

# colour, line style, marker
ARM_STYLE = MappingProxyType(
    {
        "base": ("#B0B0B0", ":", "x"),
        "grpo": ("#4D4D4D", "-", "o"),
        "prompt-gdro": ("#0072B2", "-", "s"),
        "prompt-gdro-error": ("#56B4E9", "--", "D"),
        "rollout-gdro": ("#D55E00", "-", "^"),
        "rollout-gdro-variance": ("#E69F00", "--", "v"),
        "joint": ("#CC79A7", "-", "P"),
        "dapo-filter": ("#009E73", "-.", "X"),
        "sqrt-law": ("#8A7A00", "-.", "*"),
        "class-gdro": ("#5B2A86", ":", "h"),
    }
)
_STYLE = MappingProxyType(
    {
        **{"figure.dpi": 100, "savefig.dpi": 200, "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8},
        **{"legend.fontsize": 7, "legend.frameon": False, "xtick.labelsize": 7, "ytick.labelsize": 7},
        **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y"},
        **{"grid.linewidth": 0.4, "grid.alpha": 0.5, "axes.axisbelow": True, "lines.linewidth": 1.4},
        **{"svg.hashsalt": "gdro", "svg.fonttype": "path", "font.family": "DejaVu Sans"},
    }
)
_PLATE = MappingProxyType({"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5})
BIN_MAP = "viridis"  # ordered, from hard (dark) to easy (light)


@contextmanager
def style():
    """The common style, for the length of a block; nothing global stays changed."""
    with mpl.rc_context(dict(_STYLE)):
        yield


def save(figure: Figure, svg=None, png=None) -> None:
    """Write a figure as SVG and PNG, the same bytes each time (no date, no random ids); None omits it."""
    with style():
        if svg is not None:
            figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        if png is not None:
            figure.savefig(png, format="png", metadata={"Software": None})


def arm_style(arm: str) -> dict:
    """Colour, line style and marker of a study arm; an arm without them raises and lists the known ones."""
    if arm not in ARM_STYLE:
        raise ValueError(
            f"no style for arm {arm!r}: those with one are {', '.join(ARM_STYLE)}; add it to ARM_STYLE"
        )
    colour, line, marker = ARM_STYLE[arm]
    return {"color": colour, "linestyle": line, "marker": marker}


def fig01(scores, bins, prompt_arm="prompt-gdro", rollout_arm="rollout-gdro", tail=tables.TAIL) -> Figure:
    """Figure 1: benchmarks, weight per bin, rollouts per bin; a row a scale.

    ``scores`` from `tables.scores`, ``bins`` of the runs. Left: mean@k per suite and pass@k over all, of GRPO
    and the two adversaries (and the base model where it is among the scores). Centre: ``prompt_arm``'s weight
    per bin, averaged over the last ``tail`` of each run, against uniform. Right: ``rollout_arm``'s rollouts
    per prompt in each bin, likewise, against the mean budget.
    """
    scales = list(dict.fromkeys(scores["scale"]))
    if not scales:
        raise ValueError("no scores to draw: load at least one finished run")
    with style():
        figure = Figure(figsize=(7.2, 2.5 * len(scales) + 0.3), layout="constrained")
        axes = figure.subplots(len(scales), 3, squeeze=False, width_ratios=[2.2, 1, 1])
        for row, scale in zip(axes, scales, strict=True):
            benchmark_bars(
                row[0], scores[scores["scale"] == scale], ["base", "grpo", prompt_arm, rollout_arm]
            )
            row[0].set_title(f"{scale}: held-out scores")
            own = bins[bins["scale"] == scale]
            tail_bars(row[1], own[own["arm"] == prompt_arm], "weight", prompt_arm, 1.0, "uniform", tail)
            row[1].set(title=_in_two_lines(label(prompt_arm)), ylabel="weight ω (tail mean)")
            budget = _mean_budget(own)
            tail_bars(
                row[2], own[own["arm"] == rollout_arm], "rollouts", rollout_arm, budget, "mean budget", tail
            )
            row[2].set(title=_in_two_lines(label(rollout_arm)), ylabel="rollouts per prompt (tail mean)")
        _legend_below(figure, axes[0, 0])
    return figure


def _in_two_lines(title):
    return title.replace(" (", "\n(")


def _legend_below(figure, axis):
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, max(1, len(labels))))


def _mean_budget(bins):
    """Rollouts per prompt that every cycle keeps on average; NaN without runs."""
    used = bins[bins["prompts"] > 0]
    return float((used["rollouts"] * used["prompts"]).sum() / used["prompts"].sum()) if len(used) else np.nan


def benchmark_bars(axis, scores, arms):
    """Bars of mean@k per suite and pass@k over all (%), a colour an arm, with intervals; returns the axis."""
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
    axis.set(ylabel="share of right answers (%)", ylim=(0, 100))
    _seeds(axis, scores["seeds"])
    return axis


def tail_bars(axis, bins, value, arm, uniform, uniform_label, tail=tables.TAIL):
    """Tail mean of ``value`` per bin (bars; a dot a seed) against a uniform line; returns the axis."""
    if bins.empty:
        axis.text(0.5, 0.5, f"no run of {arm}", ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return axis
    means = tables.tail_means(bins, value, tail)
    middle = means.groupby("bin")["value"].mean()
    axis.bar(middle.index, middle, 0.75, color=bin_colours(len(middle)), edgecolor="black", linewidth=0.4)
    if means["seed"].nunique() > 1:
        axis.scatter(means["bin"], means["value"], s=5, color="black", zorder=3, linewidths=0)
    if not np.isnan(uniform):
        axis.axhline(uniform, color="black", linestyle="--", linewidth=0.9)
        axis.annotate(
            uniform_label, (len(middle) - 0.5, uniform), ha="right", va="bottom", fontsize=6, bbox=_PLATE
        )
    axis.set_xticks(list(middle.index))
    axis.set(xlabel="bin (0 hardest)", ylim=(0, 1.15 * max(np.nanmax(means["value"]), uniform)))
    _seeds(axis, [means["seed"].nunique()])
    return axis


def bin_colours(count: int):
    """(count, 4) colours of the bins, from hard to easy along one ordered map."""
    return mpl.colormaps[BIN_MAP](np.linspace(0.08, 0.95, count))


def _seeds(axis, counts):
    low, high = int(np.min(counts)), int(np.max(counts))
    text = f"{low} seed{'s' * (low != 1)}" if low == high else f"{low}–{high} seeds"
    axis.text(0.99, 0.99, text, transform=axis.transAxes, ha="right", va="top", fontsize=6, color="#404040")


def training_curves(steps, bins, smooth=5) -> Figure:
    """Pass rate, share of rollout groups without variance, and mean bin, over the rollouts spent; a row a
    scale.

    The pass rate is a mean over prompts, so that an arm which gives easy prompts more rollouts does not look
    better for it.

    ``steps`` and ``bins`` of the runs. Lines are means over seeds of a running mean over ``smooth`` cycles,
    bands the range over seeds. Mean bin counts from 0, the hardest.
    """
    if steps.empty:
        raise ValueError("no steps to draw: load at least one finished run")
    scales = list(dict.fromkeys(steps["scale"]))
    panels = _curve_panels(steps, bins)
    with style():
        figure = Figure(figsize=(7.2, 2.2 * len(scales) + 0.5), layout="constrained")
        axes = figure.subplots(len(scales), len(panels), squeeze=False, sharex="row")
        for row, scale in zip(axes, scales, strict=True):
            for axis, (title, table) in zip(row, panels.items(), strict=True):
                own = table[table["scale"] == scale]
                for arm in dict.fromkeys(own["arm"]):
                    curve(axis, own[own["arm"] == arm], arm, smooth)
                axis.set(title=f"{scale}: {title}", xlabel="rollouts (thousands)")
            _seeds(
                row[0], [steps[steps["scale"] == scale].groupby("arm")["seed"].nunique().agg(["min", "max"])]
            )
        _legend_below(figure, axes[0, 0])
    return figure


def curve_data(steps, bins) -> pd.DataFrame:
    """The numbers behind `training_curves`, in one long table."""
    panels = _curve_panels(steps, bins)
    return pd.concat([table.assign(panel=title) for title, table in panels.items()], ignore_index=True)


def _curve_panels(steps, bins):
    """{title: frame with scale, arm, seed, rollouts (thousands), value}, a row a cycle."""
    by = ["scale", "arm", "seed", "cycle"]
    at = steps.groupby(by)["rollouts_total"].max() / 1000
    placed = bins.assign(value=bins["bin"] * bins["share"]).groupby(by)["value"].sum()
    panels = {
        "pass rate of the batch": steps.groupby(by)["pass_rate"].mean(),
        "groups without variance": steps.groupby(by)["frac_zero_variance"].mean(),
        "mean bin of the batch": placed,
    }
    return {
        title: pd.DataFrame({"rollouts": at, "value": series}).dropna().reset_index()
        for title, series in panels.items()
    }


def curve(axis, frame, arm, smooth=1):
    """One arm's curve: a mean over seeds with the range over seeds as a band; returns the axis."""
    wide = frame.pivot(index="cycle", columns="seed", values="value").rolling(smooth, min_periods=1).mean()
    at = frame.groupby("cycle")["rollouts"].mean()
    drawn = arm_style(arm)
    axis.plot(at, wide.mean(axis=1), color=drawn["color"], linestyle=drawn["linestyle"], label=label(arm))
    if wide.shape[1] > 1:
        axis.fill_between(
            at, wide.min(axis=1), wide.max(axis=1), color=drawn["color"], alpha=0.18, linewidth=0
        )
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
        figure = Figure(figsize=(7.2, 2.6), layout="constrained")
        axes = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
        for axis, model in zip(axes, models, strict=True):
            reported_bars(axis, reported, model)
        axes[0].set_ylabel("mean@8, pass@8 (%)")
        _legend_below(figure, axes[0])
    return figure
