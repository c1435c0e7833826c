"""Sessions on disk: one append-only file each, of which a killed process leaves every whole record."""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

_HEADER = 8  # bytes: length and CRC-32 of the record, little endian
_SUFFIX = ".session"


class JournalError(RuntimeError):
    """The folder cannot be used or written; the message says which file and why."""


class Journal:
    """Files of one folder, which one process at a time may hold. A record is safe from a kill, not from a power cut."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"{folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise JournalError(f"{folder} is in use by another process: give each its own RATCHET_HOME") from error

    def close(self) -> None:
        os.close(self._lock)

    def names(self) -> list[str]:
        """Sessions with a file, by the time of their last record, oldest first."""
        files = [(self.changed_at(path.stem), path.stem) for path in self._folder.glob(f"*{_SUFFIX}")]
        return [name for _, name in sorted(files)]

    def changed_at(self, name: str) -> float:
        """Unix seconds of the last record; 0.0 where there is no file."""
        try:
            return self._path(name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def append(self, name: str, record: bytes, *, new: bool = False) -> None:
        """All of the record or, when this raises JournalError, nothing of it."""
        header = len(record).to_bytes(4, "little") + zlib.crc32(record).to_bytes(4, "little")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0)
        try:
            file = os.open(self._path(name), flags, 0o600)
        except OSError as error:
            raise JournalError(f"{self._path(name)}: {error.strerror}") from error
        try:
            size = os.fstat(file).st_size
            try:
                _write_all(file, header + record)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, size)
                raise JournalError(f"{self._path(name)}: {error.strerror}") from error
        finally:
            os.close(file)

    def read(self, name: str) -> list[bytes]:
        """Its whole records; a torn one at the end is cut off. Raises FileNotFoundError."""
        path = self._path(name)
        data = path.read_bytes()
        records, end = [], 0
        for record, stop in _records(data):
            records.append(record)
            end = stop
        if end < len(data):
            os.truncate(path, end)
        return records

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at + _HEADER <= len(data):
        length, crc = (int.from_bytes(data[at + i : at + i + 4], "little") for i in (0, 4))
        record = data[at + _HEADER : at + _HEADER + length]
        if len(record) < length or zlib.crc32(record) != crc:
            return
        at += _HEADER + length
        yield record, at


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
