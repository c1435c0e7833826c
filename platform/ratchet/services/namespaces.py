"""A user namespace for PostgreSQL, which refuses to run as root or as a user without an account."""

import ctypes
import os
import pwd
import subprocess
from pathlib import Path

from ratchet.services.errors import ServiceError

_CLONE_NEWUSER = 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


def mapped_user() -> int | None:
    """The user id PostgreSQL is to see itself as; None where our own will do."""
    own = os.geteuid()
    accounts = {entry.pw_uid for entry in pwd.getpwall()}
    if own != 0 and own in accounts:
        return None
    others = sorted(accounts - {0, 65534})
    return others[0] if others else 1000


def enter_user_namespace(uid: int) -> None:
    """Make this process see itself as `uid`; files keep their owner. Runs between fork and exec."""
    own_uid, own_gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are not allowed")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {own_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{uid} {own_gid} 1")


def require_user_namespace(uid: int) -> None:
    """Raise ServiceError where the kernel or a container runtime forbids user namespaces."""
    try:
        subprocess.run(["true"], check=True, preexec_fn=lambda: enter_user_namespace(uid))
    except (subprocess.SubprocessError, OSError) as error:
        raise ServiceError(
            "PostgreSQL refuses to run as root and this machine forbids user namespaces, which would hide that. "
            "Do one of: run as an ordinary user; set DATABASE_URL to a PostgreSQL of your own; allow user namespaces "
            "(sysctl user.max_user_namespaces > 0 and kernel.unprivileged_userns_clone=1; "
            "in Docker --security-opt seccomp=unconfined)."
        ) from error
