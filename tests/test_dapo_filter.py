"""The filtered baseline: every group varies where it can, every rollout is counted, the stream is what it
says."""

import numpy as np
import pytest
import tiny_model as tiny
import torch
from datasets import IterableDataset
from trl import GRPOTrainer

from gdro.dapo_filter import FilteredGRPOTrainer

HARD = set(tiny.TEXTS[:6])


def mostly_flat(prompts, completions, **kwargs):
    """Rewards vary for two prompts of eight only."""
    return [0.0 if p in HARD else float(at % 2) for at, p in enumerate(prompts)]


def filtered(folder, reward=mostly_flat, count=8, **changes):
    trainer = tiny.make(
        folder, reward, tiny.prompts(count), FilteredGRPOTrainer, num_generations=4, **changes
    )
    return trainer, tiny.script(trainer)


def test_without_a_flat_group_it_is_grpo(tmp_path):
    trainer, _ = filtered(tmp_path, tiny.real_reward, beta=0.05, steps_per_generation=2)
    trainer.train()
    theirs = tiny.train(tmp_path, tiny.real_reward, trainer=GRPOTrainer, beta=0.05, steps_per_generation=2)
    tiny.assert_same_parameters(tiny.parameters(trainer), tiny.parameters(theirs))
    assert trainer.fresh_drawn == 0
    assert trainer.total_rollouts == 16 * 2


def test_flat_groups_are_replaced_by_fresh_prompts_and_every_rollout_counts(tmp_path):
    calls = []

    def counted(prompts, completions, **kwargs):
        calls.append((prompts, completions))
        return mostly_flat(prompts, completions)

    trainer, plans = filtered(
        tmp_path, counted, max_rounds=50, max_steps=1, per_device_train_batch_size=16, beta=0.05
    )
    trainer.train()
    (batch,) = trainer._buffered_inputs
    decoded = trainer.processing_class.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
    assert not HARD & set(decoded)
    generated = sum(len(prompts) for prompts, _ in calls)
    assert trainer.total_rollouts == generated > 16
    assert plans[0].rollouts.sum() == generated
    assert trainer.fresh_drawn * 4 == generated - 16
    lengths = [len(trainer.processing_class(text)["input_ids"]) for _, texts in calls for text in texts]
    assert trainer.total_completion_tokens >= sum(lengths)
    assert trainer.state.log_history[0]["gdro/filter_kept_flat"] == 0
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == 0
    visits = trainer.controller.classifier.visits(np.arange(8))
    assert visits.sum() == generated / 4
    assert np.array_equal(visits, np.bincount(plans[0].prompt_ids, minlength=8))


def test_kept_rows_are_whole_and_their_advantages_belong_to_their_completions(tmp_path):
    scored = {}

    def remembered(prompts, completions, **kwargs):
        rewards = [
            0.0 if p in HARD else sum(map(ord, c)) % 5 for p, c in zip(prompts, completions, strict=True)
        ]
        scored.update(zip(zip(prompts, completions, strict=True), rewards, strict=True))
        return rewards

    trainer, _ = filtered(tmp_path, remembered, max_rounds=50, max_steps=1, per_device_train_batch_size=16)
    trainer.train()
    (batch,) = trainer._buffered_inputs
    order = torch.argsort(batch["gdro_slot"])
    decode = trainer.processing_class.batch_decode
    prompts = decode(batch["prompt_ids"][order], skip_special_tokens=True)
    completions = decode(batch["completion_ids"][order], skip_special_tokens=True)
    rewards = torch.tensor([float(scored[pair]) for pair in zip(prompts, completions, strict=True)]).view(
        4, 4
    )
    expected = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(batch["advantages"][order].view(4, 4), expected)
    tokens, mask = batch["completion_ids"], batch["completion_mask"].bool()
    assert (tokens[~mask] == 0).all()
    assert (mask[:, :-1] >= mask[:, 1:]).all()
    last = tokens.gather(1, mask.sum(1, keepdim=True) - 1)[:, 0]
    assert ((last == 1) | (mask.sum(1) == 6)).all()
    assert batch["num_items_in_batch"] == batch["completion_mask"].sum()


def test_rounds_are_bounded_and_what_stayed_flat_is_logged(tmp_path):
    trainer, _ = filtered(
        tmp_path, lambda completions, **kwargs: [0.0] * len(completions), max_rounds=2, max_steps=1
    )
    before = tiny.parameters(trainer)
    trainer.train()
    entry = trainer.state.log_history[0]
    assert (entry["gdro/filter_rounds"], entry["gdro/filter_kept_flat"]) == (2, 2)
    assert trainer.total_rollouts == 8 * 3
    tiny.assert_same_parameters(before, tiny.parameters(trainer))


def test_the_stream_takes_every_prompt_once_before_it_takes_one_again(tmp_path):
    trainer, _ = filtered(tmp_path)
    drawn = np.concatenate([trainer._fresh(count, ["prompt"])[0] for count in (3, 1, 6, 5, 1)])
    assert sorted(drawn[:8]) == sorted(drawn[8:]) == list(range(8))
    assert drawn[:8].tolist() != drawn[8:].tolist()
    again, _ = filtered(tmp_path)
    again.fresh_drawn = 4
    assert again._fresh(6, ["prompt"])[0].tolist() == drawn[4:10].tolist()


def test_it_stops_at_the_end_of_the_cycle_that_spends_the_budget(tmp_path):
    changes = {"steps_per_generation": 2, "per_device_train_batch_size": 4, "max_steps": 50}
    trainer, plans = filtered(tmp_path, tiny.real_reward, rollout_budget=20, **changes)
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.total_rollouts == 24
    assert trainer.controller.cycle == len(plans) == 3


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"prompt_gdro": True}, "turn prompt_gdro and rollout_gdro off"),
        ({"max_rounds": -1}, "max_rounds=-1 must be >= 0"),
        ({"rollout_budget": 0}, "rollout_budget=0 >= 1"),
    ],
)
def test_what_is_refused(tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        filtered(tmp_path, **changes)


def test_a_stream_of_prompts_is_refused_before_training(tmp_path):
    stream = IterableDataset.from_generator(lambda: iter({"prompt": text} for text in tiny.TEXTS))
    with pytest.raises(ValueError, match=r"map-style.*got IterableDataset\. Load it whole"):
        tiny.make(tmp_path, mostly_flat, stream, FilteredGRPOTrainer)
