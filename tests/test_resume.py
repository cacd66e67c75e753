"""A run that was cut and resumed equals the run that never stopped: parameters, controller, plans and
logs."""

import numpy as np
import pytest
import tiny_model as tiny
import torch
from transformers import TrainerCallback

from gdro import checkpoints, resume
from gdro.dapo_filter import FilteredGRPOTrainer

ADVERSARIES = {"prompt_gdro": True, "window": 4, "hysteresis": 0.0, "num_bins": 4}
SAVING = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": None, "max_steps": 14}
PLAIN = {"per_device_train_batch_size": 8}
SEVERAL = {"per_device_train_batch_size": 4, "steps_per_generation": 4}
PASSES = {"per_device_train_batch_size": 8, "steps_per_generation": 2, "num_iterations": 2}
SURROGATE = {"signal": "surrogate", "beta": 0.01}

# name: settings, the steps to cut at
CASES = {
    "first epoch, its end, later epochs": (PLAIN, [2, 4, 6, 8, 11]),
    "inside a cycle": (SEVERAL | SURROGATE, [5, 8, 10]),
    "inside a cycle of two passes": (PASSES | SURROGATE, [2, 3, 7, 8, 13]),
    "logs that wait": (PASSES | {"logging_steps": 3}, [4, 5, 7]),
    "accumulated, uneven": (
        {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 3},
        [1, 2, 3, 5],
    ),
}


class SaveAt(TrainerCallback):
    """Saves after these steps and no others, since saving takes longer than a step."""

    def __init__(self, *steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step in self.steps
        return control


def settings(case):
    return ADVERSARIES | SAVING | CASES[case][0]


def same(left, right):
    """Nested states equal, NaN equal to NaN."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    return left == right or (left != left and right != right)


def run(folder, resume=None, reward=tiny.short_reward, trainer=None, **changes):
    made = tiny.make(folder, reward, trainer=trainer, **changes)
    plans = tiny.script(made)
    made.train(resume_from_checkpoint=resume)
    return made, plans


def assert_continued(whole, resumed, plans, plans_after):
    tiny.assert_same_parameters(tiny.parameters(whole), tiny.parameters(resumed))
    assert same(whole.controller.state_dict(), resumed.controller.state_dict())
    assert plans[len(plans) - len(plans_after) :] == plans_after
    assert tiny.losses(whole) == tiny.losses(resumed)
    assert whole.total_rollouts == resumed.total_rollouts
    assert whole.total_completion_tokens == resumed.total_completion_tokens


@pytest.mark.parametrize("case", CASES)
def test_resuming_equals_never_having_stopped(tmp_path, case):
    changes = settings(case) | {"save_strategy": "no"}
    whole, plans = run(tmp_path / "run", callbacks=[SaveAt(*CASES[case][1])], **changes)
    assert whole.state.epoch > 1
    for step in CASES[case][1]:
        start = tmp_path / "run" / f"checkpoint-{step}"
        resumed, after = run(tmp_path / f"from {step}", str(start), **changes)
        assert resumed.state.global_step == 14
        assert len(after) < len(plans)
        assert_continued(whole, resumed, plans, after)


def test_resuming_inside_a_cycle_with_rollouts_planned(tmp_path):
    changes = settings("inside a cycle") | {"rollout_gdro": True, "rollouts_max": 8, "selection": "sample"}
    changes["save_strategy"] = "no"
    whole, plans = run(tmp_path / "run", callbacks=[SaveAt(5, 8, 11)], **changes)
    assert len({tuple(plan.rollouts) for plan in plans}) > 1
    for step in (5, 8, 11):
        resumed, after = run(
            tmp_path / f"from {step}", str(tmp_path / "run" / f"checkpoint-{step}"), **changes
        )
        assert_continued(whole, resumed, plans, after)


def test_resuming_the_filtered_baseline(tmp_path):
    changes = SAVING | PASSES | {"trainer": FilteredGRPOTrainer, "max_rounds": 2, "max_steps": 10}
    changes["save_strategy"] = "no"
    whole, plans = run(tmp_path / "run", callbacks=[SaveAt(3, 5)], **changes)
    assert whole.fresh_drawn > 0
    for step in (3, 5):
        resumed, after = run(
            tmp_path / f"from {step}", str(tmp_path / "run" / f"checkpoint-{step}"), **changes
        )
        assert_continued(whole, resumed, plans, after)
        assert whole.fresh_drawn == resumed.fresh_drawn


def test_a_run_that_was_killed_goes_on_by_itself_in_its_folder(tmp_path):
    """Killed while a later checkpoint was half written: the newest complete one is taken, the torn one is
    named."""
    changes = settings("inside a cycle") | {"save_total_limit": 2}
    whole, plans = run(tmp_path / "whole", **changes)

    class Killed(Exception):
        pass

    cut = tiny.make(tmp_path / "cut", **changes)
    save = cut._save_optimizer_and_scheduler

    def killed(folder):
        if cut.state.global_step == 6:
            raise Killed
        save(folder)

    cut._save_optimizer_and_scheduler = killed
    with pytest.raises(Killed):
        cut.train()
    assert [path.name for path in checkpoints.torn_folders(tmp_path / "cut")] == ["checkpoint-6"]
    resumed, after = run(tmp_path / "cut", True, **changes)
    assert_continued(whole, resumed, plans, after)
    assert not checkpoints.torn_folders(tmp_path / "cut")
    assert [path.name for path in checkpoints.checkpoint_folders(tmp_path / "cut")] == [
        "checkpoint-13",
        "checkpoint-14",
    ]


def test_a_kept_batch_comes_back_in_its_own_types(tmp_path):
    batch = {
        "ids": torch.tensor([[3, 1]]),
        "logps": torch.tensor([[0.1, -2.7]], dtype=torch.bfloat16),
        "parts": (torch.tensor([True]), [None, 4]),
    }
    checkpoints.write_state(tmp_path, "batch", resume._to_arrays(batch))
    back = resume._to_tensors(checkpoints.read_state(tmp_path, "batch"), "cpu")
    for name in ("ids", "logps"):
        assert back[name].dtype == batch[name].dtype
        assert torch.equal(back[name], batch[name])
    assert torch.equal(back["parts"][0], torch.tensor([True]))
    assert back["parts"][1] == [None, 4]


def test_the_completions_table_continues(tmp_path):
    import pandas as pd

    changes = settings("inside a cycle") | {
        "log_completions": True,
        "num_completions_to_print": 1,
        "max_steps": 6,
    }
    run(tmp_path / "run", **changes)
    run(tmp_path / "again", str(tmp_path / "run" / "checkpoint-5"), **changes)
    name = "completions/completions_00006.parquet"
    whole, resumed = (pd.read_parquet(tmp_path / folder / name) for folder in ("run", "again"))
    assert len(whole) == 16
    pd.testing.assert_frame_equal(whole, resumed)
