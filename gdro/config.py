"""GDROConfig: TRL's GRPOConfig plus flat fields for the classifier and the two adversaries, and what is built
of them."""

# ruff: noqa: RUF009  (_option returns a dataclass field, which the rule cannot see)

from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType

import numpy as np
from trl import GRPOConfig

from gdro import checks
from gdro.controller import Controller
from gdro.difficulty import OnlineDifficultyClassifier
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO
from gdro.sqrt_law import SquareRootLaw

SIGNALS = ("error", "spread", "surrogate")
ROLLOUT_RULES = ("gdro", "sqrt-law", "released")

_PAPER = {
    "loss_type": "grpo",
    "beta": 0.001,
    "epsilon_high": 0.28,
    "advantage_clip": 5.0,
    "signal": "surrogate",
    "share_normalized": True,
    "rollout_weighting": "per_response",
}
PRESETS = MappingProxyType(
    {
        "paper": MappingProxyType({**_PAPER, "advantage_std": "population"}),
        "released": MappingProxyType(
            {**_PAPER, "weight_normalization": "mean_one", "rollout_rule": "released"}
        ),
        "recommended": MappingProxyType(
            {
                "loss_type": "grpo",
                "beta": 0.001,
                "epsilon_high": 0.28,
                "advantage_clip": 5.0,
                "estimator": "unbiased",
                "pass_k": 1,
                "weight_normalization": "mean_one",
                "utility": "variance",
            }
        ),
    }
)
_RELEASED_ROLLOUT = MappingProxyType({"window": 50, "hysteresis": 0.0, "bin_edges": (0.4, 0.75)})


def _option(default, text):
    return field(default=default, metadata={"help": text})


