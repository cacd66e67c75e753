"""Probabilities kept as logarithms: softmax with a floor, entropy, effective support."""

import numpy as np
from numpy.typing import ArrayLike


def log_softmax(x: ArrayLike, axis: int = -1) -> np.ndarray:
    """Logarithm of the softmax, x - log sum exp x, without overflow.

    The arg max of Lemma 4.1, Panaganti et al. 2026, is its exponential at eta * L. No departure.

    Args: ``x`` (..., K) real; -inf is a log-weight of nothing; ``axis`` the one that sums to 1.
    Raises ``ValueError`` for NaN, +inf, or a row of -inf alone, which is no distribution.

    >>> log_softmax([1000.0, 1000.0]).round(4)
    array([-0.6931, -0.6931])
    """
    x = np.asarray(x, dtype=np.float64)
    top = x.max(axis=axis, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError(
            "log-weights must be finite or -inf with at least one finite in each row, got "
            f"{x[~np.isfinite(x)][:3].tolist()}; lower the step size or check the scores"
        )
    shifted = x - top
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def log_softmax_with_floor(log_weights: ArrayLike, exploration: float) -> np.ndarray:
    """log((1 - exploration) softmax(log_weights) + exploration / K) over the last axis, eq. (15).

    Args and errors as `softmax_with_floor`. Stays finite where the probability itself underflows.
    """
    exploration = _checked_share("exploration", exploration)
    logs = log_softmax(log_weights)
    if exploration == 0:
        return logs
    floor = np.log(exploration / logs.shape[-1])
    return (
        np.full_like(logs, floor) if exploration == 1 else np.logaddexp(np.log1p(-exploration) + logs, floor)
    )


def softmax_with_floor(log_weights: ArrayLike, exploration: float) -> np.ndarray:
    """(1 - exploration) softmax(log_weights) + exploration / K over the last axis.

    Eq. (15), Panaganti et al. 2026; there gamma is the exploration. No departure.

    Args: ``log_weights`` (..., K) real or -inf; ``exploration`` in [0, 1].
    Returns (..., K): rows sum to 1, every entry at least exploration / K.
    Raises ``ValueError`` for an exploration outside [0, 1] and for log-weights as `log_softmax` does.

    >>> softmax_with_floor([0.0, -np.inf], 0.1)
    array([0.95, 0.05])
    """
    exploration = _checked_share("exploration", exploration)
    probabilities = np.exp(log_softmax(log_weights))
    return (1 - exploration) * probabilities + exploration / probabilities.shape[-1]


def entropy(p: ArrayLike) -> np.ndarray | np.floating:
    """Entropy in nats over the last axis, -sum p log p with 0 log 0 = 0.

    Args: ``p`` (..., K) probabilities; rows must sum to 1 within 1e-6.
    Raises ``ValueError`` for negative entries, NaN, or another sum.

    >>> float(entropy([0.5, 0.5]).round(4)), float(entropy([1.0, 0.0]))
    (0.6931, 0.0)
    """
    p = np.asarray(p, dtype=np.float64)
    if not (p >= 0).all():
        raise ValueError(f"probabilities must not be negative or NaN, got {p[~(p >= 0)][0]}")
    sums = p.sum(axis=-1)
    if not np.allclose(sums, 1, rtol=0, atol=1e-6):
        worst = np.ravel(sums)[np.argmax(np.abs(np.ravel(sums) - 1))]
        raise ValueError(f"probabilities must sum to 1, got a sum of {worst}; divide by it first")
    # adding 0.0 turns the -0.0 of a point mass into 0.0
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1) + 0.0


def effective_support(p: ArrayLike) -> np.ndarray | np.floating:
    """exp(entropy): the number of equally likely entries that would be as spread out (section 4.2.3).

    Args and errors as `entropy`.

    >>> round(float(effective_support([0.25, 0.25, 0.25, 0.25, 0.0])), 6)
    4.0
    """
    return np.exp(entropy(p))


def _checked_share(name, value):
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be within [0, 1], got {value}")
    return float(value)
