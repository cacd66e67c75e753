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
_OFFLINE = MappingProxyType(  # what of the recipe's engine goes to vLLM's offline one, by its name there
    {
        "vllm_max_model_length": "max_model_len",
        "vllm_gpu_memory_utilization": "gpu_memory_utilization",
        "vllm_tensor_parallel_size": "tensor_parallel_size",
        "vllm_model_impl": "model_impl",
    }
)


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
    for the engine's own.

    vLLM's offline engine where the recipe trains with vLLM, with the recipe's length, share of the GPU's
    memory, tensor parallelism and model implementation; vllm_mode, the server's fields and sleeping are the
    training's alone. Else transformers on the recipe's device, with its attention.

    >>> engine({"use_vllm": False, "use_cpu": True})
    ('transformers', {'dtype': 'float32'}, None)
    """
    if chosen["use_vllm"]:
        options = {option: chosen[name] for name, option in _OFFLINE.items() if name in chosen}
        return "vllm", {"dtype": "bfloat16", "seed": chosen["seed"], **options}, None
    kernel = chosen.get("attn_implementation")
    attention = {} if kernel is None else {"attn_implementation": kernel}
    if chosen.get("use_cpu"):
        return "transformers", {"dtype": "float32", **attention}, None
    return "transformers", {"dtype": "bfloat16", "device_map": "cuda", **attention}, 64  # long completions


def evaluating(chosen: dict) -> dict:
    """The settings of `gdro.machine` that the evaluation of a cell follows: one process, with a GPU for each
    of its engine's shards.

    >>> evaluating({"use_vllm": True, "vllm_tensor_parallel_size": 2, "attn_implementation": "sdpa"})
    {'use_cpu': False, 'use_vllm': True, 'vllm_tensor_parallel_size': 2}
    """
    own = {"use_cpu": chosen.get("use_cpu", False), "use_vllm": chosen.get("use_vllm", False)}
    if own["use_vllm"]:
        return own | {"vllm_tensor_parallel_size": chosen.get("vllm_tensor_parallel_size", 1)}
    return own | {"attn_implementation": chosen.get("attn_implementation")}


def identity(chosen: dict) -> dict:
    """The settings without the places where a machine keeps model and data, which fingerprints tell apart."""
    return {key: value for key, value in chosen.items() if key not in PLACES}


def compared(chosen: dict) -> dict:
    """The settings that a study compares: those that do not differ from machine to machine."""
    return {k: value for k, value in identity(chosen).items() if k not in (*FIELDS, *DERIVED)}
