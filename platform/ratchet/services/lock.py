"""One supervisor per data folder, held by a file lock that the kernel frees when its holder dies."""

import fcntl
import os
from pathlib import Path
from typing import IO

from ratchet.services.errors import ServiceError


def acquire(path: Path) -> IO[str]:
    """Take the lock and write our process id into it. Keep the handle open. Raises ServiceError when it is held."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = holder_of(path)
        handle.close()
        raise ServiceError(
            f"Another supervisor (process {holder or 'unknown'}) uses {path.parent}. Stop it with "
            "`python manage.py down`, or set RATCHET_HOME to another folder."
        ) from error
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def holder_of(path: Path) -> int | None:
    """Process id of the lock's present holder; None when nobody holds it."""
    try:
        with path.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = handle.read().strip()
                return int(text) if text.isdigit() else None
    except FileNotFoundError:
        pass
    return None
