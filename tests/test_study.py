"""The study: its matrix, what it refuses before anything is computed, and runs that survive being killed."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import killed_run
import numpy as np
import pandas as pd
import pytest
from run_store import finished_run, key, snapshot
from safetensors.numpy import load_file

from gdro import arms, questions, runs, static_groups, study, study_arms
from gdro.config import GDROConfig, preset_fields
from gdro.run_writer import RunWriter

TINY = ("tiny-s", "tiny-m", "tiny-l")
ADVERSARY = {
    *(
        "prompt_gdro",
        "rollout_gdro",
        "signal",
        "share_normalized",
        "rollout_weighting",
        "utility",
        "rollout_rule",
    ),
    *(
        "prompt_step_size",
        "prompt_exploration",
        "prompt_ema_rate",
        "prompt_score",
        "score_clip",
        "max_weight",
    ),
    *(
        "weight_normalization",
        "rollouts_min",
        "rollouts_max",
        "arm_step_size",
        "arm_exploration",
        "arm_ema_rate",
    ),
    *("price_step_size", "bin_column", "prompt_rule", "selection"),
    *("num_bins", "bin_edges", "window", "hysteresis", "estimator", "pass_k"),
}


@pytest.fixture
def small(monkeypatch):
    """The scale tiny-s, small enough to train in seconds."""
    changed = {**arms.SCALES, "tiny-s": killed_run.SMALL}
    monkeypatch.setattr(arms, "SCALES", changed)
    monkeypatch.setattr(study, "SCALES", changed)


# the matrix


def test_all_arms_and_scales_are_there():
    assert set(study_arms.MAIN) == {
        *("grpo", "prompt-gdro", "rollout-gdro", "joint", "prompt-gdro-error", "rollout-gdro-variance"),
        *("dapo-filter", "sqrt-law", "class-gdro", "class-gdro-ema"),
    }
    mapped = set(questions.QUESTIONS[14].scales)
    assert set(study.SCALES) == {*TINY, *mapped, "1.7B", "4B", "8B", "smol"}
    assert study.PROFILES["full"]["scales"] == TINY
    for registry in (study.SCALES, study.ARMS):
        assert all(name == entry.name for name, entry in registry.items())


@pytest.mark.parametrize("scale", TINY)
@pytest.mark.parametrize("arm", study.ARMS)
def test_every_cell_is_a_valid_configuration(tmp_path, scale, arm):
    chosen = study.settings(scale, arm, 3)
    config = GDROConfig(output_dir=str(tmp_path), report_to="none", **chosen)
    what = study.SCALES[scale]
    assert (config.seed, config.beta, config.loss_type, config.epsilon_high) == (3, 0.001, "grpo", 0.28)
    assert config.generation_batch_size == what.prompts * what.rollouts
    assert config.steps_per_generation == 2
    assert config.max_steps == 2 * what.cycles
    assert json.loads(json.dumps(chosen)) == chosen


def test_the_scales_of_the_map_differ_in_their_base_model_alone():
    first, *others = (study.SCALES[name] for name in questions.QUESTIONS[14].scales)
    for scale in others:
        assert replace(first, name=scale.name, model=scale.model) == scale


@pytest.mark.parametrize("arm", [arm for arm in study.ARMS if arm != "dapo-filter"])
def test_arms_differ_in_their_adversary_alone(arm):
    base, own = study.settings("tiny-s", "grpo", 0), study.settings("tiny-s", arm, 0)
    differing = {name for name in {*base, *own} if base.get(name) != own.get(name)}
    if study.ARMS[arm].rate != 1:
        assert {"learning_rate"} <= differing <= {"learning_rate"} | ADVERSARY
        assert own["learning_rate"] / base["learning_rate"] == pytest.approx(study.ARMS[arm].rate)
    elif study.ARMS[arm].mean_budget:
        assert differing - ADVERSARY == {"num_generations"}
    else:
        assert differing <= ADVERSARY


@pytest.mark.parametrize("arm", study_arms.VARIANTS)
def test_a_variant_differs_from_its_arm_in_what_its_name_says(arm):
    base = max((name for name in study_arms.MAIN if arm.startswith(name)), key=len)
    own, other = (study.settings("tiny-s", name, 0) for name in (arm, base))
    assert own != other
    assert study.ARMS[arm].says.startswith(study.ARMS[base].label)


def test_the_recommended_arm_is_the_recommended_preset(tmp_path):
    chosen = study.settings("tiny-s", "joint-recommended", 0)
    preset = preset_fields("recommended", prompt_gdro=True, rollout_gdro=True)
    assert {name: chosen[name] for name in preset} == preset
    both = {"prompt_gdro": True, "rollout_gdro": True}
    plain = {name: value for name, value in chosen.items() if name not in ADVERSARY}
    made = GDROConfig(output_dir=str(tmp_path), report_to="none", preset="recommended", **(plain | both))
    assert {name: getattr(made, name) for name in chosen} == chosen


def test_the_paper_arms_have_the_settings_of_appendix_a():
    joint = study.settings("tiny-s", "joint", 0)
    wanted = {
        **{
            "signal": "surrogate",
            "share_normalized": True,
            "rollout_weighting": "per_response",
            "num_bins": 10,
        },
        **{"prompt_step_size": 0.65, "prompt_exploration": 0.01, "prompt_ema_rate": 0.12, "max_weight": 15.0},
        **{"rollouts_min": 2, "rollouts_max": 12, "arm_step_size": 0.65, "arm_exploration": 0.01},
        **{"arm_ema_rate": 0.4, "price_step_size": 0.05, "num_generations": 4, "beta": 0.001},
        **{"epsilon": 0.2, "epsilon_high": 0.28, "advantage_clip": 5.0, "hysteresis": 0.03, "window": 100},
    }
    assert wanted.items() <= joint.items()
    assert study.settings("tiny-s", "prompt-gdro-error", 0)["signal"] == "error"
    assert study.settings("tiny-s", "rollout-gdro-variance", 0)["utility"] == "variance"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: study.settings("tiny-x", "grpo", 0), "unknown scale 'tiny-x'.*tiny-s, tiny-m, tiny-l"),
        (lambda: study.settings("tiny-s", "gpro", 0), "unknown arm 'gpro'.*grpo, prompt-gdro"),
        (lambda: study.settings("tiny-s", "grpo", -1), "seed must be at least 0, got -1"),
        (lambda: study.settings("tiny-s", "grpo", 0, cycles=0), "cycles=0"),
        (lambda: study.settings("tiny-s", "grpo", 0, cycles=1.5), r"cycles=1\.5"),
        (lambda: study.settings("tiny-s", "grpo", 0, machine={"processes": 2}), "tiny-s has no recipe"),
        (lambda: study.cells([], ["grpo"], [0]), "no scale given"),
        (lambda: study.cells(["tiny-s"], [], [0]), "no arm given"),
        (lambda: study.cells(["tiny-s"], ["grpo"], []), "no seed given"),
        (lambda: study.cells(["tiny-s"], ["grpo"], ["0"]), "seed must be a whole number, got '0'"),
        (lambda: study.cells("tiny-s", ["grpo"], [0]), r"scales must be a list, got 'tiny-s': write \['"),
        (lambda: study.cells(["tiny-s"], None, [0]), "arms must be a list, got None"),
        (lambda: study.cells(["tiny-s"], ["grpo"], 0), r"seeds must be a list, got 0: write \[0\]"),
        (lambda: study.cells(["tiny-s"], ["grpo", "joint", "grpo"], [0]), "arm grpo is given twice"),
        (lambda: study.cells(["tiny-s"], ["grpo"], [1, np.int64(1)]), "seed 1 is given twice"),
        (lambda: study.reported("table9"), "unknown table of reported values 'table9'.*table1"),
        (lambda: study.family(["tiny-s", "huge"]), "unknown scale 'huge'"),
    ],
)
def test_unknown_names_and_values_are_refused_with_the_known_ones(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_numpy_integers_are_integers(tmp_path):
    (cell,) = study.cells(["tiny-s"], ["grpo"], np.arange(1, 2))
    assert cell == ("tiny-s", "grpo", 1)
    given = study.settings("tiny-s", "grpo", np.int64(1), cycles=np.int32(3))
    assert json.dumps(given) == json.dumps(study.settings("tiny-s", "grpo", 1, cycles=3))
    assert study.status(tmp_path, "tiny-s", "grpo", np.int64(1)) == "absent"
    assert type(runs.RunKey("tiny-s", "grpo", np.int64(1)).seed) is int


def test_a_scale_that_cannot_be_split_into_two_steps_is_refused():
    with pytest.raises(ValueError, match="3 prompts x 3 rollouts"):
        arms.Scale("odd", "tiny", "m", "tiny", 3, 3, 1, 1e-3, 4, 4)
    with pytest.raises(ValueError, match="cycles=0"):
        arms.Scale("none", "tiny", "m", "tiny", 4, 2, 0, 1e-3, 4, 4)


def test_every_reported_value_says_so():
    for name in ("table1", "other", "dynamics", "appendix_a"):
        table = study.reported(name)
        assert set(table["status"]) == {"reported"}
        assert table["source"].notna().all()


# nothing is touched when a cell is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": "tiny-x"}, "unknown scale"),
        ({"arm": "gpro"}, "unknown arm"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"cycles": 0}, "cycles=0"),
        ({"model": "data/prompts"}, "no Hugging Face model folder"),
    ],
)
def test_a_refused_cell_leaves_no_trace(tmp_path, changes, message):
    call = {"scale": "tiny-s", "arm": "grpo", "seed": 0, "store": tmp_path / "store"} | changes
    with pytest.raises(ValueError, match=message):
        study.train_cell(**call)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_suite_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"unknown suite 'sums'.*times-1"):
        study.evaluate_cell("tiny-s", "grpo", 0, tmp_path, suites=["times-1", "sums"])
    with pytest.raises(ValueError, match="no suite given"):
        study.evaluate_cell("tiny-s", "grpo", 0, tmp_path, suites=[])
    assert list(tmp_path.iterdir()) == []


def test_only_a_trained_run_is_evaluated(tmp_path):
    with pytest.raises(study.RunError, match=r"absent, and only a trained run.*04_train"):
        study.evaluate_cell("tiny-s", "grpo", 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_with_other_settings_is_refused_and_found_out(tmp_path):
    finished_run(tmp_path, key())
    before = snapshot(tmp_path)
    with pytest.raises(study.RunError, match="other settings"):
        study.train_cell("tiny-s", "grpo", 0, tmp_path)
    assert snapshot(tmp_path) == before
    assert "learning_rate" in study.outdated(tmp_path, "tiny-s", "grpo", 0)


def test_missing_cells_come_with_the_command_that_makes_them(tmp_path):
    finished_run(tmp_path, key())
    frames, commands = study.find_runs(tmp_path, ["tiny-s"], ["grpo", "joint"], [0])
    assert [str(k) for k in frames.runs] == ["tiny-s/grpo/seed-0"]
    assert commands == [
        "snakemake -s notebooks/Snakefile -c2 all --config scales='[tiny-s]' arms='[joint]' seeds='[0]'"
    ]
    _, commands = study.find_runs(tmp_path, ["tiny-m", "1.7B"], ["grpo"], [0, 1])
    assert [words.split()[3] for words in commands] == ["-c2", f"-c{study.job('1.7B', 'train')['cpus']}"]
    with pytest.raises(study.RunError, match=r"`snakemake -s notebooks/Snakefile -c64 all .*'\[8B\]'"):
        study.evaluate_cell("8B", "grpo", 0, tmp_path)


# real training


def record(store, arm):
    steps, bins = runs.read_record(store, key(arm))
    return steps.drop(columns=["seconds", "controller_seconds"]), bins


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A store with a small joint run that was never stopped, and its evaluation."""
    store = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        changed = {**arms.SCALES, "tiny-s": killed_run.SMALL}
        patch.setattr(arms, "SCALES", changed)
        patch.setattr(study, "SCALES", changed)
        study.train_cell("tiny-s", "joint", 0, store, progress="none")
        trained = runs.read_manifest(store, key("joint"))
        evaluations = study.evaluate_cell("tiny-s", "joint", 0, store, suites=["times-1"], progress="none")
    return store, trained, evaluations


