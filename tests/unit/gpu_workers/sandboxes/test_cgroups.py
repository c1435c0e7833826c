"""cgroup v2: what is written where; on a real hierarchy where one is at hand."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from gpu_workers.contracts.environment import EnvironmentContract, Limits
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes import cgroups
from gpu_workers.sandboxes.applied import memory_ceiling
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.cgroups import Delegated, SandboxGroup, find_delegated
from gpu_workers.sandboxes.host import HostPolicy


class Folder:
    """A folder that looks like a delegated cgroup: its children get the kernel's files when they are made."""

    FILES = ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs", "cgroup.kill")

    def __init__(self, path: Path, monkeypatch) -> None:
        self.path = path
        (path / "cgroup.controllers").write_text("cpu memory pids\n")
        (path / "cgroup.subtree_control").write_text("memory pids\n")
        real = Path.mkdir

        def mkdir(made, *arguments, **named):
            real(made, *arguments, **named)
            for name in self.FILES:
                (made / name).write_text("")
            (made / "memory.events").write_text("low 0\noom_kill 0\n")
            (made / "pids.events").write_text("max 0\n")

        monkeypatch.setattr(Path, "mkdir", mkdir)

    @property
    def child(self) -> Path:
        (child,) = self.path.glob(cgroups.PREFIX + "*")
        return child


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Folder(tmp_path, monkeypatch)


def test_limits_are_written_before_any_process_is_moved(folder):
    group = Delegated(folder.path).create(2**30, 64)
    read = {name: (folder.child / name).read_text() for name in Folder.FILES}
    expected = {"memory.max": str(2**30), "memory.swap.max": "0", "pids.max": "64"}
    assert read == expected | {"cgroup.procs": "", "cgroup.kill": ""}
    group.add(123)
    assert (folder.child / "cgroup.procs").read_text() == "123"


def test_what_cannot_be_used_is_not(folder, monkeypatch):
    assert find_delegated(folder.path) == Delegated(folder.path)
    (folder.path / "cgroup.subtree_control").write_text("memory\n")
    assert find_delegated(folder.path) == Delegated(folder.path)
    assert (folder.path / "cgroup.subtree_control").read_text() == "+memory +pids"
    (folder.path / "cgroup.controllers").write_text("memory\n")
    assert find_delegated(folder.path) is None
    assert find_delegated(folder.path / "missing") is None


async def test_a_sandbox_is_moved_into_its_group_and_a_kill_for_memory_is_told(backend, folder):
    backend.delegated = Delegated(folder.path)
    contract = EnvironmentContract(limits=Limits(memory_bytes=64 * 2**20, num_processes=20))
    sandbox = backend.create(contract)
    await sandbox.start()
    child = folder.child
    try:
        assert (child / "cgroup.procs").read_text() == str(sandbox._channel.server_pid)
        assert (child / "memory.max").read_text() == str(memory_ceiling(contract)) == str(64 * 2**20 + 144 * 2**20)
        assert (await sandbox.exec(["true"])).limit_hit == ""
        (child / "memory.events").write_text("low 0\noom_kill 1\n")
        assert (await sandbox.exec(["true"])).limit_hit == "memory"
        assert (await sandbox.exec(["true"])).limit_hit == "", "each kill is told once"
    finally:
        await sandbox.close()
    assert (child / "cgroup.kill").read_text() == "1"
    record = sandbox.record
    assert "memory.max" in record.applied["memory"] and "cgroup v2" in record.isolation
    assert record.limits_hit == ["memory"]


async def test_without_a_group_the_record_says_so(backend):
    backend.delegated = None
    sandbox = backend.create(EnvironmentContract())
    await sandbox.start()
    await sandbox.close()
    assert "no cgroup v2 delegated" in sandbox.record.applied["memory"]
    assert "cgroup v2" not in sandbox.record.isolation


@pytest.fixture
def real_group():
    """A child of a real cgroup v2 hierarchy; whether it has controllers is the host's affair."""
    mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    for root in (Path(line[1]) for line in mounts if line[2] == "cgroup2"):
        made = root / "ratchet-test-group"
        try:
            made.mkdir()
        except OSError:
            continue
        yield SandboxGroup(made)
        if made.exists():
            made.rmdir()
        return
    pytest.skip("no cgroup v2 hierarchy that this user may write to")


