"""What every environment must do, whatever its sandbox: contracts.seams.Environment."""

import shutil
from collections.abc import Callable

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import Environment, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, ToolSpec
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.command import find_bwrap
from tests.unit.gpu_workers.rollout.scripted import FakeBackend

COUNT = """
from pathlib import Path

def call(arguments):
    file = Path("count.txt")
    count = int(file.read_text()) + arguments["by"]
    if count > 100:
        raise ValueError("too many")
    file.write_text(str(count))
    return str(count)
"""
SCHEMA = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
TOOLS = [ToolSpec(name="count", parameters=SCHEMA, source=COUNT)]
CONTRACT = EnvironmentContract(files={"count.txt": "1"})

Make = Callable[[], Environment]


def has_sandbox() -> bool:
    try:
        return bool(find_bwrap())
    except WorkerError:
        return shutil.which("bwrap") is not None


@pytest.fixture(params=["bubblewrap", "fake"])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "fake":
        return lambda: ToolEnvironment(FakeBackend(), CONTRACT, TOOLS)
    if not has_sandbox():
        pytest.skip("bubblewrap is not installed")
    backend = BubblewrapBackend()
    return lambda: ToolEnvironment(backend, CONTRACT, TOOLS)


async def test_a_step_executes_the_tool(make: Make) -> None:
    environment = make()
    await environment.reset()
    try:
        call = await environment.step("count", {"by": 2})
        assert call.ok and call.name == "count" and call.arguments == {"by": 2}
        assert call.result
        assert environment.record.backend and "start" in environment.record.log
    finally:
        await environment.close()


@pytest.mark.parametrize(("name", "arguments"), [("other", {}), ("count", {}), ("count", {"by": "x"})])
async def test_what_the_policy_did_wrong_is_an_observation(make: Make, name: str, arguments: dict[str, object]) -> None:
    environment = make()
    await environment.reset()
    try:
        call = await environment.step(name, arguments)
        assert call.invalid and not call.ok and call.error
    finally:
        await environment.close()


async def test_close_is_idempotent_and_final(make: Make) -> None:
    environment = make()
    await environment.reset()
    await environment.step("count", {"by": 2})
    await environment.close()
    await environment.close()
    with pytest.raises(RuntimeError, match="close"):
        await environment.step("count", {"by": 2})
    assert "start" in environment.record.log, "the log outlives the sandbox"


async def test_without_a_step_the_state_is_the_contracts_files(make: Make) -> None:
    environment = make()
    await environment.reset()
    assert await environment.state() == {"count.txt": b"1"}
    await environment.close()


class TestWorld:
    """What only a real sandbox can show."""

    @pytest.fixture
    def make(self) -> Make:
        if not has_sandbox():
            pytest.skip("bubblewrap is not installed")
        backend = BubblewrapBackend()
        return lambda: ToolEnvironment(backend, CONTRACT, TOOLS)

    async def test_the_world_is_kept_between_steps_and_read_at_the_end(self, make: Make) -> None:
        environment = make()
        await environment.reset()
        try:
            results = [(await environment.step("count", {"by": 2})).result for _ in range(3)]
            assert results == ["3", "5", "7"]
            assert (await environment.state())["count.txt"] == b"7"
        finally:
            await environment.close()

    async def test_episodes_share_nothing_and_reset_forgets(self, make: Make) -> None:
        first, second = make(), make()
        for environment in (first, second):
            await environment.reset()
        try:
            await first.step("count", {"by": 10})
            assert (await second.step("count", {"by": 1})).result == "2"
            await first.reset()
            assert (await first.step("count", {"by": 1})).result == "2"
        finally:
            await first.close()
            await second.close()

    async def test_an_error_of_the_tool_is_told_to_the_policy(self, make: Make) -> None:
        environment = make()
        await environment.reset()
        try:
            call = await environment.step("count", {"by": 1000})
            assert not call.ok and not call.invalid
            assert "too many" in call.result
        finally:
            await environment.close()


async def test_an_impossible_contract_is_the_tasks_fault() -> None:
    environment = ToolEnvironment(BubblewrapBackend(), EnvironmentContract(network=True), TOOLS)
    await environment.reset()
    with pytest.raises(WorkerError) as caught:
        await environment.step("count", {"by": 1})
    assert caught.value.boundary is Boundary.ENVIRONMENT


async def test_a_tool_that_does_not_compile_is_the_tasks_fault() -> None:
    environment = ToolEnvironment(FakeBackend(), CONTRACT, [ToolSpec(name="bad", source="def call(:")])
    await environment.reset()
    with pytest.raises(WorkerError) as caught:
        await environment.step("bad", {})
    assert caught.value.boundary is Boundary.ENVIRONMENT
    await environment.close()
