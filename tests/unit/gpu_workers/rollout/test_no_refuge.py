"""No policy gets out of a verdict by breaking its own world, or takes its siblings along; a lost host costs nothing."""

import os
import signal
from dataclasses import replace

import pytest

from gpu_workers.contracts.enums import ToolOutcome, Verdict
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, ToolSpec
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.rollout.group import environment_of, run_group
from gpu_workers.tools.records import bounded_arguments
from tests.unit.gpu_workers.rollout.test_environment_tools import SERVERS, TOOLS, play

LIMITS = Limits(tool_timeout_seconds=2, memory_bytes=128 * 2**20)


@pytest.fixture
async def environment(backend):
    made = ToolEnvironment(backend, EnvironmentContract(limits=LIMITS), [*TOOLS[:3], ToolSpec(name="python")])
    yield made
    await made.close()


def end_from_the_host(environment: ToolEnvironment) -> None:
    os.kill(environment._sandbox._channel.server_pid, signal.SIGKILL)


async def test_a_sandbox_that_the_host_ended_comes_back_with_its_files(environment) -> None:
    await play(environment, "shell('echo one > a.txt')", "buy('nut')")
    end_from_the_host(environment)
    record = await environment.step("shell", {"command": "echo two >> a.txt; cat a.txt"})
    assert record.result == "one\ntwo\n" and record.outcome is ToolOutcome.RAN
    assert (await environment.state())["a.txt"] == b"one\ntwo\n"


async def test_a_call_that_ends_each_sandbox_is_the_policys_own_failure(environment, monkeypatch) -> None:
    [first] = await play(environment, "shell('echo one > a.txt')")
    call = type(environment._toolbox).call

    async def deadly(box, name, arguments):
        if arguments.get("command") == "die":
            os.kill(box.sandbox._channel.server_pid, signal.SIGKILL)
        return await call(box, name, arguments)

    monkeypatch.setattr(type(environment._toolbox), "call", deadly)
    record = await environment.step("shell", {"command": "die"})
    assert record.outcome is ToolOutcome.ENDED_SANDBOX and not record.ok and "twice" in record.error
    later = await environment.step("shell", {"command": "true"})
    assert later.outcome is ToolOutcome.ENDED_SANDBOX
    left = await environment.state()
    assert first.ok and left == {"a.txt": b"one\n", "cart.txt": b"empty\n"}, "what the last sandbox held"


@pytest.mark.parametrize(
    "code",
    [
        "resource.prlimit(1, resource.RLIMIT_AS, (4096, 4096))",
        "os.sched_setaffinity(1, {0})",
        "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",
    ],
)
async def test_a_policy_cannot_change_how_process_1_runs(environment, code) -> None:
    await environment.reset()
    record = await environment.step("python", {"code": f"import os, resource\n{code}"})
    assert not record.ok and "PermissionError" in record.result
    assert (await environment.step("shell", {"command": "echo still"})).result == "still\n"


async def test_a_policy_may_change_how_it_runs_itself(environment) -> None:
    await environment.reset()
    code = "import os, resource\nresource.setrlimit(resource.RLIMIT_AS, (2**26, 2**26))\nos.nice(1)\nprint('done')"
    assert (await environment.step("python", {"code": code})).result == "done\n"


async def test_pipes_that_were_made_blocking_stop_nobody(environment) -> None:
    await environment.reset()
    code = (
        "import os, time\n"
        "for fd in range(3, 64):\n"
        "    try: os.set_blocking(fd, True)\n"
        "    except OSError: pass\n"
        "print('x', flush=True)\ntime.sleep(60)"
    )
    record = await environment.step("python", {"code": code})
    assert record.outcome is ToolOutcome.TIMED_OUT and record.duration_seconds < 60
    assert (await environment.step("shell", {"command": "echo still"})).result == "still\n"


async def test_an_mcp_server_is_there_before_the_policy_can_spoil_its_start(backend) -> None:
    environment = ToolEnvironment(backend, EnvironmentContract(), TOOLS, servers=SERVERS)
    try:
        records = await play(environment, "shell('chmod 000 /workspace')", "notes.remember(key='a', note='x')")
        assert not records[1].ok and "Permission denied" in records[1].error  # its own failure, not the task's
    finally:
        await environment.close()


async def test_names_that_are_no_text_reach_no_prompt(environment) -> None:
    await environment.reset()
    await environment.step("shell", {"command": r"mkdir d; touch d/$(printf '\377')"})
    record = await environment.step("read_file", {"path": "d"})
    assert "?" in record.result and record.result.isascii()
    assert bounded_arguments({"path": "\ud800"}) == {"path": "?"}


async def test_an_episode_that_breaks_takes_no_sibling_along(world, task) -> None:
    world.engine(lambda episode, turn: "yes")
    broken = iter([True])

    services = world.services()

    def make(task):
        return _Breaking() if next(broken, False) else environment_of(task, services)

    report = await run_group(world.job(task, group_size=3), replace(services, make_environment=make))
    assert report.error == ""
    assert sorted(str(e.verdict) for e in report.episodes) == [Verdict.ERROR, Verdict.PASS, Verdict.PASS]
    [lost] = [e for e in report.episodes if e.verdict is Verdict.ERROR]
    assert lost.reward is None and "KeyError" in lost.message


class _Breaking:
    """An environment with a bug."""

    record = ToolEnvironment(None, EnvironmentContract(), []).record

    async def reset(self) -> None:
        raise KeyError("a bug")

    async def close(self) -> None:
        pass
