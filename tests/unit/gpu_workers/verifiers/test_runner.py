"""Runs that disagree: whose doing that is, told by the task's reference."""

import itertools

import pytest

from gpu_workers.contracts.enums import ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.results import NoResult, SandboxDied, failed, passed
from gpu_workers.verifiers.runner import VerifierRunner

SPEC = VerifierSpec(kind=VerifierKind.EXACT, expected="right", repeats=4)
TASK = TaskBundle(key="t", prompt=[], verifier=SPEC, reference=[Message(role="assistant", content="right")])
LOW, HIGH = failed(ReasonCode.FORMAT_INVALID, "lost", score=0.25), failed(ReasonCode.WRONG_ANSWER, "near", score=0.5)
CRASH = NoResult(ReasonCode.VERIFIER_CRASH, "broke")


class Scripted:
    """Gives the results in turn, over and over; those of the reference's answer apart."""

    def __init__(self, results, reference):
        self.results, self.reference, self.asked = itertools.cycle(results), itertools.cycle(reference), []

    async def verify(self, task, episode):
        self.asked.append(episode.answer)
        result = next(self.reference if episode.answer == "right" else self.results)
        if isinstance(result, Exception):
            raise result
        return result


async def judge(results, reference, task=TASK, times=1):
    kind = Scripted(results, reference)
    runner = VerifierRunner(SPEC, kind, LocalBackend())
    return [await runner.verify(task, FinishedEpisode(answer="other", messages=[])) for _ in range(times)], kind


@pytest.mark.parametrize(
    ("results", "score", "reason"),
    [
        ([HIGH, LOW], 0.25, "FORMAT_INVALID"),
        ([passed(), HIGH], 0.5, "WRONG_ANSWER"),
        ([passed(), passed(score=0.9)], 0.9, "WRONG_ANSWER"),
    ],
)
async def test_an_answer_that_makes_runs_differ_fails_with_its_lowest_score(results, score, reason):
    (first, second), kind = await judge(results, [passed()], times=2)
    assert (first.verdict, first.score, first.reason_code) == (Verdict.FAIL, score, reason)
    assert len(first.evidence["runs"]) == 4 and second.verdict == first.verdict
    assert kind.asked == ["other"] * 4 + ["right"] * 4 + ["other"] * 4, "the reference is tried once for a group"


@pytest.mark.parametrize("reference", [[passed(), HIGH], [HIGH], [CRASH]])
async def test_a_verifier_that_is_not_steady_on_the_reference_either_is_flaky(reference):
    results, _ = await judge([passed(), HIGH], reference)
    assert (results[0].verdict, results[0].score) == (Verdict.QUARANTINED, None)


async def test_without_a_reference_nobody_is_blamed():
    results, _ = await judge([passed(), HIGH], [passed()], TaskBundle(key="t", prompt=[], verifier=SPEC))
    assert results[0].verdict == Verdict.QUARANTINED


async def test_runs_that_agree_need_no_reference():
    results, kind = await judge([HIGH], [passed()])
    assert (results[0].score, kind.asked) == (0.5, ["other"] * 4)


async def test_a_pass_after_a_sandbox_that_ended_says_so_and_a_check_that_was_broken_has_no_second_try():
    died = SandboxDied(ReasonCode.VERIFIER_CRASH, "the host ran out of memory")
    (again,), _ = await judge([died, passed(evidence={"n": 1}), *[passed(evidence={"n": 1})] * 3], [passed()])
    assert (again.verdict, again.evidence) == (Verdict.PASS, {"n": 1, "run_again": str(died)})
    (broken,), kind = await judge([CRASH, passed()], [passed()])
    assert (broken.verdict, broken.score, kind.asked[:2]) == (Verdict.FAIL, 0.0, ["other", "right"])
