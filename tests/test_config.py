"""GDROConfig: defaults, presets, the command line, and what it refuses before anything is loaded."""

import dataclasses

import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig, TrlParser

from gdro import GDROConfig
from gdro.config import preset_fields
from gdro.options import GDROOptions

BASE = {
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "per_device_train_batch_size": 8,
    "num_generations": 4,
}
SEVERAL = {"steps_per_generation": 2}


def config(tmp_path, **changes):
    return GDROConfig(str(tmp_path), **(BASE | changes))


def test_defaults_are_those_of_grpo(tmp_path):
    ours, theirs = config(tmp_path), GRPOConfig(str(tmp_path), **BASE)
    for option in dataclasses.fields(GRPOConfig):
        if option.name not in ("logging_dir", "run_name"):
            assert getattr(ours, option.name) == getattr(theirs, option.name), option.name
    assert ours.plain
    assert not config(tmp_path, advantage_clip=5.0).plain
    assert not config(tmp_path, advantage_std="population").plain


def test_the_command_line_takes_every_kind_of_field(tmp_path):
    line = f"""--output_dir {tmp_path} --use_cpu --bf16 False --report_to none --per_device_train_batch_size 8
    --num_generations 4 --prompt_gdro --num_bins 3 --bin_edges 0.2 0.5 --bin_column kind --preset paper
    --advantage_clip 4 --beta 0.01"""
    for parser in (HfArgumentParser, TrlParser):
        (parsed,) = parser(GDROConfig).parse_args_into_dataclasses(line.split())
        assert (parsed.prompt_gdro, parsed.rollout_gdro, parsed.num_bins) == (True, False, 3)
        assert (parsed.bin_edges, parsed.advantage_clip, parsed.bin_column) == ([0.2, 0.5], 4.0, "kind")
        assert (parsed.beta, parsed.signal, parsed.epsilon_high) == (0.01, "surrogate", 0.28)


def test_presets_fill_what_is_at_its_default_and_leave_the_rest(tmp_path):
    paper = config(tmp_path, preset="paper")
    assert (paper.loss_type, paper.beta, paper.epsilon, paper.epsilon_high) == ("grpo", 0.001, 0.2, 0.28)
    assert (paper.advantage_clip, paper.advantage_std, paper.signal) == (5.0, "population", "surrogate")
    assert (paper.share_normalized, paper.rollout_weighting) == (True, "per_response")
    assert (paper.learning_rate, paper.temperature, paper.num_generations) == (1e-6, 1.0, 4)
    assert config(tmp_path, preset="paper", beta=0.02).beta == 0.02
    released = config(tmp_path, preset="released", rollout_gdro=True)
    assert (released.advantage_std, released.weight_normalization) == ("sample", "mean_one")
    assert (released.rollout_rule, released.window, released.bin_edges) == ("released", 50, [0.4, 0.75])
    assert config(tmp_path, preset="released", prompt_gdro=True).window == 100
    recommended = config(tmp_path, preset="recommended")
    assert (recommended.signal, recommended.utility, recommended.rollout_weighting) == (
        "error",
        "variance",
        "per_prompt",
    )


def test_the_fields_of_a_preset_can_be_given_without_it_so_that_a_default_is_kept(tmp_path):
    fields = preset_fields("paper")
    with_preset, without = config(tmp_path, preset="paper"), config(tmp_path, **fields)
    assert {name: getattr(with_preset, name) for name in fields} == fields
    assert {name: getattr(without, name) for name in fields} == fields
    kept = config(tmp_path, **(fields | {"beta": 0.0} | SEVERAL))
    assert (kept.beta, kept.signal) == (0.0, "surrogate")
    both = preset_fields("released", prompt_gdro=True, rollout_gdro=True)
    assert "window" not in both
    with pytest.raises(ValueError, match="unknown preset 'papr'"):
        preset_fields("papr")


