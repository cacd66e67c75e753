"""The engines behind evaluation: one interface, decodings by name; vLLM's is a stand-in here (see
tests/with_vllm)."""

import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tiny_model import CHARACTERS, model_folder, prompts, short_reward

from gdro import engines
from gdro.evaluation import evaluate

PROMPTS = 8


@pytest.fixture
def data():
    labels = {"suite": ["a"] * PROMPTS, "prompt_id": list(map(str, range(PROMPTS))), "level": [1] * PROMPTS}
    return prompts(PROMPTS, **labels)


def run(model, tokenizer, data, samples=4, **changes):
    settings = {"max_new_tokens": 6, "seed": 3, "batch_size": 8} | changes
    return evaluate(model, tokenizer, data, short_reward, samples, **settings)


def completions_of(loaded, data, *, model=None, samples=4, **changes):
    """Every prompt's completions as the reward sees them."""
    texts = {}

    def reward(prompts, completions, **columns):
        for prompt, text in zip(prompts, completions, strict=True):
            key = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            texts.setdefault(key, []).append(text)
        return [0.0] * len(completions)

    own, tokenizer = loaded
    settings = {"max_new_tokens": 6, "seed": 3, "batch_size": 8} | changes
    evaluate(own if model is None else model, tokenizer, data, reward, samples, **settings)
    return texts


def test_an_engine_and_its_model_give_the_same(loaded, data):
    with engines.load("transformers", model_folder(), dtype="float32") as engine:
        assert completions_of(loaded, data, model=engine) == completions_of(loaded, data)
        assert run(engine, loaded[1], data).equals(run(*loaded, data))


def test_temperature_zero_takes_the_likeliest_token(loaded, data):
    model, tokenizer = loaded
    texts = completions_of(loaded, data, samples=1, temperature=0)
    for prompt in data["prompt"]:
        ids = tokenizer(prompt)["input_ids"]
        new = []
        while len(new) < 6 and tokenizer.eos_token_id not in new:  # a token at a time, without a cache
            with torch.no_grad():
                new.append(int(model(torch.tensor([ids + new])).logits[0, -1].argmax()))
        assert texts[prompt] == [tokenizer.decode(new, skip_special_tokens=True)]


def test_the_paper_decoding_keeps_to_the_likeliest_tokens(loaded, data):
    model, tokenizer = loaded
    texts = completions_of(loaded, data, samples=64, max_new_tokens=1, **engines.decoding("paper"))
    for prompt in data["prompt"]:
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -1]
        chances = torch.softmax(logits / 0.6, 0)
        best = torch.argsort(chances, descending=True)[:20]
        before = torch.cumsum(chances[best] / chances[best].sum(), 0) - chances[best] / chances[best].sum()
        nucleus = best[before < 0.8].tolist()
        assert len(nucleus) < len(CHARACTERS)
        assert set(texts[prompt]) <= {tokenizer.decode([t], skip_special_tokens=True) for t in nucleus}


def test_a_conversation_is_answered_by_a_message(loaded, data, monkeypatch):
    _, tokenizer = loaded
    monkeypatch.setattr(tokenizer, "chat_template", "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    talks = data.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    plain, asked = completions_of(loaded, data), completions_of(loaded, talks)
    assert asked == {
        prompt: [[{"role": "assistant", "content": text}] for text in texts]
        for prompt, texts in plain.items()
    }


def test_an_end_that_only_the_model_names_ends_a_completion_too(loaded, data, monkeypatch):
    model, tokenizer = loaded
    free = completions_of(loaded, data, samples=8)
    end = "2"
    assert any(end in text[:-1] for texts in free.values() for text in texts)
    config = model.generation_config
    monkeypatch.setattr(config, "eos_token_id", [config.eos_token_id, tokenizer.convert_tokens_to_ids(end)])
    for texts in completions_of(loaded, data, samples=8).values():
        assert all(end not in text[:-1] for text in texts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "top_p must be at most 1"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"temperature": 0.0}, "temperature 0 gives one completion of a prompt 4 times"),
    ],
)
def test_decodings_out_of_range_are_refused(loaded, data, changes, message):
    with pytest.raises(ValueError, match=message):
        run(*loaded, data, **changes)


def test_unknown_names_list_the_known(tmp_path):
    with pytest.raises(ValueError, match="unknown engine 'vlm'; the known ones are 'transformers', 'vllm'"):
        engines.load("vlm", tmp_path)
    with pytest.raises(ValueError, match="unknown decoding 'papers'; the known ones are 'study', 'paper'"):
        engines.decoding("papers")


def test_without_vllm_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"pip install 'gdro\[vllm\]', or take the engine 'transformers'"):
        engines.load("vllm", tmp_path)


class RecordedLLM:
    """Completes every prompt by its last token, its sample's number and an end; keeps what it was asked."""

    def __init__(self, **options):
        self.options, self.asked, self.ended = options, [], 0
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self._end))

    def _end(self):
        self.ended += 1

    def generate(self, prompts, params, use_tqdm):
        self.asked.append((prompts, params))
        return [
            SimpleNamespace(
                outputs=[
                    SimpleNamespace(token_ids=(prompt["prompt_token_ids"][-1], 3 + number, 1))
                    for number in range(own.n)
                ]
            )
            for prompt, own in zip(prompts, params, strict=True)
        ]


@pytest.fixture
def vllm_stand_in(monkeypatch):
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = RecordedLLM, SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", module)


def test_vllm_is_asked_for_what_evaluation_wants(loaded, data, vllm_stand_in):
    with engines.load("vllm", "folder", dtype="float32") as engine:
        assert engine.llm.options == {"model": "folder", "dtype": "float32"}
        texts = completions_of(loaded, data, model=engine, batch_size=None, **engines.decoding("paper"))
        assert not engine.llm.ended
    assert engine.llm.ended == 1
    assert texts == {prompt: [f"={CHARACTERS[at]}" for at in range(4)] for prompt in data["prompt"]}
    ((asked, params),) = engine.llm.asked  # one batch: the engine makes its own
    ids = loaded[1](list(data["prompt"]))["input_ids"]
    assert sorted(one["prompt_token_ids"] for one in asked) == sorted(ids)
    for own in params:
        assert (own.n, own.max_tokens, own.stop_token_ids) == (4, 6, [1])
        assert (own.temperature, own.top_p, own.top_k) == (0.6, 0.8, 20)
    seeds = sorted(own.seed for own in params)
    assert seeds[0] >= 0
    assert seeds[-1] < 2**63 - 4
    assert min(b - a for a, b in pairwise(seeds)) > 4  # vLLM numbers a prompt's samples upwards from its seed


def test_vllm_seeds_follow_the_seed(loaded, data, vllm_stand_in):
    def seeds(**changes):
        engine = engines.load("vllm", "folder")
        found = run(engine, loaded[1], data, **{"batch_size": None} | changes)
        assert (found["tokens"] == 12).all()
        return [own.seed for _, params in engine.llm.asked for own in params]

    assert seeds(seed=3) == seeds(seed=3)
    assert not set(seeds(seed=3)) & set(seeds(seed=4))
    assert len(set(seeds(seed=3, batch_size=8))) == len(data)  # no batch draws another's numbers
