"""How much the rewards of a bin's rollouts vary: v_b of the variance proxy (28), as a running mean."""

import numpy as np

from gdro import checks
from gdro.statistics import mean_by


class RewardVariance:
    """Running mean v_b of the unbiased reward variance within a prompt, per bin.

    The estimate behind eqs. (28) and (30), Panaganti et al. 2026, who leave open how v_b is known.

    Args: ``num_bins`` B; ``rate`` in (0, 1] of an exponential mean over batches, which the first batch with
    the bin sets; None for the plain mean over all prompts seen.

    >>> running = RewardVariance(2, rate=0.5)
    >>> running.observe(np.array([0, 0, 1]), [0.2, 0.4, np.nan]), running.values
    (array([ True, False]), array([0.3, 0. ]))
    """

    def __init__(self, num_bins, rate):
        self.rate = rate
        self.values = np.zeros(num_bins)
        self.counts = np.zeros(num_bins, dtype=np.int64)

    def observe(self, bins, variances):
        """Fold in a batch and return (B,) bool: which bins it told something about.

        Args: ``bins`` (P,) in [-1, B), -1 left out; ``variances`` (P,) >= 0, NaN for a prompt with fewer than
        two scored rollouts. Raises, nothing changed, for None, negative or infinite variances.
        """
        variances = _checked(variances, bins.size)
        use = (bins >= 0) & ~np.isnan(variances)
        means = mean_by(bins[use], variances[use], self.values.size)
        counts = np.bincount(bins[use], minlength=self.values.size)
        seen = counts > 0
        if self.rate is None:
            share = counts / np.maximum(self.counts + counts, 1)
        else:
            share = np.where(self.counts > 0, self.rate, 1.0)
        self.values[seen] += share[seen] * (means[seen] - self.values[seen])
        self.counts += counts
        return seen

    def state_dict(self):
        """Arrays that `load_state_dict` takes back."""
        return {"variances": self.values.copy(), "variance_counts": self.counts.copy()}

    def checked_state(self, owner, state):
        """The two arrays in ``state``, refused where they are not of this shape and kind."""
        values = checks.state_array(owner, state, "variances", shape=self.values.shape, kind="f")
        counts = checks.state_array(owner, state, "variance_counts", shape=self.counts.shape, kind="iu")
        checks.finite_array("saved variances", values, remedy="the file was damaged")
        return values, counts.astype(np.int64)


def _checked(variances, size):
    if variances is None:
        raise ValueError(
            "this rule needs variances (P,), the unbiased variance of each prompt's rewards; got None"
        )
    variances = checks.float_array("variances", variances, size=size)
    bad = (variances < 0) | np.isinf(variances)
    if bad.any():
        raise ValueError(
            f"variances[{int(np.argmax(bad))}] is {variances[bad][0]}; a variance is finite and >= 0, or NaN "
            "where a prompt has fewer than two scored rollouts; it overflows for rewards beyond 1e150, which "
            "want scaling"
        )
    return variances
