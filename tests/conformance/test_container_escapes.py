"""Hostile programs in containers of a real engine; skipped where none runs SANDBOX_IMAGE (see test_sandboxes.py)."""

import asyncio
import os
import shutil

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import Network, NetworkAccess, NetworkMode, parse_endpoint
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits
from gpu_workers.sandboxes.backends import load_choice, make_backend
from gpu_workers.sandboxes.host import HostPolicy
from tests.escape.world import own_address

LIMITS = Limits(
    tool_timeout_seconds=8, memory_bytes=128 * 2**20, disk_bytes=8 * 2**20, num_processes=24, output_bytes=4000
)

# Every stream of process 1 that can be opened is written to: a forged answer, as far as the policy can make one.
FORGE = """
import os
try:
    names = os.listdir("/proc/1/fd")
except PermissionError:
    names = []
for name in names:
    try:
        fd = os.open("/proc/1/fd/" + name, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"\\0" * 24)
        print("wrote", name)
    except OSError:
        pass
"""
REACH = """
import socket
for family, address in (
    (socket.AF_INET, ("127.0.0.1", 22)), (socket.AF_INET, ("1.1.1.1", 443)), (socket.AF_INET6, ("::1", 22)),
    (socket.AF_UNIX, "/var/run/docker.sock"), (socket.AF_UNIX, "\\0/tmp/.X11-unix/X0"),
):
    try:
        socket.socket(family).connect(address)
        print("reached", address)
    except OSError:
        pass
"""
TOUCH = """
import os
for path in ("/x", "/etc/x", "/usr/x", "/usr/bin/python3", "/proc/sys/kernel/core_pattern", "/proc/1/mem",
             "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs", "/dev/mem", "/dev/kmsg"):
    try:
        os.close(os.open(path, os.O_WRONLY | (os.O_CREAT if path.endswith("/x") else 0)))
        print("opened", path)
    except OSError:
        pass
def device():
    os.mknod("/tmp/n", 0o60600, 0x801)
    os.close(os.open("/tmp/n", os.O_RDONLY))
for name, call in (("setuid", lambda: os.setuid(0)), ("chroot", lambda: os.chroot("/tmp")), ("device", device)):
    try:
        call()
        print("was allowed to", name)
    except OSError:
        pass
"""
NAMESPACES = """
import ctypes
libc = ctypes.CDLL(None)
for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000):
    if libc.unshare(flag) == 0 and flag != 0x10000000:
        print("unshared", hex(flag))
if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
    print("mounted")
if libc.ptrace(16, 1, 0, 0) == 0:
    print("attached to process 1")
for number in range(457, 500):
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0:
        print("call", number, "is there")
"""


SPREAD = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        x = b"x" * (40 * 2**20)
        break
