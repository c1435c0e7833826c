"""Third-party environments behind our seams: steps, verdicts by playing again, and what a host may reach."""

import asyncio
import json
import time

import msgspec
import pytest

from gpu_workers.contracts.enums import Boundary, ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.environment import Limits
from gpu_workers.contracts.seams import FinishedEpisode, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, HostedEnvironment, Message, TaskBundle, VerifierSpec
from gpu_workers.environments.hosted import HostedToolEnvironment, HostedVerifier, tools_of
from gpu_workers.environments.process import HostGone, Hosts
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.runner import VerifierRunner

PARAMETERS = {
    "type": "object", "properties": {"by": {"type": "integer"}, "do": {"type": "string"}}, "required": ["by"],
    "additionalProperties": False,
}  # fmt: skip
ADD = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}


def call(**arguments) -> str:
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def turns(*texts: str) -> list[Message]:
    """Calls, each with what the environment may have said, and a last word."""
    *calls, last = texts
    messages = []
    for text in calls:
        messages += [Message(role="assistant", content=text), Message(role="tool", content="")]
    return [*messages, Message(role="assistant", content=last)]


def make_task(goal: int = 5, **changes) -> TaskBundle:
    limits = Limits(tool_timeout_seconds=3.0, verify_timeout_seconds=3.0)
    return TaskBundle(
        key=f"t{goal}",
        prompt=[Message(role="user", content=f"Reach {goal}.")],
        tools=tools_of([ADD]),
        tool_format="json",
        max_turns=8,
        contract=EnvironmentContract(limits=limits),
        hosted=HostedEnvironment(
            **{"kind": "counting", "id": "counter", "index": goal, "framework": "counting==1", **changes}
        ),
        verifier=VerifierSpec(kind=VerifierKind.ENVIRONMENT),
        reference=turns(call(by=2), call(by=goal - 2), "Done."),
        known_bad=["Done already."],
    )


def episode_of(task: TaskBundle, *texts: str) -> FinishedEpisode:
    messages = [{"role": m.role, "content": m.content} for m in (*task.prompt, *turns(*texts))]
    return FinishedEpisode(answer=texts[-1], messages=messages)


async def judged(hosts: Hosts, task: TaskBundle, *texts: str):
    verifier = VerifierRunner(task.verifier, HostedVerifier(hosts), LocalBackend())
    return await verifier.verify(task, episode_of(task, *texts))


async def test_steps_act_in_a_world_of_the_episodes_own(hosts):
    first, second = (HostedToolEnvironment(hosts, make_task()) for _ in range(2))
    for environment in (first, second):
        await environment.reset()
    assert [(await first.step("add", {"by": 2})).result for _ in range(2)] == ["2", "4"]
    assert (await second.step("add", {"by": 1})).result == "1"
    assert "network none" in first.record.isolation and "counting==1" in first.record.log
    await first.reset()
    assert (await first.step("add", {"by": 1})).result == "1"
    for environment in (first, second):
        await environment.close()
        await environment.close()
    with pytest.raises(RuntimeError, match="close"):
        await first.step("add", {"by": 1})


async def test_what_the_environment_ends_stays_ended(hosts):
    environment = HostedToolEnvironment(hosts, make_task())
    await environment.reset()
    ended = await environment.step("add", {"by": 200})
    assert ended.ok and "ended the episode" in ended.result
    after = await environment.step("add", {"by": 1})
    assert not after.ok and "ended the episode" in after.result
    await environment.close()


async def test_a_call_without_an_answer_ends_the_environment_not_the_worker(hosts):
    environment = HostedToolEnvironment(hosts, make_task())
    await environment.reset()
    started = time.monotonic()
    hung = await environment.step("add", {"by": 1, "do": "hang"})
    assert not hung.ok and "more than 3 s" in hung.error and time.monotonic() - started < 60
    assert not (await environment.step("add", {"by": 1})).ok
    await environment.close()
    fresh = HostedToolEnvironment(hosts, make_task())
    await fresh.reset()
    assert (await fresh.step("add", {"by": 1})).ok
    await fresh.close()


@pytest.mark.parametrize("deed", ["die", "raise", "long"])
async def test_a_call_that_breaks_the_environment_every_time_is_the_policys_doing(hosts, deed):
    environment = HostedToolEnvironment(hosts, make_task())
    await environment.reset()
    assert (await environment.step("add", {"by": 1})).ok
    broken = await environment.step("add", {"by": 1, "do": deed})
    assert not broken.ok and "broke the environment" in broken.error
    assert not (await environment.step("add", {"by": 1})).ok
    await environment.close()


async def test_an_environment_that_breaks_by_itself_is_the_environments_failure(hosts):
    environment = HostedToolEnvironment(hosts, make_task())
    await environment.reset()
    assert (await environment.step("add", {"by": 1})).ok
    environment._session.host._process.kill()  # as the kernel does when memory runs out
    environment._session.host._process.wait()
    await asyncio.sleep(0.5)  # its namespaces go along
    with pytest.raises(WorkerError, match="not for its calls") as caught:
        await environment.step("add", {"by": 1})
    assert (caught.value.boundary, caught.value.retryable) == (Boundary.ENVIRONMENT, True)
    await environment.close()


async def test_killing_the_host_gains_nothing(hosts):
    result = await judged(hosts, make_task(), call(by=2), call(by=3, do="kill"), "Done.")
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0)


async def test_prints_of_the_environment_are_no_answers(hosts):
    environment = HostedToolEnvironment(hosts, make_task())
    await environment.reset()
    assert (await environment.step("add", {"by": 1, "do": "print"})).result == "printed"
    await environment.close()


