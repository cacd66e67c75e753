"""What a run needs, before anything is spent: memory per GPU, tokens, GPU hours, and what drives them.

Everything is arithmetic on the model's shape, the batch and stated speeds (`Speeds`, `DEVICES`); nothing is
measured. Memory counts weights, gradients, optimiser, activations, logits and the generation engine, not
fragmentation or buffers of communication: leave a tenth free.
"""

from dataclasses import dataclass
from types import MappingProxyType

from gdro import checks

HALF = 2  # bytes of a bf16 number
ACTIVATION_BYTES = 34  # of a token and hidden unit in one layer, Korthikanti et al. 2022, attention not kept
LOGIT_BYTES = 8  # bf16 logits and their gradient, one float32 copy


@dataclass(frozen=True)
class Device:
    """A GPU: memory in bytes, dense bf16 operations a second, bytes of memory read a second (data sheets)."""

    memory: float
    operations: float
    bandwidth: float


DEVICES = MappingProxyType(
    {
        "a100-80": Device(80e9, 312e12, 2.04e12),
        "h100-80": Device(80e9, 989e12, 3.35e12),
        "h200-141": Device(141e9, 989e12, 4.8e12),
    }
)

# config.json of Qwen/Qwen3-*-Base, where it differs
QWEN3 = MappingProxyType(
    {
        f"Qwen/Qwen3-{scale}-Base": MappingProxyType(
            dict(
                zip(
                    ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
                    numbers,
                    strict=True,
                ),
                num_key_value_heads=8,
                head_dim=128,
                vocab_size=151936,
                tie_word_embeddings=scale != "8B",
            )
        )
        for scale, numbers in {
            "1.7B": (28, 2048, 6144, 16),
            "4B": (36, 2560, 9728, 32),
            "8B": (36, 4096, 12288, 32),
        }.items()
    }
)


@dataclass(frozen=True)
class ModelShape:
    """A causal language model as the arithmetic sees it: counts of parameters, layers and widths."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    attention: int  # heads x head_dim
    cached: int  # key-value heads x head_dim
    vocabulary: int

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in bf16."""
        return 2 * self.layers * self.cached * HALF


def shape_of(config, parameters: int, trainable: int | None = None) -> ModelShape:
    """The `ModelShape` of a transformers configuration, with its counts of parameters (all learn by default).

    >>> from types import SimpleNamespace
    >>> shape_of(SimpleNamespace(**QWEN3["Qwen/Qwen3-4B-Base"]), 4_022_468_096).cache_bytes
    147456
    """
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return ModelShape(
        parameters=parameters,
        trainable=parameters if trainable is None else trainable,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        attention=heads * width,
        cached=config.num_key_value_heads * width,
        vocabulary=config.vocab_size,
    )


@dataclass(frozen=True)
class Workload:
    """How a run is laid out. Rows are completions; ``micro_rows`` pass one GPU at a time."""

    prompts: int
    rollouts: int
    generations: int
    processes: int
    micro_rows: int
    prompt_tokens: float
    max_completion: int
    mean_completion: float
    sharded: bool = False
    weight_bytes: int = 4
    trained_bytes: int = 4
    reference: bool = True  # a second model for the KL term; an adapter needs none
    old_pass: bool = True  # several optimiser steps a generation: one more forward pass
    checkpointing: bool = True
    engine_share: float = 0.0  # of a GPU's memory, held by vLLM in the same process
    engine_sleeps: bool = False

    def __post_init__(self):
        for name in ("prompts", "rollouts", "generations", "processes", "micro_rows", "max_completion"):
            checks.whole_number(name, getattr(self, name), low=1)
        checks.real_number("prompt_tokens", self.prompt_tokens, above=0)
        checks.real_number("mean_completion", self.mean_completion, above=0, high=self.max_completion)
        checks.real_number("engine_share", self.engine_share, low=0, below=1)

    @property
    def rows(self) -> int:
        """Completions of one generation, over all GPUs."""
        return self.prompts * self.rollouts


@dataclass(frozen=True)
class Speeds:
    """Stated, not measured: the shares of a data sheet's numbers that training and decoding reach."""

    training: float = 0.35  # of the operations, usual for dense models of this size
    decoding: float = 0.5  # of the bandwidth


@dataclass(frozen=True)
class Plan:
    """Bytes per GPU by part, tokens of the run, and seconds of one generation by part."""

    memory: MappingProxyType
    engine: float
    engine_sleeps: bool
    tokens: float
    seconds: MappingProxyType
    gpu_hours: float
    speeds: Speeds

    @property
    def peak(self) -> float:
        """Bytes per GPU at the worst moment: while training, or while generating beside what stays."""
        training = sum(self.memory.values())
        staying = training - sum(self.memory[part] for part in ("gradients", "activations", "logits"))
        return max(training + (0 if self.engine_sleeps else self.engine), staying + self.engine)


