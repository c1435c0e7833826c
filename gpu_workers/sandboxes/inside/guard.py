"""Keeps a call's processes away from those of services: a Landlock domain of its own, where the kernel has Landlock.

Inside a domain a process can neither look into the memory of one outside it nor, from Linux 6.12 on, send it a signal.
"""

import struct

from gpu_workers.sandboxes.inside.limits import find_function

CREATE_RULESET, RESTRICT_SELF = 444, 446  # the same number on every architecture
VERSION_FLAG = 1
MAKE_BLOCK_DEVICE = 1 << 11  # a right that nothing in a sandbox has anyway: a domain must restrict something
SCOPE_SIGNAL = 1 << 1
ABI_WITH_SCOPES = 6

_CALL, _SYSCALL = find_function("syscall")


def enter_domain() -> None:
    """Put this process and all it starts into a new domain; where there is no Landlock nothing happens."""
    if _CALL is None:
        return
    abi = _CALL(_SYSCALL, (CREATE_RULESET, None, 0, VERSION_FLAG))
    if abi < 1:
        return
    scoped = struct.pack("<QQQ", MAKE_BLOCK_DEVICE, 0, SCOPE_SIGNAL)
    attributes = scoped if abi >= ABI_WITH_SCOPES else scoped[:8]
    ruleset = _CALL(_SYSCALL, (CREATE_RULESET, attributes, len(attributes), 0))
    if ruleset >= 0:
        _CALL(_SYSCALL, (RESTRICT_SELF, ruleset, 0))
