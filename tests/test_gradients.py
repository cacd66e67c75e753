"""Per-prompt gradients against the trainer's own step and autograd, their variance against closed forms."""

import numpy as np
import pandas as pd
import pytest
import tiny_model as tiny
import torch
from transformers import AutoModelForCausalLM

from gdro import gradients, probe, theory
from gdro.gradients import Pool

PROMPT, COMPLETIONS = [4, 13, 5], [[6, 7, 1], [8, 1], [9, 9, 9, 10]]


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(tiny.model_folder(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def pool():
    return Pool(PROMPT, COMPLETIONS, np.array([5, 2, 3]), np.array([1.0, 0.0, 0.0]))


@pytest.fixture(scope="module")
def psi(model, pool):
    return gradients.rollout_gradients(model, pool.prompt, pool.completions).double()


def test_gradients_of_rollouts_are_those_of_autograd_one_by_one(model, psi):
    for row, completion in enumerate(COMPLETIONS):
        ids = torch.tensor([PROMPT + completion])
        logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        chosen = logps[torch.arange(len(ids[0]) - 1), ids[0, 1:]][len(PROMPT) - 1 :]
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(chosen.mean(), model.parameters())])
        torch.testing.assert_close(psi[row].float(), expected, atol=1e-5, rtol=1e-4)


def test_a_groups_gradient_is_the_weighted_sum_of_its_rollouts(model, psi):
    rows, values = [0, 0, 2, 1], np.array([0.7, -0.2, -1.3, 0.4])
    found = gradients.loss_gradient(model, [PROMPT] * 4, [COMPLETIONS[r] for r in rows], values)
    expected = -(torch.tensor(values) @ psi[rows]) / 4
    torch.testing.assert_close(found, expected.float(), atol=1e-5, rtol=1e-4)


def test_it_is_the_gradient_that_the_trainer_steps_along(tmp_path):
    """One step of plain gradient descent at rate 1, on the rows that were generated."""
    changes = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    trainer = tiny.make(tmp_path, tiny.real_reward, loss_type="grpo", max_steps=1, **changes)
    before, kept = tiny.parameters(trainer), []
    compute = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (kept.append(inputs), compute(model, inputs))[1]
    trainer.train()
    (inputs,) = kept
    prompts, completions = (
        [
            ids[mask.bool()].tolist()
            for ids, mask in zip(inputs[f"{part}_ids"], inputs[f"{part}_mask"], strict=True)
        ]
        for part in ("prompt", "completion")
    )
    after = tiny.parameters(trainer)
    start = AutoModelForCausalLM.from_pretrained(tiny.model_folder(), dtype=torch.float32)
    found = gradients.loss_gradient(start, prompts, completions, inputs["advantages"].numpy())
    stepped = torch.cat([(before[name] - after[name]).reshape(-1) for name in before])
    assert stepped.abs().max() > 0.01
    torch.testing.assert_close(found, stepped, atol=1e-4, rtol=1e-3)


