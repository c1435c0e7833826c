"""Process 1 of a sandbox: runs what the worker asks, one call at a time, under limits.

As process 1 it cannot be killed from inside: the kernel drops every signal of its namespace that it has no handler
for, so it has none. It makes itself undumpable so that its memory cannot be written either. After every call all other
processes are killed, but for those of services, which are frozen: nothing but files and they survive from one call to
the next.
"""

# Requests, which are marshalled, come from the worker alone.
# ruff: noqa: S302
import _signal  # type: ignore[import-not-found]  # the signal module would import enum
import _socket
import marshal
import os
import select
import struct
import sys
import time
from _collections_abc import Callable

from gpu_workers.sandboxes.inside.limits import (
    MAX_SOCKETS,
    SIGKILL,
    SIGXCPU,
    SIGXFSZ,
    Usage,
    disk_full,
    limit_self,
    set_dumpable,
    too_many_files,
)
from gpu_workers.sandboxes.inside.operations import WORKSPACE, be_child
from gpu_workers.sandboxes.inside.services import Services
from gpu_workers.sandboxes.inside.wire import HELLO, LIMITS, REPLY, REQUEST_LENGTH, TIMED_OUT, TRUNCATED

TICK_SECONDS = 0.05
IDLE_MILLISECONDS = 20
DISCARD_FACTOR = 256  # output beyond the limit is thrown away; beyond this many times the limit the call is killed


def receive(channel: _socket.socket, size: int) -> bytes:
    """Exactly `size` bytes, or the end of this sandbox when the worker is gone."""
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Call:
    """One running request: its pipes, its limits, what it has said so far."""

    def __init__(self, request: dict, channel: _socket.socket, services: Services) -> None:
        self.request = request
        self.channel = channel
        self.services = services
        self.service = services.by_name.get(request.get("service"))
        self.limit = request["output_limit"]
        self.flags = 0
        self.limit_hit = ""
        self.discarded = 0
        self.kept: dict = {}  # descriptor of stdout, of stderr, of a service's stderr -> what was read
        self.usage = Usage()

    def run(self) -> None:
        started = time.monotonic()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self.request["guarded"] = bool(self.services.by_name) and self.service is None
        if self.services.by_name:
            self.usage.rebase()
        if self.service:
            self.request["arguments"]["descriptor"] = self.service.talk.fileno()
            self.services.thaw(self.service)
        pid = os.fork()
        if pid == 0:
            self.channel.close()
            for fd in (out_read, err_read):  # they share this process's O_NONBLOCK: cleared, it would wait for ever
                os.close(fd)
            self.services.keep_only(self.service)
            be_child(self.request, out_write, err_write)
        os.close(out_write)
        os.close(err_write)
        pidfd = os.pidfd_open(pid)
        self.kept = {out_read: bytearray(), err_read: bytearray()}
        for fd in self.kept:
            os.set_blocking(fd, False)
        if self.service:
            self.kept[self.service.errors.fileno()] = self.kept[err_read]
        self._watch(pidfd, started + self.request["timeout"])
        os.kill(pid, SIGKILL)  # a zombie at most: the number cannot have been reused
        status = os.waitpid(pid, 0)[1]
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if self.service:
            self.services.settle(self.service)
        if self.service and self.limit_hit not in ("", "processes"):
            self.services.drop(self.service)
        self.services.end_others()
        for fd in self.kept:
            self._read(fd)
        for fd in (pidfd, out_read, err_read):
            os.close(fd)
        self._judge(code)
        stdout, stderr = self.kept[out_read], self.kept[err_read]
        seconds = time.monotonic() - started
        limit = LIMITS.index(self.limit_hit)
        header = REPLY.pack(code, self.flags, limit, seconds, len(stdout), len(stderr))
        self.channel.sendall(header + stdout + stderr)

    def _watch(self, pidfd: int, deadline: float) -> None:
        """Until the child ends, its time is over, or a limit is passed."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(self.channel, select.POLLRDHUP)
        self._watch_more(poll)
        for fd in self.kept:
            poll.register(fd, select.POLLIN)
        next_scan = time.monotonic() + TICK_SECONDS
        while True:
            now = time.monotonic()
            if now >= deadline:
                self.flags |= TIMED_OUT
                return
            if now >= next_scan:
                if self._over_limit():
                    return
                next_scan = time.monotonic() + TICK_SECONDS
            wait = max(0.0, min(deadline, next_scan) - now)
            for fd, event in poll.poll(wait * 1000 + 1):
                if fd == pidfd:
                    return
                if fd not in self.kept:
                    self._happened(fd, event)
                elif not self._read(fd):
                    poll.unregister(fd)
            if self.discarded > self.limit * DISCARD_FACTOR:
                self.limit_hit = "output"
                return

    def _watch_more(self, poll: select.poll) -> None:
        """What else a kind of sandbox has to look for during a call."""

    def _happened(self, fd: int, event: int) -> None:
        """Something else than output: the worker is gone."""
        os._exit(0)

    def _over_limit(self) -> bool:
        """Whether the call must be stopped; a full table of processes alone only makes the kernel refuse more."""
        self.usage.scan()
        most = self.request["memory"]
        if self.usage.memory > most or self.usage.shared > most or self.usage.sockets > MAX_SOCKETS:
            self.limit_hit = "memory"
        elif self.usage.cpu > self.request["cpu"]:
            self.limit_hit = "cpu"
        elif too_many_files():
            self.limit_hit = "disk"
        elif self.usage.processes >= self.request["processes"] - 3:
            self.limit_hit = "processes"
            return False
        else:
            return False
        return True

    def _read(self, fd: int) -> bool:
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

    def _judge(self, code: int) -> None:
        """Name the limit behind a signal or a failure that the watch has not seen."""
        if self.limit_hit in ("", "processes"):
            if code == -SIGXCPU:
                self.limit_hit = "cpu"
            elif code == -SIGXFSZ or (code != 0 and disk_full()):
                self.limit_hit = "disk"


def open_way_out(port: int) -> int:
    """Descriptor of a socket that listens on this namespace's own localhost; the worker alone accepts on it."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener.detach()


