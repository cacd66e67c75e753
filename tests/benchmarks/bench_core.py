"""What the bookkeeping costs: classifier, adversaries, allocation, a whole controller step, and memory.

Not part of the tests: the name keeps it from being collected, and it needs the extra `bench`.

    pytest tests/benchmarks/bench_core.py -s --benchmark-columns=median,iqr,rounds --benchmark-sort=name
    pytest tests/benchmarks/bench_core.py -k step --benchmark-json=step.json

On a busy machine `--benchmark-timer=time.process_time` counts this process alone.

A group is one axis that grows, prompts P or bins B, so that growth is read down a column. Asserted are the
medians of a step that have a bar, and the growth exponent and the memory of histories, which `-s` shows.
"""

import numpy as np
import pytest

from gdro import OnlineDifficultyClassifier, PromptGDRO, RolloutGDRO, timing
from gdro.allocation import best_assignment, sample_assignment, variance_optimal

PROMPTS = (64, 512, 2048, 8192, 65_536)
BINS = (3, 10, 30, 100)
ARMS = timing.ARMS
BARS = {(512, 4): 1e-3, (2048, 8): 8e-3}  # seconds of a controller's step, by prompts and rollouts each


def allocation_problem(prompts, bins, mean=4):
    """Counts, log-probabilities, arms and budget of a batch spread evenly over the bins."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(prompts, np.full(bins, 1 / bins))
    return counts, np.log(rng.dirichlet(np.ones(len(ARMS)), size=bins)), ARMS, prompts * mean


@pytest.mark.benchmark(group="controller step, by prompts")
@pytest.mark.parametrize(("prompts", "mean"), [(p, 4) for p in PROMPTS] + [(2048, 8)])
def test_step(benchmark, prompts, mean):
    training = timing.Bench(prompts, mean=mean)
    benchmark.pedantic(
        training.step,
        setup=lambda: (training.prepared(), {}),
        rounds=max(5, 100_000 // prompts),
        warmup_rounds=5,
    )
    assert benchmark.stats.stats.median < BARS.get((prompts, mean), np.inf)


@pytest.mark.benchmark(group="controller step, by bins")
@pytest.mark.parametrize("bins", BINS)
def test_step_by_bins(benchmark, bins):
    training = timing.Bench(512, bins)
    benchmark.pedantic(training.step, setup=lambda: (training.prepared(), {}), rounds=100, warmup_rounds=5)


@pytest.mark.benchmark(group="classifier, by prompts")
@pytest.mark.parametrize("estimator", ["any", "unbiased", "posterior"])
@pytest.mark.parametrize("prompts", PROMPTS)
def test_classifier(benchmark, prompts, estimator):
    """One observation of distinct prompts, and their bins."""
    rng = np.random.default_rng(0)
    classifier = OnlineDifficultyClassifier(2 * prompts, estimator=estimator)
    chosen = rng.choice(2 * prompts, prompts, replace=False)
    correct = rng.integers(0, 5, prompts)

    def visit():
        classifier.observe(chosen, correct, np.full(prompts, 4))
        return classifier.bins(chosen)

    benchmark(visit)


@pytest.mark.benchmark(group="prompt adversary, by prompts")
@pytest.mark.parametrize("prompts", PROMPTS)
def test_prompt_adversary(benchmark, prompts):
    rng = np.random.default_rng(0)
    adversary, bins, losses = PromptGDRO(10), rng.integers(0, 10, prompts), rng.random(prompts)

    def round_of_play():
        adversary.observe(bins, losses)
        return adversary.weights_for(bins)

    benchmark(round_of_play)


@pytest.mark.benchmark(group="rollout adversary, by prompts")
@pytest.mark.parametrize("selection", ["map", "sample"])
@pytest.mark.parametrize("prompts", PROMPTS)
def test_rollout_adversary(benchmark, prompts, selection):
    rng = np.random.default_rng(0)
    adversary = RolloutGDRO(10, ARMS, 4, selection=selection)
    bins, losses = rng.integers(0, 10, prompts), rng.random(prompts)

    def round_of_play():
        adversary.plan(bins, rng)
        adversary.observe(bins, losses)

    benchmark(round_of_play)


@pytest.mark.benchmark(group="allocation, by prompts")
@pytest.mark.parametrize("rule", ["best", "tied", "draw", "variance"])
@pytest.mark.parametrize("prompts", PROMPTS)
def test_allocation(benchmark, prompts, rule):
    benchmark(allocation(rule, *allocation_problem(prompts, 10)))


@pytest.mark.benchmark(group="allocation, by bins")
@pytest.mark.parametrize("bins", BINS)
def test_allocation_by_bins(benchmark, bins):
    benchmark(allocation("best", *allocation_problem(512, bins)))


def allocation(rule, counts, logs, arms, budget):
    """A call without arguments; "tied" has probabilities of which many assignments share the largest."""
    if rule == "best":
        return lambda: best_assignment(counts, logs, arms, budget)
    if rule == "tied":
        return lambda: best_assignment(counts, np.round(logs), arms, budget)
    if rule == "draw":
        rng = np.random.default_rng(0)
        return lambda: sample_assignment(counts, logs, arms, budget, rng)
    return lambda: variance_optimal(counts, np.exp(logs[:, 0]), arms, budget)


def test_a_step_grows_no_faster_than_its_prompts():
    """The exponent from 2,048 to 65,536 prompts, where fixed costs no longer matter: at most 1.1."""
    times = timing.steps([(2048, 10), (65_536, 10)])
    whole = times[times["part"] == timing.WHOLE]
    exponent = timing.growth(whole, "prompts")["exponent"].item()
    print(f"\n{whole[['prompts', 'median', 'quickest']].round(2)}\ngrowth exponent {exponent:.2f}")
    assert exponent < 1.1


@pytest.mark.parametrize(
    ("number", "estimator", "limit"),
    [(10**5, "any", 10), (10**6, "any", 40), (10**7, "any", 400), (10**6, "unbiased", 250)],
)
def test_memory_of_histories(number, estimator, limit):
    """MB at the peak of a classifier's life in which every prompt is visited."""
    row = timing.histories([number], [estimator]).iloc[0]
    print(f"\n{number:,} prompts, {estimator!r}: {row.peak:.0f} MB, of which arrays {row.arrays:.0f}")
    assert row.peak < limit
