"""Arms paired by seed: counted by hand, against scipy, and in cases where nothing can be said."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gdro import evidence, figures

RUN = ["scale", "arm", "seed"]


def values(**by_arm):
    """One value a run: the arms' values by seed."""
    rows = [("s", arm, seed, v) for arm, own in by_arm.items() for seed, v in enumerate(own)]
    return pd.DataFrame(rows, columns=[*RUN, "value"])


def evaluation(step, arm, correct, seed=0):
    ids, suites = [f"p{i}" for i in range(len(correct))], ["a", "a", "b", "b"][: len(correct)]
    rows = {"step": step, "suite": suites, "prompt_id": ids, "correct": correct, "k": 8}
    return pd.DataFrame(rows).assign(scale="s", arm=arm, seed=seed)


def steps(arm, rates, rollouts=10, tokens=100, seed=0):
    cycles = np.arange(len(rates))
    return pd.DataFrame(
        {
            **{"scale": "s", "arm": arm, "seed": seed, "cycle": cycles, "pass_rate": rates},
            **{"rollouts_total": rollouts * (cycles + 1), "tokens_total": tokens * (cycles + 1)},
        }
    )


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
    assert lowest.set_index("arm")["mean"].to_dict() == {"grpo": 0.25, "x": 0.5}


def test_rollouts_to_match_is_the_first_time_the_goal_is_met():
    rising = np.linspace(0, 0.9, 10)
    table = pd.concat(
        [steps("grpo", rising), steps("twice", np.minimum(1, 2 * rising)), steps("never", rising / 2)]
    )
    found = evidence.rollouts_to_match(table, window=1).set_index("arm")
    assert found["share"].to_dict() == {"grpo": 1.0, "twice": 0.6, "never": 1.0}
    assert found["reached"].to_dict() == {"grpo": True, "twice": True, "never": False}


def test_smoothing_needs_a_whole_window():
    found = evidence.smoothed(steps("grpo", [0.0, 1.0, 0.5, 0.5]), window=2)
    assert found["pass_rate"].tolist() == [0.5, 0.75, 0.5]
    assert found["cycle"].tolist() == [1, 2, 3]


def test_at_equal_tokens_the_dear_run_stops_early():
    table = pd.concat([steps("grpo", [0.1, 0.2, 0.3, 0.4]), steps("dear", [0.2, 0.4, 0.6, 0.8], tokens=200)])
    found = evidence.at_equal(table, window=1).set_index("arm")
    assert found["pass_rate"].to_dict() == {"grpo": 0.4, "dear": 0.4}
    assert found["tokens_total"].to_dict() == {"grpo": 400, "dear": 400}


def test_a_summary_has_every_suite_and_all_of_them_with_what_they_cost():
    table = evidence.summary(evaluation(9, "grpo", [2, 8, 0, 4]), steps("grpo", [0.1, 0.2]))
    assert table["suite"].tolist() == ["a", "b", "all"]
    assert table["mean"].tolist() == [0.625, 0.25, 0.4375]
    assert table["passed"].tolist() == [1.0, 0.5, 0.75]
    assert set(table["rollouts"]) == {20}
    assert set(table["tokens"]) == {200}


def test_the_figure_shows_each_estimate_and_fills_those_that_hold():
    base = np.linspace(0.4, 0.6, 6)
    sure = base + np.array([0.09, 0.1, 0.11, 0.1, 0.09, 0.11])
    unsure = base + np.array([0.1, -0.1, 0.1, -0.1, 0.02, -0.01])
    found = evidence.paired(values(grpo=base, joint=sure, other=unsure), "value")
    figure = figures.effects(found, evidence.answer(found))
    markers = {
        line.get_ydata()[0]: line for line in figure.axes[0].lines if line.get_marker() not in ("None", "")
    }
    by_arm = dict(zip(found["arm"], markers.values(), strict=True))
    assert by_arm["joint"].get_xdata()[0] == pytest.approx(10.0)
    assert by_arm["joint"].get_markerfacecolor() != "white"
    assert by_arm["other"].get_markerfacecolor() == "white"
    assert figure.get_suptitle() == "s: both +10.0 points (1 of 2 arms)"
    assert (
        figures.effects(found.iloc[:0], evidence.answer(found.iloc[:0])).get_suptitle()
        == "no runs to compare"
    )
