"""Writing a run: one process at a time, flushed before checkpoints and cut back to them, stages in order."""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
from pathlib import Path

import pandas as pd

from gdro import runs
from gdro.runs import RunError, RunKey

logger = logging.getLogger(__name__)
LOCK = ".lock"


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, where there is one; what cannot be removed is an error."""
    if not folder.exists():
        return
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise OSError(
            f"{folder} could not be removed ({error}): make it writable, let nobody else remove it, and "
            "start again"
        ) from error


@contextlib.contextmanager
def locked(folder):
    """Hold a run's folder for this process; a second process is refused by name, a dead one's lock is taken
    over and said.

    The lock is the kernel's (``flock``), which ends with its process, so a killed run never blocks the next
    one. Yields a function that raises `RunError` once the folder is no longer the one that was locked.
    """
    folder = Path(folder)
    path = folder / LOCK
    where = "/".join(folder.parts[-3:])
    with _refused(where):
        made = [path for path in [*reversed(folder.parents), folder] if not path.exists()]
        descriptor = _lock_file(path, where)

    def check_held():
        if not _is_at(path, descriptor):
            raise RunError(
                f"run {where}: its folder was removed or replaced while this process wrote it: "
                "let nobody remove it, and start the run again"
            )

    try:
        with _refused(where):
            left = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            if left:
                logger.warning("%s: taking over the lock that %s left behind", folder.name, left)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield check_held
    finally:
        _release(path, descriptor)
        for new in reversed(made):
            with contextlib.suppress(OSError):  # not empty, or gone
                new.rmdir()


@contextlib.contextmanager
def _refused(where):
    """Say of which run it was that its folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"run {where} cannot be written ({error}): make room or its folder writable, or choose another "
            "place"
        ) from error


def _release(path, descriptor):
    """Let go of the lock, which closing does; the file that is left where it cannot be removed says so."""
    try:
        if _is_at(path, descriptor):
            path.unlink()
    except OSError as error:
        logger.warning("%s: the lock is released, its file cannot be removed (%s)", path.parent.name, error)
    finally:
        os.close(descriptor)


