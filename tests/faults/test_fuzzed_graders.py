"""Graders on what nobody should write: no crash, no hang, and no changed number is taken for right.

What hangs is told by processor time, here by this process's own and in a grading process by the pool, whose
kernel's timer ends it: neither depends on what else the machine does.
"""

import json
import random
import time
from fractions import Fraction
from pathlib import Path

import pytest

from gdro import benchmarks, rewards
from gdro.grading import danger, last_box, number, numeral, plain

ROWS = Path(__file__).parents[1] / "rows"
SETS = ("dapo-processed", "math500", "aime24", "aime25", "amc23", "gsm8k", "olympiadbench", "minerva")
QUICK = 40
MANY = pytest.param(2500, marks=pytest.mark.faults)
WORDS = (Path(__file__).with_name("latex_words.txt")).read_text(encoding="utf-8").split()


def real_answers():
    """Every answer of the benchmarks' sample rows, and of the cases that graders were reported with."""
    found = [
        answer
        for name in SETS
        for answer in benchmarks.load(name.split("-")[0], ROWS / f"{name}.jsonl", verify=False)["answer"]
    ]
    cases = json.loads((ROWS.parent / "grader_cases.json").read_text(encoding="utf-8"))["cases"]
    return sorted({*found, *(case["gold"] for case in cases)})


def mutated(text, rng):
    """``text`` with a digit of it changed, or one put before or behind it, or its sign turned."""
    digits = [at for at, character in enumerate(text) if character.isdecimal() and character.isascii()]
    at = rng.choice(digits)
    other = rng.choice([d for d in "123456789" if d != text[at]])
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + other + text[at + 1 :]
    if kind == 1:
        return text[:at] + other + text[at:]
    if kind == 2:
        return text[: at + 1] + other + text[at + 1 :]
    return "-" + text if not text.startswith("-") else text[1:]


def boxed(text):
    return f"so \\boxed{{{text}}}"


def value_of(text):
    """The exact value of a text that is a number in digits, or None; by other means than the graders'."""
    if "_" in text:  # Python's mark of thousands, here a base
        return None
    text = text.replace(",", "").replace(" ", "").replace("{", "(").replace("}", ")")
    for opening in ("\\dfrac", "\\tfrac", "\\frac"):
        if text.startswith(opening) and text.count(")(") == 1:
            above, below = text.removeprefix(opening).strip("()").split(")(")
            text = f"{above}/{below}"
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


@pytest.mark.parametrize("count", [QUICK, MANY])
def test_no_changed_number_is_accepted(count):
    """Numbers in digits by the value of both; in a formula by what is left of each without its digits ..."""
    rng, answers = random.Random(0), [a for a in real_answers() if value_of(a) is not None]
    pairs = []
    while len(pairs) < count:
        gold = rng.choice(answers)
        given = mutated(gold, rng)
        if value_of(given) != value_of(gold):
            pairs.append((gold, given))
    marks = rewards.math_reward([boxed(given) for _, given in pairs], [gold for gold, _ in pairs])
    assert [pair for pair, mark in zip(pairs, marks, strict=True) if mark] == []


FORMULAS = [
    *(
        r"\frac{3}{8}",
        r"2\sqrt{3}",
        r"\frac{7\pi}{4}",
        r"\frac{\sqrt{33}}{6}",
        r"4+5\sqrt{2}",
        r"-\frac{9}{4}",
    ),
    *("x+5", "3x^2-7", "(2,3)", r"\left(3,\frac{5}{2}\right)", "[2,7)", r"\{2,4,9\}", r"2^{53}", "y=4x-6"),
]


@pytest.mark.parametrize("count", [QUICK, MANY])
def test_no_changed_number_in_a_formula_is_accepted(count):
    """A digit put before or behind one of a formula's; 0 and 1 may stand where they do not count."""
    rng = random.Random(1)
    answers = [a for a in real_answers() if value_of(a) is None and any(c in "23456789" for c in a)]
    answers = [a for a in [*answers, *FORMULAS] if "0" not in a and "1" not in a]
    assert len(answers) > 15
    pairs = []
    while len(pairs) < count:
        gold = rng.choice(answers)
        given = mutated(gold, rng)
        if plain(given) != plain(gold):
            pairs.append((gold, given))
    verdicts = rewards.verdicts([boxed(given) for _, given in pairs], [gold for gold, _ in pairs])
    accepted = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict == "correct"]
    assert accepted == []
    assert verdicts.count("crashed") == 0
    assert verdicts.count("timeout") <= count // 20


@pytest.mark.parametrize("count", [QUICK, MANY])
def test_random_formulas_neither_crash_nor_hang_nor_are_right(count):
    rng = random.Random(2)
    texts = ["".join(rng.choices(WORDS, k=rng.randint(1, 25))) for _ in range(count)]
    start = time.process_time()
    for text in texts:
        last_box(text), plain(text), number(text), numeral(text), danger(text)
    assert time.process_time() - start < 0.01 * count
    golds = [rng.choice(["7", r"\frac{3}{8}", r"2\sqrt{3}", r"(1,2)", "x+1"]) for _ in texts]
    verdicts = rewards.verdicts([boxed(text) for text in texts], golds)
    assert set(verdicts) <= set(rewards.VERDICTS)
    assert verdicts.count("crashed") == 0
    assert verdicts.count("timeout") <= count // 20
    wrong = [(g, t) for g, t, v in zip(golds, texts, verdicts, strict=True) if v == "correct"]
    assert wrong == []
    assert rewards.verdicts([boxed(r"\sqrt{12}")], [r"2\sqrt{3}"]) == ["correct"]  # all are still at work


@pytest.mark.parametrize("count", [QUICK, MANY])
def test_control_characters_are_refused_or_make_it_another_answer(count):
    rng = random.Random(3)
    strange = [
        chr(c) for c in (*range(32), 127, 0x85, 0x200B, 0x200E, 0x202E, 0x2028, 0xFEFF, 0xD800, 0x1D7CE)
    ]
    pairs = []
    for _ in range(count):
        gold = rng.choice(["7", "12", r"\frac{3}{8}", r"2\sqrt{3}", "(1,2)"])
        at = rng.randint(1, len(gold) - 1) if len(gold) > 1 else 1
        # neither 0 nor 1: after a space, 3/08 and 2 times 1 root 3 are the same numbers in another text
        pairs.append((gold, gold[:at] + rng.choice(strange) + rng.choice("23456789") + gold[at:]))
    verdicts = rewards.verdicts([boxed(given) for _, given in pairs], [gold for gold, _ in pairs])
    accepted = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict == "correct"]
    assert accepted == []
    assert verdicts.count("crashed") == 0
    assert verdicts.count("timeout") <= count // 20


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(12))
def test_a_megabyte_of_anything_is_quick_and_earns_nothing(seed):
    rng = random.Random(seed)
    units = ["".join(rng.choices(WORDS, k=3)) for _ in range(4)]
    text = "".join(rng.choices(units, k=2**20 // max(len(max(units, key=len)), 1)))
    start = time.process_time()
    for completion in (text, boxed(text), "\\boxed{" + text):
        assert rewards.math_reward([completion], ["7"]) == [0.0]
        assert rewards.choice_reward([completion], ["A"]) == [0.0]
        assert rewards.tiny_reward([completion], ["7"]) == [0.0]
    assert time.process_time() - start < 5
