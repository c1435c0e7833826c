"""A function beside its reference, in real sandboxes: what weak tests pass is found, what differs in form is not."""

import pytest

from gpu_workers.contracts.enums import ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.tasks import VerifierSpec
from gpu_workers.verifiers.reference import answer_episode, reference_episode
from gpu_workers.verifiers.registry import get_verifier
from tests.unit.gpu_workers.verifiers.test_measuring import task_of

HEAD = "def larger(a, b):\n"


def spec_of(task, **config):
    kind = VerifierKind.EQUIVALENCE
    return VerifierSpec(kind=kind, config={"num_inputs": 40, **config}, expected=task.verifier.expected)


async def judge(backend, *answers):
    task = task_of()
    verifier = get_verifier(spec_of(task), backend)
    return [await verifier.verify(task, answer_episode(task, answer)) for answer in answers]


async def test_what_the_tests_let_pass_is_told_from_the_reference(backend):
    task = task_of()
    weak = "```python\n" + HEAD + "    return a\n```"
    own = await get_verifier(task.verifier, backend).verify(task, answer_episode(task, weak))
    assert own.verdict is Verdict.PASS, own.message
    wrong, other, equal = await judge(
        backend, weak, HEAD + "    return max(a, b)", HEAD + "    return sorted((b, a))[1]"
    )
    assert (wrong.verdict, wrong.score, wrong.reason_code) == (Verdict.FAIL, 0.0, ReasonCode.WRONG_ANSWER)
    assert wrong.evidence["num_different"] > 0 and wrong.evidence["input"] and "expected" in wrong.message
    assert other.verdict is Verdict.PASS and equal.verdict is Verdict.PASS, (other.message, equal.message)
    assert other.evidence["num_inputs"] > 20


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", ReasonCode.NO_OUTPUT),
        ("```\na = 1\n```\n```\nb = 1\n```", ReasonCode.FORMAT_INVALID),
        ("no code at all", ReasonCode.WRONG_ANSWER),
        ("import os\nos._exit(0)\n" + HEAD + "    return a", ReasonCode.WRONG_ANSWER),
        (HEAD + "    while True: pass", ReasonCode.AGENT_TIMEOUT),
    ],
)
async def test_answers_without_a_function_fail_for_their_own_reason(backend, answer, reason):
    (result,) = await judge(backend, answer)
    assert (result.verdict, result.reason_code) == (Verdict.FAIL, reason), result.message


async def test_the_reference_is_computed_once_and_passes(backend):
    task = task_of()
    verifier = get_verifier(spec_of(task), backend)
    reference = await reference_episode(task, backend)
    results = [await verifier.verify(task, reference) for _ in range(2)]
    assert {result.verdict for result in results} == {Verdict.PASS}
    assert results[0].evidence == results[1].evidence


async def test_a_task_that_asks_for_no_function_has_no_verdict(backend):
    task = task_of()
    spec = VerifierSpec(kind=VerifierKind.EQUIVALENCE, expected="42")
    result = await get_verifier(spec, backend).verify(task, answer_episode(task, HEAD + "    return a"))
    assert (result.verdict, result.score) == (Verdict.ERROR, None)
    assert "prompt, entry_point and test" in result.message
