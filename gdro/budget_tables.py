"""Dynamic programmes over a rollout budget: what a set of bins can spend, and how well.

Budgets are counted as the excess over the smallest arm, so a bin of ``count`` prompts on its a-th arm spends
count * a. A table holds an entry for each total that the bins in it can spend. `Largest` tables hold the
largest sum of log-probabilities, `Best` tables also the smallest penalty among those that reach it, `Total`
tables the logarithm of the summed probability. Loops run over bins only; budget and arms are array axes.
"""

from dataclasses import dataclass, replace
from functools import cached_property

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

    @cached_property
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
    """List of m tables: entry b covers the bins after b, so the last is that of no bin."""
    tables = [kind.start]
    for b in range(problem.counts.size - 1, 0, -1):
        tables.append(kind.extend(problem, tables[-1], b))
    return tables[::-1][: problem.counts.size]


def leave_one_out(problem, kind, bins=None, table=None):
    """Yield (b, table of all bins but b), in m log m extensions by halving."""
    bins = range(problem.counts.size) if bins is None else bins
    table = kind.start if table is None else table
    if len(bins) < 2:
        yield from ((b, table) for b in bins)
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


def best_totals(problem):
    """Excess total of each bin under the best assignment of one arm a bin, or None where there is none."""
    totals, tied = _traced(problem, Largest)
    if tied and (problem.logs == problem.logs[:, :1]).all():
        # every assignment ties: the penalty alone decides
        penalties = np.stack([problem.penalty(b) for b in range(problem.counts.size)])
        return _traced(replace(problem, logs=-penalties), Largest)[0]
    return _traced(problem, Best)[0] if tied else totals


def _traced(problem, kind):
    """The optimum read off suffix tables, and whether there was a tie, which only kind `Best` settles."""
    remaining, totals, tied = problem.budget, [], False
    spends = np.arange(problem.logs.shape[1])
    for b, table in enumerate(suffix_tables(problem, kind)):
        after = remaining - problem.counts[b] * spends
        values = problem.logs[b] + look_up(table[0], after)
        if values.max() == -np.inf:
            return None, False
        best = values >= values.max() - problem.tolerance
        if kind is Best:
            penalties = problem.penalty(b) + look_up(table[1], after, np.inf)
            arm = np.argmin(np.where(best, penalties, np.inf))
        else:
            arm = np.argmax(best)
            tied = tied or best.sum() > 1
        totals.append(int(problem.counts[b] * arm))
        remaining -= totals[-1]
    return (totals if remaining == 0 else None), tied


def best_split(problem):
    """As `best_totals` with exactly one bin split between two adjacent arms."""
    options = _split_options(problem, Largest)
    if (options[2] >= options[2].max() - problem.tolerance).sum() > 1:
        options = _split_options(problem, Best)
        options = options[:, options[2] >= options[2].max() - problem.tolerance]
        options = options[:, options[3] == options[3].min()]
    else:
        options = options[:, [options[2].argmax()]]
    choices = options[:2].astype(np.int64).T.tolist()
    return min(_with_split(problem, b, own, best_totals) for b, own in choices)


def _split_options(problem, kind):
    """(3, n), or (4, n) for `Best`: each possible split bin, its excess total, the sums with it."""
    options = []
    for b, table in leave_one_out(problem, kind):
        own = problem.split_totals(b)
        rest = problem.budget - own
        rows = [np.full(own.size, b), own, problem.split(problem.logs[b], b, own) + look_up(table[0], rest)]
        if kind is Best:
            penalties = problem.split(problem.penalty(b), b, own) + look_up(table[1], rest, np.inf)
            rows.append(np.rint(penalties))
        options.append(np.stack(rows))
    if not options or max(option[2].max(initial=-np.inf) for option in options) == -np.inf:
        raise _no_probability(problem)
    return np.concatenate(options, axis=1)


def _with_split(problem, b, own, solve):
    """Totals of all bins: ``own`` for the split bin b, and what ``solve`` finds for the others."""
    others = solve(problem.without(b, problem.budget - own)) if problem.counts.size > 1 else []
    return [*others[:b], own, *others[b:]]


def drawn_totals(problem, rng):
    """Excess total of each bin under a drawn assignment of one arm a bin, or None where there is none."""
    remaining, totals = problem.budget, []
    spends = np.arange(problem.logs.shape[1])
    for b, table in enumerate(suffix_tables(problem, Total)):
        logits = problem.logs[b] + look_up(table[0], remaining - problem.counts[b] * spends)
        if logits.max() == -np.inf:
            return None
        totals.append(int(problem.counts[b] * _draw(logits, rng)))
        remaining -= totals[-1]
    return totals if remaining == 0 else None


def drawn_split(problem, rng):
    """As `drawn_totals` with exactly one bin split between two adjacent arms."""
    options = _split_options(problem, Total)
    b, own = options[:2, _draw(options[2], rng)].astype(np.int64).tolist()
    return _with_split(problem, b, own, lambda others: drawn_totals(others, rng))


def _draw(logits, rng):
    """An index with probability proportional to exp(logits); at least one is finite."""
    cumulative = np.cumsum(np.exp(logits - logits.max()))
    index = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    # u * total may round up to the total: the last entry of positive probability is meant then
    return int(min(index, np.searchsorted(cumulative, cumulative[-1])))


def _no_probability(problem):
    return ValueError(
        f"no assignment of positive probability spends {problem.budget} rollouts above the smallest arm on "
        f"bins of {problem.counts.tolist()} prompts; allow more arms (log_probs above -inf) or "
        "change the budget"
    )
