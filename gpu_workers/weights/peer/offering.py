"""The process that offers a version from its memory: `python -m gpu_workers.weights.peer.offering`.

Orders, a JSON line each: offer (the files of a folder), withdraw.
"""

import contextlib
import hashlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpu_workers.weights.ordered import serve_orders
from gpu_workers.weights.peer.library import LibraryError, registered, start_engine
from gpu_workers.weights.peer.messages import Offer, OfferedFile


class Offering:
    """Buffers of one version, registered until they are withdrawn or another is offered."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._address = ""
        self._buffers = contextlib.ExitStack()

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Raises LibraryError or OSError."""
        self._buffers.close()
        if order["do"] == "offer":
            return {"offer": msgspec.to_builtins(self.offer(Path(order["folder"]), order["names"], order["address"]))}
        return {}

    def offer(self, folder: Path, names: list[str], address: str) -> Offer:
        """Read these files into memory and register it."""
        if self._engine is None or self._address != address:
            self._engine, self._address = start_engine(address), address
        files = [self._register(folder / name) for name in names]
        return Offer(session=f"{address}:{self._engine.get_rpc_port()}", files=files)

    def _register(self, path: Path) -> OfferedFile:
        data = np.fromfile(path, np.uint8)
        if not len(data):
            raise OSError(f"{path} is empty")
        pointer = self._buffers.enter_context(registered(self._engine, data))
        self._buffers.callback(data.view)  # holds the memory for as long as it is registered
        digest = hashlib.sha256(data.data).hexdigest()
        return OfferedFile(name=path.name, address=pointer, num_bytes=data.nbytes, sha256=digest)


def main() -> int:
    """Serve orders until the pipe is closed."""
    serve_orders(Offering().do, LibraryError, OSError, MemoryError)
    return 0


if __name__ == "__main__":
    sys.exit(main())
