"""GDROConfig: TRL's GRPOConfig plus the flat fields of `gdro.options`, presets, and what does not go
together."""

from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType

from trl import GRPOConfig

from gdro import checks
from gdro.options import GDROOptions

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
                "price_step_size": 0.0,
            }
        ),
    }
)
_RELEASED_ROLLOUT = MappingProxyType({"window": 50, "hysteresis": 0.0, "bin_edges": (0.4, 0.75)})


def preset_fields(preset, *, prompt_gdro=False, rollout_gdro=False) -> dict:
    """The fields that ``preset`` sets, under the adversaries that are on; an unknown name lists the known.

    >>> preset_fields("released", rollout_gdro=True)["bin_edges"]
    [0.4, 0.75]
    """
    checks.one_of("preset", preset, tuple(PRESETS))
    values = dict(PRESETS[preset])
    if preset == "released" and rollout_gdro and not prompt_gdro:
        values |= _RELEASED_ROLLOUT
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass
class GDROConfig(GDROOptions, GRPOConfig):
    """Settings of `GDROTrainer`; with both adversaries off (the default) it trains as ``GRPOConfig`` does.

    Panaganti et al. 2026, sections 3.1 to 3.3. The adversaries' defaults are the paper's where it states one
    (hysteresis and window are the released code's); signal, share normalisation and the optimiser's fields
    are not, until ``preset="paper"`` sets them. The mean budget n_bar is ``num_generations``. All
    fields are flat, so that TRL's command-line parser takes them.

    ``preset`` fills every field that is at its default, also one that was set to it, which cannot be told
    from one that was not; a field set to anything else wins. To keep a default, leave ``preset`` out and give
    its fields: ``GDROConfig(..., **(preset_fields("paper") | {"signal": "error"}))``. (In a recipe of
    `gdro.recipe`, every field that is written down wins.)
      "paper"        appendix A: loss "grpo", KL 0.001, clip 0.2 / 0.28, advantages clipped to [-5, 5] and
                     divided by the population std, signal "surrogate", loss over share, flat mean over
                     responses.
      "released"     the authors' code: as "paper", but weights of mean one, sample std, the rollout rule
                     whose arms are never updated; with Rollout-GDRO alone also its window 50, hysteresis 0
                     and edges 0.4, 0.75.
      "recommended"  error signal, pass rate of single rollouts, weights of mean one, utility "variance", and
                     no price, which an exact budget does not need and which outweighs small variances. At the
                     tiny scales nothing speaks against it, and no gain over GRPO at a tuned learning rate is
                     shown (notebook 11_what_we_learned).
    Presets leave what belongs to a model and a machine alone: learning rate, batch sizes,
    ``num_generations``, sampling.

    Errors: ``ValueError`` or ``TypeError`` at construction, naming the value, the limit and the remedy.
    """

    preset: str | None = field(
        default=None,
        metadata={"help": "Fill fields at their default: 'paper', 'released' or 'recommended'."},
    )

    def __post_init__(self):
        self._fill_from_preset()
        super().__post_init__()
        self.check_choices()
        self._check_seed()
        self._check_surrogate()
        checks.whole_number("num_generations", self.num_generations, low=1)
        if self.rollout_gdro:
            self._check_budget()
        self.build_controller(
            num_prompts=1
        )  # what the parts refuse is refused here, before anything is loaded

    def _fill_from_preset(self):
        if self.preset is None:
            return
        values = preset_fields(self.preset, prompt_gdro=self.prompt_gdro, rollout_gdro=self.rollout_gdro)
        for option in fields(self):
            default = option.default if option.default_factory is MISSING else option.default_factory()
            if option.name in values and getattr(self, option.name) == default:
                setattr(self, option.name, values[option.name])

    def _check_seed(self):
        if "seed" in (self.generation_kwargs or {}):
            raise ValueError(
                f"generation_kwargs has seed={self.generation_kwargs['seed']!r}, which gives all rollouts "
                "of a prompt the same text, so that every advantage is 0; "
                "remove it and set `seed` of the config"
            )

    def _check_surrogate(self):
        cycle = self.steps_per_generation * self.num_iterations
        if self.signal == "surrogate" and self.beta == 0.0 and self.gradient_accumulation_steps % cycle == 0:
            raise ValueError(
                f"signal='surrogate' is identically 0 with beta={self.beta} and one optimiser step per "
                f"generation (gradient_accumulation_steps={self.gradient_accumulation_steps}, "
                f"steps_per_generation={self.steps_per_generation}, num_iterations={self.num_iterations}): "
                "the ratio is always 1 and advantages sum to 0 in a rollout group. "
                "Set steps_per_generation above gradient_accumulation_steps, or num_iterations > 1, "
                "or beta > 0, or signal='error'"
            )

    def _check_budget(self):
        if not self.rollouts_min <= self.num_generations <= self.rollouts_max:
            raise ValueError(
                f"num_generations={self.num_generations} is the mean number of rollouts a prompt and must "
                f"lie within the arms {self.rollouts_min}..{self.rollouts_max}; "
                "set num_generations inside, or move rollouts_min / rollouts_max"
            )

    @property
    def cycle_length(self) -> int:
        """Micro-batches between two generations: ``steps_per_generation * num_iterations``."""
        return self.steps_per_generation * self.num_iterations

    @property
    def plain(self) -> bool:
        """True where the parent's advantages are taken as they are, which makes it GRPO bit for bit."""
        return not (self.prompt_gdro or self.rollout_gdro) and (
            self.advantage_clip is None and self.advantage_std == "sample"
        )

    def build_controller(self, num_prompts, bins=None, data_fingerprint=""):
        """The `Controller` these settings describe.

        Args: ``num_prompts`` in the data set; ``bins`` (num_prompts,) fixed labels in [0, B), or None;
        ``data_fingerprint`` names the data set in saved states.
        """
        return self.controller(
            num_prompts,
            mean_budget=self.num_generations,
            seed=self.seed,
            bins=bins,
            data_fingerprint=data_fingerprint,
        )
