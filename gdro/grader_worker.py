"""One grading process: reads pairs of answers from standard input, writes what algebra says of each.

Started as ``python -m gdro.grader_worker`` by ``gdro.grader_pool``. Lines of JSON: first ``"ready"`` from
here; then, for each ``[gold, answer, seconds]``, one of "correct", "wrong", "unparsable" and "bad_gold" (the
gold cannot be read). A pair that takes more processor time than its seconds ends the process by SIGPROF: the
kernel sees to that, whatever the process is in, and a busy machine does not make an answer wrong. Needs
math-verify, and neither torch nor TRL.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from functools import lru_cache

import sympy
from math_verify import LatexExtractionConfig, parse, verify

MEMORY = 4 << 30  # bytes of address space

WARM_UP = [  # what loads the parts of SymPy that are loaded on first use
    (r"\tan^2(y)+1", r"\sec^2(y)"),
    (r"a=1 \text{ or } a=-2", r"a=1 \text{ or } a=2"),
    (r"(3, \frac{\pi}{2})", r"(3, \frac{2\pi}{3})"),
    (r"(1, \frac{9}{2})", r"\{1, 4.5\}"),
    (r"x^2+y=1", r"y=x^2"),
    (r"6 - 5i", r"5e^{x}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\sum_{k=1}^{3} k"),
]

# A word at the end that math-verify would drop as a unit though it may be a product of symbols: 2t, 3ab.
_SYMBOLS_AT_END = re.compile(r"(?<![a-zA-Z\\])(?!(?:cm|mm|km|kg|ft)\Z)([a-zA-Z]{1,2})\Z")


@lru_cache(maxsize=4096)
def read(text):
    """The SymPy object that ``text``, put into a box, stands for, or None.

    The box matters: outside of one math-verify takes parts of a formula for the answer. A formula with a
    division by zero in it counts as unread: any other would equal it.
    """
    boxed = "\\boxed{" + _SYMBOLS_AT_END.sub(r"{\1}", text) + "}"
    found = parse(
        boxed,
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found[0] if found and not found[0].has(sympy.zoo, sympy.nan) else None


@lru_cache(maxsize=4096)
def read_gold(text):
    """As ``read``, and None too where the object does not verify against itself."""
    gold = read(text)
    return gold if gold is not None and verify(gold, gold, timeout_seconds=None) else None


def compare(gold, answer):
    """What algebra says of ``answer``, given ``gold``: a word."""
    expected = read_gold(gold)
    if expected is None:
        return "bad_gold"
    given = read(answer)
    if given is None:
        return "unparsable"
    if another_bracket(gold, expected, answer, given) or not verify(expected, given, timeout_seconds=None):
        return "wrong"
    return "correct" if agree(expected, given) else "wrong"


def another_bracket(gold, expected, answer, given):
    r"""Whether one is a set ``\{1,2\}`` and the other a pair ``(1,2)``, which verify takes for equal."""
    pairs = (sympy.Interval, sympy.Tuple)
    gold_is_set = isinstance(expected, sympy.FiniteSet) and "\\{" in gold
    answer_is_set = isinstance(given, sympy.FiniteSet) and "\\{" in answer
    return (gold_is_set and isinstance(given, pairs)) or (answer_is_set and isinstance(expected, pairs))


def agree(first, second):
    """False where numbers in like places of both differ by more than their own size allows.

    verify compares to a fixed number of decimals and so takes 1/2004! for 1/2006!. Here exact numbers must
    agree to 30 significant digits, a decimal with anything to six.
    """
    if first == second or first.has(sympy.UnevaluatedExpr) or second.has(sympy.UnevaluatedExpr):
        return True  # the latter are percentages, which verify reads in two ways
    if isinstance(first, sympy.Eq) and isinstance(second, sympy.Eq):
        return first.lhs != second.lhs or agree(first.rhs, second.rhs)
    containers = (sympy.Tuple, sympy.Interval, sympy.FiniteSet, sympy.MatrixBase)
    if isinstance(first, containers) and isinstance(second, containers):
        return all(agree(a, b) for a, b in zip(leaves(first), leaves(second), strict=False))
    if not (isinstance(first, sympy.Expr) and first.is_number and getattr(second, "is_number", False)):
        return True
    rounded = first.has(sympy.Float) or second.has(sympy.Float)
    first, second = first.doit(), second.doit()
    if (not rounded and 0 in (first, second)) or not (first.is_finite and second.is_finite):
        return True
    a, b = first.evalf(40), second.evalf(40)
    return bool(abs(a - b) <= (2e-6 if rounded else sympy.Float("1e-30")) * max(abs(a), abs(b)))


def leaves(container):
    """What ``container`` holds, numbers of a set in their order."""
    if isinstance(container, sympy.FiniteSet):
        return sorted(container.args, key=lambda x: sympy.default_sort_key(x.evalf()))
    return container.flat() if isinstance(container, sympy.MatrixBase) else container.args


def reply(gold, answer):
    """As ``compare``, with "unparsable" where the library fails on what it was given."""
    try:
        return compare(gold, answer)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError):
        return "unparsable"


def main():
    """Answer until standard input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    logging.disable()
    for pair in WARM_UP:
        compare(*pair)
    silence = os.open(os.devnull, os.O_WRONLY)  # parsers print; until here errors are to be seen
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    message = "ready"
    while True:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()
        line = requests.readline()
        if not line:
            return
        gold, answer, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        message = reply(gold, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