def test_a_run_is_trained_then_finished_and_its_manifest_says_what_it_was(uninterrupted):
    store, trained, evaluations = uninterrupted
    assert (trained["stage"], trained["finished"]) == ("trained", False)
    run = runs.read_run(store, key("joint"))
    cycles, rows = killed_run.CYCLES, killed_run.SMALL.prompts * 4
    assert run.manifest["rollouts"] == cycles * rows
    assert run.manifest["tokens"] == run.steps["tokens_total"].iloc[-1] > 0
    assert run.steps["step"].tolist() == list(range(1, 2 * cycles + 1))
    assert run.bins.groupby("cycle").size().tolist() == [10] * cycles
    last = run.steps.iloc[-1]
    assert len(last["prompt_ids"]) == killed_run.SMALL.prompts
    assert sum(last["prompt_rollouts"]) == rows
    assert np.mean(last["prompt_correct"] / last["prompt_rollouts"]) == pytest.approx(last["pass_rate"])
    assert run.steps["prompt_ids"].notna().tolist() == [False, True] * cycles
    assert 0 < last["controller_seconds"] < run.steps["seconds"].sum()
    assert run.bins.groupby("cycle")["prompts"].sum().tolist() == [killed_run.SMALL.prompts] * cycles
    assert (run.bins["rollouts"] * run.bins["prompts"]).groupby(run.bins["cycle"]).sum().tolist() == [
        rows
    ] * cycles
    assert sorted(set(evaluations["step"])) == [0, 2 * cycles]
    assert run.manifest["evaluation"]["suites"] == ["times-1"]
    for name in ("versions", "git_commit", "hardware", "threads", "data_fingerprint", "wall_seconds"):
        assert run.manifest[name]
    assert str(Path.home()) not in json.dumps(run.manifest)
    assert sorted(p.name for p in key("joint").folder(store).iterdir()) == [
        *("bins.parquet", "evaluations.parquet", "manifest.json", "model", "steps.parquet")
    ]


