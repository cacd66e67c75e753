"""What reward functions may return, what is logged of it, evaluation, LoRA, and data or rewards that are
refused."""

import asyncio
import json

import numpy as np
import pytest
import tiny_model as tiny
import torch
from datasets import IterableDataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from gdro import GDROTrainer
from gdro.advantages import total_reward

VARIABLE = {"advantage_clip": 1e6, "num_generations": 4, "per_device_train_batch_size": 12}
ROLLOUTS = [2, 3, 7]


def watch(trainer):
    """List of the arguments of every ``controller.observe``."""
    seen, observe = [], trainer.controller.observe

    def observing(*args):
        seen.append(args)
        observe(*args)

    trainer.controller.observe = observing
    return seen


def test_rows_without_reward_are_no_rollouts_and_prompts_without_any_no_visit(tmp_path):
    trainer = tiny.make(tmp_path, tiny.patchy_reward, tiny.prompts(3), **VARIABLE, max_steps=3)
    plans, seen = tiny.script(trainer, ROLLOUTS), watch(trainer)
    trainer.train()
    silent = tiny.TEXTS.index("0+1=")
    visits = np.zeros(3, dtype=int)
    for plan, index, rewards, losses, correct in seen:
        assert losses is None
        missing = np.isnan(rewards)
        assert missing[plan.prompt_ids[index] == silent].all()
        assert missing.any()
        assert not correct[missing].any()
        np.testing.assert_array_equal(correct[~missing], rewards[~missing] > 0.5)
        visits[plan.prompt_ids] += np.bincount(index, ~missing, minlength=3) > 0
    assert len(plans) == 3
    assert visits[silent] == 0
    assert trainer.controller.classifier.visits(np.arange(3)).tolist() == visits.tolist()


def test_the_advantage_of_a_row_without_reward_is_zero_and_the_others_leave_it_out(tmp_path):
    trainer = tiny.make(tmp_path, tiny.patchy_reward, tiny.prompts(3), **VARIABLE, max_steps=1)
    tiny.script(trainer, ROLLOUTS)
    trainer.train()
    rewards = total_reward(trainer._scores, trainer.reward_weights)
    batch = trainer._buffered_inputs[0]
    given = torch.empty(12)
    given[batch["gdro_slot"]] = batch["advantages"]
    for values, advantages in zip(torch.split(rewards, ROLLOUTS), torch.split(given, ROLLOUTS), strict=True):
        scored = values[~values.isnan()]
        expected = torch.zeros_like(values)
        if len(scored) > 1:
            expected[~values.isnan()] = (scored - scored.mean()) / (scored.std() + 1e-4) * 4 / len(values)
        torch.testing.assert_close(advantages, expected)


def test_several_rewards_are_weighted_and_one_of_them_can_decide_success(tmp_path):
    rewards = [tiny.real_reward, tiny.short_reward, tiny.patchy_reward]
    changes = {"reward_weights": [0.5, 2.0, 1.0], "success_reward": "short_reward", "success_threshold": 0.5}
    trainer = tiny.make(tmp_path, rewards, **VARIABLE, **changes, max_steps=2)
    seen = watch(trainer)
    trainer.train()
    _, _, total, _, correct = seen[-1]
    scores = trainer._scores.double().numpy()
    np.testing.assert_allclose(total, np.nansum(scores * [0.5, 2.0, 1.0], axis=1), rtol=1e-6)
    np.testing.assert_array_equal(correct, scores[:, 1] > 0.5)
    assert trainer.state.log_history[0]["rewards/short_reward/mean"] <= 1


def test_a_row_that_the_deciding_reward_left_out_is_no_rollout(tmp_path):
    changes = {"success_reward": "patchy_reward", "success_threshold": 0.0}
    trainer = tiny.make(tmp_path, [tiny.short_reward, tiny.patchy_reward], **VARIABLE, **changes, max_steps=1)
    seen = watch(trainer)
    trainer.train()
    missing = np.isnan(trainer._scores[:, 1].numpy())
    assert missing.any()
    np.testing.assert_array_equal(np.isnan(seen[0][2]), missing)


async def slow_reward(completions, **kwargs):
    """An asynchronous reward function."""
    await asyncio.sleep(0)
    return tiny.real_reward(completions)


