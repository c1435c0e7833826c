"""The workspace as it leaves a container: every regular file behind its length; the worker decides what it takes."""

import os

from gpu_workers.sandboxes.container.inside.wire import ENTRY, FILE, REFUSED
from gpu_workers.sandboxes.inside import operations

MAX_DEPTH, MAX_ENTRIES, MAX_LISTED, MAX_TARGET = 16, 10_000, 100_000, 200
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def send_snapshot(request: dict, out_write: int) -> int:
    """snapshot: every regular file of the workspace as it is now, those of the task first; the worker decides."""
    sending = Sending(out_write, request["limit"])
    root = os.open(operations.WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
    for path in request["first"]:
        try:
            sending.named(root, path)
        except OSError:
            continue  # gone or no file any more: what lies there instead is told below
    sending.folder(root, "", 0)
    return 0


class Sending:
    """One snapshot on its way: what there is still room for."""

    def __init__(self, out: int, limit: int) -> None:
        self.out = out
        self.limit = limit
        self.entries, self.listed = MAX_ENTRIES, MAX_LISTED
        self.sent: set = set()

    def named(self, root: int, path: str) -> None:
        """One regular file by its path, following no link on the way."""
        fd = os.dup(root)
        try:
            for name in path.split("/"):
                inner = os.open(name, OPEN_FLAGS, dir_fd=fd)
                os.close(fd)
                fd = inner
            self.file(fd, path)
        finally:
            os.close(fd)

    def folder(self, folder: int, prefix: str, depth: int) -> None:
        """What is no regular file, then files, then folders: no flood of files hides what lies in their place."""
        ranked = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if not self.listed:
                    break
                self.listed -= 1
                rank = 2 if entry.is_dir(follow_symlinks=False) else int(entry.is_file(follow_symlinks=False))
                ranked.append((rank, entry.name))
        for rank, name in sorted(ranked):
            path = prefix + name
            if rank == 1 and self.entries <= 0:
                continue  # a folder after them may hold what is no file
            self.entries -= 1
            if self.entries < -MAX_ENTRIES:
                break
            if rank == 0:
                _send(self.out, REFUSED, path, "not a regular file" + _target(folder, name))
                continue
            try:
                fd = os.open(name, OPEN_FLAGS, dir_fd=folder)
            except OSError as error:
                _send(self.out, REFUSED, path, error.strerror or "cannot be opened")
                continue
            if rank == 1:
                self.file(fd, path)
            elif depth < MAX_DEPTH:
                self.folder(fd, path + "/", depth + 1)
            else:
                _send(self.out, REFUSED, path, "too deep")
            os.close(fd)
        if self.entries <= 0:
            _send(self.out, REFUSED, prefix, "more than " + str(MAX_ENTRIES) + " entries in all")

    def file(self, fd: int, path: str) -> None:
        state = os.fstat(fd)
        if path in self.sent or state.st_mode & 0o170000 != 0o100000:
            return
        if state.st_size > self.limit:
            _send(self.out, REFUSED, path, str(state.st_size) + " bytes exceed what is left")
            return
        _send_file(self.out, fd, path, state.st_size)
        self.limit -= state.st_size
        self.sent.add(path)


def _target(folder: int, name: str) -> str:
    try:
        return " but a link to " + repr(os.readlink(name, dir_fd=folder)[:MAX_TARGET])
    except OSError:
        return ""


def _send(out: int, kind: int, path: str, text: str) -> None:
    name, data = os.fsencode(path), text.encode()
    operations._write_all(out, ENTRY.pack(kind, len(name), len(data)) + name + data)


def _send_file(out: int, fd: int, path: str, size: int) -> None:
    name = os.fsencode(path)
    operations._write_all(out, ENTRY.pack(FILE, len(name), size) + name)
    while size:
        part = os.read(fd, min(size, 65536)) or b"\0" * min(size, 65536)
        operations._write_all(out, part)
        size -= len(part)
