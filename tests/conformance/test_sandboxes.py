"""What every sandbox backend promises; the fake passes it too.

Containers need an engine and an image by digest that holds python3 and sh: with SANDBOX_IMAGE (and SANDBOX_RUNTIME) set
as for a worker, Docker and Podman take part where their program is on PATH; a cluster only where SANDBOX_NAMESPACE
names the place for its pods too.
"""

import asyncio
import os
import shutil

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, ToolSpec
from gpu_workers.sandboxes.backends import load_choice, make_backend
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.host import HostPolicy
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.tools.toolbox import ToolBox

BACKENDS = ("bubblewrap", "local", "docker", "podman", "kubernetes")
PROGRAMS = {"docker": "docker", "podman": "podman", "kubernetes": "kubectl"}
CONTRACT = EnvironmentContract(
    files={"data/in.txt": "seven\n"},
    environment={"FLAVOUR": "sweet"},
    limits=Limits(tool_timeout_seconds=5, output_bytes=2000),
)


def make(name):
    if name not in PROGRAMS:
        return {"bubblewrap": BubblewrapBackend, "local": LocalBackend}[name]()
    needed = ["SANDBOX_IMAGE"] + (["SANDBOX_NAMESPACE"] if name == "kubernetes" else [])
    if missing := [variable for variable in needed if not os.environ.get(variable)]:
        pytest.skip(f"{name}: {', '.join(missing)} not set")
    if not shutil.which(PROGRAMS[name]):
        pytest.skip(f"{name}: there is no {PROGRAMS[name]} on PATH")
    return make_backend(load_choice({**os.environ, "SANDBOX_BACKEND": name}), HostPolicy())


@pytest.fixture(params=BACKENDS)
async def backend(request):
    made = make(request.param)
    try:
        await made.probe()
    except WorkerError as error:
        if not str(error).startswith("SANDBOX_UNAVAILABLE"):
            raise
        pytest.skip(str(error))
    return made


@pytest.fixture
async def sandbox(backend):
    made = backend.create(CONTRACT)
    await made.start()
    yield made
    await made.close()


