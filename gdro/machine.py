"""Fields of a recipe that differ from machine to machine and are no part of what a study compares, and their
values."""

import re
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType

from gdro import checks, planning

SHARDING = ("none", "fsdp2", "zero3")
ATTENTION = (  # transformers' own; a test holds the list to its
    *("eager", "sdpa", "flex_attention"),
    *("flash_attention_2", "flash_attention_3", "flash_attention_4"),
)
_KERNEL = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?(:\w+)?")  # of the hub, as transformers takes it


def _attention(name, value):
    if not (isinstance(value, str) and _KERNEL.fullmatch(value)) and value not in ATTENTION:
        raise ValueError(
            f"unknown {name} {value!r}; the known ones are {', '.join(map(repr, ATTENTION))}, and kernels of "
            "the hub as 'owner/name'"
        )


def _text(name, value, kind=str):
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a text, got {value!r}")


def _or_none(rule):
    return lambda name, value: None if value is None else rule(name, value)


_COUNT = partial(checks.whole_number, low=1)
_PORT = partial(checks.whole_number, low=1, high=65535)
FIELDS = MappingProxyType(  # name: what raises for a value that cannot be
    {
        "processes": _COUNT,
        "sharding": partial(checks.one_of, known=SHARDING),
        "per_device_train_batch_size": _COUNT,
        "use_cpu": checks.boolean,
        "bf16": checks.boolean,
        "gradient_checkpointing": checks.boolean,
        "attn_implementation": _or_none(_attention),
        "data_path": _or_none(partial(_text, kind=(str, PathLike))),
        "device": partial(checks.one_of, known=tuple(planning.DEVICES)),
        "mean_completion": _COUNT,
        "use_vllm": checks.boolean,
        "vllm_mode": partial(checks.one_of, known=("colocate", "server")),
        "vllm_model_impl": partial(checks.one_of, known=("vllm", "transformers")),
        "vllm_enable_sleep_mode": checks.boolean,
        "vllm_gpu_memory_utilization": partial(checks.real_number, above=0, below=1),
        "vllm_max_model_length": _or_none(_COUNT),
        "vllm_tensor_parallel_size": _COUNT,
        "vllm_server_base_url": _or_none(_text),
        "vllm_server_host": _text,
        "vllm_server_port": _PORT,
        "vllm_server_timeout": partial(checks.real_number, above=0),
        "vllm_group_port": _PORT,
    }
)


def check(values: dict) -> None:
    """Raise ``ValueError`` or ``TypeError`` for fields among ``values`` that no machine can have, naming all
    of them with their values and limits.

    >>> check({"processes": 4, "prompts": -1})
    """
    errors = []
    for name, rule in FIELDS.items():
        try:
            if name in values:
                rule(name, values[name])
        except (TypeError, ValueError) as error:
            errors.append(error)
    if errors:
        raise type(errors[0])("\n".join(map(str, errors)))
    if values.get("use_vllm"):
        _check_engine(values)


def existing_data(given, place=None) -> Path:
    """The place that ``data_path`` names (``place``, or the path as it was given); one where nothing is
    raises ``FileNotFoundError``."""
    place = Path(given if place is None else place)
    if not place.exists():
        raise FileNotFoundError(
            f"data_path {str(given)!r} is neither a file nor a folder: check it, or leave it out for the "
            "hub's"
        )
    return place


def _check_engine(values):
    length, completion = values.get("vllm_max_model_length"), values.get("max_completion_length")
    if completion is not None:
        checks.whole_number("max_completion_length", completion, low=1)
    if None not in (length, completion) and length <= completion:
        raise ValueError(
            f"vllm_max_model_length must be above max_completion_length={completion}, got {length}: it holds "
            "the prompt as well"
        )
    shards, processes = values.get("vllm_tensor_parallel_size", 1), values.get("processes", 1)
    if values.get("vllm_mode", "colocate") == "colocate" and processes % shards:
        raise ValueError(
            f"vllm_tensor_parallel_size={shards} does not divide processes={processes}: change one of them"
        )
