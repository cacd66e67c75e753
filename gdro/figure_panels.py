"""Panels that several of the paper's figures share: rows of scales, heat maps over steps and bins, lines."""

import numpy as np
from matplotlib.colors import PowerNorm, TwoSlopeNorm
from matplotlib.figure import Figure

from gdro.dynamics import maps
from gdro.figure_style import WIDTH, band, empty, legend_below, seeds_note, seeds_text

SMOOTH = 5  # cycles that a line is averaged over: one batch is few prompts
DIVERGING = "PuOr_r"  # below and above what GRPO does


def scales_of(frame, scales=None):
    """The scales to draw: those named, else those of the frame. Raises ``ValueError`` where there is none."""
    scales = list(dict.fromkeys(frame["scale"])) if scales is None else list(scales)
    if not scales:
        raise ValueError("no scale to draw: load at least one finished run, or name the scales")
    return scales


def no_run(axis, scale, arm):
    """A panel that says that there is no run of the arm at this scale."""
    return empty(axis, f"no run of {arm}\nat {scale}")


def grid(rows, columns, height, foot=0.5, **options):
    """A figure of the page's width with ``rows`` x ``columns`` panels, each row ``height`` inches high."""
    figure = Figure(figsize=(WIDTH, height * rows + foot), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def named(scale, rows) -> str:
    """A scale with its number of seeds, where it has runs."""
    return f"{scale} ({seeds_text([rows['seed'].nunique()])})" if len(rows) else scale


def heat_norm(values, rule, least=0.05):
    """How values become colours: by ``rule``, "linear", "root" or a number.

    "root" goes by the square root, so that small shares are seen beside large ones; a number is what no
    adversary would do, and each side of it reaches at least ``least``, so that next to nothing looks like it.
    """
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if rule in ("linear", "root"):
        return PowerNorm(1.0 if rule == "linear" else 0.5, min(low, 0.0), max(high, 1e-9))
    neutral = float(rule)
    return TwoSlopeNorm(neutral, min(low, neutral - least), max(high, neutral + least))


def heat(axis, frame, value, norm, colours):
    """A map of ``value`` over step and bin, the hardest at the bottom, grey where there is none.

    ``frame`` of `gdro.dynamics.maps`, one scale and arm. Returns the mesh.
    """
    wide = frame.pivot(index="bin", columns="step", values=value)
    axis.set_facecolor("#D0D0D0")
    mesh = axis.pcolormesh(
        wide.columns, wide.index, wide, norm=norm, cmap=colours, shading="nearest", rasterized=True
    )
    ticks = wide.index if len(wide.index) <= 10 else wide.index[:: len(wide.index) // 10]
    axis.set(yticks=ticks[::3] if len(ticks) == 10 else ticks)
    axis.grid(False)
    return mesh


def heat_maps(bins, arm, columns, scales=None):
    """Rows of heat maps, a scale a row and a value a column, means over seeds; one colour bar a column.

    ``columns`` {value: (title, colour map, rule of `heat_norm`)}. A column has the same colours at every
    scale.
    """
    scales = scales_of(bins, scales)
    own = bins[(bins["arm"] == arm) & bins["scale"].isin(scales)]
    found = maps(own, *columns)
    figure, axes = grid(len(scales), len(columns), 1.45, foot=0.9, sharey="row")
    for at, (value, (title, colours, rule)) in enumerate(columns.items()):
        there = found.dropna(subset=[value])["scale"].unique()
        norm = heat_norm(found[value].to_numpy(float), rule) if len(there) else None
        for row, scale in zip(axes, scales, strict=True):
            if scale not in there:
                no_run(row[at], scale, arm)
                continue
            mesh = heat(row[at], found[found["scale"] == scale], value, norm, colours)
        axes[0, at].set_title(title)
        axes[-1, at].set_xlabel("step")
        if len(there):
            bar = figure.colorbar(mesh, ax=list(axes[:, at]), location="bottom", aspect=28, pad=0.02)
            bar.outline.set_linewidth(0.4)
    for row, scale in zip(axes, scales, strict=True):
        row[0].set_ylabel(f"{named(scale, own[own['scale'] == scale])}\nbin (0 hardest)")
    return figure


def lines(axis, frame, *drawn, smooth=SMOOTH):
    """Lines of `figure_style.band` into one panel: each (column, label, colour, line style); returns the
    axis.

    A column that is NaN throughout is left out.
    """
    for value, text, colour, line in drawn:
        if frame[value].notna().any():
            band(axis, frame, value, smooth, label=text, color=colour, linestyle=line)
    return axis


def line_rows(frame, arm, panels, scales, smooth=SMOOTH):
    """Rows of line panels, a scale a row; ``panels`` [(title, y label, [(column, label, colour, style)])].

    Returns the figure and its axes (rows, panels).
    """
    figure, axes = grid(len(scales), len(panels), 1.6, foot=0.7, sharex="row")
    for row, scale in zip(axes, scales, strict=True):
        own = frame[(frame["scale"] == scale) & (frame["arm"] == arm)]
        for axis, (title, unit, drawn) in zip(row, panels, strict=True):
            axis.set_title(f"{scale}: {title}")
            if own.empty:
                no_run(axis, scale, arm)
            else:
                lines(axis, own, *drawn, smooth=smooth).set_ylabel(unit)
        if not own.empty:
            seeds_note(row[0], [own["seed"].nunique()], low=True)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    return figure, axes


def scale_panels(frame, arm, drawn, scales, unit):
    """One row of line panels, a scale each; returns the figure and its axes."""
    figure, axes = grid(1, len(scales), 1.9, foot=0.5, sharey=True)
    for axis, scale in zip(axes[0], scales, strict=True):
        own = frame[(frame["scale"] == scale) & (frame["arm"] == arm)]
        axis.set(title=scale, xlabel="step")
        if own.empty:
            no_run(axis, scale, arm)
        else:
            lines(axis, own, *drawn)
            seeds_note(axis, [own["seed"].nunique()])
    axes[0, 0].set_ylabel(unit)
    legend_below(figure, *axes[0])
    return figure, axes[0]


def snapshot_rows(taken, arm, scales, unit, draw):
    """A row a scale and a panel a snapshot; ``draw(axis, rows of one snapshot)`` fills each."""
    count = max(taken["snapshot"].nunique(), 1)
    figure, axes = grid(len(scales), count, 1.5, foot=0.5, sharey="row")
    for row, scale in zip(axes, scales, strict=True):
        own = taken[taken["scale"] == scale]
        for number, axis in enumerate(row):
            here = own[own["snapshot"] == number]
            if here.empty:
                no_run(axis, scale, arm)
                continue
            draw(axis, here)
            axis.set_title(f"step {here['step'].iloc[0]}", fontsize=8)
            axis.set_xticks(sorted(here["bin"].unique())[::3])
        row[0].set_ylabel(f"{named(scale, own)}\n{unit}")
    for axis in axes[-1]:
        axis.set_xlabel("bin (0 hardest)")
    legend_below(figure, axes[0, 0])
    return figure


def bin_bars(axis, rows, value, width=0.8, shift=0.0, **drawn):
    """Bars of ``value`` over the bins, the mean over seeds, with their range where there are several; returns
    the axis."""
    table = rows.pivot(index="seed", columns="bin", values=value)
    at = table.columns + shift
    middle = table.mean(axis=0)
    axis.bar(at, middle, width, edgecolor="black", linewidth=0.3, **drawn)
    if len(table) > 1:
        reach = np.abs(np.stack([table.min(axis=0), table.max(axis=0)]) - middle.to_numpy())
        axis.errorbar(at, middle, yerr=reach, fmt="none", ecolor="black", elinewidth=0.6)
    return axis
