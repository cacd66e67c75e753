"""Recipes and the entry point: every recipe parsed and planned, and a stand-in run on two processes that is
saved, resumed and equal to one that never stopped."""

import json
import shutil
import signal
import sys

import pytest
import stand_in
import yaml
from safetensors.torch import load_file

from gdro import train
from gdro.recipe import DERIVED, RECIPES, Settings, overridden, parse, recipe

NAMES = sorted(path.stem for path in RECIPES.glob("*B-*.yaml"))
TINY = {"model_name_or_path": "somewhere", "output_dir": "out", "use_cpu": True, "bf16": False}


# recipes


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_parsed_into_the_batch_it_states(name):
    values = recipe(name)
    settings = parse(values, dry_run=True)
    run, args = settings.run, settings.trainer
    assert args.generation_batch_size == run.prompts * args.num_generations
    assert args.steps_per_generation == run.minibatches * args.gradient_accumulation_steps
    assert args.max_steps == run.generations * run.minibatches
    assert settings.model.model_name_or_path == f"Qwen/Qwen3-{name.split('-')[0]}-Base"
    assert len(settings.model.model_revision) == 40
    assert args.model_init_kwargs["dtype"] == ("bfloat16" if name.endswith("lora") else "float32")


def test_there_is_every_recipe_at_every_scale():
    assert sorted(f"{s}-{k}" for s in ("1.7B", "4B", "8B") for k in ("appendix", "lora", "released")) == NAMES


def test_the_appendix_recipe_says_what_the_appendix_says():
    args = parse(recipe("1.7B-appendix"), dry_run=True).trainer
    found = {
        name: getattr(args, name)
        for name in ("learning_rate", "beta", "epsilon", "epsilon_high", "temperature", "top_p", "top_k")
    }
    assert found == {
        "learning_rate": 1e-6,
        "beta": 0.001,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "temperature": 0.6,
        "top_p": 0.8,
        "top_k": 20,
    }
    assert (args.prompt_gdro, args.prompt_step_size, args.prompt_ema_rate) == (True, 0.65, 0.12)
    assert (args.max_weight, args.share_normalized, args.advantage_clip) == (15.0, True, 5.0)
    assert (args.loss_type, args.signal, args.num_bins) == ("grpo", "surrogate", 10)


def test_the_released_recipe_differs_where_the_scripts_do():
    settings = parse(recipe("4B-released"), dry_run=True)
    assert (settings.run.prompts, settings.run.minibatches, settings.run.generations) == (512, 4, 500)
    assert settings.trainer.temperature == 1.0
    assert settings.trainer.weight_normalization == "mean_one"
    assert settings.trainer.bin_edges == [0.1, 0.2, 0.4, 0.6, 0.8, 0.9]


def test_overrides_win_and_are_read_as_yaml():
    values = overridden(recipe("8B-appendix"), ["prompt_gdro=false", "learning_rate=2e-6", "processes=16"])
    settings = parse(values, dry_run=True)
    assert settings.trainer.prompt_gdro is False
    assert settings.trainer.learning_rate == 2e-6
    assert settings.trainer.generation_batch_size == 1024


def test_a_field_of_a_recipe_wins_over_its_preset_also_at_its_default():
    values = recipe("4B-appendix")
    assert (values["preset"], parse(values, dry_run=True).trainer.beta) == ("paper", 0.001)
    changed = parse(overridden(values, ["beta=0", "signal=error"]), dry_run=True).trainer
    assert (changed.beta, changed.signal, changed.rollout_weighting) == (0.0, "error", "per_response")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_steps": 3}, "max_steps: set prompts, minibatches"),
        ({"learning_rte": 1}, r"unknown fields 'learning_rte' \(did you mean 'learning_rate'\?\): .*GDROC"),
        ({"zzzzzz": 1}, "unknown fields 'zzzzzz': the known"),
        ({"task": "dpao"}, "unknown task 'dpao'"),
        ({"style": "caht"}, "unknown style 'caht'"),
        (
            {"prompts": 10, "minibatches": 3},
            r"80 rows .* \(10 prompts\) do not divide into 3 minibatches .* of 8",
        ),
        ({"model_name_or_path": None}, "no model_name_or_path"),
        ({"reward": "best"}, "unknown reward 'best'; the known ones are 'math', 'choice'"),
        ({"sharding": "fsdp1"}, "unknown sharding 'fsdp1'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"generations": 0}, "generations must be at least 1"),
        ({"learning_rate": "fast"}, "learning_rate.*invalid float value: 'fast'"),
        ({"signal": "none"}, "unknown signal 'none'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        parse(TINY | values)


def test_a_recipe_that_is_not_there_lists_those_that_are():
    with pytest.raises(ValueError, match=r"unknown recipe '4B-paper': .* 1.7B-appendix, 1.7B-lora"):
        recipe("4B-paper")


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ("4B-paper", [], "unknown recipe '4B-paper': give a file, or one of 1.7B-appendix"),
        ("4B-appendix", ["learning_rte=1"], "did you mean 'learning_rate'?"),
        ("4B-appendix", ["data_path=nowhere.parquet"], "data_path 'nowhere.parquet' is neither a file"),
        ("4B-appendix", ["processes"], "'processes' is no override"),
        ("4B-appendix", ["bin_edges=[0.1"], "'bin_edges=[0.1' cannot be read as YAML"),
        ("4B-appendix", ["utility=gain"], "unknown utility 'gain'"),
        ("4B-appendix", ["attn_implementation=flash2"], "unknown attn_implementation 'flash2'"),
        ("4B-appendix", ["num_generations=x"], "num_generations must be a whole number, got 'x'"),
        ("4B-appendix", ["learning_rate=fast"], "invalid float value: 'fast'"),
        ("4B-appendix", ["processes=two"], "processes must be a whole number, got 'two'"),
        ("4B-appendix", ["bf16='on'", "vllm_mode=x"], "got 'on' unknown vllm_mode 'x'"),
        ("1.7B-lora", [f"data_path={stand_in.ROWS}"], "dapo has 6 prompts, a generation takes 128"),
    ],
)
def test_a_mistake_of_the_user_is_one_line_and_status_2(config, changes, message, capsys):
    with pytest.raises(SystemExit) as ended:
        train.main(["--config", config, "--dry-run", *changes])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert said[-1].startswith("python -m gdro.train: error: ")
    assert not any("Traceback" in line for line in said)


