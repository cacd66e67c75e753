"""The run store: one folder a run, ``<store>/<scale>/<arm>/seed-<n>/``, written whole or not at all.

``manifest.json`` says what the run is and how far it came; ``steps.parquet`` has a row a step,
``bins.parquet`` a row a cycle and bin, ``evaluations.parquet`` a row an evaluated step and prompt. Every file
is written under a temporary name and renamed. A run is ``started``, then ``trained``, then ``finished``; only
a finished run is read as a result. How far a record goes is bounded by the checkpoint beside it: rows are
flushed before a checkpoint is written and cut back to it on resume.

What changed after it was written is refused: the manifest holds a hash of itself and, from ``trained`` on,
of the tables; the pages of a table have checksums. Runs from before there were any are read without.
"""

import itertools
import json
import os
import re
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import pandas as pd
from pyarrow import ArrowException
from pyarrow.parquet import ParquetFile

from gdro.seals import file_hash, sealed, unsealed

SCHEMA = 1
STAGES = ("started", "trained", "finished")
MANIFEST = "manifest.json"
REQUIRED = {
    "steps": ("step", "cycle", "reward", "loss", "rollouts_total", "tokens_total", "seconds"),
    "bins": (
        *(
            "step",
            "cycle",
            "bin",
            "prompts",
            "share",
            "pass_rate",
            "reward",
            "loss_mean",
            "loss_std",
            "score",
            "weight",
        ),
        *("q", "rollouts", "rollout_share", "arm_probabilities", "sigma"),
    ),
    "evaluations": ("step", "suite", "prompt_id", "level", "correct", "k", "tokens"),
}
TABLES = tuple(REQUIRED)
MANIFEST_KEYS = ("schema", "scale", "arm", "seed", "stage", "finished", "settings", "wall_seconds")
_COLUMNS = "gdro_columns"  # metadata of a table, since pages have checksums and the names of columns none
FILES = "files"  # manifest key: hash of every table, from "trained" on
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOLDER = re.compile(rf"({_NAME.pattern})/({_NAME.pattern})/seed-(0|[1-9][0-9]*)")


class RunError(ValueError):
    """A run that cannot be read or continued: the message names it, what is wrong, and the way out."""


@dataclass(frozen=True)
class RunKey:
    """Which run: a scale, a study arm and a seed; names are plain words, so that a key cannot leave the
    store.

    >>> str(RunKey("tiny-s", "grpo", 0))
    'tiny-s/grpo/seed-0'
    """

    scale: str
    arm: str
    seed: int

    def __post_init__(self):
        for field in ("scale", "arm"):
            name = getattr(self, field)
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise RunError(
                    f"{field} {name!r} is not a name for a run: "
                    "use letters, digits, '-', '_' and '.', starting with a letter or digit"
                )
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral) or self.seed < 0:
            raise RunError(f"seed {self.seed!r} is not a name for a run: use an integer >= 0")
        object.__setattr__(self, "seed", int(self.seed))

    def __str__(self):
        return f"{self.scale}/{self.arm}/seed-{self.seed}"

    def folder(self, store) -> Path:
        """Folder of the run inside ``store``."""
        return Path(store) / self.scale / self.arm / f"seed-{self.seed}"


def key_of(folder) -> RunKey | None:
    """The run whose folder this would be, by its last three names; None where no run can have them.

    >>> key_of("data/runs/tiny-s/grpo/seed-0")
    RunKey(scale='tiny-s', arm='grpo', seed=0)
    """
    found = _FOLDER.fullmatch("/".join(Path(folder).parts[-3:]))
    return RunKey(found[1], found[2], int(found[3])) if found else None


def write_atomically(path, write) -> None:
    """Call ``write(temporary_path)`` and rename the result to ``path``; a failure leaves ``path`` alone."""
    path = Path(path)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path, value) -> None:
    """Write plain data as JSON, atomically; NaN is refused rather than written as a word no reader knows."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def write_table(path, frame: pd.DataFrame) -> None:
    """Write a frame as parquet, atomically, with the schema number of this module and the frame's columns in
    its metadata."""
    frame = frame.reset_index(drop=True)
    frame.attrs = {"gdro_schema": SCHEMA, _COLUMNS: _columns(frame)}
    write_atomically(path, lambda p: frame.to_parquet(p, index=False, write_page_checksum=True))


def _columns(frame):
    """Names of a frame's columns, with the type of those of numbers, which are read as they were written."""
    return {name: str(kind) if kind.kind in "biuf" else "" for name, kind in frame.dtypes.items()}


def write_manifest(folder, manifest: dict) -> None:
    """Write a run's manifest with the hash of it, atomically."""
    write_json(Path(folder) / MANIFEST, sealed(manifest))


