"""Prompts with verifiable answers: the tiny arithmetic families, their generator and their loader.

A tiny prompt is a chain of one-digit terms behind the mark of its family, each term with its letter:
``Bd3e+4f-2=``. Family B asks for twice the sum, (3 + 4 - 2) x 2 = 10. It is answered at once (``w#10``) or
worked term by term, the letter of each term before the running sum (``ve7f5#10``). What opens a worked
answer in one family opens a direct one in the family before it: no character means "work" everywhere, so
that a policy that learns to work in one family is not thereby taught to work in another. That heterogeneity
is what a robust objective needs.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdro import benchmarks
from gdro.prompts import prompt_key
from gdro.sources import BENCHMARKS

TERM_LETTERS = "abcdefgh"  # a chain starts at any of them and goes round
LARGEST_SUM = 9  # every running sum stays in [0, 9]
TRAIN_LEVELS = (2, 3, 4, 5, 6)  # number of terms
OUTSIDE_LEVELS = (7, 8)
# tokens of a worked answer: the opening, 2 a further term, '#', two digits, end of text; one spare
MAX_COMPLETION = 16
MAX_COMPLETION_OUTSIDE = 20
OUTSIDE_SUITE = "outside"
# the split that comes unasked first; the public sets have one each
_SPLITS = {
    "tiny": ("train", "test"),
    "smol": ("train", "test"),
    **{name: ("train",) if name == "dapo" else ("test",) for name in BENCHMARKS},
}
_FIELDS = {"prompt": str, "answer": str, "suite": str, "level": int}


@dataclass(frozen=True)
class Family:
    """One skill: the mark of its prompts, its factor, and what opens its worked and its direct answers."""

    name: str
    mark: str
    factor: int
    worked: str
    direct: str


FAMILIES = tuple(
    Family(f"times-{k}", mark, k, worked, direct)
    for k, mark, worked, direct in zip(range(1, 7), "ABCDEF", "uvwxyz", "vwxyzu", strict=True)
)


@dataclass(frozen=True)
class Problem:
    """One chain: its family, its signed digits (the first positive) and the place of its first letter."""

    family: Family
    terms: tuple[int, ...]
    first: int = 0

    @property
    def letters(self) -> str:
        """One letter a term, in order from the first, going round after the last."""
        return "".join(TERM_LETTERS[(self.first + i) % len(TERM_LETTERS)] for i in range(len(self.terms)))

    @property
    def sums(self) -> tuple[int, ...]:
        """Running sums after each term, each in [0, 9]."""
        return tuple(int(v) for v in np.cumsum(self.terms))

    @property
    def prompt(self) -> str:
        """Text of the prompt, such as ``Bd3e+4f-2=``."""
        head, *rest = zip(self.letters, self.terms, strict=True)
        return f"{self.family.mark}{head[0]}{head[1]}" + "".join(f"{a}{d:+d}" for a, d in rest) + "="

    @property
    def answer(self) -> str:
        """The sum of all terms times the family's factor, in decimal."""
        return str(self.sums[-1] * self.family.factor)

    def completion(self, worked: bool) -> str:
        """The right answer, worked term by term or given at once."""
        if not worked:
            return f"{self.family.direct}#{self.answer}"
        steps = zip(self.letters[1:], self.sums[1:], strict=True)
        return self.family.worked + "".join(f"{letter}{total}" for letter, total in steps) + f"#{self.answer}"


def random_problem(family: Family, level: int, rng: np.random.Generator) -> Problem:
    """Draw a chain of ``level`` terms whose running sums all stay in [0, 9].

    Each signed digit is uniform among those from -9 to 9, without 0, that keep the sum in range; the first is
    positive. The first letter is uniform.
    """
    if not 1 <= level <= len(TERM_LETTERS):
        raise ValueError(
            f"level {level} is outside 1..{len(TERM_LETTERS)}: ask for a number of terms in that range"
        )
    terms, total = [int(rng.integers(1, 10))], 0
    for _ in range(level - 1):
        total += terms[-1]
        choices = [d for d in range(-total, LARGEST_SUM - total + 1) if d]
        terms.append(choices[int(rng.integers(len(choices)))])
    return Problem(family, tuple(terms), int(rng.integers(len(TERM_LETTERS))))


def make_problems(per_cell: int, levels, families=FAMILIES, *, seed: int, taken=()) -> list[Problem]:
    """Draw ``per_cell`` different problems of each family and level, none of whose prompts is in ``taken``.

    Deterministic in ``seed``. Asking for more prompts than there are (some 600 chains of two terms) raises.
    """
    rng = np.random.default_rng(seed)
    seen, problems = set(taken), []
    for family in families:
        for level in levels:
            found = 0
            for _ in range(400 * per_cell):
                problem = random_problem(family, level, rng)
                if found < per_cell and problem.prompt not in seen:
                    seen.add(problem.prompt)
                    problems.append(problem)
                    found += 1
            if found < per_cell:
                raise ValueError(
                    f"only {found} of {per_cell} different prompts found for family {family.name}, "
                    f"level {level}: ask for fewer a cell"
                )
    return problems


def tiny_rows(problems, suite=None) -> list[dict]:
    """Rows (prompt, answer, suite, level); the suite is the family's name unless ``suite`` is given."""
    return [
        {"prompt": p.prompt, "answer": p.answer, "suite": suite or p.family.name, "level": len(p.terms)}
        for p in problems
    ]


