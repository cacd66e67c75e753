"""The questions of the study: twelve, complete, and about arms and scales that exist."""

import pytest

from gdro import arms, questions


def test_twelve_questions_in_order():
    table = questions.table()
    assert list(table.index) == list(questions.QUESTIONS) == list(range(1, 13))
    assert not (table.map(str) == "").any().any()


@pytest.mark.parametrize("question", questions.QUESTIONS.values(), ids=lambda q: str(q.number))
def test_scales_and_plain_arm_names_are_those_of_the_study(question):
    assert set(question.scales) <= set(arms.SCALES)
    named = {arm for arm in question.arms if not set(arm) & set(" .,")}
    assert question.number in (6, 7, 8) or "grpo" in named
    planned = {"prompt-gdro-spread", "prompt-gdro-error-shuffled"}
    assert named <= set(arms.ARMS) | planned


def test_the_main_comparison_has_ten_seeds_and_the_sweeps_five():
    seeds = {number: question.seeds for number, question in questions.QUESTIONS.items()}
    assert {seeds[n] for n in (1, 2, 3, 12)} == {10}
    assert {seeds[n] for n in range(4, 11)} == {5}
