"""The common style of all figures: a colour for a study arm, an ordered map for bins, and how files are
written."""

from collections.abc import Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np

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
        "class-gdro-ema": ("#B15CC8", "--", "p"),
    }
)
_STYLE: Mapping[Any, Any] = MappingProxyType(  # matplotlib's type lists every name it knows
    {
        "figure.dpi": 100,
        "savefig.dpi": 200,
        "font.size": 8,
        "axes.titlesize": 9,
        "axes.labelsize": 8,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.linewidth": 0.4,
        "grid.alpha": 0.5,
        "axes.axisbelow": True,
        "lines.linewidth": 1.4,
        "svg.hashsalt": "gdro",
        "svg.fonttype": "path",
        "font.family": "DejaVu Sans",
    }
)
PLATE = MappingProxyType({"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5})
BIN_MAP = "viridis"  # ordered, from hard (dark) to easy (light)
WIDTH = 7.2  # inches: a page's text, two columns of a paper
PROMPTS = "#4D4D4D"  # what the batch holds, where an adversary's colour stands beside it


@contextmanager
def style():
    """The common style, for the length of a block; nothing global stays changed."""
    with mpl.rc_context(dict(_STYLE)):
        yield


def save(figure, svg=None, png=None) -> None:
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


def bin_colours(count: int):
    """(count, 4) colours of the bins, from hard to easy along one ordered map."""
    return mpl.colormaps[BIN_MAP](np.linspace(0.08, 0.95, count))


def legend_below(figure, *axes, columns=5):
    """One legend under the figure, with every label of these axes once."""
    found: dict = {}
    for axis in axes:
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    if found:
        ncols = min(columns, len(found))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=ncols)


def seeds_text(counts) -> str:
    """How many seeds stand behind something.

    >>> seeds_text([1]), seeds_text([3, 5])
    ('1 seed', '3–5 seeds')
    """
    low, high = int(np.min(counts)), int(np.max(counts))
    return f"{low} seed{'s' * (low != 1)}" if low == high else f"{low}–{high} seeds"


def seeds_note(axis, counts, low=False):
    """Write the number of seeds into the upper (or ``low``: lower) right corner of a panel."""
    height, side = (0.02, "bottom") if low else (0.99, "top")
    place = {"transform": axis.transAxes, "ha": "right", "va": side, "fontsize": 6, "color": "#404040"}
    axis.text(0.99, height, seeds_text(counts), bbox=PLATE, zorder=5, **place)


def empty(axis, text):
    """A panel that says why it is empty; returns the axis."""
    axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, wrap=True, fontsize=7)
    axis.tick_params(length=0, labelbottom=False, labelleft=False)
    axis.spines[:].set_visible(False)
    axis.grid(False)
    return axis


def in_order(arms) -> list:
    """Study arms in the order of the styles, so that figures agree in it."""
    return [arm for arm in ARM_STYLE if arm in set(arms)]


def in_two_lines(title: str) -> str:
    """A label with what stands in brackets on a line of its own."""
    return title.replace(" (", "\n(")


def band(axis, frame, value, smooth=1, x="step", **drawn):
    """A line, the mean over seeds of a running mean over ``smooth`` rows a seed, and the seeds' range as a
    band.

    ``frame`` has a row a seed and ``x``; seeds with other ``x`` than the rest leave gaps that are not
    bridged. Returns the axis.
    """
    wide = frame.pivot(index=x, columns="seed", values=value).rolling(smooth, min_periods=1).mean()
    axis.plot(wide.index, wide.mean(axis=1), **drawn)
    if wide.shape[1] > 1:
        low, high = wide.min(axis=1), wide.max(axis=1)
        axis.fill_between(wide.index, low, high, color=drawn["color"], alpha=0.18, linewidth=0)
    return axis