def close_streams() -> None:
    """Leave this process nothing but /dev/null in the place of its standard streams."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def answer(channel: _socket.socket, wait: "Callable[[], object]", call: "type[Call]") -> None:
    """Serve one request after another, for ever; `wait` returns when one has come."""
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Python's own handler would let a policy interrupt this process
    services = Services()
    while True:
        wait()
        (size,) = REQUEST_LENGTH.unpack(receive(channel, REQUEST_LENGTH.size))
        request = marshal.loads(receive(channel, size))
        if request["op"] == "serve":
            services.start(request, channel)
            channel.sendall(REPLY.pack(0, 0, 0, 0.0, 0, 0))
        else:
            call(request, channel, services).run()


def main() -> None:
    if os.getpid() != 1:
        sys.exit("the sandbox server must be process 1 of its own namespace")
    limit_self(int(sys.argv[2]), int(sys.argv[1]))
    channel = _socket.socket(fileno=os.dup(0))
    os.closerange(channel.fileno() + 1, 256)
    close_streams()
    workspace = os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
    handed = [workspace]
    if len(sys.argv) > 3 and int(sys.argv[3]):
        handed.append(open_way_out(int(sys.argv[3])))
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(str(len(handed)) + "i", *handed))
    channel.sendmsg([HELLO], [rights])  # with it the kernel tells the worker this process's number
    for fd in handed:
        os.close(fd)
    set_dumpable(0)
    idle = select.poll()
    idle.register(channel, select.POLLIN)

    def wait() -> None:
        if "json" not in sys.modules and not idle.poll(IDLE_MILLISECONDS):
            import json  # noqa: F401  while the policy thinks: there already when a tool wants it

    answer(channel, wait, Call)
