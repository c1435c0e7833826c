"""What every verifier promises."""

import math
from dataclasses import dataclass

import msgspec
import pytest

from gpu_workers.contracts.enums import ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode, WorkerError
from gpu_workers.contracts.tasks import (
    EnvironmentContract,
    Limits,
    Message,
    TaskBundle,
    ToolSpec,
    VerifierPart,
    VerifierSpec,
)
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.judge import JudgeEndpoint
from gpu_workers.verifiers.registry import get_verifier
from gpu_workers.verifiers.results import TaskError
from tests.unit.gpu_workers.verifiers.judge_server import judge_server, verdict

PROGRAM = """
def verify(episode):
    text = episode["answer"].strip()
    right = text == episode["expected"]
    return {"score": 1.0 if right else 0.0, "message": "" if right else "not " + episode["expected"]}
"""
SCRIPT = """
[ "$(cat answer.txt 2>/dev/null)" = yes ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
WRITE = ToolSpec(name="write_file")
TESTS = "from answer import double\n\ndef test_double():\n    assert double(2) == 4\n"
WEATHER = ToolSpec(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})


@dataclass(frozen=True)
class Case:
    """A verifier with one right and several wrong answers."""

    spec: VerifierSpec
    right: str
    wrong: tuple[str, ...]
    bad_expected: object
    answer_file: str = ""  # the answer is this file of the workspace, as a tool writes it
    needs_places: bool = False  # such as /tests, which only a sandbox with a root of its own has


CASES = {
    "exact": Case(
        VerifierSpec(kind=VerifierKind.EXACT, expected=["Paris"]), " paris\n", ("London", "Paris, France"), []
    ),
    "number": Case(VerifierSpec(kind=VerifierKind.NUMBER, expected=42), "Answer: 42.0", ("41", "none"), "many"),
    "tool_call": Case(
        VerifierSpec(kind=VerifierKind.TOOL_CALL, expected=[{"weather": {"city": ["Oslo"]}}], config={"partial": True}),
        'weather(city="oslo")',
        ('weather(city="Rome")', "weather()", "It rains.", 'weather(city="Oslo", city="Oslo")'),
        {"weather": {}},
    ),
    "program": Case(
        VerifierSpec(kind=VerifierKind.PROGRAM, program=PROGRAM, expected="yes"), "yes", ("no", "YES"), None
    ),
    "tests": Case(
        VerifierSpec(kind=VerifierKind.TESTS, files={"test_it.py": TESTS}, config={"answer_file": "answer.py"}),
        "def double(n): return 2 * n", ("def double(n): return n", "double = 4", "import os; os._exit(0)"), None,
    ),
    "script": Case(
        VerifierSpec(kind=VerifierKind.SCRIPT, files={"test.sh": SCRIPT}), "yes", ("no", "YES"), None,
        answer_file="answer.txt", needs_places=True,
    ),
    "composite": Case(
        VerifierSpec(
            kind=VerifierKind.COMPOSITE,
            parts=[
                VerifierPart(name="text", verifier=VerifierSpec(kind=VerifierKind.EXACT, expected="it is 42")),
                VerifierPart(name="number", verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=42)),
            ],
            config={"partial": True},
        ),
        "It is 42", ("It is 41", "42"), 7,
    ),
    "judge": Case(
        VerifierSpec(kind=VerifierKind.JUDGE, config={"model": "m", "rubric": "Is it yes?"}), "yes", ("no", "YES"), None
    ),
}  # fmt: skip
HOSTILE = (
    "",
    " \n",
    "\0",
    "\ud800",
    "(" * 2000,
    "[" * 9000,
    "9" * 10_000,
    "f(" + "-" * 3000 + "1)",
    "é" * 50_000,
    "nan",
)


@pytest.fixture(params=["bubblewrap", "local"])
async def backend(request, case):
    return await backend_of(request.param, case)


@pytest.fixture
async def quick_backend(case):
    """One that costs little, where the kind can do with it."""
    return await backend_of("bubblewrap" if case.needs_places else "local", case)


async def backend_of(name, case):
    if name == "local" and case.needs_places:
        pytest.skip("this kind needs a sandbox with a root of its own")
    made = BubblewrapBackend() if name == "bubblewrap" else LocalBackend()
    try:
        await made.probe()
    except WorkerError as error:
        pytest.skip(str(error))
    return made


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module", autouse=True)
def judge():
    """An endpoint whose model passes the answer `yes`."""
    with judge_server(lambda body: verdict(body, float("\nyes\n" in body["messages"][1]["content"]))) as server:
        yield JudgeEndpoint(server.url)


@pytest.fixture
def made(judge):
    return lambda case, backend: get_verifier(case.spec, backend, judge)


def task_of(case):
    reference = [Message(role="assistant", content=case.right)]
    if case.answer_file:
        call = f"write_file(path={case.answer_file!r}, content={case.right!r})"
        reference = [Message(role="assistant", content=call), Message(role="tool", content="wrote"), *reference]
    return TaskBundle(
        key="t", prompt=[Message(role="user", content="?")], tools=[WRITE if case.answer_file else WEATHER],
        terminal_call=not case.answer_file, verifier=case.spec, reference=reference, known_bad=list(case.wrong),
        contract=EnvironmentContract(limits=Limits(verify_timeout_seconds=10)),
    )  # fmt: skip


def episode_of(answer, case):
    files = {case.answer_file: answer.encode(errors="replace")} if case.answer_file else {}
    return FinishedEpisode(answer=answer, messages=[{"role": "assistant", "content": answer}], files=files)


def check_shape(result):
    assert (result.verdict == Verdict.ERROR) == (result.score is None)
    if result.score is not None:
        assert math.isfinite(result.score) and 0 <= result.score <= 1
    assert (result.verdict == Verdict.PASS) == (result.reason_code == ReasonCode.OK)
    assert len(result.verifier_hash) == 64 and result.duration_seconds > 0


async def test_the_right_answer_passes_with_the_full_score(case, backend, made):
    result = await made(case, backend).verify(task_of(case), episode_of(case.right, case))
    check_shape(result)
    assert (result.verdict, result.score) == (Verdict.PASS, 1.0)


async def test_wrong_answers_fail_with_a_reason_and_below_the_full_score(case, backend, made):
    verifier = made(case, backend)
    for answer in case.wrong:
        result = await verifier.verify(task_of(case), episode_of(answer, case))
        check_shape(result)
        assert result.verdict == Verdict.FAIL, answer
        assert result.score < 1
        assert result.message


async def test_the_empty_answer_earns_nothing(case, backend, made):
    result = await made(case, backend).verify(task_of(case), episode_of("", case))
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0)


async def test_the_same_episode_gets_the_same_result(case, backend, made):
    verifier = made(case, backend)
    for answer in (case.right, case.wrong[0]):
        first, second = [await verifier.verify(task_of(case), episode_of(answer, case)) for _ in range(2)]
        assert (first.verdict, first.score, first.reason_code) == (second.verdict, second.score, second.reason_code)


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
async def test_no_text_breaks_it_or_passes(case, answer, made, quick_backend):
    result = await made(case, quick_backend).verify(task_of(case), episode_of(answer, case))
    check_shape(result)
    assert result.verdict == Verdict.FAIL


async def test_the_tasks_gate_lets_it_through(case, backend, judge):
    check = await check_task(task_of(case), backend, repeats=2, task_id="id", judge=judge)
    assert (check.ok, check.message, check.task_id) == (True, "", "id")


@pytest.mark.parametrize("kind", ["exact", "number", "tool_call", "composite"])
def test_a_truth_of_the_wrong_form_is_refused(kind):
    case = CASES[kind]
    with pytest.raises(TaskError, match=r"verifier\.expected"):
        get_verifier(msgspec.structs.replace(case.spec, expected=case.bad_expected), LocalBackend())


def test_unknown_settings_are_refused(case):
    spec = msgspec.structs.replace(case.spec, config={**case.spec.config, "leniency": 1})
    with pytest.raises(TaskError, match=r"verifier.config.leniency: unknown"):
        get_verifier(spec, LocalBackend())
