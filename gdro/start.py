"""What a cell of the study starts from: its base model, its prompts, its held-out prompts, its grader.

At the paper's scales these come from the hub's cache, or from places that the machine names.
"""

from collections.abc import Callable
from pathlib import Path

from gdro import benchmarks, machine, rewards, smol, sources, static_groups, suites, tasks
from gdro.arms import ARMS, Scale, known

# of the tasks of scales without a recipe: how they are graded, and where their base models lie
REWARDS = {"tiny": rewards.tiny_reward, "smol": smol.smol_reward}
MODELS: dict[str, Callable[[str], Path]] = {"tiny": tasks.model_path, "smol": smol.model_folder}


def repository() -> Path:
    """Root folder of the repository, found from the working folder upwards, else from the package."""
    return tasks.data_root().parent


def resolve(path) -> Path:
    """A path as given where absolute, else under the repository's root, whatever the working folder is."""
    return Path(path) if Path(path).is_absolute() else repository() / path


def base_model(scale: Scale, model, chosen: dict, *, fetch: bool = True) -> Path:
    """Folder of the model that a cell starts from: ``model`` where one is given, else the scale's.

    Raises ``ValueError`` for a folder without a model, ``FileNotFoundError`` for one that cannot be had.
    """
    if model is None and Path(scale.model).is_dir():  # a recipe may name a folder
        model = scale.model
    if model is not None:
        folder = resolve(model)
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"model {str(model)!r} is no Hugging Face model folder (no config.json): check the path"
            )
        return folder
    if scale.recipe is None:
        return MODELS[scale.task](scale.model)
    return sources.model_folder(scale.model, chosen["model_revision"], fetch=fetch)


def training_file(scale: Scale, chosen: dict) -> str | None:
    """The file of a scale's training set where the machine names one: itself, or the one of its name in a
    folder; None for the hub's."""
    place = _named_place(chosen)
    if place is None:
        return None
    return str(sources.file_named(place, scale.task) if place.is_dir() else place)


def _named_place(chosen):
    """The file or folder of data sets that the machine names, or None."""
    if chosen.get("data_path") is None:
        return None
    return machine.existing_data(chosen["data_path"], resolve(chosen["data_path"]))


def training_data(scale: Scale, arm: str, chosen: dict):
    """The prompts that a cell trains on, with the column static_bin where the arm fixes its bins."""
    if scale.recipe is not None:
        data = benchmarks.load(scale.task, training_file(scale, chosen), style=chosen["style"])
        return with_groups(data, chosen.get("groups"))
    return with_groups(tasks.load(scale.task, split="train"), ARMS[arm].groups)


def with_groups(data, groups: str | None):
    """``data`` with fixed groups in the column static_bin, or as it is for None.

    ``groups`` as a `StudyArm` has them: "random", or "family x level"; of prompts without a level the length
    of the prompt makes ten groups.
    """
    if groups is None:
        return data
    if groups == "random":
        return data.add_column("static_bin", static_groups.by_chance(len(data)))
    if None not in data["level"]:
        return data.add_column("static_bin", static_groups.names(data["suite"], data["level"]).tolist())
    texts = [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in data["prompt"]]
    return data.add_column("static_bin", static_groups.by_length(texts))


def held_out(scale: Scale, names, chosen: dict):
    """The prompts that a cell is evaluated on: suites ``names``, None for all."""
    if scale.recipe is not None:
        place = _named_place(chosen)  # a file is the training set's
        return suites.load(names, place if place and place.is_dir() else None, style=chosen["style"])
    data = tasks.load(scale.task, split="test")
    if names is None:
        return data
    there = list(dict.fromkeys(data["suite"]))
    for suite in names:
        known("suite", suite, there)
    if not names:
        raise ValueError(f"no suite given: name at least one of {', '.join(there)}, or None for all")
    return data.select([i for i, suite in enumerate(data["suite"]) if suite in names])


def grader(scale: Scale):
    """The reward function of a scale's held-out prompts, and of its training where it has no recipe."""
    return suites.suite_reward if scale.recipe is not None else REWARDS[scale.task]
