"""Dynamic programmes over a rollout budget: what a set of bins can spend, and how well.

Budgets are counted as the excess over the smallest arm, so a bin of ``count`` prompts on its a-th arm spends
count * a. A table holds an entry for each total that the bins in it can spend and the other bins leave.
`Largest` tables hold the largest sum of log-probabilities, `Best` tables also the smallest penalty among
those that reach it, `Total` tables the logarithm of the summed probability. Loops run over bins only; budget
and arms are array axes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

_BLOCK = 8192  # totals that are combined at once, so that their arms stay in a core's cache


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
    def spends(self):
        """(m, A) excess of each bin on each arm."""
        return self.counts[:, None] * np.arange(self.logs.shape[1])

    @cached_property
    def prompts(self):
        """Prompts of all bins."""
        return int(self.counts.sum())

    @cached_property
    def margin(self):
        """Most that a bin can spend: how far below 0 a total may be looked up."""
        return int(self.spends.max(initial=0))

    @cached_property
    def tolerance(self):
        """Sums of log-probabilities this near are equal at a bin; rounding errors are far below it."""
        finite = np.abs(self.logs[np.isfinite(self.logs)])
        return max(1e-9, 1e-12 * finite.max(initial=0.0))

    @cached_property
    def workspace(self):
        """Room for a block of totals on each arm, a row for each row of a table: kept, because new memory
        takes longer to get than to fill."""
        return np.empty((2, self.logs.shape[1] * min(_BLOCK, self.budget + 1)))

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


@dataclass(frozen=True)
class Table:
    """``entries`` (rows, margin + budget + 1) for some bins with ``prompts`` in all: the first is that of
    total -margin. Totals that the bins cannot spend, or the other bins cannot complete to the budget, have
    probability 0 (-inf) and penalty inf."""

    entries: np.ndarray
    prompts: int

    @classmethod
    def of_no_bin(cls, problem, rows):
        """Only the total 0 can be spent, at log-probability and penalty 0."""
        entries = _impossible(problem, rows)
        entries[:, problem.margin] = 0.0
        return cls(entries, 0)

    def window(self, problem, b):
        """Smallest and largest total that matter once bin ``b`` is added."""
        top = problem.logs.shape[1] - 1
        prompts = self.prompts + int(problem.counts[b])
        others = problem.prompts - prompts
        return max(0, problem.budget - others * top), min(problem.budget, prompts * top)

    def moved(self, problem, b, row, steps, low, high):
        """(arms, high - low): entries from ``low`` to before ``high`` of a row moved up by what bin ``b``
        spends on an arm, plus ``steps`` (A,); in the problem's `workspace`."""
        count = int(problem.counts[b])
        arms = min(steps.size - 1, (high - 1) // count) + 1
        entry = self.entries.itemsize
        first = (row * self.entries.shape[1] + problem.margin + low) * entry
        # arm a reads from count * a entries further down, at most the margin
        shape, strides = (arms, high - low), (-count * entry, entry)
        entries = np.ndarray(shape, np.float64, self.entries, first, strides)
        room = problem.workspace[row, : entries.size].reshape(shape)
        return np.add(entries, steps[:arms, None], out=room)

    def with_bin(self, problem, b, kind):
        """The table with bin ``b`` added: its entries in the `window` as ``kind`` combines them, block by
        block."""
        low, high = self.window(problem, b)
        edges = [*range(low, high + 1, _BLOCK), high + 1]
        blocks = [kind.combined(problem, self, b, *edge) for edge in pairwise(edges)]
        entries = _impossible(problem, kind.rows)
        if blocks:  # else the budget is beyond what the bins can spend
            entries[:, problem.margin + low : problem.margin + high + 1] = np.concatenate(blocks, axis=-1)
        return Table(entries, self.prompts + int(problem.counts[b]))

    def at(self, problem, totals, row=0):
        """Entries at ``totals``, each from -margin to the budget."""
        return self.entries[row, totals + problem.margin]


def _impossible(problem, rows):
    entries = np.full((rows, problem.margin + problem.budget + 1), -np.inf)
    entries[1:] = np.inf
    return entries


class Largest:
    """Tables of the largest log-probability, one row."""

    rows = 1

    @staticmethod
    def combined(problem, table, b, low, high):
        """Entries from ``low`` to before ``high`` once bin ``b`` is added."""
        return table.moved(problem, b, 0, problem.logs[b], low, high).max(axis=0)


class Best:
    """Tables of the largest log-probability, and of the smallest penalty among the tied, two rows."""

    rows = 2

    @staticmethod
    def combined(problem, table, b, low, high):
        """Entries from ``low`` to before ``high`` once bin ``b`` is added."""
        values = table.moved(problem, b, 0, problem.logs[b], low, high)
        penalties = table.moved(problem, b, 1, problem.penalty(b), low, high)
        best = values.max(axis=0)
        penalties[values < best - problem.tolerance] = np.inf
        return best, penalties.min(axis=0)


class Total:
    """Tables of log sum of probabilities, one row."""

    rows = 1

    @staticmethod
    def combined(problem, table, b, low, high):
        """Entries from ``low`` to before ``high`` once bin ``b`` is added."""
        values = table.moved(problem, b, 0, problem.logs[b], low, high)
        top = values.max(axis=0)
        top[top == -np.inf] = 0.0
        values -= top
        np.exp(values, out=values)
        with np.errstate(divide="ignore"):
            return np.log(values.sum(axis=0)) + top


def suffix_tables(problem, kind):
    """List of m tables: entry b covers the bins after b, so the last is that of no bin."""
    tables = [Table.of_no_bin(problem, kind.rows)]
    with np.errstate():  # which also restores the buffer size
        # NumPy would copy short rows into buffers, which takes longer than to add them
        np.setbufsize(16)
        for b in range(problem.counts.size - 1, 0, -1):
            tables.append(tables[-1].with_bin(problem, b, kind))
    return tables[::-1][: problem.counts.size]


def leave_one_out(problem, kind, bins=None, table=None):
    """Yield (b, table of all bins but b), in m log m extensions by halving."""
    bins = range(problem.counts.size) if bins is None else bins
    table = Table.of_no_bin(problem, kind.rows) if table is None else table
    if len(bins) < 2:
        yield from ((b, table) for b in bins)
        return
    halves = bins[: len(bins) // 2], bins[len(bins) // 2 :]
    for own, other in (halves, halves[::-1]):
        extended = table
        for b in other:
            extended = extended.with_bin(problem, b, kind)
        yield from leave_one_out(problem, kind, own, extended)


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
    for b, table in enumerate(suffix_tables(problem, kind)):
        after = remaining - problem.spends[b]
        values = problem.logs[b] + table.at(problem, after)
        largest = values[values.argmax()]
        if largest == -np.inf:
            return None, False
        best = values >= largest - problem.tolerance
        if kind is Best:
            penalties = problem.penalty(b) + table.at(problem, after, row=1)
            arm = np.where(best, penalties, np.inf).argmin()
        else:
            arm = best.argmax()
            tied = tied or int(np.count_nonzero(best)) > 1
        remaining = int(after[arm])
        totals.append(int(problem.spends[b, arm]))
    return totals, tied


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
        rows = [np.full(own.size, b), own, problem.split(problem.logs[b], b, own) + table.at(problem, rest)]
        if kind is Best:
            penalties = problem.split(problem.penalty(b), b, own) + table.at(problem, rest, row=1)
            rows.append(np.rint(penalties))
        options.append(np.stack(rows))
    if not options or max(option[2].max(initial=-np.inf) for option in options) == -np.inf:
        raise _no_probability(problem)
    return np.concatenate(options, axis=1)


def _with_split(problem, b, own, solve):
    """Totals of all bins: ``own`` for the split bin b, and what ``solve`` finds for the others."""
    others = solve(problem.without(b, problem.budget - own))
    return [*others[:b], own, *others[b:]]


def drawn_totals(problem, rng):
    """Excess total of each bin under a drawn assignment of one arm a bin, or None where there is none."""
    remaining, totals = problem.budget, []
    for b, table in enumerate(suffix_tables(problem, Total)):
        logits = problem.logs[b] + table.at(problem, remaining - problem.spends[b])
        if logits.max() == -np.inf:
            return None
        totals.append(int(problem.spends[b, _draw(logits, rng)]))
        remaining -= totals[-1]
    return totals


def drawn_split(problem, rng):
    """As `drawn_totals` with exactly one bin split between two adjacent arms."""
    options = _split_options(problem, Total)
    b, own = options[:2, _draw(options[2], rng)].astype(np.int64).tolist()
    return _with_split(problem, b, own, lambda others: drawn_totals(others, rng))


def _draw(logits, rng):
    """An index with probability proportional to exp(logits); at least one is finite."""
    cumulative = np.cumsum(np.exp(logits - logits.max()))
    # u <= 1 - 2^-53, so u * total stays below the total when it is rounded
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def _no_probability(problem):
    return ValueError(
        f"no assignment of positive probability spends the budget, {problem.budget} rollouts above what the "
        f"smallest arm takes for every prompt, on bins of {problem.counts.tolist()} prompts; "
        "allow more arms (log_probs above -inf) or change the budget"
    )
