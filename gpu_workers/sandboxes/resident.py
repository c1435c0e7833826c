"""Process 1 of a sandbox: runs what the host asks, one call at a time, under limits; only the standard library.

Runs inside the namespaces on whatever Python 3.9+ the sandbox has, so it imports nothing of this project. The host
speaks over the socket on fd 0: requests are marshalled dicts behind a 4-byte length, replies a fixed header and two
byte strings. As process 1 it cannot be killed from inside; it makes itself undumpable so that its memory cannot be
written either. After every call all other processes are killed: nothing survives from one call to the next.
"""

import _signal as signal
import _socket
import marshal
import os
import resource
import select
import struct
import sys
import time

REPLY = struct.Struct("<iBBdII")  # exit code, flags, limit, seconds, length of stdout, length of stderr
TIMED_OUT, TRUNCATED = 1, 2
LIMITS = ("", "memory", "cpu", "processes", "disk", "output")
PR_SET_DUMPABLE = 4
TICK_SECONDS = 0.05
DISCARD_FACTOR = 256  # output beyond the limit is thrown away; beyond this many times the limit the call is killed
WORKSPACE = "/workspace"
IDLE_MILLISECONDS = 20
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def find_prctl():
    """Address of libc's prctl by the bare extension module: all of ctypes would take as long as Python's own start."""
    try:
        import _ctypes

        return _ctypes.call_function, _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")
    except (ImportError, OSError, AttributeError):
        return None, 0


def set_dumpable(value):
    """prctl(PR_SET_DUMPABLE); where it cannot be called the sandbox still holds, its server is only less guarded."""
    call, address = PRCTL
    if call is not None:
        call(address, (PR_SET_DUMPABLE, value, 0, 0, 0))


def receive(channel, size):
    """Exactly `size` bytes, or the end of this sandbox when the host is gone."""
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send(channel, exit_code, flags, limit, seconds, stdout, stderr):
    header = REPLY.pack(exit_code, flags, LIMITS.index(limit), seconds, len(stdout), len(stderr))
    channel.sendall(header + stdout + stderr)


