"""Settings of the difficulty classifier, checked when made."""

from dataclasses import dataclass

import numpy as np

from gdro import checks

_ESTIMATORS = ("any", "unbiased", "posterior")


@dataclass(frozen=True)
class DifficultySettings:
    """Settings of `gdro.difficulty.OnlineDifficultyClassifier`; their meaning stands there.

    ``inner_edges`` ascend in (0, 1).
    """

    num_prompts: int
    inner_edges: tuple
    window: int
    hysteresis: float
    estimator: str
    k: int
    confidence: float
    exclude_extremes: bool

    def __post_init__(self):
        checks.whole_number("num_prompts", self.num_prompts, low=1)
        checks.whole_number("window", self.window, low=1)
        checks.one_of("estimator", self.estimator, _ESTIMATORS)
        checks.whole_number("k", self.k, low=1)
        checks.real_number("confidence", self.confidence, low=0.5, below=1)
        checks.boolean("exclude_extremes", self.exclude_extremes)
        narrowest = np.diff([0.0, *self.inner_edges, 1.0]).min()
        checks.real_number("hysteresis", self.hysteresis, low=0)
        if self.hysteresis >= narrowest - 1e-9:  # edges are rounded numbers
            raise ValueError(
                f"hysteresis {self.hysteresis} must be smaller than the narrowest bin, {narrowest:.6g} wide; "
                "lower it, or use fewer bins"
            )


def inner_edges(edges):
    """Ascending inner edges in (0, 1) from a number of equal bins, or from the edges themselves.

    >>> inner_edges(4), inner_edges([0.3, 0.7])
    ((0.25, 0.5, 0.75), (0.3, 0.7))
    """
    if isinstance(edges, (int, np.integer)) and not isinstance(edges, bool):
        bins = checks.whole_number("edges", edges, low=1)
        return tuple(b / bins for b in range(1, bins))
    if np.ndim(edges) != 1:
        raise ValueError(
            f"edges must be a whole number of equal bins, or ascending inner edges in (0, 1), got {edges!r}"
        )
    inner = checks.finite_array("edges", edges, remedy="give ascending inner edges in (0, 1)")
    if not inner.size:
        raise ValueError("edges is empty; give inner edges, or a number of equal bins, 1 for one bin")
    if not (inner[0] > 0 and inner[-1] < 1 and (np.diff(inner) > 0).all()):
        raise ValueError(
            f"edges must ascend strictly inside (0, 1), got {inner.tolist()}; leave out 0 and 1 themselves"
        )
    return tuple(inner.tolist())
