"""Mooncake's transfer engine, imported where it is used: it is a requirement of its own."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

MISSING = (
    "peer-to-peer transfer needs Mooncake's transfer engine here: pip install -r requirements-peer.txt, and "
    "apt-get install libibverbs1"
)


class LibraryError(RuntimeError):
    """Mooncake is not there, or refused a call."""


def start_engine(address: str) -> Any:
    """A transfer engine over TCP that peers find at `address`; no metadata server. Raises LibraryError.

    It knows no credentials and listens on every interface: its ports belong on a private network.
    """
    os.environ.setdefault("MC_TCP_BIND_ADDRESS", address)
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise LibraryError(f"{MISSING} ({error})") from error
    engine = TransferEngine()
    if engine.initialize(address, "P2PHANDSHAKE", "tcp", "") != 0:
        raise LibraryError(f"Mooncake's transfer engine does not start at {address}: is it an address of this host?")
    return engine


@contextlib.contextmanager
def registered(engine: Any, buffer: NDArray[Any]) -> Iterator[int]:
    """The address of a buffer that peers or transfers may use meanwhile. TCP would pass one that is not registered."""
    pointer = int(buffer.ctypes.data)
    if engine.register_memory(pointer, buffer.nbytes) != 0:
        raise LibraryError(f"a buffer of {buffer.nbytes} bytes cannot be registered for transfers")
    try:
        yield pointer
    finally:
        engine.unregister_memory(pointer)
