"""What another kernel lacks or lets pass, made good for in the server: stand-ins, and filters of its own.

gVisor lets processes of the same user kill process 1, and ignores an engine's system-call profile. So process 1 puts
itself and all it starts under bubblewrap's filter, and under one that denies signals to it.
"""

# No pathlib: it is slow to import.
# ruff: noqa: PTH108, PTH110
import _signal  # type: ignore[import-not-found]  # the signal module would import enum
import os
import struct

from gpu_workers.sandboxes.inside import limits, operations

SCRATCH = "/tmp"  # noqa: S108
EPERM, ALLOW = 0x00050001, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF
PR_SET_SECCOMP, FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
BPF_STEP = 8  # bytes of one instruction
# kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo: the receiver is their first argument
SIGNAL_CALLS = {"x86_64": (62, 200, 234, 129, 297), "aarch64": (129, 130, 131, 138, 240)}
PIDFD_SEND_SIGNAL = 424


def adapt_to_kernel() -> None:
    """Stand in for what the server asks of Linux and another kernel does not have."""
    try:
        os.close(os.pidfd_open(1))
    except (OSError, AttributeError):
        os.pidfd_open = ChildWatch().open  # type: ignore[assignment]
    try:
        os.close(os.open(SCRATCH, os.O_TMPFILE | os.O_RDWR, 0o600))
    except OSError:
        operations._stdin_of = unlinked_file
    if not os.path.exists("/proc/self/smaps_rollup"):
        limits._memory = resident_bytes
    if not os.path.exists("/proc/net/sockstat"):
        limits._sockets = no_sockets  # what waits in them is the sentry's memory, which the engine bounds


def unlinked_file(data: bytes) -> int:
    path = SCRATCH + "/.stdin-" + str(os.getpid())
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    operations._write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def resident_bytes(name: str) -> int:
    return int(limits._slurp("/proc/" + name + "/statm").split()[1]) * limits.PAGE


def no_sockets() -> tuple:
    return 0, 0


class ChildWatch:
    """What os.pidfd_open gives, for kernels that have none: a descriptor that is readable when the child has ended.

    Not by a thread: process 1 could be killed through its number.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.held = -1  # closed when the child has ended, which makes the other end readable

    def open(self, pid: int) -> int:
        self._close()
        readable, self.held = os.pipe()
        self.pid = pid
        _signal.signal(_signal.SIGCHLD, self.look)
        self.look()
        return readable

    def look(self, *_: object) -> None:
        if os.getpid() != 1:
            return  # forked with this handler: not our child
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            ended = True
        if ended:
            self._close()

    def _close(self) -> None:
        if self.held >= 0:
            os.close(self.held)
            self.held = -1


def filter_calls(denied: bytes, machine: str) -> bool:
    """Put this process and all it starts under filters of system calls that nothing inside can take off.

    `denied` is the program of bubblewrap's sandboxes, made for `machine`: an engine's own profile is ignored by gVisor.
    The other one denies every call that would send a signal to process 1. False where one of them cannot be had.
    """
    numbers = SIGNAL_CALLS.get(os.uname().machine)
    if numbers is None or machine != os.uname().machine:
        return False
    number, first_argument = 0, 16  # offsets in the data that a filter sees
    program = [(LOAD, 0, 0, number), (EQUAL, 0, 1, PIDFD_SEND_SIGNAL), (RETURN, 0, 0, EPERM)]
    for call in numbers:
        program += [
            (EQUAL, 0, 4, call),
            (LOAD, 0, 0, first_argument),
            (EQUAL, 0, 1, 1),
            (RETURN, 0, 0, EPERM),
            (LOAD, 0, 0, number),
        ]
    program.append((RETURN, 0, 0, ALLOW))
    shield = b"".join(struct.pack("<HBBI", *step) for step in program)
    return _install(shield) and _install(denied)


def _install(code: bytes) -> bool:
    import ctypes

    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(code, len(code))
    handle = struct.pack("@HP", len(code) // BPF_STEP, ctypes.addressof(buffer))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return libc.prctl(PR_SET_SECCOMP, FILTER, handle, 0, 0) == 0
