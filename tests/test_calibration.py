"""The simulator set up like a run: what it starts from, what it chooses; it finds its own settings."""

import dataclasses

import numpy as np
import pytest

from gdro import calibration, figures
from gdro.difficulty_figures import recorded_and_simulated
from gdro.population import Capacity, Population
from gdro.simulator import Course, simulate_study

TRUE = Population(difficulty=(-1.0, 1.0, 9.0), guess=0.2, guess_correlation=0.2, spread=0.0)
START = Capacity("like", 0.0, 0.95)
COURSE = Course(cycles=25, learning_rate=0.2, samples=64)


@pytest.fixture(scope="module")
def recorded():
    """Runs whose settings are known, in the place of recorded ones."""
    return simulate_study(["grpo", "prompt-gdro-error"], [START], [0, 1], TRUE, COURSE)


def test_a_resembling_population_starts_where_the_base_model_was_measured(recorded):
    found = calibration.resembling(recorded.evaluations, 0.001, 0.95, spread=0.0)
    assert found.guess == pytest.approx(0.2, abs=0.02)
    assert found.guess_correlation == pytest.approx(0.2, abs=0.05)
    np.testing.assert_allclose(found.difficulty[:2], (-1.0, 1.0), atol=0.2)
    assert found.difficulty[2] == pytest.approx(np.log(0.999 / 0.001))
    prompts = found.prompts(0.95)
    rates = np.bincount(prompts.family, prompts.pass_rate(np.zeros(3))) / found.counts
    base = recorded.evaluations.query("step == 0")
    np.testing.assert_allclose(rates, base.groupby("suite")["correct"].mean() / 64, atol=0.02)


def test_the_fit_finds_the_learning_rate_that_made_the_curve(recorded):
    found = calibration.fit(recorded, 0.95, (0.001,), (0.05,), (0.05, 0.2, 0.6), seeds=(5,))
    assert found["learning_rate"].iloc[0] == 0.2
    assert found["rmse"].is_monotonic_increasing
    assert found["rmse"].iloc[0] < 0.03
    without = dataclasses.replace(recorded, steps=recorded.steps[recorded.steps["arm"] != "grpo"])
    with pytest.raises(ValueError, match="no run of grpo"):
        calibration.fit(without, 0.95, (0.001,), (0.05,), (0.2,))


def test_the_simulated_side_has_the_arms_cycles_and_tables_of_the_recorded_one(recorded):
    chosen = {"work_floor": 0.001, "transfer": 0.05, "learning_rate": 0.2}
    twin = calibration.simulated_like(recorded, chosen, 0.95, [7])
    assert [str(key) for key in twin.runs] == ["simulated/grpo/seed-7", "simulated/prompt-gdro-error/seed-7"]
    assert twin.steps["cycle"].max() == recorded.steps["cycle"].max()
    rates = calibration.family_rates(recorded, twin)
    assert list(rates.index) == ["family 1", "family 2", "family 3"]
    np.testing.assert_allclose(rates["base (simulated)"], rates["base (recorded)"], atol=0.06)
    assert list(calibration.arm_differences(recorded, twin)["scale"]) == ["like", "simulated"]
    curves = [figures.curve_data(f.steps, f.bins) for f in (recorded, twin)]
    axes = recorded_and_simulated(*curves).axes
    assert [line.get_label() for line in axes[0].get_lines()] == ["recorded, 2 seeds", "simulated, 1 seed"]
