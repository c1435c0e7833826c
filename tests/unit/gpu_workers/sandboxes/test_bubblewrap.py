"""Escapes, bombs and leftovers, each as a real program in a real sandbox."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits
from gpu_workers.sandboxes import bubblewrap, channel, command, masks
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend

ROOT = Path(__file__).resolve().parents[4]
LIMITS = Limits(tool_timeout_seconds=5, memory_bytes=128 * 2**20, disk_bytes=2 * 2**20, cpu_seconds=1, num_processes=24)


@pytest.fixture
async def sandbox(backend):
    made = backend.create(EnvironmentContract(limits=LIMITS))
    await made.start()
    yield made
    await made.close()


async def python(sandbox, code):
    """Run code in a fresh interpreter, as a policy's program would."""
    return await sandbox.exec(["/usr/bin/env", "python3", "-c", code])


async def test_host_files_cannot_be_seen(sandbox, tmp_path):
    secret = tmp_path / "answers.txt"
    secret.write_text("42")
    secret.chmod(0o644)
    for path in (secret, "/etc/shadow", "/etc/passwd", "/root", "/home", f"/proc/1/root{secret}", ROOT):
        done = await sandbox.exec(["ls", "-l", str(path)])
        assert done.exit_code != 0, path


async def test_installed_packages_are_masked(sandbox):
    done = await sandbox.exec(["sh", "-c", "ls -A " + " ".join(masks.masked_folders())])
    assert all(not line or line.endswith(":") for line in done.stdout.splitlines()), done.stdout


async def test_of_proc_nothing_is_left_but_processes_and_what_programs_need(sandbox):
    code = """
import os
left = {n for n in os.listdir("/proc") if not n.isdigit()}
told = set()
for name in left:
    path = "/proc/" + name
    try:
        told |= {name} if (os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)) else set()
    except OSError:
        pass
print(*sorted(told))
"""
    told = set((await python(sandbox, code)).stdout.split())
    assert told <= masks.KEPT_IN_PROC | {"self", "thread-self", "net", "mounts"}
    assert told >= {"cpuinfo", "meminfo", "stat", "uptime", "self", "net"}


async def test_a_mask_whose_place_is_gone_costs_one_start(backend, monkeypatch):
    """As when a module of the kernel is unloaded while a worker runs."""
    masks.masked_in_proc.cache_clear()
    monkeypatch.setattr(Path, "iterdir", lambda _, real=Path.iterdir: [*real(Path("/proc")), Gone("/proc/gone")])
    masks.masked_in_proc()
    monkeypatch.undo()
    with pytest.raises(WorkerError, match="/proc/gone"):
        await backend.probe()
    await backend.probe()


class Gone(type(Path())):
    def stat(self, **_):
        return Path("/proc/cmdline").stat()


async def test_process_one_cannot_be_read_written_or_killed(sandbox):
    done = await sandbox.exec(
        ["sh", "-c", "kill -9 1; cat /proc/1/mem; cat /proc/1/environ; ls /proc/1/fd /proc/1/root/; : > /proc/1/mem"]
    )
    assert done.exit_code != 0
    assert done.stderr.count("denied") >= 4, done.stderr
    assert (await sandbox.exec(["echo", "alive"])).stdout == "alive\n"


EVERY_SIGNAL = """
import fcntl, os, signal, time
ours, theirs = os.pipe()
fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
fcntl.fcntl(ours, fcntl.F_SETOWN, 1)
for number in sorted(signal.valid_signals()):
    os.kill(1, number)
    fcntl.fcntl(ours, 10, number)  # F_SETSIG: the kernel sends it when the pipe can be read
    os.write(theirs, b"x")
time.sleep(0.1)
"""