def test_a_finished_run_is_left_alone(uninterrupted, small):
    store, _, evaluations = uninterrupted
    before = snapshot(store)
    study.train_cell("tiny-s", "joint", 0, store)
    pd.testing.assert_frame_equal(study.evaluate_cell("tiny-s", "joint", 0, store), evaluations)
    assert snapshot(store) == before


# step 7 lies inside a cycle, after the checkpoint of step 4; at 8 a checkpoint is about to be written
@pytest.mark.parametrize(("step", "moment", "kept"), [(3, "after", 0), (7, "flushed", 4), (8, "after", 4)])
def test_a_killed_run_resumes_to_the_record_of_never_having_stopped(
    uninterrupted, small, tmp_path, step, moment, kept
):
    store, trained, _ = uninterrupted
    command = [sys.executable, killed_run.__file__, "joint", str(tmp_path), str(step), moment]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -signal.SIGKILL
    left = sorted(p.name for p in (key("joint").folder(tmp_path) / "checkpoints").glob("checkpoint-*"))
    assert left == ([f"checkpoint-{kept}"] if kept else [])
    study.train_cell("tiny-s", "joint", 0, tmp_path, progress="none")
    for own, whole in zip(record(tmp_path, "joint"), record(store, "joint"), strict=True):
        pd.testing.assert_frame_equal(own, whole)
    manifest = runs.read_manifest(tmp_path, key("joint"))
    clock = {"wall_seconds", runs.FILES}  # the latter are hashes of tables that hold seconds
    for name in {*manifest, *trained} - clock:
        assert manifest[name] == trained[name], name
    models = [load_file(key("joint").folder(s) / "model" / "model.safetensors") for s in (store, tmp_path)]
    assert models[0].keys() == models[1].keys()
    assert all((models[0][name] == models[1][name]).all() for name in models[0])


