import asyncio
import dataclasses
import time

import msgspec
import pytest

from gpu_workers.contracts.enums import Boundary, ReasonCode, StopReason, ToolOutcome, VerifierKind
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, SandboxRecord, decode_group
from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, TaskBundle, VerifierSpec
from gpu_workers.rollout.group import order_engines, run_group
from tests.unit.gpu_workers.rollout.conftest import World


def look_then_answer(episode: int, conversation: str) -> str:
    if "<q=" not in conversation:
        return 'look(q="a")'
    return "yes" if episode % 2 == 0 else "no"


async def only(world: World, task: TaskBundle, script: object, **changes: object) -> EpisodeRecord:
    """Record of a group of one episode, with its turns."""
    world.engine(script)  # type: ignore[arg-type]
    report = await run_group(world.job(task, group_size=1, **changes), world.services())
    return GroupTranscript.decode(world.store.get(report.transcript)).episodes[0]


async def test_a_group_from_prompt_to_report(world: World, task: TaskBundle) -> None:
    engine = world.engine(look_then_answer)
    report = await run_group(world.job(task), world.services())
    assert (report.error, report.min_version, report.max_version) == ("", 3, 3)
    assert [e.reward for e in report.episodes] == [1.0, 0.0, 1.0, 0.0]
    assert [e.success for e in report.episodes] == [True, False, True, False]
    assert [e.seed for e in report.episodes] == [100, 101, 102, 103]
    for record in report.episodes:
        assert (record.num_turns, record.num_tool_calls, record.num_invalid_calls) == (2, 1, 0)
        assert (record.engine_seconds, record.queue_seconds) == (1.0, 0.25)
        assert record.turns == [] and record.sandbox.log == ""
    assert engine.most_running == 4, "the episodes of a group must reach the engine together"
    assert engine.closed
    assert (world.backend.started, world.backend.closed) == (4, 4)
    assert {request.adapter for request in engine.requests} == {"run-1.a1@v3"}

    file = decode_group(world.store.get(report.uri))
    transcript = GroupTranscript.decode(world.store.get(report.transcript))
    assert [e.reward for e in file] == [1.0, 0.0, 1.0, 0.0]
    for tokens, record in zip(file, transcript.episodes, strict=True):
        assert len(tokens.tokens) == record.num_total_tokens
        assert int(tokens.mask.sum()) == record.num_sampled_tokens
        assert [turn.role for turn in record.turns] == ["system", "user", "assistant", "tool", "assistant"]
        assert record.turns[3].tool_call is not None and record.turns[3].tool_call.result == "<q=a>"
        assert "run(q=a)" in record.sandbox.log
        assistant = record.turns[2]
        assert tokens.mask[assistant.token_start : assistant.token_stop].all()


async def test_shots_are_put_before_the_question_and_kept_from_the_verifier(world: World, task: TaskBundle) -> None:
    world.engine(lambda *_: "yes")
    await run_group(world.job(task, group_size=1, policy=PolicyRef(num_shots=1)), world.services())
    prompt = world.engines["http://one"].template.decode(world.engines["http://one"].requests[0].input_ids)
    assert prompt.index("e1?") < prompt.index("Is it?")
    assert [m["content"] for m in world.verifier.seen[0].messages] == ["s", "Is it?", "yes"]


async def test_without_a_call_an_episode_has_no_sandbox(world: World, task: TaskBundle) -> None:
    record = await only(world, task, lambda *_: "yes")
    assert record.success and record.sandbox == SandboxRecord()
    assert world.backend.closed == world.backend.started <= 1, "one that was started in vain is gone"


@pytest.mark.parametrize("turn", ['look(q="a"', "look(q=1)", "other(q=1)", 'look("a", "b")'])
async def test_an_invalid_call_is_an_observation_and_counted(world: World, task: TaskBundle, turn: str) -> None:
    record = await only(world, task, lambda _, text: "yes" if "Error: " in text else turn)
    assert record.success
    assert (record.num_tool_calls, record.num_invalid_calls) == (1, 1)
    assert record.turns[3].tool_call is not None and record.turns[3].tool_call.invalid
    assert record.sandbox == SandboxRecord(), "a call that cannot be executed needs none"