def _is_at(path, descriptor):
    """Whether the open file is the one now at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock_file(path: Path, where: str) -> int:
    """An open, locked descriptor of the file now at ``path``, in a folder that is made where it is not there.

    Other holders may remove their file and their empty folder between any two of these calls, and then they
    are made again; what is still in the way after a hundred times is the system's own error.
    """
    for left in reversed(range(100)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            if not left:
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise RunError(
                f"run {where} is being written by {holder}: wait for it, or end that process"
            ) from error
        except OSError:  # a file system without locks
            os.close(descriptor)
            raise
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)
    raise RunError(f"run {where}: others removed its lock a hundred times: let them end, and start again")


class RunWriter:
    """Writes one run inside the ``with`` block of :meth:`open`.

    Rows are held in memory and put on disk by :meth:`flush`, whole tables at a time, so a reader or a crash
    never sees half a table. ``manifest`` is what is on disk plus what :meth:`flush`, :meth:`trained` and
    :meth:`finish` add to it.
    """

    def __init__(self, store, key: RunKey, manifest: dict, tables: dict, check_held=lambda: None):
        self.store, self.key, self.manifest = Path(store), key, manifest
        self._check_held = check_held
        self._rows = {t: tables[t].to_dict("records") if t in tables else [] for t in ("steps", "bins")}

    @classmethod
    @contextlib.contextmanager
    def open(cls, store, key: RunKey, settings: dict, described: dict | None = None):
        """Lock the run and continue it, or start it with these settings.

        ``settings``: what must be equal for a run to be the same run; ``described``: facts put into a new
        manifest (versions, hardware). A finished run, and one made with other settings, is refused and left
        as it is.
        """
        settings = plain(settings)
        with locked(key.folder(store)) as check_held:
            manifest = runs.read_manifest(store, key)
            tables = {}
            if manifest is not None:
                refuse_other_settings(key, manifest, settings)
                if manifest["stage"] == "finished":
                    raise RunError(
                        f"run {key} is finished: read it, "
                        "or remove its folder from the store to make it again"
                    )
                tables = _recorded(store, key, manifest)
            else:
                manifest = {
                    **(described or {}),
                    **{"schema": runs.SCHEMA, "scale": key.scale, "arm": key.arm, "seed": key.seed},
                    **{"stage": "started", "finished": False, "settings": settings, "wall_seconds": 0.0},
                }
            for left in key.folder(store).glob(".tmp-*"):  # by a process that was killed while writing
                left.unlink()
            yield cls(store, key, manifest, tables, check_held)

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return self.key.folder(self.store)

    @property
    def last_step(self) -> int:
        """The last recorded step, 0 before the first."""
        return int(self.last_row.get("step", 0))

    @property
    def last_row(self) -> dict:
        """The last recorded step's row, empty before the first."""
        return self._rows["steps"][-1] if self._rows["steps"] else {}

    def append(self, step_row: dict, bin_rows=()) -> None:
        """Add one step's row and, where a cycle ended in it, its bins' rows (each gets the step)."""
        step = int(step_row["step"])
        if step <= self.last_step:
            raise RunError(
                f"run {self.key}: step {step} after step {self.last_step}: "
                "cut the record back before resuming"
            )
        self._rows["steps"].append(dict(step_row))
        self._rows["bins"].extend({"step": step, **row} for row in bin_rows)

    def cut_back(self, step: int) -> int:
        """Drop what was recorded after ``step``, where the run resumes; returns how many steps that was."""
        before = len(self._rows["steps"])
        if step > self.last_step:
            raise RunError(
                f"run {self.key}: its record ends at step {self.last_step} and its checkpoint is at {step}: "
                "remove its checkpoints folder to start it anew"
            )
        rows = {table: [r for r in rows if r["step"] <= step] for table, rows in self._rows.items()}
        ended = {r["cycle"] for r in rows["steps"]} - {r["cycle"] for r in rows["steps"][-1:]}
        missing = sorted(ended - {r["cycle"] for r in rows["bins"]})
        if missing:
            raise RunError(
                f"run {self.key}: bins.parquet lacks cycle {missing[0]}, which steps.parquet has: "
                "remove the run's folder from the store and make the run again"
            )
        self._rows = rows
        return before - len(self._rows["steps"])

    def flush(self, **facts) -> None:
        """Put the record on disk, the manifest last; ``facts`` update the manifest."""
        for table, rows in self._rows.items():
            if rows:
                self._write(table, pd.DataFrame(rows))
        self._write_manifest(facts)

    def trained(self, **facts) -> None:
        """Flush and mark the training as complete; the evaluation is still to come."""
        self.flush()
        self._write_manifest(facts, stage="trained", steps=self.last_step)

    def finish(self, evaluations: pd.DataFrame, **facts) -> None:
        """Write the evaluations and, last of all, the manifest that says the run is finished."""
        if self.manifest["stage"] != "trained":
            raise RunError(
                f"run {self.key} is {self.manifest['stage']}: "
                "train it to the end before its evaluation is stored"
            )
        self._write("evaluations", evaluations)
        self._write_manifest(facts, stage="finished", finished=True)

    def _write(self, table, frame):
        absent = runs.missing_columns(table, frame)
        if absent:
            raise RunError(f"run {self.key}: {table} lacks the columns {', '.join(absent)}")
        with self._writing(f"{table}.parquet"):
            runs.write_table(self.folder / f"{table}.parquet", frame)

    def _write_manifest(self, facts, **stage):
        self.manifest.update(plain(facts), **stage)
        with self._writing(runs.MANIFEST):
            if stage:
                self.manifest[runs.FILES] = runs.table_hashes(self.folder)
            runs.write_manifest(self.folder, self.manifest)

    @contextlib.contextmanager
    def _writing(self, name):
        self._check_held()
        try:
            yield
        except OSError as error:
            self._check_held()
            raise RunError(
                f"run {self.key}: {name} could not be written ({error}); what was there is whole: make room "
                "or the folder writable, then start the run again, and it goes on from its last checkpoint"
            ) from error


def _recorded(store, key, manifest) -> dict:
    """The tables of a run that is to go on; all of them, and whole, where its training has ended."""
    ended = manifest["stage"] == "trained"
    there = [t for t in ("steps", "bins") if ended or (key.folder(store) / f"{t}.parquet").is_file()]
    tables = {t: runs.read_table(store, key, t) for t in there}
    if ended:
        runs.check_whole(store, key, manifest, tables)
    return tables


def plain(value):
    """The value as JSON would give it back (tuples become lists); what JSON cannot hold raises."""
    return json.loads(json.dumps(value, allow_nan=False))


def refuse_other_settings(key, manifest, settings):
    """Raise RunError, with both sides, where the settings differ from those that the run was made with."""
    old = manifest["settings"]
    changed = sorted(k for k in {*old, *settings} if old.get(k, "(absent)") != settings.get(k, "(absent)"))
    if changed:
        pairs = "; ".join(
            f"{k}: {old.get(k, '(absent)')} there, {settings.get(k, '(absent)')} now" for k in changed[:4]
        )
        more = f"; and {len(changed) - 4} more" if len(changed) > 4 else ""
        raise RunError(
            f"run {key} was made with other settings ({pairs}{more}): "
            "use those, another store, or remove its folder from the store"
        )
