"""The questions of the study: in order, complete, and about arms and scales that exist."""

import pytest

from gdro import arms, questions, study_arms


def test_the_questions_are_in_order():
    table = questions.table()
    assert list(table.index) == list(questions.QUESTIONS) == list(range(1, 15))
    assert not (table.map(str) == "").any().any()


@pytest.mark.parametrize("question", questions.QUESTIONS.values(), ids=lambda q: str(q.number))
def test_its_cells_are_cells_of_the_study(question):
    assert arms.cells(question.scales, question.arms, range(question.seeds))
    assert len(set(question.arms)) == len(question.arms)
    assert {"grpo", "prompt-gdro-error"} & set(question.arms)  # something to compare with


def test_every_variant_answers_a_question():
    asked = {arm for question in questions.QUESTIONS.values() for arm in question.arms}
    assert set(study_arms.VARIANTS) <= asked


def test_the_main_comparison_has_ten_seeds_and_the_sweeps_five():
    seeds = {number: question.seeds for number, question in questions.QUESTIONS.items()}
    assert {seeds[n] for n in (1, 2, 3, 12)} == {10}
    assert {seeds[n] for n in range(4, 11)} == {5}
