"""Dynamic programmes over a rollout budget: what a set of bins can spend, and how well.

Budgets are counted as the excess over the smallest arm, so a bin of ``count`` prompts on its a-th arm spends
count * a. A table holds an entry for each total that the bins in it can spend. `Largest` tables hold the
largest sum of log-probabilities, `Best` tables also the smallest penalty among those that reach it, `Total`
tables the logarithm of the summed probability. Loops run over bins only; budget and arms are array axes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

_OUTSIDE = np.array([[-np.inf], [np.inf]])


@dataclass(frozen=True)
class Problem:
    """Bins that all have prompts: ``counts`` (m,) >= 1, ``logs`` (m, A), ``budget`` the excess to spend.

    ``even``: whether ties go to the smallest sum of count * a^2 before they go to the lexicographically
    first.
    """

    counts: np.ndarray
    logs: np.ndarray
    budget: int
    even: bool = True

    @property
    def tolerance(self):
        """Sums of log-probabilities this near are equal at a bin; rounding errors are far below it."""
        finite = np.abs(self.logs[np.isfinite(self.logs)])
        return max(1e-9, 1e-12 * finite.max(initial=0.0))

    def penalty(self, b):
        """(A,) count * a^2; with the total fixed it orders assignments as sum count (n - mean)^2 does."""
        return self.counts[b] * np.arange(self.logs.shape[1], dtype=np.float64) ** 2 * self.even

    def split_totals(self, b):
        """Excess totals of bin b that need two adjacent arms: no multiples of its count."""
        count = self.counts[b]
        totals = np.arange(1, min(count * (self.logs.shape[1] - 1), self.budget + 1))
        return totals[totals % count != 0]

    def split(self, values, b, totals):
        """Prompt-weighted mean of ``values`` (A,) at two adjacent arms, for each of ``totals``."""
        low, upper = np.divmod(totals, self.counts[b])
        share = upper / self.counts[b]
        return (1 - share) * values[low] + share * values[low + 1]

    def without(self, b, budget):
        """The problem of the other bins with another budget."""
        return Problem(np.delete(self.counts, b), np.delete(self.logs, b, axis=0), budget, self.even)


class Largest:
    """Tables of the largest log-probability, an array (1, size)."""

    start = np.zeros((1, 1))

    @staticmethod
    def extend(problem, table, b):
        """The table with bin ``b`` added."""
        return _moved(problem, table, b, problem.logs[b][None]).max(axis=1)


class Best:
    """Tables of (largest log-probability, smallest penalty among the tied), an array (2, size)."""

    start = np.zeros((2, 1))

    @staticmethod
    def extend(problem, table, b):
        """The table with bin ``b`` added."""
        values, penalties = _moved(problem, table, b, np.stack([problem.logs[b], problem.penalty(b)]))
        best = values.max(axis=0)
        tied = values >= best - problem.tolerance
        return np.stack([best, np.where(tied, penalties, np.inf).min(axis=0)])


class Total:
    """Tables of log sum of probabilities, an array (1, size)."""

    start = np.zeros((1, 1))

    @staticmethod
    def extend(problem, table, b):
        """The table with bin ``b`` added."""
        values = _moved(problem, table, b, problem.logs[b][None])[0]
        top = values.max(axis=0)
        top[top == -np.inf] = 0.0
        values -= top
        np.exp(values, out=values)
        with np.errstate(divide="ignore"):
            return (np.log(values.sum(axis=0)) + top)[None]


def _moved(problem, table, b, steps):
    """(rows, arms, size): each row of ``table`` moved up by what bin b spends on an arm, plus its ``steps``.

    ``table`` (rows, n), ``steps`` (rows, A). Outside the table: -inf in the first row, inf in the second.
    """
    count = int(problem.counts[b])
    size = min(table.shape[1] - 1 + count * (steps.shape[1] - 1), problem.budget) + 1
    reach = min(steps.shape[1] - 1, (size - 1) // count)
    start = count * reach
    padded = np.empty((table.shape[0], start + size))
    padded[:] = _OUTSIDE[: table.shape[0]]
    known = table[:, :size]
    padded[:, start : start + known.shape[1]] = known
    row, entry = padded.strides
    # arm a reads from start - count * a on, which lies inside `padded` for all a <= reach
    views = as_strided(
        padded[:, start:], (table.shape[0], reach + 1, size), (row, -count * entry, entry), writeable=False
    )
    return views + steps[:, : reach + 1, None]


def suffix_tables(problem, kind):
    """List of m tables: entry b covers the bins after b, so the last is the empty table."""
    tables = [kind.start]
    for b in range(problem.counts.size - 1, 0, -1):
        tables.append(kind.extend(problem, tables[-1], b))
    return tables[::-1]


def leave_one_out(problem, kind, bins=None, table=None):
    """Yield (b, table of all bins but b), in m log m extensions by halving."""
    bins = range(problem.counts.size) if bins is None else bins
    table = kind.start if table is None else table
    if len(bins) == 1:
        yield bins[0], table
        return
    halves = bins[: len(bins) // 2], bins[len(bins) // 2 :]
    for own, other in (halves, halves[::-1]):
        extended = table
        for b in other:
            extended = kind.extend(problem, extended, b)
        yield from leave_one_out(problem, kind, own, extended)


def look_up(table, totals, fill=-np.inf):
    """Entries of one row of a table at ``totals``, ``fill`` outside."""
    inside = (totals >= 0) & (totals < table.size)
    return np.where(inside, table[np.clip(totals, 0, table.size - 1)], fill)
