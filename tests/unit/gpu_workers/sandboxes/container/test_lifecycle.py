"""A container's whole life against the stand-in: what works, what fails, whose failure it is, what is left behind."""

import asyncio
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import Mount, MountRole
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits
from gpu_workers.sandboxes.container.backend import ContainerBackend
from gpu_workers.sandboxes.container.docker import DockerEngine
from gpu_workers.sandboxes.container.kubernetes import KubernetesEngine, network_policy
from gpu_workers.sandboxes.container.launch import LABEL_EXPIRES, LABEL_OWNER, new_launch, owner
from gpu_workers.sandboxes.host import DataRoot, HostPolicy

IMAGE = "python@sha256:" + "a" * 64
ROOT = Path(__file__).resolve().parents[5]
LIMITS = Limits(tool_timeout_seconds=5, output_bytes=2000)
CONTRACT = EnvironmentContract(files={"data/in.txt": "seven\n"}, environment={"FLAVOUR": "sweet"}, limits=LIMITS)


@pytest.fixture
async def sandbox(backend):
    made = backend.create(CONTRACT)
    await made.start()
    yield made
    await made.close()


async def test_a_life(sandbox, standin):
    done = await sandbox.exec(["sh", "-c", "cat data/in.txt; echo $FLAVOUR $FROM_IMAGE; echo bad >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, "seven\nsweet\n", "bad\n")
    assert (await sandbox.exec(["cat"], stdin=b"x" * 1500)).stdout == "x" * 1500
    called = await sandbox.run_python("def call(a):\n    print('noise')\n    return a['x'] * 2", function="call",
                                      arguments={"x": "ab"})  # fmt: skip
    assert called.stdout == "abab"
    await sandbox.write("deep/out.bin", b"\x00\x01")
    assert await sandbox.read("deep/out.bin", 10) == b"\x00\x01"
    assert list(standin.containers()) == [sandbox.launch.name]
    files = await sandbox.files()
    assert files == {"data/in.txt": b"seven\n", "deep/out.bin": b"\x00\x01"}
    assert standin.containers() == {}, "the container goes with its files"
    assert await sandbox.files() == files


async def test_time_and_output_end_where_the_contract_says(sandbox):
    late = await sandbox.exec(["sleep", "30"], timeout_seconds=0.2)
    assert late.timed_out and late.exit_code != 0
    loud = await sandbox.exec(["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' a"])
    assert loud.truncated and len(loud.stdout) == 2000
    assert (await sandbox.exec(["echo", "still here"])).stdout == "still here\n"


async def test_nothing_inside_can_signal_process_1(sandbox):
    code = """
import os
for number in (9, 15, 0):
    try:
        os.kill(1, number)
        print("sent")
    except PermissionError:
        pass
"""
    assert (await sandbox.run_python(code)).stdout == ""
    caught = (await sandbox.exec(["grep", "SigCgt", "/proc/1/status"])).stdout.split()[1]
    assert int(caught, 16) & 1 << signal.SIGINT - 1 == 0, "the kernel drops what has no handler, filter or not"
    assert (await sandbox.exec(["sh", "-c", "sleep 9 & kill $! && wait; echo own"])).stdout == "own\n"


async def test_the_server_brings_bubblewraps_filter_whatever_the_engine_has(sandbox):
    done = await sandbox.run_python(
        "import ctypes\nprint([ctypes.CDLL(None).unshare(f) for f in (0x10000000, 0x40000000)])"
    )
    assert done.stdout == "[-1, -1]\n"
    code = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
    code += "print({(c.syscall(n), ctypes.get_errno()) for n in range(457, 500)})"
    assert (await sandbox.run_python(code)).stdout == f"{{(-1, {errno.ENOSYS})}}\n", "a kernel's newer calls"
    filters = await sandbox.exec(["grep", "-E", "Seccomp:|NoNewPrivs", "/proc/self/status"])
    assert filters.stdout.split() == ["NoNewPrivs:", "1", "Seccomp:", "2"]


async def test_too_many_processes_are_stopped(docker):
    sandbox = docker.create(EnvironmentContract(limits=Limits(num_processes=8, tool_timeout_seconds=5)))
    await sandbox.start()
    try:
        done = await sandbox.exec(["sh", "-c", "for i in $(seq 20); do sleep 4 & done; wait"])
        assert done.limit_hit == "processes" and done.exit_code != 0 and done.duration_seconds < 30
    finally:
        await sandbox.close()


async def test_what_is_no_plain_file_stays_inside(sandbox):
    await sandbox.exec(["sh", "-c", "ln -s /etc/passwd link; mkfifo pipe; echo a > 'ok file'; mkdir -m 0 closed"])
    assert set(await sandbox.files()) == {"data/in.txt", "ok file"}
    refused = " ".join(sandbox.record.refused_files)
    assert "link" in refused and "pipe" in refused and "closed" in refused


async def test_a_flood_of_files_hides_nothing(sandbox):
    flood = "import os\nfor i in range(11000): os.close(os.open(f'f{i}', os.O_CREAT))"
    await sandbox.exec(["sh", "-c", "mkdir z; ln -s /etc/passwd z/link; echo changed > data/in.txt"])
    await sandbox.run_python(flood)
    assert (await sandbox.files())["data/in.txt"] == b"changed\n"
    refused = sandbox.record.refused_files
    assert "z/link: not a regular file but a link to '/etc/passwd'" in refused


async def test_the_record_says_what_was_found_inside(sandbox, backend):
    record = sandbox.record
    assert record.backend == backend.name
    assert "kernel inside" in record.isolation
    assert "67108864 seen inside" in record.applied["disk"]
    assert record.applied["network"].endswith("seen inside: lo")
    assert record.applied["system calls"].startswith("bubblewrap's filter and no signals to process 1")
    assert record.contract_hash == CONTRACT.contract_hash


async def test_variables_and_server_are_on_no_command_line(sandbox, standin):
    words = [word for call in standin.calls() for word in call]
    assert not any("sweet" in word or "ratchet_workers" in word for word in words)
    assert not any("def kill_all" in word for word in words)


async def start_error(backend, contract=CONTRACT):
    sandbox = backend.create(contract)
    with pytest.raises(WorkerError) as refused:
        await sandbox.start()
    await sandbox.close()
    assert refused.value.boundary is Boundary.INFRASTRUCTURE
    assert str(refused.value).startswith("SANDBOX_UNAVAILABLE: ")
    with pytest.raises(WorkerError, match="not running"):
        await sandbox.exec(["true"])
    return refused.value


async def test_an_engine_that_is_down_is_said_to_be_and_may_come_back(backend, standin):
    standin.fault("down")
    error = await start_error(backend)
    assert "the engine does not answer: start it" in str(error) and error.retryable
    standin.mend("down")
    assert backend.name in await backend.probe()


async def test_without_the_client_it_says_what_to_install(backend, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WorkerError, match=r"SANDBOX_UNAVAILABLE: there is no .* on PATH; install it"):
        await backend.probe()


async def test_an_image_that_is_not_there_is_to_be_pulled(standin):
    missing = "python@sha256:" + "b" * 64
    error = await start_error(ContainerBackend(DockerEngine(), missing))
    assert "docker pull" in str(error) and missing in str(error) and not error.retryable
    assert standin.containers() == {}


async def test_a_contracts_own_image_is_the_one_that_is_asked_for(docker):
    named = "other@sha256:" + "c" * 64
    assert named in str(await start_error(docker, EnvironmentContract(image=named)))


async def test_a_pod_whose_image_cannot_be_pulled_does_not_wait_for_its_time(standin):
    standin.fault("no-image")
    error = await start_error(ContainerBackend(KubernetesEngine("boxes"), IMAGE))
    assert "ImagePullBackOff" in str(error) and not error.retryable
    assert standin.containers() == {}


async def test_a_missing_runtime_is_never_replaced_by_a_weaker_one(docker, standin):
    standin.fault("no-runtime")
    error = await start_error(docker)
    assert "install gVisor" in str(error) and "runsc" in str(error) and not error.retryable


async def test_a_container_that_does_not_hold_the_contract_runs_nothing(docker, standin):
    standin.fault("writable")
    assert "does not hold the contract: / can be written" in str(await start_error(docker))
    assert standin.containers() == {}


async def test_a_host_kernel_without_a_filter_is_refused(standin):
    backend = ContainerBackend(DockerEngine(runtime="runc"), IMAGE)
    assert "no system-call filter applies" in str(await start_error(backend))


async def test_a_start_that_hangs_ends_in_time(docker, standin):
    standin.fault("hang")
    error = await start_error(docker, EnvironmentContract(limits=Limits(setup_timeout_seconds=0.7)))
    assert "no sign of life within 0.7 s" in str(error) and error.retryable


def kill_container(standin, name, **changes):
    """End it as the kernel or an operator would."""
    standin.change(name, **changes)
    pid = standin.containers()[name]["pid"]
    inner = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in inner:
        os.kill(int(each), signal.SIGKILL)


async def test_out_of_memory_is_the_policys_and_never_a_way_out(sandbox, standin):
    call = asyncio.create_task(sandbox.exec(["sleep", "5"]))
    await asyncio.sleep(0.4)
    kill_container(standin, sandbox.launch.name, oom=True)
    done = await call
    assert (done.exit_code, done.limit_hit) == (-9, "memory")
    assert sandbox.record.limits_hit == ["memory"]
    with pytest.raises(WorkerError, match="passed its memory limit") as refused:
        await sandbox.exec(["true"])
    assert refused.value.boundary is Boundary.POLICY
    assert await sandbox.files() == {}
    assert "files: lost" in sandbox.record.log


async def test_a_container_killed_from_outside_is_infrastructure_and_its_files_are_not_empty(sandbox, standin):
    call = asyncio.create_task(sandbox.exec(["sleep", "5"]))
    await asyncio.sleep(0.4)
    kill_container(standin, sandbox.launch.name)
    with pytest.raises(WorkerError, match="killed from outside") as refused:
        await call
    assert refused.value.boundary is Boundary.INFRASTRUCTURE
    with pytest.raises(WorkerError) as refused:
        await sandbox.files()
    assert refused.value.boundary is Boundary.INFRASTRUCTURE


async def test_a_container_that_somebody_removed_is_infrastructure(docker, standin):
    sandbox = docker.create(CONTRACT)
    await sandbox.start()
    subprocess.run(["docker", "rm", "--force", sandbox.launch.name], check=True)
    with pytest.raises(WorkerError, match="somebody has removed it") as refused:
        await sandbox.exec(["true"])
    assert refused.value.boundary is Boundary.INFRASTRUCTURE
    await sandbox.close()


async def test_a_cancelled_call_removes_the_container(sandbox, standin):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.exec(["sleep", "4"]), 0.2)
    assert standin.containers() == {}


async def test_closing_twice_and_unstarted_is_fine(backend, standin):
    unstarted = backend.create(CONTRACT)
    await unstarted.close()
    assert await unstarted.files() == {}
    assert standin.calls() == []


async def test_what_cannot_be_removed_is_in_the_log_and_left_to_the_sweep(docker, standin):
    sandbox = docker.create(CONTRACT)
    await sandbox.start()
    standin.fault("keep")
    await sandbox.close()
    assert "not removed" in sandbox.record.log
    standin.mend("keep")
    standin.change(sandbox.launch.name, labels={LABEL_OWNER: owner(), LABEL_EXPIRES: "1"}, running=False)
    assert await docker.engine.sweep() == [sandbox.launch.name]
    assert standin.containers() == {}


async def test_a_killed_worker_leaves_a_container_that_ends_and_is_swept(docker, standin):
    code = f"""
import asyncio
from gpu_workers.contracts.tasks import EnvironmentContract
from gpu_workers.sandboxes.container.backend import ContainerBackend
from gpu_workers.sandboxes.container.docker import DockerEngine
async def main():
    sandbox = ContainerBackend(DockerEngine(), {docker.image!r}).create(EnvironmentContract())
    await sandbox.start()
    print(sandbox.launch.name, flush=True)
    await sandbox.exec(["sleep", "987"], timeout_seconds=900)
asyncio.run(main())
"""
    mine = docker.create(CONTRACT)
    await mine.start()
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        name = worker.stdout.readline().strip()
        assert name in standin.containers()
        worker.send_signal(signal.SIGKILL)
    for _ in range(50):
        if not standin.containers()[name]["running"]:
            break
        await asyncio.sleep(0.1)
    assert not standin.containers()[name]["running"], "the server ends with its stream"
    assert await docker.engine.sweep() == [name]
    assert list(standin.containers()) == [mine.launch.name], "a living worker's container stays"
    assert (await mine.exec(["echo", "here"])).stdout == "here\n"
    await mine.close()


async def test_mounts_are_bound_where_the_engine_is_here_and_refused_where_it_is_not(standin, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "sets").mkdir()
    host = HostPolicy(data_roots={"sets": DataRoot(tmp_path / "sets", frozenset({MountRole.INPUT}))})
    contract = EnvironmentContract(mounts=[Mount(path="/data", source="sets")])
    launch = ContainerBackend(DockerEngine(), IMAGE, host).create(contract).launch
    line = DockerEngine().stream(launch, "/p")
    assert f"type=bind,source={tmp_path / 'sets'},target=/data,readonly" in line
    with pytest.raises(WorkerError, match=r"contract.mounts\[0\]: kubernetes has no folders") as refused:
        ContainerBackend(KubernetesEngine("boxes"), IMAGE, host).create(contract)
    assert refused.value.boundary is Boundary.ENVIRONMENT


async def test_the_policy_is_there_before_the_first_pod(standin):
    engine = KubernetesEngine("boxes")
    launch = new_launch(CONTRACT, IMAGE, {})
    await engine.prepare(launch)
    assert json.loads((standin.home / "policy.json").read_text()) == network_policy("boxes")
    verbs = [call[3] for call in standin.calls()]
    assert verbs == ["apply", "create", "get"]
    await engine.remove(launch.name)
    assert standin.calls()[-1][3:] == ["delete", "pod", launch.name, "--now", "--wait=true", "--ignore-not-found"]


# Looks for the 32 bytes whose first twelve are given, in all memory of a process forked from the server for a call.
FIND_KEY = """
import gc, hashlib, re, sys
start, digest = bytes.fromhex({start!r}), {digest!r}
found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        bounds, rights = line.split()[:2]
        first, last = (int(part, 16) for part in bounds.split("-"))
        if "r" not in rights or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
            continue
        try:
            memory.seek(first)
            data = memory.read(last - first)
        except (OSError, OverflowError, ValueError):
            continue
        for match in re.finditer(re.escape(start), data):
            found += hashlib.sha256(data[match.start():match.start() + 32]).hexdigest() == digest
print("found", found)
"""


async def test_code_of_the_policy_in_a_fork_of_the_server_finds_no_key(docker, standin):
    """With it whoever can open the server's streams, as under gVisor, could answer in its place."""
    sandbox = docker.create(CONTRACT)
    await sandbox.start()
    try:
        key = sandbox._container._channel.reader._key
        code = FIND_KEY.format(start=key[:12].hex(), digest=hashlib.sha256(key).hexdigest())
        done = await sandbox.run_python(code, timeout_seconds=30)
        assert (done.stdout, done.stderr) == ("found 0\n", "")
        planted = await sandbox.run_python(f"planted = bytes.fromhex({key.hex()!r})\n{code}", timeout_seconds=30)
        assert planted.stdout.startswith("found ") and planted.stdout != "found 0\n", "the control"
    finally:
        await sandbox.close()
