"""Curves of training: several arms against rollouts or tokens spent, or one run as it goes."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from gdro.dynamics import batch_pass
from gdro.figure_panels import grid, scales_of
from gdro.figure_style import BIN_MAP, WIDTH, arm_style, legend_below, seeds_note, style
from gdro.tables import label


def training_curves(steps, bins, smooth=5) -> Figure:
    """Pass rate, share of rollout groups without variance, and mean bin, over the rollouts spent; a row a
    scale.

    The pass rate is a mean over prompts, so that an arm which gives easy prompts more rollouts does not look
    better for it.

    ``steps`` and ``bins`` of the runs. Lines are means over seeds of a running mean over ``smooth`` cycles,
    bands the range over seeds. Mean bin counts from 0, the hardest.
    """
    scales = scales_of(steps)
    panels = _curve_panels(steps, bins)
    with style():
        figure, axes = grid(len(scales), len(panels), 2.2, foot=0.5, sharex="row")
        for row, scale in zip(axes, scales, strict=True):
            for axis, (title, table) in zip(row, panels.items(), strict=True):
                own = table[table["scale"] == scale]
                for arm in dict.fromkeys(own["arm"]):
                    curve(axis, own[own["arm"] == arm], arm, smooth)
                axis.set(title=f"{scale}: {title}", xlabel="rollouts (thousands)")
            seeds_note(
                row[0], [steps[steps["scale"] == scale].groupby("arm")["seed"].nunique().agg(["min", "max"])]
            )
        legend_below(figure, axes[0, 0])
    return figure


def token_curves(steps, smooth=5) -> Figure:
    """Pass rate of the batch over the completion tokens that training has taken, a panel a scale.

    As `training_curves` otherwise: at equal rollouts an arm that writes longer answers spends more.
    """
    scales, table = scales_of(steps), token_data(steps)
    with style():
        figure, axes = grid(1, len(scales), 2.3, foot=0.5)
        for axis, scale in zip(axes[0], scales, strict=True):
            own = table[table["scale"] == scale]
            for arm in dict.fromkeys(own["arm"]):
                curve(axis, own[own["arm"] == arm], arm, smooth, spent="tokens")
            axis.set(title=f"{scale}: pass rate of the batch", xlabel="completion tokens (thousands)")
            seeds_note(axis, [own.groupby("arm")["seed"].nunique().agg(["min", "max"])])
        legend_below(figure, axes[0, 0])
    return figure


def token_data(steps) -> pd.DataFrame:
    """The numbers behind `token_curves`: scale, arm, seed, cycle, tokens (thousands), value."""
    rows = steps.groupby(["scale", "arm", "seed", "cycle"], sort=False)
    table = pd.DataFrame({"tokens": rows["tokens_total"].max() / 1000, "value": rows["pass_rate"].mean()})
    return table.dropna().reset_index()


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


def curve(axis, frame, arm, smooth=1, spent="rollouts"):
    """One arm's curve over what its cycles have ``spent``: a mean over seeds with the range over seeds as a
    band; returns the axis."""
    wide = frame.pivot(index="cycle", columns="seed", values="value").rolling(smooth, min_periods=1).mean()
    at = frame.groupby("cycle")[spent].mean()
    drawn = arm_style(arm)
    axis.plot(at, wide.mean(axis=1), color=drawn["color"], linestyle=drawn["linestyle"], label=label(arm))
    if wide.shape[1] > 1:
        axis.fill_between(
            at, wide.min(axis=1), wide.max(axis=1), color=drawn["color"], alpha=0.18, linewidth=0
        )
    return axis


def run_curves(steps, bins, smooth=5) -> Figure:
    """One run as it goes: reward, pass@2 of the batch, weight per bin and rollouts per bin.

    ``steps`` and ``bins`` of one run, at any stage. Thin: each cycle; thick: a running mean over ``smooth``
    cycles, as are the rollouts. Bins are coloured from hard (dark) to easy (light); one without a prompt
    leaves a gap in its rollouts.
    """
    if steps.empty:
        raise ValueError("no steps to draw: the run has not made its first one")
    with style():
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        (reward, passed), (weight, rollouts) = figure.subplots(2, 2, sharex=True)
        _trace(reward, steps.dropna(subset=["reward"]).set_index("step")["reward"], smooth)
        reward.set_title("mean reward of the rollouts")
        _trace(passed, batch_pass(steps, 2), smooth)
        passed.set_title("pass@2 of the batch's prompts")
        bin_traces(weight, bins, "weight", 1)
        weight.set(title="weight ω per bin", xlabel="step")
        bin_traces(rollouts, bins, "rollouts", smooth)
        rollouts.set(title="rollouts per prompt and bin", xlabel="step")
        if len(bins):
            colours = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, bins["bin"].max()), BIN_MAP)
            figure.colorbar(colours, ax=rollouts, label="bin (0 hardest)", aspect=15)
    return figure


def _trace(axis, series, smooth):
    axis.plot(series.index, series, color="#4D4D4D", linewidth=0.5, alpha=0.6)
    mean = series.rolling(smooth, min_periods=1).mean()
    axis.plot(series.index, mean, color="#4D4D4D", linewidth=1.6)
    axis.set_ylim(0, 1)


def bin_traces(axis, bins, value, smooth=1):
    """A line a bin, a running mean over ``smooth`` cycles, coloured from hard to easy; returns the axis."""
    if bins.empty:
        return axis
    wide = bins.pivot(index="step", columns="bin", values=value)
    wide = wide.rolling(smooth, min_periods=1).mean().where(wide.notna())
    colours = mpl.colormaps[BIN_MAP](wide.columns / max(wide.columns.max(), 1))
    for number, colour in zip(wide.columns, colours, strict=True):
        axis.plot(wide.index, wide[number], color=colour, linewidth=1, marker=".", markersize=1.5)
    return axis
