"""The classifier put to the test on prompts whose true pass rates are known: how far off it is, and where."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import betaincinv, expit, logit

from gdro import checks
from gdro.difficulty import OnlineDifficultyClassifier


@dataclass(frozen=True, eq=False)
class Trial:
    """What a classifier of B bins made of N prompts, visit by visit: arrays (V, N), each after that visit.

    ``truths`` the true pass@k that it estimates; ``estimates``; ``bins``; ``true_bins`` those of the truths;
    ``rollouts`` the prompt had on the visit.
    """

    truths: np.ndarray
    estimates: np.ndarray
    bins: np.ndarray
    true_bins: np.ndarray
    rollouts: np.ndarray
    num_bins: int


def known_rates(count, hard=0.6, easy=0.9) -> np.ndarray:
    """(count,) pass rates at the quantiles of Beta(hard, easy), ascending: many of them near 0 and 1.

    >>> known_rates(3, 1, 1).round(3)
    array([0.167, 0.5  , 0.833])
    """
    count = checks.whole_number("count", count, low=1)
    return betaincinv(hard, easy, (np.arange(count) + 0.5) / count)


def improving(rates, visits, gain) -> np.ndarray:
    """(visits, N) pass rates whose logits rise evenly from those of ``rates`` by ``gain`` over all visits.

    >>> improving(np.array([0.5]), 3, 2.0).round(3).ravel()
    array([0.5  , 0.731, 0.881])
    """
    rise = np.linspace(0, gain, checks.whole_number("visits", visits, low=1))
    return expit(logit(np.asarray(rates)) + rise[:, None])


def watch(rates, visits=None, rollouts=4, seed=0, **settings) -> Trial:
    """Show a classifier every prompt ``visits`` times and keep what it says after each.

    Args: ``rates`` (N,) pass rate of a rollout, or (V, N) one for each visit; ``rollouts`` of a prompt: a
    number, or (B,) one for each bin, as a rollout adversary gives them, by the prompt's present bin;
    ``settings`` of `OnlineDifficultyClassifier`, with its ``k`` also that of the truth, pass@k = 1-(1-p)^k,
    by default 4. Estimator "any" estimates it where every prompt has k rollouts.
    """
    rates = np.asarray(rates, dtype=np.float64)
    if rates.ndim == 1:
        rates = np.broadcast_to(rates, (checks.whole_number("visits", visits, low=1), rates.size))
    settings = {"k": 4, **settings}
    classifier = OnlineDifficultyClassifier(rates.shape[1], **settings)
    prompts, rng = np.arange(rates.shape[1]), np.random.default_rng(seed)
    by_bin = np.broadcast_to(np.asarray(rollouts), (classifier.num_bins,))
    given, estimates, bins = [], [], []
    for rate in rates:
        given.append(by_bin[classifier.bins(prompts)])
        classifier.observe(prompts, rng.binomial(given[-1], rate), given[-1])
        estimates.append(classifier.pass_rate(prompts))
        bins.append(classifier.bins(prompts))
    truths = 1 - (1 - rates) ** settings["k"]
    true_bins = np.searchsorted(classifier.edges[1:-1], truths, side="right")
    return Trial(truths, np.array(estimates), np.array(bins), true_bins, np.array(given), classifier.num_bins)


def errors(trial: Trial) -> pd.DataFrame:
    """A row a visit: ``visits`` so far, ``bias`` and ``rmse`` of the estimate, ``right`` and ``within_one``.

    ``right`` is the share of prompts in their true bin, ``within_one`` of those at most one bin off, and
    ``moves`` of those that changed their bin at this visit.
    """
    off, away = trial.estimates - trial.truths, np.abs(trial.bins - trial.true_bins)
    moves = np.diff(trial.bins, axis=0, prepend=trial.bins[:1]) != 0
    return pd.DataFrame(
        {
            "visits": np.arange(1, len(off) + 1),
            "bias": off.mean(axis=1),
            "rmse": np.sqrt((off**2).mean(axis=1)),
            "right": (away == 0).mean(axis=1),
            "within_one": (away <= 1).mean(axis=1),
            "moves": moves.mean(axis=1),
        }
    )


def confusion(trial: Trial, visits: int) -> np.ndarray:
    """(B, B) share of the prompts of each true bin (rows) that are in each bin (columns) after ``visits``.

    A true bin without prompts has NaN. Raises ``ValueError`` for a visit that was not watched.
    """
    at = checks.whole_number("visits", visits, low=1, high=len(trial.bins)) - 1
    counts = np.zeros((trial.num_bins, trial.num_bins))
    np.add.at(counts, (trial.true_bins[at], trial.bins[at]), 1)
    total = counts.sum(axis=1, keepdims=True)
    return counts / np.where(total > 0, total, np.nan)


def compare(rates, visits, variants, **common) -> pd.DataFrame:
    """`errors` of several classifiers on one population, with a first column ``variant``.

    Args: ``variants`` {name: settings of `watch`}; ``common`` settings of all. All see the same seed.
    """
    found = [
        errors(watch(rates, visits, **(common | own))).assign(variant=name) for name, own in variants.items()
    ]
    frame = pd.concat(found, ignore_index=True)
    return frame[["variant", *(c for c in frame.columns if c != "variant")]]


def bias_by_truth(trial: Trial, after, chunks=25) -> pd.DataFrame:
    """``truth`` and ``bias`` of the estimate, means over ``chunks`` equal parts of the prompts by truth.

    Over the visits beyond ``after``; for pass rates that do not change.
    """
    off = (trial.estimates - trial.truths)[after:].mean(axis=0)
    order = np.array_split(np.argsort(trial.truths[0], kind="stable"), chunks)
    return pd.DataFrame([{"truth": trial.truths[0][c].mean(), "bias": off[c].mean()} for c in order])


def errors_by_window(situations, windows, **settings) -> pd.DataFrame:
    """``window``, and for each situation the error of the estimate over the second half of its visits.

    Args: ``situations`` {name: (V, N) pass rates}; ``settings`` of `watch`. The error is the root mean square
    over prompts, averaged over visits.
    """
    rows = []
    for window in windows:
        row = {"window": window}
        for name, rates in situations.items():
            found = errors(watch(rates, window=window, **settings))["rmse"]
            row[name] = found[len(found) // 2 :].mean()
        rows.append(row)
    return pd.DataFrame(rows)


def shares(bins, num_bins) -> np.ndarray:
    """(T, B) share of the prompts in each bin at each time. ``bins`` (T, N) in [0, B).

    >>> shares(np.array([[0, 0, 1, 1], [1, 1, 1, 0]]), 2)
    array([[0.5 , 0.5 ],
           [0.25, 0.75]])
    """
    return np.stack([(bins == b).mean(axis=1) for b in range(num_bins)], axis=1)
