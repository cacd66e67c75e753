"""The parts of `gdro.check_gpu`: a Qwen3 model of random weights is made, sampled from and trained.

None of this has been run on a GPU.
"""

import math
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config

from gdro import checks, planning
from gdro.arms import ARMS, COMMON
from gdro.config import GDROConfig
from gdro.dapo_filter import FilteredGRPOTrainer
from gdro.progress import calm, no_bars
from gdro.trainer import GDROTrainer

SHAPES = MappingProxyType(
    {
        **{scale: planning.QWEN3[f"Qwen/Qwen3-{scale}-Base"] for scale in ("1.7B", "4B", "8B")},
        "tiny": MappingProxyType(
            {
                "num_hidden_layers": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 32,
                "vocab_size": 512,
                "tie_word_embeddings": True,
            }
        ),
    }
)
CARDS = MappingProxyType({"A100": "a100-80", "H100": "h100-80", "H200": "h200-141"})
ENGINE_SHARE = 0.3  # of the card, held by vLLM beside the training


@dataclass(frozen=True)
class Check:
    """How much is asked of the card. ``steps`` of the optimiser an arm, two a generation of ``prompts`` x
    ``rollouts`` rows of ``completion`` tokens each."""

    shape: str = "1.7B"
    device: str = "cuda"
    prompts: int = 8
    rollouts: int = 4
    prompt_tokens: int = 64
    completion: int = 128
    steps: int = 3

    def __post_init__(self):
        checks.one_of("shape", self.shape, tuple(SHAPES))
        checks.one_of("device", self.device, ("cuda", "cpu"))
        for name in ("prompts", "rollouts", "prompt_tokens", "completion", "steps"):
            checks.whole_number(name, getattr(self, name), low=2)

    @property
    def dtype(self) -> str:
        """Of weights, gradients and moments: bf16 on a GPU, so that 1.7B fits on one of 40 GB."""
        return "float32" if self.device == "cpu" else "bfloat16"


def run_part(part: str, check: Check, folder: Path) -> dict:
    """What one part measured; whatever goes wrong is raised."""
    kind, _, arm = part.partition("/")
    with no_bars(), calm():
        if kind == "model":
            return make_model(check, folder)
        if kind == "generate":
            return generate(check, folder)
        if kind == "flash-attention":
            return compare_attention(check, folder)
        return train(check, folder, arm, kind)


def make_model(check, folder):
    """Random weights in the shape, and a tokenizer of as many words, as a Hugging Face folder."""
    words = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, SHAPES[check.shape]["vocab_size"])}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[check.shape], pad_token_id=0, eos_token_id=1)
    with torch.device(check.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, check.dtype))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"peak": _peak(check), "parameters": model.num_parameters(), "planned": float(weights)}


def generate(check, folder):
    """Sample a whole batch with transformers, where random weights seldom end a text."""
    model, tokenizer = _loaded(check, folder)
    batch = tokenizer(_prompts(check)["prompt"][: check.prompts], return_tensors="pt").to(check.device)
    start = time.monotonic()
    output = model.generate(
        **batch,
        do_sample=True,
        max_new_tokens=check.completion,
        num_return_sequences=check.rollouts,
    )
    seconds = time.monotonic() - start
    tokens = int((output[:, batch["input_ids"].shape[1] :] != tokenizer.pad_token_id).sum())
    made = _plan(check, model.num_parameters(), model.config)
    times = {"seconds_a_generation": seconds, "planned_seconds": made.seconds["generation"]}
    return {"tokens": tokens, "tokens_a_second": tokens / seconds, "peak": _peak(check), **times}


def compare_attention(check, folder):
    """The recipes' attention against the default one: the same logits, as far as bf16 goes."""
    batch = None
    logits = []
    for kernel in ("sdpa", "flash_attention_2"):
        model, tokenizer = _loaded(check, folder, attn_implementation=kernel)
        batch = batch or tokenizer(_prompts(check)["prompt"][:2], return_tensors="pt").to(check.device)
        with torch.inference_mode():
            logits.append(model(**batch).logits.float())
        del model
    difference = float((logits[0] - logits[1]).abs().max())
    limit = 0.05 * float(logits[0].abs().max())
    if not difference <= limit:
        raise RuntimeError(f"flash attention's logits differ by {difference:.3g}, above {limit:.3g}")
    return {"peak": _peak(check), "largest_difference": difference}


