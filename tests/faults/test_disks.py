"""Disk full, read-only, gone: the error names the run and the way out, what was there stays, and with room
again the run goes on to the same end."""

import shutil

import disks
import jobs
import pytest
from killing import attempt
from run_store import SETTINGS, key, record, snapshot

from gdro import runs
from gdro.run_writer import RunWriter
from gdro.runs import RunError


def limited(largest, function, *arguments):
    """Call ``function`` where no file can grow beyond ``largest`` bytes."""
    disks.limit_files(largest)
    function(*arguments)


def done(outcome):
    """The error of an attempt; the test is skipped where the system grants no mounts."""
    if outcome.error and outcome.error.startswith("PermissionError") and "no mount" in outcome.error:
        pytest.skip(outcome.error)
    return outcome.error


def test_a_file_that_cannot_be_written_is_named_and_the_run_goes_on_later(tmp_path):
    assert attempt(jobs.record_run, tmp_path / "whole", key(), folder=tmp_path).error is None
    biggest = max(p.stat().st_size for p in (tmp_path / "whole").rglob("*") if p.is_file())
    store = tmp_path / "store"
    for largest in range(0, biggest, 2003):
        error = attempt(limited, largest, jobs.record_run, store, key(), folder=tmp_path).error
        assert error.startswith("RunError: run tiny-s/grpo/seed-0"), error
        assert "File too large" in error
        jobs.assert_sound(store, key())
    assert attempt(jobs.record_run, store, key(), folder=tmp_path).error is None
    jobs.assert_same(store, tmp_path / "whole", key(), model=False)


def on_a_small_disk(job, store, whole, sizes, *arguments):
    """``job`` on disks of growing size, in kilobytes; the last is large enough."""
    store.mkdir()
    disks.small(store, sizes[0])
    for size in sizes[:-1]:
        disks.enlarge(store, size)
        with pytest.raises(RunError, match=r"could not be written|cannot be written"):
            job(store, *arguments)
        jobs.assert_sound(store, arguments[-1] if isinstance(arguments[-1], runs.RunKey) else key(*arguments))
    disks.enlarge(store, sizes[-1])
    job(store, *arguments)
    jobs.assert_same(store, whole, key(), model=False)


def test_a_full_disk(tmp_path):
    assert attempt(jobs.record_run, tmp_path / "whole", key(), folder=tmp_path).error is None
    arguments = (jobs.record_run, tmp_path / "store", tmp_path / "whole", [8, 12, 16, 20, 4096], key())
    assert done(attempt(on_a_small_disk, *arguments, folder=tmp_path)) is None


def on_a_read_only_disk(store):
    disks.read_only(store)
    for run in (key(), key(seed=1)):
        with pytest.raises(RunError, match=r"seed-. cannot be written .*Read-only.*writable") as caught:
            jobs.record_run(store, run)
        assert caught.value.__cause__ is not None


def test_a_read_only_store(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        writer.flush()
    before = snapshot(tmp_path)
    assert done(attempt(on_a_read_only_disk, tmp_path, folder=tmp_path)) is None
    assert snapshot(tmp_path) == before


def made_read_only_on_its_way(store):
    with RunWriter.open(store, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        writer.flush()
        record(writer, 3, 4)
        disks.read_only(store)
        with pytest.raises(RunError, match=r"steps.parquet could not be written .*goes on from its last"):
            writer.flush()


def test_a_store_that_turns_read_only(tmp_path):
    assert done(attempt(made_read_only_on_its_way, tmp_path, folder=tmp_path)) is None
    jobs.assert_sound(tmp_path, key())
    assert runs.read_record(tmp_path, key())[0]["step"].tolist() == [1, 2]


def test_a_run_whose_folder_is_gone_says_so_and_leaves_the_next_one_alone(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        writer.flush()
        shutil.rmtree(key().folder(tmp_path))
        with pytest.raises(RunError, match="seed-0: its folder was removed or replaced while"):
            writer.flush()
        assert not key().folder(tmp_path).exists()
        with RunWriter.open(tmp_path, key(), SETTINGS) as other:  # of another process, as far as files go
            record(other, 1, 4)
            other.flush()
            before = snapshot(tmp_path)
            with pytest.raises(RunError, match="removed or replaced"):
                writer.trained()
            assert snapshot(tmp_path) == before
    assert runs.read_record(tmp_path, key())[0]["step"].tolist() == [1, 2, 3, 4]
