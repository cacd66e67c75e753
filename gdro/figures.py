"""Figures of the study: frames in, a Figure out, no file read. The public names of the files ``figure_*``.

One colour for a study arm everywhere (Okabe and Ito 2008, safe for colour-blind readers, with a dash of its
own as a second sign), bins from hard to easy along one ordered map, intervals or ranges with the number of
seeds on the figure. A value that the paper reports is hatched and says "reported"; everything else was
measured. Where an arm or a scale has no run, its panel says so.
"""

from gdro.figure_concept import fig02
from gdro.figure_costs import bookkeeping, overhead, worst_groups
from gdro.figure_effects import effects, heterogeneity_map
from gdro.figure_prompts import fig03, fig04, fig05, fig06a
from gdro.figure_results import benchmark_bars, fig01, reported_bars, reported_table1, tail_bars
from gdro.figure_rollouts import fig06b, fig07, fig08, fig09
from gdro.figure_style import ARM_STYLE, BIN_MAP, arm_style, bin_colours, save, style
from gdro.figure_training import (
    curve,
    curve_data,
    run_curves,
    token_curves,
    token_data,
    training_curves,
)

__all__ = [
    "ARM_STYLE",
    "BIN_MAP",
    "arm_style",
    "benchmark_bars",
    "bin_colours",
    "bookkeeping",
    "curve",
    "curve_data",
    "effects",
    "fig01",
    "fig02",
    "fig03",
    "fig04",
    "fig05",
    "fig06a",
    "fig06b",
    "fig07",
    "fig08",
    "fig09",
    "heterogeneity_map",
    "overhead",
    "reported_bars",
    "reported_table1",
    "run_curves",
    "save",
    "style",
    "tail_bars",
    "token_curves",
    "token_data",
    "training_curves",
    "worst_groups",
]
