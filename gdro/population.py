"""Whom the simulator trains and on what: capacities, and families of prompts of rising difficulty."""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.special import betaincinv, ndtri

from gdro import checks
from gdro.learner import Prompts

LEVELS = 5  # of difficulty within a family, with equally many prompts
HOPELESS_RATE = 0.01
_LEAST_GUESS = 1e-4
_GOLDEN = (5**0.5 - 1) / 2  # its multiples fill [0, 1) evenly, in an order unlike any other here


@dataclass(frozen=True)
class Capacity:
    """How able a policy starts (logits, added to every family) and how often its work is right, in (0, 1)."""

    name: str
    ability: float
    top: float

    def __post_init__(self):
        checks.real_number("ability", self.ability)
        checks.real_number("top", self.top, above=0, below=1)


CAPACITIES = MappingProxyType(
    {
        c.name: c
        for c in (Capacity("sim-s", 0.0, 0.9), Capacity("sim-m", 0.5, 0.95), Capacity("sim-l", 1.0, 0.98))
    }
)


@dataclass(frozen=True)
class Population:
    """N prompts in F families of rising difficulty.

    ``difficulty`` (F,) mean of each family in logits; ``spread`` >= 0 standard deviation within a family,
    whose prompts lie at the quantiles of a normal distribution; ``rarity`` in (0, 1] prompts of the last
    family for one of every other; ``hopeless`` in [0, 1) share of hopeless prompts, the hardest of each
    family; ``transfer`` in [0, 1], from none (0) to full sharing (1); ``guess`` in (0, 1), below the
    capacity's ``top``, the mean over prompts; ``guess_correlation`` in [0, 1) of two guesses at one prompt: 0
    all prompts are guessed alike, near 1 each is guessed always or never (Beta quantiles, none above ``top``,
    the same for hard and easy prompts).
    """

    size: int = 480
    difficulty: tuple[float, ...] = (-1.0, 0.25, 1.5, 2.75, 4.0, 5.25)
    spread: float = 0.7
    rarity: float = 1.0
    hopeless: float = 0.0
    transfer: float = 0.05
    guess: float = 0.1
    guess_correlation: float = 0.0

    def __post_init__(self):
        object.__setattr__(
            self, "difficulty", tuple(checks.finite_array("difficulty", self.difficulty).tolist())
        )
        checks.real_number("spread", self.spread, low=0)
        checks.real_number("rarity", self.rarity, above=0, high=1)
        checks.real_number("hopeless", self.hopeless, low=0, below=1)
        checks.real_number("transfer", self.transfer, low=0, high=1)
        checks.real_number("guess", self.guess, above=0, below=1)
        checks.real_number("guess_correlation", self.guess_correlation, low=0, below=1)
        checks.whole_number("size", self.size, low=max(1, len(self.difficulty)))
        if not self.difficulty:
            raise ValueError("difficulty is empty: give one number for each family")

    @property
    def families(self):
        """Names of the families, easiest first as ``difficulty`` has them."""
        return tuple(f"family-{f + 1}" for f in range(len(self.difficulty)))

    @property
    def counts(self):
        """(F,) prompts of each family, at least one, together ``size``."""
        shares = np.ones(len(self.difficulty))
        shares[-1] = self.rarity
        ends = np.round(np.cumsum(shares) / shares.sum() * (self.size - shares.size)).astype(int)
        return np.diff(ends, prepend=0) + 1

    def place(self):
        """(N,) place of each prompt among those of its family, in (0, 1), easiest first."""
        return np.concatenate([(np.arange(n) + 0.5) / n for n in self.counts])

    def levels(self):
        """(N,) level of each prompt, 1 to 5, easiest first."""
        return (self.place() * LEVELS).astype(int) + 1

    def prompts(self, top) -> Prompts:
        """The prompts, for a policy whose work is right at the rate ``top``."""
        if not top > self.guess:
            raise ValueError(
                f"top {top} must lie above guess {self.guess}: work must be better than guessing"
            )
        family = np.repeat(np.arange(len(self.difficulty)), self.counts)
        place = self.place()
        difficulty = np.array(self.difficulty)[family] + self.spread * ndtri(place)
        hopeless = place > 1 - self.hopeless
        rates = (self._guesses(place).clip(max=top), np.full(place.size, top))
        return Prompts(family, difficulty, *(np.where(hopeless, HOPELESS_RATE, rate) for rate in rates))

    def _guesses(self, place):
        """(N,) guessing rates, at quantiles that run through each family evenly and apart from difficulty."""
        if self.guess_correlation == 0:
            return np.full(place.size, self.guess)
        size = 1 / self.guess_correlation - 1
        quantiles = (np.arange(place.size) + 0.5) * _GOLDEN % 1
        rates = betaincinv(self.guess * size, (1 - self.guess) * size, quantiles)
        return np.clip(rates, _LEAST_GUESS, 1 - _LEAST_GUESS)