async def test_exec_returns_both_streams_and_the_exit_code(sandbox):
    done = await sandbox.exec(["sh", "-c", "cat data/in.txt; echo $FLAVOUR; echo bad >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, "seven\nsweet\n", "bad\n")
    assert 0 < done.duration_seconds < 60
    assert not done.timed_out and not done.truncated


async def test_a_missing_program_is_a_result_not_an_error(sandbox):
    done = await sandbox.exec(["no-such-program"])
    assert done.exit_code == 127
    assert "no-such-program" in done.stderr


async def test_stdin_reaches_the_program(sandbox):
    done = await sandbox.exec(["cat"], stdin=b"x" * 1500)
    assert done.stdout == "x" * 1500


async def test_output_is_cut_at_the_limit(sandbox):
    done = await sandbox.exec(["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' a"])
    assert done.truncated
    assert len(done.stdout) == 2000
    assert done.exit_code == 0


async def test_a_call_past_its_time_is_killed_and_the_next_one_works(sandbox):
    done = await sandbox.exec(["sleep", "30"], timeout_seconds=0.2)
    assert done.timed_out and done.exit_code != 0
    assert (await sandbox.exec(["echo", "still here"])).stdout == "still here\n"


async def test_files_written_are_read_back_and_leave_at_the_end(sandbox):
    await sandbox.write("deep/er/out.bin", b"\x00\x01")
    assert await sandbox.read("deep/er/out.bin", 10) == b"\x00\x01"
    assert await sandbox.read("data/in.txt", 3) == b"sev"
    files = await sandbox.files()
    assert files == {"data/in.txt": b"seven\n", "deep/er/out.bin": b"\x00\x01"}
    assert await sandbox.files() == files


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", ""])
async def test_a_path_outside_the_workspace_is_refused(sandbox, path):
    with pytest.raises(WorkerError, match="not a path below") as refused:
        await sandbox.write(path, b"x")
    assert refused.value.boundary is Boundary.POLICY
    with pytest.raises(WorkerError):
        await sandbox.read(path, 1)


async def test_reading_what_is_not_there_is_the_policys_failure(sandbox):
    with pytest.raises(WorkerError) as refused:
        await sandbox.read("nothing", 1)
    assert refused.value.boundary is Boundary.POLICY


async def test_run_python_as_a_script_and_as_a_function(sandbox):
    script = await sandbox.run_python("print(open('data/in.txt').read().upper()); raise SystemExit(4)")
    assert (script.exit_code, script.stdout) == (4, "SEVEN\n\n")
    source = "def call(arguments):\n    print('noise')\n    return arguments['x'] * 2"
    function = await sandbox.run_python(source, function="call", arguments={"x": "ab"})
    assert (function.exit_code, function.stdout) == (0, "abab")
    crashed = await sandbox.run_python("def call(a): raise ValueError('no')", function="call", arguments={})
    assert crashed.exit_code != 0
    assert "ValueError: no" in crashed.stderr and crashed.stdout == ""


async def test_nothing_a_call_started_outlives_it(sandbox):
    await sandbox.exec(["sh", "-c", "(sleep 0.4; echo late > late.txt) >/dev/null 2>&1 &"])
    await asyncio.sleep(0.7)
    assert "late.txt" not in await sandbox.files()


async def test_a_closed_sandbox_refuses_calls(sandbox):
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(WorkerError, match="not running") as refused:
        await sandbox.exec(["true"])
    assert refused.value.boundary is Boundary.INFRASTRUCTURE


async def test_the_record_tells_what_happened(sandbox, backend):
    await sandbox.exec(["sh", "-c", "exit 5"])
    record = sandbox.record
    assert record.backend == backend.name
    assert record.isolation
    assert "start" in record.log and "exit 5" in record.log


@pytest.mark.parametrize(
    ("contract", "field"),
    [
        (EnvironmentContract(network=True), "network.agent"),
        (EnvironmentContract(files={"../x": ""}), "files"),
        (EnvironmentContract(environment={"A B": "1"}), "environment"),
        (EnvironmentContract(limits=Limits(memory_bytes=1)), "limits.memory_bytes"),
        (EnvironmentContract(limits=Limits(tool_timeout_seconds=0)), "limits.tool_timeout_seconds"),
        (EnvironmentContract(files={"x": "y" * 70_000}, limits=Limits(disk_bytes=65_536)), "files"),
    ],
)
async def test_a_contract_that_asks_for_too_much_is_refused(backend, contract, field):
    with pytest.raises(WorkerError, match=f"contract.{field}:") as refused:
        backend.create(contract)
    assert refused.value.boundary is Boundary.ENVIRONMENT
    assert not refused.value.retryable


async def test_many_sandboxes_at_once_keep_apart(backend):
    async def episode(number):
        sandbox = backend.create(EnvironmentContract())
        await sandbox.start()
        try:
            await sandbox.write("mine", str(number).encode())
            done = await sandbox.exec(["cat", "mine"])
            return done.stdout
        finally:
            await sandbox.close()

    assert await asyncio.gather(*(episode(n) for n in range(20))) == [str(n) for n in range(20)]


async def test_tools_run_in_it(sandbox):
    tools = [
        ToolSpec(name="double", source="def call(a):\n    return str(2 * a['n'])", parameters={
            "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        }),
        ToolSpec(name="shell"), ToolSpec(name="python"), ToolSpec(name="read_file"), ToolSpec(name="write_file"),
    ]  # fmt: skip
    box = ToolBox(sandbox, tools, output_bytes=2000)
    assert (await box.call("double", {"n": 21})).result == "42"
    assert (await box.call("shell", {"command": "wc -c < data/in.txt"})).result.strip() == "6"
    assert (await box.call("python", {"code": "print(6*7)"})).result == "42\n"
    assert (await box.call("write_file", {"path": "n.txt", "content": "é"})).result == "wrote 2 bytes"
    assert (await box.call("read_file", {"path": "n.txt"})).result == "é"
    refused = await box.call("read_file", {"path": "/etc/shadow"})
    assert not refused.ok and not refused.invalid and refused.error
