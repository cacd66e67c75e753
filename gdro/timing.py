"""What the bookkeeping costs by itself: processor time of a controller's step by part, memory of histories.

No model and no data: prompts have known pass rates, every bin holds prompts, and outcomes are drawn. The time
is this process's own, so that other work on the machine hardly disturbs it.
"""

import time
import tracemalloc

import numpy as np
import pandas as pd

from gdro import checks
from gdro.controller import Controller
from gdro.difficulty import OnlineDifficultyClassifier
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO

ARMS = tuple(range(2, 13))  # rollouts that a prompt may get, appendix A, Panaganti et al. 2026
WHOLE = "whole step"
PARTS = ("classifier", "prompt adversary", "rollout adversary", WHOLE)
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

    def parts(self, prompts, uniform) -> dict[str, float]:
        """Processor seconds of what a step asks of each part, called by itself, and of a whole step."""
        own, losses = self.controller, 1 - self.rates[prompts]
        correct = self.rng.binomial(4, self.rates[prompts])
        seconds = {}
        start = time.process_time()
        bins = own.classifier.bins(prompts)
        own.classifier.observe(prompts, correct, np.full(prompts.size, 4))
        seconds["classifier"] = time.process_time() - start
        start = time.process_time()
        own.prompt.weights_for(bins)
        own.prompt.observe(bins, losses)
        seconds["prompt adversary"] = time.process_time() - start
        start = time.process_time()
        own.rollout.plan(bins, self.rng)
        own.rollout.observe(bins, losses)
        seconds["rollout adversary"] = time.process_time() - start
        start = time.process_time()
        self.step(prompts, uniform)
        seconds[WHOLE] = time.process_time() - start
        return seconds


def steps(cells, rounds: int = 15) -> pd.DataFrame:
    """Milliseconds of a controller's step and of its parts, the median and the quickest of ``rounds``.

    Args: ``cells`` pairs (P prompts, B bins). Each cell is warmed up first. A row a cell and part; columns:
    prompts, bins, part (of ``PARTS``), median, quickest (ms of processor time). A part is called by itself,
    so that the whole, which also checks and aggregates the rows, is more than their sum.
    """
    checks.whole_number("rounds", rounds, low=1)
    rows = []
    for prompts, bins in cells:
        bench = Bench(
            checks.whole_number("prompts", prompts, low=1), checks.whole_number("bins", bins, low=2)
        )
        taken = pd.DataFrame([bench.parts(*bench.prepared()) for _ in range(rounds + 2)]).iloc[2:] * 1e3
        rows += [
            {"prompts": prompts, "bins": bins, "part": part, "median": own.median(), "quickest": own.min()}
            for part, own in taken.items()
        ]
    return pd.DataFrame(rows, columns=["prompts", "bins", "part", "median", "quickest"])


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
            tracemalloc.start()
            try:
                classifier = OnlineDifficultyClassifier(number, estimator=estimator)
                for start in range(0, number, CHUNK):
                    prompts = np.arange(start, min(start + CHUNK, number))
                    classifier.observe(prompts, prompts % 5, np.full(prompts.size, 4))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            sizes = {"peak": peak / 1e6, "arrays": classifier.nbytes / 1e6}
            each = classifier.nbytes / number
            rows.append({"estimator": estimator, "prompts": number, **sizes, "bytes": each})
    return pd.DataFrame(rows, columns=["estimator", "prompts", "peak", "arrays", "bytes"])
