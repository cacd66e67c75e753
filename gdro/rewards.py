"""Graders: functions of completions and answers that return rewards, in TRL's form."""

import atexit
import functools
import logging
import os
import re
import threading
from collections import Counter

from gdro.grader_pool import GraderPool
from gdro.grading import MAX_LENGTH, danger, last_box, number, numeral, plain, same_number

logger = logging.getLogger(__name__)

VERDICTS = (
    "correct",
    "wrong",
    "no_answer",  # no box, or the last one is unterminated or empty
    "unparsable",
    "refused",  # gdro.grading.danger
    "timeout",
    "crashed",
    "bad_gold",  # the gold cannot be read: leave such items out, see verify_gold
)
GOLD_DEADLINE = 10.0  # seconds: a data set must not depend on how busy the machine is

_TINY_ANSWER = re.compile(r"#(-?[0-9]{1,9})\Z")
_CHOICE = re.compile(r"(?:\\(?:text|mathrm|textbf|mathbf)\s*\{)?\s*\(?([A-Z])\)?[.:)]?\s*\}?", re.IGNORECASE)

_counts: Counter[str] = Counter()
_counts_lock = threading.Lock()


def tiny_reward(completions, answer, **kwargs) -> list[float]:
    """1.0 where the completion ends in ``#`` and the right integer, else 0.0.

    Nothing may follow the integer. completions: R strings. answer: R decimal strings. Further keyword
    arguments (the data set's other columns) are ignored.

    >>> tiny_reward(["ve7f5#10", "n#9", "n#10b"], ["10", "10", "10"])
    [1.0, 0.0, 0.0]
    """
    _check_rows(completions=completions, answer=answer)
    found = [_TINY_ANSWER.search(text) for text in completions]
    return [float(m is not None and int(m.group(1)) == int(a)) for m, a in zip(found, answer, strict=True)]


def math_reward(completions, answer, log_metric=None, **kwargs) -> list[float | None]:
    r"""1.0 where the last ``\boxed{}`` of a completion equals the answer, else 0.0; None without an answer.

    What cannot be read, is refused, or takes too long earns 0.0; ``verdicts`` tells these apart, and so do
    the metrics. Numbers in digits are compared exactly, all else by math-verify in a process of its own.

    completions: R strings or conversations (lists of messages, the last one counts). answer: R strings as
    the data set holds them, None or empty for a row that this reward does not apply to. log_metric: TRL's
    callback, called with the share of every verdict in this batch ("math_reward/timeout" and so on). Further
    keyword arguments are ignored.

    >>> math_reward([r"so \boxed{1{,}000}", r"\boxed{7} or \boxed{8}", "9"], ["1000", "7", "9"])
    [1.0, 0.0, 0.0]
    """
    found = verdicts(completions, answer)
    tally = Counter(verdict for verdict in found if verdict is not None)
    with _counts_lock:
        _counts.update(tally)
    if log_metric is not None:
        for verdict in VERDICTS:
            log_metric(f"math_reward/{verdict}", tally[verdict] / max(tally.total(), 1))
    logger.info("graded %d completions: %s", len(found), dict(tally))
    if tally["bad_gold"]:
        logger.warning("%d answers cannot be read: leave out what verify_gold rejects", tally["bad_gold"])
    return [None if verdict is None else float(verdict == "correct") for verdict in found]


def verdicts(completions, answer) -> list[str | None]:
    r"""One of ``VERDICTS`` for every completion, None where there is no answer to compare with.

    Arguments as for ``math_reward``. A box that repeats the answer to the letter is correct even where the
    answer cannot be read.

    >>> verdicts([r"\boxed{1/2}", r"\boxed{0.3}", r"\boxed{", r"\boxed{9^{9^{9^9}}}"], ["0.5"] * 4)
    ['correct', 'wrong', 'no_answer', 'refused']
    """
    _check_rows(completions=completions, answer=answer)
    for i, gold in enumerate(answer):
        if not (gold is None or isinstance(gold, str)):
            raise TypeError(f"answer[{i}] is {gold!r}; give a string, or None where there is no answer")
    pairs = [(_plain(gold), _plain(last_box(_text(c)))) for c, gold in zip(completions, answer, strict=True)]
    found = [_verdict_of_text(*pair) for pair in pairs]
    hard = [i for i, verdict in enumerate(found) if verdict == "open"]
    for i, verdict in zip(hard, _grade([pairs[i] for i in hard]), strict=True):
        found[i] = verdict
    return found


