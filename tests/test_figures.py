"""Figures and tables: what they show is what the runs say, one colour a method, the same bytes each time."""

import io
import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from run_store import bin_rows, evaluations, finished_run, key

from gdro import evidence, figures, gallery, runs, study, study_arms, tables

ARMS = ("grpo", "prompt-gdro", "rollout-gdro")


@pytest.fixture
def frames(tmp_path):
    """Three arms with two seeds each; the counts of right samples rise by arm."""
    for number, arm in enumerate(ARMS):
        for seed in (0, 1):
            finished_run(tmp_path / "runs", key(arm, seed), correct=[number + seed + i % 3 for i in range(6)])
    return runs.load_runs(tmp_path / "runs")


@pytest.fixture
def scores(frames):
    both = (tables.base_as_arm(frames.evaluations), tables.final_step(frames.evaluations))
    return study.joined([tables.scores(part, resamples=200) for part in both])


def pick(scores, **names):
    row = scores.loc[np.logical_and.reduce([scores[k] == v for k, v in names.items()])]
    assert len(row) == 1
    return row.iloc[0]


# tables


def test_scores_are_means_over_seeds_and_prompts(scores):
    row = pick(scores, arm="prompt-gdro", suite="all", metric="mean")
    counts = [[1 + seed + i % 3 for i in range(6)] for seed in (0, 1)]
    assert row["estimate"] == pytest.approx(np.mean(counts) / 8)
    assert (row["seeds"], row["prompts"], row["k"]) == (2, 6, 8)
    assert row["low"] <= row["estimate"] <= row["high"]
    assert pick(scores, arm="prompt-gdro", suite="all", metric="pass")["estimate"] == 1.0
    # the base has counts 0 0 0 | 1 1 1: nothing in the first suite, one of eight in the second
    assert pick(scores, arm="base", suite="easy", metric="mean")["estimate"] == 0.0
    assert pick(scores, arm="base", suite="hard", metric="mean")["estimate"] == pytest.approx(1 / 8)
    assert pick(scores, arm="base", suite="all", metric="pass")["estimate"] == pytest.approx(1 / 2)


def test_the_base_counts_once_however_many_arms_start_from_it(frames):
    base = tables.base_as_arm(frames.evaluations)
    assert len(base) == 2 * 6
    assert base.groupby(["seed", "prompt_id"]).size().max() == 1


def test_differences_are_paired_and_against_grpo(frames):
    found = evidence.differences(frames.evaluations)
    row = pick(found, arm="rollout-gdro", metric="mean")
    # every prompt of every seed has two right samples more: no spread is left
    assert (row["estimate"], row["low"], row["high"]) == pytest.approx((2 / 8, 2 / 8, 2 / 8))
    assert set(found["arm"]) == {"prompt-gdro", "rollout-gdro"}
    with pytest.raises(ValueError, match="no run of joint"):
        evidence.differences(frames.evaluations, against="joint")


def test_seeds_with_other_prompts_are_refused():
    one = evaluations({6: [1] * 6}).assign(seed=0)
    other = evaluations({6: [1] * 6}).assign(seed=1, prompt_id=[f"q{i}" for i in range(6)])
    with pytest.raises(ValueError, match="seeds 0, 1 were not evaluated on the same prompts"):
        tables.per_prompt(pd.concat([one, other]), "mean")
    with pytest.raises(ValueError, match="unknown metric 'median'"):
        tables.per_prompt(one, "median")


def test_table1_has_the_papers_form(scores):
    table = tables.table1(scores)
    assert list(table.columns) == ["scale", "method", "easy", "hard", "mean@8", "pass@8", "seeds"]
    assert table["method"].tolist() == ["base model", "GRPO", "Prompt-GDRO", "Rollout-GDRO"]
    assert table["easy"][0] == "0.0 [0.0, 0.0]"
    assert all(re.fullmatch(r"\d+\.\d \[\d+\.\d, \d+\.\d\]", cell) for cell in table["pass@8"])


def test_latex_escapes_and_uses_booktabs():
    text = tables.to_latex(pd.DataFrame({"a_b": ["50 % & more"], "c": ["{x}\\"]}), "caption")
    assert r"a\_b & c \\" in text
    assert r"50 \% \& more & \{x\}\textbackslash{} \\" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))