class Usage:
    """Memory, CPU time and number of processes of everything but process 1."""

    def __init__(self):
        self.reaped = _reaped_cpu()
        self.memory = self.cpu = self.processes = 0

    def scan(self):
        self.memory = self.processes = 0
        ticks = 0
        for name in os.listdir("/proc"):
            if not name.isdigit() or name == "1":
                continue
            try:
                fields = _slurp("/proc/" + name + "/stat").rsplit(b")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
                self.memory += _memory(name)
                self.processes += 1
            except (OSError, IndexError, ValueError):
                continue  # ended meanwhile
        self.cpu = _reaped_cpu() - self.reaped + ticks / CLOCK_TICKS


def _reaped_cpu():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _slurp(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def _memory(name):
    """Proportional set size in bytes; resident size where a process hides its map."""
    try:
        for line in _slurp("/proc/" + name + "/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        return int(_slurp("/proc/" + name + "/statm").split()[1]) * PAGE
    return 0


def kill_all():
    """Kill and reap every process of the namespace but this one."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


class Call:
    """One running request: its pipes, its limits, what it has said so far."""

    def __init__(self, request, channel):
        self.request = request
        self.channel = channel
        self.limit = request["output_limit"]
        self.flags = 0
        self.limit_hit = ""
        self.discarded = 0
        self.kept = {}
        self.usage = Usage()

    def run(self):
        started = time.monotonic()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            be_child(self.request, self.channel, out_write, err_write)
        os.close(out_write)
        os.close(err_write)
        pidfd = os.pidfd_open(pid)
        self.kept = {out_read: bytearray(), err_read: bytearray()}
        for fd in self.kept:
            os.set_blocking(fd, False)
        self._watch(pidfd, started + self.request["timeout"])
        os.kill(pid, signal.SIGKILL)  # still a zombie at most: the number cannot have been reused
        code = status_to_code(os.waitpid(pid, 0)[1])
        kill_all()
        for fd in self.kept:
            self._read(fd)
            os.close(fd)
        os.close(pidfd)
        self._judge(code)
        stdout, stderr = (bytes(kept) for kept in self.kept.values())
        send(self.channel, code, self.flags, self.limit_hit, time.monotonic() - started, stdout, stderr)

    def _watch(self, pidfd, deadline):
        """Until the child ends, its time is over, or a limit is passed."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(self.channel, select.POLLRDHUP)
        for fd in self.kept:
            poll.register(fd, select.POLLIN)
        next_scan = time.monotonic() + TICK_SECONDS
        while True:
            now = time.monotonic()
            if now >= deadline:
                self.flags |= TIMED_OUT
                return
            if now >= next_scan:
                next_scan = now + TICK_SECONDS
                if self._over_limit():
                    return
            for fd, _ in poll.poll(max(0.0, min(deadline, next_scan) - now) * 1000 + 1):
                if fd == pidfd:
                    return
                if fd == self.channel.fileno():
                    os._exit(0)  # the host is gone
                if not self._read(fd):
                    poll.unregister(fd)
            if self.discarded > self.limit * DISCARD_FACTOR:
                self.limit_hit = "output"
                return

    def _over_limit(self):
        self.usage.scan()
        if self.usage.memory > self.request["memory"]:
            self.limit_hit = "memory"
        elif self.usage.cpu > self.request["cpu"]:
            self.limit_hit = "cpu"
        elif self.usage.processes >= self.request["processes"] - 2:
            self.limit_hit = "processes"
            return False  # more are refused by the kernel; the call may go on
        return self.limit_hit in ("memory", "cpu")

    def _read(self, fd):
        """Take what is there; False at the end of the stream."""
        kept = self.kept[fd]
        while self.discarded <= self.limit * DISCARD_FACTOR:
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            room = self.limit - len(kept)
            kept += data[:room]
            if len(data) > room:
                self.discarded += len(data) - room
                self.flags |= TRUNCATED
        return True

    def _judge(self, code):
        if self.limit_hit in ("", "processes"):
            if code == -signal.SIGXCPU:
                self.limit_hit = "cpu"
            elif code == -signal.SIGXFSZ or os.statvfs(WORKSPACE).f_bavail == 0:
                self.limit_hit = "disk"


def status_to_code(status):
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def be_child(request, channel, out_write, err_write):
    """The forked half of a call; never returns."""
    code = 70
    try:
        os.setsid()
        channel.close()
        memory, cpu = request["memory"], request["cpu"]
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        stdin = os.memfd_create("stdin")
        os.write(stdin, request.get("stdin", b""))
        os.lseek(stdin, 0, os.SEEK_SET)
        os.dup2(stdin, 0)
        os.dup2(out_write if request["op"] in ("exec", "run") else err_write, 1)
        os.dup2(err_write, 2)
        os.chdir(WORKSPACE)
        if request["op"] != "call":  # a tool's or verifier's own memory stays closed to what it starts
            set_dumpable(1)
        code = OPERATIONS[request["op"]](request, out_write)
    except OSError as error:
        os.write(2, (request["op"] + ": " + str(error) + "\n").encode())
        code = 74
    finally:
        os._exit(code)


def run_program(request, _):
    """exec: replace the child by a program."""
    argv = request["argv"]
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        os.write(2, (argv[0] + ": not found\n").encode())
        return 127
    except PermissionError:
        os.write(2, (argv[0] + ": permission denied\n").encode())
        return 126


def run_script(request, _):
    """run: Python code as __main__, with the workspace importable."""
    sys.path.insert(0, WORKSPACE)
    return in_module("__main__", request["source"], None)


def run_function(request, out_write):
    """call: the module's function with the arguments; its text goes to the private pipe, not to stdout."""

    def finish(module):
        result = getattr(module, request["function"])(request["arguments"])
        data = (result if isinstance(result, str) else repr(result)).encode("utf-8", "replace")
        while data:
            data = data[os.write(out_write, data) :]

    return in_module("tool", request["source"], finish)


def in_module(name, source, then):
    """Execute `source` as module `name`; the exit code Python itself would give."""
    module = type(sys)(name)
    sys.modules[name] = module
    code = 0
    try:
        exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
        if then is not None:
            then(module)
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            os.write(2, (stop.code + "\n").encode())
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code & 255


def write_files(request, _):
    for path, data in request["files"].items():
        target = os.path.join(WORKSPACE, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        if not os.path.isfile("/proc/self/fd/%d" % fd):
            raise OSError(path + " is not a regular file")
        os.ftruncate(fd, 0)
        while data:
            data = data[os.write(fd, data) :]
        os.close(fd)
    return 0


def read_file(request, out_write):
    fd = os.open(os.path.join(WORKSPACE, request["path"]), os.O_RDONLY | os.O_NONBLOCK)
    if not os.path.isfile("/proc/self/fd/%d" % fd):
        raise OSError(request["path"] + " is not a regular file")
    left = request["output_limit"] + 1  # one more tells the host that there is more
    while left > 0:
        data = os.read(fd, min(left, 65536))
        if not data:
            break
        left -= len(data)
        while data:
            data = data[os.write(out_write, data) :]
    return 0


OPERATIONS = {
    "exec": run_program,
    "run": run_script,
    "call": run_function,
    "write": write_files,
    "read": read_file,
}


def limit_self(processes, disk):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))


PRCTL = find_prctl()


def main():
    if os.getpid() != 1:
        sys.exit("the sandbox server must be process 1 of its own namespace")
    processes, disk = int(sys.argv[1]), int(sys.argv[2])
    limit_self(processes, disk)
    channel = _socket.socket(fileno=os.dup(0))
    os.closerange(channel.fileno() + 1, 256)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    workspace = os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", workspace))
    channel.sendmsg([b"R"], [rights])  # with it the kernel tells the host this process's number
    os.close(workspace)
    set_dumpable(0)
    idle = select.poll()
    idle.register(channel, select.POLLIN)
    if not idle.poll(IDLE_MILLISECONDS):
        import json  # noqa: F401  while the policy thinks: there already when a tool wants it
    while True:
        (size,) = struct.unpack("<I", receive(channel, 4))
        Call(marshal.loads(receive(channel, size)), channel).run()


if __name__ == "__main__":
    main()
