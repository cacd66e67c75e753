"""Dynamic programmes over a rollout budget: what a set of bins can spend, and how well.

Budgets are counted as the excess over the smallest arm, so a bin of ``count`` prompts on its a-th arm spends
count * a. A table holds an entry for each total that the bins in it can spend. `Best` tables hold the largest
sum of log-probabilities and the smallest penalty among those that reach it, `Total` tables the logarithm of the
summed probability. Loops run over bins only; budget and arms are array axes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


@dataclass(frozen=True)
class Problem:
    """Bins that all have prompts: ``counts`` (m,) >= 1, ``logs`` (m, A), ``budget`` the excess to spend.

    ``even``: whether ties go to the smallest sum of count * a^2, before they go to the lexicographically first.
    """

    counts: np.ndarray
    logs: np.ndarray
    budget: int
    even: bool = True

    @property
    def tolerance(self):
        """Sums of log-probabilities this near count as equal at each bin; rounding errors are far below it."""
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


class Best:
    """Tables of (largest log-probability, smallest penalty among the tied), an array (2, size)."""

    start = np.zeros((2, 1))

    @staticmethod
    def extend(problem, table, b):
        """The table with bin ``b`` added."""
        count, size, reach = _extent(problem, table.shape[1], b)
        values = _shifted(table[0], count, size, reach, -np.inf) + problem.logs[b, : reach + 1, None]
        best = values.max(axis=0)
        penalties = _shifted(table[1], count, size, reach, np.inf) + problem.penalty(b)[: reach + 1, None]
        penalties[values < best - problem.tolerance] = np.inf
        return np.stack([best, penalties.min(axis=0)])


class Total:
    """Tables of log sum of probabilities, an array (1, size)."""

    start = np.zeros((1, 1))

    @staticmethod
    def extend(problem, table, b):
        """The table with bin ``b`` added."""
        count, size, reach = _extent(problem, table.shape[1], b)
        values = _shifted(table[0], count, size, reach, -np.inf) + problem.logs[b, : reach + 1, None]
        top = values.max(axis=0)
        top[top == -np.inf] = 0.0
        values -= top
        np.exp(values, out=values)
        with np.errstate(divide="ignore"):
            return (np.log(values.sum(axis=0)) + top)[None]


def _extent(problem, size, b):
    """Count of bin b, size of the table with b added, highest arm that still fits."""
    count = int(problem.counts[b])
    size = min(size - 1 + count * (problem.logs.shape[1] - 1), problem.budget) + 1
    return count, size, min(problem.logs.shape[1] - 1, (size - 1) // count)


def _shifted(table, count, size, reach, fill):
    """(reach + 1, size): row a is the table moved up by count * a, ``fill`` where it says nothing."""
    padded = np.full(count * reach + size, fill)
    known = table[:size]
    padded[count * reach : count * reach + known.size] = known
    return sliding_window_view(padded, size)[count * reach :: -count]


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