def verdict_counts() -> dict[str, int]:
    """How often ``math_reward`` of this process came to each verdict so far."""
    with _counts_lock:
        return {verdict: _counts[verdict] for verdict in VERDICTS}


def verify_gold(answers) -> list[bool]:
    r"""Whether each answer, put into a box, is read and equals itself: the condition for keeping its item.

    answers: strings as the data set holds them. An answer that fails could only be met to the letter.

    >>> verify_gold(["12", "", r"9^{9^{9^9}}"])
    [True, False, False]
    """
    _check_rows(answers=answers)
    texts = [_plain(answer) for answer in answers]
    safe = [bool(text) and danger(text) is None for text in texts]
    good = [ok and number(text) is not None for ok, text in zip(safe, texts, strict=True)]
    hard = [i for i, ok in enumerate(safe) if ok and not good[i]]
    for i, verdict in zip(hard, _grade([(texts[i], texts[i]) for i in hard], GOLD_DEADLINE), strict=True):
        good[i] = verdict == "correct"
    return good


def choice_reward(completions, answer, **kwargs) -> list[float]:
    r"""1.0 where the last ``\boxed{}`` of a completion holds the letter of the right choice alone, else 0.0.

    completions: as for ``math_reward``. answer: R letters. ``B``, ``(b)``, ``B.`` and ``\text{B}`` are the
    same; two letters, or a letter and a text, are no choice. Further keyword arguments are ignored. Raises
    ValueError for an answer that is not one letter.

    >>> choice_reward([r"\boxed{\text{(B)}}", r"\boxed{A or B}", "B"], ["B", "B", "B"])
    [1.0, 0.0, 0.0]
    """
    _check_rows(completions=completions, answer=answer)
    for i, letter in enumerate(answer):
        if not re.fullmatch("[A-Z]", letter):
            raise ValueError(
                f"answer[{i}] is {letter!r}, not a letter from A to Z; give the letter of the choice"
            )
    given = [_CHOICE.fullmatch(last_box(_text(completion)) or "") for completion in completions]
    return [float(m is not None and m[1].upper() == a) for m, a in zip(given, answer, strict=True)]


def _check_rows(**named):
    """Refuse one string where a row each is meant (it would be graded by character), and unequal lengths."""
    for name, rows in named.items():
        if isinstance(rows, str):
            raise TypeError(f"{name} is one string, {rows[:40]!r}; give a list with an entry a row")
    lengths = {name: len(rows) for name, rows in named.items()}
    if len(set(lengths.values())) > 1:
        both = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise ValueError(f"every row needs one of each, got {both}")


@functools.cache
def _pool(process):
    """The grading processes of this process; a forked child gets its own, and leaves its parent's alone."""
    share = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    pool = GraderPool(workers=min(max(share, 1), 8))
    atexit.register(lambda: pool.close() if os.getpid() == process else None)
    return pool


def _grade(pairs, deadline=None):
    """Verdicts of algebra; without pairs no process is started."""
    return _pool(os.getpid()).grade(pairs, deadline) if pairs else []


def _text(completion):
    """The text of a completion: of its last message where it is a conversation, "" where that has none."""
    if isinstance(completion, str):
        return completion
    return (completion[-1]["content"] if completion else None) or ""


def _plain(text):
    """``plain`` of a text that is short enough to be looked at; a longer one ``danger`` will refuse."""
    return plain(text) if text and len(text) <= MAX_LENGTH else text


def _verdict_of_text(gold, answer):
    """The verdict that needs no algebra, or "open"."""
    if not gold:
        return None
    if answer is None:
        return "no_answer"
    if gold == answer:
        return "correct"
    if max(len(gold), len(answer)) <= MAX_LENGTH:
        numbers = number(gold), number(answer)
        if None not in numbers:
            return "correct" if same_number(*numbers) else "wrong"
        numerals = numeral(gold), numeral(answer)
        if None not in numerals:
            return "correct" if numerals[0] == numerals[1] else "wrong"
    if danger(gold):
        return "bad_gold"
    return "refused" if danger(answer) else "open"
