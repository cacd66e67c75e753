"""The matrix of the study: its scales, its study arms, and every setting that either decides.

A scale says what is trained, on what and for how long; a study arm says what the adversaries do. All arms of
a scale share prompts, their order, seed, rollouts a cycle, steps a generation and KL, so that an arm differs
in its adversary alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType

from gdro import checks, paper_scale
from gdro.study_arms import ARMS, MAIN, registry

# optimiser steps a generation: with one, the paper's surrogate signal is only its KL term
GENERATION_STEPS = 2


@dataclass(frozen=True)
class Scale:
    """A base model with its task, its batch and the length of its runs.

    ``cycles`` rounds of generation, each ``prompts`` x ``rollouts`` completions and two optimiser steps.
    ``family`` names the subfolder of the figures. ``extra`` holds further trainer fields of the scale
    (sampling, precision, engine). ``recipe`` names the recipe that the settings come from, where they do.
    ``decoding`` is how held-out prompts are sampled. ``cores``, ``memory`` (GB) and ``hours`` are what a job
    of a cluster gets for each process.
    """

    name: str
    family: str
    model: str
    task: str
    prompts: int
    rollouts: int
    cycles: int
    learning_rate: float
    max_completion: int
    eval_completion: int
    save_every: int = 20
    eval_samples: int = 8
    extra: MappingProxyType = field(default_factory=lambda: MappingProxyType({}))
    recipe: str | None = None
    decoding: MappingProxyType = field(default_factory=lambda: MappingProxyType({"temperature": 1.0}))
    cores: int = 1
    memory: int = 4
    hours: int = 4

    def __post_init__(self):
        counts = ("prompts", "rollouts", "cycles", "max_completion", "eval_completion", "save_every")
        for name in (*counts, "eval_samples", "cores", "memory", "hours"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"scale {self.name}: {name}={value!r} must be an integer of at least 1")
        if not self.learning_rate > 0:
            raise ValueError(f"scale {self.name}: learning_rate={self.learning_rate!r} must be above 0")
        if self.prompts * self.rollouts % GENERATION_STEPS:
            raise ValueError(
                f"scale {self.name}: {self.prompts} prompts x {self.rollouts} rollouts cannot be halved into "
                f"{GENERATION_STEPS} optimiser steps: make one of them even"
            )

    @property
    def steps(self) -> int:
        """Optimiser steps of a run."""
        return self.cycles * GENERATION_STEPS


# so that a run is the same on every machine; a GPU gains little at these sizes
_ON_CPU = MappingProxyType({"use_cpu": True, "bf16": False, "gradient_checkpointing": False})


def _tiny(name, **changes):
    return Scale(
        name=name,
        family="tiny",
        model=name,
        task="tiny",
        prompts=48,
        rollouts=4,
        max_completion=22,
        eval_completion=28,
        extra=_ON_CPU,
        **changes,
    )


def _paper(name, memory):
    recipe = f"{name}-appendix"
    cluster = {"cores": 8, "memory": memory, "hours": 24}  # estimates; a run that needs longer goes on
    return Scale(name=name, family="paper", recipe=recipe, **paper_scale.fields(recipe), **cluster)


# The rates were tuned by plain GRPO at 1e-4 to 5e-4, on seeds that no recorded run uses: 3e-4 ends where half
# of it does, and loses some of what it opened first. Every training prompt is visited ten times or more.
SCALES = registry(
    _tiny("tiny-s", cycles=110, learning_rate=1.5e-4),
    _tiny("tiny-m", cycles=100, learning_rate=1.5e-4),
    _tiny("tiny-l", cycles=100, learning_rate=2e-4),
    # tiny-s with no rare skill, with families that learn from one another, and with both: question 14
    _tiny("tiny-s-common", cycles=110, learning_rate=1.5e-4),
    _tiny("tiny-s-shared", cycles=110, learning_rate=1.5e-4),
    _tiny("tiny-s-shared-common", cycles=110, learning_rate=1.5e-4),
    _paper("1.7B", memory=32),
    _paper("4B", memory=48),
    _paper("8B", memory=96),
    # a real language model, to show that nothing here needs a tiny one: twenty steps, in minutes on one core
    Scale(
        name="smol",
        family="smol",
        model="smol",
        task="smol",
        prompts=6,
        rollouts=4,
        cycles=10,
        learning_rate=1e-5,
        max_completion=8,
        eval_completion=8,
        save_every=10,
        eval_samples=4,
        extra=_ON_CPU,
        memory=8,
    ),
)
TINY = ("tiny-s", "tiny-m", "tiny-l")

# Appendix A, Panaganti et al. 2026, where it speaks of the optimiser: held equal over the arms.
COMMON = MappingProxyType(
    {
        "beta": 0.001,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "loss_type": "grpo",
        "scale_rewards": "group",
        "advantage_clip": 5.0,
        "advantage_std": "population",
        "num_bins": 10,
        "window": 100,
        "hysteresis": 0.03,
        "estimator": "any",
    }
)
PROFILES = MappingProxyType(
    {
        "quick": MappingProxyType(
            {
                "scales": ("tiny-s",),
                "arms": ("grpo", "prompt-gdro-error", "rollout-gdro-variance"),
                "seeds": (0,),
            }
        ),
        "full": MappingProxyType({"scales": TINY, "arms": tuple(MAIN), "seeds": tuple(range(10))}),
    }
)


def known(kind: str, name, registry):
    """The entry of a registry (or list); an unknown name raises ``ValueError`` and lists the known ones."""
    if name not in registry:
        raise ValueError(f"unknown {kind} {name!r}: the known ones are {', '.join(registry)}")
    return registry[name] if hasattr(registry, "keys") else name


def cells(scales, arms, seeds) -> list[tuple[str, str, int]]:
    """All (scale, arm, seed) of a part of the matrix, checked, the seeds as plain integers.

    Args: lists, or other iterables, of names and of integers >= 0. Raises ``ValueError`` for an empty one,
    and for an entry that is unknown or given twice; ``TypeError`` for one name or number in place of a list.

    >>> cells(["tiny-s"], ["grpo", "joint"], [0])
    [('tiny-s', 'grpo', 0), ('tiny-s', 'joint', 0)]
    """
    scales = _listed("scale", scales, ", ".join(SCALES))
    arms = _listed("arm", arms, ", ".join(ARMS))
    seeds = [_checked_seed(seed) for seed in _listed("seed", seeds, "the integers >= 0")]
    for kind, names, there in (("scale", scales, SCALES), ("arm", arms, ARMS)):
        for name in names:
            known(kind, name, there)
    return [(scale, arm, seed) for scale in scales for arm in arms for seed in seeds]


def _listed(kind, values, choice):
    """``values`` as a list, refused where it is empty, no list, or names one of them twice."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{kind}s must be a list, got {values!r}: write [{values!r}]")
    values = list(values)
    if not values:
        raise ValueError(f"no {kind} given: name at least one of {choice}")
    for at, value in enumerate(values):
        if value in values[:at]:
            raise ValueError(f"{kind} {value} is given twice: name each one once")
    return values


