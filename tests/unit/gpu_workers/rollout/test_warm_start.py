"""A sandbox that starts beside the policy's first turn: there at the first call, unseen without one, never left."""

import asyncio
from pathlib import Path

import msgspec
import psutil
import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import SandboxRecord
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, ToolSpec
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.rollout.group import environment_of
from tests.unit.gpu_workers.rollout.scripted import FakeBackend

CONTRACT = EnvironmentContract(files={"a.txt": "one\n"})
TOOLS = [ToolSpec(name="shell")]


def leftovers() -> tuple[set[int], int]:
    """Processes below this one, and its descriptors."""
    return {p.pid for p in psutil.Process().children(recursive=True)}, len(list(Path("/proc/self/fd").iterdir()))


async def started(environment: ToolEnvironment) -> None:
    while environment._sandbox is None or environment._sandbox._state != "running":
        await asyncio.sleep(0.01)


async def test_it_starts_at_the_reset_and_the_record_says_so(backend):
    environment = ToolEnvironment(backend, CONTRACT, TOOLS)
    await environment.reset()
    try:
        await asyncio.wait_for(started(environment), 30)
        assert environment.record == SandboxRecord(), "nobody has needed it yet"
        call = await environment.step("shell", {"command": "cat a.txt; echo two >> a.txt"})
        assert call.result == "one\n"
        assert environment.record.applied["start"].startswith("from the reset on; the first call waited 0.")
        assert await environment.state() == {"a.txt": b"one\ntwo\n"}
    finally:
        await environment.close()


async def test_a_call_that_comes_first_gets_the_same_world(backend):
    environment = ToolEnvironment(backend, CONTRACT, TOOLS)
    await environment.reset()
    try:
        assert (await environment.step("shell", {"command": "cat a.txt"})).result == "one\n"
    finally:
        await environment.close()


async def test_without_a_call_there_was_no_sandbox(backend):
    environment = ToolEnvironment(backend, CONTRACT, TOOLS)
    before = leftovers()
    await environment.reset()
    await started(environment)
    assert await environment.state() == {"a.txt": b"one\n"}
    assert leftovers() == before, "it is gone with the state, before the verifier starts one of its own"
    await environment.close()
    assert environment.record == SandboxRecord()


@pytest.mark.parametrize("end", ["close", "reset", "cancel"])
async def test_whenever_it_ends_nothing_is_left(backend, end):
    """The end comes at a different point of the start each time."""
    environment = ToolEnvironment(backend, CONTRACT, TOOLS)
    before = leftovers()
    for delay in (0.0, 0.001, 0.004, 0.008, 0.012, 0.02, 0.03, 0.06):
        await environment.reset()
        if end == "cancel":  # as an episode whose deadline passes while its first call waits
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay):
                    await environment.step("shell", {"command": "sleep 20"})
        else:
            await asyncio.sleep(delay)
        await (environment.reset() if end == "reset" else environment.close())
    await environment.close()
    assert leftovers() == before


async def test_each_reset_gets_a_world_of_its_own(backend):
    environment = ToolEnvironment(backend, CONTRACT, TOOLS)
    try:
        for _ in range(3):
            await environment.reset()
            await started(environment)
            first = environment._sandbox
            call = await environment.step("shell", {"command": "ls /tmp /dev/shm; ls; touch /tmp/x /dev/shm/x x"})
            assert call.result.split() == ["/dev/shm:", "/tmp:", "a.txt"]
            assert environment._sandbox is first
    finally:
        await environment.close()


async def test_a_start_that_fails_fails_the_first_call_and_no_episode_without_one():
    backend = FakeBackend(broken=True)
    silent, calling = (ToolEnvironment(backend, CONTRACT, TOOLS) for _ in range(2))
    for environment in (silent, calling):
        await environment.reset()
    await asyncio.sleep(0.01)
    assert await silent.state() == {"a.txt": b"one\n"}
    with pytest.raises(WorkerError, match="SANDBOX_UNAVAILABLE") as refused:
        await calling.step("shell", {"command": "true"})
    assert refused.value.boundary is Boundary.INFRASTRUCTURE
    assert calling.record.backend == "fake", "the log of what failed is kept"
    for environment in (silent, calling):
        await environment.close()
    assert backend.closed == 2


@pytest.mark.parametrize(
    ("tools", "terminal_call", "num_started"), [(TOOLS, False, 1), ([], False, 0), (TOOLS, True, 0)]
)
async def test_only_where_tools_run(world, task, tools, terminal_call, num_started):
    services = world.services()
    bundle = msgspec.structs.replace(task, tools=tools, terminal_call=terminal_call)
    environment = environment_of(bundle, services)
    await environment.reset()
    await asyncio.sleep(0.02)
    assert services.backend.started == num_started
    await environment.close()