def test_a_finished_run_lends_its_base_evaluation(uninterrupted, small, tmp_path, monkeypatch):
    store, _, evaluations = uninterrupted
    here = key("grpo")
    for name in ("manifest.json", "steps.parquet", "bins.parquet", "evaluations.parquet"):
        target = key("joint").folder(tmp_path) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((key("joint").folder(store) / name).read_bytes())
    study.train_cell("tiny-s", "grpo", 0, tmp_path, cycles=1, progress="none")
    sampled = []
    from gdro import training

    original = training.evaluate_folder
    monkeypatch.setattr(training, "evaluate_folder", lambda f, *rest: sampled.append(f) or original(f, *rest))
    found = study.evaluate_cell("tiny-s", "grpo", 0, tmp_path, suites=["times-1"], progress="none")
    assert sampled == [here.folder(tmp_path) / "model"]
    base = [frame[frame["step"] == 0].reset_index(drop=True) for frame in (found, evaluations)]
    pd.testing.assert_frame_equal(*base)


def test_a_variant_with_another_mean_budget_and_random_groups_trains(small, tmp_path):
    study.train_cell("tiny-s", "grpo-mean-2", 0, tmp_path, cycles=2, progress="none")
    manifest = runs.read_manifest(tmp_path, key("grpo-mean-2"))
    assert manifest["rollouts"] == 2 * killed_run.SMALL.prompts * killed_run.SMALL.rollouts
    study.train_cell("tiny-s", "prompt-gdro-error-random-bins", 0, tmp_path, cycles=2, progress="none")
    _, bins = runs.read_record(tmp_path, key("prompt-gdro-error-random-bins"))
    assert bins["bin"].nunique() == static_groups.RANDOM_GROUPS


