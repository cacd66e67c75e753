"""Figures of the ideas: lines of closed forms and small games, points of what was measured, bars by bin."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from gdro.figure_style import bin_colours, style

# Okabe and Ito 2008, with a dash of its own as a second sign
_LINES = (
    *(("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", (0, (3, 1, 1, 1)))),
    *(("#E69F00", (0, (5, 2))), ("#56B4E9", ":")),
)
_MARKS = ("o", "s", "^", "D", "v", "P")
_BOUND = ("#202020", ":")


def line_panels(frame, *, x, y, hue, panel=None, low=None, high=None, **options) -> Figure:
    """Lines of ``y`` over ``x``, one a value of ``hue``, side by side for each value of ``panel``.

    Args: columns of ``frame`` by name; ``low`` and ``high`` the ends of a band, or of error bars for points.
    Options: ``points`` values of ``hue`` that were measured at a few places, drawn as marks with error bars;
    ``bounds`` values drawn black and dotted; ``ordered`` True colours the values from hard to easy, as bins
    are; ``log`` axes with a logarithmic scale, of "x" and "y"; ``xlabel``, ``ylabel``; ``sharey`` (True);
    ``note`` a line of small print about where the numbers come from.
    """
    known = {"points", "bounds", "ordered", "log", "xlabel", "ylabel", "sharey", "note"}
    if not set(options) <= known:
        raise ValueError(f"unknown options {sorted(set(options) - known)}; known: {', '.join(sorted(known))}")
    names = list(dict.fromkeys(frame[hue]))
    looks = _looks(names, options.get("bounds", ()), options.get("ordered", False))
    panels = [None] if panel is None else list(dict.fromkeys(frame[panel]))
    with style():
        width = 3.6 if len(panels) == 1 else min(7.2, 2.5 * len(panels))
        figure = Figure(figsize=(width, 2.7), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=options.get("sharey", True))[0]
        for axis, title in zip(axes, panels, strict=True):
            own = frame if title is None else frame[frame[panel] == title]
            for name in names:
                part = own[own[hue] == name]
                if len(part):
                    is_points = name in options.get("points", ())
                    _draw(axis, part, (x, y, low, high), str(name), looks[name], is_points)
            _dress(axis, title, options)
        axes[0].set_ylabel(options.get("ylabel", y))
        handles = {h: t for a in axes for h, t in zip(*a.get_legend_handles_labels(), strict=True)}
        _legend(figure, {t: h for h, t in handles.items()}, options.get("note"))
    return figure


def _looks(names, bounds, ordered):
    """{value: (colour, line style, marker)}."""
    drawn = [name for name in names if name not in bounds]
    looks = {name: (*_LINES[i % len(_LINES)], _MARKS[i % len(_MARKS)]) for i, name in enumerate(drawn)}
    if ordered:
        colours = bin_colours(len(drawn))
        looks = {name: (colours[i], *looks[name][1:]) for i, name in enumerate(drawn)}
    return looks | {name: (*_BOUND, "") for name in bounds}


def _draw(axis, part, columns, name, look, is_points):
    x, y, low, high = columns
    colour, line, mark = look
    if is_points:
        errors = None if low is None else [part[y] - part[low], part[high] - part[y]]
        axis.errorbar(
            part[x],
            part[y],
            errors,
            fmt=mark,
            color=colour,
            markersize=4,
            elinewidth=0.9,
            label=name,
            zorder=3,
        )
        return
    axis.plot(part[x], part[y], color=colour, linestyle=line, label=name)
    if low is not None and part[low].notna().any():
        axis.fill_between(part[x], part[low], part[high], color=colour, alpha=0.18, linewidth=0)


def _dress(axis, title, options):
    for which in options.get("log", ()):
        getattr(axis, f"set_{which}scale")("log")
        low, high = getattr(axis, f"get_{which}lim")()
        ticks = getattr(axis, f"{which}axis")
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        ticks.set_major_formatter(StrMethodFormatter("{x:g}"))
        ticks.set_minor_formatter(NullFormatter())
    if title is not None:
        axis.set_title(str(title))
    axis.set_xlabel(options.get("xlabel", ""))
    low, high = axis.get_ylim()
    if "y" not in options.get("log", ()) and low < 0 < high:
        axis.axhline(0, color="black", linewidth=0.5)


def _legend(figure, labels, note):
    widest = 0.5 + 0.055 * max(map(len, labels), default=1)  # inches of an entry: its line and its letters
    columns = min(len(labels), max(1, int(figure.get_figwidth() // widest)))
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=columns)
    if note:
        figure.suptitle(note, fontsize=6, color="#404040")


def bars_by_bin(frame, *, bin, values, ylabel, line=None, line_label="", errors=None, note=None) -> Figure:
    """Bars side by side for each bin, one a column of ``values``, hard bins to the left.

    Args: ``frame`` a row a bin; ``bin`` the column with its name; ``values`` {column: what the legend says};
    ``line`` a horizontal line, such as the mean budget; ``errors`` {column: column with its half-width}.
    """
    with style():
        figure = Figure(figsize=(4.6, 2.7), layout="constrained")
        axis = figure.subplots()
        width, at = 0.8 / len(values), np.arange(len(frame))
        for i, (column, text) in enumerate(values.items()):
            place = at + (i - (len(values) - 1) / 2) * width
            half = frame[errors[column]] if errors and column in errors else None
            axis.bar(place, frame[column], width * 0.92, yerr=half, color=_LINES[i][0], label=text)
        if line is not None:
            axis.axhline(line, color="black", linestyle="--", linewidth=0.9, label=line_label)
        axis.set_xticks(at, [str(name) for name in frame[bin]])
        axis.set(xlabel=bin, ylabel=ylabel)
        handles, labels = axis.get_legend_handles_labels()
        _legend(figure, dict(zip(labels, handles, strict=True)), note)
    return figure
