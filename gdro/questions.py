"""What the study asks, written down before the runs that answer it: hypotheses, measures, seeds, analysis.

A question stays as it was asked; what the runs say belongs to `notebooks/09_ablations` and is never entered
here. Where runs had been seen before a question was written, or before its runs were made again, ``seen``
says which. Questions 1 to 12 came first; 13 and 14 were asked when others had been answered.
"""

from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd

MAIN_ARMS = (
    "grpo",
    "prompt-gdro",
    "rollout-gdro",
    "joint",
    "prompt-gdro-error",
    "rollout-gdro-variance",
)
BASELINES = ("dapo-filter", "sqrt-law", "class-gdro", "class-gdro-ema")
SEEN = (
    "seeds 0 to 2 at tiny-s, seed 0 at tiny-m, and five seeds of an earlier tiny-l, in which plain GRPO "
    "opened one family less, of the six main arms"
)
PAIRED = (
    "differences paired by seed and prompt; hierarchical bootstrap over seeds, then prompts; 95 % intervals, "
    "and Holm's correction over the arms compared in one question"
)
TUNING = (  # written down after questions 9 and 13 were answered at tiny-s with rates chosen on two seeds
    "of half, once, one and a half times and twice the scale's learning rate, the one at which GRPO's "
    "training pass rate, each prompt once, is highest over the last 40 % of cycles, as the mean over seeds "
    "100 to 104 at tiny-s; these seeds answer nothing else, and no held-out prompt is seen"
)


@dataclass(frozen=True)
class Question:
    """One question: what is asked, what we expect, the number that decides, and how it is made.

    ``arms`` of `gdro.study_arms` are compared with one another, at ``scales`` (a reader may ask at any
    other), with ``seeds`` runs a cell; ``seen`` says which runs were known when the question was written:
    they explore and do not confirm.
    """

    number: int
    asks: str
    hypothesis: str
    measure: str
    arms: tuple[str, ...]
    scales: tuple[str, ...] = ("tiny-s",)
    seeds: int = 5
    analysis: str = PAIRED
    seen: str = "none"


_TINY = ("tiny-s", "tiny-m", "tiny-l")
_ERROR, _VARIANCE = "prompt-gdro-error", "rollout-gdro-variance"

