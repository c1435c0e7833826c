"""Where one machine's data lives: folders below RATCHET_HOME, sockets with short paths, generated secrets."""

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

MAX_SOCKET_PATH = 107  # bytes of sockaddr_un.sun_path, without the closing zero
_LONGEST_SOCKET_NAME = ".s.PGSQL.5432.lock"


@dataclass(frozen=True, slots=True)
class Home:
    """Folders below RATCHET_HOME."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def sockets(self) -> Path:
        """Folder of the Unix sockets: below the home, or a private one with a short name where that is too long."""
        near = self.root / "run"
        if len(os.fsencode(near / _LONGEST_SOCKET_NAME)) <= MAX_SOCKET_PATH:
            return near
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"ratchet-{os.geteuid()}-{digest}"

    @property
    def postgres_url(self) -> str:
        """For the application, whose role can neither change nor remove audit events."""
        return f"postgres://ratchet_app@/ratchet?host={self.sockets}"

    @property
    def postgres_owner_url(self) -> str:
        """For migrations."""
        return f"postgres://postgres@/ratchet?host={self.sockets}"

    @property
    def valkey_socket(self) -> Path:
        return self.sockets / "valkey.sock"

    @property
    def valkey_url(self) -> str:
        return f"unix://{self.valkey_socket}"

    @property
    def objects_url(self) -> str:
        return f"file://{self.objects}"

    def secret(self, name: str) -> str:
        """A random secret of this home, made on first use and readable by its owner only."""
        path = self.root / "secrets" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = path.with_name(f".{name}.{os.getpid()}")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as handle:
                handle.write(secrets.token_urlsafe(48))
            try:
                os.link(fresh, path)  # fails where another process was first: then its secret counts
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        return path.read_text()


def broker_url(redis_url: str) -> str:
    """The Celery form of a Redis URL: kombu has a scheme of its own for Unix sockets."""
    return redis_url.replace("unix://", "redis+socket://", 1) if redis_url.startswith("unix://") else redis_url