async def test_process_one_outlives_every_signal_and_programs_still_hear_theirs(sandbox):
    assert (await python(sandbox, EVERY_SIGNAL)).exit_code == 0
    assert (await sandbox.exec(["sh", "-c", "kill -INT 1; sleep 0.2; echo alive"])).stdout == "alive\n"
    done = await sandbox.exec(["sh", "-c", "sleep 3 & kill -INT $$; echo deaf"])
    assert (done.exit_code, done.stdout) == (-signal.SIGINT, "")
    heard = "import os\ntry:\n os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt:\n print('heard')"
    assert (await sandbox.run_python(heard)).stdout == "heard\n"


async def test_a_call_that_ends_its_sandbox_is_to_blame_for_it_and_one_that_is_killed_is_not(backend, sandbox):
    await sandbox.write("a", b"before")
    done = await sandbox.run_python("def f(_): return 1", function="f", service=[])  # process 1 trips over it
    assert (done.exit_code, "ended its sandbox" in done.stderr) == (-9, True)
    with pytest.raises(WorkerError, match="ended its sandbox") as refused:
        await sandbox.exec(["true"])
    assert refused.value.boundary is Boundary.POLICY
    assert await sandbox.files() == {"a": b"before"}
    killed = backend.create(EnvironmentContract(limits=LIMITS))
    await killed.start()
    call = asyncio.create_task(killed.exec(["sleep", "5"]))
    await asyncio.sleep(0.2)
    os.kill(killed._channel.server_pid, signal.SIGKILL)
    with pytest.raises(WorkerError) as refused:
        await call
    assert refused.value.boundary is Boundary.INFRASTRUCTURE
    await killed.close()


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/bin/x"])
async def test_nothing_outside_the_workspace_can_be_written(sandbox, path):
    done = await sandbox.exec(["sh", "-c", f"echo '|/bin/true' > {path}"])
    assert done.exit_code != 0
    assert not Path("/x").exists()


async def test_network_and_the_hosts_sockets_are_out_of_reach(sandbox):
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        abstract.bind("\0ratchet-test-abstract")
        abstract.listen()
        probes = {
            "localhost": f"socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}), 1)",
            "abstract": "socket.socket(socket.AF_UNIX).connect('\\0ratchet-test-abstract')",
            "internet": "socket.create_connection(('1.1.1.1', 53), 1)",
            "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "vsock": "socket.socket(40, socket.SOCK_STREAM)",
        }
        for name, expression in probes.items():
            done = await python(sandbox, f"import socket\n{expression}\nprint('reached')")
            assert "reached" not in done.stdout, name
            assert "Error" in done.stderr, (name, done.stderr)


