"""EXP3.P, the bandit the paper names: only the gain of the arm that was played is seen."""

import json
from dataclasses import asdict, dataclass

import numpy as np

from gdro import checks
from gdro.simplex import softmax_with_floor


@dataclass(frozen=True)
class Exp3PSettings:
    """Settings of `Exp3P`, checked when made, and the three rates that follow from them."""

    num_arms: int
    horizon: int
    delta: float

    def __post_init__(self):
        checks.whole_number("num_arms", self.num_arms, low=2)
        checks.whole_number("horizon", self.horizon, low=1)
        checks.real_number("delta", self.delta, above=0, below=1)
        if self.exploration > 1:
            needed = int(np.ceil(1.05**2 * self.num_arms * np.log(self.num_arms)))
            raise ValueError(
                f"horizon {self.horizon} is too short for {self.num_arms} arms: the exploration would be "
                f"{self.exploration:.3f}, above 1; give at least {needed} rounds, or fewer arms"
            )

    @property
    def bias(self) -> float:
        """beta = sqrt(ln(K / delta) / (T K))."""
        return float(np.sqrt(np.log(self.num_arms / self.delta) / (self.horizon * self.num_arms)))

    @property
    def step_size(self) -> float:
        """eta = 0.95 sqrt(ln K / (T K))."""
        return float(0.95 * np.sqrt(np.log(self.num_arms) / (self.horizon * self.num_arms)))

    @property
    def exploration(self) -> float:
        """gamma = 1.05 sqrt(K ln K / T)."""
        return float(1.05 * np.sqrt(self.num_arms * np.log(self.num_arms) / self.horizon))


def updated_log_weights(log_weights, arms, gains, settings):
    """Log-weights after a round, of one bandit or of many at once: the update of `Exp3P`, unchecked.

    Args: ``log_weights`` (..., K); ``arms`` (...) played, ``gains`` (...) in [0, 1]; ``settings`` of all.

    >>> settings = Exp3PSettings(2, 100, 0.05)
    >>> updated_log_weights(np.zeros((1, 2)), np.array([1]), np.array([1.0]), settings).round(3)
    array([[0.015, 0.127]])
    """
    played = np.arange(settings.num_arms) == np.asarray(arms)[..., None]
    estimates = played * np.asarray(gains)[..., None] + settings.bias
    return log_weights + settings.step_size * estimates / softmax_with_floor(
        log_weights, settings.exploration
    )


class Exp3P:
    """Bandit over K arms whose regret is small with high probability, whatever the sequence of gains.

    p = (1 - gamma) softmax(eta * Ghat) + gamma / K; after playing arm I and gaining g in [0, 1], every arm's
    estimate grows by (g 1{i = I} + beta) / p_i. Bubeck and Cesa-Bianchi 2012, section 3.2; with
    the rates of `Exp3PSettings` the regret against the best fixed arm is at most `regret_bound` with
    probability 1 - delta. No departure: the cumulated log-weights eta * Ghat stand for the weights, which
    would overflow. `PromptGDRO` sees all bins' losses and is not this.

    Args: ``num_arms`` K >= 2; ``horizon`` T, rounds to be played, long enough that gamma <= 1; ``delta`` in
    (0, 1).
    Raises ``ValueError`` naming the value and the shortest horizon; and once T rounds were observed, at the
    next draw or observation, as rates and bound are those of T rounds.

    >>> bandit = Exp3P(2, horizon=100)
    >>> bandit.observe(1, 1.0)
    >>> bandit.probabilities.round(4)
    array([0.4755, 0.5245])
    """

    def __init__(self, num_arms: int, horizon: int, delta: float = 0.05):
        self.settings = Exp3PSettings(num_arms, horizon, delta)
        self._log_weights = np.zeros(num_arms)
        self._rounds = 0

    @property
    def probabilities(self) -> np.ndarray:
        """(K,) probability of each arm in the next round, at least gamma / K."""
        return softmax_with_floor(self._log_weights, self.settings.exploration)

    @property
    def regret_bound(self) -> float:
        """5.15 sqrt(T K ln(K / delta)), Bubeck and Cesa-Bianchi 2012, section 3.2, for gains in [0, 1]."""
        s = self.settings
        return float(5.15 * np.sqrt(s.horizon * s.num_arms * np.log(s.num_arms / s.delta)))

    def draw(self, rng: np.random.Generator) -> int:
        """An arm, drawn from ``probabilities`` with the numpy Generator ``rng``; changes nothing here."""
        checks.generator("rng", rng)
        self._check_rounds_left()
        cumulative = np.cumsum(self.probabilities)
        # u <= 1 - 2^-53, so u * total stays below the total when it is rounded
        return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))

    def observe(self, arm: int, gain: float) -> None:
        """Fold in the ``gain`` in [0, 1] of the ``arm`` played, which was drawn from ``probabilities``.

        Raises ``ValueError`` or ``TypeError``, nothing changed, for an arm outside [0, K) or a gain outside
        [0, 1].
        """
        arm = checks.whole_number("arm", arm, low=0, high=self.settings.num_arms - 1)
        gain = checks.real_number("gain", gain, low=0, high=1)
        self._check_rounds_left()
        self._log_weights = updated_log_weights(self._log_weights, arm, gain, self.settings)
        self._rounds += 1

    def _check_rounds_left(self):
        if self._rounds >= self.settings.horizon:
            raise ValueError(
                f"all {self.settings.horizon} rounds of the horizon were played, and the regret bound ends "
                "with them; make a new Exp3P, with the horizon that is wanted"
            )

    def state_dict(self) -> dict:
        """Arrays and plain values that `load_state_dict` takes back."""
        return {
            "settings": json.dumps(asdict(self.settings), sort_keys=True),
            "log_weights": self._log_weights.copy(),
            "rounds": self._rounds,
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from ``state``; raises ``ValueError``, nothing changed, for other settings (both sides are
        named) or a damaged state."""
        checks.check_settings("Exp3P", asdict(self.settings), state)
        weights = checks.state_array("Exp3P", state, "log_weights", shape=self._log_weights.shape, kind="f")
        checks.finite_array("saved log_weights", weights, remedy="the file was damaged")
        rounds = checks.state_array("Exp3P", state, "rounds", shape=(), kind="iu")
        checks.whole_number("saved rounds", rounds[()], low=0, high=self.settings.horizon)
        self._log_weights, self._rounds = weights, int(rounds)
