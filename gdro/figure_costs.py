"""What the adversaries do for the worst group of prompts (section 4.2.3) and what they cost (section 7)."""

from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from gdro import dynamics
from gdro.figure_panels import SMOOTH, grid, scales_of
from gdro.figure_style import arm_style, band, empty, in_order, legend_below, seeds_note, style
from gdro.tables import label


def worst_groups(worst, held_out, bins, scales=None):
    """Pass@1 of the worst fixed group while training and held out, entropy and support of the adversary.

    ``worst`` and ``held_out`` of `gdro.static_groups.worst`, from the training's outcomes and from the last
    evaluation; ``bins`` of the same runs. A row a scale. Lines are means over seeds, bands and bars' lines
    the range; the entropy (nats) and its exponential, the effective support (groups), are those of q, over
    the groups or bins that the arm itself uses.
    """
    scales = scales_of(held_out, scales)
    played = dynamics.curves(bins)
    with style():
        figure, axes = grid(len(scales), 4, 1.7, foot=0.6)
        for row, scale in zip(axes, scales, strict=True):
            arms = in_order(held_out.loc[held_out["scale"] == scale, "arm"])
            if not arms:
                for axis in row:
                    empty(axis, f"no run at {scale}")
                continue
            for arm in arms:
                own = [f[(f["scale"] == scale) & (f["arm"] == arm)] for f in (worst, played, played)]
                columns = ("pass_rate", "weight_entropy", "support")
                for axis, frame, value, smooth in zip(row, own, columns, (1, SMOOTH, SMOOTH), strict=False):
                    if len(frame) and frame[value].notna().any():
                        _arm_line(axis, frame, value, arm, smooth)
            _held_out(row[3], held_out[held_out["scale"] == scale], arms)
            _dress(row, scale)
        legend_below(figure, *axes[:, 0])
    return figure


def _arm_line(axis, frame, value, arm, smooth):
    drawn = arm_style(arm)
    band(axis, frame, value, smooth, label=label(arm), color=drawn["color"], linestyle=drawn["linestyle"])


def _held_out(axis, rows, arms):
    for at, arm in enumerate(arms):
        own = rows.loc[rows["arm"] == arm, "pass_rate"]
        axis.bar(at, own.mean(), 0.7, color=arm_style(arm)["color"])
        axis.scatter(np.full(len(own), at), own, s=6, color="black", zorder=3, linewidths=0)
    axis.set(xticks=[], ylim=(0, 1.2 * max(rows["pass_rate"].max(), 1e-3)))
    seeds_note(axis, rows.groupby("arm")["seed"].nunique())


def _dress(row, scale):
    names = ("worst group, training", "entropy of q", "support of q", "worst group, held out")
    units = ("pass@1", "nats", "groups or bins", "pass@1")
    for axis, name, unit in zip(row, names, units, strict=True):
        axis.set_title(name, fontsize=8)
        axis.set_ylabel(unit)
    row[0].set_ylabel(f"{scale}\npass@1")
    for axis in row[:3]:
        axis.set(xlabel="step", ylim=(0, None))


def overhead(costs, reported=None, scales=None):
    """What a cycle costs by arm: above, the controller's milliseconds; below, seconds in all.

    ``costs`` of `gdro.comparison.overhead`: bars are means over runs, dots the runs. A column a scale, and,
    with ``reported`` (rows of `study.reported("other")`), one of the paper's, hatched: its stage is another
    one, on other hardware, so only the order of magnitude compares.
    """
    scales = scales_of(costs, scales)
    with style():
        extra = 0 if reported is None else 1
        figure, axes = grid(2, len(scales) + extra, 1.8, foot=0.5)
        for column, scale in zip(axes.T, scales, strict=False):
            own = costs[costs["scale"] == scale]
            if own.empty:
                for axis in column:
                    empty(axis, f"no run at {scale}")
                continue
            _cost_bars(column[0], own, "controller_seconds", 1000)
            _cost_bars(column[1], own, "seconds", 1)
            column[0].set_title(scale)
        axes[0, 0].set_ylabel("controller (ms a cycle)")
        axes[1, 0].set_ylabel("whole cycle (s)")
        if extra:
            _reported_costs(axes[0, -1], reported)
            axes[1, -1].axis("off")
        legend_below(figure, *axes.ravel(), columns=4)
    return figure


def _cost_bars(axis, own, value, factor):
    if own[value].isna().all():
        return empty(axis, "not recorded\nby these runs")
    for at, arm in enumerate(in_order(own["arm"])):
        rows = own[own["arm"] == arm]
        axis.bar(at, factor * rows[value].mean(), 0.75, color=arm_style(arm)["color"], label=label(arm))
        if len(rows) > 1:
            axis.scatter(np.full(len(rows), at), factor * rows[value], s=5, color="black", linewidths=0)
    axis.set(xticks=[], ylim=(0, 1.2 * factor * own[value].max()))
    seeds_note(axis, own.groupby("arm")["seed"].nunique())
    return axis


def _reported_costs(axis, reported: pd.DataFrame):
    arms = {"GRPO": "grpo", "Prompt-GDRO": "prompt-gdro", "Rollout-GDRO": "rollout-gdro"}
    rows = reported[reported["quantity"] == "driver-side advantage stage"]
    for at, row in enumerate(rows.itertuples()):
        colour = arm_style(arms[row.method])["color"]
        name = f"{row.method} (reported)"
        axis.bar(at, 1000 * row.value, 0.75, facecolor="white", edgecolor=colour, hatch="////", label=name)
    axis.set(xticks=[], title=f"{rows['model'].iloc[0]}: reported", ylabel="ms a step")


PART_STYLE = MappingProxyType(
    {
        "classifier": ("#009E73", ":", "s"),
        "prompt adversary": ("#0072B2", "--", "D"),
        "allocation": ("#E69F00", (0, (1, 1)), "v"),
        "rollout adversary": ("#D55E00", "-.", "^"),
        "whole step": ("#4D4D4D", "-", "o"),
    }
)


def bookkeeping(by_prompts, by_bins):
    """Milliseconds of a controller's step and its parts, against the prompts of a batch and against the bins.

    Frames of `gdro.timing.steps`, with one number of bins and one of prompts. Both axes are logarithmic: a
    straight line is a power, and the grey one is proportional. Points are medians.
    """
    with style():
        figure, axes = grid(1, 2, 2.4, foot=0.4)
        for axis, times, name in zip(axes[0], (by_prompts, by_bins), ("prompts", "bins"), strict=True):
            for part, own in times.groupby("part", sort=False):
                colour, line, marker = PART_STYLE[part]
                axis.plot(
                    own[name], own["median"], color=colour, linestyle=line, marker=marker, ms=3, label=part
                )
            first, last = times[name].min(), times[name].max()
            top = times.loc[times[name] == last, "median"].max()
            axis.plot([first, last], [top * first / last, top], color="#C0C0C0", lw=0.8, zorder=0)
            axis.set(xscale="log", yscale="log", xlabel=f"{name} (log)", ylabel="ms a step (log)")
            cells = sorted(times[name].unique())
            axis.set_xticks(cells, labels=[f"{cell:,}" for cell in cells])
            axis.xaxis.set_minor_locator(NullLocator())
        axes[0, 0].set_title(f"{by_prompts['bins'].iloc[0]} bins")
        axes[0, 1].set_title(f"{by_bins['prompts'].iloc[0]} prompts")
        legend_below(figure, *axes[0])
    return figure