def test_an_asynchronous_reward_is_the_same(tmp_path):
    both = [tiny.train(tmp_path, reward, max_steps=2) for reward in (slow_reward, tiny.real_reward)]
    tiny.assert_same_parameters(*map(tiny.parameters, both))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "1"])
@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_a_reward_that_is_no_finite_number_is_refused_by_name_and_value(tmp_path, value, kind):
    def broken(completions, **kwargs):
        return [0.0] * (len(completions) - 1) + [value]

    async def broken_later(completions, **kwargs):
        return broken(completions)

    trainer = tiny.make(tmp_path, broken if kind == "plain" else broken_later, num_generations=4)
    before = tiny.parameters(trainer)
    with pytest.raises(
        ValueError, match=rf"'broken\w*' returned {value!r} for completion 7; return a finite number, or None"
    ):
        trainer.train()
    tiny.assert_same_parameters(before, tiny.parameters(trainer))
    assert trainer.controller.cycle == 0


def test_the_fraction_of_flat_groups_and_the_logged_advantages_are_those_of_the_groups(tmp_path):
    def by_prompt(prompts, completions, **kwargs):
        return [float(at % 2) if prompt == "0+2=" else 1.0 for at, prompt in enumerate(prompts)]

    changes = VARIABLE | {"scale_rewards": "group"}
    trainer = tiny.make(tmp_path, by_prompt, tiny.prompts(3), **changes, max_steps=1)
    (plans,) = [tiny.script(trainer, ROLLOUTS)]
    trainer.train()
    entry = trainer.state.log_history[0]
    varied = dict(zip(plans[0].prompt_ids.tolist(), ROLLOUTS, strict=True))[tiny.TEXTS.index("0+2=")]
    assert entry["frac_reward_zero_std"] == pytest.approx(1 - varied / 12)
    assert entry["gdro/frac_zero_variance"] == pytest.approx(2 / 3)
    assert np.count_nonzero(trainer._logs["advantages"]) == varied
    assert len(trainer._logs["advantages"]) == 12


def test_a_cycle_is_observed_once_and_logged_with_the_step_that_ends_it(tmp_path):
    changes = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2}
    trainer = tiny.make(tmp_path, **changes, max_steps=9)
    seen = watch(trainer)
    trainer.train()
    assert [args[0].cycle for args in seen] == [0, 1]
    logged = [entry["step"] for entry in trainer.state.log_history if "gdro/pass_rate" in entry]
    assert logged == [4, 8]
    assert trainer.state.log_history[7]["gdro/total_rollouts"] == 16


