"""GRPO on a policy small enough to write down: a rollout works or guesses, and abilities decide how often.

The policy. Prompt i belongs to family f(i); a rollout *works* with probability q_i = sigmoid(a_f(i) - d_i),
ability minus difficulty, and guesses otherwise. It is right with probability ``top_i`` where it works and
``guess_i`` where it guesses, so p_i = guess_i + (top_i - guess_i) q_i, the four-parameter logistic model of
item response theory. The choice of mode is the rollout's only deciding token.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit
from scipy.stats import binom

from gdro import checks

EPSILON = 1e-4  # TRL's; the paper writes "eps" without a value
_FARTHEST = 30.0  # logits are cut here, so that no probability rounds to 0 or 1
_BETA1, _BETA2, _ADAM_EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, eq=False)
class Prompts:
    """N prompts, arrays (N,): ``family`` in [0, F), ``difficulty`` in logits, ``guess`` and ``top`` in
    (0, 1)."""

    family: np.ndarray
    difficulty: np.ndarray
    guess: np.ndarray
    top: np.ndarray

    def __len__(self):
        return self.family.size

    def take(self, rows):
        """The prompts of these rows, repeats allowed."""
        return Prompts(*(getattr(self, name)[rows] for name in ("family", "difficulty", "guess", "top")))

    def logits(self, abilities):
        """(N,) ability minus difficulty, within plus or minus 30."""
        return np.clip(abilities[self.family] - self.difficulty, -_FARTHEST, _FARTHEST)

    def pass_rate(self, abilities):
        """(N,) probability that a rollout is right, strictly inside (0, 1); ``abilities`` (F,)."""
        return self.guess + (self.top - self.guess) * expit(self.logits(abilities))


def group_spread(right, rollouts, std="population"):
    """(P,) c/n (1 - c/n) / (s + 1e-4): what a rollout group of c right among n gives to its own success.

    With the advantages (3), mean over the group of A_j (mode_j - q) has this as its factor; s is the group's
    std, "population" (n, the paper) or "sample" (n - 1, TRL). Zero where all rewards are equal.

    >>> group_spread(np.array([0, 1, 2]), np.array([2, 2, 4])).round(3)
    array([0. , 0.5, 0.5])
    """
    share = right / rollouts
    variance = share * (1 - share)
    return variance / (_std(variance, rollouts, std) + EPSILON)


def _std(variance, rollouts, kind):
    checks.one_of("std", kind, ("population", "sample"))
    return np.sqrt(variance if kind == "population" else variance * rollouts / (rollouts - 1))


def expected_gradient(work, rollouts, guess=0.0, top=1.0, std="population"):
    """Expected GRPO gradient of one prompt with respect to its own logit, a mean over its n rollouts.

    E[(1/n) sum_j A_j (mode_j - q)] = q (1-q) (top - guess) / (p (1-p)) * E[`group_spread` of c], c ~
    Binomial(n, p), from (3) and (5) at ratio 1, Panaganti et al. 2026: given c, a right rollout worked with
    probability q top / p, a wrong one with q (1-top) / (1-p). As n grows the second factor tends to
    sqrt(p (1-p)); for n = 2 it is p (1-p). The advantage's clip is left out (|A| <= sqrt(n) anyway).

    Args: ``work`` q in (0, 1), any shape; ``rollouts`` n >= 2; ``guess`` < ``top`` in [0, 1].

    >>> expected_gradient(np.array([0.5]), 2).round(3)
    array([0.25])
    """
    n = checks.whole_number("rollouts", rollouts, low=2)
    q = np.asarray(work, dtype=np.float64)
    p = guess + (top - guess) * q
    right = np.arange(n + 1)
    spread = binom.pmf(right, n, p[..., None]) @ group_spread(right, np.full(n + 1, n), std)
    return q * (1 - q) * (top - guess) / (p * (1 - p)) * spread


@dataclass(frozen=True)
class Update:
    """How the policy is trained, in the words of GRPOConfig and GDROConfig.

    ``learning_rate`` in logits a step; ``steps`` optimiser steps a generation; ``epsilon``, ``epsilon_high``
    of the clip (5); ``beta`` of the KL term (6); ``advantage_std``, ``advantage_clip``. ``optimizer`` "adam"
    divides by the root mean square of the whole gradient so far, "sgd" does not. ``noise`` >= 0: see
    `Learner`.
    """

    learning_rate: float = 0.1
    steps: int = 2
    optimizer: str = "adam"
    noise: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    beta: float = 0.0
    advantage_std: str = "population"
    advantage_clip: float | None = None

    def __post_init__(self):
        checks.real_number("learning_rate", self.learning_rate, above=0)
        checks.whole_number("steps", self.steps, low=1)
        checks.one_of("optimizer", self.optimizer, ("adam", "sgd"))
        checks.one_of("advantage_std", self.advantage_std, ("population", "sample"))
        for name in ("noise", "epsilon", "epsilon_high", "beta"):
            checks.real_number(name, getattr(self, name), low=0)
        if self.advantage_clip is not None:
            checks.real_number("advantage_clip", self.advantage_clip, above=0)


class Learner:
    """The abilities (F,) of a policy, trained by GRPO on rollout groups of any sizes.

    The score of a rollout for the ability of its family is mode - q, plus ``noise`` times a standard normal
    draw for all its other tokens, which decide nothing; a step is -gradient of the clipped loss (6), a mean
    over the rows of its minibatch. A step moves abilities by the gradient times the kernel K = (1 - transfer)
    I + transfer 11': the abilities are linear in parameters of which families share the part ``transfer``.
    "adam" is Adam (rates 0.9 and 0.999) with one second moment for all parameters, that of the gradient's
    norm: as under Adam a common factor of all gradients has no effect, and how families compare is not
    levelled.

    Args: ``abilities`` (F,) at the start, which is also the KL term's reference; ``transfer`` in [0, 1].
    """

    def __init__(self, abilities, update: Update, transfer=0.0):
        self.abilities = checks.finite_array("abilities", abilities).copy()
        self.start = self.abilities.copy()
        self.update, self.transfer = update, checks.real_number("transfer", transfer, low=0, high=1)
        self._first, self._second, self._steps = np.zeros(self.abilities.size), 0.0, 0

    def sample(self, prompts, rng):
        """Modes (R,) and outcomes (R,), booleans, of one rollout of each row of ``prompts``."""
        draws = rng.random((2, len(prompts)))
        works = draws[0] < expit(prompts.logits(self.abilities))
        return works, draws[1] < np.where(works, prompts.top, prompts.guess)

    def train(self, prompts, index, works, correct, factors, rng):
        """One generation's optimiser steps; returns each row's loss (6), (R,), with its raw advantage.

        Args, per row (R,): ``prompts`` a `Prompts` of R; ``index`` its rollout group, from 0; ``works`` and
        ``correct`` from `sample`; ``factors`` >= 0 on its advantage. The minibatches are rows in random
        order, as equal in number as can be.
        """
        raw = advantages(index, correct, self.update.advantage_std, self.update.advantage_clip)
        old = _log_probability(prompts.logits(self.abilities), works)
        reference = _log_probability(prompts.logits(self.start), works)
        losses = np.empty(raw.size)
        for rows in np.array_split(rng.permutation(raw.size), self.update.steps):
            part, chosen = prompts.take(rows), works[rows]
            logits = part.logits(self.abilities)
            logp = _log_probability(logits, chosen)
            ratio, gap = np.exp(logp - old[rows]), reference[rows] - logp
            slope, losses[rows] = self._surrogate(ratio, gap, raw[rows], factors[rows])
            score = chosen - expit(logits)
            if self.update.noise:
                score = score + self.update.noise * rng.standard_normal(rows.size)
            gradient = np.bincount(part.family, slope * score, minlength=self.abilities.size) / rows.size
            self._step(gradient)
        return losses

    def _surrogate(self, ratio, gap, raw, factors):
        """Ascent of each row along its score, and its loss with the raw advantage."""
        u = self.update
        low, high = 1 - u.epsilon, 1 + u.epsilon_high
        active = np.where(raw > 0, ratio < high, ratio > low)
        kl = np.exp(gap) - gap - 1
        losses = u.beta * kl - np.minimum(ratio * raw, np.clip(ratio, low, high) * raw)
        return active * ratio * raw * factors - u.beta * (1 - np.exp(gap)), losses

    def _step(self, gradient):
        """Move the abilities along K times ``gradient`` (F,), an ascent direction."""
        u, self._steps = self.update, self._steps + 1
        if u.optimizer == "sgd":
            self.abilities += u.learning_rate * self._kernel(gradient)
            return
        square = gradient @ self._kernel(gradient)
        self._first = _BETA1 * self._first + (1 - _BETA1) * gradient
        self._second = _BETA2 * self._second + (1 - _BETA2) * square
        mean = self._first / (1 - _BETA1**self._steps)
        size = np.sqrt(self._second / (1 - _BETA2**self._steps)) + _ADAM_EPSILON
        self.abilities += u.learning_rate * self._kernel(mean) / size

    def _kernel(self, gradient):
        return (1 - self.transfer) * gradient + self.transfer * gradient.sum()


def advantages(index, correct, std="population", clip=None):
    """(R,) advantages (3) of right or wrong rows: (r - mean) / (s + 1e-4) in the rollout group, clipped.

    Args: ``index`` (R,) the group of each row, from 0; ``correct`` (R,) booleans.

    >>> advantages(np.array([0, 0, 1, 1]), np.array([True, False, True, True])).round(3)
    array([ 1., -1.,  0.,  0.])
    """
    rollouts = np.bincount(index)
    share = np.bincount(index, correct) / np.maximum(rollouts, 1)
    spread = _std(share * (1 - share), np.maximum(rollouts, 2), std)
    values = (correct - share[index]) / (spread[index] + EPSILON)
    return values if clip is None else np.clip(values, -clip, clip)


def _log_probability(logits, works):
    return log_expit(np.where(works, logits, -logits))
