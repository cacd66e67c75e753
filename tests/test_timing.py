"""Timing of the bookkeeping: a timed step is a real one, exponents are those of known powers."""

import numpy as np
import pandas as pd
import pytest

from gdro import comparison, figures, timing
from gdro.questions import MAIN_ARMS


def test_a_timed_step_is_a_whole_cycle_with_every_bin_occupied():
    bench = timing.Bench(64, bins=5)
    bench.step(*bench.prepared())
    assert bench.controller.cycle == 1
    rows = bench.controller.log_rows()
    assert sum(row["prompts"] for row in rows) == 64
    assert sum(row["prompts"] * row["rollouts"] for row in rows if row["prompts"]) == pytest.approx(4 * 64)
    every = bench.controller.classifier.bins(np.arange(20_000))
    assert sorted(set(every.tolist())) == [0, 1, 2, 3, 4]


def test_every_cell_has_every_part_and_no_time_is_negative():
    times = timing.steps([(16, 3), (64, 3)], rounds=2)
    assert times[["prompts", "part"]].values.tolist() == [
        [p, part] for p in (16, 64) for part in timing.PARTS
    ]
    assert (times["median"] >= times["quickest"]).all()
    assert (times["quickest"] > 0).all()
    peaks = times.set_index(["prompts", "part"])["peak"]
    assert (peaks > 0).all()
    for prompts in (16, 64):
        assert peaks[prompts, timing.WHOLE] >= peaks[prompts, "allocation"] / 2  # the whole allocates, too
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        timing.steps([(16, 3)], rounds=0)


def test_growth_finds_the_exponents_of_powers():
    size = np.array([10, 100, 1000])
    parts = {"square": 3.0 * size**2, "flat": np.full(3, 5.0), "late": np.array([1.0, 1.0, 10.0])}
    times = pd.concat(
        [pd.DataFrame({"prompts": size, "part": part, "quickest": t}) for part, t in parts.items()]
    ).sample(frac=1, random_state=0)
    found = timing.growth(times, "prompts").set_index("part")
    assert found.loc["square"].tolist() == pytest.approx([2, 2])
    assert found.loc["flat"].tolist() == pytest.approx([0, 0])
    assert found.loc["late"].tolist() == pytest.approx([0.5, 1])
    with pytest.raises(ValueError, match=r"needs two values of it, got \[10\]"):
        timing.growth(times[times["prompts"] == 10], "prompts")
    with pytest.raises(ValueError, match="unknown axis 'rounds'"):
        timing.growth(times, "rounds")


def test_histories_of_bits_are_smaller_than_those_of_counts_and_grow_with_the_prompts():
    found = timing.histories([2_000, 20_000], ["any", "unbiased"]).set_index(["estimator", "prompts"])
    assert found.loc[("any", 20_000), "arrays"] < found.loc[("unbiased", 20_000), "arrays"]
    for estimator in ("any", "unbiased"):
        small, large = (found.loc[(estimator, n), "arrays"] for n in (2_000, 20_000))
        assert large == pytest.approx(10 * small, rel=0.1)
        assert found.loc[(estimator, 20_000), "peak"] >= large
        assert found.loc[(estimator, 20_000), "bytes"] == pytest.approx(large * 1e6 / 20_000)


def test_the_figure_draws_every_part_against_prompts_and_bins():
    one = pd.DataFrame({"bins": 10, "part": timing.PARTS, "median": 1.0})
    by_prompts = pd.concat([one.assign(prompts=p, median=p / 10) for p in (64, 512)])
    by_bins = pd.concat([one.assign(prompts=512, bins=b) for b in (3, 10, 30)])
    left, right = figures.bookkeeping(by_prompts, by_bins).axes
    assert [line.get_label() for line in left.lines[:5]] == list(timing.PARTS)
    assert left.lines[0].get_ydata().tolist() == [6.4, 51.2]
    assert right.lines[4].get_xdata().tolist() == [3, 10, 30]
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")


def test_the_controllers_share_is_of_its_own_cycle_and_a_mean_over_runs():
    costs = pd.DataFrame(
        {
            "scale": "tiny-s",
            "arm": ["grpo", "grpo", "joint", "joint"],
            "seed": [0, 1, 0, 1],
            "seconds": [1.0, 2.0, 1.0, 1.0],
            "controller_seconds": [0.01, 0.01, 0.03, np.nan],
        }
    )
    found = comparison.controller_share(costs).set_index("arm")
    assert found.loc["grpo", ["controller", "cycle", "share", "runs"]].tolist() == pytest.approx(
        [10, 1.5, 0.75, 2]
    )
    assert found.loc["joint", ["share", "runs"]].tolist() == pytest.approx([3, 1])