time.sleep(6)
"""


BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def made_by(engine, contract, host):
    """A sandbox of a real engine; skips where there is none."""
    if not os.environ.get("SANDBOX_IMAGE") or not shutil.which(engine):
        pytest.skip(f"{engine}: no SANDBOX_IMAGE, or the program is not on PATH")
    return make_backend(load_choice({**os.environ, "SANDBOX_BACKEND": engine}), host).create(contract)


async def started(made):
    try:
        await made.start()
    except WorkerError as error:
        if "does not answer" not in str(error):
            raise
        pytest.skip(str(error))
    return made


@pytest.fixture(params=["docker", "podman"])
async def sandbox(request):
    made = await started(made_by(request.param, EnvironmentContract(limits=LIMITS), HostPolicy()))
    yield made
    await made.close()


@pytest.mark.parametrize("program", [REACH, TOUCH, NAMESPACES], ids=["network", "files", "namespaces"])
async def test_there_is_no_way_out(sandbox, program):
    done = await sandbox.run_python(program)
    assert (done.stdout, done.exit_code) == ("", 0), done.stderr


async def test_a_forged_answer_is_never_taken_for_the_servers(sandbox):
    try:
        done = await sandbox.run_python(FORGE)
    except WorkerError as error:
        pytest.fail(f"a way out of a bad score: {error}")
    if done.exit_code == 0:
        assert done.stdout == ""
        assert (await sandbox.exec(["echo", "mine"])).stdout == "mine\n"
        return
    assert "wrote to the worker's stream" in done.stderr
    with pytest.raises(WorkerError) as refused:
        await sandbox.exec(["true"])
    assert refused.value.boundary is Boundary.POLICY
    assert await sandbox.files() == {}


async def test_process_1_outlives_what_is_sent_to_it(sandbox):
    await sandbox.exec(["sh", "-c", "kill -9 1; kill -STOP 1; kill -9 -1"])
    assert (await sandbox.exec(["echo", "here"])).stdout == "here\n"


async def test_bombs_end_at_their_limit(sandbox):
    memory = await sandbox.run_python("x = []\nwhile True:\n    x.append(bytearray(2**20))")
    assert memory.exit_code != 0
    spread = await sandbox.run_python(SPREAD)
    assert spread.limit_hit == "memory" and spread.duration_seconds < 60
    disk = await sandbox.exec(["sh", "-c", "head -c 100000000 /dev/zero > big"])
    assert disk.exit_code != 0 and disk.limit_hit == "disk"
    assert (await sandbox.exec(["sh", "-c", "rm big; echo free"])).stdout == "free\n"


async def test_a_daemon_is_gone_after_its_call(sandbox):
    await sandbox.exec(["sh", "-c", "setsid sh -c 'sleep 1; echo late > late' >/dev/null 2>&1 & echo started"])
    await sandbox.exec(["sleep", "1.5"])
    assert await sandbox.files() == {}


async def test_a_fork_bomb_ends_with_its_call(sandbox):
    """gVisor keeps no limit of processes of its own: there the bomb may reach another limit, or end the container."""
    done = await sandbox.run_python(BOMB)
    assert done.exit_code != 0 and (done.limit_hit in ("processes", "memory") or done.timed_out)


# What the host's /proc tells, where the engine can be told to mask it: Docker cannot, gVisor has a /proc of its own.
TOLD = """
for name in ("cmdline", "config.gz", "kallsyms", "loadavg", "pressure/cpu", "sys/kernel/random/boot_id", "diskstats"):
    try:
        if open("/proc/" + name, "rb").read(1):
            print(name)
    except OSError:
        pass
"""


async def test_proc_tells_nothing_of_the_host(sandbox):
    if sandbox.record.backend != "podman" or os.environ.get("SANDBOX_RUNTIME") == "runsc":
        pytest.skip("only Podman with a runtime on the host's kernel takes masks")
    assert (await sandbox.run_python(TOLD)).stdout == ""


FETCH = """
import sys, urllib.request, socket
for url in ("http://fixture.test:{port}/", "http://fixture.test:1/", "http://other.invalid/"):
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode())
    except OSError as error:
        print(error)
try:
    socket.create_connection(("{address}", {port}), 1)
    print("direct")
except OSError:
    print("no direct way")
"""


@pytest.mark.parametrize("engine", ["docker", "podman"])
async def test_the_allow_list_is_the_only_way_out(engine, monkeypatch):
    async def greet(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "0.0.0.0", 0) as site:
        port = site.sockets[0].getsockname()[1]
        here = parse_endpoint(f"fixture.test:{port}")
        host = HostPolicy(
            network=NetworkMode.ALLOWLIST, network_hosts=frozenset({here}), private_hosts=frozenset({here})
        )
        access = NetworkAccess(mode=NetworkMode.ALLOWLIST, allow=[str(here)])
        contract = EnvironmentContract(network=Network(agent=access), limits=LIMITS)
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo
        monkeypatch.setattr(
            loop, "getaddrinfo", lambda name, *a, **k: real("127.0.0.1" if name == "fixture.test" else name, *a, **k)
        )
        made = await started(made_by(engine, contract, host))
        try:
            fetch = FETCH.format(port=port, address=own_address() or "127.0.0.1")
            for done in (await made.run_python(fetch), await made.exec(["python3", "-c", fetch])):
                refused = "HTTP Error 403: Forbidden"
                assert done.stdout.splitlines() == ["hello", refused, refused, "no direct way"], done
        finally:
            await made.close()
    assert (made.record.network.num_allowed, made.record.network.num_refused) == (2, 4)
    assert made.record.applied["network"].endswith("interfaces seen inside: lo")
