"""The paper's scales in the study's terms: what the recipe of a scale makes of it, and of one of its cells.

Every number of such a scale stands in its recipe (``gdro/recipes/<scale>-appendix.yaml``) and nowhere else.
"""

from collections.abc import Mapping
from types import MappingProxyType

from gdro.machine import FIELDS, check
from gdro.recipe_files import DERIVED, batch, recipe

PLACES = ("model_name_or_path", "model_revision", "data_path", "device", "mean_completion")
_ARM = ("preset", "prompt_gdro", "rollout_gdro")  # a study arm states all of its fields itself
_ELSEWHERE = ("output_dir",)  # the run store's


def fields(name: str) -> dict:
    """What a `gdro.arms.Scale` takes from the recipe ``name``."""
    values = recipe(name)
    return {
        "model": values["model_name_or_path"],
        "task": values["task"],
        "prompts": values["prompts"],
        "rollouts": values["num_generations"],
        "cycles": values["generations"],
        "learning_rate": values["learning_rate"],
        "max_completion": values["max_completion_length"],
        "eval_completion": values["max_completion_length"],
        "save_every": values["save_steps"],
        "decoding": MappingProxyType({key: values[key] for key in ("temperature", "top_p", "top_k")}),
    }


def settings(name: str, own: dict, machine: dict) -> dict:
    """The settings of one cell: the recipe ``name`` without its adversary, the cell's ``own`` fields, the
    machine's, and the batch that follows.

    Raises ``ValueError`` for fields of ``machine`` that are none of `gdro.machine.FIELDS`, and for rows that
    do not divide; ``ValueError`` or ``TypeError`` naming every field whose value no machine can have;
    ``TypeError`` for a ``machine`` that is no mapping.
    """
    if not isinstance(machine, Mapping):
        raise TypeError(f"machine must be a mapping such as {{'processes': 4}}, got {machine!r}")
    foreign = [key for key in machine if key not in FIELDS]
    if foreign:
        raise ValueError(
            f"machine sets {', '.join(map(repr, foreign))}, which belongs to the study or to nothing: the "
            f"fields of a machine are {', '.join(FIELDS)}"
        )
    values = {key: v for key, v in recipe(name).items() if key not in (*_ARM, *_ELSEWHERE)}
    values |= own | machine
    check(values)
    return values | batch(values)


def engine(chosen: dict) -> tuple[str, dict, int | None]:
    """What samples held-out prompts: name and options of `gdro.engines.load`, and the rows of a batch, None
    for the engine's own. vLLM where the recipe trains with it, else transformers on the recipe's device.

    >>> engine({"use_vllm": False, "use_cpu": True})
    ('transformers', {'dtype': 'float32'}, None)
    """
    if chosen["use_vllm"]:
        length = chosen["vllm_max_model_length"]
        return "vllm", {"dtype": "bfloat16", "max_model_len": length, "seed": chosen["seed"]}, None
    if chosen.get("use_cpu"):
        return "transformers", {"dtype": "float32"}, None
    return "transformers", {"dtype": "bfloat16", "device_map": "cuda"}, 64  # completions are long


def identity(chosen: dict) -> dict:
    """The settings without the places where a machine keeps model and data, which fingerprints tell apart."""
    return {key: value for key, value in chosen.items() if key not in PLACES}


def compared(chosen: dict) -> dict:
    """The settings that a study compares: those that do not differ from machine to machine."""
    return {k: value for k, value in identity(chosen).items() if k not in (*FIELDS, *DERIVED)}
