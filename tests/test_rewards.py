"""The tiny grader: exact, anchored at the end, and unmoved by anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdro import rewards, tasks


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("ve7f5#10", "10", 1.0),
        ("n#10", "10", 1.0),
        ("#10", "10", 1.0),
        ("n#1#10", "10", 1.0),  # the last one counts
        ("n#10#1", "10", 0.0),
        ("n#10 ", "10", 0.0),  # nothing may follow
        ("n#10\n", "10", 0.0),
        ("n10", "10", 0.0),
        ("n#", "10", 0.0),
        ("", "0", 0.0),
        ("n#010", "10", 1.0),  # the same integer
        ("n#-4", "-4", 1.0),
        ("n#--4", "-4", 0.0),
        ("n#١٠", "10", 0.0),  # digits of other scripts are no answer
        ("n#" + "9" * 5000, "10", 0.0),  # too long to be read as a number
    ],
)
def test_cases(completion, answer, reward):
    assert rewards.tiny_reward([completion], [answer]) == [reward]


@given(st.lists(st.tuples(st.text(max_size=20), st.integers(-99, 99), st.integers(-99, 99)), max_size=8))
def test_a_final_answer_is_right_exactly_if_equal(rows):
    completions = [f"{text}#{given_}" for text, given_, _ in rows]
    answers = [str(answer) for _, _, answer in rows]
    assert rewards.tiny_reward(completions, answers) == [float(g == a) for _, g, a in rows]


def test_every_own_completion_is_right_and_other_columns_are_ignored():
    problems = tasks.make_problems(2, (2, 6, 8), seed=0)
    for worked in (True, False):
        completions = [p.completion(worked) for p in problems]
        marks = rewards.tiny_reward(completions, [p.answer for p in problems], suite=["x"] * len(problems))
        assert marks == [1.0] * len(problems)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        rewards.tiny_reward(["#1", "#2"], ["1"])
