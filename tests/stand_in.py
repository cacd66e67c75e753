"""A small Qwen3 with a subword tokenizer made on the spot, taught to box the answers of a few DAPO rows: the
stand-in for Qwen3-*-Base, in architecture and format."""

import json
import shutil
from pathlib import Path

import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gdro import benchmarks

ROWS = Path(__file__).with_name("rows") / "dapo-processed.jsonl"
SETS = {
    name: f"{name}.jsonl" for name in ("aime24", "aime25", "amc23", "minerva", "olympiadbench", "math500")
}
SETS |= {"dapo": "dapo-processed.jsonl", "gpqa-diamond": "gpqa_diamond.csv"}
END, PAD = "<|im_end|>", "<|endoftext|>"
TEMPLATE = (  # the form of Qwen's, without its tools
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    texts = [json.loads(line)["prompt"] for line in ROWS.read_text(encoding="utf-8").splitlines()]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    learner = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[PAD, "<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([*texts, r"\boxed{"] * 2, learner)
    made = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PAD, eos_token=END, padding_side="left")
    made.chat_template = TEMPLATE
    return made


def model(words):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            pad_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
        )
    )


def teach(policy, words, steps=40):
    """Let it answer every prompt with any answer of the set, in a box: right now and then."""
    data = benchmarks.load("dapo", ROWS, verify=False)
    starts = [
        words.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in data["prompt"]
    ]
    texts = [f"{start}\\boxed{{{answer}}}{END}" for start in starts for answer in sorted(set(data["answer"]))]
    batch = words(texts, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, :-12] = -100  # padding is on the left: the answer and a little before it
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    for _ in range(steps):
        policy(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def sets(folder):
    """``folder`` with a file of rows for every set, named after it."""
    for name, file in SETS.items():
        source = ROWS.with_name(file)
        shutil.copy(source, folder / f"{name}{source.suffix}")
    return folder


def make(folder):
    """The recipe of a run of three optimiser steps on two processes, with the model beside it."""
    words = tokenizer()
    policy = model(words)
    teach(policy, words)
    policy.save_pretrained(folder / "base")
    words.save_pretrained(folder / "base")
    recipe = {
        "extends": "appendix",
        "model_name_or_path": str(folder / "base"),
        "model_revision": "main",
        "data_path": str(ROWS),
        "output_dir": str(folder / "run"),
        "rollout_gdro": True,
        "prompts": 4,
        "minibatches": 3,
        "generations": 1,
        "num_generations": 6,
        "per_device_train_batch_size": 4,
        "processes": 2,
        "sharding": "none",
        "learning_rate": 1e-3,
        "max_completion_length": 12,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "use_vllm": False,
        "attn_implementation": "eager",
        "bf16": False,
        "use_cpu": True,
        "save_steps": 1,
        "disable_tqdm": True,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path