def tail_frame():
    """Ten cycles of one run whose weights are 100 but in the last four, where they are 1 and 3 by turns."""
    rows = []
    for cycle in range(10):
        weight = 100.0 if cycle < 6 else (1.0, 3.0)[cycle % 2]
        prompts = (2, 2, 0, 0) if cycle % 2 == 0 else (6, 2, 0, 0)
        rows += bin_rows(cycle, weight=(weight,) * 4, prompts=prompts)
    return pd.DataFrame(rows).assign(scale="tiny-s", arm="joint", seed=0)


def test_tail_means_take_the_last_forty_per_cent_and_count_by_prompts():
    means = tables.tail_means(tail_frame(), "weight").set_index("bin")["value"]
    assert means[0] == pytest.approx((2 * 1 + 6 * 3) / 8)
    assert means[1] == pytest.approx(2.0)
    assert means[[2, 3]].isna().all()
    assert tables.tail_means(tail_frame(), "weight", tail=1.0)["value"].max() > 50
    for tail in (0, 1.5):
        with pytest.raises(ValueError, match=f"tail={tail}"):
            tables.tail_means(tail_frame(), "weight", tail)


def test_the_spread_shows_an_arm_that_does_nothing(frames):
    still = [{**row, "weight": 1.0, "rollouts": 4.0} for c in range(3) for row in bin_rows(c)]
    bins = pd.concat([frames.bins, pd.DataFrame(still).assign(scale="tiny-s", arm="joint", seed=0)])
    found = tables.spread(bins).set_index("arm")
    assert found.loc["joint", ["weight_ratio", "rollouts_min", "rollouts_max"]].tolist() == [1.0, 4.0, 4.0]
    assert found.loc["grpo", ["weight_ratio", "rollouts_min", "rollouts_max"]].tolist() == [2.0, 2.0, 6.0]


# figures


def test_every_arm_has_a_colour_of_its_own_that_colour_blind_readers_can_tell():
    assert set(study_arms.MAIN) <= set(figures.ARM_STYLE)
    colours = [to_rgb(colour) for colour, _, _ in figures.ARM_STYLE.values()]
    signs = [(line, marker) for _, line, marker in figures.ARM_STYLE.values()]
    assert len(set(colours)) == len(colours)
    assert len(set(signs)) == len(signs)
    # Machado et al. 2009, full deuteranopia; no two arms of the paper's figures come close
    blind = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    seen = [np.array(to_rgb(figures.ARM_STYLE[arm][0])) @ blind.T for arm in (*ARMS, "joint")]
    gaps = [np.abs(a - b).max() for i, a in enumerate(seen) for b in seen[:i]]
    assert min(gaps) > 0.15
    with pytest.raises(ValueError, match="no style for arm 'gpro'"):
        figures.arm_style("gpro")


def test_figure_1_draws_the_numbers_of_the_runs(frames, scores):
    figure = figures.fig01(scores, frames.bins)
    left, centre, right = figure.axes
    heights = [bar.get_height() for bar in left.patches]
    shown = [
        100 * pick(scores, arm="grpo", suite=s, metric=m)["estimate"]
        for s, m in [("easy", "mean"), ("all", "pass")]
    ]
    assert heights[4] == pytest.approx(shown[0])
    assert heights[7] == pytest.approx(shown[1])
    assert len(heights) == 4 * 4
    assert [bar.get_height() for bar in centre.patches[:3]] == [4.0, 3.0, 2.0]
    assert [bar.get_height() for bar in right.patches[:3]] == [2.0, 4.0, 6.0]
    assert centre.lines[0].get_ydata()[0] == 1.0
    assert right.lines[0].get_ydata()[0] == pytest.approx(4.0)
    assert to_rgb(left.patches[4].get_facecolor()[:3]) == to_rgb(figures.ARM_STYLE["grpo"][0])
    texts = [t.get_text() for axis in figure.axes for t in axis.texts]
    assert texts.count("2 seeds") == 3
    for axis in figure.axes:
        assert axis.get_ylabel()


def test_figure_1_says_where_there_is_no_run(frames, scores):
    figure = figures.fig01(scores, frames.bins, prompt_arm="prompt-gdro-error")
    assert "no run of prompt-gdro-error" in [t.get_text() for t in figure.axes[1].texts]
    with pytest.raises(ValueError, match="no scale to draw"):
        figures.fig01(scores.iloc[:0], frames.bins)


def test_the_data_behind_figure_1_is_all_there(frames, scores):
    data = tables.figure1(scores, frames.bins, "prompt-gdro", "rollout-gdro")
    assert set(data["panel"]) == {"scores", "weights", "rollouts"}
    assert len(data[data["panel"] == "scores"]) == len(scores)
    assert data[(data["panel"] == "weights") & (data["bin"] == 0)]["estimate"].tolist() == [4.0, 4.0]


