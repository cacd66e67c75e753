"""The settings of the classifier and the two adversaries as flat fields, and the controller they describe.

Without a trainer, so that the simulator and any other loop build the very parts that training has.
"""

# ruff: noqa: RUF009  (_option returns a dataclass field, which the rule cannot see)

from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np

from gdro import checks
from gdro.controller import Controller
from gdro.difficulty import OnlineDifficultyClassifier
from gdro.outcomes import SIGNALS
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO
from gdro.shuffled import ShuffledPromptGDRO
from gdro.sqrt_law import LossProportional, SquareRootLaw

PROMPT_RULES = ("gdro", "shuffled")
ROLLOUT_RULES = ("gdro", "sqrt-law", "loss", "released")


def _option(default, text):
    return field(default=default, metadata={"help": text})


@dataclass
class GDROOptions:
    """What `gdro.config.GDROConfig` adds to TRL's settings, with the same names, defaults and meaning.

    Sections 3.1 to 3.3, Panaganti et al. 2026; both adversaries off by default. The options of the bandit
    over rollouts (``arm_*``, price, selection, utility, importance weights) are those of ``rollout_rule``
    "gdro"; of the other rules "released" takes the price's step size, and the rest none of them.

    >>> GDROOptions(prompt_gdro=True).controller(5, mean_budget=4).prompt.num_bins
    10
    """

    prompt_gdro: bool = _option(False, "Weight prompts by bin, eqs. (12) to (16).")
    rollout_gdro: bool = _option(False, "Allocate rollouts by bin, eqs. (18) to (21).")

    num_bins: int = _option(10, "Number of equal bins of the pass rate; ignored where bin_edges is given.")
    bin_edges: list[float] | None = _option(None, "Ascending inner edges in (0, 1).")
    bin_column: str | None = _option(None, "Column of fixed bin labels instead of bins from outcomes.")
    window: int = _option(100, "Visits of a prompt that its estimate looks back on.")
    hysteresis: float = _option(0.03, "Margin by which an estimate must cross an edge.")
    estimator: str = _option("any", "Estimate of a prompt's pass rate: 'any', 'unbiased' or 'posterior'.")
    pass_k: int = _option(8, "k of the pass@k that 'unbiased' and 'posterior' estimate.")
    confidence: float = _option(0.9, "Posterior mass beyond an edge at which 'posterior' moves a prompt.")
    exclude_extremes: bool = _option(False, "Leave prompts at exactly 0 or 1 out of both games.")
    signal: str = _option("error", "Loss the adversaries see: 'error', 'spread' or 'surrogate' (eq. 6).")
    success_reward: str | None = _option(
        None, "Reward function that decides success; default the weighted sum."
    )
    success_threshold: float = _option(0.5, "A rollout is right above this; 0 for rewards of -1 and +1.")

    prompt_rule: str = _option("gdro", "'gdro', or 'shuffled' (a control: weights permuted over the bins).")
    prompt_step_size: float = _option(0.65, "eta of eq. (14).")
    prompt_exploration: float = _option(0.01, "gamma of eq. (15).")
    prompt_ema_rate: float = _option(0.12, "Rate of the scores' moving average, eq. (12).")
    prompt_score: str = _option("ema", "'ema', or 'cumulative' (class-based baseline).")
    score_clip: float = _option(5.0, "C of eq. (14).")
    max_weight: float = _option(15.0, "Cap of eq. (16).")
    share_normalized: bool = _option(False, "Divide a bin's loss by its share of the batch (appendix).")
    share_floor: float = _option(0.05, "Smallest share to divide by.")
    weight_normalization: str = _option("none", "'none' (16), or 'mean_one' (released code).")

    rollouts_min: int = _option(2, "Smallest arm.")
    rollouts_max: int = _option(12, "Largest arm.")
    rollout_rule: str = _option(
        "gdro", "'gdro', 'released', or without a bandit 'sqrt-law' (eq. 30) or 'loss' (in proportion)."
    )
    arm_step_size: float = _option(0.65, "Step size over the arms.")
    arm_exploration: float = _option(0.01, "Exploration over the arms.")
    arm_ema_rate: float | None = _option(
        0.4, "Rate of the arms' moving average; None accumulates. Of rollout_rule 'gdro' alone."
    )
    price_step_size: float = _option(0.05, "alpha_mu of eq. (21).")
    selection: str = _option("map", "'map' (paper) or 'sample'.")
    utility: str = _option("loss", "'loss', 'adversarial' or 'variance'.")
    importance_weighted: bool = _option(False, "Divide utilities by propensities; needs selection 'sample'.")
    rollout_weighting: str = _option("per_prompt", "'per_prompt' (n_bar / n_i) or 'per_response'.")

    advantage_clip: float | None = _option(None, "Clip normalised advantages to plus or minus this.")
    advantage_std: str = _option("sample", "Std of a group: 'sample' (TRL) or 'population' (paper).")

    def check_choices(self):
        """Raise ``ValueError`` or ``TypeError``, naming the value, for what no part of the controller sees:
        fields that none takes, and those of an adversary that is off."""
        for option in fields(GDROOptions):
            if option.type is bool:
                checks.boolean(option.name, getattr(self, option.name))
        checks.whole_number("num_bins", self.num_bins, low=1)
        if self.bin_column is not None and not (isinstance(self.bin_column, str) and self.bin_column):
            raise ValueError(
                f"bin_column must be the name of a column of the data set, got {self.bin_column!r}; leave it "
                "None for bins from outcomes"
            )
        if self.bin_column is not None and self.exclude_extremes:
            raise ValueError(
                f"exclude_extremes=True has no effect on the fixed bins of bin_column={self.bin_column!r}: "
                "set it to False, or bin_column to None"
            )
        if self.bin_edges is not None and np.ndim(self.bin_edges) != 1:
            raise ValueError(
                f"bin_edges must be a list of ascending inner edges in (0, 1), got {self.bin_edges!r}; leave "
                "it None for num_bins equal bins"
            )
        if self.bin_edges is not None and not len(self.bin_edges):
            raise ValueError(
                f"bin_edges is {self.bin_edges!r}; leave it None and set num_bins=1 for a single bin, "
                "or give its inner edges"
            )
        checks.whole_number("rollouts_min", self.rollouts_min, low=2)
        checks.whole_number("rollouts_max", self.rollouts_max, low=self.rollouts_min)
        checks.one_of("signal", self.signal, SIGNALS)
        checks.one_of("prompt_rule", self.prompt_rule, PROMPT_RULES)
        checks.one_of("rollout_rule", self.rollout_rule, ROLLOUT_RULES)
        if self.rollout_rule == "loss" and self.signal == "surrogate":
            raise ValueError(
                "rollout_rule='loss' needs a signal that is never negative, got 'surrogate': set signal to "
                "'error' or 'spread', or rollout_rule to 'gdro'"
            )
        if self.importance_weighted and self.signal == "surrogate":
            raise ValueError(
                "importance_weighted=True needs losses in [0, 1], which signal 'surrogate' does not give: "
                "set signal to 'error' or 'spread', or importance_weighted to False"
            )
        checks.one_of("rollout_weighting", self.rollout_weighting, ("per_prompt", "per_response"))
        checks.one_of("advantage_std", self.advantage_std, ("sample", "population"))
        checks.real_number("success_threshold", self.success_threshold)
        if self.advantage_clip is not None:
            checks.real_number("advantage_clip", self.advantage_clip, above=0)
        # made for their checks alone, also where they are off; the budget is one that suits the arms
        self._prompt_adversary(self.num_bins, seed=0)
        self._bandit(self.num_bins, mean_budget=self.rollouts_min, budget="exact")

    def controller(self, num_prompts, *, mean_budget, seed=0, bins=None, data_fingerprint="", budget="exact"):
        """The `Controller` these settings describe.

        Args: ``num_prompts`` in the data set; ``mean_budget`` n_bar, rollouts a prompt; ``seed`` >= 0;
        ``bins`` (num_prompts,) fixed labels in [0, B), or None; ``data_fingerprint`` names the data set in
        saved states; ``budget`` "dual" lets the rollouts of a batch vary, which a trainer cannot.
        Raises what `check_choices` and the parts refuse.
        """
        self.check_choices()
        edges = list(self.bin_edges) if self.bin_edges is not None else self.num_bins
        with checks.named(edges="bin_edges", k="pass_k"):
            classifier = OnlineDifficultyClassifier(
                num_prompts=num_prompts,
                edges=edges,
                window=self.window,
                hysteresis=self.hysteresis,
                estimator=self.estimator,
                k=self.pass_k,
                confidence=self.confidence,
                exclude_extremes=self.exclude_extremes,
            )
        num_bins = classifier.num_bins if bins is None else int(np.max(bins, initial=0)) + 1
        return Controller(
            classifier,
            prompt=self._prompt_adversary(num_bins, seed) if self.prompt_gdro else None,
            rollout=self._rollout_adversary(num_bins, mean_budget, budget) if self.rollout_gdro else None,
            seed=seed,
            mean_budget=mean_budget,
            signal=self.signal,
            bins=bins,
            data_fingerprint=data_fingerprint,
            success_threshold=self.success_threshold,
        )

    def _prompt_adversary(self, num_bins, seed):
        rule = PromptGDRO if self.prompt_rule == "gdro" else partial(ShuffledPromptGDRO, seed=seed)
        own = {
            "step_size": "prompt_step_size",
            "exploration": "prompt_exploration",
            "ema_rate": "prompt_ema_rate",
            "score": "prompt_score",
            "normalization": "weight_normalization",
        }
        with checks.named(**own):
            return rule(
                num_bins,
                **{name: getattr(self, option) for name, option in own.items()},
                score_clip=self.score_clip,
                max_weight=self.max_weight,
                share_normalized=self.share_normalized,
                share_floor=self.share_floor,
            )

    @property
    def _arms(self):
        return tuple(range(self.rollouts_min, self.rollouts_max + 1))

    def _rollout_adversary(self, num_bins, mean_budget, budget):
        if self.rollout_rule != "gdro":
            checks.one_of(f"budget under rollout_rule {self.rollout_rule!r}", budget, ("exact",))
        if self.rollout_rule == "sqrt-law":
            return SquareRootLaw(num_bins, self._arms, mean_budget)
        if self.rollout_rule == "loss":
            return LossProportional(num_bins, self._arms, mean_budget)
        if self.rollout_rule == "released":
            return RolloutGDRO.released(num_bins, self._arms, mean_budget, self.price_step_size)
        return self._bandit(num_bins, mean_budget, budget)

    def _bandit(self, num_bins, mean_budget, budget):
        with checks.named(step_size="arm_step_size", exploration="arm_exploration"):
            return RolloutGDRO(
                num_bins,
                arms=self._arms,
                mean_budget=mean_budget,
                price_step_size=self.price_step_size,
                step_size=self.arm_step_size,
                exploration=self.arm_exploration,
                arm_ema_rate=self.arm_ema_rate,
                selection=self.selection,
                utility=self.utility,
                budget=budget,
                importance_weighted=self.importance_weighted,
            )
