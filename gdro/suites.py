"""The paper's benchmark suites: which sets each holds, and the grader of every row.

AIME is the mean of 2024 and 2025 (section 6, Panaganti et al. 2026), so both are one suite.
"""

from types import MappingProxyType

import numpy as np

from gdro import benchmarks, checks, rewards
from gdro.sources import file_named

SUITES = MappingProxyType(
    {
        "math500": ("math500",),
        "aime": ("aime24", "aime25"),
        "amc23": ("amc23",),
        "minerva": ("minerva",),
        "olympiadbench": ("olympiadbench",),
        "gpqa-diamond": ("gpqa-diamond",),
    }
)
TITLES = MappingProxyType(  # in the paper's Table 1
    dict(zip(SUITES, ("MATH500", "AIME", "AMC", "Minerva", "Olympiad", "GPQA"), strict=True))
)
CHOICES = ("gpqa-diamond",)  # graded by letter


def load(names=None, folder=None, *, style: str = "chat", verify: bool = True):
    """The held-out prompts of these suites (None: all) as one ``datasets.Dataset``, with the columns of
    `gdro.benchmarks.read` and the suite's name in ``suite``.

    ``folder`` holds a file or a folder named after each set (``math500.jsonl``); None takes the hub's cache,
    or the hub. ``style`` and ``verify`` as `gdro.benchmarks.read`. Raises ``ValueError`` for an unknown
    suite, for none, and for a prompt that two sets hold; where sets cannot be had, ``FileNotFoundError`` or
    ``PermissionError`` names every one of them, with the way to get it.
    """
    from datasets import concatenate_datasets  # slow to import, and only needed here

    if isinstance(names, str):
        raise TypeError(f"names must be a list of suites, got {names!r}: write [{names!r}]")
    names = list(SUITES) if names is None else list(dict.fromkeys(names))
    for name in names:
        checks.one_of("suite", name, tuple(SUITES))
    if not names:
        raise ValueError(f"no suite given: name at least one of {', '.join(SUITES)}, or None for all")
    parts, missing = [], []
    for suite, member in ((name, member) for name in names for member in SUITES[name]):
        try:
            path = None if folder is None else file_named(folder, member)
            part = benchmarks.load(member, path, style=style, verify=verify)
        except (FileNotFoundError, PermissionError) as error:
            missing.append(error)
            continue
        named = part.remove_columns("suite").add_column("suite", [suite] * len(part))
        parts.append(named.select_columns(part.column_names))
    if missing:
        raise type(missing[0])("\n".join(map(str, missing)))
    data = concatenate_datasets(parts)
    ids, counts = np.unique(data["prompt_id"], return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"the prompt {ids[counts > 1][0]} is in two of {', '.join(names)}: leave one out")
    return data


def suite_reward(completions, answer, suite, **kwargs) -> list[float]:
    r"""1.0 for a right answer by the grader of its row's suite, else 0.0: `gdro.rewards.choice_reward` with
    choices, `gdro.rewards.math_reward` for all others.

    >>> suite_reward([r"\boxed{B}", r"\boxed{B}"], ["B", "7"], ["gpqa-diamond", "amc23"])
    [1.0, 0.0]
    """
    found = np.zeros(len(completions))
    chosen = np.isin(suite, CHOICES)
    for rows, grade in ((chosen, rewards.choice_reward), (~chosen, rewards.math_reward)):
        at = np.flatnonzero(rows)
        if len(at):
            graded = grade(completions=[completions[i] for i in at], answer=[answer[i] for i in at])
            found[at] = np.array(graded, dtype=float)
    return found.tolist()
