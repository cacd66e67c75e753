"""What the bookkeeping costs by itself: processor time of a controller's step by part, memory of histories.

No model and no data: prompts have known pass rates, every bin holds prompts, and outcomes are drawn. The time
is this process's own, so that other work on the machine hardly disturbs it.
"""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from gdro import checks, statistics
from gdro.allocation import best_assignment
from gdro.controller import Controller
from gdro.difficulty import OnlineDifficultyClassifier
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO
from gdro.runs import write_atomically
from gdro.tasks import data_root

ARMS = tuple(range(2, 13))  # rollouts that a prompt may get, appendix A, Panaganti et al. 2026
WHOLE = "whole step"
PARTS = ("classifier", "prompt adversary", "allocation", "rollout adversary", WHOLE)
PROMPTS, BINS = (64, 512, 2048, 8192, 65_536), (3, 10, 30, 100)  # the whole range of `record`
HISTORIES, ESTIMATORS = (10**5, 10**6, 10**7), ("any", "unbiased")
RECORDED = ("steps", "histories", "pairs", "arms")
CHUNK = 65_536  # prompts of one visit, where a whole data set is visited


class Bench:
    """A controller with both adversaries, batches of ``prompts`` from all bins, and steps to be timed.

    Args: ``prompts`` P of a batch, of a data set of 20,000 or twice as many as the batch; ``bins`` B of equal
    width, all occupied; ``mean`` rollouts a prompt; ``rollout`` further settings of `RolloutGDRO`.
    """

    def __init__(self, prompts, bins=10, mean=4, **rollout):
        self.rng, self.batch, number = np.random.default_rng(0), prompts, max(20_000, 2 * prompts)
        self.rates = self.rng.random(number)
        classifier = OnlineDifficultyClassifier(number, edges=bins, hysteresis=0.3 / bins)
        for _ in range(2 * bins):
            classifier.observe(
                np.arange(number), self.rng.binomial(1, self.rates), np.ones(number, dtype=int)
            )
        rule = RolloutGDRO(bins, ARMS, mean, **rollout)
        self.controller = Controller(classifier, PromptGDRO(bins), rule)

    def prepared(self):
        """A batch (P,) of distinct prompts, and a uniform number for each row that it might get."""
        prompts = self.rng.choice(self.rates.size, self.batch, replace=False)
        return prompts, self.rng.random(self.batch * ARMS[-1])

    def step(self, prompts, uniform):
        """Classify, plan, weights, observe: all that a cycle asks of the controller."""
        plan = self.controller.plan(prompts)
        owner = np.repeat(np.arange(self.batch), plan.rollouts)
        rewards = (uniform[: owner.size] < self.rates[prompts][owner]).astype(float)
        self.controller.observe(plan, owner, rewards)

    def calls(self, prompts, uniform) -> dict[str, Callable[[], object]]:
        """What a step asks of each part, by itself, and a whole step: each to be called once."""
        own, losses = self.controller, 1 - self.rates[prompts]
        correct, rollouts = self.rng.binomial(4, self.rates[prompts]), np.full(prompts.size, 4)
        bins = own.classifier.bins(prompts)
        counts = np.bincount(bins, minlength=own.num_bins)
        logs, budget = np.log(own.rollout.arm_probabilities), prompts.size * own.mean_budget

        def classify():
            own.classifier.bins(prompts)
            own.classifier.observe(prompts, correct, rollouts)

        def weigh():
            own.prompt.weights_for(bins)
            own.prompt.observe(bins, losses)

        def spend():
            own.rollout.plan(bins, self.rng)
            own.rollout.observe(bins, losses)

        return {
            "classifier": classify,
            "prompt adversary": weigh,
            "allocation": lambda: best_assignment(counts, logs, ARMS, budget),
            "rollout adversary": spend,
            WHOLE: lambda: self.step(prompts, uniform),
        }

    def seconds(self) -> dict[str, float]:
        """Processor seconds of each part and of a whole step, for the next batch."""
        return {part: _seconds(call) for part, call in self.calls(*self.prepared()).items()}

    def peaks(self) -> dict[str, int]:
        """Bytes that each part and a whole step take at their worst moment, above what was held before."""
        return {part: _peak(call)[0] for part, call in self.calls(*self.prepared()).items()}


def _seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def _peak(call):
    """Bytes at the worst moment of a call, as Python's allocator counts them, and what it returns."""
    tracemalloc.start()
    try:
        made = call()
        return tracemalloc.get_traced_memory()[1], made
    finally:
        tracemalloc.stop()


