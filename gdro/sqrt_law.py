"""Baselines without a bandit, at the exact budget: rollouts by the reward variance, or by the loss, seen so
far."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from gdro import checks
from gdro.allocation import variance_optimal
from gdro.batch_budget import Batch, Budget, BudgetedRule
from gdro.reward_variance import RewardVariance


@dataclass(frozen=True)
class SquareRootLawSettings:
    """Settings of `SquareRootLaw`, checked when made."""

    num_bins: int
    budget: Budget
    ema_rate: float

    def __post_init__(self):
        checks.whole_number("num_bins", self.num_bins, low=1)
        checks.real_number("ema_rate", self.ema_rate, above=0, high=1)


class SquareRootLaw(BudgetedRule):
    """The integer form of the square-root law (30): least sum_b counts_b v_b / n_b at the exact budget.

    Theorem 4.2, Panaganti et al. 2026, put to work directly: v_b is a running mean of the prompts' unbiased
    reward variances, and `gdro.allocation.variance_optimal` does the rest. The paper only compares with it.
    Bins without a variance so far count as the mean of those with one; before any, all bins are alike and the
    plan is as even as the budget allows.

    Stands where a `gdro.rollout_gdro.RolloutGDRO` does, without arm probabilities and price.

    Args: ``num_bins`` B; ``arms`` (A,) consecutive integers >= 2; ``mean_budget`` rollouts per prompt, within
    the arms; ``ema_rate`` in (0, 1] of the running mean, which the first batch of a bin sets.

    >>> import numpy as np
    >>> rule = SquareRootLaw(2, (2, 3, 4, 5, 6), 4)
    >>> rule.observe([0, 1], [0.0, 0.0], variances=[0.01, 0.25])
    >>> rule.plan([0, 1, 1, 0], np.random.default_rng(0))
    array([2, 6, 6, 2])
    """

    settings: SquareRootLawSettings

    def __init__(self, num_bins: int, arms: Sequence[int], mean_budget: float, ema_rate: float = 0.1):
        self.settings = SquareRootLawSettings(num_bins, Budget(arms, mean_budget), ema_rate)
        self._variance = RewardVariance(num_bins, ema_rate)

    @property
    def variances(self) -> np.ndarray:
        """(B,) variances that the next plan is made with."""
        seen = self._variance.counts > 0
        values = self._variance.values.copy()
        values[~seen] = values[seen].mean() if seen.any() else 0.0
        return values

    def plan(self, bins: ArrayLike, rng: np.random.Generator) -> np.ndarray:
        """Rollouts of each prompt, (P,) int64 summing to P * mean_budget; changes nothing.

        Args: ``bins`` (P,) integers in [-1, B), -1 takes the mean budget rounded down or up; ``rng`` a numpy
        Generator, which draws the prompts that get more where a bin must be split.
        Raises ``ValueError`` where P * mean_budget is no whole number, naming it; ``TypeError`` for a seed in
        place of the Generator.
        """
        batch = Batch.checked(bins, self.num_bins)
        checks.generator("rng", rng)
        own, excluded_total = self.settings.budget.shares(batch.counts, batch.excluded)
        assignment = variance_optimal(batch.counts, self.variances, self.arms, own)
        return batch.rollouts(assignment, self.arms, excluded_total, rng)

    def observe(self, bins: ArrayLike, losses: ArrayLike, *, variances: ArrayLike | None = None) -> None:
        """Fold in the reward variances of a batch; the losses are checked and not used.

        Args: ``bins`` (P,) integers in [-1, B), -1 left out; ``losses`` (P,) finite; ``variances`` (P,) >= 0,
        NaN for a prompt with fewer than two scored rollouts. Raises, nothing changed, for anything else.
        """
        bins, _ = self._checked(bins, losses)
        self._variance.observe(bins, variances)

    def _checked(self, bins, losses):
        bins = Batch.checked(bins, self.num_bins).bins
        return bins, checks.finite_array(
            "losses", losses, size=bins.size, remedy="give bin -1 and loss 0 instead"
        )

    def state_dict(self) -> dict:
        """Arrays and plain values that `load_state_dict` takes back."""
        return {
            "settings": json.dumps(asdict(self.settings), sort_keys=True),
            **self._variance.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from ``state``; raises ``ValueError``, nothing changed, for other settings (both sides are
        named) or a damaged state."""
        checks.check_settings(type(self).__name__, asdict(self.settings), state)
        checked = self._variance.checked_state(type(self).__name__, state)
        self._variance.values, self._variance.counts = checked


class LossProportional(SquareRootLaw):
    """Rollouts in proportion to the running mean of each bin's loss, as nearly as whole numbers go.

    The square-root law (30) with v_b the squared mean loss, so that the real-valued optimum is n_b = n_bar
    l_b / sum_j q_j l_j. With losses 1 - p a bin gets rollouts by how often it fails. Not in the paper.

    Arguments as `SquareRootLaw`; losses must not be negative.

    >>> rule = LossProportional(2, (2, 3, 4, 5, 6), 4)
    >>> rule.observe([0, 1], [0.9, 0.3])
    >>> rule.plan([0, 1, 1, 0], np.random.default_rng(0))
    array([6, 2, 2, 6])
    """

    @property
    def variances(self) -> np.ndarray:
        """(B,) squared mean losses, which the next plan is made with."""
        return super().variances ** 2

    def observe(self, bins: ArrayLike, losses: ArrayLike, *, variances: ArrayLike | None = None) -> None:
        """Fold in the losses of a batch (P,), finite and >= 0; ``variances`` are not used.

        Args: ``bins`` (P,) integers in [-1, B), -1 left out. Raises, nothing changed, for anything else.
        """
        bins, checked = self._checked(bins, losses)
        if checked.size and checked.min() < 0:
            raise ValueError(
                f"a loss is {checked.min()}: rollouts in proportion to the loss need losses of at least 0; "
                "use signal 'error' or 'spread'"
            )
        self._variance.observe(bins, checked)