def test_a_mistake_is_found_before_anything_is_started(capsys):
    for change, message in (
        ("rollouts_maks=8", "'rollouts_maks' (did you mean 'rollouts_max'?)"),
        ("processes=two", "processes must be a whole number, got 'two'"),
    ):
        with pytest.raises(SystemExit) as ended:
            train.main(["--config", "8B-appendix", change])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_what_is_no_override_is_refused():
    with pytest.raises(ValueError, match="'prompts' is no override: write key=value"):
        overridden({}, ["prompts"])


def test_started_processes_must_be_as_many_as_the_recipe_says(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="processes=2, but 4 were started"):
        parse(TINY | {"processes": 2})


# the plan


def test_a_dry_run_builds_and_checks_everything_and_trains_nothing(tmp_path, capsys):
    changes = [f"data_path={stand_in.ROWS}", "prompts=4", f"output_dir={tmp_path / 'run'}", "processes=2"]
    train.main(["--config", "8B-lora", "--dry-run", *changes])
    text, said = capsys.readouterr()
    assert said.splitlines()[-2:] == [
        f"reading and checking the prompts of dapo from {stand_in.ROWS} ...",
        "counting the parameters of Qwen/Qwen3-8B-Base, without its weights ...",
    ]
    assert "Qwen/Qwen3-8B-Base on dapo: 6 rows" in text
    assert "model: 8.19 billion parameters, 0.087 trained" in text
    assert "batch: 4 prompts x 4 rollouts, 500 generations, 2 x h100-80" in text
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_what_the_data_cannot_give():
    values = overridden(recipe("1.7B-lora"), [f"data_path={stand_in.ROWS}"])
    with pytest.raises(ValueError, match="dapo has 6 prompts, a generation takes 128"):
        train.dry_run(values)
    with pytest.raises(ValueError, match="not a letter from A to Z"):
        train.dry_run(values | {"prompts": 4, "reward": "choice"})


# starting processes


@pytest.mark.parametrize("sharding", ["fsdp2", "zero3"])
def test_sharded_runs_are_started_by_accelerate_with_a_configuration_that_is_there(sharding):
    run = parse(TINY | {"sharding": sharding, "processes": 8, "prompts": 32}, dry_run=True).run
    words = train.command(["--config", "8B-appendix"], run)
    with open(words[words.index("--config_file") + 1], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    assert config["distributed_type"] == {"fsdp2": "FSDP", "zero3": "DEEPSPEED"}[sharding]
    assert words[words.index("--num_processes") + 1] == "8"
    assert words[-4:] == ["-m", "gdro.train", "--config", "8B-appendix"]


def test_a_killed_run_says_what_is_left(tmp_path, capfd):
    kill = "import os, signal; print('so far', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(
        train.TrainingStopped, match=rf"code -{signal.SIGKILL.value}, .* no checkpoint is complete"
    ):
        train.follow([sys.executable, "-c", kill], tmp_path)
    assert "so far" in capfd.readouterr().out


# the stand-in run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of a whole run of three steps, and of one that went on from the first's checkpoint."""
    folder = tmp_path_factory.mktemp("stand-in")
    path = stand_in.make(folder)
    train.main(["--config", str(path)])
    (folder / "resumed").mkdir()
    shutil.copytree(folder / "run" / "checkpoint-2", folder / "resumed" / "checkpoint-2")
    again = [f"output_dir={folder / 'resumed'}", "resume=true"]
    train.main(["--config", str(path), *again])
    return folder


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_the_stand_in_learns_from_the_math_grader(runs):
    state = json.loads((runs / "run" / "checkpoint-3" / "trainer_state.json").read_text(encoding="utf-8"))
    (generation,) = [entry for entry in state["log_history"] if "reward" in entry]
    assert 0 < generation["reward"] < 1
    assert state["log_history"][-1]["gdro/total_rollouts"] == 24
    before, after = weights(runs / "base"), weights(runs / "run" / "model")
    assert max(float((before[name] - after[name]).abs().max()) for name in after) > 1e-4


def test_a_resumed_stand_in_equals_one_that_never_stopped(runs):
    whole, resumed = weights(runs / "run" / "model"), weights(runs / "resumed" / "model")
    assert all(whole[name].equal(resumed[name]) for name in whole)


def test_a_folder_with_checkpoints_is_not_written_over(runs, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    settings: Settings = parse(recipe(runs / "recipe.yaml") | {"processes": 1})
    with pytest.raises(ValueError, match="holds checkpoint-3: pass resume=true"):
        train.train(settings)


def test_derived_fields_are_the_trainers():
    assert all(hasattr(parse(TINY).trainer, name) for name in DERIVED)
