"""Runs a function in a process of its own and kills it: at one of its file operations, or after a time. Or
removes a folder there, in place of killing it.

The process is forked from a server that has imported the package, so that an attempt costs what it does and
not the seconds of an import. File operations are those that Python's audit hooks see (open, rename, remove,
mkdir, rmtree) below one folder: what lies between them is done by one call, so killing before each of them
meets every order in which files can be left behind.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
CONTEXT = multiprocessing.get_context("forkserver")
HANGS = 900  # seconds that no attempt takes, on a busy machine either


@dataclass(frozen=True)
class Attempt:
    """How a process ended: killed or not, its file operations, its error as "Type: message", or None."""

    killed: bool
    operations: int | None
    error: str | None


class _Killer:
    """An audit hook that kills its process at the operation number ``at``; torn: a file about to get its
    name is cut in half first, which is what a kill in the middle of writing it leaves; removed: that folder
    is removed, and the process goes on."""

    def __init__(self, folder, at, torn, removed):
        self.folder, self.at, self.torn, self.count, self.removed = str(folder), at, torn, 0, removed

    def __call__(self, event, arguments):
        if event not in OPERATIONS or not _path(*arguments).startswith(self.folder):
            return
        self.count += 1
        if self.count == self.at:
            self.at = None
            if self.removed is not None:
                shutil.rmtree(self.removed, ignore_errors=True)  # not there yet
                return
            if self.torn and event == "os.rename" and Path(arguments[0]).is_file():
                os.truncate(arguments[0], Path(arguments[0]).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)


def _path(path, *rest):
    """The path that an operation is about; one named relative to an open folder comes with that folder."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    within = f"/proc/self/fd/{rest[-1]}" if rest and isinstance(rest[-1], int) else ""
    return os.path.join(os.readlink(within) if os.path.lexists(within) else "", os.fsdecode(path))


def _work(connection, path, function, arguments, killer):
    sys.path[:] = path
    warnings.filterwarnings("error")  # as pytest's own, with what it lets pass
    warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing` is deprecated", FutureWarning)
    sys.addaudithook(killer)
    error = None
    try:
        function(*arguments)
    except BaseException as raised:  # pytest's own are no Exceptions
        error = f"{type(raised).__name__}: {raised}"
    connection.send((killer.count, error))


def attempt(function, *arguments, folder, at=None, torn=False, after=None, removed=None) -> Attempt:
    """Call ``function(*arguments)`` in another process; kill it at its operation ``at`` below ``folder``, or
    ``after`` seconds, where it has not ended by then. The folder ``removed`` is removed at ``at`` instead."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    work = (theirs, sys.path, function, arguments, _Killer(folder, at, torn, removed))
    process = CONTEXT.Process(target=_work, args=work)
    process.start()
    theirs.close()
    process.join(HANGS if after is None else after)
    if process.is_alive():
        process.kill()
        process.join()
        assert after is not None, f"{function.__name__} did not end within {HANGS} s"
    with ours:
        try:
            operations, error = ours.recv()
        except EOFError:
            operations, error = None, None
    killed = process.exitcode == -signal.SIGKILL
    assert killed or operations is not None, f"{function.__name__} died with exit code {process.exitcode}"
    return Attempt(killed, operations, error)
