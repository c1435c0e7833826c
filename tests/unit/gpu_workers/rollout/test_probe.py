"""Shortcut policies and stored episodes against the real verifiers."""

import msgspec

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.replays import ProbeItem, ProbeJob
from gpu_workers.contracts.tasks import Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.rollout.probe import probe_task
from gpu_workers.verifiers.shortcuts import guess_arguments, shortcut_turns, write_call
from tests.support.replays import RANDOM_VERIFIER, Bench, make_task


async def passes(bench: Bench, task: TaskBundle, **job: str) -> dict[str, str]:
    """Verdict of each shortcut policy on a task."""
    item = ProbeItem(task_id="t", task=bench.store.put(msgspec.json.encode(task)))
    probe = await probe_task(item, ProbeJob(job_id="j", report_id="r", items=[item], **job), bench.services)
    assert probe.error == ""
    return {shortcut.policy: shortcut.verdict for shortcut in probe.shortcuts}


def text_task(**changes: object) -> TaskBundle:
    values = {
        "key": "t",
        "prompt": [Message(role="user", content="Say Paris.")],
        "verifier": VerifierSpec(kind=VerifierKind.EXACT, expected="Lyon"),
    }
    return TaskBundle(**{**values, **changes})  # type: ignore[arg-type]


async def test_an_honest_task_is_passed_by_no_shortcut(bench: Bench) -> None:
    assert await passes(bench, text_task()) == {"copy_prompt": "fail", "empty": "fail", "refusal": "fail"}


async def test_a_constant_and_a_copied_prompt_pass_where_the_task_lets_them(bench: Bench) -> None:
    copied = text_task(verifier=VerifierSpec(kind=VerifierKind.EXACT, expected="Say Paris."))
    assert (await passes(bench, copied))["copy_prompt"] == "pass"
    assert (await passes(bench, text_task(), constant="Lyon"))["constant"] == "pass"


async def test_the_usual_tool_with_guessed_arguments_is_really_called(bench: Bench) -> None:
    add = ToolSpec(
        name="add",
        parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        source="def call(arguments):\n    return str(arguments['a'] + arguments['b'])\n",
    )
    task = text_task(
        prompt=[Message(role="user", content="What is 20 and 22?")],
        tools=[ToolSpec(name="look", source="def call(arguments):\n    return ''\n"), add],
        max_turns=2,
        verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=42),
    )
    assert (await passes(bench, task, tool="add"))["frequent_tool"] == "pass"
    assert (await passes(bench, task, tool="look"))["frequent_tool"] == "fail"


async def test_a_verifier_of_exit_codes_is_passed_by_doing_nothing(bench: Bench) -> None:
    weak = VerifierSpec(kind=VerifierKind.PROGRAM, program="def verify(episode):\n    return {'score': 1}\n")
    assert set((await passes(bench, text_task(verifier=weak))).values()) == {"pass"}


async def test_stored_verdicts_that_repeat_and_that_do_not(bench: Bench) -> None:
    steady = await bench.store_episode(make_task(), "count()", "count()", "Two.")
    item = ProbeItem(task_id="t", task=steady.task, stored=[steady.episode])
    probe = await probe_task(item, ProbeJob(job_id="j", report_id="r", items=[item]), bench.services)
    (verdict,) = probe.stored
    assert (verdict.stored, verdict.again, verdict.agreed) == ("pass 1", ["pass 1", "pass 1"], True)

    task = make_task(verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program=RANDOM_VERIFIER))
    thrown = await bench.store_episode(task, "count()", "Two.")
    item = ProbeItem(task_id="t", task=thrown.task, stored=[thrown.episode])
    probe = await probe_task(item, ProbeJob(job_id="j", report_id="r", items=[item], repeats=8), bench.services)
    assert not probe.stored[0].agreed
    assert not all(shortcut.agreed for shortcut in probe.shortcuts)


async def test_what_cannot_be_read_is_said(bench: Bench) -> None:
    item = ProbeItem(task_id="t", task="objects/aa/missing")
    probe = await probe_task(item, ProbeJob(job_id="j", report_id="r", items=[item]), bench.services)
    assert "missing" in probe.error
    assert probe.shortcuts == []


def test_guessed_arguments_follow_type_and_prompt() -> None:
    properties = {
        "city": {"type": "string"},
        "unit": {"enum": ["km", "mile"]},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "all": {"type": "boolean"},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "more": {"type": "string"},
    }
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": properties, "required": list(properties)[:6]})
    guessed = guess_arguments(tool, "From 'Rome', 3 of 2.5, then 7")
    assert guessed == {"city": "Rome", "unit": "km", "n": 3, "x": 2.5, "all": True, "ids": [7]}
    assert write_call("f", {"a": "x'y"}, "python") == 'f(a="x\'y")'
    assert write_call("f", {"a": 1}, "json") == '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_only_policies_that_can_play_the_task_are_there() -> None:
    assert set(shortcut_turns(text_task())) == {"empty", "refusal", "copy_prompt"}
    assert set(shortcut_turns(make_task(), constant="x", tool="roll")) == {
        "empty", "refusal", "copy_prompt", "constant", "frequent_tool",
    }  # fmt: skip
