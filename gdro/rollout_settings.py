"""Settings of Rollout-GDRO, checked when made."""

from dataclasses import dataclass

import numpy as np

from gdro import checks
from gdro.batch_budget import Budget


@dataclass(frozen=True)
class RolloutSettings:
    """Settings of `gdro.rollout_gdro.RolloutGDRO`; their meaning stands there. ``mode`` is its ``budget``."""

    num_bins: int
    budget: Budget
    step_size: float
    exploration: float
    arm_ema_rate: float | None
    price_step_size: float
    mode: str
    selection: str
    utility: str
    importance_weighted: bool
    loss_bounds: tuple
    released: bool = False

    def __post_init__(self):
        checks.whole_number("num_bins", self.num_bins, low=1)
        checks.real_number("step_size", self.step_size, low=0)
        checks.real_number("exploration", self.exploration, low=0, high=1)
        if self.arm_ema_rate is not None:
            checks.real_number("arm_ema_rate", self.arm_ema_rate, above=0, high=1)
        checks.real_number("price_step_size", self.price_step_size, low=0)
        checks.one_of("budget", self.mode, ("exact", "dual"))
        checks.one_of("selection", self.selection, ("map", "sample"))
        checks.one_of("utility", self.utility, ("loss", "adversarial", "variance"))
        checks.boolean("importance_weighted", self.importance_weighted)
        self._check_loss_bounds()
        if self.importance_weighted:
            self._check_importance_weighted()

    def _check_loss_bounds(self):
        if np.shape(self.loss_bounds) != (2,):
            raise ValueError(f"loss_bounds must be (low, high), got {self.loss_bounds!r}")
        low, high = (checks.real_number("loss_bounds", bound) for bound in self.loss_bounds)
        if not low < high:
            raise ValueError(f"loss_bounds must be (low, high) with low < high, got {self.loss_bounds}")
        object.__setattr__(self, "loss_bounds", (low, high))

    def _check_importance_weighted(self):
        if self.selection != "sample":
            raise ValueError(
                f"importance_weighted=True needs selection='sample', got {self.selection!r}: "
                "the arg max has propensity 0 or 1"
            )
        if self.utility == "variance":
            raise ValueError(
                "importance_weighted=True does not go with utility='variance', which tells the utility of "
                "every arm; set importance_weighted=False, or utility 'loss' or 'adversarial'"
            )
        if self.mode == "exact" and not isinstance(self.budget.mean_budget, int):
            raise ValueError(
                f"importance_weighted=True with budget='exact' needs a whole mean_budget, got "
                f"{self.budget.mean_budget}: it may split a bin between two arms, which have no propensity"
            )
