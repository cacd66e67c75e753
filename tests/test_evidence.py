"""Arms paired by seed and prompt: counted by hand, against scipy, and in cases where nothing can be said."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gdro import evidence, figures, statistics
from gdro.runs import RunKey

RUN = ["scale", "arm", "seed"]


def values(**by_arm):
    """One value a run: the arms' values by seed."""
    rows = [("s", arm, seed, v) for arm, own in by_arm.items() for seed, v in enumerate(own)]
    return pd.DataFrame(rows, columns=[*RUN, "value"])


def evaluation(step, arm, correct, seed=0):
    ids, suites = [f"p{i}" for i in range(len(correct))], ["a", "a", "b", "b"][: len(correct)]
    rows = {"step": step, "suite": suites, "prompt_id": ids, "correct": correct, "k": 8}
    return pd.DataFrame(rows).assign(scale="s", arm=arm, seed=seed)


def test_differences_are_taken_within_a_seed():
    rng = np.random.default_rng(0)
    base = rng.normal(0.5, 0.2, 6)  # seeds differ far more than arms do
    better = base + np.array([0.01, 0.02, 0.03, 0.02, 0.01, 0.03])
    found = evidence.paired(values(grpo=base, better=better), "value")
    row = found.iloc[0]
    assert row["estimate"] == pytest.approx(0.02)
    assert 0.01 <= row["low"] < 0.02 < row["high"] <= 0.03
    assert row["p"] == pytest.approx(stats.ttest_rel(better, base).pvalue)
    assert row["seeds"] == 6


def test_only_seeds_that_both_have_are_compared():
    table = values(grpo=[0.1, 0.2, 0.3], other=[0.2, 0.3])
    found = evidence.paired(table, "value")
    assert (found["seeds"].item(), found["estimate"].item()) == (2, pytest.approx(0.1))


def rates(by_arm, suites=("a", "a", "b")):
    """Rows of `evidence.by_prompt`: {arm: (S, P) values} of the same prompts in every seed."""
    rows = [
        ("s", arm, seed, suites[i], f"p{i}", v)
        for arm, own in by_arm.items()
        for seed, line in enumerate(own)
        for i, v in enumerate(line)
    ]
    return pd.DataFrame(rows, columns=[*RUN, "suite", "prompt_id", "value"])


def test_prompts_are_paired_and_resampled_too():
    rng = np.random.default_rng(4)
    base = rng.uniform(size=(4, 3))
    other = base + rng.normal(0.1, 0.2, size=(4, 3))
    found = evidence.paired(rates({"grpo": base, "other": other}), "value").iloc[0]
    wanted = statistics.paired_difference(other, base)
    assert found[["estimate", "low", "high"]].tolist() == pytest.approx(
        [wanted.estimate, wanted.low, wanted.high]
    )
    assert found["p"] == pytest.approx(stats.ttest_rel(other.mean(1), base.mean(1)).pvalue)
    by_suite = evidence.paired(rates({"grpo": base, "other": other}), "value", by=["suite"])
    assert by_suite.set_index("suite").loc["b", "estimate"] == pytest.approx((other - base)[:, 2].mean())


def test_differences_are_those_of_both_measures_at_the_end_of_each_run():
    counts = np.random.default_rng(9).integers(0, 9, size=(3, 3, 4))  # arms, seeds, prompts
    arms = ["grpo", "x", "y"]
    runs = [(a, seed) for a in range(3) for seed in range(3)]
    ends = [evaluation(9, arms[a], counts[a, seed], seed) for a, seed in runs]
    found = evidence.differences(pd.concat([evaluation(0, "x", [8] * 4), *ends]))
    assert found["arm"].tolist() == ["x", "x", "y", "y"]
    assert found["metric"].tolist() == ["mean", "pass"] * 2
    for row in found.itertuples():
        values = counts / 8 if row.metric == "mean" else (counts > 0) * 1.0
        wanted = statistics.paired_difference(values[arms.index(row.arm)], values[0])
        assert (row.estimate, row.low, row.high) == pytest.approx((wanted.estimate, wanted.low, wanted.high))
    with pytest.raises(ValueError, match="scale s has no run of joint: it has x, grpo, y"):
        evidence.differences(pd.concat([evaluation(0, "x", [8] * 4), *ends]), against="joint")


