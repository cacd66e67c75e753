"""Evaluation through vLLM's offline engine against transformers: the same tokens where they are decided, the
same success rates where they are drawn."""

import os

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: tests/with_vllm/run")

from gdro import engines, rewards, tasks, training
from gdro.evaluation import evaluate

LIMIT = 28  # new tokens, as the study allows
SAMPLES = 32
FALSE_ALARM = 1e-3  # of each comparison of success rates, over both of its statistics
DRAWS = 20_000


@pytest.fixture(scope="module")
def transformers_side():
    return training.load(tasks.model_path("tiny-s"))


@pytest.fixture(scope="module")
def engine():
    # in this process: what the test compares must not depend on how the engine's own process starts
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    with engines.load("vllm", tasks.model_path("tiny-s"), dtype="float32", enforce_eager=True) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def data():
    """Every seventh held-out prompt: all suites, right never, now and then, and always."""
    held_out = tasks.load("tiny", split="test")
    return held_out.select(range(0, len(held_out), 7))


def scores(model, tokenizer, data, samples, seed, **decoding):
    return evaluate(
        model, tokenizer, data, rewards.tiny_reward, samples, max_new_tokens=LIMIT, seed=seed, **decoding
    )


def chances_of_equality(left, right, k, rng):
    """Two p values of "both sides are right equally often, prompt by prompt".

    Given how often both sides together are right at a prompt, the right answers of one side are
    hypergeometric, whatever the prompt's rate. The first statistic sums the squared standardised differences
    (it sees a difference at any prompt), the second is the difference of the totals (it sees a shift).
    """
    together = left + right
    open_ones = (together > 0) & (together < 2 * k)
    left, together = left[open_ones], together[open_ones]
    variance = together * (2 * k - together) / (4 * (2 * k - 1))

    def statistics(counts):
        apart = counts - together / 2
        return (apart**2 / variance).sum(axis=-1), np.abs(apart.sum(axis=-1))

    null = statistics(rng.hypergeometric(together, 2 * k - together, k, size=(DRAWS, together.size)))
    return [
        (1 + np.count_nonzero(drawn >= seen)) / (1 + DRAWS)
        for drawn, seen in zip(null, statistics(left), strict=True)
    ]


def test_greedy_tokens_are_the_same(transformers_side, engine):
    model, tokenizer = transformers_side
    prompts = tokenizer(list(tasks.load("tiny", split="test")["prompt"]))["input_ids"]
    greedy = {"temperature": 0, "top_p": 1.0, "top_k": 0}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    expected = []
    for start in range(0, len(order), 512):
        batch = [prompts[i] for i in order[start : start + 512]]
        expected += engines.TransformersEngine(model).sample(tokenizer, batch, 1, LIMIT, greedy, 0)
    found = engine.sample(tokenizer, [prompts[i] for i in order], 1, LIMIT, greedy, 0)
    same = sum(a == b for a, b in zip(expected, found, strict=True))
    print(f"greedy: {same} of {len(order)} prompts get the same tokens")
    assert same == len(order)


def test_a_greedy_evaluation_is_the_same_row_by_row(transformers_side, engine, data):
    model, tokenizer = transformers_side
    through_vllm = scores(engine, tokenizer, data, 1, 0, temperature=0)
    assert through_vllm.equals(scores(model, tokenizer, data, 1, 0, temperature=0))
    assert 0 < through_vllm["correct"].mean() < 1


@pytest.mark.parametrize("name", list(engines.DECODINGS))
def test_sampled_success_rates_agree(transformers_side, engine, data, name):
    model, tokenizer = transformers_side
    decoding = engines.decoding(name)
    left = scores(engine, tokenizer, data, SAMPLES, 1, **decoding)["correct"].to_numpy()
    right = scores(model, tokenizer, data, SAMPLES, 2, **decoding)["correct"].to_numpy()
    chances = chances_of_equality(left, right, SAMPLES, np.random.default_rng(0))
    print(f"{name}: {left.mean() / SAMPLES:.4f} and {right.mean() / SAMPLES:.4f}, p {chances}")
    assert min(chances) > FALSE_ALARM / 2


def test_another_temperature_would_have_been_seen(transformers_side, engine, data):
    model, tokenizer = transformers_side
    left = scores(engine, tokenizer, data, SAMPLES, 1, temperature=1.5)["correct"].to_numpy()
    right = scores(model, tokenizer, data, SAMPLES, 2)["correct"].to_numpy()
    assert min(chances_of_equality(left, right, SAMPLES, np.random.default_rng(0))) < FALSE_ALARM / 2


def test_seeds_decide_and_samples_differ(transformers_side, engine, data):
    _, tokenizer = transformers_side
    prompts = tokenizer(list(data["prompt"][::25])[:8])["input_ids"]
    drawn = {
        name: engine.sample(tokenizer, prompts, 8, LIMIT, engines.decoding("study"), stream)
        for name, stream in (("first", 3), ("again", 3), ("other", 4))
    }
    assert drawn["first"] == drawn["again"]
    assert drawn["first"] != drawn["other"]
    distinct = [len({tuple(one) for one in drawn["first"][at : at + 8]}) for at in range(0, 64, 8)]
    assert max(distinct) > 1
