"""Figures 6b, 7, 8 and 9 of Panaganti et al. 2026: prompts and their rollouts under Rollout-GDRO.

Each takes ``bins`` of the runs, the study ``arm``, and the ``scales`` to draw (by default those of the
frame); a scale without a run of the arm says so in its panels.
"""

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
from gdro.figure_style import PROMPTS, arm_style, legend_below, style
from gdro.tables import label, mean_budget


def fig06b(bins, arm="rollout-gdro", scales=None):
    """Figure 6b: weighted standard error, eq. (33), of the run's rollouts and of equal ones; a panel a scale.

    Dotted: the least that any allocation of the same mean could reach if it knew this cycle's standard
    deviations. Lower is better.
    """
    drawn = [
        ("wse_uniform", "equal rollouts", PROMPTS, "-"),
        ("wse", f"rollouts of {label(arm)}", arm_style(arm)["color"], "-"),
        ("wse_least", "least possible", "black", ":"),
    ]
    with style():
        found = dynamics.curves(bins[bins["arm"] == arm])
        unit = "weighted standard error (33)"
        figure, axes = scale_panels(found, arm, drawn, scales_of(bins, scales), unit)
        axes[0].set_ylim(bottom=0)
    return figure


def fig07(bins, arm="rollout-gdro", scales=None):
    """Figure 7: prompt share and rollouts per prompt over step and bin; a row a scale, means over seeds.

    Rollouts are coloured about the mean budget. Grey where no seed's batch held a prompt of the bin.
    """
    own = bins[bins["arm"] == arm]
    columns = {
        "share": ("share of prompts", "cividis", "root"),
        "rollouts": (f"rollouts per prompt, {label(arm)}", DIVERGING, mean_budget(own)),
    }
    with style():
        return heat_maps(bins, arm, columns, scales)


def fig08(bins, arm="rollout-gdro", scales=None):
    """Figure 8: mean bin, share of prompts and of the budget in high bins, and entropies; a row a scale.

    Grey: the batch's prompts; coloured: its rollouts. Lines are means over seeds of a running mean over five
    cycles, bands the range over seeds.
    """
    colour, rollouts = arm_style(arm)["color"], f"rollouts of {label(arm)}"
    pairs = {
        "mean bin": ("bin (0 hardest)", "mean_bin", "rollout_bin"),
        f"bins ≥ {dynamics.UPPER}": ("share", "upper", "upper_rollouts"),
        "entropy": ("nats", "share_entropy", "rollout_entropy"),
    }
    panels = [
        (title, unit, [(first, "prompts", PROMPTS, "-"), (second, rollouts, colour, "-")])
        for title, (unit, first, second) in pairs.items()
    ]
    with style():
        found = dynamics.curves(bins[bins["arm"] == arm])
        figure, axes = line_rows(found, arm, panels, scales_of(bins, scales))
        for row in axes:
            if row[1].lines:
                row[1].set_ylim(0, 1)
        legend_below(figure, *axes.ravel())
    return figure


def fig09(bins, arm="rollout-gdro", steps=None, window=10, scales=None):
    """Figure 9: share of the prompts against share of the rollouts over the bins at a few steps; a row a
    scale.

    Means over the ``window`` cycles up to each step and over seeds; lines the range over seeds. ``steps`` as
    in `dynamics.snapshots`.
    """
    taken = dynamics.snapshots(bins[bins["arm"] == arm], steps, window)
    colour = arm_style(arm)["color"]
    with style():
        return snapshot_rows(
            taken, arm, scales_of(bins, scales), "share", lambda axis, rows: _pair(axis, rows, arm, colour)
        )


def _pair(axis, rows, arm, colour):
    bin_bars(axis, rows, "share", 0.4, -0.2, color="#B0B0B0", label="prompts")
    bin_bars(axis, rows, "rollout_share", 0.4, 0.2, color=colour, label=f"rollouts of {label(arm)}")
