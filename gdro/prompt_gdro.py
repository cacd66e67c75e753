"""Adversary I: the losses of the bins, smoothed into scores, become weights on advantages.

It sees the loss of every bin in the batch, so it is full-information Hedge on a moving average, not EXP3.P
(which is `gdro.exp3p`), although the paper names it so.
"""

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from gdro import checks
from gdro.simplex import softmax_with_floor
from gdro.statistics import mean_by

_LARGEST = np.finfo(np.float64).max
_SCORES = ("ema", "cumulative")
_NORMALIZATIONS = ("none", "mean_one")


@dataclass(frozen=True)
class PromptSettings:
    """Settings of `PromptGDRO`, checked when made; their meaning stands there."""

    num_bins: int
    step_size: float
    exploration: float
    ema_rate: float
    score: str
    score_clip: float
    max_weight: float
    share_normalized: bool
    share_floor: float
    normalization: str

    def __post_init__(self):
        checks.whole_number("num_bins", self.num_bins, low=1)
        checks.real_number("step_size", self.step_size, low=0)
        checks.real_number("exploration", self.exploration, low=0, high=1)
        checks.real_number("ema_rate", self.ema_rate, above=0, high=1)
        checks.one_of("score", self.score, _SCORES)
        checks.real_number("score_clip", self.score_clip, above=0)
        checks.real_number("max_weight", self.max_weight, above=0)
        checks.boolean("share_normalized", self.share_normalized)
        checks.real_number("share_floor", self.share_floor, above=0, high=1)
        checks.one_of("normalization", self.normalization, _NORMALIZATIONS)
        if self.step_size * self.score_clip > 700:
            raise ValueError(
                f"step_size {self.step_size} times score_clip {self.score_clip} is "
                f"{self.step_size * self.score_clip}; exp of it overflows above 700, lower one of them"
            )