def plan(shape: ModelShape, work: Workload, device: Device, speeds: Speeds | None = None) -> Plan:
    """The `Plan` of a run.

    Memory: weights, gradients and two moments of Adam over the GPUs where ``sharded``; the checkpoints of
    every layer and one layer's activations; logits of the completions. Training a token costs 2 N operations
    for each forward pass (the policy, the old and the reference log-probabilities, recomputation) and 4 N for
    the backward pass, 2 N where only an adapter learns, plus attention. Decoding a token reads the weights
    and the cache once for all rows under way.
    """
    speeds = speeds or Speeds()
    seconds = {
        "generation": _decoding_seconds(shape, work, device, speeds),
        **_training_seconds(shape, work, device, speeds),
    }
    return Plan(
        memory=MappingProxyType(_memory(shape, work)),
        engine=work.engine_share * device.memory,
        engine_sleeps=work.engine_sleeps,
        tokens=work.generations * work.rows * work.mean_completion,
        seconds=MappingProxyType(seconds),
        gpu_hours=sum(seconds.values()) * work.generations * work.processes / 3600,
        speeds=speeds,
    )


def _memory(shape, work):
    share = work.processes if work.sharded else 1
    length = work.prompt_tokens + work.max_completion
    kept = shape.layers * HALF + ACTIVATION_BYTES if work.checkpointing else shape.layers * ACTIVATION_BYTES
    return {
        "weights": shape.parameters * work.weight_bytes / share,
        "gathered layers": 2 * HALF * shape.parameters / shape.layers if work.sharded else 0.0,
        "gradients": shape.trainable * work.trained_bytes / share,
        "optimiser": 2 * shape.trainable * work.trained_bytes / share,
        "reference model": shape.parameters * work.weight_bytes / share if work.reference else 0.0,
        "activations": work.micro_rows * length * shape.hidden * kept,
        "logits": work.micro_rows * work.max_completion * shape.vocabulary * LOGIT_BYTES,
    }


def _training_seconds(shape, work, device, speeds):
    length = work.prompt_tokens + work.mean_completion
    forward = 2 * shape.parameters + 2 * shape.layers * shape.attention * length
    backward = forward * (2 if shape.trainable == shape.parameters else 1)
    passes = {
        "training": forward + backward + (forward if work.checkpointing else 0),
        "old log-probabilities": forward if work.old_pass else 0,
        "reference log-probabilities": forward if work.reference or shape.trainable < shape.parameters else 0,
    }
    tokens = work.rows * length / work.processes
    return {part: tokens * cost / (device.operations * speeds.training) for part, cost in passes.items()}


def _decoding_seconds(shape, work, device, speeds):
    """At best: no row waits for another, but for the longest one at the end."""
    length = work.prompt_tokens + work.mean_completion
    free = (work.engine_share or 0.5) * device.memory - HALF * shape.parameters
    room = max(1.0, free / (length * shape.cache_bytes))
    together = min(work.rows / work.processes, room)
    read = device.bandwidth * speeds.decoding
    step = (HALF * shape.parameters + together * length * shape.cache_bytes) / read
    alone = (HALF * shape.parameters + length * shape.cache_bytes) / read
    return max(
        work.rows / work.processes * work.mean_completion / together * step, work.max_completion * alone
    )


def describe(made: Plan, shape: ModelShape, work: Workload, device: str) -> str:
    """The plan as text: what it needs, whether it fits, what costs most, and what it rests on."""
    gpu = DEVICES[device]
    total = sum(made.seconds.values())
    parts = sorted(made.memory.items(), key=lambda part: -part[1])
    costs = sorted(made.seconds.items(), key=lambda part: -part[1])
    fits = "fits" if made.peak < 0.9 * gpu.memory else "DOES NOT FIT with a tenth left free"
    return "\n".join(
        [
            f"model: {shape.parameters / 1e9:.2f} billion parameters, {shape.trainable / 1e9:.3f} trained",
            f"batch: {work.prompts} prompts x {work.rollouts} rollouts, {work.generations} generations, "
            f"{work.processes} x {device}",
            f"memory per GPU: {made.peak / 1e9:.1f} GB at the peak of {gpu.memory / 1e9:.0f}: {fits}",
            *(f"  {size / 1e9:6.1f} GB  {part}" for part, size in parts if size),
            f"  {made.engine / 1e9:6.1f} GB  generation engine"
            + (" (asleep in training)" * made.engine_sleeps),
            f"tokens: {made.tokens / 1e6:.0f} million generated",
            f"time: {total:.0f} s a generation, {made.gpu_hours:.0f} GPU hours in all",
            *(f"  {seconds / total:6.1%}  {part}" for part, seconds in costs if seconds),
            f"rests on: {basis(made, work, device)}",
        ]
    )


def basis(made: Plan, work: Workload, device: str) -> str:
    """What a plan rests on, and what it leaves out, in one sentence."""
    gpu = DEVICES[device]
    return (
        f"completions of {work.mean_completion:.0f} tokens (at most {work.max_completion}), "
        f"prompts of {work.prompt_tokens:.0f} (a third of their characters), "
        f"{made.speeds.training:.0%} of {gpu.operations / 1e12:.0f}e12 operations a second in training, "
        f"{made.speeds.decoding:.0%} of {gpu.bandwidth / 1e12:.1f} TB a second in decoding; grading, weight "
        "transfer, loading and evaluation are not counted; nothing was measured"
    )
