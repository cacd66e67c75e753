"""Recipes as they are written: YAML files of fields, and the trainer's batch that follows from them.

Read without torch and TRL, for those who only want to know what a run is; `gdro.recipe` checks the fields.
"""

from pathlib import Path

import yaml

from gdro import checks

RECIPES = Path(__file__).with_name("recipes")
DERIVED = ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "max_steps")
MICRO_ROWS, ROLLOUTS = 8, 8  # TRL's defaults of per_device_train_batch_size and num_generations


def recipe(name) -> dict:
    """The fields of a recipe file, or of a recipe of the package by name; those that it ``extends`` come
    first."""
    path = Path(name)
    if not path.is_file():
        path = RECIPES / f"{Path(name).name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.yaml")))
            raise ValueError(f"unknown recipe {str(name)!r}: give a file, or one of {known}")
    values = _yaml(path.name, path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} holds no fields: one `key: value` a line is expected")
    parent = values.pop("extends", None)
    return values if parent is None else recipe(parent) | values


def overridden(values: dict, changes) -> dict:
    """``values`` with "key=value" texts over them, each value read as YAML.

    >>> overridden({"seed": 0}, ["seed=3", "prompt_gdro=true"])
    {'seed': 3, 'prompt_gdro': True}
    """
    values = dict(values)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"{change!r} is no override: write key=value, the key a field of the recipe")
        values[key] = _yaml(change, value)
    return values


def _yaml(name, text):
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name!r} cannot be read as YAML: {error}") from error


def batch(values: dict) -> dict:
    """The trainer's batch fields: they follow from prompts, minibatches, generations and processes.

    Raises ``ValueError`` or ``TypeError`` for a count that is no whole number of at least 1, and for rows
    that do not divide, with the values.

    >>> batch({"prompts": 8, "num_generations": 4, "minibatches": 2, "processes": 1, "generations": 5})
    {'gradient_accumulation_steps': 2, 'steps_per_generation': 4, 'max_steps': 10}
    """
    counts = ("per_device_train_batch_size", "num_generations", "num_iterations")
    for name in (*counts, "prompts", "minibatches", "processes", "generations"):
        checks.whole_number(name, values.get(name, MICRO_ROWS), low=1)
    micro = int(values.get("per_device_train_batch_size", MICRO_ROWS))
    prompts, minibatches, processes = (values[name] for name in ("prompts", "minibatches", "processes"))
    rows, pass_rows = prompts * int(values.get("num_generations", ROLLOUTS)), micro * processes
    if rows % (minibatches * pass_rows):
        raise ValueError(
            f"{rows} rows of a generation ({prompts} prompts) do not divide into {minibatches} "
            f"minibatches of passes of {pass_rows} (per_device_train_batch_size {micro} x {processes} "
            "processes): change one"
        )
    return {
        "gradient_accumulation_steps": rows // (minibatches * pass_rows),
        "steps_per_generation": rows // pass_rows,
        "max_steps": values["generations"] * minibatches * int(values.get("num_iterations", 1)),
    }