def train(check, folder, arm, engine):
    """A few steps of a study arm: losses finite, every rollout planned was made, the controller observed."""
    args = GDROConfig(output_dir=str(folder / f"{engine}-{arm}"), **_settings(check, arm, engine))
    peft = None
    if engine == "lora":
        from peft import LoraConfig  # an extra that only this part needs

        peft = LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
    kind = FilteredGRPOTrainer if ARMS[arm].trainer == "dapo-filter" else GDROTrainer
    tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
    trainer = kind(
        str(folder / "model"),
        coin_reward,
        args,
        _prompts(check),
        processing_class=tokenizer,
        peft_config=peft,
    )
    start = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - start
    logs = [row for row in trainer.state.log_history if "loss" in row]
    losses = [row["loss"] for row in logs]
    observed = trainer.controller is not None and trainer.controller.cycle >= 1
    if len(losses) != check.steps or not all(map(math.isfinite, losses)) or not observed:
        raise RuntimeError(f"{len(losses)} of {check.steps} steps, losses {losses}, expected finite ones")
    model = trainer.accelerator.unwrap_model(trainer.model)
    total = sum(p.numel() for p in model.parameters())
    learn = sum(p.numel() for p in model.parameters() if p.requires_grad)
    made = _plan(check, total, model.config, trainable=learn, engine=engine)
    generations = math.ceil(check.steps / args.steps_per_generation)
    drift = [v for row in logs for k, v in row.items() if k == "sampling/sampling_logp_difference/mean"]
    return {
        "tokens": trainer.total_completion_tokens,
        "rollouts": trainer.total_rollouts,
        "tokens_a_second": trainer.total_completion_tokens / seconds,
        "peak": _peak(check),
        "planned": made.peak,
        "planned_parts": {**made.memory, "engine": made.engine},
        "seconds_a_generation": seconds / generations,
        "planned_seconds": sum(made.seconds.values()),
        "losses": losses,
        "logp_difference": drift,
    }


def coin_reward(completions, **kwargs) -> list[float]:
    """1.0 for about half of all texts, decided by the text alone.

    >>> coin_reward(["w3 w4", "w3 w5", "w3 w7"])
    [1.0, 1.0, 0.0]
    """
    return [float(zlib.crc32(text.encode()) >> 8 & 1) for text in completions]


def _settings(check, arm, engine):
    rows = check.prompts * check.rollouts
    lengths = {"vllm_max_model_length": check.prompt_tokens + check.completion}
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": ENGINE_SHARE, **lengths}
    return {
        "max_steps": check.steps,
        "learning_rate": 1e-6,
        "num_generations": check.rollouts,
        "per_device_train_batch_size": rows // 2,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "max_completion_length": check.completion,
        "top_k": 0,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": check.dtype == "bfloat16",
        "use_cpu": check.device == "cpu",
        "model_init_kwargs": {"dtype": check.dtype},
        **COMMON,
        **ARMS[arm].fields,
        **({"bin_column": "static_bin"} if ARMS[arm].groups else {}),
        **(vllm if engine == "vllm" else {}),
    }


def _prompts(check):
    rng = np.random.default_rng(0)
    words = rng.integers(2, SHAPES[check.shape]["vocab_size"], (4 * check.prompts, check.prompt_tokens))
    texts = [" ".join(f"w{i}" for i in row) for row in words]
    return Dataset.from_dict({"prompt": texts, "static_bin": [f"group {i % 3}" for i in range(len(texts))]})


def _loaded(check, folder, **options):
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=check.dtype, **options)
    return model.to(check.device), AutoTokenizer.from_pretrained(folder / "model", padding_side="left")


def _plan(check, parameters, config, trainable=None, engine="train"):
    """The plan of this check's batch; its times are NaN where `planning.DEVICES` lacks the card."""
    size = 2 if check.dtype == "bfloat16" else 4
    work = planning.Workload(
        prompts=check.prompts,
        rollouts=check.rollouts,
        generations=1,
        processes=1,
        micro_rows=check.prompts * check.rollouts // 2,
        prompt_tokens=check.prompt_tokens,
        max_completion=check.completion,
        mean_completion=check.completion,
        weight_bytes=size,
        trained_bytes=4 if engine == "lora" else size,
        reference=engine != "lora",
        engine_share=ENGINE_SHARE if engine == "vllm" else 0.0,
    )
    return planning.plan(planning.shape_of(config, parameters, trainable), work, _device(check))


def _device(check):
    if check.device == "cpu":
        return planning.Device(0.0, math.nan, math.nan)
    card = torch.cuda.get_device_properties(0)
    known = next((planning.DEVICES[name] for word, name in CARDS.items() if word in card.name), None)
    return known or planning.Device(card.total_memory, math.nan, math.nan)


def _peak(check):
    """Bytes at the worst moment of this process on the card; None on a CPU."""
    return None if check.device == "cpu" else float(torch.cuda.max_memory_allocated())