async def test_a_real_group_takes_a_process_and_kills_its_whole_tree(real_group):
    process = subprocess.Popen(["sh", "-c", "read go; setsid sleep 60 & setsid sleep 60 & wait"], stdin=subprocess.PIPE)
    real_group.add(process.pid)
    process.stdin.write(b"go\n")
    process.stdin.close()
    for _ in range(100):
        await asyncio.sleep(0.05)
        pids = (real_group.folder / "cgroup.procs").read_text().split()
        if len(pids) == 3:
            break
    assert len(pids) == 3 and str(process.pid) in pids
    real_group.remove()
    process.wait(5)
    for _ in range(100):
        if not any(Path("/proc", pid).exists() for pid in pids):
            break
        await asyncio.sleep(0.05)
    assert not any(Path("/proc", pid).exists() for pid in pids if int(pid) != os.getpid())
    real_group.remove()
    assert not real_group.folder.exists()


@pytest.fixture
async def delegated():
    """A folder whose children get memory and pids: the one that SANDBOX_CGROUP names, else this process's own."""
    setting = os.environ.get("SANDBOX_CGROUP")
    if find_delegated(Path(setting) if setting else None) is None:
        pytest.skip("no cgroup v2 folder with the controllers memory and pids is delegated to this user")
    return HostPolicy(cgroup=Path(setting) if setting else None)


MEMORY = 64 * 2**20
LIMITS = Limits(memory_bytes=MEMORY, disk_bytes=8 * 2**20, num_processes=20, tool_timeout_seconds=20, cpu_seconds=15)


@pytest.fixture
async def limited(delegated):
    backend = BubblewrapBackend(host=delegated)
    sandbox = backend.create(EnvironmentContract(limits=LIMITS))
    await sandbox.start()
    folder = sandbox._group.folder
    yield sandbox
    await sandbox.close()
    assert not folder.exists(), "an empty group goes with its sandbox"


async def test_process_1_and_what_it_starts_are_in_a_group_of_their_own(limited):
    folder = limited._group.folder
    assert int((folder / "memory.max").read_text()) == memory_ceiling(limited.contract)
    assert (folder / "pids.max").read_text() == "20\n" and (folder / "memory.swap.max").read_text() == "0\n"
    call = asyncio.create_task(limited.exec(["sleep", "10"]))
    pids: list[str] = []
    while len(pids) < 2 and not call.done():
        await asyncio.sleep(0.05)
        pids = (folder / "cgroup.procs").read_text().split()
    assert str(limited._channel.server_pid) in pids and len(pids) == 2
    await limited.close()
    with pytest.raises(WorkerError, match="not running"):
        await call
    assert "memory.max" in limited.record.applied["memory"] and "cgroup v2" in limited.record.isolation


# Each process below every limit of a process, all at once, and gone before anybody looks: pages of shared memory that
# no process's own count shows.
BURST = """
import mmap, os, time
pids = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        area = mmap.mmap(-1, 40 << 20)
        for start in range(0, 40 << 20, 4096):
            area[start] = 1
        os._exit(0)
    pids.append(pid)
print(sum(os.waitpid(pid, 0)[1] == 0 for pid in pids), "of 8 were let")
"""


async def test_a_burst_of_memory_is_stopped_by_the_kernel_and_told(limited):
    done = await limited.exec(["python3", "-c", BURST])
    assert done.limit_hit == "memory" and "8 of 8" not in done.stdout, done
    assert limited.record.limits_hit == ["memory"]
    peak = limited._group.folder / "memory.peak"
    if peak.exists():
        assert int(peak.read_text()) <= memory_ceiling(limited.contract)
    assert (await limited.exec(["echo", "alive"])).stdout == "alive\n", "process 1 is not what is killed"


async def test_files_in_memory_count_too(limited):
    fill = "for i in $(seq 9); do head -c 4000000 /dev/zero > /tmp/$i; done; ls /tmp | wc -l"
    assert (await limited.exec(["sh", "-c", fill])).exit_code == 0
    assert int((limited._group.folder / "memory.current").read_text()) < memory_ceiling(limited.contract)


async def test_a_fork_bomb_is_refused_by_the_kernel(limited):
    code = "import os, time\nfor _ in range(6):\n try: os.fork()\n except OSError: pass\ntime.sleep(1)"
    await limited.exec(["python3", "-c", code])
    assert limited._group.num_refused() > 0 or limited.record.limits_hit == ["processes"]
    assert (await limited.exec(["echo", "alive"])).stdout == "alive\n"