def table_hashes(folder) -> dict:
    """Hash of every table that is in a run's folder, by file name."""
    paths = [Path(folder) / f"{table}.parquet" for table in TABLES]
    return {path.name: file_hash(path) for path in paths if path.is_file()}


def missing_columns(table: str, frame: pd.DataFrame) -> list[str]:
    """Columns that a table of the store must have and this frame has not."""
    return [c for c in REQUIRED[table] if c not in frame.columns]


def read_manifest(store, key: RunKey) -> dict | None:
    """The manifest of a run, or None where there is none; a torn or foreign one is refused by name."""
    path = key.folder(store) / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text
        raise RunError(f"run {key}: {MANIFEST} is not JSON ({error}): {_redo(key)}") from error
    if not isinstance(manifest, dict) or any(k not in manifest for k in MANIFEST_KEYS):
        absent = [k for k in MANIFEST_KEYS if not isinstance(manifest, dict) or k not in manifest]
        raise RunError(
            f"run {key}: {MANIFEST} lacks {', '.join(absent)}, so it is not a run of this package: "
            f"{_redo(key)}"
        )
    if manifest["schema"] != SCHEMA:
        raise RunError(
            f"run {key}: schema {manifest['schema']} where this version reads {SCHEMA}: "
            f"use the version that made it, or {_redo(key)}"
        )
    here = (manifest["scale"], manifest["arm"], manifest["seed"])
    if here != (key.scale, key.arm, key.seed):
        raise RunError(
            f"run {key}: its manifest says {here[0]}/{here[1]}/seed-{here[2]}: "
            "it was moved here from elsewhere; move it back"
        )
    if manifest["stage"] not in STAGES or manifest["finished"] is not (manifest["stage"] == "finished"):
        raise RunError(
            f"run {key}: stage {manifest['stage']!r} with finished {manifest['finished']!r} is no state of a "
            f"run: {_redo(key)}"
        )
    if not isinstance(manifest["settings"], dict) or (
        manifest["stage"] != "started" and "steps" not in manifest
    ):
        raise RunError(
            f"run {key}: {MANIFEST} has no settings by name, or is {manifest['stage']} without its steps: "
            f"{_redo(key)}"
        )
    try:
        return unsealed(manifest)
    except ValueError as error:
        raise RunError(
            f"run {key}: {MANIFEST} was changed or damaged after it was written ({error}): {_redo(key)}"
        ) from error


def existing_manifest(store, key: RunKey) -> dict:
    """The manifest as `read_manifest`; a run without one is refused by name."""
    manifest = read_manifest(store, key)
    if manifest is None:
        present = sorted(p.name for p in key.folder(store).glob("*.parquet"))
        found = f"half written ({', '.join(present)} without {MANIFEST})" if present else "not in the store"
        raise RunError(f"run {key} is {found}: {_make(key)}")
    return manifest


def stage(store, key: RunKey) -> str:
    """How far a run is: "absent", "started", "trained" or "finished"."""
    manifest = read_manifest(store, key)
    return manifest["stage"] if manifest else "absent"


@dataclass(frozen=True)
class Run:
    """A finished run: its key, its manifest and its three tables."""

    key: RunKey
    manifest: dict
    steps: pd.DataFrame
    bins: pd.DataFrame
    evaluations: pd.DataFrame


def read_table(store, key: RunKey, table: str) -> pd.DataFrame:
    """One table of a run; a missing, torn or foreign file is refused by name."""
    path = key.folder(store) / f"{table}.parquet"
    if not path.is_file():
        raise RunError(f"run {key} is half written: {path.name} is missing: {_redo(key)}")
    try:
        frame = _read_parquet(path)
    except (OSError, ValueError, LookupError, TypeError, ArrowException) as error:
        raise RunError(
            f"run {key}: {path.name} is not a whole parquet file ({error}): {_redo(key)}"
        ) from error
    absent = missing_columns(table, frame)
    if absent:
        raise RunError(f"run {key}: {path.name} lacks the columns {', '.join(absent)}: {_redo(key)}")
    schema = frame.attrs.get("gdro_schema")
    if schema != SCHEMA:
        raise RunError(
            f"run {key}: {path.name} has schema {schema} where this version reads {SCHEMA}: "
            f"use the version that made it, or {_redo(key)}"
        )
    written, there = frame.attrs.pop(_COLUMNS, None), _columns(frame)
    if written is not None and written != there | {c: "" for c, kind in written.items() if not kind}:
        raise RunError(f"run {key}: {path.name} has other columns than were written: {_redo(key)}")
    return frame


def _read_parquet(path):
    """`pandas.read_parquet`, which takes twice as long for files as small as these."""
    with ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read(use_threads=False)
    frame = table.to_pandas(use_threads=False)
    frame.attrs = json.loads((table.schema.metadata or {}).get(b"PANDAS_ATTRS", "{}"))
    return frame