_ASKED = (
    Question(
        1,
        "Does an arm beat GRPO on held-out prompts, at equal rollouts, tokens and seconds?",
        "prompt-gdro-error gains, by less than the +9 to +13 % that the paper reports; prompt-gdro does not "
        "differ (its surrogate is empty); rollout-gdro and joint lose (the price sends rollouts to the easy "
        "bin); rollout-gdro-variance does not differ by two points",
        "mean@8 and pass@8 over all suites, per suite and per initial bin (successes of the base model in "
        "its eight samples); absolute and relative to GRPO",
        MAIN_ARMS,
        _TINY,
        10,
        seen=SEEN,
    ),
    Question(
        2,
        "Which share of GRPO's rollouts does an arm need to reach GRPO's final score?",
        "prompt-gdro-error needs under 80 % of them at tiny-m, about all at tiny-s and tiny-l; no other arm "
        "needs fewer than GRPO",
        "first cycle at which the training reward, averaged over the ten cycles around it, reaches GRPO's "
        "last ten, over GRPO's cycles; runs that never reach it count as 1 or more",
        MAIN_ARMS,
        _TINY,
        10,
        analysis="the ratio a seed, median over seeds, bootstrap interval over seeds",
        seen=SEEN,
    ),
    Question(
        3,
        "What happens to the worst family and the hardest initial bin, and what to the easiest?",
        "prompt-gdro-error gains more on the worst family than over all, and loses no more than two points "
        "on the easiest initial bin",
        "mean@8 of the suite that is lowest under GRPO, and of the held-out prompts that the base model "
        "answers rightly in none, and in all, of its eight samples",
        MAIN_ARMS,
        _TINY,
        10,
        seen=SEEN,
    ),
    Question(
        4,
        "Which signal should the prompt adversary see?",
        "error is best; spread gains less; the surrogate does nothing; weights permuted over the bins do not "
        "help",
        "mean@8 and pass@8 over all suites",
        ("grpo", "prompt-gdro", _ERROR, "prompt-gdro-error-spread", "prompt-gdro-error-shuffled"),
        seen=SEEN,
    ),
    Question(
        5,
        "Is Rollout-GDRO's effect that of allocation, of reweighting, of learning or of the tie-break?",
        "flat weighting over responses favours what gets more rollouts and outweighs the change in "
        "variance; the released rule, which never learns, ends within one point of the learned one "
        "without price",
        "mean@8 and pass@8 over all suites",
        (
            "grpo",
            _VARIANCE,
            "rollout-gdro-variance-flat",
            "rollout-gdro-variance-sample",
            "rollout-gdro",
            "rollout-gdro-no-price",
            "rollout-gdro-adversarial",
            "rollout-gdro-per-prompt",
            "rollout-gdro-released",
            "sqrt-law",
            "sqrt-law-flat",
        ),
        seen="seed 0 of sqrt-law and those of " + SEEN,
    ),
    Question(
        6,
        "How many bins, and does their making matter?",
        "no peak at six: from three to twenty bins the scores stay within two points; the window does not "
        "matter from five visits on; an estimate of single rollouts spreads the bins and changes little",
        "mean@8 over all suites",
        (
            _ERROR,
            "prompt-gdro-error-bins-3",
            "prompt-gdro-error-bins-6",
            "prompt-gdro-error-bins-20",
            "prompt-gdro-error-equal-mass",
            "prompt-gdro-error-window-5",
            "prompt-gdro-error-hysteresis-0",
            "prompt-gdro-error-unbiased",
            "prompt-gdro-error-posterior",
        ),
        seen="prompt-gdro-error, seeds 0 to 2",
    ),
    Question(
        7,
        "Which arms and which mean budget should Rollout-GDRO have?",
        "a narrower range of arms loses less against GRPO; a larger mean budget makes the arms more alike; "
        "a mean budget of 2 leaves the adversary no freedom, its smallest arm being 2",
        "mean@8 over all suites, at equal rollouts a run",
        (
            "grpo",
            _VARIANCE,
            "rollout-gdro-variance-arms-6",
            "rollout-gdro-variance-arms-24",
            "rollout-gdro-variance-mean-8",
            "grpo-mean-2",
            "grpo-mean-8",
        ),
        seen="rollout-gdro-variance, seeds 0 to 2",
    ),
    Question(
        8,
        "Do the two adversaries add up?",
        "the joint effect is the sum of the two within its interval",
        "mean@8 over all suites of none, prompt, rollout and both; the interaction both - prompt - rollout + "
        "none",
        (
            "grpo",
            "prompt-gdro",
            "rollout-gdro",
            "rollout-gdro-per-prompt",
            "joint",
            "joint-per-prompt",
            _ERROR,
            _VARIANCE,
            "rollout-gdro-variance-flat",
            "joint-argued",
            "joint-argued-flat",
        ),
        analysis="the interaction with its interval by the same bootstrap",
        seen=SEEN,
    ),
    Question(
        9,
        "Is adaptivity more than a step size, and more than filtering?",
        "weights that average one gain as much as those that do not (AdamW takes a common factor out); GRPO "
        "at twice or half its rate does not reach prompt-gdro-error; dapo-filter is behind at equal rollouts",
        "mean@8 and pass@8 over all suites",
        (
            "grpo",
            _ERROR,
            "prompt-gdro-error-mean-one",
            "grpo-rate-half",
            "grpo-rate-more",
            "grpo-rate-double",
            "dapo-filter",
        ),
        ("tiny-s", "tiny-m"),
        seen="seed 0 of dapo-filter at tiny-s, tuning runs of grpo on seeds 100 and 101, and " + SEEN,
    ),
    Question(
        10,
        "Does it matter how prompts are grouped?",
        "bins of the online pass rate and static family x level groups do alike; random bins and one bin do "
        "as GRPO",
        "mean@8 and pass@8 over all suites, and mean@8 of the suite outside the training range",
        (
            "grpo",
            _ERROR,
            "class-gdro",
            "class-gdro-ema",
            "prompt-gdro-error-random-bins",
            "prompt-gdro-error-one-bin",
        ),
        seen="seed 0 of class-gdro and class-gdro-ema at tiny-s, and " + SEEN,
    ),
    Question(
        11,
        "Does the variance of the gradient fall where the proxy says so?",
        "under GRPO's normalised advantages, more rollouts to uncertain bins lower the variance by less than "
        "the weighted standard error falls",
        "trace of the covariance of the per-prompt gradient, by bin and arm, at equal rollouts, beside WSE",
        ("grpo", _VARIANCE, "sqrt-law"),
        seeds=3,
        analysis="ratio to uniform allocation with a bootstrap interval over prompts, then seeds",
    ),
    Question(
        12,
        "Do the dynamics of Figures 3 to 9 appear?",
        "the mean bin rises in every run; weights under the error signal lead the share towards hard bins; "
        "the weighted standard error falls below uniform for rollout-gdro-variance alone; under the paper's "
        "settings the budget goes to the easy bins at the end",
        "mean bin index, lead-lag (32), share of the budget in the high bins, WSE (33), over runs",
        MAIN_ARMS,
        _TINY,
        10,
        analysis="mean over the last 40 % of cycles a seed, interval over seeds",
        seen=SEEN,
    ),
    Question(
        13,
        "Does any setting gain ten per cent in pass@8 over GRPO at a better learning rate?",
        "none does; at tiny-l rollouts in proportion to the failure rate, per response, come nearest, "
        "because the fifth family opens in more of their runs",
        "pass@8 and mean@8 over all suites, relative to GRPO, and to GRPO at 1.5 times its rate",
        (
            "grpo",
            "grpo-rate-more",
            _ERROR,
            "prompt-gdro-error-mean-one",
            "prompt-gdro-error-rate-more",
            "rollout-gdro-variance-flat",
            "rollout-gdro-variance-flat-rate-more",
            "sqrt-law-failure",
            "sqrt-law-failure-flat",
            "joint-argued-flat",
            "joint-recommended",
        ),
        ("tiny-s", "tiny-l"),
        seen="the runs of questions 4, 5, 8, 9 and 10 at tiny-s, seed 0 of four main arms at tiny-l; asked "
        "after them",
    ),
    Question(
        14,
        "Where does adaptivity pay: by how much families learn from one another, and how rare skills are?",
        "where families share what opens a worked answer, no arm differs from GRPO by two points; where no "
        "skill is rare, weights by the failure rate and rollouts in proportion to it gain, because what they "
        "push can open, and rollouts by variance do not differ",
        "mean@8 and pass@8 over all suites, and the families opened, at tiny-s (own openings, one rare and "
        "two hopeless skills), -common (no skill rare), -shared (the same opening in every family) and both",
        ("grpo", _ERROR, _VARIANCE, "sqrt-law-failure-flat"),
        ("tiny-s", "tiny-s-common", "tiny-s-shared", "tiny-s-shared-common"),
        seen="the runs of these arms at tiny-s",
    ),
)

QUESTIONS = MappingProxyType({question.number: question for question in _ASKED})


def matrix(number) -> dict:
    """What the question compares: {"scales": ..., "arms": ..., "seeds": ...}; unknown numbers raise.

    >>> matrix(4)["seeds"]
    [0, 1, 2, 3, 4]
    """
    if str(number) not in map(str, QUESTIONS):
        raise ValueError(f"unknown question {number!r}: the questions are 1 to {len(QUESTIONS)}")
    question = QUESTIONS[int(number)]
    return {
        "scales": list(question.scales),
        "arms": list(question.arms),
        "seeds": list(range(question.seeds)),
    }


def table() -> pd.DataFrame:
    """The questions as a frame, a row each, for a notebook.

    Columns: question, hypothesis, measure, arms, scales, seeds, analysis, seen; the index is the number.
    """
    rows = [
        {
            "question": q.asks,
            "hypothesis": q.hypothesis,
            "measure": q.measure,
            "arms": ", ".join(q.arms),
            "scales": ", ".join(q.scales),
            "seeds": q.seeds,
            "analysis": q.analysis,
            "seen": q.seen,
        }
        for q in _ASKED
    ]
    return pd.DataFrame(rows, index=pd.Index(list(QUESTIONS), name="number"))
