"""Evaluation: right counts, deterministic by seed, and it disturbs nothing."""

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_model import prompts

from gdro.evaluation import COLUMNS, evaluate

PROMPTS = 8


@pytest.fixture
def data():
    names = {
        "suite": ["a", "b"] * 4,
        "prompt_id": [f"p{i}" for i in range(PROMPTS)],
        "level": list(range(PROMPTS)),
    }
    return prompts(PROMPTS, **names)


def digits(completions, **kwargs):
    return [float(any(c.isdigit() for c in text[:2])) for text in completions]


def run(loaded, data, reward=digits, samples=4, **changes):
    return evaluate(
        *loaded, data, reward, samples, **{"max_new_tokens": 6, "seed": 3, "batch_size": 8} | changes
    )


def test_a_row_a_prompt_in_the_order_of_the_data(loaded, data):
    found = run(loaded, data)
    assert tuple(found.columns) == COLUMNS
    for name in ("suite", "prompt_id", "level"):
        assert found[name].tolist() == data[name]
    assert (found["k"] == 4).all()
    assert found["correct"].between(0, 4).all()
    assert 0 < found["correct"].sum() < 4 * PROMPTS  # a model that is right now and then
    assert found["tokens"].between(4, 24).all()


def test_the_reward_sees_every_sample_with_its_prompt_and_columns(loaded, data):
    seen = []

    def reward(completions, prompts, answer, suite, **kwargs):
        seen.extend(zip(completions, prompts, answer, suite, strict=True))
        return [float(len(text) % 2) for text in completions]

    found = run(loaded, data, reward)
    assert len(seen) == 4 * PROMPTS
    by_prompt = pd.DataFrame(seen, columns=["text", "prompt", "answer", "suite"])
    for row, prompt, answer in zip(found.itertuples(), data["prompt"], data["answer"], strict=True):
        own = by_prompt[by_prompt["prompt"] == prompt]
        assert set(own["answer"]) == {answer}
        assert set(own["suite"]) == {row.suite}
        assert row.correct == sum(len(text) % 2 for text in own["text"])


def test_the_same_seed_gives_the_same_samples_and_another_seed_others(loaded, data):
    texts = {}

    def remember(name):
        def reward(completions, **kwargs):
            texts.setdefault(name, []).extend(completions)
            return [0.0] * len(completions)

        return reward

    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        run(loaded, data, remember(name), seed=seed)
        torch.randn(7)  # what others draw in between must not matter
    assert texts["first"] == texts["again"]
    assert texts["first"] != texts["other"]


def test_samples_of_one_prompt_differ(loaded, data):
    texts = []

    def reward(completions, **kwargs):
        texts.extend(completions)
        return [0.0] * len(completions)

    run(loaded, data, reward, samples=8)
    assert len(set(texts[:8])) > 1


def test_the_global_random_state_and_the_mode_stay(loaded, data):
    model, _ = loaded
    model.train()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    run(loaded, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    model.eval()


def test_near_greedy_sampling_gives_the_greedy_completion(loaded, data):
    model, tokenizer = loaded
    texts = {}

    def reward(completions, prompts, **kwargs):
        for prompt, text in zip(prompts, completions, strict=True):
            texts.setdefault(prompt, set()).add(text)
        return [0.0] * len(completions)

    run(loaded, data, reward, samples=2, temperature=1e-4)
    for prompt in data["prompt"]:
        ids = tokenizer(prompt, return_tensors="pt")
        ids.pop("token_type_ids", None)
        alone = model.generate(**ids, do_sample=False, max_new_tokens=6)[0, ids["input_ids"].shape[1] :]
        assert texts[prompt] == {tokenizer.decode(alone, skip_special_tokens=True)}


def test_tokens_count_up_to_the_end_of_text(loaded, data):
    lengths = {}

    def reward(completions, prompts, **kwargs):
        for prompt, text in zip(prompts, completions, strict=True):
            lengths.setdefault(prompt, []).append(min(len(text) + 1, 6))  # a character a token, and the end
        return [0.0] * len(completions)

    found = run(loaded, data, reward)
    shortest = np.array([sum(lengths[p]) for p in data["prompt"]])
    assert (found["tokens"] >= shortest - 4 * PROMPTS).all()  # special tokens are not text
    assert (found["tokens"] <= 24).all()
    assert found["tokens"].sum() < 24 * PROMPTS  # some ended before the limit


def test_progress_ends_at_the_total(loaded, data):
    calls = []
    run(loaded, data, progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == [2, 4, 6, 8]
    assert {total for _, total in calls} == {PROMPTS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "num_samples"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
        ({"reward": lambda completions, **kwargs: [float("nan")] * len(completions)}, "nan.*finite"),
        ({"reward": lambda completions, **kwargs: [None] * len(completions)}, "gave None for 8"),
        ({"reward": lambda completions, **kwargs: [1.0]}, "1 rewards for 8"),
        ({"reward": "math"}, "the reward function must be callable, got 'math'"),
        (
            {"reward": lambda completions, gold, **kwargs: []},
            r"takes gold, and the data set has answer, .*suite",
        ),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"success_threshold": float("nan")}, "success_threshold must be finite"),
        ({"success_threshold": "a"}, "success_threshold must be a number, got 'a'"),
    ],
)
def test_bad_arguments_are_refused(loaded, data, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run(loaded, data, **changes)


def test_data_without_its_columns_is_refused(loaded, data):
    with pytest.raises(ValueError, match=r"lacks the columns suite.*tasks\.load"):
        run(loaded, data.remove_columns("suite"))
    with pytest.raises(ValueError, match="is empty"):
        run(loaded, data.select([]))
    for other in ([dict(row) for row in data], {"test": data}, "test", data.to_iterable_dataset()):
        with pytest.raises(TypeError, match=r"must be a datasets\.Dataset, got"):
            run(loaded, other)
    for texts in (["a", None] * 4, [3] * 8):
        odd = data.remove_columns("prompt").add_column("prompt", texts)
        with pytest.raises(TypeError, match="the prompts to evaluate on are of"):
            run(loaded, odd)
