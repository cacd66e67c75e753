"""Training and evaluating on a full or read-only disk: what was complete before is whole, and the run goes on
to the same end."""

import shutil

import disks
import jobs
import pytest
import tiny_model as tiny
from killing import attempt
from run_store import key, snapshot
from test_disks import done, limited

from gdro import checkpoints, runs, study
from gdro.run_writer import LOCK
from gdro.runs import RunError

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "lr_scheduler_type": "constant"}


def full_while_saving(folder, largest):
    """Train where no file can grow beyond ``largest`` bytes."""
    trainer = tiny.make(folder, **SAVING)
    disks.limit_files(largest)
    trainer.train(resume_from_checkpoint=checkpoints.latest_complete(folder))


@pytest.mark.faults
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before_it(tmp_path):
    """At every file of the checkpoint in turn: state, model, optimiser, random state ..."""
    tiny.make(tmp_path / "unused")  # the model's folder, before there is a limit
    whole = tiny.train(tmp_path / "whole", **SAVING)
    sizes = {p.stat().st_size for p in (tmp_path / "whole" / "checkpoint-3").iterdir()}
    tiny.train(tmp_path / "cut", **SAVING | {"max_steps": 1})
    for largest in sorted(sizes):
        outcome = attempt(full_while_saving, tmp_path / "cut", largest - 1, folder=tmp_path)
        assert "checkpoint-2" in outcome.error, outcome.error
        assert "was not written" in outcome.error
        assert checkpoints.latest_complete(tmp_path / "cut") == str(tmp_path / "cut" / "checkpoint-1")
        checkpoints.refuse_damaged(tmp_path / "cut" / "checkpoint-1")
    resumed = tiny.make(tmp_path / "cut", **SAVING)
    resumed.train(resume_from_checkpoint=True)
    tiny.assert_same_parameters(tiny.parameters(whole), tiny.parameters(resumed))


@pytest.mark.faults
def test_a_study_run_on_a_full_disk(tmp_path):
    assert attempt(jobs.train, tmp_path / "whole", "grpo", folder=tmp_path).error is None
    arguments = (on_a_full_disk, tmp_path / "store", tmp_path / "whole")
    assert done(attempt(*arguments, folder=tmp_path)) is None


def on_a_full_disk(store, whole):
    store.mkdir()
    disks.small(store, 8)
    for size in (8, 300, 900, 2500):
        disks.enlarge(store, size)
        with pytest.raises((RunError, OSError), match=r"seed-0.*written .*make room"):
            jobs.train(store, "grpo")
        jobs.assert_sound(store, key())
    disks.enlarge(store, 1 << 16)
    jobs.train(store, "grpo")
    for own, other in zip(runs.read_record(store, key()), runs.read_record(whole, key()), strict=True):
        assert own.drop(columns=jobs.CLOCK, errors="ignore").equals(
            other.drop(columns=jobs.CLOCK, errors="ignore")
        )


# evaluating


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with the small run trained, and one with it finished."""
    folder = tmp_path_factory.mktemp("whole")
    assert attempt(jobs.train, folder / "trained", "grpo", folder=folder).error is None
    jobs.copied(folder / "trained", folder / "finished")
    assert attempt(jobs.evaluate, folder / "finished", "grpo", folder=folder).error is None
    return folder


@pytest.mark.faults
def test_an_evaluation_that_cannot_be_written_is_made_again(whole, tmp_path):
    store = jobs.copied(whole / "trained", tmp_path / "store")
    run = key().folder(whole / "finished")
    sizes = [(run / name).stat().st_size for name in ("evaluations.parquet", runs.MANIFEST)]
    for largest in (0, min(sizes) - 1, max(sizes) - 1):
        error = attempt(limited, largest, jobs.evaluate, store, "grpo", folder=store).error
        assert error.startswith("RunError: run tiny-s/grpo/seed-0"), error
        assert "File too large" in error
        assert "make room" in error
        jobs.assert_sound(store, key())
        assert runs.stage(store, key()) == "trained"
    assert attempt(jobs.evaluate, store, "grpo", folder=store).error is None
    jobs.assert_same(store, whole / "finished", key())


@pytest.mark.faults
def test_an_evaluation_on_a_full_disk(whole, tmp_path):
    assert done(attempt(evaluate_on_a_full_disk, tmp_path / "store", whole, folder=tmp_path)) is None


def evaluate_on_a_full_disk(store, whole):
    store.mkdir()
    disks.small(store, 1 << 16)
    shutil.copytree(whole / "trained", store, dirs_exist_ok=True)
    disk = shutil.disk_usage(store)
    for room in (0, 4, 12):
        disks.enlarge(store, disk.used // 1024 + room)
        with pytest.raises(RunError, match=r"seed-0.* be written .*No space left.*make room"):
            jobs.evaluate(store, "grpo")
        jobs.assert_sound(store, key())
        assert runs.stage(store, key()) == "trained"
    disks.enlarge(store, 1 << 16)
    jobs.evaluate(store, "grpo")
    jobs.assert_same(store, whole / "finished", key())


@pytest.mark.faults
@pytest.mark.parametrize("job", ["evaluate_read_only", "evaluate_turning_read_only"])
def test_an_evaluation_on_a_read_only_disk(whole, tmp_path, job):
    store = jobs.copied(whole / "trained", tmp_path / "store")
    before = snapshot(store)
    assert done(attempt(globals()[job], store, folder=tmp_path)) is None
    after = snapshot(store)
    assert {name: content for name, content in after.items() if not name.endswith(LOCK)} == before
    assert attempt(jobs.evaluate, store, "grpo", folder=store).error is None
    jobs.assert_same(store, whole / "finished", key())


def evaluate_read_only(store):
    disks.read_only(store)
    with pytest.raises(RunError, match=r"seed-0 cannot be written .*Read-only.*writable"):
        jobs.evaluate(store, "grpo")


def evaluate_turning_read_only(store):
    """The disk is read-only from the first answer on."""
    make, turned = study.grader, []

    def grader(what):
        grade = make(what)

        def turning(completions, answer, **kwargs):
            if not turned:
                turned.append(disks.read_only(store))
            return grade(completions, answer=answer, **kwargs)

        return turning

    study.grader = grader
    with pytest.raises(RunError, match=r"evaluations.parquet could not be written .*Read-only.*writable"):
        jobs.evaluate(store, "grpo")
    assert turned
