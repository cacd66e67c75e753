"""The paper's benchmark suites: every row to its own grader, and what cannot be had named at once."""

import shutil

import pytest
import stand_in

from gdro import suites


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return stand_in.sets(tmp_path_factory.mktemp("sets"))


def test_the_suites_are_those_of_table_1(sets):
    data = suites.load(folder=sets)
    assert list(dict.fromkeys(data["suite"])) == list(suites.SUITES) == list(suites.TITLES)
    assert data["suite"].count("aime") == 4
    known = [suite for suite, level in zip(data["suite"], data["level"], strict=True) if level is not None]
    assert set(known) == {"math500"}
    assert all(prompt[0]["role"] == "user" for prompt in data["prompt"])
    assert all(isinstance(prompt, str) for prompt in suites.load(folder=sets, style="plain")["prompt"])


def test_each_grader_takes_its_own_suite(sets):
    data = suites.load(folder=sets)
    columns = {name: data[name] for name in ("answer", "suite")}
    right = [rf"so \boxed{{{answer}}}" for answer in data["answer"]]
    assert suites.suite_reward(right, **columns) == [1.0] * len(data)
    letters = suites.suite_reward([r"\boxed{A}"] * len(data), **columns)
    chosen = [suite in suites.CHOICES for suite in data["suite"]]
    expected = [float(c and a == "A") for c, a in zip(chosen, data["answer"], strict=True)]
    assert letters == expected
    assert 0 < sum(expected) < sum(chosen)


def test_sets_that_cannot_be_had_are_all_named(sets, tmp_path):
    for name in ("math500.jsonl", "aime24.jsonl"):
        shutil.copy(sets / name, tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"(?s)aime25: the folder .* holds none.*amc23: .*gpqa-diamond: "
    ):
        suites.load(folder=tmp_path)
    with pytest.raises(ValueError, match=r"unknown suite 'aime24'; the known ones are 'math500', 'aime'"):
        suites.load(["aime24"], tmp_path)
    with pytest.raises(ValueError, match="no suite given"):
        suites.load([], tmp_path)
    assert len(suites.load(["math500"], tmp_path, verify=False)) == 4


def test_one_name_is_no_list_of_suites_and_a_name_twice_is_one(sets):
    with pytest.raises(TypeError, match=r"write \['math500'\]"):
        suites.load("math500", sets)
    once, twice = (suites.load(names, sets) for names in (["math500"], ["math500", "math500"]))
    assert once["prompt_id"] == twice["prompt_id"]