def check_whole(store, key: RunKey, manifest: dict, tables: dict) -> None:
    """Refuse tables of a trained or finished run that end elsewhere than its manifest says, or whose files
    are not those that were written."""
    last = tables["steps"]["step"].max()
    if last != manifest["steps"]:
        raise RunError(
            f"run {key}: steps.parquet ends at step {last} and its manifest at {manifest['steps']}: "
            f"{_redo(key)}"
        )
    written, there = manifest.get(FILES, {}), table_hashes(key.folder(store))
    changed = [
        f"{t}.parquet" for t in tables if written and written.get(f"{t}.parquet") != there[f"{t}.parquet"]
    ]
    if changed:
        raise RunError(
            f"run {key}: {', '.join(changed)} changed after being written (other SHA-256 than in "
            f"{MANIFEST}): {_redo(key)}"
        )


def read_run(store, key: RunKey) -> Run:
    """Read a finished run whole; one that is absent, unfinished, half written or foreign raises RunError."""
    manifest = existing_manifest(store, key)
    if manifest["stage"] != "finished":
        raise RunError(f"run {key} is {manifest['stage']} but not finished: {_make(key)}")
    tables = {t: read_table(store, key, t) for t in TABLES}
    check_whole(store, key, manifest, tables)
    return Run(key, manifest, **tables)


def read_record(store, key: RunKey) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Steps and bins of a run at any stage, with scale, arm and seed in front: a look at it on its way."""
    steps, bins = (_stack(table, [(key, read_table(store, key, table))]) for table in ("steps", "bins"))
    return steps, bins


def list_runs(store, finished_only: bool = True) -> list[RunKey]:
    """Keys of the runs in a store, sorted; folders whose names no run can have are not runs."""
    keys = []
    for path in Path(store).glob(f"*/*/seed-*/{MANIFEST}"):
        key = key_of(path.parent)
        if key is not None:
            keys.append(key)
    keys.sort(key=lambda k: (k.scale, k.arm, k.seed))
    return [k for k in keys if not finished_only or stage(store, k) == "finished"]


@dataclass(frozen=True)
class Frames:
    """Many runs as long tables with ``scale``, ``arm`` and ``seed`` in front, and the manifests by run."""

    runs: tuple[RunKey, ...]
    manifests: dict
    steps: pd.DataFrame
    bins: pd.DataFrame
    evaluations: pd.DataFrame


def load_runs(store, scales=None, arms=None, seeds=None) -> Frames:
    """Frames of the finished runs that match; None matches all; whatever is named must be there.

    With all three named, each of their combinations must be a finished run; the first that is not is refused
    with what it lacks.
    """
    wanted = {"scale": scales, "arm": arms, "seed": seeds}
    if all(values is not None for values in wanted.values()):
        keys = [RunKey(*names) for names in itertools.product(*wanted.values())]
    else:
        limits = {name: list(values) for name, values in wanted.items() if values is not None}
        keys = [k for k in list_runs(store) if all(getattr(k, n) in v for n, v in limits.items())]
        for name, values in limits.items():
            absent = [v for v in values if v not in {getattr(k, name) for k in keys}]
            if absent:
                raise RunError(f"no finished run of {name} {absent[0]!r} in the store: {_MAKE}")
    return load_keys(store, keys)


def load_keys(store, keys) -> Frames:
    """Frames of these finished runs."""
    read = [read_run(store, k) for k in keys]
    tables = {t: _stack(t, [(r.key, getattr(r, t)) for r in read]) for t in TABLES}
    return Frames(tuple(keys), {str(r.key): r.manifest for r in read}, **tables)


def _stack(table, keyed_frames) -> pd.DataFrame:
    columns = ["scale", "arm", "seed", *REQUIRED[table]]
    if not keyed_frames:
        return pd.DataFrame(columns=columns)
    keys, frames = zip(*keyed_frames, strict=True)
    stacked = pd.concat(frames, ignore_index=True)
    names, lengths = pd.DataFrame([(k.scale, k.arm, k.seed) for k in keys]), [len(f) for f in frames]
    for place, name in enumerate(columns[:3]):
        stacked.insert(place, name, names[place].repeat(lengths).array)
    return stacked[columns + [c for c in stacked.columns if c not in columns]]


_MAKE = "make it with `snakemake -s notebooks/Snakefile -c all all --config scales=... arms=... seeds=...`"


def _make(key):
    options = f"scales={key.scale} arms={key.arm} seeds={key.seed}"
    return f"make or resume it with `snakemake -s notebooks/Snakefile -c all all --config {options}`"


def _redo(key):
    return f"remove the folder {key} from the store and make the run again"