async def test_no_namespaces_mounts_or_tracing_inside(sandbox):
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == -1, "user namespace"
assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1, "mount"
assert libc.ptrace(16, 1, 0, 0) == -1, "ptrace"
assert libc.setns(0, 0) == -1, "setns"
assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == 38, "clone3"
assert libc.syscall(425, 8, 0) == -1 and ctypes.get_errno() == 1, "io_uring"
assert libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) == -1, "clone with a new user namespace"
status = open("/proc/self/status").read()
assert "CapEff:\\t0000000000000000" in status and "NoNewPrivs:\\t1" in status, status
print("held")
"""
    done = await python(sandbox, code)
    assert done.stdout == "held\n", done.stderr


async def test_calls_that_nobody_has_looked_at_are_not_there(sandbox):
    """Also what this host's kernel has: statmount, mseal, open_tree_attr, and the x32 numbers of every call."""
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
numbers = [*range(457, 520), 1000, 2**30 - 1, 2**30, 2**30 + 39, 2**31 - 1]
print({(libc.syscall(ctypes.c_long(n), 0, 0, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()]) for n in numbers})
print(libc.syscall(456, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()] in ("ENOSYS", "EINVAL"))
"""
    assert (await python(sandbox, code)).stdout == "{(-1, 'ENOSYS')}\n-1 True\n"


async def test_the_filter_leaves_ordinary_programs_alone(sandbox):
    code = "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))"
    done = await python(sandbox, f"if __name__ == '__main__':\n exec({code!r})")
    assert done.stdout == "[1, 2]\n", done.stderr


async def test_a_fork_bomb_is_contained(sandbox):
    started = time.monotonic()
    done = await python(sandbox, "import os\nwhile True:\n try: os.fork()\n except OSError: pass")
    assert time.monotonic() - started < 60
    assert done.exit_code != 0
    assert done.timed_out or done.limit_hit
    assert (await sandbox.exec(["echo", "after"])).stdout == "after\n"
    assert set(sandbox.record.limits_hit) & {"cpu", "processes"}


async def test_memory_over_the_whole_tree_is_bounded(sandbox):
    code = "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (40 * 2**20)\ntime.sleep(4)"
    done = await python(sandbox, code)
    assert done.limit_hit == "memory"
    assert not done.timed_out
    assert sandbox.record.limits_hit == ["memory"]


async def test_memory_of_one_process_is_bounded(sandbox):
    done = await python(sandbox, "x = b'x' * (200 * 2**20)")
    assert "MemoryError" in done.stderr


async def test_cpu_time_is_bounded(sandbox):
    done = await python(sandbox, "while True: pass")
    assert done.limit_hit == "cpu"


async def test_the_disk_is_bounded(sandbox):
    done = await sandbox.exec(["sh", "-c", "head -c 1500000 /dev/zero > a && head -c 1500000 /dev/zero > b"])
    assert done.exit_code != 0
    assert done.limit_hit == "disk"
    await sandbox.exec(["sh", "-c", "rm -f b"])
    assert (await sandbox.files()).keys() == {"a"}


async def test_empty_files_without_end_are_stopped(sandbox):
    code = "import os\ni=0\nwhile True:\n i+=1\n try: os.close(os.open(f'/tmp/{i}', os.O_CREAT))\n except OSError: pass"
    done = await python(sandbox, code)
    assert done.exit_code != 0
    assert done.limit_hit in ("disk", "cpu")


async def test_gigabytes_of_output_are_thrown_away(sandbox):
    before = psutil.Process().memory_info().rss
    done = await sandbox.exec(["sh", "-c", "exec yes"])
    assert done.truncated
    assert len(done.stdout) == LIMITS.output_bytes
    assert done.limit_hit in ("output", "cpu")
    assert psutil.Process().memory_info().rss - before < 50 * 2**20


async def test_a_double_forked_daemon_does_not_survive_a_time_out(sandbox):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        time.sleep(1.0)
        open("/workspace/daemon", "w").write("edited after the call")
        os._exit(0)
    os._exit(0)
time.sleep(60)
"""
    done = await sandbox.exec(["/usr/bin/env", "python3", "-c", code], timeout_seconds=0.4)
    assert done.timed_out
    await asyncio.sleep(1.0)
    assert await sandbox.files() == {}


async def test_links_pipes_and_huge_files_are_left_behind(sandbox):
    await sandbox.exec(
        [
            "sh",
            "-c",
            "ln -s /etc/passwd link; ln -s / folder; mkfifo pipe; mkdir d; ln -s ../../etc d/up; echo ok > d/f",
        ]
    )
    with pytest.raises(WorkerError, match="not a regular file"):
        await sandbox.read("pipe", 10)
    files = await asyncio.wait_for(sandbox.files(), 30)
    assert files == {"d/f": b"ok\n"}
    assert sandbox.record.log.count("refused") == 4


async def test_a_sparse_file_larger_than_the_disk_is_left_behind(sandbox):
    await sandbox.exec(["sh", "-c", "truncate -s 2000000 a; truncate -s 2000000 b"])
    files = await sandbox.files()
    assert len(files) == 1
    assert "exceed" in sandbox.record.log


async def test_nothing_is_left_when_it_closes(backend):
    sandbox = backend.create(EnvironmentContract(limits=LIMITS))
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    await sandbox.start()
    await sandbox.exec(["true"])
    await sandbox.close()
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