def test_prompts_that_seeds_do_not_share_must_be_said_to_be_nested():
    table = rates({"grpo": np.zeros((2, 3)), "other": np.array([[0.2, 0.4, 0.6], [0.1, 0.1, 0.7]])})
    some = table[~((table["seed"] == 1) & (table["prompt_id"] == "p2"))]
    with pytest.raises(ValueError, match=r'seeds 0, 1 do not share all of their 3 prompts.*"nested"'):
        evidence.paired(some, "value")
    found = evidence.paired(some, "value", prompts="nested").iloc[0]
    assert found["estimate"] == pytest.approx((0.4 + 0.1) / 2)
    assert 0.1 <= found["low"] < found["high"] <= 0.6


def test_a_run_that_is_there_twice_is_refused():
    table = rates({"grpo": np.zeros((2, 3)), "other": np.ones((2, 3))})
    with pytest.raises(ValueError, match="s has several rows of one run and prompt"):
        evidence.paired(pd.concat([table, table[:1]]), "value")


def test_prompts_of_other_arms_do_not_count_as_missing():
    table = rates({"grpo": np.zeros((2, 3)), "other": np.full((2, 3), 0.5)})
    more = rates({"third": np.ones((2, 4))}, suites="aaba").query("prompt_id == 'p3'")
    with pytest.raises(ValueError, match="seeds 0, 1 do not share all of their 4 prompts"):
        evidence.paired(pd.concat([table, more.assign(arm="other")]), "value")
    found = evidence.paired(pd.concat([table, more]), "value").iloc[0]
    assert found["estimate"] == 0.5


def test_a_contrast_is_taken_prompt_by_prompt():
    rng = np.random.default_rng(5)
    table = rates({arm: rng.uniform(size=(3, 3)) for arm in ("grpo", "other", "third")})
    found = evidence.contrasts(table, "value", {"other": {"other": 1, "grpo": -1}})
    two = table[table["arm"] != "third"]
    pd.testing.assert_frame_equal(found, evidence.paired(two, "value"))


def test_holm_counts_the_arms_of_a_scale():
    rng = np.random.default_rng(1)
    base = rng.normal(size=8)
    arms = {f"arm-{i}": base + rng.normal(0.3 * i, 0.5, 8) for i in range(4)}
    found = evidence.paired(values(grpo=base, **arms), "value")
    p = found["p"].to_numpy()
    assert found["p_holm"].min() == pytest.approx(min(1, 4 * p.min()))
    assert (found["p_holm"] >= p).all()


def test_what_cannot_be_said_is_nan():
    one = evidence.paired(values(grpo=[0.1], other=[0.3]), "value").iloc[0]
    assert one["estimate"] == pytest.approx(0.2)
    assert one[["low", "high", "p", "p_holm"]].isna().all()
    same = evidence.paired(values(grpo=[0.1, 0.2], other=[0.1, 0.2]), "value").iloc[0]
    assert (same["p"], same["p_holm"], same["low"], same["high"]) == (1, 1, 0, 0)
    assert evidence.paired(values(other=[0.1, 0.2]), "value").empty
    assert list(evidence.paired(values(other=[0.1]), "value").columns) == ["scale", *evidence.COLUMNS]


FACTORIAL = {"p": -1, "r": -1, "grpo": 1}


def test_a_contrast_is_what_both_do_beyond_the_sum_of_each():
    rng = np.random.default_rng(2)
    none, prompt, rollout = rng.uniform(0.3, 0.6, (3, 5))
    beyond = np.array([0.02, 0.03, 0.02, 0.03, 0.025])
    additive = prompt + rollout - none
    table = values(grpo=none, p=prompt, r=rollout, sum=additive, more=additive + beyond)
    found = evidence.contrasts(
        table, "value", {"plain": {"sum": 1, **FACTORIAL}, "joined": {"more": 1, **FACTORIAL}}
    ).set_index("arm")
    assert found.loc["plain", "estimate"] == pytest.approx(0, abs=1e-12)
    row = found.loc["joined"]
    assert row["estimate"] == pytest.approx(0.025)
    assert 0.02 - 1e-9 <= row["low"] < row["high"] <= 0.03 + 1e-9
    assert row["p"] == pytest.approx(stats.ttest_1samp(beyond, 0).pvalue)
    assert row["seeds"] == 5


