"""Killed at any moment of recording, training, checkpointing or evaluating, a run is whole and goes on.

After every kill: each file under its own name is whole, and the run does not count as further than it is.
After the last: the finished run is bit for bit the one that was never stopped, and left nothing behind.
"""

import shutil
import time

import jobs
import numpy as np
import pytest
from killing import attempt
from run_store import key
from safetensors.numpy import load_file
from test_damage import flipped

from gdro import checkpoints, runs

ARMS = ("joint", "dapo-filter")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store with a recorded run, and the file operations that took."""
    store = tmp_path_factory.mktemp("recorded")
    done = attempt(jobs.record_run, store, key(), folder=store)
    assert done.error is None
    return store, done.operations


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.faults)])
def test_recording_killed_before_any_of_its_file_operations(recorded, tmp_path, stride, torn):
    whole, operations = recorded
    for at in range(1 + torn * stride // 2, operations + 1, stride):
        store = tmp_path / str(at)
        assert attempt(jobs.record_run, store, key(), folder=store, at=at, torn=torn).killed
        jobs.assert_sound(store, key())
        assert attempt(jobs.record_run, store, key(), folder=store).error is None
        jobs.assert_same(store, whole, key(), model=False)


# training and evaluating


@pytest.fixture(scope="module", params=ARMS)
def trained(request, tmp_path_factory):
    """An arm, a store with its small run trained, another with it finished, the operations of each, and the
    seconds of the first."""
    arm, folder = request.param, tmp_path_factory.mktemp("whole")
    assert attempt(len, (), folder=folder).error is None  # the server of the processes is up
    start = time.monotonic()
    training = attempt(jobs.train, folder / "trained", arm, folder=folder)
    seconds = time.monotonic() - start
    assert training.error is None
    jobs.copied(folder / "trained", folder / "finished")
    evaluation = attempt(jobs.evaluate, folder / "finished", arm, folder=folder)
    assert evaluation.error is None
    return arm, folder, training.operations, evaluation.operations, seconds


def finish(store, arm):
    for job in (jobs.train, jobs.evaluate):
        assert attempt(job, store, arm, folder=store).error is None


@pytest.mark.faults
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_training_killed_before_file_operations(trained, tmp_path, seed, torn):
    """Three kills a run, drawn over all of its operations: state, model, optimiser, marker, rotation ..."""
    arm, whole, operations, *_ = trained
    rng = np.random.default_rng([seed, torn, jobs.STEPS])
    kills = 0
    for _ in range(3):
        at = int(rng.integers(1, operations // 2 + 1))
        outcome = attempt(jobs.train, tmp_path, arm, folder=tmp_path, at=at, torn=torn)
        assert outcome.error is None
        kills += outcome.killed
        jobs.assert_sound(tmp_path, key(arm))
    assert kills >= 2
    finish(tmp_path, arm)
    jobs.assert_same(tmp_path, whole / "finished", key(arm))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(3))
def test_training_killed_at_random_times(trained, tmp_path, seed):
    """By the clock, so also in the middle of generation, of a backward pass, of a file."""
    arm, whole, *_, seconds = trained
    rng = np.random.default_rng([seed, 1])
    kills = 0
    for share in rng.uniform(0.1, 0.7, size=3):
        outcome = attempt(jobs.train, tmp_path, arm, folder=tmp_path, after=share * seconds)
        while not kills and not outcome.killed:  # on a machine less busy than it was
            assert outcome.error is None
            shutil.rmtree(key(arm).folder(tmp_path))
            share /= 2
            outcome = attempt(jobs.train, tmp_path, arm, folder=tmp_path, after=share * seconds)
        assert outcome.killed or outcome.error is None
        kills += outcome.killed
        jobs.assert_sound(tmp_path, key(arm))
    finish(tmp_path, arm)
    jobs.assert_same(tmp_path, whole / "finished", key(arm))


@pytest.mark.parametrize("stride", [23, pytest.param(2, marks=pytest.mark.faults)])
def test_killed_between_state_checkpoint_and_rotation(tmp_path, stride):
    """Every operation on the checkpoint that the third save rotates away: its writing, then its removal."""
    done = attempt(jobs.save_and_rotate, tmp_path / "whole", folder=tmp_path / "whole" / "checkpoint-1")
    assert done.error is None
    wanted = load_file(tmp_path / "whole" / "checkpoint-4" / "model.safetensors")
    seen = set()
    for at in range(done.operations, 0, -stride):
        folder = tmp_path / str(at)
        oldest = folder / "checkpoint-1"
        assert attempt(jobs.save_and_rotate, folder, folder=oldest, at=at).killed
        newest = checkpoints.latest_complete(folder)
        if newest is not None:
            checkpoints.refuse_damaged(newest)
        seen.add("being written" if newest is None else "being removed")
        assert attempt(jobs.save_and_rotate, folder, folder=oldest).error is None
        assert [path.name for path in checkpoints.checkpoint_folders(folder)] == [
            "checkpoint-3",
            "checkpoint-4",
        ]
        assert not checkpoints.torn_folders(folder)
        found = load_file(folder / "checkpoint-4" / "model.safetensors")
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert seen == {"being written", "being removed"}


@pytest.mark.faults
@pytest.mark.parametrize("torn", [False, True])
def test_evaluation_killed_before_file_operations(trained, tmp_path, torn):
    arm, whole, _, operations, _ = trained
    store = jobs.copied(whole / "trained", tmp_path / "store")
    tries = np.random.default_rng(torn).integers(1, operations + 1, size=4)
    outcomes = []
    for at in sorted(tries.tolist()):
        outcomes.append(attempt(jobs.evaluate, store, arm, folder=store, at=at, torn=torn))
        jobs.assert_sound(store, key(arm))
    assert outcomes[0].killed
    assert all(outcome.error is None for outcome in outcomes)
    finish(store, arm)
    jobs.assert_same(store, whole / "finished", key(arm))


@pytest.mark.faults
def test_a_trained_model_that_changed_is_not_evaluated(trained, tmp_path):
    """One bit of any of its files, or the whole folder: it says which, and the run stays what it was."""
    arm, whole, *_ = trained
    store = jobs.copied(whole / "trained", tmp_path / "store")
    model = key(arm).folder(store) / "model"
    for path in sorted(model.iterdir()):
        data = path.read_bytes()
        path.write_bytes(flipped(data, 4 * len(data)))
        error = attempt(jobs.evaluate, store, arm, folder=store).error
        assert error.startswith(f"RunError: run tiny-s/{arm}/seed-0: its model/ was changed or damaged"), path
        path.write_bytes(data)
    shutil.rmtree(model)
    assert "its model/ is gone: remove the folder" in attempt(jobs.evaluate, store, arm, folder=store).error
    assert runs.stage(store, key(arm)) == "trained"


@pytest.mark.faults
def test_another_base_model_than_was_trained_from_is_not_evaluated(trained, tmp_path):
    arm, whole, *_ = trained
    store = jobs.copied(whole / "trained", tmp_path / "store")
    model = jobs.copied(key(arm).folder(store) / "model", tmp_path / "model")
    error = attempt(jobs.evaluate, store, arm, model, folder=store).error
    assert error.startswith(
        f"RunError: run tiny-s/{arm}/seed-0 was made with other settings (model_fingerprint"
    )
    assert runs.stage(store, key(arm)) == "trained"
