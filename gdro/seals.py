"""Hashes that tell whether a file is still what was written."""

import hashlib
import json
from pathlib import Path

KEY = "sha256"


def file_hash(path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hashes(folder) -> dict[str, str]:
    """Hash of every file of a folder and of those in it, by path inside."""
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): file_hash(path) for path in paths}


def sealed(value: dict) -> dict:
    """``value``, plain data, with the hash of it under ``KEY``."""
    return {**value, KEY: _hash(value)}


def unsealed(value: dict) -> dict:
    """``value`` without its hash; what never had one passes, what has another one raises ``ValueError``.

    >>> unsealed(sealed({"seed": 0}))
    {'seed': 0}
    """
    rest = {key: item for key, item in value.items() if key != KEY}
    if KEY in value and value[KEY] != _hash(rest):
        raise ValueError(f"its content is not what its {KEY} was made from")
    return rest


def _hash(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
