"""What comes out of processes that run code of the candidate: their output, bounded, and what their watch reports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Callable

MAX_OUTPUT = 1 << 20  # bytes that are kept
FLOOD = 32 << 20  # bytes of one process after which it is stopped: an honest one prints less
MAX_SEEN = 8  # of one kind
MAX_WHAT = 400  # characters
KINDS = frozenset({"place", "process", "search", "shown", "frames", "raw"})
READ = 1 << 16
REST_SECONDS = 0.05
DRAIN_SECONDS = 10.0  # for what is printed when the check is over
BUSY_SECONDS = 1.0  # for busy threads that print nothing

SHOWN: list = []  # paths below the working folder of tests that the policy was given
SEEN: dict = {}  # kind -> what processes of this check were seen doing


def note(kind: str, what: str) -> None:
    known = SEEN.setdefault(kind, [])
    if what not in known and len(known) < MAX_SEEN:
        known.append(what[:MAX_WHAT])


def shown() -> list:
    """Absolute paths of the tests that the policy was given."""
    return [os.path.abspath(path) for path in SHOWN]  # noqa: PTH100


class Output:
    """What one process writes to a pipe: all is read and counted, the first or the last MAX_OUTPUT bytes are kept."""

    def __init__(self, keep_last: bool = False) -> None:
        self.fd, self.theirs = os.pipe()
        os.set_blocking(self.fd, False)
        self.keep_last = keep_last
        self.kept = bytearray()
        self.num_bytes = 0
        self.is_open = True

    def given(self) -> None:
        """The process has its end."""
        os.close(self.theirs)

    def read(self) -> bool:
        """Take what is there; whether there was something."""
        try:
            data = os.read(self.fd, READ) if self.is_open else b""
        except BlockingIOError:
            return False
        self.is_open = self.is_open and data != b""
        self.num_bytes += len(data)
        if self.keep_last:
            self.kept += data
            del self.kept[:-MAX_OUTPUT]
        else:
            self.kept += data[: MAX_OUTPUT - len(self.kept)]
        return data != b""

    def read_all(self) -> None:
        """Take what is there and stay below the bound."""
        while self.num_bytes <= FLOOD and self.read():
            pass

    def drain(self, deadline: float, is_busy: Callable[[], bool]) -> None:
        """Take what the process goes on printing, or may yet while a thread is busy, and note where that has no end."""
        with contextlib.suppress(OSError):  # let more wait in the pipe, as far as the system allows
            fcntl.fcntl(self.fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), MAX_OUTPUT)
        read = time.monotonic()  # when there was something last
        until = min(read + DRAIN_SECONDS, deadline)
        while self.is_open and not self.is_flood and time.monotonic() < until:
            if self.read():
                read = time.monotonic()
            elif (time.monotonic() - read > BUSY_SECONDS or not is_busy()) and not self._waits(0):
                break
            self._waits(REST_SECONDS)
        if self.is_flood:
            note("flood", f"more than {FLOOD} bytes of output")

    def _waits(self, seconds: float) -> bool:
        """Whether something is there to read, now or within this time."""
        return bool(select.select([self.fd], [], [], seconds)[0])

    @property
    def is_flood(self) -> bool:
        return self.num_bytes > FLOOD

    def text(self, last: int = 0) -> str:
        return bytes(self.kept[-last:]).decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self.fd)


class Reports:
    """What a watch reports. `above`: its descriptor is higher, and so closed later when the process ends."""

    def __init__(self, above: int = 0) -> None:
        self.fd, lower = os.pipe()
        self.theirs = fcntl.fcntl(lower, fcntl.F_DUPFD, above + 1)
        os.close(lower)
        os.set_blocking(self.fd, False)
        os.set_blocking(self.theirs, False)

    def given(self) -> None:
        os.close(self.theirs)

    def close(self) -> bool:
        """Note what was reported; whether nobody can report any more."""
        data, ended = b"", False
        while len(data) < READ:
            try:
                part = os.read(self.fd, READ)
            except BlockingIOError:
                break
            data += part
            if not part:
                ended = True
                break
        os.close(self.fd)
        for line in data.decode("ascii", "replace").splitlines():
            kind, _, what = line.partition(" ")
            note(*((kind, what) if kind in KINDS else ("blinded", "the watch's descriptor was written to")))
        return ended
