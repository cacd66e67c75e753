"""The noise of plans by hand, and where it must equal the weighted standard error."""

import numpy as np
import pandas as pd
import pytest

from gdro.planned_noise import planned_noise

RUN = ["scale", "arm", "seed"]


def plans(arm, rollouts, share=(0.25, 0.75), seeds=(0, 1)):
    rows = [("s", arm, n, c, b, share[b], rollouts[b]) for n in seeds for c in range(3) for b in (0, 1)]
    return pd.DataFrame(rows, columns=[*RUN, "cycle", "bin", "share", "rollouts"])


def variances(scale_by_bin, numbers=(2, 4, 8), power=1.0, prompts=3):
    rows = [
        (b, 10 * b + i, n, v / n**power)
        for b, v in enumerate(scale_by_bin)
        for i in range(prompts)
        for n in numbers
    ]
    return pd.DataFrame(rows, columns=["bin", "prompt", "rollouts", "variance"])


def test_the_noise_of_plans_by_hand():
    measured = variances([16.0, 1.0])
    found = planned_noise(pd.concat([plans("grpo", (4, 4)), plans("x", (8, 2))]), measured, 4)
    by_arm = found.set_index("arm")
    assert by_arm.loc["grpo", ["estimate", "low", "high"]].tolist() == [0, 0, 0]
    equal = 0.25 * 2 + 0.75 * 0.5
    wanted = 1 - (0.25 * np.sqrt(2) + 0.75 * np.sqrt(0.5)) / equal
    assert by_arm.loc["x", "estimate"] == pytest.approx(wanted)
    assert by_arm.loc["x", "low"] == pytest.approx(wanted)  # equal prompts and seeds leave no doubt
    assert set(found["seeds"]) == {2}
    assert set(found["covered"]) == {1}


def test_where_the_law_is_one_over_n_the_noise_falls_as_the_weighted_standard_error():
    sigma = np.array([0.5, 0.2])
    table = plans("x", (8, 2)).assign(sigma=lambda f: sigma[f["bin"]])
    wse = (
        1
        - (table["share"] * table["sigma"] / np.sqrt(table["rollouts"])).sum()
        / (table["share"] * table["sigma"] / np.sqrt(4)).sum()
    )
    measured = variances(sigma**2)
    assert planned_noise(table, measured, 4)["estimate"].item() == pytest.approx(wse)
    flat = planned_noise(table, variances(sigma**2, power=0.0), 4)["estimate"].item()
    assert flat == pytest.approx(0, abs=1e-12)  # rollouts that buy nothing change nothing


def test_what_was_not_measured_is_left_out_and_said():
    measured = variances([4.0])
    found = planned_noise(plans("x", (8, 2)), measured, 4)
    assert found["covered"].item() == pytest.approx(0.25)
    assert found["estimate"].item() == pytest.approx(1 - np.sqrt(0.5))
    with pytest.raises(ValueError, match=r"mean_budget=3 was not measured.*\[2, 4, 8\]"):
        planned_noise(plans("x", (8, 2)), measured, 3)


def test_the_noise_has_an_interval_over_prompts():
    rng = np.random.default_rng(0)
    measured = variances([4.0, 1.0], prompts=6)
    measured["variance"] *= rng.uniform(0.2, 2.0, len(measured))
    row = planned_noise(plans("x", (8, 2)), measured, 4).iloc[0]
    assert row["low"] < row["estimate"] < row["high"]
