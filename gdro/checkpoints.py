"""What a checkpoint holds besides TRL's files: controller, cycle and buffers, without pickle, and a marker
written last.

`checkpoint-N/` gets ``gdro_state.json`` + ``.safetensors`` (controller, the same on every process) and
``gdro_rank_<r>.json`` + ``.safetensors`` (buffer and accumulators of one process) before the parent saves and
rotates, and ``gdro_complete.json``, which lists every file with its size and hash, after everything else.
"""

import contextlib
import json
import logging
import os
import re
from pathlib import Path, PurePath

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gdro.seals import file_hash, file_hashes

logger = logging.getLogger(__name__)

SCHEMA = 1
MARKER = "gdro_complete.json"
STATE = "gdro_state"
_MARKED = {"schema", "step", "files", "sha256"}  # what a marker says; without hashes before there were any
_FOLDER = re.compile(r"checkpoint-(\d+)")


class OtherVersionError(ValueError):
    """A checkpoint that another version of this package wrote, so that its state cannot be read here."""


def rank_name(rank):
    """Stem of the files of process ``rank``."""
    return f"gdro_rank_{rank}"


def write_state(folder, stem, state):
    """Write nested dictionaries and lists of plain values and NumPy arrays as ``<stem>.json`` and
    ``<stem>.safetensors``.

    Errors: ``TypeError`` for anything else, naming where it lies.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    plain = _without_arrays(state, arrays, stem)
    _replace(folder / f"{stem}.safetensors", lambda path: save_file(arrays, path))
    text = json.dumps({"schema": SCHEMA, "state": plain})
    _replace(folder / f"{stem}.json", lambda path: path.write_text(text))


def read_state(folder, stem):
    """What `write_state` wrote; ``ValueError`` where a file is missing, damaged or of another schema."""
    folder = Path(folder)
    for suffix in (".json", ".safetensors"):
        if not (folder / f"{stem}{suffix}").is_file():
            raise ValueError(
                f"{folder} has no {stem}{suffix}: it was not written by GDROTrainer, or not to its end; "
                "resume from another checkpoint (gdro.checkpoints.latest_complete finds it), "
                "or start anew in an empty folder"
            )
    try:
        content = json.loads((folder / f"{stem}.json").read_text())
        arrays = load_file(folder / f"{stem}.safetensors")
        schema = content["schema"]
        state = _with_arrays(content["state"], arrays) if schema == SCHEMA else None
    except (ValueError, SafetensorError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder / stem} is damaged ({error}); resume from another checkpoint "
            "(gdro.checkpoints.latest_complete finds it), or start anew in an empty folder"
        ) from error
    if schema != SCHEMA:
        raise ValueError(
            f"{folder / stem}.json has schema {schema!r}, this version reads {SCHEMA}; "
            "resume with the version that wrote it"
        )
    return state


def write_marker(folder, step):
    """Declare ``folder`` complete at optimiser step ``step``: every file in it with its size and hash."""
    folder = Path(folder)
    hashes = {name: value for name, value in file_hashes(folder).items() if name != MARKER}
    files = {name: (folder / name).stat().st_size for name in hashes}
    text = json.dumps({"schema": SCHEMA, "step": step, "files": files, "sha256": hashes}, indent=1)
    _replace(folder / MARKER, lambda path: path.write_text(text))


def remove_marker(folder):
    """Declare ``folder`` incomplete, before anything in it is overwritten."""
    (Path(folder) / MARKER).unlink(missing_ok=True)


def why_incomplete(folder):
    """None for a complete checkpoint, else what is missing; contents are not looked at, see `refuse_damaged`.

    `OtherVersionError` for one of another schema, whose files cannot be judged.

    >>> why_incomplete("no/such/folder")
    'it has no gdro_complete.json'
    """
    folder = Path(folder)
    if not (folder / MARKER).is_file():
        return f"it has no {MARKER}"
    try:
        sizes, _ = _marker(folder)
    except OtherVersionError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"its {MARKER} is not whole ({error})"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, {size} were written"
    return None


def refuse_damaged(folder):
    """Raise ``ValueError`` for a complete checkpoint of which a file is not what was written, naming it.

    Reads every file whole. A checkpoint from before there were hashes passes.
    """
    folder = Path(folder)
    for name, wanted in _marker(folder)[1].items():
        if file_hash(folder / name) != wanted:
            raise ValueError(
                f"{folder / name} is damaged: it is not what was written (other SHA-256 than in {MARKER}); "
                f"remove {folder.name} and resume again, from the checkpoint before it"
            )


def _marker(folder):
    """Sizes and hashes of a checkpoint's files, each by name inside the folder."""
    content = json.loads((Path(folder) / MARKER).read_text())
    if content["schema"] != SCHEMA:
        raise OtherVersionError(
            f"{folder} has schema {content['schema']!r}, this version reads {SCHEMA}; resume with the "
            f"version that wrote it, or move {Path(folder).name} away to go on without it"
        )
    unknown = content.keys() - _MARKED
    if unknown:
        raise ValueError(f"it has the unknown entry {min(unknown)!r}")
    sizes, hashes = content["files"], content.get("sha256", {})
    outside = [name for name in sizes if not _is_inside(name)]
    if outside:
        raise ValueError(f"it names {outside[0]!r}, which is not in the folder")
    if hashes and hashes.keys() != sizes.keys():
        raise ValueError("its sizes and its hashes are of different files")
    return sizes, hashes


