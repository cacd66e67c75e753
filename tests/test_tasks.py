"""Tiny prompts: their arithmetic, their generator, their files, and what the loader refuses."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdro import tasks

FAMILIES = st.sampled_from(tasks.FAMILIES)
LEVELS = st.integers(1, 8)
SEEDS = st.integers(0, 2**32 - 1)


def solve(prompt: str) -> int:
    """Read a prompt without the package: mark, then signed digits behind letters."""
    factor = "ABCDEF".index(prompt[0]) + 1
    return factor * sum(int(term) for term in re.findall(r"[a-h]([+-]?\d)", prompt))


def drawn(family, level, seed):
    return tasks.random_problem(family, level, np.random.default_rng(seed))


@given(FAMILIES, LEVELS, SEEDS)
@settings(max_examples=200, deadline=None)
def test_the_answer_is_what_the_prompt_says(family, level, seed):
    problem = drawn(family, level, seed)
    assert len(problem.terms) == level
    assert solve(problem.prompt) == int(problem.answer)
    assert all(0 <= s <= 9 for s in problem.sums)


@given(FAMILIES, LEVELS, SEEDS)
@settings(max_examples=100, deadline=None)
def test_a_worked_answer_goes_through_every_further_term_in_order(family, level, seed):
    problem = drawn(family, level, seed)
    worked = problem.completion(worked=True)
    steps, answer = worked[1:].split("#")
    assert worked[0] == family.worked
    assert answer == problem.answer
    assert re.findall(r"([a-h])[+-]?\d", problem.prompt)[1:] == list(steps[::2])
    assert [int(v) for v in steps[1::2]] == list(problem.sums[1:])


@given(FAMILIES, LEVELS, SEEDS)
@settings(max_examples=100, deadline=None)
def test_completions_fit_their_limit(family, level, seed):
    limit = tasks.MAX_COMPLETION if level <= max(tasks.TRAIN_LEVELS) else tasks.MAX_COMPLETION_OUTSIDE
    assert len(drawn(family, level, seed).completion(worked=True)) + 1 <= limit


def test_no_two_families_share_a_mark_or_work_behind_the_same_opening():
    marks, openings = [f.mark for f in tasks.FAMILIES], [f.worked for f in tasks.FAMILIES]
    assert len({*marks, *openings}) == 2 * len(tasks.FAMILIES)
    assert not {*marks, *openings} & set(tasks.TERM_LETTERS + "0123456789+-=#")
    following = openings[1:] + openings[:1]
    assert [
        f.direct for f in tasks.FAMILIES
    ] == following  # the same character works in one, guesses in another


def test_example_of_the_docstring():
    problem = tasks.Problem(tasks.FAMILIES[1], (3, 4, -2), first=3)
    assert problem.prompt == "Bd3e+4f-2="
    assert problem.completion(worked=True) == "ve7f5#10"
    assert problem.completion(worked=False) == "w#10"


def test_letters_go_round():
    assert tasks.Problem(tasks.FAMILIES[0], (1, 1, 1), first=7).prompt == "Ah1a+1b+1="


def test_problems_are_distinct_avoid_the_taken_and_repeat_with_the_seed():
    first = tasks.make_problems(5, (2, 3), seed=4)
    taken = {p.prompt for p in first}
    second = tasks.make_problems(5, (2, 3), seed=4, taken=taken)
    assert len(taken) == 5 * 2 * len(tasks.FAMILIES)
    assert not taken & {p.prompt for p in second}
    assert first == tasks.make_problems(5, (2, 3), seed=4)


def test_more_prompts_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"only \d+ of 100 .* level 1: ask for fewer"):
        tasks.make_problems(100, (1,), seed=0)


@pytest.mark.parametrize("level", [0, 9])
def test_a_level_outside_the_range_is_refused(level):
    with pytest.raises(ValueError, match=f"level {level} is outside 1..8"):
        drawn(tasks.FAMILIES[0], level, 0)


def test_the_committed_prompts_are_the_generated_ones(tmp_path):
    for path in tasks.write_tiny_prompts(tmp_path):
        assert path.read_bytes() == (tasks.data_root() / "prompts" / path.name).read_bytes()


def test_train_and_test_are_disjoint_and_large_enough():
    train, test = tasks.load("tiny"), tasks.load("tiny", split="test")
    assert not set(train["prompt"]) & set(test["prompt"])
    assert len(train) == 480
    sizes = test.to_pandas().groupby("suite").size()
    assert set(sizes.index) == {f.name for f in tasks.FAMILIES} | {tasks.OUTSIDE_SUITE}
    assert sizes.min() >= 200
    outside = test.to_pandas().query("suite == 'outside'")["level"]
    assert outside.min() > max(train["level"])


def test_every_committed_answer_is_right():
    for split in ("train", "test"):
        data = tasks.load("tiny", split=split)
        assert [solve(p) for p in data["prompt"]] == [int(a) for a in data["answer"]]


def test_columns_ids_and_fingerprint():
    data = tasks.load("tiny")
    assert set(data.column_names) == {"prompt", "answer", "prompt_id", "suite", "level"}
    row = data[0]
    content = f"{row['prompt']}\n{row['answer']}".encode()
    assert row["prompt_id"] == hashlib.sha256(content).hexdigest()[:16]
    assert len(set(data["prompt_id"])) == len(data)
    assert tasks.fingerprint(data) == tasks.fingerprint(tasks.load("tiny"))
    assert tasks.fingerprint(data) != tasks.fingerprint(data.select(range(1, len(data))))


def test_one_suite_can_be_asked_for():
    assert set(tasks.load("tiny", split="test", suite="times-3")["suite"]) == {"times-3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "huge"}, "unknown task 'huge': the known ones are tiny"),
        ({"name": "tiny", "split": "dev"}, "unknown split 'dev' of tiny: the known ones are train, test"),
        ({"name": "dapo", "split": "test"}, "unknown split 'test' of dapo: the known ones are train"),
        ({"name": "gsm8k", "suite": "math500"}, "unknown suite 'math500' of gsm8k"),
        ({"name": "tiny", "style": "chat"}, "tiny takes no style"),
        ({"name": "tiny", "suite": "times-9"}, "unknown suite 'times-9' .* the known ones are times-1, "),
        ({"name": "tiny", "path": "nowhere.jsonl"}, "no prompts file 'nowhere.jsonl'"),
        ({"name": "tiny", "path": "test"}, "path='test' names a split, not a file: write split='test'"),
        ({"name": "gsm8k", "path": "test"}, "path='test' names a split"),
    ],
)
def test_unknown_names_are_refused(arguments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        tasks.load(**arguments)


ROW = {"prompt": "Aa1b+1=", "answer": "2", "suite": "times-1", "level": 2}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["not json"], "line 1 is not JSON"),
        ([json.dumps({k: v for k, v in ROW.items() if k != "answer"})], "line 1: no valid answer"),
        ([json.dumps(ROW | {"level": "two"})], "line 1: no valid level"),
        (["[1, 2]"], "line 1 is not an object"),
        ([json.dumps(ROW)] * 2, "line 2: prompt .* occurs twice"),
        ([], "holds no prompts"),
    ],
)
def test_bad_files_are_refused(tmp_path, lines, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        tasks.load("tiny", path=path)


def test_public_sets_are_loaded_by_name():
    rows = Path(__file__).with_name("rows")
    data = tasks.load("gsm8k", rows / "gsm8k.jsonl", style="plain", verify=False)
    assert data["suite"] == ["gsm8k"] * 2
    assert tasks.load("dapo", rows / "dapo-processed.jsonl", split="train", verify=False).num_rows == 6


def test_a_data_set_without_ids_has_no_fingerprint():
    with pytest.raises(ValueError, match="no column prompt_id"):
        tasks.fingerprint(tasks.load("tiny").remove_columns("prompt_id"))


def test_the_data_folder_is_found_from_below(monkeypatch):
    root = tasks.data_root()
    monkeypatch.chdir(root / "prompts")
    assert tasks.data_root() == root


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown tiny model 'tiny-xl': the known ones are .*tiny-s"):
        tasks.model_path("tiny-xl")


def test_checksums_of_the_data_folder():
    root = tasks.data_root()
    listed = dict(
        re.findall(r"`([^`]+)` \| `([0-9a-f]{64})`", (root / "README.md").read_text(encoding="utf-8"))
    )
    kept = ("models/*/*", "prompts/*", "tiny/*/*", "reported/*", "overhead/*", "*.csv", "*.parquet")
    found = {p.relative_to(root).as_posix() for pattern in kept for p in root.glob(pattern)}
    assert found == set(listed)
    for name in sorted(found):
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == listed[name], name


def test_checksums_of_the_recorded_runs():
    root = tasks.data_root() / "runs"
    listed = dict(line.split("  ")[::-1] for line in (root / "SHA256SUMS").read_text().splitlines())
    recorded = {
        p.relative_to(root).as_posix() for p in root.glob("*/*/seed-*/*") if p.suffix in (".parquet", ".json")
    }
    assert set(listed) <= recorded  # a reader may have made more
    for name, digest in listed.items():
        assert hashlib.sha256((root / name).read_bytes()).hexdigest() == digest, name
