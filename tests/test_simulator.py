"""Simulated runs: exact budgets, arms that reduce to GRPO, transfer, capacity, the run store's columns."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from gdro import figures, tables
from gdro.arms import ARMS
from gdro.population import CAPACITIES, HOPELESS_RATE, Capacity, Population
from gdro.runs import TABLES, missing_columns
from gdro.simulator import Course, simulate, simulate_study

SHORT = Course(cycles=12, prompts=24)
FEW = Population(size=120)
ARMS_HERE = [name for name, arm in ARMS.items() if arm.trainer == "gdro"]
NOISELESS = Course(cycles=30, noise=0.0)


def equal(one, two):
    for table in (*TABLES, "families"):
        pd.testing.assert_frame_equal(*(getattr(r, table).drop(columns=["arm"]) for r in (one, two)))
    np.testing.assert_array_equal(one.pass_rates, two.pass_rates)


# what is the same for every arm


@pytest.mark.parametrize("arm", ARMS_HERE)
def test_every_arm_spends_the_budget_exactly_and_keeps_the_columns_of_the_run_store(arm):
    run = simulate(arm, population=FEW, course=SHORT)
    for table in TABLES:
        assert not missing_columns(table, getattr(run, table))
    ends = run.steps[run.steps["pass_rate"].notna()]
    assert list(ends["step"]) == list(range(2, 25, 2))
    assert all(sum(counts) == 24 * 4 for counts in ends["prompt_rollouts"])
    assert list(ends["rollouts_total"]) == [96 * c for c in range(1, 13)]
    planned = (run.bins["prompts"] * run.bins["rollouts"].fillna(0)).groupby(run.bins["cycle"]).sum()
    np.testing.assert_allclose(planned, 96)
    assert ((run.pass_rates > 0) & (run.pass_rates < 1)).all()
    assert run.pass_rates.shape == run.estimates.shape == run.assigned.shape == (13, 120)


def test_one_seed_gives_one_run_and_another_seed_another():
    equal(*(simulate("joint", seed=3, population=FEW, course=SHORT) for _ in range(2)))
    other = simulate("joint", seed=4, population=FEW, course=SHORT)
    assert not np.array_equal(
        other.pass_rates[-1], simulate("joint", seed=3, population=FEW, course=SHORT).pass_rates[-1]
    )


def test_all_arms_of_a_seed_see_the_same_prompts_in_the_same_order():
    found = [
        simulate(arm, population=FEW, course=SHORT).steps["prompt_ids"].dropna() for arm in ("grpo", "joint")
    ]
    assert list(found[0]) == list(found[1])
    epoch = np.concatenate(list(found[0])[:5])
    assert sorted(epoch) == list(range(120))


# arms that change nothing are GRPO


@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("prompt-gdro", {"prompt_step_size": 0.0}),
        ("rollout-gdro", {"rollouts_min": 4, "rollouts_max": 4}),
        ("joint", {"prompt_step_size": 0.0, "rollouts_min": 4, "rollouts_max": 4}),
    ],
)
def test_an_adversary_without_a_choice_is_grpo_exactly(arm, changes):
    plain = simulate("grpo", population=FEW, course=SHORT)
    held = simulate(arm, population=FEW, course=SHORT, **changes)
    np.testing.assert_array_equal(plain.pass_rates, held.pass_rates)
    pd.testing.assert_series_equal(plain.steps["reward"], held.steps["reward"])
    pd.testing.assert_series_equal(plain.evaluations["correct"], held.evaluations["correct"])
    assert not np.array_equal(plain.pass_rates, simulate(arm, population=FEW, course=SHORT).pass_rates)


# the population


def test_with_full_transfer_all_families_rise_together_and_without_any_each_rises_alone():
    shared = simulate("grpo", population=Population(transfer=1.0), course=NOISELESS).families
    risen = shared.pivot(index="cycle", columns="family", values="ability")
    np.testing.assert_allclose(risen.sub(risen["family-1"], axis=0), 0.0, atol=1e-9)
    assert (risen.iloc[-1] > 1.0).all()
    hopeless = Population(difficulty=(0.0, 40.0), transfer=0.0)
    alone = simulate("grpo", population=hopeless, course=NOISELESS).families
    moved = alone.pivot(index="cycle", columns="family", values="ability").diff().iloc[1:]
    assert moved["family-1"].sum() > 0.5
    np.testing.assert_allclose(moved["family-2"], 0.0, atol=1e-9)


def test_more_transfer_helps_the_hardest_family():
    last = []
    for transfer in (0.0, 0.2, 1.0):
        run = simulate("grpo", population=Population(transfer=transfer), course=NOISELESS)
        last.append(run.families.query("cycle == 30 and family == 'family-6'")["pass_rate"].item())
    assert (np.diff(last) > 0).all()


@pytest.mark.parametrize("arm", ["grpo", "joint"])
def test_more_capacity_ends_higher(arm):
    frames = simulate_study([arm], CAPACITIES, [0], course=Course(cycles=50))
    final = tables.final_step(frames.evaluations)
    reached = final.groupby("scale")["correct"].mean()
    assert reached["sim-s"] < reached["sim-m"] < reached["sim-l"]
    first = frames.evaluations.query("step == 0").groupby("scale")["correct"].mean()
    assert (reached > first).all()


@pytest.mark.parametrize(
    ("rarity", "counts"), [(1.0, [20] * 6), (0.1, [23, 24, 23, 23, 24, 3]), (1e-6, None)]
)
def test_the_last_family_is_as_rare_as_asked_and_never_empty(rarity, counts):
    population = Population(size=120, rarity=rarity)
    assert population.counts.sum() == 120
    assert population.counts[-1] >= 1
    if counts is not None:
        np.testing.assert_allclose(population.counts, counts, atol=1)
    held = simulate("grpo", population=population, course=Course(cycles=1, prompts=24)).evaluations
    assert held.query("step == 0").groupby("suite").size().tolist() == [20] * 6


def test_hopeless_prompts_never_learn_and_are_the_hardest_of_each_family():
    population = Population(hopeless=0.25)
    prompts = population.prompts(0.9)
    hopeless = prompts.top == HOPELESS_RATE
    assert hopeless.mean() == pytest.approx(0.25)
    for family in range(6):
        own = prompts.family == family
        assert prompts.difficulty[own & hopeless].min() > prompts.difficulty[own & ~hopeless].max()
    rates = simulate("grpo", population=population, course=NOISELESS).pass_rates
    assert (rates[:, hopeless] == HOPELESS_RATE).all()
    assert (rates[-1] > rates[0])[~hopeless].all()


def test_difficulties_of_a_family_have_its_mean_and_spread():
    prompts = Population(size=6000, difficulty=(1.0, 3.0), spread=0.5).prompts(0.9)
    for family, mean in ((0, 1.0), (1, 3.0)):
        own = prompts.difficulty[prompts.family == family]
        assert own.mean() == pytest.approx(mean, abs=1e-9)
        assert own.std() == pytest.approx(0.5, rel=1e-2)


@pytest.mark.parametrize("correlation", [0.05, 0.3, 0.8])
def test_guesses_have_their_mean_and_the_correlation_asked_for(correlation):
    prompts = Population(size=6000, guess=0.2, guess_correlation=correlation).prompts(0.999)
    assert prompts.guess.mean() == pytest.approx(0.2, abs=3e-3)
    assert prompts.guess.var() / (0.2 * 0.8) == pytest.approx(correlation, rel=0.05)
    for family in range(6):
        own = prompts.family == family
        assert prompts.guess[own].mean() == pytest.approx(0.2, abs=0.01)
        assert abs(np.corrcoef(prompts.guess[own], prompts.difficulty[own])[0, 1]) < 0.05
    assert (Population(guess_correlation=0.9).prompts(0.6).guess <= 0.6).all()


# budgets that a trainer cannot have


def test_a_dual_budget_is_met_on_average_and_a_fractional_one_exactly():
    dual = simulate("rollout-gdro", population=FEW, course=Course(cycles=120, prompts=24, budget="dual"))
    spent = dual.steps["rollouts_total"].iloc[-1] / (120 * 24)
    per_cycle = dual.steps["realised_mean"].dropna()
    assert spent == pytest.approx(4, abs=0.25)
    assert per_cycle.std() > 0.1
    exact = simulate("rollout-gdro", population=FEW, course=Course(cycles=5, prompts=24, rollouts=4.5))
    assert (exact.steps["realised_mean"].dropna() == 4.5).all()
    with pytest.raises(ValueError, match="budget"):
        simulate("sqrt-law", population=FEW, course=Course(budget="dual", prompts=24))


# what it is for, and what it refuses


def test_the_figures_of_recorded_runs_draw_simulated_ones():
    arms = ["grpo", "prompt-gdro", "rollout-gdro"]
    frames = simulate_study(arms, ["sim-s", "sim-l"], [0, 1], population=FEW, course=SHORT)
    assert [str(key) for key in frames.runs][:2] == ["sim-s/grpo/seed-0", "sim-s/grpo/seed-1"]
    assert isinstance(figures.training_curves(frames.steps, frames.bins), Figure)
    scores = tables.scores(tables.final_step(frames.evaluations), resamples=50)
    assert isinstance(figures.fig01(scores, frames.bins), Figure)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate("gpro"), "unknown arm 'gpro'"),
        (lambda: simulate("dapo-filter"), "draws its prompts again"),
        (lambda: simulate("grpo", "sim-x"), "unknown capacity 'sim-x'"),
        (lambda: simulate("grpo", windw=3), "unknown field 'windw'"),
        (lambda: simulate("grpo", estimator="all"), "unknown estimator 'all'"),
        (lambda: simulate("grpo", population=Population(size=10)), "batch of 48 prompts does not fit"),
        (lambda: simulate("grpo", Capacity("low", 0.0, 0.04)), "top 0.04 must lie above guess 0.1"),
        (lambda: simulate("grpo", course=Course(rollouts=4.5)), "mean_budget"),
        (lambda: Population(transfer=2.0), "transfer must be at most 1"),
        (lambda: Population(difficulty=()), "difficulty is empty"),
        (lambda: Course(budget="soft"), "unknown budget 'soft'"),
    ],
)
def test_what_makes_no_run_is_refused_by_name(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