def test_what_the_first_step_of_a_cycle_takes_longer_is_sampling():
    steps = pd.DataFrame({"cycle": [0, 0, 1, 1], "seconds": [3.0, 1.0, 5.0, 2.0], "controller_seconds": 0.25})
    steps = pd.concat([steps.assign(scale="tiny-s", arm="grpo", seed=seed) for seed in (0, 1)])
    found = comparison.spent(steps).set_index("arm").loc["grpo"]
    assert found[["sampling", "updates", "controller", "total", "runs"]].tolist() == [4.0, 6.0, 1.0, 11.0, 2]
    alone = comparison.spent(steps.drop_duplicates(["seed", "cycle"]))
    assert alone["sampling"].isna().all()
    assert alone["total"].tolist() == [8.0]


def test_the_allocation_that_is_timed_is_the_one_that_the_controller_plans():
    bench = timing.Bench(64, bins=5)
    prompts, uniform = bench.prepared()
    assignment = bench.calls(prompts, uniform)["allocation"]()
    plan = bench.controller.plan(prompts)
    planned = np.zeros((5, len(timing.ARMS)), dtype=int)
    np.add.at(planned, (plan.bins, plan.rollouts - timing.ARMS[0]), 1)
    assert np.array_equal(assignment, planned)


def test_what_is_recorded_is_read_as_it_was_measured(tmp_path, monkeypatch):
    timing.record(tmp_path / "overhead", prompts=(16,), bins=(2, 3), numbers=(100,), rounds=1)
    monkeypatch.setattr(timing, "data_root", lambda: tmp_path)
    steps, histories = timing.recorded("steps"), timing.recorded("histories")
    assert steps.columns.tolist() == timing.steps([], 1).columns.tolist()
    assert steps.groupby(["prompts", "bins"])["part"].apply(list).to_dict() == {
        (16, bins): list(timing.PARTS) for bins in (2, 3)
    }
    assert histories["estimator"].tolist() == list(timing.ESTIMATORS)
    assert sorted(path.name for path in (tmp_path / "overhead").iterdir()) == ["histories.csv", "steps.csv"]
    with pytest.raises(ValueError, match="unknown recorded table 'times'"):
        timing.recorded("times")


def test_a_ratio_is_the_median_of_its_pairs_with_an_interval_inside_them():
    ratios = [1.02, 0.99, 1.01, 1.00, 1.50]
    pairs = pd.DataFrame({"scale": "s", "path": ["off"] * 5 + ["uniform"] * 5, "ratio": ratios + [1.1] * 5})
    found = timing.ratios(pairs).set_index("path")
    assert found.loc["off", ["median", "pairs"]].tolist() == [1.01, 5]
    assert 0.99 <= found.loc["off", "low"] < 1.01 < found.loc["off", "high"] <= 1.5
    assert found.loc["uniform", ["median", "low", "high"]].tolist() == pytest.approx([1.1] * 3)


def test_the_recorded_tables_have_the_whole_range_and_keep_the_bounds():
    """Not that it is as fast elsewhere: what is shown as measured is whole, and holds what is said of it."""
    steps, histories = timing.recorded("steps"), timing.recorded("histories")
    cells = {(p, b) for p in timing.PROMPTS for b in timing.BINS}
    assert set(zip(steps["prompts"], steps["bins"], strict=True)) == cells
    assert (steps.groupby(["prompts", "bins"])["part"].apply(list).map(tuple) == timing.PARTS).all()
    kept = {(kind, number) for kind in timing.ESTIMATORS for number in timing.HISTORIES}
    assert set(zip(histories["estimator"], histories["prompts"], strict=True)) == kept
    whole = steps[steps["part"] == timing.WHOLE]
    for _, own in whole.groupby("bins"):
        assert timing.growth(own, "prompts", "median")["exponent"].item() <= 1
    largest = histories[(histories["estimator"] == "any") & (histories["prompts"] == 10**7)]
    assert largest["peak"].item() < 400
    ratios = timing.ratios(timing.recorded("pairs"))
    assert (ratios["pairs"] >= 10).all()
    assert (ratios["median"] <= 1.03).all()
    arms = timing.recorded("arms")
    assert set(arms["arm"]) == set(MAIN_ARMS)
    assert arms.groupby("scale")["rollouts"].nunique().eq(1).all()
