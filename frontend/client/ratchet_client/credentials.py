"""Where tokens are kept: one file per user, readable by that user alone."""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ratchet_client.errors import NotLoggedIn, RatchetError


@dataclass
class Login:
    """A server with a token. `project` is the one meant when none is named."""

    url: str
    token: str = field(repr=False)
    username: str = ""
    project: str = ""


def credentials_path(environ: Mapping[str, str] = os.environ) -> Path:
    """RATCHET_CREDENTIALS, else credentials.json below XDG_CONFIG_HOME/ratchet."""
    if named := environ.get("RATCHET_CREDENTIALS"):
        return Path(named).expanduser()
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "ratchet" / "credentials.json"


def load_login(url: str = "", environ: Mapping[str, str] = os.environ) -> Login:
    """The login to use: RATCHET_URL and RATCHET_TOKEN first, then what `ratchet login` stored. Raises NotLoggedIn."""
    stored = _read(credentials_path(environ))
    wanted = check_url(url or environ.get("RATCHET_URL", "") or stored.get("default", ""))
    known = stored.get("servers", {}).get(wanted, {})
    token = environ.get("RATCHET_TOKEN", "").strip() or known.get("token", "")
    if not token:
        raise NotLoggedIn(f"There is no token for {wanted}.", hint=f"ratchet login {wanted}, or set RATCHET_TOKEN")
    same = token == known.get("token")
    return Login(wanted, token, known.get("username", "") if same else "", known.get("project", ""))


def save_login(login: Login, environ: Mapping[str, str] = os.environ) -> Path:
    """Store it and make it the default."""
    path = credentials_path(environ)
    stored = _read(path)
    servers = {**stored.get("servers", {}), login.url: asdict(login)}
    _write(path, {"default": login.url, "servers": servers})
    return path


def forget_login(url: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Remove a server's token; False: there was none."""
    path = credentials_path(environ)
    stored = _read(path)
    servers = dict(stored.get("servers", {}))
    if servers.pop(url, None) is None:
        return False
    default = stored.get("default", "")
    _write(path, {"default": default if default in servers else next(iter(servers), ""), "servers": servers})
    return True


def check_url(url: str) -> str:
    """The address without path and trailing slash. Raises NotLoggedIn for none, RatchetError for a wrong one."""
    if not url:
        raise NotLoggedIn("No server is known.", hint="ratchet login http://127.0.0.1:8000, or set RATCHET_URL")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.username and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise RatchetError(f"{url!r} is no address of a server.", hint="It looks like https://ratchet.example.com")
    return f"{parts.scheme}://{parts.netloc}"


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner reads, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)  # noqa: PTH105  # a pair of names
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _write(path: Path, stored: Mapping[str, object]) -> None:
    try:
        write_private(path, json.dumps(stored, indent=2) + "\n")
    except OSError as error:
        raise RatchetError(f"{path} cannot be written: {error.strerror}.", hint="Or set RATCHET_TOKEN.") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise RatchetError(f"{path} can be read by others (mode {mode:o}).", hint=f"chmod 600 {path}")
            stored = json.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RatchetError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise RatchetError(f"{path} is not JSON ({error}).", hint="Remove it and log in again.") from error
    if not isinstance(stored, dict):
        raise RatchetError(f"{path} does not hold logins.", hint="Remove it and log in again.")
    return stored
