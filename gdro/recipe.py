"""What a run is, read from a recipe: a YAML file of fields, parsed by TRL's parser.

The fields are those of `RunArguments` here, of `gdro.config.GDROConfig` (with TRL's and transformers' behind
it) and of TRL's ``ModelConfig``; ``extends: NAME`` takes another recipe's first.
"""

import difflib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields

from trl import ModelConfig, TrlParser

from gdro import checks, machine, rewards
from gdro.config import GDROConfig, preset_fields
from gdro.prompts import STYLES
from gdro.recipe_files import DERIVED, MICRO_ROWS, RECIPES, batch, overridden, recipe
from gdro.sources import BENCHMARKS

__all__ = ["DERIVED", "RECIPES", "REWARDS", "RunArguments", "Settings", "overridden", "parse", "recipe"]

REWARDS: dict[str, Callable[..., list]] = {"math": rewards.math_reward, "choice": rewards.choice_reward}
GROUPS = ("family x level", "random")
TRAINERS = ("gdro", "dapo-filter")


def _option(default, text):
    return field(default=default, metadata={"help": text})


@dataclass
class RunArguments:
    """What a run is, besides the fields of the trainer and the model. Batches are counted over all processes,
    and the trainer's own batch fields follow from these."""

    task: str = _option("dapo", "A set of gdro.benchmarks.")
    data_path: str | None = _option(None, "A file or folder of it instead of the hub's.")
    style: str = _option("chat", "Prompts in 'chat' form, or 'plain' for models without a template.")
    verify: bool = _option(True, "Leave out golds that do not verify against themselves.")
    reward: str = _option("math", "The grader: 'math' or 'choice'.")
    prompts: int = _option(256, "Prompts of a generation.")
    minibatches: int = _option(2, "Optimiser steps of a generation.")
    generations: int = _option(1000, "Rounds of generation.")
    processes: int = _option(1, "GPUs (or CPU processes), one process each.")
    sharding: str = _option("none", "'none' (a whole model each), 'fsdp2' or 'zero3'.")
    trainer: str = _option("gdro", "'gdro', or 'dapo-filter' for the baseline that refills its batches.")
    groups: str | None = _option(None, "Fixed groups in a column static_bin, one of a study arm's.")
    record: str | None = _option(
        None, "Folder of a run of the study, begun, to be recorded and gone on with."
    )
    resume: bool = _option(False, "Go on from the newest complete checkpoint in output_dir.")
    device: str = _option("h100-80", "The GPU that the plan assumes, one of gdro.planning.DEVICES.")
    mean_completion: int = _option(1200, "Tokens of a completion that the plan assumes.")

    def __post_init__(self):
        machine.check(vars(self))
        for name in ("prompts", "minibatches", "generations"):
            checks.whole_number(name, getattr(self, name), low=1)
        checks.one_of("task", self.task, tuple(BENCHMARKS))
        checks.one_of("style", self.style, STYLES)
        checks.one_of("reward", self.reward, tuple(REWARDS))
        checks.one_of("trainer", self.trainer, TRAINERS)
        if self.groups is not None:
            checks.one_of("groups", self.groups, GROUPS)
        if self.data_path is not None:
            machine.existing_data(self.data_path)


@dataclass(frozen=True)
class Settings:
    """A recipe, parsed."""

    run: RunArguments
    trainer: GDROConfig
    model: ModelConfig


def parse(values: dict, *, dry_run: bool = False) -> Settings:
    """The `Settings` of a recipe's fields, through TRL's parser, with the trainer's batch fields set from
    prompts, minibatches, generations and processes.

    A field of the recipe wins over its ``preset``, whatever its value.
    dry_run: as one process on the CPU that holds the whole batch, so that everything is checked without
    starting one. Unknown fields, batches that do not divide and whatever the parts refuse raise, with the
    values.
    """
    machine.check(values)
    given = [key for key in DERIVED if key in values]
    if given:
        raise ValueError(
            f"{', '.join(given)}: set prompts, minibatches, generations and processes instead; these follow"
        )
    if values.get("preset") is not None:
        adversaries = {name: values.get(name, False) for name in ("prompt_gdro", "rollout_gdro")}
        values = preset_fields(values["preset"], **adversaries) | values | {"preset": None}
    run_only = {option.name for option in fields(RunArguments)}
    (run,) = _parsed([RunArguments], {key: value for key, value in values.items() if key in run_only})
    world = int(os.environ.get("WORLD_SIZE", run.processes))
    if world != run.processes and not dry_run:
        raise ValueError(f"processes={run.processes}, but {world} were started: set processes={world}")
    derived = batch(values | asdict(run))
    if dry_run:
        micro = int(values.get("per_device_train_batch_size", MICRO_ROWS))
        derived |= {"use_cpu": True, "per_device_train_batch_size": micro * run.processes}
    run, trainer, model = _parsed([RunArguments, GDROConfig, ModelConfig], values | derived)
    if not model.model_name_or_path:
        raise ValueError("no model_name_or_path: name a model of the hub or a folder")
    trainer.model_init_kwargs = {
        "revision": model.model_revision,
        "dtype": model.dtype,
        "attn_implementation": model.attn_implementation,
    }
    return Settings(run, trainer, model)


def _parsed(kinds, values):
    parser = TrlParser(kinds)
    parser.error = _refuse  # argparse's own prints every field there is, and ends the process
    unknown = parser.set_defaults_with_config(**values)
    if unknown:
        known = [option.name for kind in kinds for option in fields(kind)]
        names = ", ".join(_with_nearest(name.removeprefix("--"), known) for name in unknown[::2])
        raise ValueError(
            f"unknown fields {names}: the known ones are those of {', '.join(k.__name__ for k in kinds)}"
        )
    return parser.parse_args_into_dataclasses(args=[])


def _refuse(message):
    raise ValueError(message)


def _with_nearest(name, known):
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"{name!r} (did you mean {nearest[0]!r}?)" if nearest else repr(name)
