"""The system-call filter of a sandbox, as a BPF program: what no tool needs and kernels have been escaped through."""

import errno
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
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
CLONE3 = 435


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
        return file.read()


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
