"""The run store: what is written is read back, what is not whole is refused, and nobody leaves the store."""

import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_store import SETTINGS, bin_rows, evaluations, finished_run, key, record, snapshot, step_row

from gdro import runs
from gdro.run_writer import LOCK, RunWriter, locked
from gdro.runs import RunError, RunKey


def test_a_finished_run_is_read_as_it_was_written(tmp_path):
    run = runs.read_run(tmp_path, finished_run(tmp_path, key()))
    assert run.manifest["finished"] is True
    assert run.manifest["settings"] == SETTINGS
    assert (run.manifest["rollouts"], run.manifest["steps"]) == (48, 6)
    pd.testing.assert_frame_equal(run.steps, pd.DataFrame([step_row(s) for s in range(1, 7)]))
    wanted = [{"step": 2 * (c + 1), **row} for c in range(3) for row in bin_rows(c)]
    assert [list(p) for p in run.bins.pop("arm_probabilities")] == [
        row.pop("arm_probabilities") for row in wanted
    ]
    pd.testing.assert_frame_equal(run.bins, pd.DataFrame(wanted)[list(run.bins)])
    pd.testing.assert_frame_equal(
        run.evaluations, evaluations({0: [0, 0, 0, 1, 1, 1], 6: [1, 2, 3, 4, 5, 6]})
    )


def test_a_run_leaves_its_three_tables_and_its_manifest_and_nothing_else(tmp_path):
    finished_run(tmp_path, key())
    names = {p.name for p in key().folder(tmp_path).iterdir()}
    assert names == {"manifest.json", "steps.parquet", "bins.parquet", "evaluations.parquet"}


@pytest.mark.parametrize(
    "name", ["../other", "a/b", "", ".hidden", "/root", "a b", "..", "tiny-s\n", None, 3]
)
def test_a_name_cannot_leave_the_store(name):
    with pytest.raises(RunError, match="letters, digits"):
        RunKey(name, "grpo", 0)
    with pytest.raises(RunError, match="letters, digits"):
        RunKey("tiny-s", name, 0)


@given(st.text(max_size=12), st.text(max_size=12))
def test_every_key_that_is_accepted_lies_three_folders_below_the_store(scale, arm):
    try:
        folder = RunKey(scale, arm, 0).folder("store")
    except RunError:
        return
    assert os.path.normpath(folder) == str(folder)
    assert len(folder.parts) == 4


@pytest.mark.parametrize("seed", [-1, 1.0, True, "0", None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(RunError, match="integer >= 0"):
        RunKey("tiny-s", "grpo", seed)


@pytest.mark.parametrize("gone", ["manifest.json", "steps.parquet", "bins.parquet", "evaluations.parquet"])
def test_a_half_written_run_is_refused_with_what_is_missing(tmp_path, gone):
    (finished_run(tmp_path, key()).folder(tmp_path) / gone).unlink()
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match=rf"tiny-s/grpo/seed-0 is half written.*{gone}.*(again|make)"):
        runs.read_run(tmp_path, key())
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("table", runs.TABLES)
def test_a_torn_table_is_refused(tmp_path, table):
    path = finished_run(tmp_path, key()).folder(tmp_path) / f"{table}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RunError, match=f"{table}.parquet is not a whole parquet file"):
        runs.read_run(tmp_path, key())


@pytest.mark.parametrize("table", runs.TABLES)
def test_a_foreign_table_is_refused_by_its_columns(tmp_path, table):
    folder = finished_run(tmp_path, key()).folder(tmp_path)
    pd.DataFrame({"step": [1]}).to_parquet(folder / f"{table}.parquet")
    with pytest.raises(RunError, match=f"{table}.parquet lacks the columns"):
        runs.read_run(tmp_path, key())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "schema 99"),
        ({"scale": "tiny-m"}, "tiny-m/grpo/seed-0.*move it back"),
        ({"finished": False}, "no state of a run"),
        ({"stage": "paused"}, "'paused'"),
        ({"steps": 8}, "ends at step 6"),
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path, change, message):
    folder = finished_run(tmp_path, key()).folder(tmp_path)
    runs.write_manifest(folder, runs.read_manifest(tmp_path, key()) | change)
    with pytest.raises(RunError, match=message):
        runs.read_run(tmp_path, key())


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"schema": 1}'])
def test_a_manifest_that_is_no_manifest_is_refused(tmp_path, text):
    path = finished_run(tmp_path, key()).folder(tmp_path) / runs.MANIFEST
    path.write_text(text)
    with pytest.raises(RunError, match=r"manifest\.json"):
        runs.read_run(tmp_path, key())