def test_the_controller_has_the_parts_that_were_asked_for(tmp_path):
    made = config(
        tmp_path, prompt_gdro=True, rollout_gdro=True, bin_edges=[0.5], rollouts_max=6
    ).build_controller(9)
    assert made.prompt.num_bins == made.rollout.num_bins == made.classifier.num_bins == 2
    assert made.classifier.num_prompts == 9
    assert tuple(made.rollout.arms) == (2, 3, 4, 5, 6)
    assert made.rollout.mean_budget == made.mean_budget == 4
    for name, kind in {"sqrt-law": "SquareRootLaw", "loss": "LossProportional"}.items():
        rule = config(tmp_path, rollout_gdro=True, rollout_rule=name).build_controller(9).rollout
        assert type(rule).__name__ == kind
    off = config(tmp_path).build_controller(9)
    assert off.prompt is None
    assert off.rollout is None


REFUSED = [
    ({"preset": "papr"}, "unknown preset 'papr'; the known ones are 'paper', 'released', 'recommended'"),
    ({"signal": "loss"}, "unknown signal 'loss'"),
    ({"rollout_rule": "best"}, "unknown rollout_rule 'best'"),
    ({"rollout_rule": "loss", "signal": "surrogate"}, "rollout_rule='loss' needs a signal that is never neg"),
    ({"rollout_weighting": "flat"}, "unknown rollout_weighting 'flat'"),
    ({"advantage_std": "none"}, "unknown advantage_std 'none'"),
    ({"advantage_clip": 0.0}, "advantage_clip must be above 0, got 0.0"),
    ({"estimator": "mean"}, "unknown estimator 'mean'"),
    ({"bin_edges": [0.5, 0.2]}, "0.2"),
    ({"bin_edges": []}, r"bin_edges is \[\]; leave it None and set num_bins=1"),
    ({"bin_edges": [0.5, 1.0]}, "1.0"),
    ({"hysteresis": 0.2}, "hysteresis 0.2 must be smaller"),
    ({"success_threshold": float("nan")}, "success_threshold must be finite"),
    ({"generation_kwargs": {"seed": 3}}, "generation_kwargs has seed=3"),
    ({"per_device_train_batch_size": 6}, r"generation_batch_size \(6\) must be divisible by num_generations"),
    ({"signal": "surrogate"}, "identically 0 with beta=0.0 and one optimiser step"),
    ({"signal": "surrogate", "gradient_accumulation_steps": 4, "steps_per_generation": 2}, "identically 0"),
    ({"prompt_gdro": True, "prompt_score": "mean"}, "unknown prompt_score 'mean'"),
    ({"prompt_gdro": True, "max_weight": -1.0}, "max_weight must be above 0"),
    ({"rollout_gdro": True, "rollouts_min": 1}, "rollouts_min must be at least 2, got 1"),
    ({"rollout_gdro": True, "rollouts_min": 6, "rollouts_max": 5}, "rollouts_max must be at least 6, got 5"),
    ({"rollout_gdro": True, "rollouts_min": 5}, r"num_generations=4 .* within the arms 5..12"),
    ({"rollout_gdro": True, "rollouts_max": 3}, r"num_generations=4 .* within the arms 2..3"),
    ({"rollout_gdro": True, "selection": "best"}, "unknown selection 'best'"),
    ({"rollout_gdro": True, "utility": "gain"}, "unknown utility 'gain'"),
]


