"""Notices from outside which decoys are opened inside a sandbox: one inotify instance over its workspace."""

import ctypes
import os
import struct
from collections.abc import Iterable

IN_MODIFY, IN_OPEN, IN_Q_OVERFLOW = 0x2, 0x20, 0x4000
IN_NONBLOCK, IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it
READ_BYTES = 65_536

_LIBC = ctypes.CDLL(None, use_errno=True)


class DecoyWatch:
    """Files opened since the last look. Without inotify (a limit of the host) it sees nothing and says so.

    The worker watches inodes through its own descriptor of the workspace: nothing inside can see, drain or end it.
    """

    def __init__(self, workspace_fd: int, paths: Iterable[str]) -> None:
        self.problem = ""
        self._paths: dict[int, str] = {}
        self._fd = _LIBC.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self._fd < 0:
            self.problem = f"decoys are not watched: {os.strerror(ctypes.get_errno())}"
            return
        for path in paths:
            name = f"/proc/self/fd/{workspace_fd}/{path}".encode()
            watch = _LIBC.inotify_add_watch(self._fd, name, IN_OPEN | IN_MODIFY)
            if watch < 0:
                self.problem = f"decoy {path} is not watched: {os.strerror(ctypes.get_errno())}"
            else:
                self._paths[watch] = path

    def take(self) -> list[str]:
        """Paths opened since the last call, each once; all of them when the kernel has lost count."""
        opened: set[str] = set()
        while self._fd >= 0:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                break
            position = 0
            while position < len(data):
                watch, mask, _, length = EVENT.unpack_from(data, position)
                position += EVENT.size + length
                if mask & IN_Q_OVERFLOW:
                    opened.update(self._paths.values())
                elif mask & (IN_OPEN | IN_MODIFY):
                    opened.add(self._paths[watch])
        return sorted(opened)

    def close(self) -> None:
        """Safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
