"""Rollouts as planned, rows that stay with their prompts, advantages by segment, gradients by bin."""

import numpy as np
import pytest
import tiny_model as tiny
import torch
from transformers import AutoModelForCausalLM

from gdro.advantages import total_reward
from gdro.cycle import SLOT

ROLLOUTS = [2, 3, 7]  # three prompts, twelve rows, n_bar = 4
TWELVE = {"per_device_train_batch_size": 12, "num_generations": 4}


class Recording:
    """A reward function that keeps the prompts, completions and rewards of every call."""

    __name__ = "recording"

    def __init__(self, reward=tiny.real_reward):
        self.reward, self.calls = reward, []

    def __call__(self, prompts, completions, **kwargs):
        rewards = self.reward(prompts=prompts, completions=completions, **kwargs)
        self.calls.append((list(prompts), list(completions), list(rewards), kwargs))
        return rewards


def planned(tmp_path, reward, rollouts=ROLLOUTS, weights=None, **changes):
    trainer = tiny.make(tmp_path, reward, tiny.prompts(6), **(TWELVE | {"advantage_clip": 1e6} | changes))
    plans = tiny.script(trainer, rollouts, weights)
    trainer.train()
    return trainer, plans


def texts(trainer, token_ids):
    return trainer.processing_class.batch_decode(token_ids, skip_special_tokens=True)


def test_each_prompt_gets_the_rollouts_planned_and_the_reward_function_sees_its_columns(tmp_path):
    reward = Recording()
    trainer, plans = planned(tmp_path, reward)
    assert len(plans) == len(reward.calls) == 4
    for plan, (prompts, completions, _, columns) in zip(plans, reward.calls, strict=True):
        expected = [trainer.train_dataset[int(row)] for row in np.repeat(plan.prompt_ids, plan.rollouts)]
        assert prompts == [example["prompt"] for example in expected]
        assert columns["answer"] == [example["answer"] for example in expected]
        assert "gdro_row" not in columns
        assert len(completions) == 12
    assert trainer.num_generations == 4
    assert trainer.total_rollouts == 48


@pytest.mark.parametrize(
    "cycle",
    [
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3},
        {"per_device_train_batch_size": 4, "steps_per_generation": 3},
        {"per_device_train_batch_size": 6, "steps_per_generation": 2, "num_iterations": 2},
    ],
)
def test_rows_stay_with_their_prompts_through_shuffle_and_split(tmp_path, cycle):
    reward = Recording()
    trainer = tiny.make(
        tmp_path, reward, tiny.prompts(6), **(TWELVE | cycle | {"advantage_clip": 1e6}), max_steps=7
    )
    plans, seen = tiny.script(trainer, ROLLOUTS), []
    compute = trainer._compute_loss

    def watched(model, inputs):
        seen.append((len(plans) - 1, inputs))
        return compute(model, inputs)

    trainer._compute_loss = watched
    trainer.train()
    assert len(seen) >= 7
    for number, inputs in seen:
        prompts, completions, rewards, _ = reward.calls[number]
        slots = inputs[SLOT].tolist()
        assert texts(trainer, inputs["prompt_ids"]) == [prompts[slot] for slot in slots]
        assert texts(trainer, inputs["completion_ids"]) == [completions[slot] for slot in slots]
        sizes = torch.tensor(plans[number].rollouts)
        groups = torch.split(torch.tensor(rewards), sizes.tolist())
        expected = torch.cat([(g - g.mean()) / (g.std() + 1e-4) * 4 / len(g) for g in groups])
        torch.testing.assert_close(inputs["advantages"], expected[inputs[SLOT]])


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("weighting", ["per_prompt", "per_response"])
def test_advantages_of_every_group_sum_to_zero_and_follow_the_order_of_operations(tmp_path, scale, weighting):
    weights, limit = [0.5, 2.0, 3.0], 0.9
    changes = {"scale_rewards": scale, "rollout_weighting": weighting, "advantage_std": "population"}
    trainer = tiny.make(
        tmp_path, tiny.real_reward, tiny.prompts(6), **TWELVE, **changes, advantage_clip=limit, max_steps=1
    )
    tiny.script(trainer, ROLLOUTS, weights)
    trainer.train()
    scores = total_reward(trainer._scores, trainer.reward_weights)
    batch = trainer._buffered_inputs[0]
    given = torch.empty(12)
    given[batch[SLOT]] = batch["advantages"]
    rows = zip(torch.split(scores, ROLLOUTS), torch.split(given, ROLLOUTS), weights, strict=True)
    for rewards, final, weight in rows:
        raw = rewards - rewards.mean()
        if scale == "group":
            raw = raw / (rewards.std(unbiased=False) + 1e-4)
        assert abs(raw.sum()) < 1e-5
        factor = 4 / len(raw) if weighting == "per_prompt" else 1.0
        torch.testing.assert_close(final, raw.clamp(-limit, limit) * factor * weight)
    assert given.abs().max() > limit  # the clip came before the weight


