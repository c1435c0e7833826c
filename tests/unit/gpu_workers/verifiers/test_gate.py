"""What the gate of a task finds, each with its reason."""

import re

import msgspec
import pytest

from gpu_workers.contracts.enums import Boundary, VerifierKind
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.registry import get_verifier

GOOD = TaskBundle(
    key="k", prompt=[Message(role="user", content="6*7?")],
    verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=42),
    reference=[Message(role="assistant", content="Answer: 42")], known_bad=["41", "none"],
)  # fmt: skip


def program(source):
    return VerifierSpec(kind=VerifierKind.PROGRAM, program=source)


FLAKY = "import os\ndef verify(e): return {'score': float(e['answer'] != '' and os.urandom(1)[0] % 2)}"
CREDULOUS = "def verify(e): return {'score': 0.3 if not e['answer'] else float('42' in e['answer'])}"
CASES = {
    "good": ({}, True, "OK", ""),
    "no reference": ({"reference": []}, False, "TASK_INVALID", "no assistant turn"),
    "wrong reference": (
        {"reference": [Message(role="assistant", content="43")]}, False, "TASK_INVALID", "the reference should pass"
    ),
    "known bad passes": ({"known_bad": ["41", "42"]}, False, "TASK_INVALID", r"known_bad\[1\] should fail"),
    "bad truth": ({"verifier": VerifierSpec(kind=VerifierKind.NUMBER)}, False, "TASK_INVALID", "verifier.expected"),
    "bad tool": ({"tools": [ToolSpec(name="browse")]}, False, "TASK_INVALID", "not built in"),
    "network": ({"contract": EnvironmentContract(network=True)}, False, "TASK_INVALID", "contract.network"),
    "crash": ({"verifier": program("def verify(e): 1/0")}, False, "VERIFIER_CRASH", "ZeroDivisionError"),
    "nothing": ({"verifier": program("def verify(e): return {}")}, False, "VERIFIER_NO_RESULT", "no verdict"),
    "credit for nothing": ({"verifier": program(CREDULOUS)}, False, "TASK_INVALID", "doing nothing must earn 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_the_first_thing_wrong_is_named(name):
    changes, ok, reason, message = CASES[name]
    check = await check_task(msgspec.structs.replace(GOOD, **changes), LocalBackend(), 2, task_id="t1")
    assert (check.task_id, check.ok, check.reason_code) == ("t1", ok, reason), check
    assert re.search(message, check.message), check.message


async def test_repeats_that_disagree_are_flaky():
    task = msgspec.structs.replace(GOOD, verifier=program(FLAKY))
    check = await check_task(task, LocalBackend(), repeats=24)
    assert (check.ok, check.reason_code) == (False, "VERIFIER_FLAKY")


async def test_a_host_without_sandboxes_is_not_the_tasks_fault():
    class Down:
        name = "down"

        def create(self, contract):
            raise WorkerError(Boundary.INFRASTRUCTURE, "SANDBOX_UNAVAILABLE: no namespaces", retryable=False)

    with pytest.raises(WorkerError, match="SANDBOX_UNAVAILABLE"):
        await check_task(msgspec.structs.replace(GOOD, verifier=program(CREDULOUS)), Down(), 2)


@pytest.mark.parametrize(
    ("repeats", "bad_repeats", "runs", "times"), [(3, 0, 1, (3, 3)), (3, 1, 1, (3, 1)), (2, 1, 4, (4, 4))]
)
async def test_each_answer_is_judged_as_often_as_asked_or_as_the_contract_wants(
    monkeypatch, repeats, bad_repeats, runs, times
):
    judged: list[str] = []
    verifier = get_verifier(GOOD.verifier, LocalBackend())

    class Counting:
        async def verify(self, task, episode):
            judged.append(episode.answer)
            return await verifier.verify(task, episode)

    monkeypatch.setattr("gpu_workers.verifiers.gate.get_verifier", lambda *_: Counting())
    task = msgspec.structs.replace(GOOD, contract=EnvironmentContract(determinism_runs=runs))
    assert (await check_task(task, LocalBackend(), repeats, bad_repeats=bad_repeats)).ok
    reference, bad = times
    assert judged == ["Answer: 42"] * reference + [""] * bad + ["41"] * bad + ["none"] * bad


TESTED = {
    "honest": ("assert total([1, 5]) == 6", {}, True, ""),
    "nan rests on what the reference does not": (
        "assert 0.5 <= max(0.0, min(1.0, 1 - abs(total([1, 5]) - 6)))", {}, True, ""
    ),
    "any answer": ("assert total([1, 5]) != 7", {}, False, "None whatever it is asked should fail, but it passes"),
    "infinity": ("assert total([1, 5]) > 5", {"isolation": "shared"}, False, "answers inf"),
    "zero earns a part": (
        "assert total([]) == 0\ndef test_b(): assert total([1, 5]) == 6", {"partial": True}, False, r"0 whatever.*earns"
    ),
    "an argument handed back earns a part": (
        "assert total([]) in ([], 0)\ndef test_b(): assert total([7, 1]) == 8", {"partial": True}, False, r"earns 0.5"
    ),
    "parts that ask": (
        "assert total([1, 3]) == 4\ndef test_b(): assert total([1, 5]) == 6", {"partial": True}, True, ""
    ),
    "zero without parts": ("assert total([]) == 0\ndef test_b(): assert total([1, 5]) == 6", {}, True, ""),
    "vacuous": (
        "total([])\ndef test_b(): assert total([1, 5]) == 6", {"partial": True}, False, r"earns 0.5.*test_it::test"
    ),
}  # fmt: skip


@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("name", TESTED)
async def test_a_stub_must_earn_nothing(backend, name, by_file):
    body, config, ok, message = TESTED[name]
    code = "def total(n):\n    return sum(n)\n"
    tests = {"test_it.py": f"from solution import total\ndef test(): {body}\n"}
    config = config if by_file else config | {"answer_file": "solution.py"}
    reference = [Message(role="assistant", content=f"write_file(path='solution.py', content={code!r})"),
                 Message(role="tool", content="wrote"), Message(role="assistant", content="Done.")]  # fmt: skip
    task = TaskBundle(
        key="k", prompt=[], tools=[ToolSpec(name="write_file")] if by_file else [],
        verifier=VerifierSpec(kind=VerifierKind.TESTS, files=tests, config=config),
        reference=reference if by_file else [Message(role="assistant", content=code)],
    )  # fmt: skip
    check = await check_task(task, backend, 1)
    assert check.ok is ok, check
    assert re.search(message, check.message), check.message
