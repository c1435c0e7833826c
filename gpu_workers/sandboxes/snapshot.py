"""Reading a finished workspace on the host: regular files only, bounded, nothing followed, nothing waited for."""

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gpu_workers.sandboxes.artifacts import AllowList

MAX_FILES = 1000
MAX_ENTRIES = 10_000
MAX_DEPTH = 16
MAX_TARGET = 200  # characters of a link's target that are told
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass
class Snapshot:
    """Files by path below the workspace; `refused` says what was left behind and why."""

    max_bytes: int
    allowed: AllowList = field(default_factory=lambda: AllowList(["**"]))
    files: dict[str, bytes] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    num_bytes: int = 0
    num_entries: int = 0
    num_left: int = 0  # not on the allow-list

    def refuse(self, path: str, reason: str) -> None:
        line = f"{path}: {reason}"
        if len(self.refused) < 100 and line not in self.refused:
            self.refused.append(line)


def read_folder(
    folder_fd: int, max_bytes: int, artifacts: Sequence[str] = ("**",), *, first: Iterable[str] = ()
) -> Snapshot:
    """Read what may leave an open folder whose process tree is gone. The descriptor stays open.

    The files `first` are read before the bounds are used up by whatever else lies there.
    """
    snapshot = Snapshot(max_bytes, AllowList(artifacts))
    for path in first:
        with contextlib.suppress(OSError):  # gone or no file any more: what lies there instead is told below
            _read_named(snapshot, folder_fd, path)
    _read_into(snapshot, folder_fd, "", 0)
    return snapshot


def _read_named(snapshot: Snapshot, folder_fd: int, path: str) -> None:
    """Read one regular file by its path, following no link on the way."""
    if not snapshot.allowed.takes(path):
        return
    fd = os.dup(folder_fd)
    try:
        for name in path.split("/"):
            inner = os.open(name, OPEN_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = inner
        kind = os.fstat(fd)
        if stat.S_ISREG(kind.st_mode):
            _read_file(snapshot, fd, path, kind.st_size)
    finally:
        os.close(fd)


def _read_into(snapshot: Snapshot, folder_fd: int, prefix: str, depth: int) -> None:
    with os.scandir(folder_fd) as entries:
        listed = list(islice(entries, MAX_ENTRIES + 1 - min(snapshot.num_entries, MAX_ENTRIES)))
    snapshot.num_entries += len(listed)
    if snapshot.num_entries > MAX_ENTRIES:
        snapshot.refuse(prefix, f"more than {MAX_ENTRIES} entries in all")
        listed.pop()
    # Files before folders: a large folder beside them does not use up the bounds first.
    for entry in sorted(listed, key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name)):
        path = f"{prefix}{entry.name}"
        try:
            _read_entry(snapshot, folder_fd, entry.name, path, depth)
        except OSError as error:
            snapshot.refuse(path, error.strerror or "cannot be opened")


def _read_entry(snapshot: Snapshot, folder_fd: int, name: str, path: str, depth: int) -> None:
    if not path.isprintable():
        snapshot.refuse(repr(path), "name is not printable")
        return
    takes, leads = snapshot.allowed.takes(path), snapshot.allowed.leads(path)
    if not (takes or leads):
        snapshot.num_left += 1
        return
    kind = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    if not (stat.S_ISREG(kind.st_mode) or stat.S_ISDIR(kind.st_mode)):
        snapshot.refuse(path, _what_else(folder_fd, name, kind.st_mode))
        return
    fd = os.open(name, OPEN_FLAGS, dir_fd=folder_fd)
    try:
        kind = os.fstat(fd)
        if stat.S_ISREG(kind.st_mode) and not takes:
            snapshot.num_left += 1
        elif stat.S_ISDIR(kind.st_mode):
            if depth >= MAX_DEPTH:
                snapshot.refuse(path, f"deeper than {MAX_DEPTH} folders")
            else:
                _read_into(snapshot, fd, f"{path}/", depth + 1)
        elif stat.S_ISREG(kind.st_mode):
            _read_file(snapshot, fd, path, kind.st_size)
    finally:
        os.close(fd)


def _what_else(folder_fd: int, name: str, mode: int) -> str:
    """Why an entry that is neither file nor folder is refused."""
    if stat.S_ISLNK(mode):
        return f"not a regular file but a link to {os.readlink(name, dir_fd=folder_fd)[:MAX_TARGET]!r}"
    return (
        f"not a regular file but a {'FIFO' if stat.S_ISFIFO(mode) else 'socket' if stat.S_ISSOCK(mode) else 'device'}"
    )


def _read_file(snapshot: Snapshot, fd: int, path: str, size: int) -> None:
    if path in snapshot.files:
        return
    if len(snapshot.files) >= MAX_FILES:
        snapshot.refuse(path, f"more than {MAX_FILES} files")
        return
    if size > snapshot.max_bytes - snapshot.num_bytes:
        snapshot.refuse(path, f"{size} bytes exceed what is left of {snapshot.max_bytes}")
        return
    parts: list[bytes] = []
    while size > 0 and (part := os.read(fd, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    data = b"".join(parts)
    snapshot.files[path] = data
    snapshot.num_bytes += len(data)