@pytest.mark.parametrize(("changes", "match"), REFUSED)
def test_what_is_refused_names_value_and_limit(tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        config(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_step_size": -1.0},
        {"prompt_exploration": 2.0},
        {"prompt_score": "mean"},
        {"weight_normalization": "mean-one"},
        {"share_floor": 0.0},
        {"rollouts_min": 1},
        {"rollouts_max": 1},
        {"arm_step_size": -1.0},
        {"arm_ema_rate": 1.5},
        {"price_step_size": -0.1},
        {"selection": "best"},
        {"utility": "gain"},
        {"utility": "gain", "rollout_rule": "sqrt-law", "rollout_gdro": True},
    ],
)
def test_an_adversary_that_is_off_lets_no_typo_pass(tmp_path, changes):
    with pytest.raises(ValueError, match=str(next(iter(changes.values())))):
        config(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_step_size": -1.0}, "prompt_step_size must be at least 0, got -1.0"),
        ({"prompt_step_size": 200.0}, "prompt_step_size 200.0 times score_clip 5.0 is 1000.0"),
        ({"prompt_exploration": 2.0}, "prompt_exploration must be at most 1, got 2.0"),
        ({"prompt_ema_rate": 0}, "prompt_ema_rate must be above 0, got 0"),
        ({"prompt_score": "mean"}, "unknown prompt_score 'mean'; the known ones are 'ema', 'cumulative'"),
        ({"weight_normalization": "one"}, "unknown weight_normalization 'one'"),
        ({"arm_step_size": -1.0}, "arm_step_size must be at least 0, got -1.0"),
        ({"arm_exploration": 2.0}, "arm_exploration must be at most 1, got 2.0"),
        ({"arm_ema_rate": 1.5}, "arm_ema_rate must be at most 1, got 1.5"),
        ({"price_step_size": -0.1}, "price_step_size must be at least 0, got -0.1"),
        ({"pass_k": 0}, "pass_k must be at least 1, got 0"),
        ({"bin_edges": [0.5, 0.2]}, "bin_edges must ascend strictly inside (0, 1), got [0.5, 0.2]"),
        (
            {"bin_edges": [0.5, float("nan")]},
            "bin_edges[1] is nan, not a finite number; give ascending inner edges",
        ),
        (
            {"bin_edges": 0.5},
            "bin_edges must be a list of ascending inner edges in (0, 1), got 0.5; leave it None",
        ),
        ({"bin_edges": "0.5"}, "bin_edges must be a list of ascending inner edges in (0, 1), got '0.5'"),
        ({"bin_column": 3}, "bin_column must be the name of a column of the data set, got 3; leave it None"),
        ({"bin_column": ""}, "bin_column must be the name of a column of the data set, got ''"),
        (
            {"bin_column": "kind", "exclude_extremes": True},
            "exclude_extremes=True has no effect on the fixed bins of bin_column='kind': set it to False",
        ),
    ],
)
def test_an_error_begins_with_the_field_that_the_user_set(tmp_path, changes, message):
    with pytest.raises((TypeError, ValueError)) as refused:
        config(tmp_path, **changes)
    assert str(refused.value).startswith(message)


def test_an_adversary_that_is_off_asks_nothing_of_the_mean_budget(tmp_path):
    assert config(tmp_path, num_generations=16, per_device_train_batch_size=16).num_generations == 16


@pytest.mark.parametrize("value", ["no", 0, 1.0, None])
@pytest.mark.parametrize(
    "name", ["prompt_gdro", "rollout_gdro", "exclude_extremes", "share_normalized", "importance_weighted"]
)
def test_a_switch_is_true_or_false_and_nothing_else(tmp_path, name, value):
    with pytest.raises(TypeError, match=f"{name} must be True or False, got {value!r}"):
        config(tmp_path, **{name: value})
    with pytest.raises(TypeError, match=f"{name} must be True or False, got {value!r}"):
        GDROOptions(**{name: value}).controller(3, mean_budget=4)


def test_importance_weights_need_losses_in_the_unit_interval():
    with pytest.raises(ValueError, match=r"needs losses in .* 'surrogate' does not give"):
        GDROOptions(importance_weighted=True, selection="sample", signal="surrogate").check_choices()


def test_the_mean_budget_is_a_whole_number(tmp_path):
    with pytest.raises((TypeError, ValueError), match=r"num_generations must be a whole number, got 4\.5"):
        config(tmp_path, rollout_gdro=True, num_generations=4.5, per_device_train_batch_size=9)


@pytest.mark.parametrize("name", ["rollouts_min", "window", "num_bins", "pass_k"])
def test_fractions_of_counts_are_refused(tmp_path, name):
    with pytest.raises((TypeError, ValueError), match=r"2\.5"):
        config(tmp_path, rollout_gdro=True, **{name: 2.5})


@pytest.mark.parametrize(
    "changes",
    [
        {"steps_per_generation": 2},
        {"num_iterations": 2},
        {"beta": 0.001},
        {"gradient_accumulation_steps": 3, "steps_per_generation": 2},
    ],
)
def test_the_surrogate_signal_is_allowed_where_it_can_differ_from_zero(tmp_path, changes):
    assert config(tmp_path, signal="surrogate", **changes).signal == "surrogate"


def test_there_is_no_field_for_what_only_the_simulator_has(tmp_path):
    with pytest.raises(TypeError, match="budget"):
        config(tmp_path, rollout_gdro=True, budget="dual")
