"""How a problem becomes a prompt: the instruction behind it, chat or plain, lettered choices, its id."""

import hashlib

from gdro import checks

# Panaganti et al. 2026, appendix A, in the words of the authors' data preparation
SUFFIX = r"Let's think step by step and output the final answer within \boxed{}."
# ours: the paper does not print what it asks on GPQA
CHOICE_SUFFIX = r"Let's think step by step and output the letter of the right choice within \boxed{}."
STYLES = ("chat", "plain")
LETTERS = "ABCDEFGHIJ"


def prompt_key(prompt: str, answer: str) -> str:
    """Content hash of a prompt and its answer: 16 hexadecimal digits, the same on every machine."""
    return hashlib.sha256(f"{prompt}\n{answer}".encode()).hexdigest()[:16]


def prompt_of(problem: str, suffix: str = SUFFIX, style: str = "chat", gap: str = " "):
    """The prompt of a problem: its text, ``gap``, and ``suffix`` where there is one.

    style: "chat" gives a conversation of one user message, which TRL puts through the tokenizer's chat
    template (Qwen3-Base models have one, and the paper's runs used it); "plain" gives the text itself, for
    base models without a template.

    >>> prompt_of("Find $1+1$.", style="plain", suffix="Answer in a box.")
    'Find $1+1$. Answer in a box.'
    """
    checks.one_of("style", style, STYLES)
    text = f"{problem.strip()}{gap}{suffix}".strip()
    return text if style == "plain" else [{"role": "user", "content": text}]


def with_choices(question: str, choices, right: str, seed: int) -> tuple[str, str]:
    """A question with its lettered choices below, and the letter of the right one.

    The order is that of the hashes of (seed, question, choice): it depends on neither the order of rows nor
    a random generator's version, and a prompt keeps it whatever other prompts are loaded.
    """

    def place(choice):
        return hashlib.sha256(f"{seed}\n{question}\n{choice}".encode()).hexdigest()

    ordered = sorted(choices, key=place)
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, ordered, strict=False)]
    return "\n".join([question.strip(), "", *lines]), LETTERS[ordered.index(right)]