def test_a_reporter_gets_the_controllers_metrics(tmp_path, monkeypatch):
    """Through TensorBoard, the reporter that needs no account."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    changes = {"prompt_gdro": True, "rollout_gdro": True, "num_bins": 2, "rollouts_max": 6, "hysteresis": 0.0}
    trainer = tiny.train(tmp_path, **changes, report_to=["tensorboard"], max_steps=3)
    (folder,) = {path.parent for path in (tmp_path / "board").rglob("events*")}
    events = EventAccumulator(str(folder)).Reload()
    tags = set(events.Tags()["scalars"])
    batch = [
        "pass_rate",
        "frac_zero_variance",
        "share_entropy",
        "weight_entropy",
        "shadow_price",
        "asked_mean",
    ]
    batch += ["realised_mean", "completion_tokens", "total_completion_tokens", "total_rollouts"]
    bins = [f"bin_00/{name}" for name in ("share", "pass_rate", "weight", "rollouts")]
    assert {f"train/gdro/{name}" for name in batch + bins} <= tags
    rollouts = [event.value for event in events.Scalars("train/gdro/total_rollouts")]
    assert rollouts == [8.0, 16.0, 24.0]
    tokens = [event.value for event in events.Scalars("train/gdro/completion_tokens")]
    assert sum(tokens) == trainer.total_completion_tokens
    lengths = [entry["completions/mean_length"] * 8 for entry in tiny.losses(trainer)]
    assert tokens == pytest.approx(lengths)


@pytest.mark.parametrize("path", [{}, {"advantage_clip": 1e6}])
def test_evaluation_during_training_changes_nothing_and_is_not_observed(tmp_path, path):
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "do_eval": True, "num_generations_eval": 2}
    evaluation |= {"eval_dataset": tiny.prompts(2), "per_device_eval_batch_size": 4}
    changes = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 5}
    ours = tiny.train(tmp_path, **changes, **evaluation, **path)
    theirs = tiny.train(tmp_path, trainer=GRPOTrainer, **changes, **evaluation)
    tiny.assert_same_parameters(tiny.parameters(ours), tiny.parameters(theirs))
    own = [entry["eval_reward"] for entry in ours.state.log_history if "eval_reward" in entry]
    assert own == [entry["eval_reward"] for entry in theirs.state.log_history if "eval_reward" in entry]
    assert len(own) == 5
    assert ours.controller.cycle == 2
    assert ours.total_rollouts == 24


@pytest.mark.parametrize("path", [{}, {"advantage_clip": 1e6}])
def test_adapters_train_as_under_trl(tmp_path, path):
    changes = {"beta": 0.05, "per_device_train_batch_size": 4, "steps_per_generation": 2}

    def adapter():
        return LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")

    ours = tiny.train(tmp_path, peft_config=adapter(), **changes, **path)
    theirs = tiny.train(tmp_path, trainer=GRPOTrainer, peft_config=adapter(), **changes)
    tiny.assert_same_parameters(tiny.parameters(ours), tiny.parameters(theirs))
    assert ours.state.log_history[-2]["kl"] > 0


def stream():
    return IterableDataset.from_generator(lambda: iter({"prompt": text} for text in tiny.TEXTS * 9))


def test_a_stream_is_refused_with_an_adversary_and_is_grpo_without(tmp_path):
    for adversary in ("prompt_gdro", "rollout_gdro"):
        with pytest.raises(ValueError, match=rf"{adversary}=True.*map-style.*got IterableDataset"):
            tiny.make(tmp_path, dataset=stream(), **{adversary: True})
    with pytest.raises(ValueError, match=r"advantage_clip=5\.0.*map-style.*got IterableDataset"):
        tiny.make(tmp_path, dataset=stream(), advantage_clip=5.0)
    trainer = tiny.train(tmp_path, dataset=stream(), max_steps=2)
    assert trainer.controller is None
    theirs = tiny.train(tmp_path, dataset=stream(), max_steps=2, trainer=GRPOTrainer)
    tiny.assert_same_parameters(tiny.parameters(trainer), tiny.parameters(theirs))


@pytest.mark.parametrize(
    ("dataset", "changes", "match"),
    [
        (
            tiny.prompts(1),
            {},
            r"1 rows, one generation takes 2 prompts \(generation_batch_size 8 / num_generations 4\)",
        ),
        (tiny.prompts(4, gdro_row=[1] * 4), {}, "has a column 'gdro_row'"),
        (
            tiny.prompts(4).rename_column("prompt", "text"),
            {},
            r"no column 'prompt', only \['answer', 'text'\]",
        ),
        (
            tiny.prompts(4),
            {"bin_column": "level"},
            "bin_column 'level' is not in the data set; it has answer, prompt",
        ),
        (tiny.prompts(4, level=[0.5] * 4), {"bin_column": "level"}, r"whole numbers from 0 up, got \[0.5"),
        (tiny.prompts(4, level=[0, 1, 2, -1]), {"bin_column": "level"}, "whole numbers from 0 up"),
        (
            tiny.prompts(4, level=[0, 1, 2, 1], prompt_id=list("abca")),
            {"bin_column": "level"},
            "row 0 has label 0",
        ),
        (
            tiny.prompts(4),
            {"success_reward": "right"},
            "success_reward 'right' is no reward function; they are short_reward",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused_before_training(tmp_path, dataset, changes, match):
    with pytest.raises(ValueError, match=match):
        tiny.make(tmp_path, dataset=dataset, **changes)
    assert not list(tmp_path.iterdir())


def test_other_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match="args must be a GDROConfig, got GRPOConfig"):
        GDROTrainer(
            tiny.model_folder(), tiny.short_reward, GRPOConfig(**tiny.arguments(tmp_path)), tiny.prompts()
        )


def test_a_failure_inside_generation_leaves_the_number_of_generations(tmp_path):
    def failing(completions, **kwargs):
        raise RuntimeError("grader is down")

    trainer = tiny.make(tmp_path, failing, **VARIABLE)
    with pytest.raises(RuntimeError, match="grader is down"):
        trainer.train()
    assert trainer.num_generations == 4


def test_settings_can_be_recorded_as_json(tmp_path):
    trainer = tiny.make(tmp_path)
    settings = trainer._settings()
    assert json.loads(json.dumps(settings)) == settings
