"""A two-layer random Qwen3 with a character tokenizer, prompts and rewards for trainer tests; nothing is
downloaded."""

import dataclasses
import functools
import tempfile
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig

from gdro.config import GDROConfig
from gdro.trainer import GDROTrainer

CHARACTERS = "0123456789+-=abcdefghijk"
TEXTS = [f"{a}{sign}{b}=" for a in range(4) for sign in "+-" for b in (1, 2)]


def make_tokenizer():
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    vocabulary.update({character: 3 + at for at, character in enumerate(CHARACTERS)})
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


@functools.cache
def model_folder():
    """Folder with the model and tokenizer, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-qwen3-"))
    config = Qwen3Config(
        vocab_size=len(CHARACTERS) + 3,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    state = torch.get_rng_state()
    torch.manual_seed(3)
    model = Qwen3ForCausalLM(config)
    torch.set_rng_state(state)
    for parameter in model.parameters():
        parameter.data.mul_(
            2.5 if parameter.ndim > 1 else 1.0
        )  # sharper, so that completions differ between prompts
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def prompts(count=8, **columns):
    """``count`` distinct prompts with an answer; further columns as given."""
    return Dataset.from_dict(
        {"prompt": TEXTS[:count], "answer": [str(at % 5) for at in range(count)], **columns}
    )


def short_reward(completions, **kwargs):
    """1 where the completion has a digit among its first two characters, which happens now and then."""
    return [1.0 if any(c.isdigit() for c in text[:2]) else 0.0 for text in completions]


def real_reward(completions, **kwargs):
    """A real number that few completions share."""
    return [sum(map(ord, text)) % 17 / 7.0 - 1.0 for text in completions]


def patchy_reward(prompts, completions, **kwargs):
    """Like `real_reward`, None for some completions and for every one of the prompt ``0+1=``."""
    values = real_reward(completions)
    return [
        None if prompt == "0+1=" or len(text) % 4 == 1 else value
        for prompt, text, value in zip(prompts, completions, values, strict=True)
    ]


def arguments(output_dir, **changes):
    """Keyword arguments of a small CPU run that GRPOConfig takes."""
    return {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "max_steps": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 5,
    } | changes


def train(folder, reward=short_reward, dataset=None, trainer=None, **changes):
    """A `GDROTrainer` (or ``trainer``) after ``train()`` on the tiny model; ``changes`` go to its
    arguments."""
    made = make(folder, reward, dataset, trainer, **changes)
    made.train()
    return made


def make(folder, reward=short_reward, dataset=None, trainer=None, **changes):
    """As `train`, before training; ``eval_dataset``, ``peft_config`` ... go to the trainer itself."""
    trainer = trainer or GDROTrainer
    settings = GDROConfig if issubclass(trainer, GDROTrainer) else GRPOConfig
    apart = ("eval_dataset", "peft_config", "callbacks", "max_rounds", "rollout_budget", "optimizers")
    apart += ("processing_class",)
    further = {name: changes.pop(name) for name in apart if name in changes}
    dataset = prompts() if dataset is None else dataset
    return trainer(model_folder(), reward, settings(**arguments(folder, **changes)), dataset, **further)


def script(trainer, rollouts=None, weights=None):
    """Make the trainer's controller plan these ``rollouts`` and ``weights`` (P,); returns the list of plans
    it makes."""
    original, plans = trainer.controller.plan, []

    def plan(prompt_ids):
        made = original(prompt_ids)
        given = {"rollouts": rollouts, "weights": weights}
        changed = {name: np.array(value) for name, value in given.items() if value is not None}
        plans.append(dataclasses.replace(made, **changed))
        return plans[-1]

    trainer.controller.plan = plan
    return plans


def losses(trainer):
    """Logged entries without what a clock decides, and without the summary of a ``train`` call."""
    clocked = ("step_time", "runtime", "per_second")
    return [
        {key: value for key, value in entry.items() if not any(part in key for part in clocked)}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]


def parameters(trainer):
    """Copies of the policy's parameters."""
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def assert_same_parameters(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), (
            f"{name} differs by {(left[name] - right[name]).abs().max()}"
        )
