"""A control for Prompt-GDRO: the same weights, given to bins by chance."""

import numpy as np
from numpy.typing import ArrayLike

from gdro import checks
from gdro.prompt_gdro import PromptGDRO


class ShuffledPromptGDRO(PromptGDRO):
    """`PromptGDRO` whose weights are permuted over the bins, by another permutation after each observation.

    Scores and distribution are those of `PromptGDRO`, so the weights spread as far as they would, but say
    nothing about the bin that gets them (which is now and then, by chance, its own): what remains of an
    effect is not one of aiming. With normalization "mean_one" the weights of a batch still have mean one.

    Args: ``num_bins`` >= 2 and settings as `PromptGDRO`; ``seed`` >= 0 of the permutations.

    >>> adversary = ShuffledPromptGDRO(3, seed=1)
    >>> adversary.observe([0, 1, 2], [0.0, 0.5, 1.0])
    >>> sorted(adversary.weights_for([0, 1, 2])) == sorted(adversary.weights)
    True
    """

    def __init__(self, num_bins: int, seed: int = 0, **settings):
        super().__init__(checks.whole_number("num_bins of the shuffled control", num_bins, low=2), **settings)
        self.seed = checks.whole_number("seed", seed, low=0)
        self._observed = 0

    def _bin_weights(self, bins):
        drawn = np.random.default_rng([self.seed, self._observed]).permutation(self.num_bins)
        return super()._bin_weights(np.where(bins < 0, -1, drawn[bins]))[drawn]

    def observe(self, bins: ArrayLike, losses: ArrayLike) -> None:
        """As `PromptGDRO.observe`; the next weights are permuted anew."""
        super().observe(bins, losses)
        self._observed += 1

    def state_dict(self) -> dict:
        """Arrays and plain values that `load_state_dict` takes back."""
        return {**super().state_dict(), "seed": self.seed, "observed": self._observed}

    def load_state_dict(self, state: dict) -> None:
        """As `PromptGDRO.load_state_dict`; refuses the state of another seed too."""
        observed = checks.state_array("ShuffledPromptGDRO", state, "observed", shape=(), kind="iu")
        seed = checks.state_array("ShuffledPromptGDRO", state, "seed", shape=(), kind="iu")
        if seed != self.seed or observed < 0:
            raise ValueError(
                f"the saved state has seed {seed} and {observed} observations, this control has seed "
                f"{self.seed}: load the state that it saved"
            )
        super().load_state_dict(state)
        self._observed = int(observed)