def _is_inside(name):
    path = PurePath(name)
    return not path.is_absolute() and ".." not in path.parts


def checkpoint_folders(output_dir):
    """Folders ``checkpoint-<step>`` in ``output_dir``, by ascending step; where there are none, an empty
    list."""
    root = Path(output_dir)
    if not root.is_dir():
        return []
    found = ((_FOLDER.fullmatch(path.name), path) for path in root.iterdir() if path.is_dir())
    return [path for _, path in sorted((int(name[1]), path) for name, path in found if name)]


def torn_folders(output_dir):
    """Checkpoint folders of ``output_dir`` that are not complete -> what is missing; another version's are
    not among them."""
    reasons = {}
    for path in checkpoint_folders(output_dir):
        with contextlib.suppress(OtherVersionError):  # whole or not, it is not ours to judge
            reasons[path] = why_incomplete(path)
    return {path: reason for path, reason in reasons.items() if reason is not None}


def latest_complete(output_dir):
    """Path of the newest complete checkpoint of ``output_dir``, or None; torn ones are named in a warning.

    `OtherVersionError` where there is one of another version: going on without it is the caller's to decide.

    >>> latest_complete("no/such/folder") is None
    True
    """
    reasons = {path: why_incomplete(path) for path in checkpoint_folders(output_dir)}
    whole = [path for path, reason in reasons.items() if reason is None]
    if len(whole) < len(reasons):
        torn = "; ".join(f"{path}: {reason}" for path, reason in reasons.items() if reason is not None)
        logger.warning("incomplete checkpoints passed over: %s", torn)
    return str(whole[-1]) if whole else None


def check_settings(saved, own):
    """Raise ``ValueError`` naming every setting that differs between a checkpoint and this trainer."""
    keys = [key for key in sorted({*saved, *own}) if saved.get(key) != own.get(key)]
    if keys:
        both = "; ".join(f"{key}: saved {saved.get(key)!r}, here {own.get(key)!r}" for key in keys)
        raise ValueError(
            f"the checkpoint was written under other settings ({both}); "
            "train with the saved ones, or start anew in an empty folder"
        )


def _replace(path, write):
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    os.replace(temporary, path)


def _without_arrays(value, arrays, where):
    if isinstance(value, np.ndarray):
        key = str(len(arrays))
        arrays[key] = np.array(value, order="C")
        return {"array": key}
    if isinstance(value, np.generic):
        return _without_arrays(value.item(), arrays, where)
    if isinstance(value, dict):
        bad = [key for key in value if not isinstance(key, str)]
        if bad:
            raise TypeError(f"{where} has the key {bad[0]!r}; keys must be strings")
        return {
            "items": {key: _without_arrays(item, arrays, f"{where}.{key}") for key, item in value.items()}
        }
    if isinstance(value, (list, tuple)):
        return [_without_arrays(item, arrays, f"{where}[{at}]") for at, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"{where} is a {type(value).__name__}; only arrays, plain values, lists and dictionaries are saved"
    )


def _with_arrays(value, arrays):
    if isinstance(value, dict):
        if "array" in value:
            return arrays[value["array"]]
        return {key: _with_arrays(item, arrays) for key, item in value["items"].items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value
