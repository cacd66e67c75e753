"""With nothing turned on, and with a uniform plan through the variable path, training is GRPO bit for bit."""

import pytest
import tiny_model as tiny
from trl import GRPOTrainer

CYCLES = {
    "one step": {},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "two steps": {"steps_per_generation": 2, "per_device_train_batch_size": 4},
    "two generations a step": {
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 4,
        "per_device_train_batch_size": 4,
    },
    "two passes": {"num_iterations": 2},
    "with a reference": {"beta": 0.05, "steps_per_generation": 2, "per_device_train_batch_size": 4},
}
LOSSES = {
    "std none": {"scale_rewards": "none", "loss_type": "dr_grpo"},
    "std batch": {"scale_rewards": "batch", "loss_type": "bnpo"},
    "normalize then sum": {"multi_objective_aggregation": "normalize_then_sum", "loss_type": "grpo"},
}
REWARDS = [tiny.short_reward, tiny.real_reward, tiny.patchy_reward]
VARIABLE = {"advantage_clip": 1e6}  # takes the parent's advantages out of use without changing a number


def assert_identical(ours, theirs):
    tiny.assert_same_parameters(tiny.parameters(ours), tiny.parameters(theirs))
    logged, expected = tiny.losses(ours), tiny.losses(theirs)
    assert len(logged) == len(expected)
    for own, other in zip(logged, expected, strict=True):
        assert {key: own[key] for key in other} == other


def both(tmp_path, reward, ours, **changes):
    """Ours and TRL's trainer after the same run, which is longer than an epoch of four generations."""
    changes = {"max_steps": 10} | changes
    theirs = tiny.train(tmp_path / "trl", reward, trainer=GRPOTrainer, **changes)
    assert theirs.state.epoch > 1
    return tiny.train(tmp_path / "gdro", reward, **changes, **ours), theirs


CASES = [*((reward, "one step") for reward in REWARDS), *((REWARDS[2], cycle) for cycle in list(CYCLES)[1:])]


@pytest.mark.parametrize(("reward", "cycle"), CASES)
def test_both_adversaries_off_is_grpo(tmp_path, reward, cycle):
    assert_identical(*both(tmp_path, reward, {}, **CYCLES[cycle]))


@pytest.mark.parametrize(("reward", "cycle"), CASES)
def test_a_uniform_plan_through_the_variable_path_is_grpo(tmp_path, reward, cycle):
    assert_identical(*both(tmp_path, reward, VARIABLE, **CYCLES[cycle]))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_variable_path_knows_every_scaling(tmp_path, loss):
    rewards = [tiny.short_reward, tiny.patchy_reward]
    assert_identical(*both(tmp_path, rewards, VARIABLE, reward_weights=[0.3, 1.0], **LOSSES[loss]))


def test_one_arm_is_grpo(tmp_path):
    adversary = {"rollout_gdro": True, "rollouts_min": 4, "rollouts_max": 4}
    assert_identical(*both(tmp_path, tiny.real_reward, adversary))


def test_a_weight_that_is_not_one_is_not_grpo(tmp_path):
    """The comparison above can fail: with Prompt-GDRO on the parameters leave TRL's."""
    with pytest.raises(AssertionError):
        assert_identical(*both(tmp_path, tiny.short_reward, {"prompt_gdro": True}))