class PromptGDRO:
    """Scores per bin (12), weights (14) capped as in (16), and the adversary's distribution (15).

    S_t(b) = (1 - ema_rate) S_{t-1}(b) + ema_rate * lbar_t(b) for bins in the batch, the first observation
    setting it; omega(b) = exp(step_size * clip(S(b), -C, C)); q = (1 - exploration) omega / sum omega +
    exploration / B. Eqs. (12) to (16), Panaganti et al. 2026.

    What the paper leaves open. C: ``score_clip`` 5.0. At the paper's step size 0.65 and cap 15 a weight meets
    the cap at S = ln(15) / 0.65 = 4.17, so 5 is the first round number where the cap, not the clip, bounds
    what acts on an advantage; below, the clip keeps a weight above exp(-3.25) = 1/26, so that no bin is ever
    silenced. Smoothed losses in [0, 1] meet it only where they are divided by shares. ``share_floor`` 0.05:
    half of the share that each of ten bins would have, so that rare bins are raised at most twentyfold, and a
    bin with one prompt of 256 not 256-fold.

    Departures. ``score="cumulative"`` (class-based baseline of 4.2.3) sums lbar without smoothing; its
    ``distribution`` is the softmax of the unclipped sums, exponentiated gradient as in Sagawa et al. 2020,
    since a clipped sum ends up at C in every bin; use it with ``normalization="mean_one"``.
    ``share_normalized=True`` divides lbar by max(share of the batch's participating prompts, share_floor), as
    the appendix and the released code do: lbar is a mean already, so this favours rare bins.
    ``normalization="mean_one"`` is the released code's: q scaled to mean 1 over the batch, then capped.

    Args: ``num_bins`` B; ``step_size`` >= 0; ``exploration`` in [0, 1]; ``ema_rate`` in (0, 1];
    ``max_weight`` > 0.

    >>> adversary = PromptGDRO(2, step_size=1.0)
    >>> adversary.observe([0, 0, 1], [0.5, 1.5, 0.0])
    >>> adversary.weights.round(4), adversary.weights_for([1, 0, -1]).round(4)
    (array([2.7183, 1.    ]), array([1.    , 2.7183, 1.    ]))
    """

    def __init__(
        self,
        num_bins: int,
        step_size: float = 0.65,
        exploration: float = 0.01,
        ema_rate: float = 0.12,
        score: str = "ema",
        score_clip: float = 5.0,
        max_weight: float = 15.0,
        share_normalized: bool = False,
        share_floor: float = 0.05,
        normalization: str = "none",
    ):
        self.settings = PromptSettings(
            num_bins=num_bins,
            step_size=step_size,
            exploration=exploration,
            ema_rate=ema_rate,
            score=score,
            score_clip=score_clip,
            max_weight=max_weight,
            share_normalized=share_normalized,
            share_floor=share_floor,
            normalization=normalization,
        )
        self._scores = np.zeros(num_bins)
        self._seen = np.zeros(num_bins, dtype=bool)

    @property
    def num_bins(self) -> int:
        """Number of bins B."""
        return self.settings.num_bins

    @property
    def scores(self) -> np.ndarray:
        """(B,) scores S, unclipped; 0 for bins never observed."""
        return self._scores.copy()

    @property
    def weights(self) -> np.ndarray:
        """(B,) omega = exp(step_size * clip(S, -C, C)), eq. (14), before the cap; 1 where never observed."""
        s = self.settings
        return np.exp(s.step_size * np.clip(self._scores, -s.score_clip, s.score_clip))

    @property
    def distribution(self) -> np.ndarray:
        """(B,) q, eq. (15): every entry at least exploration / B, summing to 1."""
        s = self.settings
        if s.score == "ema":
            logits = s.step_size * np.clip(self._scores, -s.score_clip, s.score_clip)
        else:
            with np.errstate(over="ignore"):
                logits = s.step_size * np.maximum(
                    self._scores - self._scores.max(), -_LARGEST / (1 + s.step_size)
                )
        return softmax_with_floor(logits, s.exploration)

    def bin_weights(self, bins: ArrayLike) -> np.ndarray:
        """(B,) weight that ``weights_for(bins)`` gives each bin, also those without a prompt."""
        bins = self._checked_bins(bins)
        return self._bin_weights(bins)

    def weights_for(self, bins: ArrayLike) -> np.ndarray:
        """(P,) weight on the advantages of each prompt, eq. (16): min(omega, max_weight); 1 for bin -1.

        With normalization "mean_one": q scaled to mean 1 over the participating prompts, then capped.
        Args: ``bins`` (P,) integers in [-1, B). Changes nothing.
        """
        bins = self._checked_bins(bins)
        weights = self._bin_weights(bins)[bins]
        weights[bins < 0] = 1.0
        return weights

    def _bin_weights(self, bins):
        s = self.settings
        if s.normalization == "none":
            return np.minimum(self.weights, s.max_weight)
        q = self.distribution
        counts = np.bincount(bins + 1, minlength=s.num_bins + 1)[1:]
        mean = counts @ q / counts.sum() if counts.any() else q.mean()
        # with exploration 0 a batch may lie in bins of probability 0 altogether: no preference among them
        return np.minimum(q / mean, s.max_weight) if mean > 0 else np.full(s.num_bins, min(1.0, s.max_weight))

    def observe(self, bins: ArrayLike, losses: ArrayLike) -> None:
        """Fold a batch's prompt losses into the scores, eq. (12).

        Args: ``bins`` (P,) integers in [-1, B), -1 ignored; ``losses`` (P,) finite. The order of the prompts
        does not matter, nor does how many prompts a bin has (without share normalisation). A score beyond the
        range of float64 stays at its end. Raises, with nothing changed, for a loss that is not finite or a
        bin that does not exist.
        """
        bins = self._checked_bins(bins)
        losses = checks.finite_array(
            "losses", losses, size=bins.size, remedy="give bin -1 and loss 0 to leave a prompt out"
        )
        taking_part = bins >= 0
        if not taking_part.any():
            return
        taken = bins[taking_part]
        counts = np.bincount(taken, minlength=self.num_bins)
        present = np.flatnonzero(counts)
        means = mean_by(taken, losses[taking_part], self.num_bins)[present]
        with np.errstate(over="ignore"):
            if self.settings.share_normalized:
                means = np.clip(
                    means / np.maximum(counts[present] / taken.size, self.settings.share_floor),
                    -_LARGEST,
                    _LARGEST,
                )
            self._scores[present] = self._updated(self._scores[present], means, self._seen[present])
        self._seen[present] = True

    def _updated(self, old, means, seen):
        if self.settings.score == "cumulative":
            return np.clip(old + means, -_LARGEST, _LARGEST)
        rate = self.settings.ema_rate
        return np.where(seen, (1 - rate) * old + rate * means, means)

    def _checked_bins(self, bins) -> np.ndarray:
        return checks.integer_array("bins", bins, low=-1, high=self.num_bins - 1)

    def state_dict(self) -> dict:
        """Arrays and plain values that `load_state_dict` takes back."""
        return {
            "settings": json.dumps(asdict(self.settings), sort_keys=True),
            "scores": self._scores.copy(),
            "seen": self._seen.copy(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from ``state``; raises ``ValueError``, nothing changed, for other settings (both sides are
        named)."""
        checks.check_settings("PromptGDRO", asdict(self.settings), state)
        shape = (self.num_bins,)
        scores = checks.state_array("PromptGDRO", state, "scores", shape=shape, kind="f")
        seen = checks.state_array("PromptGDRO", state, "seen", shape=shape, kind="b")
        checks.finite_array("saved scores", scores, remedy="the file was damaged")
        self._scores, self._seen = scores, seen