async def test_a_host_sees_no_data_no_secret_and_no_network(hosts, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hush")
    environment = HostedToolEnvironment(hosts, make_task())
    await environment.reset()
    found, secret, uid = json.loads((await environment.step("add", {"by": 1, "do": "look"})).result)
    await environment.close()
    assert (found, secret) == ([], None) and uid != 0


async def test_nothing_is_left_for_the_next_session_of_a_warm_host(hosts):
    for deed, wanted in (("litter", "done"), ("rubbish", None)):
        environment = HostedToolEnvironment(hosts, make_task())
        await environment.reset()
        said = (await environment.step("add", {"by": 1, "do": deed})).result
        await environment.close()
        assert wanted is None or said == wanted
    exists, num_processes = said.strip("[]").split(", ")
    assert (exists, int(num_processes)) == ("False", 3), "bubblewrap, the host and the session"


async def test_only_so_many_hosts_live_at_once(hosts):
    taken = [await hosts.take("counting") for _ in range(2)]
    third = asyncio.ensure_future(hosts.take("counting"))
    await asyncio.sleep(0.3)
    assert not third.done()
    await hosts.give_back(taken[0])
    await hosts.give_back(await asyncio.wait_for(third, 10))
    await hosts.give_back(taken[1])


async def test_a_cancelled_request_takes_its_host_along(hosts):
    host = await hosts.take("counting")
    await host.request({"op": "start", "id": "counter", "index": 1, "digest": ""}, 10)
    message = {"op": "reply", "text": "", "calls": [{"name": "add", "arguments": {"by": 1, "do": "hang"}}]}
    asking = asyncio.ensure_future(host.request(message, 60))
    await asyncio.sleep(0.3)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not host.alive
    await hosts.give_back(host)
    await hosts.give_back(await hosts.take("counting"))


async def test_a_kind_that_is_not_installed_says_what_to_do(tmp_path):
    with pytest.raises(WorkerError, match="make environments") as caught:
        await Hosts(tmp_path).take("openenv")
    assert caught.value.boundary is Boundary.INFRASTRUCTURE
    with pytest.raises(WorkerError, match="no kind of environment"):
        await Hosts(tmp_path).take("gym")


async def test_the_verdict_is_the_frameworks_reward_of_the_turns_played_again(hosts):
    right = await judged(hosts, make_task(), call(by=2), call(by=3), "Done.")
    assert (right.verdict, right.score, right.evidence["reward"]) == (Verdict.PASS, 1.0, 1.0)
    wrong = await judged(hosts, make_task(), call(by=2), "Done.")
    assert (wrong.verdict, wrong.score, wrong.reason_code) == (Verdict.FAIL, 0.0, ReasonCode.WRONG_ANSWER)
    refused = await judged(hosts, make_task(), call(by="two"), "no call", call(by=5), "Done.")
    assert refused.verdict == Verdict.PASS, "what never reached the environment is not played"


async def test_observations_that_differ_are_counted(hosts):
    task = make_task()
    episode = episode_of(task, call(by=5), "Done.")
    episode.messages[2]["content"] = "forged"
    result = await HostedVerifier(hosts).verify(task, episode)
    assert result.evidence["observations_that_differ"] == 1


@pytest.mark.parametrize("goal", [7, 8, 9, 10, 11])
async def test_a_reward_that_is_none_is_never_a_score(hosts, goal):
    result = await judged(hosts, make_task(goal), call(by=goal), "Done.")
    assert (result.verdict, result.score) == (Verdict.ERROR, None)
    assert result.reason_code == ReasonCode.VERIFIER_NO_RESULT


@pytest.mark.parametrize(("deed", "reason"), [("hang", ReasonCode.AGENT_TIMEOUT), ("die", ReasonCode.WRONG_ANSWER)])
async def test_a_candidate_that_breaks_the_environment_has_failed(hosts, deed, reason):
    result = await judged(hosts, make_task(), call(by=1, do=deed), "Done.")
    assert (result.verdict, result.score, result.reason_code) == (Verdict.FAIL, 0.0, reason), result.message


@pytest.mark.parametrize(("changes", "message"), [({"id": "other"}, "not installed"), ({"digest": "e"}, "other code")])
async def test_an_environment_that_is_not_the_suites_gives_no_verdict(hosts, changes, message):
    result = await judged(hosts, make_task(**changes), call(by=5), "Done.")
    assert result.verdict == Verdict.ERROR and message in result.message
    assert result.reason_code == ReasonCode.TASK_INVALID


async def test_the_import_check_of_a_hosted_task(hosts, monkeypatch):
    monkeypatch.setattr("gpu_workers.verifiers.registry.worker_hosts", lambda: hosts)
    check = await check_task(make_task(), LocalBackend(), 2, bad_repeats=1)
    assert check.ok, check.message
    unsolved = msgspec.structs.replace(make_task(), reference=turns(call(by=1), "Done."))
    check = await check_task(unsolved, LocalBackend(), 2, bad_repeats=1)
    assert (check.ok, check.reason_code) == (False, "TASK_INVALID") and "the reference should pass" in check.message
    credit = make_task(0)
    check = await check_task(credit, LocalBackend(), 1, bad_repeats=1)
    assert not check.ok and "empty answer" in check.message, "doing nothing reaches 0"


async def test_a_host_that_does_not_start_is_quoted(hosts, monkeypatch, tmp_path):
    from gpu_workers.environments import isolation

    (isolation.HOSTS / "counting_host.py").write_text("raise SystemExit('no such framework')")
    with pytest.raises(WorkerError, match="no such framework"):
        await hosts.take("counting")
    assert HostGone("x").timed_out is False
