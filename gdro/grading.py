"""What can be said of a mathematical answer from its text alone: its box, its number, its danger.

Pure functions of strings, quick on any input; whatever needs algebra is left to ``gdro.grader_worker``.
"""

import math
import re
from fractions import Fraction
from typing import NamedTuple

MAX_LENGTH = 1000  # characters of an answer
MAX_NESTING = 16  # brackets open at one place
MAX_TOWER = 2  # exponents on top of each other
MAX_EXPONENT_DIGITS = 4  # of a number in an exponent or under a factorial

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

_REWRITES = [  # to one way of writing, in this order
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\mathrm\s*\{\s*([ei])\s*\}"), r"\1"),
    (re.compile(r"\\?\$"), ""),
    (re.compile(r"(?<=[0-9])(?:\{,\}|,?\\[,!]) ?(?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile(r"\\[,;:!]|\\(?:displaystyle|left|right)(?![a-zA-Z])"), " "),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<!\.)\. ?\Z"), ""),
    (re.compile(r"\\frac ?([0-9]) ?([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\A ?([+-]?(?:[0-9]+ )?)([0-9]+) ?/ ?([0-9]+) ?\Z"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"\A ?([+-]?[0-9]*\.?[0-9]+)[eE]([+-]?[0-9]+) ?\Z"), r"\1 \\times 10^{\2}"),
]
_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_RATIO = re.compile(rf"([+-]?) ?({_WHOLE})? ?\\frac ?\{{ ?([0-9]+) ?\}} ?\{{ ?([0-9]+) ?\}}")
_DECIMAL = re.compile(
    rf"([+-]?) ?({_WHOLE})?(?:\.([0-9]*))?"
    r"(?: ?\\(?:times|cdot) ?10 ?\^ ?(?:([0-9])|\{ ?([+-]?[0-9]{1,3}) ?\}))?"
)
_BASED = re.compile(r"([0-9][0-9A-Za-z]*) ?_ ?(?:([0-9]+)|\{ ?([0-9]+) ?\})")

_LARGE_EXPONENT = re.compile(rf"\^[\s{{(+-]*[0-9]{{{MAX_EXPONENT_DIGITS + 1},}}")
_LARGE_FACTORIAL = re.compile(rf"[0-9]{{{MAX_EXPONENT_DIGITS + 1},}}[\s)}}]*!|![\s)}}]*!")
_NUMERAL_POWER = re.compile(r"(?<![0-9])([0-9]+)(?=[\s)}]*\^[\s{(]*([0-9]+))")


class Number(NamedTuple):
    """A number as it was written: its value, and the unit of its last decimal (None where it is exact)."""

    value: Fraction
    last_place: Fraction | None


def last_box(text):
    r"""The content of the last ``\boxed{...}`` to open in ``text``; None where it is unterminated or empty.

    Braces are matched, escaped ones do not count, and no earlier box stands in for a broken last one.

    >>> last_box(r"so \boxed{3}, no: \boxed{\frac{1}{2}}."), last_box(r"\boxed{3} or \boxed{4")
    ('\\frac{1}{2}', None)
    """
    start = text.rfind("\\boxed")
    opening = _BOX.match(text, start) if start >= 0 else None
    if opening is None:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, opening.end()):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[opening.end() : brace.start()].strip() or None
    return None


def plain(text):
    r"""``text`` without dollar signs and spacing commands, its numbers and fractions written in one way.

    >>> plain(r"$\dfrac{1}{2}$"), plain(r"10{,}000"), plain("2 1/4"), plain("4.5e33")
    ('\\frac{1}{2}', '10,000', '2 \\frac{1}{4}', '4.5 \\times 10^{33}')
    """
    text = text.replace("\u2212", "-")
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.strip()


def number(text):
    r"""The number that a ``plain`` text writes in digits, or None where it is anything else.

    Integers (thousands marked or not), decimals, scientific notation, fractions and mixed numbers.

    >>> number("1,000").value, number(r"-2\frac{1}{4}").value
    (Fraction(1000, 1), Fraction(-9, 4))
    >>> number("0.50"), number("2x") is None
    (Number(value=Fraction(1, 2), last_place=Fraction(1, 100)), True)
    """
    if match := _RATIO.fullmatch(text):
        sign, whole, above, below = match.groups()
        if int(below) == 0:
            return None
        value, last_place = _integer(whole) + Fraction(int(above), int(below)), None
    elif (match := _DECIMAL.fullmatch(text)) and (match[2] or match[3]):
        sign, whole, places, *powers = match.groups(default="")
        power = int("".join(powers) or 0)
        last_place = Fraction(10) ** (power - len(places))
        value = _integer(whole + places) * last_place
        last_place = last_place if places or power < 0 else None
    else:
        return None
    return Number(-value if sign == "-" else value, last_place)


def _integer(digits):
    return int((digits or "0").replace(",", ""))


def same_number(first, second):
    """Whether two ``Number`` are equal, or one is a fraction and the other that fraction rounded.

    Rounded: within half a unit of its last decimal, and written with at least six significant digits.
    """
    if first.value == second.value:
        return True
    exact, rounded = (first, second) if first.last_place is None else (second, first)
    if exact.last_place is not None or rounded.last_place is None:
        return False
    close = 2 * abs(exact.value - rounded.value) <= rounded.last_place
    return close and abs(rounded.value) >= 10**5 * rounded.last_place


def numeral(text):
    r"""The digits and the base of a numeral that states its base, or None where ``text`` is anything else.

    A base of two digits without braces counts as one, as its writer meant it, though LaTeX sets it otherwise.

    >>> numeral("1010_2"), numeral("1010_{2}"), numeral("1010")
    (('1010', 2), ('1010', 2), None)
    """
    match = _BASED.fullmatch(text)
    return match and (match[1].lstrip("0").upper(), int(match[2] or match[3]))


def danger(text):
    r"""What keeps ``text`` from algebra, for it could run for ever there; None where nothing does.

    One of "length", "control character", "factorial", "exponent", "tower" (of exponents) and "nesting".
    The limits are this module's; they let through some slow expressions, which the deadline ends.

    >>> danger(r"9^{9^{9^9}}"), danger("2^{100000}"), danger(r"e^{-x^2/2}+2004!")
    ('tower', 'exponent', None)
    """
    text = text.replace("**", "^")
    if len(text) > MAX_LENGTH:
        return "length"
    if not text.isprintable():
        return "control character"
    if _LARGE_FACTORIAL.search(text):
        return "factorial"
    if _LARGE_EXPONENT.search(text):
        return "exponent"
    nesting, tower = _depths(text)
    numeral_powers = (int(m[2]) * math.log10(max(int(m[1]), 1)) for m in _NUMERAL_POWER.finditer(text))
    if tower > MAX_TOWER or (tower == MAX_TOWER and any(p > MAX_EXPONENT_DIGITS for p in numeral_powers)):
        return "tower"
    return "nesting" if nesting > MAX_NESTING else None


def _depths(text):
    """The most brackets open at one place of ``text``, and the most exponents on top of each other."""
    heights, raised, nesting, tower = [0], 0, 0, 0  # heights: of the exponents around each open bracket
    for character in text:
        if character == "^":
            raised += 1
        elif character in "{([":
            heights.append(heights[-1] + raised)
            raised = 0
        elif character in "})]":
            raised = 0
            if len(heights) > 1:
                heights.pop()
        elif character in "+-*/=, ":
            raised = 0
        nesting, tower = max(nesting, len(heights) - 1), max(tower, heights[-1] + raised)
    return nesting, tower
