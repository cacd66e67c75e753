"""Differences from a baseline with their intervals: the form in which the study answers a question."""

import numpy as np
from matplotlib.figure import Figure

from gdro import tables
from gdro.figure_style import ARM_STYLE, WIDTH, empty, seeds_text, style

OTHER = ("#606060", "-", "o")  # an arm without a style of its own


def effects(found, title, unit="points of mean@8", factor=100, against="grpo") -> Figure:
    """Each arm's difference from ``against`` with its interval, a panel a scale.

    Args: ``found`` as `gdro.evidence.paired` gives it (scale, arm, estimate, low, high, seeds, p_holm);
    ``title`` the answer; ``factor`` brings the estimates to ``unit``. A filled marker is a difference that
    holds after Holm's correction at 5 %, an open one is none that these runs can show; without an interval
    (one seed) there is the marker alone.
    """
    scales = list(dict.fromkeys(found["scale"])) or [""]
    arms = list(dict.fromkeys(found["arm"]))
    height = 0.75 + 0.13 * title.count("\n") + 0.2 * max(2, len(arms))
    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(1, len(scales), squeeze=False, sharey=True)[0]
        for axis, scale in zip(axes, scales, strict=True):
            own = found[found["scale"] == scale].set_index("arm")
            if own.empty:
                empty(axis, "no runs to compare")
                continue
            _points(axis, own, arms, factor)
            axis.set_title(f"{scale} ({seeds_text(own['seeds'])})")
        if arms:
            axes[0].set_yticks(range(len(arms)), [tables.label(arm) for arm in arms])
            axes[0].set_ylim(len(arms) - 0.4, -0.6)
        figure.supxlabel(f"{unit}, minus {tables.label(against)}", fontsize=8)
        figure.suptitle(title, fontsize=9)
    return figure


def _points(axis, own, arms, factor):
    axis.axvline(0, color="black", linewidth=0.8, linestyle="--")
    axis.grid(axis="x")
    axis.grid(visible=False, axis="y")
    for place, arm in enumerate(arms):
        if arm not in own.index:
            continue
        row = own.loc[arm]
        colour, _, marker = ARM_STYLE.get(arm, OTHER)
        estimate, low, high = (factor * row[name] for name in ("estimate", "low", "high"))
        if not np.isnan(low):
            axis.plot([low, high], [place, place], color=colour, linewidth=1.4)
        holds = row["p_holm"] < 0.05
        axis.plot(
            estimate, place, marker, color=colour, markersize=5, markerfacecolor=colour if holds else "white"
        )
