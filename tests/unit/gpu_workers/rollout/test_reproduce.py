"""Stored episodes played again through the real sandbox and the real verifier."""

import msgspec
import pytest

from gpu_workers.contracts.enums import Boundary, StopReason, Verdict, VerifierKind
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, ToolSpec, VerifierSpec
from tests.support.replays import RANDOM_VERIFIER, Bench, make_task


async def test_a_deterministic_episode_reproduces_call_by_call(bench: Bench) -> None:
    job = await bench.store_episode(make_task(), "count()", "count()", "Two.")
    assert bench.stored(job).success
    report = await bench.reproduce(job)
    assert (report.error, report.verdict, report.reward, report.left_path) == ("", Verdict.PASS, 1.0, False)
    assert [(call.name, call.stored, call.reproduced, call.same) for call in report.calls] == [
        ("count", "1", "1", True),
        ("count", "2", "2", True),
    ]
    assert report.digest == report.stored_digest != ""
    assert "bubblewrap" in report.sandbox.isolation
    again = await bench.reproduce(job)
    assert again.digest == report.digest, "a replay leaves nothing behind for the next one"


async def test_a_failed_episode_reproduces_as_failed(bench: Bench) -> None:
    report = await bench.reproduce(await bench.store_episode(make_task(), "count()", "count(1, 2)", "One."))
    assert (report.verdict, report.reason_code) == ("fail", "WRONG_ANSWER")
    assert [call.same for call in report.calls] == [True, True]
    assert report.digest == report.stored_digest


async def test_a_random_tool_shows_where_it_differs(bench: Bench) -> None:
    job = await bench.store_episode(make_task(), "count()", "roll()", "count()", "Two.")
    report = await bench.reproduce(job)
    assert report.verdict == "pass"
    assert [call.same for call in report.calls] == [True, False, True]
    assert report.calls[1].stored != report.calls[1].reproduced
    assert report.digest != report.stored_digest


async def test_a_random_verifier_changes_its_mind(bench: Bench) -> None:
    task = make_task(verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program=RANDOM_VERIFIER))
    job = await bench.store_episode(task, "count()", "Two.")
    verdicts = {(await bench.reproduce(job)).verdict for _ in range(12)}
    assert verdicts == {"pass", "fail"}


async def test_a_verifier_that_changed_since_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await bench.store_episode(make_task(), "count()", "Two.")
    assert not (await bench.reproduce(job)).verifier_changed
    monkeypatch.setattr("gpu_workers.verifiers.results.judging_code", lambda: b"of another release")
    assert (await bench.reproduce(job)).verifier_changed


async def test_a_replay_that_leaves_the_stored_path_says_so(bench: Bench) -> None:
    """It was stored as cut off by time, but the call comes back: the episode would have gone on."""
    job = await bench.store_episode(make_task(), "count()", stop_reason=StopReason.TIMEOUT)
    report = await bench.reproduce(job)
    assert (report.error, report.left_path) == ("", True)


async def test_an_episode_cut_off_by_its_length_ends_the_same_way(bench: Bench) -> None:
    job = await bench.store_episode(make_task(), "count()")
    assert bench.stored(job).stop_reason is StopReason.LENGTH
    report = await bench.reproduce(job)
    assert (report.left_path, report.reason_code, report.digest == report.stored_digest) == (
        False,
        "FORMAT_INVALID",
        True,
    )


async def test_tool_time_runs_out_again(bench: Bench) -> None:
    sleep = ToolSpec(name="sleep", source="import time\ndef call(arguments):\n    time.sleep(60)\n    return 'x'\n")
    limits = Limits(tool_timeout_seconds=5, episode_timeout_seconds=0.5)
    task = make_task(tools=[sleep], contract=EnvironmentContract(limits=limits))
    job = await bench.store_episode(task, "sleep()")
    assert bench.stored(job).stop_reason is StopReason.TIMEOUT
    report = await bench.reproduce(job)
    assert (report.reason_code, report.left_path, report.digest == report.stored_digest) == (
        "AGENT_TIMEOUT",
        False,
        True,
    )


async def test_what_concludes_nothing_is_an_error_not_a_verdict(bench: Bench) -> None:
    job = await bench.store_episode(make_task(), "count()", "count()", "Two.")
    other = bench.store.put(msgspec.json.encode(make_task(key="other")))
    swapped = await bench.reproduce(msgspec.structs.replace(job, task=other))
    assert "was played on task" in swapped.error
    lost = msgspec.structs.replace(job.episode, transcript="objects/aa/missing")
    assert "missing" in (await bench.reproduce(msgspec.structs.replace(job, episode=lost))).error
    beyond = msgspec.structs.replace(job.episode, index=7)
    assert "lacks episode 7" in (await bench.reproduce(msgspec.structs.replace(job, episode=beyond))).error
    assert (swapped.verdict, swapped.digest) == ("", "")


async def test_a_host_without_sandboxes_concludes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await bench.store_episode(make_task(), "count()", "count()", "Two.")

    async def refuse(*_: object) -> None:
        raise WorkerError(Boundary.INFRASTRUCTURE, "SANDBOX_UNAVAILABLE: no user namespaces")

    made = bench.services.backend.create(make_task().contract)
    monkeypatch.setattr(type(made), "start", refuse)
    report = await bench.reproduce(job)
    assert "SANDBOX_UNAVAILABLE" in report.error
    assert report.verdict == ""
