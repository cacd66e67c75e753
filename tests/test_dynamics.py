"""How prompts, weights and rollouts move: sums written out, and what holds of them for any frame."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro import dynamics

NAN = float("nan")


def frame(rows, scale="tiny-s", arm="joint", seed=0):
    """Bins of one run: ``rows`` a list of cycles, each {column: values over the bins}."""
    parts = []
    for cycle, values in enumerate(rows):
        size = len(values["share"])
        usual = {"weight": 1.0, "q": 1 / size, "rollouts": 4.0, "sigma": 0.5, "reward": 0.5, "prompts": 4}
        part = pd.DataFrame({**usual, "rollout_share": values["share"], **values, "bin": range(size)})
        parts.append(part.assign(cycle=cycle, step=2 * cycle + 2))
    return pd.concat(parts, ignore_index=True).assign(scale=scale, arm=arm, seed=seed)


def one(**values):
    found = dynamics.curves(frame([values]))
    assert len(found) == 1
    return found.iloc[0]


def test_the_quantities_of_one_cycle_written_out():
    row = one(
        share=[0.75, 0.25],
        weight=[2.0, 1.0],
        q=[0.6, 0.4],
        rollouts=[2.0, 10.0],
        rollout_share=[0.375, 0.625],
        sigma=[0.5, 0.25],
    )
    assert (row["scale"], row["arm"], row["seed"], row["cycle"], row["step"]) == ("tiny-s", "joint", 0, 0, 2)
    assert row["mean_bin"] == pytest.approx(0.25)
    assert row["weighted_bin"] == pytest.approx(0.4)
    assert row["gradient_bin"] == pytest.approx(0.25 / 1.75)
    assert row["rollout_bin"] == pytest.approx(0.625)
    assert row["lead"] == pytest.approx(0.15)
    assert row["gradient_lead"] == pytest.approx(0.25 / 1.75 - 0.25)
    assert row["hardest"] == pytest.approx(0.75)
    assert row["share_entropy"] == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    assert row["support"] == pytest.approx(np.exp(-0.6 * np.log(0.6) - 0.4 * np.log(0.4)))
    assert row["wse"] == pytest.approx(0.75 * 0.5 / np.sqrt(2) + 0.25 * 0.25 / np.sqrt(10))
    assert row["wse_uniform"] == pytest.approx((0.75 * 0.5 + 0.25 * 0.25) / 2)


def test_the_thresholds_count_their_own_bin():
    share = [0.0, 0.0, 0.1, 0.2, 0.0, 0.3, 0.0, 0.0, 0.25, 0.15]
    row = one(share=share, rollout_share=share[::-1])
    assert row["middle_up"] == pytest.approx(0.9)
    assert row["easy_up"] == pytest.approx(0.4)
    assert row["upper"] == pytest.approx(0.7)
    assert row["upper_rollouts"] == pytest.approx(0.2 + 0.1)


def test_an_empty_bin_counts_for_nothing_and_an_unknown_sigma_for_everything():
    known = {"share": [1.0, 0.0], "rollouts": [4.0, NAN]}
    row = one(sigma=[0.5, NAN], **known)
    assert (row["wse"], row["wse_uniform"], row["mean_bin"]) == pytest.approx((0.25, 0.25, 0.0))
    row = one(sigma=[NAN, NAN], **known)
    assert np.isnan(row[["wse", "wse_uniform", "wse_least"]].astype(float)).all()
    assert row["mean_bin"] == 0.0


def test_without_an_adversary_what_needs_one_is_nan():
    row = one(share=[0.5, 0.5], q=[NAN, NAN])
    assert np.isnan(row[["weighted_bin", "lead", "weight_entropy", "support"]].astype(float)).all()
    assert row["gradient_lead"] == pytest.approx(0.0)


def shares(size):
    positive = st.lists(st.floats(0.01, 1), min_size=size, max_size=size).map(np.array)
    return positive.map(lambda values: values / values.sum())


@settings(max_examples=20, deadline=None)
@given(share=shares(4), weight=st.floats(0.1, 15))
def test_equal_weights_lead_nowhere_although_eq_32_says_so(share, weight):
    row = one(share=share, weight=[weight] * 4)
    assert row["gradient_lead"] == pytest.approx(0.0, abs=1e-12)
    assert row["lead"] == pytest.approx(1.5 - share @ np.arange(4))
    assert row["support"] == pytest.approx(4.0)


@settings(max_examples=20, deadline=None)
@given(share=shares(3), sigma=st.lists(st.floats(0.01, 0.6), min_size=3, max_size=3), seed=st.integers(0, 99))
def test_no_allocation_of_the_same_mean_beats_the_least_error(share, sigma, seed):
    sigma = np.array(sigma)
    raw = np.random.default_rng(seed).uniform(0.2, 5, 3)
    best = 4 * sigma ** (2 / 3) / (share @ sigma ** (2 / 3))
    for rollouts in (4 * raw / (share @ raw), best):
        row = one(share=share, sigma=sigma, rollouts=rollouts)
        assert row["wse_least"] <= row["wse"] + 1e-12
        assert row["wse_least"] <= row["wse_uniform"] + 1e-12
    assert row["wse_least"] == pytest.approx(row["wse"])


def test_the_reduction_is_one_of_sums_and_negative_for_the_wrong_bins():
    right = {"share": [0.5, 0.5], "sigma": [0.5, 0.1], "rollouts": [6.0, 2.0]}
    wrong = right | {"rollouts": [2.0, 6.0]}
    bins = pd.concat([frame([right, right]), frame([wrong], seed=1)])
    found = dynamics.standard_errors(bins).set_index("seed")
    assert found.loc[0, "reduction"] == pytest.approx(1 - (0.5 / 6**0.5 + 0.1 / 2**0.5) / 0.3)
    assert found.loc[1, "reduction"] < 0 < found.loc[0, "reduction"] < found.loc[0, "possible"]
    assert dynamics.standard_errors(bins.iloc[:0]).empty


def test_snapshots_are_means_over_the_cycles_up_to_the_step():
    rows = [{"share": [1 - c / 20, c / 20], "rollout_share": [c / 20, 1 - c / 20]} for c in range(20)]
    found = dynamics.snapshots(frame(rows), window=4)
    assert found["step"].unique().tolist() == [4, 16, 28, 40]
    easy = found[found["bin"] == 1].set_index("snapshot")
    assert easy["share"].tolist() == pytest.approx([0.5 / 20, 5.5 / 20, 11.5 / 20, 17.5 / 20])
    assert (easy["share"] + easy["rollout_share"]).tolist() == pytest.approx([1.0] * 4)
    chosen = dynamics.snapshots(frame(rows), steps=[5, 40], window=1)
    assert chosen["share"].tolist() == pytest.approx([19 / 20, 1 / 20, 1 / 20, 19 / 20])
    for step in (0, 41):
        with pytest.raises(ValueError, match=f"snapshot step {step} lies outside the runs' steps, 1 to 40"):
            dynamics.snapshots(frame(rows), steps=[step])
    assert dynamics.snapshots(frame(rows).iloc[:0]).empty


def test_the_tail_and_its_summary():
    table = dynamics.curves(
        pd.concat(
            [
                frame([{"share": [1 - v, v]} for v in (0.0, 0.0, 0.0, a, a)], seed=s)
                for s, a in ((0, 0.2), (1, 0.6))
            ]
        )
    )
    late = dynamics.tail(table, 0.4)
    assert late.groupby("seed").size().tolist() == [2, 2]
    row = dynamics.summary(late, ["mean_bin"]).iloc[0]
    assert (row["seeds"], row["mean_bin"], row["± mean_bin"]) == pytest.approx((2, 0.4, 0.2))
    alone = dynamics.summary(late[late["seed"] == 0], ["mean_bin"]).iloc[0]
    assert np.isnan(alone["± mean_bin"])
    for share in (0, 1.5):
        with pytest.raises(ValueError, match=f"tail={share}"):
            dynamics.tail(table, share)


def test_ends_are_the_last_cycles_of_runs_that_have_the_value():
    rows = [{"share": [0.5, 0.5], "q": q} for q in ([0.5, 0.5], [1.0, 0.0])]
    bins = pd.concat([frame(rows), frame([{"share": [0.5, 0.5], "q": [NAN, NAN]}], arm="grpo")])
    found = dynamics.ends(bins, "support")
    assert found.to_dict("records") == [{"scale": "tiny-s", "arm": "joint", "seed": 0, "support": 1.0}]


def test_maps_are_means_over_the_seeds_that_have_a_value():
    bins = pd.concat(
        [frame([{"share": [1.0, 0.0], "reward": r}], seed=s) for s, r in ((0, [0.2, NAN]), (1, [0.6, NAN]))]
    )
    found = dynamics.maps(bins, "reward", "share")
    assert found["reward"].tolist() == pytest.approx([0.4, NAN], nan_ok=True)
    assert found["share"].tolist() == [1.0, 0.0]


def test_pass_at_2_of_a_batch_is_the_share_of_pairs_with_a_right_one():
    right, number = [0, 1, 3, 1], [4, 4, 5, 1]
    steps = pd.DataFrame({"step": [1, 2], "prompt_correct": [None, right], "prompt_rollouts": [None, number]})
    by_pairs = []
    for c, n in zip(right[:3], number[:3], strict=True):
        outcomes = [1] * c + [0] * (n - c)
        by_pairs.append(np.mean([max(pair) for pair in itertools.combinations(outcomes, 2)]))
    found = dynamics.batch_pass(steps)
    assert found.to_dict() == {2: pytest.approx(np.mean(by_pairs))}
    assert dynamics.batch_pass(steps[["step"]]).empty