def test_an_unfinished_run_is_refused_with_the_command_that_finishes_it(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        writer.flush()
    with pytest.raises(RunError, match=r"started but not finished.*snakemake.*arms=grpo"):
        runs.read_run(tmp_path, key())
    assert runs.list_runs(tmp_path) == []
    assert runs.list_runs(tmp_path, finished_only=False) == [key()]
    assert runs.stage(tmp_path, key(seed=1)) == "absent"
    with pytest.raises(RunError, match=r"seed-1 is not in the store: make or resume it with `snakemake"):
        runs.existing_manifest(tmp_path, key(seed=1))


@pytest.mark.parametrize("name", ["seed-01", "seed--1", "seed-", "seed-one", "0"])
def test_a_folder_that_no_run_has_is_no_run(tmp_path, name):
    folder = tmp_path / "tiny-s" / "grpo" / name
    folder.mkdir(parents=True)
    (folder / runs.MANIFEST).write_text("{}")
    assert runs.key_of(folder) is None
    assert runs.key_of(name) is None
    assert runs.list_runs(tmp_path, finished_only=False) == []


def test_a_run_cannot_be_finished_before_it_is_trained(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        with pytest.raises(RunError, match="train it to the end"):
            writer.finish(evaluations({0: [0] * 6}))


def test_a_table_without_its_columns_is_not_written(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        writer.trained()
        before = snapshot(tmp_path)
        with pytest.raises(RunError, match="lacks the columns k"):
            writer.finish(evaluations({0: [0] * 6}).drop(columns="k"))
        assert snapshot(tmp_path) == before


def test_cutting_back_and_going_on_gives_the_record_of_never_having_stopped(tmp_path):
    whole, cut = key(seed=0), key(seed=1)
    with RunWriter.open(tmp_path, whole, SETTINGS) as writer:
        record(writer, 1, 6)
        writer.flush()
    with RunWriter.open(tmp_path, cut, SETTINGS) as writer:
        record(writer, 1, 5)
        writer.flush()
    with RunWriter.open(tmp_path, cut, SETTINGS) as writer:
        assert writer.last_step == 5
        assert writer.cut_back(2) == 3
        record(writer, 3, 6)
        writer.flush()
    for table in ("steps", "bins"):
        pd.testing.assert_frame_equal(*(runs.read_table(tmp_path, k, table) for k in (whole, cut)))


def test_a_record_cannot_jump_or_go_backwards(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 4)
        with pytest.raises(RunError, match="step 4 after step 4"):
            writer.append(step_row(4))
        with pytest.raises(RunError, match="ends at step 4 and its checkpoint is at 6"):
            writer.cut_back(6)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    runs.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        runs.write_json(path, {"a": float("nan")})
    assert snapshot(tmp_path) == {"file.json": b'{\n "a": 1\n}\n'}


def test_a_half_done_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        runs.write_atomically(path, fail)
    assert snapshot(tmp_path) == {"file": b"old"}


def test_other_settings_are_refused_with_both_sides_and_nothing_changes(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 2)
        writer.flush()
    before = snapshot(tmp_path)
    with (
        pytest.raises(RunError, match=r"learning_rate: 0\.1 there, 0\.2 now"),
        RunWriter.open(tmp_path, key(), SETTINGS | {"learning_rate": 0.2}),
    ):
        pass
    assert snapshot(tmp_path) == before


def test_a_finished_run_is_not_opened_again(tmp_path):
    finished_run(tmp_path, key())
    before = snapshot(tmp_path)
    with pytest.raises(RunError, match="is finished"), RunWriter.open(tmp_path, key(), SETTINGS):
        pass
    assert snapshot(tmp_path) == before


def test_a_second_writer_is_refused_and_the_first_one_goes_on(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        holder = f"process {os.getpid()} "
        with (
            pytest.raises(RunError, match=f"being written by {holder}"),
            RunWriter.open(tmp_path, key(), SETTINGS),
        ):
            pass
        record(writer, 1, 2)
        writer.flush()
    assert runs.stage(tmp_path, key()) == "started"
    assert not (key().folder(tmp_path) / LOCK).exists()


def test_a_refused_open_leaves_no_folder(tmp_path):
    with (
        pytest.raises(ValueError, match="JSON"),
        RunWriter.open(tmp_path / "store", key(), {"a": float("inf")}),
    ):
        pass
    with pytest.raises(RuntimeError), locked(tmp_path / "store" / "a"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_process_is_taken_over_and_said(tmp_path, caplog):
    script = (
        "import os, signal, sys; from gdro.run_writer import locked\n"
        "with locked(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    folder = tmp_path / "run"
    dead = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert dead.returncode == -signal.SIGKILL
    assert (folder / LOCK).exists()
    with caplog.at_level("WARNING"), locked(folder):
        pass
    assert "taking over the lock that process" in caplog.text
    assert not folder.joinpath(LOCK).exists()


def test_runs_are_listed_in_order_and_strangers_are_not_runs(tmp_path):
    wanted = [key("grpo", 2), key("grpo", 10), key("joint", 0)]
    for k in reversed(wanted):
        finished_run(tmp_path, k)
    for stranger in ("tiny-s/grpo/seed-x", "tiny-s/grpo/seed-02", "tiny-s/.old/seed-0"):
        (tmp_path / stranger).mkdir(parents=True)
        (tmp_path / stranger / runs.MANIFEST).write_text("{}")
    assert runs.list_runs(tmp_path) == wanted
    assert runs.list_runs(tmp_path / "nowhere") == []


def test_loading_stacks_runs_under_their_names(tmp_path):
    for arm in ("grpo", "joint"):
        for seed in (0, 1):
            finished_run(tmp_path, key(arm, seed))
    frames = runs.load_runs(tmp_path, ["tiny-s"], ["joint"], [1, 0])
    assert [str(k) for k in frames.runs] == ["tiny-s/joint/seed-1", "tiny-s/joint/seed-0"]
    assert list(frames.steps.columns[:3]) == ["scale", "arm", "seed"]
    assert len(frames.steps) == 12
    assert set(frames.manifests) == {"tiny-s/joint/seed-0", "tiny-s/joint/seed-1"}
    assert len(runs.load_runs(tmp_path).runs) == 4
    assert len(runs.load_runs(tmp_path, arms=["grpo"]).runs) == 2


def test_loading_names_what_is_not_there(tmp_path):
    finished_run(tmp_path, key())
    with pytest.raises(RunError, match="no finished run of arm 'joint'"):
        runs.load_runs(tmp_path, arms=["grpo", "joint"])
    with pytest.raises(RunError, match="tiny-s/grpo/seed-1 is not in the store"):
        runs.load_runs(tmp_path, ["tiny-s"], ["grpo"], [0, 1])
    empty = runs.load_runs(tmp_path / "nowhere")
    assert empty.runs == ()
    assert "reward" in empty.steps.columns


def test_a_record_can_be_read_on_its_way(tmp_path):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 4)
        writer.flush()
        steps, bins = runs.read_record(tmp_path, key())
    assert np.array_equal(steps["step"], [1, 2, 3, 4])
    assert set(bins["arm"]) == {"grpo"}
