"""Reading a finished workspace on the host: regular files only, bounded, nothing followed, nothing waited for.

What is no regular file is told before anything is read: no flood of files beside it uses up the bounds first.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gpu_workers.sandboxes.artifacts import AllowList

MAX_FILES = 1000
MAX_ENTRIES = 10_000  # that are looked at, and
MAX_LISTED = 100_000  # whose names are read
MAX_TOLD = 100  # lines of what was refused: of what is no regular file, of what else
NO_FILE = "not a regular file"
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
    num_listed: int = 0
    num_left: int = 0  # not on the allow-list

    def refuse(self, path: str, reason: str) -> None:
        line = f"{path}: {reason}"
        if self.may_tell(reason) and line not in self.refused:
            self.refused.append(line)

    def may_tell(self, reason: str) -> bool:
        """Whether there is room for one more line of this kind."""
        strange = sum(f": {NO_FILE}" in line for line in self.refused)
        return (strange if reason.startswith(NO_FILE) else len(self.refused) - strange) < MAX_TOLD


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
        listed = list(islice(entries, MAX_LISTED - snapshot.num_listed))
    snapshot.num_listed += len(listed)
    # Files before folders: a large folder beside them does not use up the bounds first.
    strange, files, folders = [], [], []
    for entry in sorted(listed, key=lambda entry: entry.name):
        path = f"{prefix}{entry.name}"
        takes, leads = snapshot.allowed.takes(path), snapshot.allowed.leads(path)
        if not path.isprintable():
            snapshot.refuse(repr(path), "name is not printable")
        elif entry.is_dir(follow_symlinks=False):
            folders += [entry.name] if takes or leads else []
            snapshot.num_left += not (takes or leads)
        elif entry.is_file(follow_symlinks=False):
            files += [entry.name] if takes else []
            snapshot.num_left += not takes
        else:
            strange += [entry.name] if takes or leads else []
            snapshot.num_left += not (takes or leads)
    for name in strange:
        if snapshot.may_tell(NO_FILE):
            with contextlib.suppress(OSError):
                snapshot.refuse(f"{prefix}{name}", _what_else(folder_fd, name))
    for name in files[:MAX_FILES] + folders:  # more files than these are refused in any case
        if snapshot.num_entries >= MAX_ENTRIES:
            snapshot.refuse(prefix, f"more than {MAX_ENTRIES} entries in all")
            return
        snapshot.num_entries += 1
        try:
            _read_entry(snapshot, folder_fd, name, f"{prefix}{name}", depth)
        except OSError as error:
            snapshot.refuse(f"{prefix}{name}", error.strerror or "cannot be opened")
    if len(files) > MAX_FILES:
        snapshot.refuse(prefix, f"more than {MAX_FILES} files")


def _read_entry(snapshot: Snapshot, folder_fd: int, name: str, path: str, depth: int) -> None:
    fd = os.open(name, OPEN_FLAGS, dir_fd=folder_fd)
    try:
        kind = os.fstat(fd)
        if stat.S_ISREG(kind.st_mode):
            _read_file(snapshot, fd, path, kind.st_size)
        elif stat.S_ISDIR(kind.st_mode) and depth < MAX_DEPTH:
            _read_into(snapshot, fd, f"{path}/", depth + 1)
        elif stat.S_ISDIR(kind.st_mode):
            snapshot.refuse(path, f"deeper than {MAX_DEPTH} folders")
    finally:
        os.close(fd)


def _what_else(folder_fd: int, name: str) -> str:
    """Why an entry that is neither file nor folder is refused."""
    mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        return f"{NO_FILE} but a link to {os.readlink(name, dir_fd=folder_fd)[:MAX_TARGET]!r}"
    return f"{NO_FILE} but a {'FIFO' if stat.S_ISFIFO(mode) else 'socket' if stat.S_ISSOCK(mode) else 'device'}"


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
