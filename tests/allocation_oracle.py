"""Every assignment of a small problem, written out: what `gdro.allocation` is held to."""

import itertools

import numpy as np


def one_arm_assignments(counts, log_probs, arms, budget):
    """{matrix as tuple of rows: joint log-probability} of all assignments of one arm to each bin."""
    active = [b for b in range(len(counts)) if counts[b] > 0]
    found = {}
    for choice in itertools.product(range(len(arms)), repeat=len(active)):
        spent = sum(counts[b] * arms[a] for b, a in zip(active, choice, strict=True))
        value = sum(log_probs[b][a] for b, a in zip(active, choice, strict=True))
        if spent == budget and value > -np.inf:
            matrix = np.zeros((len(counts), len(arms)), dtype=int)
            for b, a in zip(active, choice, strict=True):
                matrix[b, a] = counts[b]
            found[key(matrix)] = value
    return found


def split_assignments(counts, log_probs, arms, budget):
    """The same of all assignments with exactly one bin on two adjacent arms."""
    found = {}
    for b, low in itertools.product(range(len(counts)), range(len(arms) - 1)):
        for upper in range(1, counts[b]):
            own = (counts[b] - upper) * arms[low] + upper * arms[low + 1]
            value = ((counts[b] - upper) * log_probs[b][low] + upper * log_probs[b][low + 1]) / counts[b]
            others = [0 if other == b else count for other, count in enumerate(counts)]
            for rows, rest in one_arm_assignments(others, log_probs, arms, budget - own).items():
                if value > -np.inf:
                    matrix = np.array(rows)
                    matrix[b, low], matrix[b, low + 1] = counts[b] - upper, upper
                    found[key(matrix)] = value + rest
    return found


def assignments(counts, log_probs, arms, budget):
    """What is allowed: one arm a bin, or where that is impossible one bin split."""
    return one_arm_assignments(counts, log_probs, arms, budget) or split_assignments(
        counts, log_probs, arms, budget
    )


def best(counts, log_probs, arms, budget, even=True):
    """The best of `assignments` by the rule of `best_assignment`, or None where there is none.

    Ties are exact here: give log-probabilities whose sums are exact.
    """
    found = assignments(counts, log_probs, arms, budget)
    if not found:
        return None
    largest = max(found.values())
    tied = [np.array(rows) for rows, value in found.items() if value >= largest - 1e-9]

    def order(matrix):
        spread = (matrix * (np.array(arms) * sum(counts) - budget) ** 2).sum()
        return (spread if even else 0, tuple(matrix @ np.array(arms)))

    return min(tied, key=order)


def key(matrix):
    """A matrix as nested tuples, fit for a dictionary."""
    return tuple(map(tuple, np.asarray(matrix).tolist()))
