"""Figures 3, 4, 5 and 6a of Panaganti et al. 2026: prompts and their weights under Prompt-GDRO.

Each takes ``bins`` of the runs, the study ``arm``, and the ``scales`` to draw (by default those of the
frame); a scale without a run of the arm says so in its panels.
"""

import numpy as np

from gdro import dynamics
from gdro.figure_panels import (
    DIVERGING,
    bin_bars,
    heat_maps,
    line_rows,
    scale_panels,
    scales_of,
    snapshot_rows,
)
from gdro.figure_style import PROMPTS, arm_style, bin_colours, legend_below, style
from gdro.tables import label


def fig03(bins, arm="prompt-gdro", scales=None):
    """Figure 3: prompt share, weight and mean reward over step and bin; a row a scale, means over seeds.

    Weights are coloured about 1, GRPO's. Grey where no seed's batch held a prompt of the bin.
    """
    columns = {
        "share": ("share of prompts", "cividis", "root"),
        "weight": (f"weight ω, {label(arm)}", DIVERGING, 1.0),
        "reward": ("mean reward", "cividis", "linear"),
    }
    with style():
        return heat_maps(bins, arm, columns, scales)


def fig04(bins, arm="prompt-gdro", scales=None):
    """Figure 4: mean bin, share of prompts in higher bins, entropies of share and weights; a row a scale.

    Grey: the batch's prompts; coloured: the adversary's distribution q, eq. (15). Lines are means over seeds
    of a running mean over five cycles, bands the range over seeds. Dotted: the entropy of a uniform q.
    """
    colour, q = arm_style(arm)["color"], f"q of {label(arm)}"
    middle, easy = dynamics.MIDDLE, dynamics.EASY
    index = [("mean_bin", "prompts", PROMPTS, "-"), ("weighted_bin", q, colour, "-")]
    high = [
        ("middle_up", f"prompts in bins ≥ {middle}", PROMPTS, "--"),
        ("easy_up", f"prompts in bins ≥ {easy}", PROMPTS, "-."),
    ]
    entropy = [("share_entropy", "prompts", PROMPTS, "-"), ("weight_entropy", q, colour, "-")]
    panels = [
        ("mean bin", "bin (0 hardest)", index),
        ("prompts in high bins", "share of prompts", high),
        ("entropy", "nats", entropy),
    ]
    with style():
        own = bins[bins["arm"] == arm]
        figure, axes = line_rows(dynamics.curves(own), arm, panels, scales_of(bins, scales))
        for row in axes:
            if row[2].lines:
                row[2].axhline(np.log(own["bin"].nunique()), color="black", linestyle=":", linewidth=0.8)
                row[1].set_ylim(0, 1)
        legend_below(figure, *axes.ravel())
    return figure


def fig05(bins, arm="prompt-gdro", steps=None, window=10, scales=None):
    """Figure 5: share of the prompts over the bins at a few steps; a row a scale.

    Means over the ``window`` cycles up to each step and over seeds; lines the range over seeds. ``steps`` as
    in `dynamics.snapshots`.
    """
    taken = dynamics.snapshots(bins[bins["arm"] == arm], steps, window)
    colours = bin_colours(taken["bin"].nunique())
    with style():
        return snapshot_rows(
            taken,
            arm,
            scales_of(bins, scales),
            "share of prompts",
            lambda axis, rows: bin_bars(axis, rows, "share", color=colours),
        )


def fig06a(bins, arm="prompt-gdro", scales=None):
    """Figure 6a: lead and lag, eq. (32), the mean bin under the weights minus that under the prompts' share.

    Coloured: under q, as the paper has it; q takes every bin for as frequent as the next, so this is not 0
    for uniform weights. Black: under share x weight, what the gradient sees, 0 for uniform weights and below
    0 where the adversary pulls towards hard prompts. A panel a scale.
    """
    drawn = [
        ("lead", "mean bin under q minus under share, eq. (32)", arm_style(arm)["color"], "-"),
        ("gradient_lead", "under share × weight minus under share", "black", "--"),
    ]
    with style():
        found = dynamics.curves(bins[bins["arm"] == arm])
        figure, axes = scale_panels(found, arm, drawn, scales_of(bins, scales), "bins")
        for axis in axes:
            if axis.lines:
                axis.axhline(0, color="black", linewidth=0.6)
    return figure
