"""The last visits of every prompt, kept small: one bit a visit, or two counts a visit.

A ring per prompt: the visit number v (from 0) lies in slot v mod window. All prompts of a call are folded in
at once, a prompt that occurs several times in the order given.
"""

import numpy as np

from gdro import checks

_COUNT_TYPES = (np.uint8, np.uint16, np.uint32)


def slots(prompts, visits, window):
    """Ring slots of a call's entries, without the entries that later ones of the same call overwrite.

    Args: ``prompts`` (P,) integers, repeats allowed; ``visits`` (N,) visits of every prompt so far;
    ``window`` ring length.
    Returns ``keep`` (K,) positions into ``prompts``, those of one prompt together and in order; ``slot`` (K,)
    of each; ``distinct`` (D,) prompts; ``firsts`` (D,) where each prompt's entries begin in ``keep``;
    ``times`` (D,) its entries in the whole call.

    >>> [a.tolist() for a in slots(np.array([7, 3, 7]), np.zeros(9, int), window=4)]
    [[1, 0, 2], [0, 0, 1], [3, 7], [0, 1], [1, 2]]
    """
    ordered = np.sort(prompts)
    begins = np.empty(ordered.size, dtype=bool)
    begins[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    if begins.all():
        each = np.arange(prompts.size)
        return each, visits[prompts] % window, prompts, each, np.ones_like(each)
    keep = np.argsort(prompts, kind="stable")
    firsts = np.flatnonzero(begins)
    times = np.diff(firsts, append=ordered.size)
    distinct = ordered[firsts]
    rank = np.arange(ordered.size) - np.repeat(firsts, times)
    slot = (np.repeat(visits[distinct], times) + rank) % window
    last = np.repeat(times, times) - rank <= window
    held = np.minimum(times, window)
    return keep[last], slot[last], distinct, np.cumsum(held) - held, times


class BitWindow:
    """Whether each of a prompt's last ``window`` visits succeeded: window / 8 bytes a prompt, and a count."""

    arrays = ("bits", "successes")

    def __init__(self, num_prompts, window):
        self.window = window
        self.bits = np.zeros((num_prompts, -(-window // 8)), dtype=np.uint8)
        self.successes = np.zeros(num_prompts, dtype=np.min_scalar_type(window))

    def observe(self, prompts, correct, rollouts, visits):
        """Fold in ``correct`` > 0 for each entry; ``visits`` (N,) before the call. Returns distinct prompts,
        times."""
        keep, slot, distinct, firsts, times = slots(prompts, visits, self.window)
        byte = prompts[keep] * self.bits.shape[1] + (slot >> 3)
        bit = slot & 7
        flat = self.bits.reshape(-1)
        old = (flat[byte] >> bit) & 1
        new = correct[keep] > 0
        flip = ((old ^ new) << bit).astype(np.uint8)
        if firsts.size == keep.size:
            flat[byte] ^= flip
        else:
            np.bitwise_xor.at(flat, byte, flip)
        change = np.add.reduceat(new - old.astype(np.int64), firsts)
        self.successes[distinct] = self.successes[distinct] + change
        return distinct, times

    def check(self):
        """Raise ``ValueError`` where the counts are not those of the bits."""
        if not np.array_equal(self.successes, np.bitwise_count(self.bits).sum(axis=1)):
            raise ValueError("the saved successes are not the number of bits set: the state was damaged")


class CountWindow:
    """Correct and sampled rollouts of each of a prompt's last ``window`` visits, with their sums over the
    window.

    One byte a count, widened for all once a visit has more than 255 (65,535) rollouts.
    """

    arrays = ("correct", "rollouts", "correct_sum", "rollouts_sum")

    def __init__(self, num_prompts, window):
        self.window = window
        self.correct = np.zeros((num_prompts, window), dtype=np.uint8)
        self.rollouts = np.zeros((num_prompts, window), dtype=np.uint8)
        self.correct_sum = np.zeros(num_prompts, dtype=np.uint32)
        self.rollouts_sum = np.zeros(num_prompts, dtype=np.uint32)

    def observe(self, prompts, correct, rollouts, visits):
        """Fold in the counts of each entry; ``visits`` (N,) before the call. Returns distinct prompts,
        times."""
        self._widen(int(rollouts.max()))
        keep, slot, distinct, firsts, times = slots(prompts, visits, self.window)
        cell = prompts[keep] * self.window + slot
        for ring, total, new in (
            (self.correct, self.correct_sum, correct[keep]),
            (self.rollouts, self.rollouts_sum, rollouts[keep]),
        ):
            flat = ring.reshape(-1)
            change = np.add.reduceat(new - flat[cell].astype(np.int64), firsts)
            flat[cell] = new
            total[distinct] = total[distinct] + change
        return distinct, times

    def _widen(self, largest):
        if largest > np.iinfo(self.rollouts.dtype).max:
            kind = next(kind for kind in _COUNT_TYPES if largest <= np.iinfo(kind).max)
            self.correct, self.rollouts = self.correct.astype(kind), self.rollouts.astype(kind)

    def check(self):
        """Raise ``ValueError`` for sums that are not those of the ring, or more rollouts right than there."""
        sums = (self.correct.sum(axis=1), self.rollouts.sum(axis=1))
        if not (np.array_equal(sums[0], self.correct_sum) and np.array_equal(sums[1], self.rollouts_sum)):
            raise ValueError("the saved sums are not those of the saved counts: the state was damaged")
        if (self.correct > self.rollouts).any():
            raise ValueError(
                "the saved counts hold more correct rollouts than rollouts: the state was damaged"
            )


def restored(fresh, owner, state):
    """``fresh``, a window just made, filled with the arrays of ``state`` after a check of them."""
    for name in fresh.arrays:
        shape = getattr(fresh, name).shape
        setattr(fresh, name, checks.state_array(owner, state, name, shape=shape, kind="u"))
    fresh.check()
    return fresh