@dataclass
class GDROConfig(GRPOConfig):
    """Settings of `GDROTrainer`; with both adversaries off (the default) it trains as ``GRPOConfig`` does.

    Panaganti et al. 2026, sections 3.1 to 3.3; defaults are the paper's where it states one (hysteresis,
    window and ``max_weight`` from the released code). The mean budget n_bar is ``num_generations``. All
    fields are flat, so that TRL's command-line parser takes them.

    ``preset`` fills every field that is still at its default, so a field set to something else wins; to have
    a default back under a preset, set the attributes one by one instead of the preset.
      "paper"        appendix A: loss "grpo", KL 0.001, clip 0.2 / 0.28, advantages clipped to [-5, 5] and
                     divided by the population std, signal "surrogate", loss over share, flat mean over
                     responses.
      "released"     the authors' code: as "paper", but weights of mean one, sample std, the rollout rule
                     whose arms are never updated; with Rollout-GDRO alone also its window 50, hysteresis 0
                     and edges 0.4, 0.75.
      "recommended"  what section 4 argues for and method notes prefer: error signal, pass rate of single
                     rollouts, weights of mean one, utility "variance". Provisional: a measured study decides.
    Presets leave what belongs to a model and a machine alone: learning rate, batch sizes,
    ``num_generations``, sampling.

    Errors: ``ValueError`` or ``TypeError`` at construction, naming the value, the limit and the remedy.
    """

    preset: str | None = _option(None, "Fill fields at their default: 'paper', 'released' or 'recommended'.")
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
    rollout_rule: str = _option("gdro", "'gdro', 'sqrt-law' (eq. 30, no bandit) or 'released'.")
    arm_step_size: float = _option(0.65, "Step size over the arms.")
    arm_exploration: float = _option(0.01, "Exploration over the arms.")
    arm_ema_rate: float | None = _option(0.4, "Rate of the arms' moving average; None accumulates.")
    price_step_size: float = _option(0.05, "alpha_mu of eq. (21).")
    selection: str = _option("map", "'map' (paper) or 'sample'.")
    utility: str = _option("loss", "'loss', 'adversarial' or 'variance'.")
    importance_weighted: bool = _option(False, "Divide utilities by propensities; needs selection 'sample'.")
    rollout_weighting: str = _option("per_prompt", "'per_prompt' (n_bar / n_i) or 'per_response'.")

    advantage_clip: float | None = _option(None, "Clip normalised advantages to plus or minus this.")
    advantage_std: str = _option("sample", "Std of a group: 'sample' (TRL) or 'population' (paper).")

    def __post_init__(self):
        self._fill_from_preset()
        super().__post_init__()
        self._check_choices()
        self._check_surrogate()
        if self.rollout_gdro:
            self._check_budget()
        self.build_controller(
            num_prompts=1
        )  # what the parts refuse is refused here, before anything is loaded

    def _fill_from_preset(self):
        if self.preset is None:
            return
        checks.one_of("preset", self.preset, tuple(PRESETS))
        values = dict(PRESETS[self.preset])
        if self.preset == "released" and self.rollout_gdro and not self.prompt_gdro:
            values |= _RELEASED_ROLLOUT
        for option in fields(self):
            default = option.default if option.default_factory is MISSING else option.default_factory()
            if option.name in values and getattr(self, option.name) == default:
                value = values[option.name]
                setattr(self, option.name, list(value) if isinstance(value, tuple) else value)

    def _check_choices(self):
        checks.whole_number("num_bins", self.num_bins, low=1)
        checks.one_of("signal", self.signal, SIGNALS)
        checks.one_of("rollout_rule", self.rollout_rule, ROLLOUT_RULES)
        checks.one_of("rollout_weighting", self.rollout_weighting, ("per_prompt", "per_response"))
        checks.one_of("advantage_std", self.advantage_std, ("sample", "population"))
        checks.real_number("success_threshold", self.success_threshold)
        if self.advantage_clip is not None:
            checks.real_number("advantage_clip", self.advantage_clip, above=0)
        if "seed" in (self.generation_kwargs or {}):
            raise ValueError(
                f"generation_kwargs has seed={self.generation_kwargs['seed']!r}, which gives all rollouts "
                "of a prompt the same text, so that every advantage is 0; remove it and set `seed` of the "
                "config"
            )

    def _check_surrogate(self):
        cycle = self.steps_per_generation * self.num_iterations
        if self.signal == "surrogate" and self.beta == 0.0 and self.gradient_accumulation_steps % cycle == 0:
            raise ValueError(
                f"signal='surrogate' is identically 0 with beta={self.beta} and one optimiser step per "
                f"generation (gradient_accumulation_steps={self.gradient_accumulation_steps}, "
                f"steps_per_generation={self.steps_per_generation}, num_iterations={self.num_iterations}): "
                "the ratio is always 1 and advantages sum to 0 in a rollout group. Set "
                "steps_per_generation above gradient_accumulation_steps, or num_iterations > 1, or beta > "
                "0, or signal='error'"
            )

    def _check_budget(self):
        checks.whole_number("rollouts_min", self.rollouts_min, low=2)
        checks.whole_number("rollouts_max", self.rollouts_max, low=self.rollouts_min)
        if not self.rollouts_min <= self.num_generations <= self.rollouts_max:
            raise ValueError(
                f"num_generations={self.num_generations} is the mean number of rollouts a prompt and must "
                f"lie within the arms {self.rollouts_min}..{self.rollouts_max}; set num_generations inside, "
                "or move rollouts_min / rollouts_max"
            )

    @property
    def cycle_length(self):
        """Micro-batches between two generations: ``steps_per_generation * num_iterations``."""
        return self.steps_per_generation * self.num_iterations

    @property
    def plain(self):
        """True where the parent's advantages are taken as they are, which makes it GRPO bit for bit."""
        return not (self.prompt_gdro or self.rollout_gdro) and (
            self.advantage_clip is None and self.advantage_std == "sample"
        )

    def build_controller(self, num_prompts, bins=None, data_fingerprint=""):
        """The `Controller` these settings describe.

        Args: ``num_prompts`` in the data set; ``bins`` (num_prompts,) fixed labels in [0, B), or None;
        ``data_fingerprint`` names the data set in saved states.
        """
        edges = list(self.bin_edges) if self.bin_edges is not None else self.num_bins
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
            prompt=self._prompt_adversary(num_bins) if self.prompt_gdro else None,
            rollout=self._rollout_adversary(num_bins) if self.rollout_gdro else None,
            seed=self.seed,
            mean_budget=self.num_generations,
            signal=self.signal,
            bins=bins,
            data_fingerprint=data_fingerprint,
            success_threshold=self.success_threshold,
        )

    def _prompt_adversary(self, num_bins):
        return PromptGDRO(
            num_bins,
            step_size=self.prompt_step_size,
            exploration=self.prompt_exploration,
            ema_rate=self.prompt_ema_rate,
            score=self.prompt_score,
            score_clip=self.score_clip,
            max_weight=self.max_weight,
            share_normalized=self.share_normalized,
            share_floor=self.share_floor,
            normalization=self.weight_normalization,
        )

    def _rollout_adversary(self, num_bins):
        arms = tuple(range(self.rollouts_min, self.rollouts_max + 1))
        if self.rollout_rule == "sqrt-law":
            return SquareRootLaw(num_bins, arms, self.num_generations)
        settings = {
            "arms": arms,
            "mean_budget": self.num_generations,
            "price_step_size": self.price_step_size,
        }
        if self.rollout_rule == "released":
            return RolloutGDRO.released(num_bins, **settings)
        return RolloutGDRO(
            num_bins,
            **settings,
            step_size=self.arm_step_size,
            exploration=self.arm_exploration,
            arm_ema_rate=self.arm_ema_rate,
            selection=self.selection,
            utility=self.utility,
            importance_weighted=self.importance_weighted,
        )
