"""A learner without a network: whole runs of every study arm in a second, for ablations and for intuition.

The controller, its classifier and its adversaries are the real ones, built from the fields of `gdro.arms`;
advantages, clip, KL, minibatches and the weighting of rollouts are the trainer's. What is replaced is the
model and the task, by the policy of `gdro.learner`. Assumed, and not derived:

1. A prompt is a family, a difficulty and two rates: right by guessing, right by working. A rollout decides
   once, whether to work; the rest of it is noise that says nothing about its reward. Guesses are not learnt.
2. One ability a family; a family's step moves the others by the share ``transfer``, never against them.
3. Nothing is forgotten and nothing overfitted: a held-out prompt is as hard as a training prompt.
4. Capacity is a higher start and a higher rate of right answers when working. All capacities learn at one
   speed, and none teaches itself to work better: the ceiling stays.
5. A hopeless prompt is right once in a hundred rollouts, whatever the ability.
6. Lengths, tokens and seconds have no counterpart: a rollout is one token, and seconds are NaN.

Derived from the GRPO objective under these: the signal of a prompt, `gdro.learner.expected_gradient`.
Compare arms within the simulator; its rates are in logits a step, not those of any network.
"""

import itertools
import zlib
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd

from gdro import checks
from gdro.arms import ARMS, COMMON, GENERATION_STEPS, known
from gdro.learner import Learner, Update
from gdro.options import GDROOptions
from gdro.population import CAPACITIES, LEVELS, Capacity, Population
from gdro.runs import Frames, RunKey

_OPTIONS = tuple(option.name for option in fields(GDROOptions))
_UPDATE = ("beta", "epsilon", "epsilon_high", "advantage_std", "advantage_clip")


@dataclass(frozen=True)
class Course:
    """Length, batch and optimiser of a run; the defaults have the shape of the tiny scales.

    ``cycles`` of ``prompts`` x ``rollouts`` completions and two optimiser steps; ``budget`` "exact", or
    "dual" for an arm with `gdro.rollout_gdro.RolloutGDRO`, which then meets ``rollouts`` on average only
    (with such an arm it may be fractional); ``learning_rate``, ``noise`` and ``optimizer`` as
    `gdro.learner.Update` has them; ``samples`` of each held-out prompt at either end.
    """

    cycles: int = 100
    prompts: int = 48
    rollouts: float = 4
    budget: str = "exact"
    learning_rate: float = 0.1
    noise: float = 1.0
    optimizer: str = "adam"
    samples: int = 8

    def __post_init__(self):
        checks.one_of("budget", self.budget, ("exact", "dual"))
        for name in ("cycles", "prompts", "samples"):
            checks.whole_number(name, getattr(self, name), low=1)


@dataclass(frozen=True, eq=False)
class Simulation:
    """One simulated run: ``steps``, ``bins`` and ``evaluations`` as in the run store, and the truth behind
    them.

    ``families``: a row a cycle and family, the mean true ``pass_rate`` of its prompts and its ``ability``
    before the cycle (the last row: after the run). Of every prompt at the same times, (cycles + 1, N):
    ``pass_rates`` the true ones, ``estimates`` the classifier's of pass@k, ``assigned`` the bins it puts them
    in.
    """

    key: RunKey
    steps: pd.DataFrame
    bins: pd.DataFrame
    evaluations: pd.DataFrame
    families: pd.DataFrame
    pass_rates: np.ndarray
    estimates: np.ndarray
    assigned: np.ndarray


def simulate(arm, capacity="sim-m", seed=0, population=None, course=None, **changes) -> Simulation:
    """Train one study arm on a population and return what the run store would hold of it.

    Args: ``arm`` of `gdro.arms.ARMS`, save those that draw prompts again; ``capacity`` a name of
    `CAPACITIES`, or a `Capacity`; ``seed`` >= 0: arms of one seed see the same prompts in the same order, and
    draw their rollouts from the same stream; ``population`` and ``course``, by default `Population()` and
    `Course()`; ``changes`` fields of GDROConfig to set otherwise than the arm does. Equal arguments give
    equal results. Raises ``ValueError`` naming an unknown arm, capacity or field, and what the controller
    refuses.

    >>> run = simulate("joint", course=Course(cycles=2))
    >>> run.steps["rollouts_total"].tolist()
    [192, 192, 384, 384]
    """
    return _Run(arm, capacity, seed, population or Population(), course or Course(), changes).finish()


def simulate_study(arms, capacities, seeds, population=None, course=None) -> Frames:
    """Frames of all combinations, as `gdro.runs.load_runs` gives them for recorded runs; no manifests."""
    cells = itertools.product(capacities, arms, seeds)
    found = [simulate(arm, capacity, seed, population, course) for capacity, arm, seed in cells]
    tables = {
        name: pd.concat([getattr(run, name) for run in found], ignore_index=True)
        for name in ("steps", "bins", "evaluations")
    }
    return Frames(tuple(run.key for run in found), {}, **tables)


