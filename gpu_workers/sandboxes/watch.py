"""Notices from outside which decoys are opened inside a sandbox: one inotify instance over its workspace."""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from gpu_workers.sandboxes.decoys import company, is_decoy

IN_MODIFY, IN_OPEN, IN_Q_OVERFLOW, IN_IGNORED = 0x2, 0x20, 0x4000, 0x8000
IN_MASK_CREATE, IN_ONESHOT = 0x1000_0000, 0x8000_0000  # not where there is a watch; for one event
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it
READ_BYTES = 65_536
MAX_ORDINARY = 32  # ordinary files that are watched beside the decoys
MAX_LISTED = 200

_LIBC = ctypes.CDLL(None, use_errno=True)
_IDLE: list[int] = []  # inotify instances without watches; their number is that of the most episodes at once


class DecoyWatch:
    """Files opened since the last look. Without inotify (a limit of the host) it sees nothing and says so.

    The worker watches inodes through its own descriptor of the workspace: nothing inside can see, drain or end it. A
    watch has an inotify instance of its own, so that a flood of one episode hides nothing of another's. Some ordinary
    files (`files`, and what lies at the top) are watched too, each for one opening between two looks: no loop over
    them fills the queue. What is opened beside a decoy tells a search through everything from a directed read.
    """

    def __init__(self, workspace_fd: int, decoys: Iterable[str], files: Iterable[str] = ()) -> None:
        self.problem = ""
        self._decoys: dict[int, str] = {}
        self._ordinary: dict[int, str] = {}
        self._workspace_fd = workspace_fd
        self._files = [path for path in files if not is_decoy(path)][:MAX_ORDINARY]
        self._fd = _IDLE.pop() if _IDLE else _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            self.problem = f"decoys are not watched: {os.strerror(ctypes.get_errno())}"
            return
        self._watch_ordinary()
        for path in decoys:
            self._watch_decoy(path)

    def take(self) -> tuple[list[str], float | None]:
        """Decoys opened since the last call, each once, and the share of comparable ordinary files opened too.

        All decoys when the kernel has lost count. The share is None where nothing is comparable, or no decoy opened.
        """
        opened: set[str] = set()
        beside: set[int] = set()  # opened
        gone: set[int] = set()  # deleted, or opened
        for watch, mask in self._events():
            if mask & IN_Q_OVERFLOW:
                opened.update(self._decoys.values())
            elif mask & (IN_OPEN | IN_MODIFY) and watch in self._decoys:
                opened.add(self._decoys[watch])
            elif watch in self._ordinary:
                (beside if mask & IN_OPEN else gone).add(watch)
        share = None
        if opened:
            there = {path for watch, path in self._ordinary.items() if watch in beside or watch not in gone}
            if known := company(opened, there):
                share = len(known & {self._ordinary[watch] for watch in beside}) / len(known)
            for path in opened:  # there may be another inode now, e.g. after `sed -i`
                self._watch_decoy(path)
        for watch in beside | gone:
            self._ordinary.pop(watch, None)
        self._watch_ordinary()
        return sorted(opened), share

    def close(self) -> None:
        """Safe to repeat. The instance is kept for the next watch: the kernel takes 50 ms to close one."""
        if self._fd < 0:
            return
        for watch in (*self._decoys, *self._ordinary):
            _LIBC.inotify_rm_watch(self._fd, watch)
        for _ in self._events():
            pass
        _IDLE.append(self._fd)
        self._fd = -1

    def _watch_decoy(self, path: str) -> None:
        watch = self._add(path, IN_OPEN | IN_MODIFY)
        if watch < 0:
            self.problem = f"decoy {path} is not watched: {os.strerror(ctypes.get_errno())}"
        else:
            self._decoys[watch] = path

    def _watch_ordinary(self) -> None:
        """Watch the ordinary files that are there now and are not watched."""
        names: list[str] = []
        with suppress(OSError), os.scandir(self._workspace_fd) as entries:
            for entry, _ in zip(entries, range(MAX_LISTED), strict=False):
                if entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
        present = set(self._ordinary.values())
        for path in dict.fromkeys([*self._files, *names]):
            if len(self._ordinary) >= MAX_ORDINARY:
                break
            if path not in present and (watch := self._add(path, IN_OPEN | IN_ONESHOT | IN_MASK_CREATE)) >= 0:
                self._ordinary[watch] = path

    def _add(self, path: str, mask: int) -> int:
        """Number of a new watch, negative without one. No link is followed: an absolute one would lead to the host."""
        fd = os.dup(self._workspace_fd)
        try:
            for name in path.split("/"):
                inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = inner
            return int(_LIBC.inotify_add_watch(self._fd, f"/proc/self/fd/{fd}".encode(), mask))
        except OSError as error:
            ctypes.set_errno(error.errno or 0)
            return -1
        finally:
            os.close(fd)

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