def test_a_frozen_parameter_has_no_gradient(pool):
    model = AutoModelForCausalLM.from_pretrained(tiny.model_folder(), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("0.mlp.up_proj.weight")
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert gradients.rollout_gradients(model, pool.prompt, pool.completions).shape == (3, size)
    assert gradients.loss_gradient(model, [PROMPT], COMPLETIONS[:1], [1.0]).shape == (size,)


def test_with_a_known_baseline_the_variance_is_exactly_v_over_n(pool, psi):
    """Independent terms: Var g = (E |A psi|^2 - |E A psi|^2) / n, here summed over the pool."""
    gram = (psi @ psi.T).numpy()
    chances, values = pool.counts / 10, pool.rewards - 0.5
    second = chances @ (values**2 * np.diag(gram))
    first = (chances * values) @ gram @ (chances * values)
    for n in (1, 4, 16):
        rng = np.random.default_rng(n)
        settings = {"advantage": "baseline", "groups": 20_000, "rng": rng}
        mean, variance = gradients.variance_over_groups(pool, gram, n, **settings)
        assert n * variance == pytest.approx(second - first, rel=0.05)
        assert mean == pytest.approx(first, rel=0.1)


@pytest.mark.parametrize("kind", theory.ADVANTAGES)
def test_the_one_parameter_policy_has_the_moments_of_theory(kind):
    """Two rollouts, right with gradient 1 - p and wrong with -p: the policy of `theory.gradient_moments`."""
    pool = Pool([0], [[1], [2]], np.array([3, 7]), np.array([1.0, 0.0]))
    psi = np.array([[0.7], [-0.3]])
    for n in (2, 5):
        rng = np.random.default_rng(n)
        settings = {"advantage": kind, "groups": 40_000, "rng": rng}
        squared, variance = gradients.variance_over_groups(pool, psi @ psi.T, n, **settings)
        mean, expected = theory.gradient_moments(0.3, n, kind)
        assert squared == pytest.approx(mean**2, rel=0.03)
        assert variance == pytest.approx(expected, rel=0.05)


def test_a_group_without_variance_has_no_gradient():
    rewards = np.array([[1.0, 1.0], [0.0, 1.0]])
    assert gradients.group_advantages(rewards, "group", 0.5).round(3).tolist() == [[0, 0], [-1, 1]]
    assert gradients.group_advantages(rewards, "centred", 0.5).tolist() == [[0, 0], [-0.5, 0.5]]
    assert gradients.group_advantages(rewards, "baseline", 0.5).tolist() == [[0.5, 0.5], [-0.5, 0.5]]


def test_a_pool_counts_equal_rollouts_and_measures_them_all(model):
    tokenizer = tiny.make_tokenizer()
    row = {"prompt": "1+2=", "answer": "3"}
    settings = {"max_new_tokens": 2, "seed": 4}
    state = torch.get_rng_state()
    pool = gradients.sample_pool(model, tokenizer, row, tiny.short_reward, 60, **settings)
    assert torch.equal(torch.get_rng_state(), state)
    assert pool.counts.sum() == 60
    assert len({tuple(c) for c in pool.completions}) == pool.counts.size < 60
    assert all(1 not in c[:-1] for c in pool.completions)  # nothing after the end of text
    texts = tokenizer.batch_decode(pool.completions, skip_special_tokens=True)
    assert pool.rewards.tolist() == tiny.short_reward(texts)
    frame = gradients.measure_variance(model, [pool], [2, 4], groups=20)
    assert len(frame) == 6
    assert (frame["pass_rate"] == pool.counts @ pool.rewards / 60).all()
    assert (frame["variance"] >= 0).all()


# the signal watched in a short training


def test_rows_of_the_surrogate_are_zero_at_ratio_one_and_not_after_a_step(tmp_path):
    settings = tiny.arguments(tmp_path, steps_per_generation=1, max_steps=2, beta=0.0, loss_type="grpo")
    bins = [5, 5, 2, 2, 5, 2, 2, 5]
    call = (tiny.model_folder(), tiny.prompts(), bins, tiny.real_reward, settings)
    with pytest.raises(ValueError, match="identically 0"):
        probe.surrogate_rows(*call)
    rows = probe.surrogate_rows(*call, minibatches=2)
    assert sorted(rows["bin"].unique()) == [2, 5]
    assert rows["cycle"].tolist() == [0, 0, 1, 1]
    assert (rows.groupby("cycle")["prompts"].sum() == 2).all()
    seen = rows[rows["prompts"] > 0]
    assert (seen["loss_mean"].abs() > 1e-6).any()
    with pytest.raises(ValueError, match="8 rows a cycle cannot be cut into 3"):
        probe.surrogate_rows(*call, minibatches=3)


def test_the_mean_by_bin_is_that_of_all_prompts_together():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=n) for n in (4, 3, 5)]
    rows = pd.DataFrame(
        {
            "bin": [0, 1, 0],
            "prompts": [4, 3, 5],
            "pass_rate": [0.25, 0.5, 0.5],
            "loss_mean": [v.mean() for v in values],
            "loss_std": [v.std() for v in values],
        }
    )
    table = probe.mean_by_bin(rows)
    together = np.concatenate([values[0], values[2]])
    assert table.loc[0, "mean"] == pytest.approx(together.mean())
    assert table.loc[0, "error"] == pytest.approx(together.std() / 3)
    assert table.loc[0, "pass_rate"] == pytest.approx((4 * 0.25 + 5 * 0.5) / 9)
    assert table["prompts"].tolist() == [9, 3]
