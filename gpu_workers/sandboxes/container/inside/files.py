"""The workspace as it leaves a container: every regular file behind its length; the worker decides what it takes."""

import os

from gpu_workers.sandboxes.container.inside.wire import ENTRY, FILE, REFUSED
from gpu_workers.sandboxes.inside import operations

MAX_DEPTH, MAX_ENTRIES = 16, 10_000


def send_snapshot(request: dict, out_write: int) -> int:
    """snapshot: every regular file of the workspace as it is now; the worker decides what it takes."""
    state = [request["limit"], MAX_ENTRIES]
    root = os.open(operations.WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
    _send_folder(root, "", 0, state, out_write)
    return 0


def _send_folder(folder: int, prefix: str, depth: int, state: list, out: int) -> None:
    for name in sorted(os.listdir(folder)):
        path = prefix + name
        state[1] -= 1
        if state[1] < 0:
            _send(out, REFUSED, path, "more than " + str(MAX_ENTRIES) + " entries in all")
            return
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            _send(out, REFUSED, path, "not a regular file (" + (error.strerror or "") + ")")
            continue
        mode = os.fstat(fd).st_mode & 0o170000
        size = os.fstat(fd).st_size
        if mode == 0o040000 and depth < MAX_DEPTH:
            _send_folder(fd, path + "/", depth + 1, state, out)
        elif mode != 0o100000:
            _send(out, REFUSED, path, "not a regular file or too deep")
        elif size > state[0]:
            _send(out, REFUSED, path, str(size) + " bytes exceed what is left")
        else:
            _send_file(out, fd, path, size)
            state[0] -= size
        os.close(fd)


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
