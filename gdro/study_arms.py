"""The study arms: the adversaries of the main comparison, the baselines, and one change at a time for the
ablations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True)
class StudyArm:
    """One way of training: the GDROConfig fields that make it, a label for figures, and what it stands for.

    ``trainer`` is "gdro", or "dapo-filter" for the arm that draws its prompts again and is held to the
    rollouts of a run instead of its steps. ``groups`` fixes the bins: "family x level" from these columns (of
    the paper's scales, whose prompts have no level, from their length), "random" by a draw. ``rate``
    multiplies the scale's learning rate; ``mean_budget`` replaces its rollouts a prompt, with as many a
    cycle.
    """

    name: str
    label: str
    says: str
    fields: MappingProxyType
    trainer: str = "gdro"
    groups: str | None = None
    rate: float = 1.0
    mean_budget: int | None = None


def _arm(name, label, says, *, trainer="gdro", groups=None, **fields):
    return StudyArm(name, label, says, MappingProxyType(fields), trainer, groups)


def registry(*entries) -> Mapping:
    """{name: entry}, read-only."""
    return MappingProxyType({entry.name: entry for entry in entries})


_PROMPT = {
    "prompt_gdro": True,
    "prompt_step_size": 0.65,
    "prompt_exploration": 0.01,
    "prompt_ema_rate": 0.12,
    "max_weight": 15.0,
}
_ROLLOUT = {
    "rollout_gdro": True,
    "rollouts_min": 2,
    "rollouts_max": 12,
    "arm_step_size": 0.65,
    "arm_exploration": 0.01,
    "arm_ema_rate": 0.4,
    "price_step_size": 0.05,
}
_PAPER = {"signal": "surrogate", "share_normalized": True, "rollout_weighting": "per_response"}
_ARGUED = {"signal": "error", "share_normalized": False, "rollout_weighting": "per_prompt"}

MAIN = registry(
    _arm("grpo", "GRPO", "the baseline: uniform weights, uniform rollouts", **_PAPER),
    _arm("prompt-gdro", "Prompt-GDRO", "weights per bin, with the paper's settings", **_PROMPT, **_PAPER),
    _arm("rollout-gdro", "Rollout-GDRO", "rollouts per bin, with the paper's settings", **_ROLLOUT, **_PAPER),
    _arm("joint", "both", "both adversaries, with the paper's settings", **_PROMPT, **_ROLLOUT, **_PAPER),
    _arm(
        "prompt-gdro-error",
        "Prompt-GDRO (error)",
        "weights per bin from the failure rate, loss not divided by share",
        **_PROMPT,
        **_ARGUED,
    ),
    _arm(
        "rollout-gdro-variance",
        "Rollout-GDRO (variance)",
        "rollouts per bin from the reward variance of section 4, every prompt with equal gradient weight",
        # no price: an exact budget needs none, and where variances are small it decides alone, for the bins
        # that hold the most prompts, because a plan counts each bin once
        **(_ROLLOUT | {"price_step_size": 0.0}),
        **_ARGUED,
        utility="variance",
    ),
    _arm(
        "dapo-filter",
        "DAPO filter",
        "drop rollout groups without variance and refill; the dropped rollouts count",
        trainer="dapo-filter",
        **_ARGUED,
        advantage_clip=None,  # the filter keeps TRL's advantages; five is out of reach with four rollouts
        advantage_std="sample",
    ),
    _arm(
        "sqrt-law",
        "square-root law",
        "variance-optimal rollouts (30) from running variances, no bandit",
        **(_ROLLOUT | {"rollout_rule": "sqrt-law"}),
        **_ARGUED,
    ),
    _arm(
        "class-gdro",
        "class-based GDRO",
        "fixed groups (family x level), cumulative scores; the step is the paper's 0.65 x 0.12, the weight "
        "that its moving average gives one observation",
        groups="family x level",
        **(_PROMPT | {"prompt_step_size": 0.078, "prompt_score": "cumulative", "score_clip": 1000.0}),
        **_ARGUED,
        weight_normalization="mean_one",
    ),
    _arm(
        "class-gdro-ema",
        "class-based GDRO (EMA)",
        "the same fixed groups with scores that forget, the form that section 4.2.3 compares with",
        groups="family x level",
        **_PROMPT,
        **_ARGUED,
        weight_normalization="mean_one",
    ),
)


def _change(base, ending, says, *, label=None, rate=1.0, mean_budget=None, groups=None, **fields):
    """The arm ``base`` of the main comparison with one thing changed, which the name and label say."""
    arm = MAIN[base]
    return replace(
        arm,
        name=f"{base}-{ending}",
        label=f"{arm.label}, {label or ending.replace('-', ' ')}",
        says=f"{arm.label}, but {says}",
        fields=MappingProxyType({**arm.fields, **fields}),
        groups=groups or arm.groups,
        rate=rate,
        mean_budget=mean_budget,
    )


_ERROR, _VARIANCE = "prompt-gdro-error", "rollout-gdro-variance"
_FLAT = {"rollout_weighting": "per_response"}
_PER_PROMPT = {"rollout_weighting": "per_prompt"}
_BOTH_ARGUED = MAIN[_VARIANCE].fields | _PROMPT

VARIANTS = registry(
    # what the prompt adversary sees, and whether the weights must be those of the bins
    _change(_ERROR, "spread", "it sees the spread sqrt(p (1 - p))", signal="spread"),
    _change(_ERROR, "shuffled", "each cycle permutes the weights over the bins", prompt_rule="shuffled"),
    _change(_ERROR, "mean-one", "the weights of a batch have mean one", weight_normalization="mean_one"),
    # what Rollout-GDRO is made of
    _change(_VARIANCE, "flat", "all responses have equal gradient weight", label="per response", **_FLAT),
    _change(_VARIANCE, "sample", "assignments are drawn instead of maximised", selection="sample"),
    _change("rollout-gdro", "no-price", "the price stays 0", price_step_size=0.0),
    _change(
        "rollout-gdro",
        "adversarial",
        "arms that met a higher loss are preferred, and the price stays 0",
        utility="adversarial",
        price_step_size=0.0,
    ),
    _change(
        "rollout-gdro", "per-prompt", "prompts have equal gradient weight", rollout_weighting="per_prompt"
    ),
    _change("rollout-gdro", "released", "the arms never learn (released code)", rollout_rule="released"),
    _change("sqrt-law", "flat", "all responses have equal gradient weight", label="per response", **_FLAT),
    _change(
        "sqrt-law",
        "failure",
        "rollouts are in proportion to the failure rate",
        label="failure rate",
        rollout_rule="loss",
    ),
    _change(
        "sqrt-law",
        "failure-flat",
        "rollouts are in proportion to the failure rate, and all responses have equal gradient weight",
        label="failure rate, per response",
        rollout_rule="loss",
        rollout_weighting="per_response",
    ),
    # how bins are made
    _change(_ERROR, "bins-3", "there are 3 bins", num_bins=3),
    _change(_ERROR, "bins-6", "there are 6 bins", num_bins=6),
    _change(_ERROR, "bins-20", "there are 20 bins", num_bins=20),
    _change(
        _ERROR,
        "equal-mass",
        "the edges are the deciles of pass@4 under the base model tiny-s, the highest two in one bin",
        bin_edges=(0.28, 0.33, 0.41, 0.49, 0.63, 0.8, 0.93, 0.965),
    ),
    _change(_ERROR, "window-5", "estimates look back on 5 visits", window=5),
    _change(_ERROR, "hysteresis-0", "a prompt moves as soon as it crosses an edge", hysteresis=0.0),
    _change(
        _ERROR, "unbiased", "bins are of the pass rate of single rollouts", estimator="unbiased", pass_k=1
    ),
    _change(
        _ERROR,
        "posterior",
        "a prompt moves when its posterior is sure, bins are of the rate of single rollouts",
        estimator="posterior",
        pass_k=1,
    ),
    _change(_ERROR, "one-bin", "all prompts share one bin", num_bins=1),
    _change(_ERROR, "random-bins", "ten bins hold prompts drawn at random", groups="random"),
    # how far arms may go, and how many rollouts there are
    _change(_VARIANCE, "arms-6", "the arms are 2 to 6", rollouts_max=6),
    _change(_VARIANCE, "arms-24", "the arms are 2 to 24", rollouts_max=24),
    _change(_VARIANCE, "mean-8", "the mean budget is 8, with half the prompts a cycle", mean_budget=8),
    _change("grpo", "mean-2", "a prompt has 2 rollouts, with twice the prompts a cycle", mean_budget=2),
    _change("grpo", "mean-8", "a prompt has 8 rollouts, with half the prompts a cycle", mean_budget=8),
    # both adversaries
    _change("joint", "per-prompt", "prompts have equal gradient weight", **_PER_PROMPT),
    _change("joint", "argued", "with the error signal, variances and no price", **_BOTH_ARGUED),
    _change(
        "joint", "argued-flat", "with the error signal, variances, no price, flat", **(_BOTH_ARGUED | _FLAT)
    ),
    _change(
        "joint",
        "recommended",
        'it is as GDROConfig(preset="recommended") sets it',
        **(_BOTH_ARGUED | {"estimator": "unbiased", "pass_k": 1, "weight_normalization": "mean_one"}),
    ),
    # other steps
    _change("grpo", "rate-half", "half the learning rate", label="rate x 0.5", rate=0.5),
    _change("grpo", "rate-more", "one and a half times the learning rate", label="rate x 1.5", rate=1.5),
    _change("grpo", "rate-double", "twice the learning rate", label="rate x 2", rate=2.0),
    _change(_ERROR, "rate-more", "one and a half times the learning rate", label="rate x 1.5", rate=1.5),
    _change(
        _VARIANCE,
        "flat-rate-more",
        "all responses have equal gradient weight, at one and a half times the learning rate",
        label="per response, rate x 1.5",
        rate=1.5,
        **_FLAT,
    ),
)

ARMS = MappingProxyType({**MAIN, **VARIANTS})
