"""Process 1 of a container: the resident server over two pipes, every message authenticated.

Other kernels than Linux stand behind a container: gVisor lets processes of the same user open the streams of process
1 and kill it, and ignores an engine's system-call profile. So each message carries a keyed hash over its direction and
number, which the policy cannot make, and process 1 puts itself and all it starts under filters of its own.
"""

# Requests, which are marshalled, come from the worker alone. Neither pathlib nor contextlib: they are slow to import.
# ruff: noqa: S302, PTH108, PTH110, PTH112, PTH123
import _blake2
import _signal  # type: ignore[import-not-found]  # the signal module would import enum
import _socket
import marshal
import os
import resource
import select
import struct
import sys
import time

from gpu_workers.sandboxes.inside import limits, operations
from gpu_workers.sandboxes.inside.server import Call, receive
from gpu_workers.sandboxes.inside.services import Services
from gpu_workers.sandboxes.inside.wire import REPLY, REQUEST_LENGTH

MIN_PYTHON = (3, 9)
FRAME = struct.Struct("<I16s")  # length, keyed hash; the same in channel.py
ENTRY = struct.Struct("<BII")  # kind, length of path, length of data; the same in archive.py
FILE, REFUSED = 0, 1
SCRATCH = "/tmp"  # noqa: S108
MAX_DEPTH, MAX_ENTRIES = 16, 10_000
FORGED, UNFIT = 65, 69  # exit codes; the same in endings.py
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
EPERM, ALLOW = 0x00050001, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF
PR_SET_SECCOMP, FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
BPF_STEP = 8  # bytes of one instruction
# kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo: the receiver is their first argument
SIGNAL_CALLS = {"x86_64": (62, 200, 234, 129, 297), "aarch64": (129, 130, 131, 138, 240)}
PIDFD_SEND_SIGNAL = 424


class Frames:
    """The stream to the worker, as the server's channel: authenticated frames over two descriptors."""

    def __init__(self, read_fd: int, write_fd: int, key: bytes) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.key = key
        self.buffer = b""
        self.num_read = self.num_written = 0

    def fileno(self) -> int:
        return self.read_fd

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)

    def _hash(self, direction: bytes, number: int, data: bytes) -> bytes:
        state = _blake2.blake2b(direction + struct.pack("<Q", number), key=self.key, digest_size=16)
        state.update(data)
        return state.digest()

    def recv(self, size: int) -> bytes:
        if not self.buffer:
            length, code = FRAME.unpack(self._take(FRAME.size))
            self.buffer = self._take(length)
            if self._hash(b">", self.num_read, self.buffer) != code:
                os._exit(FORGED)
            self.num_read += 1
        part, self.buffer = self.buffer[:size], self.buffer[size:]
        return part

    def _take(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self.read_fd, min(size, 1 << 20))
            if not part:
                os._exit(0)  # the worker is gone
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def sendall(self, data: bytes) -> None:
        data = bytes(data)
        frame = FRAME.pack(len(data), self._hash(b"<", self.num_written, data))
        self.num_written += 1
        for view in (memoryview(frame), memoryview(data)):
            while view:
                view = view[os.write(self.write_fd, view) :]


class ContainerCall(Call):
    """A call whose number of processes the server bounds too, and whose memory the container may have bounded."""

    oom_kills = 0

    def _over_limit(self) -> bool:
        if super()._over_limit():
            return True
        self.limit_hit = "processes" if self.usage.processes > self.request["processes"] else self.limit_hit
        return self.usage.processes > self.request["processes"]

    def _judge(self, code: int) -> None:
        kills = count_oom_kills()
        if kills > ContainerCall.oom_kills and self.limit_hit in ("", "processes"):
            self.limit_hit = "memory"
        ContainerCall.oom_kills = kills
        super()._judge(code)


def count_oom_kills() -> int:
    """Processes that the kernel has ended because the container was out of memory; 0 where it does not say."""
    for path in OOM_COUNTERS:
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):
            continue
    return 0


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


