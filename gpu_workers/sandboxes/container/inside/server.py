"""Process 1 of a container: the resident server over two pipes, under filters of its own, with a way out if granted."""

# Neither pathlib nor contextlib: they are slow to import.
# ruff: noqa: PTH110, PTH112, PTH118, PTH123
import os
import select
import sys
import time

from gpu_workers.sandboxes.container.inside.files import send_snapshot
from gpu_workers.sandboxes.container.inside.frames import Frames
from gpu_workers.sandboxes.container.inside.kernel import SCRATCH, adapt_to_kernel, filter_calls
from gpu_workers.sandboxes.container.inside.relay import Relay
from gpu_workers.sandboxes.container.inside.wire import FORGED, KEY_BYTES, NETWORK, UNFIT
from gpu_workers.sandboxes.inside import limits, operations
from gpu_workers.sandboxes.inside.server import Call, answer, close_streams

MIN_PYTHON = (3, 9)
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class ContainerCall(Call):
    """A call whose number of processes the server bounds too, and whose memory the container may have bounded.

    Where network is granted, its connections are carried while it runs.
    """

    oom_kills = 0
    relay: "Relay | None" = None

    def run(self) -> None:
        super().run()
        if self.relay:
            self.relay.end()

    def _watch_more(self, poll: select.poll) -> None:
        if self.relay:
            self.relay.watch(poll)

    def _happened(self, fd: int, event: int) -> None:
        if self.relay and fd != self.channel.fileno():
            self.relay.happened(fd, event)
        elif self.relay and event & select.POLLIN:
            kind, data = self.relay.frames.take()
            if kind != NETWORK:
                os._exit(FORGED)
            self.relay.heard(data)
        else:
            os._exit(0)  # the worker is gone

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


def describe(links: dict) -> str:
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
    wanted = {path: os.path.join(operations.WORKSPACE, target) for path, target in links.items()}
    facts["missing_links"] = ",".join(path for path in wanted if os.path.realpath(path) != wanted[path])
    return "\n".join(name + "=" + value for name, value in facts.items())


def read_key() -> bytearray:
    """The key of all frames, which follows the modules: read to the one place where a forked child can wipe it."""
    key = bytearray(KEY_BYTES)
    view = memoryview(key)
    while view:
        size = os.readv(0, [view])
        if not size:
            os._exit(0)
        view = view[size:]
    return key


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
    limits.limit_self(config["disk"])  # processes are counted by user, other containers' too: the server counts its own
    frames = Frames(os.dup(0), os.dup(1), read_key())
    os.closerange(frames.write_fd + 1, 256)
    if not os.path.isdir(operations.WORKSPACE):
        refuse("there is no " + operations.WORKSPACE)
    facts = describe(config["links"])
    facts += "\nfiltered=" + str(int(filter_calls(config["filter"], config["machine"])))
    close_streams()
    limits.set_dumpable(0)
    adapt_to_kernel()
    operations.OPERATIONS["snapshot"] = send_snapshot
    ContainerCall.oom_kills = count_oom_kills()
    if config["way_out"]:
        ContainerCall.relay = Relay(frames, config["way_out"])
        frames.beside.append(ContainerCall.relay)
    frames.sendall(facts.encode())
    idle = select.poll()
    idle.register(frames, select.POLLIN)

    def wait() -> None:
        while not frames.buffer:
            if not idle.poll(max(0.0, ends - time.monotonic()) * 1000):
                os._exit(0)  # nobody has asked for anything in its whole lifetime
            frames.fill()

    answer(frames, wait, ContainerCall)  # type: ignore[arg-type]  # all of a socket that it needs