@pytest.mark.parametrize(
    ("script", "stop", "reason"),
    [
        (lambda *_: 'look(q="a")', StopReason.TURN_LIMIT, ReasonCode.TURN_LIMIT),
        (lambda *_: "yes " * 40, StopReason.LENGTH, ReasonCode.FORMAT_INVALID),
        (lambda *_: "no", StopReason.ANSWERED, ReasonCode.WRONG_ANSWER),
    ],
)
async def test_how_an_episode_fails(world: World, task: TaskBundle, script: object, stop: str, reason: str) -> None:
    record = await only(world, task, script)
    assert (record.stop_reason, record.reason_code, record.reward) == (stop, reason, 0.0)
    assert record.boundary is Boundary.POLICY
    assert (record.answer == "") == (stop is not StopReason.ANSWERED), "a turn that never ended is no answer"


async def test_slow_tools_use_up_the_episode_not_the_group(world: World, task: TaskBundle) -> None:
    world.backend.delay = 5.0
    limits = Limits(episode_timeout_seconds=0.1)
    task = msgspec.structs.replace(task, contract=EnvironmentContract(limits=limits))
    record = await only(world, task, look_then_answer)
    assert (record.stop_reason, record.reason_code, record.reward) == (
        StopReason.TIMEOUT,
        ReasonCode.AGENT_TIMEOUT,
        0.0,
    )
    assert world.backend.closed == 1
    last = record.turns[-1]
    assert last.tool_call is not None and last.token_start == last.token_stop == record.num_total_tokens
    assert (last.tool_call.name, last.tool_call.arguments) == ("look", {"q": "a"})
    assert last.tool_call.outcome is ToolOutcome.TIMED_OUT and "time for tools was over" in last.tool_call.error


async def test_a_terminal_call_is_the_answer_and_not_executed(world: World, task: TaskBundle) -> None:
    task = msgspec.structs.replace(task, terminal_call=True, max_turns=1)
    valid = await only(world, task, lambda *_: 'look(q="a")')
    invalid = await only(world, task, lambda *_: "look(q=1)")
    assert (valid.answer, valid.num_tool_calls, valid.num_invalid_calls) == ('look(q="a")', 1, 0)
    assert (invalid.num_tool_calls, invalid.num_invalid_calls) == (1, 1)
    assert world.backend.started == 0


async def test_a_program_verifier_sees_the_workspace(world: World, task: TaskBundle) -> None:
    task = msgspec.structs.replace(task, verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program="x"))
    await only(world, task, look_then_answer)
    assert world.verifier.seen[0].files == {"seen.txt": b"x"}


async def test_without_a_sandbox_the_episode_has_no_reward(world: World, task: TaskBundle) -> None:
    world.backend.broken = True
    world.engine(lambda episode, _: "yes" if episode == 0 else 'look(q="a")')
    report = await run_group(world.job(task), world.services())
    assert [e.reward for e in report.episodes] == [1.0, None, None, None]
    assert {e.reason_code for e in report.episodes[1:]} == {ReasonCode.SANDBOX_UNAVAILABLE}
    assert {e.boundary for e in report.episodes[1:]} == {Boundary.INFRASTRUCTURE}
    assert report.error == "" and report.uri
    rewards = [tokens.reward for tokens in decode_group(world.store.get(report.uri))]
    assert rewards == [1.0, None, None, None]


async def test_a_broken_verifier_is_not_the_policys_fault(world: World, task: TaskBundle) -> None:
    world.verifier.error = WorkerError(Boundary.VERIFIER, "crashed on the reference too")
    world.engine(lambda *_: "no")
    report = await run_group(world.job(task), world.services())
    assert [e.reward for e in report.episodes] == [None] * 4
    assert (report.uri, report.boundary) == ("", Boundary.VERIFIER)
    assert "crashed on the reference too" in report.error


async def test_all_engines_down(world: World, task: TaskBundle) -> None:
    for url in ("http://one", "http://two"):
        world.engine(lambda *_: "yes", url).down = True
    report = await run_group(world.job(task), world.services())
    assert (report.uri, report.episodes, report.boundary) == ("", [], Boundary.ENGINE)
    assert report.error.count("connection refused") == 2