def test_a_contrast_of_two_arms_is_their_paired_difference():
    rng = np.random.default_rng(3)
    table = values(grpo=rng.uniform(size=6), other=rng.uniform(size=6))
    found = evidence.contrasts(table, "value", {"other": {"other": 1, "grpo": -1}})
    pd.testing.assert_frame_equal(found, evidence.paired(table, "value"))


def test_contrasts_keep_the_order_of_the_scales():
    table = values(grpo=[0.1, 0.2], other=[0.2, 0.4])
    both = pd.concat([table, table.assign(scale="m")])
    found = evidence.contrasts(both, "value", {n: {"other": 1, "grpo": -1} for n in ("one", "two")})
    assert found[["scale", "arm"]].to_numpy().tolist() == [
        ["s", "one"],
        ["s", "two"],
        ["m", "one"],
        ["m", "two"],
    ]
    assert evidence.answer(found, of="choices").startswith("s: no difference shown (0 of 2 choices)")


def test_a_contrast_needs_all_its_arms_in_a_seed():
    table = values(grpo=[0.1, 0.2], p=[0.3, 0.4], r=[0.2, 0.1], both=[0.5])
    found = evidence.contrasts(table, "value", {"one": {"both": 1, **FACTORIAL}})
    assert (found["seeds"].item(), found["estimate"].item()) == (1, pytest.approx(0.5 - 0.3 - 0.2 + 0.1))
    assert evidence.contrasts(table, "value", {"none": {"absent": 1, **FACTORIAL}}).empty


def test_each_question_is_answered_by_its_own_arms():
    arms = ("grpo", "prompt-gdro-error", "prompt-gdro-error-shuffled", "prompt-gdro-error-bins-3")
    table = values(**{arm: np.array([0.5, 0.6]) + 0.1 * place for place, arm in enumerate(arms)})
    found, unanswered = evidence.answers(table, [4, 5, 6], "value")
    assert unanswered == [5]
    by_question = {
        number: dict(zip(own["arm"], own["estimate"], strict=True))
        for number, own in found.groupby("question")
    }
    assert by_question[4] == pytest.approx({arms[1]: 0.1, arms[2]: 0.2})
    assert by_question[6] == pytest.approx({arms[3]: 0.2})
    elsewhere = pd.concat([table, table[table["arm"].isin(arms[:2])].assign(scale="m")])
    pd.testing.assert_frame_equal(evidence.answers(elsewhere, [4, 5, 6], "value")[0], found)
    assert found[["estimate", "low", "p_holm"]].dtypes.eq(float).all()
    none, unanswered = evidence.answers(table, [5], "value")
    assert none.empty
    assert unanswered == [5]


def test_scores_by_initial_successes_and_the_lowest_suite():
    table = pd.concat(
        [
            *(evaluation(0, arm, [0, 8, 0, 4]) for arm in ("grpo", "x")),
            evaluation(9, "grpo", [2, 8, 0, 4]),
            evaluation(9, "x", [4, 8, 8, 0]),
        ]
    )
    marked = evidence.with_initial(table)
    found = evidence.scores(marked, ["initial"]).set_index(["arm", "initial"])
    assert found["mean"].to_dict() == {
        **{("grpo", 0): 0.125, ("grpo", 8): 1.0, ("grpo", 4): 0.5},
        **{("x", 0): 0.75, ("x", 8): 1.0, ("x", 4): 0.0},
    }
    assert found.loc[("x", 0), "passed"] == 1.0
    lowest = evidence.lowest_suite(table)
    assert set(lowest["suite"]) == {"b"}
    assert lowest.groupby("arm")["mean"].mean().to_dict() == {"grpo": 0.25, "x": 0.5}