@pytest.mark.parametrize("arm", ["dapo-filter", "sqrt-law", "class-gdro"])
def test_the_baselines_train(small, tmp_path, arm):
    study.train_cell("tiny-s", arm, 0, tmp_path, cycles=2, progress="none")
    manifest = runs.read_manifest(tmp_path, key(arm))
    assert manifest["stage"] == "trained"
    budget = 2 * killed_run.SMALL.prompts * 4
    assert manifest["rollouts"] >= budget if arm == "dapo-filter" else manifest["rollouts"] == budget
    _, bins = runs.read_record(tmp_path, key(arm))
    assert bins["bin"].nunique() == (30 if arm == "class-gdro" else 10)


def test_a_run_that_another_process_writes_is_left_to_it(small, tmp_path):
    start = study.train_cell("tiny-s", "grpo", 0, tmp_path, cycles=1, progress="none")
    settings = runs.read_manifest(tmp_path, key())["settings"]
    with RunWriter.open(tmp_path, key(), settings):
        before = snapshot(start)
        with pytest.raises(study.RunError, match="being written by process"):
            study.evaluate_cell("tiny-s", "grpo", 0, tmp_path, suites=["times-1"])
        assert snapshot(start) == before


def test_kept_runs_come_from_a_store_or_from_the_file_that_keeps_them(tmp_path):
    store = tmp_path / "store"
    finished_run(store, key())
    found = study.kept_runs(store)
    assert found["correct"].sum() / found["k"].sum() == pytest.approx(21 / 48)
    assert found[["rollouts", "tokens"]].drop_duplicates().to_numpy().tolist() == [[48, 480]]
    found.to_parquet(tmp_path / "kept.parquet", index=False)
    pd.testing.assert_frame_equal(study.kept_runs(tmp_path / "kept.parquet"), found)
