"""Figures about the tiny base models: where their pass rates lie, and what one family teaches another."""

import numpy as np
from matplotlib.figure import Figure

from gdro.figure_style import WIDTH, bin_colours, style
from gdro.transfer import bin_shares

MOMENTS = ("before", "after")
WANTED = (0.03, 0.30)  # share of the prompts that each bin of a base model should hold


def pass_rate_histograms(pass_rates) -> Figure:
    """Share of the training prompts in each of ten bins of the pass rate, before and after plain GRPO.

    ``pass_rates`` of `gdro.transfer.recorded` or of `gdro.transfer.measure` with a column model: a row of
    panels a moment, a column a model. Dotted: the shares between which each bin of a base model should lie.
    """
    names = list(dict.fromkeys(pass_rates["model"]))
    with style():
        figure = Figure(figsize=(min(WIDTH, 1.0 + 2.4 * len(names)), 3.4), layout="constrained")
        axes = figure.subplots(2, len(names), sharex=True, sharey="row", squeeze=False)
        for column, name in zip(axes.T, names, strict=True):
            for axis, moment in zip(column, MOMENTS, strict=True):
                own = pass_rates.query("model == @name and moment == @moment")
                axis.bar(np.arange(10) / 10 + 0.05, bin_shares(own), 0.09, color=bin_colours(10))
                axis.set_title(f"{name}, {moment} (mean {own['pass_rate'].mean():.2f})")
            for share in WANTED:
                column[0].axhline(share, color="black", linestyle=":", linewidth=0.8)
            column[1].set_xlabel("pass rate of a prompt")
        for axis in axes[:, 0]:
            axis.set_ylabel("share of prompts")
    return figure


def transfer_matrices(pairs) -> Figure:
    """Gain in pass rate on each suite (column) after plain GRPO on one family alone (row), a panel a model.

    ``pairs`` of `gdro.transfer.recorded` or of `gdro.transfer.transfer` with a column model.
    """
    names = list(dict.fromkeys(pairs["model"]))
    with style():
        figure = Figure(figsize=(min(WIDTH, 1.2 + 2.4 * len(names)), 2.9), layout="constrained")
        axes = figure.subplots(1, len(names), squeeze=False)[0]
        for axis, name in zip(axes, names, strict=True):
            own = pairs[pairs["model"] == name]
            order = [list(dict.fromkeys(own[column])) for column in ("trained", "tested")]
            table = own.pivot(index="trained", columns="tested", values="gain").loc[order[0], order[1]]
            image = axis.imshow(table, vmin=-1, vmax=1, cmap="PuOr", aspect="auto")
            for (i, j), gain in np.ndenumerate(table.to_numpy()):
                colour = "white" if abs(gain) > 0.6 else "black"
                axis.text(j, i, f"{100 * gain:+.0f}", ha="center", va="center", fontsize=6, color=colour)
            axis.set_xticks(range(len(order[1])), order[1], rotation=60, ha="right", rotation_mode="anchor")
            axis.set_yticks(range(len(order[0])), order[0] if axis is axes[0] else [])
            axis.set(title=name, xlabel="tested on")
            axis.grid(False)
        axes[0].set_ylabel("trained on")
        figure.colorbar(image, ax=axes, label="gain in pass rate", shrink=0.8)
    return figure