def load(arm, correct):
    """As the run store gives one finished run."""
    key = RunKey("s", arm, 0)
    rows = pd.concat([evaluation(0, arm, [0] * len(correct)), evaluation(9, arm, correct)])
    manifest = {"rollouts": 20, "tokens": 200, "git_commit": "abc", "settings": {}}
    steps = pd.DataFrame({"scale": "s", "arm": arm, "seed": 0, "pass_rate": [0.25, np.nan, 0.75, np.nan]})
    return SimpleNamespace(runs=(key,), evaluations=rows, steps=steps, manifests={str(key): manifest})


def test_differences_by_seed_are_those_that_are_summed_up():
    rng = np.random.default_rng(7)
    table = rates({arm: rng.uniform(size=(4, 3)) for arm in ("grpo", "x", "y")})
    found = evidence.by_seed(table, "value")
    assert len(found) == 8
    means = found.groupby("arm")["difference"].mean()
    wanted = evidence.paired(table, "value").set_index("arm")["estimate"]
    assert means.to_dict() == pytest.approx(wanted.to_dict())


@pytest.mark.parametrize(("seeds", "arms"), [(5, 1), (5, 5), (20, 10)])
def test_a_detectable_difference_is_shown_as_often_as_it_says(seeds, arms):
    effect = evidence.detectable(2.0, seeds, comparisons=arms, power=0.7)
    drawn = np.random.default_rng(8).normal(effect, 2.0, size=(40_000, seeds))
    assert (stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05 / arms).mean() == pytest.approx(0.7, abs=0.02)


def test_opened_counts_the_seeds_that_end_high():
    table = pd.concat([evaluation(9, "grpo", c, seed) for seed, c in enumerate(([8, 8, 0, 0], [8, 8, 8, 7]))])
    found = evidence.opened(table)
    assert found.loc[("s", "grpo")].to_dict() == {"seeds": 2, "a": 2, "b": 1}


def test_what_is_kept_of_a_run_is_its_last_step_and_what_it_cost():
    table = evidence.kept(load("grpo", [2, 8, 0, 4]))
    assert set(table["training"]) == {0.5}
    assert set(table["step"]) == {9}
    assert table["correct"].tolist() == [2, 8, 0, 4]
    assert table[["rollouts", "tokens", "commit"]].drop_duplicates().to_numpy().tolist() == [[20, 200, "abc"]]
    found = evidence.by_prompt(table)
    assert found["mean"].tolist() == [0.25, 1.0, 0.0, 0.5]
    assert found["passed"].tolist() == [1.0, 1.0, 0.0, 1.0]


def test_a_run_that_is_kept_twice_counts_once():
    nothing = SimpleNamespace(runs=(), manifests={})
    others = pd.concat([evidence.kept(load(arm, [8] * 4)) for arm in ("x", "y")])
    found = evidence.collected([load("grpo", [2, 8, 0, 4]), load("x", [0] * 4), nothing], others)
    means = evidence.by_prompt(found).groupby("arm")["mean"].mean()
    assert means.to_dict() == {"grpo": 0.4375, "x": 0.0, "y": 1.0}


def test_the_figure_shows_each_estimate_and_fills_those_that_hold():
    base = np.linspace(0.4, 0.6, 6)
    sure = base + np.array([0.09, 0.1, 0.11, 0.1, 0.09, 0.11])
    unsure = base + np.array([0.1, -0.1, 0.1, -0.1, 0.02, -0.01])
    table = values(grpo=base, joint=sure, other=unsure)
    found, dots = evidence.paired(table, "value"), evidence.by_seed(table, "value")
    figure = figures.effects(found, evidence.answer(found), seeds=dots)
    lines = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", "")]
    (drawn,) = [line for line in lines if line.get_marker() == "."]
    assert sorted(drawn.get_xdata()) == pytest.approx(sorted(100 * dots["difference"]))
    markers = {line.get_ydata()[0]: line for line in lines if line is not drawn}
    by_arm = dict(zip(found["arm"], markers.values(), strict=True))
    assert by_arm["joint"].get_xdata()[0] == pytest.approx(10.0)
    assert by_arm["joint"].get_markerfacecolor() != "white"
    assert by_arm["other"].get_markerfacecolor() == "white"
    assert figure.get_suptitle() == "s: both +10.0 points (1 of 2 arms)"
    assert (
        figures.effects(found.iloc[:0], evidence.answer(found.iloc[:0])).get_suptitle()
        == "no runs to compare"
    )
