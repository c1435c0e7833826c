"""What worker processes ask of the operating system: die with the parent, keep or free memory, count what is used."""

import contextlib
import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT_BYTES = 2 << 30


def die_with_parent() -> None:
    """Ask Linux to terminate this process when its parent ends, so that no trainer outlives its worker."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def keep_freed_memory(up_to_bytes: int = 1 << 30) -> None:
    """Let glibc reuse freed blocks: every step allocates the same sizes, and fresh pages are slow.

    Blocks over `up_to_bytes` go back to the system at once, which bounds fragmentation where sizes vary.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, up_to_bytes)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(M_TOP_PAD, 64 << 20)


def release_freed_memory(above_bytes: int = KEPT_BYTES) -> None:
    """Give freed blocks back where the process has grown over `above_bytes`: rows of many sizes fragment the heap."""
    if sys.platform == "linux" and current_memory_bytes() > above_bytes:
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def cpu_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_memory_bytes() -> int:
    """Largest resident set so far."""
    factor = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor


def current_memory_bytes() -> int:
    """Resident set now."""
    try:
        with open("/proc/self/statm") as handle:  # noqa: PTH123 (a kernel file)
            return int(handle.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_memory_bytes()