async def test_closing_in_the_middle_of_a_call_ends_it(backend):
    sandbox = backend.create(EnvironmentContract(limits=LIMITS))
    await sandbox.start()
    call = asyncio.create_task(sandbox.exec(["sleep", "4"]))
    await asyncio.sleep(0.1)
    await asyncio.wait_for(sandbox.close(), 30)
    with pytest.raises(WorkerError, match="not running"):
        await call


async def test_a_cancelled_call_ends_the_sandbox(backend):
    sandbox = backend.create(EnvironmentContract(limits=LIMITS))
    await sandbox.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.exec(["sleep", "4"]), 0.1)
    with pytest.raises(WorkerError, match="not running"):
        await sandbox.exec(["true"])
    await sandbox.close()


async def test_kill_of_the_worker_leaves_nothing(backend):
    code = """
import asyncio, sys
from gpu_workers.contracts.tasks import EnvironmentContract
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
async def main():
    sandbox = BubblewrapBackend().create(EnvironmentContract())
    await sandbox.start()
    call = asyncio.create_task(sandbox.exec(["sh", "-c", "setsid sleep 987.25 & sleep 987.25"], timeout_seconds=900))
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await call
asyncio.run(main())
"""
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert worker.stdout.readline() == "ready\n"
    tree = psutil.Process(worker.pid).children(recursive=True)
    assert sum("987.25" in " ".join(p.cmdline()) for p in tree) >= 2
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert not alive


def test_a_hundred_at_once_from_threads_with_loops_of_their_own():
    backend = BubblewrapBackend()
    try:
        asyncio.run(backend.probe())
    except WorkerError as error:
        pytest.skip(str(error))
    results = []

    async def episode(name):
        sandbox = backend.create(EnvironmentContract(limits=Limits(tool_timeout_seconds=30)))
        await sandbox.start()
        try:
            await sandbox.write("name", name.encode())
            return (await sandbox.exec(["cat", "name"])).stdout == name
        finally:
            await sandbox.close()

    async def many(thread):
        return await asyncio.gather(*(episode(f"{thread}-{i}") for i in range(25)))

    threads = [threading.Thread(target=lambda t=t: results.extend(asyncio.run(many(t)))) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 100


async def test_without_user_namespaces_it_names_the_setting(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 0\necho 'No permissions' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(command, "find_bwrap", lambda: str(broken))
    monkeypatch.setattr(bubblewrap.command, "why_no_namespaces", lambda: "run `sysctl -w user.max_user_namespaces=1`")
    with pytest.raises(WorkerError, match=r"SANDBOX_UNAVAILABLE.*sysctl -w") as refused:
        await BubblewrapBackend().probe()
    assert refused.value.boundary is Boundary.INFRASTRUCTURE
    assert not refused.value.retryable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to become")
@pytest.mark.parametrize("setpriv", ["/usr/bin/setpriv", None])
async def test_root_becomes_the_user_with_or_without_setpriv(backend, monkeypatch, setpriv):
    monkeypatch.setattr(channel, "_find_setpriv", lambda: setpriv)
    sandbox = backend.create(EnvironmentContract())
    await sandbox.start()
    try:
        status = Path(f"/proc/{sandbox._channel.server_pid}/status").read_text()
        assert status.count("64717\t64717\t64717\t64717") == 2 and "Groups:\t \n" in status, status
    finally:
        await sandbox.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to become")
async def test_root_does_not_run_it_as_root(sandbox):
    assert "uid 64717" in sandbox.record.isolation
    await sandbox.write("x", b"")
    call = asyncio.create_task(sandbox.exec(["sleep", "0.5"]))
    await asyncio.sleep(0.2)
    inside = [p for p in psutil.Process().children(recursive=True) if "sleep" in p.name()]
    assert [p.uids().real for p in inside] == [64717]
    await call
