"""Prompts and models that leave nothing to learn from, or are no text: trained on, or refused by name."""

import numpy as np
import pytest
import tiny_model as tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro.dapo_filter import FilteredGRPOTrainer
from gdro.evaluation import evaluate

BOTH = {
    "prompt_gdro": True,
    "rollout_gdro": True,
    "rollouts_max": 6,
    "num_bins": 4,
    "hysteresis": 0.0,
    "window": 4,
}
FAULTS = pytest.mark.faults
SILENT = {
    "generation_kwargs": {
        "suppress_tokens": [token for token in range(len(tiny.CHARACTERS) + 3) if token != 1]
    }
}


def prompts(texts, **columns):
    return tiny.prompts(len(texts), **columns).remove_columns("prompt").add_column("prompt", texts)


def assert_trained(trainer, cycles, scored=True):
    """Every cycle was observed, spent its budget, and left finite numbers (of rewards only where any was)."""
    assert trainer.controller.cycle == cycles
    assert trainer.total_rollouts == 8 * cycles
    assert all(bool(value.isfinite().all()) for value in tiny.parameters(trainer).values())
    for entry in tiny.losses(trainer):
        numbers = {k: v for k, v in entry.items() if isinstance(v, float) and (scored or "reward" not in k)}
        assert np.isfinite(list(numbers.values())).all(), numbers


@pytest.mark.parametrize(
    "texts",
    [
        ["1+1=", "1+1=", "1+1=", "1+1="],
        ["1+<eos>1=", "<eos>", "2+<eos><eos>", "1="],
        pytest.param(["<pad>1=", "1<pad>=", "<unk>", "1="], marks=FAULTS),
        pytest.param(["\x00", "\u202e", "\U0001f600", "\n"], marks=FAULTS),
    ],
    ids=["equal", "end token", "other special tokens", "no letters"],
)
def test_strange_prompts_are_trained_on(tmp_path, texts):
    trainer = tiny.train(tmp_path, tiny.real_reward, prompts(texts), max_steps=2, **BOTH)
    assert_trained(trainer, 2)
    visits = trainer.controller.classifier.visits(np.arange(4))
    assert visits.sum() == 4  # two prompts a cycle, equal texts being different prompts


def enormous(prompt, size):
    """``prompt`` as a text, or as a conversation, of about ``size`` characters."""
    text = "1+" * (size // 2)
    return text if isinstance(prompt, str) else [{"role": "user", "content": text}]


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize("size", [64, 800, 100_000, pytest.param(1_000_000, marks=FAULTS)])
@pytest.mark.parametrize("kind", ["text", "conversation"])
def test_a_prompt_beyond_the_models_positions_is_refused_with_its_row(tmp_path, kind, size):
    """Of 64 positions, the least that leaves none for a completion, and far more."""
    short = "1=" if kind == "text" else [{"role": "user", "content": "1="}]
    words = tiny.make_tokenizer()
    words.chat_template = TEMPLATE
    data = prompts([short, enormous(short, size), short, short])
    with pytest.raises(ValueError, match=rf"row 1 has {size} tokens, .* positions for 64, .*shorten it"):
        tiny.make(tmp_path, dataset=data, processing_class=words)
    model = AutoModelForCausalLM.from_pretrained(tiny.model_folder())
    described = prompts(
        [short, enormous(short, size)], suite=["a"] * 2, prompt_id=["first", "second"], level=[1, 2]
    )
    with pytest.raises(ValueError, match=rf"the prompt second has {size} tokens, .* positions for 64"):
        evaluate(model, words, described, tiny.short_reward, 2, max_new_tokens=2)


def test_a_prompt_that_leaves_one_position_is_trained_on(tmp_path):
    """As is one of more bytes than there are positions, in fewer tokens."""
    texts = ["1" * 63, "<eos>" * 20, "2=", "3="]
    assert_trained(tiny.train(tmp_path, tiny.real_reward, prompts(texts), max_steps=2, **BOTH), 2)


@pytest.mark.parametrize("text", ["", None])
def test_a_prompt_without_text_is_refused_with_its_row(tmp_path, text):
    with pytest.raises(ValueError, match=r"row 2 has an empty prompt.*leave it out"):
        tiny.make(tmp_path, dataset=prompts(["1=", "2=", text, "3="]))


def test_a_conversation_without_a_message_is_refused(tmp_path):
    said = [{"role": "user", "content": "1="}]
    with pytest.raises(ValueError, match="row 1 has an empty prompt"):
        tiny.make(tmp_path, dataset=prompts([said, [], said, said]))


def test_a_prompt_without_tokens_is_refused_in_an_evaluation():
    model, words = (
        kind.from_pretrained(tiny.model_folder()) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    data = prompts(["1=", ""], suite=["a"] * 2, prompt_id=["first", "second"], level=[1, 2])
    with pytest.raises(ValueError, match=r"the prompt '' \(second\) has no tokens"):
        evaluate(model, words, data, tiny.short_reward, 2, max_new_tokens=2)


@pytest.mark.parametrize("steps", [4, pytest.param(40, marks=FAULTS)])
@pytest.mark.parametrize("value", [0.0, 1.0, None])
def test_groups_of_zero_variance_for_many_steps(tmp_path, steps, value):
    """Nothing is learned, nothing breaks, and what is never scored is no visit."""
    trainer = tiny.make(
        tmp_path, lambda completions, **kwargs: [value] * len(completions), **BOTH, max_steps=steps
    )
    before = tiny.parameters(trainer)
    trainer.train()
    assert_trained(trainer, steps, scored=value is not None)
    tiny.assert_same_parameters(before, tiny.parameters(trainer))
    visits = trainer.controller.classifier.visits(np.arange(8)).sum()
    assert visits == (0 if value is None else 2 * steps)


@FAULTS
@pytest.mark.parametrize("utility", ["loss", "variance"])
@pytest.mark.parametrize("signal", ["spread", "surrogate"])
def test_zero_variance_under_other_signals(tmp_path, signal, utility):
    changes = BOTH | {"signal": signal, "utility": utility, "beta": 0.01}
    trainer = tiny.train(
        tmp_path, lambda completions, **kwargs: [0.0] * len(completions), **changes, max_steps=10
    )
    assert_trained(trainer, 10)


@FAULTS
def test_the_filter_gives_up_on_groups_without_variance_after_its_rounds(tmp_path):
    trainer = tiny.train(
        tmp_path,
        lambda completions, **kwargs: [0.0] * len(completions),
        trainer=FilteredGRPOTrainer,
        max_rounds=2,
        max_steps=3,
    )
    assert trainer.total_rollouts == 3 * 3 * 8
    assert trainer.controller.cycle == 3


@pytest.mark.parametrize(
    "changes",
    [
        BOTH,
        pytest.param(
            BOTH | {"mask_truncated_completions": True, "signal": "surrogate", "beta": 0.01}, marks=FAULTS
        ),
    ],
)
def test_a_model_that_emits_nothing(tmp_path, changes):
    """Every completion is the end token alone."""
    texts = []

    def reward(completions, **kwargs):
        texts.extend(completions)
        return [0.0] * len(completions)

    trainer = tiny.train(tmp_path, reward, max_steps=3, **changes, **SILENT)
    assert set(texts) == {""}
    assert_trained(trainer, 3)
    assert trainer.total_completion_tokens == 3 * 8
