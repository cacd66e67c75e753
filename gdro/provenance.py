"""Where a run was made: versions, commit, hardware, and what the model weighed in with."""

import hashlib
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SILENT = "git failed without a word"
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
    """Commit of the repository, with "+changes" where the package differs from it; "unknown" outside one, in
    one without a commit, and without git. A git that fails raises ``RuntimeError`` with what it said."""
    if shutil.which("git") is None:
        return "unknown"
    head, said = _git("rev-parse", "--verify", "--quiet", "HEAD")
    if "not a git repository" in said or said == _SILENT:
        return "unknown"
    changed, other = _git("status", "--porcelain", ".")
    if said or other:
        raise RuntimeError(
            f"git cannot tell the commit of {_HERE}, which a run records ({said or other}): mend that, and "
            "start again"
        )
    return head + ("+changes" if changed else "")


def _git(*words):
    """What git prints about the package's folder, and what it says of its failure, "" where it has none."""
    command, plain = ["git", "-C", str(_HERE), *words], os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    failure = done.stderr.strip() or _SILENT
    return done.stdout.strip(), failure if done.returncode else ""
