"""The system-call filter of bubblewrap's sandboxes as an OCI profile, for engines that take one. Pure.

A profile knows calls by name alone, and an engine's libseccomp passes over names it does not know: what is newer than
LAST_KNOWN is denied by the filter that the server installs in every container before it runs anything.
"""

import errno
import json
from functools import lru_cache
from typing import Any

from gpu_workers.sandboxes.seccomp import (
    AF_MAX_CHECKED,
    ALLOWED_FAMILIES,
    DENIED_BY_NAME,
    DENIED_BY_NUMBER,
    NAMESPACE_FLAGS,
    TIOCLINUX,
    TIOCSTI,
)


@lru_cache(maxsize=1)
def seccomp_profile() -> bytes:
    """JSON of the profile. Calls of other architectures than the machine's own are denied altogether."""
    rules = [_refuse([*DENIED_BY_NAME, *DENIED_BY_NUMBER]), _refuse(["clone3"], code=errno.ENOSYS)]
    rules += [_refuse(["clone"], 0, "SCMP_CMP_MASKED_EQ", flag, flag) for flag in NAMESPACE_FLAGS]
    families = [family for family in range(AF_MAX_CHECKED) if family not in ALLOWED_FAMILIES]
    rules += [_refuse(["socket"], 0, "SCMP_CMP_EQ", family, code=errno.EAFNOSUPPORT) for family in families]
    rules.append(_refuse(["socket"], 0, "SCMP_CMP_GE", AF_MAX_CHECKED, code=errno.EAFNOSUPPORT))
    rules += [_refuse(["ioctl"], 1, "SCMP_CMP_MASKED_EQ", 0xFFFFFFFF, request) for request in (TIOCSTI, TIOCLINUX)]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}).encode()


def _refuse(
    names: list[str], index: int = 0, op: str = "", value: int = 0, second: int = 0, *, code: int = errno.EPERM
) -> dict[str, Any]:
    """A rule; `value` is the mask and `second` the wanted bits where `op` masks."""
    arguments = [{"index": index, "value": value, "valueTwo": second, "op": op}] if op else []
    return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": code, "args": arguments}