def settings(scale: str, arm: str, seed: int, cycles: int | None = None, machine: dict | None = None) -> dict:
    """GDROConfig fields of one cell of the study, all plain data; the output folder is the run's and not in
    it. Where the scale has a recipe they are the recipe's fields, with the batch that follows from them.

    cycles: a shorter or longer run than the scale's. machine: fields of the recipe that this machine needs
    otherwise, such as {"processes": 4}. Unknown names and values out of range raise, listing what is known.

    >>> settings("tiny-m", "grpo", 0)["max_steps"]
    200
    """
    what, how = known("scale", scale, SCALES), known("arm", arm, ARMS)
    seed = _checked_seed(seed)
    if cycles is not None and (isinstance(cycles, bool) or not isinstance(cycles, Integral) or cycles < 1):
        raise ValueError(
            f"cycles={cycles!r} must be an integer of at least 1, or None for the {what.cycles} of {scale}"
        )
    rows = what.prompts * what.rollouts
    own = {name: list(value) if isinstance(value, tuple) else value for name, value in how.fields.items()}
    if what.recipe is not None:
        chosen = {
            "seed": seed,
            "data_seed": seed,
            "num_generations": how.mean_budget or what.rollouts,
            "prompts": rows // (how.mean_budget or what.rollouts),
            "generations": int(cycles or what.cycles),
            "learning_rate": what.learning_rate * how.rate,
            "trainer": how.trainer,
        }
        groups = {"bin_column": "static_bin", "groups": how.groups} if how.groups else {}
        return paper_scale.settings(what.recipe, chosen | COMMON | what.extra | own | groups, machine or {})
    if machine:
        raise ValueError(f"scale {scale} has no recipe whose fields machine={machine!r} could set: leave it")
    chosen = {
        "seed": seed,
        "data_seed": seed,
        "num_generations": how.mean_budget or what.rollouts,
        "max_steps": int(cycles or what.cycles) * GENERATION_STEPS,
        "per_device_train_batch_size": rows // GENERATION_STEPS,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": GENERATION_STEPS,
        "num_iterations": 1,
        "max_completion_length": what.max_completion,
        "learning_rate": what.learning_rate * how.rate,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "save_strategy": "steps",
        "save_steps": what.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        **COMMON,
        **what.extra,
        **own,
    }
    if how.groups:
        chosen["bin_column"] = "static_bin"
    return chosen


def _checked_seed(seed):
    return checks.whole_number("seed", seed, low=0)
