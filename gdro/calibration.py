"""The simulator set up to resemble recorded runs, and the two side by side.

A population takes what the base model's evaluation shows of families and guesses; three numbers are chosen
on the curve of GRPO alone. What the simulator says of the other arms is then a prediction.
"""

import itertools

import numpy as np
import pandas as pd
from scipy.special import logit

from gdro import evidence, tables
from gdro.population import Capacity, Population
from gdro.runs import Frames, RunKey
from gdro.simulator import Course, simulate
from gdro.statistics import beta_prior
from gdro.tasks import OUTSIDE_SUITE


def inside(evaluations) -> pd.DataFrame:
    """The rows of the suites that have a family in training."""
    return evaluations[evaluations["suite"] != OUTSIDE_SUITE]


def resembling(evaluations, work_floor, top, transfer=0.0, spread=0.5) -> Population:
    """A population whose families start at the measured pass rates of the base model, step 0.

    The family of the lowest rate is taken to guess: its mean rate is ``guess``, and a Beta distribution
    fitted to its prompts (`statistics.beta_prior`) gives the correlation of guesses, 1 / (a + b + 1). Others
    work on the share w = (rate - guess) / (top - guess) of their rollouts, and have difficulty -logit(w) for
    an ability of 0. ``work_floor`` is the share of work where none was measured, the least that w may be.
    """
    base = inside(evaluations[evaluations["step"] == 0]).drop_duplicates(["seed", "prompt_id"])
    counts = base.groupby("suite", sort=False)[["correct", "k"]].sum()
    rates = counts["correct"] / counts["k"]
    guessed = base[base["suite"] == rates.idxmin()]
    a, b = beta_prior(guessed["correct"].to_numpy(), guessed["k"].to_numpy())
    guess = float(rates.min())
    work = ((rates - guess) / (top - guess)).clip(work_floor, 1 - work_floor)
    return Population(
        difficulty=tuple(-logit(work)),
        guess=guess,
        guess_correlation=1 / (a + b + 1),
        transfer=transfer,
        spread=spread,
    )


def curve(steps, smooth=10) -> pd.Series:
    """Pass rate of the batches by cycle: the mean over runs of a running mean over ``smooth`` cycles."""
    rate = steps.dropna(subset=["pass_rate"]).groupby("cycle")["pass_rate"].mean()
    return rate.rolling(smooth, min_periods=1).mean()


def fit(frames: Frames, top, work_floors, transfers, learning_rates, seeds=(0, 1)) -> pd.DataFrame:
    """All combinations, best first, by how far GRPO's simulated curve lies from the recorded one.

    Args: ``frames`` of recorded runs of one scale, "grpo" among them; tuples of values to try. Columns:
    work_floor, transfer, learning_rate, rmse (root mean square difference of the smoothed pass rates).
    """
    steps = frames.steps[frames.steps["arm"] == "grpo"]
    if steps.empty:
        raise ValueError("the recorded runs have no run of grpo to choose by: load one")
    target, cycles = curve(steps), int(steps["cycle"].max()) + 1
    rows = []
    for floor, transfer, rate in itertools.product(work_floors, transfers, learning_rates):
        population = resembling(frames.evaluations, floor, top, transfer)
        course = Course(cycles=cycles, learning_rate=rate)
        runs = [simulate("grpo", Capacity("fit", 0.0, top), s, population, course) for s in seeds]
        off = curve(pd.concat([run.steps for run in runs])) - target
        found = {"work_floor": floor, "transfer": transfer, "learning_rate": rate}
        rows.append({**found, "rmse": float(np.sqrt((off**2).mean()))})
    return pd.DataFrame(rows).sort_values("rmse", ignore_index=True)


def simulated_like(frames: Frames, chosen, top, seeds) -> Frames:
    """Simulated runs of the arms and cycles of ``frames``, of a scale named "simulated".

    ``chosen``: a row of `fit`.
    """
    population = resembling(frames.evaluations, chosen["work_floor"], top, chosen["transfer"])
    course = Course(cycles=int(frames.steps["cycle"].max()) + 1, learning_rate=chosen["learning_rate"])
    capacity = Capacity("simulated", 0.0, top)
    arms = dict.fromkeys(key.arm for key in frames.runs)
    found = [simulate(arm, capacity, seed, population, course) for arm in arms for seed in seeds]
    stacked = {
        n: pd.concat([getattr(r, n) for r in found], ignore_index=True)
        for n in ("steps", "bins", "evaluations")
    }
    return Frames(tuple(RunKey("simulated", a, s) for a in arms for s in seeds), {}, **stacked)


def family_rates(real: Frames, simulated: Frames) -> pd.DataFrame:
    """Held-out pass rate (mean@k) at the end by arm, and of the base model, recorded and simulated; a row a
    family."""
    parts = []
    for source, frames in (("recorded", real), ("simulated", simulated)):
        rows = inside(frames.evaluations)
        rows = pd.concat([tables.base_as_arm(rows), tables.final_step(rows)])
        counts = rows.groupby(["arm", "suite"], sort=False)[["correct", "k"]].sum()
        wide = (counts["correct"] / counts["k"]).unstack("arm", sort=False)
        parts.append(wide.set_axis([f"family {i + 1}" for i in range(len(wide))]).add_suffix(f" ({source})"))
    return pd.concat(parts, axis=1)


def arm_differences(real: Frames, simulated: Frames) -> pd.DataFrame:
    """Each arm minus GRPO in mean@k of the families, recorded and simulated, with 95 % intervals."""
    found = [evidence.differences(inside(f.evaluations)) for f in (real, simulated)]
    both = pd.concat(found, ignore_index=True)
    return (
        both[both["metric"] == "mean"]
        .drop(columns="metric")
        .sort_values("arm", kind="stable", ignore_index=True)
    )
