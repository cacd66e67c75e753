"""Online difficulty classifier: outcomes of each prompt -> estimate of pass@k -> bin, with hysteresis.

Section 3.1, eqs. (10) and (11), Panaganti et al. 2026. Bin 0 is the lowest pass rate, the hardest.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc

from gdro import checks, windows
from gdro.difficulty_settings import DifficultySettings, inner_edges
from gdro.statistics import beta_prior, miss_probability

_ON_EDGE = 1e-9
_UNSEEN = (1.0, 1.0)  # the prior before the first fit: uniform
_MOST_ROLLOUTS = np.iinfo(np.uint32).max


class OnlineDifficultyClassifier:
    """Keeps the last visits of every prompt and sorts the prompts into pass-rate bins.

    Bin b is [a_b, a_{b+1}), the last closed, eq. (11); an estimate within 1e-9 of an edge belongs to the
    upper bin. The first observation assigns freely. Later a prompt moves
      up    to the highest b whose lower edge satisfies estimate >= a_b + hysteresis,
      down  to the lowest b whose upper edge satisfies estimate <= a_{b+1} - hysteresis, else stays.

    Estimates over the window (``pass_rate``):
      "any"        mean of the indicators "some rollout was right", eq. (10); unseen prompts 0;
      "unbiased"   from c of n pooled over the window, 1 - C(n-c,k)/C(n,k) once n >= k, before that
                   1 - (1-c/n)^k; unseen prompts 0;
      "posterior"  mean of 1 - (1-p)^k under Beta(a+c, b+n-c). A prompt moves over a boundary when the
                   posterior mass beyond it exceeds ``confidence``: up to the highest such bin, down to the
                   lowest. The prior (a, b) is Beta(1, 1) until fitted, by `statistics.beta_prior`, to the
                   windows of all visited prompts, in the calls of observe number 1, 2, 4, 8, 16 and every
                   16th from there. Unseen prompts have the prior's mean and its bin.

    Departures: the paper has "any" alone and no rule for jumps over several bins; released code cannot move
    down.

    Memory for each prompt with window 100: "any" 19 bytes (13 of bits, 4 visits, 1 count, 1 bin), so 19 MB
    for a million prompts; "unbiased" and "posterior" 213 bytes (200 of counts, 8 of sums, 4 visits, 1 bin),
    or 413 once a visit had more than 255 rollouts.

    Args: ``edges`` a number of equal bins, or ascending inner edges in (0, 1); ``window`` visits kept, >= 1;
    ``hysteresis`` in [0, narrowest bin); ``k`` of pass@k, >= 1; ``confidence`` in [0.5, 1).
    ``exclude_extremes``: a prompt of at least two visits whose estimate is exactly 0 or 1 is in bin -1 until
    it is not. A posterior mean is never 0 or 1: there, the window having no success or no failure counts.
    An excluded prompt is still observed, its estimate and bin kept up to date.

    >>> classifier = OnlineDifficultyClassifier(4, edges=[0.5])
    >>> classifier.observe([2, 3, 3], [1, 0, 4], [4, 4, 4])
    >>> classifier.pass_rate([1, 2, 3]), classifier.bins([1, 2, 3])
    (array([0. , 1. , 0.5]), array([0, 1, 1]))
    """

    def __init__(
        self,
        num_prompts: int,
        edges: int | Sequence[float] = 10,
        window: int = 100,
        hysteresis: float = 0.03,
        estimator: str = "any",
        k: int = 8,
        confidence: float = 0.9,
        exclude_extremes: bool = False,
    ):
        self.settings = DifficultySettings(
            num_prompts=num_prompts,
            inner_edges=inner_edges(edges),
            window=window,
            hysteresis=hysteresis,
            estimator=estimator,
            k=k,
            confidence=confidence,
            exclude_extremes=exclude_extremes,
        )
        inner = np.array(self.settings.inner_edges)
        self._free_above = inner - _ON_EDGE
        self._up_from = inner + hysteresis - _ON_EDGE
        self._down_to = inner - hysteresis + _ON_EDGE
        self._rate_edges = -np.expm1(np.log1p(-inner) / k)  # pass@k on the edge <=> pass rate on this one
        self._visits = np.zeros(num_prompts, dtype=np.uint32)
        self._bins = np.zeros(num_prompts, dtype=np.int8 if self.num_bins <= 127 else np.int32)
        self._window = self._fresh_window()
        self._prior = _UNSEEN
        self._calls = 0

    def _fresh_window(self):
        kind = windows.BitWindow if self.settings.estimator == "any" else windows.CountWindow
        return kind(self.settings.num_prompts, self.settings.window)

    @property
    def num_prompts(self) -> int:
        """Number of prompts N; they are named 0 to N - 1."""
        return self.settings.num_prompts

    @property
    def num_bins(self) -> int:
        """Number of bins B."""
        return len(self.settings.inner_edges) + 1

    @property
    def edges(self) -> np.ndarray:
        """(B+1,) edges from 0 to 1."""
        return np.array([0.0, *self.settings.inner_edges, 1.0])

    @property
    def prior(self) -> tuple[float, float]:
        """(a, b) of the Beta prior on the pass rate; used by estimator "posterior" only."""
        return self._prior

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that grow with the number of prompts."""
        return (
            self._visits.nbytes
            + self._bins.nbytes
            + sum(getattr(self._window, name).nbytes for name in self._window.arrays)
        )

    def visits(self, prompts: ArrayLike) -> np.ndarray:
        """(P,) number of visits of each prompt, also those that have left the window. ``prompts`` (P,) in [0,
        N)."""
        return self._visits[self._checked_prompts(prompts)].astype(np.int64)

    def pass_rate(self, prompts: ArrayLike) -> np.ndarray:
        """(P,) current estimate of pass@k in [0, 1]. ``prompts`` (P,) in [0, N). Changes nothing."""
        return self._estimate(self._checked_prompts(prompts))

    def bins(self, prompts: ArrayLike) -> np.ndarray:
        """(P,) current bin of each prompt in [0, B), or -1 where excluded. ``prompts`` (P,) in [0, N).
        Changes nothing."""
        prompts = self._checked_prompts(prompts)
        bins = self._bins[prompts].astype(np.int64)
        if self.settings.estimator == "posterior":
            bins[self._visits[prompts] == 0] = self._free_bins(self._prior_mean())
        if self.settings.exclude_extremes:
            bins[self._extreme(prompts)] = -1
        return bins

    def observe(self, prompts: ArrayLike, correct: ArrayLike, rollouts: ArrayLike) -> None:
        """Fold in one visit for each entry, then reassign the prompts visited.

        Args: integers (P,): ``prompts`` in [0, N), a prompt twice makes two visits in the order given;
        ``correct`` in [0, rollouts]; ``rollouts`` >= 0, where 0 is no visit. Raises ``ValueError`` or
        ``TypeError``, nothing changed, for anything else, naming value and limit.
        """
        prompts = self._checked_prompts(prompts)
        correct = checks.integer_array("correct", correct, low=0, size=prompts.size)
        rollouts = checks.integer_array("rollouts", rollouts, low=0, high=_MOST_ROLLOUTS, size=prompts.size)
        if (correct > rollouts).any():
            at = int(np.argmax(correct > rollouts))
            raise ValueError(
                f"correct[{at}] is {correct[at]}, above the {rollouts[at]} rollouts of prompt {prompts[at]}"
            )
        self._calls += 1
        if rollouts.size and rollouts.min() == 0:
            visited = rollouts > 0
            self._fold_in(prompts[visited], correct[visited], rollouts[visited])
        else:
            self._fold_in(prompts, correct, rollouts)

    def _fold_in(self, prompts, correct, rollouts):
        if prompts.size:
            distinct, times = self._window.observe(prompts, correct, rollouts, self._visits)
            self._visits[distinct] += times.astype(np.uint32)
        self._fit_prior_on_schedule()
        if prompts.size:
            self._reassign(distinct, first=self._visits[distinct] == times)

    def _reassign(self, distinct, first):
        estimate = self._estimate(distinct)
        bins = self._moved(distinct, estimate, self._bins[distinct])
        self._bins[distinct] = np.where(first, self._free_bins(estimate), bins) if first.any() else bins

    def _free_bins(self, estimate):
        return np.searchsorted(self._free_above, estimate, side="right")

    def _moved(self, prompts, estimate, bins):
        """Bins after the hysteresis rule: ``up`` is the highest bin that one may rise to, ``down`` the lowest
        to fall to.

        up <= free bin <= down for a margin above 1e-9; at margin 0 an estimate on an edge has up = down + 1,
        and the outer maximum gives it the upper bin.
        """
        if self.settings.estimator == "posterior":
            a, b = (shape[:, None] for shape in self._posterior(prompts))
            below = betainc(a, b, self._rate_edges)  # (P, B-1) posterior mass below each inner edge
            up = (1.0 - below > self.settings.confidence).sum(axis=1)
            down = (below <= self.settings.confidence).sum(axis=1)
        else:
            up = np.searchsorted(self._up_from, estimate, side="right")
            down = np.searchsorted(self._down_to, estimate, side="left")
        return np.maximum(up, np.minimum(bins, down))

    def _estimate(self, prompts):
        estimates = {
            "any": self._any_right,
            "unbiased": self._unbiased,
            "posterior": self._posterior_mean,
        }
        return estimates[self.settings.estimator](prompts)

    def _any_right(self, prompts):
        visits = np.minimum(self._visits[prompts], self.settings.window)
        return self._window.successes[prompts] / np.maximum(visits, 1)

    def _posterior_mean(self, prompts):
        a, b = self._posterior(prompts)
        return 1.0 - _beta_misses(a, b, self.settings.k)

    def _unbiased(self, prompts):
        k = self.settings.k
        c = self._window.correct_sum[prompts].astype(np.int64)
        n = np.maximum(self._window.rollouts_sum[prompts].astype(np.int64), 1)
        few = n < k
        pooled = 1.0 - miss_probability(c, np.maximum(n, k), k)
        return np.where(few, 1.0 - (1.0 - c / n) ** k, pooled) if few.any() else pooled

    def _posterior(self, prompts):
        """Shapes (a', b'), each (P,), of the Beta posterior of the pass rate of each prompt."""
        correct = self._window.correct_sum[prompts].astype(np.float64)
        missed = self._window.rollouts_sum[prompts] - correct
        return self._prior[0] + correct, self._prior[1] + missed

    def _prior_mean(self):
        return 1.0 - _beta_misses(np.array(self._prior[0]), np.array(self._prior[1]), self.settings.k)

    def _extreme(self, prompts):
        if self.settings.estimator == "unbiased":
            estimate = self._estimate(prompts)
            at_end = (estimate == 0) | (estimate == 1)
        elif self.settings.estimator == "any":
            window = np.minimum(self._visits[prompts], self.settings.window)
            at_end = (self._window.successes[prompts] == 0) | (self._window.successes[prompts] == window)
        else:
            correct, sampled = self._window.correct_sum[prompts], self._window.rollouts_sum[prompts]
            at_end = (correct == 0) | (correct == sampled)
        return at_end & (self._visits[prompts] >= 2)

    def _fit_prior_on_schedule(self):
        scheduled = self._calls % 16 == 0 or self._calls in (1, 2, 4, 8)
        if self.settings.estimator == "posterior" and scheduled:
            visited = self._visits > 0
            if visited.any():
                self._prior = beta_prior(
                    self._window.correct_sum[visited], self._window.rollouts_sum[visited]
                )

    def _checked_prompts(self, prompts) -> np.ndarray:
        return checks.integer_array(
            "prompts", prompts, low=0, high=self.num_prompts - 1, remedy="prompts are rows of the data set"
        )

    def state_dict(self) -> dict:
        """Arrays (copies) and plain values that `load_state_dict` takes back."""
        arrays = {name: getattr(self._window, name).copy() for name in self._window.arrays}
        return {
            "settings": json.dumps(asdict(self.settings), sort_keys=True),
            "calls": self._calls,
            "prior_a": self._prior[0],
            "prior_b": self._prior[1],
            "visits": self._visits.copy(),
            "bins": self._bins.copy(),
            **arrays,
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from ``state``; raises ``ValueError``, nothing changed, where it is damaged or of other
        settings."""
        owner = "OnlineDifficultyClassifier"
        checks.check_settings(owner, asdict(self.settings), state)
        shape = (self.num_prompts,)
        visits = checks.state_array(owner, state, "visits", shape=shape, kind="u")
        bins = checks.state_array(owner, state, "bins", shape=shape, kind="i")
        checks.integer_array(
            "saved bins", bins, low=0, high=self.num_bins - 1, remedy="the state was damaged"
        )
        window = windows.restored(self._fresh_window(), owner, state)
        names = ("calls", "prior_a", "prior_b")
        calls, *prior = (checks.state_array(owner, state, name, shape=(), kind="fi") for name in names)
        if not (calls >= 0 and all(np.isfinite(shape) and shape > 0 for shape in prior)):
            raise ValueError(
                f"the saved calls are {calls} and the prior's shapes {float(prior[0])}, {float(prior[1])}, "
                "which must be positive: the state was damaged"
            )
        self._calls, self._prior = int(calls), (float(prior[0]), float(prior[1]))
        self._visits, self._bins, self._window = visits, bins, window


def _beta_misses(a, b, k):
    """Mean of (1-p)^k under Beta(a, b): prod_{i<k} (b+i)/(a+b+i)."""
    misses = np.ones_like(a)
    for i in range(k):
        misses *= (b + i) / (a + b + i)
    return misses
