"""Where an adversary can pay, on the simulator: over how much families learn for one another, how far apart
they lie, and how many prompts nobody can solve.

The method's premise is sub-domains that do not learn for one another. Here the premise is a factor, and arms
are compared at each of its levels; what comes out is a lead for real runs, no evidence about networks.
"""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd

from gdro import evidence
from gdro.population import Population
from gdro.simulator import simulate_study

ARMS = ("grpo", "prompt-gdro-error", "rollout-gdro-variance")
TRANSFERS = (0.0, 0.05, 0.3, 1.0)  # what a family's step gives every other, as a share of its own
STEPS = (0.75, 1.25)  # logits from one family to the next
HOPELESS = (0.0, 0.3)  # share of prompts that are right once in a hundred rollouts, whatever is learned
FACTORS = ["transfer", "step", "hopeless"]


def population(transfer: float, step: float, hopeless: float, base: Population | None = None) -> Population:
    """``base`` with another transfer, ``step`` logits between neighbouring families (about the same mean) and
    another share of hopeless prompts.

    >>> population(1.0, 2.0, 0.0, Population(difficulty=(0.0, 1.0, 5.0))).difficulty
    (0.0, 2.0, 4.0)
    """
    base = base or Population()
    families = len(base.difficulty)
    difficulty = np.mean(base.difficulty) + step * (np.arange(families) - (families - 1) / 2)
    return replace(base, difficulty=tuple(difficulty.tolist()), transfer=transfer, hopeless=hopeless)


def sweep(
    seeds, arms=ARMS, transfers=TRANSFERS, steps=STEPS, hopeless=HOPELESS, capacity="sim-m", **options
) -> pd.DataFrame:
    """Scores of simulated runs of every arm at every level of the three factors, about a second each.

    ``options`` go to `gdro.simulator.simulate_study`. Columns: transfer, step, hopeless, and those of
    `gdro.evidence.scores` (scale is the capacity).
    """
    frames = []
    for levels in itertools.product(transfers, steps, hopeless):
        runs = simulate_study(arms, [capacity], seeds, population=population(*levels), **options)
        found = evidence.scores(runs.evaluations)
        for at, (name, level) in enumerate(zip(FACTORS, levels, strict=True)):
            found.insert(at, name, level)
        frames.append(found)
    return pd.concat(frames, ignore_index=True)