def test_rows_of_a_step_and_rollouts_of_a_cycle_are_constant_under_rollout_gdro(tmp_path):
    reward = Recording(tiny.short_reward)
    trainer = tiny.make(
        tmp_path,
        reward,
        per_device_train_batch_size=16,
        max_steps=12,
        rollout_gdro=True,
        rollouts_max=8,
        num_bins=3,
        window=4,
        hysteresis=0.0,
        selection="sample",
    )
    plans = tiny.script(trainer)
    trainer.train()
    assert {len(prompts) for prompts, *_ in reward.calls} == {16}
    assert {int(plan.rollouts.sum()) for plan in plans} == {16}
    assert len({tuple(plan.rollouts) for plan in plans}) > 1
    assert trainer.total_rollouts == 16 * 12


def gradient(tmp_path, rollouts, weights, **changes):
    """The gradient of one step of plain SGD without clipping, with the trainer that took it."""
    settings = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 1.0, "lr_scheduler_type": "constant"}
    settings |= {"loss_type": "grpo", "max_steps": 1} | changes
    trainer, _ = planned(tmp_path, tiny.real_reward, rollouts, weights, **settings)
    before = AutoModelForCausalLM.from_pretrained(tiny.model_folder(), dtype=torch.float32)
    after = tiny.parameters(trainer)
    return {name: value.detach() - after[name] for name, value in before.named_parameters()}, trainer


def test_the_gradient_is_the_weighted_sum_of_the_bins_gradients(tmp_path):
    weights = [0.5, 2.0, 3.0]
    whole, _ = gradient(tmp_path, ROLLOUTS, weights)
    parts = [gradient(tmp_path, ROLLOUTS, np.eye(3)[at])[0] for at in range(3)]
    assert any(part["model.embed_tokens.weight"].abs().max() > 1e-3 for part in parts)
    for name, value in whole.items():
        expected = sum(weight * part[name] for weight, part in zip(weights, parts, strict=True))
        torch.testing.assert_close(value, expected, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_under_per_prompt_weighting_every_prompt_counts_the_same(tmp_path, accumulated):
    """Against an own computation: the mean over prompts of w_i times the mean over the prompt's own
    rollouts."""
    weights = torch.tensor([0.5, 2.0, 3.0])
    split = {"per_device_train_batch_size": 12 // accumulated, "gradient_accumulation_steps": accumulated}
    found, trainer = gradient(tmp_path, ROLLOUTS, weights.numpy(), **split)
    model = AutoModelForCausalLM.from_pretrained(tiny.model_folder(), dtype=torch.float32)
    rewards = total_reward(trainer._scores, trainer.reward_weights)
    raw = torch.cat([(g - g.mean()) / (g.std() + 1e-4) for g in torch.split(rewards, ROLLOUTS)])
    prompt_of = torch.repeat_interleave(torch.arange(3), torch.tensor(ROLLOUTS))
    objective = 0.0
    for batch in trainer._buffered_inputs:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        logps = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0][
            :, -batch["completion_ids"].shape[1] :
        ]
        tokens = batch["completion_mask"]
        means = (logps * tokens).sum(1) / tokens.sum(1)
        prompt = prompt_of[batch[SLOT]]
        share = weights[prompt] / torch.tensor(ROLLOUTS)[prompt] / 3
        objective = objective + (share * raw[batch[SLOT]] * means).sum()
    objective.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], -parameter.grad, atol=2e-6, rtol=1e-3)


def test_equal_texts_in_different_rows_are_different_prompts(tmp_path):
    dataset = tiny.prompts(3)
    dataset = tiny.Dataset.from_dict({"prompt": [dataset[0]["prompt"]] * 6, "answer": ["1"] * 6})
    trainer = tiny.make(tmp_path, tiny.real_reward, dataset, **TWELVE, max_steps=2, advantage_clip=1e6)
    plans = tiny.script(trainer, ROLLOUTS)
    trainer.train()
    assert sorted(np.concatenate([plan.prompt_ids for plan in plans])) == list(range(6))
    assert trainer.controller.classifier.visits(np.arange(6)).tolist() == [1] * 6


def test_rows_with_one_prompt_id_share_their_history(tmp_path):
    dataset = tiny.prompts(6, prompt_id=["a", "b", "a", "c", "b", "a"])
    trainer = tiny.train(tmp_path, tiny.short_reward, dataset, **TWELVE, max_steps=2)
    assert trainer.controller.classifier.visits([0, 1, 2]).tolist() == [3, 2, 1]


def test_bins_can_come_from_a_column(tmp_path):
    dataset = tiny.prompts(6, kind=list("yxyxzz"))
    trainer = tiny.make(
        tmp_path, tiny.short_reward, dataset, **TWELVE, max_steps=2, bin_column="kind", prompt_gdro=True
    )
    plans = tiny.script(trainer)
    trainer.train()
    label = np.array([1, 0, 1, 0, 2, 2])
    for plan in plans:
        assert plan.bins.tolist() == label[plan.prompt_ids].tolist()
    assert trainer.controller.prompt.num_bins == 3


def test_a_removed_column_does_not_lose_the_row(tmp_path):
    trainer = tiny.train(tmp_path, tiny.short_reward, **TWELVE, max_steps=1, remove_unused_columns=True)
    assert trainer.controller.cycle == 1
