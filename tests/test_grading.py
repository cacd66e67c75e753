"""What is decided from text alone: the box, the number, the danger."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdro import grading

BALANCED = st.recursive(
    st.text("ab1+ ", min_size=1, max_size=4),
    lambda inner: st.builds(lambda a, b: f"{a}{{{b}}}\\{{", inner, inner),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{1} then \boxed{2}.", "2"),
        (r"\boxed{\boxed{34}}", "34"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        ("\\boxed{\n34\n}", "34"),
        (r"\boxed{34", None),
        (r"\boxed{3} and \boxed{4", None),
        (r"\boxed{3} and \boxed 4", None),
        (r"\boxed{ }", None),
        ("34", None),
    ],
)
def test_the_last_box_decides(text, box):
    assert grading.last_box(text) == box


@given(st.text(max_size=20), BALANCED, st.text(max_size=20).filter(lambda t: "\\boxed" not in t))
def test_a_box_gives_back_what_was_put_in(before, content, after):
    assert grading.last_box(f"{before}\\boxed{{{content}}}{after}") == (content.strip() or None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("34", 34),
        ("+34.", 34),
        ("007", 7),
        ("1,234,567", 1234567),
        (r"10\,000", 10000),
        (r"10,\!000", 10000),
        (r"\$5{,}000", 5000),
        ("-.5", Fraction(-1, 2)),
        (r"$\dfrac{ 1 }{ 2 }$", Fraction(1, 2)),
        (r"-\frac12", Fraction(-1, 2)),
        ("-3/4", Fraction(-3, 4)),
        ("2 1/4", Fraction(9, 4)),
        (r"-2\frac{1}{2}", Fraction(-5, 2)),
        ("4.5e33", Fraction(45 * 10**32)),
        (r"4.5 \times 10^{-3}", Fraction(9, 2000)),
        (r"3\cdot10^4", 30000),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert grading.number(grading.plain(text)).value == value


@pytest.mark.parametrize(
    "text",
    ["", ".", "-", "x", "1/0", "1,00", "1 2", "1.2.3", "2x", "1/2/3", "١٢", "--1", "1-2", "50\\%", "e"],
)
def test_anything_else_is_no_number(text):
    assert grading.number(grading.plain(text)) is None


@given(st.fractions(-(10**9), 10**9, max_denominator=10**6), st.integers(1, 12))
def test_a_rounded_fraction_is_the_fraction_if_six_digits_are_there(fraction, places):
    digits = round(fraction * 10**places)
    exact, rounded = grading.Number(fraction, None), grading.number(f"{Decimal(digits).scaleb(-places):f}")
    same = rounded.value == fraction or len(str(abs(digits))) >= 6
    assert grading.same_number(exact, rounded) == grading.same_number(rounded, exact) == same


@given(st.integers(), st.integers())
def test_integers_and_decimals_are_the_same_exactly_if_equal(a, b):
    for first, second in (
        (f"{a}", f"{b}"),
        (f"{a}.0", f"{b}.00"),
        (f"{a:,}", f"{b}.0"),
        (f"{a}/7", f"{b}/7"),
    ):
        pair = [grading.number(grading.plain(text)) for text in (first, second)]
        assert grading.same_number(*pair) == (a == b)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9" * 1001, "length"),
        ("1\x00", "control character"),
        ("12345!", "factorial"),
        ("9!!", "factorial"),
        ("((9!)!)!", "factorial"),
        ("2^{100000}", "exponent"),
        ("2**(-100000)", "exponent"),
        (r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}", "tower"),
        ("9^{9^{9^9}}", "tower"),
        ("9^{9^9}", "tower"),
        ("9^9^9^9", "tower"),
        ("{" * 17 + "}" * 17, "nesting"),
        ("2^{2^{10}}", None),
        (r"e^{-\frac{x^2}{2}}", None),
        (r"\frac{1}{2004!}", None),
        (r"3^{2024}-\binom{10}{5}", None),
        (r"\frac{2 \pi c^{2} R^{2}}{\lambda^{5}\left[e^{h c /(\lambda k T)}-1\right] d^{2}}", None),
    ],
)
def test_dangers(text, reason):
    assert grading.danger(text) == reason


@given(st.integers(2, 99), st.integers(1, 99), st.integers(1, 99))
def test_an_exponent_that_is_a_power_is_held_to_the_same_limit(a, b, c):
    allowed = max(b, 1) ** c <= 10**4 and a**b <= 10**4  # both are powers of numerals
    assert (grading.danger(f"{a}^{{{b}^{{{c}}}}}") is None) == allowed or math.isclose(b**c, 10**4)
