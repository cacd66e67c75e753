"""The worst of fixed groups: counted by hand, and not lifted by rollouts given to the easy."""

import pandas as pd
import pytest

from gdro import static_groups

GROUPS = ["a 01", "a 01", "b 02"]


def steps(*cycles, arm="grpo", seed=0):
    """Two steps a cycle, the second with the outcomes {prompt: (correct, rollouts)} of the cycle."""
    rows = []
    for cycle, outcomes in enumerate(cycles):
        rows.append({"step": 2 * cycle + 1, "cycle": cycle})
        right, number = zip(*outcomes.values(), strict=True)
        lists = {"prompt_ids": [*outcomes], "prompt_correct": [*right], "prompt_rollouts": [*number]}
        rows.append({"step": 2 * cycle + 2, "cycle": cycle} | lists)
    return pd.DataFrame(rows).assign(scale="tiny-s", arm=arm, seed=seed)


def test_pass_rates_are_means_over_prompts_met_in_a_window():
    table = steps({0: (1, 2), 2: (0, 4)}, {1: (2, 2)}, {0: (4, 4), 2: (1, 4)})
    found = static_groups.pass_rates(table, GROUPS, window=2).set_index(["step", "group"])
    assert found["pass_rate"].to_dict() == {
        (4, "a 01"): 0.75,
        (4, "b 02"): 0.0,
        (6, "a 01"): 1.0,
        (6, "b 02"): 0.25,
    }
    assert found["prompts"].tolist() == [2, 1, 1, 1]


def test_rollouts_given_to_the_easy_lift_nothing():
    few, many = ({0: (n, n), 1: (0, 2)} for n in (2, 12))
    rates = [static_groups.pass_rates(steps(case), GROUPS)["pass_rate"].tolist() for case in (few, many)]
    assert rates[0] == rates[1] == [0.5]


def test_a_prompt_without_a_scored_rollout_is_not_met():
    found = static_groups.pass_rates(steps({0: (1, 1), 1: (0, 0)}), GROUPS)
    assert (found["pass_rate"].item(), found["prompts"].item()) == (1.0, 1)


def test_runs_without_outcomes_by_prompt_are_refused():
    table = steps({0: (1, 2)}).drop(columns="prompt_ids")
    assert not static_groups.recorded(table)
    with pytest.raises(ValueError, match="recorded by an earlier version; make them again"):
        static_groups.pass_rates(table, GROUPS)


def test_the_worst_group_of_each_run_and_step():
    runs = [steps({0: (1, 2), 2: (0, 4)}, {1: (2, 2)}), steps({0: (0, 2), 2: (2, 4)}, seed=1)]
    found = static_groups.worst(static_groups.pass_rates(pd.concat(runs), GROUPS, window=1))
    assert found[["seed", "step", "group", "pass_rate", "mean", "groups"]].values.tolist() == [
        [0, 2, "b 02", 0.0, 0.25, 2],
        [0, 4, "a 01", 1.0, 1.0, 1],
        [1, 2, "a 01", 0.0, 0.25, 2],
    ]


def test_held_out_groups_leave_out_what_training_never_had():
    table = pd.DataFrame(
        {
            "suite": ["a", "a", "b", "outside"],
            "level": [1, 1, 2, 7],
            "correct": [4, 8, 2, 0],
            "k": 8,
            "step": 6,
        }
    ).assign(scale="tiny-s", arm="grpo", seed=0)
    found = static_groups.held_out(table)
    assert found[["group", "pass_rate", "prompts"]].values.tolist() == [["a 01", 0.75, 2], ["b 02", 0.25, 1]]
    assert static_groups.worst(found)[["group", "pass_rate", "mean"]].values.tolist() == [["b 02", 0.25, 0.5]]