def steps(cells, rounds: int = 15) -> pd.DataFrame:
    """Milliseconds of a controller's step and of its parts, the median and the quickest of ``rounds``.

    Args: ``cells`` pairs (P prompts, B bins). Each cell is warmed up first. A row a cell and part; columns:
    prompts, bins, part (of ``PARTS``), median, quickest (ms of processor time), peak (MB at the worst moment
    of one more call). A part is called by itself. "allocation", the best assignment, is the largest piece of
    the rollout adversary; the whole also checks the rows and sums them up, which no other part does.
    """
    checks.whole_number("rounds", rounds, low=1)
    rows = []
    for prompts, bins in cells:
        bench = Bench(
            checks.whole_number("prompts", prompts, low=1), checks.whole_number("bins", bins, low=2)
        )
        taken = pd.DataFrame([bench.seconds() for _ in range(rounds + 2)]).iloc[2:] * 1e3
        peaks = bench.peaks()
        for part, own in taken.items():
            times = {"median": own.median(), "quickest": own.min(), "peak": peaks[part] / 1e6}
            rows.append({"prompts": prompts, "bins": bins, "part": part} | times)
    return pd.DataFrame(rows, columns=["prompts", "bins", "part", "median", "quickest", "peak"])


def growth(times: pd.DataFrame, axis: str, value: str = "quickest") -> pd.DataFrame:
    """How time grows along ``axis`` ("prompts" or "bins"): the exponent a of ``value`` ~ axis^a of each part.

    Columns: part, exponent (least squares of the logarithms, over all cells: fixed costs lower it) and last
    (from the last two cells alone, nearest to what holds for large ones). Raises ``ValueError`` for fewer
    than two different cells.
    """
    checks.one_of("axis", axis, ("prompts", "bins"))
    rows = []
    for part, own in times.groupby("part", sort=False):
        own = own.sort_values(axis)
        if own[axis].nunique() < 2:
            raise ValueError(
                f"growth over {axis} needs two values of it, got {own[axis].unique()}: time more"
            )
        x, y = np.log(own[axis].to_numpy(float)), np.log(own[value].to_numpy(float))
        last = (y[-1] - y[-2]) / (x[-1] - x[-2])
        rows.append({"part": part, "exponent": np.polyfit(x, y, 1)[0], "last": last})
    return pd.DataFrame(rows, columns=["part", "exponent", "last"])


def histories(numbers, estimators=("any",)) -> pd.DataFrame:
    """Memory of a classifier's life in which every one of its prompts is visited once.

    Args: ``numbers`` of prompts in the data set; ``estimators`` of `OnlineDifficultyClassifier`. Columns:
    estimator, prompts, peak (MB at the worst moment, as Python's allocator counts it), arrays (MB of the
    classifier's arrays), bytes (of these, a prompt).
    """
    rows = []
    for estimator in estimators:
        for number in numbers:
            peak, classifier = _peak(lambda n=number, kind=estimator: _visited(n, kind))
            sizes = {"peak": peak / 1e6, "arrays": classifier.nbytes / 1e6}
            each = classifier.nbytes / number
            rows.append({"estimator": estimator, "prompts": number, **sizes, "bytes": each})
    return pd.DataFrame(rows, columns=["estimator", "prompts", "peak", "arrays", "bytes"])


def _visited(number, estimator):
    """A classifier all of whose prompts were visited once."""
    classifier = OnlineDifficultyClassifier(number, estimator=estimator)
    for start in range(0, number, CHUNK):
        prompts = np.arange(start, min(start + CHUNK, number))
        classifier.observe(prompts, prompts % 5, np.full(prompts.size, 4))
    return classifier


def record(folder=None, prompts=PROMPTS, bins=BINS, numbers=HISTORIES, rounds: int = 9) -> None:
    """Measure the whole range and keep it as two CSV files in ``folder``, by default that of `recorded`.

    Every number of prompts with every number of bins; a few minutes, and 2.2 GB for the largest history.
    The files that the package ships were made so, on two cores that other work shared.
    """
    keep("steps", steps([(p, b) for p in prompts for b in bins], rounds).round(4), folder)
    keep("histories", histories(numbers, ESTIMATORS).round(2), folder)


def keep(name: str, frame: pd.DataFrame, folder=None) -> None:
    """Write one of the ``RECORDED`` tables as CSV into ``folder``, by default that of `recorded`."""
    path = _path(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: frame.to_csv(temporary, index=False))


def recorded(name: str) -> pd.DataFrame:
    """A table that was kept: "steps" as `steps` returns them, "histories" as `histories` does.

    "pairs" (scale, path, pair, ratio: processor seconds of a short training by `gdro.GDROTrainer` over those
    by TRL's GRPOTrainer) and "arms" (scale, arm, seed, seconds, tokens, rollouts of whole runs) are made by
    ``tests/benchmarks/bench_trainer.py --keep``.
    """
    return pd.read_csv(_path(name))


def _path(name, folder=None):
    name = checks.one_of("recorded table", name, RECORDED)
    return (data_root() / "overhead" if folder is None else Path(folder)) / f"{name}.csv"


def ratios(pairs: pd.DataFrame) -> pd.DataFrame:
    """The median ratio of "pairs" with its 95 % bootstrap interval over them, by scale and path.

    Columns: scale, path, median, low, high, pairs.
    """
    rows = []
    for names, own in pairs.groupby(["scale", "path"], sort=False)["ratio"]:
        found = statistics.bootstrap_interval([own.to_numpy()], np.median)
        rows.append([*names, found.estimate, found.low, found.high, own.size])
    return pd.DataFrame(rows, columns=["scale", "path", "median", "low", "high", "pairs"])
