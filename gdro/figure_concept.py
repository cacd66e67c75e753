"""Figure 2 of Panaganti et al. 2026, drawn: static uniformity against the two feedback loops."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from gdro.figure_style import PROMPTS, WIDTH, arm_style, bin_colours, style

_BINS = 5
# left edge, bottom, width, height of the boxes, in the panel's unit square
_SCHEDULE, _BATCH, _MODEL, _CLASSIFIER = (0.06, 0.66, 0.88, 0.27), (0.06, 0.36, 0.4, 0.14), None, None
_MODEL, _CLASSIFIER = (0.54, 0.36, 0.4, 0.14), (0.06, 0.06, 0.88, 0.14)


def fig02():
    """Figure 2: GRPO gives every bin the same; Prompt-GDRO moves weights, Rollout-GDRO rollouts, by what came
    back.

    A drawing, not data: the bars show shapes (more weight on hard bins; more rollouts where rewards vary).
    """
    panels = {
        "GRPO: static": ("weights and rollouts, the same for every bin", [1, 1, 1, 1, 1], None),
        "Prompt-GDRO": ("weight per bin, ω = exp(η S)", [2.0, 1.7, 1.4, 1.15, 1.0], "prompt-gdro"),
        "Rollout-GDRO": ("rollouts per bin, mean held", [0.7, 1.3, 1.5, 1.0, 0.5], "rollout-gdro"),
    }
    with style():
        figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
        for axis, (title, (says, shape, arm)) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            axis.set(xlim=(0, 1), ylim=(0, 1), title=title, aspect="auto")
            axis.axis("off")
            _panel(axis, says, shape, arm)
    return figure


def _panel(axis, says, shape, arm):
    colour = PROMPTS if arm is None else arm_style(arm)["color"]
    _box(axis, _SCHEDULE, "", colour)
    axis.text(0.5, 0.895, says, ha="center", va="center", fontsize=6.5)
    _bars(axis, shape)
    _box(axis, _BATCH, "batch of prompts", PROMPTS)
    _box(axis, _MODEL, "rollouts, rewards,\nupdate", PROMPTS)
    _arrow(axis, (0.26, 0.66), (0.26, 0.50), PROMPTS)
    _arrow(axis, (0.46, 0.43), (0.54, 0.43), PROMPTS)
    if arm is None:
        axis.text(0.5, 0.13, "nothing comes back", ha="center", va="center", fontsize=7, color=PROMPTS)
        return
    _box(axis, _CLASSIFIER, "pass rates sort prompts into bins", colour)
    _arrow(axis, (0.74, 0.36), (0.74, 0.20), colour)
    _arrow(axis, (0.26, 0.20), (0.26, 0.36), colour)
    told = "loss per bin → score" if arm == "prompt-gdro" else "loss per bin and arm → price"
    _arrow(axis, (0.84, 0.50), (0.84, 0.66), colour)
    axis.text(0.81, 0.58, told, ha="right", va="center", fontsize=6, color=colour)


def _bars(axis, shape):
    left, bottom, width = _SCHEDULE[0] + 0.08, _SCHEDULE[1] + 0.03, _SCHEDULE[2] - 0.16
    step = width / _BINS
    for number, (height, colour) in enumerate(zip(shape, bin_colours(_BINS), strict=True)):
        axis.bar(left + (number + 0.5) * step, 0.08 * height, 0.7 * step, bottom=bottom, color=colour)
    axis.text(left, bottom - 0.005, "hard", ha="right", va="bottom", fontsize=5.5, rotation=90)
    axis.text(left + width + 0.01, bottom - 0.005, "easy", ha="left", va="bottom", fontsize=5.5, rotation=90)


def _box(axis, place, text, colour):
    left, bottom, width, height = place
    axis.add_patch(
        FancyBboxPatch(
            (left, bottom),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.02",
            facecolor="white",
            edgecolor=colour,
            linewidth=1.1,
        )
    )
    axis.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=6.5)


def _arrow(axis, start, end, colour):
    axis.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=8, color=colour, linewidth=1.1)
    )
