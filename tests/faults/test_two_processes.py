"""Two processes on one run: one writes it, the other says who does, and the run is as if there were one."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jobs
import pytest
from killing import CONTEXT, HANGS, attempt
from run_store import SETTINGS, key, record, snapshot

from gdro import runs
from gdro.run_writer import RunWriter, locked
from gdro.runs import RunError


def hold(store, opened, go_on):
    """Open a run, say so, and record it when told."""
    with RunWriter.open(store, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        writer.flush()
        opened.set()
        assert go_on.wait(HANGS)
        record(writer, 3, 4)
        writer.flush()


def test_the_second_process_is_refused_by_the_number_of_the_first_which_goes_on(tmp_path):
    opened, go_on = CONTEXT.Event(), CONTEXT.Event()
    first = CONTEXT.Process(target=hold, args=(tmp_path, opened, go_on))
    first.start()
    assert opened.wait(HANGS)
    before = snapshot(tmp_path)
    error = attempt(jobs.record_run, tmp_path, key(), folder=tmp_path).error
    assert error.startswith(f"RunError: run tiny-s/grpo/seed-0 is being written by process {first.pid} on ")
    assert "wait for it, or end that process" in error
    assert snapshot(tmp_path) == before
    go_on.set()
    first.join(HANGS)
    assert first.exitcode == 0
    assert runs.read_record(tmp_path, key())[0]["step"].tolist() == [1, 2, 3, 4]


def test_of_many_that_take_a_lock_at_once_one_has_it_at_a_time(tmp_path):
    inside, most, refused = [], [], []

    def take(number):
        for _ in range(20):
            try:
                with locked(tmp_path / "run"):
                    inside.append(number)
                    sum(range(50_000))  # long enough for others to come
                    most.append(len(inside))
                    inside.remove(number)
            except RunError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert set(most) == {1}
    assert len(most) + len(refused) == 120
    assert refused
    assert [text for text in refused if "is being written by" not in text] == []


@pytest.mark.parametrize("call", ["mkdir", "open"])
@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError, OSError])
def test_a_folder_that_comes_and_goes_while_it_is_locked_is_made_again(tmp_path, monkeypatch, call, error):
    where = {"mkdir": Path, "open": os}[call]
    real, raised = getattr(where, call), []

    def disturbed(path, *args, **kwargs):
        if Path(path).is_relative_to(tmp_path) and len(raised) < 3:
            raised.append(path)
            raise error(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(where, call, disturbed)
    with locked(tmp_path / "run"):
        assert len(raised) == 3
    assert not (tmp_path / "run").exists()


def test_what_stays_in_the_way_of_a_lock_is_said(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match=r"cannot be written \(.*File exists"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "run").read_text() == "a file"


def test_the_folder_of_a_recipe_is_written_by_one_run(tmp_path):
    from gdro import train
    from gdro.recipe import parse

    output = tmp_path / "out"
    values = {"model_name_or_path": "somewhere", "use_cpu": True, "bf16": False, "output_dir": str(output)}
    settings = parse(values, dry_run=True)
    with locked(output), pytest.raises(RunError, match="out is being written by process"):
        train.train(settings)


@pytest.mark.faults
def test_two_trainings_of_one_cell_started_at_once(tmp_path):
    assert attempt(jobs.train, tmp_path / "whole", "grpo", folder=tmp_path).error is None
    store = tmp_path / "store"
    with ThreadPoolExecutor(3) as pool:
        started = [pool.submit(attempt, jobs.train, store, "grpo", folder=tmp_path) for _ in range(3)]
        errors = [each.result().error for each in started]
    refused = [error for error in errors if error is not None]
    assert 0 < len(refused) < 3
    assert all("is being written by process" in error for error in refused)
    jobs.assert_sound(store, key())
    attempt(jobs.evaluate, store, "grpo", folder=tmp_path)
    attempt(jobs.evaluate, tmp_path / "whole", "grpo", folder=tmp_path)
    jobs.assert_same(store, tmp_path / "whole", key())
