"""Adversary II: what the bins lost under their arms decides how many rollouts their prompts get next."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from gdro import checks
from gdro.allocation import assignment_marginals, best_assignment, sample_assignment
from gdro.batch_budget import Batch, Budget, BudgetedRule
from gdro.reward_variance import RewardVariance
from gdro.rollout_settings import RolloutSettings
from gdro.simplex import log_softmax_with_floor
from gdro.statistics import mean_by

_LARGEST_SCORE = 1e150


@dataclass(frozen=True, eq=False)
class _LastPlan:
    """What `observe` needs of the plan it refers to."""

    batch: Batch
    rollouts: np.ndarray
    log_probs: np.ndarray
    spent: int  # by the prompts in bins
    asked: float
    realised: float


class RolloutGDRO(BudgetedRule):
    """One bandit a bin over the arms (rollouts per prompt), held together by an exact budget and its price.

    At planning p_b(n) = (1 - exploration) softmax_n(step_size (S_b(n) - price (n - mean_budget))) +
    exploration/A. The arms of a batch are those of largest joint probability (``selection`` "map") or a draw
    from the product distribution ("sample") among the assignments that spend P * mean_budget exactly, (19).
    Eqs. (18) to (21), Panaganti et al. 2026.

    ``utility`` of an arm, averaged into S_b(n) from 0 at rate ``arm_ema_rate`` (None: summed):
      "loss"         -(mean loss of the bin's prompts), for the arm they were given: J_b(n), (18);
      "adversarial"  +(mean loss), the released code's sign;
      "variance"     -v_b / n for every arm, (28); v_b averages the prompts' reward variances at the same
                     rate, the first batch setting it (None: their plain mean, and -v_b / n is summed). Set
                     ``price_step_size`` to 0 with it: a plan counts each bin once, and where variances are
                     small a price alone decides, for the bins that hold the most prompts.

    ``budget`` "exact": with (19) met exactly (21) would never move, so price += price_step_size * (asked-for
    mean - mean_budget), the asked-for mean sum_b share_b sum_n p_b(n) n being taken before the projection on
    the budget. "dual": (21) itself; arms are drawn bin by bin from p_b (``selection`` has no effect) and the
    realised mean moves the price. The price moves at `observe`, once for a plan, so that planning again
    changes nothing. It acts as price * (n - mean_budget), which orders the arms as the paper's price * n
    does.

    ``importance_weighted``: utilities are mapped to [0, 1] by ``loss_bounds`` (a loss outside is refused) and
    divided by the true probability that the conditioned draw gave the bin this arm, 0 for the bin's other
    arms: unbiased, as in EXP3. Neither the paper nor the released code divides.

    Args: ``num_bins`` B; ``arms`` (A,) consecutive integers >= 2; ``mean_budget`` rollouts per prompt, within
    the arms; ``step_size``, ``price_step_size`` >= 0; ``exploration`` in [0, 1]; ``arm_ema_rate`` in (0, 1]
    or None.
    Raises ``ValueError`` or ``TypeError`` naming the value; importance weights need selection "sample", a
    utility of losses and, with an exact budget, a whole mean budget.

    >>> adversary = RolloutGDRO(2, arms=(2, 3, 4), mean_budget=3, utility="variance")
    >>> bins = [0, 0, 1, 1]
    >>> adversary.plan(bins, np.random.default_rng(0))
    array([3, 3, 3, 3])
    >>> adversary.observe(bins, [0.5, 0.4, 0.0, 0.1], variances=[0.25, 0.25, 0.0, 0.1])
    >>> adversary.plan(bins, np.random.default_rng(0))
    array([4, 4, 2, 2])
    """

    settings: RolloutSettings

    def __init__(
        self,
        num_bins: int,
        arms: Sequence[int] = tuple(range(2, 13)),
        mean_budget: float = 4,
        step_size: float = 0.65,
        exploration: float = 0.01,
        arm_ema_rate: float | None = 0.4,
        price_step_size: float = 0.05,
        budget: str = "exact",
        selection: str = "map",
        utility: str = "loss",
        importance_weighted: bool = False,
        *,
        loss_bounds: tuple[float, float] = (0.0, 1.0),
    ):
        self.settings = RolloutSettings(
            num_bins=num_bins,
            budget=Budget(arms, mean_budget),
            step_size=step_size,
            exploration=exploration,
            arm_ema_rate=arm_ema_rate,
            price_step_size=price_step_size,
            mode=budget,
            selection=selection,
            utility=utility,
            importance_weighted=importance_weighted,
            loss_bounds=loss_bounds,
        )
        self._scores = np.zeros((num_bins, len(self.arms)))
        self._variance = RewardVariance(num_bins, arm_ema_rate)
        self._price = 0.0
        self._asked = self._realised = float("nan")
        self._plan: _LastPlan | None = None
        self._log_probs: np.ndarray | None = None

    @classmethod
    def released(cls, num_bins, arms=tuple(range(2, 13)), mean_budget=4, price_step_size=0.05):
        """The rule as the authors' released code behaves: a fixed allocation that never learns.

        There a dictionary with the chosen arms is overwritten before the update, so the arm probabilities
        stay uniform. The price belongs to that update too (it would be added to an arm's loss, and moved):
        ``shadow_price`` is 0 for ever, and ``price_step_size`` is checked and kept, and does nothing. All
        assignments tie; which one wins follows from its loop, reproduced here: bins in order of first
        appearance, arms ascending, only a strict gain replaces. So the bin that appears last gets the
        smallest arm that leaves the others a way to spend the rest, and so on backwards. Departure: the
        released code uses the bins of the batch before, by position; here, the prompts' own.

        >>> RolloutGDRO.released(3, mean_budget=4).plan([2, 0, 1], np.random.default_rng(0))
        array([8, 2, 2])
        """
        adversary = cls(num_bins, arms=arms, mean_budget=mean_budget, price_step_size=price_step_size)
        adversary.settings = replace(adversary.settings, released=True)
        return adversary

    @property
    def scores(self) -> np.ndarray:
        """(B, A) scores S_b(n); 0 for bins never observed."""
        return self._scores.copy()

    @property
    def arm_probabilities(self) -> np.ndarray:
        """(B, A) p_b(n) that the next plan is made with; every entry at least exploration / A."""
        return np.exp(self._log_probabilities())

    @property
    def shadow_price(self) -> float:
        """The price of a rollout, of any sign."""
        return self._price

    @property
    def asked_mean(self) -> float:
        """Rollouts per prompt that the bandits asked for in the last plan; NaN before it, or with all prompts
        in bin -1."""
        return self._asked

    @property
    def realised_mean(self) -> float:
        """Rollouts per prompt of the last plan, mean_budget in exact mode; NaN before a plan."""
        return self._realised

    def _log_probabilities(self):
        """(B, A) log p_b(n), kept until `observe` or `load_state_dict` changes what they come from."""
        s = self.settings
        if s.released:
            return np.full(self._scores.shape, -np.log(len(self.arms)))
        if self._log_probs is None:
            excess = np.array(self.arms) - self.mean_budget
            logits = s.step_size * (self._scores - self._price * excess)
            self._log_probs = log_softmax_with_floor(logits, s.exploration)
        return self._log_probs

    def plan(self, bins: ArrayLike, rng: np.random.Generator) -> np.ndarray:
        """Rollouts of each prompt. May be called again; `observe` refers to the last call. Learns nothing.

        Every prompt of a bin gets its arm. Only where no such assignment meets an exact budget, one bin is
        split between two adjacent arms; which of its prompts get more is drawn. Bin -1 takes the mean budget
        rounded down or up.

        Args: ``bins`` (P,) integers in [-1, B); ``rng`` a numpy Generator.
        Returns (P,) int64, in exact mode summing to P * mean_budget.
        Raises ``ValueError`` where that is no whole number, naming it; ``TypeError`` for a seed in place of
        the Generator.
        """
        batch = Batch.checked(bins, self.num_bins)
        checks.generator("rng", rng)
        log_probs = self._log_probabilities()
        assignment, excluded_total = self._assignment(batch, log_probs, rng)
        rollouts = batch.rollouts(assignment, self.arms, excluded_total, rng)
        total = int(rollouts.sum())
        self._asked = _mean_asked(batch.counts, log_probs, self.arms)
        self._realised = total / rollouts.size if rollouts.size else float("nan")
        self._plan = _LastPlan(
            batch, rollouts.copy(), log_probs, total - excluded_total, self._asked, self._realised
        )
        return rollouts

    def _assignment(self, batch, log_probs, rng):
        """(B, A) prompts per bin and arm, and what bin -1 spends."""
        s, counts = self.settings, batch.counts
        if s.mode == "dual":
            arm = (np.exp(log_probs).cumsum(axis=1)[:, :-1] <= rng.random(self.num_bins)[:, None]).sum(axis=1)
            assignment = np.zeros(log_probs.shape, dtype=np.int64)
            assignment[np.arange(self.num_bins), arm] = counts
            return assignment, int(np.floor(batch.excluded * self.mean_budget + rng.random()))
        own, excluded_total = s.budget.shares(counts, batch.excluded)
        if s.released:
            return _released_assignment(batch, log_probs, self.arms, own), excluded_total
        if s.selection == "sample":
            return sample_assignment(counts, log_probs, self.arms, own, rng), excluded_total
        return best_assignment(counts, log_probs, self.arms, own), excluded_total

    def observe(self, bins: ArrayLike, losses: ArrayLike, *, variances: ArrayLike | None = None) -> None:
        """Fold what came of the last plan into scores and price; that plan is then used up.

        Args: ``bins`` (P,) those of the last plan, in its order, or -1 for a prompt that takes no part;
        ``losses`` (P,) finite prompt losses (7); ``variances`` (P,) unbiased variance of each prompt's
        rewards, >= 0, NaN where it has fewer than two, needed by utility "variance". Scores beyond 1e150 stay
        there.
        Raises ``ValueError``, nothing changed, without a plan, for other bins than planned, for a loss that
        is not finite or is outside ``loss_bounds`` under importance weights, for a negative variance.
        """
        plan, bins = self._checked_plan(bins)
        losses = checks.finite_array(
            "losses", losses, size=bins.size, remedy="give bin -1 and loss 0 instead"
        )
        if self.settings.utility == "variance":
            self._observe_variances(bins, variances)
        elif not self.settings.released:
            self._observe_losses(plan, bins, losses)
        driver = plan.realised if self.settings.mode == "dual" else plan.asked
        if plan.batch.counts.any() and not self.settings.released:
            self._price += self.settings.price_step_size * (driver - self.mean_budget)
        self._plan = self._log_probs = None

    def _checked_plan(self, bins) -> tuple[_LastPlan, np.ndarray]:
        if self._plan is None:
            raise ValueError(
                "there is no plan to observe; call plan(bins, rng) first, once for each observation"
            )
        planned = self._plan.batch.bins
        bins = checks.integer_array("bins", bins, low=-1, high=self.num_bins - 1, size=planned.size)
        other = (bins != planned) & (bins != -1)
        if other.any():
            at = int(np.argmax(other))
            raise ValueError(
                f"bins[{at}] is {bins[at]}, planned was {planned[at]}; "
                "observe with the bins of the last plan, or -1 for a prompt that takes no part"
            )
        return self._plan, bins

    def _observe_losses(self, plan, bins, losses):
        """Scores of the arms that the bins were given."""
        taking_part = bins >= 0
        bins, losses = bins[taking_part], losses[taking_part]
        cells = bins * len(self.arms) + plan.rollouts[taking_part] - self.arms[0]
        means = mean_by(cells, self._bounded(losses), self._scores.size).reshape(self._scores.shape)
        used = ~np.isnan(means)
        if not self.settings.importance_weighted:
            sign = 1 if self.settings.utility == "adversarial" else -1
            self._scores[used] = self._updated(self._scores[used], sign * means[used])
            return
        gains = means if self.settings.utility == "adversarial" else 1 - means
        present = used.any(axis=1)
        estimates = np.zeros(means.shape)
        estimates[used] = gains[used] / self._propensities(plan)[used]
        self._scores[present] = self._updated(self._scores[present], estimates[present])

    def _bounded(self, losses):
        """Losses as they are, or mapped from ``loss_bounds`` to [0, 1] under importance weights."""
        if not self.settings.importance_weighted:
            return losses
        low, high = self.settings.loss_bounds
        outside = (losses < low) | (losses > high)
        if outside.any():
            raise ValueError(
                f"a loss is {losses[outside][0]}, outside loss_bounds ({low}, {high}), which importance "
                "weights need; state wider loss_bounds, or set importance_weighted=False"
            )
        return (losses - low) / (high - low)

    def _propensities(self, plan):
        """(B, A) probability with which the plan gave each bin each arm."""
        if self.settings.mode == "dual":
            return np.exp(plan.log_probs)
        return assignment_marginals(plan.batch.counts, plan.log_probs, self.arms, plan.spent)

    def _observe_variances(self, bins, variances):
        """Scores of every arm of the bins with a variance: -v_b / n."""
        seen = self._variance.observe(bins, variances)
        utilities = -self._variance.values[seen, None] / np.array(self.arms)
        # with a rate v_b is smoothed already, and -v_b / n is the smoothed utility
        summed = self.settings.arm_ema_rate is None
        self._scores[seen] = self._updated(self._scores[seen], utilities) if summed else utilities

    def _updated(self, old, utilities):
        rate = self.settings.arm_ema_rate
        new = old + utilities if rate is None else (1 - rate) * old + rate * utilities
        return np.clip(new, -_LARGEST_SCORE, _LARGEST_SCORE)

    def state_dict(self) -> dict:
        """Arrays and plain values that `load_state_dict` takes back, without a plan not yet observed."""
        return {
            "settings": json.dumps(asdict(self.settings), sort_keys=True),
            "scores": self._scores.copy(),
            **self._variance.state_dict(),
            "price": self._price,
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from ``state``, without a plan; raises ``ValueError``, nothing changed, for other settings
        (both sides are named) or a damaged state."""
        checks.check_settings("RolloutGDRO", asdict(self.settings), state)
        scores = checks.state_array("RolloutGDRO", state, "scores", shape=self._scores.shape, kind="f")
        price = checks.state_array("RolloutGDRO", state, "price", shape=(), kind="f")
        for name, values in (("scores", scores), ("price", price)):
            checks.finite_array(f"saved {name}", values.ravel(), remedy="the file was damaged")
        self._variance.values, self._variance.counts = self._variance.checked_state("RolloutGDRO", state)
        self._scores, self._price = scores, float(price)
        self._plan = self._log_probs = None
        self._asked = self._realised = float("nan")


def _mean_asked(counts, log_probs, arms):
    """sum_b share_b sum_n p_b(n) n over the bins with prompts; NaN without one."""
    if not counts.any():
        return float("nan")
    return float(counts @ (np.exp(log_probs) @ np.array(arms)) / counts.sum())


def _released_assignment(batch, log_probs, arms, budget):
    """The first assignment found by the released loop: reversed order of appearance, smallest arms first."""
    first = np.full(batch.num_bins, batch.bins.size)
    np.minimum.at(first, batch.bins[batch.bins >= 0], np.flatnonzero(batch.bins >= 0))
    order = np.argsort(-first, kind="stable")
    assignment = np.empty(log_probs.shape, dtype=np.int64)
    assignment[order] = best_assignment(batch.counts[order], log_probs[order], arms, budget, ties="first")
    return assignment
