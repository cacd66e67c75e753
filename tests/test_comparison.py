"""Measured beside reported: every row says which it is, in one unit; the paper's arms have its settings."""

import numpy as np
import pandas as pd
import pytest
from run_store import evaluations

from gdro import comparison, study, tables

REPORTED = pd.DataFrame(
    {
        "quantity": ["gain", "time", "gain"],
        "model": ["4B", "4B", "8B"],
        "method": ["GRPO", "GRPO", "GRPO"],
        "value": [9.5, 0.25, 8.0],
        "status": "reported",
    }
)


def measured(estimate, low=np.nan, high=np.nan, seeds=1):
    row = {"scale": "tiny-s", "arm": "grpo", "estimate": estimate, "low": low, "high": high, "seeds": seeds}
    return pd.DataFrame([row])


def test_measured_rows_come_first_and_every_row_says_what_it_is():
    found = comparison.beside(measured(0.1, 0.05, 0.2, 3), REPORTED, "gain")
    assert found[["scale", "method", "value", "status"]].values.tolist() == [
        ["tiny-s", "GRPO", 10.0, "measured"],
        ["4B", "GRPO", 9.5, "reported"],
        ["8B", "GRPO", 8.0, "reported"],
    ]
    assert found.loc[0, ["low", "high", "seeds"]].tolist() == [5.0, 20.0, 3]
    assert found.loc[1:, ["low", "high", "seeds"]].isna().all(axis=None)
    in_ms = comparison.beside(measured(0.002), REPORTED, "time", 1000, 1000)
    assert in_ms["value"].tolist() == [2.0, 250.0]
    assert REPORTED.loc[1, "value"] == 0.25
    assert comparison.beside(measured(0.1).iloc[:0], REPORTED, "gain")["status"].unique() == ["reported"]
    with pytest.raises(ValueError, match="'speed' is not among the reported values: gain, time"):
        comparison.beside(measured(0.1), REPORTED, "speed")


def test_one_seed_has_no_interval_and_several_hold_their_mean():
    values = pd.DataFrame({"scale": "tiny-s", "arm": ["grpo", "joint", "joint"], "seed": [0, 0, 1]})
    found = comparison.over_seeds(values.assign(x=[0.5, 0.2, 0.4]), "x").set_index("arm")
    assert found.loc["grpo", ["estimate", "seeds"]].tolist() == [0.5, 1]
    assert found.loc["grpo", ["low", "high"]].isna().all()
    assert found.loc["joint", ["estimate", "low", "high", "seeds"]].tolist() == pytest.approx(
        [0.3, 0.2, 0.4, 2]
    )


def test_gains_are_relative_and_paired_by_seed():
    base, worse, other = ([1] * 6, [1, 1, 1, 0, 1, 0], [0] * 6)
    frame = pd.concat(
        [
            evaluations({6: counts}).assign(scale="tiny-s", arm=arm, seed=seed)
            for arm, counts, seed in (("grpo", base, 0), ("joint", worse, 0), ("joint", other, 1))
        ]
    )
    found = comparison.gains(frame)
    assert found[["arm", "seeds"]].values.tolist() == [["joint", 1]]
    assert found["estimate"].item() == pytest.approx(4 / 6 - 1)
    assert comparison.gains(frame[frame["arm"] == "joint"]).empty


def test_reported_rows_of_table_1_stand_under_the_scale_they_belong_to():
    reported = study.reported("table1")
    own = pd.DataFrame({"scale": ["4B", "tiny-s"], "method": "GRPO", "pass@8": "50.0 [49.0, 51.0]"})
    own["aime"] = ["9.5", ""]
    found = comparison.table1(own, reported)
    assert found["scale"].tolist() == ["4B"] * 4 + ["tiny-s"]
    assert found["method"].str.contains("reported").tolist() == [False, True, True, True, False]
    assert found.loc[found["method"] == "GRPO (reported)", "pass@8"].item() == 56.31
    assert found.loc[0, "MATH500"] == ""
    assert found["AIME"].tolist() == ["9.5", 11.25, 12.92, 13.96, ""]


def test_every_setting_of_the_appendix_is_in_the_table_and_the_papers_arms_have_its_adversaries():
    reported = study.reported("appendix_a")
    chosen = {arm: study.settings("tiny-s", arm, 0) for arm in ("prompt-gdro", "rollout-gdro")}
    table = comparison.settings(chosen, reported).set_index("setting")
    assert set(reported["setting"]) <= set(table.index)
    assert set(chosen["rollout-gdro"]) <= set(table.index)
    assert table.loc["save_steps", comparison.APPENDIX] == comparison.NOT_STATED
    for row in reported.itertuples():
        if row.applies_to == "all" or row.setting == "bin_edges":  # ten equal bins are `num_bins` here
            continue
        arm = row.applies_to.replace("_", "-")
        cell = table.loc[row.setting]
        assert cell[comparison.APPENDIX] == row.value
        ours = cell[tables.label(arm)]
        assert ours == row.value or float(ours) == float(row.value), row.setting


def test_the_cost_of_a_cycle_is_a_mean_and_the_controllers_a_median():
    steps = pd.DataFrame(
        {
            "cycle": [0, 0, 1, 1, 2, 2],
            "seconds": [1.0, 0.5, 1.0, 0.5, 1.0, 0.5],
            "controller_seconds": [np.nan, 0.9, np.nan, 0.001, np.nan, 0.002],
            "tokens_total": [10, 10, 20, 20, 60, 60],
            "rollouts_total": [4, 4, 8, 8, 12, 12],
        }
    ).assign(scale="tiny-s", arm="grpo", seed=0)
    row = comparison.overhead(steps).iloc[0]
    assert (row["seconds"], row["controller_seconds"]) == (1.5, 0.002)
    assert (row["tokens"], row["rollouts"]) == (20, 4)
    assert np.isnan(
        comparison.overhead(steps.drop(columns="controller_seconds"))["controller_seconds"].item()
    )
