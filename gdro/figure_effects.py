"""Differences from a baseline with their intervals: the form in which the study answers a question."""

import numpy as np
from matplotlib.figure import Figure

from gdro import tables
from gdro.figure_panels import DIVERGING, grid
from gdro.figure_style import ARM_STYLE, WIDTH, empty, seeds_text, style

OTHER = ("#606060", "-", "o")  # an arm without a style of its own


def effects(found, title, unit="points of mean@8", factor=100, against="grpo", seeds=None) -> Figure:
    """Each arm's difference from ``against`` with its interval, a panel a scale.

    Args: ``found`` as `gdro.evidence.paired` gives it (scale, arm, estimate, low, high, seeds, p_holm);
    ``title`` the answer; ``factor`` brings the estimates to ``unit``. A filled marker is a difference that
    holds after Holm's correction at 5 %, an open one is none that these runs can show; without an interval
    (one seed) there is the marker alone. ``against`` None: of contrasts, which have their baseline within.
    ``seeds``: the same differences seed by seed (`gdro.evidence.by_seed`), drawn as dots.
    """
    scales = list(dict.fromkeys(found["scale"])) or [""]
    arms = list(dict.fromkeys(found["arm"]))
    narrow = len(scales) > 3  # panels: their titles take two lines
    height = 0.75 + 0.13 * (title.count("\n") + narrow) + 0.2 * max(2, len(arms))
    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(1, len(scales), squeeze=False, sharey=True)[0]
        for axis, scale in zip(axes, scales, strict=True):
            own = found[found["scale"] == scale].set_index("arm")
            if own.empty:
                empty(axis, "no runs to compare")
                continue
            if seeds is not None:
                dots = seeds[(seeds["scale"] == scale) & seeds["arm"].isin(arms)]
                at = dots["arm"].map(arms.index)
                axis.plot(factor * dots["difference"], at + 0.28, ".", color="#909090", markersize=2.5)
            _points(axis, own, arms, factor)
            words = scale, f"({seeds_text(own['seeds'])})"
            axis.set_title(("\n" if narrow else " ").join(words), **({"fontsize": 7} if narrow else {}))
        if arms:
            axes[0].set_yticks(range(len(arms)), [tables.label(arm) for arm in arms])
            axes[0].set_ylim(len(arms) - 0.4, -0.6)
        figure.supxlabel(unit if against is None else f"{unit}, minus {tables.label(against)}", fontsize=8)
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


def heterogeneity_map(found, note="") -> Figure:
    """Each arm's difference from GRPO in points of mean@8, on the map of `gdro.heterogeneity`.

    A row an arm, a column a step between families; in a panel transfer runs to the right and the share of
    hopeless prompts upwards. Args: ``found`` as `gdro.evidence.paired` gives it by transfer, step and
    hopeless. A star marks what holds after the correction that ``p_holm`` was made by.
    """
    import seaborn as sns  # with pyplot, which nothing else here needs

    arms, steps = (list(dict.fromkeys(found[name])) for name in ("arm", "step"))
    reach = max(0.01, 100 * found["estimate"].abs().max())
    with style():
        figure, axes = grid(len(arms), len(steps), 1.5, sharex=True, sharey=True)
        for arm, row in zip(arms, axes, strict=True):
            for step, axis in zip(steps, row, strict=True):
                own = found[(found["arm"] == arm) & (found["step"] == step)]
                values, held = (
                    own.pivot(index="hopeless", columns="transfer", values=name)
                    for name in ("estimate", "p_holm")
                )
                star = np.where(held < 0.05, "*", "")
                words = [
                    [f"{100 * v:+.1f}{s}" for v, s in zip(*both, strict=True)]
                    for both in zip(values.to_numpy(), star, strict=True)
                ]
                options = {"vmin": -reach, "vmax": reach, "cmap": DIVERGING, "cbar": False, "fmt": ""}
                sns.heatmap(100 * values, annot=np.array(words), ax=axis, **options)
                axis.set(xlabel="", ylabel="")
                axis.invert_yaxis()
                axis.set_title(f"{tables.label(arm)}, families {step:g} logits apart")
        figure.supxlabel("transfer: what a family's step gives every other", fontsize=8)
        figure.supylabel("share of hopeless prompts", fontsize=8)
        if note:
            figure.suptitle(note, fontsize=9)
    return figure
