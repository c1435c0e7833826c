"""What the gate of a task finds, each with its reason."""

# Programs are data here.
# ruff: noqa: E501

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


def vacuous_task(tests, reference, kind=VerifierKind.TESTS, **verifier):
    files = {"test_it.py": tests} if kind is VerifierKind.TESTS else {}
    config = {"answer_file": "solution.py"} if kind is VerifierKind.TESTS else {}
    spec = VerifierSpec(kind=kind, files=files, config=config, **verifier)
    return TaskBundle(key="k", prompt=[], verifier=spec, reference=[Message(role="assistant", content=reference)])


EACH = "from solution import f\ndef test():\n for x in f(3): assert x in (0, 1, 2)\n"
VACUOUS = {
    r"answers \[\] ": vacuous_task(EACH + " assert not isinstance(f(1), dict)", "def f(n): return list(range(n))"),
    r"answers \(\) ": vacuous_task(EACH + " assert not isinstance(f(1), (dict, list))", "def f(n): return tuple(range(n))"),
    "an empty text": vacuous_task("from solution import f\ndef test(): assert isinstance(f('ab'), str) and not any(map(str.isalpha, f('ab')))", "def f(t): return '*' * len(t)"),
    "its first argument": vacuous_task("from solution import f\ndef test(): assert f([1, 2]) == [1, 2]", "def f(xs): return [x for x in xs if x]"),
    "answers 0 ": vacuous_task("from solution import f\ndef test(): assert f([]) == 0", "def f(xs): return len(xs)"),
    "answers False ": vacuous_task("from solution import f\ndef test(): assert f(4) is False", "def f(n): return n == 3"),
    "an empty object": vacuous_task("from solution import f\ndef test(): assert f(4) not in (None, 0, 1, 4, '', [], (), {}) and not isinstance(f(4), float)", "class A: pass\ndef f(n): return A()"),
    "StopIteration": TaskBundle(
        key="k", prompt=[], reference=[Message(role="assistant", content="def f(n): return 2 * n")],
        verifier=VerifierSpec(kind=VerifierKind.TESTS, config={"answer_file": "solution.py", "isolation": "shared"},
                              files={"test_it.py": "from solution import f\ndef test():\n for got, want in zip(map(f, [1, 2]), [2, 4]): assert got == want"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", VACUOUS)
async def test_a_task_that_asks_nothing_is_refused(what):
    check = await check_task(VACUOUS[what], LocalBackend(), 1)
    assert not check.ok and re.search(what, check.message), check


ASK_FIELDS = """
import json
def verify(e):
    try: got = json.loads(e["answer"])
    except ValueError: return {"score": 0.0}
    want = {"name": "Ann", "age": 30, "city": "Rome"}
    return {"score": float(isinstance(got, dict) and CONDITION)}
"""
FIELDS = {
    "all(want.get(k) == v for k, v in got.items())": r"the answer \{\}",
    "all(want.get(k) == v for k, v in got.items()) and bool(got)": r'the answer \{"": null\}',
    "bool(got) and all(k in want and want[k] == v for k, v in got.items())": "one field .* and so does",
    "want == got": "",
    "got.get('age') == 30": "",  # all that counts is one field
}


@pytest.mark.parametrize("condition", FIELDS)
async def test_a_structure_without_its_content_earns_nothing(condition):
    spec = program(ASK_FIELDS.replace("CONDITION", condition))
    task = msgspec.structs.replace(
        GOOD,
        verifier=spec,
        known_bad=[],
        reference=[Message(role="assistant", content='{"name": "Ann", "age": 30, "city": "Rome"}')],
    )
    check = await check_task(task, LocalBackend(), 1)
    assert check.ok is not bool(FIELDS[condition]) and re.search(FIELDS[condition], check.message), check


OWN_PROCESS = {
    "exec": "space = {}; exec(e['answer'], space); f = space['f']",
    "compile": "space = {}; exec(compile(e['answer'], 'solution.py', 'exec'), space); f = space['f']",
    "import": "import sys, pathlib, tempfile; d = tempfile.mkdtemp(); pathlib.Path(d, 'cand.py').write_text(e['answer']); sys.path.insert(0, d); from cand import f",
    "runpy": "import runpy, pathlib, tempfile; p = pathlib.Path(tempfile.mkdtemp(), 'c.py'); p.write_text(e['answer']); f = runpy.run_path(str(p))['f']",
    "apart": "from ratchet_verifier import open_candidate; f = open_candidate({'answer.py': e['answer']}).module('answer').f",
}


@pytest.mark.parametrize("how", OWN_PROCESS)
async def test_a_program_that_executes_the_answer_itself_is_refused(how):
    source = f"def verify(e):\n    try:\n        {OWN_PROCESS[how]}\n        return {{'score': float(f(3) == 6 and f(4) == 8)}}\n    except Exception:\n        return {{'score': 0.0}}\n"
    reference = [Message(role="assistant", content="def f(n):\n    return 2 * n")]
    task = msgspec.structs.replace(GOOD, verifier=program(source), known_bad=[], reference=reference)
    check = await check_task(task, LocalBackend(), 1)
    assert check.ok is (how == "apart") and ("in its own process" in check.message) is (how != "apart"), check


@pytest.mark.parametrize("scope", ["", ", {'__builtins__': {}}"])
async def test_a_program_that_evaluates_the_answer_is_refused(scope):
    source = (
        f"def verify(e):\n    return {{'score': float(bool(e['answer'].strip()) and eval(e['answer']{scope}) == 42)}}"
    )
    reference = [Message(role="assistant", content="6 * 7")]
    task = msgspec.structs.replace(GOOD, verifier=program(source), known_bad=[], reference=reference)
    check = await check_task(task, LocalBackend(), 1)
    assert not check.ok and "in its own process" in check.message, check


@pytest.mark.parametrize("how", ["json.loads", "eval"])
async def test_a_program_that_reads_a_file_without_code_is_tried_with_code_in_its_place(how):
    source = f"import json\ndef verify(e):\n    try:\n        return {{'score': float({how}(e['files']['out.json']) == [6, 8])}}\n    except Exception:\n        return {{'score': 0.0}}\n"
    call = "write_file(path='out.json', content='[6, 8]')"
    reference = [
        Message(role=role, content=text)
        for role, text in (("assistant", call), ("tool", "wrote"), ("assistant", "Done."))
    ]
    task = msgspec.structs.replace(
        GOOD,
        verifier=program(source),
        known_bad=[],
        reference=reference,
        tools=[ToolSpec(name="write_file")],
        max_turns=3,
    )
    check = await check_task(task, LocalBackend(), 1)
    assert check.ok is (how == "json.loads") and ("in its own process" in check.message) is (how == "eval"), check
