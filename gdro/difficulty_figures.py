"""Figures about the difficulty classifier and the simulator: frames and arrays in, a Figure out."""

from itertools import cycle

import numpy as np
from matplotlib.figure import Figure

from gdro.figure_style import BIN_MAP, WIDTH, arm_style, band, in_two_lines, legend_below, seeds_text, style
from gdro.tables import label

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")
RECORDED, SIMULATED = "-", "--"


def _variants(axis, frame, value):
    """A line a variant of `gdro.difficulty_trials.compare`, each with a colour and dash of its own."""
    looks = cycle(zip(_COLOURS, cycle(_DASHES), strict=False))
    for (name, own), (colour, dash) in zip(frame.groupby("variant", sort=False), looks, strict=False):
        axis.plot(own["visits"], own[value], color=colour, linestyle=dash, label=name)


def _plain_log(axis, ticks):
    """A logarithmic axis with these ticks alone, in plain numbers."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def errors_by_visits(frame, law=None) -> Figure:
    """Root mean square error, share of prompts in their true bin, and within one bin, by visits so far.

    ``frame`` of `gdro.difficulty_trials.compare`; ``law`` (V,) the error that theory gives, by visits from 1,
    drawn dotted.
    """
    panels = {
        "rmse": "error of the estimate (rms)",
        "right": "share in the true bin",
        "within_one": "at most one bin off",
    }
    with style():
        figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
        axes = figure.subplots(1, len(panels))
        for axis, (value, title) in zip(axes, panels.items(), strict=True):
            _variants(axis, frame, value)
            axis.set(title=title, xlabel="visits of each prompt")
            _plain_log(axis.xaxis, (1, 3, 10, 30, 100))
            axis.set_ylim(*((None, None) if value == "rmse" else (0, 1.02)))
        if law is not None:
            axes[0].plot(np.arange(1, len(law) + 1), law, "k:", linewidth=1, label="√(mean t(1−t) / visits)")
        _plain_log(axes[0].yaxis, (0.03, 0.1, 0.3))
        legend_below(figure, *axes)
    return figure


def confusions(matrices, rows) -> Figure:
    """Heat maps of true bin against the bin assigned: a row of panels for each of ``rows``.

    ``matrices`` {(row name, number of visits): (B, B) of `gdro.difficulty_trials.confusion`}.
    """
    columns = list(dict.fromkeys(visits for _, visits in matrices))
    with style():
        figure = Figure(figsize=(WIDTH, 1.75 * len(rows) + 0.5), layout="constrained")
        axes = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
        for line, name in zip(axes, rows, strict=True):
            for axis, visits in zip(line, columns, strict=True):
                image = axis.imshow(matrices[name, visits], origin="lower", cmap=BIN_MAP, vmin=0, vmax=1)
                axis.set(title=f"{name}, {visits} visit{'s' * (visits > 1)}")
                axis.grid(False)
            line[0].set_ylabel("true bin")
        for axis in axes[-1]:
            axis.set(xlabel="bin assigned", xticks=[0, 3, 6, 9], yticks=[0, 3, 6, 9])
        figure.colorbar(image, ax=axes, label="share of the true bin", shrink=0.8)
    return figure


def rollout_bias(rates, estimates, laws, biases) -> Figure:
    """What the estimators say of one pass rate under different numbers of rollouts, and what follows from it.

    ``rates`` (N,); ``estimates`` {label: (N,)}; ``laws`` curves (N,), dotted; ``biases`` {label: frame with
    truth and bias} where a prompt's bin decides its rollouts.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        for (name, values), colour in zip(estimates.items(), _COLOURS, strict=False):
            left.plot(rates, values, ".", markersize=1.5, color=colour, label=name)
        for values in laws:
            left.plot(rates, values, color="black", linestyle=":", linewidth=0.8)
        left.set(
            xlabel="true pass rate of a rollout", ylabel="estimate", title="equal prompts, unequal rollouts"
        )
        left.legend(markerscale=6, loc="lower right")
        for (name, frame), colour, dash in zip(biases.items(), _COLOURS[1::2], _DASHES, strict=False):
            right.plot(frame["truth"], frame["bias"], color=colour, linestyle=dash, label=name)
        right.axhline(0, color="black", linewidth=0.8)
        right.set(xlabel="true pass@4", ylabel="estimate minus truth", title="bins that decide rollouts")
        right.legend()
    return figure