class _Run:
    """The loop of one run and its record."""

    def __init__(self, arm, capacity, seed, population, course, changes):
        study_arm = known("arm", arm, ARMS)
        if study_arm.trainer != "gdro":
            names = ", ".join(name for name, other in ARMS.items() if other.trainer == "gdro")
            raise ValueError(
                f"arm {arm!r} draws its prompts again, which the simulator does not: it has {names}"
            )
        capacity = capacity if isinstance(capacity, Capacity) else known("capacity", capacity, CAPACITIES)
        self.key = RunKey(capacity.name, arm, seed)
        self.population, self.course = population, course
        self.options, update = _settings(study_arm, course, changes)
        self.prompts = population.prompts(capacity.top)
        self.heldout, self.top = replace(population, rarity=1.0), capacity.top
        self.learner = Learner(
            np.full(len(population.difficulty), capacity.ability), update, population.transfer
        )
        groups = self.prompts.family * LEVELS + population.levels() - 1
        self.controller = self.options.controller(
            population.size,
            mean_budget=course.rollouts,
            budget=course.budget,
            seed=seed,
            bins=groups if study_arm.groups else None,
        )
        if population.size < course.prompts:
            raise ValueError(
                f"a batch of {course.prompts} prompts does not fit a population of {population.size}"
            )
        self.spent = 0
        self.steps, self.bins, self.families, self.looks = [], [], [], []

    def finish(self) -> Simulation:
        """Run from start to end."""
        evaluations = [self._evaluate(0)]
        for cycle in range(self.course.cycles):
            self._look(cycle)
            self._cycle(cycle)
        self._look(self.course.cycles)
        evaluations.append(self._evaluate(self.course.cycles * GENERATION_STEPS))
        frames = [
            pd.DataFrame(self.steps),
            pd.DataFrame(self.bins),
            pd.concat(evaluations, ignore_index=True),
            pd.DataFrame(self.families),
        ]
        for frame in frames:
            for at, name in enumerate(("scale", "arm", "seed")):
                frame.insert(at, name, getattr(self.key, name))
        return Simulation(self.key, *frames, *map(np.array, zip(*self.looks, strict=True)))

    def _rng(self, purpose, number):
        return np.random.default_rng([self.key.seed, zlib.crc32(purpose.encode()), number])

    def _batch(self, cycle):
        """(P,) prompts of a cycle: every epoch in an order of its own, an incomplete last batch left out."""
        epoch, at = divmod(cycle, self.population.size // self.course.prompts)
        order = self._rng("order", epoch).permutation(self.population.size)
        return order[at * self.course.prompts : (at + 1) * self.course.prompts]

    def _cycle(self, cycle):
        """Plan, sample, train, observe, record."""
        plan = self.controller.plan(self._batch(cycle))
        index = np.repeat(np.arange(plan.rollouts.size), plan.rollouts)
        rows, rng = self.prompts.take(plan.prompt_ids[index]), self._rng("rollouts", cycle)
        works, correct = self.learner.sample(rows, rng)
        factors = plan.weights[index]
        if self.options.rollout_weighting == "per_prompt":
            factors = factors * self.course.rollouts / plan.rollouts[index]
        losses = self.learner.train(rows, index, works, correct, factors, rng)
        rewards = correct.astype(float)
        self.spent += rewards.size
        self.controller.observe(plan, index, rewards, losses)
        self._record(cycle, rewards.mean(), losses.mean())

    def _record(self, cycle, reward, loss):
        last = (cycle + 1) * GENERATION_STEPS
        row = {"cycle": cycle, "rollouts_total": self.spent, "tokens_total": self.spent, "seconds": np.nan}
        for step in range(last - GENERATION_STEPS + 1, last):
            self.steps.append({"step": step, "reward": np.nan, "loss": np.nan, **row})
        metrics = {
            name.removeprefix("gdro/"): v
            for name, v in self.controller.metrics().items()
            if "/bin_" not in name
        }
        self.steps.append(
            {"step": last, "reward": reward, "loss": loss, **row, **metrics, **self.controller.prompt_lists()}
        )
        self.bins += [{"step": last, **bin_row} for bin_row in self.controller.log_rows()]

    def _look(self, cycle):
        """The truth before a cycle, and what the classifier makes of it."""
        rates = self.prompts.pass_rate(self.learner.abilities)
        classifier, every = self.controller.classifier, np.arange(self.population.size)
        self.looks.append((rates, classifier.pass_rate(every), classifier.bins(every)))
        means = np.bincount(self.prompts.family, rates) / self.population.counts
        for name, rate, ability in zip(self.population.families, means, self.learner.abilities, strict=True):
            self.families.append({"cycle": cycle, "family": name, "pass_rate": rate, "ability": ability})

    def _evaluate(self, step):
        """``samples`` rollouts of every held-out prompt; as many of a rare family as of any other."""
        prompts, k = self.heldout.prompts(self.top), self.course.samples
        right = self._rng("evaluation", step).binomial(k, prompts.pass_rate(self.learner.abilities))
        names = np.array(self.heldout.families)[prompts.family]
        return pd.DataFrame(
            {
                **{"step": step, "suite": names, "prompt_id": [f"held-out-{i}" for i in range(len(prompts))]},
                **{"level": self.heldout.levels(), "correct": right, "k": k, "tokens": k},
            }
        )


def _settings(study_arm, course, changes):
    """The options and the update of an arm, with ``changes``."""
    settings = {**COMMON, **study_arm.fields, **changes}
    unknown = [name for name in changes if name not in (*_OPTIONS, *_UPDATE)]
    if unknown:
        raise ValueError(
            f"unknown field {unknown[0]!r}: the known ones are {', '.join((*_OPTIONS, *_UPDATE))}"
        )
    options = GDROOptions(**{name: settings[name] for name in _OPTIONS if name in settings})
    options.check_choices()
    update = Update(
        learning_rate=course.learning_rate,
        noise=course.noise,
        optimizer=course.optimizer,
        steps=GENERATION_STEPS,
        **{name: settings[name] for name in _UPDATE},
    )
    return options, update
