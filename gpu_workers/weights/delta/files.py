"""Durable files: written under a temporary name, synced, then renamed, and the folder's entry synced too."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gpu_workers.weights.delta.errors import NoSpace

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def refusing_when_full(folder: Path) -> Iterator[None]:
    """Turns a write that the disk has no room for into NoSpace."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise NoSpace(f"{folder}: no room for another copy of the model ({error.strerror}): free disk space") from error


@contextmanager
def writing(target: Path) -> Iterator[BinaryIO]:
    """A file that becomes `target` as a whole, or not at all."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as handle:
            yield handle
            sync(handle)
        temporary.replace(target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(target: Path, data: bytes) -> None:
    with writing(target) as handle:
        handle.write(data)


def sync(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
