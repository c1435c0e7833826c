"""The stream to the worker, in the shape of the server's channel: authenticated frames over two descriptors.

Other kernels than Linux stand behind a container: gVisor lets processes of the same user open the streams of process 1.
"""

import _blake2
import os

from gpu_workers.sandboxes.container.inside.wire import CALLS, FORGED, FRAME, HASH_BYTES, HASHED, INWARDS, OUTWARDS


class Frames:
    """A stream of calls, and beside it of network traffic."""

    def __init__(self, read_fd: int, write_fd: int, key: bytearray) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.key = key
        self.buffer = b""
        self.num_read = self.num_written = 0
        self.beside: list = []  # what else no forked child may keep

    def fileno(self) -> int:
        return self.read_fd

    def close(self) -> None:
        """In a forked child, which may run code of the policy: it keeps neither the streams nor the key."""
        self.key[:] = bytes(len(self.key))
        os.close(self.read_fd)
        os.close(self.write_fd)
        for each in self.beside:
            each.close()

    def _hash(self, direction: bytes, number: int, kind: int, data: bytes) -> bytes:
        state = _blake2.blake2b(HASHED.pack(direction, number, kind), key=self.key, digest_size=HASH_BYTES)
        state.update(data)
        return state.digest()

    def take(self) -> tuple:
        """The next frame: its kind and data. Waits for it; ends this server when it is not the worker's."""
        kind, length, code = FRAME.unpack(self._read(FRAME.size))
        data = self._read(length)
        if self._hash(INWARDS, self.num_read, kind, data) != code:
            os._exit(FORGED)
        self.num_read += 1
        return kind, data

    def fill(self) -> bool:
        """Take one frame; whether it holds words of a call. Traffic after a call is of connections that are gone."""
        kind, data = self.take()
        self.buffer += data if kind == CALLS else b""
        return kind == CALLS

    def recv(self, size: int) -> bytes:
        while not self.buffer:
            self.fill()
        part, self.buffer = self.buffer[:size], self.buffer[size:]
        return part

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self.read_fd, min(size, 1 << 20))
            if not part:
                os._exit(0)  # the worker is gone
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def sendall(self, data: bytes) -> None:
        self.send(CALLS, bytes(data))

    def send(self, kind: int, data: bytes) -> None:
        head = FRAME.pack(kind, len(data), self._hash(OUTWARDS, self.num_written, kind, data))
        self.num_written += 1
        for view in (memoryview(head), memoryview(data)):
            while view:
                view = view[os.write(self.write_fd, view) :]
