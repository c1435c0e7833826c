"""Notices from outside which decoys are opened inside a sandbox: one inotify instance over its workspace."""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator

IN_MODIFY, IN_OPEN, IN_Q_OVERFLOW = 0x2, 0x20, 0x4000
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it
READ_BYTES = 65_536

_LIBC = ctypes.CDLL(None, use_errno=True)
_IDLE: list[int] = []  # inotify instances without watches; their number is that of the most episodes at once


class DecoyWatch:
    """Files opened since the last look. Without inotify (a limit of the host) it sees nothing and says so.

    The worker watches inodes through its own descriptor of the workspace: nothing inside can see, drain or end it. A
    watch has an inotify instance of its own, so that a flood of one episode hides nothing of another's.
    """

    def __init__(self, workspace_fd: int, paths: Iterable[str]) -> None:
        self.problem = ""
        self._paths: dict[int, str] = {}
        self._fd = _IDLE.pop() if _IDLE else _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
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
        for watch, mask in self._events():
            if mask & IN_Q_OVERFLOW:
                opened.update(self._paths.values())
            elif mask & (IN_OPEN | IN_MODIFY):
                opened.add(self._paths[watch])
        return sorted(opened)

    def close(self) -> None:
        """Safe to repeat. The instance is kept for the next watch: the kernel takes 50 ms to close one."""
        if self._fd < 0:
            return
        for watch in self._paths:
            _LIBC.inotify_rm_watch(self._fd, watch)
        for _ in self._events():
            pass
        _IDLE.append(self._fd)
        self._fd = -1

    def _events(self) -> Iterator[tuple[int, int]]:
        """Watch and mask of what has happened."""
        while self._fd >= 0:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                watch, mask, _, length = EVENT.unpack_from(data, position)
                position += EVENT.size + length
                yield watch, mask
