"""Limits kept from inside: rlimits, use of the whole process tree, and the end of every process but this one."""

# Neither pathlib nor contextlib: they would double the start-up time.
# ruff: noqa: PTH208, SIM105
import os
import resource

PR_SET_DUMPABLE = 4
SIGKILL, SIGXCPU, SIGXFSZ = 9, 24, 25  # the signal module would import enum
WRITABLE = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108
MAX_INODES = 20_000  # an empty file costs kernel memory that no size limit counts
MAX_SOCKETS = 512  # what waits in their buffers is the kernel's memory
HIDDEN_SLACK = 32 * 2**20  # libraries that a process maps, where its map cannot be read
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def find_function(name: str) -> tuple:
    """A function of libc by the bare extension module: all of ctypes would take as long as Python's own start."""
    try:
        import _ctypes

        return _ctypes.call_function, _ctypes.dlsym(_ctypes.dlopen(None, 2), name)  # type: ignore[arg-type]
    except (ImportError, OSError, AttributeError):
        return None, 0


_CALL, _PRCTL = find_function("prctl")


def set_dumpable(value: int) -> None:
    """prctl(PR_SET_DUMPABLE); where it cannot be called the sandbox still holds, its server is only less guarded."""
    if _CALL is not None:
        _CALL(_PRCTL, (PR_SET_DUMPABLE, value, 0, 0, 0))


def limit_self(disk_bytes: int, num_processes: int = 0) -> None:
    """Limits of this process and all it starts; 0 processes: something else keeps their number."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    if num_processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (num_processes, num_processes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (disk_bytes, disk_bytes))
    # Counted by user, the worker's own processes and other sandboxes included. Kernels without them cannot limit them.
    for limit, most in (
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 256),
        (resource.RLIMIT_MEMLOCK, 65_536),
    ):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError):
            continue


def limit_call(memory_bytes: int, cpu_seconds: int) -> None:
    """Limits of one call's processes, each."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))


def limit_service(memory_bytes: int) -> None:
    """Limits of a service's processes, each; its CPU time is counted call by call."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


class Usage:
    """Memory, CPU time and number of processes of everything but process 1; CPU time since this object was made.

    `shared`: anonymous memory that is mapped to be shared, by the size of its mappings: its pages can be hidden from
    every process's own count. `memory` includes what waits in sockets.
    """

    def __init__(self) -> None:
        self.reaped = _reaped_cpu()
        self.ticks = 0
        self.before = 0  # ticks of services that live already
        self.memory = 0
        self.shared = 0
        self.sockets = 0
        self.cpu = 0.0
        self.processes = 0

    def rebase(self) -> None:
        """Do not count the CPU time that processes have used already."""
        self.scan()
        self.before = self.ticks

    def scan(self) -> None:
        self.memory = self.processes = self.ticks = hidden = 0
        shared: dict = {}  # mapped memory without a file: number -> bytes
        for name in os.listdir("/proc"):
            if not name.isdigit() or name == "1":
                continue
            try:
                fields = _slurp("/proc/" + name + "/stat").rsplit(b")", 1)[1].split()
                self.ticks += sum(map(int, fields[11:15]))  # its own, and of the children that it has reaped
                self.memory += _memory(name)
                hidden += _add_shared(name, shared)
                self.processes += 1
            except (OSError, IndexError, ValueError):
                continue  # ended meanwhile
        self.shared = sum(shared.values()) + hidden
        self.sockets, waiting = _sockets()
        self.memory += waiting
        self.cpu = _reaped_cpu() - self.reaped + (self.ticks - self.before) / CLOCK_TICKS


def disk_full() -> bool:
    """Whether the workspace or another writable folder has no room or too many files."""
    for folder in WRITABLE:
        state = os.statvfs(folder)
        if state.f_bavail == 0 or state.f_files - state.f_ffree > MAX_INODES:
            return True
    return False


def too_many_files() -> bool:
    return any(s.f_files - s.f_ffree > MAX_INODES for s in map(os.statvfs, WRITABLE))


def kill_all() -> None:
    """Kill and reap every process of the namespace but this one."""
    while True:
        try:
            os.kill(-1, SIGKILL)
        except ProcessLookupError:
            pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _reaped_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _slurp(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def _memory(name: str) -> int:
    """Proportional set size in bytes; resident size where a process hides its map."""
    try:
        for line in _slurp("/proc/" + name + "/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        return int(_slurp("/proc/" + name + "/statm").split()[1]) * PAGE
    return 0


def _add_shared(name: str, shared: dict) -> int:
    """Add a process's shared anonymous mappings; an estimate of them where it hides its map."""
    try:
        for line in _slurp_all("/proc/" + name + "/maps").splitlines():
            if line.endswith(b"/dev/zero (deleted)"):
                span, _, _, _, number = line.split(None, 5)[:5]
                start, stop = span.split(b"-")
                shared[number] = max(shared.get(number, 0), int(stop, 16) - int(start, 16))
    except PermissionError:
        size, _, _, text, _, data = _slurp("/proc/" + name + "/statm").split()[:6]
        return max(0, (int(size) - int(text) - int(data)) * PAGE - HIDDEN_SLACK)
    return 0


def _sockets() -> tuple:
    """Sockets of this network namespace, and the bytes that wait in TCP's of them."""
    lines = _slurp("/proc/net/sockstat").splitlines()
    used = int(lines[0].split()[2])
    waiting = 0
    if used and not lines[1].startswith(b"TCP: inuse 0 orphan 0"):
        for name in ("tcp", "tcp6"):
            try:
                for line in _slurp_all("/proc/net/" + name).splitlines()[1:]:
                    sent, received = line.split()[4].split(b":")
                    waiting += int(sent, 16) + int(received, 16)
            except FileNotFoundError:
                continue
    return used, waiting


def _slurp_all(path: str) -> bytes:
    parts = []
    fd = os.open(path, os.O_RDONLY)
    try:
        while part := os.read(fd, 65536):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)
