"""Cells of the paper's scales, on a stand-in of Qwen3: trained by the entry point in one process and in two,
killed and gone on with, evaluated on every benchmark suite, and read as all runs are."""

import os

import killed_child
import pandas as pd
import pytest
import stand_in
import torch
import yaml
from safetensors.torch import load_file

from gdro import arms, paper_scale, runs, study, suites, tables, train

SCALE = "1.7B"
STEPS = 6


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return stand_in.sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def scale(tmp_path_factory):
    """The scale 1.7B with a recipe that makes it small, and the folder of its base model."""
    folder = tmp_path_factory.mktemp("scale")
    recipe = folder / "recipe.yaml"
    values = yaml.safe_load(stand_in.make(folder).read_text(encoding="utf-8"))
    values |= {"minibatches": 2, "generations": STEPS // 2, "num_generations": 4, "save_steps": 2}
    values["output_dir"] = "unused"
    recipe.write_text(yaml.safe_dump(values), encoding="utf-8")
    small = arms.Scale(
        name=SCALE,
        family="paper",
        recipe=str(recipe),
        **paper_scale.fields(str(recipe)) | {"eval_completion": 8},
        eval_samples=4,
    )
    changed = {**arms.SCALES, SCALE: small}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "SCALES", changed)
        patch.setattr(study, "SCALES", changed)
        yield folder / "base"


@pytest.fixture(scope="module")
def resumed(scale, sets, tmp_path_factory):
    """A store with a cell trained in two processes, one of which was killed on the way; and what was left."""
    store = tmp_path_factory.mktemp("store")
    given = {"model": scale, "machine": {"data_path": str(sets)}}
    command = train.command

    def killing(arguments, run):
        words = command(arguments, run)
        at = words.index("gdro.train")
        return [*words[: at - 1], killed_child.__file__, "3", *words[at + 1 :]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "command", killing)
        with pytest.raises(train.TrainingStopped) as stopped:
            study.train_cell(SCALE, "joint", 0, store, **given)
    key = study.RunKey(SCALE, "joint", 0)
    left = study.status(store, SCALE, "joint", 0), runs.read_record(store, key)[0]
    place = study.train_cell(SCALE, "joint", 0, store, **given)
    return store, place, str(stopped.value), left


def test_a_refused_field_leaves_no_run_behind(scale, sets, tmp_path):
    machine = {"data_path": str(sets), "sharding": "fsdp3"}
    with pytest.raises(ValueError, match="sharding"):
        study.train_cell(SCALE, "joint", 0, tmp_path, model=scale, machine=machine)
    assert study.status(tmp_path, SCALE, "joint", 0) == "absent"
    assert not list(tmp_path.rglob("*.json"))


def test_a_killed_child_is_an_error_that_says_how_to_go_on(resumed):
    _, _, message, (stage, steps) = resumed
    assert "the processes ended with code" in message
    assert "checkpoint-2 is complete: training the same cell again goes on from it" in message
    assert stage == "started"
    assert steps["step"].tolist() == [1, 2]


