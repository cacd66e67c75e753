"""Where a run was made: versions, commit, hardware, and what the model weighed in with."""

import hashlib
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("gdro", "torch", "transformers", "trl", "datasets", "accelerate", "numpy")


def weights_hash(folder) -> str:
    """Content hash of a model folder's weights and configuration, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix == ".safetensors" or path.name == "config.json":
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while block := file.read(2**24):
                    digest.update(block)
    return digest.hexdigest()[:16]


def surroundings(data_fingerprint: str) -> dict:
    """What a manifest says of where a run was made; neither machine names nor paths are among it."""
    return {
        "versions": {"python": platform.python_version(), **{p: metadata.version(p) for p in PACKAGES}},
        "git_commit": _commit(),
        "hardware": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
        "data_fingerprint": data_fingerprint,
    }


def _commit() -> str:
    """Commit of the repository, with "+changes" where the package differs from it; "unknown" outside one."""
    if shutil.which("git") is None:
        return "unknown"
    where = ["git", "-C", str(Path(__file__).resolve().parent)]
    head = subprocess.run([*where, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return "unknown"
    changed = subprocess.run(
        [*where, "status", "--porcelain", "."], capture_output=True, text=True, check=False
    )
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
