"""What runs spend, counted by hand."""

import numpy as np
import pandas as pd
import pytest

from gdro import efficiency


def steps(arm, rates, rollouts=10, tokens=100, seed=0):
    cycles = np.arange(len(rates))
    return pd.DataFrame(
        {
            **{"scale": "s", "arm": arm, "seed": seed, "cycle": cycles, "pass_rate": rates},
            **{"rollouts_total": rollouts * (cycles + 1), "tokens_total": tokens * (cycles + 1)},
        }
    )


def test_rollouts_to_match_is_the_first_time_the_goal_is_met():
    rising = np.linspace(0, 0.9, 10)
    table = pd.concat(
        [steps("grpo", rising), steps("twice", np.minimum(1, 2 * rising)), steps("never", rising / 2)]
    )
    found = efficiency.rollouts_to_match(table, window=1).set_index("arm")
    assert found["share"].to_dict() == {"grpo": 1.0, "twice": 0.6, "never": 1.0}
    assert found["reached"].to_dict() == {"grpo": True, "twice": True, "never": False}


def test_smoothing_needs_a_whole_window():
    found = efficiency.smoothed(steps("grpo", [0.0, 1.0, 0.5, 0.5]), window=2)
    assert found["pass_rate"].tolist() == [0.5, 0.75, 0.5]
    assert found["cycle"].tolist() == [1, 2, 3]


def test_at_equal_tokens_the_dear_run_stops_early():
    table = pd.concat([steps("grpo", [0.1, 0.2, 0.3, 0.4]), steps("dear", [0.2, 0.4, 0.6, 0.8], tokens=200)])
    found = efficiency.at_equal(table, window=1).set_index("arm")
    assert found["pass_rate"].to_dict() == {"grpo": 0.4, "dear": 0.4}
    assert found["tokens_total"].to_dict() == {"grpo": 400, "dear": 400}


def test_a_run_too_dear_to_compare_is_named():
    table = pd.concat([steps("grpo", [0.1, 0.2]), steps("dear", [0.2, 0.4], tokens=900)])
    with pytest.raises(ValueError, match=r"s/dear/0 spends more tokens_total in its first 1 cycles"):
        efficiency.at_equal(table, window=1)
