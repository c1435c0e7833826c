"""Verdicts on texts and numbers."""

import time

import pytest

from gpu_workers.contracts.enums import ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.exact import ExactVerifier
from gpu_workers.verifiers.number import NumberVerifier
from gpu_workers.verifiers.registry import get_verifier
from gpu_workers.verifiers.results import TaskError


async def judge(made, kind, answer, expected, **config):
    spec = VerifierSpec(kind=kind, expected=expected, config=config)
    task = TaskBundle(key="t", prompt=[], verifier=spec)
    return await made(spec).verify(task, FinishedEpisode(answer=answer, messages=[]))


@pytest.mark.parametrize(
    ("answer", "expected", "config", "reason"),
    [
        ("  new   york ", "New York", {}, ReasonCode.OK),
        ("ﬁne", "fine", {}, ReasonCode.OK),
        ("b", ["a", "b"], {}, ReasonCode.OK),
        ("c", ["a", "b"], {}, ReasonCode.WRONG_ANSWER),
        ("New york", "New York", {"case_sensitive": True}, ReasonCode.WRONG_ANSWER),
        ("so: A. Answer: B", "b", {"pattern": r"[Aa]nswer: (\w)"}, ReasonCode.OK),
        ("I think B", "b", {"pattern": r"Answer: (\w)"}, ReasonCode.FORMAT_INVALID),
        ("a b", ["a", "b"], {}, ReasonCode.WRONG_ANSWER),
        (" ", "a", {}, ReasonCode.NO_OUTPUT),
    ],
)
async def test_text(answer, expected, config, reason):
    result = await judge(ExactVerifier, VerifierKind.EXACT, answer, expected, **config)
    assert result.reason_code == reason
    assert (result.verdict == Verdict.PASS) == (reason == ReasonCode.OK)


@pytest.mark.parametrize(
    ("answer", "expected", "config", "reason"),
    [
        ("42", 42, {}, ReasonCode.OK),
        ("It is 42.", 42, {}, ReasonCode.OK),
        ("first 7, then 42.00", 42, {}, ReasonCode.OK),
        ("42, not 7", 42, {}, ReasonCode.WRONG_ANSWER),
        ("1,234.50", 1234.5, {}, ReasonCode.OK),
        ("4.2e1", 42, {}, ReasonCode.OK),
        ("−3", -3, {}, ReasonCode.OK),
        ("0.1", 0.1, {}, ReasonCode.OK),
        ("0.30000000000000004", 0.3, {}, ReasonCode.WRONG_ANSWER),
        ("0.31", "0.3", {"tolerance": 0.01}, ReasonCode.OK),
        ("0.3101", "0.3", {"tolerance": 0.01}, ReasonCode.WRONG_ANSWER),
        ("42", [41, 42], {}, ReasonCode.OK),
        ("version 1.2.42", 42, {}, ReasonCode.FORMAT_INVALID),
        ("x42 42nd", 42, {}, ReasonCode.FORMAT_INVALID),
        ("nan inf", 42, {}, ReasonCode.FORMAT_INVALID),
        ("Answer: 5 (of 42)", 5, {"pattern": r"Answer: (\S+)"}, ReasonCode.OK),
        ("9" * 100, 9, {}, ReasonCode.FORMAT_INVALID),
        ("", 42, {}, ReasonCode.NO_OUTPUT),
    ],
)
async def test_numbers(answer, expected, config, reason):
    assert (await judge(NumberVerifier, VerifierKind.NUMBER, answer, expected, **config)).reason_code == reason


@pytest.mark.parametrize(
    ("made", "kind", "expected", "config", "error"),
    [
        (ExactVerifier, VerifierKind.EXACT, None, {}, "verifier.expected"),
        (ExactVerifier, VerifierKind.EXACT, ["a", " "], {}, "empty text"),
        (ExactVerifier, VerifierKind.EXACT, "a", {"pattern": "("}, "config.pattern"),
        (ExactVerifier, VerifierKind.EXACT, "a", {"pattern": "(a)(b)"}, "at most one group"),
        (NumberVerifier, VerifierKind.NUMBER, True, {}, "verifier.expected"),
        (NumberVerifier, VerifierKind.NUMBER, float("nan"), {}, "not finite"),
        (NumberVerifier, VerifierKind.NUMBER, [], {}, "verifier.expected"),
        (NumberVerifier, VerifierKind.NUMBER, 1, {"tolerance": -1}, "negative"),
        (NumberVerifier, VerifierKind.NUMBER, 1, {"tolerance": "1"}, "config.tolerance: Expected `float`"),
    ],
)
async def test_settings_that_cannot_judge_are_refused(made, kind, expected, config, error):
    with pytest.raises(TaskError, match=error):
        await judge(made, kind, "x", expected, **config)


async def test_a_text_that_makes_a_pattern_slow_is_the_texts_fault():
    spec = VerifierSpec(kind=VerifierKind.EXACT, expected="aaa", config={"pattern": "^(?:a|aa)+$"})
    task = TaskBundle(key="t", prompt=[], verifier=spec, reference=[Message(role="assistant", content="aaa")])
    started = time.monotonic()
    result = await get_verifier(spec, LocalBackend()).verify(
        task, FinishedEpisode(answer="a" * 5000 + "b", messages=[])
    )
    assert time.monotonic() - started < 60
    assert (result.verdict, result.score, result.reason_code) == ("fail", 0.0, "AGENT_TIMEOUT"), result


@pytest.mark.parametrize(
    ("name", "arguments", "credit"),
    [
        ("lookup", {"key": "ann"}, 0.25),
        ("shell", {"command": "printf 1%d 2"}, 0.0),
        ("read_file", {"path": "x"}, 0.0),
        ("add", {"a": 12, "b": 0}, 0.0),
    ],
)
async def test_a_result_that_the_policy_wrote_itself_earns_no_credit(name, arguments, credit):
    spec = VerifierSpec(
        kind=VerifierKind.NUMBER, expected={"answer": 360, "results": ["12", "30"]}, config={"results_credit": 0.5}
    )
    messages = [{"role": "tool", "content": "12", "name": name, "arguments": arguments, "ok": True}]
    task = TaskBundle(key="t", prompt=[], verifier=spec)
    result = await NumberVerifier(spec).verify(task, FinishedEpisode(answer="1", messages=messages, files={}))
    assert (result.verdict, result.score) == ("fail", credit)
