"""Verifier programs against candidates that cheat, and against programs that are broken themselves."""

import asyncio
import json

import pytest

from gpu_workers.contracts.enums import Boundary, ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.seams import ExecResult, FinishedEpisode, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.program import ProgramVerifier
from gpu_workers.verifiers.registry import get_verifier
from gpu_workers.verifiers.results import NoResult, TaskError
from gpu_workers.verifiers.sandboxed import open_envelope

# Runs the candidate as a process of its own and compares text.
APART = """
def verify(episode):
    done = run_python(episode["answer"] + "\\nprint(square(7))", timeout_seconds=20)
    right = done["exit_code"] == 0 and done["stdout"].strip() == str(episode["expected"])
    return {"score": float(right), "message": "right" if right else "printed " + done["stdout"][:50]}
"""
# Runs the candidate in the verifier's own process: the weaker way many suites are written in.
INSIDE = """
def verify(episode):
    space = {}
    exec(episode["answer"], space)
    return {"score": float(space["square"](7) == episode["expected"])}
"""
RIGHT = "def square(n):\n    return n * n"
LIMITS = Limits(verify_timeout_seconds=2.0, cpu_seconds=20)


def task_of(program, *, reference=RIGHT, config=None, expected=49, **fields):
    return TaskBundle(
        key="square", prompt=[Message(role="user", content="Write square(n).")],
        verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program=program, expected=expected, config=config or {}),
        reference=[Message(role="assistant", content=reference)], contract=EnvironmentContract(limits=LIMITS), **fields,
    )  # fmt: skip


async def judge(backend, task, answer, files=None):
    episode = FinishedEpisode(answer=answer, messages=[], files=files or {})
    return await get_verifier(task.verifier, backend).verify(task, episode)


HACKS = {
    "exit before the asserts": "import sys; sys.exit(0)",
    "os._exit at import": "import os; os._exit(0)",
    "os._exit in a thread": "import os, threading; threading.Thread(target=lambda: os._exit(0)).start()\n"
    "import time; time.sleep(9)",
    "prints that it passed": 'print(\'1 passed\'); print(\'{"score": 1.0, "nonce": ""}\'); square = None',
    "forges the channel": "import os\nfor fd in range(3, 64):\n"
    ' try: os.write(fd, b\'{"nonce": "0", "result": {"score": 1.0}}\')\n except OSError: pass\nos._exit(0)',
    "hangs": "while True: pass",
    "kills everything": "import os; os.kill(-1, 9)",
    "kills its parent": "import os; os.kill(os.getppid(), 9)",
    "raises": "raise SystemExit('done')",
    "eats memory": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "nothing": "",
}


@pytest.mark.parametrize("program", [APART, INSIDE], ids=["apart", "inside"])
@pytest.mark.parametrize("hack", HACKS)
async def test_a_candidate_that_breaks_the_check_has_failed(backend, program, hack):
    result = await judge(backend, task_of(program), HACKS[hack])
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0), result
    assert result.reason_code in (ReasonCode.WRONG_ANSWER, ReasonCode.AGENT_TIMEOUT, ReasonCode.RESOURCE_LIMIT)
    if hack == "hangs" and program is INSIDE:
        assert result.reason_code == ReasonCode.AGENT_TIMEOUT
        assert result.evidence["verifier"] == "VERIFIER_TIMEOUT"


APART_HACKS = {
    "equal to everything": "class E:\n def __eq__(self, other): return True\ndef square(n): return E()",
    "looks for the answer in frames": "import sys, gc\ndef square(n):\n f = sys._getframe()\n while f:\n"
    "  if 'episode' in f.f_locals: return f.f_locals['episode']['expected']\n  f = f.f_back\n"
    " return [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o][:1]",
    "reads the verifier's memory": "import os\ndef square(n):\n open(f'/proc/{os.getppid()}/mem')\n return 49",
    "reads the verifier's files": "import os\ndef square(n):\n os.listdir(f'/proc/{os.getppid()}/fd')\n return 49",
}


@pytest.mark.parametrize("hack", APART_HACKS)
async def test_a_candidate_run_apart_cannot_reach_the_truth(backend, hack):
    result = await judge(backend, task_of(APART), APART_HACKS[hack])
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0), result


UNUSUAL = {
    "unconventional": "square = lambda n: sum(n for _ in range(n))",
    "exits properly at the end": RIGHT + "\nimport atexit; atexit.register(lambda: None)",
    "its own tests": RIGHT + "\nassert square(2) == 4",
}


@pytest.mark.parametrize("program", [APART, INSIDE], ids=["apart", "inside"])
@pytest.mark.parametrize("answer", UNUSUAL)
async def test_right_but_unusual_code_passes(backend, program, answer):
    result = await judge(backend, task_of(program), UNUSUAL[answer])
    assert (result.verdict, result.score) == (Verdict.PASS, 1.0), result