def test_training_curves_are_means_over_seeds(frames):
    steps = frames.steps.copy()
    steps.loc[steps["seed"] == 1, "pass_rate"] = 0.75
    figure = figures.training_curves(steps, frames.bins, smooth=1)
    line = figure.axes[0].lines[0]
    assert line.get_ydata() == pytest.approx([0.625] * 3)
    assert line.get_xdata() == pytest.approx([0.016, 0.032, 0.048])
    assert len(figure.axes) == 3
    with pytest.raises(ValueError, match="no scale to draw"):
        figures.training_curves(steps.iloc[:0], frames.bins)


def test_token_curves_show_the_pass_rate_over_what_was_written(frames):
    steps = frames.steps.assign(tokens_total=1000.0 * (frames.steps["cycle"] + 1))
    figure = figures.token_curves(steps, smooth=1)
    table = figures.token_data(steps)
    arm = table["arm"].iloc[0]
    line = figure.axes[0].lines[0]
    assert line.get_xdata() == pytest.approx([1, 2, 3])
    wanted = table[table["arm"] == arm].groupby("cycle")["value"].mean()
    assert line.get_ydata() == pytest.approx(wanted.to_numpy())
    with pytest.raises(ValueError, match="no scale to draw"):
        figures.token_curves(steps.iloc[:0])


def test_reported_values_never_look_measured():
    figure = figures.reported_table1(study.reported("table1"))
    for axis in figure.axes:
        assert "reported" in axis.get_title()
        assert all(bar.get_hatch() and to_rgb(bar.get_facecolor()[:3]) == (1, 1, 1) for bar in axis.patches)
    assert all("reported" in t.get_text() for t in figure.legends[0].get_texts())
    assert figure.axes[0].patches[0].get_height() == 50.62


def test_drawing_leaves_the_global_style_alone(frames, scores):
    before = dict(mpl.rcParams)
    figures.save(figures.fig01(scores, frames.bins), None, io.BytesIO())
    assert dict(mpl.rcParams) == before


# the gallery


def save(frames, scores, root, name="fig01", caption="a | b"):
    drawn = figures.fig01(scores, frames.bins)
    kept = {"manifests": frames.manifests, "notebook": "06_main_results", "root": root}
    return gallery.save_figure(drawn, name, caption, data=scores, **kept)


def test_saving_twice_gives_the_same_bytes_and_one_row_of_the_index(frames, scores, tmp_path):
    root = tmp_path / "figures"
    contents = []
    for _ in range(2):
        shown = save(frames, scores, root)
        contents.append({p.name: p.read_bytes() for p in sorted(root.rglob("*.*"))})
        assert shown.data == contents[-1]["fig01.png"]  # drawn once for both
    assert contents[0] == contents[1]
    assert set(contents[0]) == {"README.md", "fig01.svg", "fig01.png", "fig01.csv"}
    rows = [line for line in (root / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert rows == [
        r"| [tiny/fig01](tiny/fig01.png) | a \| b | `06_main_results` | "
        "tiny-s: grpo, prompt-gdro, rollout-gdro (seeds 0, 1); commit 000000000 |"
    ]
    pd.testing.assert_frame_equal(pd.read_csv(root / "tiny" / "fig01.csv"), scores, rtol=1e-5)


def test_the_index_keeps_the_other_rows_sorted(frames, scores, tmp_path):
    for name in ("fig02", "fig01"):
        save(frames, scores, tmp_path, name)
    gallery.save_table(
        scores,
        "table1",
        "t",
        latex="x",
        manifests={},
        notebook="06_main_results",
        root=tmp_path,
        family="paper",
    )
    names = re.findall(r"^\| \[([^\]]+)", (tmp_path / "README.md").read_text(), re.MULTILINE)
    assert names == ["paper/table1", "tiny/fig01", "tiny/fig02"]
    assert "nothing in it was measured here" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "paper" / "table1.tex").read_text() == "x"


def test_without_a_root_nothing_is_written(frames, scores, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    image = save(frames, scores, None)
    assert image.data.startswith(b"\x89PNG")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../fig", "a/b", "", "fig 1"])
def test_a_figure_cannot_leave_its_folder(frames, scores, tmp_path, name):
    with pytest.raises(ValueError, match="no name for a figure"):
        save(frames, scores, tmp_path / "figures", name)
    assert not (tmp_path / "figures").exists()
