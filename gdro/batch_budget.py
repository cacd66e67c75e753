"""A batch's rollout budget: how much its prompts spend in all, and which prompt gets how many.

Prompts in bin -1 take part in no decision: each gets the mean budget, rounded down or up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gdro import checks
from gdro.allocation import consecutive_arms, one_arm_budgets


@dataclass(frozen=True)
class Budget:
    """Arms and mean budget of an allocation rule, checked when made.

    ``arms`` consecutive integers >= 2; ``mean_budget`` rollouts per prompt, within the arms, whole or not.
    """

    arms: Sequence[int]
    mean_budget: float

    def __post_init__(self):
        arms = tuple(consecutive_arms(self.arms, low=2).tolist())
        mean = checks.real_number("mean_budget", self.mean_budget)
        if not arms[0] <= mean <= arms[-1]:
            raise ValueError(
                f"mean_budget {self.mean_budget} is outside the arms {arms[0]}..{arms[-1]}; "
                "choose it inside, or other arms"
            )
        object.__setattr__(self, "arms", arms)
        object.__setattr__(self, "mean_budget", int(mean) if mean == int(mean) else mean)

    def total(self, num_prompts):
        """Rollouts of a batch, num_prompts * mean_budget, refused by value where it is not whole.

        >>> Budget((2, 3, 4), 2.5).total(4)
        10
        """
        total = num_prompts * self.mean_budget
        if abs(total - round(total)) > 1e-9 * max(1.0, total):
            raise ValueError(
                f"{num_prompts} prompts times mean_budget {self.mean_budget} is {total}, not a whole number "
                "of rollouts; change the batch or the mean budget"
            )
        return round(total)

    def shares(self, counts, excluded):
        """(rollouts of the prompts in bins, rollouts of the ``excluded`` ones); together `total`, exactly.

        The excluded get the whole number nearest to excluded * mean_budget that lets the others do with one
        arm for each bin; where none does, the nearest. ``counts`` (B,) prompts in each bin.

        >>> Budget((2, 3), 2.5).shares([3, 0], 1)
        (8, 2)
        """
        total = self.total(int(np.sum(counts)) + excluded)
        if not excluded:
            return total, 0
        if isinstance(self.mean_budget, int):
            return total - excluded * self.mean_budget, excluded * self.mean_budget
        wanted = excluded * self.mean_budget
        low = excluded * int(self.mean_budget)
        options = np.arange(low, low + excluded + 1)
        excess = total - options - int(np.sum(counts)) * self.arms[0]
        reachable = one_arm_budgets(counts, len(self.arms))
        possible = (excess >= 0) & (excess < reachable.size)
        met = possible & reachable[np.clip(excess, 0, reachable.size - 1)]
        options = options[met if met.any() else possible]
        own = int(options[np.argmin(np.abs(options - wanted))])
        return total - own, own


class BudgetedRule:
    """What every rule with ``settings`` of a `Budget` tells of them."""

    settings: Any  # of the rule's own kind

    @property
    def num_bins(self) -> int:
        """Number of bins B."""
        return self.settings.num_bins

    @property
    def arms(self) -> Sequence[int]:
        """The arms, a tuple of A rollout counts."""
        return self.settings.budget.arms

    @property
    def mean_budget(self) -> float:
        """Rollouts per prompt; an int where it is whole."""
        return self.settings.budget.mean_budget


@dataclass(frozen=True, eq=False)
class Batch:
    """The prompts of a batch by ``bins`` (P,) in [-1, B)."""

    bins: np.ndarray
    num_bins: int

    @classmethod
    def checked(cls, bins, num_bins) -> "Batch":
        """A batch after a check of ``bins``."""
        return cls(checks.integer_array("bins", bins, low=-1, high=num_bins - 1).copy(), num_bins)

    @cached_property
    def counts(self):
        """(B,) prompts in each bin."""
        return np.bincount(self.bins[self.bins >= 0], minlength=self.num_bins)

    @cached_property
    def excluded(self):
        """Number of prompts in bin -1."""
        return int(self.bins.size - self.counts.sum())

    def rollouts(self, assignment, arms, excluded_total, rng):
        """(P,) int64 rollouts of each prompt.

        Args: ``assignment`` (B, A) prompts of each bin on each of ``arms`` (A,); ``excluded_total`` what bin
        -1 spends, dealt evenly. Which prompts of a bin get which of its arms is drawn from ``rng``, as many
        numbers as there are prompts, needed or not.
        """
        draws = rng.random(self.bins.size)
        rest, more = divmod(excluded_total, self.excluded) if self.excluded else (0, 0)
        arms = np.array(arms)
        rollouts = np.append(arms[assignment.argmax(axis=1)], rest)[self.bins]
        for b in np.flatnonzero(np.count_nonzero(assignment, axis=1) > 1):
            rollouts[self._shuffled(b, draws)] = arms.repeat(assignment[b])
        if more:
            rollouts[self._shuffled(-1, draws)[:more]] += 1
        return rollouts

    def _shuffled(self, b, draws):
        """The prompts of bin b in the order of ``draws`` (P,)."""
        members = np.flatnonzero(self.bins == b)
        return members[draws[members].argsort(kind="stable")]
