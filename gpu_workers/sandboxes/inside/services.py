"""Programs that live as long as the sandbox, frozen between their calls, and the end of every process but theirs.

A service speaks over sockets, not pipes: a process of the policy cannot open them through /proc. Which processes belong
to it is settled once, at the end of its first call. What it starts later is killed like everything else.
"""

# Neither pathlib nor contextlib: they would double the start-up time.
# ruff: noqa: PTH208, SIM105
import _socket
import os
import time

from gpu_workers.sandboxes.inside.limits import SIGKILL, kill_all
from gpu_workers.sandboxes.inside.operations import be_service

SIGCONT, SIGSTOP = 18, 19  # the signal module would import enum
SECONDS_TO_END = 2.0  # for all others to be gone; then the services go too
PAUSE_SECONDS = 0.0005
GONE = b"ZXx"


class Service:
    """One program: its process, our ends of its streams, the processes that may live (number -> start time)."""

    def __init__(self, pid: int, talk: _socket.socket, errors: _socket.socket) -> None:
        self.pid = pid
        self.talk = talk
        self.errors = errors
        self.members = {pid: _stat(pid)[1]}
        self.settled = False


class Services:
    """All services of this sandbox by name."""

    def __init__(self) -> None:
        self.by_name: dict = {}

    def start(self, request: dict, channel: _socket.socket) -> None:
        """Start a program, frozen at once; the first call to it lets it run."""
        talk, its_talk = _socket.socketpair()
        errors, its_errors = _socket.socketpair()
        pid = os.fork()
        if pid == 0:
            channel.close()
            be_service(request, os.dup(its_talk.fileno()), os.dup(its_errors.fileno()))
        its_talk.close()
        its_errors.close()
        errors.setblocking(False)
        _signal(pid, SIGSTOP)
        self.by_name[request["service"]] = Service(pid, talk, errors)

    def keep_only(self, service: Service | None) -> None:
        """In a forked child: close the streams of every service but one."""
        for other in self.by_name.values():
            if other is not service:
                other.talk.close()
                other.errors.close()

    def thaw(self, service: Service) -> None:
        for pid, started in service.members.items():
            if _stat(pid)[1] == started:
                _signal(pid, SIGCONT)

    def settle(self, service: Service) -> None:
        """At the end of its first call: the processes it has now are the ones that may live."""
        if service.settled:
            return
        service.settled = True
        parents = {pid: _stat(pid) for pid in _pids()}
        family = {service.pid}
        grown = True
        while grown:
            more = {pid for pid, (parent, _, _) in parents.items() if parent in family} - family
            family |= more
            grown = bool(more)
        service.members = {pid: parents[pid][1] for pid in family if pid in parents}

    def drop(self, service: Service) -> None:
        """Its processes are killed with the next clean-up; later calls find it ended."""
        service.members = {}

    def end_others(self) -> None:
        """Kill and reap every process but this one and those of services, which are left frozen."""
        keep: dict = {}
        for service in self.by_name.values():
            keep.update(service.members)
        if not keep:
            kill_all()
            return
        deadline = time.monotonic() + SECONDS_TO_END
        while time.monotonic() < deadline:
            _signal(-1, SIGSTOP)  # all at once, also what is being forked: nothing can run away from what follows
            others = [pid for pid in _pids() if not _is_kept(pid, keep)]
            for pid in others:
                _signal(pid, SIGKILL)
            self._reap()
            if not others:
                _signal(-1, SIGSTOP)  # again: one that was dying may have woken a service
                return
            time.sleep(PAUSE_SECONDS)
        for service in self.by_name.values():
            self.drop(service)
        kill_all()

    @staticmethod
    def _reap() -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _pids() -> list:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _stat(pid: int) -> tuple:
    """Parent, start time and state of a process; zeros when it is gone."""
    try:
        fd = os.open("/proc/" + str(pid) + "/stat", os.O_RDONLY)
        try:
            fields = os.read(fd, 4096).rsplit(b")", 1)[1].split()
        finally:
            os.close(fd)
        return int(fields[1]), int(fields[19]), fields[0]
    except (OSError, IndexError):
        return 0, 0, b"X"


def _is_kept(pid: int, keep: dict) -> bool:
    """Whether a process belongs to a service, or is only the remains of one that its frozen parent must reap."""
    _, started, state = _stat(pid)
    return state in GONE or keep.get(pid) == started