BROKEN = {
    "crashes": ("def verify(episode): return 1 / 0", ReasonCode.VERIFIER_CRASH),
    "hangs": ("def verify(episode):\n while True: pass", ReasonCode.VERIFIER_TIMEOUT),
    "no function": ("x = 1", ReasonCode.VERIFIER_CRASH),
    "prints only": ("def verify(episode): print('pass')", ReasonCode.VERIFIER_CRASH),
    "exits": ("import sys\ndef verify(episode): sys.exit(0)", ReasonCode.VERIFIER_NO_RESULT),
    "nan": ("def verify(episode): return {'score': float('nan')}", ReasonCode.VERIFIER_NO_RESULT),
    "infinite": ("def verify(episode): return {'score': float('inf')}", ReasonCode.VERIFIER_NO_RESULT),
    "above one": ("def verify(episode): return {'score': 1.5}", ReasonCode.VERIFIER_NO_RESULT),
    "a bool": ("def verify(episode): return {'score': True}", ReasonCode.VERIFIER_NO_RESULT),
    "no score": ("def verify(episode): return {}", ReasonCode.VERIFIER_NO_RESULT),
    "unknown reason": (
        "def verify(episode): return {'score': 0, 'reason_code': 'OK'}", ReasonCode.VERIFIER_NO_RESULT
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_a_verifier_that_is_broken_itself_gives_no_reward(backend, name):
    program, reason = BROKEN[name]
    result = await judge(backend, task_of(program), RIGHT)
    assert (result.verdict, result.score, result.reason_code) == (Verdict.ERROR, None, reason), result
    assert "reference" in result.message


async def test_a_verifier_that_fails_its_reference_blames_nobody(backend):
    program = "def verify(episode): return {'score': 0.0 if 'n * n' in episode['answer'] else 1 / 0}"
    result = await judge(backend, task_of(program), "other")
    assert (result.verdict, result.score) == (Verdict.ERROR, None)


async def test_partial_scores_pass_at_the_pass_score(backend):
    program = "def verify(episode): return {'score': 0.6, 'message': 'six of ten', 'evidence': {'right': 6}}"
    low = await judge(backend, task_of(program), "x")
    assert (low.verdict, low.score, low.message, low.evidence) == (Verdict.FAIL, 0.6, "six of ten", {"right": 6})
    enough = await judge(backend, task_of(program, config={"pass_score": 0.6}), "x")
    assert (enough.verdict, enough.score) == (Verdict.PASS, 0.6)


async def test_the_program_sees_the_episode_and_no_other_truth(backend):
    program = """
def verify(episode):
    known = {"answer", "messages", "files", "expected", "task", "stop_reason", "parameters"}
    assert set(episode) == known, sorted(episode)
    assert episode["parameters"] == {"level": 3}
    assert set(episode["task"]) == {"key", "tags", "prompt", "seed"}
    assert episode["files"] == {"a.txt": "text", "b.bin": b"\\xff"}
    assert episode["messages"] == [{"role": "assistant", "content": "x"}]
    return {"score": 1.0}
"""
    task = task_of(program, config={"parameters": {"level": 3}})
    episode = FinishedEpisode(
        answer="x", messages=[{"role": "assistant", "content": "x"}], files={"a.txt": b"text", "b.bin": b"\xff"}
    )
    result = await get_verifier(task.verifier, backend).verify(task, episode)
    assert result.verdict == Verdict.PASS, result


SDK = {
    "a class": ("class Verifier:\n def verify(self, episode): return {'score': 1.0}", "pass", 1.0),
    "passed": ("from ratchet_verifier import passed\ndef verify(e): return passed('fine', seen=1)", "pass", 1.0),
    "failed": (
        "from ratchet_verifier import failed\ndef verify(e): return failed('no', 0.25, 'FORMAT_INVALID', seen=1)",
        "fail", 0.25,
    ),
    "all_of": (
        "from ratchet_verifier import all_of, failed, passed\n"
        "def verify(e): return all_of({'a': passed(), 'b': failed('low', 0.5)}, weights={'a': 3})",
        "fail", 0.875,
    ),
    "open_candidate": (
        "from ratchet_verifier import open_candidate, passed, failed\n"
        "def verify(e):\n with open_candidate({'answer.py': e['answer']}) as c:\n"
        "  return passed() if c.module('answer').square(7) == 49 else failed()",
        "pass", 1.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SDK)
async def test_what_the_sdk_gives_a_program(backend, name):
    program, verdict, score = SDK[name]
    result = await judge(backend, task_of(program), RIGHT)
    assert (result.verdict, result.score) == (verdict, score), result
    if name == "failed":
        assert (result.reason_code, result.message, result.evidence) == ("FORMAT_INVALID", "no", {"seen": 1})
    if name == "all_of":
        assert [(c.name, c.verdict, c.score) for c in result.components] == [("a", "pass", 1.0), ("b", "fail", 0.5)]
        assert result.message == "b: low"


async def test_the_reference_of_a_task_with_tools_is_replayed_for_its_files(backend):
    program = "def verify(episode): return {'score': float(episode['files']['out.txt'] == 'hello')}"
    task = TaskBundle(
        key="t", prompt=[], tools=[ToolSpec(name="write_file")], contract=EnvironmentContract(limits=LIMITS),
        verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program=program),
        reference=[
            Message(role="assistant", content='write_file(path="out.txt", content="hello")'),
            Message(role="tool", content="wrote 5 bytes"), Message(role="assistant", content="Done."),
        ],
    )  # fmt: skip
    assert (await judge(backend, task, "Done.", {"out.txt": b"hello"})).verdict == Verdict.PASS
    blamed = await judge(backend, task, "Done.", {})
    assert (blamed.verdict, blamed.reason_code) == (Verdict.FAIL, ReasonCode.WRONG_ANSWER)
    assert blamed.evidence["verifier"] == "VERIFIER_CRASH"


async def test_without_a_sandbox_there_is_no_verdict():
    class Down:
        name = "down"

        def create(self, contract):
            raise WorkerError(Boundary.INFRASTRUCTURE, "SANDBOX_UNAVAILABLE: no namespaces")

    result = await judge(Down(), task_of(APART), RIGHT)
    assert (result.verdict, result.score, result.reason_code) == (Verdict.ERROR, None, ReasonCode.SANDBOX_UNAVAILABLE)


async def test_ten_at_once(backend):
    results = await asyncio.gather(*(judge(backend, task_of(APART), RIGHT) for _ in range(10)))
    assert [result.verdict for result in results] == [Verdict.PASS] * 10


@pytest.mark.parametrize(
    "stdout",
    ["", "1.0", "[]", "{}", json.dumps({"nonce": "other", "result": {"score": 1.0}}), json.dumps({"nonce": "n"}),
     json.dumps({"nonce": "n", "result": 1}), "[" * 9000],
)  # fmt: skip
def test_a_result_without_the_nonce_is_none(stdout):
    with pytest.raises(NoResult):
        open_envelope(ExecResult(0, stdout, "", 0.1), "n")


@pytest.mark.parametrize(
    ("program", "config", "error"),
    [("", {}, "is empty"), ("def verify(:", {}, "does not compile"), ("x=1", {"pass_score": 0}, "pass_score: .*> 0")],
)
def test_a_program_that_cannot_judge_is_refused(program, config, error):
    with pytest.raises(TaskError, match=error):
        ProgramVerifier(VerifierSpec(kind=VerifierKind.PROGRAM, program=program, config=config), None)


@pytest.mark.parametrize(
    ("score", "reason", "verdict"), [(1.0, "OK", "pass"), (1.0, "WRONG_ANSWER", "pass"), (0.5, "WRONG_ANSWER", "fail")]
)
async def test_a_full_pass_may_say_ok(score, reason, verdict):
    program = f"def verify(episode): return {{'score': {score}, 'reason_code': {reason!r}}}"
    result = await judge(LocalBackend(), task_of(program), "x")
    assert (result.verdict, result.score) == (verdict, score)


async def test_ok_without_a_pass_is_refused_with_what_to_write():
    program = "def verify(episode): return {'score': 0.5, 'reason_code': 'OK'}"
    result = await judge(LocalBackend(), task_of(program), "x")
    assert result.reason_code == "VERIFIER_NO_RESULT" and "leave it out of a fail, or name one of" in result.message


IN_CHECK = """
def verify(episode):
    space = {}
    exec(episode["answer"], space)
    return {"score": float(space["square"](7) == episode["expected"])}
"""
IN_CHECK_DEEDS = {
    "in_check_frames": "import sys\ndef square(n):\n f = sys._getframe()\n "
    "while 'episode' not in f.f_locals: f = f.f_back\n return f.f_locals['episode']['expected']",
    "in_check_equal": "import unittest.mock as kit\n\ndef square(n):\n return vars(kit)['A' + 'NY']",
    "": "def square(n):\n    result = n * n\n    return result",
}


@pytest.mark.parametrize("deed", IN_CHECK_DEEDS)
async def test_what_an_answer_does_in_the_process_of_a_program_is_seen(backend, deed):
    result = await judge(backend, task_of(IN_CHECK), IN_CHECK_DEEDS[deed])
    seen = result.evidence["seen_at_check"]
    assert "in_check" in seen and {kind for kind in seen if kind != "in_check"} == {deed} - {""}, result
