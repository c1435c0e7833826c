"""The system-call filter of a sandbox, as a BPF program: what no tool needs and kernels have been escaped through.

Calls up to LAST_KNOWN were looked at one by one; every later one is answered as by a kernel that does not have it yet.
"""

import errno
import struct
import tempfile
from functools import lru_cache
from typing import Any

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError

NAMESPACE_FLAGS = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
AF_MAX_CHECKED = 46
ALLOWED_FAMILIES = frozenset({1, 2, 10})  # unix, inet, inet6: the last two reach nothing in an empty network namespace
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

DENIED_BY_NAME = (
    "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "swapon", "swapoff", "acct", "quotactl", "reboot",
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "bpf", "perf_event_open", "userfaultfd",
    "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "iopl", "ioperm", "syslog", "open_by_handle_at", "name_to_handle_at", "fanotify_init",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "vhangup", "lookup_dcookie", "nfsservctl",
)  # fmt: skip
# As if the kernel had none, so that programs fall back to files and polling: memory that belongs to no process, which
# no limit of a process counts and no look at processes finds; and watches, of which a user has few, the worker's too.
ABSENT_BY_NAME = (
    "memfd_create", "shmget", "shmat", "shmdt", "shmctl", "semget", "semop", "semtimedop", "semctl",
    "msgget", "msgsnd", "msgrcv", "msgctl", "inotify_init", "inotify_init1",
)  # fmt: skip
# By number, the same on every architecture: an older libseccomp does not know these names.
DENIED_BY_NUMBER = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "cachestat": 451,
}  # fmt: skip
CLONE3 = 435
LAST_KNOWN = 456  # futex_requeue. From 424 on all architectures give out the same numbers
LOAD, IS_GREATER, RETURN = 0x20, 0x25, 0x06  # BPF
ERRNO = 0x00050000
# Calls that change how another process of the same user runs, by the position of the process id: process 1 has that
# user too, and no episode may end because its policy took the server's limits away. 0 is the caller itself.
ONLY_ON_ITSELF = {
    "prlimit64": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0, "sched_setaffinity": 0,
    "setpriority": 1, "ioprio_set": 1, "migrate_pages": 0, "move_pages": 0,
}  # fmt: skip


@lru_cache(maxsize=1)
def filter_program() -> bytes:
    """BPF of the filter for this machine's architecture. Raises WorkerError when libseccomp is missing."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:
        raise WorkerError(
            Boundary.INFRASTRUCTURE,
            f"the sandbox's system-call filter needs libseccomp ({error}); install the package libseccomp2",
            retryable=False,
        ) from error
    with tempfile.TemporaryFile() as file:
        _build(pyseccomp).export_bpf(file)
        file.seek(0)
        return later_calls() + file.read()


def later_calls() -> bytes:
    """Instructions before all others: ENOSYS for what is numbered beyond LAST_KNOWN, which takes in the x32 calls."""
    number = 0  # its offset in the data that a filter sees
    steps = ((LOAD, 0, 0, number), (IS_GREATER, 0, 1, LAST_KNOWN), (RETURN, 0, 0, ERRNO | errno.ENOSYS))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _build(seccomp: Any) -> Any:
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    refuse = seccomp.ERRNO(errno.EPERM)
    absent = seccomp.ERRNO(errno.ENOSYS)
    for names, action in ((DENIED_BY_NAME, refuse), (ABSENT_BY_NAME, absent)):
        for name in names:
            try:
                number = seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)
            except OSError:
                continue  # this architecture never had it
            rules.add_rule(action, number)
    for number in DENIED_BY_NUMBER.values():
        rules.add_rule(refuse, number)
    for name, position in ONLY_ON_ITSELF.items():
        rules.add_rule(refuse, name, seccomp.Arg(position, seccomp.NE, 0))
    for name, of_user in (("setpriority", 2), ("ioprio_set", 3)):  # all processes of the user
        rules.add_rule(refuse, name, seccomp.Arg(0, seccomp.EQ, of_user), seccomp.Arg(1, seccomp.EQ, 0))
    # clone3 hides its flags in memory; libc falls back to clone, whose flags can be looked at.
    rules.add_rule(absent, CLONE3)
    for flag in NAMESPACE_FLAGS:
        rules.add_rule(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    for family in range(AF_MAX_CHECKED):
        if family not in ALLOWED_FAMILIES:
            rules.add_rule(seccomp.ERRNO(errno.EAFNOSUPPORT), "socket", seccomp.Arg(0, seccomp.EQ, family))
    rules.add_rule(seccomp.ERRNO(errno.EAFNOSUPPORT), "socket", seccomp.Arg(0, seccomp.GE, AF_MAX_CHECKED))
    for request in (TIOCSTI, TIOCLINUX):  # typing into the terminal of whoever started the worker
        rules.add_rule(refuse, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    return rules
