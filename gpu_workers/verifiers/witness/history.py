"""What happened to the reward's files, seen from outside the sandbox: one inotify watch of their folder.

It is read once, when every process is gone. Equal events in a row are one event until then, so that one and the same
course of writes always gives the same events.
"""

import ctypes
import os
import struct

EVENTS = {
    0x2: "modify", 0x4: "attributes", 0x8: "close after writing", 0x20: "open", 0x40: "move away", 0x80: "move here",
    0x100: "create", 0x200: "delete",
}  # fmt: skip
OVERFLOW = 0x4000
ONLY_FOLDER = 0x0100_0000
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it
READ_BYTES = 65_536
LOST = ("", "too many to count")
MAX_EVENTS = 2000

_LIBC = ctypes.CDLL(None, use_errno=True)
_IDLE: list[int] = []  # inotify instances without a watch: the kernel takes 50 ms to close one

History = tuple[tuple[str, str], ...]  # (name, what happened), in their order


class FolderWatch:
    """Events of the files of one folder of a sandbox's workspace. No link is followed."""

    def __init__(self, workspace_fd: int, folder: str, names: frozenset[str]) -> None:
        self.names = names
        self._watch = -1
        self._fd = _IDLE.pop() if _IDLE else _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            return
        fd = os.dup(workspace_fd)
        try:
            for name in folder.split("/"):
                inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = inner
            path = f"/proc/self/fd/{fd}".encode()
            self._watch = _LIBC.inotify_add_watch(self._fd, path, sum(EVENTS) | ONLY_FOLDER)
        except OSError:
            self._watch = -1
        finally:
            os.close(fd)

    def close(self) -> History | None:
        """What happened since the start; None where this host cannot watch."""
        if self._fd < 0:
            return None
        if self._watch >= 0:
            _LIBC.inotify_rm_watch(self._fd, self._watch)
        history = self._read()
        _IDLE.append(self._fd)
        self._fd = -1
        return history if self._watch >= 0 else None

    def _read(self) -> History:
        history: list[tuple[str, str]] = []
        while True:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return tuple(history) if len(history) < MAX_EVENTS else (LOST,)
            at = 0
            while at < len(data):
                _, mask, _, length = EVENT.unpack_from(data, at)
                name = data[at + EVENT.size : at + EVENT.size + length].rstrip(b"\0").decode(errors="replace")
                at += EVENT.size + length
                if mask & OVERFLOW:
                    history += [LOST] * MAX_EVENTS
                elif name in self.names and (happened := EVENTS.get(mask & sum(EVENTS))):
                    history.append((name, happened))
