"""The map of heterogeneity: its populations, its pairing, and the reductions at its corners."""

import numpy as np
import pandas as pd
import pytest

from gdro import evidence, figures, heterogeneity, tasks
from gdro.population import Population
from gdro.simulator import Course

SHORT = Course(cycles=3)


def test_a_population_keeps_its_mean_difficulty_and_all_else():
    base = Population(size=96, guess=0.2)
    made = heterogeneity.population(0.3, 0.5, 0.2, base)
    assert np.mean(made.difficulty) == pytest.approx(np.mean(base.difficulty))
    assert np.diff(made.difficulty) == pytest.approx(0.5)
    assert (made.size, made.guess, made.transfer, made.hopeless) == (96, 0.2, 0.3, 0.2)
    assert heterogeneity.population(base.transfer, 1.25, 0.0) == Population()


def test_a_sweep_has_every_cell_of_the_map_and_is_the_same_again():
    given = {"transfers": (0.0, 1.0), "steps": (1.0,), "hopeless": (0.0, 0.5), "course": SHORT}
    found = heterogeneity.sweep([0, 1], **given)
    cells = found.groupby([*heterogeneity.FACTORS, "arm", "seed"]).size()
    assert len(found) == len(cells) == 4 * 3 * 2
    pd.testing.assert_frame_equal(found, heterogeneity.sweep([0, 1], **given))
    hopeless = found.groupby("hopeless")["mean"].mean()
    assert hopeless[0.5] < hopeless[0.0]


def test_the_record_is_what_the_simulator_gives():
    recorded = pd.read_csv(tasks.data_root() / "heterogeneity.csv")
    assert len(recorded) == 16 * 3 * 10
    place = {"transfer": 0.05, "step": 1.25, "hopeless": 0.3}
    given = {"transfers": (0.05,), "steps": (1.25,), "hopeless": (0.3,)}
    again = heterogeneity.sweep([7], arms=("rollout-gdro-variance",), **given)
    there = recorded[(recorded[list(place)] == pd.Series(place)).all(axis=1)]
    there = there[(there["arm"] == "rollout-gdro-variance") & (there["seed"] == 7)]
    assert again[["mean", "passed"]].to_numpy() == pytest.approx(
        there[["mean", "passed"]].to_numpy(), rel=1e-5
    )


def test_an_arm_does_not_differ_from_itself_anywhere():
    found = heterogeneity.sweep([0], arms=("grpo",), transfers=(0.0,), course=SHORT)
    both = pd.concat([found, found.assign(arm="again")])
    differences = evidence.paired(both, "mean", by=heterogeneity.FACTORS)
    assert (differences["estimate"] == 0).all()
    assert len(differences) == 4


def test_the_map_shows_each_difference_and_marks_those_that_hold():
    rows = [
        (t, 1.0, h, "s", arm, t - h, 0.0, 0.1, p)
        for t in (0.0, 1.0)
        for h in (0.0, 0.5)
        for arm, p in (("joint", 0.01), ("other", 0.5))
    ]
    names = [*heterogeneity.FACTORS, "scale", "arm", "estimate", "low", "high", "p_holm"]
    figure = figures.heterogeneity_map(pd.DataFrame(rows, columns=names), "note")
    texts = [[text.get_text() for text in axis.texts] for axis in figure.axes[:2]]
    assert texts[0] == ["+0.0*", "+100.0*", "-50.0*", "+50.0*"]
    assert texts[1] == ["+0.0", "+100.0", "-50.0", "+50.0"]
