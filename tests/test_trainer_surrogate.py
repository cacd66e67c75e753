"""The surrogate signal: the loss (6) of each row, from the log-probabilities of the pass itself."""

import numpy as np
import pytest
import tiny_model as tiny
import torch

from gdro.advantages import surrogate_loss, total_reward
from gdro.cycle import RAW, SLOT

ROLLOUTS, WEIGHTS = [2, 3, 7], [0.5, 2.0, 3.0]
SURROGATE = {
    "signal": "surrogate",
    "num_generations": 4,
    "loss_type": "grpo",
    "epsilon_high": 0.28,
    "learning_rate": 0.05,
}
CYCLES = [
    {"per_device_train_batch_size": 4, "steps_per_generation": 3},
    {"per_device_train_batch_size": 6, "steps_per_generation": 2, "num_iterations": 2, "beta": 0.5},
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "beta": 0.5},
]


def direct_loss(trainer, inputs):
    """(6) row by row in Python, from a forward pass of its own under the parameters as they are."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    width = inputs["completion_ids"].shape[1]

    def log_probabilities(model):
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0][:, -width:]

    now = log_probabilities(trainer.model)
    old = inputs.get("old_per_token_logps", now)
    reference = log_probabilities(trainer.ref_model) if trainer.beta else None
    losses = []
    for row in range(len(ids)):
        terms = []
        for token in range(int(inputs["completion_mask"][row].sum())):
            ratio = float(torch.exp(now[row, token] - old[row, token]))
            advantage = float(inputs[RAW][row])
            term = -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
            if reference is not None:
                gap = float(reference[row, token] - now[row, token])
                term += trainer.beta * ratio * (np.exp(gap) - gap - 1)
            terms.append(term)
        losses.append(np.mean(terms))
    return np.array(losses)


@pytest.mark.parametrize("cycle", CYCLES)
def test_the_signal_of_each_row_is_the_mean_of_a_direct_computation_over_its_passes(tmp_path, cycle):
    limit = 0.8
    trainer = tiny.make(
        tmp_path, tiny.real_reward, tiny.prompts(6), **SURROGATE, **cycle, advantage_clip=limit, max_steps=8
    )
    plans = tiny.script(trainer, ROLLOUTS, WEIGHTS)
    compute, observe = trainer._compute_loss, trainer.controller.observe
    passes, observed = {}, []

    def watched(model, inputs):
        for slot, loss in zip(inputs[SLOT].tolist(), direct_loss(trainer, inputs), strict=True):
            passes.setdefault(slot, []).append(loss)
        rewards = total_reward(trainer._scores, trainer.reward_weights)
        groups = torch.split(rewards, ROLLOUTS)
        raw = torch.cat([((g - g.mean()) / (g.std() + 1e-4)).clamp(-limit, limit) for g in groups])
        torch.testing.assert_close(inputs[RAW], raw[inputs[SLOT]])
        return compute(model, inputs)

    def compared(plan, index, rewards, losses, correct):
        expected = [np.mean(passes[slot]) for slot in range(12)]
        assert {len(values) for values in passes.values()} == {trainer.num_iterations}
        np.testing.assert_allclose(losses, expected, atol=1e-5)
        observed.append(losses)
        passes.clear()
        observe(plan, index, rewards, losses, correct)

    trainer._compute_loss, trainer.controller.observe = watched, compared
    trainer.train()
    assert len(observed) >= 2
    assert len(plans) >= len(observed)
    assert np.ptp(observed[0]) > 0.1


def test_the_mean_signal_is_the_loss_that_grpo_minimises(tmp_path):
    """With weights 1, n_bar rollouts and no clip the mean over the rows is the trainer's own loss."""
    cycle = {"per_device_train_batch_size": 4, "steps_per_generation": 3, "beta": 0.5}
    trainer = tiny.make(tmp_path, tiny.real_reward, tiny.prompts(6), **SURROGATE, **cycle, max_steps=6)
    seen = []
    observe = trainer.controller.observe
    trainer.controller.observe = lambda *args: (seen.append(args[3].mean()), observe(*args))
    trainer.train()
    logged = [entry["loss"] for entry in tiny.losses(trainer)]
    np.testing.assert_allclose(seen, np.reshape(logged, (-1, 3)).mean(axis=1), atol=1e-6)


def test_a_masked_response_has_no_loss():
    logps = torch.tensor([[-1.0, -2.0], [-1.0, -2.0]])
    mask = torch.tensor([[1, 1], [0, 0]])
    found = surrogate_loss(
        logps,
        logps,
        None,
        torch.tensor([1.5, 1.5]),
        mask,
        low=0.2,
        high=0.2,
        beta=0.0,
        sequence_level=False,
        corrected_kl=True,
    )
    assert found.tolist() == [-1.5, 0.0]


def test_the_sequence_ratio_is_the_geometric_mean_of_the_tokens():
    old = torch.tensor([[-1.0, -2.0, -9.0]])
    logps = old + torch.tensor([[0.1, 0.3, 5.0]])
    mask = torch.tensor([[1, 1, 0]])
    found = surrogate_loss(
        logps,
        old,
        None,
        torch.tensor([-2.0]),
        mask,
        low=0.5,
        high=0.5,
        beta=0.0,
        sequence_level=True,
        corrected_kl=False,
    )
    torch.testing.assert_close(found, torch.tensor([2.0 * np.exp(0.2)], dtype=torch.float32))
