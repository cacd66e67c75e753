"""Training on a full disk: the checkpoint before the one that failed is whole, and the run goes on."""

import disks
import jobs
import pytest
import tiny_model as tiny
from killing import attempt
from run_store import key
from test_disks import done

from gdro import checkpoints, runs
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
        with pytest.raises((RunError, OSError), match="written"):
            jobs.train(store, "grpo")
        jobs.assert_sound(store, key())
    disks.enlarge(store, 1 << 16)
    jobs.train(store, "grpo")
    for own, other in zip(runs.read_record(store, key()), runs.read_record(whole, key()), strict=True):
        assert own.drop(columns=jobs.CLOCK, errors="ignore").equals(
            other.drop(columns=jobs.CLOCK, errors="ignore")
        )
