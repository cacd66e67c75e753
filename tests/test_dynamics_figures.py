"""Figures 2 to 9, of the worst group and of costs: what they draw is in the frames, and gaps are named."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from run_store import bin_rows

from gdro import comparison, dynamics, figures, study
from gdro.figure_panels import heat_norm

ARM, OTHER = "joint", "grpo"
PROMPT = (figures.fig03, figures.fig04, figures.fig05, figures.fig06a)
ROLLOUT = (figures.fig06b, figures.fig07, figures.fig08, figures.fig09)


def run(scale, seed, arm=ARM):
    """Twenty cycles in which prompts move from bin 0 to bin 2; bin 3 stays empty."""
    rows = []
    for cycle in range(20):
        moved = int(6 * cycle / 20)
        rows += bin_rows(cycle, weight=(4.0, 2.0, 1.0, 1.0), prompts=(6 - moved, 0, moved, 0))
    frame = pd.DataFrame(rows).assign(scale=scale, arm=arm, seed=seed, step=lambda f: 2 * f["cycle"] + 2)
    held = frame["prompts"] > 0
    frame["q"] = np.tile([0.4, 0.3, 0.2, 0.1], 20)
    frame["rollout_share"] = frame["share"].where(frame["bin"] == 0, frame["share"] / 2)
    frame[["reward", "rollouts", "sigma"]] = frame[["reward", "rollouts", "sigma"]].where(held)
    return frame


@pytest.fixture(scope="module")
def bins():
    parts = [run("tiny-s", 0), run("tiny-s", 1), run("tiny-m", 0), run("tiny-l", 0, OTHER)]
    return pd.concat(parts, ignore_index=True)


def texts(figure):
    return [t.get_text() for axis in figure.axes for t in axis.texts]


@pytest.mark.parametrize("draw", [*PROMPT, *ROLLOUT], ids=lambda f: f.__name__)
def test_a_scale_without_the_arm_says_so_and_the_others_name_their_seeds(bins, draw):
    figure = draw(bins, ARM)
    assert f"no run of {ARM}\nat tiny-l" in texts(figure)
    assert f"no run of {ARM}\nat tiny-s" not in texts(figure)
    written = " ".join([*texts(figure), *(axis.get_ylabel() for axis in figure.axes)])
    assert "2 seeds" in written
    assert "1 seed" in written
    only = draw(bins, ARM, scales=["tiny-s"])
    assert not any("no run" in text for text in texts(only))
    with pytest.raises(ValueError, match="no scale to draw"):
        draw(bins.iloc[:0], ARM)
    with pytest.raises(ValueError, match="no style for arm"):
        figures.fig04(bins, "jiont")


def meshes(figure):
    return [axis.collections[0].get_array() for axis in figure.axes if axis.collections]


def test_heat_maps_show_the_frame_and_are_grey_where_there_is_nothing(bins):
    figure = figures.fig03(bins, ARM, ["tiny-s"])
    share, weight, reward = meshes(figure)[:3]
    own = bins[(bins["scale"] == "tiny-s") & (bins["seed"] == 0)]
    wide = own.pivot(index="bin", columns="step", values="share").to_numpy()
    np.testing.assert_allclose(share, wide)
    np.testing.assert_allclose(weight[:, 0], [4.0, 2.0, 1.0, 1.0])
    assert np.ma.getmaskarray(reward)[3].all() or np.isnan(np.ma.filled(reward, np.nan)[3]).all()
    rollouts = meshes(figures.fig07(bins, ARM, ["tiny-s"]))[1]
    assert np.ma.filled(rollouts, np.nan)[0, 0] == 2.0


def test_colours_are_neutral_where_an_adversary_does_nothing():
    norm = heat_norm(np.array([1.0, 1.5]), 1.0)
    assert norm(1.0) == pytest.approx(0.5)
    assert (norm(0.95), norm(1.5)) == pytest.approx((0.0, 1.0))
    assert heat_norm(np.array([1.0]), 1.0)(1.05) == pytest.approx(1.0)
    assert heat_norm(np.array([0.0, 0.64]), "root")(0.16) == pytest.approx(0.5)
    assert heat_norm(np.array([0.0, 0.64]), "linear")(0.16) == pytest.approx(0.25)


def line(axis, text):
    return next(drawn for drawn in axis.lines if drawn.get_label() == text)


def test_lines_are_means_over_seeds_of_running_means(bins):
    found = dynamics.curves(bins)
    own = found[(found["scale"] == "tiny-s") & (found["seed"] == 0)]
    axis = figures.fig04(bins, ARM, ["tiny-s"]).axes[0]
    expected = own["mean_bin"].rolling(5, min_periods=1).mean()
    np.testing.assert_allclose(line(axis, "prompts").get_ydata(), expected)
    assert line(axis, "q of both").get_ydata() == pytest.approx([1.0] * 20)
    assert to_rgb(line(axis, "q of both").get_color()) == to_rgb(figures.ARM_STYLE[ARM][0])
    lead = figures.fig06a(bins, ARM, ["tiny-s"]).axes[0]
    label = "mean bin under q minus under share, eq. (32)"
    np.testing.assert_allclose(line(lead, label).get_ydata(), 1.0 - expected)


def test_errors_are_drawn_beside_equal_rollouts_and_the_least_possible(bins):
    axis = figures.fig06b(bins, ARM, ["tiny-s"]).axes[0]
    own, equal, least = (
        line(axis, text).get_ydata() for text in ("rollouts of both", "equal rollouts", "least possible")
    )
    assert own[0] == pytest.approx(0.5 / 2**0.5)
    assert equal[0] == least[0] == pytest.approx(own[0])
    assert (least <= equal + 1e-12).all()
    assert axis.get_ylim()[0] == 0


def test_bars_of_the_steps_are_the_shares(bins):
    figure = figures.fig05(bins, ARM, [2, 40], 1, ["tiny-s"])
    heights = [[bar.get_height() for bar in axis.patches] for axis in figure.axes]
    assert heights == [[1.0, 0.0, 0.0, 0.0], [pytest.approx(1 / 6), 0.0, pytest.approx(5 / 6), 0.0]]
    assert [axis.get_title() for axis in figure.axes] == ["step 2", "step 40"]
    paired = figures.fig09(bins, ARM, [40], 1, ["tiny-s"]).axes[0]
    heights = [bar.get_height() for bar in paired.patches]
    assert heights[:4] == pytest.approx([1 / 6, 0, 5 / 6, 0])
    assert heights[4:] == pytest.approx([1 / 6, 0, 5 / 12, 0])


def test_figure_2_is_a_drawing_with_two_loops():
    figure = figures.fig02()
    assert [axis.get_title() for axis in figure.axes] == ["GRPO: static", "Prompt-GDRO", "Rollout-GDRO"]
    assert "nothing comes back" in texts(figure)
    arrows = [sum("Arrow" in type(p).__name__ for p in axis.patches) for axis in figure.axes]
    assert arrows == [2, 5, 5]


def test_worst_groups_are_lines_in_training_and_dots_held_out(bins):
    held = pd.DataFrame({"scale": "tiny-s", "arm": [ARM, ARM, OTHER], "seed": [0, 1, 0]})
    held["pass_rate"] = [0.2, 0.4, 0.1]
    training = pd.concat([held.assign(step=2), held.assign(step=4, pass_rate=0.5)])
    figure = figures.worst_groups(training, held, bins, ["tiny-s", "tiny-m"])
    passed, entropy, support, last = figure.axes[:4]
    assert line(passed, "both").get_ydata() == pytest.approx([0.3, 0.5])
    assert np.exp(entropy.lines[0].get_ydata()) == pytest.approx(support.lines[0].get_ydata())
    assert [bar.get_height() for bar in last.patches] == pytest.approx([0.1, 0.3])
    assert texts(figure).count("no run at tiny-m") == 4


def test_costs_name_what_was_not_recorded_and_hatch_what_is_reported():
    steps = pd.DataFrame({"cycle": [0, 1], "seconds": [1.0, 3.0], "tokens_total": 5, "rollouts_total": 5})
    steps = steps.assign(scale="tiny-s", arm=ARM, seed=0)
    old = figures.overhead(comparison.overhead(steps))
    assert "not recorded\nby these runs" in texts(old)
    costs = comparison.overhead(steps.assign(controller_seconds=[0.002, 0.004]))
    figure = figures.overhead(costs, study.reported("other"))
    assert figure.axes[0].patches[0].get_height() == pytest.approx(3.0)
    assert figure.axes[2].patches[0].get_height() == pytest.approx(2.0)
    reported = figure.axes[1]
    assert "reported" in reported.get_title()
    assert all(bar.get_hatch() for bar in reported.patches)
    assert reported.patches[2].get_height() == pytest.approx(446)


def test_one_run_as_it_goes(bins):
    own = bins[(bins["scale"] == "tiny-s") & (bins["seed"] == 0)]
    steps = pd.DataFrame({"step": range(1, 41), "reward": [0.5, np.nan] * 20})
    steps["prompt_correct"] = [None, [1, 0]] * 20
    steps["prompt_rollouts"] = [None, [2, 2]] * 20
    reward, passed, weight, rollouts = figures.run_curves(steps, own).axes[:4]
    assert reward.lines[1].get_ydata() == pytest.approx([0.5] * 20)
    assert passed.lines[1].get_ydata() == pytest.approx([0.5] * 20)
    assert weight.lines[0].get_ydata() == pytest.approx([4.0] * 20)
    assert np.isnan(rollouts.lines[3].get_ydata()).all()
    with pytest.raises(ValueError, match="no steps to draw"):
        figures.run_curves(steps.iloc[:0], own)
