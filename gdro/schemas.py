r"""Rows of the public data sets as problems: which field holds what, and how each writes its answer.

Answers come out as a reader would write them: AIME's "025" is 25, AMC's 27.0 is 27, GSM8K's stands behind
"####" without thousands separators, Minerva's in the last \boxed{} of the solution, and OlympiadBench's list
loses its dollar signs.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from gdro.grading import last_box
from gdro.prompts import SUFFIX

# What the chat forms of DAPO-Math-17k put before and after a problem: BytedTsinghua-SIA's own, GRESO's,
# and that of the paper's released code
WRAPPERS = (
    (
        "Solve the following math problem step by step. The last line of your response should be of the form "
        "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n",
        '\n\nRemember to put your answer on its own line after "Answer:".',
    ),
    (
        "Please solve the following math problem: ",
        ". The assistant first thinks about the reasoning process step by step and then provides the user "
        r"with the answer. Return the final answer in \boxed{} tags, for example \boxed{1}. Let's solve this "
        "step by step. ",
    ),
    ("", f" {SUFFIX}"),
)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOLLAR = re.compile(r"(?<!\\)\$")


@dataclass(frozen=True)
class Problem:
    """One row: the text, every answer it states (one, unless it contradicts itself), and what is known of it.

    ``choices`` are all of a multiple-choice question, the right one among them.
    """

    text: str
    answers: tuple[str, ...]
    level: int | None = None
    subject: str | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """How rows of a data set are read: the fields looked at, and the function from a row to a `Problem`."""

    fields: tuple[str, ...]
    read: Callable[[dict], Problem]


def unwrapped(text: str) -> str:
    """The problem in a prompt that puts a known instruction around it; any other text as it is.

    >>> unwrapped(WRAPPERS[1][0] + "Find $1+1$." + WRAPPERS[1][1])
    'Find $1+1$.'
    """
    for before, after in WRAPPERS:
        if text.startswith(before) and text.endswith(after):
            return text[len(before) : len(text) - len(after)]
    return text


def _text(value) -> str:
    return "" if value is None else str(value)


def _first(row, *names):
    """Value of the first of these fields that the row has; KeyError where it has none."""
    for name in names:
        if name in row:
            return row[name]
    raise KeyError(" or ".join(names))


def _number(value) -> str:
    """An answer as text, whole numbers in their shortest form."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = _text(value).strip()
    return str(int(text)) if _INTEGER.fullmatch(text) else text


def _dapo(row):
    prompt = _first(row, "prompt", "problem")
    if not isinstance(prompt, str):
        messages = prompt or []
        prompt = _text(messages[-1].get("content")) if len(messages) else ""
    graded = (row.get("reward_model") or {}).get("ground_truth")
    stated = [graded, *(row.get(name) for name in ("solution", "answer"))]
    if not any(name in row for name in ("reward_model", "solution", "answer")):
        raise KeyError("reward_model or solution or answer")
    answers = (_number(value) for value in stated if value is not None)
    return Problem(unwrapped(prompt), tuple(dict.fromkeys(answers)))


def _math(row):
    level = row.get("level")
    return Problem(
        _text(_first(row, "problem")),
        (_text(_first(row, "answer")).strip(),),
        level=None if level is None else int(level),
        subject=row.get("subject"),
    )


def _contest(row):
    return Problem(_text(_first(row, "problem", "question")), (_number(_first(row, "answer")),))


def _minerva(row):
    text = _text(_first(row, "problem", "question"))
    answer = _text(row["answer"]).strip() if "answer" in row else last_box(_text(_first(row, "solution")))
    return Problem(text, (answer or "",), subject=row.get("type"))


def _olympiad(row):
    parts = (_text(row.get("context")), _text(_first(row, "question")))
    values = [_DOLLAR.sub("", _text(value)).strip() for value in _first(row, "final_answer") or ()]
    return Problem("\n\n".join(filter(None, parts)), (", ".join(values),), subject=row.get("subfield"))


def _gsm8k(row):
    marked = _text(_first(row, "answer")).rpartition("####")
    return Problem(
        _text(_first(row, "question")), (_number(marked[2].replace(",", "")) if marked[1] else "",)
    )


def _gpqa(row):
    right = _text(_first(row, "Correct Answer")).strip()
    wrong = (_text(_first(row, f"Incorrect Answer {i}")).strip() for i in (1, 2, 3))
    subject = row.get("High-level domain")
    return Problem(_text(_first(row, "Question")), (right,), subject=subject, choices=(right, *wrong))


DAPO = Schema(("prompt", "problem", "reward_model", "solution", "answer"), _dapo)
MATH = Schema(("problem", "answer", "level", "subject"), _math)
CONTEST = Schema(("problem", "question", "answer"), _contest)
MINERVA = Schema(("problem", "question", "answer", "solution", "type"), _minerva)
OLYMPIAD = Schema(("question", "context", "final_answer", "subfield"), _olympiad)
GSM8K = Schema(("question", "answer"), _gsm8k)
GPQA = Schema(
    ("Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)), "High-level domain"), _gpqa
)
