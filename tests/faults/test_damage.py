"""Files that are cut short, have a bit flipped, are of another schema or of something else: refused by name,
with the way out, and nothing is written over."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from run_store import SETTINGS, finished_run, key, record, snapshot
from safetensors.numpy import save_file

from gdro import checkpoints, runs
from gdro.run_writer import RunWriter
from gdro.runs import RunError

TABLES = [f"{table}.parquet" for table in runs.TABLES]
WAY_OUT = r"remove the folder tiny-s/grpo/seed-0 from the store and make the run again|snakemake"


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def bits(data, count, seed):
    return np.random.default_rng(seed).choice(8 * len(data), size=min(count, 8 * len(data)), replace=False)


def assert_refused(store, match=WAY_OUT, read=runs.read_run):
    """A finished run cannot be read, what it says has the way out, and the store is as before."""
    before = snapshot(store)
    with pytest.raises(RunError, match=match):
        read(store, key())
    with pytest.raises(RunError), RunWriter.open(store, key(), SETTINGS):
        pass
    assert snapshot(store) == before


# the run store


def why_unreadable(store):
    """What reading a finished run says, "" where it is read."""
    try:
        runs.read_run(store, key())
    except RunError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.faults)])
@pytest.mark.parametrize("name", [*TABLES, runs.MANIFEST])
def test_a_flipped_bit_in_a_finished_run_is_found(tmp_path, name, count):
    path = finished_run(tmp_path, key()).folder(tmp_path) / name
    data, whole = path.read_bytes(), runs.read_manifest(tmp_path, key())
    passed = 0
    for bit in bits(data, count, seed=1):
        path.write_bytes(flipped(data, bit))
        if "tiny-s/grpo/seed-0" not in why_unreadable(tmp_path):
            passed += 1  # in the manifest, in the name of its hash: then its content is what it was
            assert name == runs.MANIFEST
            assert whole.items() <= runs.read_manifest(tmp_path, key()).items()
    assert passed < count / 10
    path.write_bytes(flipped(data, 8 * (len(data) // 2)))
    assert_refused(tmp_path)


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.faults)])
@pytest.mark.parametrize("table", ["steps", "bins"])
def test_a_flipped_bit_in_the_record_of_a_run_on_its_way_is_found(tmp_path, table, count):
    """Its manifest has no hash of it yet: the pages have checksums, and the columns are written down. What
    is read otherwise is cut short, and a checkpoint that is further is not gone on with."""
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 6)
        writer.flush()
    path, whole = key().folder(tmp_path) / f"{table}.parquet", runs.read_table(tmp_path, key(), table)
    data, refused = path.read_bytes(), 0
    for bit in bits(data, count, seed=3):
        path.write_bytes(flipped(data, bit))
        try:
            with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
                writer.cut_back(6)
        except RunError as error:
            assert "tiny-s/grpo/seed-0" in str(error)  # noqa: PT017
            refused += 1
        else:
            pd.testing.assert_frame_equal(runs.read_table(tmp_path, key(), table), whole)
    assert refused > count / 5


@pytest.mark.parametrize(
    "change",
    [lambda f: f.rename(columns={"pass_rate": "pass_rat5"}), lambda f: f.astype({"pass_rate": "float32"})],
    ids=["name", "type"],
)
def test_a_record_with_another_column_than_was_written_is_found(tmp_path, change):
    with RunWriter.open(tmp_path, key(), SETTINGS) as writer:
        record(writer, 1, 6)
        writer.flush()
    path = key().folder(tmp_path) / "steps.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)
    with pytest.raises(
        RunError, match=r"steps.parquet has other columns than were written: remove the folder"
    ):
        runs.read_record(tmp_path, key())


@pytest.mark.parametrize("name", [*TABLES, runs.MANIFEST])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_file_of_a_finished_run_that_is_cut_short_is_found(tmp_path, name, kept):
    path = finished_run(tmp_path, key()).folder(tmp_path) / name
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    assert_refused(tmp_path, f"tiny-s/grpo/seed-0: {name} .*remove the folder")


@pytest.mark.parametrize("name", ["evaluations.parquet", runs.MANIFEST])
def test_a_file_of_another_run_is_found(tmp_path, name):
    folder = finished_run(tmp_path, key()).folder(tmp_path)
    other = finished_run(tmp_path / "other", key(seed=1), correct=(6, 5, 4, 3, 2, 1))
    shutil.copy(other.folder(tmp_path / "other") / name, folder / name)
    assert_refused(tmp_path, "moved here from elsewhere|changed after being written")


@pytest.mark.parametrize("schema", [0, 99, None])
def test_a_table_of_another_schema_is_refused(tmp_path, schema):
    folder = finished_run(tmp_path, key()).folder(tmp_path)
    frame = runs.read_table(tmp_path, key(), "steps")
    frame.attrs = {} if schema is None else {"gdro_schema": schema}
    frame.to_parquet(folder / "steps.parquet", index=False)
    assert_refused(tmp_path, f"steps.parquet has schema {schema} where this version reads {runs.SCHEMA}")


def test_a_manifest_that_names_nothing_is_refused(tmp_path):
    folder = finished_run(tmp_path, key()).folder(tmp_path)
    manifest = runs.read_manifest(tmp_path, key())
    runs.write_manifest(folder, {**manifest, "settings": [1]})
    assert_refused(tmp_path, "no settings by name")
    runs.write_manifest(folder, {k: v for k, v in manifest.items() if k != "steps"})
    assert_refused(tmp_path, "without its steps")
    runs.write_manifest(folder, {**manifest, "scale": "../../elsewhere"})
    assert_refused(tmp_path, "moved here from elsewhere")


@pytest.mark.parametrize("table", ["steps", "bins"])
def test_a_run_without_a_table_does_not_go_on(tmp_path, table):
    """Neither one on its way, whose record would have a hole, nor a trained one, which would be finished."""
    for stage in ("started", "trained"):
        store = tmp_path / stage
        with RunWriter.open(store, key(), SETTINGS) as writer:
            record(writer, 1, 6)
            writer.flush() if stage == "started" else writer.trained()
        (key().folder(store) / f"{table}.parquet").unlink()
        before = snapshot(store)
        with pytest.raises(RunError, match=r"lacks cycle 0|ends at step 0|half written"):  # noqa: SIM117
            with RunWriter.open(store, key(), SETTINGS) as writer:
                writer.cut_back(6)
        assert snapshot(store) == before


def test_runs_from_before_there_were_hashes_are_read(tmp_path):
    folder = finished_run(tmp_path, key()).folder(tmp_path)
    manifest = runs.read_manifest(tmp_path, key())
    old = {name: value for name, value in manifest.items() if name != runs.FILES}
    runs.write_json(folder / runs.MANIFEST, old)
    frame = runs.read_table(tmp_path, key(), "steps")
    frame.attrs = {"gdro_schema": runs.SCHEMA}
    frame.to_parquet(folder / "steps.parquet", index=False)  # without checksums of pages
    pd.testing.assert_frame_equal(runs.read_run(tmp_path, key()).steps, frame)


# checkpoints


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint-3"
    state = {
        "weights": np.linspace(0, 1, 50),
        "cycle": 7,
        "names": ["a", "b"],
        "deep": {"seen": np.ones(3, bool)},
    }
    checkpoints.write_state(folder, checkpoints.STATE, state)
    (folder / "model").mkdir()
    (folder / "model" / "other.bin").write_bytes(bytes(range(200)))
    checkpoints.write_marker(folder, 3)
    return folder


def why_refused(folder):
    """What resuming from a checkpoint says, None where it would go on."""
    try:
        state = checkpoints.read_state(folder, checkpoints.STATE)
        reason = checkpoints.why_incomplete(folder)
        if reason is None:
            checkpoints.refuse_damaged(folder)
    except ValueError as error:
        return str(error)
    return reason or (None if state["cycle"] == 7 else "read as something else")


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.faults)])
@pytest.mark.parametrize(
    "name", ["gdro_state.json", "gdro_state.safetensors", "model/other.bin", checkpoints.MARKER]
)
def test_a_flipped_bit_in_a_checkpoint_is_found(checkpoint, name, count):
    assert why_refused(checkpoint) is None
    path = checkpoint / name
    data = path.read_bytes()
    for bit in bits(data, count, seed=2):
        path.write_bytes(flipped(data, bit))
        reason = why_refused(checkpoint)
        if reason is None:  # in a marker: white space, or the step, which is read from the folder's name
            assert name == checkpoints.MARKER
            read, written = json.loads(path.read_bytes()), json.loads(data)
            assert read | {"step": 3} == written
        else:
            assert "read as something else" not in reason


@pytest.mark.parametrize("name", ["gdro_state.json", "gdro_state.safetensors", checkpoints.MARKER])
def test_every_shorter_checkpoint_file_is_found(checkpoint, name):
    path = checkpoint / name
    data = path.read_bytes()
    for size in range(0, len(data) - 1, 7):
        path.write_bytes(data[:size])
        assert why_refused(checkpoint) is not None
        assert checkpoints.latest_complete(checkpoint.parent) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            {"schema": 1, "step": 3, "files": {"../outside": 4}},
            "names '../outside', which is not in the folder",
        ),
        ({"schema": 1, "step": 3, "files": {"/etc/passwd": 4}}, "names '/etc/passwd'"),
        ({"schema": 1, "files": {"a/../../b": 1}}, "which is not in the folder"),
        ({"schema": 1, "files": {}, "sha256": {"a/../../b": ""}}, "of different files"),
        ({"schema": 1, "files": [1]}, "is not whole"),
        ([], "is not whole"),
        (3, "is not whole"),
    ],
)
def test_a_foreign_marker_is_refused(checkpoint, content, reason):
    (checkpoint / checkpoints.MARKER).write_text(json.dumps(content))
    assert reason in checkpoints.why_incomplete(checkpoint)


@pytest.mark.parametrize(
    "content",
    [[], 3, {}, {"schema": 1}, {"schema": 1, "state": {"array": "9"}}, {"schema": 1, "state": {"x": 1}}],
)
def test_a_foreign_state_is_refused_by_name(checkpoint, content):
    (checkpoint / "gdro_state.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"gdro_state is damaged .*latest_complete"):
        checkpoints.read_state(checkpoint, checkpoints.STATE)


def test_a_state_of_another_kind_of_array_is_not_taken_over(checkpoint):
    save_file({"0": np.zeros(50), "1": np.zeros(3)}, checkpoint / "gdro_state.safetensors")
    assert why_refused(checkpoint) is not None