def test_the_run_gone_on_with_is_a_run_like_any_other(resumed, scale):
    store, place, _, _ = resumed
    manifest = runs.read_manifest(store, study.RunKey(SCALE, "joint", 0))
    assert manifest["stage"] == "trained"
    assert (manifest["rollouts"], manifest["steps"]) == (STEPS // 2 * 16, STEPS)
    assert (manifest["settings"]["processes"], manifest["settings"]["signal"]) == (2, "surrogate")
    assert str(place.parents[3]) not in str(manifest)
    steps, bins = runs.read_record(store, study.RunKey(SCALE, "joint", 0))
    assert steps["step"].tolist() == list(range(1, STEPS + 1))
    assert (bins["rollouts"] * bins["prompts"]).groupby(bins["cycle"]).sum().tolist() == [16] * 3
    assert sorted(p.name for p in place.iterdir()) == [
        "bins.parquet",
        "manifest.json",
        "model",
        "steps.parquet",
    ]
    assert not list((place / "model").glob("*.bin"))
    before, after = (load_file(folder / "model.safetensors") for folder in (scale, place / "model"))
    assert any(not torch.equal(before[name], after[name]) for name in after)


def test_what_is_trained_is_left_alone_and_compared(resumed, scale, sets, monkeypatch):
    store, place, _, _ = resumed
    monkeypatch.setattr(train, "start", None)
    again = {"model": scale, "machine": {"data_path": str(sets)}}
    assert study.train_cell(SCALE, "joint", 0, store, **again) == place
    with pytest.raises(study.RunError, match=r"other settings .*max_steps: 6 there, 8 now"):
        study.train_cell(SCALE, "joint", 0, store, cycles=4, **again)


@pytest.fixture(scope="module")
def evaluated(resumed, scale, sets):
    store = resumed[0]
    given = {"model": scale, "machine": {"data_path": str(sets)}, "progress": "none"}
    return study.evaluate_cell(SCALE, "joint", 0, store, **given)


def test_every_suite_is_evaluated_with_its_own_grader(evaluated, resumed):
    run = runs.read_run(resumed[0], study.RunKey(SCALE, "joint", 0))
    pd.testing.assert_frame_equal(run.evaluations, evaluated)
    assert list(dict.fromkeys(evaluated["suite"])) == list(suites.SUITES)
    assert sorted(set(evaluated["step"])) == [0, STEPS]
    assert (evaluated["k"] == 4).all()
    assert evaluated["correct"].between(0, 4).all()
    known = evaluated["level"].notna()
    assert set(evaluated[known]["suite"]) == {"math500"}
    assert not evaluated[~known].empty
    assert evaluated.groupby("suite").size()["aime"] == 2 * 4
    plan = run.manifest["evaluation"]
    assert {
        "samples": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "engine": "transformers",
    }.items() <= plan.items()


def test_its_scores_stand_in_the_papers_table(evaluated, resumed):
    frames, missing = study.find_runs(resumed[0], [SCALE], ["joint"], [0])
    assert not missing
    scores = tables.scores(tables.final_step(frames.evaluations), resamples=20)
    assert set(scores["suite"]) == {*suites.SUITES, tables.ALL}
    assert len(tables.table1(scores)) == 1
    assert study.outdated(resumed[0], SCALE, "joint", 0) == []


@pytest.mark.parametrize("arm", ["class-gdro", "dapo-filter"])
def test_alone_it_trains_in_this_process(scale, sets, tmp_path, monkeypatch, arm):
    monkeypatch.setattr(train, "follow", None)
    machine = {"data_path": str(sets), "processes": 1}
    if arm == "class-gdro":  # six prompts are too few for ten groups
        monkeypatch.setattr("gdro.start.static_groups.by_length", lambda texts: ["a", "b"] * 3)
    study.train_cell(SCALE, arm, 0, tmp_path, progress="none", model=scale, machine=machine)
    key = study.RunKey(SCALE, arm, 0)
    manifest, (steps, bins) = runs.read_manifest(tmp_path, key), runs.read_record(tmp_path, key)
    assert manifest["stage"] == "trained"
    assert bins["bin"].nunique() == (2 if arm == "class-gdro" else 10)
    if arm == "dapo-filter":
        assert manifest["rollouts"] >= STEPS // 2 * 16
        assert steps["filter_rounds"].max() > 0
    else:
        assert manifest["rollouts"] == STEPS // 2 * 16


def test_an_interrupt_ends_the_processes(tmp_path, monkeypatch):
    """As when a notebook's cell is stopped: only this process hears of it."""
    seen = []

    def interrupted(line, **options):
        seen.append(int(line))
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "print", interrupted, raising=False)
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with pytest.raises(KeyboardInterrupt):
        train.follow([train.sys.executable, "-c", code], tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)
