"""What the processes of the kill tests do, and what must hold of a store whenever one of them has died."""

import json
import shutil

import killed_run
import numpy as np
import pandas as pd
from run_store import SETTINGS, evaluations, record
from safetensors.numpy import load_file

from gdro import checkpoints, runs
from gdro.run_writer import LOCK, RunWriter

SUITES = ["times-1"]
CLOCK = ["seconds", "controller_seconds"]
STEPS = 6


# jobs


def record_run(store, key):
    """Record a run of six steps, a flush and a checkpoint (here a number) every second one, going on from the
    last checkpoint, and finish it."""
    if runs.stage(store, key) == "finished":
        return
    with RunWriter.open(store, key, SETTINGS) as writer:
        checkpoint = writer.folder / "checkpoint.json"
        if writer.manifest["stage"] != "trained":
            first = json.loads(checkpoint.read_text())["step"] if checkpoint.is_file() else 0
            writer.cut_back(first)
            for last in range(first + 2, STEPS + 1, 2):
                record(writer, last - 1, last)
                writer.flush(rollouts=8 * last)
                runs.write_json(checkpoint, {"step": last})
            writer.trained(rollouts=8 * STEPS)
        checkpoint.unlink(missing_ok=True)
        writer.finish(evaluations({0: [0, 0, 0, 1, 1, 1], STEPS: [1, 2, 3, 4, 5, 6]}))


def train(store, arm):
    """Train the small cell of ``arm``, or go on with it."""
    from gdro import study

    killed_run.make_small()
    study.train_cell("tiny-s", arm, 0, store, progress="none")


def save_and_rotate(folder):
    """Train the tiny model for four steps, or go on with it: a checkpoint at each, two of them kept."""
    import tiny_model as tiny

    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    trainer = tiny.make(folder, max_steps=4, **saving)
    trainer.train(resume_from_checkpoint=checkpoints.latest_complete(folder))


def evaluate(store, arm, model=None):
    """Evaluate the small cell of ``arm`` on one suite, as trained from ``model``."""
    from gdro import study

    killed_run.make_small()
    study.evaluate_cell("tiny-s", arm, 0, store, suites=SUITES, progress="none", model=model)


# what must hold


def assert_sound(store, key):
    """Whatever is there under its own name is whole, and nothing counts as finished that is not."""
    manifest = runs.read_manifest(store, key)  # raises for one that is torn
    folder = key.folder(store)
    for table in runs.TABLES:
        if (folder / f"{table}.parquet").is_file():
            runs.read_table(store, key, table)
    stage = manifest["stage"] if manifest else "absent"
    if stage == "finished":
        runs.read_run(store, key)
    if stage in ("trained", "finished"):
        frames = {t: runs.read_table(store, key, t) for t in ("steps", "bins")}
        runs.check_whole(store, key, manifest, frames)
    if (folder / "model").is_dir():
        load_file(folder / "model" / "model.safetensors")
    newest = checkpoints.latest_complete(folder / "checkpoints")
    if newest is not None:
        checkpoints.refuse_damaged(newest)
        checkpoints.read_state(newest, checkpoints.STATE)
        steps, _ = runs.read_record(store, key)
        assert steps["step"].max() >= int(newest.rpartition("-")[2])


def assert_same(store, whole, key, model=True):
    """The run in ``store`` is the one in ``whole``, but for the clock, and nothing else is in its folder."""
    for table in runs.TABLES:
        pair = [runs.read_table(s, key, table) for s in (store, whole)]
        pd.testing.assert_frame_equal(*(frame.drop(columns=CLOCK, errors="ignore") for frame in pair))
    own, other = (runs.read_manifest(s, key) for s in (store, whole))
    changing = {"wall_seconds", "git_commit", runs.FILES}  # the latter of tables that hold seconds
    assert {k: v for k, v in own.items() if k not in changing} == {
        k: v for k, v in other.items() if k not in changing
    }
    names = [{p.name for p in key.folder(s).iterdir()} - {LOCK} for s in (store, whole)]
    assert names[0] == names[1]
    if model:
        first, second = (load_file(key.folder(s) / "model" / "model.safetensors") for s in (store, whole))
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)


def copied(store, target):
    """A copy of a store to try things on."""
    shutil.copytree(store, target)
    return target
