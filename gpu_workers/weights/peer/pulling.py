"""The process that pulls one file: `python -m gpu_workers.weights.peer.pulling`, killed where a peer hangs.

Orders, a JSON line each: start, and pull, a part of a file at a time, so that a peer that sends nothing is told from
one that is slow.
"""

import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gpu_workers.weights.ordered import serve_orders
from gpu_workers.weights.peer.library import LibraryError, registered, start_engine


class Pulling:
    """A transfer engine that only reads."""

    def __init__(self) -> None:
        self._engine: Any = None

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """pull fills [start, start + size) of the local file from the peer's memory. Raises LibraryError or OSError."""
        if order["do"] == "start":
            self._engine = start_engine(order["address"])
        else:
            self.pull(Path(order["file"]), order["session"], order["remote"], order["start"], order["size"])
        return {}

    def pull(self, path: Path, session: str, remote: int, start: int, size: int) -> None:
        with path.open("r+b") as handle, mmap.mmap(handle.fileno(), size, offset=start) as mapped:
            local = np.frombuffer(mapped, np.uint8)
            local[:: mmap.PAGESIZE] = 0  # every page is there before the transfer writes to it
            with registered(self._engine, local) as pointer:
                status = self._engine.transfer_sync_read(session, pointer, remote + start, size)
            del local
        if status != 0:
            raise LibraryError(f"peer {session} broke off (status {status}): it ended, or withdrew its offer")


def main() -> int:
    """Serve orders until the pipe is closed."""
    serve_orders(Pulling().do, LibraryError, OSError, ValueError)
    return 0


if __name__ == "__main__":
    sys.exit(main())
