"""A folder that is removed while a run writes it: the error names it and what to do, nothing is there
afterwards that looks further than it is, and the next start makes the run."""

import shutil

import jobs
import numpy as np
import pytest
import stand_in
from killing import attempt
from run_store import key

from gdro import runs, train
from gdro.recipe import REWARDS, parse, recipe
from gdro.runs import RunError

PARTS = 8
WAYS_OUT = ("let nobody remove it, and start the run again", "let nobody else remove it, and start again")


def assert_gone(store, error):
    """It was said, and what is in the store does not pass for a run."""
    assert error is not None
    assert "seed-0" in error
    assert any(words in error for words in WAYS_OUT), error
    assert runs.stage(store, key()) == "absent"


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.faults)])
def test_while_recording(tmp_path, stride):
    """At many operations: where the folder is empty yet, it is made again, and the run is whole."""
    whole = attempt(jobs.record_run, tmp_path / "whole", key(), folder=tmp_path)
    refused = 0
    for at in range(1, whole.operations + 1, stride):
        store = tmp_path / str(at)
        folder = key().folder(store)
        outcome = attempt(jobs.record_run, store, key(), folder=store, at=at, removed=folder)
        if (
            outcome.error is not None and "checkpoint.json" not in outcome.error
        ):  # which the test itself writes
            refused += 1
            assert_gone(store, outcome.error)
        assert attempt(jobs.record_run, store, key(), folder=store).error is None
        jobs.assert_same(store, tmp_path / "whole", key(), model=False)
    assert refused > whole.operations / stride / 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with the small run trained and one with it finished; the operations of the training."""
    folder = tmp_path_factory.mktemp("whole")
    training = attempt(jobs.train, folder / "trained", "grpo", folder=folder)
    jobs.copied(folder / "trained", folder / "finished")
    assert attempt(jobs.evaluate, folder / "finished", "grpo", folder=folder).error is None
    return folder, training.operations


@pytest.mark.faults
@pytest.mark.parametrize("part", range(PARTS))
def test_while_training(whole, tmp_path, part):
    """At an operation of each eighth of a run: record, checkpoint, model, removal of checkpoints."""
    folder, operations = whole
    # the lock is there, and not yet let go
    first, *_, last = np.linspace(8, operations - 5, PARTS + 1)[part : part + 2].astype(int)
    at = int(np.random.default_rng(part).integers(first, last))
    removed = key().folder(tmp_path)
    outcome = attempt(jobs.train, tmp_path, "grpo", folder=tmp_path, at=at, removed=removed)
    assert_gone(tmp_path, outcome.error)
    again = attempt(jobs.train, tmp_path, "grpo", folder=tmp_path).error
    if (
        again is not None
    ):  # a checkpoint was written meanwhile, into a folder made anew, and is not gone on with
        assert "its record ends at step 0" in again
        assert "remove its checkpoints folder to start it anew" in again
        shutil.rmtree(removed / "checkpoints")
        assert attempt(jobs.train, tmp_path, "grpo", folder=tmp_path).error is None
    assert attempt(jobs.evaluate, tmp_path, "grpo", folder=tmp_path).error is None
    jobs.assert_same(tmp_path, folder / "finished", key())


@pytest.mark.faults
def test_while_evaluating(whole, tmp_path):
    folder, _ = whole
    done = attempt(jobs.evaluate, jobs.copied(folder / "trained", tmp_path / "all"), "grpo", folder=tmp_path)
    said = []
    for at in range(8, done.operations - 4, 3):  # the lock is there, and not yet let go
        store = jobs.copied(folder / "trained", tmp_path / str(at))
        removed = key().folder(store)
        outcome = attempt(jobs.evaluate, store, "grpo", folder=store, at=at, removed=removed)
        said.append(outcome.error)
        assert outcome.error is not None, at
        assert "seed-0" in outcome.error
        assert runs.stage(store, key()) == "absent"
        again = attempt(jobs.evaluate, store, "grpo", folder=store).error
        assert "is absent, and only a trained run can be evaluated: train it" in again
    assert any("removed or replaced while this process wrote it" in error for error in said)


@pytest.mark.faults
@pytest.mark.parametrize("again", [False, True])
def test_while_training_by_a_recipe(tmp_path, monkeypatch, again):
    """Nothing is written where the folder was, not even where another run has made it ``again``."""
    grade, output, calls = REWARDS["math"], tmp_path / "run", []

    def removing(completions, **kwargs):
        calls.append(len(completions))
        if len(calls) == 2:
            assert (output / "checkpoint-3").is_dir()
            shutil.rmtree(output)
            if again:
                output.mkdir()
        return grade(completions, **kwargs)

    monkeypatch.setitem(REWARDS, "math", removing)
    values = recipe(stand_in.make(tmp_path)) | {
        "processes": 1,
        "generations": 2,
        "gradient_checkpointing": False,
    }
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RunError, match=r"run: its folder was removed or replaced .*start the run again"):
        train.train(parse(values))
    assert list(tmp_path.glob("run/*")) == []
