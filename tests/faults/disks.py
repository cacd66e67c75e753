"""Disks that are full, small or read-only, for the process that asks for one: in mounts of its own.

Where the system allows no such mounts, `PermissionError`.
"""

import ctypes
import os
import resource
from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(code):
    if code:
        number = ctypes.get_errno()
        raise PermissionError(number, f"no mount of one's own here ({os.strerror(number)})")


def _mount(source, target, kind, flags, options=""):
    words = [word and str(word).encode() for word in (source, target, kind)]
    _checked(_LIBC.mount(*words, ctypes.c_ulong(flags), options.encode()))


def _own_mounts():
    user, group = os.getuid(), os.getgid()
    _checked(_LIBC.unshare(_NEW_MOUNTS | (_NEW_USER if user else 0)))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)


def limit_files(largest):
    """Let no file of this process grow beyond ``largest`` bytes: writing more really fails. What it prints,
    which may go to a file, is dropped."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for shown in (1, 2):
        os.dup2(nowhere, shown)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


def small(folder, kilobytes):
    """Put an empty disk of that size at ``folder``; only this process sees it."""
    _own_mounts()
    _mount("tmpfs", folder, "tmpfs", 0, f"size={kilobytes}k")


def enlarge(folder, kilobytes):
    """Make room on a disk that `small` made."""
    _mount("tmpfs", folder, None, _REMOUNT, f"size={kilobytes}k")


def read_only(folder):
    """Let this process write nothing below ``folder``."""
    _own_mounts()
    _mount(folder, folder, None, _BIND)
    _mount("none", folder, None, _REMOUNT | _BIND | _READ_ONLY)