async def test_another_engine_takes_over(world: World, task: TaskBundle) -> None:
    urls = ["http://one", "http://two"]
    for url in urls:
        world.engine(lambda *_: "yes", url)
    first, second = order_engines("g1", urls)
    world.engines[first].down = True
    report = await run_group(world.job(task), world.services())
    assert report.error == ""
    assert len(world.engines[second].requests) == 4


async def test_an_engine_without_the_adapter_is_not_asked(world: World, task: TaskBundle) -> None:
    engine = world.engine(lambda *_: "yes", adapters=())
    report = await run_group(world.job(task), world.services())
    assert "does not hold adapter run-1.a1@v3" in report.error
    assert engine.requests == []


async def test_an_engine_with_other_weights_is_not_asked(world: World, task: TaskBundle) -> None:
    engine = world.engine(lambda *_: "yes")
    policy = PolicyRef(weights="run-1.a1@v3", version=3)
    report = await run_group(world.job(task, policy=policy), world.services())
    assert "has weights 'default', not 'run-1.a1@v3'" in report.error
    assert engine.requests == []


async def test_the_router_is_sampled_from_and_the_engines_say_what_they_hold(world: World, task: TaskBundle) -> None:
    engine, router = world.engine(lambda *_: "yes"), world.engine(lambda *_: "yes", "http://router")
    services = dataclasses.replace(world.services(), engine_urls=("http://one",), router_url="http://router")
    report = await run_group(world.job(task), services)
    assert report.error == ""
    assert (len(engine.requests), len(router.requests)) == (0, 4)
    assert engine.closed and router.closed


async def test_groups_spread_over_engines_and_one_group_stays_together() -> None:
    urls = ["http://a", "http://b", "http://c"]
    firsts = [order_engines(f"g{i}", urls)[0] for i in range(300)]
    assert {url: 60 < firsts.count(url) < 140 for url in urls} == dict.fromkeys(urls, True)
    assert order_engines("g1", urls) == order_engines("g1", list(reversed(urls)))


async def test_an_engine_that_dies_midway_leaves_the_others_scored(world: World, task: TaskBundle) -> None:
    def script(episode: int, conversation: str) -> str:
        if episode == 2:
            raise WorkerError(Boundary.ENGINE, "connection reset")
        return "yes"

    world.engine(script)
    report = await run_group(world.job(task), world.services())
    assert [e.reward for e in report.episodes] == [1.0, 1.0, None, 1.0]
    assert report.episodes[2].boundary is Boundary.ENGINE


async def test_the_deadline_ends_what_hangs_and_aborts_it(world: World, task: TaskBundle) -> None:
    engine = world.engine(lambda episode, _: "<hang>" if episode == 1 else "yes")
    started = time.monotonic()
    report = await run_group(world.job(task, deadline=time.time() + 1.0), world.services())
    assert time.monotonic() - started < 60
    assert [e.reward for e in report.episodes] == [1.0, None, 1.0, 1.0]
    assert "deadline" in report.episodes[1].message
    assert engine.aborted == ["g1.1.1.0"]


async def test_a_job_past_its_deadline_does_nothing(world: World, task: TaskBundle) -> None:
    engine = world.engine(lambda *_: "yes")
    report = await run_group(world.job(task, deadline=time.time() - 1), world.services())
    assert "deadline" in report.error
    assert engine.requests == []


async def test_cancelling_a_group_aborts_its_requests_and_closes_its_sandboxes(world: World, task: TaskBundle) -> None:
    engine = world.engine(lambda _, text: "<hang>" if "<q=" in text else 'look(q="a")')
    running = asyncio.create_task(run_group(world.job(task), world.services()))
    while world.backend.started < 4 or engine.num_running or len(engine.requests) < 8:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(engine.aborted) == [f"g1.1.{i}.1" for i in range(4)]
    assert world.backend.closed == 4


async def test_a_missing_task_is_reported(world: World, task: TaskBundle) -> None:
    world.engine(lambda *_: "yes")
    job = msgspec.structs.replace(world.job(task), task="objects/aa/missing")
    report = await run_group(job, world.services())
    assert "is missing" in report.error
    assert report.boundary == Boundary.INFRASTRUCTURE