def window_lag(truth, estimates, frame) -> Figure:
    """Left: a population's mean truth and mean estimates while it improves; right: the error by window.

    ``truth`` (V,); ``estimates`` {label: (V,)}; ``frame`` with window and one column of errors a situation.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        at = np.arange(1, len(truth) + 1)
        left.plot(at, truth, color="black", linewidth=2, label="truth")
        for (name, values), colour, dash in zip(estimates.items(), _COLOURS, _DASHES, strict=False):
            left.plot(at, values, color=colour, linestyle=dash, label=name)
        left.set(xlabel="visits of each prompt", ylabel="mean pass@4", title="an improving policy")
        left.legend()
        situations = [c for c in frame.columns if c != "window"]
        for name, colour, mark in zip(situations, _COLOURS[1:], "os^", strict=False):
            right.plot(frame["window"], frame[name], color=colour, marker=mark, markersize=4, label=name)
        right.set(
            xlabel="window (visits)",
            ylabel="error of the estimate (rms)",
            title="which window is best",
        )
        _plain_log(right.xaxis, frame["window"])
        right.set_ylim(bottom=0)
        right.legend()
    return figure


def true_and_assigned(true, assigned, title) -> Figure:
    """Heat maps over cycles: where the prompts truly are, where the classifier has them; and both mean bins.

    ``true`` and ``assigned`` (T, B) shares of the prompts in each bin, by cycle from 0.
    """
    bins = np.arange(true.shape[1])
    with style():
        figure = Figure(figsize=(WIDTH, 2.5), layout="constrained")
        axes = figure.subplots(1, 3, width_ratios=[1, 1, 0.9])
        for axis, shares, name in zip(axes, (true, assigned), ("true bin", "bin assigned"), strict=False):
            image = axis.imshow(shares.T, origin="lower", aspect="auto", cmap=BIN_MAP, vmin=0, vmax=0.6)
            axis.set(title=f"{title}: {name}", xlabel="cycle", ylabel="bin (0 hardest)", yticks=bins[::3])
            axis.grid(False)
        figure.colorbar(image, ax=axes[1], label="share of prompts", extend="max")
        axes[2].plot(true @ bins, color="black", label="true")
        axes[2].plot(assigned @ bins, color=_COLOURS[1], linestyle="--", label="assigned")
        axes[2].set(title="mean bin", xlabel="cycle", ylim=(0, bins[-1]))
        axes[2].legend(loc="lower right")
    return figure


def expected_signal(rates, gradients) -> Figure:
    """The expected GRPO gradient of a prompt on its own logit, by its pass rate; a line a number of rollouts.

    ``rates`` (N,); ``gradients`` {number of rollouts: (N,)} of `gdro.learner.expected_gradient`.
    """
    with style():
        figure = Figure(figsize=(WIDTH / 2, 2.6), layout="constrained")
        axis = figure.subplots()
        for (rollouts, values), colour, dash in zip(
            gradients.items(), _COLOURS, cycle(_DASHES), strict=False
        ):
            axis.plot(rates, values, color=colour, linestyle=dash, label=f"{rollouts} rollouts")
        axis.plot(rates, np.sqrt(rates * (1 - rates)), "k:", linewidth=1, label="√(p(1−p)), the limit")
        axis.set(xlabel="pass rate p", ylabel="expected gradient", ylim=(0, 0.62))
        axis.legend(ncols=2, loc="upper center")
    return figure


def recorded_and_simulated(recorded, simulated, smooth=10) -> Figure:
    """Curves of recorded runs (solid) against simulated ones (dashed); a row an arm, a column a quantity.

    ``recorded`` and ``simulated``: frames of `gdro.figures.curve_data`. Lines are means over seeds of a
    running mean over ``smooth`` cycles, bands the range over seeds.
    """
    arms, panels = list(dict.fromkeys(recorded["arm"])), list(dict.fromkeys(recorded["panel"]))
    with style():
        figure = Figure(figsize=(WIDTH, 1.75 * len(arms) + 0.4), layout="constrained")
        axes = figure.subplots(len(arms), len(panels), squeeze=False, sharex=True, sharey="col")
        for line, arm in zip(axes, arms, strict=True):
            for axis, panel in zip(line, panels, strict=True):
                for frame, dash, name in (
                    (recorded, RECORDED, "recorded"),
                    (simulated, SIMULATED, "simulated"),
                ):
                    own = frame[(frame["arm"] == arm) & (frame["panel"] == panel)]
                    seen = f"{name}, {seeds_text([own['seed'].nunique()])}"
                    colour = arm_style(arm)["color"] if dash == RECORDED else "black"
                    drawn = {"color": colour, "linestyle": dash, "label": seen}
                    band(axis, own, "value", smooth, x="cycle", **drawn)
                axis.set_title(panel if arm == arms[0] else "")
            line[0].set_ylabel(in_two_lines(label(arm)))
        for axis in axes[-1]:
            axis.set_xlabel("cycle")
        legend_below(figure, axes[0, 0])
    return figure