def send_snapshot(request: dict, out_write: int) -> int:
    """snapshot: every regular file of the workspace as it is now; the worker decides what it takes."""
    state = [request["limit"], MAX_ENTRIES]
    root = os.open(operations.WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
    _send_folder(root, "", 0, state, out_write)
    return 0


def _send_folder(folder: int, prefix: str, depth: int, state: list, out: int) -> None:
    for name in sorted(os.listdir(folder)):
        path = prefix + name
        state[1] -= 1
        if state[1] < 0:
            _send(out, REFUSED, path, "more than " + str(MAX_ENTRIES) + " entries in all")
            return
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            _send(out, REFUSED, path, "not a regular file (" + (error.strerror or "") + ")")
            continue
        mode = os.fstat(fd).st_mode & 0o170000
        size = os.fstat(fd).st_size
        if mode == 0o040000 and depth < MAX_DEPTH:
            _send_folder(fd, path + "/", depth + 1, state, out)
        elif mode != 0o100000:
            _send(out, REFUSED, path, "not a regular file or too deep")
        elif size > state[0]:
            _send(out, REFUSED, path, str(size) + " bytes exceed what is left")
        else:
            _send_file(out, fd, path, size)
            state[0] -= size
        os.close(fd)


def _send(out: int, kind: int, path: str, text: str) -> None:
    name, data = os.fsencode(path), text.encode()
    operations._write_all(out, ENTRY.pack(kind, len(name), len(data)) + name + data)


def _send_file(out: int, fd: int, path: str, size: int) -> None:
    name = os.fsencode(path)
    operations._write_all(out, ENTRY.pack(FILE, len(name), size) + name)
    while size:
        part = os.read(fd, min(size, 65536)) or b"\0" * min(size, 65536)
        operations._write_all(out, part)
        size -= len(part)


def describe() -> str:
    """What really holds in here, a line a fact, before anything of the policy has run."""
    facts = {"kernel": " ".join(os.uname()[i] for i in (2, 3)), "uid": str(os.getuid())}
    try:
        with open("/proc/self/status") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp"):
                    facts[name] = value.strip()
        with open("/proc/net/dev") as file:
            facts["interfaces"] = ",".join(line.split(":")[0].strip() for line in file if ":" in line)
    except OSError:
        pass
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if os.path.exists(path):
            with open(path) as file:
                facts["memory"] = file.read().strip()
    facts["writable"] = ",".join(p for p in ("/", "/etc", "/usr", "/usr/bin", "/var") if os.access(p, os.W_OK))
    facts["closed"] = ",".join(p for p in (operations.WORKSPACE, SCRATCH) if not os.access(p, os.W_OK))
    state = os.statvfs(operations.WORKSPACE)
    facts["workspace_bytes"] = str(state.f_frsize * state.f_blocks)
    return "\n".join(name + "=" + value for name, value in facts.items())


def refuse(problem: str) -> None:
    os.write(2, (problem + "\n").encode())
    os._exit(UNFIT)


def main(config: dict) -> None:
    if os.getpid() != 1:
        refuse("the sandbox server must be process 1 of its container: no --init, no shared process namespace")
    if sys.version_info < MIN_PYTHON:
        refuse("the image's python3 is older than " + ".".join(map(str, MIN_PYTHON)))
    ends = time.monotonic() + config["lifetime"]
    os.environ.clear()
    os.environ.update(config["environment"])
    os.umask(0o022)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_FSIZE, config["disk"]),
    ):
        resource.setrlimit(limit, (value, value))
    frames = Frames(os.dup(0), os.dup(1), config["key"])
    channel: _socket.socket = frames  # type: ignore[assignment]  # all of it that the server needs
    os.closerange(frames.write_fd + 1, 256)
    if not os.path.isdir(operations.WORKSPACE):
        refuse("there is no " + operations.WORKSPACE)
    facts = describe()
    facts += "\nfiltered=" + str(int(filter_calls(config["filter"], config["machine"])))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    limits.set_dumpable(0)
    adapt_to_kernel()
    operations.OPERATIONS["snapshot"] = send_snapshot
    ContainerCall.oom_kills = count_oom_kills()
    services = Services()
    channel.sendall(facts.encode())
    idle = select.poll()
    idle.register(channel, select.POLLIN)
    while True:
        if not frames.buffer and not idle.poll(max(0.0, ends - time.monotonic()) * 1000):
            os._exit(0)  # nobody has asked for anything in its whole lifetime
        (size,) = REQUEST_LENGTH.unpack(receive(channel, REQUEST_LENGTH.size))
        request = marshal.loads(receive(channel, size))
        if request["op"] == "serve":
            services.start(request, channel)
            channel.sendall(REPLY.pack(0, 0, 0, 0.0, 0, 0))
        else:
            ContainerCall(request, channel, services).run()