def make_tiny_prompts() -> dict[str, list[dict]]:
    """The committed tiny prompts, drawn again: {"train": rows, "test": rows}, disjoint.

    Training: 16 prompts for each family and each number of terms 2..6. Test: for each family a suite of 200
    (40 for each number of terms), and the suite "outside" of 204 longer chains (7 and 8 terms, 17 for each
    family).
    """
    train = make_problems(16, TRAIN_LEVELS, seed=1)
    taken = {p.prompt for p in train}
    test = make_problems(40, TRAIN_LEVELS, seed=2, taken=taken)
    outside = make_problems(17, OUTSIDE_LEVELS, seed=3, taken=taken)
    return {"train": tiny_rows(train), "test": tiny_rows(test) + tiny_rows(outside, OUTSIDE_SUITE)}


def write_tiny_prompts(folder) -> list[Path]:
    """Write ``tiny-train.jsonl`` and ``tiny-test.jsonl`` into ``folder`` and return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for split, rows in make_tiny_prompts().items():
        paths.append(folder / f"tiny-{split}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


def data_root() -> Path:
    """The ``data`` folder of the nearest clone upwards from the working folder, else of the package's own.

    A clone is a folder with ``pyproject.toml`` and ``data/prompts``. FileNotFoundError if there is none.
    """
    here = Path.cwd().resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if (folder / "pyproject.toml").is_file() and (folder / "data" / "prompts").is_dir():
            return folder / "data"
    raise FileNotFoundError(
        f"no data folder found from {here.name!r} upwards nor beside the package: run inside a clone of the "
        "repository, or pass the path of the prompts file"
    )


def model_path(scale: str) -> Path:
    """Folder of a committed tiny model, for ``from_pretrained``; an unknown name lists the known ones."""
    folder = data_root() / "models"
    known = (
        sorted(p.name for p in folder.iterdir() if (p / "config.json").is_file()) if folder.is_dir() else []
    )
    if scale not in known:
        raise ValueError(f"unknown tiny model {scale!r}: the known ones are {', '.join(known) or 'none'}")
    return folder / scale


def load(name: str, path=None, split: str | None = None, suite: str | None = None, **options):
    """Load a task as a ``datasets.Dataset`` with the columns prompt, answer, prompt_id, suite and level.

    name: "tiny", "smol" (see `gdro.smol`), "dapo", or a benchmark of `gdro.sources.BENCHMARKS`. path:
    another file of the same form (default: for the first two the committed one of that split, a JSON-lines
    file with prompt, answer, suite and level; for the others the hub's). split: "train" or "test" where there
    are both. suite: keep that suite only. options: those of `gdro.benchmarks.read`, which the first two have
    none of. An unknown name, split, suite or option, a file that lacks a field and a prompt of the first two
    that occurs twice raise, naming the value.
    """
    if name not in _SPLITS:
        raise ValueError(f"unknown task {name!r}: the known ones are {', '.join(_SPLITS)}")
    split = _SPLITS[name][0] if split is None else split
    if split not in _SPLITS[name]:
        raise ValueError(f"unknown split {split!r} of {name}: the known ones are {', '.join(_SPLITS[name])}")
    if str(path) in ("train", "test") and not Path(path).exists():
        raise ValueError(f"path={str(path)!r} names a split, not a file: write split={str(path)!r}")
    if name in BENCHMARKS:
        if suite not in (None, name):
            raise ValueError(f"unknown suite {suite!r} of {name}: the known one is {name}")
        return benchmarks.load(name, path, **options)
    if options:
        raise ValueError(f"the task {name} takes no {', '.join(options)}: leave it out")
    path = data_root() / "prompts" / f"{name}-{split}.jsonl" if path is None else Path(path)
    rows = read_rows(path)
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    if suite is not None:
        if suite not in suites:
            raise ValueError(
                f"unknown suite {suite!r} in {path.name}: the known ones are {', '.join(suites)}"
            )
        rows = [row for row in rows if row["suite"] == suite]
    from datasets import Dataset  # slow to import, and only needed here

    return Dataset.from_list(rows)


def read_rows(path) -> list[dict]:
    """Rows of a JSON-lines file of prompts, each with its ``prompt_id``, checked."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no prompts file {path.name!r} in {path.parent.name!r}: check the path")
    rows = {}
    for number, row in enumerate(benchmarks.json_lines(path), start=1):
        missing = [field for field in _FIELDS if not isinstance(row.get(field), _FIELDS[field])]
        if missing:
            raise ValueError(
                f"{path.name}, line {number}: no valid {', '.join(missing)}; needed are {', '.join(_FIELDS)}"
            )
        key = prompt_key(row["prompt"], row["answer"])
        if key in rows:
            raise ValueError(
                f"{path.name}, line {number}: prompt {row['prompt']!r} occurs twice; remove one of them"
            )
        rows[key] = {field: row[field] for field in _FIELDS} | {"prompt_id": key}
    if not rows:
        raise ValueError(f"{path.name} holds no prompts: give a file with one object a line")
    return list(rows.values())


def fingerprint(dataset) -> str:
    """Content hash of a data set: its prompt ids in order, as 16 hexadecimal digits."""
    if "prompt_id" not in dataset.column_names:
        raise ValueError(
            f"the data set has no column prompt_id (it has {', '.join(dataset.column_names)}): "
            "load it with tasks.load"
        )
    return hashlib.sha256("\n".join(dataset["prompt_id"]).encode()).hexdigest()[:16]
