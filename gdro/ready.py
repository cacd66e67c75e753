"""Whether a cell of a scale with a recipe can start on this machine: found out before anything is spent."""

from contextlib import contextmanager
from importlib.util import find_spec

from gdro import paper_scale, start
from gdro.arms import Scale

# what a recipe's choice needs installed: field, value, module, and what to install or to choose instead
_PACKAGES = (
    ("use_vllm", True, "vllm", "install the extra 'vllm', or machine={'use_vllm': False}"),
    (
        "attn_implementation",
        "flash_attention_2",
        "flash_attn",
        "install flash-attn, or machine={'attn_implementation': 'sdpa'}",
    ),
    ("sharding", "zero3", "deepspeed", "install deepspeed, or machine={'sharding': 'fsdp2'}"),
)


_COPIES = (
    "a folder with copies of the data sets, each named after its set (dapo.parquet, math500.jsonl, ...), is "
    "given by machine={'data_path': ...}"
)


class NotReady(RuntimeError):
    """A cell cannot start on this machine; the message names every reason and what to do about it."""


def to_train(scale: Scale, arm: str, model, chosen: dict):
    """(folder of the base model, training prompts) of a cell with settings ``chosen``, or `NotReady`.

    Nothing is written but the hub's cache, and a model is fetched only where nothing else is missing.
    """
    reasons = machine(chosen, "processes")
    data = folder = None
    with _told(reasons), copies_named():
        data = start.training_data(scale, arm, chosen)
    with _told(reasons):
        folder = start.base_model(scale, model, chosen, fetch=not reasons)
    _refuse(f"{scale.name} cannot be trained here", reasons)
    return folder, data


def to_evaluate(scale: Scale, names, model, chosen: dict):
    """(folder of the base model, held-out prompts) of a cell, or `NotReady`; as `to_train`, on its engine's
    GPUs."""
    reasons = machine(paper_scale.evaluating(chosen), "vllm_tensor_parallel_size")
    data = folder = None
    with _told(reasons), copies_named():
        data = start.held_out(scale, names, chosen)
    with _told(reasons):
        folder = start.base_model(scale, model, chosen, fetch=not reasons)
    _refuse(f"{scale.name} cannot be evaluated here", reasons)
    return folder, data


def machine(chosen: dict, field: str) -> list[str]:
    """What this machine lacks for settings ``chosen``, whose ``field`` is the number of GPUs (1 without it),
    each with what to do."""
    import torch  # slow to import, and only needed here

    reasons = []
    found, wanted = torch.cuda.device_count(), chosen.get(field, 1)
    if not chosen.get("use_cpu") and found < wanted:
        fewer = f", or set machine={{{field!r}: {found}}}" if found else ""
        reasons.append(
            f"{wanted} GPUs are needed, and {found} are here: run it where there are as many{fewer}"
        )
    for field, value, module, remedy in _PACKAGES:
        if chosen.get(field) == value and find_spec(module) is None:
            reasons.append(f"{field}={value!r} needs the package {module}: {remedy}")
    return reasons


@contextmanager
def copies_named():
    """Say of data that cannot be had how a cell of the study is given copies of them."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise type(error)(f"{error}; {_COPIES}") from error


@contextmanager
def _told(reasons):
    """Keep among ``reasons`` why something cannot be had."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        reasons.append(str(error))


def _refuse(what, reasons):
    if reasons:
        raise NotReady("\n- ".join([f"{what}, and nothing was written:", *reasons]))
