"""Small controllers and random cycles for the tests."""

import numpy as np

from gdro.controller import Controller
from gdro.difficulty import OnlineDifficultyClassifier
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO
from gdro.sqrt_law import SquareRootLaw

BINS = 4
NAN = float("nan")


def controller(prompts=12, prompt=True, rollout="gdro", **kwargs):
    rule = {
        "gdro": lambda: RolloutGDRO(BINS, arms=(2, 3, 4, 5, 6), mean_budget=4),
        "sqrt": lambda: SquareRootLaw(BINS, arms=(2, 3, 4, 5, 6), mean_budget=4),
        None: lambda: None,
    }[rollout]()
    if rule is None:
        kwargs.setdefault("mean_budget", 4)
    classifier = OnlineDifficultyClassifier(prompts, edges=BINS, window=10)
    return Controller(classifier, PromptGDRO(BINS) if prompt else None, rule, **kwargs)


def rows_of(plan):
    return np.repeat(np.arange(plan.prompt_ids.size), plan.rollouts)


def run(one, cycles, seed=0, start=0, batch=6):
    """Cycles of random outcomes, the harder the higher the prompt id; the same for the same seed and
    cycle."""
    plans = []
    for cycle in range(start, start + cycles):
        rng = np.random.default_rng([seed, cycle])
        number = one.classifier.num_prompts
        plan = one.plan(rng.integers(0, number, size=batch))
        index = rows_of(plan)
        rewards = (rng.random(index.size) > plan.prompt_ids[index] / number).astype(float)
        one.observe(plan, index, rewards, losses=rng.normal(size=index.size))
        plans.append(plan)
    return plans


def assert_same_state(first, second):
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=key)
