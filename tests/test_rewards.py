"""The graders: the right answer in any form is rewarded, and nothing else is, whatever it looks like."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
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


CASES = json.loads((Path(__file__).parent / "grader_cases.json").read_text(encoding="utf-8"))["cases"]
FORMS = [
    r"{}\sqrt{{3}}",
    r"\sqrt{{{}}}",
    r"({}, 5)",
    r"\{{2, {}, x\}}",
    r"x = {}",
    r"{}x^2 + 1",
    r"\frac{{\pi}}{{{}}}",
    r"10^{{-{}}}",
    r"{} + 2i",
    r"[0, {})",
    r"\frac{{1}}{{{}!}}",
    r"{} \text{{ or }} x",
    r"{}t",
]


def boxed(text):
    return f"so \\boxed{{{text}}}"


def test_reported_cases():
    marks = rewards.math_reward([c["prediction"] for c in CASES], [c["gold"] for c in CASES])
    assert marks == [float(c["correct"]) for c in CASES]


def test_reported_cases_one_by_one_from_a_thread_with_a_grading_after_each():
    def grade_all():
        for case in CASES:
            marks.append(rewards.math_reward([case["prediction"]], [case["gold"]])[0])
            after.append(rewards.math_reward([boxed(r"\sqrt{8}")], [r"2\sqrt{2}"])[0])

    marks, after = [], []
    thread = threading.Thread(target=grade_all)
    thread.start()
    thread.join()
    assert marks == [float(c["correct"]) for c in CASES]
    assert after == [1.0] * len(CASES)


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("34", "34.0", "correct"),
        ("34", "34.0000001", "wrong"),
        ("100000000000000000001", "100000000000000000000.0", "wrong"),
        (r"\frac{1}{3}", "0.333333333", "correct"),
        (r"\frac{1}{3}", "0.333", "wrong"),
        ("4.5e33", r"4.5 \times 10^{33}", "correct"),
        (r"1.2 \times 10^{-20} \pi", r"2.2 \times 10^{-20} \pi", "wrong"),
        (r"\frac{1}{2^{2024}}", r"\frac{1}{2^{2025}}", "wrong"),
        (r"1 - \frac{1}{\mathrm{e}}", "1 - 1/e", "correct"),
        ("2t", "2", "wrong"),
        ("2ab", "2", "wrong"),
        ("t + 5", "5 + t", "correct"),
        ("52_8", "52_{8}", "correct"),
        ("52_8", "52_4", "wrong"),
        ("1010_2", "1010_52", "wrong"),
        ("1010_2", "-1010_2", "wrong"),
        ("1F_{16}", "1F_16", "correct"),
        (r"c^{2}(\gamma^{2}-1)", r"c^{2}(\gamma^{2}-9)", "bad_gold"),  # read as the function, at its pole
        ("5", r"5 \mathrm{~cm}", "correct"),
        ("90", r"90^\circ", "correct"),
        ("1,2", "2, 1", "correct"),
        ("1,2", "2", "wrong"),
        (r"(1,2) \text{ and } (3,4)", "(1,2)", "wrong"),
        (r"\{1,2\}", "(1,2)", "wrong"),
        (r"\frac{1}{2}", r"garbage \frac{1}{2}", "wrong"),
        ("3", r"\frac{1}{", "no_answer"),
        ("3", "1+", "unparsable"),
        ("3", r"\frac{1}{0}", "unparsable"),
        (r"x + 1", r"x + \frac{1}{0}", "unparsable"),
        ("3", "9^{9^{9^9}}", "refused"),
        ("3", "(9^9)!", "timeout"),
        ("1:2:3:\\ldots", "7x", "bad_gold"),
        ("9^{9^{9^9}}", "7", "bad_gold"),
        ("9^{9^{9^9}}", "9^{9^{9^9}}", "correct"),  # to the letter
        ("3", "", "no_answer"),
        (None, "3", None),
        ("", "3", None),
    ],
)
def test_verdicts(gold, answer, verdict):
    assert rewards.verdicts([boxed(answer)], [gold]) == [verdict]
    assert rewards.math_reward([boxed(answer)], [gold]) == [
        None if verdict is None else float(verdict == "correct")
    ]


def test_what_ends_without_a_verdict_is_counted_apart_and_logged():
    before, logged = rewards.verdict_counts(), {}
    completions = [boxed("34"), boxed("35"), boxed("1+"), boxed("9^{9^{9^9}}"), "34", boxed("(9^9)!")]
    rewards.math_reward([*completions, "x"], ["34"] * 6 + [None], log_metric=logged.__setitem__)
    after = rewards.verdict_counts()
    seen = ("correct", "wrong", "unparsable", "refused", "no_answer", "timeout")
    assert {v: after[v] - before[v] for v in after} == {v: int(v in seen) for v in rewards.VERDICTS}
    assert logged == {f"math_reward/{v}": pytest.approx((v in seen) / 6) for v in rewards.VERDICTS}


def test_the_last_message_of_a_conversation_is_graded():
    asked, said = {"role": "user", "content": boxed("1")}, {"role": "assistant", "content": boxed("2")}
    assert rewards.math_reward([[asked, said], [said], [], [{"content": None}]], ["2"] * 4) == [1, 1, 0, 0]
    assert rewards.choice_reward([[{"role": "assistant", "content": boxed("B")}]], ["B"]) == [1.0]


def test_a_gold_must_be_read_and_equal_itself():
    golds = [
        r"\left( 3, \frac{\pi}{2} \right)",
        "27.0",
        "12:00",
        "np.arcsin(10/13)",
        "9^{9^{9^9}}",
        "",
        "x" * 1001,
    ]
    assert rewards.verify_gold(golds) == [True, True, False, False, False, False, False]
    assert rewards.verify_gold([]) == []


@pytest.mark.parametrize("answer", ["C", "c", "(C)", "C.", r"\text{C}", r"\textbf{(C)}"])
def test_ways_to_write_a_choice(answer):
    assert rewards.choice_reward([boxed(answer)], ["C"], subject=["physics"]) == [1.0]


@pytest.mark.parametrize("answer", ["B", "BC", "B, C", "C or D", "C. nothing", "3", "", "Ç", r"C\\D"])
def test_no_other_choice_is_rewarded(answer):
    assert rewards.choice_reward([boxed(answer)], ["C"]) == [0.0]


def test_answers_of_another_form_are_refused():
    with pytest.raises(TypeError, match=r"answer\[1\] is 27.0"):
        rewards.math_reward(["", ""], ["1", 27.0])
    with pytest.raises(ValueError, match=r"answer\[0\] is 'AB'"):
        rewards.choice_reward([""], ["AB"])


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FORMS), st.integers(2, 400), st.integers(1, 50)), max_size=8))
def test_another_number_in_the_same_place_is_never_accepted(rows):
    golds = [form.format(number) for form, number, _ in rows]
    marks = rewards.math_reward([boxed(form.format(n + more)) for form, n, more in rows], golds)
    assert marks == [0.0] * len(rows)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=12), st.sampled_from(["7", r"\sqrt{2}", "x+1", r"\text{east}"]))
def test_no_text_is_rewarded_or_stops_the_grader(text, gold):
    given_ = boxed("\\Q" + text)
    assert rewards.verdicts([given_, boxed(gold)], [gold] * 2)[1] == "correct"
    assert rewards.math_reward([given_], [gold]) == [0.0]


MEGABYTE = 2**20


@pytest.mark.parametrize(
    "text",
    [r"\boxed{" * (MEGABYTE // 7), "{" * MEGABYTE, "\\" * MEGABYTE, "\x00" * MEGABYTE]
    + [boxed(unit * (MEGABYTE // len(unit))) for unit in ("9", " 1", "\\frac", "{}", "^9", "\ud800", "1 ")],
    ids=lambda text: ascii(text[:16]),
)
def test_a_megabyte_earns_nothing(text):
    assert rewards.math_reward([text], ["7"]) == [0.0]
    assert rewards.choice_reward([text], ["A"]) == [0.0]


@pytest.mark.parametrize("reward", [rewards.tiny_reward, rewards.math_reward, rewards.choice_reward])
def test_one_string_and_unequal_lengths_are_refused_by_name(reward):
    with pytest.raises(TypeError, match="completions is one string, '12'; give a list"):
        reward("12", ["1", "2"])
    with pytest.raises(ValueError, match="got 1 completions, 2 answer"):
        reward(["1"], ["1", "2"])


def test_one_gold_is_not_graded_by_character():
    with pytest.raises(TypeError, match="answers is one string, '12'"):
        rewards.verify_gold("12")
